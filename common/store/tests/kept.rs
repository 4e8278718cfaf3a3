//! What the write-ahead log holds of a partition whose files are not to be had at a start.

#![expect(clippy::unwrap_used, reason = "the helpers of tests are test code")]

mod support;

use metaq_store::{PartitionRules, Store, StoreOptions};
use metaq_types::Epoch;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use support::power::{PowerDisk, WAL, begin, open};
use support::*;

fn kept(setup: &Setup) -> PathBuf {
    setup.path().join(".metaq").join("wal").join("kept")
}

/// One acknowledged message in each of three partitions that only the log has after the power was lost.
fn lost_from_the_files() -> Setup {
    let setup = Setup::new(0, 1 << 20);
    let disk = Arc::new(PowerDisk::default());
    let store = open(&setup, &disk, WAL);
    begin(&setup, &store, &disk);
    for name in ["test-0", "test-1", "test-2"] {
        put(&setup.partition(&store, name), b"acknowledged").unwrap();
    }
    store.begin_reign(Epoch(1)).unwrap();
    disk.turn_off();
    drop(store);
    disk.lose(&mut |_| 0);
    setup
}

/// Something that is no file and no directory of ours lies where it was; undone by the next.
fn put_away(setup: &Setup, taken: &Path) {
    fs::rename(taken, setup.directory.path().join("away")).unwrap();
    if taken.extension().is_some() {
        fs::create_dir(taken).unwrap();
    } else {
        fs::write(taken, b"").unwrap();
    }
}

fn put_back(setup: &Setup, taken: &Path) {
    if taken.extension().is_some() {
        fs::remove_dir(taken).unwrap();
    } else {
        fs::remove_file(taken).unwrap();
    }
    fs::rename(setup.directory.path().join("away"), taken).unwrap();
}

/// A directory lies where the segment was, or a file where the partition's directory was: it is not served, and the others
/// are. What the log holds of it outlives every start, an orderly stop, and a crash, until it can be given back.
#[test]
fn what_cannot_be_given_back_is_kept() {
    for taken in ["test-1/00000000000000000000.meta", "test-1"] {
        let setup = lost_from_the_files();
        let taken = setup.path().join(taken);
        put_away(&setup, &taken);
        for orderly in [false, true, false] {
            let disk = Arc::new(PowerDisk::default());
            let store = open(&setup, &disk, WAL);
            assert!(store.unserved("test", 1).unwrap().contains("write-ahead log"), "{:?}", store.unserved("test", 1));
            assert!(store.get("test", 1).is_none());
            assert_eq!(store.recovery_report().failed.len(), 1);
            begin(&setup, &store, &disk);
            for number in [0, 2] {
                let partition = store.get("test", number).unwrap();
                assert_eq!(bodies(&read_from(&partition, 0, 4096))[0], b"acknowledged");
                put(&partition, b"more").unwrap();
            }
            if orderly {
                store.close().unwrap();
            }
            disk.turn_off();
            drop(store);
            disk.lose(&mut |_| 0);
        }
        put_back(&setup, &taken);
        let store = setup.open();
        let partition = store.get("test", 1).unwrap();
        assert_eq!(bodies(&read_from(&partition, 0, 4096)), [b"acknowledged"]);
        assert_eq!(bodies(&read_from(&store.get("test", 0).unwrap(), 0, 4096)).len(), 4);
        // And it is not given back twice, over what has come since.
        drop(partition);
        store.cut(&id("test-1"), at(0)).unwrap().unwrap();
        store.close().unwrap();
        drop(store);
        let store = setup.open();
        assert!(read_from(&store.get("test", 1).unwrap(), 0, 4096).is_empty());
    }
}

/// Killed before the removal of the file is durable: a cut later makes untrue what it says.
#[test]
fn what_was_given_back_does_not_come_back_with_the_power() {
    for syncs in 0.. {
        let setup = lost_from_the_files();
        put_away(&setup, &setup.path().join("test-1"));
        setup.open().close().unwrap();
        put_back(&setup, &setup.path().join("test-1"));
        let disk = Arc::new(PowerDisk::default());
        disk.turn_off_before_directory(syncs);
        let opened = Store::open(StoreOptions { disk: disk.clone(), wal: Some(WAL), ..setup.options() }).is_ok();
        disk.turn_off();
        let disk = Arc::new(disk.after_kill());
        let store = open(&setup, &disk, WAL);
        store.cut(&id("test-1"), at(0)).unwrap().unwrap();
        disk.turn_off();
        drop(store);
        disk.lose(&mut |_| 0);
        let store = setup.open();
        assert!(read_from(&store.get("test", 1).unwrap(), 0, 4096).is_empty(), "killed at sync {syncs}");
        if opened {
            break;
        }
    }
}

/// However often a start ends between keeping and clearing, the same is kept once.
#[test]
fn what_is_kept_does_not_grow() {
    let setup = lost_from_the_files();
    put_away(&setup, &setup.path().join("test-1"));
    let mut disk = PowerDisk::default();
    let mut bytes = None;
    for changes in 0.. {
        disk.turn_off_after(changes);
        let shared = Arc::new(disk);
        let options = StoreOptions { disk: shared.clone(), wal: Some(WAL), ..setup.options() };
        let opened = Store::open(options).is_ok();
        shared.turn_off();
        if let Ok(file) = fs::metadata(kept(&setup)) {
            assert_eq!(*bytes.get_or_insert(file.len()), file.len(), "after {changes} changes");
        }
        if opened {
            break;
        }
        disk = shared.after_kill();
    }
    assert!(bytes.is_some());
}

/// Another broker has appended, before the log was given back or after it was kept: a message of zeros, where the log has
/// several, looks like one that lost its sectors.
#[test]
fn what_another_broker_wrote_is_not_overwritten() {
    for is_kept in [false, true] {
        let setup = Setup::new(0, 1 << 20);
        let disk = Arc::new(PowerDisk::default());
        let store = open(&setup, &disk, WAL);
        begin(&setup, &store, &disk);
        let partition = setup.partition(&store, "test-1");
        for _ in 0..3 {
            put(&partition, &[7; 4000]).unwrap();
        }
        disk.turn_off();
        drop((store, partition));
        disk.lose(&mut |_| 0);
        if is_kept {
            put_away(&setup, &setup.path().join("test-1"));
            setup.open().close().unwrap();
            put_back(&setup, &setup.path().join("test-1"));
        }
        let other = Setup::new(0, 1 << 20);
        let store = other.open();
        put(&other.partition(&store, "test-1"), &[0; 12_500]).unwrap();
        store.close().unwrap();
        fs::copy(other.segment("test-1", 0), setup.segment("test-1", 0)).unwrap();
        for _ in 0..2 {
            let store = setup.open();
            assert_eq!(store.recovery_report().damaged, []);
            assert!(bodies(&read_from(&store.get("test", 1).unwrap(), 0, 1 << 20)) == [[0; 12_500]]);
            store.close().unwrap();
        }
        let names = fs::read_dir(setup.path().join("test-1")).unwrap().map(|entry| entry.unwrap().file_name());
        assert_eq!(names.count(), 2, "the segment and one copy");
        let copy = fs::read(setup.segment("test-1", 0).with_extension("meta.unreplayed-1")).unwrap();
        assert_eq!(copy.len(), 3 * 4020);
        assert!(!kept(&setup).exists());
    }
}

/// The original accepts shorter names than it writes.
#[test]
fn a_segment_of_a_short_name_gets_its_bytes() {
    let setup = Setup::new(0, 1 << 20);
    let short = setup.path().join("test-1").join("0.meta");
    fs::create_dir_all(short.parent().unwrap()).unwrap();
    fs::write(&short, b"").unwrap();
    let disk = Arc::new(PowerDisk::default());
    let store = open(&setup, &disk, WAL);
    begin(&setup, &store, &disk);
    put(&store.get("test", 1).unwrap(), b"acknowledged").unwrap();
    disk.turn_off();
    drop(store);
    disk.lose(&mut |_| 0);
    assert_eq!(fs::metadata(&short).unwrap().len(), 0);
    let store = setup.open();
    assert_eq!(bodies(&read_from(&store.get("test", 1).unwrap(), 0, 4096)), [b"acknowledged"]);
}

/// A topic with a data path of its own is taken out of the configuration, and comes again: at a start, at a reload, or in
/// another place.
#[test]
fn what_no_data_path_has_is_kept_until_one_has() {
    let setup = Setup::new(0, 1 << 20);
    let own = setup.directory.path().join("own");
    let rules = PartitionRules { data_path: own.clone(), ..setup.rules() };
    for comes in ["at a start", "at a reload", "elsewhere"] {
        let setup = Setup::new(0, 1 << 20);
        let disk = Arc::new(PowerDisk::default());
        let with_own = || StoreOptions { extra_data_paths: vec![own.clone()], wal: Some(WAL), ..setup.options() };
        let store = Store::open(StoreOptions { disk: disk.clone(), ..with_own() }).unwrap();
        begin(&setup, &store, &disk);
        put(&store.get_or_create(&id("own-0"), &rules, at(0)).unwrap(), b"acknowledged").unwrap();
        disk.turn_off();
        drop(store);
        disk.lose(&mut |_| 0);
        for orderly in [false, true] {
            let store = setup.open();
            assert!(store.get("own", 0).is_none() && store.recovery_report().failed.is_empty());
            if orderly {
                store.close().unwrap();
            }
        }
        let store = if comes == "at a start" { Store::open(with_own()).unwrap() } else { setup.open() };
        let rules = if comes == "elsewhere" { setup.rules() } else { rules.clone() };
        let partition = store.get_or_create(&id("own-0"), &rules, at(0)).unwrap();
        let held = bodies(&read_from(&partition, 0, 4096));
        if comes == "elsewhere" {
            assert_eq!(held, Vec::<Vec<u8>>::new());
            let copy = fs::read(setup.segment("own-0", 0).with_extension("meta.unreplayed-1")).unwrap();
            assert!(copy.ends_with(b"acknowledged"));
        } else {
            assert_eq!(held, [b"acknowledged"], "{comes}");
        }
        assert!(!kept(&setup).exists(), "{comes}");
        drop((store, partition));
        fs::remove_dir_all(&own).unwrap();
    }
}

/// A reign that begins while a partition is not served does not say that it was empty: whoever holds it would have to
/// set all of it aside.
#[test]
fn a_reign_tells_nothing_wrong_of_what_is_not_served() {
    let starts = |setup: &Setup, epoch: u64| {
        let store = setup.open();
        assert!(store.unserved("test", 1).is_some());
        store.begin_reign(Epoch(epoch)).unwrap();
        store.lineage().unwrap().starts()[&id("test-1")].get()
    };
    let setup = lost_from_the_files();
    put_away(&setup, &setup.path().join("test-1"));
    assert_eq!(starts(&setup, 2), 32, "what the reign before said");
    let setup = Setup::new(0, 100);
    let store = setup.open();
    for _ in 0..10 {
        put(&setup.partition(&store, "test-1"), b"0123456789").unwrap();
    }
    drop(store);
    fs::remove_file(setup.segment("test-1", 120)).unwrap();
    assert_eq!(starts(&setup, 1), 300, "what the files say");
}
