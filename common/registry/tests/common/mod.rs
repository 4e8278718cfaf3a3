//! What the contract's cases need: either server, an observer's eyes, brokers to register, patience.

use metaq_config::ZooKeeper as Settings;
use metaq_harness::zookeeper::ZooKeeper;
use metaq_registry::{Embedded, Registry, Role, State, Wanted, WantedTopic};
use metaq_types::{BrokerId, SlaveId, TopicName};
use serde_json::Value;
use std::collections::BTreeMap;
use std::future::Future;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};
use zookeeper_client::Client;

pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// Short enough for a test to wait for, long enough for a busy machine not to expire anybody by accident.
pub(crate) const SESSION_TIMEOUT: Duration = Duration::from_secs(3);

/// The two servers that must behave the same.
pub(crate) enum Server {
    Embedded { address: SocketAddr, running: Option<Embedded> },
    ZooKeeper(Box<ZooKeeper>),
}

impl Server {
    pub(crate) fn embedded() -> Server {
        let running = Embedded::start("127.0.0.1:0".parse().unwrap()).unwrap();
        Server::Embedded { address: running.address(), running: Some(running) }
    }

    pub(crate) fn zookeeper() -> Server {
        Server::ZooKeeper(Box::new(ZooKeeper::start().unwrap()))
    }

    pub(crate) fn connect(&self) -> String {
        match self {
            Server::Embedded { address, .. } => address.to_string(),
            Server::ZooKeeper(zookeeper) => zookeeper.connect(),
        }
    }

    pub(crate) fn settings(&self) -> Settings {
        Settings {
            connect: self.connect(),
            session_timeout: SESSION_TIMEOUT,
            connection_timeout: Duration::from_secs(5),
            sync_time: Duration::from_millis(500),
            enable: true,
            root: "/meta".to_owned(),
        }
    }

    pub(crate) async fn kill(&mut self) {
        match self {
            Server::Embedded { running, .. } => running.take().unwrap().close().await,
            Server::ZooKeeper(zookeeper) => zookeeper.kill(),
        }
    }

    /// On the same address; a real one with what it stored.
    pub(crate) fn run(&mut self) {
        match self {
            Server::Embedded { address, running } => *running = Some(start_at(*address)),
            Server::ZooKeeper(zookeeper) => zookeeper.run().unwrap(),
        }
    }

    /// On the same address, with nothing in it.
    pub(crate) async fn wipe(&mut self) {
        match self {
            Server::Embedded { .. } => {
                self.kill().await;
                self.run();
            }
            Server::ZooKeeper(zookeeper) => zookeeper.wipe().unwrap(),
        }
    }

    pub(crate) async fn observer(&self) -> Client {
        let connector = Client::connector().with_session_timeout(Duration::from_secs(30)).with_server_version(3, 4, 0);
        timeout(PATIENCE, connector.connect(&self.connect())).await.unwrap().unwrap()
    }

    /// Leaves its session, and so its nodes, behind when it is dropped: a broker that was killed.
    pub(crate) async fn mortal(&self) -> Client {
        let connector = Client::connector()
            .with_session_timeout(Duration::from_secs(30))
            .with_server_version(3, 4, 0)
            .with_detached();
        timeout(PATIENCE, connector.connect(&self.connect())).await.unwrap().unwrap()
    }
}

/// Where another has listened: for a moment a process that another test has just started holds that listener as well.
fn start_at(address: SocketAddr) -> Embedded {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match Embedded::start(address) {
            Err(error) if error.kind() == ErrorKind::AddrInUse && Instant::now() < deadline => std::thread::yield_now(),
            started => return started.unwrap(),
        }
    }
}

pub(crate) fn slave() -> Role {
    Role::Slave(SlaveId::new(0).unwrap())
}

/// The brokers of the recording `zk-1-master-and-slave.json`.
pub(crate) fn recorded(role: Role) -> Wanted {
    let topics = [("golden-trim", 1), ("meta-bench", 10), ("meta-closed", 1), ("meta-test", 4), ("meta-tx", 2)];
    let topics = topics.into_iter().chain([("test", 1)]).map(|(name, partitions)| {
        let publish = name != "meta-closed";
        (TopicName::new(name).unwrap(), WantedTopic { partitions, publish, subscribe: true })
    });
    let port = if role == Role::Master { 8323 } else { 8324 };
    Wanted {
        broker_id: BrokerId::new(0).unwrap(),
        role,
        uri: format!("meta://127.0.0.1:{port}"),
        topics: topics.collect(),
        checksum: (role == Role::Master).then_some(278453567),
    }
}

/// Waits for a state; the error says where it stopped.
pub(crate) async fn reaches(registry: &Registry, name: &str, wanted: impl Fn(&State) -> bool) -> State {
    let mut states = registry.state();
    let reached = timeout(PATIENCE, states.wait_for(|state| wanted(state))).await.map(|state| state.unwrap().clone());
    reached.unwrap_or_else(|_| panic!("not {name} but {:?}", registry.state().borrow()))
}

pub(crate) async fn registered(registry: &Registry) {
    reaches(registry, "registered", |state| *state == State::Registered).await;
}

pub(crate) async fn shows<T: Clone + std::fmt::Debug>(mut seen: watch::Receiver<T>, wanted: impl Fn(&T) -> bool) -> T {
    let shown = timeout(PATIENCE, seen.wait_for(|value| wanted(value))).await.map(|value| value.unwrap().clone());
    shown.unwrap_or_else(|_| panic!("still {:?}", seen.borrow()))
}

/// Asks again until the answer is the wanted one.
pub(crate) async fn until<T, F>(wanted: T, ask: impl Fn() -> F)
where
    T: PartialEq + std::fmt::Debug,
    F: Future<Output = T>,
{
    let deadline = Instant::now() + PATIENCE;
    loop {
        let answer = ask().await;
        if answer == wanted {
            return;
        }
        assert!(Instant::now() < deadline, "wanted {wanted:?}, still {answer:?}");
        sleep(Duration::from_millis(20)).await;
    }
}

/// Path → (ephemeral, data), JSON data in one member order, for everything brokers write.
pub(crate) type Tree = BTreeMap<String, (bool, String)>;

pub(crate) async fn brokers(observer: &Client) -> Tree {
    let mut tree = Tree::new();
    let mut open = vec!["/meta/brokers".to_owned()];
    while let Some(path) = open.pop() {
        // A node may go between two questions.
        let (Ok((data, stat)), Ok(children)) = (observer.get_data(&path).await, observer.list_children(&path).await)
        else {
            continue;
        };
        open.extend(children.iter().map(|child| format!("{path}/{child}")));
        tree.insert(path, (stat.ephemeral_owner != 0, canonical(&String::from_utf8(data).unwrap())));
    }
    tree
}

/// The brokers' part of a recording of the original; a node without data and one with empty data count the same.
pub(crate) fn recording(name: &str) -> Tree {
    let path = format!("{}/../../integration/golden/{name}", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
    let nodes: Vec<Value> = serde_json::from_str(&text).unwrap();
    let brokers = nodes.iter().filter(|node| node["path"].as_str().unwrap().starts_with("/meta/brokers"));
    brokers
        .map(|node| {
            let data = canonical(node["data"].as_str().unwrap_or_default());
            (node["path"].as_str().unwrap().to_owned(), (node["ephemeral"].as_bool().unwrap(), data))
        })
        .collect()
}

fn canonical(data: &str) -> String {
    serde_json::from_str::<Value>(data).map_or(data.to_owned(), |value| value.to_string())
}
