//! Old segments go: a master's by its own rule, a slave's when its master no longer has them.

use crate::message::{Listed, Timer};
use crate::mutation::Mutation;
use crate::node::NAMES;
use crate::queue::Ms;
use crate::world::World;
use metaq_types::{Offset, PartitionId};

pub(crate) const RETIRE_MS: Ms = 1_000;

impl World {
    pub(crate) fn on_retire(&mut self, node: usize) {
        self.set_timer(node, RETIRE_MS, Timer::Retire);
        let Some(kept) = self.setup.kept_segments else { return };
        let mutation = self.options.mutation;
        let is_master = self.nodes[node].master().is_some();
        // A slave has no retention of its own.
        if !is_master && mutation != Some(Mutation::SlaveRetires) {
            return;
        }
        let all: Vec<PartitionId> = self.nodes[node].disk.logs.keys().cloned().collect();
        let mut moved = false;
        for partition in all {
            let readable = self.nodes[node].readable(&partition).unwrap_or_default();
            let limit = if mutation == Some(Mutation::RetireUnconfirmed) { Offset::MAX } else { readable };
            let Some(log) = self.nodes[node].disk.logs.get_mut(&partition) else { continue };
            let (before, place) = (log.first(), log.segments().len().saturating_sub(kept + 1));
            let within = log.segments().partition_point(|start| *start <= limit.get()).max(1) - 1;
            let first = crate::log::at(log.segments()[place.min(within)]);
            if first <= before {
                continue;
            }
            log.trim(first);
            moved = true;
            let now = self.now;
            self.trace.note(now, || format!("{} no longer keeps {partition} before {first}", NAMES[node]));
            let reign = self.nodes[node].master().and_then(|master| master.epoch);
            self.checks.on_retired(node, &partition, (first, readable), reign);
        }
        if moved && is_master {
            self.bump_catalog(node);
        }
    }

    /// Takes off a slave's logs what its master no longer has.
    pub(crate) fn trim(&mut self, node: usize, listed: &[Listed]) {
        for Listed { partition, first, .. } in listed {
            let held = self.nodes[node].slave().and_then(|slave| slave.session.as_ref());
            if held.is_some_and(|session| session.held.contains_key(partition)) {
                continue;
            }
            let Some(log) = self.nodes[node].disk.logs.get_mut(partition) else { continue };
            if log.first() < *first && log.segments().contains(&first.get()) && !log.has_gap_before(*first) {
                log.trim(*first);
                self.checks.on_trimmed(node, partition, *first);
            }
        }
    }
}
