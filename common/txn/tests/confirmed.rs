//! Others have to confirm the journal: what is answered before they do, and after.

mod support;

use metaq_txn::{Command, Coordinator};
use metaq_types::Offset;
use std::time::Instant;
use support::*;

/// Not confirmed, a commit is neither answered as done nor forgotten, however often it is asked for; the messages are
/// stored once all the same.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_confirmed_is_not_answered() {
    use metaq_txn::Command::{CommitTwoPhase, Prepare};
    blocking(|| {
        let place = Place::new(0, 2);
        let (store, coordinator) = place.open(sound()).unwrap();
        let journal = store.journal().unwrap();
        journal.limit(Offset::ZERO);
        assert!(fill(&coordinator, A, &place.targets()), "a put promises nothing, and waits for nobody");
        let alone = command(&coordinator, Prepare, A).unwrap_err();
        assert!(alone.starts_with("XAException:code=-7,msg=prepared here, not confirmed"), "{alone}");
        assert_eq!(coordinator.recover(None), [A]);
        for _ in 0..3 {
            let refused = command(&coordinator, CommitTwoPhase, A).unwrap_err();
            assert!(refused.contains("committed, but not stored everywhere yet"), "{refused}");
            assert_eq!(coordinator.recover(None), [A], "its coordinator must be able to ask again");
        }
        journal.limit(Offset::MAX);
        wait_until_forgotten(&coordinator);
        for target in place.targets() {
            assert_eq!(bodies(&store, &target), [A, A]);
        }
        end(coordinator);
    })
    .await;
}

/// Asked again after a restart, an unconfirmed commit is not told to be unknown: its coordinator would forget it, and the
/// member that is promoted next may have the branch undecided.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_confirmed_is_known_after_a_restart() {
    blocking(|| {
        let place = Place { confirmed: Some(Offset::ZERO), ..Place::new(0, 2) };
        let (store, coordinator) = place.open(sound()).unwrap();
        assert!(fill(&coordinator, A, &place.targets()));
        command(&coordinator, Command::Prepare, A).unwrap_err();
        command(&coordinator, Command::CommitTwoPhase, A).unwrap_err();
        end(coordinator);
        drop(store);
        for _ in 0..2 {
            let (store, coordinator) = place.open(sound()).unwrap();
            assert_eq!(coordinator.recover(None), [A]);
            let refused = command(&coordinator, Command::CommitTwoPhase, A).unwrap_err();
            assert!(refused.contains("committed, but not stored everywhere yet"), "{refused}");
            end(coordinator);
            drop(store);
        }
        let (store, coordinator) = place.open(sound()).unwrap();
        store.journal().unwrap().limit(Offset::MAX);
        wait_until_forgotten(&coordinator);
        end(coordinator);
        drop(store);
        // Confirmed, and told so by the journal: nobody is to ask again.
        let place = Place { confirmed: Some(Offset::MAX), ..place };
        let (store, coordinator) = place.open(sound()).unwrap();
        assert!(coordinator.recover(None).is_empty());
        for target in place.targets() {
            assert_eq!(bodies(&store, &target), [A, A]);
        }
        end(coordinator);
    })
    .await;
}

/// Asks for the commit again until it is done or finished without being asked.
fn wait_until_forgotten(coordinator: &Coordinator) {
    let until = Instant::now() + DEADLINE;
    while command(coordinator, Command::CommitTwoPhase, A).is_err() && !coordinator.recover(None).is_empty() {
        assert!(Instant::now() < until, "confirmed, it ends, asked or not");
    }
}
