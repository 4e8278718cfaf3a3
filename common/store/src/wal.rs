//! The write-ahead log: what makes a round of many small appends durable with one sync.
//!
//! A sync of a file that has grown costs the file system's journal a commit, and a round that touched a hundred
//! partitions costs a hundred of them. So the bytes of a round, which are in the partitions' files already, are copied
//! into one preallocated file, in place and past the page cache, and that is synced; then the round is answered. The
//! partitions' own files are synced in the background, before the log's file is used again. After a crash the next
//! opening puts into the partitions' files what they lost (`replay.rs`), before anything looks at them.
//!
//! Invariants:
//! - from where a partition's own file is durable (`settled`) to its durable end, its bytes are in the log;
//! - a file of the log is used again only when everything in it is settled;
//! - before a partition's files are changed otherwise than by appending, it is settled and forgotten here.
//!
//! The log is a convenience: a round it cannot take (too large, the log full, the disk nearly full, an error) is made
//! durable by syncing the partitions' files, as if there were none.

mod format;
mod keeper;
mod replay;

use crate::committer::Work;
use crate::disk::{Disk, write_all_at};
use crate::errors::OpenError;
use crate::files::{files_limit, unsettled_files_max};
use crate::metrics::{FlushCause, StoreMetrics};
use crate::partition::Partition;
use format::{BLOCK_BYTES, Buffer, Use};
use keeper::{Job, Jobs};
use metaq_types::limits::{WAL_RANGE_BYTES_MAX, WAL_ROUND_BYTES_MAX, WAL_UNSETTLED_BYTES_MAX};
use metaq_types::{Offset, PartitionId};
use parking_lot::{Condvar, Mutex};
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, IoSlice};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

pub(crate) use replay::{Replayed, check, lacking, replay};
use replay::{clear, give_back};

/// The size of the write-ahead log, and when it begins.
#[derive(Clone, Copy, Debug)]
pub struct WalOptions {
    /// At least 2; they are used in turn.
    pub files: usize,
    pub file_bytes: u64,
    /// Rounds synced without it before its files are made: a broker that syncs now and then needs none.
    pub begin_after_rounds: u64,
    /// While the disk has less room than this, no file is made.
    pub free_bytes_min: u64,
    /// Each partition of which the log has what its own file may lack keeps that file open: so many a file of the log.
    pub partitions_max: usize,
}

impl Default for WalOptions {
    /// 64 MiB in all. Files of 8 MiB hold some hundred rounds, so that settling hundreds of partitions pays off.
    fn default() -> WalOptions {
        let files = 8;
        WalOptions {
            files,
            file_bytes: 8 * 1024 * 1024,
            begin_after_rounds: 64,
            free_bytes_min: 1024 * 1024 * 1024,
            partitions_max: unsettled_files_max(files_limit()) / files,
        }
    }
}

/// The unsynced end of a partition's log.
pub(crate) struct Unsynced {
    pub(crate) file: Arc<File>,
    /// Start of the segment that the range lies in.
    pub(crate) segment: Offset,
    pub(crate) from: Offset,
    pub(crate) to: Offset,
}

pub(crate) struct Wal {
    disk: Arc<dyn Disk>,
    directory: PathBuf,
    options: WalOptions,
    ring: Mutex<Ring>,
    /// A file of the ring can be used again, or never will be.
    changed: Condvar,
    /// Rounds go through here.
    active: AtomicBool,
    rounds_without: AtomicU64,
    jobs: Jobs,
    /// Of which bytes are kept although no data path had them.
    absent: Mutex<BTreeSet<PartitionId>>,
}

struct Ring {
    slots: Vec<Slot>,
    current: Option<Current>,
    /// Random, of this opening.
    session: u64,
    /// Of the newest use of a file.
    sequence: u64,
    /// Why the log is not used any more before the next opening.
    failed: Option<String>,
    buffer: Buffer,
}

/// A file of the ring.
enum Slot {
    Missing,
    /// The keeper is making it.
    Preparing,
    Free(Arc<File>),
    /// Written to, or waiting until what is in it is settled.
    Busy(Arc<File>),
    /// What is in it could not be settled: it stays as it is until the next opening.
    Stuck,
}

/// The file that is written to.
struct Current {
    place: usize,
    file: Arc<File>,
    this: Use,
    /// Where the next entry goes; the header goes out with the first.
    position: u64,
    entries: u64,
    touched: Vec<Arc<Partition>>,
}

impl Current {
    /// For an entry of so many bytes that covers these partitions.
    fn has_room(&self, bytes: u64, covered: &[(Work, Offset)], options: &WalOptions) -> bool {
        let is_new = |partition: &Partition| partition.wal_use.load(Ordering::Relaxed) != self.this.sequence;
        let new = covered.iter().filter(|(work, _)| is_new(&work.partition)).count();
        self.position.max(BLOCK_BYTES) + bytes <= options.file_bytes
            && self.touched.len() + new <= options.partitions_max.max(1)
    }

    fn touch(&mut self, partition: &Arc<Partition>) {
        if partition.wal_use.swap(self.this.sequence, Ordering::Relaxed) != self.this.sequence {
            self.touched.push(partition.clone());
        }
    }
}

impl Wal {
    pub(crate) fn new(
        disk: Arc<dyn Disk>,
        directory: PathBuf,
        options: WalOptions,
        replayed: Replayed,
    ) -> io::Result<Wal> {
        let ring = Ring {
            slots: std::iter::repeat_with(|| Slot::Missing).take(options.files.max(2)).collect(),
            current: None,
            session: replayed.session,
            sequence: replayed.sequence,
            failed: None,
            buffer: Buffer::new()?,
        };
        Ok(Wal {
            disk,
            directory,
            options,
            ring: Mutex::new(ring),
            changed: Condvar::new(),
            active: AtomicBool::new(false),
            rounds_without: AtomicU64::new(0),
            jobs: Jobs::default(),
            absent: Mutex::new(replayed.absent),
        })
    }

    /// To be called before a partition is loaded from `root`, or made in its directory there, which exists.
    pub(crate) fn give_back(&self, partition: &PartitionId, root: &Arc<Path>) -> Result<(), OpenError> {
        let mut absent = self.absent.lock();
        if absent.contains(partition) {
            give_back(&*self.disk, &self.directory, root, partition)?;
            absent.remove(partition);
        }
        Ok(())
    }

    pub(crate) fn is_active(&self) -> bool {
        self.active.load(Ordering::Relaxed)
    }

    /// A committer has synced files for answers that waited. Enough of these, and the log begins.
    pub(crate) fn note_round_without(&self) {
        let rounds = self.rounds_without.fetch_add(1, Ordering::Relaxed) + 1;
        if rounds.is_multiple_of(self.options.begin_after_rounds.max(1)) && !self.is_active() {
            self.jobs.push(Job::Begin);
        }
    }

    /// Makes a round durable with one sync, and gives back what has to be synced otherwise.
    pub(crate) fn commit(&self, round: Vec<Work>, metrics: &StoreMetrics) -> Vec<Work> {
        let mut ring = self.ring.lock();
        let entry = &mut ring.buffer;
        entry.begin();
        let (mut covered, mut left) = (Vec::with_capacity(round.len()), Vec::new());
        for work in round {
            let Some(unsynced) = work.partition.unsynced() else { continue };
            let length = unsynced.to.bytes_since(unsynced.from);
            let fits = unsynced.from >= unsynced.segment
                && length <= u64::from(WAL_RANGE_BYTES_MAX)
                && entry.payload_bytes() as u64 + length <= u64::from(WAL_ROUND_BYTES_MAX)
                && covered.len() < self.options.partitions_max.max(1);
            let position = unsynced.from.bytes_since(unsynced.segment.min(unsynced.from)) as u32;
            let read = |room: &mut [u8]| unsynced.file.read_exact_at(room, position.into());
            let (id, segment) = (work.partition.id(), unsynced.segment.get());
            // A file that cannot be read is for the sync of that file to judge.
            if fits && entry.range(id, segment, position, length as u32, read).is_ok() {
                covered.push((work, unsynced.to));
            } else {
                left.push(work);
            }
        }
        let started = Instant::now();
        let written = if entry.is_empty() { Ok(false) } else { self.append(&mut ring, &covered) };
        match written {
            Ok(true) => {
                let current = ring.current.as_mut().expect("it has just been written to");
                covered.iter().for_each(|(work, _)| current.touch(&work.partition));
                drop(ring);
                metrics.count_sync(FlushCause::Commit, started.elapsed());
                metrics.wal_syncs.fetch_add(1, Ordering::Relaxed);
                for (work, to) in covered {
                    work.partition.in_wal(to);
                    self.settle_early(work.partition, to);
                }
                return left;
            }
            Ok(false) => {}
            Err(error) => {
                metrics.wal_failed.store(1, Ordering::Relaxed);
                self.fail(&mut ring, &error);
            }
        }
        left.extend(covered.into_iter().map(|(work, _)| work));
        left
    }

    /// Has a partition with much that only the log holds settled now. Left until the log's file is full, megabytes would
    /// be synced at once, and rounds would wait behind them.
    fn settle_early(&self, partition: Arc<Partition>, to: Offset) {
        let unsettled = to.bytes_since(partition.cursors.settled().min(to));
        if unsettled >= u64::from(WAL_UNSETTLED_BYTES_MAX) && !partition.settles.swap(true, Ordering::Relaxed) {
            self.jobs.push(Job::SettleEarly(partition));
        }
    }

    /// Nothing said of a partition so far is put into its files any more, durably. It is settled, and its files are about
    /// to be changed.
    pub(crate) fn forget(&self, partition: &PartitionId) -> Result<(), String> {
        let mut ring = self.ring.lock();
        loop {
            if let Some(reason) = &ring.failed {
                return Err(format!("{reason}; start the broker again first"));
            }
            if ring.current.is_none() {
                return Ok(());
            }
            ring.buffer.begin();
            ring.buffer.forget(partition);
            match self.append(&mut ring, &[]) {
                Ok(true) => return Ok(()),
                Ok(false) if self.is_stuck(&ring) => {
                    return Err(
                        "the write-ahead log is full, and a partition's file cannot be synced; see the log, and \
                                start the broker again first"
                            .to_owned(),
                    );
                }
                Ok(false) => self.changed.wait(&mut ring),
                Err(error) => self.fail(&mut ring, &error),
            }
        }
    }

    /// Puts the entry in the buffer behind the others, durably; `false` when there is no room for it now.
    fn append(&self, ring: &mut Ring, covered: &[(Work, Offset)]) -> io::Result<bool> {
        let bytes = ring.buffer.file_bytes();
        let has_room = |current: &Current| current.has_room(bytes, covered, &self.options);
        let is_full = |ring: &Ring| !ring.current.as_ref().is_some_and(has_room);
        if is_full(ring) && (!self.advance(ring) || is_full(ring)) {
            return Ok(false);
        }
        let Some(current) = &mut ring.current else { return Ok(false) };
        let blocks = match current.entries {
            0 => ring.buffer.finish_first(current.this),
            number => ring.buffer.finish(current.this, number),
        };
        write_all_at(&*self.disk, &current.file, current.position, &mut [IoSlice::new(blocks)])?;
        self.disk.sync_data(&current.file)?;
        current.position += blocks.len() as u64;
        current.entries += 1;
        Ok(true)
    }

    /// Goes on with the next file, if that is free, and leaves the current one to the keeper.
    fn advance(&self, ring: &mut Ring) -> bool {
        let Some(left) = &ring.current else { return false };
        let next = (left.place + 1) % ring.slots.len();
        if matches!(ring.slots[next], Slot::Missing) {
            ring.slots[next] = Slot::Preparing;
            self.jobs.push(Job::Prepare(next));
        }
        if !matches!(ring.slots[next], Slot::Free(_)) {
            return false;
        }
        let left = ring.current.take().expect("looked at above");
        self.jobs.push(Job::Settle { place: left.place, partitions: left.touched });
        self.begin_at(ring, next)
    }

    /// Writes to this file from now on, and has the one behind it made.
    fn begin_at(&self, ring: &mut Ring, place: usize) -> bool {
        let Slot::Free(file) = &ring.slots[place] else { return false };
        let file = file.clone();
        ring.slots[place] = Slot::Busy(file.clone());
        ring.sequence += 1;
        let this = Use { sequence: ring.sequence, session: ring.session };
        ring.current = Some(Current { place, file, this, position: 0, entries: 0, touched: Vec::new() });
        let next = (place + 1) % ring.slots.len();
        if matches!(ring.slots[next], Slot::Missing) {
            ring.slots[next] = Slot::Preparing;
            self.jobs.push(Job::Prepare(next));
        }
        true
    }

    fn is_stuck(&self, ring: &Ring) -> bool {
        let next = ring.current.as_ref().map(|current| (current.place + 1) % ring.slots.len());
        next.is_some_and(|next| matches!(ring.slots[next], Slot::Stuck))
    }

    /// The log is not used any more. What is in it stays for the next opening; what is only in it is settled now.
    fn fail(&self, ring: &mut Ring, error: &io::Error) {
        let reason = format!("the write-ahead log in {} failed: {error}", self.directory.display());
        tracing::error!(reason, "each partition's file is synced instead until the broker is started again");
        self.active.store(false, Ordering::Relaxed);
        if let Some(current) = ring.current.take() {
            ring.slots[current.place] = Slot::Stuck;
            self.jobs.push(Job::Settle { place: current.place, partitions: current.touched });
        }
        ring.failed = Some(reason);
        self.changed.notify_all();
    }

    /// After all partitions are settled, at an orderly close: nothing in the files counts any more, whoever writes to
    /// the partitions' files next.
    pub(crate) fn close(&self) -> Result<(), OpenError> {
        self.active.store(false, Ordering::Relaxed);
        self.ring.lock().current = None;
        clear(&*self.disk, &self.directory)
    }
}
