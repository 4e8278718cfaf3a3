//! `ackQuorum` on this node: `metaq_link::quorum` decides, and here its decisions are done to the store's partitions.

use crate::gate::Gate;
use crate::node::{Node, NodeRole, Shared};
use crate::settings::strictest_ack;
use metaq_config::{AckRules, BrokerConfig};
use metaq_link::confirmed::{Kept, Known};
use metaq_link::members::Shortage;
use metaq_link::quorum::{Act, Admission, Ends, Quorums};
use metaq_store::{Partition, Store};
use metaq_types::{Epoch, Offset, PartitionId, SlaveId};
use metaq_wire::Greeting;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::Notify;
use tracing::{info, warn};

/// What is confirmed is kept on disk this often, when it has moved.
const KEEP_INTERVAL: Duration = Duration::from_secs(1);

const TICK_MIN: Duration = Duration::from_millis(2);
const TICK_MAX: Duration = Duration::from_millis(250);

/// The quorums of a master; a slave's, and that of a master whose topics ask nobody, is off and costs one load.
pub(crate) struct Quorum {
    store: Arc<Store>,
    state: Mutex<State>,
    is_on: AtomicBool,
    /// The partitions that are watched have changed.
    changed: Notify,
}

struct State {
    quorums: Quorums,
    /// What was confirmed before this process began.
    known: Known,
    /// The reign has begun, so that appends wait for the quorum; before it only readers are held back.
    reigns: bool,
    /// Puts go on without their quorum; said once.
    downgraded: bool,
    /// What was last kept on disk: once known, what it says, or that there is none.
    kept: Option<Option<Kept>>,
    gate: Arc<Gate>,
    /// Confirmed while the gate was shut, and shown to nobody until it is open.
    withheld: HashMap<PartitionId, Offset>,
}

impl Quorum {
    pub(crate) fn new(store: &Arc<Store>, config: &BrokerConfig, role: &NodeRole, gate: &Arc<Gate>) -> Quorum {
        let now = Instant::now();
        let known = match role {
            NodeRole::Master => Known::load(&config.system.data_path, store.epoch()),
            NodeRole::Slave { .. } => Known::Everything,
        };
        let quorums = Quorums::new(store.epoch(), now);
        let (gate, withheld) = (Arc::clone(gate), HashMap::new());
        let state = State { quorums, known, reigns: false, downgraded: false, kept: None, gate, withheld };
        let is_on = AtomicBool::new(false);
        let quorum = Quorum { store: Arc::clone(store), state: Mutex::new(state), is_on, changed: Notify::new() };
        if matches!(role, NodeRole::Master) {
            quorum.follow(config);
        }
        quorum
    }

    /// Whether any partition asks for a quorum.
    pub(crate) fn is_on(&self) -> bool {
        self.is_on.load(Ordering::Relaxed)
    }

    /// Obeys a configuration, at the start and after a reload: which partitions ask for how many.
    pub(crate) fn follow(&self, config: &BrokerConfig) {
        let mut state = self.state.lock();
        let before = state.quorums.roll().number();
        state.quorums.expect(fewest_asked(config));
        for partition in self.store.logs() {
            let rules = rules_of(&partition, config);
            if rules.is_on() {
                self.watch(&mut state, &partition, rules);
            } else if state.quorums.is_watched(partition.id()) {
                state.quorums.unwatch(partition.id());
                partition.confirm(Offset::MAX);
            }
        }
        let is_on = state.quorums.tick_interval().is_some();
        self.is_on.store(is_on, Ordering::Relaxed);
        self.changed.notify_one();
        self.tell_roll(&state, before);
    }

    /// The greetings that wait are answered, and tell of a roll that is newer than `before`.
    fn tell_roll(&self, state: &State, before: u64) {
        if state.quorums.roll().number() != before {
            self.store.bump_catalog();
        }
    }

    fn watch(&self, state: &mut State, partition: &Arc<Partition>, rules: AckRules) {
        let id = partition.id();
        if let Some(acts) = state.quorums.set_rules(id, rules) {
            acts.into_iter().for_each(|act| state.act(partition, act));
            return;
        }
        let confirmed = if state.reigns {
            hold(partition)
        } else {
            let positions = partition.positions();
            let start = state.known.start(id, positions.kept, positions.durable);
            partition.limit(start);
            start
        };
        state.quorums.watch(id, rules, confirmed);
        self.is_on.store(true, Ordering::Relaxed);
        self.changed.notify_one();
    }

    /// The reign has begun: from now on appends wait.
    pub(crate) fn begin(&self, epoch: Epoch) {
        let mut state = self.state.lock();
        state.reigns = true;
        state.quorums.begin(epoch, Instant::now());
        for (id, confirmed) in state.quorums.confirmed() {
            if let (Some(partition), Some(to)) = (self.partition(id), confirmed) {
                confirm(&partition, to);
            }
        }
    }

    /// Whether a put may be appended to `partition`, which asks for a quorum by `rules`. `true`: without its quorum.
    pub(crate) fn admit(&self, partition: &Arc<Partition>, rules: AckRules) -> Result<bool, Shortage> {
        let mut state = self.state.lock();
        if !state.quorums.is_watched(partition.id()) {
            let before = state.quorums.roll().number();
            self.watch(&mut state, partition, rules);
            self.tell_roll(&state, before);
        }
        let positions = partition.positions();
        let admission = state.quorums.admit(partition.id(), positions.written == positions.kept, Instant::now())?;
        if let Admission::Downgraded(Some(act)) = admission {
            state.act(partition, act);
        }
        let downgraded = admission != Admission::Full;
        if std::mem::replace(&mut state.downgraded, downgraded) != downgraded {
            match downgraded {
                true => {
                    warn!(partition = %partition.id(), "acknowledging with fewer members than ackQuorum, as ackQuorumDowngrade allows")
                }
                false => info!("acknowledging with the members that ackQuorum asks for again"),
            }
        }
        Ok(downgraded)
    }

    /// A slave's first greeting on a connection.
    pub(crate) fn on_connect(&self, slave: SlaveId, address: &str) {
        self.state.lock().quorums.on_connect(slave, address, Instant::now());
    }

    pub(crate) fn on_greeting(&self, slave: SlaveId, greeting: &Greeting) {
        let mut state = self.state.lock();
        let before = state.quorums.roll().number();
        let acts = state.quorums.on_greeting(slave, greeting);
        self.act_all(&mut state, acts);
        self.tell_roll(&state, before);
    }

    pub(crate) fn on_disconnect(&self, slave: SlaveId) {
        let mut state = self.state.lock();
        let acts = state.quorums.on_disconnect(slave, Instant::now());
        self.act_all(&mut state, acts);
    }

    /// A slave asks for `offset`. Answers whether it counts in quorums of this reign.
    pub(crate) fn on_get(&self, slave: SlaveId, partition: &Arc<Partition>, offset: Offset) -> bool {
        let mut state = self.state.lock();
        let end = partition.positions().offered;
        if let Some(act) = state.quorums.on_get(slave, partition.id(), offset, end, Instant::now()) {
            state.act(partition, act);
        }
        state.quorums.counts(slave)
    }

    /// Reads the state, for texts.
    pub(crate) fn look<T>(&self, look: impl FnOnce(&Quorums) -> T) -> T {
        look(&self.state.lock().quorums)
    }

    fn tick(&self, now: Instant) {
        let mut state = self.state.lock();
        if !state.reigns {
            return;
        }
        let ends_of = |id: &PartitionId| {
            let positions = self.partition(id)?.positions();
            Some(Ends { offered: positions.offered, written: positions.written })
        };
        let acts = state.quorums.tick(now, ends_of);
        self.act_all(&mut state, acts);
        if !state.withheld.is_empty() && state.gate.is_open() {
            let mut withheld = std::mem::take(&mut state.withheld);
            withheld.retain(|id, _| state.quorums.is_watched(id));
            let acts = withheld.into_iter().map(|(id, to)| (id, Act::Confirm(to)));
            self.act_all(&mut state, acts.collect());
        }
    }

    fn act_all(&self, state: &mut State, acts: Vec<(PartitionId, Act)>) {
        for (id, act) in acts {
            if let Some(partition) = self.partition(&id) {
                state.act(&partition, act);
            }
        }
    }

    fn partition(&self, id: &PartitionId) -> Option<Arc<Partition>> {
        if id.is_journal() { self.store.journal() } else { self.store.get(&id.topic, id.number as i32) }
    }

    /// Keeps what is confirmed on disk, where it has moved. Blocks.
    pub(crate) fn keep(&self, data_path: &Path) {
        let mut state = self.state.lock();
        if !state.reigns {
            return;
        }
        let kept = self.is_on().then(|| self.standing(&state));
        if state.kept.as_ref() == Some(&kept) {
            return;
        }
        state.kept = Some(kept.clone());
        drop(state);
        let done = match &kept {
            Some(kept) => kept.save(data_path),
            // Nobody is asked: all that is stored may be read, also after the next start.
            None => Kept::remove(data_path),
        };
        if let Err(error) = done {
            warn!("after the next start consumers may have to wait for the quorum: {error}");
            self.state.lock().kept = None;
        }
    }

    fn standing(&self, state: &State) -> Kept {
        // Not simply what members hold: what our own disk lacks may still be lost.
        let shown = state.quorums.watched().map(|id| {
            let shown = self.partition(id).map_or(Offset::ZERO, |partition| partition.positions().readable);
            (id.to_string(), shown.get())
        });
        Kept { epoch: self.store.epoch().0, partitions: shown.collect() }
    }
}

impl Node {
    /// A partition that was made before the reign, to be filled with what another member holds: consumers are shown of it
    /// what a quorum is known to hold.
    pub fn hold_back(&self, partition: &Arc<Partition>) {
        let shared = self.shared();
        let rules = rules_of(partition, &shared.config.current());
        if rules.is_on() {
            shared.quorum.watch(&mut shared.quorum.state.lock(), partition, rules);
        }
    }

    /// The first step of a stop: no message is taken any more and no transaction begins; what was taken is answered while
    /// the members that have to confirm it are still here, and so are the commands that end a transaction. May be cancelled.
    pub async fn answer_what_was_taken(&self) {
        let shared = self.shared();
        shared.gate.leave();
        while shared.admission.in_flight() > 0 {
            tokio::time::sleep(TICK_MIN).await;
        }
    }
}

impl State {
    fn act(&mut self, partition: &Partition, act: Act) {
        match act {
            // Before the reign nothing waits, and what recovery appends must not.
            Act::Confirm(to) if !self.reigns => partition.limit(to),
            // Another may reign by now, which need not have heard of this: nobody is to read what it lacks.
            Act::Confirm(to) if !partition.id().is_journal() && !self.gate.is_open() => {
                self.withheld.insert(partition.id().clone(), to);
                partition.give_up(to);
            }
            Act::Confirm(to) => {
                self.withheld.remove(partition.id());
                confirm(partition, to);
            }
            Act::ConfirmEverything => partition.confirm(Offset::MAX),
            Act::Hold if !self.reigns => {
                let to = partition.positions().written;
                partition.limit(to);
                self.quorums.held(partition.id(), to);
            }
            Act::Hold => self.quorums.held(partition.id(), hold(partition)),
            Act::GiveUp(_) if partition.id().is_journal() => {}
            Act::GiveUp(to) => partition.give_up(to),
        }
    }
}

fn rules_of(partition: &Partition, config: &BrokerConfig) -> AckRules {
    match partition.id().is_journal() {
        true => strictest_ack(config),
        false => config.topic(&partition.id().topic).map_or(config.system.ack, |topic| topic.ack),
    }
}

/// The fewest members that a topic which asks for any can ask for.
fn fewest_asked(config: &BrokerConfig) -> Option<u32> {
    let all = config.topics.values().map(|topic| topic.ack).chain([config.system.ack]);
    all.filter(|ack| ack.is_on()).map(|ack| ack.quorum).min()
}

/// Of the journal only those entries wait for members that a coordinator is told about, and they do so themselves: a
/// put into a transaction promises nothing before it is prepared or committed.
fn confirm(partition: &Partition, to: Offset) {
    match partition.id().is_journal() {
        true => partition.limit(to),
        false => partition.confirm(to),
    }
}

fn hold(partition: &Partition) -> Offset {
    if !partition.id().is_journal() {
        return partition.hold();
    }
    let to = partition.positions().written;
    partition.limit(to);
    to
}

/// Ends what waits too long, and keeps what is confirmed on disk, until the node stops. Each for itself: a disk that
/// hangs must not make puts wait for it.
pub(crate) async fn run(shared: Arc<Shared>) {
    tokio::join!(end_waits(&shared), keep(&shared));
}

async fn end_waits(shared: &Shared) {
    let quorum = &shared.quorum;
    loop {
        let interval = quorum.look(Quorums::tick_interval);
        let pause = async {
            match interval {
                Some(interval) => tokio::time::sleep(interval.clamp(TICK_MIN, TICK_MAX)).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = pause => {}
            () = quorum.changed.notified() => {}
            () = shared.stopping() => return,
        }
        quorum.tick(Instant::now());
    }
}

async fn keep(shared: &Arc<Shared>) {
    loop {
        Node::keep_confirmed(shared).await;
        tokio::select! {
            () = tokio::time::sleep(KEEP_INTERVAL) => {}
            () = shared.stopping() => return,
        }
    }
}
