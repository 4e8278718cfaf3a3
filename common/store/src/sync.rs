//! Making what is written durable: in the partition's own file, or through the write-ahead log.

use crate::metrics::FlushCause;
use crate::partition::Partition;
use crate::wal::Unsynced;
use metaq_types::Offset;
use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

impl Partition {
    /// Syncs the file with what is written at this moment. Appends go on meanwhile. False: the partition is poisoned.
    pub(crate) fn settle(self: &Arc<Self>, cause: FlushCause) -> bool {
        let unsynced = self.with_writer(|writer| {
            writer.unsynced_records = 0;
            writer.unsynced_file.clone().map(|file| (file, writer.end))
        });
        let Some((file, end)) = unsynced else { return self.poison.get().is_none() };
        let synced = self.sync_file(&file, end, cause);
        // After a failure the handle is kept for nothing, but what is queued is refused here.
        self.with_writer(|writer| {
            if synced && writer.end == end {
                writer.unsynced_file = None;
            }
        });
        synced
    }

    /// What is written and not durable at this moment, for the write-ahead log.
    pub(crate) fn unsynced(self: &Arc<Self>) -> Option<Unsynced> {
        self.with_writer(|writer| {
            let (from, to) = (self.cursors.durable(), writer.end);
            if from >= to || self.poison.get().is_some() {
                return None;
            }
            writer.unsynced_records = 0;
            let file = writer.unsynced_file.clone()?;
            Some(Unsynced { file, segment: writer.active.base, from, to })
        })
    }

    /// The write-ahead log holds the bytes up to `to`, durably.
    pub(crate) fn in_wal(self: &Arc<Self>, to: Offset) {
        self.syncs.fetch_add(1, Ordering::Relaxed);
        let members_gain = self.cursors.publish_durable(to);
        self.tell_durable(members_gain);
    }

    /// Makes the bytes up to `end` durable in their file, which were written through `file`, and tells whoever waits for
    /// that. False: the partition is poisoned.
    pub(crate) fn sync_file(self: &Arc<Self>, file: &File, end: Offset, cause: FlushCause) -> bool {
        let members_gain = {
            let _turn = self.sync_turn.lock();
            if self.poison.get().is_some() {
                return false;
            }
            if end <= self.cursors.settled() {
                return true;
            }
            let started = Instant::now();
            if let Err(error) = self.shared.disk.sync_data(file) {
                let directory = self.directory();
                self.poison(format!("a sync in {} failed: {error}", directory.display()));
                return false;
            }
            self.shared.metrics.count_sync(cause, started.elapsed());
            self.syncs.fetch_add(1, Ordering::Relaxed);
            self.cursors.publish_settled(end)
        };
        self.tell_durable(members_gain);
        true
    }

    fn tell_durable(self: &Arc<Self>, members_gain: bool) {
        if members_gain {
            self.wake_members();
        }
        if !self.shared.releases.hand_over(self) {
            self.release();
        }
    }

    /// Answers what is durable, and wakes whoever waits to read it.
    pub(crate) fn release(&self) {
        let end = self.cursors.durable();
        self.acks.lock().on_local(end);
        self.synced_acks.lock().on_local(end);
        self.wake_readers();
    }

    /// Ends writing to this partition until the store is opened again; reading goes on. What was written and not synced
    /// is answered as unknown, what is queued is refused by whoever drains next.
    pub(crate) fn poison(&self, reason: String) {
        if self.poison.set(reason.clone()).is_err() {
            return;
        }
        self.shared.metrics.poisoned.fetch_add(1, Ordering::Relaxed);
        tracing::error!(partition = %self.id, reason, "disk error: the partition is read-only until a restart");
        self.acks.lock().fail_beyond(self.cursors.durable(), &reason);
        self.synced_acks.lock().fail_beyond(self.cursors.durable(), &reason);
    }
}
