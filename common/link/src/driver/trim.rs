use std::sync::Arc;

use metaq_store::{Partition, Store};
use metaq_types::{Lineage, Offset};

use crate::listing::Listed;

/// The logs that begin before their master's, with where the master's begins.
pub(super) fn behind<'a>(store: &Store, listed: impl Iterator<Item = &'a Listed>) -> Vec<(Arc<Partition>, Offset)> {
    let logs = listed.filter_map(|listed| {
        let number = i32::try_from(listed.partition.number).ok()?;
        let log = match listed.partition.is_journal() {
            true => store.journal()?,
            false => store.get(&listed.partition.topic, number)?,
        };
        (log.positions().kept < listed.first).then_some((log, listed.first))
    });
    logs.collect()
}

/// Lets logs begin where their master's do; a slave has no retention of its own and so is never ahead of it.
pub(super) async fn run(store: Arc<Store>, behind: Vec<(Arc<Partition>, Offset)>) {
    let trimmed = tokio::task::spawn_blocking(move || {
        // Without it nobody can say what was retention; what is left is tried again with the next list.
        let Ok(lineage) = store.lineage() else { return };
        for (log, first) in behind {
            if !came_again(&lineage, &log, first) {
                // What it did and could not do is logged there.
                let _ = log.trim_to(first);
            }
        }
    });
    if let Err(error) = trimmed.await {
        std::panic::resume_unwind(error.into_panic());
    }
}

/// Whether the master's log begins where it ended before a reign: it was removed and came again, perhaps because a disk
/// was not mounted, and the slave's may be the last copy. It stays until retention goes on from there.
fn came_again(lineage: &Lineage, log: &Partition, first: Offset) -> bool {
    let starts = || lineage.reigns().iter().filter_map(|reign| reign.starts.get(log.id()));
    !log.id().is_journal() && starts().any(|start| *start == first)
}
