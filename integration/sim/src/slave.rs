//! A node that was started with a slave id: it looks for the master, joins it (`join.rs`), and follows every partition.
//!
//! The order of the steps is that of `link/driver`: greet, list, compare the pasts, cut or hold, take over the past, and
//! then one get a partition at a time, the next one only after the append of the last is safe.

use crate::log::{Log as Stored, at};
use crate::message::{Listed, Message, TheirQuorum, Timer};
use crate::mutation::Mutation;
use crate::net::Place;
use crate::node::{Level, NAMES, level};
use crate::queue::Ms;
use crate::world::World;
use bytes::Bytes;
use metaq_link::lineage::Ends;
use metaq_link::members::{KnownMember, parse_members};
use metaq_link::promotion::{Known, Record};
use metaq_link::pull::{Answer, Log, Pull, Step, Stop};
use metaq_types::{Offset, PartitionId};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

pub(crate) const KEEP_ALIVE_WAIT_MS: Ms = 500;
/// Beyond the wait that was asked for.
const ANSWER_PATIENCE_MS: Ms = 1_000;
const POLL_MS: Ms = 300;
const DELAY_MAX: Duration = Duration::from_millis(POLL_MS);
const TICK_MS: Ms = 100;
const RECORD_MS: Ms = 500;
const RECONNECT_MS: (Ms, Ms) = (50, 300);
const FETCH_BYTES: u32 = 256;

#[derive(Debug)]
pub(crate) struct Slave {
    /// The operator has said `--accept-divergence`.
    pub(crate) accept_divergence: bool,
    /// Where the registry last had the master.
    master: Option<usize>,
    pub(crate) session: Option<Session>,
    connect_at: Ms,
    /// Partitions whose last append is not safe yet: no new connection begins before it is.
    unsettled: BTreeSet<PartitionId>,
    heard_at: Ms,
    /// What the record says: of earlier runs, where this one knows nothing yet.
    known: BTreeMap<PartitionId, Known>,
    pub(crate) quorum: KnownQuorum,
}

/// Who stands behind the master's acknowledgements, as it says.
#[derive(Clone, Debug)]
pub(crate) struct KnownQuorum {
    told: TheirQuorum,
    pub(crate) members: Vec<KnownMember>,
    /// The number of the list of members that is on disk.
    pub(crate) saved_roll: u64,
}

#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) number: u64,
    pub(crate) master: usize,
    pub(crate) stage: Stage,
    /// The question of this connection that is not about one partition, and when its answer is late.
    asked: Option<(u64, Ms)>,
    joined: Option<(u64, String)>,
    catalog: u64,
    pub(crate) listed: Vec<Listed>,
    /// Not followed, with what both have of them: their logs are not those of the master.
    pub(crate) held: BTreeMap<PartitionId, Offset>,
    pub(crate) followed: BTreeMap<PartitionId, Follow>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    Greeting,
    Listing,
    Comparing,
    Following,
}

#[derive(Debug)]
pub(crate) struct Follow {
    pub(crate) pull: Pull,
    asked: Option<(u64, Ms)>,
    appending: Option<Offset>,
    paused: bool,
}

impl Slave {
    pub(crate) fn new(accept_divergence: bool, before: Option<Record>) -> Slave {
        let before = before.unwrap_or_default();
        let known = before.partitions.into_iter().filter_map(|(name, known)| Some((name.parse().ok()?, known)));
        let told = TheirQuorum { smallest: before.quorum, roll: before.roll, members: String::new() };
        Slave {
            accept_divergence,
            master: None,
            session: None,
            connect_at: 0,
            unsettled: BTreeSet::new(),
            heard_at: before.heard_unix_ms,
            known: known.collect(),
            quorum: KnownQuorum { told, members: before.members, saved_roll: before.roll },
        }
    }

    /// The connection to a master, once it follows.
    pub(crate) fn following(&self) -> Option<&Session> {
        self.session.as_ref().filter(|session| session.stage == Stage::Following)
    }

    /// Whether a partition is not copied because its log is not the master's.
    pub(crate) fn is_diverged(&self) -> bool {
        let stopped = |follow: &Follow| matches!(follow.pull.stopped(), Some(Stop::Diverged { .. }));
        self.session.as_ref().is_some_and(|s| !s.held.is_empty() || s.followed.values().any(stopped))
    }

    /// What the join compares: an own log, and the master's.
    pub(crate) fn ends(&self, listed: &[Listed], partition: &PartitionId, own: Offset) -> Ends {
        let theirs = listed.iter().find(|l| l.partition == *partition).map(|l| l.end);
        let acknowledged = self.known.get(partition).and_then(|known| known.confirmed).and_then(Offset::new);
        Ends { partition: partition.clone(), own, theirs, acknowledged }
    }

    fn session_mut(&mut self, number: u64) -> Option<&mut Session> {
        self.session.as_mut().filter(|session| session.number == number)
    }
}

/// The connection.
impl World {
    pub(crate) fn start_slave_timers(&mut self, node: usize) {
        self.set_timer(node, TICK_MS, Timer::Tick);
        self.set_timer(node, RECORD_MS, Timer::Record);
        self.set_timer(node, crate::retention::RETIRE_MS, Timer::Retire);
    }

    pub(crate) fn on_tick(&mut self, node: usize) {
        let now = self.now;
        self.set_timer(node, TICK_MS, Timer::Tick);
        self.ask_for_master(node);
        let Some(slave) = self.nodes[node].slave_mut() else { return };
        let Some(session) = &mut slave.session else {
            if let Some(master) = slave.master
                && now >= slave.connect_at
                && slave.unsettled.is_empty()
            {
                self.connect(node, master);
            }
            return;
        };
        if session.asked.is_some_and(|(_, late_at)| now >= late_at) {
            return self.close_session(node);
        }
        let is_late = |follow: &Follow| follow.asked.is_some_and(|(_, late_at)| now >= late_at);
        let late = session.followed.iter().filter(|(_, follow)| is_late(follow)).map(|(id, _)| id.clone());
        for partition in late.collect::<Vec<_>>() {
            self.take_answer(node, &partition, Answer::Refused("nothing in time".to_owned()));
        }
    }

    fn ask_for_master(&mut self, node: usize) {
        let (incarnation, sent) = (self.nodes[node].incarnation, self.now);
        let ask = crate::registry::Ask::Look { slave: true };
        self.send(Place::Node(node), Place::Registry, Message::Ask { from: node, incarnation, sent, ask });
    }

    /// A registration that vanishes does not make a slave leave a master that may still serve.
    pub(crate) fn on_registered(&mut self, node: usize, registered: Option<usize>) {
        let Some(slave) = self.nodes[node].slave_mut() else { return };
        let Some(registered) = registered.filter(|registered| *registered != node) else { return };
        if slave.master.replace(registered) != Some(registered) && slave.session.is_some() {
            self.close_session(node);
        }
    }

    fn connect(&mut self, node: usize, master: usize) {
        let number = self.number();
        let Some(slave) = self.nodes[node].slave_mut() else { return };
        slave.session = Some(Session {
            number,
            master,
            stage: Stage::Greeting,
            asked: None,
            joined: None,
            catalog: 0,
            listed: Vec::new(),
            held: BTreeMap::new(),
            followed: BTreeMap::new(),
        });
        self.greet(node, false);
    }

    fn greet(&mut self, node: usize, wait: bool) {
        let slave = node;
        let epoch = self.nodes[node].disk.lineage.epoch();
        let roll = self.nodes[node].slave().map_or(0, |slave| slave.quorum.saved_roll);
        self.ask_master(node, if wait { KEEP_ALIVE_WAIT_MS } else { 0 }, |session, tag| Message::Greet {
            session: session.number,
            slave,
            wait,
            catalog: session.catalog,
            epoch,
            roll,
            tag,
        });
    }

    fn ask_master(&mut self, node: usize, wait: Ms, question: impl FnOnce(&Session, u64) -> Message) {
        let (now, tag) = (self.now, self.number());
        let Some(session) = self.nodes[node].slave_mut().and_then(|slave| slave.session.as_mut()) else { return };
        session.asked = Some((tag, now + wait + ANSWER_PATIENCE_MS));
        let (message, to) = (question(session, tag), session.master);
        self.send(Place::Node(node), Place::Node(to), message);
    }

    pub(crate) fn close_session(&mut self, node: usize) {
        let pause = self.rng.within(RECONNECT_MS.0, RECONNECT_MS.1);
        let now = self.now;
        let Some(slave) = self.nodes[node].slave_mut() else { return };
        let Some(session) = slave.session.take() else { return };
        slave.connect_at = now + pause;
        let appending = session.followed.iter().filter(|(_, follow)| follow.appending.is_some());
        slave.unsettled.extend(appending.map(|(id, _)| id.clone()));
        let message = Message::Closed { session: session.number };
        self.send(Place::Node(node), Place::Node(session.master), message);
    }

    /// An answer of the master.
    pub(crate) fn on_master(&mut self, node: usize, message: Message) {
        let now = self.now;
        let Some(slave) = self.nodes[node].slave_mut() else { return };
        let Some(session) = slave.session_mut(message.session()) else { return };
        let asked = session.asked;
        let expected = |tag: u64| asked.is_some_and(|(asked, _)| asked == tag);
        match message {
            Message::Closed { .. } => self.close_session(node),
            Message::Greeted { newest, catalog, quorum, tag, .. } if expected(tag) => {
                slave.heard_at = now;
                self.see_quorum(node, &newest, quorum);
                self.on_greeted(node, newest, catalog);
            }
            Message::Listed { logs, tag, .. } if expected(tag) => {
                session.listed = logs;
                slave.heard_at = now;
                self.on_listed(node);
            }
            Message::ToldLineage { lineage, tag, .. } if expected(tag) => self.on_lineage(node, lineage),
            Message::Got { partition, answer, confirmed, tag, .. } => {
                let follow = session.followed.get(&partition);
                if follow.is_some_and(|follow| follow.asked.is_some_and(|(asked, _)| asked == tag)) {
                    slave.heard_at = now;
                    self.see_confirmed(node, &partition, confirmed);
                    self.take_answer(node, &partition, answer);
                }
            }
            _ => {}
        }
    }

    /// The members that the master names are on disk before the slave goes on.
    fn see_quorum(&mut self, node: usize, newest: &Option<(u64, String)>, told: TheirQuorum) {
        let Some(slave) = self.nodes[node].slave_mut() else { return };
        // Another reign than this session's is joined anew, with a greeting of its own.
        let joined = slave.session.as_ref().and_then(|session| session.joined.as_ref());
        if slave.quorum.told == told || (joined.is_some() && joined != newest.as_ref()) {
            return;
        }
        let members = parse_members(&told.members);
        slave.quorum = KnownQuorum { saved_roll: told.roll, told, members };
        self.write_record(node);
        self.sync_config(node);
    }

    /// With `autoSyncMasterConfig`: what the master has reloaded.
    fn sync_config(&mut self, node: usize) {
        let Some(session) = self.nodes[node].slave().and_then(|slave| slave.session.as_ref()) else { return };
        self.nodes[node].config = self.nodes[session.master].config;
    }

    /// Consumers of a slave read what the master's quorum was known to hold; what they could read once stays readable.
    fn see_confirmed(&mut self, node: usize, partition: &PartitionId, told: Option<Option<Offset>>) {
        let Some(told) = told else { return };
        let host = &mut self.nodes[node];
        let durable = host.disk.logs.get(partition).map_or(Offset::ZERO, Stored::durable);
        let before = host.limits.get(partition).copied().unwrap_or(Offset::MAX);
        let to = match told {
            None => Offset::MAX,
            Some(to) if before == Offset::MAX => to.max(durable),
            Some(to) => to.max(before),
        };
        host.limits.insert(partition.clone(), to);
        let Some(slave) = host.slave_mut() else { return };
        let known = slave.known.entry(partition.clone()).or_default();
        let is_new = known.confirmed.is_none() && told.is_some();
        known.confirmed = told.map(Offset::get);
        // Before anything is appended that the quorum may not hold the record says that one is asked for.
        if is_new {
            self.write_record(node);
        }
    }

    fn on_greeted(&mut self, node: usize, newest: Option<(u64, String)>, catalog: u64) {
        let mutation = self.options.mutation;
        let Some(session) = self.nodes[node].slave_mut().and_then(|slave| slave.session.as_mut()) else { return };
        match session.stage {
            Stage::Following => {
                if session.joined != newest && mutation != Some(Mutation::WelcomeBeforeReign) {
                    return self.close_session(node);
                }
                if session.catalog == catalog {
                    return self.greet(node, true);
                }
                session.catalog = catalog;
            }
            _ => {
                (session.joined, session.catalog, session.stage) = (newest, catalog, Stage::Listing);
            }
        }
        self.ask_master(node, 0, |session, tag| Message::List { session: session.number, tag });
    }

    fn on_listed(&mut self, node: usize) {
        let own = self.nodes[node].disk.lineage.newest().map(|reign| (reign.epoch.0, reign.node.clone()));
        let Some(session) = self.nodes[node].slave_mut().and_then(|slave| slave.session.as_mut()) else { return };
        if session.stage == Stage::Following || session.joined == own {
            return self.follow(node);
        }
        session.stage = Stage::Comparing;
        self.ask_master(node, 0, |session, tag| Message::AskLineage { session: session.number, tag });
    }

    /// Follows what was listed and is not followed yet.
    pub(crate) fn follow(&mut self, node: usize) {
        let listed = self.nodes[node].slave().and_then(|slave| slave.session.as_ref()).map(|s| s.listed.clone());
        self.trim(node, &listed.unwrap_or_default());
        let host = &mut self.nodes[node];
        let disk = &host.disk;
        let crate::node::Process::Slave(slave) = &mut host.process else { return };
        let Some(session) = &mut slave.session else { return };
        session.stage = Stage::Following;
        for Listed { partition, first, end } in std::mem::take(&mut session.listed) {
            if session.followed.contains_key(&partition) || session.held.contains_key(&partition) {
                continue;
            }
            let mut pull = Pull::new(match disk.logs.get(&partition) {
                None => Log::Absent { from: Offset::ZERO },
                Some(log) => Log::Present { first: log.first(), end: log.end() },
            });
            pull.on_listing(first, end);
            session.followed.insert(partition, Follow { pull, asked: None, appending: None, paused: false });
        }
        let all: Vec<PartitionId> = session.followed.keys().cloned().collect();
        all.iter().for_each(|partition| self.pump(node, partition));
        self.greet(node, true);
    }
}

/// One partition.
impl World {
    /// Sends the next get when nothing stands in its way.
    pub(crate) fn pump(&mut self, node: usize, partition: &PartitionId) {
        let (now, tag) = (self.now, self.number());
        let Some(session) = self.nodes[node].slave_mut().and_then(|slave| slave.session.as_mut()) else { return };
        let (number, master) = (session.number, session.master);
        let Some(follow) = session.followed.get_mut(partition) else { return };
        if follow.asked.is_some() || follow.appending.is_some() || follow.paused {
            return;
        }
        let Some(get) = follow.pull.next_get() else { return };
        let wait = (!get.waiting).then_some(POLL_MS);
        let looks_across = matches!(follow.pull.log(), Log::Present { end, .. } if end != get.offset);
        if get.offset > Offset::ZERO && !looks_across && matches!(follow.pull.log(), Log::Present { .. }) {
            self.checks.on_asked(node, partition, get.offset, &self.nodes[node].disk);
        }
        let Some(follow) = self.follow_mut(node, partition) else { return };
        follow.asked = Some((tag, now + wait.unwrap_or(0) + ANSWER_PATIENCE_MS));
        let message = Message::Get {
            session: number,
            partition: partition.clone(),
            offset: get.offset,
            bytes_max: FETCH_BYTES.max(get.bytes_min),
            wait,
            tag,
        };
        self.send(Place::Node(node), Place::Node(master), message);
    }

    fn follow_mut(&mut self, node: usize, partition: &PartitionId) -> Option<&mut Follow> {
        self.nodes[node].slave_mut()?.session.as_mut()?.followed.get_mut(partition)
    }

    fn take_answer(&mut self, node: usize, partition: &PartitionId, answer: Answer) {
        let Some(follow) = self.follow_mut(node, partition) else { return };
        follow.asked = None;
        match follow.pull.on_answer(answer, DELAY_MAX) {
            Step::Get | Step::Stop => {}
            Step::Pause(pause) => {
                follow.paused = true;
                self.resume_in(node, partition, pause.as_millis() as Ms);
            }
            Step::Create { first } => {
                follow.pull.on_created(first);
                self.nodes[node].disk.logs.insert(partition.clone(), Stored::new(first));
            }
            Step::StepOver { to } => {
                follow.pull.on_stepped_over(to);
                if let Some(log) = self.nodes[node].disk.logs.get_mut(partition) {
                    log.skip_to(to);
                    let (from, to) = *log.gaps().last().expect("it has just been made");
                    self.checks.on_gap(node, partition, (from, to));
                    let now = self.now;
                    self.trace.note(now, || format!("{} lacks {partition} from {from} to {to}", NAMES[node]));
                }
            }
            Step::Compare { .. } => unreachable!("no master here is the original"),
            Step::Append { at, segment, bytes } => self.append(node, partition, at, segment, &bytes),
        }
        self.look_at(node, partition);
        self.pump(node, partition);
    }

    fn resume_in(&mut self, node: usize, partition: &PartitionId, pause: Ms) {
        let Some(session) = self.nodes[node].slave().and_then(|slave| slave.session.as_ref()) else { return };
        let (session, partition) = (session.number, partition.clone());
        self.set_timer(node, pause, Timer::Resume { session, partition });
    }

    pub(crate) fn on_resume(&mut self, node: usize, session: u64, partition: &PartitionId) {
        let Some(slave) = self.nodes[node].slave_mut() else { return };
        let Some(session) = slave.session_mut(session) else { return };
        if let Some(follow) = session.followed.get_mut(partition) {
            follow.paused = false;
            self.pump(node, partition);
        }
    }

    fn append(&mut self, node: usize, partition: &PartitionId, start: Offset, segment: Option<Offset>, bytes: &Bytes) {
        let early = self.options.mutation == Some(Mutation::ConfirmBeforeSync);
        let logs = &mut self.nodes[node].disk.logs;
        let log = logs.entry(partition.clone()).or_insert_with(|| Stored::new(start));
        let stored = log.append_verbatim(start, segment.unwrap_or(at(0)), bytes);
        let end = log.end();
        let Some(follow) = self.follow_mut(node, partition) else { return };
        match stored {
            Err(reason) => follow.pull.on_local_failure(reason),
            Ok(()) if level(partition) == Level::Os || early => follow.pull.on_appended(end),
            Ok(()) => follow.appending = Some(end),
        }
        self.want_sync(node, partition);
    }

    /// The disk has synced what a slave wrote.
    pub(crate) fn on_slave_synced(&mut self, node: usize, partition: &PartitionId) {
        let Some(durable) = self.nodes[node].disk.logs.get(partition).map(Stored::durable) else { return };
        let Some(slave) = self.nodes[node].slave_mut() else { return };
        slave.unsettled.remove(partition);
        let Some(follow) = self.follow_mut(node, partition) else { return };
        if follow.appending.is_some_and(|end| end <= durable) {
            let end = follow.appending.take().unwrap_or(durable);
            follow.pull.on_appended(end);
            self.pump(node, partition);
        }
    }

    /// Notes what is known of the master, for a promotion.
    fn look_at(&mut self, node: usize, partition: &PartitionId) {
        let now = self.now;
        let Some(slave) = self.nodes[node].slave_mut() else { return };
        let Some(session) = &slave.session else { return };
        let Some(follow) = session.followed.get(partition) else { return };
        if let Some(end) = follow.pull.master_end() {
            let confirmed = slave.known.get(partition).and_then(|known| known.confirmed);
            let known = Known { end: end.get(), seen_unix_ms: now, stopped: follow.pull.note(), confirmed };
            slave.known.insert(partition.clone(), known);
        }
    }

    pub(crate) fn on_record(&mut self, node: usize) {
        self.set_timer(node, RECORD_MS, Timer::Record);
        self.write_record(node);
    }

    pub(crate) fn write_record(&mut self, node: usize) {
        let Some(slave) = self.nodes[node].slave() else { return };
        let master = slave.master.map_or_else(String::new, |master| NAMES[master].to_owned());
        if slave.heard_at > 0 {
            let partitions = slave.known.iter().map(|(id, known)| (id.to_string(), known.clone())).collect();
            let record = Record {
                slave_id: node as u32,
                master,
                heard_unix_ms: slave.heard_at,
                partitions,
                quorum: slave.quorum.told.smallest.max(1),
                members: slave.quorum.members.clone(),
                roll: slave.quorum.told.roll,
            };
            self.nodes[node].disk.record = Some(record);
        }
    }
}
