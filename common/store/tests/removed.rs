//! Files that are removed, moved or replaced while the store has them open.

mod support;

use metaq_store::{AppendError, Health, Reader, Refusal, SliceAt, Store, StoreOptions};
use metaq_types::Epoch;
use std::fs;
use support::*;

/// F35: the data of a topic goes while the broker runs. What is put then lasts, and no offset is used again.
#[test]
fn f35_a_log_whose_files_were_removed_goes_on_where_it_ended() {
    for threshold in [0, 1000] {
        let setup = Setup::new(threshold, 100);
        let store = setup.open();
        let partition = setup.partition(&store, "test-0");
        for _ in 0..10 {
            put(&partition, b"0123456789").unwrap();
        }
        fs::remove_dir_all(setup.path().join("test-0")).unwrap();
        assert_eq!(store.lost(), []);
        assert_eq!(put(&partition, b"after").unwrap().offset, at(300));
        let told = store.lost();
        assert!(told.len() == 1 && told[0].0 == id("test-0") && told[0].1.contains("goes on at 300"), "{told:?}");
        assert_eq!(put(&partition, b"more").unwrap().offset, at(325));
        wait_durable(&partition, at(300));
        assert!(matches!(partition.slice(0, 1000, Reader::Consumer), SliceAt::Trimmed { oldest } if oldest == at(300)));
        // Removed again, now that a new segment is due.
        put(&partition, &[1; 100]).unwrap();
        fs::remove_dir_all(setup.path().join("test-0")).unwrap();
        assert_eq!(put(&partition, b"third").unwrap().offset, at(469));
        store.close().unwrap();
        drop(store);
        let store = setup.open();
        let partition = store.get("test", 0).unwrap();
        assert_eq!(bodies(&read_from(&partition, 469, 1000)), [b"third"]);
        assert_eq!((partition.positions().kept, partition.positions().written), (at(469), at(494)));
    }
}

#[test]
fn a_log_that_was_moved_away_is_not_written_to_any_more() {
    let setup = Setup::new(0, 1 << 20);
    let store = setup.open();
    let partition = setup.partition(&store, "test-0");
    put(&partition, b"0123456789").unwrap();
    let moved = setup.path().join("aside");
    fs::rename(setup.path().join("test-0"), &moved).unwrap();
    // A path is looked at now and then only.
    let until = std::time::Instant::now() + DEADLINE;
    while !setup.path().join("test-0").exists() {
        put(&partition, b"0123456789").unwrap();
        assert!(std::time::Instant::now() < until, "not noticed within the deadline");
        std::thread::yield_now();
    }
    let end = partition.positions().kept;
    assert_eq!(fs::metadata(moved.join(format!("{:020}.meta", 0))).unwrap().len(), end.get());
}

#[test]
fn a_log_of_which_a_part_was_removed_is_read_only() {
    let setup = Setup::new(0, 100);
    let store = setup.open();
    let partition = setup.partition(&store, "test-0");
    for _ in 0..10 {
        put(&partition, b"0123456789").unwrap();
    }
    fs::remove_file(setup.segment("test-0", 240)).unwrap();
    let Err(AppendError::Refused(Refusal::Poisoned(reason))) = put(&partition, b"x") else { panic!("not refused") };
    assert!(reason.contains("removed or moved while the broker ran"), "{reason}");
    assert!(matches!(partition.health(), Health::Poisoned(_)));
}

/// F35: nobody put anything after the removal: the next opening knows where the log ended all the same.
#[test]
fn f35_files_removed_before_an_orderly_stop_are_known_to_be_gone() {
    let setup = Setup::new(0, 100);
    let store = setup.open();
    let partition = setup.partition(&store, "test-0");
    for _ in 0..10 {
        put(&partition, b"0123456789").unwrap();
    }
    fs::remove_dir_all(setup.path().join("test-0")).unwrap();
    store.close().unwrap();
    drop(store);
    let store = setup.open();
    assert!(store.get("test", 0).is_none());
    assert_eq!(store.first_offset(&id("test-0")), at(300));
}

/// The whole data directory goes, or its disk is no longer mounted: nothing is begun in what stands there then, where the
/// lock, the identity and the write-ahead log are missing.
#[test]
fn a_data_directory_that_was_moved_or_replaced_takes_nothing_more() {
    for (threshold, replaced) in [(0, false), (0, true), (1000, false), (1000, true)] {
        let setup = Setup::new(threshold, 1 << 20);
        let store = setup.open();
        let partition = setup.partition(&store, "test-0");
        let mut stored = 0;
        let mut put_one = || put(&partition, b"0123456789").inspect(|_| stored += 1);
        put_one().unwrap();
        let away = setup.path().with_extension("away");
        fs::rename(setup.path(), &away).unwrap();
        if replaced {
            fs::create_dir_all(setup.path().join(".metaq")).unwrap();
            fs::write(setup.path().join(".metaq/lock"), format!("{}\n", std::process::id())).unwrap();
        }
        // A path is looked at now and then only.
        let until = std::time::Instant::now() + DEADLINE;
        let refused = loop {
            match put_one() {
                Ok(_) => assert!(std::time::Instant::now() < until, "not noticed within the deadline"),
                Err(error) => break error,
            }
            std::thread::yield_now();
        };
        let AppendError::Refused(Refusal::Poisoned(reason)) = refused else { panic!("{refused}") };
        assert!(reason.contains("data directory") && reason.contains("put it back"), "{reason}");
        let refused = store.get_or_create(&id("new-0"), &setup.rules(), at(0)).map(drop).unwrap_err().to_string();
        assert!(refused.contains("put it back"), "{refused}");
        assert!(!setup.path().join("test-0").exists() && !setup.path().join("new-0").exists());
        drop(store);
        if replaced {
            fs::remove_dir_all(setup.path()).unwrap();
        }
        fs::rename(&away, setup.path()).unwrap();
        let store = setup.open();
        assert_eq!(store.get("test", 0).unwrap().positions().written, at(30 * stored));
    }
}

/// Whoever took the end of a log, a person or the repair of a file system, the log is told to lack it: after an orderly
/// stop by what that left, and after a kill by where the reign began.
#[test]
fn a_log_that_ends_before_where_it_did_is_told_of() {
    for orderly in [true, false] {
        for (taken, left) in [(&[240][..], Some(240)), (&[0, 120, 240], None), (&[], Some(300))] {
            let setup = Setup::new(0, 100);
            let store = setup.open();
            let partition = setup.partition(&store, "test-0");
            for _ in 0..10 {
                put(&partition, b"0123456789").unwrap();
            }
            store.begin_reign(Epoch(1)).unwrap();
            if orderly {
                store.close().unwrap();
            }
            drop((partition, store));
            taken.iter().for_each(|base| fs::remove_file(setup.segment("test-0", *base)).unwrap());
            let store = setup.open();
            assert_eq!(store.get("test", 0).map(|partition| partition.positions().written.get()), left);
            let told = store.lost();
            match left {
                Some(end @ 240) => {
                    let text = format!("ends at {end}, and ended at 300");
                    assert!(told.len() == 1 && told[0].1.contains(&text), "{told:?}");
                }
                // A topic that was removed is none of it.
                _ => assert_eq!(told, []),
            }
        }
    }
}

/// A slave copies its master's journal anew, and may be behind where that one's reign began.
#[test]
fn a_journal_that_is_gone_is_told_of_by_the_node_that_reigned() {
    for (own_reign, removed) in [(true, false), (true, true), (false, true)] {
        let setup = Setup::new(0, 100);
        let open = || {
            let journal_path = Some(setup.directory.path().join("journal"));
            Store::open(StoreOptions { journal_path, ..setup.options() }).unwrap()
        };
        let store = open();
        assert_eq!(store.lost(), [], "a new directory");
        setup.partition(&store, "test-0");
        match own_reign {
            true => store.begin_reign(Epoch(1)).unwrap(),
            false => {
                let master = "epoch 1 node a began 5\nstart $journal-0 0\nstart test-0 700\n";
                store.adopt_lineage(&master.parse().unwrap()).unwrap();
            }
        }
        drop(store);
        if removed {
            fs::remove_dir_all(setup.directory.path().join("journal")).unwrap();
        }
        let store = open();
        let told: Vec<_> = store.lost().into_iter().map(|(id, _)| id.to_string()).collect();
        assert_eq!(told, if own_reign && removed { vec!["$journal-0"] } else { vec![] });
    }
}
