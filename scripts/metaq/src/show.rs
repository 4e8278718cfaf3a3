//! What people and programs are shown: tables, JSON, and texts that cannot act on a terminal.

use std::fmt::Write as _;
use std::io::{self, ErrorKind, Write as _};

use anyhow::Context as _;
use clap::ValueEnum;
use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// For people
    Table,
    /// For programs: one JSON value, or one a line for what has no end
    Json,
}

/// A column of a table: its title, and whether its values are numbers.
pub(crate) struct Column(pub(crate) &'static str, pub(crate) bool);

/// Prints rows as a table of `columns`, or as a JSON array of the rows themselves.
pub(crate) fn rows<R: Serialize>(
    format: Format,
    columns: &[Column],
    rows: &[R],
    cells: impl Fn(&R) -> Vec<String>,
) -> anyhow::Result<()> {
    print(&match format {
        Format::Json => json(rows)?,
        Format::Table => table(columns, rows, cells),
    })
}

/// Rows as a table of `columns`, without the last line feed; what a terminal could act on is escaped.
pub(crate) fn table<R>(columns: &[Column], rows: &[R], cells: impl Fn(&R) -> Vec<String>) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(columns.iter().map(|column| column.0));
    for row in rows {
        table.add_row(cells(row).into_iter().map(|cell| escape(cell.as_bytes())));
    }
    for (column, Column(_, is_number)) in table.column_iter_mut().zip(columns) {
        if *is_number {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    // Trailing blanks would be copied along from a terminal.
    let lines: Vec<String> = table.lines().map(|line| line.trim_end().to_owned()).collect();
    lines.join("\n")
}

/// Prints a command's result, one line or more without the last line feed.
pub(crate) fn print(text: &str) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    taken(writeln!(out, "{text}").and_then(|()| out.flush()))
}

/// What became of a result on standard output. A reader that has gone, as `head` does, had what it wanted: the command
/// ends with the exit code that its work deserves.
pub(crate) fn taken(written: io::Result<()>) -> anyhow::Result<()> {
    match written {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        written => written.context("standard output cannot be written"),
    }
}

/// Says a word about the run. Nobody may be there to take it, which is no reason to end.
pub(crate) fn say(text: &str) {
    let _ = writeln!(io::stderr(), "{text}");
}

/// JSON in one line. `DEL` and the C1 controls, which JSON lets stand, are escaped as well: some terminals act on them.
pub(crate) fn json(value: &(impl Serialize + ?Sized)) -> io::Result<String> {
    let plain = serde_json::to_string(value)?;
    if !plain.contains(acts_on_a_terminal) {
        return Ok(plain);
    }
    let mut safe = String::with_capacity(plain.len() + 16);
    for c in plain.chars() {
        if acts_on_a_terminal(c) {
            write!(safe, "\\u{:04x}", u32::from(c)).expect("a String takes every write");
        } else {
            safe.push(c);
        }
    }
    Ok(safe)
}

/// Text as it is, except that controls (but tab) and bytes that are no UTF-8 are written as `\xNN`.
pub(crate) fn escape(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            if c != '\t' && acts_on_a_terminal(c) {
                let mut utf8 = [0; 4];
                escape_bytes(&mut text, c.encode_utf8(&mut utf8).as_bytes());
            } else {
                text.push(c);
            }
        }
        escape_bytes(&mut text, chunk.invalid());
    }
    text
}

fn escape_bytes(text: &mut String, bytes: &[u8]) {
    for byte in bytes {
        write!(text, "\\x{byte:02x}").expect("a String takes every write");
    }
}

fn acts_on_a_terminal(c: char) -> bool {
    // Besides controls, the marks that turn the direction of what follows them.
    c.is_control() || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// A number that may not be known.
pub(crate) fn or_dash<T: ToString>(value: Option<T>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| value.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_shown_acts_on_the_terminal() {
        assert_eq!(escape("订单 a\tb".as_bytes()), "订单 a\tb");
        assert_eq!(escape(b"\x1b[2J\xff\r"), "\\x1b[2J\\xff\\x0d");
        assert_eq!(escape("\u{9b}31m".as_bytes()), "\\xc2\\x9b31m");
        assert_eq!(escape("\u{202e}".as_bytes()), "\\xe2\\x80\\xae");
    }

    #[test]
    fn json_reads_back_as_what_was_shown() {
        let text = "a\u{1b}\u{7f}\u{9b}\u{202e}\"";
        let shown = json(text).unwrap();
        assert_eq!(shown, "\"a\\u001b\\u007f\\u009b\\u202e\\\"\"");
        assert_eq!(serde_json::from_str::<String>(&shown).unwrap(), text);
    }
}
