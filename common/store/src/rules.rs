use crate::retention::Retention;
use parking_lot::Mutex;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// When written bytes are synced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flush {
    /// 0: every append is answered after a sync (group commit). Else appends are answered when they are in the page
    /// cache, as long as no more than this many that were answered are unsynced; a sync begins when half of that are.
    pub threshold: u32,
    /// Unsynced bytes of a partition are synced at the latest after this.
    pub interval: Duration,
}

/// The settings of a topic that the store obeys, with nothing left to resolve.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartitionRules {
    pub flush: Flush,
    /// A segment that has reached this is followed by a new one at the next append.
    pub segment_bytes_max: u32,
    pub retention: Retention,
    /// Where new partitions of the topic are created; existing ones are served where they are found.
    pub data_path: PathBuf,
}

/// How safe an append is when it is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FlushLevel {
    /// In the page cache.
    Os,
    /// On stable storage.
    Durable,
}

/// Rules that may change while appends run.
pub(crate) struct LiveRules {
    threshold: AtomicU32,
    segment_bytes_max: AtomicU32,
    interval_ms: AtomicU64,
    retention: Mutex<Retention>,
}

impl LiveRules {
    pub(crate) fn new(rules: &PartitionRules) -> LiveRules {
        let live = LiveRules {
            threshold: AtomicU32::new(0),
            segment_bytes_max: AtomicU32::new(0),
            interval_ms: AtomicU64::new(0),
            retention: Mutex::new(rules.retention),
        };
        live.set(rules);
        live
    }

    pub(crate) fn set(&self, rules: &PartitionRules) {
        self.threshold.store(rules.flush.threshold, Ordering::Relaxed);
        self.segment_bytes_max.store(rules.segment_bytes_max.max(1), Ordering::Relaxed);
        let interval_ms = u64::try_from(rules.flush.interval.as_millis()).unwrap_or(u64::MAX);
        self.interval_ms.store(interval_ms, Ordering::Relaxed);
        *self.retention.lock() = rules.retention;
    }

    pub(crate) fn get(&self, data_path: PathBuf) -> PartitionRules {
        let flush = Flush { threshold: self.threshold(), interval: self.interval() };
        let segment_bytes_max = self.segment_bytes_max.load(Ordering::Relaxed);
        PartitionRules { flush, segment_bytes_max, retention: self.retention(), data_path }
    }

    pub(crate) fn level(&self) -> FlushLevel {
        if self.threshold() == 0 { FlushLevel::Durable } else { FlushLevel::Os }
    }

    pub(crate) fn threshold(&self) -> u32 {
        self.threshold.load(Ordering::Relaxed)
    }

    pub(crate) fn segment_bytes_max(&self) -> u64 {
        self.segment_bytes_max.load(Ordering::Relaxed).into()
    }

    pub(crate) fn retention(&self) -> Retention {
        *self.retention.lock()
    }

    pub(crate) fn interval(&self) -> Duration {
        Duration::from_millis(self.interval_ms.load(Ordering::Relaxed))
    }
}
