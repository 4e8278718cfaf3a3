use crate::metrics::{self, Samples};
use metaq_store::{FlushCause, Store};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

pub(super) fn sample(store: &Store, samples: &mut Samples) {
    let (counted, report) = (store.metrics(), store.recovery_report());
    let partitions = store.partitions();
    samples.count(&metrics::PARTITIONS, partitions.len() as u64);
    samples.count(&metrics::HELD_BYTES, partitions.iter().map(|partition| partition.bytes()).sum());
    samples.count(&metrics::FAILED_PARTITIONS, report.failed.len() as u64);
    samples.count(&metrics::LOST, store.lost().len() as u64);
    samples.count(&metrics::REPAIRED, report.repaired.len() as u64);
    samples.count(&metrics::DAMAGED, report.damaged.len() as u64);
    samples.put(&metrics::RECOVERY_SECONDS, report.took.as_secs_f64());
    samples.count(&metrics::QUEUED_BYTES, store.queued_bytes() as u64);
    samples.count(&metrics::EPOCH, store.epoch().0);
    let mut count = |metric, counter: &AtomicU64| samples.count(metric, counter.load(Relaxed));
    count(&metrics::POISONED, &counted.poisoned);
    count(&metrics::APPENDED_RECORDS, &counted.appends);
    count(&metrics::APPENDED_BYTES, &counted.appended_bytes);
    count(&metrics::WRITES, &counted.writes);
    count(&metrics::SYNCS, &counted.syncs);
    count(&metrics::WAL_SYNCS, &counted.wal_syncs);
    count(&metrics::WAL_FAILED, &counted.wal_failed);
    count(&metrics::ROLLS, &counted.rolls);
    count(&metrics::DISK_FULL, &counted.disk_full);
    count(&metrics::RETIRED_SEGMENTS, &counted.retired_segments);
    count(&metrics::RETIRED_BYTES, &counted.retired_bytes);
    samples.put(&metrics::SYNC_SECONDS, counted.sync_nanos.load(Relaxed) as f64 / 1e9);
    for cause in FlushCause::ALL {
        samples.put_for(&metrics::FLUSHES, &[label(cause)], counted.flushes(cause) as f64);
    }
}

fn label(cause: FlushCause) -> &'static str {
    match cause {
        FlushCause::Commit => "commit",
        FlushCause::Reader => "reader",
        FlushCause::Threshold => "threshold",
        FlushCause::Interval => "interval",
        FlushCause::Roll => "roll",
        FlushCause::Checkpoint => "checkpoint",
        FlushCause::Close => "close",
    }
}
