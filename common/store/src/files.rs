use crate::disk::Disk;
use crate::segment::Segment;
use metaq_types::limits::OPEN_FILES_MAX;
use parking_lot::Mutex;
use rustix::process::{Resource, getrlimit};
use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Segment files kept open, over all partitions of a store. A handle given out stays valid when the cache lets go of
/// it: a slice being sent and a writer with unsynced bytes hold their own.
pub(crate) struct FileCache {
    /// The hand of a clock: whoever comes to the front unused since the last round is closed.
    open: Mutex<VecDeque<Arc<Segment>>>,
    files_max: usize,
}

impl FileCache {
    pub(crate) fn new(files_max: usize) -> FileCache {
        FileCache { open: Mutex::new(VecDeque::new()), files_max: files_max.max(1) }
    }

    pub(crate) fn get(
        &self,
        disk: &dyn Disk,
        segment: &Arc<Segment>,
        path: impl FnOnce() -> PathBuf,
    ) -> io::Result<Arc<File>> {
        if let Some(file) = segment.cached.load_full() {
            segment.used.store(true, Ordering::Relaxed);
            return Ok(file);
        }
        let file = Arc::new(disk.open(&path())?);
        Ok(self.keep(segment, file))
    }

    /// Keeps a file that was just opened or created, and returns the one to use: the other's, if another thread opened
    /// it in between.
    pub(crate) fn keep(&self, segment: &Arc<Segment>, file: Arc<File>) -> Arc<File> {
        let mut open = self.open.lock();
        if segment.retired.load(Ordering::SeqCst) {
            return file;
        }
        if let Some(earlier) = segment.cached.load_full() {
            return earlier;
        }
        segment.cached.store(Some(file.clone()));
        open.push_back(segment.clone());
        while open.len() > self.files_max {
            let Some(oldest) = open.pop_front() else { break };
            if oldest.used.swap(false, Ordering::Relaxed) {
                open.push_back(oldest);
            } else {
                oldest.cached.store(None);
                oldest.forget_boundaries();
            }
        }
        file
    }

    /// Closes the file of a segment that has left its log, as soon as nobody uses it: its space is wanted back.
    pub(crate) fn forget(&self, segment: &Arc<Segment>) {
        let mut open = self.open.lock();
        segment.retired.store(true, Ordering::SeqCst);
        if segment.cached.swap(None).is_some() {
            open.retain(|other| !Arc::ptr_eq(other, segment));
        }
    }
}

/// How many of the files that a process may have open are segments at most: they must not take what connections need.
pub fn open_files_max(of: usize) -> usize {
    cached_files_max(of) + unsettled_files_max(of)
}

/// Those that the cache keeps.
pub(crate) fn cached_files_max(of: usize) -> usize {
    OPEN_FILES_MAX.min(of / 4)
}

/// Those that the write-ahead log keeps, whether the cache has let go of them or not.
pub(crate) fn unsettled_files_max(of: usize) -> usize {
    of / 4
}

/// How many files this process may have open.
pub fn files_limit() -> usize {
    let limit = getrlimit(Resource::Nofile).current.and_then(|files| usize::try_from(files).ok());
    limit.unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::OsDisk;
    use metaq_types::Offset;

    #[test]
    fn the_least_used_files_are_closed_first() {
        let directory = tempfile::tempdir().unwrap();
        let cache = FileCache::new(3);
        let segments: Vec<_> = (0..6)
            .map(|base| {
                let segment = Arc::new(Segment::new(Offset::new(base).unwrap()));
                std::fs::write(segment.path(directory.path()), b"x").unwrap();
                segment
            })
            .collect();
        let get = |place: usize| {
            let segment: &Arc<Segment> = &segments[place];
            cache.get(&OsDisk, segment, || segment.path(directory.path())).unwrap()
        };
        let held = get(0);
        for place in [1, 2, 1, 3, 1, 4, 1, 5] {
            get(place);
        }
        let open: Vec<_> = segments.iter().map(|segment| segment.cached.load().is_some()).collect();
        assert_eq!(open.iter().filter(|open| **open).count(), 3);
        assert!(open[1] && open[5] && !open[0], "{open:?}");
        assert_eq!(held.metadata().unwrap().len(), 1, "a handle given out stays valid");
    }
}
