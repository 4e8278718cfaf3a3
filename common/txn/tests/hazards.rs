//! Damage, full and failing disks, partitions that are gone, and a journal that has to stay short.
//!
//! The ways in which the original is known to lose or double messages of transactions (transactions, "13. Hazards"), the
//! test of each, and what comes of it here. A test without a file is in this one.
//!
//! | | of the original | test | here |
//! |---|---|---|---|
//! | H1 | a recovered branch overwrites newer messages | harness `transactions`: `prepared_branches_outlive_a_crash_…` | all is there once |
//! | H2 | a checkpoint keeps the newest live branch only | `h02_…` | all of them are kept |
//! | H3 | a bad commit ends the replay | `a_damaged_entry_…`, `partitions_below_…` | it costs what it held |
//! | H4 | so does a commit across a checkpoint | `h02_…`; import: `original/redo.rs` | it costs nothing |
//! | H5 | numbering restarts, the next start misses it | `h05_…` | the journal goes on at its end |
//! | H6 | a commit is answered before it is written | `h06_…`, `crash.rs` | answered after the sync of its decision |
//! | H7 | abandoned messages are committed by another | `h07_…` | rolled back with their connection |
//! | H8 | puts after prepare are acknowledged and lost | `h08_…` | refused |
//! | H9 | failed appends are committed | `h09_…` | answered -7, stored by the next start |
//! | H10 | commits in part, told to be rolled back | `h10_…`, `crash.rs` | answered -7, completed once there is room |
//! | H11 | stored again after a crash | `h11_…`, `crash.rs` | stored once: the decision comes first, ids tell the rest |
//! | H12 | prepare is not durable with flush 0 or 2 | `h12_…`, `crash.rs` | survives a crash; power loss at once with 1, a second later with 2 |
//! | H13 | committed messages are not forced | `h13_…`, `crash.rs` | the journal has them until the partition has synced them |
//! | H14 | a full disk leaves half a record | `a_full_disk_…`, `a_damaged_entry_…` | refused, or decided and stored later |
//! | H15 | a wild length stops the start | `a_damaged_entry_…`; import: `original/redo.rs` | reported, and read on behind it |
//! | H16 | `maxCheckpoints` 0 or a bad file stops the start | `h16_…`; config `server_ini` refuses the 0 | it starts |
//! | H17 | answers before the journal is read | harness `transaction_hazards`: `h17_…` | refused with the reason until then |
//! | H18 | the operator's decision is lost | `h18_…`; harness `transactions`: `heuristic_decisions_…` | kept, listed once, refused until forgotten |
#![expect(clippy::unwrap_used, reason = "the helpers of tests are test code")]

mod support;

use metaq_store::{Disk, Store};
use metaq_txn::{Command, Coordinator};
use metaq_types::PartitionId;
use std::fs;
use std::sync::Arc;
use std::time::{Duration, Instant};
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

/// Local transactions `TX:s:1` and on, until the front of the journal is gone; how many they were.
fn commit_until_cut(coordinator: &Coordinator, store: &Store, targets: &[PartitionId]) -> u64 {
    let journal = store.journal().unwrap();
    let mut number = 0;
    wait_until("the journal is cut", || {
        number += 1;
        let name = format!("TX:s:{number}");
        assert!(fill(coordinator, &name, targets));
        command(coordinator, Command::CommitOnePhase, &name).unwrap();
        journal.positions().kept.get() > 8000
    });
    number
}

/// Commits, and does something between the decision's way into the journal and the end of its sync.
fn decide_and(coordinator: &Coordinator, disk: &FaultyDisk, name: &str, meanwhile: impl FnOnce()) -> Answer {
    disk.shut_gate();
    let answer = ask(SESSION, coordinator, Command::CommitOnePhase, name);
    disk.wait_for_a_sync();
    assert!(answer.try_recv().is_err(), "answered before it is synced");
    meanwhile();
    disk.open_gate();
    answer.recv_timeout(DEADLINE).expect("no answer within the deadline")
}

type Answer = Result<String, String>;

/// The process ends, nothing is synced on the way out, and what was not before is gone.
fn power_fails(place: &Place, disk: &FaultyDisk, store: Arc<Store>, coordinator: Coordinator) {
    disk.add(Fault::Dead);
    end(coordinator);
    drop(store);
    for root in [place.data(), place.journal()] {
        disk.power_failure(&root);
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

/// H14: a full disk is found by a decision. From then on a message that would have to wait in memory is refused at once,
/// and not at its commit; with room again everything goes on.
#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_refuses_messages_as_soon_as_it_is_known() {
    blocking(|| {
        let place = Place::new(0, 2);
        let disk = Arc::new(FaultyDisk::default());
        let (store, coordinator) = place.open(disk.clone()).unwrap();
        let targets = place.targets();
        for name in ["TX:s:1", "TX:s:2"] {
            assert!(fill(&coordinator, name, &targets));
        }
        disk.add(Fault::FullAfter(10));
        let refused = command(&coordinator, Command::CommitOnePhase, "TX:s:1").unwrap_err();
        assert!(refused.ends_with("STORE COMMIT FAILED: Transaction rolled back."), "{refused}");
        for _ in 0..2 {
            let refused = put(SESSION, &coordinator, "TX:s:2", &targets[0]).unwrap_err();
            assert!(refused.starts_with("not stored: disk full"), "{refused}");
        }
        disk.heal();
        put(SESSION, &coordinator, "TX:s:2", &targets[0]).unwrap();
        command(&coordinator, Command::CommitOnePhase, "TX:s:2").unwrap();
        assert_eq!(count(&store, &place, "TX:s:1"), [0, 0]);
        assert_eq!(count(&store, &place, "TX:s:2"), [3, 2], "what was answered, and nothing else");
    })
    .await;
}

/// All that come while the journal is synced share the next write and the next sync, and where the disk has no room for
/// all of them, those that fit are stored.
#[tokio::test(flavor = "multi_thread")]
async fn commits_that_wait_share_a_sync() {
    blocking(|| {
        for room in [u64::MAX, 700] {
            let place = Place::new(1000, 2);
            let disk = Arc::new(FaultyDisk::default());
            let (store, coordinator) = place.open(disk.clone()).unwrap();
            let names: Vec<_> = (0..9).map(|number| format!("TX:s:{number}")).collect();
            assert!(names.iter().all(|name| fill(&coordinator, name, &place.targets())));
            let syncs = coordinator.journal_syncs();
            let mut answers = Vec::new();
            decide_and(&coordinator, &disk, &names[0], || {
                answers =
                    names[1..].iter().map(|name| ask(SESSION, &coordinator, Command::CommitOnePhase, name)).collect();
                disk.add(Fault::FullAfter(room));
            })
            .unwrap();
            let answers = answers.iter().map(|answer| answer.recv_timeout(DEADLINE).expect("no answer in time"));
            let done: Vec<_> = answers.map(|answer| answer.is_ok()).collect();
            let stored = done.iter().filter(|done| **done).count();
            if room == u64::MAX {
                assert_eq!((stored, coordinator.journal_syncs() - syncs), (8, 2));
            } else {
                assert!((1..8).contains(&stored), "room for one or two of them, not for all: {stored}");
            }
            disk.heal();
            wait_until("what is decided is stored", || coordinator.lines().is_empty());
            for (name, done) in names[1..].iter().zip(&done) {
                let held = count(&store, &place, name);
                assert!(held == [2, 2] || held == [0, 0] && !done, "{name} {held:?}, answered: {done}");
            }
            end(coordinator);
        }
    })
    .await;
}

/// H14: however much still fits on the disk: refused and as before, or decided and stored once there is room.
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

/// H2, H18: the journal is cut although a branch stays prepared: its entries are told again, with the ids its messages have.
#[tokio::test(flavor = "multi_thread")]
async fn the_journal_is_cut_around_a_prepared_branch() {
    blocking(|| {
        let place = Place::new(0, 2);
        let (store, coordinator) = place.open(sound()).unwrap();
        prepared(&coordinator, &place, A);
        prepared(&coordinator, &place, B);
        command(&coordinator, Command::OperatorRollback, B).unwrap();
        let number = commit_until_cut(&coordinator, &store, &place.targets());
        end(coordinator);
        drop(store);
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

/// H2: a checkpoint keeps every live branch, old or young, not the newest only. H4: one committed after a checkpoint and
/// begun before it does not cost the others.
#[tokio::test(flavor = "multi_thread")]
async fn h02_checkpoints_keep_every_live_branch() {
    blocking(|| {
        let place = Place::new(0, 1);
        let (store, coordinator) = place.open(sound()).unwrap();
        let journal = store.journal().unwrap();
        let mut branches = Vec::new();
        wait_until("the journal is cut", || {
            let number = branches.len();
            branches.push(format!("XID:1:aa:{number:04x}:q"));
            prepared(&coordinator, &place, &branches[number]);
            // Most of what the journal has is over.
            for part in 0..4 {
                let name = format!("TX:s{number}:{part}");
                assert!(fill(&coordinator, &name, &place.targets()));
                command(&coordinator, Command::CommitOnePhase, &name).unwrap();
            }
            journal.positions().kept.get() > 8000
        });
        let committed = branches.remove(branches.len() / 2);
        command(&coordinator, Command::CommitTwoPhase, &committed).unwrap();
        end(coordinator);
        drop((store, journal));
        let (store, coordinator) = place.open(sound()).unwrap();
        assert_eq!(coordinator.recover(None), branches);
        for name in &branches {
            command(&coordinator, Command::CommitTwoPhase, name).unwrap();
        }
        let held = bodies(&store, &place.targets()[0]);
        for name in branches.iter().chain([&committed]) {
            assert_eq!(held.iter().filter(|body| *body == name).count(), 2, "{name}");
        }
    })
    .await;
}

/// A slave that was away for long has gone on where its master's journal begins. What was open when it went may have been
/// decided in between: what stands before the gap is not believed, or it would be listed, and committed a second time.
#[tokio::test(flavor = "multi_thread")]
async fn what_stands_before_a_gap_of_the_journal_is_over() {
    blocking(|| {
        let place = Place::new(0, 2);
        let (store, coordinator) = place.open(sound()).unwrap();
        prepared(&coordinator, &place, A);
        end(coordinator);
        let master_begins = store.journal().unwrap().positions().written + 100_000;
        store.skip_to(&PartitionId::journal(), master_begins).unwrap();
        drop(store);
        for _ in 0..2 {
            let (store, coordinator) = place.open(sound()).unwrap();
            assert!(!coordinator.recover(None).contains(&A.to_owned()));
            prepared(&coordinator, &place, B);
            end(coordinator);
            drop(store);
            let (store, coordinator) = place.open(sound()).unwrap();
            assert_eq!(coordinator.recover(None), [B]);
            command(&coordinator, Command::CommitTwoPhase, B).unwrap();
            assert_eq!(count(&store, &place, A), [0, 0]);
            end(coordinator);
        }
    })
    .await;
}

/// H5: a start that finds nothing unfinished does not begin the journal anew, so that the next one finds what came.
#[tokio::test(flavor = "multi_thread")]
async fn h05_a_journal_cut_to_its_end_goes_on() {
    blocking(|| {
        let place = Place::new(0, 2);
        let (store, coordinator) = place.open(sound()).unwrap();
        commit_until_cut(&coordinator, &store, &place.targets());
        let written = store.journal().unwrap().positions().written;
        end(coordinator);
        drop(store);
        let (store, coordinator) = place.open(sound()).unwrap();
        assert!(store.journal().unwrap().positions().written >= written, "its places are not used twice");
        prepared(&coordinator, &place, A);
        end(coordinator);
        drop(store);
        let (store, coordinator) = place.open(sound()).unwrap();
        assert_eq!(coordinator.recover(None), [A]);
        // Numbers go on as well, or the two would be taken for one.
        prepared(&coordinator, &place, B);
        end(coordinator);
        drop(store);
        let (store, coordinator) = place.open(sound()).unwrap();
        assert_eq!(coordinator.recover(None), [A, B]);
        for name in [A, B] {
            command(&coordinator, Command::CommitTwoPhase, name).unwrap();
            assert_eq!(count(&store, &place, name), [2, 2]);
        }
    })
    .await;
}

/// H18: what the operator decided is known to the next start, and told until it is forgotten.
#[tokio::test(flavor = "multi_thread")]
async fn h18_the_operators_decision_outlives_the_process() {
    blocking(|| {
        let place = Place::new(0, 2);
        let (store, coordinator) = place.open(sound()).unwrap();
        let third = "XID:1:aa:03:c";
        for name in [A, B, third] {
            prepared(&coordinator, &place, name);
        }
        command(&coordinator, Command::OperatorRollback, A).unwrap();
        command(&coordinator, Command::OperatorCommit, B).unwrap();
        command(&coordinator, Command::OperatorComplete, third).unwrap();
        end(coordinator);
        drop(store);
        let (store, coordinator) = place.open(sound()).unwrap();
        assert_eq!(coordinator.recover(None), [A, B, third]);
        for (name, code, stored) in [(A, "code=6,", 0), (B, "code=7,", 2), (third, "code=8,", 0)] {
            let told = command(&coordinator, Command::CommitTwoPhase, name).unwrap_err();
            assert!(told.contains(code), "{told}");
            assert_eq!(count(&store, &place, name), [stored; 2], "{name}");
            command(&coordinator, Command::Forget, name).unwrap();
        }
        end(coordinator);
        drop(store);
        let (_store, coordinator) = place.open(sound()).unwrap();
        assert!(coordinator.recover(None).is_empty());
    })
    .await;
}

/// H6: with group commit, a commit is answered after the sync of its decision, and then survives the loss of power.
#[tokio::test(flavor = "multi_thread")]
async fn h06_a_commit_is_answered_after_its_sync() {
    blocking(|| {
        let place = Place::new(0, 2);
        let disk = Arc::new(FaultyDisk::default());
        let (store, coordinator) = place.open(disk.clone()).unwrap();
        assert!(fill(&coordinator, "TX:s:1", &place.targets()));
        decide_and(&coordinator, &disk, "TX:s:1", || {}).unwrap();
        power_fails(&place, &disk, store, coordinator);
        let (store, _coordinator) = place.open(sound()).unwrap();
        assert_eq!(count(&store, &place, "TX:s:1"), [2, 2]);
    })
    .await;
}

/// H7: what a connection left behind is not committed by another one that uses the same key, and is over.
#[tokio::test(flavor = "multi_thread")]
async fn h07_an_abandoned_local_transaction_is_not_taken_over() {
    blocking(|| {
        let place = Place::new(0, 2);
        let (store, coordinator) = place.open(sound()).unwrap();
        let (name, other) = ("TX:s:1", SESSION + 1);
        assert!(fill(&coordinator, name, &place.targets()));
        assert!(fill_of(other, &coordinator, name, &place.targets()));
        coordinator.session_ended(SESSION);
        command_of(other, &coordinator, Command::CommitOnePhase, name).unwrap();
        assert_eq!(count(&store, &place, name), [2, 2], "those of the second connection only");
        wait_until("the abandoned one is over", || coordinator.lines().is_empty());
        end(coordinator);
        drop(store);
        let (store, _coordinator) = place.open(sound()).unwrap();
        assert_eq!(count(&store, &place, name), [2, 2]);
    })
    .await;
}

/// H8: a put after prepare is refused, not acknowledged and lost.
#[tokio::test(flavor = "multi_thread")]
async fn h08_a_put_after_prepare_is_refused() {
    blocking(|| {
        let place = Place::new(0, 2);
        let (store, coordinator) = place.open(sound()).unwrap();
        prepared(&coordinator, &place, A);
        let refused = put(SESSION, &coordinator, A, &place.targets()[0]).unwrap_err();
        assert!(refused.starts_with("not stored: "), "{refused}");
        command(&coordinator, Command::CommitTwoPhase, A).unwrap();
        assert_eq!(count(&store, &place, A), [2, 2]);
    })
    .await;
}

/// H9: a failed write to a partition is not answered as success, and the next start stores what was decided.
#[tokio::test(flavor = "multi_thread")]
async fn h09_a_failed_write_to_a_partition_is_told_and_made_good() {
    blocking(|| {
        let place = Place::new(0, 2);
        let disk = Arc::new(FaultyDisk::default());
        let (store, coordinator) = place.open(disk.clone()).unwrap();
        prepared(&coordinator, &place, B);
        prepared(&coordinator, &place, A);
        let error = decide_and(&coordinator, &disk, A, || disk.add(Fault::WriteError)).unwrap_err();
        assert!(error.starts_with("XAException:code=-7,msg=committed, but not stored everywhere yet"), "{error}");
        end(coordinator);
        drop(store);
        for _ in 0..2 {
            let (store, coordinator) = place.open(sound()).unwrap();
            assert_eq!(count(&store, &place, A), [2, 2]);
            assert_eq!(coordinator.recover(None), [B], "what follows is replayed");
            end(coordinator);
        }
    })
    .await;
}

/// H10: one partition takes its batch and the other has no room: never told to be rolled back, completed once there is.
#[tokio::test(flavor = "multi_thread")]
async fn h10_a_commit_stored_in_part_is_completed() {
    blocking(|| {
        let place = Place::new(0, 2);
        let disk = Arc::new(FaultyDisk::default());
        let (store, coordinator) = place.open(disk.clone()).unwrap();
        assert!(fill(&coordinator, A, &place.targets()));
        let one_batch = 2 * (20 + A.len() as u64);
        let error = decide_and(&coordinator, &disk, A, || disk.add(Fault::FullAfter(one_batch))).unwrap_err();
        assert!(error.contains("committed, but not stored everywhere yet"), "{error}");
        let stored = count(&store, &place, A);
        assert!(stored == [2, 0] || stored == [0, 2], "{stored:?}");
        disk.heal();
        wait_until("the rest is stored", || coordinator.lines().is_empty());
        assert_eq!(count(&store, &place, A), [2, 2]);
    })
    .await;
}

/// H11: the batches are stored and the note that says so is lost: no start stores them again.
#[tokio::test(flavor = "multi_thread")]
async fn h11_what_is_stored_is_not_stored_again() {
    blocking(|| {
        let place = Place::new(0, 2);
        let disk = Arc::new(FaultyDisk::default());
        let (store, coordinator) = place.open(disk.clone()).unwrap();
        prepared(&coordinator, &place, A);
        command(&coordinator, Command::CommitTwoPhase, A).unwrap();
        let written = store.journal().unwrap().positions().written;
        power_fails(&place, &disk, store, coordinator);
        for _ in 0..2 {
            let (store, coordinator, recovered) = place.open_with_trouble(sound()).unwrap();
            assert!(store.journal().unwrap().positions().written <= written, "the note is not lost");
            assert_eq!(recovered.completed, Vec::<String>::new());
            assert_eq!(count(&store, &place, A), [2, 2]);
            assert!(coordinator.recover(None).is_empty());
            end(coordinator);
        }
    })
    .await;
}

/// The write of a batch was cut short by a loss of power, and another, decided before, is not in the partition at all: the
/// torn one is completed before anything is stored behind it.
#[tokio::test(flavor = "multi_thread")]
async fn a_torn_batch_is_completed_before_others_are_stored() {
    blocking(|| {
        let place = Place::new(1000, 1);
        let disk = Arc::new(FaultyDisk::default());
        let (store, coordinator) = place.open(disk.clone()).unwrap();
        let [first, second] = ["TX:s:1", "TX:s:2"];
        assert!([first, second].iter().all(|name| fill(&coordinator, name, &place.targets())));
        let mut other = None;
        decide_and(&coordinator, &disk, first, || {
            other = Some(ask(SESSION, &coordinator, Command::CommitOnePhase, second));
        })
        .unwrap();
        other.unwrap().recv_timeout(DEADLINE).expect("no answer within the deadline").unwrap();
        end(coordinator);
        drop(store);
        let segment = place.data().join("test-0/00000000000000000000.meta");
        let (bytes, record) = (fs::read(&segment).unwrap(), 20 + first.len());
        assert_eq!(bytes.len(), 4 * record);
        fs::write(&segment, &bytes[2 * record..3 * record + 10]).unwrap();
        for _ in 0..2 {
            let (store, coordinator) = place.open(sound()).unwrap();
            assert_eq!(bodies(&store, &place.targets()[0]), [second, second, first, first]);
            end(coordinator);
        }
    })
    .await;
}

/// H12: what is answered outlives the end of the process whatever flushTxLogAtCommit says; the loss of power at once with
/// 1, after the next sync with 2, and with 0 not before somebody else has the journal synced.
#[tokio::test(flavor = "multi_thread")]
async fn h12_a_decision_is_as_durable_as_the_settings_say() {
    const HOUR: Duration = Duration::from_secs(3600);
    let (at_once, soon, later) = ((true, HOUR), (false, Duration::from_millis(1)), (false, HOUR));
    blocking(move || {
        for ((synced, journal_interval), power, survives) in
            [(at_once, true, true), (soon, true, true), (later, true, false), (soon, false, true), (later, false, true)]
        {
            let place = Place { synced, journal_interval, ..Place::new(1000, 2) };
            let disk = Arc::new(FaultyDisk::default());
            let (store, coordinator) = place.open(disk.clone()).unwrap();
            prepared(&coordinator, &place, A);
            assert!(fill(&coordinator, "TX:s:1", &place.targets()));
            command(&coordinator, Command::CommitOnePhase, "TX:s:1").unwrap();
            let journal = store.journal().unwrap();
            if journal_interval < HOUR {
                wait_until("the journal is synced unasked", || {
                    journal.positions().durable == journal.positions().written
                });
            }
            drop(journal);
            if power {
                power_fails(&place, &disk, store, coordinator);
            } else {
                disk.add(Fault::Dead);
                end(coordinator);
                drop(store);
            }
            let (store, coordinator) = place.open(sound()).unwrap();
            let context = format!("synced: {synced}, after {journal_interval:?}, power fails: {power}");
            let expected = if survives { 2 } else { 0 };
            assert_eq!(count(&store, &place, "TX:s:1"), [expected; 2], "{context}");
            assert_eq!(coordinator.recover(None).len(), usize::from(survives), "{context}");
            if survives {
                command(&coordinator, Command::CommitTwoPhase, A).unwrap();
            }
            assert_eq!(count(&store, &place, A), [expected; 2], "{context}");
        }
    })
    .await;
}

/// H13: commits do not sync these partitions, and the power fails after the journal was cut: it was cut only behind what
/// they have synced. So it is after a start that stored the rest, when the power fails again.
#[tokio::test(flavor = "multi_thread")]
async fn h13_the_journal_is_cut_behind_what_is_synced() {
    blocking(|| {
        let place = Place::new(1000, 2);
        let targets = place.targets();
        let disk = Arc::new(FaultyDisk::default());
        let (store, coordinator) = place.open(disk.clone()).unwrap();
        // Nothing comes after it here, which would have its segment synced.
        assert!(fill(&coordinator, A, &targets[1..]));
        command(&coordinator, Command::CommitOnePhase, A).unwrap();
        let last = commit_until_cut(&coordinator, &store, &targets[..1]);
        power_fails(&place, &disk, store, coordinator);
        let disk = Arc::new(FaultyDisk::default());
        let (store, coordinator) = place.open(disk.clone()).unwrap();
        power_fails(&place, &disk, store, coordinator);
        let (store, _coordinator) = place.open(sound()).unwrap();
        let expected: Vec<_> = (1..=last).flat_map(|number| [number; 2]).map(|n| format!("TX:s:{n}")).collect();
        assert_eq!(bodies(&store, &targets[0]), expected);
        assert_eq!(bodies(&store, &targets[1]), [A, A]);
    })
    .await;
}

/// H16: neither a number of checkpoints that makes no sense nor damaged files of the original keep a start from ending.
/// (server.ini does not take `maxCheckpoints=0`; ours keeps no file of checkpoints that could be damaged.)
#[tokio::test(flavor = "multi_thread")]
async fn h16_checkpoints_do_not_stop_a_start() {
    blocking(|| {
        let place = Place { checkpoints_max: 0, ..Place::new(0, 2) };
        fs::create_dir(place.original_journal()).unwrap();
        for name in ["redo.1", "checkpoint.1", "heuristic.log"] {
            fs::write(place.original_journal().join(name), [0xee; 500]).unwrap();
        }
        let (store, coordinator, recovered) = place.open_with_trouble(sound()).unwrap();
        assert!(recovered.trouble.iter().any(|line| line.contains("heuristic.log")), "{:?}", recovered.trouble);
        prepared(&coordinator, &place, A);
        commit_until_cut(&coordinator, &store, &place.targets());
        end(coordinator);
        drop(store);
        let (_store, coordinator) = place.open(sound()).unwrap();
        assert_eq!(coordinator.recover(None), [A]);
    })
    .await;
}
