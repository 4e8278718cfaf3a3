//! Which logs refused what came last, for want of room or of something else that a person can give them: told once when
//! that begins and once when it ends, and to whoever asks.

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

/// What a log lacks.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lacks {
    Room,
    /// A permission, say, or another file that may be open.
    Other,
}

/// The last refusal of a log.
struct Refused {
    at: Instant,
    lacks: Lacks,
    reason: String,
}

impl Refused {
    fn says_something(&self) -> bool {
        self.at.elapsed() < SAYS_SOMETHING
    }
}

impl Full {
    pub(crate) fn refused(&self, id: &PartitionId, lacks: Lacks, reason: &str) {
        let mut refused = self.refused.lock();
        forget_old(&mut refused);
        let is_news = refused.values().all(|other| other.lacks != lacks);
        match lacks {
            Lacks::Room if is_news => tracing::warn!(
                partition = %id, reason,
                "the disk is full: appends are refused there until there is space; free some, no restart is needed"
            ),
            Lacks::Other if is_news => tracing::warn!(
                partition = %id, reason,
                "appends are refused there until this is put right; no restart is needed"
            ),
            _ => {}
        }
        refused.insert(id.clone(), Refused { at: Instant::now(), lacks, reason: reason.to_owned() });
        self.any.store(true, Ordering::Relaxed);
    }

    /// Something was written to this log.
    pub(crate) fn accepted(&self, id: &PartitionId) {
        if !self.any.load(Ordering::Relaxed) {
            return;
        }
        match self.is_over(id) {
            Some(Lacks::Room) => tracing::info!("there is space on the disk again, appends succeed"),
            Some(Lacks::Other) => tracing::info!(partition = %id, "what was missing is there, appends succeed again"),
            None => {}
        }
    }

    /// Forgets the refusal of a log that takes something again; what it lacked, if it was the last one to lack that.
    fn is_over(&self, id: &PartitionId) -> Option<Lacks> {
        let mut refused = self.refused.lock();
        let lacked = refused.remove(id).map(|refused| refused.lacks);
        forget_old(&mut refused);
        if refused.is_empty() {
            self.any.store(false, Ordering::Relaxed);
        }
        lacked.filter(|lacked| refused.values().all(|other| other.lacks != *lacked))
    }

    fn list(&self, lacks: Lacks) -> Vec<(PartitionId, String)> {
        // Kept where it is old, too: that it is over is still to be told.
        let refused = self.refused.lock();
        let recent = refused.iter().filter(|(_, refused)| refused.lacks == lacks && refused.says_something());
        recent.map(|(id, refused)| (id.clone(), refused.reason.clone())).collect()
    }
}

impl Store {
    /// The logs whose disk had no room for what came last, with the reasons. One that nobody tries goes after a minute.
    pub fn full(&self) -> Vec<(PartitionId, String)> {
        self.shared.full.list(Lacks::Room)
    }

    /// The same of logs that refused what came last for another reason that may pass.
    pub fn refusing(&self) -> Vec<(PartitionId, String)> {
        self.shared.full.list(Lacks::Other)
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
        for (lacks, other) in [(Lacks::Room, Lacks::Other), (Lacks::Other, Lacks::Room)] {
            full.refused(&id, lacks, "no space");
            assert_eq!(full.list(lacks), [(id.clone(), "no space".to_owned())]);
            assert_eq!(full.list(other), []);
            full.refused.lock().get_mut(&id).unwrap().at -= SAYS_SOMETHING;
            assert_eq!(full.list(lacks), [], "nobody tried for long");
            assert!(full.is_over(&id) == Some(lacks));
            assert!(full.is_over(&id).is_none(), "once");
        }
    }
}
