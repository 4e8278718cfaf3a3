//! What master and slave believe of each other is never more than what is: lag is never negative.

use crate::log::Log;
use crate::master::slave_id;
use crate::node::{Disk, Level, NAMES, Node, level};
use metaq_link::promotion::Measurement;
use metaq_types::{Offset, PartitionId};
use std::collections::BTreeMap;
use std::time::Instant;

#[derive(Debug, Default)]
pub(super) struct Lag {
    /// How far each partition ever reached on any master.
    furthest: BTreeMap<PartitionId, Offset>,
}

impl Lag {
    pub(super) fn on_written(&mut self, partition: &PartitionId, end: Offset) {
        let furthest = self.furthest.entry(partition.clone()).or_default();
        *furthest = end.max(*furthest);
    }

    pub(super) fn on_asked(
        &self,
        slave: usize,
        partition: &PartitionId,
        offset: Offset,
        disk: &Disk,
    ) -> Result<(), String> {
        let log = disk.logs.get(partition);
        let safe =
            log.map_or(Offset::ZERO, |log| if level(partition) == Level::Os { log.end() } else { log.durable() });
        if offset <= safe {
            return Ok(());
        }
        Err(format!("{} asks for {partition} from {offset} on and holds it up to {safe}", NAMES[slave]))
    }

    pub(super) fn on_announced(&self, measured: &Measurement) -> Result<(), String> {
        for risk in &measured.partitions {
            let furthest = risk.partition.parse().ok().and_then(|id: PartitionId| self.furthest.get(&id).copied());
            if risk.master_end > furthest.unwrap_or_default() {
                return Err(format!("{} up to {}, which no master ever reached", risk.partition, risk.master_end));
            }
        }
        Ok(())
    }
}

/// What each master would show of its slaves.
pub(super) fn inspect(nodes: &[Node], now: Instant) -> Result<(), String> {
    for (node, name) in nodes.iter().zip(NAMES) {
        let Some(master) = node.master() else { continue };
        let end_of = |partition: &PartitionId| node.disk.logs.get(partition).map(Log::log_end);
        for line in master.replicas.snapshot(end_of, now) {
            let lag = line.end.get().checked_sub(line.confirmed.get());
            if lag != Some(line.lag_bytes) {
                return Err(format!(
                    "{name} shows {} bytes for slave {} of {}, confirmed {} of {}",
                    line.lag_bytes, line.slave, line.partition, line.confirmed, line.end
                ));
            }
            let following = |(place, slave): (usize, &Node)| {
                slave_id(place) == line.slave && slave.slave().is_some_and(|s| s.following().is_some())
            };
            let Some((_, slave)) = nodes.iter().enumerate().find(|(place, slave)| following((*place, slave))) else {
                continue;
            };
            let own = slave.disk.logs.get(&line.partition).map_or(Offset::ZERO, |log| log.end());
            if line.connected && line.confirmed > own.max(line.end) {
                return Err(format!(
                    "{name} believes that slave {} holds {} up to {}",
                    line.slave, line.partition, own
                ));
            }
        }
    }
    Ok(())
}
