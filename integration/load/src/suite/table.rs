//! The report as a person reads it.

use super::idle::IdleReport;
use super::{CellReport, Report};
use crate::machine::Limits;
use crate::measure::{LatencySummary, median};

/// More than this is no longer the kernel writing back what the brokers wrote.
const OTHERS_CORES_MAX: f64 = 0.3;

/// The median of each figure on its own.
pub(crate) fn median_limits(rounds: &[Limits]) -> Limits {
    let of = |value: fn(&Limits) -> f64| median(&rounds.iter().map(value).collect::<Vec<f64>>());
    let latency = |value: fn(&Limits) -> &LatencySummary| LatencySummary::median(rounds.iter().map(value));
    Limits {
        round_trips: of(|limits| limits.round_trips),
        fdatasyncs_append: of(|limits| limits.fdatasyncs_append),
        fdatasyncs_side_by_side: of(|limits| limits.fdatasyncs_side_by_side),
        fdatasyncs_in_place: of(|limits| limits.fdatasyncs_in_place),
        megabytes_synced: of(|limits| limits.megabytes_synced),
        megabytes_file_to_socket: of(|limits| limits.megabytes_file_to_socket),
        megabytes_socket_to_file: of(|limits| limits.megabytes_socket_to_file),
        megabytes_socket_to_file_spliced: of(|limits| limits.megabytes_socket_to_file_spliced),
        round_trip: latency(|limits| &limits.round_trip),
        fdatasync_append: latency(|limits| &limits.fdatasync_append),
        fdatasync_in_place: latency(|limits| &limits.fdatasync_in_place),
    }
}

pub(crate) fn print(report: &Report) {
    println!("load average before {} and after {}", report.load_average_before, report.load_average_after);
    println!("other programs kept {:.2} of {} processors busy", report.cores_of_others, report.host.processors);
    if report.cores_of_others > OTHERS_CORES_MAX {
        println!("NOT ALONE: these figures say little, the bars nothing; run again when the machine is quiet");
    }
    println!("metaq {}, original {}\n", report.metaq_version, report.original_version.as_deref().unwrap_or("not run"));
    report.machine.print();
    println!();
    let head = ["cell", "metaq", "unit", "p50 µs", "p99 µs", "cores", "original", "p99 µs", "cores", "ratio", "limit"]
        .into_iter()
        .chain(["of limit", "bar", ""])
        .map(str::to_owned)
        .collect();
    let rows = std::iter::once(head).chain(report.cells.iter().map(row)).collect::<Vec<_>>();
    print!("{}", aligned(&rows));
    report.idle.iter().for_each(IdleReport::print);
    for cell in &report.cells {
        let original_errors = cell.original.as_ref().map_or(0, |original| original.errors);
        if cell.metaq.errors + original_errors > 0 {
            println!("errors in `{}`: metaq {}, original {original_errors}", cell.name, cell.metaq.errors);
        }
    }
}

fn row(cell: &CellReport) -> Vec<String> {
    let whole = |value: f64| format!("{value:.0}");
    let or_blank = |text: Option<String>| text.unwrap_or_default();
    let original = cell.original.as_ref();
    vec![
        cell.name.to_owned(),
        whole(cell.metaq.figure),
        cell.unit.to_owned(),
        whole(cell.metaq.p50_us),
        whole(cell.metaq.p99_us),
        format!("{:.2}", cell.metaq.cores),
        or_blank(original.map(|side| whole(side.figure))),
        or_blank(original.map(|side| whole(side.p99_us))),
        or_blank(original.map(|side| format!("{:.2}", side.cores))),
        or_blank(cell.ratio.map(|ratio| format!("{ratio:.2}"))),
        or_blank(cell.limit.map(whole)),
        or_blank(cell.of_limit.map(|part| format!("{:.0} %", part * 100.0))),
        cell.bar.clone(),
        match cell.met {
            Some(true) => "met".to_owned(),
            Some(false) => "MISSED".to_owned(),
            None => String::new(),
        },
    ]
}

/// Columns as wide as their widest cell: the first to the left, figures to the right.
fn aligned(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max();
    let widths: Vec<usize> = (0..columns).map(|column| width(column).unwrap_or(0)).collect();
    let mut text = String::new();
    for row in rows {
        let cells = row.iter().zip(&widths).enumerate().map(|(column, (cell, width))| match column {
            0 => format!("{cell:<width$}"),
            _ => format!("{cell:>width$}"),
        });
        text.push_str(cells.collect::<Vec<_>>().join("  ").trim_end());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up_whatever_the_script() {
        let rows = [["name", "µs"], ["a", "12345"], ["longer", ""]].map(|row| row.map(str::to_owned).to_vec());
        assert_eq!(aligned(&rows), "name       µs\na       12345\nlonger\n");
    }

    #[test]
    fn a_median_is_taken_figure_by_figure() {
        let rounds = [3.0, 1.0, 2.0].map(|value| Limits {
            round_trips: value,
            fdatasyncs_append: 10.0 - value,
            ..Limits::default()
        });
        let limits = median_limits(&rounds);
        assert_eq!((limits.round_trips, limits.fdatasyncs_append), (2.0, 8.0));
    }
}
