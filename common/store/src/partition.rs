use crate::acks::{Ack, AckQueue};
use crate::committer::{Committer, Committers, Wants};
use crate::disk::Disk;
use crate::errors::Refusal;
use crate::files::FileCache;
use crate::full::Full;
use crate::ids::IdClock;
use crate::load::Loaded;
use crate::lost::Lost;
use crate::metrics::StoreMetrics;
use crate::positions::{Cursors, Positions};
use crate::queue::{AnswerAfter, Append, AppendQueue, BatchRecord, NewBatch, NewRecord, Verbatim};
use crate::releases::Releases;
use crate::retention::Retired;
use crate::rules::{FlushLevel, LiveRules, PartitionRules};
use crate::segment::Segment;
use crate::wal::Wal;
use crate::writer::Writer;
use arc_swap::ArcSwap;
use bytes::Bytes;
use metaq_types::limits::{APPEND_QUEUE_BYTES_MAX, ENTRY_BYTES_MAX, MESSAGE_BYTES_MAX, RUN_BYTES_MAX};
use metaq_types::{Offset, PartitionId};
use metaq_wire::RecordHeader;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;
use tokio::sync::Notify;

/// What all partitions of a store share.
pub(crate) struct Shared {
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) files: FileCache,
    pub(crate) ids: IdClock,
    /// Threads that sync; each partition belongs to one of them.
    pub(crate) committers: Committers,
    pub(crate) releases: Releases,
    /// `None`: each partition's file is synced.
    pub(crate) wal: Option<Wal>,
    pub(crate) metrics: StoreMetrics,
    pub(crate) full: Full,
    pub(crate) lost: Lost,
    /// Bytes of bodies accepted and not yet written.
    pub(crate) queued_bytes: AtomicUsize,
}

/// Whether a partition takes appends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Health {
    Ok,
    /// A disk error made it read-only until the store is opened again; says which.
    Poisoned(String),
}

/// A handle to one partition's log. Any number of threads may append and read; bytes are written by one at a time.
pub struct Partition {
    pub(crate) id: PartitionId,
    /// The data path its directory lies in.
    pub(crate) root: Arc<Path>,
    pub(crate) shared: Arc<Shared>,
    /// Which of the committers is ours.
    committer: usize,
    pub(crate) rules: LiveRules,
    pub(crate) queue: AppendQueue,
    pub(crate) writer: Mutex<Writer>,
    /// Held over a sync and what follows from its outcome: two syncs of one file side by side could share one error,
    /// and the second would believe itself good.
    pub(crate) sync_turn: Mutex<()>,
    pub(crate) acks: Mutex<AckQueue>,
    /// Of appends that wait for a sync although the flush rule does not.
    pub(crate) synced_acks: Mutex<AckQueue>,
    pub(crate) cursors: Cursors,
    /// In order of their bases, joined without gaps, never empty; replaced whole.
    pub(crate) segments: ArcSwap<Vec<Arc<Segment>>>,
    /// Segments off the log whose files are still there, the oldest first; locked over a run of retention.
    pub(crate) retired: Mutex<VecDeque<Retired>>,
    pub(crate) records: AtomicU64,
    pub(crate) syncs: AtomicU64,
    pub(crate) poison: OnceLock<String>,
    closed: AtomicBool,
    pub(crate) readers: Notify,
    /// Told when consumers may read further although nothing became durable.
    pub(crate) consumers: Notify,
    /// Told when members may read further.
    pub(crate) members: Notify,
    /// How many wait in [`Partition::readable_beyond`].
    pub(crate) waiting_readers: AtomicUsize,
    /// What the committer owes this partition; see [`Wants`].
    pub(crate) wants: AtomicU8,
    /// A timer for the interval runs at the committer.
    pub(crate) interval_runs: AtomicBool,
    /// A reader's sync waits at the committer for its time.
    pub(crate) reader_waits: AtomicBool,
    /// Left to its own committer by the one that writes to the write-ahead log.
    pub(crate) passed_on: AtomicBool,
    /// The newest use of a file of the write-ahead log that holds bytes of this partition.
    pub(crate) wal_use: AtomicU64,
    /// That log's keeper is about to sync the file, or at it.
    pub(crate) settles: AtomicBool,
    /// The committer's note, for the bound on these.
    pub(crate) last_reader_sync: Mutex<Option<Instant>>,
}

impl Partition {
    pub(crate) fn new(
        id: PartitionId,
        root: Arc<Path>,
        shared: Arc<Shared>,
        rules: &PartitionRules,
        segments: Vec<Arc<Segment>>,
        end: Offset,
        records: u64,
    ) -> Partition {
        let kept = segments.first().expect("a partition has a segment").base;
        let active = segments.last().expect("a partition has a segment").clone();
        Partition {
            id,
            root,
            committer: shared.committers.assign(),
            shared,
            rules: LiveRules::new(rules),
            queue: AppendQueue::default(),
            writer: Mutex::new(Writer::new(active, end)),
            sync_turn: Mutex::new(()),
            acks: Mutex::new(AckQueue::new(end)),
            synced_acks: Mutex::new(AckQueue::new(end)),
            cursors: Cursors::new(kept, end),
            segments: ArcSwap::from_pointee(segments),
            retired: Mutex::default(),
            records: AtomicU64::new(records),
            syncs: AtomicU64::new(0),
            poison: OnceLock::new(),
            closed: AtomicBool::new(false),
            readers: Notify::new(),
            consumers: Notify::new(),
            members: Notify::new(),
            waiting_readers: AtomicUsize::new(0),
            wants: AtomicU8::new(0),
            interval_runs: AtomicBool::new(false),
            reader_waits: AtomicBool::new(false),
            passed_on: AtomicBool::new(false),
            wal_use: AtomicU64::new(0),
            settles: AtomicBool::new(false),
            last_reader_sync: Mutex::new(None),
        }
    }

    /// The partition as its files are now, after `old` was closed and they were changed.
    pub(crate) fn reloaded(old: &Partition, loaded: Loaded) -> Partition {
        let rules = old.rules.get(old.root.to_path_buf());
        let (root, shared) = (old.root.clone(), old.shared.clone());
        let new = Partition::new(old.id.clone(), root, shared, &rules, loaded.segments, loaded.end, loaded.records);
        // What was hidden stays so. What is appended behind a cut is not what was confirmed before it.
        let confirmed = old.confirmed();
        new.limit(if confirmed == Offset::MAX { confirmed } else { confirmed.min(loaded.end) });
        new
    }

    /// The gaps of the log, each from where a segment ends to where the next begins.
    pub fn gaps(&self) -> Vec<(Offset, Offset)> {
        let segments = self.segments.load();
        segments.windows(2).filter_map(|pair| Some((pair[0].gap_from()?, pair[1].base))).collect()
    }

    pub fn id(&self) -> &PartitionId {
        &self.id
    }

    /// Appends one message. Its id and offset are assigned in the order of the log, and `ack` is answered when it is as
    /// safe as the flush rule promises: before this returns unless other threads append too (threshold above 0), or
    /// from the committer's thread after a sync (threshold 0). Never waits for a sync.
    pub fn append(self: &Arc<Self>, flag: i32, checksum: i32, body: Bytes, ack: Ack) {
        if self.append_queued(flag, checksum, body, ack) {
            self.write_queued();
        }
    }

    /// The same, but with a threshold above 0 the bytes stay queued, and `true` says that the caller owes a
    /// [`Partition::write_queued`]: many messages, of many connections, then go out in one write.
    #[must_use]
    pub fn append_queued(self: &Arc<Self>, flag: i32, checksum: i32, body: Bytes, ack: Ack) -> bool {
        if body.len() > MESSAGE_BYTES_MAX as usize {
            refuse(ack, Refusal::TooLarge { bytes: body.len(), limit_bytes: MESSAGE_BYTES_MAX });
            return false;
        }
        self.queue_up(Append::Record(NewRecord { flag, checksum, body, ack, after: AnswerAfter::Rule }))
    }

    /// Appends an entry to a log of our own. `synced`: answered after a sync, although others of this log are not.
    pub fn append_entry(self: &Arc<Self>, body: Bytes, synced: bool, ack: Ack) {
        if body.len() > ENTRY_BYTES_MAX as usize {
            return refuse(ack, Refusal::TooLarge { bytes: body.len(), limit_bytes: ENTRY_BYTES_MAX });
        }
        let checksum = metaq_wire::checksum(&body);
        let after = AnswerAfter::sync_or_rule(synced);
        self.enqueue(Append::Record(NewRecord { flag: 0, checksum, body, ack, after }));
    }

    /// Appends messages that have ids already in one contiguous run of one segment: all of them or none, and readers see
    /// all of them or none. The answer names the run's first byte and its length.
    pub fn append_batch(self: &Arc<Self>, records: Vec<BatchRecord>, ack: Ack) {
        self.append_run(NewBatch { records, ack, after: AnswerAfter::Rule });
    }

    /// The same, `synced` as in [`Partition::append_entry`].
    pub fn append_entries(self: &Arc<Self>, records: Vec<BatchRecord>, synced: bool, ack: Ack) {
        self.append_run(NewBatch { records, ack, after: AnswerAfter::sync_or_rule(synced) });
    }

    /// A batch that a log of ours holds durably, so that it is stored again should it get lost: answered when it is
    /// written, at once unless other threads append too. Consumers see it after a sync ([`Partition::awaits_told`]), for
    /// which the caller owes a [`Partition::sync_logged`]: with that of the next append to the log, it costs no other.
    pub fn append_logged(self: &Arc<Self>, records: Vec<BatchRecord>, ack: Ack) {
        self.append_run(NewBatch { records, ack, after: AnswerAfter::Write });
    }

    /// Has what [`Partition::append_logged`] was given synced, where the flush rule syncs before an answer; who else
    /// appends may be about to write it.
    pub fn sync_logged(self: &Arc<Self>) {
        if self.rules.level() != FlushLevel::Os {
            self.want(Wants::Commit);
        }
    }

    fn append_run(self: &Arc<Self>, batch: NewBatch) {
        let bytes = batch.bytes();
        if bytes > u64::from(RUN_BYTES_MAX) {
            let refusal = Refusal::TooLarge { bytes: bytes as usize, limit_bytes: RUN_BYTES_MAX };
            return refuse(batch.ack, refusal);
        }
        if batch.records.is_empty() {
            return refuse(batch.ack, Refusal::Malformed("a batch of no messages".to_owned()));
        }
        self.enqueue(Append::Batch(batch));
    }

    /// Appends a range of whole records that the caller has checked, for a replica: refused unless it begins at the
    /// written end and lies in the segment that the log is in or now begins, so that both roll at the same places.
    pub fn append_verbatim(self: &Arc<Self>, at: Offset, segment: Offset, bytes: Bytes, ack: Ack) {
        self.enqueue(Append::Verbatim(Verbatim { at, segment, bytes, ack }));
    }

    /// The same, but the bytes stay queued, and `true` says that the caller owes a [`Partition::write_queued`], from a
    /// thread that may wait for the disk: many bytes are then written while those before them are synced.
    #[must_use]
    pub fn append_verbatim_queued(self: &Arc<Self>, at: Offset, segment: Offset, bytes: Bytes, ack: Ack) -> bool {
        self.admit(Append::Verbatim(Verbatim { at, segment, bytes, ack }))
    }

    fn enqueue(self: &Arc<Self>, append: Append) {
        if self.queue_up(append) {
            self.write_queued();
        }
    }

    /// Queues an append, and leaves it to the committer where that writes; `true` where it does not.
    fn queue_up(self: &Arc<Self>, append: Append) -> bool {
        let is_copy = matches!(append, Append::Verbatim(_));
        let is_logged = matches!(&append, Append::Batch(batch) if batch.after == AnswerAfter::Write);
        if !self.admit(append) {
            return false;
        }
        if is_logged || self.rules.level() == FlushLevel::Os {
            return true;
        }
        let is_waited_for = !is_copy && self.is_waited_for_idly();
        self.want(Wants::Commit);
        is_waited_for
    }

    /// Queues an append, unless it is refused.
    fn admit(&self, append: Append) -> bool {
        let bytes = append.body_bytes();
        let queued_bytes = self.shared.queued_bytes.fetch_add(bytes, Ordering::Relaxed);
        if queued_bytes + bytes > APPEND_QUEUE_BYTES_MAX {
            self.shared.queued_bytes.fetch_sub(bytes, Ordering::Relaxed);
            let limit_bytes = APPEND_QUEUE_BYTES_MAX;
            refuse(append.into_ack(), Refusal::Overloaded { queued_bytes, limit_bytes });
            return false;
        }
        if let Err(append) = self.queue.push(append) {
            self.shared.queued_bytes.fetch_sub(bytes, Ordering::Relaxed);
            refuse(append.into_ack(), Refusal::Closing);
            return false;
        }
        true
    }

    /// Whether members wait for what is appended while the committer rests: whoever appends then writes while it wakes, so
    /// that they have it sooner. Once it is at work it takes all that comes in one write.
    fn is_waited_for_idly(&self) -> bool {
        self.cursors.confirmed() != Offset::MAX && self.cursors.written() == self.cursors.durable()
    }

    pub fn positions(&self) -> Positions {
        self.cursors.snapshot()
    }

    /// Takes effect with the next append. Where a partition lies does not change.
    pub fn set_rules(&self, rules: &PartitionRules) {
        self.rules.set(rules);
    }

    /// Records found in the last segment when the store was opened, and those appended since (storage, "11").
    pub fn record_count(&self) -> u64 {
        self.records.load(Ordering::Relaxed)
    }

    /// How often what was appended has been synced.
    pub fn sync_count(&self) -> u64 {
        self.syncs.load(Ordering::Relaxed)
    }

    /// Bytes kept.
    pub fn bytes(&self) -> u64 {
        let positions = self.positions();
        positions.written.bytes_since(positions.kept)
    }

    pub fn segment_count(&self) -> usize {
        self.segments.load().len()
    }

    /// Start of the segment that is written to.
    pub fn active_segment(&self) -> Offset {
        self.segments.load().last().expect("a partition has a segment").base
    }

    pub fn health(&self) -> Health {
        match self.poison.get() {
            None => Health::Ok,
            Some(reason) => Health::Poisoned(reason.clone()),
        }
    }

    /// `DATAPATH/TOPIC-NUMBER`.
    pub fn directory(&self) -> PathBuf {
        self.root.join(self.id.to_string())
    }

    pub(crate) fn file_of(&self, segment: &Arc<Segment>) -> io::Result<Arc<File>> {
        self.shared.files.get(&*self.shared.disk, segment, || segment.path(&self.directory()))
    }

    /// Where work is left: the one committer of the write-ahead log while that is used, else the partition's own.
    pub(crate) fn committer(&self) -> &Committer {
        let committers = &self.shared.committers;
        match &self.shared.wal {
            Some(wal) if wal.is_active() => committers.common(),
            _ => self.own_committer(),
        }
    }

    pub(crate) fn own_committer(&self) -> &Committer {
        self.shared.committers.at(self.committer)
    }

    /// Leaves work for the committer, which finds it at its next round.
    pub(crate) fn want(self: &Arc<Self>, wants: Wants) {
        if self.wants.fetch_or(wants.bit(), Ordering::SeqCst) == 0 {
            self.committer().enqueue(self);
        }
    }

    pub(crate) fn wake_readers(&self) {
        self.readers.notify_waiters();
    }

    pub(crate) fn wake_members(&self) {
        self.members.notify_waiters();
    }

    pub(crate) fn wake_consumers(&self) {
        self.consumers.notify_waiters();
    }

    /// No append is accepted from now on, and nobody waits for more bytes.
    pub(crate) fn close(&self) {
        self.queue.close();
        self.closed.store(true, Ordering::SeqCst);
        self.readers.notify_waiters();
        self.members.notify_waiters();
        // A run of retention ends with its step.
        drop(self.retired.lock());
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }
}

pub(crate) fn refuse(ack: Ack, refusal: Refusal) {
    ack.answer(Err(refusal.into()));
}

/// Headers of a row of whole records with their positions; an error names where the row breaks.
pub(crate) fn walk_headers(bytes: &[u8]) -> Result<Vec<(u32, RecordHeader)>, String> {
    let mut headers = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        let header = bytes[at..].first_chunk().ok_or_else(|| format!("it ends within the header at byte {at}"))?;
        let header = RecordHeader::parse(header).map_err(|error| format!("at byte {at}: {error}"))?;
        headers.push((at as u32, header));
        at = usize::try_from(at as u64 + header.record_bytes()).map_err(|error| error.to_string())?;
    }
    if at != bytes.len() { Err("it ends within the last record".to_string()) } else { Ok(headers) }
}
