//! The loop: one queue of events, three nodes, a registry, a network, producers, an operator and a source of faults.

use crate::invariants::{Checks, sick};
use crate::master::Master;
use crate::message::{Event, Message, Timer};
use crate::mutation::Mutation;
use crate::net::{Net, Place};
use crate::node::{Level, NAMES, Node, Process, level};
use crate::operator::Operator;
use crate::queue::{Ms, Queue};
use crate::registry::{Registry, Told};
use crate::rng::Rng;
use crate::setup::Setup;
use crate::slave::Slave;
use crate::trace::Trace;
use metaq_types::PartitionId;
use std::time::{Duration, Instant};

const PRODUCERS: usize = 2;
const PARTITIONS: [&str; 3] = ["sync-0", "sync-1", "os-0"];
/// Messages go on coming for so long after faults stop, so that it shows that they are accepted again.
const PUTS_AFTER_CALM_MS: Ms = 12_000;
/// From then on everything has to be whole.
const HEALED_AFTER_MS: Ms = 45_000;
const INSPECT_MS: Ms = 400;

#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    pub mutation: Option<Mutation>,
    /// Keep the trace as lines.
    pub readable: bool,
}

/// What came of a seed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    pub seed: u64,
    /// Two runs of one seed have the same.
    pub digest: u64,
    pub violation: Option<String>,
    pub acknowledged: u64,
    /// Acknowledged when a quorum held it.
    pub under_quorum: u64,
    /// Acknowledged, not confirmed by whoever was promoted, and gone.
    pub lost_unconfirmed: u64,
    pub reigns: u64,
    pub trace: Vec<String>,
}

pub(crate) struct World {
    pub(crate) now: Ms,
    /// The instant that stands for 0.
    pub(crate) base: Instant,
    pub(crate) queue: Queue<Event>,
    pub(crate) rng: Rng,
    pub(crate) trace: Trace,
    pub(crate) options: Options,
    pub(crate) setup: Setup,
    pub(crate) nodes: Vec<Node>,
    pub(crate) registry: Registry,
    pub(crate) net: Net,
    pub(crate) operator: Operator,
    pub(crate) checks: Checks,
    pub(crate) calm: bool,
    calm_at: Ms,
    numbers: u64,
    next_id: i64,
}

/// Runs one seed to its end, or to the first invariant that does not hold.
pub fn run(seed: u64, options: Options) -> Outcome {
    let mut world = World::new(seed, options);
    world.play();
    let World { trace, checks, .. } = world;
    let (digest, trace) = trace.finish();
    Outcome {
        seed,
        digest,
        acknowledged: checks.acknowledged(),
        under_quorum: checks.under_quorum(),
        lost_unconfirmed: checks.lost_unconfirmed(),
        reigns: checks.reigns(),
        violation: checks.violation(),
        trace,
    }
}

impl World {
    fn new(seed: u64, options: Options) -> World {
        let mut rng = Rng::new(seed);
        let calm_at = rng.within(8_000, 30_000);
        let setup = Setup::draw(&mut rng);
        let mut world = World {
            now: 0,
            base: Instant::now(),
            queue: Queue::new(),
            trace: Trace::new(options.readable),
            options,
            setup,
            nodes: (0..setup.members).map(|place| Node::new(place, setup.config)).collect(),
            registry: Registry::default(),
            net: Net::default(),
            operator: Operator::default(),
            checks: Checks::default(),
            calm: false,
            calm_at,
            numbers: 0,
            next_id: 0,
            rng,
        };
        world.trace.note(0, || format!("{setup:?}"));
        world.start_master(0, false, false);
        (1..setup.members).for_each(|node| world.start_slave(node, false));
        let first_fault = world.rng.within(500, 3_000);
        world.queue.push(first_fault, Event::Fault);
        world.queue.push(calm_at, Event::Calm);
        world.queue.push(100, Event::Operate);
        world.queue.push(100, Event::Consume);
        world.queue.push(INSPECT_MS, Event::Inspect);
        (0..PRODUCERS).for_each(|producer| world.queue.push(50, Event::Produce { producer }));
        world
    }

    fn play(&mut self) {
        while let Some((at, event)) = self.queue.pop() {
            self.now = at;
            self.trace.mix(at);
            self.handle(event);
            if let Some(violation) = self.checks.violation() {
                return self.trace.note(at, || format!("VIOLATED: {violation}"));
            }
            if self.calm && self.is_over() {
                return;
            }
        }
    }

    fn is_over(&mut self) -> bool {
        if self.now < self.calm_at + PUTS_AFTER_CALM_MS {
            return false;
        }
        match sick(&self.nodes, self.now) {
            None => {
                self.inspect();
                self.checks.on_end(&self.nodes, self.now);
                true
            }
            Some(reason) => {
                if self.now >= self.calm_at + HEALED_AFTER_MS {
                    self.checks.not_healed(&reason);
                }
                false
            }
        }
    }

    fn inspect(&mut self) {
        let now = self.base + self.passed();
        self.checks.inspect(&self.nodes, self.now, now);
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Deliver { to: Place::Node(node), .. } | Event::Timer { node, .. } if self.is_paused(node) => {
                let until = self.nodes[node].paused_until;
                self.queue.push(until, event);
            }
            Event::Deliver { from, to, message } => self.deliver(from, to, message),
            Event::Timer { node, incarnation, timer } => {
                if self.nodes[node].incarnation == incarnation {
                    self.on_timer(node, timer);
                }
            }
            Event::Produce { producer } => self.produce(producer),
            Event::Consume => self.on_consume(),
            Event::Fault | Event::SwitchOver { .. } if self.calm => {}
            Event::SwitchOver { node } => self.switch_over(node),
            Event::Fault => self.on_fault(),
            Event::Calm => self.on_calm(),
            Event::Operate => self.on_operate(),
            Event::Inspect => {
                self.inspect();
                self.queue.push(self.now + INSPECT_MS, Event::Inspect);
            }
        }
    }

    fn on_timer(&mut self, node: usize, timer: Timer) {
        match timer {
            Timer::Claim => self.on_claim_timer(node),
            Timer::Synced { partition, to } => self.on_synced(node, &partition, to),
            Timer::Unpark { tag } => self.on_unpark(node, tag),
            Timer::Tick => self.on_tick(node),
            Timer::Resume { session, partition } => self.on_resume(node, session, &partition),
            Timer::Record => self.on_record(node),
            Timer::Quorum => self.on_quorum_timer(node),
            Timer::Retire => self.on_retire(node),
        }
    }

    fn deliver(&mut self, from: Place, to: Place, message: Message) {
        let Place::Node(node) = to else { return self.deliver_elsewhere(to, message) };
        let is_current = |world: &World, incarnation: u32| world.nodes[node].incarnation == incarnation;
        match message {
            Message::Told { incarnation, sent, told } if is_current(self, incarnation) => {
                if self.nodes[node].slave().is_some() {
                    if let Told::Standing { registered, .. } = told {
                        self.on_registered(node, registered);
                    }
                } else {
                    self.on_told(node, sent, told);
                }
            }
            Message::AreYouAlive { incarnation } if !matches!(self.nodes[node].process, Process::Down) => {
                self.send(to, from, Message::Alive { incarnation });
            }
            Message::AskPeer { incarnation, epoch, ends } => {
                if let Place::Node(from) = from {
                    self.on_ask_peer(node, from, (incarnation, epoch), &ends);
                }
            }
            Message::ToldPeer { incarnation, peer } if is_current(self, incarnation) => {
                if let Place::Node(from) = from {
                    self.on_told_peer(node, from, peer);
                }
            }
            Message::Alive { incarnation } if is_current(self, incarnation) => self.on_alive(node),
            Message::Put { partition, id, body } => self.on_put(node, partition, id, &body),
            Message::Closed { session } if self.nodes[node].master().is_some() => self.on_slave_gone(node, session),
            Message::Greet { .. } | Message::List { .. } | Message::AskLineage { .. } | Message::Get { .. } => {
                if let Place::Node(from) = from {
                    self.on_question(node, from, message);
                }
            }
            Message::Greeted { .. } | Message::Listed { .. } | Message::ToldLineage { .. } => {
                self.on_master(node, message);
            }
            Message::Got { .. } | Message::Closed { .. } => self.on_master(node, message),
            _ => {}
        }
    }

    fn deliver_elsewhere(&mut self, to: Place, message: Message) {
        if let (Place::Registry, Message::Ask { from, incarnation, sent, ask }) = (to, message)
            && let Some(told) = self.registry.answer(from, ask, self.now)
        {
            self.send(Place::Registry, Place::Node(from), Message::Told { incarnation, sent, told });
        }
    }

    pub(crate) fn send(&mut self, from: Place, to: Place, message: Message) {
        let delay = self.net.delay(from, to, &mut self.rng);
        if let Some(delay) = delay {
            self.queue.push(self.now + delay, Event::Deliver { from, to, message });
        }
    }

    fn produce(&mut self, producer: usize) {
        if self.calm && self.now > self.calm_at + PUTS_AFTER_CALM_MS {
            return;
        }
        let pause = self.rng.within(20, 250);
        self.queue.push(self.now + pause, Event::Produce { producer });
        // Whoever is registered, and now and then somebody who was: clients are late, too.
        let node = if self.rng.percent(90) { self.leader() } else { Some(self.rng.index(self.nodes.len())) };
        let node = node.unwrap_or_else(|| self.rng.index(self.nodes.len()));
        // The third partition comes into being late, so that some nodes have it and some do not.
        let choices = if self.now < self.calm_at / 3 { 1 } else { PARTITIONS.len() };
        let partition: PartitionId = PARTITIONS[self.rng.index(choices)].parse().expect("a partition's name");
        self.next_id += 1;
        let body = vec![b'a' + (self.next_id % 26) as u8; self.rng.within(1, 60) as usize];
        let message = Message::Put { partition, id: self.next_id, body };
        self.send(Place::Producers, Place::Node(node), message);
    }

    pub(crate) fn is_paused(&self, node: usize) -> bool {
        self.now < self.nodes[node].paused_until
    }

    pub(crate) fn passed(&self) -> Duration {
        Duration::from_millis(self.now)
    }

    /// For connections and questions; never used twice.
    pub(crate) fn number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }
}

/// Processes and their disks.
impl World {
    pub(crate) fn start_master(&mut self, node: usize, consent: bool, accept_gap: bool) {
        let (now, at) = (self.now, self.base + self.passed());
        self.trace.note(now, || format!("{} starts as master", NAMES[node]));
        let mut master = Master::new(consent, accept_gap, self.nodes[node].disk.lineage.epoch(), at);
        master.known = Some(self.nodes[node].known());
        self.start(node, Process::Master(Box::new(master)));
        self.follow_config(node);
        let recovery = self.rng.within(5, 80);
        self.set_timer(node, recovery, Timer::Claim);
    }

    pub(crate) fn start_slave(&mut self, node: usize, accept_divergence: bool) {
        let now = self.now;
        self.trace.note(now, || format!("{} starts as slave, accepting divergence: {accept_divergence}", NAMES[node]));
        let record = self.nodes[node].disk.record.clone();
        self.start(node, Process::Slave(Box::new(Slave::new(accept_divergence, record))));
        self.limit_all(node);
        self.start_slave_timers(node);
    }

    fn start(&mut self, node: usize, process: Process) {
        let host = &mut self.nodes[node];
        host.incarnation += 1;
        host.process = process;
        host.exit = None;
        host.syncing.clear();
        host.limits.clear();
        host.disk.logs.values_mut().for_each(crate::log::Log::recover);
    }

    /// The process is gone; its connections are closed as far as the network carries it.
    pub(crate) fn end_process(&mut self, node: usize) {
        let host = &mut self.nodes[node];
        host.incarnation += 1;
        host.paused_until = 0;
        host.syncing.clear();
        match std::mem::replace(&mut host.process, Process::Down) {
            Process::Down => {}
            Process::Master(master) => {
                for (session, slave) in master.greeted {
                    self.send(Place::Node(node), Place::Node(slave), Message::Closed { session });
                }
            }
            Process::Slave(slave) => {
                if let Some(session) = slave.session {
                    let message = Message::Closed { session: session.number };
                    self.send(Place::Node(node), Place::Node(session.master), message);
                }
            }
        }
    }

    /// One sync at a time a partition; what is written meanwhile waits for the next.
    pub(crate) fn want_sync(&mut self, node: usize, partition: &PartitionId) {
        let lazy = if level(partition) == Level::Os { 120 } else { 0 };
        let took = self.rng.within(1, self.nodes[node].sync_ms + 1) + lazy;
        let host = &mut self.nodes[node];
        let Some(log) = host.disk.logs.get(partition) else { return };
        if log.durable() == log.end() || !host.syncing.insert(partition.clone()) {
            return;
        }
        let to = log.end();
        self.set_timer(node, took, Timer::Synced { partition: partition.clone(), to });
    }

    fn on_synced(&mut self, node: usize, partition: &PartitionId, to: metaq_types::Offset) {
        let host = &mut self.nodes[node];
        host.syncing.remove(partition);
        let is_slave = host.slave().is_some();
        let Some(log) = host.disk.logs.get_mut(partition) else { return };
        log.publish_durable(to);
        if is_slave {
            self.on_slave_synced(node, partition);
        } else {
            self.release(node, partition);
            self.wake(node, partition);
        }
        self.want_sync(node, partition);
    }
}
