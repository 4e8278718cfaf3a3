use super::*;
use crate::table::{HeldMax, Taken};
use crate::{Coordinator, NewMessage, Settings};
use metaq_store::{Flush, PartitionRules, Retention, RulesFor, Store, StoreOptions};
use metaq_types::{BrokerId, JOURNAL_TOPIC};
use metaq_wire::{Text, TransactionKey};
use std::path::Path;
use std::time::Duration;

fn open(path: &Path) -> Coordinator {
    let data_path = path.to_path_buf();
    let rules: RulesFor = Arc::new(move |topic| PartitionRules {
        flush: Flush { threshold: u32::MAX, interval: Duration::from_secs(3600) },
        segment_bytes_max: 1 << 20,
        retention: Retention::FOREVER,
        data_path: if topic == JOURNAL_TOPIC { data_path.join("journal") } else { data_path.clone() },
    });
    let mut options = StoreOptions::new(path, BrokerId::new(7).unwrap(), Arc::clone(&rules));
    options.journal_path = Some(path.join("journal"));
    let settings = Settings {
        synced: false,
        timeout_max: Duration::from_secs(60),
        timers_max: 100,
        held_bytes_max: 0,
        // So many that nothing is cut, and a mark is due whenever there is something new.
        checkpoints_max: 1000,
        checkpoint_interval: Duration::ZERO,
        checkpoint_bytes: 1 << 20,
        original_journal: path.join("none"),
        confirm_within: Duration::ZERO,
    };
    Coordinator::open(Arc::new(Store::open(options).unwrap()), settings, rules).unwrap().0
}

/// Begins a transaction with a message that is in the journal; the place of that.
fn begin(coordinator: &Coordinator, name: &str) -> Offset {
    let key = TransactionKey::parse(&Text::from(name)).unwrap().unwrap();
    coordinator.begin(1, &key, None).unwrap();
    let place = coordinator.inner.journal.positions().written;
    let body = Bytes::from_static(b"message");
    let message = NewMessage { flag: 0, checksum: metaq_wire::checksum(&body), body };
    let opened = coordinator.opened(1, &key).unwrap();
    let taken =
        coordinator.put(opened, &key, &"test-0".parse().unwrap(), message, || Box::new(|reply| assert!(reply.is_ok())));
    assert!(taken.is_none(), "it waits in memory");
    assert!(coordinator.inner.journal.positions().written > place);
    place
}

async fn ask(coordinator: &Coordinator, command: crate::Command, name: &str) {
    let key = TransactionKey::parse(&Text::from(name)).unwrap().unwrap();
    let (sender, reply) = tokio::sync::oneshot::channel();
    coordinator.command(command, 1, &key, None, Box::new(|reply| drop(sender.send(reply))));
    reply.await.unwrap().unwrap();
}

/// Where the newest mark allows to cut.
async fn marked(coordinator: &Coordinator) -> Offset {
    // Something new, or no mark is due.
    begin(coordinator, "TX:new:1");
    ask(coordinator, crate::Command::Rollback, "TX:new:1").await;
    coordinator.inner.checkpoint().await;
    let checkpoints = coordinator.inner.checkpoints.lock();
    checkpoints.marks.back().unwrap().low
}

/// A mark lies at or before the first entry of every live transaction, old or young, prepared or open.
#[tokio::test]
async fn a_mark_lies_before_all_that_is_live() {
    let directory = tempfile::tempdir().unwrap();
    let coordinator = open(directory.path());
    begin(&coordinator, "TX:s:1");
    ask(&coordinator, crate::Command::CommitOnePhase, "TX:s:1").await;
    let old = begin(&coordinator, "XID:1:aa:01:q");
    ask(&coordinator, crate::Command::Prepare, "XID:1:aa:01:q").await;
    let young = begin(&coordinator, "XID:1:aa:02:q");
    ask(&coordinator, crate::Command::Prepare, "XID:1:aa:02:q").await;
    let unprepared = begin(&coordinator, "TX:s:2");
    assert!(old < young && young < unprepared);
    assert_eq!(marked(&coordinator).await, old);
    ask(&coordinator, crate::Command::CommitTwoPhase, "XID:1:aa:01:q").await;
    assert_eq!(marked(&coordinator).await, young);
    ask(&coordinator, crate::Command::Rollback, "XID:1:aa:02:q").await;
    assert_eq!(marked(&coordinator).await, unprepared);
    ask(&coordinator, crate::Command::CommitOnePhase, "TX:s:2").await;
    assert!(marked(&coordinator).await > unprepared);
}

/// Whoever is on the way into the journal counts from where it ended before, and a mark never lies beyond the place up
/// to which the live transactions were looked at.
#[tokio::test]
async fn a_mark_lies_before_what_is_on_its_way() {
    let directory = tempfile::tempdir().unwrap();
    let coordinator = open(directory.path());
    let key = TransactionKey::parse(&Text::from("TX:s:1")).unwrap().unwrap();
    coordinator.begin(1, &key, None).unwrap();
    let body = Bytes::from_static(b"message");
    let message = NewMessage { flag: 0, checksum: metaq_wire::checksum(&body), body };
    let ends = coordinator.inner.journal.positions().written;
    {
        let mut table = coordinator.inner.table.lock();
        let number = table.open(1, &key).unwrap();
        let partition = "test-0".parse().unwrap();
        let id = coordinator.inner.next_id().unwrap();
        let held = crate::held::Held::new(number, &key, id, &partition, message);
        let held_max = HeldMax { of_one: 1000, of_all: 1000 };
        assert_eq!(table.put(number, &key, &partition, held, held_max, ends).unwrap(), Taken::Held);
        assert_eq!(table.oldest(), None, "it needs nothing of the journal");
        assert_eq!(table.take_held(number, ends).len(), 1);
    }
    assert_eq!(marked(&coordinator).await, ends);
    let mut checkpoints = Checkpoints::new(&coordinator.inner.journal);
    checkpoints.mark(ends, Some(ends + 100));
    assert_eq!(checkpoints.marks[0].low, ends);
}
