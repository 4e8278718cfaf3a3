//! Runs of messages that are stored together, entries of a log of our own, and reading it back.
#![expect(clippy::unwrap_used, reason = "the helpers of tests are test code")]

mod support;

use bytes::Bytes;
use metaq_store::{Ack, AppendError, Appended, BatchRecord, Health, Partition, Reader, Refusal, SliceAt, StoreOptions};
use metaq_types::{MessageId, Offset};
use std::fs;
use std::ops::ControlFlow;
use std::sync::Arc;
use support::faulty::{Fault, FaultyDisk};
use support::*;

fn batch(ids: std::ops::Range<i64>, bytes: usize) -> Vec<BatchRecord> {
    let record = |id: i64| {
        let body = Bytes::from(vec![id as u8; bytes]);
        BatchRecord { id: MessageId(id), flag: 0, checksum: metaq_wire::checksum(&body), body }
    };
    ids.map(record).collect()
}

fn put_batch(partition: &Arc<Partition>, records: Vec<BatchRecord>) -> Result<Appended, AppendError> {
    let outcomes = Arc::new(Outcomes::default());
    partition.append_batch(records, Ack::new(outcomes.clone(), 0));
    outcomes.wait(0)
}

fn walk(partition: &Partition, from: u64) -> (Vec<(u64, i64)>, Vec<std::ops::Range<Offset>>) {
    let mut seen = Vec::new();
    let damage = partition.walk(at(from), |offset, header, body| {
        assert_eq!(header.length as usize, body.len());
        seen.push((offset.get(), header.id.0));
        ControlFlow::Continue(())
    });
    (seen, damage.unwrap())
}

#[test]
fn a_batch_is_one_run_of_one_segment_with_its_own_ids() {
    for threshold in [0, 1000] {
        let setup = Setup::new(threshold, 100);
        let store = setup.open();
        let partition = setup.partition(&store, "test-0");
        put(&partition, b"before").unwrap();
        let appended = put_batch(&partition, batch(1..6, 30)).unwrap();
        assert_eq!((appended.offset, appended.bytes, appended.id), (at(26), 250, MessageId(5)));
        assert_eq!(partition.segment_count(), 1);
        let after = put(&partition, b"after").unwrap();
        assert_eq!(after.offset, at(276));
        assert_eq!(partition.active_segment(), at(276));
        assert_eq!(walk(&partition, 26).0[..5], [(26, 1), (76, 2), (126, 3), (176, 4), (226, 5)]);
        let (header, body) = partition.read_record(at(126), 50).unwrap();
        assert_eq!((header.id, body), (MessageId(3), vec![3; 30]));
        assert!(partition.read_record(at(127), 50).is_err());
        partition.request_sync();
        wait_synced(&partition);
        assert_eq!(read_from(&partition, 0, 60).len(), 7);
    }
}

#[test]
fn a_batch_of_more_parts_than_one_write_takes_is_whole() {
    let setup = Setup::new(0, 1 << 20);
    let store = setup.open();
    let partition = setup.partition(&store, "test-0");
    put_batch(&partition, batch(1..2001, 3)).unwrap();
    assert_eq!(read_from(&partition, 0, 4000).len(), 2000);
    let nothing = put_batch(&partition, Vec::new());
    assert!(matches!(nothing, Err(AppendError::Refused(Refusal::Malformed(_)))));
}

/// However much still fitted on the disk, nothing of a batch stays, and the next try is whole.
#[test]
fn a_full_disk_refuses_a_batch_as_a_whole() {
    for left in (0..250).step_by(7) {
        let (setup, disk, _store, partition) = faulty_partition(0, 1 << 20);
        put(&partition, b"before").unwrap();
        disk.add(Fault::FullAfter(left));
        let refused = put_batch(&partition, batch(1..6, 30));
        assert!(matches!(refused, Err(AppendError::Refused(Refusal::DiskFull(_)))), "{refused:?}");
        assert_eq!(fs::metadata(setup.segment("test-0", 0)).unwrap().len(), 26);
        disk.heal();
        assert_eq!(put_batch(&partition, batch(1..6, 30)).unwrap().offset, at(26));
    }
}

/// In a log whose appends wait for nothing, an entry may ask for a sync of its own.
#[test]
fn an_entry_waits_for_a_sync_only_if_it_asks_for_one() {
    let (_setup, disk, _store, partition) = faulty_partition(u32::MAX, 1 << 20);
    let outcomes = Arc::new(Outcomes::default());
    let entry = |ticket: u64, synced| {
        partition.append_entry(Bytes::from_static(b"entry"), synced, Ack::new(outcomes.clone(), ticket));
    };
    entry(0, false);
    assert!(outcomes.now(0).unwrap().is_ok());
    assert_eq!(partition.positions().durable, at(0));
    entry(1, true);
    outcomes.wait(1).unwrap();
    assert!(partition.positions().durable >= at(50));
    disk.add(Fault::SyncError);
    entry(2, true);
    assert!(matches!(outcomes.wait(2), Err(AppendError::Unknown(_))));
    assert!(matches!(partition.health(), Health::Poisoned(_)));
    entry(3, false);
    assert!(matches!(outcomes.wait(3), Err(AppendError::Refused(Refusal::Poisoned(_)))));
}

#[test]
fn a_walk_is_led_across_damage_and_segments() {
    let setup = Setup::new(0, 60);
    let store = setup.open();
    let partition = setup.partition(&store, "test-0");
    for body in 0..9u8 {
        put(&partition, &[body; 10]).unwrap();
    }
    let (all, damage) = walk(&partition, 0);
    assert_eq!((all.len(), damage.len()), (9, 0));
    let path = setup.segment("test-0", 0);
    let mut bytes = fs::read(&path).unwrap();
    bytes[30 + 25] ^= 1;
    fs::write(&path, bytes).unwrap();
    let (rest, damage) = walk(&partition, 0);
    assert_eq!(rest.len(), 8);
    assert_eq!(damage, [at(30)..at(60)]);
    assert_eq!(walk(&partition, 150).0.len(), 4);
    assert_eq!(walk(&partition, 10_000).0.len(), 0);
}

#[test]
fn the_journal_is_no_partition_of_a_topic() {
    let setup = Setup::new(0, 1 << 20);
    let journal_path = setup.directory.path().join("log/.metaq/journal");
    let options = || StoreOptions { journal_path: Some(journal_path.clone()), ..setup.options() };
    let store = metaq_store::Store::open(options()).unwrap();
    setup.partition(&store, "test-0");
    let outcomes = Arc::new(Outcomes::default());
    store.journal().unwrap().append_entry(Bytes::from_static(b"entry"), true, Ack::new(outcomes.clone(), 0));
    outcomes.wait(0).unwrap();
    assert!(journal_path.join("$journal-0/00000000000000000000.meta").exists());
    assert_eq!((store.partitions().len(), store.logs().len()), (1, 2));
    assert!(store.get("$journal", 0).is_none());
    store.close().unwrap();
    let store = metaq_store::Store::open(options()).unwrap();
    assert_eq!(store.journal().unwrap().positions().durable, at(25));
    assert!(store.recovery_report().clean);
}

/// Its messages are told as stored before they can be read: whoever asks for them meanwhile is to wait.
#[test]
fn a_logged_batch_is_answered_when_it_is_written() {
    for threshold in [0, 1000] {
        let setup = Setup::new(threshold, 1000);
        let disk = Arc::new(FaultyDisk::default());
        let store = setup.open_on(disk.clone());
        let partition = setup.partition(&store, "test-0");
        let before = put(&partition, b"before").unwrap();
        partition.request_sync();
        wait_synced(&partition);
        let start = before.offset + u64::from(before.bytes);
        disk.shut_gate();
        let outcomes = Arc::new(Outcomes::default());
        partition.append_logged(batch(1..3, 30), Ack::new(outcomes.clone(), 0));
        // By us, unless the committer still holds the writer; no sync ends meanwhile.
        assert_eq!(outcomes.wait(0).unwrap().offset, start);
        assert_eq!(partition.positions().durable, start);
        assert!(matches!(partition.slice(start.wire(), 1000, Reader::Consumer), SliceAt::AtEnd { unsynced: true }));
        assert!(partition.awaits_told());
        disk.open_gate();
        match threshold {
            0 => partition.sync_logged(),
            _ => partition.request_sync(),
        }
        tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(partition.told_is_durable());
        assert!(!partition.awaits_told());
        assert_eq!(read_from(&partition, 0, 1000).len(), 3);
    }
}

/// Where answers are given before the sync, one with which more than the threshold could be lost has it synced: nobody else
/// is sure to.
#[test]
fn a_logged_batch_beyond_the_threshold_is_synced_unasked() {
    let setup = Setup::new(4, 10_000);
    let disk = Arc::new(FaultyDisk::default());
    let store = setup.open_on(disk.clone());
    let partition = setup.partition(&store, "test-0");
    disk.shut_gate();
    for _ in 0..4 {
        put(&partition, b"at risk").unwrap();
    }
    // It has the four, and not what comes now.
    disk.wait_for_a_sync();
    let outcomes = Arc::new(Outcomes::default());
    partition.append_logged(batch(1..3, 30), Ack::new(outcomes.clone(), 0));
    outcomes.wait(0).unwrap();
    partition.sync_logged();
    disk.open_gate();
    wait_synced(&partition);
}

/// What waits for a sync behind a logged batch is answered after it, and takes the batch along.
#[test]
fn a_put_behind_a_logged_batch_has_both_synced() {
    let setup = Setup::new(0, 1000);
    let store = setup.open();
    let partition = setup.partition(&store, "test-0");
    let outcomes = Arc::new(Outcomes::default());
    partition.append_logged(batch(1..3, 30), Ack::new(outcomes.clone(), 0));
    let after = put(&partition, b"after").unwrap();
    assert_eq!(partition.positions().durable, after.offset + u64::from(after.bytes));
}
