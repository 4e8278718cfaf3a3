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
        if !self.any.load(Ordering::Relaxed) {
            return;
        }
        let mut refused = self.refused.lock();
        let was_refused = refused.remove(id).is_some();
        forget_old(&mut refused);
        if refused.is_empty() {
            self.any.store(false, Ordering::Relaxed);
            if was_refused {
                tracing::info!("there is space on the disk again, appends succeed");
            }
        }
    }

    fn list(&self) -> Vec<(PartitionId, String)> {
        let mut refused = self.refused.lock();
        forget_old(&mut refused);
        refused.iter().map(|(id, refused)| (id.clone(), refused.reason.clone())).collect()
    }
}

impl Store {
    /// The logs whose disk had no room for what came last, with the reasons. One that nobody tries goes after a minute.
    pub fn full(&self) -> Vec<(PartitionId, String)> {
        self.shared.full.list()
    }
}

fn forget_old(refused: &mut BTreeMap<PartitionId, Refused>) {
    refused.retain(|_, refused| refused.at.elapsed() < SAYS_SOMETHING);
}
