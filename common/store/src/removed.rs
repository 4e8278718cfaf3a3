//! Files that somebody removes while they are open: what is written to them then would be gone at the next start,
//! acknowledged or not.

use crate::disk::create_dirs;
use crate::errors::{AppendError, Refusal};
use crate::load::list;
use crate::metrics::FlushCause;
use crate::partition::Partition;
use crate::roots::gone;
use crate::segment::Segment;
use crate::writer::{Writer, is_disk_full};
use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A file that was moved elsewhere still has a name, so that takes a look at the path, at most this often.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

impl Partition {
    /// To be called before anything is appended. Where the whole log was removed, as with the data of a topic that was
    /// taken out of the configuration and comes again, it begins again where it ended: offsets are never used twice
    /// (`ended.rs` does the same for files that are removed between two runs). Where a part of it is gone, or of a log
    /// that has to be that of its master, nobody can say what the rest is worth; where the data directory went with it, no
    /// start would find what comes: the partition is read-only then.
    pub(crate) fn ensure_files(self: &Arc<Self>, writer: &mut Writer, is_copy: bool) -> Result<(), AppendError> {
        let path = writer.active.path(&self.directory());
        if !is_removed(writer, &path) {
            return Ok(());
        }
        if let Some(reason) = gone(&self.root) {
            self.poison(reason.clone());
            return Err(Refusal::Poisoned(reason).into());
        }
        if is_copy || self.id.is_journal() || has_segments(&self.directory()) {
            let reason = format!("{} was removed or moved while the broker ran", path.display());
            self.poison(reason.clone());
            return Err(Refusal::Poisoned(reason).into());
        }
        self.begin_again(writer)
    }

    fn begin_again(self: &Arc<Self>, writer: &mut Writer) -> Result<(), AppendError> {
        // Whoever waits for the removed bytes is answered: they were stored before somebody took them away.
        if let Some(file) = writer.unsynced_file.take()
            && !self.sync_file(&file, writer.end, FlushCause::Roll)
        {
            let reason = self.poison.get().cloned().unwrap_or_default();
            return Err(Refusal::Poisoned(reason).into());
        }
        writer.unsynced_records = 0;
        let directory = self.directory();
        let disk = &*self.shared.disk;
        let segment = Arc::new(Segment::new(writer.end));
        let made = create_dirs(disk, &directory)
            .and_then(|()| disk.create_new(&segment.path(&directory)))
            .and_then(|file| disk.sync_dir(&directory).map(|()| file));
        let file = made.map_err(|error| cannot_begin(&directory, &error))?;
        let before = self.segments.load_full();
        self.cursors.publish_kept(writer.end);
        self.segments.store(Arc::new(vec![segment.clone()]));
        before.iter().for_each(|segment| self.shared.files.forget(segment));
        self.shared.files.keep(&segment, Arc::new(file));
        writer.active = segment;
        self.shared.lost.removed(&self.id, writer.end);
        Ok(())
    }
}

fn cannot_begin(directory: &Path, error: &io::Error) -> Refusal {
    let text = format!("cannot begin again in {}, which was removed: {error}", directory.display());
    if is_disk_full(error) { Refusal::DiskFull(text) } else { Refusal::Unavailable(text) }
}

/// Looks at the open file, which costs next to nothing, and now and then at the path.
fn is_removed(writer: &mut Writer, path: &Path) -> bool {
    let open = writer.unsynced_file.clone().or_else(|| writer.active.cached.load_full());
    let has_name = |file: &Arc<File>| rustix::fs::fstat(&**file).is_ok_and(|stat| stat.st_nlink > 0);
    match open {
        Some(file) if has_name(&file) => {
            let now = Instant::now();
            if writer.looked.is_some_and(|at| now.duration_since(at) < LOOK_INTERVAL) {
                return false;
            }
            writer.looked = Some(now);
            is_elsewhere(&file, path)
        }
        Some(_) => true,
        None => matches!(fs::metadata(path), Err(error) if error.kind() == ErrorKind::NotFound),
    }
}

/// Errors but "not found" say nothing: the write will.
fn is_elsewhere(file: &File, path: &Path) -> bool {
    match (fs::metadata(path), file.metadata()) {
        (Ok(there), Ok(open)) => (there.dev(), there.ino()) != (open.dev(), open.ino()),
        (Err(error), _) => error.kind() == ErrorKind::NotFound,
        (_, Err(_)) => false,
    }
}

/// What cannot be read is there.
fn has_segments(directory: &Path) -> bool {
    directory.is_dir() && list(directory).map_or(true, |found| !found.is_empty())
}
