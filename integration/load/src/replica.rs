//! Replication measured with real masters and slaves: how far a slave is behind, how fast it catches up and what that
//! costs, what a quorum costs, how long a promotion takes. Each figure stands beside the machine's limits, measured just
//! before it on the same disk.

mod catch_up;
mod lag;
mod promotion;
mod puts;
mod quorum;
mod site;
mod slowdown;
mod zookeeper;

use crate::args::ReplicaArgs;
use crate::columns::aligned;
use crate::host;
use crate::machine::{self, Limits};
use crate::measure::median;
use crate::out;
use crate::suite::Bar;
use anyhow::{Context, Result};
use serde::Serialize;
use site::Site;
use std::fs::{self, File};
use std::process::ExitCode;
use std::time::Duration;

pub(crate) use site::Transport;

/// For each of the machine's limits, before each part.
const LIMIT_SECONDS: Duration = Duration::from_millis(500);

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Part {
    /// How far a slave is behind at a fixed rate, fsync.
    Lag,
    /// A new slave and a large master, few partitions and many.
    CatchUp,
    /// What a slave that catches up costs the master's producers.
    Slowdown,
    /// Puts that two of three members must hold.
    Quorum,
    /// From the start command to the first acknowledged put.
    Promotion,
    /// Puts that are not synced, with one slave copying behind.
    Puts,
}

impl Part {
    const ALL: [Part; 6] = [Part::Lag, Part::CatchUp, Part::Slowdown, Part::Quorum, Part::Promotion, Part::Puts];
}

/// One round of a figure, beside what bounds it.
#[derive(Debug, Clone, Serialize)]
struct Sample {
    name: String,
    unit: &'static str,
    figure: f64,
    limit: Option<f64>,
    #[serde(skip)]
    bar: Bar,
    /// Everything else that was seen.
    detail: serde_json::Value,
}

impl Sample {
    fn new(name: impl Into<String>, unit: &'static str, figure: f64) -> Sample {
        Sample { name: name.into(), unit, figure, limit: None, bar: Bar::None, detail: serde_json::Value::Null }
    }

    /// No more than so many times the limit.
    fn within(self, times: f64, limit: f64) -> Sample {
        Sample { limit: Some(limit), bar: Bar::WithinLimit(times), ..self }
    }

    /// No less than that part of the limit.
    fn at_least(self, part: f64, limit: f64) -> Sample {
        Sample { limit: Some(limit), bar: Bar::OfLimit(part), ..self }
    }

    /// Beside the limit, without a bar.
    fn beside(self, limit: f64) -> Sample {
        Sample { limit: Some(limit), ..self }
    }

    fn with<T: Serialize>(self, detail: &T) -> Result<Sample> {
        Ok(Sample { detail: serde_json::to_value(detail)?, ..self })
    }
}

#[derive(Debug, Serialize)]
struct Report {
    command_line: Vec<String>,
    host: host::Host,
    load_average_before: String,
    load_average_after: String,
    metaq_version: String,
    machine: Limits,
    machine_rounds: Vec<Limits>,
    figures: Vec<Figure>,
}

/// The median of a figure's rounds.
#[derive(Debug, Serialize)]
struct Figure {
    name: String,
    unit: &'static str,
    figure: f64,
    limit: Option<f64>,
    /// Of the limit.
    ratio: Option<f64>,
    bar: String,
    /// `None`: no bar.
    met: Option<bool>,
    rounds: Vec<Sample>,
}

pub(crate) fn run(args: &ReplicaArgs, json: bool) -> Result<ExitCode> {
    // Opened first: a path that cannot be written should not cost the figures of ten minutes.
    let out =
        args.out.as_ref().map(|path| File::create(path).with_context(|| format!("cannot write {}", path.display())));
    let out = out.transpose()?;
    fs::create_dir_all(&args.dir)?;
    let site = Site::new(args)?;
    let load_average_before = host::load_average();
    let mut limits = Vec::new();
    let mut figures: Vec<Figure> = Vec::new();
    for round in 1..=args.rounds {
        for part in Part::ALL.into_iter().filter(|part| args.parts.is_empty() || args.parts.contains(part)) {
            out::say(&format!("round {round} of {}: {part:?}", args.rounds));
            for sample in measure(part, &site, &mut limits)? {
                out::say(&format!("  {}: {:.1} {}", sample.name, sample.figure, sample.unit));
                match figures.iter_mut().find(|figure| figure.name == sample.name) {
                    Some(figure) => figure.rounds.push(sample),
                    None => figures.push(Figure::of(sample)),
                }
            }
        }
    }
    figures.iter_mut().for_each(Figure::settle);
    let report = Report {
        command_line: std::env::args().collect(),
        host: host::Host::look(),
        load_average_before,
        load_average_after: host::load_average(),
        metaq_version: site.version()?,
        machine: Limits::median(&limits),
        machine_rounds: limits,
        figures,
    };
    if let Some(out) = out {
        serde_json::to_writer_pretty(out, &report)?;
    }
    out::result(json, &report, page)?;
    let missed = report.figures.iter().any(|figure| figure.met == Some(false));
    Ok(if args.check && missed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn measure(part: Part, site: &Site, limits: &mut Vec<Limits>) -> Result<Vec<Sample>> {
    let mut samples = Vec::new();
    if part == Part::Promotion {
        return promotion::run(site);
    }
    for transport in &site.args.transports {
        site.settle()?;
        let machine = machine::run(&site.args.dir, LIMIT_SECONDS)?;
        site.settle()?;
        let measured = match part {
            Part::Lag => lag::run(site, *transport, &machine),
            Part::CatchUp => catch_up::run(site, *transport, &machine),
            Part::Slowdown => slowdown::run(site, *transport),
            Part::Quorum => quorum::run(site, *transport, &machine),
            Part::Puts => puts::run(site, *transport),
            Part::Promotion => unreachable!("it has no transport"),
        };
        samples.extend(measured.with_context(|| format!("{part:?} over {transport}"))?);
        limits.push(machine);
    }
    Ok(samples)
}

impl Figure {
    fn of(sample: Sample) -> Figure {
        Figure {
            name: sample.name.clone(),
            unit: sample.unit,
            figure: 0.0,
            limit: None,
            ratio: None,
            bar: sample.bar.to_string(),
            met: None,
            rounds: vec![sample],
        }
    }

    /// Takes the medians of the rounds.
    fn settle(&mut self) {
        let of = |value: fn(&Sample) -> Option<f64>| {
            let values: Vec<f64> = self.rounds.iter().filter_map(value).collect();
            (!values.is_empty()).then(|| median(&values))
        };
        let figure = of(|round| Some(round.figure)).unwrap_or_default();
        let limit = of(|round| round.limit);
        self.figure = figure;
        self.limit = limit;
        self.ratio = limit.map(|limit| figure / limit);
        self.met = self.rounds.first().and_then(|round| round.bar.met(figure, None, limit));
    }
}

fn page(report: &Report) -> String {
    let mut page = format!(
        "load average before {} and after {}\nmetaq {}, {} processors\n\n",
        report.load_average_before, report.load_average_after, report.metaq_version, report.host.processors
    );
    page += &report.machine.page();
    page += "\n";
    let head = ["figure", "value", "unit", "limit", "of limit", "bar", ""].map(str::to_owned).to_vec();
    let rows = report.figures.iter().map(|figure| {
        let short = |value: f64| if value < 10.0 { format!("{value:.2}") } else { format!("{value:.0}") };
        vec![
            figure.name.clone(),
            short(figure.figure),
            figure.unit.to_owned(),
            figure.limit.map(short).unwrap_or_default(),
            figure.ratio.map(|ratio| format!("{ratio:.2}")).unwrap_or_default(),
            figure.bar.clone(),
            match figure.met {
                Some(true) => "met".to_owned(),
                Some(false) => "MISSED".to_owned(),
                None => String::new(),
            },
        ]
    });
    page + &aligned(&std::iter::once(head).chain(rows).collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_is_the_median_of_its_rounds_and_held_against_the_median_limit() {
        let sample = |figure, limit| Sample::new("x", "MB/s", figure).at_least(0.7, limit);
        let mut figure = Figure::of(sample(60.0, 100.0));
        figure.rounds.extend([sample(80.0, 110.0), sample(90.0, 90.0)]);
        figure.settle();
        assert_eq!((figure.figure, figure.limit, figure.ratio, figure.met), (80.0, Some(100.0), Some(0.8), Some(true)));
        assert_eq!(figure.bar, "≥ 70 % of limit");
    }
}
