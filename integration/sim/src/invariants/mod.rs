//! What must hold at every moment, one file each. The first one that does not ends the run.

mod confirmed;
mod fencing;
mod healing;
mod lag;
mod prefix;
mod reuse;

use crate::node::{Disk, Node};
use crate::queue::Ms;
use confirmed::Confirmed;
use fencing::Fencing;
use lag::Lag;
use metaq_link::promotion::Measurement;
use metaq_types::{Epoch, Offset, PartitionId};
use reuse::Reuse;

/// Told of everything that matters; keeps the first violation.
#[derive(Debug, Default)]
pub(crate) struct Checks {
    confirmed: Confirmed,
    fencing: Fencing,
    lag: Lag,
    reuse: Reuse,
    reigns: u64,
    violation: Option<String>,
}

impl Checks {
    pub(crate) fn violation(&self) -> Option<String> {
        self.violation.clone()
    }

    pub(crate) fn acknowledged(&self) -> u64 {
        self.confirmed.acknowledged()
    }

    pub(crate) fn lost_unconfirmed(&self) -> u64 {
        self.confirmed.lost_unconfirmed()
    }

    pub(crate) fn reigns(&self) -> u64 {
        self.reigns
    }

    fn check(&mut self, name: &str, held: Result<(), String>) {
        if let (Err(reason), None) = (held, &self.violation) {
            self.violation = Some(format!("{name}: {reason}"));
        }
    }

    /// A producer is about to be told that its message is stored.
    #[expect(clippy::too_many_arguments, reason = "all of it is one acknowledgement")]
    pub(crate) fn on_ack(
        &mut self,
        now: Ms,
        node: usize,
        epoch: Epoch,
        partition: &PartitionId,
        id: i64,
        place: (Offset, Offset),
        disk: &Disk,
    ) {
        let fenced = self.fencing.on_ack(now, node, epoch);
        self.check("two masters acknowledge", fenced);
        let fresh = self.reuse.on_ack(partition, id, place, self.confirmed.living(partition));
        self.check("an offset is used again", fresh);
        self.confirmed.on_ack(node, epoch, partition, id, place, disk);
    }

    /// A slave's get has told its master what it holds.
    pub(crate) fn on_confirm(&mut self, slave: usize, partition: &PartitionId, end: Offset, epoch: Epoch, disk: &Disk) {
        self.confirmed.on_confirm(slave, partition, end, epoch, disk);
    }

    /// A slave is about to say that it holds everything before `offset`.
    pub(crate) fn on_asked(&mut self, slave: usize, partition: &PartitionId, offset: Offset, disk: &Disk) {
        let held = self.lag.on_asked(slave, partition, offset, disk);
        self.check("a slave confirms what it does not hold", held);
    }

    pub(crate) fn on_written(&mut self, partition: &PartitionId, end: Offset) {
        self.lag.on_written(partition, end);
    }

    pub(crate) fn announced(&mut self, measured: &Measurement) {
        let held = self.lag.on_announced(measured);
        self.check("a promotion announces what never was", held);
    }

    pub(crate) fn on_reign(&mut self, node: usize, epoch: Epoch, consent: bool, disk: &Disk) {
        self.reigns += 1;
        let kept = self.confirmed.on_reign(node, epoch, consent, disk);
        self.check("a confirmed message is lost", kept);
    }

    pub(crate) fn on_cut(&mut self, node: usize, partition: &PartitionId, to: Offset) {
        let kept = self.confirmed.on_cut(node, partition, to);
        self.check("a confirmed message is cut", kept);
    }

    pub(crate) fn on_power_loss(&mut self, node: usize, partition: &PartitionId, end: Offset) {
        self.confirmed.on_power_loss(node, partition, end);
    }

    pub(crate) fn on_replaced(&mut self, node: usize) {
        self.confirmed.on_replaced(node);
    }

    /// Now and then, and after the last event.
    pub(crate) fn inspect(&mut self, nodes: &[Node], now: std::time::Instant) {
        let same = prefix::inspect(nodes);
        self.check("a slave is not its master's prefix", same);
        let positive = lag::inspect(nodes, now);
        self.check("lag", positive);
    }

    pub(crate) fn on_end(&mut self, nodes: &[Node]) {
        let kept = self.confirmed.on_end(nodes);
        self.check("a message is missing at the end", kept);
    }

    pub(crate) fn not_healed(&mut self, reason: &str) {
        self.check("not healed long after faults stopped", Err(reason.to_owned()));
    }
}

pub(crate) use healing::sick;
