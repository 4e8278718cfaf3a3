//! The steps that a master and a slave take alike, in the order in which they are taken.

use anyhow::{Context, Result, anyhow, bail};
use metaq_broker::{Node, Untold, untold};
use metaq_config::{BrokerConfig, Live, address};
use metaq_registry::{Embedded, Registry, Role, Wanted, WantedTopic};
use metaq_store::{RulesFor, Store, StoreOptions};
use metaq_txn::Coordinator;
use metaq_types::TopicName;
use rustix::fs::{Access, access};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tracing::{error, info, warn};

/// As many descriptors as the system lets us have: connections and segment files each take one.
pub fn raise_descriptor_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        warn!(%error, "the limit of open files stays as it is");
    }
}

/// Opens and recovers the store of a configuration.
pub async fn open_store(live: &Live) -> Result<Arc<Store>> {
    let live = live.clone();
    tokio::task::spawn_blocking(move || open_store_here(&live)).await.context("opening the store")?
}

/// Blocks for as long as recovery takes.
fn open_store_here(live: &Live) -> Result<Arc<Store>> {
    let config = live.snapshot();
    // Of many topics with few paths each path once.
    let own: BTreeSet<_> = config.topics.values().map(|topic| topic.data_path.clone()).collect();
    for path in own.iter().chain([&config.system.data_path]) {
        check_directory(path)?;
    }
    let path = &config.system.data_path;
    let is_new = fs::read_dir(path).map_or(true, |mut entries| entries.next().is_none());
    let rules_from = live.clone();
    let mut options = StoreOptions::new(
        config.system.data_path.clone(),
        config.system.broker_id,
        Arc::new(move |topic: &str| metaq_broker::rules_for(&rules_from.snapshot(), topic)),
    );
    options.extra_data_paths = own.into_iter().filter(|path| *path != config.system.data_path).collect();
    let known = Arc::clone(&config);
    options.expects = Arc::new(move |id| known.topic(&id.topic).is_some_and(|topic| id.number < topic.num_partitions));
    options.journal_path = Some(metaq_broker::journal_path(&config));
    let store = Store::open(options)
        .with_context(|| format!("cannot open the data directory {}", config.system.data_path.display()))?;
    log_recovery(&store);
    log_untold(&config, &store);
    if is_new {
        warn!(path = %path.display(), "the data directory is new; if it should hold messages, stop, and look whether its disk is mounted");
    }
    Ok(Arc::new(store))
}

/// A data path is a directory, or nothing yet; of the rest the system says no more than that the file exists.
fn check_directory(path: &Path) -> Result<()> {
    let Ok(found) = fs::symlink_metadata(path) else { return Ok(()) };
    let shown = path.display();
    match fs::metadata(path) {
        Ok(there) if there.is_dir() => {
            let may = Access::READ_OK | Access::WRITE_OK | Access::EXEC_OK;
            let user = rustix::process::getuid().as_raw();
            access(path, may).map_err(|error| {
                let error = std::io::Error::from(error);
                anyhow!("dataPath {shown} cannot be written by user {user}: {error}; correct its owner, mode or mount")
            })
        }
        Err(error) if found.is_symlink() => {
            let to = fs::read_link(path).unwrap_or_default();
            bail!(
                "dataPath {shown} is a link to {}: {error}; mount or make that directory, then start again",
                to.display()
            )
        }
        _ => bail!("dataPath {shown} is no directory; move away what is there, or name another path"),
    }
}

/// Finishes what the transaction journal says is decided, and begins to take transactions. Blocks while it reads; to be
/// called when the reign has begun, since what it stores belongs to that, and before the gate is opened.
pub fn open_transactions(live: &Live, store: &Arc<Store>) -> Result<Coordinator> {
    let config = live.snapshot();
    let rules_from = live.clone();
    let rules: RulesFor = Arc::new(move |topic: &str| metaq_broker::rules_for(&rules_from.snapshot(), topic));
    let settings = metaq_broker::transaction_settings(&config);
    let (coordinator, recovered) =
        Coordinator::open(Arc::clone(store), settings, rules).context("opening the transactions")?;
    for trouble in &recovered.trouble {
        error!("transactions: {trouble}");
    }
    for completed in &recovered.completed {
        warn!("transactions: committed before, stored now: {completed}");
    }
    info!(
        prepared = recovered.prepared.len(),
        rolled_back = recovered.rolled_back,
        completed = recovered.completed.len(),
        imported = recovered.imported,
        "transaction journal read"
    );
    Ok(coordinator)
}

/// One line with the counts. The store has named what is not served.
fn log_recovery(store: &Store) {
    let report = store.recovery_report();
    info!(
        node = store.node_id(),
        clean = report.clean,
        served = report.served,
        repaired = report.repaired.len(),
        damaged = report.damaged.len(),
        failed = report.failed.len(),
        passed_over = report.passed_over.len(),
        took_ms = report.took.as_millis() as u64,
        "data directory opened"
    );
}

/// Messages that nobody finds any more, as a section was removed or `numPartitions` lowered while the broker was down, or
/// as a slave's file is not its master's.
fn log_untold(config: &BrokerConfig, store: &Store) {
    let held = store.partitions().into_iter().filter(|log| log.positions().kept < log.positions().written);
    let ids: Vec<_> = held.map(|log| log.id().clone()).collect();
    let of = |why| ids.iter().filter(move |id| untold(config, id) == Some(why));
    if let Some(first) = of(Untold::NoSection).next() {
        warn!(
            partitions = of(Untold::NoSection).count(),
            %first,
            "there are messages of topics that no section of the configuration lets in: nothing is put there, and ZooKeeper \
             does not tell consumers of them; add the section again, or, when nobody needs them, remove the directories \
             while the broker is stopped"
        );
    }
    if let Some(first) = of(Untold::AboveCount).next() {
        warn!(
            partitions = of(Untold::AboveCount).count(),
            %first,
            "there are messages in partitions above numPartitions: nothing is put there, and ZooKeeper does not tell \
             consumers of them; unless all is read, raise it again until it is"
        );
    }
}

/// Listens where the configuration says, and names the address to register, `meta://host:port`. Connections wait in the
/// backlog until a node accepts them.
pub async fn listen(config: &BrokerConfig) -> Result<(TcpListener, String)> {
    let asked = config.clone();
    // Names of the ensemble may be resolved on the way, which blocks.
    let advertised = tokio::task::spawn_blocking(move || address::advertised(&asked)).await?;
    let address = SocketAddr::new(address::listen_on(&config.system, &advertised), config.system.server_port);
    let listener = metaq_net::tcp::listen_beside_udp(address, metaq_net::tcp::BACKLOG).map_err(|error| {
        let advice = match error.kind() {
            ErrorKind::AddrInUse => "is another broker running there? serverPort and bindHost set the address",
            ErrorKind::AddrNotAvailable => {
                "no interface of this machine has it; bindHost sets it, 0.0.0.0 is all of them"
            }
            ErrorKind::PermissionDenied => "ports below 1024 are for root; serverPort sets it",
            _ => "serverPort and bindHost set the address",
        };
        anyhow!("cannot listen on {address}: {advice}: {error}")
    })?;
    let uri = format!("meta://{}:{}", advertised.host, listener.local_addr()?.port());
    info!(uri, because = advertised.reason, listening = %address, "advertised address");
    Ok((listener, uri))
}

/// The `--local` registry on the port that `zk.zkConnect` names.
pub fn start_embedded(config: &BrokerConfig) -> Result<Embedded> {
    let address = metaq_registry::embedded_address(&config.zookeeper.connect)?;
    let embedded = Embedded::start(address).with_context(|| {
        format!("--local cannot serve a registry on {address}: is a ZooKeeper or another --local broker running there?")
    })?;
    info!(%address, "serving the embedded registry; it is kept in memory and for a first look only");
    Ok(embedded)
}

/// What should stand in the registry for this node now: configured topics, and those that exist by a pattern.
pub fn wanted(config: &BrokerConfig, store: &Store, role: Role, uri: &str) -> Wanted {
    let mut topics: BTreeMap<TopicName, WantedTopic> = BTreeMap::new();
    let held = store.partitions().into_iter().map(|partition| partition.id().topic.clone());
    for name in config.topics.keys().cloned().chain(held) {
        // A topic that is on disk but in no section is not offered: its registration would invite puts we refuse.
        if let Some(topic) = config.topic(&name) {
            let wanted = WantedTopic {
                partitions: topic.num_partitions,
                publish: topic.accept_publish,
                subscribe: topic.accept_subscribe,
            };
            topics.insert(name, wanted);
        }
    }
    let checksum = matches!(role, Role::Master).then_some(config.checksum);
    Wanted { broker_id: config.system.broker_id, role, uri: uri.to_owned(), topics, checksum }
}

/// The first line of the log: what runs, and by which configuration.
pub fn log_configuration(config: &BrokerConfig, role: &str) {
    let system = &config.system;
    info!(
        version = env!("CARGO_PKG_VERSION"),
        role,
        config = %config.path.display(),
        checksum = config.checksum,
        broker_id = %system.broker_id,
        port = system.server_port,
        data_path = %system.data_path.display(),
        zookeeper = config.zookeeper.connect,
        zk_root = config.zookeeper.root,
        topics = config.topics.len(),
        "metaq starts"
    );
}

/// What people and supervisors send.
/// To be made before anybody is told that the process runs: until then a signal ends it.
pub struct Signals {
    pub terminate: Signal,
    pub interrupt: Signal,
    pub hangup: Signal,
}

impl Signals {
    pub fn new() -> Result<Signals> {
        Ok(Signals {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hangup: signal(SignalKind::hangup())?,
        })
    }

    /// With what [`heed_signals`] has taken note of.
    #[must_use]
    pub fn since(self, hangup: Signal) -> Signals {
        Signals { hangup, ..self }
    }

    /// Returns when the process is asked to end.
    pub async fn stop(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

/// From now on no signal ends the process but those that are meant to: one for a reload is kept until somebody asks for
/// it, those that other daemons take for a dump or a new log file are told of, a file beyond `ulimit -f` is an error of
/// its write. To be called before the store is opened, which may take long.
pub fn heed_signals() -> Result<Signal> {
    let others = [
        (SignalKind::quit(), "SIGQUIT", "a Java broker prints its threads; this one has 'stats', /metrics and gdb"),
        (SignalKind::user_defined1(), "SIGUSR1", "log lines go to standard error, which 'metaServer.sh start' rotates"),
        (SignalKind::user_defined2(), "SIGUSR2", "it has no meaning here"),
        (
            SignalKind::from_raw(rustix::process::Signal::XFSZ.as_raw()),
            "SIGXFSZ",
            "a file may not grow: raise 'ulimit -f' and restart",
        ),
    ];
    for (kind, name, meaning) in others {
        let mut signals = signal(kind)?;
        tokio::spawn(async move {
            while signals.recv().await.is_some() {
                warn!("{name} changes nothing: {meaning}");
            }
        });
    }
    Ok(signal(SignalKind::hangup())?)
}

/// Whether something answers at a registered address, `meta://host:port`.
pub async fn is_alive(uri: &str) -> bool {
    let address = uri.strip_prefix("meta://").unwrap_or(uri);
    let asked = async {
        let mut stream = TcpStream::connect(address).await?;
        stream.write_all(b"version 1\r\n").await?;
        stream.read_u8().await
    };
    matches!(tokio::time::timeout(Duration::from_secs(3), asked).await, Ok(Ok(_)))
}

/// How long a stopping node waits for connections to take the answers they are owed.
const DRAIN: Duration = Duration::from_secs(5);

/// Also after messages whose answers took all of that.
const DRAIN_MIN: Duration = Duration::from_secs(1);

/// Unregister, let clients leave, answer what is owed, sync, mark the stop as clean.
pub async fn stop(node: Node, store: &Arc<Store>, registry: Option<Registry>, sync_time: Duration) -> Result<()> {
    info!("stopping");
    if let Some(registry) = &registry {
        registry.withdraw().await;
    }
    let deadline = tokio::time::Instant::now() + sync_time;
    while node.connections() > 0 && tokio::time::Instant::now() < deadline {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let begun = tokio::time::Instant::now();
    // What is not answered by then is cut with its connection.
    let _ = tokio::time::timeout(DRAIN, node.answer_what_was_taken()).await;
    node.stop(DRAIN.saturating_sub(begun.elapsed()).max(DRAIN_MIN)).await;
    // Only now: as long as we may acknowledge, no other master may begin to.
    if let Some(registry) = registry {
        registry.close().await;
    }
    let store = Arc::clone(store);
    tokio::task::spawn_blocking(move || store.close()).await.context("closing the store")??;
    info!("stopped");
    Ok(())
}
