//! No byte is lost that was acknowledged and that whoever reigns next had confirmed.
//!
//! A message lives as long as it is part of the newest reign's log. It may die only when a reign begins on a node that
//! never confirmed it, and, unless a person has accepted that, only one of a reign this node had heard of.

use crate::node::{Disk, Level, NAMES, Node, level};
use metaq_types::{Epoch, Offset, PartitionId};
use std::collections::BTreeSet;

#[derive(Debug)]
pub(super) struct Acknowledged {
    partition: PartitionId,
    pub(super) id: i64,
    pub(super) start: Offset,
    pub(super) end: Offset,
    epoch: Epoch,
    /// Nodes that have said, by an acknowledgement or by the offset of a get, that they hold it.
    holders: BTreeSet<usize>,
}

#[derive(Debug, Default)]
pub(super) struct Confirmed {
    living: Vec<Acknowledged>,
    dead: u64,
    old: u64,
    newest: Epoch,
}

impl Confirmed {
    pub(super) fn acknowledged(&self) -> u64 {
        self.living.len() as u64 + self.dead + self.old
    }

    pub(super) fn lost_unconfirmed(&self) -> u64 {
        self.dead
    }

    pub(super) fn newest(&self) -> Epoch {
        self.newest
    }

    /// What is deleted because it is old is not missed.
    pub(super) fn on_retired(&mut self, partition: &PartitionId, first: Offset) {
        let (kept, old): (Vec<_>, Vec<_>) = std::mem::take(&mut self.living)
            .into_iter()
            .partition(|message| message.partition != *partition || message.start >= first);
        self.living = kept;
        self.old += old.len() as u64;
    }

    /// A node has deleted what lies before `first`.
    pub(super) fn on_trimmed(&mut self, node: usize, partition: &PartitionId, first: Offset) {
        for message in self.living.iter_mut().filter(|m| m.partition == *partition && m.start < first) {
            message.holders.remove(&node);
        }
    }

    /// The messages that must not be overwritten.
    pub(super) fn living(&self, partition: &PartitionId) -> impl Iterator<Item = &Acknowledged> {
        self.living.iter().filter(move |message| message.partition == *partition)
    }

    pub(super) fn on_ack(
        &mut self,
        node: usize,
        epoch: Epoch,
        partition: &PartitionId,
        id: i64,
        (start, end): (Offset, Offset),
        disk: &Disk,
    ) {
        if epoch < self.newest {
            // In the window between the next fence and the end of the own lease: nobody else can have it.
            self.dead += 1;
            return;
        }
        // What is only written survives the process, not the machine; the level says which of the two was promised.
        let promised = level(partition) == Level::Fsync || disk.logs.get(partition).is_some_and(|l| l.durable() >= end);
        let holders = if promised { BTreeSet::from([node]) } else { BTreeSet::new() };
        self.living.push(Acknowledged { partition: partition.clone(), id, start, end, epoch, holders });
    }

    pub(super) fn on_confirm(&mut self, slave: usize, partition: &PartitionId, end: Offset, epoch: Epoch, disk: &Disk) {
        if epoch < self.newest {
            return;
        }
        let Some(log) = disk.logs.get(partition) else { return };
        // The slave may have gone on to another master since it asked.
        let held = end.min(log.end());
        // Nor does it confirm what it has deleted because it is old, while it reigned itself, or, where a get was forged,
        // other messages than lie at these places in its own log.
        let confirms = |message: &Acknowledged| {
            let Acknowledged { id, start, end, holders, .. } = message;
            *end <= held && !holders.contains(&slave) && log.contains_id(*start, *end, *id)
        };
        for message in self.living.iter_mut().filter(|m| m.partition == *partition && confirms(m)) {
            message.holders.insert(slave);
        }
    }

    pub(super) fn on_power_loss(&mut self, node: usize, partition: &PartitionId, end: Offset) {
        if level(partition) == Level::Os {
            for message in self.living.iter_mut().filter(|m| m.partition == *partition && m.end > end) {
                message.holders.remove(&node);
            }
        }
    }

    /// The node's disk is gone, and what it had confirmed with it.
    pub(super) fn on_replaced(&mut self, node: usize) {
        for message in &mut self.living {
            message.holders.remove(&node);
        }
    }

    pub(super) fn on_cut(&mut self, node: usize, partition: &PartitionId, to: Offset) -> Result<(), String> {
        let gone = |message: &&Acknowledged| message.partition == *partition && message.end > to;
        match self.living.iter().filter(gone).find(|message| message.holders.contains(&node)) {
            None => Ok(()),
            Some(Acknowledged { id, start, epoch, .. }) => Err(format!(
                "{} cuts {partition} to {to} and with it message {id} of epoch {epoch} at {start}, which it had confirmed \
                 and its master still has",
                NAMES[node]
            )),
        }
    }

    pub(super) fn on_reign(&mut self, node: usize, epoch: Epoch, consent: bool, disk: &Disk) -> Result<(), String> {
        self.newest = self.newest.max(epoch);
        let (kept, lost): (Vec<_>, Vec<_>) = std::mem::take(&mut self.living).into_iter().partition(|message| {
            let log = disk.logs.get(&message.partition);
            log.is_some_and(|log| log.contains_id(message.start, message.end, message.id))
        });
        self.living = kept;
        self.dead += lost.len() as u64;
        let heard_of = |message: &Acknowledged| disk.lineage.reigns().iter().any(|reign| reign.epoch == message.epoch);
        for message in &lost {
            let Acknowledged { partition, id, start, epoch: of, holders, .. } = message;
            if holders.contains(&node) {
                return Err(format!(
                    "{} begins epoch {epoch} without message {id} of epoch {of} at {partition} {start}, which it had \
                     confirmed",
                    NAMES[node]
                ));
            }
            if !consent && !heard_of(message) {
                return Err(format!(
                    "{} begins epoch {epoch} without message {id} at {partition} {start} of epoch {of}, of which it never \
                     heard, and nobody has accepted that",
                    NAMES[node]
                ));
            }
        }
        Ok(())
    }

    /// Everything that lives is on every node.
    pub(super) fn on_end(&self, nodes: &[Node]) -> Result<(), String> {
        for Acknowledged { partition, id, start, end, .. } in &self.living {
            for (node, name) in nodes.iter().zip(NAMES) {
                let log = node.disk.logs.get(partition);
                if !log.is_some_and(|log| log.contains_id(*start, *end, *id)) {
                    return Err(format!("{name} has no message {id} at {partition} {start}"));
                }
            }
        }
        Ok(())
    }
}
