//! Results on standard output, words about the run on standard error. `println!` and `eprintln!` panic when nobody
//! reads.

use anyhow::{Context, Result};
use serde::Serialize;
use std::io::{self, ErrorKind, Write};

/// Prints a result: as JSON, or as `page` writes it for a person.
pub(crate) fn result<T: Serialize>(json: bool, outcome: &T, page: impl FnOnce(&T) -> String) -> Result<()> {
    if json { print(&(serde_json::to_string_pretty(outcome)? + "\n")) } else { print(&page(outcome)) }
}

/// Prints whole lines.
pub(crate) fn print(text: &str) -> Result<()> {
    let mut out = io::stdout().lock();
    taken(out.write_all(text.as_bytes()).and_then(|()| out.flush()))
}

/// What became of a result on standard output. A reader that has gone, as `head` does, had what it wanted.
pub(crate) fn taken(written: io::Result<()>) -> Result<()> {
    match written {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        written => written.context("standard output cannot be written"),
    }
}

/// Says a word about the run. Nobody may be there to take it, which is no reason to end.
pub(crate) fn say(text: &str) {
    let _ = writeln!(io::stderr(), "{text}");
}
