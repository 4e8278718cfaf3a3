use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Why a sync was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlushCause {
    /// Answers wait for it (group commit).
    Commit,
    /// A reader stands at the readable end with unsynced bytes behind it.
    Reader,
    /// More records than the topic's threshold were unsynced.
    Threshold,
    /// The topic's interval went by.
    Interval,
    /// A segment was full.
    Roll,
    /// A file of the write-ahead log is to be used again.
    Checkpoint,
    Close,
}

impl FlushCause {
    pub const ALL: [FlushCause; 7] = [
        FlushCause::Commit,
        FlushCause::Reader,
        FlushCause::Threshold,
        FlushCause::Interval,
        FlushCause::Roll,
        FlushCause::Checkpoint,
        FlushCause::Close,
    ];
}

/// What the store counts, since it was opened.
#[derive(Debug, Default)]
pub struct StoreMetrics {
    /// Records written.
    pub appends: AtomicU64,
    /// Bytes written, record headers included.
    pub appended_bytes: AtomicU64,
    /// Gathering writes made for them.
    pub writes: AtomicU64,
    /// Syncs that succeeded.
    pub syncs: AtomicU64,
    /// Of these, syncs of the write-ahead log, each for a whole round.
    pub wal_syncs: AtomicU64,
    /// 1 once the write-ahead log cannot be used any more before the next opening.
    pub wal_failed: AtomicU64,
    /// Time spent in syncs.
    pub sync_nanos: AtomicU64,
    /// Segments begun because one was full.
    pub rolls: AtomicU64,
    /// Appends refused for want of space.
    pub disk_full: AtomicU64,
    /// Partitions made read-only by a disk error.
    pub poisoned: AtomicU64,
    /// Segments taken off the front of their logs by retention.
    pub retired_segments: AtomicU64,
    /// Bytes of these.
    pub retired_bytes: AtomicU64,
    flushes: [AtomicU64; FlushCause::ALL.len()],
}

impl StoreMetrics {
    /// Syncs made for this cause.
    pub fn flushes(&self, cause: FlushCause) -> u64 {
        self.flushes[cause as usize].load(Ordering::Relaxed)
    }

    pub(crate) fn count_sync(&self, cause: FlushCause, took: Duration) {
        self.flushes[cause as usize].fetch_add(1, Ordering::Relaxed);
        self.syncs.fetch_add(1, Ordering::Relaxed);
        self.sync_nanos.fetch_add(took.as_nanos() as u64, Ordering::Relaxed);
    }

    pub(crate) fn count_write(&self, records: u64, bytes: u64) {
        self.appends.fetch_add(records, Ordering::Relaxed);
        self.appended_bytes.fetch_add(bytes, Ordering::Relaxed);
        self.writes.fetch_add(1, Ordering::Relaxed);
    }
}
