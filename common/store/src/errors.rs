use metaq_types::{Offset, PartitionId};
use rustix::io::Errno;
use std::fmt::Display;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

/// Why an append was not answered with a place. The two kinds a producer must tell apart: *refused* means surely not
/// stored, everything else means it may be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AppendError {
    #[error(transparent)]
    Refused(#[from] Refusal),
    #[error("stored or not, unknown: {0}")]
    Unknown(String),
    /// It is in the log here, unreadable until enough other members hold it, which was not so in time.
    #[error("stored here, not confirmed by the quorum")]
    Unconfirmed,
    #[error("stored or not, unknown: the store was closed before it could answer")]
    Dropped,
}

/// Why nothing was stored.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    #[error("the store is closing")]
    Closing,
    #[error("disk full: {0}; appends succeed again once there is space")]
    DiskFull(String),
    #[error("{0}; the partition is read-only until the broker is restarted")]
    Poisoned(String),
    #[error("{0}; nothing was written, try again")]
    Unavailable(String),
    #[error("{queued_bytes} bytes wait to be written already, the limit is {limit_bytes}")]
    Overloaded { queued_bytes: usize, limit_bytes: usize },
    #[error("a message of {bytes} bytes is longer than {limit_bytes}")]
    TooLarge { bytes: usize, limit_bytes: u32 },
    /// Verbatim appends only: the log ends elsewhere.
    #[error("the range begins at {at}, the log ends at {end}")]
    NotAtEnd { at: Offset, end: Offset },
    /// Verbatim appends only: the source rolled elsewhere than this log did.
    #[error("the range lies in segment {segment}, the log is in segment {active}")]
    OtherSegment { segment: Offset, active: Offset },
    /// Verbatim appends only: not a row of whole records.
    #[error("the range is not a row of whole records: {0}")]
    Malformed(String),
}

/// Why a partition could not be created or is not served.
#[derive(Clone, Debug, thiserror::Error)]
pub enum CreateError {
    #[error("the store is closing")]
    Closing,
    /// It exists, and its files could not be loaded at start.
    #[error("partition {partition} is not served: {reason}")]
    Failed { partition: PartitionId, reason: String },
    #[error("{}cannot create partition {partition}: {reason}", full(.disk_full))]
    Io { partition: PartitionId, reason: String, disk_full: bool },
}

fn full(disk_full: &bool) -> &'static str {
    if *disk_full { "disk full: " } else { "" }
}

/// Why a store could not be opened. Trouble with a single partition is not among them: it is reported and the others
/// are served.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("{path} is in use by another process{holder}; stop it first, or give this broker its own dataPath", path = .path.display())]
    Locked { path: PathBuf, holder: String },
    /// With the system's error in its text; it is no cause to be told behind it once more.
    #[error("cannot {what} {path}: {error}{next}", path = .path.display(), next = next_step(.error))]
    Io { what: &'static str, path: PathBuf, error: io::Error },
    #[error("{path} is damaged: {reason}; {advice}", path = .path.display())]
    Damaged { path: PathBuf, reason: String, advice: &'static str },
    /// After a downgrade. What is in the file is whole, and may be what this store must not forget.
    #[error(
        "{path} was written by a newer version of metaq (format {found}; this one knows {known}): start that version \
         again, or put back a copy of the data directory from before it ran", path = .path.display()
    )]
    Newer { path: PathBuf, found: String, known: String },
    /// Something else stands where a file or a directory of ours belongs; the text names it, and the way out.
    #[error("{0}")]
    Misplaced(String),
    /// Without its journal a broker would forget what it has promised to coordinators.
    #[error(
        "the transaction journal cannot be used: {0}; restore its directory (dataLogPath, .metaq/journal), or move it away and lose what it holds"
    )]
    Journal(CreateError),
}

impl OpenError {
    pub fn is_disk_full(&self) -> bool {
        matches!(self, OpenError::Io { error, .. } if crate::writer::is_disk_full(error))
    }

    pub(crate) fn newer(path: &Path, found: impl Display, known: impl Display) -> OpenError {
        OpenError::Newer { path: path.to_path_buf(), found: found.to_string(), known: known.to_string() }
    }

    pub(crate) fn io(what: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> OpenError {
        let path = path.into();
        move |error| OpenError::Io { what, path, error }
    }
}

/// What an error of the system asks of the operator.
fn next_step(error: &io::Error) -> &'static str {
    match error.kind() {
        ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => "; correct its owner, mode or mount",
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => "; make room there",
        _ if error.raw_os_error() == Some(Errno::IO.raw_os_error()) => "; see what the system's log says of the disk",
        _ => "",
    }
}

/// What did not end well at close. The data is as the acks said; the next start scans instead of trusting the mark.
#[derive(Debug, thiserror::Error)]
#[error("not everything was made durable at close: {}", .0.join("; "))]
pub struct CloseError(pub Vec<String>);

/// Why no message id could be given.
#[derive(Clone, Debug, thiserror::Error)]
#[error("cannot reserve message ids in {path}: {reason}", path = .path.display())]
pub struct IdError {
    pub path: PathBuf,
    pub reason: String,
    pub disk_full: bool,
}
