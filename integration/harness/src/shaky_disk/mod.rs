//! A disk for one broker that keeps apart what it was told and what is durable, and that can lose power, be slow, be full
//! or break.
//!
//! It is a file system of ours (FUSE, served by threads of the test), and not a library put in front of the broker: the
//! broker's system calls bypass the C library. Needs root and `/dev/fuse`.

mod image;
mod mount;

pub use image::Loss;

use crate::fire::Rng;
use anyhow::{Context, Result};
use image::Image;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

/// A sync takes this long on a disk that is well: long enough for a power loss to hit bytes that wait for it.
const SYNC_TIME: Duration = Duration::from_millis(8);

/// How it shows in the list of mounts.
const SOURCE: &str = "metaq-shaky-disk";

/// `ENOTCONN`: whoever served the file system is gone.
const NOT_CONNECTED: i32 = 107;

/// What is wrong with it at the moment.
#[derive(Clone, Copy, Debug)]
pub struct Faults {
    /// How long each sync takes.
    pub sync_time: Duration,
    /// Files can grow by so many bytes, all together; `None`: by any number.
    pub room: Option<u64>,
    /// Syncs fail, and what they were for is lost.
    pub syncs_fail: bool,
    /// Syncs say that they went well, and did nothing: what a broker would be that forgot them.
    pub syncs_lie: bool,
}

impl Default for Faults {
    fn default() -> Faults {
        Faults { sync_time: SYNC_TIME, room: None, syncs_fail: false, syncs_lie: false }
    }
}

impl Faults {
    pub fn slow(sync_time: Duration) -> Faults {
        Faults { sync_time, ..Faults::default() }
    }

    /// Full once files have grown by so many bytes.
    pub fn full_after(bytes: u64) -> Faults {
        Faults { room: Some(bytes), ..Faults::default() }
    }

    pub fn broken() -> Faults {
        Faults { syncs_fail: true, ..Faults::default() }
    }

    pub fn lying() -> Faults {
        Faults { syncs_lie: true, ..Faults::default() }
    }
}

#[derive(Debug, Default)]
struct State {
    image: Image,
    faults: Faults,
    /// Syncs that began before the last of these do not happen any more.
    interruptions: u64,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    /// The faults have changed, or syncs were interrupted.
    changed: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("nobody panics with the image in hand")
    }
}

/// Mounted until it is dropped; whoever uses it has to end before.
#[derive(Debug)]
pub struct ShakyDisk {
    shared: Arc<Shared>,
    // Unmounted before the directory is removed.
    _session: fuser::BackgroundSession,
    directory: tempfile::TempDir,
}

impl ShakyDisk {
    /// Whether there can be none here; then this is said past whoever captures the output of tests, with what is not
    /// tested for that reason.
    pub fn is_missing(untested: &str) -> bool {
        let Err(error) = File::options().read(true).write(true).open("/dev/fuse") else { return false };
        let text = format!(
            "\n!!! NOT TESTED: {untested}. It needs a file system of ours, and with it root and /dev/fuse: {error}\n\n"
        );
        // Nobody to tell it to is no reason to fail.
        let _ = std::io::stderr().write_all(text.as_bytes());
        true
    }

    pub fn mount() -> Result<ShakyDisk> {
        unmount_forsaken();
        let directory = tempfile::Builder::new().prefix("metaq-disk-").tempdir()?;
        let shared = Arc::<Shared>::default();
        let session = mount::serve(Arc::clone(&shared), directory.path()).context("cannot mount a file system")?;
        Ok(ShakyDisk { shared, _session: session, directory })
    }

    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    /// For `dataPath`.
    pub fn data(&self) -> PathBuf {
        self.path().join("data")
    }

    /// Waiting syncs go by the new faults at once.
    pub fn set(&self, faults: Faults) {
        self.shared.lock().faults = faults;
        self.shared.changed.notify_all();
    }

    /// Lets the syncs that wait end without effect. A process that was killed lives on until they have.
    pub fn interrupt(&self) {
        self.shared.lock().interruptions += 1;
        self.shared.changed.notify_all();
    }

    /// What no sync had made durable is gone, or there, or there in part. Nobody may use the disk meanwhile.
    pub fn lose_power(&self, rng: &mut Rng) -> Loss {
        self.shared.lock().image.lose_power(rng)
    }
}

/// Unmounts what a test program that was killed has left behind.
fn unmount_forsaken() {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    for line in mounts.lines() {
        let mut words = line.split(' ');
        let (Some(SOURCE), Some(path)) = (words.next(), words.next()) else { continue };
        if fs::metadata(path).is_err_and(|error| error.raw_os_error() == Some(NOT_CONNECTED)) {
            let _ = Command::new("umount").args(["-l", path]).status();
            let _ = fs::remove_dir(path);
        }
    }
}
