//! A disk that fails in every way: each ends recovered or poisoned, never in silence.

#![expect(clippy::unwrap_used, reason = "the helpers of tests are test code")]

mod support;

use metaq_store::{Ack, AppendError, Appended, FlushCause, Health, Refusal, Store, StoreOptions};
use std::fs;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use support::faulty::{Fault, FaultyDisk};
use support::*;

struct Case {
    setup: Setup,
    disk: Arc<FaultyDisk>,
    store: Store,
}

fn case(threshold: u32, segment_bytes_max: u32) -> Case {
    let setup = Setup::new(threshold, segment_bytes_max);
    let disk = Arc::new(FaultyDisk::default());
    let store = setup.open_on(disk.clone());
    Case { setup, disk, store }
}

fn refusal(outcome: Result<Appended, AppendError>) -> Refusal {
    match outcome {
        Err(AppendError::Refused(refusal)) => refusal,
        other => panic!("expected a refusal, got {other:?}"),
    }
}

#[test]
fn a_short_write_is_continued() {
    for threshold in [0, 10] {
        let Case { setup, disk, store } = case(threshold, 1 << 20);
        let partition = setup.partition(&store, "test-0");
        for body in [&b"first"[..], b"second", b""] {
            disk.add(Fault::ShortWrite);
            put(&partition, body).unwrap();
        }
        store.close().unwrap();
        assert_eq!(bodies(&read_from(&partition, 0, 1000)), [&b"first"[..], b"second", b""]);
    }
}

/// F24: however much of a record still fitted, nothing of it stays, and the first put after space returns succeeds.
#[test]
fn a_full_disk_refuses_and_recovers() {
    for threshold in [0, 1000] {
        for left in 0..45 {
            let Case { setup, disk, store } = case(threshold, 1 << 20);
            let partition = setup.partition(&store, "test-0");
            put(&partition, b"before").unwrap();
            disk.add(Fault::FullAfter(left));
            let syncs = disk.syncs();
            let refused = refusal(put(&partition, &[7; 25]));
            assert!(disk.syncs() > syncs, "the cut is durable before the refusal, or the rest could come back");
            assert!(
                matches!(refused, Refusal::DiskFull(_)) && refused.to_string().starts_with("disk full"),
                "{refused}"
            );
            assert_eq!(fs::metadata(setup.segment("test-0", 0)).unwrap().len(), 26, "{left} bytes left");
            assert_eq!(partition.health(), Health::Ok);
            let [(full, reason)] = &store.full()[..] else { panic!("{:?}", store.full()) };
            assert!(full == partition.id() && reason.contains("00000000000000000000.meta"), "{full}: {reason}");
            disk.heal();
            assert_eq!(put(&partition, b"after").unwrap().offset, at(26));
            assert_eq!(store.full(), [], "a put that was stored had room");
            drop(store);
            let store = setup.open();
            assert!(store.recovery_report().repaired.is_empty());
            let read = bodies(&read_from(&store.get("test", 0).unwrap(), 0, 1000));
            assert_eq!(read, [&b"before"[..], b"after"]);
        }
    }
}

#[test]
fn a_full_disk_at_a_roll_refuses_and_recovers() {
    let Case { setup, disk, store } = case(0, 30);
    let partition = setup.partition(&store, "test-0");
    put(&partition, &[1; 20]).unwrap();
    disk.add(Fault::FullAfter(0));
    assert!(matches!(refusal(put(&partition, b"x")), Refusal::DiskFull(_)));
    assert_eq!((store.full().len(), store.metrics().disk_full.load(Ordering::Relaxed)), (1, 1));
    disk.heal();
    assert_eq!(put(&partition, b"x").unwrap().offset, at(40));
    assert_eq!(store.full(), []);
    assert_eq!(partition.active_segment(), at(40));
}

/// What keeps a segment from being begun is told as a full disk is, and over when it is gone: a broker that refused every
/// message for it was ready, and its log silent.
#[test]
fn what_is_in_the_way_of_a_roll_refuses_and_is_told() {
    let Case { setup, store, .. } = case(0, 30);
    let partition = setup.partition(&store, "test-0");
    put(&partition, &[1; 20]).unwrap();
    let in_the_way = setup.segment("test-0", 40);
    fs::create_dir(&in_the_way).unwrap();
    assert!(matches!(refusal(put(&partition, b"x")), Refusal::Unavailable(_)));
    let told = store.refusing();
    assert!(told.len() == 1 && told[0].0 == id("test-0") && told[0].1.contains("cannot create"), "{told:?}");
    assert_eq!(store.full(), []);
    fs::remove_dir(&in_the_way).unwrap();
    assert_eq!(put(&partition, b"x").unwrap().offset, at(40));
    assert_eq!(store.refusing(), []);
    // So is what is in the way of a new partition.
    let rules = setup.rules();
    fs::write(setup.path().join("test-1"), "").unwrap();
    assert!(store.get_or_create(&id("test-1"), &rules, at(0)).is_err());
    assert_eq!(store.refusing().len(), 1);
}

#[test]
fn a_rest_that_cannot_be_cut_off_poisons() {
    let Case { setup, disk, store } = case(0, 1 << 20);
    let partition = setup.partition(&store, "test-0");
    put(&partition, b"before").unwrap();
    disk.add(Fault::FullAfter(10));
    disk.add(Fault::SetLenError);
    assert!(matches!(put(&partition, b"torn"), Err(AppendError::Unknown(_))));
    assert!(matches!(partition.health(), Health::Poisoned(_)));
    disk.heal();
    assert!(matches!(refusal(put(&partition, b"more")), Refusal::Poisoned(_)));
    assert_eq!(bodies(&read_from(&partition, 0, 1000)), [b"before"]);
    store.close().unwrap_err();
    let store = setup.open();
    assert_eq!(store.recovery_report().repaired.len(), 1);
    assert_eq!(put(&store.get("test", 0).unwrap(), b"again").unwrap().offset, at(26));
}

#[test]
fn a_write_error_poisons_and_leaves_nothing() {
    for threshold in [0, 1000] {
        let Case { setup, disk, store } = case(threshold, 1 << 20);
        let (partition, other) = (setup.partition(&store, "test-0"), setup.partition(&store, "other-0"));
        put(&partition, b"before").unwrap();
        disk.add(Fault::WriteError);
        assert!(matches!(refusal(put(&partition, &[1; 100])), Refusal::Poisoned(_)));
        assert!(matches!(refusal(put(&partition, b"more")), Refusal::Poisoned(_)));
        assert_eq!(fs::metadata(setup.segment("test-0", 0)).unwrap().len(), 26);
        put(&other, b"the others go on").unwrap();
        assert_eq!(store.metrics().poisoned.load(std::sync::atomic::Ordering::Relaxed), 1);
    }
}

/// F37: a failed sync is final. Nothing it should have covered is ever answered, nor any later append.
#[test]
fn a_failed_sync_poisons_and_is_not_repeated() {
    let Case { setup, disk, store } = case(0, 1 << 20);
    let partition = setup.partition(&store, "test-0");
    put(&partition, b"before").unwrap();
    disk.add(Fault::SyncError);
    let syncs = disk.syncs();
    let Err(AppendError::Unknown(reason)) = put(&partition, b"lost?") else { panic!("its fate is unknown") };
    assert!(reason.contains("injected sync error"), "{reason}");
    assert!(matches!(refusal(put(&partition, b"more")), Refusal::Poisoned(_)));
    partition.request_sync();
    assert!(store.close().is_err());
    assert_eq!(partition.positions().readable, at(26));
    assert_eq!(disk.syncs() - syncs, 2, "the marks of the orderly stop alone were synced");
    assert!(!setup.open().recovery_report().repaired.iter().any(|repair| repair.cut_bytes > 0));
}

#[test]
fn a_failed_sync_of_acknowledged_bytes_shows_no_more_than_before() {
    let Case { setup, disk, store } = case(1000, 1 << 20);
    let partition = setup.partition(&store, "test-0");
    put(&partition, b"in the page cache").unwrap();
    disk.add(Fault::SyncError);
    partition.request_sync();
    let until = std::time::Instant::now() + DEADLINE;
    while partition.health() == Health::Ok {
        assert!(std::time::Instant::now() < until, "the sync was not tried within the deadline");
        std::thread::yield_now();
    }
    assert!(matches!(refusal(put(&partition, b"more")), Refusal::Poisoned(_)));
    assert_eq!(partition.positions().readable, at(0));
}

#[test]
fn a_failed_sync_at_a_roll_poisons() {
    let Case { setup, disk, store } = case(1000, 30);
    let partition = setup.partition(&store, "test-0");
    put(&partition, &[1; 20]).unwrap();
    disk.add(Fault::SyncError);
    assert!(matches!(refusal(put(&partition, b"x")), Refusal::Poisoned(_)));
    assert_eq!(partition.segment_count(), 1);
    assert_eq!(store.metrics().flushes(FlushCause::Roll), 0);
}

/// The process dies between any two changes, and the power fails with it: what group commit answered is there, what was
/// refused is not, and what is there is whole and in order.
#[test]
fn a_crash_between_any_two_changes_keeps_what_was_answered() {
    let mut done = false;
    let mut changes = 0;
    while !done {
        let setup = Setup::new(0, 200);
        let disk = Arc::new(FaultyDisk::default());
        disk.die_after(changes);
        let outcomes = Arc::new(Outcomes::default());
        let mut highest_id = 0;
        let mut answered = Vec::new();
        if let Ok(store) = Store::open(StoreOptions { disk: disk.clone(), ..setup.options() }) {
            let rules = setup.rules();
            if let Ok(partition) = store.get_or_create(&id("test-0"), &rules, at(0)) {
                for ticket in 0..24u64 {
                    let body = vec![ticket as u8; 30 + ticket as usize];
                    append(&partition, &body, Ack::new(outcomes.clone(), ticket));
                    if ticket % 3 == 2 {
                        let _ = outcomes.wait(ticket);
                    }
                }
                for ticket in 0..24 {
                    let outcome = outcomes.wait(ticket);
                    highest_id = outcome.as_ref().map_or(highest_id, |appended| appended.id.0);
                    answered.push(outcome);
                }
            }
            done = store.close().is_ok() && answered.iter().all(Result::is_ok);
        }
        if setup.path().exists() {
            disk.power_failure(&setup.path());
        }
        check_after_crash(&setup, &answered, highest_id, changes);
        changes += 1;
    }
    assert!(changes > 40, "the disk was changed only {changes} times");
}

fn check_after_crash(setup: &Setup, answered: &[Result<Appended, AppendError>], highest_id: i64, changes: u64) {
    let store = setup.open();
    assert!(store.recovery_report().failed.is_empty(), "after {changes}: {:?}", store.recovery_report());
    let partition = setup.partition(&store, "test-0");
    let messages = read_from(&partition, 0, 1000);
    assert!(messages.is_sorted_by(|a, b| a.body[0] < b.body[0]), "after {changes}: in order, none twice");
    for (ticket, outcome) in answered.iter().enumerate() {
        let found = messages.iter().find(|message| message.body[0] == ticket as u8);
        match outcome {
            Ok(appended) => {
                let found = found.unwrap_or_else(|| panic!("after {changes}: {ticket} was answered and is lost"));
                assert_eq!((found.offset, found.header.id), (appended.offset.get(), appended.id));
            }
            Err(AppendError::Refused(refusal)) => {
                assert!(found.is_none(), "after {changes}: {ticket} was refused ({refusal}) and is there")
            }
            Err(_) => {}
        }
    }
    assert!(put(&partition, &[99]).unwrap().id.0 > highest_id, "after {changes}: ids go on");
}

#[test]
fn an_append_that_was_promised_a_sync_gets_it_though_the_rule_changes() {
    let Case { setup, disk, store } = case(0, 1 << 20);
    let partition = setup.partition(&store, "test-0");
    let outcomes = Arc::new(Outcomes::default());
    disk.shut_gate();
    append(&partition, b"durable", Ack::new(outcomes.clone(), 0));
    disk.wait_for_a_sync();
    partition.set_rules(&rules(&setup.path(), 1000, 1 << 20));
    append(&partition, b"behind it", Ack::new(outcomes.clone(), 1));
    assert_eq!((outcomes.now(0), outcomes.now(1)), (None, None));
    disk.open_gate();
    outcomes.wait(0).unwrap();
    outcomes.wait(1).unwrap();
    append(&partition, b"in the page cache", Ack::new(outcomes.clone(), 2));
    outcomes.wait(2).unwrap();
}

/// Appends that come while a sync runs are written and synced by the next one, all together.
#[test]
fn what_comes_during_a_sync_shares_the_next_one() {
    let Case { setup, disk, store } = case(0, 1 << 20);
    let partition = setup.partition(&store, "a-0");
    let outcomes = Arc::new(Outcomes::default());
    disk.shut_gate();
    let syncs = disk.syncs();
    append(&partition, b"first", Ack::new(outcomes.clone(), 0));
    disk.wait_for_a_sync();
    for ticket in 1..201 {
        append(&partition, b"later", Ack::new(outcomes.clone(), ticket));
    }
    disk.open_gate();
    for ticket in 0..201 {
        outcomes.wait(ticket).unwrap();
    }
    assert_eq!(disk.syncs() - syncs, 2, "one, then one for all the others");
}

#[test]
fn a_store_dropped_in_the_middle_answers_what_it_owes() {
    let Case { setup, disk, store } = case(0, 1 << 20);
    let partition = setup.partition(&store, "test-0");
    let outcomes = Arc::new(Outcomes::default());
    disk.shut_gate();
    for ticket in 0..10 {
        append(&partition, b"x", Ack::new(outcomes.clone(), ticket));
        disk.wait_for_a_sync();
    }
    std::thread::scope(|scope| {
        scope.spawn(|| drop(store));
        disk.open_gate();
    });
    for ticket in 0..10 {
        assert!(matches!(outcomes.now(ticket), Some(Ok(_) | Err(AppendError::Dropped))));
    }
    assert_eq!(refusal(put(&partition, b"late")), Refusal::Closing);
}

/// F55: however long a sync takes, no more than the threshold is answered that a power failure would take away.
#[test]
fn f55_no_more_is_answered_unsynced_than_the_threshold() {
    for threshold in [1, 2, 7, 100] {
        let Case { setup, disk, store } = case(threshold, 1 << 20);
        let partition = setup.partition(&store, "test-0");
        disk.shut_gate();
        let outcomes = Arc::new(Outcomes::default());
        let count = u64::from(threshold) + 20;
        for ticket in 0..count {
            append(&partition, b"message", Ack::new(outcomes.clone(), ticket));
        }
        wait_written(&partition, at(count * 27));
        let answered = (0..count).filter(|ticket| outcomes.now(*ticket).is_some()).count();
        disk.open_gate();
        // Two that were written together are answered together.
        assert!((1..=threshold as usize).contains(&answered), "{answered} of at most {threshold}");
        for ticket in 0..count {
            outcomes.wait(ticket).unwrap();
        }
        wait_synced(&partition);
        for ticket in count..2 * count {
            append(&partition, b"message", Ack::new(outcomes.clone(), ticket));
        }
        for ticket in count..2 * count {
            outcomes.wait(ticket).unwrap();
        }
    }
}

/// A file that may not be written refuses: nothing of the message is in it, and the answer says so.
#[test]
fn a_file_that_may_only_be_read_refuses() {
    let Case { setup, disk, store } = case(0, 1 << 20);
    put(&setup.partition(&store, "test-0"), b"before").unwrap();
    store.close().unwrap();
    drop(store);
    let store = setup.open_on(disk.clone());
    disk.add(Fault::ReadOnly);
    let partition = store.get("test", 0).unwrap();
    let Refusal::Poisoned(reason) = refusal(put(&partition, b"x")) else { panic!("not poisoned") };
    assert!(reason.contains("may only be read"), "{reason}");
    assert!(matches!(partition.health(), Health::Poisoned(_)));
    assert_eq!(bodies(&read_from(&partition, 0, 1000)), [b"before"]);
}
