use crate::disk::{Disk, write_all_at};
use std::cell::OnceCell;
use std::fs::{self, File};
use std::io::{self, ErrorKind, IoSlice, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipWriter};

const COPY_BLOCK_BYTES: usize = 256 * 1024;

/// Packs a segment into `<segment>.zip` beside it, one deflated entry of the segment's name, complete and synced when
/// this returns. An error, or `cancelled`, leaves nothing behind but the segment as it was.
pub(crate) fn compress(
    disk: &dyn Disk,
    segment: &Path,
    file: &File,
    bytes: u64,
    cancelled: impl Fn() -> bool,
) -> io::Result<()> {
    let part = with_suffix(segment, "zip.part");
    match disk.remove(&part) {
        // Left by a crash, or not there.
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let packed = pack(disk, segment, file, bytes, &part, cancelled).and_then(|()| {
        disk.rename(&part, &free_name(segment, "zip")?)?;
        disk.sync_dir(segment.parent().unwrap_or(Path::new(".")))
    });
    if packed.is_err() {
        let _ = disk.remove(&part);
    }
    packed
}

fn pack(
    disk: &dyn Disk,
    segment: &Path,
    file: &File,
    bytes: u64,
    part: &Path,
    cancelled: impl Fn() -> bool,
) -> io::Result<()> {
    let target = disk.create_new(part)?;
    let fault = OnceCell::new();
    let mut zip = ZipWriter::new(DiskFile { disk, file: &target, position: 0, length: 0, fault: &fault });
    let name = segment.file_name().unwrap_or_default().to_string_lossy();
    let options = SimpleFileOptions::default().compression_method(CompressionMethod::Deflated);
    zip.start_file(name, options.large_file(bytes > u64::from(u32::MAX / 2)))?;
    let mut block = vec![0; COPY_BLOCK_BYTES];
    let mut at = 0;
    while at < bytes && fault.get().is_none() {
        if cancelled() {
            return Err(io::Error::new(ErrorKind::Interrupted, "the store is closing"));
        }
        let wanted = (bytes - at).min(COPY_BLOCK_BYTES as u64) as usize;
        file.read_exact_at(&mut block[..wanted], at)?;
        zip.write_all(&block[..wanted])?;
        at += wanted as u64;
    }
    zip.finish()?;
    match fault.into_inner() {
        Some(error) => Err(error),
        None => disk.sync_data(&target),
    }
}

/// `<segment>.<suffix>`, or with a number behind it when that is taken: an archive never replaces another.
pub(crate) fn free_name(segment: &Path, suffix: &str) -> io::Result<PathBuf> {
    let mut name = with_suffix(segment, suffix);
    let mut number = 1u32;
    loop {
        match fs::symlink_metadata(&name) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(name),
            Err(error) => return Err(error),
            Ok(_) => name = with_suffix(segment, &format!("{suffix}-{number}")),
        }
        number += 1;
    }
}

fn with_suffix(segment: &Path, suffix: &str) -> PathBuf {
    let mut name = segment.as_os_str().to_owned();
    name.push(".");
    name.push(suffix);
    name.into()
}

/// A file behind a [`Disk`] as the archive's writer wants it: one that never fails. That writer finishes the archive when
/// it is dropped, and panics on what a full disk left of it; so an error is put aside, and nothing more is written.
struct DiskFile<'a> {
    disk: &'a dyn Disk,
    file: &'a File,
    position: u64,
    length: u64,
    fault: &'a OnceCell<io::Error>,
}

impl Write for DiskFile<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.fault.get().is_none()
            && let Err(error) = write_all_at(self.disk, self.file, self.position, &mut [IoSlice::new(bytes)])
        {
            self.fault.get_or_init(|| error);
        }
        self.position += bytes.len() as u64;
        self.length = self.length.max(self.position);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Seek for DiskFile<'_> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let position = match to {
            SeekFrom::Start(position) => Some(position),
            SeekFrom::Current(by) => self.position.checked_add_signed(by),
            SeekFrom::End(by) => self.length.checked_add_signed(by),
        };
        self.position = position.ok_or_else(|| io::Error::from(ErrorKind::InvalidInput))?;
        Ok(self.position)
    }
}
