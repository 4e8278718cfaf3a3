//! Which sealed segments go, and how. Always from the front, never the active one, so a log has no holes and its
//! offsets never start again.

use crate::archive::{compress, free_name};
use crate::ids::unix_ms;
use crate::load::gap_mark;
use crate::partition::Partition;
use crate::segment::Segment;
use crate::window::{HEADER, Window};
use metaq_types::limits::INDEX_INTERVAL_BYTES;
use metaq_types::{MessageId, Offset};
use std::collections::VecDeque;
use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, UNIX_EPOCH};

/// How long sealed segments are kept, and what becomes of them then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retention {
    /// A segment may go when its newest record is older than this.
    pub age: Duration,
    /// It may go as well while its log is larger than this.
    pub bytes_max: Option<u64>,
    pub disposal: Disposal,
}

impl Retention {
    /// Nothing grows so old.
    pub const FOREVER: Retention = Retention { age: Duration::MAX, bytes_max: None, disposal: Disposal::Delete };
}

/// What becomes of the file of a segment that leaves its log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disposal {
    Delete,
    /// Renamed to `<name>.meta.arc`, which nobody reads again.
    Archive,
    /// Packed into `<name>.meta.zip`; the segment is served until that is complete and synced.
    Compress,
}

/// What one run took off the front of a log.
#[derive(Debug)]
pub struct Removed {
    pub segments: u32,
    pub bytes: u64,
    /// Where the log begins now.
    pub first: Offset,
    /// Why the run ended early. The next one begins with what is left.
    pub fault: Option<RemoveError>,
}

#[derive(Debug, thiserror::Error)]
#[error("cannot {what} {path}: {source}", path = .path.display())]
pub struct RemoveError {
    what: &'static str,
    path: PathBuf,
    source: io::Error,
}

impl RemoveError {
    fn of(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> RemoveError {
        move |source| RemoveError { what, path: path.to_path_buf(), source }
    }
}

/// A segment that is off its log while its file is still there.
pub(crate) struct Retired {
    base: Offset,
    path: PathBuf,
    bytes: u64,
    /// To the name of an archive; else it is unlinked.
    rename: bool,
}

/// How many segments go from the front of a log, given by their bytes with the active one last, which never goes. Up to
/// the first that is not older than the age, or of which no time is known (`newest_ms` of its place), once the rest is
/// within the bytes allowed (storage, "12. Retention: policy").
fn expired(bytes: &[u64], newest_ms: impl Fn(usize) -> Option<i64>, retention: &Retention, now_ms: i64) -> usize {
    let mut left = bytes.iter().sum::<u64>();
    let sealed = bytes.len().saturating_sub(1);
    for (place, bytes) in bytes[..sealed].iter().enumerate() {
        let too_many = retention.bytes_max.is_some_and(|max| left > max);
        if !too_many && !newest_ms(place).is_some_and(|at| is_old(at, retention.age, now_ms)) {
            return place;
        }
        left -= bytes;
    }
    sealed
}

fn is_old(at_ms: i64, age: Duration, now_ms: i64) -> bool {
    i128::from(now_ms) - i128::from(at_ms) > i128::try_from(age.as_millis()).unwrap_or(i128::MAX)
}

impl Partition {
    /// Takes off the log the sealed segments whose newest record is older than the topic keeps them, and those that are
    /// more than it keeps. Blocks on the disk, and reads a segment when nothing else tells the age of its newest record.
    /// A slice that is being sent keeps its file; nobody else notices but those who ask for what is gone.
    pub fn expire(self: &Arc<Self>, now_ms: i64) -> Removed {
        let retention = self.rules.retention();
        self.remove_front(retention.disposal, |partition| {
            let segments = partition.segments.load_full();
            let positions = partition.positions();
            // What the quorum does not hold yet stays, however old.
            let within = segments.partition_point(|segment| segment.base <= positions.readable).max(1);
            let segments = &segments[..within];
            let ends = segments[1..].iter().map(|next| next.base).chain([positions.written]);
            let bytes: Vec<u64> = segments.iter().zip(ends).map(|(segment, end)| bytes_of(segment, end)).collect();
            let newest_ms =
                |place| partition.newest_ms(&segments[place..], now_ms, |at| is_old(at, retention.age, now_ms));
            expired(&bytes, newest_ms, &retention, now_ms)
        })
    }

    /// For a replica: takes off the log the segments that its master no longer has, which keeps `first` and what
    /// follows. Blocks on the disk. Does nothing unless a segment begins at `first`: replicas roll where their master
    /// does, and where they did not, the two are not one log. A gap right before `first` stays to be seen, with what is
    /// before it, until the master has moved on.
    pub fn trim_to(self: &Arc<Self>, first: Offset) -> Removed {
        let disposal = self.rules.retention().disposal;
        self.remove_front(disposal, |partition| {
            let segments = partition.segments.load();
            let count = segments.iter().position(|segment| segment.base == first).unwrap_or(0);
            if count > 0 && segments[count - 1].gap_from().is_some() { 0 } else { count }
        })
    }

    /// One segment after the other, so that a crash between any two steps leaves a row without a hole.
    fn remove_front(self: &Arc<Self>, disposal: Disposal, count: impl FnOnce(&Arc<Self>) -> usize) -> Removed {
        let mut retired = self.retired.lock();
        let mut removed = Removed { segments: 0, bytes: 0, first: self.cursors.kept(), fault: None };
        if self.is_closed() || self.poison.get().is_some() {
            return removed;
        }
        // What an earlier run left behind lies in front of what goes now.
        let mut outcome = self.dispose(&mut retired, &mut removed);
        if outcome.is_ok() {
            for _ in 0..count(self) {
                outcome =
                    self.retire_first(disposal, &mut retired).and_then(|()| self.dispose(&mut retired, &mut removed));
                if outcome.is_err() || self.is_closed() {
                    break;
                }
            }
        }
        removed.first = self.cursors.kept();
        removed.fault = outcome.err();
        let metrics = &self.shared.metrics;
        metrics.retired_segments.fetch_add(removed.segments.into(), Ordering::Relaxed);
        metrics.retired_bytes.fetch_add(removed.bytes, Ordering::Relaxed);
        self.log_removed(&removed);
        removed
    }

    /// One line a run in which something went.
    fn log_removed(&self, removed: &Removed) {
        let Removed { segments, bytes, first, fault } = removed;
        if *segments > 0 {
            tracing::info!(partition = %self.id, segments, bytes, %first, "old segments removed");
        }
        if let Some(fault) = fault {
            tracing::error!(partition = %self.id, "old segments stay until the next run: {fault}");
        }
    }

    /// Moves `kept`, then the list: whoever still holds the old list finds the offset gone, or the file open.
    fn retire_first(self: &Arc<Self>, disposal: Disposal, retired: &mut VecDeque<Retired>) -> Result<(), RemoveError> {
        let segments = self.segments.load_full();
        let [first, next, ..] = &segments[..] else { return Ok(()) };
        let path = first.path(&self.directory());
        let bytes = bytes_of(first, next.base);
        if disposal == Disposal::Compress {
            let file = self.file_of(first).map_err(RemoveError::of("open", &path))?;
            compress(&*self.shared.disk, &path, &file, bytes, || self.is_closed())
                .map_err(RemoveError::of("compress", &path))?;
        }
        self.cursors.publish_kept(next.base);
        self.with_writer(|_| {
            // Unless the log has begun again meanwhile, without it.
            let segments = self.segments.load();
            if Arc::ptr_eq(&segments[0], first) {
                self.segments.store(Arc::new(segments[1..].to_vec()));
            }
        });
        self.shared.files.forget(first);
        retired.push_back(Retired { base: first.base, path, bytes, rename: disposal == Disposal::Archive });
        Ok(())
    }

    /// Gets rid of the files of segments that are off the log, the oldest first, each durably before the next.
    fn dispose(&self, retired: &mut VecDeque<Retired>, removed: &mut Removed) -> Result<(), RemoveError> {
        let disk = &*self.shared.disk;
        while let Some(segment) = retired.front() {
            let path = &segment.path;
            let gone = if segment.rename {
                free_name(path, "arc").and_then(|to| disk.rename(path, &to))
            } else {
                disk.remove(path)
            };
            match gone {
                // Somebody else took it away, or a sync failed after we did.
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                other => other.map_err(RemoveError::of("remove", path))?,
            }
            let directory = self.directory();
            let _ = disk.remove(&gap_mark(&directory, segment.base));
            disk.sync_dir(&directory).map_err(RemoveError::of("sync", &directory))?;
            removed.segments += 1;
            removed.bytes += segment.bytes;
            retired.pop_front();
        }
        Ok(())
    }

    /// When the newest record of a sealed segment (the first of `rest`) was written, in milliseconds since 1970, or any
    /// time that `is_old` decides alike: ids grow along a log, so its neighbours' often do, and the segment need not be
    /// read. Where ids tell no time it is when the file was last changed: the original's are negative, and ours are ahead
    /// of the clock when that was once ahead of the time. Then the file's time may be, too, but it is not newer than
    /// those behind it.
    fn newest_ms(&self, rest: &[Arc<Segment>], now_ms: i64, is_old: impl Fn(i64) -> bool) -> Option<i64> {
        let [segment, next, ..] = rest else { return None };
        // What was found while the clock was ahead is not to be relied on now that it is not.
        if let Some(newest_ms) = segment.newest_ms.get().filter(|at| **at <= now_ms) {
            return Some(*newest_ms);
        }
        let told = |id| unix_ms(id).filter(|at| *at <= now_ms);
        let first_of = |segment| self.first_id(segment).and_then(told);
        if let Some(later_ms) = first_of(next).filter(|at| is_old(*at)) {
            return Some(later_ms);
        }
        if let Some(earlier_ms) = first_of(segment).filter(|at| !is_old(*at)) {
            return Some(earlier_ms);
        }
        let bytes = bytes_of(segment, next.base);
        let newest_ms = match self.last_id(segment, bytes).ok().flatten().and_then(told) {
            Some(newest_ms) => newest_ms,
            None => {
                let directory = self.directory();
                let mut times = rest.iter().map_while(|segment| modified_ms(&segment.path(&directory)));
                times.find(|at| *at <= now_ms)?
            }
        };
        let _ = segment.newest_ms.set(newest_ms);
        Some(newest_ms)
    }

    fn first_id(&self, segment: &Arc<Segment>) -> Option<MessageId> {
        let file = self.file_of(segment).ok()?;
        Some(Window::new(&file, HEADER, HEADER as usize).header(0).ok()??.id)
    }

    /// Steps over headers from the last known boundary to the end; `None` when that is not reached.
    fn last_id(&self, segment: &Arc<Segment>, bytes: u64) -> io::Result<Option<MessageId>> {
        let file = self.file_of(segment)?;
        let mut window = Window::new(&file, bytes, INDEX_INTERVAL_BYTES as usize);
        let mut at = u64::from(segment.boundary_before(bytes as u32));
        let mut last = None;
        while let Some(header) = window.header(at)? {
            let Some(end) = window.end_of(at)? else { return Ok(None) };
            (last, at) = (Some(header.id), end);
        }
        Ok(last.filter(|_| at == bytes))
    }
}

/// The bytes of a segment that is followed by another at `next`, or ends there.
fn bytes_of(segment: &Segment, next: Offset) -> u64 {
    segment.gap_from().unwrap_or(next).bytes_since(segment.base)
}

fn modified_ms(path: &Path) -> Option<i64> {
    let modified = fs::metadata(path).ok()?.modified().ok()?;
    i64::try_from(modified.duration_since(UNIX_EPOCH).ok()?.as_millis()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sealed segments of 10 bytes each by the times of their newest records, and an active one of 5.
    #[track_caller]
    fn check_bounded(newest_ms: &[Option<i64>], age_ms: u64, bytes_max: Option<u64>, count: usize) {
        let retention = Retention { age: Duration::from_millis(age_ms), bytes_max, disposal: Disposal::Delete };
        let bytes: Vec<u64> = newest_ms.iter().map(|_| 10).chain([5]).collect();
        let expired = expired(&bytes, |place| newest_ms[place], &retention, 1000);
        assert_eq!(expired, count, "{newest_ms:?} after {age_ms} ms or {bytes_max:?} bytes");
    }

    #[track_caller]
    fn check(newest_ms: &[Option<i64>], age_ms: u64, count: usize) {
        check_bounded(newest_ms, age_ms, None, count);
    }

    #[test]
    fn segments_go_from_the_front_only() {
        check(&[], 0, 0);
        check(&[Some(100), Some(200), Some(300)], 750, 2);
        // A restored or touched file in front keeps what is behind it.
        check(&[Some(900), Some(200), Some(300)], 500, 0);
        check(&[Some(100), Some(900), Some(300)], 500, 1);
        check(&[Some(100), None, Some(300)], 500, 1);
    }

    #[test]
    fn young_segments_go_while_there_are_too_many_bytes() {
        let young = [Some(999), None, Some(999)];
        for (bytes_max, count) in [(35, 0), (34, 1), (25, 1), (24, 2), (15, 2), (14, 3), (5, 3), (0, 3)] {
            check_bounded(&young, 500, Some(bytes_max), count);
        }
        check_bounded(&[Some(100), Some(200), Some(999)], 500, Some(30), 2);
    }

    #[test]
    fn only_what_is_older_than_the_age_goes() {
        check(&[Some(500)], 500, 0);
        check(&[Some(499)], 500, 1);
        check(&[Some(1000)], 0, 0);
        check(&[Some(999)], 0, 1);
        check(&[Some(2000)], 0, 0);
        check(&[Some(i64::MIN)], u64::MAX, 0);
        assert!(!is_old(i64::MIN, Retention::FOREVER.age, i64::MAX));
    }
}
