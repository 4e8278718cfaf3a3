//! Where the brokers are: asked from the registry, or from one broker that was named.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail};
use clap::Args;
use metaq_client::Client;
use metaq_config::{BrokerConfig, ZooKeeper};
use metaq_link::listing::{self, Listed};
use metaq_registry::{Cluster, ClusterBroker, Role, lookup};
use metaq_types::{BrokerId, SlaveId};

use crate::describe;

pub(crate) const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);

/// The options that say which cluster is meant; the first given of broker, zk and config counts.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Which brokers")]
pub(crate) struct Place {
    /// Talk to this broker only, without asking a registry
    #[arg(long, global = true, value_name = "HOST:PORT", env = "METAQ_BROKER", conflicts_with = "zk")]
    broker: Option<String>,

    /// Find the brokers in this ZooKeeper (the one of --local brokers too)
    #[arg(long, global = true, value_name = "HOST:PORT,…", env = "METAQ_ZK")]
    zk: Option<String>,

    /// The path of the cluster in ZooKeeper (zk.zkRoot), with --zk
    #[arg(long, global = true, value_name = "PATH", env = "METAQ_ROOT", default_value = "/meta")]
    root: String,

    /// Find the brokers through the ZooKeeper that this broker configuration names
    #[arg(long, global = true, value_name = "FILE", env = "METAQ_CONFIG", default_value = "conf/server.ini")]
    config: PathBuf,
}

/// Whom to ask for brokers.
#[derive(Clone, Debug)]
pub(crate) enum Source {
    Broker(String),
    Registry(ZooKeeper),
}

impl Place {
    /// The configuration of the node on this machine.
    pub(crate) fn broker_config(&self) -> anyhow::Result<BrokerConfig> {
        if !self.config.exists() {
            bail!("there is no {}: name the node's configuration with --config FILE", self.config.display());
        }
        Ok(BrokerConfig::load(&self.config)?)
    }

    pub(crate) fn named_broker(&self) -> Option<&str> {
        self.broker.as_deref()
    }

    pub(crate) fn source(&self) -> anyhow::Result<Source> {
        if let Some(broker) = &self.broker {
            return Ok(Source::Broker(broker.clone()));
        }
        if let Some(connect) = &self.zk {
            return Ok(Source::Registry(ZooKeeper {
                connect: connect.clone(),
                session_timeout: Duration::from_secs(10),
                connection_timeout: Duration::from_secs(5),
                sync_time: Duration::from_secs(2),
                enable: true,
                root: self.root.clone(),
            }));
        }
        if !self.config.exists() {
            bail!(
                "no broker was named and there is no {}: give --broker HOST:PORT, --zk HOST:PORT or --config FILE",
                self.config.display()
            );
        }
        let config = BrokerConfig::load(&self.config)?;
        if config.zookeeper.enable {
            return Ok(Source::Registry(config.zookeeper));
        }
        let host = config.system.host_name.as_deref().unwrap_or("localhost");
        Ok(Source::Broker(format!("{host}:{}", config.system.server_port)))
    }
}

impl Source {
    /// What only ZooKeeper knows is asked there.
    pub(crate) fn registry(&self) -> anyhow::Result<&ZooKeeper> {
        match self {
            Source::Registry(zookeeper) => Ok(zookeeper),
            Source::Broker(_) => bail!(
                "consumer groups are kept in ZooKeeper: give --zk HOST:PORT, or --config FILE of a broker with \
                 zk.zkEnable=true, and no --broker"
            ),
        }
    }

    /// What is registered now; for a single broker, what it says of itself.
    pub(crate) async fn look(&self) -> anyhow::Result<Cluster> {
        match self {
            Source::Registry(zookeeper) => Ok(lookup(zookeeper).await?),
            Source::Broker(address) => alone(address).await,
        }
    }

    /// The same for whoever reads a topic, and whether all its partitions are known: a broker alone lists those that hold
    /// something, and only one of ours says how many there are.
    pub(crate) async fn look_for(&self, topic: &str) -> anyhow::Result<(Cluster, bool)> {
        let mut cluster = self.look().await?;
        let Source::Broker(address) = self else { return Ok((cluster, true)) };
        let Some(partitions) = describe::partitions(&connect(address).await?, topic).await? else {
            return Ok((cluster, false));
        };
        for (id, broker) in &cluster.brokers {
            let role = broker.slaves.keys().next().map_or(Role::Master, |slave| Role::Slave(*slave));
            let announced = cluster.topics.entry(topic.to_owned()).or_default();
            let known = announced.subscribe.entry((*id, role)).or_default();
            *known = (*known).max(partitions);
        }
        Ok((cluster, true))
    }

    /// The same for whoever asks the brokers: none at all is what a root that is written wrong looks like.
    pub(crate) async fn look_at_brokers(&self) -> anyhow::Result<Cluster> {
        let cluster = self.look().await?;
        match self {
            Source::Registry(ZooKeeper { connect, root, .. }) if cluster.brokers.is_empty() => bail!(
                "no broker is registered in the ZooKeeper at {connect} below {root}: start one, or correct --zk and --root \
                 (zk.zkConnect and zk.zkRoot)"
            ),
            _ => Ok(cluster),
        }
    }
}

/// A cluster of the one broker that was named.
async fn alone(address: &str) -> anyhow::Result<Cluster> {
    let client = connect(address).await?;
    let text = client.stats("").await.with_context(|| format!("asking {address} who it is"))?;
    let text = String::from_utf8_lossy(&text);
    let field = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ').map(str::trim));
    let id = field("broker_id").and_then(|id| id.parse().ok()).and_then(|id| BrokerId::new(id).ok());
    let id = id.with_context(|| format!("{address} does not answer 'stats' as a broker does: is the port right?"))?;
    let mut cluster = Cluster::default();
    let mut broker = ClusterBroker::default();
    let role = if field("slave") == Some("true") {
        // Its own slave id is not told; it is the only one here.
        let slave = SlaveId::new(0)?;
        broker.slaves.insert(slave, address.to_owned());
        Role::Slave(slave)
    } else {
        broker.master = Some(address.to_owned());
        Role::Master
    };
    cluster.brokers.insert(id, broker);
    for (topic, partitions) in partition_counts(&partitions(&client).await?) {
        let topic = cluster.topics.entry(topic).or_default();
        topic.publish.insert((id, role), partitions);
        topic.subscribe.insert((id, role), partitions);
    }
    Ok(cluster)
}

/// Every partition of one broker.
pub(crate) async fn partitions(client: &Client) -> anyhow::Result<Vec<Listed>> {
    Ok(listing::parse(&String::from_utf8_lossy(&client.stats("offsets").await?)))
}

/// Partitions are numbered from 0, so the highest number tells how many there are.
fn partition_counts(listed: &[Listed]) -> BTreeMap<String, u32> {
    let mut counts = BTreeMap::new();
    for listed in listed {
        let count = counts.entry(listed.partition.topic.as_str().to_owned()).or_insert(0);
        *count = (*count).max(listed.partition.number + 1);
    }
    counts
}

pub(crate) async fn connect(address: &str) -> anyhow::Result<Client> {
    // The error tells its cause itself; as a chain it would be printed twice.
    Client::connect(address, CONNECT_TIMEOUT).await.map_err(|error| anyhow!("{error}; is the broker running there?"))
}

/// Where a topic can be read.
pub(crate) struct ReadPlace {
    pub(crate) broker: BrokerId,
    pub(crate) partitions: u32,
    pub(crate) master: Option<String>,
    pub(crate) slaves: Vec<String>,
}

/// The brokers a topic can be read from; each has a master or a slave at least.
pub(crate) fn readers(cluster: &Cluster, topic: &str) -> Vec<ReadPlace> {
    let Some(announced) = cluster.topics.get(topic) else { return Vec::new() };
    let mut counts: BTreeMap<BrokerId, u32> = BTreeMap::new();
    for ((id, _), count) in announced.subscribe.iter().chain(&announced.publish) {
        let known = counts.entry(*id).or_default();
        *known = (*known).max(*count);
    }
    counts
        .into_iter()
        .filter_map(|(broker, partitions)| {
            let known = cluster.brokers.get(&broker)?;
            let (master, slaves) = (known.master.clone(), known.slaves.values().cloned().collect::<Vec<_>>());
            let is_there = master.is_some() || !slaves.is_empty();
            is_there.then_some(ReadPlace { broker, partitions, master, slaves })
        })
        .collect()
}

/// The masters that take messages for a topic, with the number of partitions each has.
pub(crate) fn writers(cluster: &Cluster, topic: &str) -> Vec<(BrokerId, u32)> {
    let Some(announced) = cluster.topics.get(topic) else { return Vec::new() };
    let masters = announced.publish.iter().filter(|((_, role), count)| *role == Role::Master && **count > 0);
    masters.map(|((id, _), count)| (*id, *count)).collect()
}
