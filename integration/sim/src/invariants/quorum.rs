//! What is acknowledged under a quorum is held by one at that moment, and by whoever is promoted without `--accept-loss`.
//!
//! Not promised, as the documents say: what only members held that have lost their disk since, what was not synced where
//! the topic does not ask for it, and what an old master acknowledged after the members had been asked.

use super::Ack;
use crate::master::Permits;
use crate::node::{Disk, Level, NAMES, Node, level};
use crate::queue::Ms;
use metaq_types::{Epoch, Offset, PartitionId};
use std::collections::{BTreeMap, BTreeSet};

/// A confirmation that a member has given is used no later than this.
const FORGOTTEN_MS: Ms = 10_000;

#[derive(Debug)]
struct Promise {
    partition: PartitionId,
    id: i64,
    start: Offset,
    end: Offset,
    epoch: Epoch,
    at: Ms,
    holders: BTreeSet<usize>,
}

#[derive(Debug, Default)]
pub(super) struct Quorum {
    promises: Vec<Promise>,
    made: u64,
    /// When each node last lost what it had confirmed, with its disk or, where that is not synced, with its power.
    lost_at: BTreeMap<(usize, Option<PartitionId>), Ms>,
}

impl Quorum {
    pub(super) fn made(&self) -> u64 {
        self.made
    }

    pub(super) fn on_ack(&mut self, ack: &Ack<'_>, nodes: &[Node], newest: Epoch) -> Result<(), String> {
        let Ack { now, node, epoch, partition, id, place: (start, end), members } = *ack;
        if members <= 1 {
            return Ok(());
        }
        let holds = |host: &Node| {
            let log = host.disk.logs.get(partition);
            let as_promised = |end: Offset| level(partition) == Level::Os || log.is_some_and(|l| l.durable() >= end);
            log.is_some_and(|log| log.contains_id(start, end, id)) && as_promised(end)
        };
        let holders: BTreeSet<usize> =
            nodes.iter().enumerate().filter(|(_, host)| holds(host)).map(|(place, _)| place).collect();
        let lost = self
            .lost_at
            .iter()
            .any(|((_, lost), at)| lost.as_ref().is_none_or(|lost| lost == partition) && now < at + FORGOTTEN_MS);
        if (holders.len() as u32) < members {
            // It had said so before, and its master has not noticed yet.
            if lost {
                return Ok(());
            }
            let names: Vec<&str> = holders.iter().map(|place| NAMES[*place]).collect();
            return Err(format!(
                "{} acknowledges message {id} of {partition} at {start} to {members} members, and only {names:?} hold it",
                NAMES[node]
            ));
        }
        self.made += 1;
        if epoch >= newest {
            let partition = partition.clone();
            self.promises.push(Promise { partition, id, start, end, epoch, at: now, holders });
        }
        Ok(())
    }

    pub(super) fn on_power_loss(&mut self, now: Ms, node: usize, partition: &PartitionId, end: Offset) {
        if level(partition) == Level::Os {
            self.lost_at.insert((node, Some(partition.clone())), now);
            self.promises.retain(|p| p.partition != *partition || p.end <= end || !p.holders.contains(&node));
        }
    }

    pub(super) fn on_replaced(&mut self, now: Ms, node: usize) {
        self.lost_at.insert((node, None), now);
        self.promises.retain(|promise| !promise.holders.contains(&node));
    }

    pub(super) fn on_retired(&mut self, partition: &PartitionId, first: Offset) {
        self.promises.retain(|promise| promise.partition != *partition || promise.start >= first);
    }

    pub(super) fn on_reign(&mut self, node: usize, epoch: Epoch, permits: Permits, disk: &Disk) -> Result<(), String> {
        let (kept, lost): (Vec<_>, Vec<_>) = std::mem::take(&mut self.promises).into_iter().partition(|promise| {
            let log = disk.logs.get(&promise.partition);
            log.is_some_and(|log| log.contains_id(promise.start, promise.end, promise.id))
        });
        self.promises = kept;
        match lost.iter().find(|promise| !permits.loss && promise.at < permits.settled_at) {
            None => Ok(()),
            Some(Promise { partition, id, start, epoch: of, at, holders, .. }) => Err(format!(
                "{} begins epoch {epoch} without message {id} at {partition} {start}, which a quorum {holders:?} held when it \
                 was acknowledged in epoch {of} at {at} ms",
                NAMES[node]
            )),
        }
    }
}
