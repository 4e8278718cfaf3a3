use crate::clean::CleanEntry;
use crate::disk::{Aside, Disk, copy_aside};
use crate::kind;
use crate::scan::{Scan, scan};
use crate::segment::Segment;
use metaq_types::{MessageId, Offset, PartitionId};
use rustix::fs::{Access, access};
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A partition as its files tell it.
pub(crate) struct Loaded {
    pub(crate) segments: Vec<Arc<Segment>>,
    pub(crate) end: Offset,
    /// In the last segment.
    pub(crate) records: u64,
    pub(crate) highest_id: Option<MessageId>,
    pub(crate) repair: Option<Repair>,
    /// Damaged ranges that reading the last segment found.
    pub(crate) damaged_bytes: u64,
}

/// A torn tail that was set aside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Repair {
    pub partition: PartitionId,
    /// The segment that was cut.
    pub file: PathBuf,
    /// Where the log ends now.
    pub end: Offset,
    pub cut_bytes: u64,
    /// Where the bytes are that were cut off.
    pub copy: PathBuf,
}

/// A segment file as found.
pub(crate) struct Found {
    pub(crate) base: u64,
    name_digits: u8,
    pub(crate) bytes: u64,
    modified_nanos: i128,
}

/// Loads the partition in `directory`; `None` when there is no segment in it, as after a crash between the creation of
/// the directory and of its first file. An error is one sentence for the operator; nothing was changed then.
///
/// With a mark of an orderly stop that still fits, no file is opened. Else the last segment is read whole: a torn tail
/// is copied aside, named in one line and cut off (storage, "11. Start-up load and recovery").
pub(crate) fn load(
    disk: &dyn Disk,
    id: &PartitionId,
    directory: &Path,
    clean: Option<&CleanEntry>,
) -> Result<Option<Loaded>, String> {
    let mut found = list(directory)?;
    found.sort_by_key(|segment| segment.base);
    check_joined(directory, &found)?;
    let gap_behind = |sealed: &[Found], place: usize| {
        let (this, next) = (&sealed[place], found.get(place + 1)?);
        (this.base + this.bytes < next.base).then(|| offset(this.base) + this.bytes)
    };
    let Some((last, sealed)) = found.split_last() else { return Ok(None) };
    check_length(directory, sealed)?;
    let damage_of = |base: u64| match clean {
        Some(entry) => entry.damage.iter().filter(|(at, _)| *at == base).map(|(_, range)| range.clone()).collect(),
        None => Vec::new(),
    };
    let mut segments: Vec<_> = sealed
        .iter()
        .enumerate()
        .map(|(place, found)| {
            let segment = found.segment(Vec::new(), damage_of(found.base)).unread(found.bytes);
            Arc::new(match gap_behind(sealed, place) {
                Some(end) => segment.before_gap(end),
                None => segment,
            })
        })
        .collect();
    let left_so = clean.filter(|entry| {
        (entry.base, entry.length, entry.modified_nanos) == (last.base, last.bytes, last.modified_nanos)
    });
    if let Some(entry) = left_so {
        // Nothing is read, so that it can be is found out here, and not by each reader.
        let path = last.path(directory);
        access(&path, Access::READ_OK)
            .map_err(|error| format!("cannot open {}: {}", path.display(), io::Error::from(error)))?;
        segments.push(Arc::new(last.segment(Vec::new(), damage_of(last.base)).unread(last.bytes)));
        let end = offset(last.base) + last.bytes;
        let (records, highest_id) = (entry.records, None);
        return Ok(Some(Loaded { segments, end, records, highest_id, repair: None, damaged_bytes: 0 }));
    }
    let (scan, repair) = recover(disk, id, directory, last)?;
    let end = offset(last.base) + scan.end;
    let damaged_bytes = scan.damage.iter().map(|range| u64::from(range.end - range.start)).sum();
    segments.push(Arc::new(last.segment(scan.boundaries, scan.damage)));
    let (records, highest_id) = (scan.records, scan.highest_id);
    Ok(Some(Loaded { segments, end, records, highest_id, repair, damaged_bytes }))
}

impl Found {
    pub(crate) fn path(&self, directory: &Path) -> PathBuf {
        self.segment(Vec::new(), Vec::new()).path(directory)
    }

    fn segment(&self, boundaries: Vec<u32>, damage: Vec<std::ops::Range<u32>>) -> Segment {
        Segment::found(offset(self.base), self.name_digits, boundaries, damage)
    }
}

fn offset(position: u64) -> Offset {
    Offset::new(position).expect("names and lengths were checked")
}

pub(crate) fn modified_nanos(metadata: &Metadata) -> i128 {
    i128::from(metadata.mtime()) * 1_000_000_000 + i128::from(metadata.mtime_nsec())
}

/// The `.meta` files of a directory; every other name is none of ours. What is called as a segment and is no file is an
/// error: perhaps there was one, and in its place none can be made.
pub(crate) fn list(directory: &Path) -> Result<Vec<Found>, String> {
    let cannot = |error: io::Error| format!("cannot read {}: {error}", directory.display());
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).map_err(cannot)? {
        found.extend(found_at(&entry.map_err(cannot)?.path())?);
    }
    Ok(found)
}

/// What stands at one path of a partition's directory, if it is called as a segment.
pub(crate) fn found_at(path: &Path) -> Result<Option<Found>, String> {
    let name = path.file_name().and_then(|name| name.to_str());
    let Some(digits) = name.and_then(|name| name.strip_suffix(".meta")) else { return Ok(None) };
    let base = digits.parse::<u64>().ok().filter(|_| digits.bytes().all(|byte| byte.is_ascii_digit()));
    let metadata = match kind::file(path) {
        Ok(Some(metadata)) => metadata,
        Err(reason) if base.is_some() => return Err(reason),
        _ => return Ok(None),
    };
    let (Some(base), Ok(name_digits)) = (base, u8::try_from(digits.len())) else {
        return Err(format!("{} is not named by an offset; move it elsewhere", path.display()));
    };
    let bytes = metadata.len();
    if Offset::new(base.saturating_add(bytes)).is_none() {
        return Err(format!("{} of {bytes} bytes ends beyond the last offset; move it elsewhere", path.display()));
    }
    Ok(Some(Found { base, name_digits, bytes, modified_nanos: modified_nanos(&metadata) }))
}

/// Where the log in a directory ends by the names and lengths of its files.
pub(crate) fn end_of_files(directory: &Path) -> Option<Offset> {
    let found = list(directory).ok()?;
    found.iter().filter_map(|segment| Offset::new(segment.base + segment.bytes)).max()
}

/// Stands beside a segment that does not join the one before it, on purpose: a slave's master no longer had what lies
/// between.
pub(crate) fn gap_mark(directory: &Path, base: Offset) -> PathBuf {
    directory.join(format!("{:020}.meta.gap", base.get()))
}

fn check_joined(directory: &Path, found: &[Found]) -> Result<(), String> {
    found.windows(2).try_for_each(|pair| joined(directory, &pair[0], &pair[1]))
}

/// Whether a segment begins where the one before it ends, or behind a gap that is marked as one.
pub(crate) fn joined(directory: &Path, before: &Found, after: &Found) -> Result<(), String> {
    let end = before.base + before.bytes;
    if end == after.base || end < after.base && gap_mark(directory, offset(after.base)).exists() {
        return Ok(());
    }
    Err(format!(
        "in {} the segment at {} ends at {end} and the next begins at {}: segments must join; restore the missing file, \
         or move those of one side elsewhere",
        directory.display(),
        before.base,
        after.base
    ))
}

/// Positions are 32 bits. What the last segment has beyond is a tail that is cut off.
fn check_length(directory: &Path, sealed: &[Found]) -> Result<(), String> {
    sealed.iter().try_for_each(|found| fits(directory, found))
}

/// Whether a segment that is not the last is as short as one can be.
pub(crate) fn fits(directory: &Path, found: &Found) -> Result<(), String> {
    if found.bytes <= u64::from(u32::MAX) {
        return Ok(());
    }
    Err(format!(
        "{} of {} bytes is longer than a segment can be; restore it, or move it and those before it elsewhere",
        found.path(directory).display(),
        found.bytes
    ))
}

/// Reads the last segment, makes what is in it durable, and cuts off a torn tail.
fn recover(
    disk: &dyn Disk,
    id: &PartitionId,
    directory: &Path,
    last: &Found,
) -> Result<(Scan, Option<Repair>), String> {
    let path = last.path(directory);
    let cannot = |what: &str, error: io::Error| format!("cannot {what} {}: {error}", path.display());
    let file = disk.open(&path).map_err(|error| cannot("open", error))?;
    // What a broker that was killed had written may never have been synced, and what a failed sync left in memory may
    // not be what is on the device: write back what can be, then read what is there.
    disk.sync_data(&file).map_err(|error| cannot("sync", error))?;
    disk.forget_cached(&file);
    let scan = scan(&file, u32::try_from(last.bytes).unwrap_or(u32::MAX)).map_err(|error| cannot("read", error))?;
    disk.sync_dir(directory).map_err(|error| format!("cannot sync {}: {error}", directory.display()))?;
    for damage in &scan.damage {
        tracing::warn!(
            file = %path.display(), from = damage.start, to = damage.end,
            "a record is damaged and good ones follow: it is kept, and readers are led across it"
        );
    }
    let cut_bytes = last.bytes - scan.end;
    if cut_bytes == 0 {
        return Ok((scan, None));
    }
    let copy = copy_aside(disk, &path, &file, scan.end, last.bytes, Aside::Torn)
        .map_err(|error| cannot("copy the tail of", error))?;
    disk.set_len(&file, scan.end).map_err(|error| cannot("cut the tail of", error))?;
    disk.sync_data(&file).map_err(|error| cannot("sync", error))?;
    tracing::warn!(
        file = %path.display(), at = scan.end, cut_bytes, copy = %copy.display(),
        "the last segment ended in no whole message: its tail was set aside and cut off"
    );
    let end = offset(last.base) + scan.end;
    Ok((scan, Some(Repair { partition: id.clone(), file: path, end, cut_bytes, copy })))
}
