//! Our broker beside the original and beside the machine: the same cells on each, in interleaved rounds, so that a
//! slow minute of a shared machine hits all of them. Medians are compared; every raw value is kept.

mod brokers;
mod cells;
mod idle;
mod table;

use crate::args::SuiteArgs;
use crate::get::{self, GetPlan, Records};
use crate::host;
use crate::machine::{self, Limits};
use crate::measure::median;
use crate::out;
use crate::put::{self, PutPlan, Until};
use anyhow::{Context, Result};
use brokers::{Broker, MetaqHome};
use cells::{Cell, Measured, TOPICS, Work};
use serde::Serialize;
use std::fs::{self, File};
use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

pub(crate) use cells::Bar;

/// For each of the machine's limits, each round.
const LIMIT_SECONDS: Duration = Duration::from_secs(1);

/// Driven once before the first round, the same on each broker: a JVM compiles what it sees often, and a comparison
/// with a cold one would flatter us.
const FIRST_WARMUP: Duration = Duration::from_secs(8);

/// Everything that is known about one run.
#[derive(Debug, Serialize)]
struct Report {
    command_line: Vec<String>,
    load_generator: &'static str,
    host: host::Host,
    load_average_before: String,
    load_average_after: String,
    /// Processors kept busy by other programs, the median of all rounds of all cells.
    cores_of_others: f64,
    metaq_version: String,
    original_version: Option<String>,
    machine: Limits,
    machine_rounds: Vec<Limits>,
    cells: Vec<CellReport>,
    idle: Option<idle::IdleReport>,
}

#[derive(Debug, Serialize)]
struct CellReport {
    name: &'static str,
    unit: &'static str,
    metaq: Side,
    original: Option<Side>,
    /// Of the original's figure.
    ratio: Option<f64>,
    /// What the machine allows, in the cell's unit, where there is such a figure.
    limit: Option<f64>,
    of_limit: Option<f64>,
    bar: String,
    /// `None`: no bar, or nothing to compare with.
    met: Option<bool>,
}

/// One broker's rounds of a cell and their medians.
#[derive(Debug, Default, Serialize)]
struct Side {
    figure: f64,
    p50_us: f64,
    p99_us: f64,
    cores: f64,
    errors: u64,
    rounds: Vec<Measured>,
}

pub(crate) fn run(args: &SuiteArgs, json: bool) -> Result<ExitCode> {
    // Opened first: a path that cannot be written should not cost the figures of ten minutes.
    let out = File::create(&args.out).with_context(|| format!("cannot write {}", args.out.display()))?;
    fs::create_dir_all(&args.dir)?;
    let cells: Vec<Cell> = cells::all()
        .into_iter()
        .filter(|cell| args.only.as_ref().is_none_or(|only| cell.name.contains(only.as_str())))
        .collect();
    let load_average_before = host::load_average();
    let home = MetaqHome::new(&args.dir, &brokers::topic_sections())?;
    let metaq = home.start(&args.metaq_master)?;
    let original = match &args.original {
        Some(script) => Some(brokers::start_original(script, &args.original_dir, &args.dir)?),
        None => None,
    };
    let brokers: Vec<&Broker> = std::iter::once(&metaq).chain(&original).collect();
    prepare(args, &brokers, &cells)?;
    let mut limits = Vec::new();
    let mut measured: Vec<Vec<Vec<Measured>>> = vec![vec![Vec::new(); brokers.len()]; cells.len()];
    for round in 1..=args.rounds {
        out::say(&format!("round {round} of {}: machine", args.rounds));
        settle(args)?;
        limits.push(machine::run(&args.dir, LIMIT_SECONDS)?);
        for (cell, sides) in cells.iter().zip(&mut measured) {
            for (broker, rounds) in brokers.iter().zip(sides) {
                out::say(&format!("round {round} of {}: {} on {}", args.rounds, cell.name, broker.name));
                settle(args)?;
                rounds.push(cell.measure(broker, args).with_context(|| format!("{} on {}", cell.name, broker.name))?);
            }
        }
    }
    let machine = Limits::median(&limits);
    let others = measured.iter().flatten().flatten().map(|round| round.cores_of_others);
    let cores_of_others = median(&others.collect::<Vec<f64>>());
    let reports = cells.iter().zip(measured).map(|(cell, sides)| report_cell(cell, sides, &machine)).collect();
    let versions = (metaq.version.clone(), original.as_ref().map(|original| original.version.clone()));
    drop((metaq, original));
    let idle = match args.idle_partitions {
        0 => None,
        partitions => Some(idle::run(&args.metaq_master, &args.dir, partitions)?),
    };
    let report = Report {
        command_line: std::env::args().collect(),
        load_generator: env!("CARGO_PKG_VERSION"),
        host: host::Host::look(),
        load_average_before,
        load_average_after: host::load_average(),
        cores_of_others,
        metaq_version: versions.0,
        original_version: versions.1,
        machine,
        machine_rounds: limits,
        cells: reports,
        idle,
    };
    serde_json::to_writer_pretty(&out, &report)?;
    out::result(json, &report, table::page)?;
    let missed = report.cells.iter().any(|cell| cell.met == Some(false) || cell.metaq.errors > 0)
        || report.idle.as_ref().is_some_and(|idle| !idle.met);
    Ok(if args.check && missed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Lets what earlier cells left in the page cache reach the disk, so that it does not slow the next one's syncs.
fn settle(args: &SuiteArgs) -> Result<()> {
    let dir = File::open(&args.dir)?;
    Ok(rustix::fs::syncfs(dir)?)
}

/// Warms every broker up alike and fills the topics that are only read.
fn prepare(args: &SuiteArgs, brokers: &[&Broker], cells: &[Cell]) -> Result<()> {
    for broker in brokers {
        out::say(&format!("warming up {} ({})", broker.name, broker.version));
        for topic in TOPICS.iter().filter(|topic| !topic.read_only) {
            put::run(&PutPlan {
                broker: broker.address,
                topic: topic.name.into(),
                partitions: topic.partitions,
                connections: 16,
                outstanding: 1,
                body_bytes: cells::BODY_BYTES,
                threads: 1,
                checksum: false,
                until: Until::Time { warmup: Duration::ZERO, measured: FIRST_WARMUP / 4 },
            })?;
        }
        for topic in TOPICS.iter().filter(|topic| topic.read_only) {
            if cells.iter().any(|cell| matches!(cell.work, Work::Get { topic: read } if read.name == topic.name)) {
                get::fill(&get_plan(broker.address, topic, args), args.fill, cells::BODY_BYTES)?;
            }
        }
    }
    Ok(())
}

fn get_plan(broker: SocketAddr, topic: &cells::Topic, args: &SuiteArgs) -> GetPlan {
    GetPlan {
        broker,
        topic: topic.name.into(),
        partitions: topic.partitions,
        connections: topic.partitions,
        bytes_max: 1024 * 1024,
        records: Records::Counted,
        warmup: args.warmup.0,
        measured: args.seconds.0,
    }
}

fn report_cell(cell: &Cell, sides: Vec<Vec<Measured>>, machine: &Limits) -> CellReport {
    let mut sides = sides.into_iter().map(Side::new);
    let metaq = sides.next().unwrap_or_default();
    let original = sides.next();
    let limit = cell.limit(machine);
    let ratio = original.as_ref().map(|original| metaq.figure / original.figure);
    CellReport {
        name: cell.name,
        unit: cell.unit(),
        ratio,
        limit,
        of_limit: limit.map(|limit| metaq.figure / limit),
        bar: cell.bar.to_string(),
        met: cell.bar.met(metaq.figure, ratio, limit),
        metaq,
        original,
    }
}

impl Side {
    fn new(rounds: Vec<Measured>) -> Side {
        let of = |value: fn(&Measured) -> f64| median(&rounds.iter().map(value).collect::<Vec<f64>>());
        Side {
            figure: of(|round| round.figure),
            p50_us: of(|round| round.p50_us),
            p99_us: of(|round| round.p99_us),
            cores: of(|round| round.cores),
            errors: rounds.iter().map(|round| round.errors).sum(),
            rounds,
        }
    }
}
