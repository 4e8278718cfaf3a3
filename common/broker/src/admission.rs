//! What the node takes on at all: connections, bytes on their way into the store, room on the disk.

use metaq_types::limits::{APPEND_QUEUE_BYTES_MAX, CONNECTIONS_MAX, CONNECTIONS_REFUSED_MAX, UNFINISHED_BYTES_MAX};
use parking_lot::Mutex;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Shared by all connections of a node.
pub(crate) struct Admission {
    connections: AtomicUsize,
    pub(crate) room: Room,
    /// Bytes of puts accepted and not yet answered.
    pub(crate) in_flight: Arc<AtomicUsize>,
    /// Bytes read of large messages that are not whole yet.
    unfinished: AtomicUsize,
    disk_low: AtomicBool,
    low_paths: Mutex<Vec<LowPath>>,
}

/// How many connections there may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Room {
    pub(crate) connections: usize,
    /// Beyond those, kept for a moment to be told so.
    pub(crate) refused: usize,
    /// The limit of open files of this process, where that leaves room for fewer than [`CONNECTIONS_MAX`].
    files: Option<usize>,
}

impl Room {
    /// What a process has that may have so many files open at once, segments, those of its own and the console's included.
    fn within(files: usize) -> Room {
        let left = files.saturating_sub(metaq_store::open_files_max(files));
        let refused = CONNECTIONS_REFUSED_MAX.min(left / 8);
        let connections = left.saturating_sub(refused + OWN_FILES.min(left / 4)).max(1);
        Room {
            connections: connections.min(CONNECTIONS_MAX),
            refused,
            files: (connections < CONNECTIONS_MAX).then_some(files),
        }
    }

    /// That there is none, and why, in words.
    pub(crate) fn used_up(&self) -> String {
        let why = match self.files {
            Some(files) => format!(" with a limit of {files} open files (ulimit -n, LimitNOFILE)"),
            None => String::new(),
        };
        format!("the broker has {} connections, which is its limit{why}", self.connections)
    }

    /// What an operator is to know of it at a start.
    pub(crate) fn warning(&self) -> Option<String> {
        let files = self.files?;
        Some(format!(
            "the limit of {files} open files leaves room for {} connections; raise it (ulimit -n, LimitNOFILE) to have \
             {CONNECTIONS_MAX}",
            self.connections
        ))
    }
}

/// Descriptors that are neither segments nor connections: the journal, the write-ahead log, the console's, a registry's.
const OWN_FILES: usize = 256;

/// A data path with less free space than it is to have.
#[derive(Clone, Debug)]
pub(crate) struct LowPath {
    pub(crate) path: PathBuf,
    pub(crate) free_bytes: u64,
    /// `minFreeDiskBytes`
    pub(crate) floor_bytes: u64,
}

/// A connection that was let in; counts until it is dropped.
pub(crate) struct Admitted(Arc<Admission>);

impl Default for Admission {
    fn default() -> Admission {
        Admission {
            connections: AtomicUsize::new(0),
            room: Room::within(metaq_store::files_limit()),
            in_flight: Arc::default(),
            unfinished: AtomicUsize::new(0),
            disk_low: AtomicBool::new(false),
            low_paths: Mutex::default(),
        }
    }
}

impl Admission {
    /// A place for one more connection, if there is one.
    pub(crate) fn connection(self: &Arc<Self>) -> Option<Admitted> {
        if self.connections.fetch_add(1, Ordering::Relaxed) < self.room.connections {
            return Some(Admitted(Arc::clone(self)));
        }
        self.connections.fetch_sub(1, Ordering::Relaxed);
        None
    }

    pub(crate) fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }

    /// Why a put to a topic of this data path cannot be taken on now, in words.
    pub(crate) fn refusal(&self, data_path: &Path) -> Option<String> {
        if self.in_flight.load(Ordering::Relaxed) >= APPEND_QUEUE_BYTES_MAX {
            return Some(format!(
                "not stored: the broker is overloaded, {APPEND_QUEUE_BYTES_MAX} bytes wait to be written; try again"
            ));
        }
        if !self.disk_low.load(Ordering::Relaxed) {
            return None;
        }
        self.low_paths.lock().iter().find(|low| low.path == data_path).map(|low| {
            format!(
                "not stored: disk full, {} bytes are free at {}, which is below minFreeDiskBytes={}; free some space and \
                 try again",
                low.free_bytes,
                data_path.display(),
                low.floor_bytes
            )
        })
    }

    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight.load(Ordering::Relaxed)
    }

    pub(crate) fn is_disk_low(&self) -> bool {
        self.disk_low.load(Ordering::Relaxed)
    }

    /// Takes note of the paths with too little free space; answers those that were among them before.
    pub(crate) fn set_low_paths(&self, paths: Vec<LowPath>) -> Vec<LowPath> {
        let mut low_paths = self.low_paths.lock();
        self.disk_low.store(!paths.is_empty(), Ordering::Relaxed);
        std::mem::replace(&mut *low_paths, paths)
    }
}

/// What one connection has read of a message that is not whole yet; counts until it is dropped.
pub(crate) struct Unfinished {
    admission: Arc<Admission>,
    bytes: usize,
}

impl Unfinished {
    pub(crate) fn none(admission: Arc<Admission>) -> Unfinished {
        Unfinished { admission, bytes: 0 }
    }

    /// Takes note of how much it is now; whether all connections together may have that much.
    pub(crate) fn note(&mut self, bytes: usize) -> bool {
        if bytes == self.bytes {
            return true;
        }
        let all = &self.admission.unfinished;
        all.fetch_sub(self.bytes, Ordering::Relaxed);
        self.bytes = bytes;
        all.fetch_add(bytes, Ordering::Relaxed) + bytes <= UNFINISHED_BYTES_MAX || bytes == 0
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        self.admission.unfinished.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl Drop for Admitted {
    fn drop(&mut self) {
        self.0.connections.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_leave_room_for_files() {
        let plenty = Room { connections: CONNECTIONS_MAX, refused: CONNECTIONS_REFUSED_MAX, files: None };
        for files in [usize::MAX, 1 << 20, 16 * 1024] {
            assert_eq!(Room::within(files), plenty, "{files}");
        }
        for (files, connections) in [(4096, 1536), (1024, 320), (64, 20), (0, 1)] {
            let room = Room::within(files);
            assert_eq!((room.connections, room.files), (connections, Some(files)));
            assert!(room.used_up().contains(&format!("limit of {files} open files")), "{}", room.used_up());
        }
    }
}
