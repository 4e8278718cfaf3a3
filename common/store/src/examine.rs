//! The files of data paths as they are, for who checks, compares or shows them. They are opened for reading only; nothing
//! is locked, changed or repaired, and a broker may go on with them meanwhile.

use crate::disk::Aside;
use crate::errors::OpenError;
use crate::kind;
use crate::load::{Found, fits, found_at, joined};
use crate::recovery::partition_of;
use crate::roots::OURS;
use crate::scan::{Pieces, is_remnant};
use crate::wal;
use crate::window::{HEADER, Window};
use metaq_types::{Offset, PartitionId};
use metaq_wire::{RecordFault, RecordHeader};
use rustix::fs::{Advice, fadvise};
use std::collections::BTreeMap;
use std::fs::{self, File, Metadata};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// As the last segment is read at an opening: positions in a file are 32 bits.
const FILE_BYTES_MAX: u64 = u32::MAX as u64;

/// What a data path holds.
#[derive(Debug, Default)]
pub struct PathContent {
    /// Partitions and their directories.
    pub partitions: BTreeMap<PartitionId, PathBuf>,
    /// What stands in the place of a partition's directory.
    pub misplaced: Vec<Misplaced>,
    /// Directories that are called almost as a partition's and are not served, one sentence each.
    pub misnamed: Vec<String>,
    /// What is none of ours.
    pub foreign: Vec<PathBuf>,
}

/// What is called as a partition's directory and is none.
#[derive(Debug)]
pub struct Misplaced {
    pub id: PartitionId,
    /// A link that leads nowhere: what it leads to may be on a disk that is not there.
    pub is_link: bool,
    /// One sentence for the operator.
    pub reason: String,
}

/// Looks through a data path.
pub fn path_content(root: &Path) -> io::Result<PathContent> {
    let mut content = PathContent::default();
    for entry in fs::read_dir(root)? {
        let entry = entry?;
        let (path, name) = (entry.path(), entry.file_name());
        match (partition_of(&name), kind::directory(&path)) {
            (None, _) if name == OURS => {}
            (Some(Ok(id)), Ok(Some(_))) => drop(content.partitions.insert(id, path)),
            (Some(Ok(id)), Err(reason)) => {
                content.misplaced.push(Misplaced { id, is_link: !path.exists(), reason });
            }
            (Some(Err(reason)), Ok(Some(_))) => {
                content.misnamed.push(format!("{} is not served: {reason}", path.display()));
            }
            (Some(Ok(_)), Ok(None)) => {}
            (None, _) | (Some(Err(_)), _) => content.foreign.push(path),
        }
    }
    content.misplaced.sort_by(|a, b| a.id.cmp(&b.id));
    content.misnamed.sort();
    content.foreign.sort();
    Ok(content)
}

/// The files in the directory of a partition.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct PartitionFiles {
    /// Ascending.
    pub segments: Vec<SegmentFile>,
    /// Why the partition would not be served, one sentence each.
    pub faults: Vec<String>,
    /// What was set aside.
    pub aside: Vec<PathBuf>,
    /// What is none of ours.
    pub foreign: Vec<PathBuf>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentFile {
    pub base: Offset,
    pub path: PathBuf,
    pub bytes: u64,
}

/// A directory is listed again as long as what is wrong with it changes: while it is read a broker may begin a segment,
/// and the one before is longer by then than when it was looked at.
const LISTINGS_MAX: usize = 5;

/// Looks through the directory of a partition.
pub fn partition_files(directory: &Path) -> io::Result<PartitionFiles> {
    let mut files = list_files(directory)?;
    for _ in 1..LISTINGS_MAX {
        if files.faults.is_empty() {
            break;
        }
        let again = list_files(directory)?;
        let is_settled = again.faults == files.faults;
        files = again;
        if is_settled {
            break;
        }
    }
    Ok(files)
}

fn list_files(directory: &Path) -> io::Result<PartitionFiles> {
    let mut files = PartitionFiles::default();
    let mut found = Vec::new();
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        match found_at(&path) {
            Ok(Some(segment)) => found.push(segment),
            Err(reason) => files.faults.push(reason),
            Ok(None) => match beside_a_segment(&path) {
                Some(Beside::Aside) => files.aside.push(path),
                Some(Beside::Other) => {}
                // As a segment that went in this moment.
                None if matches!(fs::symlink_metadata(&path), Err(error) if error.kind() == io::ErrorKind::NotFound) => {
                }
                None => files.foreign.push(path),
            },
        }
    }
    found.sort_by_key(|segment| segment.base);
    files.faults.sort();
    files.faults.extend(found.windows(2).filter_map(|pair| joined(directory, &pair[0], &pair[1]).err()));
    let sealed = &found[..found.len().saturating_sub(1)];
    files.faults.extend(sealed.iter().filter_map(|segment| fits(directory, segment).err()));
    files.segments = found.iter().filter_map(|segment| segment_file(directory, segment)).collect();
    files.aside.sort();
    files.foreign.sort();
    Ok(files)
}

fn segment_file(directory: &Path, found: &Found) -> Option<SegmentFile> {
    Some(SegmentFile { base: Offset::new(found.base)?, path: found.path(directory), bytes: found.bytes })
}

/// A file of ours beside a segment.
enum Beside {
    Aside,
    /// The mark of a gap, or what retention made of a segment.
    Other,
}

fn beside_a_segment(path: &Path) -> Option<Beside> {
    let (segment, suffix) = path.file_name()?.to_str()?.split_once(".meta.")?;
    if segment.is_empty() || !segment.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let (word, _) = suffix.split_once(['-', '.']).unwrap_or((suffix, ""));
    if [Aside::Torn, Aside::Diverged, Aside::Unreplayed].iter().any(|aside| aside.word() == word) {
        return Some(Beside::Aside);
    }
    matches!(word, "gap" | "zip" | "arc").then_some(Beside::Other)
}

/// A file of records, open for reading.
#[derive(Debug)]
pub struct RecordFile {
    file: File,
    length: u64,
}

impl RecordFile {
    /// Opens a segment, or what was set aside of one, as long as it is now.
    pub fn open(path: &Path) -> io::Result<RecordFile> {
        let missing = || io::Error::from(io::ErrorKind::NotFound);
        kind::file(path).map_err(io::Error::other)?.ok_or_else(missing)?;
        let file = File::open(path)?;
        // What a broker serves from memory is not to be thrown out for what is read here once.
        let _ = fadvise(&file, 0, None, Advice::NoReuse);
        let length = file.metadata()?.len().min(FILE_BYTES_MAX);
        Ok(RecordFile { file, length })
    }

    /// What lies beyond the longest possible segment is left out.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// What it holds, from a place on where a record begins.
    pub fn pieces(&self, from: u64) -> Pieces<'_> {
        Pieces::new(&self.file, self.length, from)
    }

    pub fn read_at(&self, at: u64, bytes: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(bytes, at)
    }

    /// What is wrong with the record at `at`, where [`RecordFile::pieces`] found none.
    pub fn fault_at(&self, at: u64) -> io::Result<PieceFault> {
        let mut window = Window::new(&self.file, self.length, 64 * 1024);
        let left = self.length.saturating_sub(at);
        if left < HEADER {
            return Ok(PieceFault::Short { left });
        }
        let mut bytes = [0; HEADER as usize];
        self.file.read_exact_at(&mut bytes, at)?;
        let header = match RecordHeader::parse(&bytes) {
            Ok(header) if header.is_zeros() => return Ok(RecordFault::Zeros.into()),
            Ok(header) => header,
            Err(negative) => return Ok(RecordFault::Length(negative).into()),
        };
        if is_remnant(&mut window, at, &header)? {
            return Ok(PieceFault::Remnant);
        }
        let (end, length) = (at + header.record_bytes(), header.length);
        if end > self.length {
            return Ok(PieceFault::Beyond { length, left: left - HEADER });
        }
        let (stored, computed) = (header.checksum, window.checksum(at + HEADER, end)?);
        Ok(RecordFault::Checksum { stored, computed, length }.into())
    }
}

/// Why no record was found where one should begin.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PieceFault {
    #[error("{left} bytes are less than a header of {HEADER}")]
    Short { left: u64 },
    #[error("its header says {length} bytes of body, and the file has {left} more")]
    Beyond { length: u32, left: u64 },
    #[error("what a power failure left of a header: zeros, and the rest of an id")]
    Remnant,
    #[error(transparent)]
    Record(#[from] RecordFault),
}

/// Who has a data path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Holder {
    /// A broker of ours runs on it.
    Running {
        pid: u32,
    },
    Stopped,
    /// No broker of ours has ever opened it, so that nothing tells whether one runs: a copy, or that of a Java broker.
    Unmarked,
    /// The kernel does not tell: what processes of other containers have locked is left out of its list.
    Unknown,
}

/// Finds out who has a data path by the kernel's list of locks: an attempt to lock it would keep a broker from starting.
pub fn holder(root: &Path) -> Holder {
    let path = root.join(OURS).join("lock");
    let Ok(lock) = fs::metadata(&path) else { return Holder::Unmarked };
    let Ok(locks) = fs::read_to_string("/proc/locks") else { return Holder::Unknown };
    let noted = fs::read_to_string(&path).ok().and_then(|text| text.trim().parse().ok());
    let pid = locks.lines().find_map(|line| holds(line, &lock, noted));
    let namespace = fs::metadata("/proc/self/ns/pid").ok().map(|namespace| namespace.ino());
    pid.map_or_else(|| unlocked(namespace), |pid| Holder::Running { pid })
}

/// What it means that nobody is seen to have the lock, by the inode of the PID namespace that looks.
fn unlocked(namespace: Option<u64>) -> Holder {
    // That of the machine itself, which sees all (PROC_PID_INIT_INO in linux/proc_ns.h).
    const FIRST: u64 = 0xEFFF_FFFC;
    if namespace == Some(FIRST) { Holder::Stopped } else { Holder::Unknown }
}

/// The process of a line of `/proc/locks`, such as `1: FLOCK  ADVISORY  WRITE 1234 fd:01:1311 0 EOF`, if it has this file
/// locked. Some file systems show another device there than to who asks for the file's: then it must be the process
/// that is noted in it.
fn holds(line: &str, file: &Metadata, noted: Option<u32>) -> Option<u32> {
    let mut words = line.split_ascii_whitespace().skip(1);
    let is_lock = words.next() == Some("FLOCK");
    let pid = words.nth(2)?.parse().ok()?;
    let (device, inode) = words.next()?.rsplit_once(':')?;
    let (major, minor) = (rustix::fs::major(file.dev()), rustix::fs::minor(file.dev()));
    let is_here = device == format!("{major:02x}:{minor:02x}") || noted == Some(pid);
    (is_lock && is_here && inode.parse() == Ok(file.ino())).then_some(pid)
}

/// How many bytes of each partition the write-ahead log has and the files have not, after a crash: the next start puts
/// them in. Of data paths that no broker runs on, of which the first is the system's.
pub fn unreplayed(roots: &[PathBuf]) -> Result<BTreeMap<PartitionId, u64>, OpenError> {
    let Some(system) = roots.first() else { return Ok(BTreeMap::new()) };
    let paths: Vec<Arc<Path>> = roots.iter().map(|root| Arc::from(&**root)).collect();
    wal::lacking(&system.join(OURS).join("wal"), &paths)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_container_does_not_see_who_has_a_lock_elsewhere() {
        assert_eq!(unlocked(Some(4_026_531_836)), Holder::Stopped);
        assert_eq!(unlocked(Some(4_026_532_199)), Holder::Unknown);
        assert_eq!(unlocked(None), Holder::Unknown);
    }
}
