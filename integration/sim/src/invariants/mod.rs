//! What must hold at every moment, one file each. The first one that does not ends the run.

mod confirmed;
mod fencing;
mod healing;
mod lag;
mod members;
mod prefix;
mod quorum;
mod reading;
mod retention;
mod reuse;
mod waiting;

use crate::log::Log;
use crate::master::Permits;
use crate::node::{Disk, Node};
use crate::queue::Ms;
use confirmed::Confirmed;
use fencing::Fencing;
use lag::Lag;
use members::Members;
use metaq_link::promotion::Measurement;
use metaq_types::{Epoch, Offset, PartitionId};
use quorum::Quorum;
use reading::Reading;
use retention::Retention;
use reuse::Reuse;
use waiting::Waiting;

/// A producer is about to be told that its message is stored.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ack<'a> {
    pub(crate) now: Ms,
    pub(crate) node: usize,
    pub(crate) epoch: Epoch,
    pub(crate) partition: &'a PartitionId,
    pub(crate) id: i64,
    pub(crate) place: (Offset, Offset),
    /// How many hold it, the master included, by what the answer promises.
    pub(crate) members: u32,
}

/// Told of everything that matters; keeps the first violation.
#[derive(Debug, Default)]
pub(crate) struct Checks {
    confirmed: Confirmed,
    fencing: Fencing,
    lag: Lag,
    pub(crate) members: Members,
    quorum: Quorum,
    reading: Reading,
    retention: Retention,
    reuse: Reuse,
    waiting: Waiting,
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

    /// Acknowledgements that a quorum stood behind.
    pub(crate) fn under_quorum(&self) -> u64 {
        self.quorum.made()
    }

    pub(crate) fn reigns(&self) -> u64 {
        self.reigns
    }

    fn check(&mut self, name: &str, held: Result<(), String>) {
        if let (Err(reason), None) = (held, &self.violation) {
            self.violation = Some(format!("{name}: {reason}"));
        }
    }

    pub(crate) fn on_ack(&mut self, ack: &Ack<'_>, nodes: &[Node]) {
        let Ack { now, node, epoch, partition, id, place, .. } = *ack;
        let fenced = self.fencing.on_ack(now, node, epoch);
        self.check("two masters acknowledge", fenced);
        let fresh = self.reuse.on_ack(partition, id, place, self.confirmed.living(partition));
        self.check("an offset is used again", fresh);
        let held = self.quorum.on_ack(ack, nodes, self.confirmed.newest());
        self.check("no quorum holds what is acknowledged", held);
        self.confirmed.on_ack(node, epoch, partition, id, place, &nodes[node].disk);
    }

    /// A put was appended, after which so many members have to hold it.
    pub(crate) fn on_stored(&mut self, host: &Node, partition: &PartitionId, members: u32) {
        let end = host.disk.logs.get(partition).map_or(Offset::ZERO, Log::end);
        if members <= 1 {
            self.reading.on_unasked(partition, end);
            return;
        }
        let Some(master) = host.master() else { return };
        let standing = master.quorums.standings().into_iter().find(|standing| standing.partition == *partition);
        let enough = match standing {
            Some(standing) if standing.members >= standing.rules.quorum => Ok(()),
            Some(standing) => Err(format!("{partition} has {} of {members} members", standing.members)),
            None => Err(format!("{partition} asks nobody")),
        };
        self.check("a put is stored without enough members", enough);
    }

    /// Members are asked from `end` on; what lies before was acknowledged without them.
    pub(crate) fn on_hold(&mut self, partition: &PartitionId, end: Offset) {
        self.reading.on_unasked(partition, end);
    }

    pub(crate) fn on_refused(&mut self, now: Ms) {
        self.waiting.on_refused(now);
    }

    /// A consumer has read a log up to `end`, on a node that lives in reign `epoch`. What an old reign shows while a new
    /// one has begun is not promised: it may come from after the members were asked.
    pub(crate) fn on_read(&mut self, now: Ms, epoch: Epoch, partition: &PartitionId, log: &Log, end: Offset) {
        if epoch >= self.confirmed.newest() {
            self.reading.on_read(now, partition, log, end);
        }
    }

    /// Segments before `first` are deleted by the node's own rule.
    pub(crate) fn on_retired(
        &mut self,
        node: usize,
        partition: &PartitionId,
        ends: (Offset, Offset),
        reign: Option<Epoch>,
    ) {
        self.confirmed.on_trimmed(node, partition, ends.0);
        let allowed = self.retention.on_retired(node, partition, ends, reign.is_some());
        self.check("deleted too early", allowed);
        if reign.is_some_and(|epoch| epoch >= self.confirmed.newest()) {
            self.confirmed.on_retired(partition, ends.0);
            self.quorum.on_retired(partition, ends.0);
            self.reading.on_retired(partition, ends.0);
        }
    }

    /// A slave deletes what its master no longer has.
    pub(crate) fn on_trimmed(&mut self, node: usize, partition: &PartitionId, first: Offset) {
        self.confirmed.on_trimmed(node, partition, first);
        let allowed = self.retention.on_trimmed(node, partition, first);
        self.check("deleted too early", allowed);
    }

    pub(crate) fn on_gap(&mut self, node: usize, partition: &PartitionId, gap: (u64, u64)) {
        let gone = self.retention.on_gap(node, partition, gap);
        self.check("a slave leaves out what its master has", gone);
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

    pub(crate) fn on_reign(&mut self, node: usize, epoch: Epoch, permits: Permits, disk: &Disk) {
        self.reigns += 1;
        let kept = self.quorum.on_reign(node, epoch, permits, disk);
        self.check("an acknowledged message is lost", kept);
        let kept = self.reading.on_reign(node, epoch, permits, disk);
        self.check("what was read is lost", kept);
        let whole = self.retention.on_reign(node, permits.gap, disk);
        self.check("a gap is not accepted", whole);
        let kept = self.confirmed.on_reign(node, epoch, permits.loss, disk);
        self.check("a confirmed message is lost", kept);
    }

    pub(crate) fn on_cut(&mut self, node: usize, partition: &PartitionId, to: Offset) {
        let kept = self.confirmed.on_cut(node, partition, to);
        self.check("a confirmed message is cut", kept);
    }

    /// What a log held up to `before` it now holds up to `end`.
    pub(crate) fn on_power_loss(
        &mut self,
        now: Ms,
        node: usize,
        partition: &PartitionId,
        (end, before): (Offset, Offset),
    ) {
        self.confirmed.on_power_loss(node, partition, end);
        self.quorum.on_power_loss(now, node, partition, end);
        self.reading.on_loss(partition, (end, before), false);
    }

    pub(crate) fn on_replaced(&mut self, now: Ms, node: usize, disk: &Disk) {
        self.confirmed.on_replaced(node);
        self.quorum.on_replaced(now, node);
        for (partition, log) in &disk.logs {
            self.reading.on_loss(partition, (Offset::ZERO, log.end()), true);
        }
    }

    /// Now and then, and after the last event.
    pub(crate) fn inspect(&mut self, nodes: &[Node], now_ms: Ms, now: std::time::Instant) {
        let same = prefix::inspect(nodes);
        self.check("a slave is not its master's prefix", same);
        let positive = lag::inspect(nodes, now);
        self.check("lag", positive);
        let counted = self.members.inspect(nodes);
        self.check("somebody counts who must not", counted);
        let answered = waiting::inspect(nodes, now_ms);
        self.check("a put waits too long", answered);
    }

    pub(crate) fn on_end(&mut self, nodes: &[Node], now: Ms) {
        let taken = self.waiting.on_end(now);
        self.check("puts do not resume", taken);
        let kept = self.confirmed.on_end(nodes);
        self.check("a message is missing at the end", kept);
    }

    pub(crate) fn not_healed(&mut self, reason: &str) {
        self.check("not healed long after faults stopped", Err(reason.to_owned()));
    }
}

pub(crate) use healing::sick;
