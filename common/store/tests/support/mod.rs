//! What the store's tests share: a place for a data directory, a sink that can be waited on, a reader of records.
#![allow(dead_code, clippy::unwrap_used, reason = "each test file uses its part, all of it as test code")]

pub(crate) mod faulty;
pub(crate) mod power;

use bytes::Bytes;
use faulty::FaultyDisk;
use metaq_store::{
    Ack, AckSink, AppendError, Appended, Disk, Flush, Partition, PartitionRules, Reader, Retention, SliceAt, Store,
    StoreOptions,
};
use metaq_types::{BrokerId, Offset, PartitionId};
use metaq_wire::{RecordHeader, Records};
use parking_lot::{Condvar, Mutex};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

pub(crate) const DEADLINE: Duration = Duration::from_secs(30);
pub(crate) const NEVER: Duration = Duration::from_secs(3600);

pub(crate) fn at(offset: u64) -> Offset {
    Offset::new(offset).unwrap()
}

pub(crate) fn id(name: &str) -> PartitionId {
    name.parse().unwrap()
}

/// Group commit, or a sync after more than `threshold` records.
pub(crate) fn rules(data_path: &Path, threshold: u32, segment_bytes_max: u32) -> PartitionRules {
    let flush = Flush { threshold, interval: NEVER };
    PartitionRules { flush, segment_bytes_max, retention: Retention::FOREVER, data_path: data_path.to_path_buf() }
}

pub(crate) struct Setup {
    pub(crate) directory: tempfile::TempDir,
    pub(crate) threshold: u32,
    pub(crate) segment_bytes_max: u32,
}

impl Setup {
    pub(crate) fn new(threshold: u32, segment_bytes_max: u32) -> Setup {
        Setup { directory: tempfile::tempdir().unwrap(), threshold, segment_bytes_max }
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.directory.path().join("data")
    }

    pub(crate) fn rules(&self) -> PartitionRules {
        rules(&self.path(), self.threshold, self.segment_bytes_max)
    }

    pub(crate) fn options(&self) -> StoreOptions {
        let rules = self.rules();
        StoreOptions::new(self.path(), BrokerId::new(7).unwrap(), Arc::new(move |_| rules.clone()))
    }

    pub(crate) fn open(&self) -> Store {
        Store::open(self.options()).unwrap()
    }

    pub(crate) fn open_on(&self, disk: Arc<dyn Disk>) -> Store {
        Store::open(StoreOptions { disk, ..self.options() }).unwrap()
    }

    pub(crate) fn partition(&self, store: &Store, name: &str) -> Arc<Partition> {
        store.get_or_create(&id(name), &self.rules(), Offset::ZERO).unwrap()
    }

    /// Path of a segment of a partition.
    pub(crate) fn segment(&self, partition: &str, base: u64) -> PathBuf {
        self.path().join(partition).join(format!("{base:020}.meta"))
    }
}

/// A partition on a disk that fails when told to; with group commit, or a sync after more than `threshold` records.
pub(crate) fn faulty_partition(
    threshold: u32,
    segment_bytes_max: u32,
) -> (Setup, Arc<FaultyDisk>, Store, Arc<Partition>) {
    let setup = Setup::new(threshold, segment_bytes_max);
    let disk = Arc::new(FaultyDisk::default());
    let store = setup.open_on(disk.clone());
    let partition = setup.partition(&store, "test-0");
    (setup, disk, store, partition)
}

/// Outcomes by ticket.
#[derive(Default)]
pub(crate) struct Outcomes {
    seen: Mutex<BTreeMap<u64, Result<Appended, AppendError>>>,
    more: Condvar,
}

impl AckSink for Outcomes {
    fn acked(&self, ticket: u64, outcome: Result<Appended, AppendError>) {
        let earlier = self.seen.lock().insert(ticket, outcome);
        assert!(earlier.is_none(), "ticket {ticket} was answered twice");
        self.more.notify_all();
    }
}

impl Outcomes {
    pub(crate) fn now(&self, ticket: u64) -> Option<Result<Appended, AppendError>> {
        self.seen.lock().get(&ticket).cloned()
    }

    pub(crate) fn wait(&self, ticket: u64) -> Result<Appended, AppendError> {
        let until = Instant::now() + DEADLINE;
        let mut seen = self.seen.lock();
        loop {
            if let Some(outcome) = seen.get(&ticket) {
                return outcome.clone();
            }
            assert!(!self.more.wait_until(&mut seen, until).timed_out(), "no answer within the deadline");
        }
    }
}

/// Appends one message and waits for its outcome.
pub(crate) fn put(partition: &Arc<Partition>, body: &[u8]) -> Result<Appended, AppendError> {
    let outcomes = Arc::new(Outcomes::default());
    append(partition, body, Ack::new(outcomes.clone(), 0));
    outcomes.wait(0)
}

pub(crate) fn append(partition: &Arc<Partition>, body: &[u8], ack: Ack) {
    partition.append(0, metaq_wire::checksum(body), Bytes::copy_from_slice(body), ack);
}

pub(crate) fn put_verbatim(
    partition: &Arc<Partition>,
    offset: u64,
    segment: u64,
    bytes: &[u8],
) -> Result<Appended, AppendError> {
    let outcomes = Arc::new(Outcomes::default());
    let ack = Ack::new(outcomes.clone(), 0);
    partition.append_verbatim(at(offset), at(segment), Bytes::copy_from_slice(bytes), ack);
    outcomes.wait(0)
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Message {
    pub(crate) offset: u64,
    pub(crate) header: RecordHeader,
    pub(crate) body: Vec<u8>,
}

/// The bytes of one slice, whole records all of them.
pub(crate) fn read_slice(slice: &metaq_store::Slice) -> Vec<Message> {
    let mut bytes = vec![0; slice.len() as usize];
    assert_eq!(slice.read_at(0, &mut bytes).unwrap(), bytes.len());
    let mut records = Records::new(&bytes);
    let mut messages = Vec::new();
    for record in &mut records {
        let (position, header, body) = record.unwrap();
        let offset = slice.start().get() + position as u64;
        messages.push(Message { offset, header, body: body.to_vec() });
    }
    assert_eq!(records.position(), bytes.len(), "a slice ends on a record boundary");
    messages
}

/// Everything from `offset` to the readable end, read as a consumer does, led across damage.
pub(crate) fn read_from(partition: &Partition, mut offset: u64, bytes_max: u32) -> Vec<Message> {
    let mut messages = Vec::new();
    loop {
        match partition.slice(offset as i64, bytes_max, Reader::Consumer) {
            SliceAt::Bytes(slice) => {
                assert_eq!(slice.start().get(), offset);
                messages.extend(read_slice(&slice));
                offset += u64::from(slice.len());
            }
            SliceAt::Skip { to } => offset = to.get(),
            SliceAt::AtEnd { .. } => return messages,
            SliceAt::Beyond { end } => panic!("{offset} is beyond the end {end}"),
            SliceAt::Trimmed { oldest } => panic!("{offset} is before {oldest}"),
            SliceAt::Failed { reason } => panic!("{reason}"),
        }
    }
}

pub(crate) fn bodies(messages: &[Message]) -> Vec<Vec<u8>> {
    messages.iter().map(|message| message.body.clone()).collect()
}

/// Waits until everything before `end` is written.
pub(crate) fn wait_written(partition: &Partition, end: Offset) {
    let until = Instant::now() + DEADLINE;
    while partition.positions().written < end {
        assert!(Instant::now() < until, "not written up to {end} within the deadline");
        std::thread::yield_now();
    }
}

/// Waits until everything before `end` is durable.
pub(crate) fn wait_durable(partition: &Partition, end: Offset) {
    let until = Instant::now() + DEADLINE;
    while partition.positions().durable < end {
        assert!(Instant::now() < until, "not durable up to {end} within the deadline");
        std::thread::yield_now();
    }
}

/// Waits until the partition's durable end is at its written end, without asking for a sync as a waiting reader would.
pub(crate) fn wait_synced(partition: &Partition) {
    let until = Instant::now() + DEADLINE;
    while partition.positions().durable < partition.positions().written {
        assert!(Instant::now() < until, "not synced within the deadline");
        std::thread::yield_now();
    }
}
