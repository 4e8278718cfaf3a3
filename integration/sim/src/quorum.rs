//! `ackQuorum` on a master: `link/quorum.rs` decides, here its decisions are done to the logs, as in `broker/quorum.rs`.

use crate::log::Log;
use crate::master::{Master, slave_id};
use crate::message::Timer;
use crate::mutation::Mutation;
use crate::net::Place;
use crate::node::{NAMES, Node, Process, level};
use crate::queue::Ms;
use crate::setup::QUORUM_TICK_MS;
use crate::world::World;
use metaq_link::confirmed::{Kept, Known};
use metaq_link::members::Shortage;
use metaq_link::quorum::{Act, Admission, Ends};
use metaq_types::{Epoch, Offset, PartitionId, SlaveId};
use metaq_wire::{Greeting, Level, Role, Text};

const KEEP_MS: Ms = 1_000;
/// A connection that has said nothing for so long is taken for broken.
const SILENCE_MS: Ms = 6_000;

impl Node {
    /// What consumers are shown.
    pub(crate) fn readable(&self, partition: &PartitionId) -> Option<Offset> {
        let limit = self.limits.get(partition).copied().unwrap_or(Offset::MAX);
        self.disk.logs.get(partition).map(|log| log.durable().min(limit))
    }

    /// What a member may read: ahead of the own sync, but for what is answered before it.
    pub(crate) fn offered(&self, partition: &PartitionId) -> Option<Offset> {
        self.disk.logs.get(partition).map(|log| offered(partition, log))
    }

    /// What a replica is told of the quorum; `None`: nobody is asked.
    pub(crate) fn told(&self, partition: &PartitionId) -> Option<Offset> {
        let limited = self.limits.get(partition).is_some_and(|limit| *limit != Offset::MAX);
        let watched = self.master().is_some_and(|master| master.quorums.is_watched(partition));
        self.readable(partition).filter(|_| limited || watched)
    }

    /// Before anything is served: consumers read no further than was known to be confirmed.
    pub(crate) fn known(&self) -> Known {
        Known::of(self.disk.record.as_ref(), self.disk.kept.as_ref(), self.disk.lineage.epoch())
    }
}

fn offered(partition: &PartitionId, log: &Log) -> Offset {
    if level(partition) == crate::node::Level::Os { log.durable() } else { log.end() }
}

impl World {
    /// A process on this data shows no more than the data knows to be confirmed.
    pub(crate) fn limit_all(&mut self, node: usize) {
        if self.options.mutation == Some(Mutation::ShowAllAtStart) {
            return;
        }
        let host = &mut self.nodes[node];
        let known = host.known();
        if known != Known::Everything {
            let start = |(id, log): (&PartitionId, &Log)| (id.clone(), known.start(id, log.first(), log.durable()));
            host.limits = host.disk.logs.iter().map(start).collect();
        }
    }

    /// Obeys the configuration: which partitions ask for how many.
    pub(crate) fn follow_config(&mut self, node: usize) {
        let all: Vec<PartitionId> = self.nodes[node].disk.logs.keys().cloned().collect();
        let (before, fewest) = (self.roll(node), self.nodes[node].config.fewest_asked());
        if let Some(master) = self.nodes[node].master_mut() {
            master.quorums.expect(fewest);
        }
        for partition in &all {
            let rules = self.nodes[node].config.rules(partition);
            let Some(master) = self.nodes[node].master_mut() else { return };
            if rules.is_on() {
                self.watch(node, partition);
            } else if master.quorums.is_watched(partition) {
                master.quorums.unwatch(partition);
                self.confirm_to(node, partition, Offset::MAX);
            }
        }
        self.tell_roll(node, before);
    }

    fn watch(&mut self, node: usize, partition: &PartitionId) {
        let rules = self.nodes[node].config.rules(partition);
        let Some(master) = self.nodes[node].master_mut() else { return };
        if let Some(acts) = master.quorums.set_rules(partition, rules) {
            return self.act_all(node, acts.into_iter().map(|act| (partition.clone(), act)).collect());
        }
        let reigns = master.epoch.is_some();
        let confirmed = if reigns { self.hold(node, partition) } else { self.start_of(node, partition) };
        if let Some(master) = self.nodes[node].master_mut() {
            master.quorums.watch(partition, rules, confirmed);
        }
    }

    fn start_of(&mut self, node: usize, partition: &PartitionId) -> Offset {
        let everything = self.options.mutation == Some(Mutation::ShowAllAtStart);
        let host = &mut self.nodes[node];
        let Some(log) = host.disk.logs.get(partition) else { return Offset::ZERO };
        let known = host.master().and_then(|master| master.known.clone()).filter(|_| !everything);
        let start = known.unwrap_or(Known::Everything).start(partition, log.first(), log.durable());
        host.limits.insert(partition.clone(), start);
        start
    }

    /// The reign has begun: from now on appends wait.
    pub(crate) fn begin_quorum(&mut self, node: usize, epoch: Epoch) {
        let now = self.base + self.passed();
        let Some(master) = self.nodes[node].master_mut() else { return };
        master.quorums.begin(epoch, now);
        let confirmed: Vec<_> = master.quorums.confirmed().map(|(id, to)| (id.clone(), to)).collect();
        for (partition, to) in confirmed {
            if let Some(to) = to {
                self.confirm_to(node, &partition, to);
            }
        }
        let kept = self.nodes[node].kept_now();
        self.nodes[node].disk.kept = kept;
        self.set_timer(node, QUORUM_TICK_MS, Timer::Quorum);
    }

    /// Slaves that a candidate finds in the registry, if it reaches it.
    pub(crate) fn registered_slaves(&self, node: usize) -> Vec<usize> {
        let (here, there) = (Place::Node(node), Place::Registry);
        if self.net.is_cut(here, there) || self.net.is_cut(there, here) {
            return Vec::new();
        }
        self.registry.slaves(self.now).into_iter().filter(|slave| *slave != node).collect()
    }

    /// Whether a put may be appended. `Ok(true)`: without its quorum.
    pub(crate) fn admit(&mut self, node: usize, partition: &PartitionId) -> Result<bool, Shortage> {
        let now = self.base + self.passed();
        if !self.nodes[node].config.rules(partition).is_on() {
            return Ok(false);
        }
        let before = self.roll(node);
        if self.nodes[node].master().is_some_and(|master| !master.quorums.is_watched(partition)) {
            self.watch(node, partition);
            self.tell_roll(node, before);
        }
        let host = &mut self.nodes[node];
        let is_empty = host.disk.logs.get(partition).is_none_or(|log| log.first() == log.end());
        let Process::Master(master) = &mut host.process else { return Ok(false) };
        if is_empty {
            self.checks.members.on_empty(node, master.greeted.values().copied(), partition);
        }
        match master.quorums.admit(partition, is_empty, now)? {
            Admission::Full => Ok(false),
            Admission::Downgraded(act) => {
                self.act_all(node, act.map(|act| (partition.clone(), act)).into_iter().collect());
                Ok(true)
            }
        }
    }

    /// A greeting of a connection that is known; `first` on it.
    pub(crate) fn greet_quorum(&mut self, node: usize, slave: usize, (epoch, roll): (Epoch, u64), first: bool) {
        let now = self.base + self.passed();
        let mutation = self.options.mutation;
        let name = self.nodes[slave].disk.name.clone();
        let before = self.roll(node);
        let Some(master) = self.nodes[node].master_mut() else { return };
        if first {
            self.checks.members.on_connect(node, slave);
            master.quorums.on_connect(slave_id(slave), NAMES[slave], now);
        }
        let mut greeting = Greeting {
            epoch: epoch.0,
            node: Text::from(&*name),
            level: Some(Level::Fsync),
            uri: Text::from(NAMES[slave]),
            roll: Some(roll),
            ..Greeting::new(Role::Slave)
        };
        match mutation {
            Some(Mutation::CountOtherReigns) => greeting.epoch = master.epoch.unwrap_or_default().0,
            Some(Mutation::CountUnknownMembers) => {
                master.quorums.on_greeting(slave_id(slave), &greeting);
                greeting.roll = Some(master.quorums.roll().number());
            }
            Some(Mutation::ForgetReturns) if !first => return,
            _ => {}
        }
        let acts = master.quorums.on_greeting(slave_id(slave), &greeting);
        self.act_all(node, acts);
        self.tell_roll(node, before);
    }

    fn roll(&self, node: usize) -> u64 {
        self.nodes[node].master().map_or(0, |master| master.quorums.roll().number())
    }

    /// The greetings that wait are answered, and tell of the new name.
    fn tell_roll(&mut self, node: usize, before: u64) {
        if self.roll(node) != before {
            self.bump_catalog(node);
        }
    }

    /// The offset of a get says what is held. Answers whether the slave is a member for whom the quorum waits: then it
    /// may read ahead of our own sync.
    pub(crate) fn count(&mut self, node: usize, slave: usize, partition: &PartitionId, offset: Offset) -> bool {
        let (now, mutation) = (self.base + self.passed(), self.options.mutation);
        let host = &mut self.nodes[node];
        let Some(mut end) = host.offered(partition) else { return false };
        let Process::Master(master) = &mut host.process else { return false };
        self.checks.members.on_get((node, slave), partition, offset, end);
        let mut offset = offset;
        match mutation {
            Some(Mutation::CountBeyondEnd) => offset = offset.min(end),
            Some(Mutation::CountBeforeLevel) => end = offset,
            _ => {}
        }
        let act = master.quorums.on_get(slave_id(slave), partition, offset, end, now);
        let counts = master.quorums.counts(slave_id(slave));
        self.act_all(node, act.map(|act| (partition.clone(), act)).into_iter().collect());
        let asks = self.nodes[node].limits.get(partition).is_some_and(|limit| *limit != Offset::MAX);
        counts && asks
    }

    pub(crate) fn part_quorum(&mut self, node: usize, slave: SlaveId) {
        let now = self.base + self.passed();
        let Some(master) = self.nodes[node].master_mut() else { return };
        let acts = master.quorums.on_disconnect(slave, now);
        self.act_all(node, acts);
    }

    /// What waits too long is given up, what is confirmed is kept on disk.
    pub(crate) fn on_quorum_timer(&mut self, node: usize) {
        let (now, now_ms) = (self.base + self.passed(), self.now);
        self.set_timer(node, QUORUM_TICK_MS, Timer::Quorum);
        let host = &mut self.nodes[node];
        let Process::Master(master) = &mut host.process else { return };
        let logs = &host.disk.logs;
        let ends = |id: &PartitionId| logs.get(id).map(|log| Ends { offered: log.durable(), written: log.end() });
        let acts = master.quorums.tick(now, ends);
        let silent: Vec<u64> =
            master.heard.iter().filter(|(_, at)| now_ms >= **at + SILENCE_MS).map(|(session, _)| *session).collect();
        self.act_all(node, acts);
        silent.into_iter().for_each(|session| self.on_slave_gone(node, session));
        let host = &mut self.nodes[node];
        if let Process::Master(master) = &mut host.process
            && now_ms >= master.keep_at
        {
            master.keep_at = now_ms + KEEP_MS;
            host.disk.kept = host.kept_now();
        }
    }

    pub(crate) fn act_all(&mut self, node: usize, acts: Vec<(PartitionId, Act)>) {
        for (partition, act) in acts {
            self.act(node, &partition, act);
        }
    }

    fn act(&mut self, node: usize, partition: &PartitionId, act: Act) {
        let reigns = self.nodes[node].master().is_some_and(|master| master.epoch.is_some());
        match act {
            Act::Confirm(to) => self.confirm_to(node, partition, to),
            Act::ConfirmEverything => {
                let end = self.nodes[node].disk.logs.get(partition).map_or(Offset::ZERO, Log::end);
                self.checks.on_hold(partition, end);
                self.confirm_to(node, partition, Offset::MAX);
            }
            Act::Hold if !reigns => {
                let to = self.nodes[node].disk.logs.get(partition).map_or(Offset::ZERO, Log::end);
                self.nodes[node].limits.insert(partition.clone(), to);
                self.held(node, partition, to);
            }
            Act::Hold => {
                let to = self.hold(node, partition);
                self.held(node, partition, to);
            }
            Act::GiveUp(_) if self.options.mutation == Some(Mutation::NeverGiveUp) => {}
            Act::GiveUp(to) => {
                if let Some(master) = self.nodes[node].master_mut() {
                    master.give_up(partition, to);
                }
            }
        }
    }

    fn held(&mut self, node: usize, partition: &PartitionId, to: Offset) {
        if let Some(master) = self.nodes[node].master_mut() {
            master.quorums.held(partition, to);
        }
    }

    /// From now on members have to be asked; nothing is taken back that was readable.
    fn hold(&mut self, node: usize, partition: &PartitionId) -> Offset {
        let to = self.nodes[node].disk.logs.get(partition).map_or(Offset::ZERO, Log::end);
        self.checks.on_hold(partition, to);
        self.confirm_to(node, partition, to);
        to
    }

    fn confirm_to(&mut self, node: usize, partition: &PartitionId, to: Offset) {
        let host = &mut self.nodes[node];
        host.limits.insert(partition.clone(), to);
        if let Process::Master(master) = &mut host.process
            && master.epoch.is_some()
        {
            master.confirmed.insert(partition.clone(), to);
            self.release(node, partition);
        }
    }

    /// An operator changes the rules of the node that reigns.
    pub(crate) fn reload(&mut self, node: usize) {
        let mut config = self.nodes[node].config;
        config.edit(self.nodes.len(), &mut self.rng);
        self.nodes[node].config = config;
        let now = self.now;
        self.trace.note(now, || format!("{} reloads: {config:?}", NAMES[node]));
        // What is not answered yet is answered by the new rules.
        for (partition, log) in &self.nodes[node].disk.logs {
            self.checks.on_hold(partition, log.end());
        }
        self.follow_config(node);
    }

    /// A get that no slave sent, or that was meant for another log: beyond the end.
    pub(crate) fn forge_get(&mut self, node: usize) {
        // What is due to a process that is stopped comes later, when its log may reach as far.
        let Some(master) = self.nodes[node].master().filter(|_| !self.is_paused(node)) else { return };
        let sessions: Vec<(u64, usize)> = master.greeted.iter().map(|(session, slave)| (*session, *slave)).collect();
        let partitions: Vec<(PartitionId, Offset)> =
            self.nodes[node].disk.logs.iter().map(|(id, log)| (id.clone(), log.end())).collect();
        if sessions.is_empty() || partitions.is_empty() {
            return;
        }
        let (session, slave) = sessions[self.rng.index(sessions.len())];
        let (partition, end) = partitions[self.rng.index(partitions.len())].clone();
        let offset = end + self.rng.within(1, 100);
        let now = self.now;
        self.trace.note(now, || format!("{} is asked for {partition} from {offset} on", NAMES[node]));
        let tag = self.number();
        let message = crate::message::Message::Get { session, partition, offset, bytes_max: 1, wait: None, tag };
        // At once: a put that comes before it might make it true.
        self.on_question(node, slave, message);
    }
}

impl Node {
    pub(crate) fn kept_now(&self) -> Option<Kept> {
        let master = self.master()?;
        let _ = master.quorums.tick_interval()?;
        // Not simply what members hold: what the own disk lacks may still be lost.
        let shown = |id: &PartitionId| (id.to_string(), self.readable(id).unwrap_or_default().get());
        let partitions = master.quorums.watched().map(shown).collect();
        Some(Kept { epoch: self.disk.lineage.epoch().0, partitions })
    }
}

impl Master {
    /// Answered as unknown: it stays in the log, and is readable when it is confirmed.
    fn give_up(&mut self, partition: &PartitionId, to: Offset) {
        self.unacknowledged.retain(|waiting| waiting.partition != *partition || waiting.end > to);
    }
}
