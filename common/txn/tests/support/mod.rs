//! What the tests of transactions share: a store with a journal, and a client's view of a coordinator.
#![expect(dead_code, clippy::unwrap_used, reason = "each test file uses its part, all of it as test code")]

#[path = "../../../store/tests/support/faulty.rs"]
pub(crate) mod faulty;

use bytes::Bytes;
use faulty::{Fault, FaultyDisk};
use metaq_store::{Disk, Flush, PartitionRules, Reader, Retention, RulesFor, SliceAt, Store, StoreOptions};
use metaq_txn::{Command, Coordinator, NewMessage, Recovered, Settings};
use metaq_types::{BrokerId, Offset, PartitionId, TopicName};
use metaq_wire::{Records, Text, TransactionKey};
use std::path::PathBuf;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

pub(crate) const DEADLINE: Duration = Duration::from_secs(30);
pub(crate) const SESSION: u64 = 1;

pub(crate) const A: &str = "XID:1:aa:01:a";
pub(crate) const B: &str = "XID:1:aa:02:b";

pub(crate) struct Place {
    pub(crate) directory: tempfile::TempDir,
    pub(crate) threshold: u32,
    pub(crate) partitions: u32,
    pub(crate) synced: bool,
    /// After which the journal is synced, asked or not.
    pub(crate) journal_interval: Duration,
    pub(crate) journal_segment_bytes: u32,
    pub(crate) checkpoints_max: u32,
    /// 0: every message is in the journal when it is answered.
    pub(crate) held_bytes_max: u32,
    /// What others hold of the journal at the start, where they are asked.
    pub(crate) confirmed: Option<Offset>,
}

impl Place {
    pub(crate) fn data(&self) -> PathBuf {
        self.directory.path().join("data")
    }

    pub(crate) fn journal(&self) -> PathBuf {
        self.directory.path().join("data/.metaq/journal")
    }

    pub(crate) fn original_journal(&self) -> PathBuf {
        self.directory.path().join("transactions")
    }

    pub(crate) fn rules(&self) -> RulesFor {
        let (data, journal, threshold) = (self.data(), self.journal(), self.threshold);
        let (journal_interval, journal_segment_bytes) = (self.journal_interval, self.journal_segment_bytes);
        Arc::new(move |topic| {
            let is_journal = topic == metaq_types::JOURNAL_TOPIC;
            let threshold = if is_journal { u32::MAX } else { threshold };
            let interval = if is_journal { journal_interval } else { Duration::from_secs(3600) };
            PartitionRules {
                flush: Flush { threshold, interval },
                segment_bytes_max: if is_journal { journal_segment_bytes } else { 150 },
                retention: Retention::FOREVER,
                data_path: if is_journal { journal.clone() } else { data.clone() },
            }
        })
    }

    pub(crate) fn new(threshold: u32, partitions: u32) -> Place {
        let directory = tempfile::tempdir().unwrap();
        Place {
            directory,
            threshold,
            partitions,
            synced: true,
            journal_interval: Duration::from_secs(3600),
            // Small, so that rolling is among what a crash may meet.
            journal_segment_bytes: 400,
            checkpoints_max: 1,
            held_bytes_max: 64 * 1024,
            confirmed: None,
        }
    }

    /// Expects no trouble.
    pub(crate) fn open(&self, disk: Arc<dyn Disk>) -> Result<(Arc<Store>, Coordinator), String> {
        let (store, coordinator, recovered) = self.open_with_trouble(disk)?;
        assert!(recovered.trouble.is_empty(), "{:?}", recovered.trouble);
        Ok((store, coordinator))
    }

    /// On a disk that fails when it is told to.
    pub(crate) fn open_faulty(&self) -> (Arc<FaultyDisk>, Arc<Store>, Coordinator) {
        let disk = Arc::new(FaultyDisk::default());
        let (store, coordinator) = self.open(disk.clone()).unwrap();
        (disk, store, coordinator)
    }

    /// Ends as a crash does, and starts on a sound disk.
    pub(crate) fn again(&self, store: Arc<Store>, coordinator: Coordinator) -> (Arc<Store>, Coordinator) {
        end(coordinator);
        drop(store);
        self.open(sound()).unwrap()
    }

    pub(crate) fn open_with_trouble(
        &self,
        disk: Arc<dyn Disk>,
    ) -> Result<(Arc<Store>, Coordinator, Recovered), String> {
        let mut options = StoreOptions::new(self.data(), BrokerId::new(7).unwrap(), self.rules());
        options.journal_path = Some(self.journal());
        options.disk = disk;
        let store = Arc::new(Store::open(options).map_err(|error| error.to_string())?);
        if let (Some(confirmed), Some(journal)) = (self.confirmed, store.journal()) {
            journal.limit(confirmed);
        }
        let settings = Settings {
            synced: self.synced,
            timeout_max: Duration::from_secs(60),
            timers_max: 100,
            held_bytes_max: self.held_bytes_max,
            checkpoints_max: self.checkpoints_max,
            checkpoint_interval: Duration::from_secs(3600),
            checkpoint_bytes: 4000,
            original_journal: self.original_journal(),
            confirm_within: Duration::from_millis(200),
        };
        let (coordinator, recovered) =
            Coordinator::open(store.clone(), settings, self.rules()).map_err(|error| error.to_string())?;
        Ok((store, coordinator, recovered))
    }

    pub(crate) fn targets(&self) -> Vec<PartitionId> {
        let topic = TopicName::new("test").unwrap();
        (0..self.partitions).map(|number| PartitionId { topic: topic.clone(), number }).collect()
    }
}

pub(crate) fn key(text: &str) -> TransactionKey {
    TransactionKey::parse(&Text::from(text)).unwrap().unwrap()
}

pub(crate) fn command(coordinator: &Coordinator, command: Command, name: &str) -> Result<String, String> {
    command_of(SESSION, coordinator, command, name)
}

/// As another connection.
pub(crate) fn command_of(
    session: u64,
    coordinator: &Coordinator,
    command: Command,
    name: &str,
) -> Result<String, String> {
    let answer = ask(session, coordinator, command, name);
    answer.recv_timeout(DEADLINE).expect("no answer within the deadline")
}

/// Where the answer to a command will come.
pub(crate) fn ask(
    session: u64,
    coordinator: &Coordinator,
    command: Command,
    name: &str,
) -> mpsc::Receiver<Result<String, String>> {
    let (sender, receiver) = mpsc::channel();
    let done = Box::new(move |reply: Result<String, metaq_txn::Refused>| {
        drop(sender.send(reply.map_err(|refused| refused.to_string())));
    });
    coordinator.command(command, session, &key(name), None, done);
    receiver
}

/// Two messages a partition; `false` when one was refused.
pub(crate) fn fill(coordinator: &Coordinator, name: &str, targets: &[PartitionId]) -> bool {
    fill_of(SESSION, coordinator, name, targets)
}

/// As another connection.
pub(crate) fn fill_of(session: u64, coordinator: &Coordinator, name: &str, targets: &[PartitionId]) -> bool {
    coordinator.begin(session, &key(name), None).is_ok()
        && (0..2).all(|_| targets.iter().all(|target| put(session, coordinator, name, target).is_ok()))
}

/// A message that bears the transaction's name.
pub(crate) fn put(session: u64, coordinator: &Coordinator, name: &str, target: &PartitionId) -> Result<(), String> {
    let (sender, receiver) = mpsc::channel();
    let text = |refused: metaq_txn::Refused| refused.to_string();
    let later = || -> metaq_txn::PutDone {
        Box::new(move |reply: Result<_, metaq_txn::Refused>| {
            let _ = sender.send(reply.map(drop).map_err(text));
        })
    };
    let opened = coordinator.opened(session, &key(name)).map_err(text)?;
    let body = Bytes::from(name.to_owned());
    let message = NewMessage { flag: 0, checksum: metaq_wire::checksum(&body), body };
    match coordinator.put(opened, &key(name), target, message, later) {
        Some(taken) => taken.map(drop).map_err(text),
        None => receiver.recv_timeout(DEADLINE).expect("no answer within the deadline"),
    }
}

pub(crate) fn bodies(store: &Store, target: &PartitionId) -> Vec<String> {
    let Some(partition) = store.get(&target.topic, target.number as i32) else { return Vec::new() };
    // Nothing is shown that is not synced yet: ask for it as a waiting reader does.
    if let Some(last) =
        Offset::new(partition.positions().written.get().saturating_sub(1)).filter(|at| *at > Offset::ZERO)
    {
        tokio::runtime::Handle::current().block_on(partition.readable_beyond(last, Reader::Replica));
    }
    let (mut at, mut all) = (Offset::ZERO, Vec::new());
    while let SliceAt::Bytes(slice) = partition.slice(at.wire(), 1 << 20, Reader::Replica) {
        let mut bytes = vec![0; slice.len() as usize];
        slice.read_at(0, &mut bytes).unwrap();
        let records = Records::new(&bytes).map(|record| String::from_utf8(record.unwrap().2.to_vec()).unwrap());
        all.extend(records);
        at = at + u64::from(slice.len());
    }
    all
}

/// Whether all that is in a partition is durable, and something is.
pub(crate) fn is_durable(store: &Store, target: &PartitionId) -> bool {
    let positions = store.get(&target.topic, target.number as i32).map(|partition| partition.positions());
    positions.is_some_and(|positions| positions.written > Offset::ZERO && positions.durable == positions.written)
}

/// Lets go of the store without closing it, as a crash does.
pub(crate) fn end(coordinator: Coordinator) {
    tokio::runtime::Handle::current().block_on(coordinator.close(DEADLINE));
}

pub(crate) fn sound() -> Arc<dyn Disk> {
    Arc::new(FaultyDisk::default())
}

/// Runs a test that blocks where the coordinator finds a runtime.
pub(crate) async fn blocking(test: impl FnOnce() + Send + 'static) {
    tokio::task::spawn_blocking(test).await.unwrap();
}

pub(crate) fn count(store: &Store, place: &Place, name: &str) -> Vec<usize> {
    place.targets().iter().map(|target| bodies(store, target).iter().filter(|body| *body == name).count()).collect()
}

pub(crate) fn prepared(coordinator: &Coordinator, place: &Place, name: &str) {
    assert!(fill(coordinator, name, &place.targets()));
    assert_eq!(command(coordinator, Command::Prepare, name), Ok("0".to_owned()));
}

pub(crate) fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let until = Instant::now() + DEADLINE;
    while !holds() {
        assert!(Instant::now() < until, "{what} within the deadline");
        std::thread::yield_now();
    }
}

/// Local transactions `TX:s:1` and on, until the front of the journal is gone; how many they were.
pub(crate) fn commit_until_cut(coordinator: &Coordinator, store: &Store, targets: &[PartitionId]) -> u64 {
    let journal = store.journal().unwrap();
    let mut number = 0;
    wait_until("the journal is cut", || {
        number += 1;
        let name = format!("TX:s:{number}");
        assert!(fill(coordinator, &name, targets));
        command(coordinator, Command::CommitOnePhase, &name).unwrap();
        journal.positions().kept.get() > 8000
    });
    number
}

/// Commits, and does something between the decision's way into the journal and the end of its sync.
pub(crate) fn decide_and(coordinator: &Coordinator, disk: &FaultyDisk, name: &str, meanwhile: impl FnOnce()) -> Answer {
    disk.shut_gate();
    let answer = ask(SESSION, coordinator, Command::CommitOnePhase, name);
    disk.wait_for_a_sync();
    assert!(answer.try_recv().is_err(), "answered before it is synced");
    meanwhile();
    disk.open_gate();
    answer.recv_timeout(DEADLINE).expect("no answer within the deadline")
}

pub(crate) type Answer = Result<String, String>;

/// The process ends, nothing is synced on the way out, and what was not before is gone.
pub(crate) fn power_fails(place: &Place, disk: &FaultyDisk, store: Arc<Store>, coordinator: Coordinator) {
    disk.add(Fault::Dead);
    end(coordinator);
    drop(store);
    for root in [place.data(), place.journal()] {
        disk.power_failure(&root);
    }
}
