//! What a quorum does to a log: answers and consumers wait for it, replicas do not.

mod support;

use metaq_store::{Ack, AppendError, Partition, Reader, SliceAt};
use metaq_types::Offset;
use std::sync::Arc;
use std::time::Duration;
use support::*;

fn outcome(outcomes: &Outcomes, ticket: u64) -> Option<bool> {
    outcomes.now(ticket).map(|outcome| outcome.is_ok())
}

/// With group commit the committer writes and syncs; at os level a sync has to be asked for.
fn wait_written_and_durable(partition: &Arc<Partition>, end: Offset) {
    // A committer that still held the writer writes what was appended meanwhile, a moment later.
    wait_written(partition, end);
    partition.request_sync();
    wait_durable(partition, end);
}

#[test]
fn answers_and_consumers_wait_for_the_quorum_and_replicas_do_not() {
    for threshold in [0, 1000] {
        let setup = Setup::new(threshold, 1 << 20);
        let store = setup.open();
        let partition = setup.partition(&store, "test-0");
        put(&partition, b"before").unwrap();
        partition.request_sync();
        wait_synced(&partition);
        assert_eq!(partition.hold(), at(26), "what was readable stays so");
        let outcomes = Arc::new(Outcomes::default());
        append(&partition, b"waits", Ack::new(outcomes.clone(), 1));
        append(&partition, b"waits", Ack::new(outcomes.clone(), 2));
        wait_written_and_durable(&partition, at(76));
        let positions = partition.positions();
        assert_eq!((positions.readable, positions.durable), (at(26), at(76)));
        assert!(matches!(partition.slice(26, 1000, Reader::Consumer), SliceAt::AtEnd { unsynced: false }));
        assert!(matches!(partition.slice(26, 1000, Reader::Replica), SliceAt::Bytes(_)));
        assert_eq!(outcome(&outcomes, 1), None);
        partition.confirm(at(51));
        outcomes.wait(1).unwrap();
        assert_eq!(outcome(&outcomes, 2), None);
        assert_eq!(bodies(&read_from(&partition, 26, 1000)), [b"waits".to_vec()]);
        partition.confirm(Offset::MAX);
        outcomes.wait(2).unwrap();
        assert_eq!(partition.positions().readable, at(76));
    }
}

#[test]
fn what_is_given_up_is_unknown_to_its_producer_and_readable_once_confirmed() {
    let setup = Setup::new(0, 1 << 20);
    let store = setup.open();
    let partition = setup.partition(&store, "test-0");
    partition.hold();
    let outcomes = Arc::new(Outcomes::default());
    for ticket in 1..=3 {
        append(&partition, b"12345", Ack::new(outcomes.clone(), ticket));
    }
    wait_durable(&partition, at(75));
    partition.give_up(at(50));
    assert_eq!(outcomes.now(1).unwrap(), Err(AppendError::Unconfirmed));
    assert_eq!((outcome(&outcomes, 2), outcome(&outcomes, 3)), (Some(false), None));
    assert!(read_from(&partition, 0, 1000).is_empty());
    partition.confirm(at(75));
    outcomes.wait(3).unwrap();
    assert_eq!(read_from(&partition, 0, 1000).len(), 3);
}

/// A consumer that had read further elsewhere is told "not yet", and never to go back.
#[test]
fn a_consumer_within_what_is_hidden_is_at_the_end() {
    let setup = Setup::new(0, 1 << 20);
    let store = setup.open();
    let partition = setup.partition(&store, "test-0");
    partition.limit(at(0));
    put(&partition, b"12345").unwrap();
    put(&partition, b"12345").unwrap();
    assert!(matches!(partition.slice(25, 1000, Reader::Consumer), SliceAt::AtEnd { .. }));
    assert!(matches!(partition.slice(50, 1000, Reader::Consumer), SliceAt::AtEnd { .. }));
    assert!(matches!(partition.slice(51, 1000, Reader::Consumer), SliceAt::Beyond { end } if end == at(0)));
}

#[test]
fn a_waiting_consumer_is_woken_by_the_quorum() {
    let setup = Setup::new(0, 1 << 20);
    let store = setup.open();
    let partition = setup.partition(&store, "test-0");
    partition.limit(at(0));
    put(&partition, b"12345").unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let waiting = {
            let partition = partition.clone();
            tokio::spawn(async move { partition.readable_beyond(at(0), Reader::Consumer).await })
        };
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        partition.limit(at(25));
        tokio::time::timeout(Duration::from_secs(20), waiting).await.unwrap().unwrap();
    });
}
