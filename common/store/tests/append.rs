mod support;

use metaq_store::{Ack, Flush, FlushCause, PartitionRules, Reader, SliceAt};
use metaq_types::Offset;
use std::sync::Arc;
use std::time::{Duration, Instant};
use support::*;

#[test]
fn a_put_is_durable_when_group_commit_answers() {
    let setup = Setup::new(0, 1 << 20);
    let store = setup.open();
    let partition = setup.partition(&store, "test-0");
    let first = put(&partition, b"hello").unwrap();
    let second = put(&partition, b"").unwrap();
    assert_eq!((first.offset.get(), first.bytes, second.offset.get(), second.bytes), (0, 25, 25, 20));
    assert!(second.id > first.id && first.id.0 > 0);
    let positions = partition.positions();
    assert_eq!((positions.durable, positions.readable, positions.written), (at(45), at(45), at(45)));
    let messages = read_from(&partition, 0, 1 << 20);
    assert_eq!(bodies(&messages), [b"hello".to_vec(), b"".to_vec()]);
    assert_eq!(messages[1].header.id, second.id);
    store.close().unwrap();
}

#[test]
fn an_os_level_put_is_answered_before_append_returns_and_readable_after_a_sync() {
    let setup = Setup::new(1000, 1 << 20);
    let store = setup.open();
    let partition = setup.partition(&store, "test-0");
    let outcomes = Arc::new(Outcomes::default());
    append(&partition, b"x", Ack::new(outcomes.clone(), 1));
    assert_eq!(outcomes.now(1).unwrap().unwrap().offset, Offset::ZERO);
    assert!(matches!(partition.slice(0, 1000, Reader::Consumer), SliceAt::AtEnd { unsynced: true }));
    partition.request_sync();
    wait_synced(&partition);
    assert_eq!(bodies(&read_from(&partition, 0, 1000)), [b"x".to_vec()]);
    assert!(matches!(partition.slice(21, 1000, Reader::Consumer), SliceAt::AtEnd { unsynced: false }));
}

/// F33: what a tailing reader sees is what it may read on from; nothing twice, never "beyond the end".
#[test]
fn a_tailing_reader_sees_each_message_once() {
    let setup = Setup::new(1000, 4096);
    let store = setup.open();
    let partition = setup.partition(&store, "test-0");
    let (mut offset, mut seen) = (0i64, Vec::new());
    for number in 0..500u32 {
        put(&partition, &number.to_be_bytes()).unwrap();
        loop {
            match partition.slice(offset, 1 << 20, Reader::Consumer) {
                SliceAt::Bytes(slice) => {
                    seen.extend(read_slice(&slice));
                    offset += i64::from(slice.len());
                }
                SliceAt::AtEnd { unsynced: true } => {
                    partition.request_sync();
                    wait_synced(&partition);
                }
                SliceAt::AtEnd { unsynced: false } => break,
                _ => panic!("a tailing reader is only ever at the end"),
            }
        }
    }
    let numbers: Vec<_> = (0..500u32).map(|number| number.to_be_bytes().to_vec()).collect();
    assert_eq!(bodies(&seen), numbers);
    assert!(store.metrics().flushes(FlushCause::Reader) >= 1);
}

#[test]
fn concurrent_puts_share_syncs_and_keep_their_order() {
    const THREADS: u64 = 16;
    const EACH: u64 = 40;
    let setup = Setup::new(0, 64 * 1024);
    let store = setup.open();
    let partition = setup.partition(&store, "test-0");
    let outcomes = Arc::new(Outcomes::default());
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (partition, outcomes) = (&partition, &outcomes);
            scope.spawn(move || {
                for number in 0..EACH {
                    let ticket = thread * EACH + number;
                    append(partition, &ticket.to_be_bytes(), Ack::new(outcomes.clone(), ticket));
                    if number % 4 == 3 {
                        outcomes.wait(ticket).unwrap();
                    }
                }
            });
        }
    });
    let mut stored: Vec<_> = (0..THREADS * EACH).map(|ticket| (outcomes.wait(ticket).unwrap(), ticket)).collect();
    for thread in stored.chunks(EACH as usize) {
        assert!(thread.is_sorted_by(|a, b| a.0.offset < b.0.offset && a.0.id < b.0.id), "order of one thread");
    }
    stored.sort_by_key(|(appended, _)| appended.offset);
    for (place, (appended, _)) in stored.iter().enumerate() {
        assert_eq!(appended.offset.get(), place as u64 * 28);
    }
    assert!(stored.is_sorted_by(|a, b| a.0.id < b.0.id), "ids grow along the log");
    let read: Vec<_> = read_from(&partition, 0, 1000).into_iter().map(|message| message.body).collect();
    assert_eq!(read, stored.iter().map(|(_, ticket)| ticket.to_be_bytes().to_vec()).collect::<Vec<_>>());
    let syncs = store.metrics().flushes(FlushCause::Commit);
    assert!(syncs < THREADS * EACH, "{syncs} syncs for {} puts", THREADS * EACH);
}

#[test]
fn concurrent_os_level_puts_are_all_answered() {
    let setup = Setup::new(100, 4096);
    let store = setup.open();
    let partition = setup.partition(&store, "test-0");
    let outcomes = Arc::new(Outcomes::default());
    std::thread::scope(|scope| {
        for thread in 0..8u64 {
            let (partition, outcomes) = (&partition, &outcomes);
            scope.spawn(move || {
                for number in 0..500 {
                    let ticket = thread * 500 + number;
                    append(partition, &[7; 40], Ack::new(outcomes.clone(), ticket));
                }
            });
        }
    });
    let mut offsets: Vec<_> = (0..4000).map(|ticket| outcomes.wait(ticket).unwrap().offset.get()).collect();
    offsets.sort_unstable();
    assert_eq!(offsets, (0..4000).map(|place| place * 60).collect::<Vec<_>>());
    store.close().unwrap();
    assert_eq!(partition.positions().durable, at(240_000));
    assert_eq!(read_from(&partition, 0, 100).len(), 4000);
}

#[test]
fn a_segment_is_exceeded_by_at_most_one_record_and_slices_do_not_cross() {
    let setup = Setup::new(0, 1024);
    let store = setup.open();
    let partition = setup.partition(&store, "test-0");
    let outcomes = Arc::new(Outcomes::default());
    for ticket in 0..40 {
        append(&partition, &[1; 80], Ack::new(outcomes.clone(), ticket));
    }
    outcomes.wait(39).unwrap();
    // Records of 100 bytes: the eleventh is the first to reach 1024.
    for base in [0, 1100, 2200] {
        assert_eq!(std::fs::metadata(setup.segment("test-0", base)).unwrap().len(), 1100);
    }
    assert_eq!((partition.segment_count(), partition.active_segment()), (4, at(3300)));
    let SliceAt::Bytes(slice) = partition.slice(1000, 1 << 20, Reader::Consumer) else { panic!("bytes are there") };
    assert_eq!((slice.len(), slice.segment(), slice.position(), slice.end()), (100, at(0), 1000, at(4000)));
    assert_eq!(partition.nearest(1000), at(0));
    assert_eq!(partition.nearest(2200), at(2200));
    assert_eq!(partition.nearest(4000), at(4000));
    assert_eq!(partition.nearest(i64::MAX), at(4000));
    assert_eq!(partition.nearest(-1), at(0));
    assert!(matches!(partition.slice(-1, 10, Reader::Consumer), SliceAt::Trimmed { oldest } if oldest == at(0)));
    assert!(matches!(partition.slice(i64::MAX, 10, Reader::Consumer), SliceAt::Beyond { end } if end == at(4000)));
}

#[test]
fn a_slice_ends_on_a_boundary_and_holds_a_whole_record() {
    let setup = Setup::new(0, 1 << 30);
    let store = setup.open();
    let partition = setup.partition(&store, "test-0");
    let outcomes = Arc::new(Outcomes::default());
    let sizes = [10, 3000, 0, 70_000, 1, 40_000, 40_000, 200_000, 5];
    for (ticket, size) in sizes.iter().cycle().take(180).enumerate() {
        append(&partition, &vec![7; *size], Ack::new(outcomes.clone(), ticket as u64));
    }
    outcomes.wait(179).unwrap();
    for reopened in [false, true] {
        if reopened {
            store.close().unwrap();
        }
        let store = reopened.then(|| setup.open());
        let partition = store.as_ref().map_or(partition.clone(), |store| store.get("test", 0).unwrap());
        for bytes_max in [1, 21, 5000, 66_000, 300_000, 1 << 20] {
            let messages = read_from(&partition, 0, bytes_max);
            assert_eq!(messages.len(), 180, "{bytes_max} bytes at a time");
            for message in &messages {
                let SliceAt::Bytes(slice) = partition.slice(message.offset as i64, bytes_max, Reader::Consumer) else {
                    panic!("every message can be read from")
                };
                let whole = 20 + message.body.len() as u32;
                assert!(slice.len() <= bytes_max || slice.len() == whole);
            }
        }
    }
}

#[test]
fn a_start_that_is_no_boundary_is_cut_where_asked() {
    let setup = Setup::new(0, 1 << 20);
    let store = setup.open();
    let partition = setup.partition(&store, "test-0");
    for _ in 0..100 {
        put(&partition, &[0xff; 100]).unwrap();
    }
    for from in [1, 50, 119, 6001] {
        let SliceAt::Bytes(slice) = partition.slice(from, 300, Reader::Consumer) else { panic!("bytes are there") };
        assert_eq!((slice.start().wire(), slice.len()), (from, 300));
    }
    let SliceAt::Bytes(slice) = partition.slice(120, 300, Reader::Consumer) else { panic!("bytes are there") };
    assert_eq!(slice.len(), 240);
}

#[test]
fn the_threshold_and_the_interval_sync_without_anybody_asking() {
    let setup = Setup::new(3, 1 << 20);
    let store = setup.open();
    let partition = setup.partition(&store, "test-0");
    // More than half of the threshold; from the fourth on an answer would wait for the sync, and be its cause.
    for _ in 0..2 {
        put(&partition, b"x").unwrap();
    }
    wait_synced(&partition);
    assert_eq!(store.metrics().flushes(FlushCause::Threshold), 1);
    let interval = Duration::from_millis(5);
    let rules = PartitionRules { flush: Flush { threshold: 1000, interval }, ..setup.rules() };
    let quick = store.get_or_create(&id("quick-0"), &rules, Offset::ZERO).unwrap();
    for _ in 0..3 {
        put(&quick, b"x").unwrap();
        wait_synced(&quick);
    }
    assert!(store.metrics().flushes(FlushCause::Interval) >= 1);
}

#[test]
fn a_change_of_the_flush_rule_answers_everybody() {
    let setup = Setup::new(0, 4096);
    let store = setup.open();
    let partition = setup.partition(&store, "test-0");
    let outcomes = Arc::new(Outcomes::default());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 0..300 {
                partition.set_rules(&rules(&setup.path(), round % 2, 4096));
                std::thread::yield_now();
            }
        });
        for thread in 0..4u64 {
            let (partition, outcomes) = (&partition, &outcomes);
            scope.spawn(move || {
                for number in 0..300 {
                    append(partition, b"abc", Ack::new(outcomes.clone(), thread * 300 + number));
                }
            });
        }
    });
    for ticket in 0..1200 {
        outcomes.wait(ticket).unwrap();
    }
}

#[test]
fn a_replica_takes_only_its_end_and_rolls_where_told() {
    let setup = Setup::new(0, 300);
    let store = setup.open();
    let master = setup.partition(&store, "test-0");
    for number in 0..12u8 {
        put(&master, &[number; 80]).unwrap();
    }
    let other = Setup::new(0, 1 << 30);
    let replica_store = other.open();
    let replica = other.partition(&replica_store, "test-0");
    assert!(put_verbatim(&replica, 100, 0, &[0; 20]).unwrap_err().to_string().contains("the log ends at 0"));
    let mut offset = 0;
    while let SliceAt::Bytes(slice) = master.slice(offset, 200, Reader::Replica) {
        let mut bytes = vec![0; slice.len() as usize];
        slice.read_at(0, &mut bytes).unwrap();
        let torn = put_verbatim(&replica, offset as u64, slice.segment().get(), &bytes[..bytes.len() - 1]);
        assert!(torn.unwrap_err().to_string().contains("whole records"));
        let appended = put_verbatim(&replica, offset as u64, slice.segment().get(), &bytes).unwrap();
        assert_eq!((appended.offset, appended.bytes), (slice.start(), slice.len()));
        assert!(put_verbatim(&replica, offset as u64, slice.segment().get(), &bytes).is_err(), "the same range twice");
        offset += i64::from(slice.len());
    }
    assert_eq!(replica.record_count(), 12);
    for base in [0, 300, 600, 900] {
        let same = [&setup, &other].map(|setup| std::fs::read(setup.segment("test-0", base)).unwrap());
        assert_eq!(same[0], same[1], "segment {base}");
    }
    // Promoted, its ids go on above the master's.
    let last = read_from(&master, 1100, 1000)[0].header.id;
    assert!(put(&replica, b"promoted").unwrap().id > last);
}

#[test]
fn after_close_everything_is_refused_and_reading_goes_on() {
    let setup = Setup::new(10, 1 << 20);
    let store = setup.open();
    let partition = setup.partition(&store, "test-0");
    put(&partition, b"one").unwrap();
    store.close().unwrap();
    store.close().unwrap();
    assert_eq!(put(&partition, b"two").unwrap_err().to_string(), "the store is closing");
    assert!(store.get_or_create(&id("new-0"), &setup.rules(), Offset::ZERO).is_err());
    assert_eq!(bodies(&read_from(&partition, 0, 1000)), [b"one".to_vec()]);
}

#[tokio::test]
async fn what_is_written_while_a_reader_waits_is_synced_soon() {
    let setup = Setup::new(1000, 1 << 20);
    let store = setup.open();
    let partition = setup.partition(&store, "test-0");
    for number in 0..50 {
        let end = partition.positions().readable;
        let waiting = tokio::spawn({
            let partition = partition.clone();
            async move { partition.readable_beyond(end, Reader::Consumer).await }
        });
        tokio::task::yield_now().await;
        append(&partition, b"x", Ack::new(Arc::new(Outcomes::default()), number));
        tokio::time::timeout(DEADLINE, waiting).await.unwrap().unwrap();
    }
}

/// An append that finds the writer taken by a sync is left to it, and must not be forgotten there.
#[test]
fn appends_beside_syncs_are_all_answered() {
    let setup = Setup::new(1000, 1 << 20);
    let store = setup.open();
    let partition = setup.partition(&store, "test-0");
    let until = Instant::now() + Duration::from_millis(500);
    while Instant::now() < until {
        put(&partition, b"x").unwrap();
        partition.request_sync();
        put(&partition, b"y").unwrap();
        partition.request_sync();
        wait_synced(&partition);
    }
}
