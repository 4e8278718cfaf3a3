//! Before a slave of a quorum is promoted: the others are asked, what they have more is copied, and whoever may lack
//! something that was acknowledged ends; once before the claim, and once more when the old master can acknowledge nothing
//! any more. The order is that of `master/succession.rs` and `link/driver/heir.rs`.

use crate::log::{Log, Slice};
use crate::master::Stage;
use crate::message::{Message, Peer, Piece};
use crate::mutation::Mutation;
use crate::net::Place;
use crate::node::{Exit, NAMES, Node};
use crate::queue::Ms;
use crate::world::World;
use bytes::Bytes;
use metaq_link::candidacy::{Answer, Candidate, doubts};
use metaq_link::members::KnownMember;
use metaq_link::promotion::Record;
use metaq_types::{Epoch, Offset, PartitionId};
use std::collections::BTreeMap;

/// A member that has not answered by then is not there.
pub(crate) const ASK_MS: Ms = 1_000;

/// Whom a candidate has asked.
#[derive(Debug)]
pub(crate) struct Poll {
    record: Record,
    waiting: Vec<KnownMember>,
    answers: Vec<(KnownMember, Answer)>,
    asked_at: Ms,
}

impl World {
    /// The first step of a start without a slave id, and of one that goes on after its claim.
    pub(crate) fn settle_succession(&mut self, node: usize) {
        let Some(record) = self.record_to_settle(node) else { return self.settled(node, self.now) };
        let mut others = record.members.clone();
        for slave in self.registered_slaves(node) {
            let uri = NAMES[slave];
            if !others.iter().any(|member| member.slave_id == slave as u32) {
                others.push(KnownMember { slave_id: slave as u32, node: String::new(), uri: uri.to_owned() });
            }
        }
        let name = &self.nodes[node].disk.name;
        others.retain(|member| !member.is(node as u32, name));
        let poll = Poll { record, waiting: Vec::new(), answers: Vec::new(), asked_at: self.now };
        let Some(master) = self.nodes[node].master_mut() else { return };
        master.poll = Some(poll);
        others.into_iter().for_each(|member| self.ask_member(node, member));
        self.conclude_if_complete(node);
    }

    /// The fence is ours.
    pub(crate) fn on_claimed(&mut self, node: usize, epoch: Epoch) {
        let (now, asks_again) = (self.now, self.record_to_settle(node).is_some());
        let once = self.options.mutation == Some(Mutation::AskOnce);
        let Some(master) = self.nodes[node].master_mut() else { return };
        match asks_again {
            false => self.begin_reign(node, epoch),
            true if once => {
                master.settled_at = now;
                self.begin_reign(node, epoch);
            }
            true => master.stage = Stage::Vacating { epoch },
        }
    }

    fn record_to_settle(&self, node: usize) -> Option<Record> {
        let asks = self.options.mutation != Some(Mutation::AskNobody);
        self.nodes[node].disk.record.clone().filter(|record| asks && record.quorum > 1)
    }

    fn ask_member(&mut self, node: usize, member: KnownMember) {
        let host = &mut self.nodes[node];
        let (incarnation, epoch) = (host.incarnation, host.disk.lineage.epoch());
        let ends = host.ends();
        let Some(poll) = host.master_mut().and_then(|master| master.poll.as_mut()) else { return };
        let to = member.slave_id as usize;
        poll.waiting.push(member);
        let message = Message::AskPeer { incarnation, epoch, ends };
        self.send(Place::Node(node), Place::Node(to), message);
    }

    /// A slave answers; a master does not.
    pub(crate) fn on_ask_peer(
        &mut self,
        node: usize,
        from: usize,
        (incarnation, epoch): (u32, Epoch),
        ends: &BTreeMap<PartitionId, Offset>,
    ) {
        let host = &self.nodes[node];
        let Some(slave) = host.slave() else { return };
        let more = if host.disk.lineage.epoch() == epoch { host.more_than(ends) } else { Vec::new() };
        let peer = Peer {
            node: host.disk.name.clone(),
            epoch: host.disk.lineage.epoch(),
            roll: slave.quorum.saved_roll,
            members: slave.quorum.members.clone(),
            ends: host.ends(),
            more,
        };
        self.send(Place::Node(node), Place::Node(from), Message::ToldPeer { incarnation, peer });
    }

    pub(crate) fn on_told_peer(&mut self, node: usize, from: usize, peer: Peer) {
        let own = self.nodes[node].disk.lineage.epoch();
        let name = self.nodes[node].disk.name.clone();
        let Some(poll) = self.nodes[node].master_mut().and_then(|master| master.poll.as_mut()) else { return };
        let Some(place) = poll.waiting.iter().position(|member| member.slave_id as usize == from) else { return };
        let mut member = poll.waiting.remove(place);
        if !member.is(member.slave_id, &peer.node) {
            poll.answers.push((member, Answer::Silent("another data directory serves at its address".to_owned())));
            return self.conclude_if_complete(node);
        }
        peer.node.clone_into(&mut member.node);
        poll.answers.push((member, Answer::Ends { epoch: peer.epoch, ends: peer.ends }));
        let mut news = Vec::new();
        if peer.epoch == own && peer.roll > poll.record.roll {
            let known = |new: &KnownMember| {
                let is = |member: &KnownMember| member.is(new.slave_id, &new.node);
                new.is(poll.record.slave_id, &name)
                    || poll.record.members.iter().chain(&poll.waiting).any(is)
                    || poll.answers.iter().any(|(member, _)| is(member))
            };
            news.extend(peer.members.iter().filter(|member| !known(member)).cloned());
            (poll.record.roll, poll.record.members) = (peer.roll, peer.members);
        }
        if peer.epoch == own {
            self.nodes[node].take_more(&peer.more);
        }
        news.into_iter().for_each(|member| self.ask_member(node, member));
        self.conclude_if_complete(node);
    }

    /// From the claim's timer.
    pub(crate) fn on_poll_late(&mut self, node: usize) {
        let now = self.now;
        let Some(poll) = self.nodes[node].master_mut().and_then(|master| master.poll.as_mut()) else { return };
        if now < poll.asked_at + ASK_MS {
            return;
        }
        let silent = poll.waiting.drain(..).map(|member| (member, Answer::Silent("no answer".to_owned())));
        poll.answers.extend(silent);
        self.conclude_if_complete(node);
    }

    fn conclude_if_complete(&mut self, node: usize) {
        let host = &mut self.nodes[node];
        let (ends, name, epoch) = (host.ends(), host.disk.name.clone(), host.disk.lineage.epoch());
        let Some(master) = host.master_mut() else { return };
        let consent = master.consent;
        let Some(poll) = master.poll.take_if(|poll| poll.waiting.is_empty()) else { return };
        let Poll { record, answers, asked_at, .. } = poll;
        let starts = self.nodes[node].disk.lineage.starts();
        let candidate = Candidate { record: &record, node: &name, epoch, ends: &ends, starts: &starts };
        let doubts = doubts(candidate, &answers);
        let now = self.now;
        let heard = answers.iter().filter(|(_, answer)| matches!(answer, Answer::Ends { .. })).count();
        self.trace
            .note(now, || format!("{} has asked, {heard} of {} answered: {doubts:?}", NAMES[node], answers.len()));
        let ignore = self.options.mutation == Some(Mutation::IgnoreDoubts);
        if doubts.is_empty() || consent || ignore {
            return self.settled(node, asked_at);
        }
        self.exit(node, Exit::Doubts);
    }

    /// What may be missing is known; then the gaps, then the fence, or with it the reign.
    fn settled(&mut self, node: usize, asked_at: Ms) {
        let has_gaps = self.nodes[node].disk.logs.values().any(|log| !log.gaps().is_empty());
        let accepted = self.options.mutation == Some(Mutation::AcceptGaps);
        let Some(master) = self.nodes[node].master_mut() else { return };
        if has_gaps && !master.accept_gap && !accepted {
            return self.exit(node, Exit::Gaps);
        }
        master.settled_at = asked_at;
        match master.stage {
            Stage::Polling { claimed: Some(epoch) } => self.begin_reign(node, epoch),
            _ => master.stage = Stage::Looking,
        }
    }
}

impl Node {
    fn ends(&self) -> BTreeMap<PartitionId, Offset> {
        self.disk.logs.iter().map(|(id, log)| (id.clone(), log.end())).collect()
    }

    /// What lies behind these ends, synced, in pieces of one segment each.
    fn more_than(&self, ends: &BTreeMap<PartitionId, Offset>) -> Vec<Piece> {
        let mut pieces = Vec::new();
        for (partition, log) in &self.disk.logs {
            let mut at = ends.get(partition).copied().unwrap_or(log.first());
            // Led across a gap, a candidate copies nothing.
            if at < log.first() {
                continue;
            }
            while let Slice::Bytes { bytes, segment } = log.slice(at, u64::MAX, log.end()) {
                let next = at + bytes.len() as u64;
                pieces.push(Piece { partition: partition.clone(), at, segment, bytes });
                at = next;
            }
        }
        pieces
    }

    /// Appends what fits; what does not stays missing.
    fn take_more(&mut self, pieces: &[Piece]) {
        for Piece { partition, at, segment, bytes } in pieces {
            let log = self.disk.logs.entry(partition.clone()).or_insert_with(|| Log::new(*at));
            // Meanwhile another peer may have given it.
            let known = log.end().bytes_since(*at) as usize;
            if known < bytes.len() && *at <= log.end() {
                let rest: Bytes = bytes.slice(known..);
                let _ = log.append_verbatim(*at + known as u64, *segment, &rest);
                log.recover();
            }
        }
    }
}
