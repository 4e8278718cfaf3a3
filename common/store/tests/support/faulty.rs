//! A disk that fails when told to, and that forgets what was not synced when the power goes.

use metaq_store::{Disk, OsDisk};
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, ErrorKind, IoSlice};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Writes take this many more bytes, then the disk is full; the last one is short.
    FullAfter(u64),
    /// The next write stores half and fails.
    WriteError,
    /// The next write stores half and says so.
    ShortWrite,
    SyncError,
    /// As [`Fault::SyncError`], of the file with this inode alone: whatever else is synced at that time.
    SyncErrorOf(u64),
    SetLenError,
    /// Files can be opened for reading only.
    ReadOnly,
    /// Every change from now on fails: the process is as good as dead.
    Dead,
}

#[derive(Default)]
struct State {
    faults: Vec<Fault>,
    /// Changes until [`Fault::Dead`] sets in.
    changes_left: Option<u64>,
    changes: u64,
    /// Bytes of each file (by inode) that survive a power failure.
    synced: HashMap<u64, u64>,
    /// Files whose names do not survive one.
    unsynced_names: Vec<PathBuf>,
    syncs: u64,
}

#[derive(Default)]
pub(crate) struct FaultyDisk {
    state: Mutex<State>,
    gate: Mutex<Gate>,
    gate_moved: Condvar,
}

/// Where syncs wait while it is shut.
#[derive(Default)]
struct Gate {
    shut: bool,
    /// So many pass although it is shut.
    passes: u64,
    waiting: usize,
}

impl FaultyDisk {
    pub(crate) fn add(&self, fault: Fault) {
        self.state.lock().faults.push(fault);
    }

    pub(crate) fn heal(&self) {
        self.state.lock().faults.clear();
    }

    /// The process dies at this many changes from now.
    pub(crate) fn die_after(&self, changes: u64) {
        self.state.lock().changes_left = Some(changes);
    }

    pub(crate) fn changes(&self) -> u64 {
        self.state.lock().changes
    }

    pub(crate) fn syncs(&self) -> u64 {
        self.state.lock().syncs
    }

    /// No sync ends until the gate is opened.
    pub(crate) fn shut_gate(&self) {
        self.gate.lock().shut = true;
    }

    /// Nor does any after that many from now.
    pub(crate) fn shut_gate_behind(&self, passes: u64) {
        let mut gate = self.gate.lock();
        (gate.shut, gate.passes) = (true, passes);
    }

    pub(crate) fn open_gate(&self) {
        self.gate.lock().shut = false;
        self.gate_moved.notify_all();
    }

    pub(crate) fn wait_for_a_sync(&self) {
        let until = Instant::now() + super::DEADLINE;
        let mut gate = self.gate.lock();
        while gate.waiting == 0 {
            assert!(!self.gate_moved.wait_until(&mut gate, until).timed_out(), "no sync within the deadline");
        }
    }

    fn pass_gate(&self) {
        let mut gate = self.gate.lock();
        gate.waiting += 1;
        self.gate_moved.notify_all();
        while gate.shut && gate.passes == 0 {
            self.gate_moved.wait(&mut gate);
        }
        gate.passes = gate.passes.saturating_sub(1);
        gate.waiting -= 1;
    }

    /// Leaves in `root` what is sure to survive: synced bytes under synced names.
    pub(crate) fn power_failure(&self, root: &Path) {
        let state = self.state.lock();
        for name in &state.unsynced_names {
            let _ = fs::remove_file(name);
        }
        for directory in fs::read_dir(root).unwrap() {
            let Ok(files) = fs::read_dir(directory.unwrap().path()) else { continue };
            for file in files {
                let path = file.unwrap().path();
                let metadata = fs::metadata(&path).unwrap();
                if metadata.is_dir() {
                    // It may have the inode of a file that is gone.
                    continue;
                }
                if let Some(synced) = state.synced.get(&metadata.ino()).filter(|synced| **synced < metadata.len()) {
                    fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(*synced).unwrap();
                }
            }
        }
    }

    fn change(&self) -> io::Result<MutexGuard<'_, State>> {
        let mut state = self.state.lock();
        state.changes += 1;
        match &mut state.changes_left {
            Some(0) => return Err(dead()),
            Some(left) => *left -= 1,
            None => {}
        }
        if state.faults.contains(&Fault::Dead) { Err(dead()) } else { Ok(state) }
    }
}

fn dead() -> io::Error {
    io::Error::other("the process is dead")
}

impl State {
    fn take(&mut self, fault: Fault) -> bool {
        let place = self.faults.iter().position(|other| *other == fault);
        place.map(|place| self.faults.remove(place)).is_some()
    }

    fn write(&mut self, file: &File, position: u64, parts: &[IoSlice<'_>], bytes: usize) -> io::Result<usize> {
        let all: Vec<u8> = parts.iter().flat_map(|part| part.iter().copied()).take(bytes).collect();
        let ino = file.metadata()?.ino();
        let length = file.metadata()?.len();
        self.synced.entry(ino).or_insert(length);
        let mut written = 0;
        while written < all.len() {
            written += OsDisk.write_at(file, position + written as u64, &[IoSlice::new(&all[written..])])?;
        }
        Ok(written)
    }
}

impl Disk for FaultyDisk {
    fn create_dir(&self, path: &Path) -> io::Result<()> {
        let _state = self.change()?;
        OsDisk.create_dir(path)
    }

    fn create_new(&self, path: &Path) -> io::Result<File> {
        let mut state = self.change()?;
        if state.faults.contains(&Fault::FullAfter(0)) {
            return Err(ErrorKind::StorageFull.into());
        }
        let file = OsDisk.create_new(path)?;
        state.synced.insert(file.metadata()?.ino(), 0);
        state.unsynced_names.push(path.to_path_buf());
        Ok(file)
    }

    fn open(&self, path: &Path) -> io::Result<File> {
        if self.state.lock().faults.contains(&Fault::ReadOnly) { File::open(path) } else { OsDisk.open(path) }
    }

    fn write_at(&self, file: &File, position: u64, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        let mut state = self.change()?;
        let bytes: usize = parts.iter().map(|part| part.len()).sum();
        if state.take(Fault::WriteError) {
            state.write(file, position, parts, bytes / 2)?;
            return Err(io::Error::other("injected write error"));
        }
        if state.take(Fault::ShortWrite) {
            return state.write(file, position, parts, bytes.div_ceil(2));
        }
        let left = state.faults.iter().find_map(|fault| match fault {
            Fault::FullAfter(left) => Some(*left),
            _ => None,
        });
        match left {
            Some(0) => Err(ErrorKind::StorageFull.into()),
            Some(left) => {
                let bytes = bytes.min(left as usize);
                state.take(Fault::FullAfter(left));
                state.faults.push(Fault::FullAfter(left - bytes as u64));
                state.write(file, position, parts, bytes)
            }
            None => state.write(file, position, parts, bytes),
        }
    }

    fn sync_data(&self, file: &File) -> io::Result<()> {
        self.pass_gate();
        let mut state = self.change()?;
        let metadata = file.metadata()?;
        if state.take(Fault::SyncError) || state.take(Fault::SyncErrorOf(metadata.ino())) {
            return Err(io::Error::other("injected sync error"));
        }
        state.syncs += 1;
        state.synced.insert(metadata.ino(), metadata.len());
        Ok(())
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        let mut state = self.change()?;
        state.unsynced_names.retain(|name| name.parent() != Some(path));
        Ok(())
    }

    fn set_len(&self, file: &File, length: u64) -> io::Result<()> {
        let mut state = self.change()?;
        if state.take(Fault::SetLenError) {
            return Err(io::Error::other("injected truncation error"));
        }
        let metadata = file.metadata()?;
        let synced = state.synced.entry(metadata.ino()).or_insert(length);
        *synced = (*synced).min(length);
        // What is cut off is room again.
        for fault in &mut state.faults {
            if let Fault::FullAfter(left) = fault {
                *left += metadata.len().saturating_sub(length);
            }
        }
        OsDisk.set_len(file, length)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut state = self.change()?;
        // Replacing a file leaves the old one or the new one; only a new name can be lost.
        let replaces = to.exists() && !state.unsynced_names.iter().any(|name| name == to);
        state.unsynced_names.retain(|name| name != from);
        if !replaces {
            state.unsynced_names.push(to.to_path_buf());
        }
        OsDisk.rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let _state = self.change()?;
        OsDisk.remove(path)
    }

    fn forget_cached(&self, _file: &File) {}
}
