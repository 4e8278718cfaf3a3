use std::fmt::Write as _;

use super::compare::Outcome;
use super::report::{PartitionLine, Report};
use crate::show::{self, Column, escape};

/// Of a hash, in a table.
const HASH_DIGITS: usize = 16;

/// One page; what a terminal could act on is escaped.
pub(super) fn text(report: &Report) -> String {
    let mut page = String::new();
    let mut say = |line: &str| writeln!(page, "{}", escape(line.as_bytes())).expect("a String takes every write");
    for line in &report.paths {
        say(&format!("{}: {}", line.path.display(), line.words));
    }
    if let Some(other) = &report.against {
        say(&format!("compared with {other}"));
    }
    page.push_str(&table(report));
    page.push('\n');
    let mut say = |line: &str| writeln!(page, "{}", escape(line.as_bytes())).expect("a String takes every write");
    for fault in &report.faults {
        say(&format!("DAMAGED  {fault}"));
    }
    for line in &report.partitions {
        let name = &line.partition;
        for fault in &line.faults {
            say(&format!("DAMAGED  {name}: {fault}"));
        }
        if line.faults_more > 0 {
            say(&format!("DAMAGED  {name}: and {} places more", line.faults_more));
        }
        match &line.against {
            Some(against) if against.result == Outcome::Unasked => say(&format!("note     {name}: {}", against.text)),
            Some(against) if against.result != Outcome::Same => say(&format!("COMPARED {name}: {}", against.text)),
            _ => {}
        }
        for note in &line.notes {
            say(&format!("note     {name}: {note}"));
        }
    }
    for name in &report.only_there {
        say(&format!("COMPARED {name}: not here"));
    }
    for note in &report.notes {
        say(&format!("note     {note}"));
    }
    say(&report.next);
    page.truncate(page.trim_end().len());
    page
}

fn table(report: &Report) -> String {
    let mut columns = vec![
        Column("PARTITION", false),
        Column("SEGMENTS", true),
        Column("MESSAGES", true),
        Column("BYTES", true),
        Column("FIRST", true),
        Column("END", true),
        Column("SHA256", false),
        Column("STATE", false),
    ];
    if report.against.is_some() {
        columns.push(Column("OTHER", false));
    }
    show::table(&columns, &report.partitions, |line| {
        let mut cells = vec![
            line.partition.clone(),
            line.segments.to_string(),
            line.messages.to_string(),
            line.bytes.to_string(),
            line.first_offset.to_string(),
            line.end_offset.to_string(),
            format!("{}…", &line.sha256[..HASH_DIGITS]),
            if line.faults.is_empty() { "whole" } else { "DAMAGED" }.to_owned(),
        ];
        cells.extend(line.against.as_ref().map(|_| other(line)));
        cells
    })
}

fn other(line: &PartitionLine) -> String {
    let Some(against) = &line.against else { return String::new() };
    let bytes = against.bytes.unwrap_or(0);
    match against.result {
        Outcome::Same => "same".to_owned(),
        Outcome::Behind => format!("prefix, {bytes} bytes behind"),
        Outcome::Ahead => format!("{bytes} bytes ahead"),
        Outcome::Differs => format!("DIFFERS at {}", show::or_dash(against.at)),
        Outcome::Absent => "ABSENT".to_owned(),
        Outcome::Unasked => "-".to_owned(),
    }
}
