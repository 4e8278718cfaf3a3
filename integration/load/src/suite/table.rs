//! The report as a person reads it.

use super::idle::IdleReport;
use super::{CellReport, Report};
use crate::columns::aligned;

/// More than this is no longer the kernel writing back what the brokers wrote.
const OTHERS_CORES_MAX: f64 = 0.3;

pub(crate) fn page(report: &Report) -> String {
    let mut page = format!(
        "load average before {} and after {}\nother programs kept {:.2} of {} processors busy\n",
        report.load_average_before, report.load_average_after, report.cores_of_others, report.host.processors
    );
    if report.cores_of_others > OTHERS_CORES_MAX {
        page += "NOT ALONE: these figures say little, the bars nothing; run again when the machine is quiet\n";
    }
    let original = report.original_version.as_deref().unwrap_or("not run");
    page += &format!("metaq {}, original {original}\n\n{}\n", report.metaq_version, report.machine.page());
    let head = ["cell", "metaq", "unit", "p50 µs", "p99 µs", "cores", "original", "p99 µs", "cores", "ratio", "limit"]
        .into_iter()
        .chain(["of limit", "bar", ""])
        .map(str::to_owned)
        .collect();
    let rows = std::iter::once(head).chain(report.cells.iter().map(row)).collect::<Vec<_>>();
    page += &aligned(&rows);
    page.extend(report.idle.iter().map(IdleReport::page));
    for cell in &report.cells {
        let original_errors = cell.original.as_ref().map_or(0, |original| original.errors);
        if cell.metaq.errors + original_errors > 0 {
            page += &format!("errors in `{}`: metaq {}, original {original_errors}\n", cell.name, cell.metaq.errors);
        }
    }
    page
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
