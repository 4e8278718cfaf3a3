//! What stands where a file or a directory belongs. Found out without opening it: who opens a fifo waits for another
//! process.

use std::fs::{self, FileType, Metadata};
use std::io::ErrorKind;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

/// The file at a path, or the one that a link leads to; `None` where there is nothing. An error is one sentence for the
/// operator: something else is there, or it cannot be looked at.
pub(crate) fn file(path: &Path) -> Result<Option<Metadata>, String> {
    stands(path, FileType::is_file, "a file")
}

/// The same of a directory.
pub(crate) fn directory(path: &Path) -> Result<Option<Metadata>, String> {
    stands(path, FileType::is_dir, "a directory")
}

fn stands(path: &Path, fits: fn(&FileType) -> bool, wanted: &str) -> Result<Option<Metadata>, String> {
    let error = match fs::metadata(path) {
        Ok(found) if fits(&found.file_type()) => return Ok(Some(found)),
        Ok(found) => {
            let is = word(found.file_type());
            return Err(format!("{} is {is} where {wanted} belongs; move it elsewhere", path.display()));
        }
        Err(error) => error,
    };
    let is_link = fs::symlink_metadata(path).is_ok_and(|found| found.is_symlink());
    match error.kind() {
        _ if is_link => {
            let to = fs::read_link(path).unwrap_or_default();
            let (shown, to) = (path.display(), to.display());
            Err(format!("{shown} is a link to {to}: {error}; bring back what it leads to, or remove the link"))
        }
        ErrorKind::NotFound => Ok(None),
        _ => Err(format!("cannot read {}: {error}", path.display())),
    }
}

fn word(kind: FileType) -> &'static str {
    match kind {
        _ if kind.is_file() => "a file",
        _ if kind.is_dir() => "a directory",
        _ if kind.is_fifo() => "a fifo",
        _ if kind.is_socket() => "a socket",
        _ => "a device",
    }
}
