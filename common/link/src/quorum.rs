//! Who has to hold a message before it is acknowledged, and who does: the decisions of `ackQuorum`, without I/O.
//!
//! A slave confirms with the offset of each get that it holds everything before. Of the slaves that count, the one that
//! is (quorum - 1)-th furthest says how far the quorum holds the log: with the master, which holds all of it, that many
//! members are at least there. What was confirmed once stays confirmed, whoever leaves later.
//!
//! A slave counts for a partition while it is connected, lives in the master's own reign (so it has settled its past with
//! it), is known to the others that count ([`crate::roll`]), and has been level with the master once since it connected.
//! One that lets a put wait for the whole `ackTimeoutInMills` no longer counts until it is level again: so a member that
//! hangs costs one such pause; and where it has asked for nothing meanwhile, one for all partitions together.
//!
//! Pure data; the broker keeps one [`Quorums`] behind a lock, passes the clock in, and does the [`Act`]s it gets back.

mod log;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::time::{Duration, Instant};

use metaq_config::AckRules;
use metaq_types::{Epoch, Offset, PartitionId, SlaveId};
use metaq_wire::Greeting;

use self::log::{Confirmed, Copy, Log, MARKS_PER_TIMEOUT, Mark};
use crate::members::{Absence, Member, MemberState, Shortage};
use crate::roll::Roll;

/// All partitions of a master that ask for a quorum, and the slaves that may belong to it.
#[derive(Debug)]
pub struct Quorums {
    /// The master's reign; slaves of another do not count.
    epoch: Epoch,
    since: Instant,
    slaves: BTreeMap<SlaveId, Slave>,
    roll: Roll,
    logs: HashMap<PartitionId, Log>,
    /// [`Quorums::expect`].
    expected: Option<u32>,
    beyond_end: u64,
    /// Somebody who was silent has asked for something since the last tick.
    returned: bool,
}

#[derive(Debug)]
struct Slave {
    member: Member,
    connections: u32,
    /// The reign it lives in, as it last said.
    epoch: Epoch,
    /// When it came or went.
    since: Instant,
    /// The others that count know of it.
    admitted: bool,
    /// Its last get.
    heard: Instant,
    /// It let a put wait too long and has asked for nothing since before that: it counts nowhere until it does.
    silent: bool,
}

/// How far the master's own log goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ends {
    /// What members may have; see `metaq_store::Positions`.
    pub offered: Offset,
    pub written: Offset,
}

/// What is to be done with a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// The quorum holds everything up to here.
    Confirm(Offset),
    /// Nobody has to be asked any more.
    ConfirmEverything,
    /// Members have to be asked again; [`Quorums::held`] is to be told from where on.
    Hold,
    /// Appends up to here have waited long enough.
    GiveUp(Offset),
}

/// Whether a put may be appended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// Its quorum is there.
    Full,
    /// It is not, and `ackQuorumDowngrade` lets fewer be enough; first this is to be done.
    Downgraded(Option<Act>),
}

/// What `stats quorum` tells of a partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogStanding {
    pub partition: PartitionId,
    pub rules: AckRules,
    /// The master included.
    pub members: u32,
    /// `None`: nobody has to be asked at the moment.
    pub confirmed: Option<Offset>,
    /// The slaves that count, with their ends.
    pub in_sync: Vec<(SlaveId, Offset)>,
}

impl Quorums {
    pub fn new(epoch: Epoch, now: Instant) -> Quorums {
        let (slaves, logs) = (BTreeMap::new(), HashMap::new());
        let (roll, expected) = (Roll::of(epoch), None);
        Quorums { epoch, since: now, slaves, roll, logs, expected, beyond_end: 0, returned: false }
    }

    /// The reign has begun: whoever counted before has to say that it lives in this one.
    pub fn begin(&mut self, epoch: Epoch, now: Instant) {
        (self.epoch, self.since, self.roll) = (epoch, now, Roll::of(epoch));
        self.slaves.values_mut().for_each(|slave| slave.admitted = false);
        self.tell_roll();
    }

    /// The fewest members that any partition may come to ask for; `None`: none will ask. Slaves that hear of it now need
    /// not be waited for when the first such partition is watched.
    pub fn expect(&mut self, smallest: Option<u32>) {
        self.expected = smallest;
        self.tell_roll();
    }

    /// From now on `partition` asks for a quorum; up to `confirmed` it is held by one already.
    pub fn watch(&mut self, partition: &PartitionId, rules: AckRules, confirmed: Offset) {
        assert!(rules.is_on(), "a quorum of one is none");
        let confirmed = Confirmed::UpTo(confirmed);
        let (copies, marks, given_up) = (BTreeMap::new(), VecDeque::new(), Offset::ZERO);
        let log = Log { rules, least: 1, confirmed, copies, marks, given_up };
        self.logs.insert(partition.clone(), log);
        self.tell_roll();
    }

    pub fn unwatch(&mut self, partition: &PartitionId) {
        self.logs.remove(partition);
        self.tell_roll();
    }

    /// Replaces the rules of a watched partition; `None` when it is not watched.
    pub fn set_rules(&mut self, partition: &PartitionId, rules: AckRules) -> Option<Vec<Act>> {
        self.logs.get_mut(partition)?.rules = rules;
        self.tell_roll();
        let log = self.logs.get_mut(partition)?;
        Some(log.settle(&self.slaves, self.epoch).into_iter().collect())
    }

    pub fn is_watched(&self, partition: &PartitionId) -> bool {
        self.logs.contains_key(partition)
    }

    pub fn watched(&self) -> impl Iterator<Item = &PartitionId> {
        self.logs.keys()
    }

    /// What is confirmed of each watched partition; `None`: everything.
    pub fn confirmed(&self) -> impl Iterator<Item = (&PartitionId, Option<Offset>)> {
        self.logs.iter().map(|(partition, log)| (partition, log.confirmed.offset()))
    }

    /// After [`Act::Hold`].
    pub fn held(&mut self, partition: &PartitionId, from: Offset) {
        if let Some(log) = self.logs.get_mut(partition) {
            log.confirmed = Confirmed::UpTo(from);
        }
    }

    /// The first greeting of a connection; each is ended by one [`Quorums::on_disconnect`]. Whatever a slave held before,
    /// it has to show again.
    pub fn on_connect(&mut self, id: SlaveId, address: &str, now: Instant) {
        let slave = self.slaves.entry(id).or_insert_with(|| Slave {
            member: Member { id, ..Member::default() },
            connections: 0,
            epoch: Epoch(0),
            since: now,
            admitted: false,
            heard: now,
            silent: false,
        });
        (slave.heard, slave.silent) = (now, false);
        address.clone_into(&mut slave.member.address);
        (slave.connections, slave.since, slave.epoch) = (slave.connections + 1, now, Epoch(0));
        for log in self.logs.values_mut() {
            log.copies.remove(&id);
        }
    }

    /// Any greeting, the first included: it tells the reign the slave lives in, and whom it knows.
    pub fn on_greeting(&mut self, id: SlaveId, greeting: &Greeting) -> Vec<(PartitionId, Act)> {
        let Some(slave) = self.slaves.get_mut(&id) else { return Vec::new() };
        let before = slave.epoch;
        greeting.node.as_str().clone_into(&mut slave.member.node);
        greeting.uri.as_str().clone_into(&mut slave.member.uri);
        (slave.member.level, slave.epoch) = (greeting.level, Epoch(greeting.epoch));
        let (member, lives_here) = (slave.member.clone(), slave.epoch == self.epoch);
        let mut changed = before != slave.epoch;
        if lives_here {
            self.roll.greet(&member, greeting.roll.unwrap_or(0));
            if let Some(quorum) = self.smallest() {
                self.roll.admit(quorum);
            }
            changed |= self.take_least();
        }
        for slave in self.slaves.values_mut() {
            let admitted = self.roll.is_admitted(slave.member.id, &slave.member.node);
            changed |= std::mem::replace(&mut slave.admitted, admitted) != admitted;
        }
        if changed { self.settle_all() } else { Vec::new() }
    }

    pub fn on_disconnect(&mut self, id: SlaveId, now: Instant) -> Vec<(PartitionId, Act)> {
        let Some(slave) = self.slaves.get_mut(&id) else { return Vec::new() };
        slave.connections = slave.connections.saturating_sub(1);
        if slave.connections > 0 {
            return Vec::new();
        }
        slave.since = now;
        self.roll.part(id);
        self.settle_all()
    }

    /// A slave asks for `offset` of a log that is offered up to `end` here: it holds everything before. That may be more
    /// than the master's own disk holds; what is acknowledged and readable waits for both.
    ///
    /// Beyond the end it holds bytes that are not ours: then it confirms nothing, and does not count.
    pub fn on_get(
        &mut self,
        id: SlaveId,
        partition: &PartitionId,
        offset: Offset,
        end: Offset,
        now: Instant,
    ) -> Option<Act> {
        let slave = self.slaves.get_mut(&id)?;
        slave.heard = now;
        // The next tick tells the other partitions.
        self.returned |= std::mem::take(&mut slave.silent);
        let log = self.logs.get_mut(partition)?;
        let copy = log.copies.entry(id).or_insert(Copy { end: offset, in_sync: false, goal: None, since: now });
        if offset > end {
            self.beyond_end += 1;
            copy.fall_out(now);
            return log.settle(&self.slaves, self.epoch);
        }
        copy.end = offset;
        if !copy.in_sync {
            copy.in_sync = offset == end || copy.goal.is_some_and(|goal| offset >= goal);
            copy.goal = Some(end);
            copy.since = now;
        }
        log.settle(&self.slaves, self.epoch)
    }

    /// Whether enough members are there for another put; `is_empty` tells that the log holds nothing yet, and nothing is
    /// what every slave holds of it.
    pub fn admit(&mut self, partition: &PartitionId, is_empty: bool, now: Instant) -> Result<Admission, Shortage> {
        let Some(log) = self.logs.get_mut(partition) else { return Ok(Admission::Full) };
        if is_empty {
            for (id, _) in self.slaves.iter().filter(|(_, slave)| slave.counts(self.epoch)) {
                let copy = Copy { end: Offset::ZERO, in_sync: true, goal: None, since: now };
                log.copies.entry(*id).or_insert(copy);
            }
        }
        let members = 1 + log.in_sync(&self.slaves, self.epoch).count() as u32;
        match (members >= log.asked(), log.rules.downgrade) {
            (true, _) if log.confirmed != Confirmed::Everything => Ok(Admission::Full),
            // With the members there again it is the last one to be downgraded.
            (true, _) | (false, true) => Ok(Admission::Downgraded(log.settle(&self.slaves, self.epoch))),
            (false, false) => Err(self.shortage(partition, members, now)),
        }
    }

    /// Whether a slave is connected, lives in this reign and is known to the others that count.
    pub fn counts(&self, id: SlaveId) -> bool {
        self.slaves.get(&id).is_some_and(|slave| slave.belongs(self.epoch))
    }

    /// Looks at the age of what waits; to be called every [`Quorums::tick_interval`]. `ends_of` tells how far the
    /// master's own logs go.
    pub fn tick(&mut self, now: Instant, ends_of: impl Fn(&PartitionId) -> Option<Ends>) -> Vec<(PartitionId, Act)> {
        let mut acts = Vec::new();
        let mut waited_for = BTreeMap::new();
        for (partition, log) in &mut self.logs {
            let Confirmed::UpTo(confirmed) = log.confirmed else {
                log.marks.clear();
                continue;
            };
            let Some(ends) = ends_of(partition) else { continue };
            if let Some(late) = log.take_late(confirmed, now) {
                let Mark { at, ends: late } = late;
                for (id, copy) in log.copies.iter_mut().filter(|(_, copy)| copy.in_sync && copy.end < late.offered) {
                    copy.fall_out(now);
                    waited_for.insert(*id, at);
                }
                acts.extend(log.settle(&self.slaves, self.epoch).map(|act| (partition.clone(), act)));
                if log.confirmed.offset().is_some_and(|confirmed| confirmed < late.written) {
                    log.given_up = late.written;
                    acts.push((partition.clone(), Act::GiveUp(late.written)));
                }
            }
            log.mark(ends, now);
        }
        if self.note_silence(&waited_for) {
            acts.extend(self.settle_all());
        }
        acts
    }

    /// Of those who let a put wait since then, whoever has asked for nothing at all meanwhile is not slow but hangs, or is
    /// gone without a word, as over QUIC: each partition would find that out by a pause of its own. `true`: somebody has
    /// come to count everywhere, or nowhere.
    fn note_silence(&mut self, waited_for: &BTreeMap<SlaveId, Instant>) -> bool {
        let mut changed = std::mem::take(&mut self.returned);
        for (id, since) in waited_for {
            if let Some(slave) = self.slaves.get_mut(id).filter(|slave| slave.heard <= *since) {
                changed |= !std::mem::replace(&mut slave.silent, true);
            }
        }
        changed
    }

    /// `None` while nothing is watched.
    pub fn tick_interval(&self) -> Option<Duration> {
        self.logs.values().map(|log| log.rules.timeout).min().map(|timeout| timeout / MARKS_PER_TIMEOUT)
    }

    /// How often a slave has claimed to hold more than there is.
    pub fn beyond_end(&self) -> u64 {
        self.beyond_end
    }

    /// The fewest members any partition asks for, or may come to.
    pub fn smallest(&self) -> Option<u32> {
        self.logs.values().map(|log| log.rules.quorum).chain(self.expected).min()
    }

    /// The slaves that may come to hold what is acknowledged in this reign, and nobody else can.
    pub fn roll(&self) -> &Roll {
        &self.roll
    }

    /// Every slave known, and whether it may count.
    pub fn slaves(&self, now: Instant) -> Vec<(Member, MemberState)> {
        let state = |slave: &Slave| match slave {
            Slave { connections: 0, .. } => Absence::Gone,
            Slave { epoch, .. } if *epoch != self.epoch => Absence::OtherReign { epoch: slave.epoch, ours: self.epoch },
            Slave { admitted: false, .. } => Absence::Unknown,
            Slave { silent: true, .. } => Absence::Silent,
            _ => Absence::None,
        };
        let since = |slave: &Slave| now.saturating_duration_since(if slave.silent { slave.heard } else { slave.since });
        let all = self.slaves.values();
        all.map(|slave| (slave.member.clone(), MemberState { absence: state(slave), since: since(slave) })).collect()
    }

    /// Every watched partition, in order.
    pub fn standings(&self) -> Vec<LogStanding> {
        let standing = |(partition, log): (&PartitionId, &Log)| {
            let in_sync: Vec<_> = log.in_sync(&self.slaves, self.epoch).map(|(id, copy)| (id, copy.end)).collect();
            LogStanding {
                partition: partition.clone(),
                rules: log.rules,
                members: 1 + in_sync.len() as u32,
                confirmed: log.confirmed.offset(),
                in_sync,
            }
        };
        let mut all: Vec<_> = self.logs.iter().map(standing).collect();
        all.sort_by(|a, b| a.partition.cmp(&b.partition));
        all
    }

    /// The partitions that ask, or what they ask for, have changed.
    fn tell_roll(&mut self) {
        self.roll.ask(self.smallest().unwrap_or(1));
        self.take_least();
    }

    /// Whether another number of members is needed now.
    fn take_least(&mut self) -> bool {
        let least = self.roll.least();
        let mut changed = false;
        for log in self.logs.values_mut() {
            changed |= std::mem::replace(&mut log.least, least) != least;
        }
        changed
    }

    fn settle_all(&mut self) -> Vec<(PartitionId, Act)> {
        let mut acts = Vec::new();
        for (partition, log) in &mut self.logs {
            acts.extend(log.settle(&self.slaves, self.epoch).map(|act| (partition.clone(), act)));
        }
        acts
    }

    fn shortage(&self, partition: &PartitionId, members: u32, now: Instant) -> Shortage {
        let log = &self.logs[partition];
        let mut missing = self.slaves(now);
        missing.retain_mut(|(member, state)| {
            let copy = log.copies.get(&member.id);
            let is_here = matches!(state.absence, Absence::None | Absence::Silent);
            if is_here && copy.is_none_or(|copy| !copy.in_sync) {
                let since = copy.map(|copy| now.saturating_duration_since(copy.since));
                *state = MemberState { absence: Absence::Behind, since: since.unwrap_or(state.since) };
            }
            state.absence != Absence::None
        });
        let age = now.saturating_duration_since(self.since);
        Shortage { quorum: log.rules.quorum, members, missing, misled: self.roll.misled(), age }
    }
}

impl Slave {
    fn counts(&self, epoch: Epoch) -> bool {
        self.belongs(epoch) && !self.silent
    }

    fn belongs(&self, epoch: Epoch) -> bool {
        self.connections > 0 && self.epoch == epoch && self.admitted
    }
}
