//! A node that was started without a slave id: it claims the reign, then takes puts and serves slaves.

use crate::log::{Log, Slice};
use crate::message::{Event, Listed, Message, Timer};
use crate::mutation::Mutation;
use crate::net::Place;
use crate::node::{Exit, Level, NAMES, Process, level};
use crate::queue::Ms;
use crate::registry::{Ask, Fence, LEASE_MS, RENEWAL_MS, Told};
use crate::world::World;
use metaq_link::promotion::measure;
use metaq_link::pull::Answer;
use metaq_link::replicas::Replicas;
use metaq_link::verdict::{Claim, Rival, may_reign};
use metaq_types::{Epoch, Offset, PartitionId, Reign, SlaveId};
use metaq_wire::ValueExtra;
use std::collections::BTreeMap;

const CLAIM_PAUSE_MS: Ms = 300;
const SEAT_PAUSE_MS: Ms = 100;
/// A registered master that has not answered by then is dead.
const ALIVE_PATIENCE_MS: Ms = 1_000;

#[derive(Debug)]
pub(crate) struct Master {
    pub(crate) stage: Stage,
    /// The operator has said `--accept-loss`.
    pub(crate) consent: bool,
    /// The reign this process began; `None` before.
    pub(crate) epoch: Option<Epoch>,
    lease_until: Ms,
    has_led: bool,
    session: Option<u64>,
    pub(crate) replicas: Replicas,
    /// Connections that have greeted, with the slave's node.
    pub(crate) greeted: BTreeMap<u64, usize>,
    parked: Vec<Parked>,
    unacknowledged: Vec<Unacknowledged>,
    catalog: u64,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Stage {
    Looking,
    /// The registered one was asked whether it lives, at this time.
    Asking {
        found: Option<Fence>,
        since: Ms,
    },
    Writing {
        epoch: Epoch,
    },
    Reigning,
}

/// A request that waits for something to come.
#[derive(Debug)]
struct Parked {
    session: u64,
    tag: u64,
    /// What is read; `None`: the list of partitions.
    read: Option<(PartitionId, Offset, u32)>,
}

#[derive(Debug)]
struct Unacknowledged {
    partition: PartitionId,
    id: i64,
    start: Offset,
    end: Offset,
}

impl Master {
    pub(crate) fn new(consent: bool) -> Master {
        Master {
            stage: Stage::Looking,
            consent,
            epoch: None,
            lease_until: 0,
            has_led: false,
            session: None,
            replicas: Replicas::new(),
            greeted: BTreeMap::new(),
            parked: Vec::new(),
            unacknowledged: Vec::new(),
            catalog: 1,
        }
    }

    pub(crate) fn is_open(&self, now: Ms, mutation: Option<Mutation>) -> bool {
        now < self.lease_until || (mutation == Some(Mutation::NoLease) && self.has_led)
    }

    pub(crate) fn session(&self) -> Option<u64> {
        self.session
    }
}

pub(crate) fn slave_id(node: usize) -> SlaveId {
    SlaveId::new(node as i64).expect("a small number")
}

/// The way to the reign.
impl World {
    pub(crate) fn on_claim_timer(&mut self, node: usize) {
        let now = self.now;
        let Some(master) = self.nodes[node].master_mut() else { return };
        let (ask, again) = match master.stage {
            Stage::Asking { found, since } if now >= since + ALIVE_PATIENCE_MS => {
                self.claim_in(node, CLAIM_PAUSE_MS);
                return self.decide(node, found, false);
            }
            Stage::Asking { .. } => return self.claim_in(node, SEAT_PAUSE_MS),
            Stage::Looking | Stage::Writing { .. } => (Ask::Look, CLAIM_PAUSE_MS),
            Stage::Reigning => {
                let open = now < master.lease_until;
                (Ask::Sit { session: master.session }, if open { RENEWAL_MS } else { SEAT_PAUSE_MS })
            }
        };
        if matches!(ask, Ask::Look) {
            master.stage = Stage::Looking;
        }
        self.ask_registry(node, ask);
        self.claim_in(node, again);
    }

    fn claim_in(&mut self, node: usize, pause: Ms) {
        self.set_timer(node, pause, Timer::Claim);
    }

    pub(crate) fn on_told(&mut self, node: usize, sent: Ms, told: Told) {
        let Some(master) = self.nodes[node].master_mut() else { return };
        match (told, master.stage) {
            (Told::Standing { fence, registered }, Stage::Looking) => match registered.filter(|other| *other != node) {
                None => self.decide(node, fence, false),
                Some(other) => {
                    master.stage = Stage::Asking { found: fence, since: self.now };
                    let incarnation = self.nodes[node].incarnation;
                    self.send(Place::Node(node), Place::Node(other), Message::AreYouAlive { incarnation });
                }
            },
            (Told::Written(true), Stage::Writing { epoch }) => self.begin_reign(node, epoch),
            (Told::Written(false), Stage::Writing { .. }) => master.stage = Stage::Looking,
            (Told::Seat { session, ours, fence }, Stage::Reigning) => self.on_seat(node, sent, session, ours, fence),
            (Told::Expired, Stage::Reigning) => master.session = None,
            _ => {}
        }
    }

    pub(crate) fn on_alive(&mut self, node: usize) {
        if let Some(Master { stage: Stage::Asking { found, .. }, .. }) = self.nodes[node].master() {
            self.decide(node, *found, true);
        }
    }

    /// The rules of `master/reign.rs`: who was replaced says so, who finds a living master does not disturb it.
    fn decide(&mut self, node: usize, found: Option<Fence>, living: bool) {
        let rival = found.map(|fence| Rival { epoch: fence.epoch, node: NAMES[fence.node] });
        let claim = may_reign(rival, &self.nodes[node].disk.lineage, NAMES[node]);
        let mutation = self.options.mutation;
        let Some(master) = self.nodes[node].master_mut() else { return };
        let (Claim::Reign(epoch) | Claim::Replaced(epoch)) = claim;
        let refused = matches!(claim, Claim::Replaced(_)) && mutation != Some(Mutation::NoVerdict) && !master.consent;
        if refused {
            return self.exit(node, Exit::Replaced);
        }
        if living {
            return self.exit(node, Exit::Occupied);
        }
        master.stage = Stage::Writing { epoch };
        self.ask_registry(node, Ask::Write { fence: Fence { epoch, node }, found });
    }

    fn begin_reign(&mut self, node: usize, epoch: Epoch) {
        let now = self.now;
        self.trace.note(now, || format!("{} begins to reign in epoch {epoch}", NAMES[node]));
        let disk = &mut self.nodes[node].disk;
        if let Some(record) = disk.record.take() {
            let ends = disk.logs.iter().map(|(id, log)| (id.clone(), log.end())).collect();
            let measured = measure(&record, &ends, now);
            self.checks.announced(&measured);
        }
        let mut starts: BTreeMap<_, _> = disk.logs.iter().map(|(id, log)| (id.clone(), log.end())).collect();
        let mut lineage = disk.lineage.clone();
        if self.options.mutation == Some(Mutation::ForgetAbsentPartitions) {
            // As if every partition that is not here began where the last reign had it.
            for reign in lineage.reigns().iter().rev() {
                for (partition, start) in &reign.starts {
                    starts.entry(partition.clone()).or_insert(*start);
                }
            }
        }
        lineage.begin(Reign { epoch, node: NAMES[node].to_owned(), began_unix_ms: now, starts });
        disk.lineage = lineage;
        let consent = self.nodes[node].master().is_some_and(|master| master.consent);
        self.checks.on_reign(node, epoch, consent, &self.nodes[node].disk);
        let mutation = self.options.mutation;
        let Some(master) = self.nodes[node].master_mut() else { return };
        (master.stage, master.epoch) = (Stage::Reigning, Some(epoch));
        if mutation == Some(Mutation::NoSeat) {
            (master.lease_until, master.has_led) = (now + LEASE_MS, true);
        }
    }

    fn on_seat(&mut self, node: usize, sent: Ms, session: u64, ours: bool, fence: Option<Fence>) {
        let now = self.now;
        let Some(master) = self.nodes[node].master_mut() else { return };
        if master.session.is_some_and(|known| known > session) {
            return;
        }
        master.session = Some(session);
        let own = master.epoch.map(|epoch| Fence { epoch, node });
        if fence != own {
            return self.exit(node, Exit::Replaced);
        }
        if !ours {
            return;
        }
        master.lease_until = master.lease_until.max(sent + LEASE_MS);
        if now < master.lease_until && !std::mem::replace(&mut master.has_led, true) {
            let epoch = master.epoch.unwrap_or_default();
            self.trace.note(now, || format!("{} accepts messages in epoch {epoch}", NAMES[node]));
        }
        self.ask_registry(node, Ask::Register { session });
    }
}

/// Puts and their answers.
impl World {
    pub(crate) fn on_put(&mut self, node: usize, partition: PartitionId, id: i64, body: &[u8]) {
        let (now, mutation) = (self.now, self.options.mutation);
        let host = &mut self.nodes[node];
        let open = host.master().is_some_and(|master| master.is_open(now, mutation));
        if !open {
            return;
        }
        let new = !host.disk.logs.contains_key(&partition);
        let log = host.disk.logs.entry(partition.clone()).or_insert_with(|| Log::new(Offset::ZERO));
        let (start, end) = log.append(id, body);
        self.checks.on_written(&partition, end);
        let Some(master) = host.master_mut() else { return };
        master.unacknowledged.push(Unacknowledged { partition: partition.clone(), id, start, end });
        if new {
            master.catalog += 1;
        }
        if level(&partition) == Level::Os || mutation == Some(Mutation::AckBeforeSync) {
            self.acknowledge(node, &partition, end);
        }
        self.want_sync(node, &partition);
        self.wake(node, &partition);
    }

    /// Everything of the partition that ends by `to` is as safe as its topic asks. Looked at again at this moment: what
    /// was accepted under a lease is not acknowledged without one.
    pub(crate) fn acknowledge(&mut self, node: usize, partition: &PartitionId, to: Offset) {
        let (now, mutation) = (self.now, self.options.mutation);
        let Some(master) = self.nodes[node].master_mut() else { return };
        let open = master.is_open(now, mutation);
        let epoch = master.epoch.unwrap_or_default();
        let (safe, waiting): (Vec<_>, Vec<_>) = std::mem::take(&mut master.unacknowledged)
            .into_iter()
            .partition(|m| m.partition == *partition && m.end <= to);
        master.unacknowledged = waiting;
        if !open {
            return;
        }
        for Unacknowledged { id, start, end, .. } in safe {
            self.trace.mix(id as u64);
            self.checks.on_ack(now, node, epoch, partition, id, (start, end), &self.nodes[node].disk);
        }
    }
}

/// What slaves ask.
impl World {
    /// A question of a slave's connection.
    pub(crate) fn on_question(&mut self, node: usize, from: usize, message: Message) {
        let place = (Place::Node(node), Place::Node(from));
        let (now, mutation) = (self.base + self.passed(), self.options.mutation);
        let host = &mut self.nodes[node];
        let Process::Master(master) = &mut host.process else {
            return self.refuse(node, from, &message);
        };
        let ready = master.epoch.is_some() || mutation == Some(Mutation::WelcomeBeforeReign);
        // A later greeting of a connection this process does not know was meant for one before it.
        if let Message::Greet { session, slave, wait: false, .. } = &message
            && ready
            && !master.greeted.contains_key(session)
        {
            let id = slave_id(*slave);
            let greeted = master.replicas.on_greeting(id, NAMES[*slave], NAMES[*slave], now);
            if greeted.is_ok() {
                self.nodes[node].master_mut().map(|master| master.greeted.insert(*session, *slave));
            }
        }
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
                    end: log.durable(),
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
                let answer = self.read(node, &partition, offset, bytes_max);
                match (answer, wait) {
                    (None, Some(wait)) => {
                        self.park(node, Parked { session, tag, read: Some((partition, offset, bytes_max)) }, wait);
                    }
                    (answer, _) => {
                        let answer = answer.unwrap_or(Answer::Nothing { early: true });
                        self.send(place.0, place.1, Message::Got { session, partition, answer, tag });
                    }
                }
            }
            _ => {}
        }
    }

    fn refuse(&mut self, node: usize, from: usize, message: &Message) {
        let session = message.session();
        self.send(Place::Node(node), Place::Node(from), Message::Closed { session });
    }

    fn welcome(&mut self, node: usize, to: usize, session: u64, tag: u64) {
        let host = &self.nodes[node];
        let newest = host.disk.lineage.newest().map(|reign| (reign.epoch.0, reign.node.clone()));
        let catalog = host.master().map_or(0, |master| master.catalog);
        self.send(Place::Node(node), Place::Node(to), Message::Greeted { session, newest, catalog, tag });
    }

    /// The offset a slave asks for says that it holds everything before.
    fn confirm(&mut self, node: usize, slave: usize, partition: &PartitionId, offset: Offset) {
        let now = self.base + self.passed();
        let Some(log) = self.nodes[node].disk.logs.get(partition).map(Log::log_end) else { return };
        if let Some(master) = self.nodes[node].master_mut() {
            master.replicas.on_get(slave_id(slave), partition, offset, log, now);
        }
        let epoch = self.nodes[node].master().and_then(|master| master.epoch).unwrap_or_default();
        self.checks.on_confirm(slave, partition, offset.min(log.end), epoch, &self.nodes[slave].disk);
    }

    /// `None`: nothing to read yet.
    fn read(&self, node: usize, partition: &PartitionId, offset: Offset, bytes_max: u32) -> Option<Answer> {
        let host = &self.nodes[node];
        let log = host.disk.logs.get(partition)?;
        if offset < log.first() {
            return Some(Answer::Moved(log.first()));
        }
        match log.slice(offset, bytes_max.into(), log.durable()) {
            Slice::AtEnd => None,
            Slice::Beyond => Some(Answer::Nothing { early: true }),
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
        let Some((partition, offset, bytes_max)) = read else { return self.welcome(node, slave, session, tag) };
        let none = if self.nodes[node].disk.logs.contains_key(&partition) {
            Answer::Nothing { early: false }
        } else {
            Answer::NoPartition { early: false }
        };
        let answer = self.read(node, &partition, offset, bytes_max).unwrap_or(none);
        self.send(Place::Node(node), Place::Node(slave), Message::Got { session, partition, answer, tag });
    }

    /// Answers whoever waits for what is there now.
    pub(crate) fn wake(&mut self, node: usize, partition: &PartitionId) {
        let Some(master) = self.nodes[node].master() else { return };
        let is_due = |parked: &&Parked| match &parked.read {
            None => false,
            Some((wanted, offset, bytes_max)) => {
                wanted == partition && self.read(node, partition, *offset, *bytes_max).is_some()
            }
        };
        let due: Vec<u64> = master.parked.iter().filter(is_due).map(|parked| parked.tag).collect();
        let lists: Vec<u64> = master.parked.iter().filter(|p| p.read.is_none()).map(|p| p.tag).collect();
        due.into_iter().for_each(|tag| self.on_unpark(node, tag));
        if self.nodes[node].disk.logs.get(partition).is_some_and(|log| log.first() == log.durable()) {
            // A new partition: whoever waits for a change of the list is told.
            lists.into_iter().for_each(|tag| self.on_unpark(node, tag));
        }
    }

    pub(crate) fn on_slave_gone(&mut self, node: usize, session: u64) {
        let now = self.base + self.passed();
        let Some(master) = self.nodes[node].master_mut() else { return };
        if let Some(slave) = master.greeted.remove(&session) {
            master.parked.retain(|parked| parked.session != session);
            master.replicas.on_disconnect(slave_id(slave), now);
        }
    }

    fn ask_registry(&mut self, node: usize, ask: Ask) {
        let (incarnation, sent) = (self.nodes[node].incarnation, self.now);
        self.send(Place::Node(node), Place::Registry, Message::Ask { from: node, incarnation, sent, ask });
    }

    pub(crate) fn set_timer(&mut self, node: usize, after: Ms, timer: Timer) {
        let incarnation = self.nodes[node].incarnation;
        self.queue.push(self.now + after, Event::Timer { node, incarnation, timer });
    }
}
