//! What a consumer has read under a quorum is there after every promotion without `--accept-loss`.

use crate::log::Log;
use crate::master::Permits;
use crate::node::{Disk, Level, NAMES, level};
use crate::queue::Ms;
use metaq_types::{Epoch, Offset, PartitionId};
use std::collections::BTreeMap;

#[derive(Debug, Default)]
pub(super) struct Reading {
    partitions: BTreeMap<PartitionId, Read>,
}

#[derive(Debug, Default)]
struct Read {
    records: Vec<Record>,
    /// Consumers have come as far as this.
    position: Offset,
    /// What lies before was stored while nobody was asked, and could be read at once.
    unasked: Offset,
    /// What lies before a master has deleted because it is old.
    retired: Offset,
    /// What members had confirmed and have lost since, in this reign: it may be read only now.
    lost: Vec<(Offset, Offset)>,
}

#[derive(Clone, Copy, Debug)]
struct Record {
    id: i64,
    start: Offset,
    end: Offset,
    at: Ms,
}

impl Reading {
    /// The log up to `end` waits for nobody.
    pub(super) fn on_unasked(&mut self, partition: &PartitionId, end: Offset) {
        let read = self.partitions.entry(partition.clone()).or_default();
        read.unasked = read.unasked.max(end);
    }

    pub(super) fn on_read(&mut self, now: Ms, partition: &PartitionId, log: &Log, end: Offset) {
        let read = self.partitions.entry(partition.clone()).or_default();
        if end <= read.position {
            return;
        }
        // A slave shows for a while what its master has deleted: whoever reads it there cannot count on it later.
        let from = read.position.max(read.unasked).max(read.retired);
        if from < end {
            let is_lost = |(from, to): &(Offset, Offset), start, end| *from < end && start < *to;
            let new = log
                .records(from, end)
                .into_iter()
                .filter(|(_, start, end)| *start >= from && !read.lost.iter().any(|lost| is_lost(lost, *start, *end)));
            read.records.extend(new.map(|(id, start, end)| Record { id, start, end, at: now }));
        }
        read.position = end;
    }

    /// What was not synced where nobody asks for that, and what a disk held that is gone.
    pub(super) fn on_loss(&mut self, partition: &PartitionId, (kept, before): (Offset, Offset), replaced: bool) {
        if replaced || level(partition) == Level::Os {
            let read = self.partitions.entry(partition.clone()).or_default();
            read.records.retain(|record| record.end <= kept);
            if kept < before {
                read.lost.push((kept, before));
            }
        }
    }

    pub(super) fn on_retired(&mut self, partition: &PartitionId, first: Offset) {
        if let Some(read) = self.partitions.get_mut(partition) {
            read.records.retain(|record| record.start >= first);
            read.retired = read.retired.max(first);
        }
    }

    pub(super) fn on_reign(&mut self, node: usize, epoch: Epoch, permits: Permits, disk: &Disk) -> Result<(), String> {
        let mut held = Ok(());
        for (partition, read) in &mut self.partitions {
            let log = disk.logs.get(partition);
            let is_there = |r: &Record| log.is_some_and(|log| log.contains_id(r.start, r.end, r.id));
            let lost = read.records.iter().find(|record| !is_there(record)).copied();
            read.records.retain(is_there);
            let end = log.map_or(Offset::ZERO, Log::end);
            // Where the new reign is shorter, what it writes there is new.
            (read.position, read.retired) = (read.position.min(end), read.retired.min(end));
            read.lost.clear();
            if let Some(Record { id, start, at, .. }) = lost.filter(|r| !permits.loss && r.at < permits.settled_at)
                && held.is_ok()
            {
                held = Err(format!(
                    "{} begins epoch {epoch} without message {id} at {partition} {start}, which was read at {at} ms",
                    NAMES[node]
                ));
            }
        }
        held
    }
}
