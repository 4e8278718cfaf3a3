//! A node: assembly, what its parts share, and the order in which it ends. Start reading here.

use crate::admission::{Admission, Admitted, LowPath};
use crate::answer::{Answer, failed};
use crate::dispatch::Peer;
use crate::full;
use crate::gate::Gate;
use crate::lag;
use crate::metrics::Counters;
use crate::outbound::Outbound;
use crate::quorum::{self, Quorum};
use crate::realtime::Period;
use crate::secure::Door;
use crate::session::{Activity, Session};
use crate::settings::partition_rules;
use crate::throttle::Throttle;
use crate::topics::Topics;
use crate::transactions::Transactions;
use crate::transport::{Buffers, Transport};
use crate::view;
use crate::watched::NodeView;
use metaq_config::{BrokerConfig, Live};
use metaq_link::driver::StatusSource;
use metaq_link::lag::LogEnd;
use metaq_link::replica_report::ReplicaLine;
use metaq_link::replicas::Replicas;
use metaq_net::certs::Identity;
use metaq_net::refusals::{Reason, Refusals, Seldom};
use metaq_store::{Partition, Store};
use metaq_txn::Coordinator;
use metaq_types::limits::{CONNECTION_IDLE_MAX, MESSAGE_BYTES_MAX, RECORD_HEADER_BYTES};
use metaq_types::{BrokerId, Opaque, PartitionId, SlaveId, Status};
use parking_lot::Mutex;
use std::collections::{BTreeSet, HashMap};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::{AbortOnDropHandle, TaskTracker};
use tracing::{info, warn};

/// What `version` answers and `stats` shows; one word, since a greeting's words follow it.
pub(crate) const VERSION: &str = concat!("metaq-", env!("CARGO_PKG_VERSION"));

/// Why a master takes no messages before its reign has begun.
const STARTING: &str =
    "the master is starting: it is not confirmed by ZooKeeper yet, or waits for room on its disk; try again";

/// How often idle connections, disk room and the age of the rates are looked at.
const HOUSEKEEPING: Duration = Duration::from_secs(1);

/// Whether this node takes messages from producers.
#[derive(Clone)]
pub enum NodeRole {
    Master,
    /// Serves reads; refuses puts, naming the master where it is known (`meta://host:port`).
    Slave {
        slave_id: SlaveId,
        master: watch::Receiver<Option<String>>,
        /// How far it has copied the master, for `stats replication`.
        progress: StatusSource,
    },
}

/// A slave's master, for a message.
pub(crate) fn master_named(master: &watch::Receiver<Option<String>>) -> String {
    master.borrow().clone().unwrap_or_else(|| "not known at the moment".to_owned())
}

/// What a node is made of.
pub struct NodeOptions {
    pub config: Live,
    pub store: Arc<Store>,
    pub role: NodeRole,
    /// As registered: `meta://host:port`; stands in the texts of failed puts.
    pub uri: String,
    /// Already listening; connections wait in its backlog until the node is up.
    pub listener: TcpListener,
    /// Where plain connections are served.
    pub sessions: Handle,
    /// Whether a greeting with a newer reign ends this one: where no registry keeps two masters apart.
    pub fenced_by_greeting: bool,
}

/// What all connections share.
pub(crate) struct Shared {
    pub(crate) config: Live,
    pub(crate) store: Arc<Store>,
    pub(crate) role: NodeRole,
    pub(crate) uri: Arc<str>,
    /// Where it listens.
    pub(crate) listens: SocketAddr,
    pub(crate) broker_id: BrokerId,
    pub(crate) gate: Arc<Gate>,
    pub(crate) fenced_by_greeting: bool,
    pub(crate) topics: Topics,
    pub(crate) counters: Arc<Counters>,
    pub(crate) transactions: Transactions,
    pub(crate) period: Period,
    pub(crate) admission: Arc<Admission>,
    pub(crate) replicas: Mutex<Replicas>,
    pub(crate) throttle: Throttle,
    pub(crate) quorum: Quorum,
    pub(crate) started: Instant,
    /// Who was not let in, and why.
    pub(crate) refusals: Arc<Refusals>,
    pub(crate) identity: OnceLock<Arc<Identity>>,
    /// For connections that encrypt.
    pub(crate) buffers: Arc<Buffers>,
    /// Counts connections and streams, to name each.
    next_session: AtomicU64,
    max_transfer_size: AtomicU32,
    stop: CancellationToken,
    sessions: Mutex<HashMap<u64, Seen>>,
}

/// A connection as the sweeper knows it.
struct Seen {
    activity: Arc<Activity>,
    outbound: Arc<Outbound>,
    ticks: u64,
    since: Instant,
}

/// A running node. Dropping it does not stop it; [`Node::stop`] does.
pub struct Node {
    shared: Arc<Shared>,
    address: SocketAddr,
    accepting: CancellationToken,
    tasks: TaskTracker,
    /// Answers what syncs have made safe, on the sessions' own threads.
    answering: AbortOnDropHandle<()>,
}

impl Node {
    /// Begins to serve. The store is open and recovered; registration comes after this.
    pub fn start(options: NodeOptions) -> std::io::Result<Node> {
        let address = options.listener.local_addr()?;
        let config = options.config.snapshot();
        let gate = Arc::new(Gate::shut(STARTING));
        let shared = Arc::new(Shared {
            quorum: Quorum::new(&options.store, &config, &options.role, &gate),
            topics: Topics::new(Arc::clone(&config)),
            max_transfer_size: AtomicU32::new(config.system.max_transfer_size),
            broker_id: config.system.broker_id,
            config: options.config,
            store: options.store,
            role: options.role,
            uri: options.uri.into(),
            listens: address,
            gate,
            fenced_by_greeting: options.fenced_by_greeting,
            counters: Arc::default(),
            transactions: Transactions::default(),
            period: Period::begin(Instant::now()),
            admission: Arc::default(),
            replicas: Mutex::default(),
            throttle: Throttle::default(),
            started: Instant::now(),
            refusals: Arc::default(),
            identity: OnceLock::new(),
            buffers: Arc::default(),
            next_session: AtomicU64::new(0),
            stop: CancellationToken::new(),
            sessions: Mutex::default(),
        });
        if let Some(warning) = shared.admission.room.warning() {
            warn!("{warning}");
        }
        let accepting = CancellationToken::new();
        let tasks = TaskTracker::new();
        let listener = {
            let _there = options.sessions.enter();
            TcpListener::from_std(options.listener.into_std()?)?
        };
        tasks.spawn_on(accept(listener, Arc::clone(&shared), accepting.clone(), tasks.clone()), &options.sessions);
        tasks.spawn(housekeeping(Arc::clone(&shared)));
        tasks.spawn(lag::watch(Arc::clone(&shared)));
        tasks.spawn(quorum::run(Arc::clone(&shared)));
        let answering = AbortOnDropHandle::new(options.sessions.spawn(Arc::clone(&shared.store).answer_synced()));
        Ok(Node { shared, address, accepting, tasks, answering })
    }

    /// Whether it acknowledges messages: shut until somebody opens it.
    pub fn gate(&self) -> &Arc<Gate> {
        &self.shared.gate
    }

    /// Takes transactions from now on; to be called before the gate is opened first.
    pub fn begin_transactions(&self, coordinator: Coordinator) {
        self.shared.transactions.begin(coordinator);
    }

    /// The reign has begun: from now on acknowledgements wait for their quorum; to be called before the gate is opened
    /// first, and after the transactions, since what their recovery stores waits for nobody.
    pub async fn begin_quorum(&self) {
        self.shared.quorum.begin(self.shared.store.epoch());
        Node::keep_confirmed(&self.shared).await;
    }

    pub(crate) async fn keep_confirmed(shared: &Arc<Shared>) {
        let shared = Arc::clone(shared);
        let keeping = move || shared.quorum.keep(&shared.config.current().system.data_path);
        if let Err(error) = tokio::task::spawn_blocking(keeping).await {
            std::panic::resume_unwind(error.into_panic());
        }
    }

    /// Waits until no commit or rollback is in motion any more; for the end, after [`Node::stop`].
    pub(crate) async fn end_transactions(shared: &Shared, patience: Duration) {
        if let Some(coordinator) = shared.transactions.get() {
            coordinator.close(patience).await;
        }
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub fn counters(&self) -> &Counters {
        &self.shared.counters
    }

    /// Who was not let in, by reason, since the start: `metaq_net_refused_handshakes`.
    pub fn refusals(&self) -> &Arc<Refusals> {
        &self.shared.refusals
    }

    /// For whoever shows what the node looks like now; it outlives the node.
    pub fn view(&self) -> NodeView {
        NodeView::new(Arc::clone(&self.shared))
    }

    pub(crate) fn shared(&self) -> &Shared {
        &self.shared
    }

    pub(crate) fn tasks(&self) -> &TaskTracker {
        &self.tasks
    }

    pub(crate) fn door(&self) -> Door {
        let (shared, accepting) = (Arc::clone(&self.shared), self.accepting.clone());
        Door { shared, accepting, tasks: self.tasks.clone() }
    }

    /// Connections open now.
    pub fn connections(&self) -> usize {
        self.shared.admission.connections()
    }

    /// Serves by a reloaded configuration, which is already in [`Live`]. What it withdraws is served for `grace` more,
    /// the time clients need to notice.
    pub fn reload(&self, grace: Duration) {
        let config = self.shared.config.snapshot();
        for partition in self.shared.store.partitions() {
            if let Some(topic) = config.topic(&partition.id().topic) {
                partition.set_rules(&partition_rules(topic));
            }
        }
        self.shared.max_transfer_size.store(config.system.max_transfer_size, Ordering::Relaxed);
        if matches!(self.shared.role, NodeRole::Master) {
            self.shared.quorum.follow(&config);
        }
        self.shared.topics.reload(config, grace);
        // Slaves that wait for a change of the partitions learn of this one.
        self.shared.store.bump_catalog();
    }

    /// Partitions with messages that clients were told of under `old` and no longer are, as `numPartitions` was lowered.
    pub fn cut_off_since(&self, old: &BrokerConfig) -> Vec<PartitionId> {
        let now = self.shared.config.snapshot();
        let told = |config: &BrokerConfig, id: &PartitionId| {
            config.topic(&id.topic).map(|topic| id.number < topic.num_partitions)
        };
        let holds = |log: &Partition| log.positions().kept < log.positions().written;
        let partitions = self.shared.store.partitions().into_iter().filter(|log| holds(log));
        let ids = partitions.map(|log| log.id().clone());
        ids.filter(|id| told(old, id) == Some(true) && told(&now, id) == Some(false)).collect()
    }

    /// Stops accepting, lets every connection have the answers it is owed for at most `patience`, then closes them.
    pub async fn stop(self, patience: Duration) {
        self.accepting.cancel();
        self.shared.stop.cancel();
        for seen in self.shared.sessions.lock().values() {
            seen.activity.ask_to_leave();
            seen.outbound.nudge();
        }
        self.tasks.close();
        if tokio::time::timeout(patience, self.tasks.wait()).await.is_err() {
            warn!(connections = self.connections(), "connections did not end in time and are cut");
        }
        Node::end_transactions(&self.shared, patience).await;
        Node::keep_confirmed(&self.shared).await;
        drop(self.answering);
    }
}

impl Shared {
    pub(crate) fn max_transfer_size(&self) -> u32 {
        self.max_transfer_size.load(Ordering::Relaxed)
    }

    /// The largest body that can be delivered: its record has to fit into one answer, and into a Java client.
    pub(crate) fn message_bytes_max(&self) -> u32 {
        (self.max_transfer_size() - RECORD_HEADER_BYTES).min(MESSAGE_BYTES_MAX)
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.stop.is_cancelled()
    }

    pub(crate) async fn stopping(&self) {
        self.stop.cancelled().await;
    }

    /// The answer to a put that was refused.
    pub(crate) fn put_failure(&self, topic: &str, partition: i32, status: Status, detail: &str) -> Answer {
        Answer::text(status, failed(&self.uri, topic, i64::from(partition), detail))
    }

    /// The lines of `stats replicas`.
    pub(crate) fn replica_lines(&self) -> Vec<ReplicaLine> {
        self.replicas.lock().snapshot(|id| self.log_end(id), Instant::now())
    }

    /// Where slaves have to come to.
    pub(crate) fn log_end(&self, id: &PartitionId) -> Option<LogEnd> {
        self.store.get(&id.topic, id.number as i32).map(|partition| log_end(&partition))
    }

    /// Serves one connection, or one stream of a connection between nodes, to its end.
    pub(crate) async fn serve<T: Transport>(self: Arc<Shared>, stream: T, peer: Peer) {
        let id = self.next_session.fetch_add(1, Ordering::Relaxed);
        let activity = Arc::new(Activity::default());
        let session = Session::new(stream, peer, Arc::clone(&self), Arc::clone(&activity));
        self.enter(id, activity, Arc::clone(session.outbound()));
        session.serve().await;
        self.leave(id);
    }

    /// Counts a connection in the sweeper's table.
    fn enter(&self, id: u64, activity: Arc<Activity>, outbound: Arc<Outbound>) {
        self.sessions.lock().insert(id, Seen { activity, outbound, ticks: 0, since: Instant::now() });
    }

    fn leave(&self, id: u64) {
        self.sessions.lock().remove(&id);
    }

    /// Asks connections to leave on which nothing moved for [`CONNECTION_IDLE_MAX`].
    fn sweep(&self, now: Instant) {
        for seen in self.sessions.lock().values_mut() {
            let ticks = seen.activity.ticks();
            if ticks != seen.ticks || seen.outbound.outstanding() > 0 {
                (seen.ticks, seen.since) = (ticks, now);
            } else if now.duration_since(seen.since) >= CONNECTION_IDLE_MAX {
                seen.activity.ask_to_leave();
                seen.outbound.nudge();
            }
        }
    }
}

pub(crate) fn log_end(partition: &Partition) -> LogEnd {
    LogEnd { end: partition.positions().durable, records: partition.record_count() }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>, accepting: CancellationToken, tasks: TaskTracker) {
    let refused = Arc::new(Semaphore::new(shared.admission.room.refused));
    let mut failed = Seldom::default();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = accepting.cancelled() => return,
        };
        match accepted {
            Ok((stream, peer)) => match shared.admission.connection() {
                Some(admitted) => admit(stream, peer, admitted, &shared, &tasks),
                None => refuse(stream, peer, &refused, &shared, &tasks),
            },
            Err(error) => {
                // Out of descriptors or memory: those who are in go on, newcomers wait in the backlog.
                if let Some(since_last_line) = failed.line_is_due(Instant::now()) {
                    warn!(%error, since_last_line, "cannot accept a connection");
                }
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

fn admit(stream: TcpStream, peer: SocketAddr, admitted: Admitted, shared: &Arc<Shared>, tasks: &TaskTracker) {
    if metaq_net::tcp::tune(&stream).is_err() {
        return;
    }
    let shared = Arc::clone(shared);
    tasks.spawn(async move {
        shared.serve(stream, Peer::stranger(Some(peer))).await;
        drop(admitted);
    });
}

/// Sends a connection away for which there is no room: after a moment, or at once while too many are being sent away.
fn refuse(stream: TcpStream, peer: SocketAddr, places: &Arc<Semaphore>, shared: &Arc<Shared>, tasks: &TaskTracker) {
    let room = shared.admission.room;
    shared.refusals.refuse(Reason::Full, peer, &room.used_up());
    let Ok(place) = Arc::clone(places).try_acquire_owned() else {
        let _ = stream.try_write(&full::refusal(Opaque::NONE, room));
        return;
    };
    let shared = Arc::clone(shared);
    tasks.spawn(async move {
        tokio::select! {
            () = full::refuse(stream, room) => {}
            () = shared.stopping() => {}
        }
        drop(place);
    });
}

async fn housekeeping(shared: Arc<Shared>) {
    let mut tick = tokio::time::interval(HOUSEKEEPING);
    loop {
        tokio::select! {
            _ = tick.tick() => {}
            () = shared.stopping() => return,
        }
        let now = Instant::now();
        shared.sweep(now);
        if shared.period.is_over(now) {
            view::reset(&shared);
        }
        watch_disks(&shared);
    }
}

/// Each data path has a file system of its own, perhaps.
fn watch_disks(shared: &Shared) {
    let config = shared.config.current();
    let floor = config.system.min_free_disk_bytes;
    let low = |path: &PathBuf| {
        let free_bytes = rustix::fs::statvfs(path).ok().map(|disk| disk.f_bavail * disk.f_frsize)?;
        (free_bytes < floor).then(|| LowPath { path: path.clone(), free_bytes, floor_bytes: floor })
    };
    let paths: BTreeSet<&PathBuf> =
        config.topics.values().map(|topic| &topic.data_path).chain([&config.system.data_path]).collect();
    let low: Vec<LowPath> = match floor {
        0 => Vec::new(),
        _ => paths.into_iter().filter_map(low).collect(),
    };
    let before = shared.admission.set_low_paths(low.clone());
    let is_among = |all: &[LowPath], one: &LowPath| all.iter().any(|other| other.path == one.path);
    for LowPath { path, free_bytes, .. } in low.iter().filter(|one| !is_among(&before, one)) {
        warn!(path = %path.display(), free_bytes, floor, "free disk space is below minFreeDiskBytes: puts are refused");
    }
    for LowPath { path, .. } in before.iter().filter(|one| !is_among(&low, one)) {
        info!(path = %path.display(), "free disk space is above minFreeDiskBytes again: puts are accepted");
    }
}
