//! Names of files that a killed process made and did not sync are there for the next one, and gone with the power: they
//! have to be durable before anything relies on them.

#![expect(clippy::unwrap_used, reason = "the helpers of tests are test code")]

mod support;

use metaq_store::{Store, StoreOptions, WalOptions};
use metaq_types::{Epoch, MessageId};
use std::collections::BTreeMap;
use std::error::Error;
use std::fs;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;
use support::power::{PowerDisk, begin};
use support::*;

const WAL: WalOptions =
    WalOptions { files: 2, file_bytes: 16 * 1024, begin_after_rounds: 1, free_bytes_min: 0, partitions_max: 1000 };

fn options(setup: &Setup, disk: &Arc<PowerDisk>) -> StoreOptions {
    // A clock that stands still: ids grow by what is remembered of them alone.
    let (disk, now) = (disk.clone(), Arc::new(|| 1_800_000_000_000));
    StoreOptions { disk, now, wal: Some(WAL), journal_path: Some(setup.path().join("journal")), ..setup.options() }
}

/// What a store has told, and may not take back.
#[derive(Default)]
struct Told {
    node: Option<String>,
    epoch: Epoch,
    id: Option<MessageId>,
    /// By partition and offset.
    stored: BTreeMap<(String, u64), Vec<u8>>,
    kept: u64,
}

impl Told {
    fn put(&mut self, setup: &Setup, store: &Store, name: &str) -> Result<u64, Box<dyn Error>> {
        let rules = setup.rules();
        let partition = store.get_or_create(&id(name), &rules, at(0))?;
        let body = format!("{name} {}", self.stored.len()).into_bytes();
        let offset = put(&partition, &body)?.offset.get();
        self.stored.insert((name.to_owned(), offset), body);
        Ok(partition.positions().written.get())
    }

    /// All that makes, renames or removes a file, until it fails.
    fn live(&mut self, setup: &Setup, disk: &Arc<PowerDisk>) -> Result<Store, Box<dyn Error>> {
        let store = Store::open(options(setup, disk))?;
        let before = self.node.replace(store.node_id().to_owned());
        assert!(before.is_none_or(|before| before == store.node_id()));
        let epoch = Epoch(store.epoch().0 + 1);
        store.begin_reign(epoch)?;
        self.epoch = epoch;
        self.id = Some(store.ids().next()?);
        for _ in 0..4 {
            self.put(setup, &store, "test-0")?;
        }
        let log = store.get("test", 0).unwrap();
        self.kept = log.active_segment().get();
        log.trim_to(log.active_segment()).fault.map_or(Ok(()), Err)?;
        self.stored.retain(|(name, offset), _| name != "test-0" || *offset >= self.kept);
        let end = self.put(setup, &store, "test-1")?;
        store.skip_to(&id("test-1"), at(end + 1000))?;
        self.put(setup, &store, "test-1")?;
        let end = self.put(setup, &store, "test-2")?;
        let cut = self.stored.len();
        self.put(setup, &store, "test-2")?;
        store.cut(&id("test-2"), at(end))?.ok_or("nothing to cut")?;
        self.stored.retain(|(name, offset), _| name != "test-2" || *offset < end);
        assert_eq!(self.stored.len(), cut);
        let until = Instant::now() + DEADLINE;
        while store.metrics().wal_syncs.load(Ordering::Relaxed) < 6 {
            self.put(setup, &store, "test-3")?;
            assert!(Instant::now() < until, "the log does not begin");
        }
        Ok(store)
    }

    /// As a slave does, which begins no reign.
    fn go_on(&mut self, setup: &Setup, disk: &Arc<PowerDisk>) -> Store {
        let store = Store::open(options(setup, disk)).unwrap();
        self.node = Some(store.node_id().to_owned());
        self.epoch = store.epoch();
        self.id = Some(store.ids().next().unwrap());
        begin(setup, &store, disk);
        self.put(setup, &store, "test-3").unwrap();
        store
    }

    fn check(&self, setup: &Setup, when: &str) {
        let disk = Arc::new(PowerDisk::default());
        let store = Store::open(options(setup, &disk)).unwrap();
        assert_eq!(store.recovery_report().failed, [], "{when}");
        assert_eq!(Some(store.node_id()), self.node.as_deref(), "{when}");
        assert!(store.epoch() >= self.epoch, "{when}: {} after {}", store.epoch(), self.epoch);
        assert!(store.ids().next().ok() > self.id, "{when}");
        let mut found = BTreeMap::new();
        for partition in store.partitions() {
            let name = partition.id().to_string();
            let kept = partition.positions().kept.get();
            assert!(name != "test-0" || kept >= self.kept, "{when}: {kept} is kept again");
            let held = read_from(&partition, kept, 1 << 20);
            found.extend(held.into_iter().map(|message| ((name.clone(), message.offset), message.body)));
        }
        for (place, body) in &self.stored {
            assert_eq!(found.get(place), Some(body), "{when}: {place:?} is lost");
        }
    }
}

/// A process is killed before it syncs a directory, whichever, and another goes on until the power fails.
#[test]
fn names_that_a_killed_process_left_unsynced_last() {
    for syncs in 0.. {
        let setup = Setup::new(0, 100);
        let disk = Arc::new(PowerDisk::default());
        disk.turn_off_before_directory(syncs);
        let mut told = Told::default();
        let ended = told.live(&setup, &disk).and_then(|store| Ok(store.close()?));
        disk.turn_off();
        let disk = Arc::new(disk.after_kill());
        let store = told.live(&setup, &disk).unwrap();
        disk.turn_off();
        drop(store);
        disk.lose(&mut |_| 0);
        told.check(&setup, &format!("killed at sync {syncs}"));
        if ended.is_ok() {
            assert!(syncs > 20, "all {syncs} of them");
            break;
        }
    }
}

/// The same of each file by itself, where little else happens that would sync its directory.
#[test]
fn files_that_a_killed_process_put_in_place_last() {
    for name in ["identity", "ids", "lineage", "wal", "wal/0"] {
        let setup = Setup::new(0, 100);
        let disk = Arc::new(PowerDisk::default());
        let mut told = Told::default();
        let store = told.live(&setup, &disk).unwrap();
        disk.turn_off();
        drop(store);
        let disk = Arc::new(disk.after_kill());
        disk.made_elsewhere(&setup.path().join(".metaq").join(name));
        let store = told.go_on(&setup, &disk);
        disk.turn_off();
        drop(store);
        disk.lose(&mut |_| 0);
        told.check(&setup, name);
    }
}

/// A broker that syncs no directory was at it since the last stop, and its process was killed.
#[test]
fn a_partition_that_another_broker_made_lasts() {
    let setup = Setup::new(0, 1 << 20);
    let disk = Arc::new(PowerDisk::default());
    let store = setup.open_on(disk.clone());
    put(&setup.partition(&store, "test-0"), b"first").unwrap();
    store.close().unwrap();
    drop(store);
    fs::create_dir(setup.path().join("test-1")).unwrap();
    fs::copy(setup.segment("test-0", 0), setup.segment("test-1", 0)).unwrap();
    disk.made_elsewhere(&setup.path().join("test-1"));
    disk.made_elsewhere(&setup.segment("test-1", 0));
    let store = setup.open_on(disk.clone());
    put(&setup.partition(&store, "test-1"), b"second").unwrap();
    disk.turn_off();
    drop(store);
    disk.lose(&mut |_| 0);
    let store = setup.open();
    assert_eq!(bodies(&read_from(&store.get("test", 1).unwrap(), 0, 4096)), [&b"first"[..], b"second"]);
}
