use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::Context as _;
use metaq_broker::{Untold, untold};
use metaq_client::Client;
use metaq_config::{BrokerConfig, System};
use metaq_link::progress::{self, LinkState, LinkStatus};
use metaq_link::promotion::{Known, Measurement, Record, measure};
use metaq_registry::fence::{Standing, look};
use metaq_registry::lookup;
use metaq_store::{Inspection, LogFiles, inspect};
use metaq_types::{BrokerId, Lineage, Offset, PartitionId, SlaveId};

use super::quorum;
use crate::cluster::{self, Place};
use crate::replicas;

/// A ZooKeeper that has not answered by then is taken for silent.
pub(super) const REGISTRY_PATIENCE: Duration = Duration::from_secs(10);

/// Everything a promotion depends on, as it is now.
pub(super) struct Facts {
    pub(super) config: PathBuf,
    pub(super) broker_id: BrokerId,
    pub(super) data_path: PathBuf,
    pub(super) node: Option<String>,
    pub(super) lineage: Lineage,
    pub(super) gaps: Vec<(PartitionId, Offset, Offset)>,
    /// Partitions with messages that the promoted broker would tell nobody of.
    pub(super) untold: Vec<(PartitionId, Untold)>,
    /// Average size of the newest records, by the partition's name.
    pub(super) record_bytes: BTreeMap<String, u64>,
    /// `None`: no process of ours answers.
    pub(super) running: Option<Running>,
    /// `None`: this data has not been a slave's since it was a master's.
    pub(super) replica: Option<Replica>,
    pub(super) registry: Registry,
    /// How long a dead master stays registered.
    pub(super) session: Duration,
}

pub(super) struct Running {
    pub(super) address: String,
    /// `None`: it is a master.
    pub(super) link: Option<LinkState>,
    /// Until their link ended the master may have acknowledged for that long what the slave did not hear of.
    pub(super) unheard: Option<Duration>,
    /// Partitions with damaged messages in their files, and how many bytes of them.
    pub(super) damaged: Vec<(PartitionId, u64)>,
}

pub(super) struct Replica {
    pub(super) slave_id: u32,
    pub(super) measurement: Measurement,
    /// The master it followed answers now.
    pub(super) master_answers: bool,
    /// The fewest members that had to hold what was acknowledged, the master included.
    pub(super) quorum: u32,
    /// Why something of that may be missing here.
    pub(super) doubts: Vec<String>,
    /// A message may have been acknowledged without its quorum (`ackQuorumDowngrade`).
    pub(super) downgrades: bool,
}

pub(super) enum Registry {
    /// `zk.zkEnable=false`.
    Off,
    Silent(String),
    Told {
        standing: Standing,
        /// The registered master answers.
        master_answers: bool,
    },
}

pub(super) async fn gather(place: &Place) -> anyhow::Result<Facts> {
    let config = place.broker_config()?;
    let system = &config.system;
    let record = Record::load(&system.data_path)?;
    let registry = ask_registry(&config).await;
    let slave_id = record.as_ref().map(|record| record.slave_id);
    let asked = ask_node(place, &config, slave_id).await?;
    let files = look_at_files(&config)?;
    let (running, ends, record, heard_age_ms) = match asked {
        None => (None, ends_of_files(&files)?, record, None),
        Some(node) => {
            let record = node.link.as_ref().map_or(record.clone(), |link| Some(freshened(record, link)));
            let heard_age_ms = node.link.as_ref().and_then(|link| link.heard_age_ms);
            let unheard = node.link.as_ref().and_then(|link| link.unheard_ms).map(Duration::from_millis);
            let link = node.link.map(|link| link.state);
            let running = Running { address: node.address, link, unheard, damaged: node.damaged };
            (Some(running), node.ends, record, heard_age_ms)
        }
    };
    let node = files.node_id.as_deref().unwrap_or_default();
    let replica = match record {
        None => None,
        Some(record) => Some(Replica {
            slave_id: record.slave_id,
            measurement: measured(&record, &ends, heard_age_ms),
            master_answers: answers(&record.master).await,
            quorum: record.quorum,
            downgrades: config.topics.values().any(|topic| topic.ack.downgrade),
            doubts: quorum::ask(&config, &record, node, &files.lineage, &ends).await,
        }),
    };
    let gaps = files.logs.iter().flat_map(|log| log.gaps.iter().map(|(from, to)| (log.id.clone(), *from, *to)));
    Ok(Facts {
        config: config.path.clone(),
        broker_id: system.broker_id,
        data_path: system.data_path.clone(),
        gaps: gaps.collect(),
        untold: untold_of(&config, &files.logs),
        record_bytes: record_bytes(&files.logs),
        node: files.node_id,
        lineage: files.lineage,
        running,
        replica,
        registry,
        session: config.zookeeper.session_timeout,
    })
}

/// The slave's own count of its master's silence, where it runs, is not moved by a clock that is set.
fn measured(record: &Record, ends: &BTreeMap<PartitionId, Offset>, heard_age_ms: Option<u64>) -> Measurement {
    let measurement = measure(record, ends, unix_ms());
    let silence = heard_age_ms.map(Duration::from_millis).or(measurement.silence);
    Measurement { silence, ..measurement }
}

fn untold_of(config: &BrokerConfig, logs: &[LogFiles]) -> Vec<(PartitionId, Untold)> {
    let held = logs.iter().filter(|log| log.first < log.end);
    held.filter_map(|log| Some((log.id.clone(), untold(config, &log.id)?))).collect()
}

fn look_at_files(config: &BrokerConfig) -> anyhow::Result<Inspection> {
    let System { data_path, .. } = &config.system;
    let journal = metaq_broker::journal_path(config);
    let own = config.topics.values().map(|topic| topic.data_path.clone()).filter(|path| path != data_path);
    let mut roots = vec![data_path.clone()];
    roots.extend(own.chain([journal]));
    inspect(&roots).with_context(|| format!("looking at {}", data_path.display()))
}

/// Where the logs will end when they are next opened.
fn ends_of_files(files: &Inspection) -> anyhow::Result<BTreeMap<PartitionId, Offset>> {
    let end_of = |log: &LogFiles| {
        let end = if files.is_clean { Ok(log.end) } else { log.checked_end() };
        Ok((log.id.clone(), end.with_context(|| format!("reading the last segment of {}", log.id))?))
    };
    files.logs.iter().map(end_of).collect()
}

fn record_bytes(logs: &[LogFiles]) -> BTreeMap<String, u64> {
    // An estimate has no use for a log that cannot be read.
    logs.iter().filter_map(|log| Some((log.id.to_string(), log.record_bytes_average().ok()??))).collect()
}

async fn ask_registry(config: &BrokerConfig) -> Registry {
    if !config.zookeeper.enable {
        return Registry::Off;
    }
    match tokio::time::timeout(REGISTRY_PATIENCE, look(&config.zookeeper, config.system.broker_id)).await {
        Ok(Ok(standing)) => {
            let master_answers = match &standing.registered {
                Some(address) => answers(address).await,
                None => false,
            };
            Registry::Told { standing, master_answers }
        }
        Ok(Err(error)) => Registry::Silent(error.to_string()),
        Err(_) => Registry::Silent(format!(
            "zookeeper at {} does not answer within {} s",
            config.zookeeper.connect,
            REGISTRY_PATIENCE.as_secs()
        )),
    }
}

async fn answers(address: &str) -> bool {
    let asked = async { cluster::connect(address).await.ok()?.version(None).await.ok() };
    matches!(tokio::time::timeout(cluster::CONNECT_TIMEOUT, asked).await, Ok(Some(_)))
}

/// What the node says that runs on this data.
struct Node {
    address: String,
    /// `None`: it is a master.
    link: Option<LinkStatus>,
    ends: BTreeMap<PartitionId, Offset>,
    damaged: Vec<(PartitionId, u64)>,
}

/// Asks the node of this configuration: where the command line says, where it is configured, or where it is registered.
async fn ask_node(place: &Place, config: &BrokerConfig, slave_id: Option<u32>) -> anyhow::Result<Option<Node>> {
    let System { host_name, server_port, broker_id, .. } = &config.system;
    if let Some(address) = place.named_broker() {
        return node_at(address, *broker_id).await.map(Some);
    }
    let host = host_name.as_deref().unwrap_or("localhost");
    if *server_port != 0
        && let Ok(node) = node_at(&format!("{host}:{server_port}"), *broker_id).await
    {
        return Ok(Some(node));
    }
    let slave_id = slave_id.and_then(|id| SlaveId::new(id.into()).ok());
    let Some(slave_id) = slave_id.filter(|_| config.zookeeper.enable) else { return Ok(None) };
    let Ok(Ok(found)) = tokio::time::timeout(REGISTRY_PATIENCE, lookup(&config.zookeeper)).await else {
        return Ok(None);
    };
    let address = found.brokers.get(broker_id).and_then(|broker| broker.slaves.get(&slave_id));
    Ok(match address {
        Some(address) => node_at(address, *broker_id).await.ok(),
        None => None,
    })
}

async fn node_at(address: &str, broker_id: BrokerId) -> anyhow::Result<Node> {
    let client = cluster::connect(address).await?;
    let text = String::from_utf8_lossy(&client.stats("").await?).into_owned();
    let says = |line: &str| text.lines().any(|said| said.trim_end() == line);
    anyhow::ensure!(says(&format!("broker_id {broker_id}")), "{address} is not a node of broker {broker_id}");
    let mut ends: BTreeMap<_, _> =
        cluster::partitions(&client).await?.into_iter().map(|listed| (listed.partition, listed.end)).collect();
    let (link, damaged) = match says("slave true") {
        true => link_of(&client).await?,
        false => (None, Vec::new()),
    };
    for copy in link.iter().flat_map(|link| &link.partitions) {
        // A slave's log may end beyond what it shows to consumers.
        let end = ends.entry(copy.partition.clone()).or_insert(copy.own_end);
        *end = (*end).max(copy.own_end);
    }
    Ok(Node { address: address.to_owned(), link, ends, damaged })
}

async fn link_of(client: &Client) -> anyhow::Result<(Option<LinkStatus>, Vec<(PartitionId, u64)>)> {
    let text = client.stats("replication").await?;
    let text = String::from_utf8_lossy(&text);
    let link = progress::parse_stats(&text).context("the slave does not say whom it follows")?;
    Ok((Some(link), replicas::damaged(&text)))
}

/// The record on disk, which is written once a second, with what the running slave knows by now.
fn freshened(record: Option<Record>, link: &LinkStatus) -> Record {
    let mut record = record.unwrap_or_default();
    if let LinkState::Following { master } | LinkState::Lost { master, .. } = &link.state {
        record.master.clone_from(master);
    }
    record.heard_unix_ms = record.heard_unix_ms.max(link.heard_unix_ms);
    for copy in &link.partitions {
        let Some(master_end) = copy.master_end else { continue };
        let heard = Known { seen_unix_ms: link.heard_unix_ms, ..Known::default() };
        let known = record.partitions.entry(copy.partition.to_string()).or_insert(heard);
        if master_end.get() > known.end {
            (known.end, known.seen_unix_ms) = (master_end.get(), link.heard_unix_ms);
        }
        known.stopped.clone_from(&copy.note);
    }
    record
}

fn unix_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}
