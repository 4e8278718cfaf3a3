//! The process dies, and the power fails with it, between any two changes of the disk: of begin, put, prepare, commit
//! and rollback. Nothing committed is lost, nothing else appears, nothing is there twice or in part.
//!
//! METAQ_ROUNDS sets how many places each case dies at, 50 unless set; 500 reach every one of them.
#![expect(clippy::unwrap_used, reason = "the helpers of tests are test code")]

mod support;

use metaq_store::{Disk, Store};
use metaq_txn::{Command, Coordinator};
use metaq_types::PartitionId;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use support::faulty::FaultyDisk;
use support::*;

/// What a transaction's client knows.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Known {
    prepared: bool,
    commit_asked: bool,
    committed: bool,
    rollback_asked: bool,
    rolled_back: bool,
}

/// Everything that can become of a transaction, one after the other.
fn work(coordinator: &Coordinator, targets: &[PartitionId]) -> BTreeMap<String, Known> {
    let mut known = BTreeMap::<String, Known>::new();
    for round in 0..2 {
        for kind in ["local", "one", "two", "back", "late", "kept", "open"] {
            let name = match kind {
                "local" => format!("TX:{kind}:{round}"),
                _ => format!("XID:1:aa:0{round}:{kind}"),
            };
            let entry = known.entry(name.clone()).or_default();
            if !fill(coordinator, &name, targets) {
                continue;
            }
            if matches!(kind, "two" | "late" | "kept") {
                entry.prepared = command(coordinator, Command::Prepare, &name).is_ok();
            }
            match kind {
                "local" | "one" => {
                    entry.commit_asked = true;
                    entry.committed = command(coordinator, Command::CommitOnePhase, &name).is_ok();
                }
                "two" if entry.prepared => {
                    entry.commit_asked = true;
                    entry.committed = command(coordinator, Command::CommitTwoPhase, &name).is_ok();
                }
                "back" | "late" => {
                    entry.rollback_asked = true;
                    entry.rolled_back = command(coordinator, Command::Rollback, &name).is_ok();
                }
                _ => {}
            }
        }
    }
    known
}

/// In how many partitions a transaction is whole; an error when it is there in part, twice, or not in one run.
fn whole_in(held: &[Vec<String>], name: &str) -> Result<usize, String> {
    let mut whole = 0;
    for bodies in held {
        let places: Vec<_> = bodies.iter().enumerate().filter(|(_, body)| *body == name).map(|(at, _)| at).collect();
        match places[..] {
            [] => {}
            [first, second] if second == first + 1 => whole += 1,
            _ => return Err(format!("{name} is at {places:?} of {bodies:?}")),
        }
    }
    Ok(whole)
}

fn check(place: &Place, known: &BTreeMap<String, Known>, what: &str) {
    // Twice, since what the first start repaired must be found good by the second.
    for start in 0..2 {
        let disk: Arc<dyn Disk> = Arc::new(FaultyDisk::default());
        let (store, coordinator) = place.open(disk).unwrap_or_else(|error| panic!("{what}, start {start}: {error}"));
        let listed = coordinator.recover(None);
        let held: Vec<_> = place.targets().iter().map(|target| bodies(&store, target)).collect();
        for (name, known) in known {
            let context = format!("{what}, start {start}: {name} {known:?}");
            let whole = whole_in(&held, name).unwrap_or_else(|fault| panic!("{context}: {fault}"));
            assert!(whole == 0 || whole == held.len(), "{context}: in {whole} of {} partitions", held.len());
            let present = whole > 0;
            assert!(present || !known.committed, "{context}: lost");
            assert!(!present || known.commit_asked, "{context}: a ghost");
            let decided = present || known.rollback_asked;
            assert!(decided || !known.prepared || listed.contains(name), "{context}: its prepare is lost");
            assert!(!(present && listed.contains(name)), "{context}: stored and still prepared");
        }
        if start == 1 {
            decide_the_rest(&coordinator, &store, place, &listed, what);
        }
        end(coordinator);
    }
}

/// What is listed can be committed, and is whole then.
fn decide_the_rest(coordinator: &Coordinator, store: &Store, place: &Place, listed: &[String], what: &str) {
    for name in listed {
        command(coordinator, Command::CommitTwoPhase, name).unwrap_or_else(|error| panic!("{what}: {name}: {error}"));
    }
    let held: Vec<_> = place.targets().iter().map(|target| bodies(store, target)).collect();
    for name in listed {
        assert_eq!(whole_in(&held, name), Ok(held.len()), "{what}: {name}");
    }
}

/// One life that ends at the given change; how many changes it would have made.
fn life(place: &Place, die_after: Option<u64>, power_fails: bool) -> (BTreeMap<String, Known>, u64) {
    let disk = Arc::new(FaultyDisk::default());
    if let Some(changes) = die_after {
        disk.die_after(changes);
    }
    let known = match place.open(disk.clone()) {
        Ok((_store, coordinator)) => {
            let known = work(&coordinator, &place.targets());
            end(coordinator);
            known
        }
        Err(_) => BTreeMap::new(),
    };
    if power_fails {
        for root in [place.data(), place.journal()] {
            if Path::new(&root).exists() {
                disk.power_failure(&root);
            }
        }
    }
    (known, disk.changes())
}

fn rounds() -> u64 {
    std::env::var("METAQ_ROUNDS").ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(50)
}

/// Where the messages of an open transaction are.
#[derive(Clone, Copy)]
enum Open {
    /// In memory, and in the journal with the decision.
    Held = 64 * 1024,
    /// Some in the journal, some not.
    Mixed = 200,
    /// In the journal from the start.
    Written = 0,
}

async fn dies_everywhere(threshold: u32, partitions: u32, open: Open, power_fails: bool) {
    let rounds = rounds();
    let task = tokio::task::spawn_blocking(move || {
        let place = || Place { held_bytes_max: open as u32, ..Place::new(threshold, partitions) };
        let (_, changes) = life(&place(), None, false);
        assert!(changes > 60, "only {changes} changes");
        for round in 0..rounds.min(changes) {
            let die_after = round * changes / rounds.min(changes);
            let place = place();
            let (known, _) = life(&place, Some(die_after), power_fails);
            check(&place, &known, &format!("died after {die_after} of {changes} changes"));
        }
    });
    task.await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_on_one_partition() {
    dies_everywhere(0, 1, Open::Held, false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_on_four_partitions() {
    dies_everywhere(0, 4, Open::Held, false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_with_open_messages_in_the_journal() {
    dies_everywhere(0, 4, Open::Written, false).await;
}

/// H6, H10, H11, H12: at whatever change it happens.
#[tokio::test(flavor = "multi_thread")]
async fn power_fails_on_four_partitions() {
    dies_everywhere(0, 4, Open::Held, true).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn power_fails_with_open_messages_partly_in_the_journal() {
    dies_everywhere(0, 4, Open::Mixed, true).await;
}

/// H13: the partitions are not synced by a commit, and lose what it stored: the journal has it.
#[tokio::test(flavor = "multi_thread")]
async fn power_fails_on_partitions_that_are_not_synced() {
    dies_everywhere(1000, 4, Open::Held, true).await;
}
