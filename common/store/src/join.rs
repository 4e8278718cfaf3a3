//! What a node does to its own logs when it joins a master whose past is another: the part the master does not have is
//! set aside and cut, and what the master no longer has is stepped over. Nothing is ever deleted.

use crate::disk::{Aside, copy_aside, set_aside};
use crate::errors::CreateError;
use crate::load::{gap_mark, load};
use crate::metrics::FlushCause;
use crate::partition::Partition;
use crate::segment::Segment;
use crate::store::Store;
use metaq_types::{Offset, PartitionId};
use std::path::PathBuf;
use std::sync::Arc;

/// The part of a log that was cut off.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SetAside {
    pub from: Offset,
    pub bytes: u64,
    /// Where the bytes are now, oldest first.
    pub copies: Vec<PathBuf>,
}

impl Store {
    /// Sets aside everything a partition holds from `to` on, a record boundary, and ends its log there. `None` when
    /// there was nothing. Appends in flight are refused; readers are sent to the partition anew.
    ///
    /// Newest segment first, so that a crash in between leaves a log that is merely not yet cut.
    pub fn cut(&self, id: &PartitionId, to: Offset) -> Result<Option<SetAside>, CreateError> {
        self.replace(id, |old| {
            let end = old.positions().written;
            if end <= to {
                return Ok(None);
            }
            let from = to.max(old.positions().kept);
            let mut copies = Vec::new();
            let segments = old.segments.load_full();
            let mut segment_end = end;
            for segment in segments.iter().rev() {
                if segment.base < to && segment.gap_from().unwrap_or(segment_end) <= to {
                    break;
                }
                copies.push(cut_segment(old, segment, to)?);
                segment_end = segment.base;
            }
            copies.reverse();
            if segments[0].base >= to {
                create_segment(old, to)?;
            }
            let disk = &old.shared.disk;
            disk.sync_dir(&old.directory()).map_err(|error| format!("cannot sync the directory: {error}"))?;
            Ok(Some(SetAside { from, bytes: end.bytes_since(from), copies }))
        })
    }

    /// Lets the log go on at `base`, above its end: what lies between is not there, is marked as a gap beside the new
    /// segment, and readers are led across it.
    pub fn skip_to(&self, id: &PartitionId, base: Offset) -> Result<(), CreateError> {
        self.replace(id, |old| {
            let end = old.positions().written;
            if base <= end {
                return Err(format!("the log ends at {end}, which is not below {base}"));
            }
            let disk = &*old.shared.disk;
            let mark = gap_mark(&old.directory(), base);
            // The mark first: a hole without one would keep the partition from being served.
            match disk.create_new(&mark) {
                Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
                    return Err(format!("cannot create {}: {error}", mark.display()));
                }
                _ => {}
            }
            disk.sync_dir(&old.directory()).map_err(|error| format!("cannot sync the directory: {error}"))?;
            create_segment(old, base)?;
            disk.sync_dir(&old.directory()).map_err(|error| format!("cannot sync the directory: {error}"))
        })
    }

    /// Closes the partition, lets `change` work on its files, and serves what they are then, changed or not.
    fn replace<T>(
        &self,
        id: &PartitionId,
        change: impl FnOnce(&Arc<Partition>) -> Result<T, String>,
    ) -> Result<T, CreateError> {
        let failed = |reason: String| CreateError::Io { partition: id.clone(), reason, disk_full: false };
        self.exchange(id, |old| {
            old.close();
            old.commit(FlushCause::Close);
            if let Some(wal) = &old.shared.wal {
                wal.forget(id).map_err(failed)?;
            }
            let changed = change(old).map_err(failed);
            let directory = old.directory();
            let loaded = load(&*old.shared.disk, id, &directory, None)
                .and_then(|loaded| loaded.ok_or_else(|| format!("{} holds no segment any more", directory.display())))
                .map_err(failed)?;
            Ok((Partition::reloaded(old, loaded), changed))
        })?
    }
}

/// Sets aside what lies from `to` on: the tail, or the whole file.
fn cut_segment(partition: &Partition, segment: &Arc<Segment>, to: Offset) -> Result<PathBuf, String> {
    let disk = &*partition.shared.disk;
    let path = segment.path(&partition.directory());
    let cannot = |what: &str, error: std::io::Error| format!("cannot {what} {}: {error}", path.display());
    if segment.base >= to {
        return set_aside(disk, &path, Aside::Diverged).map_err(|error| cannot("set aside", error));
    }
    let file = partition.file_of(segment).map_err(|error| cannot("open", error))?;
    let (keep, length) = (to.bytes_since(segment.base), file.metadata().map_err(|e| cannot("read", e))?.len());
    let copy = copy_aside(disk, &path, &file, keep, length, Aside::Diverged)
        .map_err(|error| cannot("copy the tail of", error))?;
    disk.set_len(&file, keep).and_then(|()| disk.sync_data(&file)).map_err(|error| cannot("cut", error))?;
    Ok(copy)
}

fn create_segment(partition: &Partition, base: Offset) -> Result<(), String> {
    let path = Segment::new(base).path(&partition.directory());
    partition.shared.disk.create_new(&path).map_err(|error| format!("cannot create {}: {error}", path.display()))?;
    Ok(())
}
