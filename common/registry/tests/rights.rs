//! An ensemble in which somebody took rights from our nodes: brokers do not authenticate, so they can do nothing there.

use metaq_config::ZooKeeper as Settings;
use metaq_harness::zookeeper::ZooKeeper;
use metaq_registry::fence::{Fence, claim, look};
use metaq_registry::{Registry, Role, State, Wanted, lookup};
use metaq_types::{BrokerId, Epoch};
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::future::ready;
use std::time::Duration;
use tokio::time::timeout;
use zookeeper_client::{Acl, Acls, AuthId, Client, CreateMode, Permission};

const PATIENCE: Duration = Duration::from_secs(30);

/// Each place that meets the refusal names what to do.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn that_are_missing_are_named_with_what_to_do() {
    let zookeeper = ZooKeeper::start().unwrap();
    let settings = Settings {
        connect: zookeeper.connect(),
        session_timeout: Duration::from_secs(3),
        connection_timeout: Duration::from_secs(5),
        sync_time: Duration::from_millis(500),
        enable: true,
        root: "/meta".to_owned(),
    };
    let client = timeout(PATIENCE, Client::connect(&settings.connect)).await.unwrap().unwrap();
    client.mkdir("/meta/brokers/ids", &CreateMode::Persistent.with_acls(Acls::anyone_all())).await.unwrap();
    let grant = async |rights: Permission| {
        for path in ["/meta", "/meta/brokers/ids"] {
            client.set_acl(path, &[Acl::new(rights, AuthId::anyone())], None).await.unwrap();
        }
    };
    grant(Permission::ADMIN).await;
    let (id, uri) = (BrokerId::new(0).unwrap(), "meta://127.0.0.1:8123".to_owned());
    let ours = Fence { epoch: Epoch(1), node: "a".to_owned(), uri: uri.clone(), since_unix_ms: 0 };
    let says_what_to_do = |text: &str| {
        assert!(text.contains("not authorized") && text.contains("setAcl -R /meta world:anyone:cdrwa"), "{text}");
    };
    let claimed = claim(&settings, id, |_| ready(Ok::<_, Infallible>(ours.clone())));
    says_what_to_do(&timeout(PATIENCE, claimed).await.unwrap().unwrap_err().to_string());
    says_what_to_do(&timeout(PATIENCE, lookup(&settings)).await.unwrap().unwrap_err().to_string());

    let wanted = Wanted { broker_id: id, role: Role::Master, uri, topics: BTreeMap::new(), checksum: None };
    let registry = Registry::start(&settings, wanted);
    let mut state = registry.state();
    let troubled = |state: &State| matches!(state, State::Registering { reason: Some(_), .. });
    says_what_to_do(&timeout(PATIENCE, state.wait_for(troubled)).await.unwrap().unwrap().to_string());

    grant(Permission::ALL).await;
    timeout(PATIENCE, state.wait_for(|state| *state == State::Registered)).await.unwrap().unwrap();
    registry.close().await;
    timeout(PATIENCE, look(&settings, id)).await.unwrap().unwrap();
}
