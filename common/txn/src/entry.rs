//! The entries of the journal. Each is the body of a stored record, which brings length, checksum and an id.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use metaq_types::{Offset, PartitionId, TopicName};
use std::fmt::{Display, Write};

/// The first byte of every entry. A reader that meets another number passes the entry over and says so.
const FORM: u8 = 1;

/// The number of a transaction in its journal. Unlike its key it is never used twice.
pub(crate) type Number = u64;

/// A partition that a decision concerns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    pub(crate) partition: PartitionId,
    /// Of a commit: the batch is not before this place. Of `Applied`: it is here.
    pub(crate) at: Offset,
    /// Of a commit: how many messages. Of `Applied`: how many bytes.
    pub(crate) size: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Committed,
    RolledBack,
    /// Neither; the operator has seen to it elsewhere.
    Completed,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum What {
    /// A message; the id of its record is the message's id.
    Put {
        partition: PartitionId,
        flag: i32,
        body: Bytes,
    },
    /// `messages`: how many it has. Not known of entries of the first versions, and then not written either.
    Prepare {
        messages: Option<u32>,
    },
    /// The decision. `by_operator`: and a coordinator is to be told so later.
    Commit {
        by_operator: bool,
        parts: Vec<Part>,
    },
    /// Every batch of the decision is in its partition.
    Applied {
        parts: Vec<Part>,
    },
    Rollback {
        by_operator: bool,
    },
    /// Taken off the list by the operator without an effect.
    Complete,
    Forget,
    /// What follows repeats a transaction from its beginning, so that older entries of it need not be kept. Names the
    /// outcome of one that only waits to be forgotten.
    Again {
        outcome: Option<Outcome>,
    },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) number: Number,
    /// As on the wire, in every entry: one damaged record must not take the name of the others with it.
    pub(crate) key: String,
    pub(crate) what: What,
}

impl What {
    const fn tag(&self) -> u8 {
        match self {
            What::Put { .. } => 1,
            What::Prepare { .. } => 2,
            What::Commit { .. } => 3,
            What::Applied { .. } => 4,
            What::Rollback { .. } => 5,
            What::Complete => 6,
            What::Forget => 7,
            What::Again { .. } => 8,
        }
    }
}

/// `FORM tag number key`, then what the tag says; integers big-endian, texts with a 16-bit length in front.
pub(crate) fn encode(number: Number, key: &impl Display, what: &What) -> Bytes {
    let body_bytes = if let What::Put { body, .. } = what { body.len() } else { 0 };
    let mut out = BytesMut::with_capacity(128 + body_bytes);
    out.put_u8(FORM);
    out.put_u8(what.tag());
    out.put_u64(number);
    shown(&mut out, key);
    match what {
        What::Put { partition, flag, body } => {
            put_partition(&mut out, partition);
            out.put_i32(*flag);
            out.put_slice(body);
        }
        What::Commit { by_operator, parts } => {
            out.put_u8((*by_operator).into());
            put_parts(&mut out, parts);
        }
        What::Applied { parts } => put_parts(&mut out, parts),
        What::Rollback { by_operator } => out.put_u8((*by_operator).into()),
        What::Again { outcome } => out.put_u8(outcome_code(*outcome)),
        What::Prepare { messages } => messages.iter().for_each(|messages| out.put_u32(*messages)),
        What::Complete | What::Forget => {}
    }
    out.freeze()
}

fn text(out: &mut BytesMut, text: &str) {
    out.put_u16(length_16(text.len()));
    out.put_slice(text.as_bytes());
}

/// As [`text`], without a string in between.
fn shown(out: &mut BytesMut, text: &impl Display) {
    let place = out.len();
    out.put_u16(0);
    write!(out, "{text}").expect("memory takes all that is written");
    let length = length_16(out.len() - place - 2);
    out[place..place + 2].copy_from_slice(&length.to_be_bytes());
}

fn length_16(length: usize) -> u16 {
    u16::try_from(length).expect("keys and topics are bounded by the header line")
}

fn put_partition(out: &mut BytesMut, partition: &PartitionId) {
    text(out, &partition.topic);
    out.put_u32(partition.number);
}

fn put_parts(out: &mut BytesMut, parts: &[Part]) {
    out.put_u32(parts.len() as u32);
    for Part { partition, at, size } in parts {
        put_partition(out, partition);
        out.put_u64(at.get());
        out.put_u32(*size);
    }
}

fn outcome_code(outcome: Option<Outcome>) -> u8 {
    match outcome {
        None => 0,
        Some(Outcome::Committed) => 1,
        Some(Outcome::RolledBack) => 2,
        Some(Outcome::Completed) => 3,
    }
}

/// Why bytes whose checksum is right are no entry: another version wrote them.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "not an entry of this version: {0}; if a newer version of metaq ran on this data, stop this one and start that again, \
     since what the entry says is not known here; if none did, it is lost, and 'metaq txn list' shows what is left"
)]
pub(crate) struct NoEntry(&'static str);

const SHORT: NoEntry = NoEntry("it ends too early");

pub(crate) fn decode(bytes: &[u8]) -> Result<Entry, NoEntry> {
    let mut rest = bytes;
    if rest.try_get_u8() != Ok(FORM) {
        return Err(NoEntry("its form is unknown"));
    }
    let tag = rest.try_get_u8().map_err(|_| SHORT)?;
    let number = rest.try_get_u64().map_err(|_| SHORT)?;
    let key = get_text(&mut rest)?.to_owned();
    let what = match tag {
        1 => {
            let partition = get_partition(&mut rest)?;
            let flag = rest.try_get_i32().map_err(|_| SHORT)?;
            What::Put { partition, flag, body: Bytes::copy_from_slice(rest) }
        }
        2 if rest.is_empty() => What::Prepare { messages: None },
        2 => What::Prepare { messages: Some(rest.try_get_u32().map_err(|_| SHORT)?) },
        3 => What::Commit { by_operator: get_bool(&mut rest)?, parts: get_parts(&mut rest)? },
        4 => What::Applied { parts: get_parts(&mut rest)? },
        5 => What::Rollback { by_operator: get_bool(&mut rest)? },
        6 => What::Complete,
        7 => What::Forget,
        8 => What::Again { outcome: get_outcome(&mut rest)? },
        _ => return Err(NoEntry("its kind is unknown")),
    };
    Ok(Entry { number, key, what })
}

fn get_text<'a>(rest: &mut &'a [u8]) -> Result<&'a str, NoEntry> {
    let length = usize::from(rest.try_get_u16().map_err(|_| SHORT)?);
    let (text, behind) = rest.split_at_checked(length).ok_or(SHORT)?;
    *rest = behind;
    std::str::from_utf8(text).map_err(|_| NoEntry("a text is not UTF-8"))
}

fn get_bool(rest: &mut &[u8]) -> Result<bool, NoEntry> {
    Ok(rest.try_get_u8().map_err(|_| SHORT)? != 0)
}

fn get_partition(rest: &mut &[u8]) -> Result<PartitionId, NoEntry> {
    let topic = TopicName::new(get_text(rest)?).map_err(|_| NoEntry("a topic has no legal name"))?;
    Ok(PartitionId { topic, number: rest.try_get_u32().map_err(|_| SHORT)? })
}

fn get_parts(rest: &mut &[u8]) -> Result<Vec<Part>, NoEntry> {
    let count = rest.try_get_u32().map_err(|_| SHORT)?;
    // The count is not believed before the bytes are there.
    (0..count)
        .map(|_| {
            let partition = get_partition(rest)?;
            let at = Offset::new(rest.try_get_u64().map_err(|_| SHORT)?).ok_or(NoEntry("an offset is out of range"))?;
            Ok(Part { partition, at, size: rest.try_get_u32().map_err(|_| SHORT)? })
        })
        .collect()
}

fn get_outcome(rest: &mut &[u8]) -> Result<Option<Outcome>, NoEntry> {
    match rest.try_get_u8().map_err(|_| SHORT)? {
        0 => Ok(None),
        1 => Ok(Some(Outcome::Committed)),
        2 => Ok(Some(Outcome::RolledBack)),
        3 => Ok(Some(Outcome::Completed)),
        _ => Err(NoEntry("its outcome is unknown")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> Vec<What> {
        let part = |name: &str, at, size| Part { partition: name.parse().unwrap(), at: Offset::new(at).unwrap(), size };
        let parts = vec![part("订单-x-3", 7, 2), part("b-0", u64::MAX >> 1, 1)];
        let mut all = vec![
            What::Put { partition: parts[0].partition.clone(), flag: -1, body: Bytes::from_static(b"\0body") },
            What::Prepare { messages: None },
            What::Prepare { messages: Some(2) },
            What::Commit { by_operator: true, parts: parts.clone() },
            What::Applied { parts },
            What::Rollback { by_operator: false },
            What::Complete,
            What::Forget,
        ];
        for outcome in [None, Some(Outcome::Committed), Some(Outcome::RolledBack), Some(Outcome::Completed)] {
            all.push(What::Again { outcome });
        }
        all
    }

    #[test]
    fn entries_are_read_as_they_were_written() {
        for what in all() {
            let bytes = encode(9, &"XID:1:aa:bb:q", &what);
            let entry = decode(&bytes).unwrap();
            assert_eq!(entry, Entry { number: 9, key: "XID:1:aa:bb:q".to_owned(), what: what.clone() });
            let least = if matches!(what, What::Put { .. }) { bytes.len() - 5 } else { bytes.len() };
            let is_old = |cut| what == What::Prepare { messages: Some(2) } && cut == bytes.len() - 4;
            for cut in (0..least).filter(|cut| !is_old(*cut)) {
                assert!(decode(&bytes[..cut]).is_err(), "{what:?} cut at {cut}");
            }
        }
    }

    #[test]
    fn another_form_and_a_wild_count_are_refused() {
        let mut bytes = encode(9, &"k", &What::Prepare { messages: None }).to_vec();
        bytes[0] = 2;
        let told = decode(&bytes).unwrap_err().to_string();
        assert!(told.contains("its form is unknown") && told.contains("start that again"), "says what to do: {told}");
        bytes[0] = FORM;
        bytes[1] = 99;
        assert!(decode(&bytes).is_err());
        bytes[1] = 4;
        bytes.extend([0xff; 4]);
        assert!(decode(&bytes).is_err());
    }
}
