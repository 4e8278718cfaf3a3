//! Which logs had no room for what came last: told once when that begins and once when it ends, and to whoever asks.

use crate::store::Store;
use metaq_types::PartitionId;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// A refusal says no more of now when nothing was tried for so long.
const SAYS_SOMETHING: Duration = Duration::from_secs(60);

#[derive(Default)]
pub(crate) struct Full {
    /// What every append looks at.
    any: AtomicBool,
    refused: Mutex<BTreeMap<PartitionId, Refused>>,
}

/// The last refusal of a log.
struct Refused {
    at: Instant,
    reason: String,
}

impl Refused {
    fn says_something(&self) -> bool {
        self.at.elapsed() < SAYS_SOMETHING
    }
}

impl Full {
    pub(crate) fn refused(&self, id: &PartitionId, reason: &str) {
        let mut refused = self.refused.lock();
        forget_old(&mut refused);
        if refused.is_empty() {
            tracing::warn!(
                partition = %id, reason,
                "the disk is full: appends are refused there until there is space; free some, no restart is needed"
            );
        }
        refused.insert(id.clone(), Refused { at: Instant::now(), reason: reason.to_owned() });
        self.any.store(true, Ordering::Relaxed);
    }

    /// Something was written to this log.
    pub(crate) fn has_room(&self, id: &PartitionId) {
        if self.any.load(Ordering::Relaxed) && self.is_over(id) {
            tracing::info!("there is space on the disk again, appends succeed");
        }
    }

    /// Forgets the refusal of a log that takes something again; whether it was the last one.
    fn is_over(&self, id: &PartitionId) -> bool {
        let mut refused = self.refused.lock();
        let was_refused = refused.remove(id).is_some();
        forget_old(&mut refused);
        if refused.is_empty() {
            self.any.store(false, Ordering::Relaxed);
        }
        was_refused && refused.is_empty()
    }

    fn list(&self) -> Vec<(PartitionId, String)> {
        // Kept where it is old, too: that it is over is still to be told.
        let refused = self.refused.lock();
        let recent = refused.iter().filter(|(_, refused)| refused.says_something());
        recent.map(|(id, refused)| (id.clone(), refused.reason.clone())).collect()
    }
}

impl Store {
    /// The logs whose disk had no room for what came last, with the reasons. One that nobody tries goes after a minute.
    pub fn full(&self) -> Vec<(PartitionId, String)> {
        self.shared.full.list()
    }
}

fn forget_old(refused: &mut BTreeMap<PartitionId, Refused>) {
    refused.retain(|_, refused| refused.says_something());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn that_there_is_room_again_is_told_whoever_looked_meanwhile() {
        let (full, id) = (Full::default(), "t-0".parse().unwrap());
        full.refused(&id, "no space");
        assert_eq!(full.list(), [(id.clone(), "no space".to_owned())]);
        full.refused.lock().get_mut(&id).unwrap().at -= SAYS_SOMETHING;
        assert_eq!(full.list(), [], "nobody tried for long");
        assert!(full.is_over(&id));
        assert!(!full.is_over(&id), "once");
    }
}
