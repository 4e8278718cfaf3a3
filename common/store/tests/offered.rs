//! What members of a quorum may read before our own sync, and what nobody learns before it.

mod support;

use metaq_store::{Ack, AppendError, Flush, Health, Partition, PartitionRules, Reader, SliceAt};
use std::sync::Arc;
use std::time::Duration;
use support::faulty::Fault;
use support::*;

/// How far a reader gets from the beginning.
fn seen(partition: &Partition, reader: Reader) -> u64 {
    let mut end = 0;
    while let SliceAt::Bytes(slice) = partition.slice(end as i64, 1 << 20, reader) {
        end += u64::from(slice.len());
    }
    end
}

fn with_threshold(setup: &Setup, threshold: u32) -> PartitionRules {
    PartitionRules { flush: Flush { threshold, interval: NEVER }, ..setup.rules() }
}

/// The point of it all: the members' syncs run while ours does, and nobody else learns anything before ours is done.
#[test]
fn a_member_reads_what_is_being_synced_and_nothing_follows_from_it_before() {
    let (_setup, disk, _store, partition) = faulty_partition(0, 1 << 20);
    partition.hold();
    let outcomes = Arc::new(Outcomes::default());
    disk.shut_gate();
    append(&partition, b"12345", Ack::new(outcomes.clone(), 1));
    disk.wait_for_a_sync();
    let positions = partition.positions();
    assert_eq!((positions.durable, positions.offered, positions.written), (at(0), at(25), at(25)));
    assert_eq!(seen(&partition, Reader::Member), 25);
    assert_eq!(seen(&partition, Reader::Replica), 0);
    // Every member has it, and still it is neither answered nor shown.
    partition.confirm(at(25));
    assert!(outcomes.now(1).is_none());
    assert_eq!((seen(&partition, Reader::Consumer), partition.positions().readable), (0, at(0)));
    // The member waits at its end without asking for a sync that comes anyway.
    assert!(matches!(partition.slice(25, 1000, Reader::Member), SliceAt::AtEnd { unsynced: false }));
    // One that is no longer a member waits where it is.
    assert!(matches!(partition.slice(25, 1000, Reader::Replica), SliceAt::AtEnd { .. }));
    disk.open_gate();
    outcomes.wait(1).unwrap();
    assert_eq!((seen(&partition, Reader::Consumer), seen(&partition, Reader::Replica)), (25, 25));
}

/// What members wait for is written by whoever appends it, unless the committer is at work and takes it anyway.
#[test]
fn the_first_append_that_members_wait_for_is_its_producers_to_write() {
    let (_setup, disk, _store, partition) = faulty_partition(0, 1 << 20);
    let outcomes = Arc::new(Outcomes::default());
    let append = |ticket| {
        let body = bytes::Bytes::from_static(b"12345");
        partition.append_queued(0, metaq_wire::checksum(&body), body, Ack::new(outcomes.clone(), ticket))
    };
    assert!(!append(1), "nobody waits for it but its producer");
    outcomes.wait(1).unwrap();
    partition.hold();
    disk.shut_gate();
    assert!(append(2));
    partition.write_queued();
    disk.wait_for_a_sync();
    assert_eq!(partition.positions().offered, at(50));
    assert!(!append(3));
    disk.open_gate();
    partition.confirm(at(75));
    outcomes.wait(2).unwrap();
    outcomes.wait(3).unwrap();
}

#[test]
fn a_waiting_member_is_woken_before_the_sync() {
    let (_setup, disk, _store, partition) = faulty_partition(0, 1 << 20);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    disk.shut_gate();
    runtime.block_on(async {
        let waits = |reader| {
            let partition = partition.clone();
            tokio::spawn(async move { partition.readable_beyond(at(0), reader).await })
        };
        let (member, replica) = (waits(Reader::Member), waits(Reader::Replica));
        tokio::task::yield_now().await;
        append(&partition, b"12345", Ack::new(Arc::new(Outcomes::default()), 1));
        tokio::time::timeout(Duration::from_secs(20), member).await.unwrap().unwrap();
        assert!(!replica.is_finished());
        disk.open_gate();
        tokio::time::timeout(Duration::from_secs(20), replica).await.unwrap().unwrap();
    });
}

/// At os level a put is answered from the page cache: given to a member before it is synced, it could be acknowledged and
/// lost here.
#[test]
fn what_is_answered_without_a_sync_is_offered_after_one() {
    let setup = Setup::new(1000, 1 << 20);
    let store = setup.open();
    let partition = setup.partition(&store, "test-0");
    partition.limit(at(0));
    put(&partition, b"12345").unwrap();
    assert_eq!((partition.positions().offered, seen(&partition, Reader::Member)), (at(0), 0));
    assert!(matches!(partition.slice(0, 1000, Reader::Member), SliceAt::AtEnd { unsynced: true }));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let reads = partition.readable_beyond(at(0), Reader::Member);
    runtime.block_on(async { tokio::time::timeout(Duration::from_secs(20), reads).await.unwrap() });
    assert_eq!((partition.positions().durable, seen(&partition, Reader::Member)), (at(25), 25));
}

/// The rule changes while bytes wait for a sync that were answered without one.
#[test]
fn nothing_is_offered_behind_what_was_answered_without_a_sync() {
    let (setup, disk, _store, partition) = faulty_partition(1000, 1 << 20);
    partition.limit(at(0));
    put(&partition, b"12345").unwrap();
    partition.set_rules(&with_threshold(&setup, 0));
    disk.shut_gate();
    let outcomes = Arc::new(Outcomes::default());
    append(&partition, b"12345", Ack::new(outcomes.clone(), 1));
    disk.wait_for_a_sync();
    assert_eq!((partition.positions().written, partition.positions().offered), (at(50), at(0)));
    disk.open_gate();
    outcomes.wait(1).unwrap();
    // And back: what still waits for its sync was promised one, and is offered.
    disk.shut_gate();
    append(&partition, b"12345", Ack::new(outcomes.clone(), 2));
    disk.wait_for_a_sync();
    partition.set_rules(&with_threshold(&setup, 1000));
    append(&partition, b"12345", Ack::new(outcomes.clone(), 3));
    wait_written(&partition, at(100));
    assert_eq!(partition.positions().offered, at(100));
    assert!(outcomes.now(2).is_none() && outcomes.now(3).is_none());
    disk.open_gate();
    outcomes.wait(2).unwrap();
    outcomes.wait(3).unwrap();
    put(&partition, b"12345").unwrap();
    assert_eq!(partition.positions().offered, at(100));
}

/// However much of a record got into the file before the write failed: no member ever sees it.
#[test]
fn a_failed_write_is_never_offered() {
    for left in 0..45 {
        let (_setup, disk, _store, partition) = faulty_partition(0, 1 << 20);
        put(&partition, b"before").unwrap();
        disk.add(Fault::FullAfter(left));
        // The sync of the cut: the rest of the write is in the file, or just gone.
        disk.shut_gate();
        let outcomes = Arc::new(Outcomes::default());
        append(&partition, &[7; 25], Ack::new(outcomes.clone(), 1));
        disk.wait_for_a_sync();
        assert_eq!((partition.positions().offered, seen(&partition, Reader::Member)), (at(26), 26));
        disk.open_gate();
        assert!(matches!(outcomes.wait(1), Err(AppendError::Refused(_))));
        disk.heal();
        assert_eq!(put(&partition, b"after").unwrap().offset, at(26));
        assert_eq!(seen(&partition, Reader::Member), 51);
    }
}

/// After a failed sync the file may hold anything beyond what was durable: members read no further, and one that is
/// there already is told to wait, not that it is elsewhere.
#[test]
fn a_poisoned_partition_offers_what_is_durable() {
    let (_setup, disk, _store, partition) = faulty_partition(0, 1 << 20);
    put(&partition, b"before").unwrap();
    disk.shut_gate();
    let outcomes = Arc::new(Outcomes::default());
    append(&partition, b"12345", Ack::new(outcomes.clone(), 1));
    disk.wait_for_a_sync();
    assert_eq!(seen(&partition, Reader::Member), 51);
    disk.add(Fault::SyncError);
    disk.open_gate();
    assert!(matches!(outcomes.wait(1), Err(AppendError::Unknown(_))));
    assert!(matches!(partition.health(), Health::Poisoned(_)));
    assert_eq!((seen(&partition, Reader::Member), partition.end_for(Reader::Member)), (26, at(26)));
    assert!(matches!(partition.slice(51, 1000, Reader::Member), SliceAt::AtEnd { .. }));
    partition.confirm(at(51));
    assert_eq!(seen(&partition, Reader::Consumer), 26);
}

/// Power is lost while a member has read ahead: the log opens at its own durable end, and goes on from there.
#[test]
fn after_a_loss_of_power_the_log_may_end_before_what_was_offered() {
    let (setup, disk, store, partition) = faulty_partition(0, 1 << 20);
    put(&partition, b"before").unwrap();
    disk.shut_gate();
    append(&partition, b"12345", Ack::new(Arc::new(Outcomes::default()), 1));
    disk.wait_for_a_sync();
    assert_eq!(seen(&partition, Reader::Member), 51);
    disk.add(Fault::Dead);
    disk.power_failure(&setup.path());
    disk.open_gate();
    drop((partition, store));
    let store = setup.open();
    let partition = store.get("test", 0).unwrap();
    let positions = partition.positions();
    assert_eq!((positions.durable, positions.offered, positions.written), (at(26), at(26), at(26)));
    assert!(matches!(partition.slice(51, 1000, Reader::Member), SliceAt::Beyond { end } if end == at(26)));
}
