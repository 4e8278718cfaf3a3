use crate::disk::{Disk, create_dirs, note_holder, replace_file};
use crate::errors::OpenError;
use crate::kind;
use crate::texts::Form;
use rustix::fs::{Access, access};
use std::fmt::Write;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Directory of what is ours inside a data path. The original passes over names without a `-`.
pub(crate) const OURS: &str = ".metaq";

const NODE: Form = Form {
    word: "metaq-node",
    format: 1,
    advice: "restore it from a copy, or remove it to give this directory a new identity",
};

/// A data path locked for this process.
pub(crate) struct Root {
    pub(crate) path: Arc<Path>,
    /// As the configuration has it.
    asked: PathBuf,
    _lock: File,
}

impl Root {
    /// Creates the directory if it is missing and locks it; the lock ends with the process at the latest.
    pub(crate) fn lock(disk: &dyn Disk, path: &Path) -> Result<Root, OpenError> {
        let ours = path.join(OURS);
        kind::directory(path).and_then(|_| kind::directory(&ours)).map_err(OpenError::Misplaced)?;
        create_dirs(disk, &ours)
            .map_err(|error| OpenError::io("create", if path.is_dir() { &*ours } else { path })(error))?;
        let asked = path.to_path_buf();
        let path = fs::canonicalize(path).map_err(OpenError::io("find", path))?;
        let ours = path.join(OURS);
        access(&ours, Access::READ_OK | Access::WRITE_OK | Access::EXEC_OK)
            .map_err(|error| OpenError::io("write to", &ours)(error.into()))?;
        let lock_path = ours.join("lock");
        kind::file(&lock_path).map_err(OpenError::Misplaced)?;
        let lock = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&lock_path)
            .map_err(OpenError::io("open", &lock_path))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(OpenError::Locked { holder: holder_of(&lock), path }),
            Err(TryLockError::Error(error)) => return Err(OpenError::io("lock", &lock_path)(error)),
        }
        note_holder(&lock, &format!("{}\n", std::process::id())).map_err(OpenError::io("write", &lock_path))?;
        // A process that was killed may have put files in place here without making that durable, and what is read from
        // them is relied on from now on.
        disk.sync_dir(&ours).map_err(OpenError::io("sync", &ours))?;
        Ok(Root { path: path.into(), asked, _lock: lock })
    }

    /// Whether this is the root of a data path, which may have been removed since.
    pub(crate) fn is_at(&self, data_path: &Path) -> bool {
        match fs::canonicalize(data_path) {
            Ok(path) => *path == *self.path,
            Err(_) => data_path == self.asked,
        }
    }

    /// Path of one of our files.
    pub(crate) fn ours(&self, name: &str) -> PathBuf {
        self.path.join(OURS).join(name)
    }
}

/// Why nothing may be begun at a data path that this process has locked: another directory stands there now, or none,
/// as when its disk is no longer mounted. The lock, the identity and the write-ahead log went with it.
pub(crate) fn gone(root: &Path) -> Option<String> {
    let is_ours = match File::open(root.join(OURS).join("lock")) {
        Ok(lock) => {
            let is_locked = matches!(lock.try_lock(), Err(TryLockError::WouldBlock));
            is_locked && holder_of(&lock) == format!(" (pid {})", std::process::id())
        }
        // Any other error says nothing.
        Err(error) => !matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory),
    };
    let root = root.display();
    let text = format!(
        "the data directory {root} was removed, moved or replaced while the broker ran, or its disk is no longer mounted: \
         stop the broker, put it back, and start again"
    );
    (!is_ours).then_some(text)
}

fn holder_of(mut lock: &File) -> String {
    let mut text = String::new();
    match lock.read_to_string(&mut text) {
        Ok(_) if text.trim().parse::<u32>().is_ok() => format!(" (pid {})", text.trim()),
        _ => String::new(),
    }
}

/// The name of this data directory among all others, for ever: made at its first opening.
pub(crate) fn node_id(disk: &dyn Disk, path: &Path) -> Result<String, OpenError> {
    if let Some(id) = known_node_id(path)? {
        return Ok(id);
    }
    let id = new_node_id().map_err(OpenError::io("read", "/dev/urandom"))?;
    replace_file(disk, path, format!("{} {id}\n", NODE.head()).as_bytes()).map_err(OpenError::io("write", path))?;
    Ok(id)
}

/// The same, where there is one.
pub(crate) fn known_node_id(path: &Path) -> Result<Option<String>, OpenError> {
    let Some(text) = NODE.read(path)? else { return Ok(None) };
    match text.trim_end().strip_prefix(&*NODE.head()).and_then(|id| id.strip_prefix(' ')) {
        Some(id) if !id.is_empty() && id.bytes().all(|b| b.is_ascii_hexdigit() || b == b'-') => Ok(Some(id.to_owned())),
        _ => Err(NODE.damaged(path, format!("it is not a line '{} ID'", NODE.head()))),
    }
}

/// A random UUID (version 4).
fn new_node_id() -> std::io::Result<String> {
    let mut bytes = [0u8; 16];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    let mut id = String::with_capacity(36);
    for (place, byte) in bytes.iter().enumerate() {
        if matches!(place, 4 | 6 | 8 | 10) {
            id.push('-');
        }
        write!(id, "{byte:02x}").expect("a string takes all that is written");
    }
    Ok(id)
}
