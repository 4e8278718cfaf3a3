//! What the quorum does not hold is never deleted, a slave deletes nothing that no master has deleted, it lacks nothing
//! else, and nobody reigns over a gap that no person has accepted.

use crate::node::{Disk, NAMES};
use metaq_types::{Offset, PartitionId};
use std::collections::BTreeMap;

#[derive(Debug, Default)]
pub(super) struct Retention {
    /// The furthest first offset that any master has had.
    first: BTreeMap<PartitionId, Offset>,
}

impl Retention {
    pub(super) fn on_retired(
        &mut self,
        node: usize,
        partition: &PartitionId,
        (first, readable): (Offset, Offset),
        is_master: bool,
    ) -> Result<(), String> {
        if first > readable {
            let name = NAMES[node];
            return Err(format!("{name} deletes {partition} up to {first}, and consumers have {readable} to read"));
        }
        if is_master {
            let known = self.first.entry(partition.clone()).or_default();
            *known = first.max(*known);
            return Ok(());
        }
        self.on_trimmed(node, partition, first)
    }

    pub(super) fn on_trimmed(&self, node: usize, partition: &PartitionId, first: Offset) -> Result<(), String> {
        let known = self.first.get(partition).copied().unwrap_or_default();
        if first <= known {
            return Ok(());
        }
        Err(format!("{} deletes {partition} up to {first}, its master up to {known}", NAMES[node]))
    }

    pub(super) fn on_gap(&self, node: usize, partition: &PartitionId, (from, to): (u64, u64)) -> Result<(), String> {
        let known = self.first.get(partition).copied().unwrap_or_default();
        if to <= known.get() {
            return Ok(());
        }
        Err(format!("{} steps over {partition} from {from} to {to}, which masters have from {known} on", NAMES[node]))
    }

    pub(super) fn on_reign(&self, node: usize, accepted: bool, disk: &Disk) -> Result<(), String> {
        match disk.logs.iter().find(|(_, log)| !accepted && !log.gaps().is_empty()) {
            None => Ok(()),
            Some((partition, log)) => Err(format!("{} reigns, and {partition} lacks {:?}", NAMES[node], log.gaps())),
        }
    }
}
