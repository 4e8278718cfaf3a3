//! A journal that has to stay short, and keeps what is needed all the same. `hazards.rs` lists what the original makes of it
//! (H2, H5, H13).

mod support;

use metaq_txn::Command;
use metaq_types::PartitionId;
use support::*;

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
        let (store, coordinator) = place.again(store, coordinator);
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
            let (store, coordinator) = place.again(store, coordinator);
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
        let (store, coordinator) = place.again(store, coordinator);
        assert!(store.journal().unwrap().positions().written >= written, "its places are not used twice");
        prepared(&coordinator, &place, A);
        let (store, coordinator) = place.again(store, coordinator);
        assert_eq!(coordinator.recover(None), [A]);
        // Numbers go on as well, or the two would be taken for one.
        prepared(&coordinator, &place, B);
        let (store, coordinator) = place.again(store, coordinator);
        assert_eq!(coordinator.recover(None), [A, B]);
        for name in [A, B] {
            command(&coordinator, Command::CommitTwoPhase, name).unwrap();
            assert_eq!(count(&store, &place, name), [2, 2]);
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
        let (disk, store, coordinator) = place.open_faulty();
        // Nothing comes after it here, which would have its segment synced.
        assert!(fill(&coordinator, A, &targets[1..]));
        command(&coordinator, Command::CommitOnePhase, A).unwrap();
        let last = commit_until_cut(&coordinator, &store, &targets[..1]);
        power_fails(&place, &disk, store, coordinator);
        let (disk, store, coordinator) = place.open_faulty();
        power_fails(&place, &disk, store, coordinator);
        let (store, _coordinator) = place.open(sound()).unwrap();
        let expected: Vec<_> = (1..=last).flat_map(|number| [number; 2]).map(|n| format!("TX:s:{n}")).collect();
        assert_eq!(bodies(&store, &targets[0]), expected);
        assert_eq!(bodies(&store, &targets[1]), [A, A]);
    })
    .await;
}
