//! What the registry says about the whole cluster, read once; for the operator's tool.

use crate::paths::{self, Paths, Role, Tree};
use crate::zookeeper::{advice, connect};
use metaq_config::ZooKeeper;
use metaq_types::{BrokerId, SlaveId};
use std::collections::BTreeMap;
use std::time::Duration;
use zookeeper_client::{Client, Error};

/// Reading a cluster of any size ends within this.
const LOOKUP_MAX: Duration = Duration::from_secs(30);

/// Requests sent before the first answer is awaited.
const PIPELINE: usize = 128;

/// All brokers and topics under one root.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cluster {
    pub brokers: BTreeMap<BrokerId, ClusterBroker>,
    pub topics: BTreeMap<String, ClusterTopic>,
}

/// The nodes that share a broker id; all empty when none of them is registered now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClusterBroker {
    pub master: Option<String>,
    pub slaves: BTreeMap<SlaveId, String>,
    pub checksum: Option<u32>,
}

/// Partition counts of a topic by who announces it. A topic that nobody announces any more keeps its empty entry.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClusterTopic {
    pub publish: BTreeMap<(BrokerId, Role), u32>,
    pub subscribe: BTreeMap<(BrokerId, Role), u32>,
}

#[derive(Debug, thiserror::Error)]
pub enum LookupError {
    #[error("zk.zkEnable is false: there is no registry to look into")]
    Disabled,
    #[error(
        "no zookeeper answers at {connect}: {error}; check zk.zkConnect, or ask a broker itself (--broker HOST:PORT)"
    )]
    Connect { connect: String, error: Error },
    #[error("zookeeper at {connect}: {error}{advice}")]
    Read { connect: String, error: Error, advice: String },
    #[error("zookeeper at {connect} did not tell all within {} s", LOOKUP_MAX.as_secs())]
    Timeout { connect: String },
}

/// Reads the registry with a session of its own. Nodes that come or go meanwhile may be in the answer or not.
pub async fn lookup(zk: &ZooKeeper) -> Result<Cluster, LookupError> {
    let client = open(zk).await?;
    in_time(zk, Box::pin(read(&client, &Paths::new(&zk.root)))).await
}

/// A session to read with.
pub(crate) async fn open(zk: &ZooKeeper) -> Result<Client, LookupError> {
    if !zk.enable {
        return Err(LookupError::Disabled);
    }
    connect(zk).await.map_err(|error| LookupError::Connect { connect: zk.connect.clone(), error })
}

pub(crate) async fn in_time<T>(zk: &ZooKeeper, read: impl Future<Output = Result<T, Error>>) -> Result<T, LookupError> {
    match tokio::time::timeout(LOOKUP_MAX, read).await {
        Ok(read) => read.map_err(|error| LookupError::Read {
            connect: zk.connect.clone(),
            advice: advice(&error, &zk.root),
            error,
        }),
        Err(_) => Err(LookupError::Timeout { connect: zk.connect.clone() }),
    }
}

async fn read(client: &Client, paths: &Paths) -> Result<Cluster, Error> {
    let mut cluster = Cluster::default();
    let ids = children(client, vec![paths.ids()]).await?.remove(0);
    for id in ids.iter().filter_map(|name| paths::parse_broker(name)) {
        cluster.brokers.insert(id, broker(client, paths, id).await?);
    }
    for tree in [Tree::Publish, Tree::Subscribe] {
        let topics = children(client, vec![paths.tree(tree)]).await?.remove(0);
        let members = children(client, topics.iter().map(|topic| paths.topic(tree, topic)).collect()).await?;
        let announced: Vec<(&String, BrokerId, Role)> = topics
            .iter()
            .zip(&members)
            .flat_map(|(topic, names)| names.iter().map(move |name| (topic, name)))
            .filter_map(|(topic, name)| paths::parse_member(name).map(|(id, role)| (topic, id, role)))
            .collect();
        let nodes = announced.iter().map(|(topic, id, role)| paths.registration(tree, topic, *id, *role)).collect();
        let counts = data(client, nodes).await?;
        for topic in &topics {
            cluster.topics.entry(topic.clone()).or_default();
        }
        for ((topic, id, role), count) in announced.iter().zip(counts) {
            let Some(count) = count.and_then(|data| paths::parse_partitions(tree, &data)) else { continue };
            let topic = cluster.topics.entry((*topic).clone()).or_default();
            let counts = if tree == Tree::Publish { &mut topic.publish } else { &mut topic.subscribe };
            counts.insert((*id, *role), count);
        }
    }
    Ok(cluster)
}

async fn broker(client: &Client, paths: &Paths, id: BrokerId) -> Result<ClusterBroker, Error> {
    let names = children(client, vec![paths.broker(id)]).await?.remove(0);
    let slaves: Vec<SlaveId> = names.iter().filter_map(|name| paths::parse_slave(name)).collect();
    let slave_nodes = slaves.iter().map(|slave| paths.holder(id, Role::Slave(*slave)));
    let nodes = [paths.master(id), paths.checksum(id)].into_iter().chain(slave_nodes).collect();
    let mut found = data(client, nodes).await?.into_iter();
    let text = |data: Vec<u8>| String::from_utf8_lossy(&data).into_owned();
    Ok(ClusterBroker {
        master: found.next().flatten().map(text),
        checksum: found.next().flatten().and_then(|data| paths::parse_checksum(&data)),
        slaves: slaves.into_iter().zip(found).filter_map(|(slave, uri)| Some((slave, text(uri?)))).collect(),
    })
}

/// The children of each path; none where there is no such node.
pub(crate) async fn children(client: &Client, paths: Vec<String>) -> Result<Vec<Vec<String>>, Error> {
    let mut all = Vec::with_capacity(paths.len());
    for chunk in paths.chunks(PIPELINE) {
        let answers: Vec<_> = chunk.iter().map(|path| client.list_children(path)).collect();
        for answer in answers {
            all.push(match answer.await {
                Err(Error::NoNode) => Vec::new(),
                answer => answer?,
            });
        }
    }
    Ok(all)
}

/// The data of each path; `None` where there is no such node.
pub(crate) async fn data(client: &Client, paths: Vec<String>) -> Result<Vec<Option<Vec<u8>>>, Error> {
    let mut all = Vec::with_capacity(paths.len());
    for chunk in paths.chunks(PIPELINE) {
        let answers: Vec<_> = chunk.iter().map(|path| client.get_data(path)).collect();
        for answer in answers {
            all.push(match answer.await {
                Err(Error::NoNode) => None,
                answer => Some(answer?.0),
            });
        }
    }
    Ok(all)
}
