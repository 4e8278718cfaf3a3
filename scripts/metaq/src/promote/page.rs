use std::fmt::Write as _;

use super::report::{FenceLine, MasterLine, Messages, PartitionLine, Report, Verdict};
use crate::show::escape;

/// Partitions that are listed one by one.
const LISTED_MAX: usize = 20;

/// One page; what a terminal could act on is escaped.
pub(super) fn text(report: &Report) -> String {
    let lines: Vec<String> = page(report).lines().map(|line| escape(line.as_bytes()).trim_end().to_owned()).collect();
    lines.join("\n")
}

fn page(report: &Report) -> String {
    let mut page = String::new();
    let mut row = |title: &str, text: &str| {
        writeln!(page, "{title:<10} {text}").expect("a String takes every write");
    };
    row("node", &node(report));
    if let Some(master) = &report.master {
        row("master", &master_text(master));
    }
    row("reign", &reign(report));
    let of_note = |line: &&PartitionLine| line.bytes_at_risk > 0 || line.stopped.is_some() || !line.gaps.is_empty();
    let behind: Vec<_> = report.partitions.iter().filter(of_note).collect();
    let level = report.partitions.len() - behind.len();
    let all = report.partitions.len();
    if all > 0 {
        row("level", &format!("{level} of {all} partitions end where the master was last known to end"));
    }
    for line in behind.iter().take(LISTED_MAX) {
        row("behind", &partition(line));
    }
    if let Some(more) = behind.len().checked_sub(LISTED_MAX + 1) {
        row("behind", &format!("and {} partitions more; --format json lists them", more + 1));
    }
    if report.master.is_some() {
        row("at risk", &format!("{} bytes known to be on the master are not here{}", report.bytes_at_risk, of(report)));
    }
    for wait in &report.waits_for {
        row("waits for", wait);
    }
    for reason in &report.reasons {
        row("because", reason);
    }
    for note in &report.notes {
        row("note", note);
    }
    row("verdict", &verdict(report));
    page
}

fn node(report: &Report) -> String {
    let role = report.slave.map_or("no slave's data".to_owned(), |slave| format!("slave {slave}"));
    let process = match (&report.slave_address, &report.link) {
        (Some(address), Some(link)) => format!("runs at {address}, {link}"),
        _ => "does not run".to_owned(),
    };
    format!("broker {}, {role}, {}; {process}", report.broker, report.data_path)
}

fn master_text(master: &MasterLine) -> String {
    let answers = if master.answers { "answers" } else { "does not answer" };
    match master.silent_seconds {
        None => format!("{} {answers}, and was never heard", master.address),
        Some(seconds) => format!(
            "{} {answers}; last heard {seconds:.1} s ago, what it acknowledged after that is not known here",
            master.address
        ),
    }
}

fn reign(report: &Report) -> String {
    let next = format!("the promotion would begin epoch {}", report.next_epoch);
    match &report.fence {
        None if report.fence_unknown => {
            format!("the fence is not known; this data knows epoch {}, {next}", report.epoch)
        }
        None => format!("no fence; this data knows epoch {}, {next}", report.epoch),
        Some(FenceLine { epoch, address, is_known, .. }) => {
            let known = if *is_known { "which this data knows" } else { "which this data does not know" };
            format!("epoch {epoch} of {address}, {known}; {next}")
        }
    }
}

fn partition(line: &PartitionLine) -> String {
    let PartitionLine { partition, own_end, master_end, bytes_at_risk, age_seconds, gaps, stopped, .. } = line;
    let own = own_end.map_or("is not here".to_owned(), |end| format!("ends at {end}"));
    let mut text = format!("{partition} {own}, the master at {master_end} ({age_seconds:.1} s ago)");
    let mut add = |more: String| {
        text.push_str("; ");
        text.push_str(&more);
    };
    if *bytes_at_risk > 0 {
        add(format!("{bytes_at_risk} bytes{}", messages(&line.messages_at_risk)));
    }
    for (from, to) in gaps {
        add(format!("missing inside from {from} to {to}"));
    }
    if let Some(stopped) = stopped {
        add(stopped.clone());
    }
    text
}

fn of(report: &Report) -> String {
    if report.bytes_at_risk == 0 { String::new() } else { messages(&report.messages_at_risk) }
}

fn messages(count: &Messages) -> String {
    let Messages { at_least, about, at_most } = count;
    let about = about.map_or(String::new(), |about| format!("about {about} messages by the size of the newest here, "));
    format!(": {about}at least {at_least}, at most {at_most}")
}

fn verdict(report: &Report) -> String {
    let go = format!("metaq-slave --config {}", report.config);
    match report.verdict {
        Verdict::Safe => format!("safe: nothing is known to be missing. To promote, stop the slave, then: {go}"),
        Verdict::PossibleLoss => format!("possible loss. To promote all the same, stop the slave, then: {go}"),
        Verdict::Refused => "refused".to_owned(),
    }
}
