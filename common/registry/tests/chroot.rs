//! The path of the ensemble that `zk.zkConnect` may name, when it is not there: nothing can be made below it.

#![expect(clippy::unwrap_used, reason = "a test's helpers fail as the test does")]

use metaq_config::ZooKeeper as Settings;
use metaq_harness::zookeeper::ZooKeeper;
use metaq_registry::fence::{Fence, Lease, claim};
use metaq_registry::{Registry, Role, State, Wanted};
use metaq_types::{BrokerId, Epoch};
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::future::ready;
use std::time::{Duration, Instant};
use tokio::time::timeout;
use zookeeper_client::{Acls, Client, CreateMode, CreateOptions};

const PATIENCE: Duration = Duration::from_secs(30);
const PERSISTENT: CreateOptions<'static> = CreateMode::Persistent.with_acls(Acls::anyone_all());

fn wanted() -> Wanted {
    let (broker_id, uri) = (BrokerId::new(0).unwrap(), "meta://127.0.0.1:8123".to_owned());
    Wanted { broker_id, role: Role::Master, uri, topics: BTreeMap::new(), checksum: None }
}

/// A claim asked again at once, for ever, and said nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn is_named_with_what_to_do_and_waited_for() {
    let mut zookeeper = ZooKeeper::start().unwrap();
    let settings = Settings {
        connect: format!("{}/a/cluster", zookeeper.connect()),
        session_timeout: Duration::from_secs(3),
        connection_timeout: Duration::from_secs(5),
        sync_time: Duration::from_millis(500),
        enable: true,
        root: "/meta".to_owned(),
    };
    let (id, uri) = (BrokerId::new(0).unwrap(), "meta://127.0.0.1:8123".to_owned());
    let ours = Fence { epoch: Epoch(1), node: "a".to_owned(), uri, since_unix_ms: 0 };
    let take = || claim(&settings, id, |_| ready(Ok::<_, Infallible>(ours.clone())));
    let error = timeout(PATIENCE, take()).await.unwrap().unwrap_err().to_string();
    assert!(error.contains("/a/cluster") && error.contains("create it"), "{error}");

    let registry = Registry::start(&settings, wanted());
    let mut state = registry.state();
    let named = |state: &State| matches!(state, State::Registering { reason: Some(reason), .. } if *reason == error);
    timeout(PATIENCE, state.wait_for(named)).await.unwrap().unwrap();

    let make = async |zookeeper: &ZooKeeper| {
        let client = timeout(PATIENCE, Client::connect(&zookeeper.connect())).await.unwrap().unwrap();
        client.mkdir("/a/cluster", &PERSISTENT).await.unwrap();
    };
    make(&zookeeper).await;
    timeout(PATIENCE, state.wait_for(|state| *state == State::Registered)).await.unwrap().unwrap();
    registry.close().await;

    // And where an ensemble forgets a reign together with the path.
    assert_eq!(take().await.unwrap(), ours);
    let master = Registry::reign(&settings, wanted(), ours.clone());
    let mut lease = master.lease();
    let lasts = |lease: &Lease| matches!(lease, Lease::Until(until) if *until > Instant::now());
    timeout(PATIENCE, lease.wait_for(lasts)).await.unwrap().unwrap();
    zookeeper.wipe().unwrap();
    timeout(PATIENCE, master.state().wait_for(named)).await.unwrap().unwrap();
    make(&zookeeper).await;
    timeout(PATIENCE, master.state().wait_for(|state| *state == State::Registered)).await.unwrap().unwrap();
    let wiped = Instant::now();
    let again = |lease: &Lease| matches!(lease, Lease::Until(until) if *until > wiped + settings.session_timeout);
    timeout(PATIENCE, lease.wait_for(again)).await.unwrap().unwrap();
}
