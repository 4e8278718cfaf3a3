use crate::window::data_from;
use rustix::fs::{Advice, fadvise, fdatasync};
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, IoSlice, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// One `pwritev` takes at most this many parts (Linux's `IOV_MAX`).
pub(crate) const WRITE_PARTS_MAX: usize = 1024;

/// Blocks compared with zero and left out when a tail is copied aside.
const COPY_BLOCK_BYTES: usize = 64 * 1024;

/// The operations on files that change something. All of the store's writing goes through here, so that a test can
/// fail, shorten or forget each of them; reading is plain `pread` on the files it hands out.
pub trait Disk: Send + Sync {
    fn create_dir(&self, path: &Path) -> io::Result<()>;

    /// Creates a file that must not exist yet, for reading and writing.
    fn create_new(&self, path: &Path) -> io::Result<File>;

    /// Opens a file for reading and, where permitted, writing.
    fn open(&self, path: &Path) -> io::Result<File>;

    /// As [`Disk::open`], for writing past the page cache where the file system can do that: addresses, positions and
    /// lengths of writes are then multiples of 4096. A write still needs a sync to be durable.
    fn open_direct(&self, path: &Path) -> io::Result<File> {
        self.open(path)
    }

    /// One gathering write at `position`; may write less than was given, never 0 bytes of a non-empty request.
    fn write_at(&self, file: &File, position: u64, parts: &[IoSlice<'_>]) -> io::Result<usize>;

    /// Makes the file's bytes and length durable. A failure is final for the file: pages may be lost.
    fn sync_data(&self, file: &File) -> io::Result<()>;

    /// Makes names created, renamed or removed in a directory durable.
    fn sync_dir(&self, path: &Path) -> io::Result<()>;

    fn set_len(&self, file: &File, length: u64) -> io::Result<()>;

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    fn remove(&self, path: &Path) -> io::Result<()>;

    /// Forgets the file's clean pages, so that the next read shows what the device holds. Advice, never an error.
    fn forget_cached(&self, file: &File);
}

/// The machine's file system.
#[derive(Debug, Default, Clone, Copy)]
pub struct OsDisk;

impl Disk for OsDisk {
    fn create_dir(&self, path: &Path) -> io::Result<()> {
        fs::create_dir(path)
    }

    fn create_new(&self, path: &Path) -> io::Result<File> {
        OpenOptions::new().read(true).write(true).create_new(true).open(path)
    }

    fn open(&self, path: &Path) -> io::Result<File> {
        match OpenOptions::new().read(true).write(true).open(path) {
            Err(error) if matches!(error.kind(), ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem) => {
                File::open(path)
            }
            other => other,
        }
    }

    fn open_direct(&self, path: &Path) -> io::Result<File> {
        let flags = rustix::fs::OFlags::DIRECT.bits() as i32;
        match OpenOptions::new().read(true).write(true).custom_flags(flags).open(path) {
            Err(error) if error.kind() == ErrorKind::InvalidInput => self.open(path),
            other => other,
        }
    }

    fn write_at(&self, file: &File, position: u64, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        let parts = &parts[..parts.len().min(WRITE_PARTS_MAX)];
        Ok(rustix::io::retry_on_intr(|| rustix::io::pwritev(file, parts, position))?)
    }

    fn sync_data(&self, file: &File) -> io::Result<()> {
        // Not even an interrupted call is repeated: nobody knows which errors it has already taken away.
        Ok(fdatasync(file)?)
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        File::open(path)?.sync_all()
    }

    fn set_len(&self, file: &File, length: u64) -> io::Result<()> {
        file.set_len(length)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn forget_cached(&self, file: &File) {
        let _ = fadvise(file, 0, None, Advice::DontNeed);
    }
}

/// Writes all of `parts` at `position`, over as many writes as it takes.
pub(crate) fn write_all_at(
    disk: &dyn Disk,
    file: &File,
    mut position: u64,
    parts: &mut [IoSlice<'_>],
) -> io::Result<()> {
    let mut rest = parts;
    IoSlice::advance_slices(&mut rest, 0);
    while !rest.is_empty() {
        let written = disk.write_at(file, position, rest)?;
        if written == 0 {
            return Err(io::Error::new(ErrorKind::WriteZero, "the file takes no more bytes"));
        }
        position += written as u64;
        IoSlice::advance_slices(&mut rest, written);
    }
    Ok(())
}

/// Puts a small file of ours in place whole: temporary name, sync, rename, sync of the directory. A crash leaves the
/// old file or the new one.
pub(crate) fn replace_file(disk: &dyn Disk, path: &Path, content: &[u8]) -> io::Result<()> {
    let directory = path.parent().unwrap_or(Path::new("."));
    let temporary = path.with_extension("new");
    match disk.remove(&temporary) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let file = disk.create_new(&temporary)?;
    write_all_at(disk, &file, 0, &mut [IoSlice::new(content)])?;
    disk.sync_data(&file)?;
    disk.rename(&temporary, path)?;
    disk.sync_dir(directory)
}

/// Creates a directory and what is missing above it, and makes each name durable. So it does with the name of the last
/// that is there: a process may have made it that was killed before it could.
pub(crate) fn create_dirs(disk: &dyn Disk, path: &Path) -> io::Result<()> {
    let parent = parent_of(path);
    if path.is_dir() {
        return match disk.sync_dir(&parent) {
            Err(error) if cannot_hold_new_names(&error) => Ok(()),
            synced => synced,
        };
    }
    create_dirs(disk, &parent)?;
    match disk.create_dir(path) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists && path.is_dir() => disk.sync_dir(&parent),
        Err(error) => Err(error),
        Ok(()) => disk.sync_dir(&parent),
    }
}

/// A directory that we may not open, that is read-only, or where mount points are kept: nobody like us has made a name in it.
fn cannot_hold_new_names(error: &io::Error) -> bool {
    use ErrorKind::{InvalidInput, NotFound, PermissionDenied, ReadOnlyFilesystem, Unsupported};
    matches!(error.kind(), PermissionDenied | ReadOnlyFilesystem | InvalidInput | Unsupported | NotFound)
}

fn parent_of(path: &Path) -> PathBuf {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_path_buf(),
        _ => PathBuf::from("."),
    }
}

/// Why bytes of a segment are kept in a file of ours beside it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Aside {
    /// A crash left them: they are no whole message.
    Torn,
    /// Another master's log went on without them.
    Diverged,
    /// The write-ahead log had them, and the file has others in their place.
    Unreplayed,
}

impl Aside {
    pub(crate) const fn word(self) -> &'static str {
        match self {
            Aside::Torn => "torn",
            Aside::Diverged => "diverged",
            Aside::Unreplayed => "unreplayed",
        }
    }
}

/// Copies the bytes from `start` to `end` of a segment into a new file beside it, `<segment>.torn-<n>` or
/// `.diverged-<n>`, and makes it durable. Never touches an older copy; blocks of zeros become holes.
pub(crate) fn copy_aside(
    disk: &dyn Disk,
    segment: &Path,
    file: &File,
    start: u64,
    end: u64,
    why: Aside,
) -> io::Result<PathBuf> {
    let (copy, path) = create_aside(disk, segment, why)?;
    let mut block = vec![0u8; COPY_BLOCK_BYTES];
    let mut at = start;
    while at < end {
        at = data_from(file, at, end)?;
        let wanted = (end - at).min(COPY_BLOCK_BYTES as u64) as usize;
        let block = &mut block[..wanted];
        file.read_exact_at(block, at)?;
        if block.iter().any(|byte| *byte != 0) {
            write_all_at(disk, &copy, at - start, &mut [IoSlice::new(block)])?;
        }
        at += wanted as u64;
    }
    disk.set_len(&copy, end - start)?;
    disk.sync_data(&copy)?;
    disk.sync_dir(&parent_of(segment))?;
    Ok(path)
}

/// Keeps bytes that belong to no file in a new one beside a segment, durably.
pub(crate) fn keep_aside(disk: &dyn Disk, segment: &Path, bytes: &[u8], why: Aside) -> io::Result<PathBuf> {
    let (copy, path) = create_aside(disk, segment, why)?;
    write_all_at(disk, &copy, 0, &mut [IoSlice::new(bytes)])?;
    disk.sync_data(&copy)?;
    disk.sync_dir(&parent_of(segment))?;
    Ok(path)
}

/// Puts a whole segment aside under the first free name, `<segment>.diverged-<n>`. The caller syncs the directory.
pub(crate) fn set_aside(disk: &dyn Disk, segment: &Path, why: Aside) -> io::Result<PathBuf> {
    let (_, path) = create_aside(disk, segment, why)?;
    disk.rename(segment, &path)?;
    Ok(path)
}

fn create_aside(disk: &dyn Disk, segment: &Path, why: Aside) -> io::Result<(File, PathBuf)> {
    let mut number = 1u32;
    loop {
        let mut name = segment.as_os_str().to_owned();
        name.push(format!(".{}-{number}", why.word()));
        match disk.create_new(Path::new(&name)) {
            Ok(file) => return Ok((file, name.into())),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => number += 1,
            Err(error) => return Err(error),
        }
    }
}

/// Replaces the content of the lock file: only for a person to read, so neither atomic nor synced.
pub(crate) fn note_holder(mut file: &File, text: &str) -> io::Result<()> {
    file.set_len(0)?;
    file.write_all(text.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_aside_never_replaces_an_older_one() {
        let directory = tempfile::tempdir().unwrap();
        let segment = directory.path().join("0.meta");
        let mut bytes = vec![0u8; 200_000];
        bytes[150_000] = 7;
        fs::write(&segment, &bytes).unwrap();
        let file = File::open(&segment).unwrap();
        let first = copy_aside(&OsDisk, &segment, &file, 10, 200_000, Aside::Torn).unwrap();
        let second = copy_aside(&OsDisk, &segment, &file, 199_999, 200_000, Aside::Torn).unwrap();
        assert_eq!(first, directory.path().join("0.meta.torn-1"));
        assert_eq!(second, directory.path().join("0.meta.torn-2"));
        assert_eq!(fs::read(first).unwrap(), &bytes[10..]);
        assert_eq!(fs::read(second).unwrap(), [0]);
    }

    #[test]
    fn a_replaced_file_is_the_new_one_whole() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a/b/ids");
        create_dirs(&OsDisk, path.parent().unwrap()).unwrap();
        replace_file(&OsDisk, &path, b"one").unwrap();
        fs::write(path.with_extension("new"), b"left by a crash").unwrap();
        replace_file(&OsDisk, &path, b"two").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"two");
        assert!(!path.with_extension("new").exists());
    }
}
