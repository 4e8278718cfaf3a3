//! The person who looks after the brokers: starts what is down, promotes a slave when nobody accepts messages, and looks
//! at what says that it needs a decision. It follows the runbooks: never two masters on purpose, the slave that holds
//! most first, `--accept-loss` only when nobody who knows the newest reign can take over.

use crate::master::Master;
use crate::message::Event;
use crate::net::NODES;
use crate::node::{Exit, NAMES, Process};
use crate::queue::Ms;
use crate::world::World;
use metaq_link::members::{Absence, Member};

const LOOK_MS: Ms = 250;

#[derive(Debug, Default)]
pub(crate) struct Operator {
    /// When a node that is down is started again.
    restart_at: [Option<Ms>; NODES],
    /// Nobody accepts messages since then.
    leaderless_since: Option<Ms>,
    /// How long this one waits before acting; drawn anew each time.
    patience: Ms,
    /// Promotions that were refused since somebody last accepted messages.
    refusals: u32,
    diverged_since: [Option<Ms>; NODES],
    /// Members are missing that may never come back since then.
    short_since: Option<Ms>,
}

impl World {
    pub(crate) fn on_operate(&mut self) {
        self.queue.push(self.now + LOOK_MS, Event::Operate);
        self.start_what_is_down();
        self.settle_divergence();
        self.let_newcomers_count();
        self.promote_if_leaderless();
    }

    fn start_what_is_down(&mut self) {
        for node in 0..self.nodes.len() {
            if !matches!(self.nodes[node].process, Process::Down) {
                continue;
            }
            let Some(at) = self.operator.restart_at[node] else {
                self.operator.restart_at[node] = Some(self.now + self.rng.within(200, 4_000));
                continue;
            };
            if at > self.now {
                continue;
            }
            self.operator.restart_at[node] = None;
            let led = self.registry.fence().is_none_or(|fence| fence.node == node);
            let exit = self.nodes[node].exit.take();
            // A supervisor starts a broker as it was; a person knows better once it said that it was replaced.
            if exit.is_none() && led && self.rng.percent(60) {
                let accept_gap = self.rng.percent(50);
                self.start_master(node, false, accept_gap);
            } else {
                self.start_slave(node, false);
            }
        }
    }

    /// A slave that was given what its master does not have: the master is the one that counts, once it reigns by the
    /// newest fence and accepts messages.
    fn settle_divergence(&mut self) {
        let leader = self.leader();
        for node in 0..self.nodes.len() {
            let follows_leader = |world: &World| {
                let session = world.nodes[node].slave().and_then(|slave| slave.session.as_ref());
                session.is_some_and(|session| Some(session.master) == leader)
            };
            let diverged = self.nodes[node].slave().is_some_and(|slave| slave.is_diverged());
            if !diverged || !follows_leader(self) || self.is_paused(node) {
                self.operator.diverged_since[node] = None;
                continue;
            }
            let since = *self.operator.diverged_since[node].get_or_insert(self.now);
            if self.now >= since + 1_000 {
                self.operator.diverged_since[node] = None;
                self.stop(node);
                self.start_slave(node, true);
            }
        }
    }

    /// A newcomer has to wait for members that know of each other and do not come back, and so has a new number of members
    /// for a disk that knows the old one and was replaced: the next reign begins with whoever is there.
    fn let_newcomers_count(&mut self) {
        let at = self.base + self.passed();
        let waits = |leader: &usize| {
            let Some(Master { quorums, .. }) = self.nodes[*leader].master() else { return false };
            let is_gone = |member: &Member| self.nodes.iter().all(|host| host.disk.name != member.node);
            quorums.slaves(at).iter().any(|(_, state)| state.absence == Absence::Unknown)
                || quorums.roll().misled().iter().any(is_gone)
        };
        let Some(leader) = self.leader().filter(waits) else {
            self.operator.short_since = None;
            return;
        };
        let since = *self.operator.short_since.get_or_insert(self.now);
        if self.now >= since + 4_000 {
            self.operator.short_since = None;
            let now = self.now;
            self.trace.note(now, || format!("the operator restarts {} for the newcomers", NAMES[leader]));
            self.stop(leader);
            self.start_master(leader, false, true);
        }
    }

    fn promote_if_leaderless(&mut self) {
        if self.leader().is_some() {
            (self.operator.leaderless_since, self.operator.refusals) = (None, 0);
            return;
        }
        if self.operator.leaderless_since.is_none() {
            self.operator.leaderless_since = Some(self.now);
            self.operator.patience = self.rng.within(2_500, 8_000);
        }
        let since = self.operator.leaderless_since.unwrap_or(self.now);
        if self.now < since + self.operator.patience {
            return;
        }
        self.operator.leaderless_since = None;
        self.operator.refusals += 1;
        let consent = self.operator.refusals > 5;
        let Some(candidate) = self.best_candidate() else { return };
        let now = self.now;
        self.trace.note(now, || format!("the operator promotes {}, accepting loss: {consent}", NAMES[candidate]));
        // A second master that sleeps or is cut off is beyond reach; one that merely waits is stopped first.
        for other in (0..self.nodes.len()).filter(|other| *other != candidate) {
            if self.nodes[other].master().is_some() && !self.is_paused(other) {
                self.stop(other);
            }
        }
        self.stop(candidate);
        let accept_gap = self.operator.refusals > 1;
        self.start_master(candidate, consent, accept_gap);
    }

    /// Who knows the newest reign, then who holds most. An empty directory is no candidate.
    fn best_candidate(&self) -> Option<usize> {
        let fence = self.registry.fence();
        let rank = |node: &usize| {
            let host = &self.nodes[*node];
            let newest = host.disk.lineage.newest();
            let knows = fence.is_none_or(|fence| {
                fence.node == *node
                    || newest.is_some_and(|n| n.epoch == fence.epoch && n.node == self.nodes[fence.node].disk.name)
            });
            (knows, host.disk.lineage.epoch(), host.bytes())
        };
        let reachable = |node: &usize| !self.is_paused(*node);
        let has_past = |node: &usize| fence.is_none() || self.nodes[*node].disk.lineage.newest().is_some();
        (0..self.nodes.len()).filter(reachable).filter(has_past).max_by_key(rank)
    }

    /// Who accepts messages now.
    pub(crate) fn leader(&self) -> Option<usize> {
        (0..self.nodes.len()).find(|node| {
            let open = self.nodes[*node].master().is_some_and(|master| master.is_open(self.now, None));
            open && !self.is_paused(*node)
        })
    }

    /// Ended itself, with a reason.
    pub(crate) fn exit(&mut self, node: usize, exit: Exit) {
        let now = self.now;
        self.trace.note(now, || format!("{} ends: {exit:?}", NAMES[node]));
        self.end_process(node);
        self.nodes[node].exit = Some(exit);
    }
}
