//! One contract for the embedded registry and a real ZooKeeper: what a node registers as, and what it survives.

#![expect(clippy::unwrap_used, reason = "a test's helpers fail as the test does")]

mod common;

use common::{
    PATIENCE, SESSION_TIMEOUT, Server, brokers, reaches, recorded, recording, registered, shows, slave, until,
};
use metaq_registry::fence::{Fence, Lease, claim, wait_for_vacancy};
use metaq_registry::{MasterAt, Registry, Role, State, WantedTopic, lookup};
use metaq_types::{BrokerId, Epoch, SlaveId, TopicName};
use std::convert::Infallible;
use std::pin::pin;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, timeout};
use zookeeper_client::{Acls, Client, CreateMode, CreateOptions, Error, EventType};

const EPHEMERAL: CreateOptions<'static> = CreateMode::Ephemeral.with_acls(Acls::anyone_all());
const PERSISTENT: CreateOptions<'static> = CreateMode::Persistent.with_acls(Acls::anyone_all());

/// Each case for each server, as a test of its own.
macro_rules! contract {
    ($($case:ident),* $(,)?) => {
        mod embedded {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                super::$case(super::Server::embedded()).await;
            })*
        }
        mod zookeeper {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                super::$case(super::Server::zookeeper()).await;
            })*
        }
    };
}

contract!(
    the_tree_is_the_originals_from_start_to_stop,
    a_master_alone_leaves_no_broker_id_behind,
    a_change_reaches_those_who_watch,
    a_wiped_ensemble_is_filled_again,
    an_outage_changes_nothing_for_those_who_know_each_other,
    a_run_before_ours_is_replaced_at_once,
    another_address_is_a_conflict_until_it_goes,
    a_node_without_a_session_is_to_be_deleted,
    of_two_with_one_address_the_last_stays,
    vanished_nodes_are_put_back,
    what_stands_in_the_way_is_named_until_it_is_gone,
    a_slave_follows_its_master,
    a_server_that_comes_late_is_waited_for,
    a_thousand_topics_are_registered_quickly,
    the_whole_cluster_can_be_looked_up,
    watches_fire_once,
    whoever_takes_over_waits_for_the_seat,
    a_reign_goes_on_in_an_ensemble_that_forgot_it,
    of_two_reigns_that_were_forgotten_the_newer_stays,
    a_session_that_ends_before_the_first_lease_is_followed_by_another,
);

async fn hold(client: &Client, path: &str, data: &str) {
    client.mkdir(path.rsplit_once('/').unwrap().0, &PERSISTENT).await.unwrap();
    client.create(path, data.as_bytes(), &EPHEMERAL).await.unwrap();
}

async fn data(client: &Client, path: &str) -> Option<String> {
    match client.get_data(path).await {
        Err(Error::NoNode) => None,
        answer => Some(String::from_utf8(answer.unwrap().0).unwrap()),
    }
}

fn topic(name: &str) -> TopicName {
    TopicName::new(name).unwrap()
}

async fn the_tree_is_the_originals_from_start_to_stop(server: Server) {
    let observer = server.observer().await;
    let master = Registry::start(&server.settings(), recorded(Role::Master));
    registered(&master).await;
    let slave = Registry::start(&server.settings(), recorded(slave()));
    registered(&slave).await;
    assert_eq!(brokers(&observer).await, recording("zk-1-master-and-slave.json"));
    master.close().await;
    assert_eq!(*master.state().borrow(), State::Closed);
    assert_eq!(brokers(&observer).await, recording("zk-4-master-stopped.json"));
    slave.close().await;
    assert_eq!(brokers(&observer).await, recording("zk-5-all-stopped.json"));
}

async fn a_master_alone_leaves_no_broker_id_behind(server: Server) {
    let observer = server.observer().await;
    let master = Registry::start(&server.settings(), recorded(Role::Master));
    registered(&master).await;
    master.close().await;
    master.close().await;
    let left = brokers(&observer).await;
    assert!(!left.contains_key("/meta/brokers/ids/0"), "{left:?}");
    assert!(left.values().all(|(ephemeral, _)| !ephemeral), "{left:?}");
}

async fn a_change_reaches_those_who_watch(server: Server) {
    let observer = server.observer().await;
    let master = Registry::start(&server.settings(), recorded(Role::Master));
    registered(&master).await;
    let checksum = "/meta/brokers/ids/0/master_config_checksum";
    let (_, changed_topic) = observer.list_and_watch_children("/meta/brokers/topics-pub/test").await.unwrap();
    let (_, closed_topic) = observer.list_and_watch_children("/meta/brokers/topics-pub/meta-tx").await.unwrap();
    let (_, untouched) = observer.list_and_watch_children("/meta/brokers/topics-pub/meta-test").await.unwrap();
    let (_, _, changed_checksum) = observer.get_and_watch_data(checksum).await.unwrap();
    let mut wanted = recorded(Role::Master);
    wanted.topics.get_mut("test").unwrap().partitions = 7;
    wanted.topics.get_mut("meta-tx").unwrap().publish = false;
    wanted.topics.remove("golden-trim");
    wanted.topics.insert(topic("订单"), WantedTopic { partitions: 2, publish: true, subscribe: true });
    wanted.checksum = Some(1);
    master.want(wanted);

    let event = timeout(PATIENCE, changed_checksum.changed()).await.unwrap();
    assert_eq!(event.event_type, EventType::NodeDataChanged);
    // The checksum is the last of it: all the rest is there when it is seen.
    let seen = brokers(&observer).await;
    let value = |path: &str| seen.get(&format!("/meta/brokers/{path}")).map(|(_, data)| data.as_str());
    assert_eq!(value("topics/test/0-m"), Some("7"));
    assert_eq!(value("topics-pub/test/0-m"), Some(r#"{"broker":"0-m","numParts":7}"#));
    assert_eq!(value("topics-sub/test/0-m"), Some(r#"{"broker":"0-m","numParts":7}"#));
    assert_eq!(value("topics-sub/订单/0-m"), Some(r#"{"broker":"0-m","numParts":2}"#));
    assert_eq!((value("topics/meta-tx/0-m"), value("topics-pub/meta-tx/0-m")), (Some("2"), None));
    assert_eq!((value("topics/golden-trim/0-m"), value("topics-sub/golden-trim/0-m")), (None, None));
    for watch in [changed_topic, closed_topic] {
        let event = timeout(PATIENCE, watch.changed()).await.unwrap();
        assert_eq!(event.event_type, EventType::NodeChildrenChanged);
    }
    // Delivered in order: a watch that had fired would have been told before the later answers above.
    assert!(timeout(Duration::ZERO, untouched.changed()).await.is_err());
}

async fn a_wiped_ensemble_is_filled_again(mut server: Server) {
    let master = Registry::start(&server.settings(), recorded(Role::Master));
    registered(&master).await;
    let slave = Registry::start(&server.settings(), recorded(slave()));
    registered(&slave).await;
    server.wipe().await;
    let observer = server.observer().await;
    until(recording("zk-1-master-and-slave.json"), || brokers(&observer)).await;
    registered(&master).await;
    registered(&slave).await;
}

async fn an_outage_changes_nothing_for_those_who_know_each_other(mut server: Server) {
    let master = Registry::start(&server.settings(), recorded(Role::Master));
    let slave = Registry::start(&server.settings(), recorded(slave()));
    let known = shows(slave.master(), |master| master.as_ref().is_some_and(|master| master.checksum.is_some())).await;
    registered(&slave).await;
    server.kill().await;
    for registry in [&master, &slave] {
        reaches(registry, "connecting", |state| matches!(state, State::Connecting { .. })).await;
    }
    assert_eq!(*slave.master().borrow(), known);
    server.run();
    let observer = server.observer().await;
    until(recording("zk-1-master-and-slave.json"), || brokers(&observer)).await;
    registered(&master).await;
    registered(&slave).await;
    shows(slave.master(), |master| *master == known).await;
}

/// F38: `kill -9`, and a new start within the session's time-out.
async fn a_run_before_ours_is_replaced_at_once(server: Server) {
    let killed = server.mortal().await;
    let stale = killed.session_id().0;
    hold(&killed, "/meta/brokers/ids/0/master", "meta://127.0.0.1:8323").await;
    hold(&killed, "/meta/brokers/ids/0/master_config_checksum", "17").await;
    hold(&killed, "/meta/brokers/topics/test/0-m", "1").await;
    hold(&killed, "/meta/brokers/topics-pub/meta-closed/0-m", r#"{"broker":"0-m","numParts":1}"#).await;
    drop(killed);
    let begin = Instant::now();
    let master = Registry::start(&server.settings(), recorded(Role::Master));
    registered(&master).await;
    assert!(begin.elapsed() < Duration::from_secs(10), "the session left behind lasts 30 s: it was waited for");
    let observer = server.observer().await;
    for path in ["ids/0/master", "ids/0/master_config_checksum", "topics/test/0-m"] {
        let owner = observer.get_data(&format!("/meta/brokers/{path}")).await.unwrap().1.ephemeral_owner;
        assert_ne!(owner, stale, "{path}");
    }
    assert_eq!(data(&observer, "/meta/brokers/topics-pub/meta-closed/0-m").await, None);
}

/// F38: the node belongs to another broker with the same id.
async fn another_address_is_a_conflict_until_it_goes(server: Server) {
    let other = server.observer().await;
    hold(&other, "/meta/brokers/ids/0/master", "meta://10.0.0.9:8123").await;
    let master = Registry::start(&server.settings(), recorded(Role::Master));
    let conflict = reaches(&master, "in conflict", |state| matches!(state, State::Conflict { .. })).await;
    let text = conflict.to_string();
    assert!(text.contains("meta://10.0.0.9:8123") && text.contains("meta://127.0.0.1:8323"), "{text}");
    let observer = server.observer().await;
    let seen = brokers(&observer).await;
    assert_eq!(seen.values().filter(|(ephemeral, _)| *ephemeral).count(), 1, "{seen:?}");
    drop(other);
    registered(&master).await;
    assert_eq!(data(&observer, "/meta/brokers/ids/0/master").await.as_deref(), Some("meta://127.0.0.1:8323"));
}

/// Made by hand, or by a tool: no session ends it, so an operator has to.
async fn a_node_without_a_session_is_to_be_deleted(server: Server) {
    let path = "/meta/brokers/ids/0/master";
    let other = server.observer().await;
    other.mkdir("/meta/brokers/ids/0", &PERSISTENT).await.unwrap();
    other.create(path, b"he\x1bllo", &PERSISTENT).await.unwrap();
    let master = Registry::start(&server.settings(), recorded(Role::Master));
    let conflict = reaches(&master, "in conflict", |state| matches!(state, State::Conflict { .. })).await;
    let text = conflict.to_string();
    assert!(text.contains("no session") && text.contains(&format!("delete {path}")), "{text}");
    assert!(!text.contains('\x1b'), "{text:?}");
    other.delete(path, None).await.unwrap();
    registered(&master).await;
}

async fn of_two_with_one_address_the_last_stays(server: Server) {
    let first = Registry::start(&server.settings(), recorded(Role::Master));
    registered(&first).await;
    let second = Registry::start(&server.settings(), recorded(Role::Master));
    registered(&second).await;
    reaches(&first, "in conflict", |state| matches!(state, State::Conflict { .. })).await;
    let observer = server.observer().await;
    let before = observer.get_data("/meta/brokers/ids/0/master").await.unwrap().1;
    // The first one goes without taking the second one's nodes along.
    first.close().await;
    let mut whole = recording("zk-1-master-and-slave.json");
    whole.retain(|path, _| !path.ends_with("-s0") && !path.ends_with("/slave0"));
    assert_eq!(brokers(&observer).await, whole);
    let after = observer.get_data("/meta/brokers/ids/0/master").await.unwrap().1;
    assert_eq!(before, after);
    registered(&second).await;
}

async fn vanished_nodes_are_put_back(server: Server) {
    let observer = server.observer().await;
    let master = Registry::start(&server.settings(), recorded(Role::Master));
    registered(&master).await;
    let whole = brokers(&observer).await;
    for path in ["topics-sub/test/0-m", "ids/0/master", "ids/0/master_config_checksum"] {
        observer.delete(&format!("/meta/brokers/{path}"), None).await.unwrap();
        until(whole.clone(), || brokers(&observer)).await;
    }
    // A whole topic, as somebody might who tidies up.
    observer.delete("/meta/brokers/topics/test/0-m", None).await.unwrap();
    // Unless it is back already.
    let _ = observer.delete("/meta/brokers/topics/test", None).await;
    until(whole.clone(), || brokers(&observer)).await;
    observer.set_data("/meta/brokers/ids/0/master", b"meta://nonsense:1", None).await.unwrap();
    until(whole.clone(), || brokers(&observer)).await;
    for path in ["topics-pub/test/0-m", "ids/0/master_config_checksum"] {
        observer.set_data(&format!("/meta/brokers/{path}"), b"", None).await.unwrap();
    }
    until(whole.clone(), || brokers(&observer)).await;
}

async fn what_stands_in_the_way_is_named_until_it_is_gone(server: Server) {
    let observer = server.observer().await;
    // Not ours, and not to be deleted with what somebody keeps below it.
    let obstacle = "/meta/brokers/topics-pub/test/0-m";
    observer.mkdir(&format!("{obstacle}/x"), &PERSISTENT).await.unwrap();
    let master = Registry::start(&server.settings(), recorded(Role::Master));
    let named = |state: &State| state.to_string().contains(obstacle);
    reaches(&master, "registering", |state| matches!(state, State::Registering { .. }) && named(state)).await;
    // The configuration's checksum is published last, so not yet.
    assert_eq!(data(&observer, "/meta/brokers/ids/0/master_config_checksum").await, None);
    observer.delete(&format!("{obstacle}/x"), None).await.unwrap();
    registered(&master).await;
    assert_eq!(data(&observer, "/meta/brokers/ids/0/master_config_checksum").await.as_deref(), Some("278453567"));
    assert_ne!(observer.get_data(obstacle).await.unwrap().1.ephemeral_owner, 0);
}

async fn a_slave_follows_its_master(server: Server) {
    let slave = Registry::start(&server.settings(), recorded(slave()));
    registered(&slave).await;
    assert_eq!(*slave.master().borrow(), None);
    let master = Registry::start(&server.settings(), recorded(Role::Master));
    let at = |checksum| Some(MasterAt { uri: "meta://127.0.0.1:8323".to_owned(), checksum: Some(checksum) });
    shows(slave.master(), |master| *master == at(278453567)).await;
    let mut reloaded = recorded(Role::Master);
    reloaded.checksum = Some(5);
    master.want(reloaded);
    shows(slave.master(), |master| *master == at(5)).await;
    master.close().await;
    shows(slave.master(), |master| master.is_none()).await;
    let mut moved = recorded(Role::Master);
    moved.uri = "meta://10.0.0.2:8123".to_owned();
    let elsewhere = Registry::start(&server.settings(), moved);
    shows(slave.master(), |master| master.as_ref().is_some_and(|master| master.uri == "meta://10.0.0.2:8123")).await;
    drop(elsewhere);
    // A handle that is dropped unregisters, too.
    shows(slave.master(), |master| master.is_none()).await;
    assert_eq!(*slave.state().borrow(), State::Registered);
}

async fn a_server_that_comes_late_is_waited_for(mut server: Server) {
    server.kill().await;
    let mut settings = server.settings();
    settings.connection_timeout = Duration::from_millis(500);
    let master = Registry::start(&settings, recorded(Role::Master));
    let tried = |state: &State| matches!(state, State::Connecting { reason, .. } if reason.contains("127.0.0.1"));
    reaches(&master, "connecting", tried).await;
    server.run();
    registered(&master).await;
}

async fn a_thousand_topics_are_registered_quickly(server: Server) {
    let mut wanted = recorded(Role::Master);
    for number in 0..1000 {
        wanted
            .topics
            .insert(topic(&format!("many-{number}")), WantedTopic { partitions: 1, publish: true, subscribe: true });
    }
    let begin = Instant::now();
    let master = Registry::start(&server.settings(), wanted);
    registered(&master).await;
    // Four thousand round trips one after the other would take longer than anybody waits for a broker.
    assert!(begin.elapsed() < PATIENCE / 2, "{:?}", begin.elapsed());
    let observer = server.observer().await;
    assert_eq!(observer.list_children("/meta/brokers/topics-sub").await.unwrap().len(), 1006);
    master.close().await;
    assert_eq!(data(&observer, "/meta/brokers/topics-sub/many-999/0-m").await, None);
}

async fn the_whole_cluster_can_be_looked_up(server: Server) {
    assert_eq!(lookup(&server.settings()).await.unwrap(), metaq_registry::Cluster::default());
    let master = Registry::start(&server.settings(), recorded(Role::Master));
    let slave_0 = Registry::start(&server.settings(), recorded(slave()));
    registered(&master).await;
    registered(&slave_0).await;
    let cluster = lookup(&server.settings()).await.unwrap();
    let id = BrokerId::new(0).unwrap();
    let broker = &cluster.brokers[&id];
    assert_eq!(broker.master.as_deref(), Some("meta://127.0.0.1:8323"));
    assert_eq!(broker.slaves[&SlaveId::new(0).unwrap()], "meta://127.0.0.1:8324");
    assert_eq!(broker.checksum, Some(278453567));
    let closed = &cluster.topics["meta-closed"];
    assert!(closed.publish.is_empty());
    assert_eq!(closed.subscribe.len(), 2);
    assert_eq!(cluster.topics["meta-bench"].publish[&(id, Role::Master)], 10);
    assert_eq!(cluster.topics["meta-bench"].subscribe[&(id, slave())], 10);
}

fn fence(epoch: u64, node: &str) -> Fence {
    Fence { epoch: Epoch(epoch), node: node.to_owned(), uri: format!("meta://{node}:8123"), since_unix_ms: 0 }
}

async fn leased(lease: &mut watch::Receiver<Lease>, beyond: Option<std::time::Instant>) {
    let renewed = |lease: &Lease| matches!(lease, Lease::Until(until) if beyond.is_none_or(|beyond| *until > beyond));
    timeout(PATIENCE, lease.wait_for(renewed)).await.unwrap().unwrap();
}

/// With the fence gone a lease could not be renewed, and a master that was registered again acknowledged nothing for ever.
async fn a_reign_goes_on_in_an_ensemble_that_forgot_it(mut server: Server) {
    let (settings, id, ours) = (server.settings(), BrokerId::new(0).unwrap(), fence(3, "a"));
    claim(&settings, id, |_| std::future::ready(Ok::<_, Infallible>(ours.clone()))).await.unwrap();
    let master = Registry::reign(&settings, recorded(Role::Master), ours.clone());
    let mut lease = master.lease();
    leased(&mut lease, None).await;
    server.wipe().await;
    // No lease of before the wipe lasts so long.
    leased(&mut lease, Some(std::time::Instant::now() + SESSION_TIMEOUT)).await;
    let observer = server.observer().await;
    // What a person wrote there is not overwritten, and when it is deleted ours comes back.
    observer.set_data("/meta/fences/0", b"garbage", None).await.unwrap();
    timeout(PATIENCE, async {
        let ends = || match *lease.borrow() {
            Lease::Until(until) if until > std::time::Instant::now() => Some(until),
            _ => None,
        };
        while let Some(end) = ends() {
            tokio::time::sleep_until(end.into()).await;
        }
    })
    .await
    .unwrap();
    assert_eq!(data(&observer, "/meta/fences/0").await.as_deref(), Some("garbage"));
    while observer.delete("/meta/fences/0", None).await == Err(Error::NotEmpty) {
        let _ = observer.delete("/meta/fences/0/seat", None).await;
    }
    leased(&mut lease, Some(std::time::Instant::now())).await;
    assert!(data(&observer, "/meta/fences/0").await.unwrap().contains("\"epoch\":3"));
}

/// The older one was first to come back to an ensemble that forgot both.
async fn of_two_reigns_that_were_forgotten_the_newer_stays(server: Server) {
    let (settings, id, old, new) = (server.settings(), BrokerId::new(0).unwrap(), fence(1, "a"), fence(2, "b"));
    claim(&settings, id, |_| std::future::ready(Ok::<_, Infallible>(old.clone()))).await.unwrap();
    let first = Registry::reign(&settings, recorded(Role::Master), old);
    leased(&mut first.lease(), None).await;
    let second = Registry::reign(&settings, recorded(Role::Master), new);
    let mut lease = first.lease();
    let replaced = lease.wait_for(|lease| matches!(lease, Lease::Replaced(by) if by.epoch == Epoch(2)));
    timeout(PATIENCE, replaced).await.unwrap().unwrap();
    first.close().await;
    leased(&mut second.lease(), None).await;
}

/// A promotion that waits for the old master's seat, frozen or cut off meanwhile for longer than its own session lasts.
async fn a_session_that_ends_before_the_first_lease_is_followed_by_another(mut server: Server) {
    let (settings, id, ours) = (server.settings(), BrokerId::new(0).unwrap(), fence(3, "a"));
    claim(&settings, id, |_| std::future::ready(Ok::<_, Infallible>(ours.clone()))).await.unwrap();
    let rival = server.observer().await;
    rival.create("/meta/fences/0/seat", b"held", &EPHEMERAL).await.unwrap();
    let master = Registry::reign(&settings, recorded(Role::Master), ours);
    // It has a session once it puts right what is said here.
    rival.set_data("/meta/fences/0", br#"{"epoch":1,"node":"z","uri":"meta://z:1","since":0}"#, None).await.unwrap();
    until(true, async || data(&rival, "/meta/fences/0").await.unwrap().contains("\"epoch\":3")).await;
    assert!(matches!(*master.lease().borrow(), Lease::None | Lease::Awaits(_)));
    drop(rival);
    server.wipe().await;
    leased(&mut master.lease(), None).await;
    registered(&master).await;
}

/// The old master has lost the fence and keeps its session for a while: it may acknowledge under its last lease.
async fn whoever_takes_over_waits_for_the_seat(server: Server) {
    let (settings, id) = (server.settings(), BrokerId::new(0).unwrap());
    let (old, new) = (fence(1, "a"), fence(2, "b"));
    claim(&settings, id, |_| std::future::ready(Ok::<_, Infallible>(old.clone()))).await.unwrap();
    // Nobody has the seat.
    timeout(PATIENCE, wait_for_vacancy(&settings, id, &old, |_| ())).await.unwrap();
    let master = Registry::reign(&settings, recorded(Role::Master), old.clone());
    let mut lease = master.lease();
    timeout(PATIENCE, lease.wait_for(|lease| matches!(lease, Lease::Until(_)))).await.unwrap().unwrap();
    // It is ours, left by an earlier process; or the fence is another one.
    timeout(PATIENCE, wait_for_vacancy(&settings, id, &old, |_| ())).await.unwrap();
    timeout(PATIENCE, wait_for_vacancy(&settings, id, &new, |_| ())).await.unwrap();
    claim(&settings, id, |_| std::future::ready(Ok::<_, Infallible>(new.clone()))).await.unwrap();
    let mut vacancy = pin!(wait_for_vacancy(&settings, id, &new, |_| ()));
    tokio::select! {
        () = &mut vacancy => panic!("the old master's session still lives"),
        replaced = timeout(PATIENCE, lease.wait_for(|lease| matches!(lease, Lease::Replaced(_)))) => {
            replaced.unwrap().unwrap();
        }
    }
    master.close().await;
    timeout(PATIENCE, vacancy).await.unwrap();
}

/// What the Java client builds on, by hand.
async fn watches_fire_once(server: Server) {
    let (a, b) = (server.observer().await, server.observer().await);
    let (none, created) = a.check_and_watch_stat("/w").await.unwrap();
    assert_eq!(none, None);
    b.create("/w", b"1", &PERSISTENT).await.unwrap();
    assert_eq!(timeout(PATIENCE, created.changed()).await.unwrap().event_type, EventType::NodeCreated);
    let (_, children) = a.list_and_watch_children("/w").await.unwrap();
    let (_, stat, changed) = a.get_and_watch_data("/w").await.unwrap();
    assert_eq!((stat.version, stat.data_length, stat.num_children), (0, 1, 0));
    b.create("/w/x", b"", &EPHEMERAL).await.unwrap();
    let event = timeout(PATIENCE, children.changed()).await.unwrap();
    assert_eq!((event.event_type, event.path.as_str()), (EventType::NodeChildrenChanged, "/w"));
    // Not set again: the second child is seen by asking only.
    b.create("/w/y", b"", &EPHEMERAL).await.unwrap();
    let (names, again) = a.list_and_watch_children("/w").await.unwrap();
    assert_eq!(names.len(), 2);
    b.set_data("/w", b"22", Some(0)).await.unwrap();
    assert_eq!(b.set_data("/w", b"3", Some(0)).await, Err(Error::BadVersion));
    assert_eq!(timeout(PATIENCE, changed.changed()).await.unwrap().event_type, EventType::NodeDataChanged);
    assert_eq!(b.delete("/w", None).await, Err(Error::NotEmpty));
    assert_eq!(b.create("/w/x/z", b"", &PERSISTENT).await, Err(Error::NoChildrenForEphemerals));
    assert_eq!(b.create("/v/z", b"", &PERSISTENT).await, Err(Error::NoNode));
    let (_, sequence) =
        b.create("/w/s-", b"", &CreateMode::EphemeralSequential.with_acls(Acls::anyone_all())).await.unwrap();
    assert_eq!(sequence.to_string(), "0000000002");
    timeout(PATIENCE, again.changed()).await.unwrap();
    let (_, gone) = a.check_and_watch_stat("/w/x").await.unwrap();
    drop(b);
    // The end of its session takes its nodes along.
    assert_eq!(timeout(PATIENCE, gone.changed()).await.unwrap().event_type, EventType::NodeDeleted);
    until(0, || async { a.list_children("/w").await.unwrap().len() }).await;
}

/// Whoever promotes a slave whose registry died with its master waits for the slave's stop.
#[tokio::test]
async fn a_close_without_connection_is_short() {
    let mut server = Server::embedded();
    let registry = Registry::start(&server.settings(), recorded(Role::Master));
    registered(&registry).await;
    server.kill().await;
    reaches(&registry, "connecting", |state| matches!(state, State::Connecting { .. })).await;
    let start = Instant::now();
    registry.close().await;
    assert!(start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
}

#[tokio::test]
async fn without_zookeeper_there_is_nothing_to_do() {
    let server = Server::embedded();
    let mut settings = server.settings();
    settings.enable = false;
    let registry = Registry::start(&settings, recorded(Role::Master));
    assert_eq!(*registry.state().borrow(), State::Disabled);
    registry.want(recorded(Role::Master));
    assert!(lookup(&settings).await.is_err());
    registry.close().await;
    assert_eq!(brokers(&server.observer().await).await.len(), 0);
}
