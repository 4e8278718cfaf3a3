//! What slaves ask of a master, and how it answers.

use crate::log::{Log, Slice};
use crate::master::slave_id;
use crate::message::{Listed, Message, TheirQuorum, Timer};
use crate::mutation::Mutation;
use crate::net::Place;
use crate::node::NAMES;
use crate::queue::Ms;
use crate::world::World;
use metaq_link::members::members_word;
use metaq_link::pull::Answer;
use metaq_types::{Offset, PartitionId};
use metaq_wire::ValueExtra;

/// A request that waits for something to come.
#[derive(Debug)]
pub(crate) struct Parked {
    session: u64,
    tag: u64,
    /// What is read; `None`: the list of partitions.
    read: Option<Read>,
}

/// A get of a replica.
#[derive(Clone, Debug)]
pub(crate) struct Read {
    partition: PartitionId,
    offset: Offset,
    bytes_max: u32,
    /// A member of the quorum asks, which may read ahead of the own sync.
    ahead: bool,
}

/// What slaves ask.
impl World {
    /// A question of a slave's connection.
    pub(crate) fn on_question(&mut self, node: usize, from: usize, message: Message) {
        let place = (Place::Node(node), Place::Node(from));
        self.hear(node, &message);
        let host = &self.nodes[node];
        let Some(master) = host.master().filter(|master| master.greeted.contains_key(&message.session())) else {
            return self.refuse(node, from, &message);
        };
        match message {
            Message::Greet { session, wait, catalog, tag, .. } => {
                if wait && catalog == master.catalog {
                    return self.park(node, Parked { session, tag, read: None }, crate::slave::KEEP_ALIVE_WAIT_MS);
                }
                self.welcome(node, from, session, tag);
            }
            Message::List { session, tag } => {
                let listed = |(id, log): (&PartitionId, &Log)| Listed {
                    partition: id.clone(),
                    first: log.first(),
                    end: host.offered(id).unwrap_or(log.durable()),
                };
                let logs = host.disk.logs.iter().map(listed).collect();
                self.send(place.0, place.1, Message::Listed { session, logs, tag });
            }
            Message::AskLineage { session, tag } => {
                let lineage = host.disk.lineage.clone();
                self.send(place.0, place.1, Message::ToldLineage { session, lineage, tag });
            }
            Message::Get { session, partition, offset, bytes_max, wait, tag } => {
                self.confirm(node, from, &partition, offset);
                let ahead = self.count(node, from, &partition, offset);
                let read = Read { partition: partition.clone(), offset, bytes_max, ahead };
                match (self.read(node, &read), wait) {
                    (None, Some(wait)) => self.park(node, Parked { session, tag, read: Some(read) }, wait),
                    (answer, _) => {
                        let answer = answer.unwrap_or(Answer::Nothing { early: true });
                        self.answer_get(node, from, (session, tag), partition, answer);
                    }
                }
            }
            _ => {}
        }
    }

    /// What the mere coming of a question says of whoever asks, and what a greeting says.
    fn hear(&mut self, node: usize, message: &Message) {
        let (now, now_ms, mutation) = (self.base + self.passed(), self.now, self.options.mutation);
        let Some(master) = self.nodes[node].master() else { return };
        let ready = master.epoch.is_some() || mutation == Some(Mutation::WelcomeBeforeReign);
        let mut first = false;
        // A later greeting of a connection this process does not know was meant for one before it.
        if let Message::Greet { session, slave, wait: false, .. } = message
            && ready
            && !master.greeted.contains_key(session)
        {
            let id = slave_id(*slave);
            let name = self.nodes[*slave].disk.name.clone();
            let Some(master) = self.nodes[node].master_mut() else { return };
            if master.replicas.on_greeting(id, &name, NAMES[*slave], now).is_ok() {
                master.greeted.insert(*session, *slave);
                first = true;
            }
        }
        let Some(master) = self.nodes[node].master_mut() else { return };
        if !master.greeted.contains_key(&message.session()) {
            return;
        }
        master.heard.insert(message.session(), now_ms);
        if let Message::Greet { slave, epoch, roll, .. } = message {
            self.greet_quorum(node, *slave, (*epoch, *roll), first);
        }
    }

    fn refuse(&mut self, node: usize, from: usize, message: &Message) {
        let session = message.session();
        self.send(Place::Node(node), Place::Node(from), Message::Closed { session });
    }

    fn welcome(&mut self, node: usize, to: usize, session: u64, tag: u64) {
        let host = &self.nodes[node];
        let newest = host.disk.lineage.newest().map(|reign| (reign.epoch.0, reign.node.clone()));
        let Some(master) = host.master() else { return };
        let catalog = master.catalog;
        let told = |smallest| TheirQuorum {
            smallest,
            roll: master.quorums.roll().number(),
            members: members_word(&master.quorums.roll().members()),
        };
        let none = TheirQuorum { smallest: 1, ..TheirQuorum::default() };
        let quorum = master.quorums.smallest().map_or(none, told);
        self.send(Place::Node(node), Place::Node(to), Message::Greeted { session, newest, catalog, quorum, tag });
    }

    /// The offset a slave asks for says that it holds everything before.
    fn confirm(&mut self, node: usize, slave: usize, partition: &PartitionId, offset: Offset) {
        let now = self.base + self.passed();
        let Some(mut log) = self.nodes[node].disk.logs.get(partition).map(Log::log_end) else { return };
        log.end = log.end.max(offset.min(self.nodes[node].offered(partition).unwrap_or_default()));
        if let Some(master) = self.nodes[node].master_mut() {
            master.replicas.on_get(slave_id(slave), partition, offset, log, now);
        }
        let epoch = self.nodes[node].master().and_then(|master| master.epoch).unwrap_or_default();
        self.checks.on_confirm(slave, partition, offset.min(log.end), epoch, &self.nodes[slave].disk);
    }

    /// `None`: nothing to read yet.
    fn read(&self, node: usize, read: &Read) -> Option<Answer> {
        let Read { partition, offset, bytes_max, ahead } = read;
        let host = &self.nodes[node];
        let log = host.disk.logs.get(partition)?;
        if *offset < log.first() {
            return Some(Answer::Moved(log.first()));
        }
        let end = host.offered(partition).filter(|_| *ahead).unwrap_or(log.durable());
        match log.slice(*offset, (*bytes_max).into(), end) {
            Slice::AtEnd => None,
            Slice::Beyond if *offset <= log.end() => None,
            Slice::Beyond => Some(Answer::Nothing { early: true }),
            Slice::Gap { to } => Some(Answer::Moved(to)),
            Slice::Bytes { bytes, segment } => {
                let epoch = host.disk.lineage.epoch().0;
                let extra = ValueExtra { segment, end: log.durable(), epoch, journal: None, confirmed: None };
                Some(Answer::Value { body: bytes, extra: Some(extra) })
            }
        }
    }

    fn park(&mut self, node: usize, parked: Parked, wait: Ms) {
        let tag = parked.tag;
        if let Some(master) = self.nodes[node].master_mut() {
            master.parked.push(parked);
        }
        self.set_timer(node, wait, Timer::Unpark { tag });
    }

    pub(crate) fn on_unpark(&mut self, node: usize, tag: u64) {
        let Some(master) = self.nodes[node].master_mut() else { return };
        let Some(place) = master.parked.iter().position(|parked| parked.tag == tag) else { return };
        let Parked { session, tag, read } = master.parked.remove(place);
        let Some(slave) = master.greeted.get(&session).copied() else { return };
        let Some(read) = read else { return self.welcome(node, slave, session, tag) };
        let none = if self.nodes[node].disk.logs.contains_key(&read.partition) {
            Answer::Nothing { early: false }
        } else {
            Answer::NoPartition { early: false }
        };
        let answer = self.read(node, &read).unwrap_or(none);
        let partition = read.partition;
        self.answer_get(node, slave, (session, tag), partition, answer);
    }

    fn answer_get(
        &mut self,
        node: usize,
        to: usize,
        (session, tag): (u64, u64),
        partition: PartitionId,
        mut answer: Answer,
    ) {
        let host = &self.nodes[node];
        let unsynced = self.options.mutation == Some(Mutation::TellUnsynced);
        let limit = host.told(&partition).map(|told| if unsynced { host.limits[&partition] } else { told });
        let told = match &mut answer {
            Answer::Value { extra, .. } => {
                if let Some(extra) = extra {
                    extra.confirmed = limit;
                }
                true
            }
            Answer::Nothing { .. } => true,
            _ => false,
        };
        let message = Message::Got { session, partition, answer, confirmed: told.then_some(limit), tag };
        self.send(Place::Node(node), Place::Node(to), message);
    }

    /// Answers whoever waits for what is there now.
    pub(crate) fn wake(&mut self, node: usize, partition: &PartitionId) {
        let Some(master) = self.nodes[node].master() else { return };
        let is_due = |parked: &&Parked| match &parked.read {
            None => false,
            Some(read) => read.partition == *partition && self.read(node, read).is_some(),
        };
        let due: Vec<u64> = master.parked.iter().filter(is_due).map(|parked| parked.tag).collect();
        due.into_iter().for_each(|tag| self.on_unpark(node, tag));
    }

    /// Answers whoever waits for a change of the list of partitions.
    pub(crate) fn wake_lists(&mut self, node: usize) {
        let Some(master) = self.nodes[node].master() else { return };
        let lists: Vec<u64> = master.parked.iter().filter(|p| p.read.is_none()).map(|p| p.tag).collect();
        lists.into_iter().for_each(|tag| self.on_unpark(node, tag));
    }

    pub(crate) fn on_slave_gone(&mut self, node: usize, session: u64) {
        let now = self.base + self.passed();
        let Some(master) = self.nodes[node].master_mut() else { return };
        if let Some(slave) = master.greeted.remove(&session) {
            master.heard.remove(&session);
            master.parked.retain(|parked| parked.session != session);
            master.replicas.on_disconnect(slave_id(slave), now);
            self.part_quorum(node, slave_id(slave));
        }
    }
}
