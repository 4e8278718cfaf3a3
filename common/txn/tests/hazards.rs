//! Damage, full and failing disks, partitions that are gone, and a journal that has to stay short.
#![expect(clippy::unwrap_used, reason = "the helpers of tests are test code")]

mod support;

use metaq_store::{Disk, Store};
use metaq_txn::{Command, Coordinator};
use std::fs;
use std::sync::Arc;
use std::time::Instant;
use support::faulty::{Fault, FaultyDisk};
use support::*;

fn sound() -> Arc<dyn Disk> {
    Arc::new(FaultyDisk::default())
}

/// Runs a test that blocks where the coordinator finds a runtime.
async fn blocking(test: impl FnOnce() + Send + 'static) {
    tokio::task::spawn_blocking(test).await.unwrap();
}

fn count(store: &Store, place: &Place, name: &str) -> Vec<usize> {
    place.targets().iter().map(|target| bodies(store, target).iter().filter(|body| *body == name).count()).collect()
}

fn prepared(coordinator: &Coordinator, place: &Place, name: &str) {
    assert!(fill(coordinator, name, &place.targets()));
    assert_eq!(command(coordinator, Command::Prepare, name), Ok("0".to_owned()));
}

fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let until = Instant::now() + DEADLINE;
    while !holds() {
        assert!(Instant::now() < until, "{what} within the deadline");
        std::thread::yield_now();
    }
}

const A: &str = "XID:1:aa:01:a";
const B: &str = "XID:1:aa:02:b";

/// H3, H14, H15: a damaged entry costs what it held, never what follows it.
#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_entry_costs_itself_only() {
    blocking(|| {
        let place = Place::new(0, 2);
        let (store, coordinator) = place.open(sound()).unwrap();
        prepared(&coordinator, &place, A);
        let segment = place.journal().join("$journal-0/00000000000000000000.meta");
        prepared(&coordinator, &place, B);
        end(coordinator);
        drop(store);
        let mut bytes = fs::read(&segment).unwrap();
        bytes[30] ^= 1;
        fs::write(&segment, bytes).unwrap();
        let (store, coordinator, recovered) = place.open_with_trouble(sound()).unwrap();
        assert_eq!(coordinator.recover(None), [A, B]);
        assert_eq!(recovered.trouble.len(), 1, "{:?}", recovered.trouble);
        assert!(recovered.trouble[0].contains("damaged"), "{:?}", recovered.trouble);
        for name in [A, B] {
            command(&coordinator, Command::CommitTwoPhase, name).unwrap();
        }
        assert_eq!(count(&store, &place, B), [2, 2]);
        assert_eq!(count(&store, &place, A).iter().sum::<usize>(), 3, "all but the damaged message");
    })
    .await;
}

/// However much still fits on the disk: refused and as before, or decided and stored once there is room.
#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_keeps_what_is_decided() {
    blocking(|| {
        let mut decided_first = 0;
        for left in (0..700).step_by(25) {
            let place = Place::new(0, 2);
            let disk = Arc::new(FaultyDisk::default());
            let (store, coordinator) = place.open(disk.clone()).unwrap();
            prepared(&coordinator, &place, A);
            disk.add(Fault::FullAfter(left));
            let committed = command(&coordinator, Command::CommitTwoPhase, A);
            let undecided = coordinator.lines().iter().any(|line| line.state == "prepared");
            if let Err(error) = &committed {
                assert!(error.starts_with("XAException:code=-7,msg="), "{error}");
                decided_first += usize::from(!undecided);
            }
            disk.heal();
            if undecided {
                command(&coordinator, Command::CommitTwoPhase, A).unwrap();
            }
            wait_until("everything is stored", || coordinator.lines().is_empty());
            assert_eq!(count(&store, &place, A), [2, 2], "with {left} bytes left");
            end(coordinator);
        }
        assert!(decided_first > 0, "no commit was decided and not stored");
    })
    .await;
}

/// A failed sync of the journal: what was promised is kept, what was not is told to be unknown, nothing new begins.
#[tokio::test(flavor = "multi_thread")]
async fn a_failed_sync_of_the_journal_ends_all_promises() {
    blocking(|| {
        let place = Place::new(0, 2);
        let disk = Arc::new(FaultyDisk::default());
        let (store, coordinator) = place.open(disk.clone()).unwrap();
        prepared(&coordinator, &place, A);
        assert!(fill(&coordinator, B, &place.targets()));
        disk.add(Fault::SyncError);
        let error = command(&coordinator, Command::Prepare, B).unwrap_err();
        assert!(error.contains("not known before the broker is restarted"), "{error}");
        assert!(coordinator.begin(SESSION, &key("XID:1:aa:03:c"), None).is_err());
        assert!(command(&coordinator, Command::CommitTwoPhase, A).unwrap_err().starts_with("XAException:code=-7"));
        end(coordinator);
        drop(store);
        let (_store, coordinator) = place.open(sound()).unwrap();
        assert!(coordinator.recover(None).contains(&A.to_owned()));
    })
    .await;
}

/// H3: what retention has taken away was stored; a partition that is gone does not stop the rest.
#[tokio::test(flavor = "multi_thread")]
async fn partitions_below_their_first_offset_or_gone_do_not_stop_the_rest() {
    blocking(|| {
        let place = Place::new(0, 2);
        let (store, coordinator) = place.open(sound()).unwrap();
        for name in ["TX:s:1", "TX:s:2", "TX:s:3"] {
            assert!(fill(&coordinator, name, &place.targets()));
            command(&coordinator, Command::CommitOnePhase, name).unwrap();
        }
        prepared(&coordinator, &place, A);
        let trimmed = store.get("test", 0).unwrap();
        let first = trimmed.active_segment();
        assert_eq!(trimmed.trim_to(first).first, first);
        let kept = count(&store, &place, "TX:s:3");
        end(coordinator);
        drop((store, trimmed));
        fs::remove_dir_all(place.data().join("test-1")).unwrap();
        let (store, coordinator) = place.open(sound()).unwrap();
        assert_eq!(store.get("test", 0).unwrap().positions().kept, first, "nothing was stored anew");
        assert_eq!(count(&store, &place, "TX:s:3")[0], kept[0]);
        assert_eq!(coordinator.recover(None), [A]);
        command(&coordinator, Command::CommitTwoPhase, A).unwrap();
        assert_eq!(count(&store, &place, A), [2, 2]);
    })
    .await;
}

/// The journal is cut although a branch stays prepared: its entries are told again, with the ids its messages have.
#[tokio::test(flavor = "multi_thread")]
async fn the_journal_is_cut_around_a_prepared_branch() {
    blocking(|| {
        let place = Place::new(0, 2);
        let (store, coordinator) = place.open(sound()).unwrap();
        prepared(&coordinator, &place, A);
        prepared(&coordinator, &place, B);
        command(&coordinator, Command::OperatorRollback, B).unwrap();
        let journal = store.journal().unwrap();
        let mut number = 0;
        wait_until("the journal is cut", || {
            number += 1;
            let name = format!("TX:s:{number}");
            assert!(fill(&coordinator, &name, &place.targets()));
            command(&coordinator, Command::CommitOnePhase, &name).unwrap();
            journal.positions().kept.get() > 8000
        });
        end(coordinator);
        drop((store, journal));
        let (store, coordinator) = place.open(sound()).unwrap();
        assert_eq!(coordinator.recover(None), [A, B]);
        assert!(command(&coordinator, Command::Rollback, B).unwrap_err().contains("code=6"));
        command(&coordinator, Command::CommitTwoPhase, A).unwrap();
        assert_eq!(count(&store, &place, A), [2, 2]);
        assert_eq!(count(&store, &place, B), [0, 0]);
        for name in [1, number / 2, number].map(|number| format!("TX:s:{number}")) {
            assert_eq!(count(&store, &place, &name), [2, 2], "{name}");
        }
    })
    .await;
}
