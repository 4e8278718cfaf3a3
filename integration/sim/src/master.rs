//! A node that was started without a slave id: it claims the reign, then takes puts and serves slaves.

use crate::candidacy::Poll;
use crate::log::Log;
use crate::message::{Event, Message, Timer};
use crate::mutation::Mutation;
use crate::net::Place;
use crate::node::{Exit, Level, NAMES, Process, level};
use crate::queue::Ms;
use crate::registry::{Ask, Fence, LEASE_MS, RENEWAL_MS, Told};
use crate::serving::Parked;
use crate::setup::Promised;
use crate::world::World;
use metaq_link::confirmed::Known;
use metaq_link::promotion::measure;
use metaq_link::quorum::Quorums;
use metaq_link::replicas::Replicas;
use metaq_link::verdict::{Claim, Rival, may_reign};
use metaq_types::{Epoch, Offset, PartitionId, Reign, SlaveId};
use std::collections::BTreeMap;
use std::time::Instant;

const CLAIM_PAUSE_MS: Ms = 300;
const SEAT_PAUSE_MS: Ms = 100;
/// A registered master that has not answered by then is dead.
const ALIVE_PATIENCE_MS: Ms = 1_000;

#[derive(Debug)]
pub(crate) struct Master {
    pub(crate) stage: Stage,
    /// The operator has said `--accept-loss`.
    pub(crate) consent: bool,
    /// The operator has said `--accept-gap`.
    pub(crate) accept_gap: bool,
    /// The members that are asked before the claim, and before the reign.
    pub(crate) poll: Option<Poll>,
    /// Whoever holds something acknowledged until then was asked for it.
    pub(crate) settled_at: Ms,
    /// What was confirmed before this process began.
    pub(crate) known: Option<Known>,
    pub(crate) quorums: Quorums,
    /// What the acknowledgements of each partition wait for; those of others wait for nobody.
    pub(crate) confirmed: BTreeMap<PartitionId, Offset>,
    pub(crate) keep_at: Ms,
    /// When each connection last said something.
    pub(crate) heard: BTreeMap<u64, Ms>,
    /// The reign this process began; `None` before.
    pub(crate) epoch: Option<Epoch>,
    lease_until: Ms,
    has_led: bool,
    session: Option<u64>,
    pub(crate) replicas: Replicas,
    /// Connections that have greeted, with the slave's node.
    pub(crate) greeted: BTreeMap<u64, usize>,
    pub(crate) parked: Vec<Parked>,
    pub(crate) unacknowledged: Vec<Unacknowledged>,
    pub(crate) catalog: u64,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Stage {
    /// What the other members hold is asked; the second time the fence is ours.
    Polling {
        claimed: Option<Epoch>,
    },
    Looking,
    /// The registered one was asked whether it lives, at this time.
    Asking {
        found: Option<Fence>,
        since: Ms,
    },
    Writing {
        epoch: Epoch,
    },
    /// The old master may still acknowledge.
    Vacating {
        epoch: Epoch,
    },
    Reigning,
}

/// What a reign was begun with.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Permits {
    pub(crate) loss: bool,
    pub(crate) gap: bool,
    /// When the members had been asked.
    pub(crate) settled_at: Ms,
}

#[derive(Debug)]
pub(crate) struct Unacknowledged {
    pub(crate) partition: PartitionId,
    id: i64,
    start: Offset,
    pub(crate) end: Offset,
    pub(crate) stored_at: Ms,
    /// Members that have to hold it; 1: the master alone, also where fewer than asked for had to be enough.
    pub(crate) members: u32,
}

impl Master {
    pub(crate) fn new(consent: bool, accept_gap: bool, epoch: Epoch, now: Instant) -> Master {
        Master {
            stage: Stage::Polling { claimed: None },
            consent,
            accept_gap,
            poll: None,
            settled_at: 0,
            known: None,
            quorums: Quorums::new(epoch, now),
            confirmed: BTreeMap::new(),
            keep_at: 0,
            heard: BTreeMap::new(),
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

    pub(crate) fn permits(&self) -> Permits {
        Permits { loss: self.consent, gap: self.accept_gap, settled_at: self.settled_at }
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
            Stage::Polling { .. } if master.poll.is_none() => {
                self.settle_succession(node);
                return self.claim_in(node, SEAT_PAUSE_MS);
            }
            Stage::Polling { .. } => {
                self.on_poll_late(node);
                return self.claim_in(node, SEAT_PAUSE_MS);
            }
            Stage::Asking { found, since } if now >= since + ALIVE_PATIENCE_MS => {
                self.claim_in(node, CLAIM_PAUSE_MS);
                return self.decide(node, found, false);
            }
            Stage::Asking { .. } => return self.claim_in(node, SEAT_PAUSE_MS),
            Stage::Looking | Stage::Writing { .. } => (Ask::Look { slave: false }, CLAIM_PAUSE_MS),
            Stage::Vacating { epoch } => (Ask::Vacancy { ours: Fence { epoch, node } }, SEAT_PAUSE_MS),
            Stage::Reigning => {
                let open = now < master.lease_until;
                (Ask::Sit { session: master.session }, if open { RENEWAL_MS } else { SEAT_PAUSE_MS })
            }
        };
        if matches!(ask, Ask::Look { .. }) {
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
            (Told::Written(true), Stage::Writing { epoch }) => self.on_claimed(node, epoch),
            (Told::Written(false), Stage::Writing { .. }) => master.stage = Stage::Looking,
            (Told::Vacant(true), Stage::Vacating { epoch }) => {
                master.stage = Stage::Polling { claimed: Some(epoch) };
                self.settle_succession(node);
            }
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
        let rival = found.map(|fence| Rival { epoch: fence.epoch, node: &self.nodes[fence.node].disk.name });
        let disk = &self.nodes[node].disk;
        let claim = may_reign(rival, &disk.lineage, &disk.name);
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

    pub(crate) fn begin_reign(&mut self, node: usize, epoch: Epoch) {
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
        lineage.begin(Reign { epoch, node: disk.name.clone(), began_unix_ms: now, starts });
        disk.lineage = lineage;
        let permits = self.nodes[node].master().map(Master::permits).unwrap_or_default();
        self.checks.on_reign(node, epoch, permits, &self.nodes[node].disk);
        let mutation = self.options.mutation;
        let Some(master) = self.nodes[node].master_mut() else { return };
        (master.stage, master.epoch) = (Stage::Reigning, Some(epoch));
        if mutation == Some(Mutation::NoSeat) {
            (master.lease_until, master.has_led) = (now + LEASE_MS, true);
        }
        self.begin_quorum(node, epoch);
        self.set_timer(node, crate::retention::RETIRE_MS, Timer::Retire);
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
        let open = self.nodes[node].master().is_some_and(|master| master.is_open(now, mutation));
        if !open {
            return;
        }
        if !self.nodes[node].disk.logs.contains_key(&partition) {
            self.nodes[node].disk.logs.insert(partition.clone(), Log::new(Offset::ZERO));
            self.bump_catalog(node);
        }
        let members = match self.admit(node, &partition) {
            Ok(true) => 1,
            Ok(false) => self.nodes[node].config.rules(&partition).promised(),
            Err(_) if mutation == Some(Mutation::StoreWithoutMembers) => 2,
            Err(shortage) => {
                self.checks.on_refused(now);
                return self.trace.note(now, || format!("{} refuses message {id}: {shortage}", NAMES[node]));
            }
        };
        let host = &mut self.nodes[node];
        let Process::Master(master) = &mut host.process else { return };
        let Some(log) = host.disk.logs.get_mut(&partition) else { return };
        let (start, end) = log.append(id, body);
        let waiting = Unacknowledged { partition: partition.clone(), id, start, end, stored_at: now, members };
        master.unacknowledged.push(waiting);
        self.checks.on_stored(&self.nodes[node], &partition, members);
        self.checks.on_written(&partition, end);
        self.release(node, &partition);
        self.want_sync(node, &partition);
        self.wake(node, &partition);
    }

    /// Acknowledges what is as safe as its topic asks, here and on the members. Looked at again at this moment: what was
    /// accepted under a lease is not acknowledged without one.
    pub(crate) fn release(&mut self, node: usize, partition: &PartitionId) {
        let (now, mutation) = (self.now, self.options.mutation);
        let host = &mut self.nodes[node];
        let (Some(log), Process::Master(master)) = (host.disk.logs.get(partition), &mut host.process) else { return };
        let written = level(partition) == Level::Os || mutation == Some(Mutation::AckBeforeSync);
        let local = if written { log.end() } else { log.durable() };
        let confirmed = master.confirmed.get(partition).copied().unwrap_or(Offset::MAX);
        let to = if mutation == Some(Mutation::AckUnconfirmed) { local } else { local.min(confirmed) };
        let open = master.is_open(now, mutation);
        let epoch = master.epoch.unwrap_or_default();
        let (safe, waiting): (Vec<_>, Vec<_>) = std::mem::take(&mut master.unacknowledged)
            .into_iter()
            .partition(|m| m.partition == *partition && m.end <= to);
        master.unacknowledged = waiting;
        if !open {
            return;
        }
        // Whatever was asked for when it was stored: what is asked for now is what the answer promises.
        let asked = if confirmed == Offset::MAX { 1 } else { host.config.rules(partition).promised() };
        for Unacknowledged { id, start, end, members, .. } in safe {
            self.trace.mix(id as u64);
            let members = members.min(asked);
            let acknowledgement =
                crate::invariants::Ack { now, node, epoch, partition, id, place: (start, end), members };
            self.checks.on_ack(&acknowledgement, &self.nodes);
        }
    }

    /// The list of partitions has changed, or what its answer tells: whoever waits for that is told.
    pub(crate) fn bump_catalog(&mut self, node: usize) {
        let Some(master) = self.nodes[node].master_mut() else { return };
        master.catalog += 1;
        self.wake_lists(node);
    }
}

/// What leaves this node.
impl World {
    fn ask_registry(&mut self, node: usize, ask: Ask) {
        let (incarnation, sent) = (self.nodes[node].incarnation, self.now);
        self.send(Place::Node(node), Place::Registry, Message::Ask { from: node, incarnation, sent, ask });
    }

    pub(crate) fn set_timer(&mut self, node: usize, after: Ms, timer: Timer) {
        let incarnation = self.nodes[node].incarnation;
        self.queue.push(self.now + after, Event::Timer { node, incarnation, timer });
    }
}
