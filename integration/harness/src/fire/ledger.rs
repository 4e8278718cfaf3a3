//! What producers were told of each message.

use crate::fire::Rng;
use std::sync::Mutex;
use std::time::Instant;

/// One put. `key` is its own; the body follows from it.
#[derive(Clone, Debug)]
pub struct Entry {
    pub key: u64,
    pub topic: &'static str,
    pub partition: i32,
    pub outcome: Outcome,
    /// The reign, as the harness counts them, whose master was asked.
    pub reign: usize,
    /// When its producer asked.
    pub asked: Instant,
    /// And when it knew the outcome.
    pub at: Instant,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Acknowledged {
        id: i64,
        offset: u64,
    },
    /// Surely not stored.
    Refused,
    /// May be stored: no answer, or one that says so.
    Unknown,
}

impl Entry {
    /// The offset behind the message, where it was acknowledged.
    pub fn end(&self) -> Option<u64> {
        match self.outcome {
            Outcome::Acknowledged { offset, .. } => Some(offset + 20 + body(self.key).len() as u64),
            Outcome::Refused | Outcome::Unknown => None,
        }
    }
}

/// Every put so far.
#[derive(Debug, Default)]
pub struct Ledger(Mutex<Vec<Entry>>);

impl Ledger {
    pub fn note(&self, entry: Entry) {
        self.0.lock().expect("nobody panics with the ledger in hand").push(entry);
    }

    pub fn entries(&self) -> Vec<Entry> {
        self.0.lock().expect("nobody panics with the ledger in hand").clone()
    }
}

/// 1 to 8 KiB that name the key and follow from it.
pub fn body(key: u64) -> Vec<u8> {
    let mut rng = Rng::new(key);
    let length = rng.within(1024, 8 * 1024) as usize;
    let mut body = format!("{key:020} ").into_bytes();
    while body.len() < length {
        body.extend_from_slice(&rng.number().to_le_bytes());
    }
    body.truncate(length);
    body
}

/// The key that a body names, if it is whole.
pub fn key_of(bytes: &[u8]) -> Option<u64> {
    let key = std::str::from_utf8(bytes.get(..20)?).ok()?.parse().ok()?;
    (body(key) == bytes).then_some(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_names_its_key_and_damage_shows() {
        for key in [0, 1, 77, u64::MAX / 3] {
            let mut bytes = body(key);
            assert!((1024..8 * 1024).contains(&bytes.len()));
            assert_eq!(key_of(&bytes), Some(key));
            *bytes.last_mut().unwrap() ^= 1;
            assert_eq!(key_of(&bytes), None);
        }
        assert_eq!(key_of(b"short"), None);
    }
}
