//! A link copies a master over a real socket into a real store.
#![expect(clippy::unwrap_used, reason = "also in the functions that tests share")]

mod support;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use metaq_link::driver::{Link, LinkOptions, LinkTransport};
use metaq_link::progress::LinkState;
use metaq_link::promotion::Record;
use metaq_store::{PartitionRules, Retention, Store};
use metaq_types::{Epoch, Offset, PartitionId, SlaveId};
use support::{Faults, Master, messages, open_store, rules, segments, until};
use tokio::sync::watch;

struct Slave {
    store: Arc<Store>,
    link: Link,
    master: watch::Sender<Option<String>>,
}

impl Slave {
    fn start(data_path: &Path, master: Option<String>) -> Slave {
        let store = open_store(data_path);
        let (master, master_seen) = watch::channel(master);
        let path = data_path.to_owned();
        let link = Link::start(LinkOptions {
            catch_up_bytes_per_second: 0,
            slave_id: SlaveId::new(0).unwrap(),
            uri: String::new(),
            group: "meta-slave-group_0".to_owned(),
            delay_max: Duration::from_millis(100),
            accept_divergence: false,
            transport: LinkTransport::Tcp,
            store: Arc::clone(&store),
            rules: Arc::new(move |_| rules(&path)),
            master: master_seen,
            data_path: data_path.to_owned(),
        });
        Slave { store, link, master }
    }

    /// Holds every byte of the master's partition.
    fn holds(&self, master: &Master, name: &str) -> bool {
        let id: PartitionId = name.parse().unwrap();
        let end = |store: &Store| store.get(&id.topic, id.number as i32).map(|p| p.positions().durable);
        end(&master.store).is_some() && end(&master.store) == end(&self.store)
    }

    fn note(&self, name: &str) -> Option<String> {
        let partitions = self.link.status().partitions;
        partitions.into_iter().find(|p| p.partition.to_string() == name)?.note
    }

    async fn stop(self) {
        self.link.close().await;
        tokio::task::spawn_blocking(move || self.store.close()).await.unwrap().unwrap();
    }
}

#[tokio::test]
async fn files_are_the_same_whatever_the_master_had_before_and_gets_later() {
    let (m, s) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let master = Master::start(m.path(), Faults::default()).await;
    master.put("a-0", messages(0..400)).await;
    // Retention has taken the beginning away: names begin later.
    master.put_at("trimmed-3", 1_000_000, messages(0..50)).await;
    let slave = Slave::start(s.path(), Some(master.uri()));
    master.put("new-0", messages(0..10)).await;
    master.put("new-1", messages(0..10)).await;
    master.put("a-0", messages(400..500)).await;
    for name in ["a-0", "trimmed-3", "new-0", "new-1"] {
        until(name, || slave.holds(&master, name)).await;
    }
    assert!(segments(m.path()).len() > 6, "logs have rolled");
    assert_eq!(segments(m.path()), segments(s.path()));
    assert_eq!(slave.link.status().state, LinkState::Following { master: master.uri() });
    assert!(slave.store.ids().high_mark() >= master.store.ids().high_mark(), "a promoted slave gives no id twice");

    slave.stop().await;
    let record = Record::load(s.path()).unwrap().unwrap();
    assert_eq!((record.master, record.partitions.len()), (master.uri(), 4));
    let end = |name: &str| record.partitions[name].end;
    assert_eq!(end("a-0"), master.store.get("a", 0).unwrap().positions().durable.get());
    assert!(record.heard_unix_ms > 0);
}

#[tokio::test]
async fn reading_ahead_a_slave_promises_no_more_than_it_holds() {
    let body = |n: usize| vec![n as u8; 2048];
    for ahead in [true, false] {
        let (m, s) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let master = Master::start(m.path(), Faults { ahead, ..Faults::default() }).await;
        master.put("a-0", (0..800).map(body)).await;
        let slave = Slave::start(s.path(), None);
        assert!(master.faults.slave.set(Arc::clone(&slave.store)).is_ok());
        slave.master.send_replace(Some(master.uri()));
        until("all is copied", || slave.holds(&master, "a-0")).await;
        let gets_ahead = master.faults.gets_ahead.load(Ordering::SeqCst);
        assert_eq!(gets_ahead > 0, ahead, "only where the master heeds it");
        assert_eq!(master.faults.overstated.load(Ordering::SeqCst), 0);
        slave.stop().await;
        assert_eq!(segments(m.path()), segments(s.path()));
    }
}

#[tokio::test]
async fn cut_connections_and_restarts_neither_lose_nor_repeat_a_byte() {
    let (m, s) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    // More than the ends that each connection compares first, and not a multiple of the gets at a time, or the same
    // ones would be cut for ever.
    let faults = Faults { cut_every: AtomicU32::new(7), ..Faults::default() };
    let master = Master::start(m.path(), faults).await;
    for round in 0..4 {
        for name in ["a-0", "a-1", "b-0"] {
            master.put(name, messages(round * 100..(round + 1) * 100)).await;
        }
        let slave = Slave::start(s.path(), Some(master.uri()));
        if round % 2 == 1 {
            // Stopped in the middle: what is there is a prefix, and the next round goes on from it.
            until("something is copied", || slave.holds(&master, "a-0")).await;
            slave.stop().await;
            continue;
        }
        for name in ["a-0", "a-1", "b-0"] {
            until(name, || slave.holds(&master, name)).await;
        }
        slave.stop().await;
    }
    master.faults.cut_every.store(0, Ordering::SeqCst);
    let slave = Slave::start(s.path(), Some(master.uri()));
    for name in ["a-0", "a-1", "b-0"] {
        until(name, || slave.holds(&master, name)).await;
    }
    assert_eq!(segments(m.path()), segments(s.path()));
    slave.stop().await;
}

#[tokio::test]
async fn a_master_that_comes_late_goes_and_returns_elsewhere_is_followed() {
    let (m, s) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let slave = Slave::start(s.path(), None);
    assert_eq!(slave.link.status().state, LinkState::NoMaster);
    let master = Master::start(m.path(), Faults::default()).await;
    master.put("a-0", messages(0..50)).await;
    slave.master.send_replace(Some(master.uri()));
    until("the first master is copied", || slave.holds(&master, "a-0")).await;

    let gone = master.uri();
    master.stop().await;
    until("the loss is seen", || matches!(slave.link.status().state, LinkState::Lost { .. })).await;
    let master = Master::start(m.path(), Faults::default()).await;
    master.put("a-0", messages(50..100)).await;
    assert_ne!(gone, master.uri());
    slave.master.send_replace(Some(master.uri()));
    until("the second master is copied", || slave.holds(&master, "a-0")).await;
    assert_eq!(segments(m.path()), segments(s.path()));
    slave.stop().await;
}

#[tokio::test]
async fn a_slave_that_reaches_further_stops_there_and_deletes_nothing() {
    let (m, s) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let former = Master::start(s.path(), Faults::default()).await;
    former.put("a-0", messages(0..100)).await;
    former.stop().await;
    let kept = segments(s.path());
    let master = Master::start(m.path(), Faults::default()).await;
    master.put("a-0", messages(0..60)).await;
    master.put("b-0", messages(0..60)).await;
    let slave = Slave::start(s.path(), Some(master.uri()));
    until("the other partition is copied", || slave.holds(&master, "b-0")).await;
    until("it stops", || slave.note("a-0").is_some_and(|note| note.starts_with("diverged: "))).await;
    // Not even when the master has caught up in length.
    master.put("a-0", messages(60..200)).await;
    slave.stop().await;
    let now = segments(s.path());
    assert!(kept.iter().all(|(name, bytes)| now[name] == *bytes));
    let record = Record::load(s.path()).unwrap().unwrap();
    assert!(record.partitions["a-0"].stopped.as_ref().unwrap().starts_with("diverged"));
}

/// Lets retention take all closed segments of `a-0`, and answers where the log begins then.
async fn expire(master: &Master, data_path: &Path) -> u64 {
    let partition = master.store.get("a", 0).unwrap();
    let retention = Retention { age: Duration::ZERO, ..Retention::FOREVER };
    partition.set_rules(&PartitionRules { retention, ..rules(data_path) });
    let expiring = Arc::clone(&partition);
    assert!(tokio::task::spawn_blocking(move || expiring.expire(i64::MAX)).await.unwrap().segments > 0);
    partition.set_rules(&rules(data_path));
    partition.positions().kept.get()
}

fn copy_partition(from: &Path, to: &Path) {
    std::fs::create_dir(to.join("a-0")).unwrap();
    for (name, bytes) in segments(from) {
        std::fs::write(to.join(name), bytes).unwrap();
    }
}

/// An old master whose log begins behind all that its successor was promoted with: what it holds is set aside, and it
/// copies the successor's log from its beginning, not from inside a segment.
#[tokio::test]
async fn an_old_master_that_has_nothing_in_common_any_more_begins_where_its_successor_does() {
    let (m, s) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let former = Master::start(s.path(), Faults::default()).await;
    former.store.begin_reign(Epoch(1)).unwrap();
    former.put("a-0", messages(0..10)).await;
    copy_partition(s.path(), m.path());
    former.put("a-0", messages(10..300)).await;
    let begins = expire(&former, s.path()).await;
    let past = former.store.lineage().unwrap();
    former.stop().await;

    let master = Master::start(m.path(), Faults::default()).await;
    master.store.adopt_lineage(&past).unwrap();
    master.store.begin_reign(Epoch(2)).unwrap();
    let common = master.store.get("a", 0).unwrap().positions().written.get();
    assert!(common > 0 && common < begins, "{common} {begins}");
    master.put("a-0", messages(400..700)).await;
    let slave = Slave::start(s.path(), Some(master.uri()));
    until("all is copied", || slave.holds(&master, "a-0") && segments(m.path()) == segments(s.path())).await;
    slave.stop().await;
}

/// The successor no longer has what lies behind the common end, and both hold the same from its first byte on: nothing
/// of that is cut.
#[tokio::test]
async fn what_both_hold_behind_what_the_master_has_removed_stays() {
    let (m, s) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let former = Master::start(s.path(), Faults::default()).await;
    former.store.begin_reign(Epoch(1)).unwrap();
    former.put("a-0", messages(0..10)).await;
    let past = former.store.lineage().unwrap();
    former.put("a-0", messages(10..300)).await;
    copy_partition(s.path(), m.path());
    former.stop().await;

    // By the successor's reigns nothing behind the tenth message is common, as after a join that was in doubt.
    let master = Master::start(m.path(), Faults::default()).await;
    let text = format!("{past}epoch 2 node {} began 0\nstart a-0 500\n", master.store.node_id());
    master.store.adopt_lineage(&text.parse().unwrap()).unwrap();
    let begins = expire(&master, m.path()).await;
    assert!(begins > 500);
    master.put("a-0", messages(400..500)).await;
    let slave = Slave::start(s.path(), Some(master.uri()));
    until("all is copied", || slave.holds(&master, "a-0") && segments(m.path()) == segments(s.path())).await;
    slave.stop().await;
    let names = std::fs::read_dir(s.path().join("a-0")).unwrap().map(|entry| entry.unwrap().file_name());
    let others: Vec<_> = names.filter(|name| !name.to_string_lossy().ends_with(".meta")).collect();
    assert!(others.is_empty(), "neither set aside nor stepped over: {others:?}");
}

/// A former master joins its successor while one of its partitions cannot be read. It is compared when it can: what it had
/// written alone is not taken for the successor's.
#[tokio::test]
async fn a_partition_that_was_not_served_at_the_join_is_compared_later() {
    let (m, s) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let former = Master::start(s.path(), Faults::default()).await;
    former.store.begin_reign(Epoch(1)).unwrap();
    former.put("a-0", messages(100..110)).await;
    copy_partition(s.path(), m.path());
    let past = former.store.lineage().unwrap();
    former.put("a-0", messages(110..120)).await;
    former.stop().await;

    let master = Master::start(m.path(), Faults::default()).await;
    master.store.adopt_lineage(&past).unwrap();
    master.store.begin_reign(Epoch(2)).unwrap();
    master.put("a-0", messages(150..200)).await;
    master.put("b-0", messages(0..10)).await;
    let stray = s.path().join("a-0").join("stray.meta");
    std::fs::write(&stray, b"").unwrap();
    let slave = Slave::start(s.path(), Some(master.uri()));
    until("the other partition is copied", || slave.holds(&master, "b-0")).await;
    assert!(slave.store.unserved("a", 0).is_some());
    slave.stop().await;

    std::fs::remove_file(stray).unwrap();
    let slave = Slave::start(s.path(), Some(master.uri()));
    until("all is copied", || slave.holds(&master, "a-0") && segments(m.path()) == segments(s.path())).await;
    assert_eq!(slave.store.epoch(), Epoch(2));
    slave.stop().await;
}

/// A topic is removed on the master only, and comes again where it ended: what its slaves still hold of it is the master's
/// past up to there, stays where it is, and is gone on with.
#[tokio::test]
async fn a_topic_that_only_the_master_removed_comes_again_on_its_slaves() {
    let m = tempfile::tempdir().unwrap();
    let [there, away, behind] = [(); 3].map(|()| tempfile::tempdir().unwrap());
    let master = Master::start(m.path(), Faults::default()).await;
    master.store.begin_reign(Epoch(1)).unwrap();
    let copy = async |data_path: &Path| {
        let slave = Slave::start(data_path, Some(master.uri()));
        until("all is copied", || slave.holds(&master, "a-0") && slave.holds(&master, "b-0")).await;
        slave.stop().await;
    };
    master.put("a-0", messages(0..100)).await;
    master.put("b-0", messages(0..10)).await;
    copy(behind.path()).await;
    master.put("a-0", messages(100..200)).await;
    copy(there.path()).await;
    copy(away.path()).await;
    let (held, held_behind) = (segments(there.path()), segments(behind.path()));
    master.stop().await;
    std::fs::remove_dir_all(m.path().join("a-0")).unwrap();

    let master = Master::start(m.path(), Faults::default()).await;
    master.store.begin_reign(Epoch(2)).unwrap();
    let slave = Slave::start(there.path(), Some(master.uri()));
    until("the new reign is joined", || slave.store.epoch() == Epoch(2)).await;
    assert_eq!(slave.note("a-0"), None);
    let first = master.store.first_offset(&"a-0".parse().unwrap());
    assert!(first > Offset::ZERO);
    master.put_at("a-0", first.get(), messages(200..300)).await;
    let away_slave = Slave::start(away.path(), Some(master.uri()));
    let behind_slave = Slave::start(behind.path(), Some(master.uri()));
    for slave in [&slave, &away_slave, &behind_slave] {
        until("what is new is copied", || slave.holds(&master, "a-0")).await;
        assert_eq!(slave.store.epoch(), Epoch(2));
    }
    assert_eq!((slave.note("a-0"), away_slave.note("a-0")), (None, None));
    let note = behind_slave.note("a-0").unwrap();
    assert!(note.starts_with("gap: "), "{note}");
    // Each list is a chance to take off what the master does not have.
    master.put("c-0", messages(0..10)).await;
    for slave in [slave, away_slave, behind_slave] {
        until("the list is taken", || slave.holds(&master, "c-0")).await;
        slave.stop().await;
    }
    let with = |mut old: BTreeMap<String, Vec<u8>>| {
        old.extend(segments(m.path()));
        old
    };
    assert!(segments(there.path()) == with(held.clone()), "nothing was deleted or set aside");
    assert!(segments(away.path()) == with(held));
    assert!(segments(behind.path()) == with(held_behind));
}

#[tokio::test]
async fn a_gap_is_stepped_over_and_not_closed_up() {
    let (m, s) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let former = Master::start(s.path(), Faults::default()).await;
    former.put("a-0", messages(0..10)).await;
    former.stop().await;
    let kept = segments(s.path());
    let master = Master::start(m.path(), Faults::default()).await;
    master.put_at("a-0", 50_000, messages(0..60)).await;
    let slave = Slave::start(s.path(), Some(master.uri()));
    until("the gap is seen", || slave.note("a-0").is_some_and(|note| note.starts_with("gap: "))).await;
    until("what is behind it is copied", || slave.holds(&master, "a-0")).await;
    slave.stop().await;
    let (mut expected, copied) = (kept, segments(s.path()));
    expected.extend(segments(m.path()));
    assert!(copied == expected, "what was there before, and the master's files behind the gap");
}

#[tokio::test]
async fn bytes_that_fail_their_checks_are_fetched_again_and_never_stored() {
    let (m, s) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let faults = Faults { corrupt_next: AtomicU32::new(2), ..Faults::default() };
    let master = Master::start(m.path(), faults).await;
    master.put("a-0", messages(0..20)).await;
    let slave = Slave::start(s.path(), Some(master.uri()));
    until("the copy is made in spite of it", || slave.holds(&master, "a-0")).await;
    assert_eq!(segments(m.path()), segments(s.path()));
    slave.stop().await;
}

/// What the master had of it is not missing any more: it comes from nowhere, and nothing is left of it to wait for.
#[tokio::test]
async fn a_partition_that_the_master_no_longer_has_is_not_behind() {
    let (m, s) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let faults = Faults { cut_every: AtomicU32::new(1), ..Faults::default() };
    let master = Master::start(m.path(), faults).await;
    master.store.begin_reign(Epoch(1)).unwrap();
    master.put("a-0", messages(0..20)).await;
    let slave = Slave::start(s.path(), Some(master.uri()));
    until("something is missing and does not come", || {
        let status = slave.link.status();
        status.left_bytes() > 0 && status.late(Duration::MAX).is_some_and(|copy| copy.never_level)
    })
    .await;
    master.stop().await;
    std::fs::remove_dir_all(m.path().join("a-0")).unwrap();

    let master = Master::start(m.path(), Faults::default()).await;
    master.store.begin_reign(Epoch(2)).unwrap();
    master.put("b-0", messages(0..10)).await;
    slave.master.send_replace(Some(master.uri()));
    until("the list is taken", || slave.holds(&master, "b-0")).await;
    until("nothing is missing", || {
        let status = slave.link.status();
        status.left_bytes() == 0 && status.late(Duration::MAX).is_none()
    })
    .await;
    assert_eq!(slave.note("a-0").unwrap(), "not copied: the master does not have it now, or does not serve it");
    let first = master.store.first_offset(&"a-0".parse().unwrap());
    master.put_at("a-0", first.get(), messages(20..30)).await;
    until("it comes again", || slave.holds(&master, "a-0")).await;
    slave.stop().await;
}

#[tokio::test]
async fn an_original_master_is_followed_to_the_same_files() {
    let (m, s) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let master = Master::start(m.path(), Faults { original: true, ..Faults::default() }).await;
    master.put("a-0", messages(0..400)).await;
    master.put_at("trimmed-0", 77_000, messages(0..50)).await;
    let slave = Slave::start(s.path(), Some(master.uri()));
    until("a-0", || slave.holds(&master, "a-0")).await;
    master.put("later-0", messages(0..30)).await;
    master.put("a-0", messages(400..500)).await;
    for name in ["a-0", "trimmed-0", "later-0"] {
        until(name, || slave.holds(&master, name)).await;
    }
    assert_eq!(segments(m.path()), segments(s.path()));
    slave.stop().await;
}

/// Behind a master that greets and behind one that does not.
#[tokio::test]
async fn what_the_master_removes_goes_and_what_it_is_configured_with_comes() {
    for original in [false, true] {
        let (m, s) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let faults = Faults { original, config: AtomicU32::new(1), ..Faults::default() };
        let master = Master::start(m.path(), faults).await;
        master.put("a-0", messages(0..400)).await;
        let slave = Slave::start(s.path(), Some(master.uri()));
        let (source, mut config) = (slave.link.config_source(), slave.link.config_source().follow());
        until("a-0", || slave.holds(&master, "a-0")).await;
        config.wait_for(|text| text.as_deref() == Some(b"1")).await.unwrap();

        let partition = master.store.get("a", 0).unwrap();
        let retention = Retention { age: Duration::ZERO, ..Retention::FOREVER };
        partition.set_rules(&PartitionRules { retention, ..rules(m.path()) });
        // Counted before: the slave may ask, and see that they are gone, at any time.
        let copied = segments(s.path()).len();
        let removed = tokio::task::spawn_blocking(move || partition.expire(i64::MAX)).await.unwrap();
        assert!(removed.segments > 3 && copied > segments(m.path()).len());
        master.faults.config.store(2, Ordering::SeqCst);
        if original {
            source.ask_again();
        } else {
            master.store.bump_catalog();
        }
        until("the same is gone", || segments(s.path()) == segments(m.path())).await;
        config.wait_for(|text| text.as_deref() == Some(b"2")).await.unwrap();
        master.put("a-0", messages(400..500)).await;
        until("it goes on", || slave.holds(&master, "a-0")).await;
        assert_eq!(segments(m.path()), segments(s.path()));
        slave.stop().await;
    }
}
