//! What the node takes on at all: connections, bytes on their way into the store, room on the disk.

use metaq_types::limits::{APPEND_QUEUE_BYTES_MAX, CONNECTIONS_MAX};
use parking_lot::Mutex;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Shared by all connections of a node.
#[derive(Default)]
pub(crate) struct Admission {
    connections: AtomicUsize,
    /// Bytes of puts accepted and not yet answered.
    pub(crate) in_flight: Arc<AtomicUsize>,
    disk_low: AtomicBool,
    low_paths: Mutex<Vec<LowPath>>,
}

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

impl Admission {
    /// A place for one more connection, if there is one.
    pub(crate) fn connection(self: &Arc<Self>) -> Option<Admitted> {
        if self.connections.fetch_add(1, Ordering::Relaxed) < CONNECTIONS_MAX {
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

impl Drop for Admitted {
    fn drop(&mut self) {
        self.0.connections.fetch_sub(1, Ordering::Relaxed);
    }
}
