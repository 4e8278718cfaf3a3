//! The thread behind the write-ahead log: it makes the log's files, and settles what is in those that are full.

use super::format::BLOCK_BYTES;
use super::{Slot, Wal};
use crate::disk::write_all_at;
use crate::metrics::FlushCause;
use crate::partition::Partition;
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, ErrorKind, IoSlice};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Zeros of one write when a file is made.
const FILL_BYTES: usize = 1024 * 1024;

pub(super) enum Job {
    /// Rounds are to go through the log from now on.
    Begin,
    /// Make this file of the ring.
    Prepare(usize),
    /// Sync this partition's file.
    SettleEarly(Arc<Partition>),
    /// Sync the files of these partitions; then this file of the ring is free.
    Settle { place: usize, partitions: Vec<Arc<Partition>> },
}

#[derive(Default)]
pub(super) struct Jobs {
    state: Mutex<State>,
    wake: Condvar,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Job>,
    stopped: bool,
}

impl Jobs {
    pub(super) fn push(&self, job: Job) {
        let mut state = self.state.lock();
        if !state.stopped {
            state.waiting.push_back(job);
            self.wake.notify_one();
        }
    }

    fn next(&self) -> Option<Job> {
        let mut state = self.state.lock();
        loop {
            if state.stopped {
                return None;
            }
            if let Some(job) = state.waiting.pop_front() {
                return Some(job);
            }
            self.wake.wait(&mut state);
        }
    }

    fn stop(&self) {
        let mut state = self.state.lock();
        state.stopped = true;
        state.waiting.clear();
        self.wake.notify_one();
    }
}

impl Wal {
    /// The thread.
    pub(crate) fn keep(&self) {
        while let Some(job) = self.jobs.next() {
            match job {
                Job::Begin => self.begin(),
                Job::Prepare(place) => {
                    self.prepare(place);
                }
                Job::SettleEarly(partition) => {
                    partition.settle(FlushCause::Checkpoint);
                    partition.settles.store(false, Ordering::Relaxed);
                }
                Job::Settle { place, partitions } => self.settle(place, &partitions),
            }
        }
    }

    /// Ends the thread. What is not settled yet stays so.
    pub(crate) fn stop(&self) {
        self.jobs.stop();
        self.active.store(false, Ordering::Relaxed);
    }

    fn begin(&self) {
        let missing = {
            let ring = self.ring.lock();
            if ring.current.is_some() || ring.failed.is_some() {
                return;
            }
            matches!(ring.slots[0], Slot::Missing)
        };
        if missing && !self.prepare(0) {
            return;
        }
        let mut ring = self.ring.lock();
        if self.begin_at(&mut ring, 0) {
            self.active.store(true, Ordering::Relaxed);
        }
    }

    /// Makes a file of the ring, whole and durable; without it the log is as it is.
    fn prepare(&self, place: usize) -> bool {
        let path = self.directory.join(place.to_string());
        let is_whole = path.metadata().is_ok_and(|metadata| metadata.len() == self.options.file_bytes);
        let made = if is_whole {
            self.reuse(&path).map(Some)
        } else if self.has_space() {
            self.make(&path).map(Some)
        } else {
            Ok(None)
        };
        let slot = match made {
            Ok(Some(file)) => Slot::Free(Arc::new(file)),
            Ok(None) => Slot::Missing,
            Err(error) => {
                tracing::warn!(directory = %self.directory.display(), %error, "no file for the write-ahead log: syncs take longer");
                Slot::Missing
            }
        };
        let free = matches!(slot, Slot::Free(_));
        self.ring.lock().slots[place] = slot;
        self.changed.notify_all();
        free
    }

    /// A whole file that an earlier opening has left, cleared by the replay. That one may have ended before it made it
    /// durable, name and all.
    fn reuse(&self, path: &Path) -> io::Result<File> {
        let file = self.disk.open_direct(path)?;
        self.disk.sync_data(&file)?;
        self.disk.sync_dir(&self.directory)?;
        Ok(file)
    }

    fn has_space(&self) -> bool {
        let disk = rustix::fs::statvfs(self.directory.parent().unwrap_or(&self.directory));
        disk.is_ok_and(|disk| disk.f_bavail * disk.f_frsize >= self.options.free_bytes_min)
    }

    /// Zeros, written: an entry then overwrites blocks that the file has, so its sync has nothing to add to the file
    /// system's journal.
    fn make(&self, path: &Path) -> io::Result<File> {
        let disk = &*self.disk;
        if !self.directory.is_dir() {
            crate::disk::create_dirs(disk, &self.directory)?;
        }
        match disk.remove(path) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let file = disk.create_new(path)?;
        let filled = (|| {
            let zeros = vec![0; FILL_BYTES.min(self.options.file_bytes as usize)];
            let mut at = 0;
            while at < self.options.file_bytes {
                let length = (self.options.file_bytes - at).min(zeros.len() as u64) as usize;
                write_all_at(disk, &file, at, &mut [IoSlice::new(&zeros[..length])])?;
                at += length as u64;
            }
            disk.sync_data(&file)?;
            disk.sync_dir(&self.directory)
        })();
        if let Err(error) = filled {
            // Half a file would only take the place that messages need.
            let _ = disk.remove(path);
            return Err(error);
        }
        disk.open_direct(path)
    }

    fn settle(&self, place: usize, partitions: &[Arc<Partition>]) {
        let settled = partitions.iter().filter(|partition| !partition.settle(FlushCause::Checkpoint)).count() == 0;
        let mut ring = self.ring.lock();
        ring.slots[place] = match std::mem::replace(&mut ring.slots[place], Slot::Stuck) {
            Slot::Busy(file) if settled => Slot::Free(file),
            _ => Slot::Stuck,
        };
        self.changed.notify_all();
    }
}

const _: () = assert!((FILL_BYTES as u64).is_multiple_of(BLOCK_BYTES));
