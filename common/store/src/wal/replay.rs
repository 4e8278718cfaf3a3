//! What the write-ahead log holds goes into the partitions' files, at the opening after a crash.

use super::format::{BLOCK_BYTES, Buffer, HEADER_BYTES, Item, Use, items, other_format, parse_header};
use crate::disk::{Aside, Disk, keep_aside, replace_file, write_all_at};
use crate::errors::OpenError;
use crate::kind;
use crate::load::list;
use crate::segment::Segment;
use metaq_types::{Offset, PartitionId};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{self, IoSlice, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The file beside those of the ring for what could not be restored.
const KEPT: &str = "kept";

/// As the files' magic is shown.
const FORMAT: &str = "metaqwal";

/// A disk writes a sector as a whole or not at all.
const SECTOR_BYTES: u64 = 512;

/// What an opening found of the log.
pub(crate) struct Replayed {
    /// The newest sequence seen.
    pub(crate) sequence: u64,
    pub(crate) session: u64,
    /// Partitions that got bytes back, and how many.
    pub(crate) restored: BTreeMap<PartitionId, u64>,
    /// Partitions whose files could not be looked at or written, and why. What the log has of them is kept for the next
    /// opening; until then they must not be served.
    pub(crate) unrestored: BTreeMap<PartitionId, String>,
    /// Partitions that no data path has. What the log has of them is kept until one has: see [`give_back`].
    pub(crate) absent: BTreeSet<PartitionId>,
}

/// A range of a segment, as the log has it.
struct Range<'a> {
    position: u32,
    bytes: &'a [u8],
}

type Ranges<'a> = BTreeMap<(PartitionId, u64), Vec<Range<'a>>>;

/// Whether the log is one that this version can replay; nothing is changed.
pub(crate) fn check(directory: &Path) -> Result<(), OpenError> {
    read(files(directory)?).map(drop)
}

/// Those of the ring, and what is kept.
fn files(directory: &Path) -> Result<Vec<PathBuf>, OpenError> {
    let mut files = places(directory)?;
    files.push(directory.join(KEPT));
    Ok(files)
}

/// Puts the log's ranges into the partitions' files, makes these durable, and clears the log. An orderly
/// stop has cleared it already, unless a partition could not be synced then. What is wrong with one partition's files
/// does not concern the others.
pub(crate) fn replay(disk: &dyn Disk, directory: &Path, roots: &[Arc<Path>]) -> Result<Replayed, OpenError> {
    let kept = directory.join(KEPT);
    if directory.is_dir() {
        // That a file of it was removed may not be durable, and it must not come back over what is stored from now on.
        disk.sync_dir(directory).map_err(OpenError::io("sync", directory))?;
    }
    let uses = read(files(directory)?)?;
    let mut ranges = collect(&uses);
    let (mut restored, mut unrestored, mut absent) = (BTreeMap::new(), BTreeMap::new(), BTreeSet::new());
    for ((partition, segment), ranges) in &ranges {
        match restore(disk, roots, partition, *segment, ranges) {
            Ok(Found::Segment { restored: 0 } | Found::Others) => {}
            Ok(Found::Segment { restored: bytes }) => *restored.entry(partition.clone()).or_default() += bytes,
            Ok(Found::Nothing) => drop(absent.insert(partition.clone())),
            Err(error) => {
                let reason = format!("{error}; what the write-ahead log has of it is kept for the next start");
                unrestored.insert(partition.clone(), reason);
            }
        }
    }
    for partition in &absent {
        tracing::warn!(
            %partition, kept = %kept.display(),
            "the write-ahead log has messages of a partition that no data path has: they are kept until one has"
        );
    }
    ranges.retain(|(partition, _), _| unrestored.contains_key(partition) || absent.contains(partition));
    let last = uses.last().map_or(Use { sequence: 0, session: 0 }, |(this, _)| *this);
    keep(disk, &kept, last, &ranges).map_err(OpenError::io("write", &kept))?;
    clear(disk, directory)?;
    let session = session().map_err(OpenError::io("read", "/dev/urandom"))?;
    Ok(Replayed { sequence: last.sequence, session, restored, unrestored, absent })
}

/// A partition that no data path had is about to be loaded from `root`, or made there. What is kept of it goes into its
/// files if they are there, else beside them: a new log does not go on with what an old one had.
pub(super) fn give_back(
    disk: &dyn Disk,
    directory: &Path,
    root: &Arc<Path>,
    partition: &PartitionId,
) -> Result<(), OpenError> {
    let kept = directory.join(KEPT);
    let uses = read([kept.clone()])?;
    let Some((last, _)) = uses.last() else { return Ok(()) };
    let mut ranges = collect(&uses);
    for ((_, segment), ranges) in ranges.iter().filter(|((of, _), _)| of == partition) {
        if let Found::Nothing = restore(disk, std::slice::from_ref(root), partition, *segment, ranges)? {
            let base = Offset::new(*segment).unwrap_or(Offset::ZERO);
            set_aside(disk, &Segment::new(base).path(&root.join(partition.to_string())), ranges.iter())?;
        }
    }
    ranges.retain(|(of, _), _| of != partition);
    keep(disk, &kept, *last, &ranges).map_err(OpenError::io("write", &kept))
}

/// What is in those of the log's files that were used, the oldest use first; all of it is understood.
fn read(files: impl IntoIterator<Item = PathBuf>) -> Result<Vec<(Use, Vec<u8>)>, OpenError> {
    let mut read = Vec::new();
    for (this, path) in uses_of(files)? {
        let bytes = fs::read(&path).map_err(OpenError::io("read", &path))?;
        if items(&bytes, this).is_none() {
            return Err(OpenError::newer(&path, format_args!("{FORMAT} with an entry of another kind"), FORMAT));
        }
        read.push((this, bytes));
    }
    Ok(read)
}

/// Of the log's files those that were used, the oldest use first.
fn uses_of(files: impl IntoIterator<Item = PathBuf>) -> Result<Vec<(Use, PathBuf)>, OpenError> {
    let mut uses = Vec::new();
    for path in files {
        if kind::file(&path).map_err(OpenError::Misplaced)?.is_none() {
            continue;
        }
        let mut head = [0; HEADER_BYTES];
        if File::open(&path).map_err(OpenError::io("open", &path))?.read_exact_at(&mut head, 0).is_err() {
            continue;
        }
        if let Some(found) = other_format(&head) {
            return Err(OpenError::newer(&path, found, FORMAT));
        }
        if let Some(this) = parse_header(&head) {
            uses.push((this, path));
        }
    }
    uses.sort();
    Ok(uses)
}

/// Has exactly these ranges in the file of that name, durably, and no file where there are none. It stands for the newest
/// use seen: nobody has changed these partitions since.
fn keep(disk: &dyn Disk, path: &Path, this: Use, ranges: &Ranges<'_>) -> io::Result<()> {
    if ranges.is_empty() {
        return match path.exists() {
            true => disk.remove(path).and_then(|()| disk.sync_dir(path.parent().unwrap_or(path))),
            false => Ok(()),
        };
    }
    let (mut buffer, mut file) = (Buffer::new()?, Vec::new());
    let each = ranges.iter().flat_map(|(of, ranges)| ranges.iter().map(move |range| (of, range)));
    for (number, ((partition, segment), range)) in each.enumerate() {
        buffer.begin();
        buffer.range(partition, *segment, range.position, range.bytes.len() as u32, |room| {
            room.copy_from_slice(range.bytes);
            Ok::<_, io::Error>(())
        })?;
        file.extend_from_slice(match number {
            0 => buffer.finish_first(this),
            _ => buffer.finish(this, number as u64),
        });
    }
    replace_file(disk, path, &file)
}

/// The log's files in the order of the ring; none where there is no log yet.
fn places(directory: &Path) -> Result<Vec<PathBuf>, OpenError> {
    if kind::directory(directory).map_err(OpenError::Misplaced)?.is_none() {
        return Ok(Vec::new());
    }
    fs::read_dir(directory).map_err(OpenError::io("read", directory))?;
    let is_there = |path: &PathBuf| path.symlink_metadata().is_ok();
    Ok((0..).map(|place| directory.join(place.to_string())).take_while(is_there).collect())
}

/// Nothing in the log counts any more. The oldest use first: what an entry says may be untrue without a newer one.
pub(super) fn clear(disk: &dyn Disk, directory: &Path) -> Result<(), OpenError> {
    for (_, path) in uses_of(places(directory)?)? {
        let file = disk.open(&path).map_err(OpenError::io("open", &path))?;
        write_all_at(disk, &file, 0, &mut [IoSlice::new(&[0; BLOCK_BYTES as usize])])
            .and_then(|()| disk.sync_data(&file))
            .map_err(OpenError::io("clear", &path))?;
    }
    Ok(())
}

/// By segment, in the order they were written, without what was forgotten.
fn collect(uses: &[(Use, Vec<u8>)]) -> Ranges<'_> {
    let mut ranges = Ranges::new();
    for (this, bytes) in uses {
        for item in items(bytes, *this).into_iter().flatten() {
            match item {
                Item::Range { partition, segment, position, bytes } => {
                    ranges.entry((partition, segment)).or_default().push(Range { position, bytes });
                }
                Item::Forget { partition } => ranges.retain(|(id, _), _| *id != partition),
            }
        }
    }
    for ranges in ranges.values_mut() {
        // An opening that ended between keeping and clearing has left some in both places.
        ranges.sort_by_key(|range| range.position);
        ranges.dedup_by(|a, b| (a.position, a.bytes) == (b.position, b.bytes));
    }
    ranges
}

/// What the data paths have of the partition and the segment of some ranges.
enum Found {
    /// The segment, which lacked so many bytes.
    Segment { restored: u64 },
    /// Only others. Retention or a person has removed it since; one that is no longer the last was synced when it was full.
    Others,
    /// Not one of the partition: it was removed, or its data path is none at the moment.
    Nothing,
}

/// Gives a segment what it lacks, durably. Where it has other bytes than the log in a single place, somebody else has
/// written to it: then nothing is, since what looks like a loss may be a part of that.
fn restore(
    disk: &dyn Disk,
    roots: &[Arc<Path>],
    partition: &PartitionId,
    segment: u64,
    ranges: &[Range<'_>],
) -> Result<Found, OpenError> {
    let Some(base) = Offset::new(segment) else { return Ok(Found::Others) };
    let path = match find(roots, partition, base)? {
        (Some(path), _) => path,
        (None, true) => return Ok(Found::Others),
        (None, false) => return Ok(Found::Nothing),
    };
    let file = disk.open(&path).map_err(OpenError::io("open", &path))?;
    let lacking = measure(&file, ranges).map_err(OpenError::io("read", &path))?;
    let lack = || std::iter::zip(ranges, &lacking).filter(|(_, lacking)| **lacking != Some(0));
    let fits = lacking.iter().all(Option::is_some);
    if fits {
        for (range, _) in lack() {
            let part = &mut [IoSlice::new(range.bytes)];
            write_all_at(disk, &file, range.position.into(), part).map_err(OpenError::io("write", &path))?;
        }
    } else {
        set_aside(disk, &path, lack().map(|(range, _)| range))?;
    }
    // Even where every byte is there: perhaps only in the page cache of a machine that went on running.
    disk.sync_data(&file).map_err(OpenError::io("sync", &path))?;
    Ok(Found::Segment { restored: if fits { lacking.into_iter().flatten().sum() } else { 0 } })
}

/// What of each range the file lacks: see [`missing`].
fn measure(file: &File, ranges: &[Range<'_>]) -> io::Result<Vec<Option<u64>>> {
    let mut reach = file.metadata()?.len();
    let measured = ranges.iter().map(|range| {
        let lacking = missing(file, reach, range)?;
        reach = reach.max(range.end());
        Ok(lacking)
    });
    measured.collect()
}

/// How many bytes of each partition the log has and the files have not: what [`replay`] would put back, or set aside.
/// Nothing is changed, and no file opened for writing.
pub(crate) fn lacking(directory: &Path, roots: &[Arc<Path>]) -> Result<BTreeMap<PartitionId, u64>, OpenError> {
    let uses = read(files(directory)?)?;
    let mut all = BTreeMap::new();
    for ((partition, segment), ranges) in &collect(&uses) {
        let Some(base) = Offset::new(*segment) else { continue };
        let (Some(path), _) = find(roots, partition, base)? else { continue };
        let file = File::open(&path).map_err(OpenError::io("open", &path))?;
        let measured = measure(&file, ranges).map_err(OpenError::io("read", &path))?;
        let bytes = |(lacking, range): (Option<u64>, &Range<'_>)| lacking.unwrap_or(range.bytes.len() as u64);
        let lacking: u64 = std::iter::zip(measured, ranges).map(bytes).sum();
        if lacking > 0 {
            *all.entry(partition.clone()).or_default() += lacking;
        }
    }
    Ok(all)
}

/// The segment's file in the first data path that has any of the partition, and whether one has.
fn find(roots: &[Arc<Path>], partition: &PartitionId, base: Offset) -> Result<(Option<PathBuf>, bool), OpenError> {
    for root in roots {
        let directory = root.join(partition.to_string());
        let path = Segment::new(base).path(&directory);
        // Not in the place of a directory, nor beside what stands in that of a file.
        if kind::directory(&directory).map_err(OpenError::Misplaced)?.is_none() {
            continue;
        }
        if kind::file(&path).map_err(OpenError::Misplaced)?.is_some() {
            return Ok((Some(path), true));
        }
        let found =
            list(&directory).map_err(|reason| OpenError::io("look into", &directory)(io::Error::other(reason)))?;
        // The original accepts shorter names than it writes.
        let segment = found.iter().find(|found| found.base == base.get());
        if !found.is_empty() {
            return Ok((segment.map(|found| found.path(&directory)), true));
        }
    }
    Ok((None, false))
}

/// Keeps ranges that do not fit in files beside their segment, one for what lies together.
fn set_aside<'a>(
    disk: &dyn Disk,
    segment: &Path,
    ranges: impl Iterator<Item = &'a Range<'a>>,
) -> Result<(), OpenError> {
    let mut runs: Vec<(u64, Vec<u8>)> = Vec::new();
    for range in ranges {
        match runs.last_mut() {
            Some((at, bytes)) if *at + bytes.len() as u64 == u64::from(range.position) => {
                bytes.extend_from_slice(range.bytes);
            }
            _ => runs.push((range.position.into(), range.bytes.to_vec())),
        }
    }
    for (position, bytes) in runs {
        let copy = keep_aside(disk, segment, &bytes, Aside::Unreplayed);
        let copy = copy.map_err(OpenError::io("write beside", segment))?;
        tracing::error!(
            segment = %segment.display(), position, bytes = bytes.len(), copy = %copy.display(),
            "the write-ahead log has other bytes than the file, which was changed after the crash: the file stays as it \
             is, and the log's bytes are in the copy, a row of whole messages as in a segment; put those again that are \
             missed, or remove it"
        );
    }
    Ok(())
}

impl Range<'_> {
    fn end(&self) -> u64 {
        u64::from(self.position) + self.bytes.len() as u64
    }
}

/// How many of a range's bytes the file lacks; `None` when it has others. A crash leaves of a sector what was in it when
/// it was last written: the first bytes of the range, and zeros. The same holds for the end of the file. `reach`: where
/// the file ends, or will when the ranges before are in it.
fn missing(file: &File, reach: u64, range: &Range<'_>) -> io::Result<Option<u64>> {
    let position = u64::from(range.position);
    if position > reach {
        return Ok(None);
    }
    let there = (range.bytes.len() as u64).min(file.metadata()?.len().saturating_sub(position)) as usize;
    let mut found = vec![0; there];
    file.read_exact_at(&mut found, position)?;
    let mut lacking = (range.bytes.len() - there) as u64;
    let mut at = 0;
    while at < there {
        let sector = SECTOR_BYTES - (position + at as u64) % SECTOR_BYTES;
        let end = there.min(at + sector as usize);
        let same = std::iter::zip(&found[at..end], &range.bytes[at..end]).take_while(|(a, b)| a == b).count();
        if found[at + same..end].iter().any(|byte| *byte != 0) {
            return Ok(None);
        }
        lacking += (end - at - same) as u64;
        at = end;
    }
    Ok(Some(lacking))
}

/// A number no other opening has.
fn session() -> io::Result<u64> {
    let mut bytes = [0; 8];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(u64::from_le_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lacking(file: &[u8], position: u32, bytes: &[u8]) -> Option<u64> {
        let held = tempfile::tempfile().unwrap();
        held.write_all_at(file, 0).unwrap();
        missing(&held, file.len() as u64, &Range { position, bytes }).unwrap()
    }

    #[test]
    fn a_file_may_lack_bytes_but_not_have_others() {
        assert_eq!(lacking(b"abcdef", 2, b"cdef"), Some(0));
        assert_eq!(lacking(b"abcd", 2, b"cdef"), Some(2));
        assert_eq!(lacking(b"ab", 2, b"cdef"), Some(4));
        assert_eq!(lacking(b"a", 2, b"cdef"), None, "a hole in front");
        assert_eq!(lacking(b"abc\0\0\0", 2, b"cdef"), Some(3), "a sector written early");
        assert_eq!(lacking(b"abc\0e\0", 2, b"cdef"), None);
        assert_eq!(lacking(b"abcxef", 2, b"cdef"), None);
        assert_eq!(lacking(b"abcdefgh", 2, b"cdef"), Some(0), "more behind it");
    }

    #[test]
    fn each_sector_is_written_or_not() {
        let bytes: Vec<u8> = (0..2000u32).map(|n| (n % 251) as u8 + 1).collect();
        let mut file = bytes.clone();
        file[512..1024].fill(0);
        assert_eq!(lacking(&file, 0, &bytes), Some(512));
        file[1100..1536].fill(0);
        assert_eq!(lacking(&file, 0, &bytes), Some(512 + 436));
        file[1535] = 1;
        assert_eq!(lacking(&file, 0, &bytes), None);
        // The same from a position inside of a sector.
        let mut file = bytes.clone();
        file[700..1024].fill(0);
        assert_eq!(lacking(&file, 600, &bytes[600..]), Some(324));
    }
}
