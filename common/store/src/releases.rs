//! Answers after a sync, given on the threads of whoever waits for them.

use crate::partition::Partition;
use crate::store::Store;
use parking_lot::Mutex;
use std::sync::Arc;
use tokio::sync::Notify;

/// Partitions of which something was synced and not answered yet. A committer that answered itself would wake the task
/// of every producer across threads before it could begin its next sync; so it wakes one, which wakes the others on its
/// own thread.
#[derive(Default)]
pub(crate) struct Releases {
    state: Mutex<State>,
    wake: Notify,
}

#[derive(Default)]
struct State {
    synced: Vec<Arc<Partition>>,
    /// Somebody runs [`Store::answer_synced`].
    served: bool,
}

impl Releases {
    /// Leaves the answers of a partition to whoever serves them; `false` when nobody does.
    pub(crate) fn hand_over(&self, partition: &Arc<Partition>) -> bool {
        let mut state = self.state.lock();
        if !state.served {
            return false;
        }
        state.synced.push(Arc::clone(partition));
        let first = state.synced.len() == 1;
        drop(state);
        if first {
            self.wake.notify_one();
        }
        true
    }
}

impl Store {
    /// Gives the answers that syncs have released, for as long as it is polled. Once it is dropped, and before it is
    /// polled, committers give them on their own threads.
    pub async fn answer_synced(self: Arc<Self>) {
        let releases = &self.shared.releases;
        releases.state.lock().served = true;
        let _serving = Serving(releases);
        loop {
            releases.wake.notified().await;
            let synced = std::mem::take(&mut releases.state.lock().synced);
            synced.iter().for_each(|partition| partition.release());
        }
    }
}

struct Serving<'a>(&'a Releases);

impl Drop for Serving<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.served = false;
        let synced = std::mem::take(&mut state.synced);
        drop(state);
        synced.iter().for_each(|partition| partition.release());
    }
}
