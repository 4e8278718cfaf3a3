//! What the suite measures: which work on which topic, against which limit, and where the bar is.

use super::brokers::Broker;
use crate::args::SuiteArgs;
use crate::get;
use crate::host;
use crate::latency::{self, LatencyPlan, Reading};
use crate::machine::Limits;
use crate::measure::LatencySummary;
use crate::put::{self, PutPlan, Until};
use anyhow::Result;
use serde::Serialize;
use std::fmt;
use std::time::Instant;

pub(crate) const BODY_BYTES: usize = 1024;

/// The reader of a broker without the long poll asks this often.
const POLL_PAUSE_MS: u32 = 1;

/// A topic as both brokers are configured with it.
#[derive(Debug)]
pub(crate) struct Topic {
    pub(crate) name: &'static str,
    pub(crate) partitions: u32,
    /// 0: synced before the answer. Above: answered from the page cache.
    pub(crate) unflush_threshold: u32,
    /// Filled before the rounds and then only read.
    pub(crate) read_only: bool,
}

const OS_1: Topic = Topic { name: "load-os-1", partitions: 1, unflush_threshold: 1000, read_only: false };
const OS_8: Topic = Topic { name: "load-os-8", partitions: 8, unflush_threshold: 1000, read_only: false };
const FSYNC_1: Topic = Topic { name: "load-fsync-1", partitions: 1, unflush_threshold: 0, read_only: false };
const FSYNC_8: Topic = Topic { name: "load-fsync-8", partitions: 8, unflush_threshold: 0, read_only: false };
const READ_1: Topic = Topic { name: "load-read-1", partitions: 1, unflush_threshold: 0, read_only: true };
const READ_8: Topic = Topic { name: "load-read-8", partitions: 8, unflush_threshold: 0, read_only: true };

pub(crate) const TOPICS: [Topic; 6] = [OS_1, OS_8, FSYNC_1, FSYNC_8, READ_1, READ_8];

#[derive(Debug, Clone, Copy)]
pub(crate) enum Work {
    Put { topic: &'static Topic, connections: u32, outstanding: u32 },
    Get { topic: &'static Topic },
    Latency { topic: &'static Topic, rate: f64 },
}

/// The machine's figure a cell is held against.
#[derive(Debug, Clone, Copy)]
enum Limit {
    None,
    RoundTrip,
    /// The bare server's answers, at as many connections.
    Bare,
    BareSynced,
    /// One round trip, then one sync, then the next.
    RoundTripAndSync,
    /// What a socket and a file take, as messages.
    SocketToFile,
    FileToSocket,
    /// The time of one sync and one round trip.
    SyncAndRoundTripTime,
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum Bar {
    None,
    /// At least so many times the original's figure.
    TimesOriginal(f64),
    /// At least this part of the machine's limit.
    OfLimit(f64),
    /// At most so many times the machine's limit.
    WithinLimit(f64),
}

impl Bar {
    pub(crate) fn met(self, figure: f64, ratio: Option<f64>, limit: Option<f64>) -> Option<bool> {
        match self {
            Bar::None => None,
            Bar::TimesOriginal(times) => ratio.map(|ratio| ratio >= times),
            Bar::OfLimit(part) => limit.map(|limit| figure >= limit * part),
            Bar::WithinLimit(times) => limit.map(|limit| figure <= limit * times),
        }
    }
}

impl fmt::Display for Bar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Bar::None => Ok(()),
            Bar::TimesOriginal(times) => write!(f, "≥ {times} × original"),
            Bar::OfLimit(part) => write!(f, "≥ {:.0} % of limit", part * 100.0),
            Bar::WithinLimit(times) => write!(f, "≤ {times} × limit"),
        }
    }
}

#[derive(Debug)]
pub(crate) struct Cell {
    pub(crate) name: &'static str,
    pub(crate) work: Work,
    limit: Limit,
    pub(crate) bar: Bar,
}

pub(crate) fn all() -> Vec<Cell> {
    let put = |name, topic, connections, outstanding, limit, bar| Cell {
        name,
        work: Work::Put { topic, connections, outstanding },
        limit,
        bar,
    };
    let get = |name, topic, bar| Cell { name, work: Work::Get { topic }, limit: Limit::FileToSocket, bar };
    let latency = |name, topic, rate, bar| Cell {
        name,
        work: Work::Latency { topic, rate },
        limit: Limit::SyncAndRoundTripTime,
        bar,
    };
    let three_times = Bar::TimesOriginal(3.0);
    let most = Bar::OfLimit(0.6);
    vec![
        put("put os, 1 connection", &OS_1, 1, 1, Limit::RoundTrip, most),
        put("put os, 4 connections", &OS_1, 4, 1, Limit::None, Bar::None),
        put("put os, 16 connections", &OS_1, 16, 1, Limit::Bare, three_times),
        put("put os, 16 connections, 8 partitions", &OS_8, 16, 1, Limit::Bare, three_times),
        put("put os, 64 connections, 8 partitions", &OS_8, 64, 1, Limit::None, Bar::None),
        put("put os, 1 connection × 256", &OS_1, 1, 256, Limit::SocketToFile, Bar::None),
        put("put os, 4 connections × 64, 8 partitions", &OS_8, 4, 64, Limit::SocketToFile, Bar::None),
        put("put fsync, 1 connection", &FSYNC_1, 1, 1, Limit::RoundTripAndSync, most),
        put("put fsync, 4 connections", &FSYNC_1, 4, 1, Limit::None, Bar::None),
        put("put fsync, 16 connections", &FSYNC_1, 16, 1, Limit::BareSynced, three_times),
        put("put fsync, 16 connections, 8 partitions", &FSYNC_8, 16, 1, Limit::BareSynced, three_times),
        put("put fsync, 64 connections, 8 partitions", &FSYNC_8, 64, 1, Limit::None, Bar::None),
        put("put fsync, 1 connection × 256", &FSYNC_1, 1, 256, Limit::SocketToFile, Bar::None),
        put("put fsync, 4 connections × 64, 8 partitions", &FSYNC_8, 4, 64, Limit::SocketToFile, Bar::None),
        get("get from page cache, 1 partition", &READ_1, most),
        get("get from page cache, 8 partitions", &READ_8, Bar::None),
        latency("put to consume os, 2000/s, p99", &OS_1, 2000.0, Bar::WithinLimit(3.0)),
        latency("put to consume fsync, 2000/s, p99", &FSYNC_1, 2000.0, Bar::WithinLimit(3.0)),
        latency("put to consume fsync, 200/s, p99", &FSYNC_1, 200.0, Bar::None),
    ]
}

/// One round of a cell on one broker.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Measured {
    /// In the cell's unit.
    pub(crate) figure: f64,
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
    /// Processors the broker kept busy, warm-up included.
    pub(crate) cores: f64,
    /// Processors kept busy by anything but the broker and this generator.
    pub(crate) cores_of_others: f64,
    pub(crate) resident_megabytes: f64,
    pub(crate) errors: u64,
    raw: serde_json::Value,
}

impl Cell {
    pub(crate) fn unit(&self) -> &'static str {
        match self.work {
            Work::Put { .. } => "msg/s",
            Work::Get { .. } => "MB/s",
            Work::Latency { .. } => "µs",
        }
    }

    pub(crate) fn limit(&self, machine: &Limits) -> Option<f64> {
        let sync_and_round_trip_us = machine.sync_and_round_trip_us();
        match self.limit {
            Limit::None => None,
            Limit::RoundTrip => Some(machine.round_trips),
            Limit::Bare => Some(machine.puts_bare),
            Limit::BareSynced => Some(machine.puts_bare_synced),
            Limit::RoundTripAndSync => Some(1e6 / sync_and_round_trip_us),
            Limit::SocketToFile => Some(machine.megabytes_socket_to_file * 1e6 / BODY_BYTES as f64),
            Limit::FileToSocket => Some(machine.megabytes_file_to_socket),
            Limit::SyncAndRoundTripTime => Some(sync_and_round_trip_us),
        }
    }

    pub(crate) fn measure(&self, broker: &Broker, args: &SuiteArgs) -> Result<Measured> {
        let busy = || {
            let broker = host::busy_seconds(broker.pid);
            (broker, host::machine_busy_seconds() - broker - host::busy_seconds(std::process::id()))
        };
        let (broker_before, others_before) = busy();
        let start = Instant::now();
        let mut measured = self.drive(broker, args)?;
        let (broker_after, others_after) = busy();
        let seconds = start.elapsed().as_secs_f64();
        measured.cores = (broker_after - broker_before) / seconds;
        measured.cores_of_others = (others_after - others_before) / seconds;
        measured.resident_megabytes = host::resident_megabytes(broker.pid);
        Ok(measured)
    }

    fn drive(&self, broker: &Broker, args: &SuiteArgs) -> Result<Measured> {
        let (warmup, measured) = (args.warmup.0, args.seconds.0);
        match self.work {
            Work::Put { topic, connections, outstanding } => {
                let outcome = put::run(&PutPlan {
                    broker: broker.address,
                    topic: topic.name.into(),
                    partitions: topic.partitions,
                    connections,
                    outstanding,
                    body_bytes: BODY_BYTES,
                    threads: 1,
                    checksum: false,
                    until: Until::Time { warmup, measured },
                })?;
                Measured::new(outcome.messages_per_second, &outcome.latency, outcome.errors, &outcome)
            }
            Work::Get { topic } => {
                let outcome = get::run(&super::get_plan(broker.address, topic, args))?;
                Measured::new(outcome.megabytes_per_second, &outcome.latency, 0, &outcome)
            }
            Work::Latency { topic, rate } => {
                let outcome = latency::run(&LatencyPlan {
                    broker: broker.address,
                    reader: broker.address,
                    topic: topic.name.into(),
                    partition: 0,
                    body_bytes: BODY_BYTES,
                    messages_per_second: rate,
                    reading: match broker.long_poll {
                        true => Reading::LongPoll { wait_ms: 1000 },
                        false => Reading::Poll { pause_ms: POLL_PAUSE_MS },
                    },
                    warmup,
                    measured,
                })?;
                let latency = &outcome.due_to_consumed;
                Measured::new(latency.p99_us, latency, outcome.errors, &outcome)
            }
        }
    }
}

impl Measured {
    fn new<T: Serialize>(figure: f64, latency: &LatencySummary, errors: u64, raw: &T) -> Result<Measured> {
        let LatencySummary { p50_us, p99_us, .. } = *latency;
        let raw = serde_json::to_value(raw)?;
        Ok(Measured { figure, p50_us, p99_us, cores: 0.0, cores_of_others: 0.0, resident_megabytes: 0.0, errors, raw })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bare::CONNECTIONS;
    use std::collections::HashSet;

    #[test]
    fn bars_compare_with_what_they_name() {
        assert_eq!(Bar::TimesOriginal(3.0).met(30.0, Some(3.0), None), Some(true));
        assert_eq!(Bar::TimesOriginal(3.0).met(30.0, None, Some(1.0)), None, "no original, no verdict");
        assert_eq!(Bar::OfLimit(0.6).met(59.0, None, Some(100.0)), Some(false));
        assert_eq!(Bar::WithinLimit(3.0).met(299.0, None, Some(100.0)), Some(true));
        assert_eq!(Bar::None.met(0.0, Some(0.0), Some(1.0)), None);
    }

    #[test]
    fn limits_are_in_the_unit_of_their_cell() {
        let machine = Limits {
            round_trips: 20_000.0,
            puts_bare: 90_000.0,
            puts_bare_synced: 30_000.0,
            fdatasyncs_append: 5_000.0,
            ..Limits::default()
        };
        let cells = all();
        let limit = |name| cells.iter().find(|cell| cell.name == name).unwrap().limit(&machine).unwrap().round();
        assert_eq!(limit("put os, 1 connection"), 20_000.0);
        assert_eq!(limit("put fsync, 1 connection"), 4_000.0);
        assert_eq!(limit("put os, 16 connections, 8 partitions"), 90_000.0);
        assert_eq!(limit("put fsync, 16 connections"), 30_000.0);
        assert_eq!(limit("put to consume fsync, 2000/s, p99"), 250.0);
    }

    #[test]
    fn the_bare_server_had_the_connections_of_the_cells_it_is_held_against() {
        for cell in all().iter().filter(|cell| matches!(cell.limit, Limit::Bare | Limit::BareSynced)) {
            let Work::Put { topic, connections, outstanding } = cell.work else { panic!("{cell:?}") };
            assert_eq!((connections, outstanding), (CONNECTIONS, 1), "{}", cell.name);
            assert_eq!(topic.unflush_threshold == 0, matches!(cell.limit, Limit::BareSynced), "{}", cell.name);
        }
    }

    #[test]
    fn cells_have_names_of_their_own() {
        let names: HashSet<&str> = all().iter().map(|cell| cell.name).collect();
        assert_eq!(names.len(), all().len());
    }
}
