//! Disks that are full or fail under transactions. `hazards.rs` lists what the original makes of them (H9, H10, H14).

mod support;

use metaq_txn::Command;
use std::fs;
use support::faulty::Fault;
use support::*;

/// H14: a full disk is found by a decision. From then on a message that would have to wait in memory is refused at once,
/// and not at its commit; with room again everything goes on.
#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_refuses_messages_as_soon_as_it_is_known() {
    blocking(|| {
        let place = Place::new(0, 2);
        let (disk, store, coordinator) = place.open_faulty();
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
            // Of one segment: the note that the first is stored may be written by a tick before the others are, unsynced, and
            // if the journal rolled behind it, it would be synced there.
            let place = Place { journal_segment_bytes: 1 << 20, ..Place::new(1000, 2) };
            let (disk, store, coordinator) = place.open_faulty();
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
                // One for the first and one for the others.
                assert_eq!((stored, coordinator.journal_syncs() - syncs), (8, 2), "stored, syncs");
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
            let (disk, store, coordinator) = place.open_faulty();
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
        let (disk, store, coordinator) = place.open_faulty();
        prepared(&coordinator, &place, A);
        assert!(fill(&coordinator, B, &place.targets()));
        disk.add(Fault::SyncError);
        let error = command(&coordinator, Command::Prepare, B).unwrap_err();
        assert!(error.contains("not known before the broker is restarted"), "{error}");
        assert!(coordinator.begin(SESSION, &key("XID:1:aa:03:c"), None).is_err());
        assert!(command(&coordinator, Command::CommitTwoPhase, A).unwrap_err().starts_with("XAException:code=-7"));
        let (_store, coordinator) = place.again(store, coordinator);
        assert!(coordinator.recover(None).contains(&A.to_owned()));
    })
    .await;
}

/// H9: a failed write to a partition is not answered as success, and the next start stores what was decided.
#[tokio::test(flavor = "multi_thread")]
async fn h09_a_failed_write_to_a_partition_is_told_and_made_good() {
    blocking(|| {
        let place = Place::new(0, 2);
        let (disk, store, coordinator) = place.open_faulty();
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
        let (disk, store, coordinator) = place.open_faulty();
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

/// The power fails right after the start that has taken over the original's journal.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_taken_over_of_the_original_lasts() {
    blocking(|| {
        let prefixed = |head: &[u8], content: &[u8]| [head, &[content.len() as u8], content].concat();
        let record = |command: Vec<u8>| [&(command.len() as i32).to_be_bytes()[..], &command].concat();
        let (key, place) = ("XID:100:010203:0a0b:uq", Place::new(0, 1));
        let put = format!("put test 0 2 0 -1 {key} 7\r\nxa");
        let put = prefixed(&[0x08, 0x01, 0x12], &prefixed(&[0x08, 0x01, 0x12], put.as_bytes()));
        let prepare = prefixed(&[0x08, 0x01, 0x10, 0x00, 0x1a], key.as_bytes());
        let prepare = [prefixed(&[0x08, 0x02, 0x12], &prepare), vec![0x18, 0x01]].concat();
        let redo = [record(put), record(prepare)].concat();
        fs::create_dir(place.original_journal()).unwrap();
        fs::write(place.original_journal().join("redo.1"), redo).unwrap();
        let (disk, store, coordinator) = place.open_faulty();
        assert_eq!(coordinator.recover(None), [key]);
        assert!(!place.original_journal().exists());
        power_fails(&place, &disk, store, coordinator);
        let (store, coordinator) = place.open(sound()).unwrap();
        assert_eq!(coordinator.recover(None), [key]);
        command(&coordinator, Command::CommitTwoPhase, key).unwrap();
        assert_eq!(bodies(&store, &place.targets()[0]), ["xa"]);
    })
    .await;
}

/// The write of a batch was cut short by a loss of power, and another, decided before, is not in the partition at all: the
/// torn one is completed before anything is stored behind it.
#[tokio::test(flavor = "multi_thread")]
async fn a_torn_batch_is_completed_before_others_are_stored() {
    blocking(|| {
        let place = Place::new(1000, 1);
        let (disk, store, coordinator) = place.open_faulty();
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
