//! What the original does wrong with transactions, and what comes of it here.
//!
//! The ways in which it is known to lose or double messages (transactions, "13. Hazards"), and the test of each. A test
//! without a file is in this one.
//!
//! | | of the original | test | here |
//! |---|---|---|---|
//! | H1 | a recovered branch overwrites newer messages | harness `transactions`: `prepared_branches_outlive_a_crash_…` | all is there once |
//! | H2 | a checkpoint keeps the newest live branch only | `cut.rs`: `h02_…` | all of them are kept |
//! | H3 | a bad commit ends the replay | `a_damaged_entry_…`, `partitions_below_…` | it costs what it held |
//! | H4 | so does a commit across a checkpoint | `cut.rs`: `h02_…`; import: `original/redo.rs` | it costs nothing |
//! | H5 | numbering restarts, the next start misses it | `cut.rs`: `h05_…` | the journal goes on at its end |
//! | H6 | a commit is answered before it is written | `h06_…`, `crash.rs` | answered after the sync of its decision |
//! | H7 | abandoned messages are committed by another | `h07_…` | rolled back with their connection |
//! | H8 | puts after prepare are acknowledged and lost | `h08_…` | refused |
//! | H9 | failed appends are committed | `disks.rs`: `h09_…` | answered -7, stored by the next start |
//! | H10 | commits in part, told to be rolled back | `disks.rs`: `h10_…`; `crash.rs` | answered -7, completed once there is room |
//! | H11 | stored again after a crash | `h11_…`, `crash.rs` | stored once: the decision comes first, ids tell the rest |
//! | H12 | prepare is not durable with flush 0 or 2 | `h12_…`, `crash.rs` | survives a crash; power loss at once with 1, a second later with 2 |
//! | H13 | committed messages are not forced | `h13_…`; `cut.rs`: `h13_…`; `crash.rs` | the journal has them until the partition has synced them |
//! | H14 | a full disk leaves half a record | `disks.rs`: `a_full_disk_…`; `a_damaged_entry_…` | refused, or decided and stored later |
//! | H15 | a wild length stops the start | `a_damaged_entry_…`; import: `original/redo.rs` | reported, and read on behind it |
//! | H16 | `maxCheckpoints` 0 or a bad file stops the start | `h16_…`; config `server_ini` refuses the 0 | it starts |
//! | H17 | answers before the journal is read | harness `transaction_hazards`: `h17_…` | refused with the reason until then |
//! | H18 | the operator's decision is lost | `h18_…`; harness `transactions`: `heuristic_decisions_…` | kept, listed once, refused until forgotten |

mod support;

use metaq_txn::Command;
use metaq_types::Offset;
use std::fs;
use std::ops::ControlFlow;
use std::time::Duration;
use support::faulty::Fault;
use support::*;

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
        let [bytes, branch] = &recovered.trouble[..] else { panic!("{:?}", recovered.trouble) };
        assert!(bytes.contains("damaged") && branch.contains(A) && branch.contains("1 of its messages"), "{branch}");
        command(&coordinator, Command::CommitTwoPhase, B).unwrap();
        assert_eq!(count(&store, &place, B), [2, 2]);
        // Its coordinator is not told that all of it was stored.
        for commit in [Command::CommitOnePhase, Command::CommitTwoPhase] {
            let told = command(&coordinator, commit, A).unwrap_err().to_string();
            assert!(told.starts_with("XAException:code=-7,") && told.contains("metaq txn"), "{told}");
        }
        assert_eq!(coordinator.recover(None), [A], "nor is it over");
        assert_eq!(count(&store, &place, A), [0, 0]);
        command(&coordinator, Command::OperatorCommit, A).unwrap();
        assert_eq!(count(&store, &place, A).iter().sum::<usize>(), 3, "all but the damaged message");
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
        let (store, coordinator) = place.again(store, coordinator);
        assert_eq!(coordinator.recover(None), [A, B, third]);
        for (name, code, stored) in [(A, "code=6,", 0), (B, "code=7,", 2), (third, "code=8,", 0)] {
            let told = command(&coordinator, Command::CommitTwoPhase, name).unwrap_err();
            assert!(told.contains(code), "{told}");
            assert_eq!(count(&store, &place, name), [stored; 2], "{name}");
            command(&coordinator, Command::Forget, name).unwrap();
        }
        let (_store, coordinator) = place.again(store, coordinator);
        assert!(coordinator.recover(None).is_empty());
    })
    .await;
}

/// H6: with group commit, a commit is answered after the sync of its decision, and then survives the loss of power.
#[tokio::test(flavor = "multi_thread")]
async fn h06_a_commit_is_answered_after_its_sync() {
    blocking(|| {
        let place = Place::new(0, 2);
        let (disk, store, coordinator) = place.open_faulty();
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
        let (store, _coordinator) = place.again(store, coordinator);
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

/// H11: the batches are stored and the note that says so is lost: no start stores them again.
#[tokio::test(flavor = "multi_thread")]
async fn h11_what_is_stored_is_not_stored_again() {
    blocking(|| {
        let place = Place::new(0, 2);
        let (disk, store, coordinator) = place.open_faulty();
        prepared(&coordinator, &place, A);
        command(&coordinator, Command::CommitTwoPhase, A).unwrap();
        // The answer waits for the journal's sync only.
        wait_until("the batches are durable", || place.targets().iter().all(|target| is_durable(&store, target)));
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

/// H11: the answer to a commit waits for the journal's sync, not for those of the partitions, and the power fails between
/// them: the next start stores the batches again, once.
#[tokio::test(flavor = "multi_thread")]
async fn h11_what_was_answered_before_its_partition_was_synced_is_stored_once() {
    blocking(|| {
        // Of one segment: a journal that rolls is synced once more.
        let place = Place { journal_segment_bytes: 1 << 20, ..Place::new(0, 2) };
        let (disk, store, coordinator) = place.open_faulty();
        prepared(&coordinator, &place, A);
        disk.shut_gate_behind(1);
        command(&coordinator, Command::CommitTwoPhase, A).unwrap();
        assert!(!place.targets().iter().any(|target| is_durable(&store, target)), "their syncs are held back");
        disk.add(Fault::Dead);
        disk.open_gate();
        power_fails(&place, &disk, store, coordinator);
        for completed in [2, 0] {
            let (store, coordinator, recovered) = place.open_with_trouble(sound()).unwrap();
            assert_eq!(recovered.completed.len(), completed, "{:?}", recovered.completed);
            assert_eq!(count(&store, &place, A), [2, 2]);
            end(coordinator);
        }
    })
    .await;
}

/// H13: of what is not synced a power failure may leave the later bytes and not the ones before: what it took from the
/// middle of a batch whose commit was answered is stored again, once, whether the note that it was stored is left or not.
#[tokio::test(flavor = "multi_thread")]
async fn h13_what_is_lost_in_the_middle_of_a_batch_is_stored_again() {
    blocking(|| {
        for (taken, is_noted) in [(0, true), (1, true), (0, false), (1, false)] {
            let place = Place::new(0, 1);
            let (disk, store, coordinator) = place.open_faulty();
            for name in [A, B] {
                prepared(&coordinator, &place, name);
                command(&coordinator, Command::CommitTwoPhase, name).unwrap();
            }
            bodies(&store, &place.targets()[0]);
            if !is_noted {
                disk.add(Fault::Dead);
            }
            end(coordinator);
            drop(store);
            let segment = place.data().join("test-0/00000000000000000000.meta");
            let mut bytes = fs::read(&segment).unwrap();
            assert_eq!(bytes.len(), 4 * (20 + A.len()), "one segment");
            let body = taken * (20 + A.len()) + 20;
            bytes[body..body + A.len()].fill(0);
            fs::write(&segment, bytes).unwrap();
            for completed in [1, 0] {
                let (store, coordinator, recovered) = place.open_with_trouble(sound()).unwrap();
                assert_eq!(recovered.completed.len(), completed, "{taken} {is_noted}: {:?}", recovered.completed);
                let mut held = Vec::new();
                let partition = store.get("test", 0).unwrap();
                let damage = partition
                    .walk(Offset::ZERO, |_, _, body| {
                        held.push(String::from_utf8(body.to_vec()).unwrap());
                        ControlFlow::Continue(())
                    })
                    .unwrap();
                assert_eq!((&held[..], damage.len()), (&[A, B, B, A].map(str::to_owned)[..], 1), "{taken} {is_noted}");
                end(coordinator);
            }
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
            // Of one segment: a tick writes the note that the commit is stored, and where the journal rolls for it, all
            // that stands before is synced.
            let journal_segment_bytes = 1 << 20;
            let place = Place { synced, journal_interval, journal_segment_bytes, ..Place::new(1000, 2) };
            let (disk, store, coordinator) = place.open_faulty();
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
        let (_store, coordinator) = place.again(store, coordinator);
        assert_eq!(coordinator.recover(None), [A]);
    })
    .await;
}

/// What stands in the place of a file of the original's journal is named, and nothing of that taken over without it.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_file_of_the_originals_journal_is_named() {
    blocking(|| {
        let place = Place::new(0, 1);
        fs::create_dir_all(place.original_journal().join("redo.7")).unwrap();
        let Err(error) = place.open(sound()) else { panic!("it started") };
        assert!(error.contains("redo.7"), "{error}");
    })
    .await;
}
