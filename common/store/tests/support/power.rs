//! A disk whose power can go at any moment: of what was not synced then, each sector may be as it was or as it was to
//! become, whatever was written over what, and of names that were made, changed or removed the last ones are as before.
//! What a killed process has not synced is not lost with it, and not synced either: the next one finds it so.

use super::{DEADLINE, Setup, put};
use metaq_store::{Disk, OsDisk, Store, StoreOptions, WalOptions};
use parking_lot::{Mutex, MutexGuard};
use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, IoSlice};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

const SECTOR_BYTES: u64 = 512;

#[derive(Default)]
struct State {
    off: bool,
    /// Changes until it goes off by itself.
    left: Option<u64>,
    /// Syncs of directories until it goes off by itself.
    directories_left: Option<u64>,
    files: HashMap<u64, Known>,
    /// What happened to names and may not survive, oldest first.
    names: Vec<Named>,
    syncs: HashMap<PathBuf, u64>,
}

enum Named {
    Created(PathBuf),
    CreatedDirectory(PathBuf),
    /// With the content of the file whose place it took.
    Renamed {
        from: PathBuf,
        to: PathBuf,
        replaced: Option<Vec<u8>>,
    },
    Removed(PathBuf, Vec<u8>),
}

impl Named {
    fn path(&self) -> &Path {
        match self {
            Named::Created(path) | Named::CreatedDirectory(path) | Named::Removed(path, _) => path,
            Named::Renamed { to, .. } => to,
        }
    }

    fn undo(self) {
        let undone = match self {
            Named::Created(path) => fs::remove_file(path),
            Named::CreatedDirectory(path) => fs::remove_dir_all(path),
            Named::Removed(path, content) => fs::write(path, content),
            Named::Renamed { from, to, replaced } => fs::rename(&to, from).and_then(|()| match replaced {
                Some(content) => fs::write(to, content),
                None => Ok(()),
            }),
        };
        // It may be gone with the directory it was in.
        assert!(undone.as_ref().map_or_else(|error| error.kind() == ErrorKind::NotFound, |()| true), "{undone:?}");
    }
}

/// A file that was changed.
#[derive(Default)]
struct Known {
    path: PathBuf,
    /// Newest last: where, what was there, and how long the file was.
    undo: Vec<(u64, Vec<u8>, u64)>,
}

#[derive(Default)]
pub(crate) struct PowerDisk(Mutex<State>);

impl PowerDisk {
    /// From now on nothing reaches the disk any more.
    pub(crate) fn turn_off(&self) {
        self.0.lock().off = true;
    }

    pub(crate) fn turn_off_after(&self, changes: u64) {
        self.0.lock().left = Some(changes);
    }

    /// It goes off when a directory is to be synced, after so many of these syncs.
    pub(crate) fn turn_off_before_directory(&self, syncs: u64) {
        self.0.lock().directories_left = Some(syncs);
    }

    /// The process was killed and the machine went on: the same disk for the next one.
    pub(crate) fn after_kill(&self) -> PowerDisk {
        let mut state = self.0.lock();
        assert!(state.off, "the process is still there");
        let (files, names) = (std::mem::take(&mut state.files), std::mem::take(&mut state.names));
        PowerDisk(Mutex::new(State { files, names, ..State::default() }))
    }

    /// Somebody else has made this directory, or file, and not synced its name.
    pub(crate) fn made_elsewhere(&self, path: &Path) {
        let path = path.to_path_buf();
        let named = if path.is_dir() { Named::CreatedDirectory(path) } else { Named::Created(path) };
        self.0.lock().names.push(named);
    }

    /// Makes the files what a disk may hold that was turned off. `choose(n)` is a number below n.
    pub(crate) fn lose(&self, choose: &mut dyn FnMut(u64) -> u64) {
        let mut state = self.0.lock();
        assert!(state.off, "the power is still on");
        let reached = choose(state.names.len() as u64 + 1) as usize;
        state.names.drain(reached..).rev().for_each(Named::undo);
        for (ino, known) in &state.files {
            // Removed, or put under another name, which the store does with files that are synced only.
            let Ok(file) = OpenOptions::new().read(true).write(true).open(&known.path) else { continue };
            if file.metadata().unwrap().ino() != *ino {
                continue;
            }
            lose_some(&file, &known.undo, choose);
        }
    }

    /// How often files were synced below a directory of this name.
    pub(crate) fn syncs_in(&self, directory: &str) -> u64 {
        let state = self.0.lock();
        let below = |path: &Path| path.components().any(|part| part.as_os_str() == directory);
        state.syncs.iter().filter(|(path, _)| below(path)).map(|(_, syncs)| syncs).sum()
    }

    fn on(&self) -> io::Result<MutexGuard<'_, State>> {
        let mut state = self.0.lock();
        state.off |= state.left == Some(0);
        state.left = state.left.map(|left| left.saturating_sub(1));
        if state.off { Err(io::Error::other("the power is off")) } else { Ok(state) }
    }
}

fn lose_some(file: &File, undo: &[(u64, Vec<u8>, u64)], choose: &mut dyn FnMut(u64) -> u64) {
    let length = file.metadata().unwrap().len();
    let mut new = vec![0; length as usize];
    file.read_exact_at(&mut new, 0).unwrap();
    let mut old = new.clone();
    for (position, bytes, length) in undo.iter().rev() {
        let end = *position as usize + bytes.len();
        old.resize(old.len().max(end), 0);
        old[*position as usize..end].copy_from_slice(bytes);
        old.resize(*length as usize, 0);
    }
    let (short, long) = (old.len().min(new.len()) as u64, old.len().max(new.len()) as u64);
    let length = short + choose(long - short + 1);
    old.resize(length as usize, 0);
    new.resize(length as usize, 0);
    let keep = choose(5);
    for start in (0..length as usize).step_by(SECTOR_BYTES as usize) {
        let end = (start + SECTOR_BYTES as usize).min(length as usize);
        let reached = match keep {
            0 => false,
            1 => true,
            _ => choose(2) == 0,
        };
        if reached {
            old[start..end].copy_from_slice(&new[start..end]);
        }
    }
    file.set_len(0).unwrap();
    file.write_all_at(&old, 0).unwrap();
    file.set_len(length).unwrap();
}

impl State {
    fn note(&mut self, file: &File, position: u64, bytes: u64) {
        let metadata = file.metadata().unwrap();
        let mut before = vec![0; bytes.min(metadata.len().saturating_sub(position)) as usize];
        file.read_exact_at(&mut before, position).unwrap();
        self.files.entry(metadata.ino()).or_default().undo.push((position, before, metadata.len()));
    }

    fn know(&mut self, file: &File, path: &Path) {
        self.files.entry(file.metadata().unwrap().ino()).or_default().path = path.to_path_buf();
    }
}

impl Disk for PowerDisk {
    fn create_dir(&self, path: &Path) -> io::Result<()> {
        let mut state = self.on()?;
        OsDisk.create_dir(path)?;
        state.names.push(Named::CreatedDirectory(path.to_path_buf()));
        Ok(())
    }

    fn create_new(&self, path: &Path) -> io::Result<File> {
        let mut state = self.on()?;
        let file = OsDisk.create_new(path)?;
        state.files.remove(&file.metadata()?.ino());
        state.know(&file, path);
        state.names.push(Named::Created(path.to_path_buf()));
        Ok(file)
    }

    fn open(&self, path: &Path) -> io::Result<File> {
        let mut state = self.on()?;
        let file = OsDisk.open(path)?;
        state.know(&file, path);
        Ok(file)
    }

    fn write_at(&self, file: &File, position: u64, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        let mut state = self.on()?;
        state.note(file, position, parts.iter().map(|part| part.len() as u64).sum());
        OsDisk.write_at(file, position, parts)
    }

    fn sync_data(&self, file: &File) -> io::Result<()> {
        let mut state = self.on()?;
        let Some(known) = state.files.get_mut(&file.metadata()?.ino()) else { return Ok(()) };
        known.undo.clear();
        let path = known.path.clone();
        *state.syncs.entry(path).or_default() += 1;
        Ok(())
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        let mut state = self.on()?;
        state.off |= state.directories_left == Some(0);
        state.directories_left = state.directories_left.map(|left| left.saturating_sub(1));
        if state.off {
            return Err(io::Error::other("the power is off"));
        }
        state.names.retain(|named| named.path().parent() != Some(path));
        Ok(())
    }

    fn set_len(&self, file: &File, length: u64) -> io::Result<()> {
        let mut state = self.on()?;
        let lost = file.metadata()?.len().saturating_sub(length);
        state.note(file, length, lost);
        OsDisk.set_len(file, length)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut state = self.on()?;
        let replaced = to.exists().then(|| fs::read(to)).transpose()?;
        OsDisk.rename(from, to)?;
        state.names.push(Named::Renamed { from: from.to_path_buf(), to: to.to_path_buf(), replaced });
        let ino = fs::metadata(to)?.ino();
        state.files.entry(ino).or_default().path = to.to_path_buf();
        Ok(())
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let mut state = self.on()?;
        let content = fs::read(path)?;
        OsDisk.remove(path)?;
        state.names.push(Named::Removed(path.to_path_buf(), content));
        Ok(())
    }

    fn forget_cached(&self, _file: &File) {}
}

pub(crate) const WAL: WalOptions =
    WalOptions { files: 3, file_bytes: 64 * 1024, begin_after_rounds: 1, free_bytes_min: 0, partitions_max: 1000 };

pub(crate) fn open(setup: &Setup, disk: &Arc<PowerDisk>, wal: WalOptions) -> Store {
    Store::open(StoreOptions { disk: disk.clone(), wal: Some(wal), ..setup.options() }).unwrap()
}

/// Puts until rounds go through the log.
pub(crate) fn begin(setup: &Setup, store: &Store, disk: &PowerDisk) {
    let partition = setup.partition(store, "begin-0");
    let until = Instant::now() + DEADLINE;
    let mut before = disk.syncs_in("begin-0");
    loop {
        put(&partition, b"x").unwrap();
        let after = disk.syncs_in("begin-0");
        if after == before {
            return;
        }
        before = after;
        assert!(Instant::now() < until, "the log does not begin");
    }
}
