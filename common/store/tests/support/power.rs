//! A disk whose power can go at any moment: of what was not synced then, each sector may be as it was or as it was to
//! become, whatever was written over what.

use metaq_store::{Disk, OsDisk};
use parking_lot::{Mutex, MutexGuard};
use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, IoSlice};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

const SECTOR_BYTES: u64 = 512;

#[derive(Default)]
struct State {
    off: bool,
    /// Changes until it goes off by itself.
    left: Option<u64>,
    files: HashMap<u64, Known>,
    /// Files whose names do not survive.
    unsynced_names: Vec<PathBuf>,
    syncs: HashMap<PathBuf, u64>,
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

    /// Makes the files what a disk may hold that was turned off. `choose(n)` is a number below n.
    pub(crate) fn lose(&self, choose: &mut dyn FnMut(u64) -> u64) {
        let mut state = self.0.lock();
        assert!(state.off, "the power is still on");
        for name in state.unsynced_names.drain(..) {
            let _ = fs::remove_file(name);
        }
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
        let _state = self.on()?;
        OsDisk.create_dir(path)
    }

    fn create_new(&self, path: &Path) -> io::Result<File> {
        let mut state = self.on()?;
        let file = OsDisk.create_new(path)?;
        state.files.remove(&file.metadata()?.ino());
        state.know(&file, path);
        state.unsynced_names.push(path.to_path_buf());
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
        self.on()?.unsynced_names.retain(|name| name.parent() != Some(path));
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
        state.unsynced_names.retain(|name| name != from && name != to);
        OsDisk.rename(from, to)?;
        let ino = fs::metadata(to)?.ino();
        state.files.entry(ino).or_default().path = to.to_path_buf();
        Ok(())
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let _state = self.on()?;
        OsDisk.remove(path)
    }

    fn forget_cached(&self, _file: &File) {}
}
