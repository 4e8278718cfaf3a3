//! Catch-up reads: from the first offset to the end and again, as a consumer that has fallen behind.

use crate::frame::{GetQuestion, RECORD_HEADER_BYTES, walk_records};
use crate::measure::{Clock, Latencies, LatencySummary, Phases};
use crate::put::{self, PutPlan, Until};
use crate::reader::{Answer, Reader};
use anyhow::{Result, bail, ensure};
use serde::Serialize;
use std::net::SocketAddr;
use std::time::Duration;

#[derive(Debug, Clone)]
pub(crate) struct GetPlan {
    pub(crate) broker: SocketAddr,
    pub(crate) topic: String,
    pub(crate) partitions: u32,
    pub(crate) connections: u32,
    /// The most bytes a get asks for.
    pub(crate) bytes_max: u32,
    pub(crate) records: Records,
    pub(crate) warmup: Duration,
    pub(crate) measured: Duration,
}

/// What is done with what is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Records {
    /// Taken off the socket and forgotten.
    Ignored,
    /// Whole records are counted.
    Counted,
    /// Counted, and every checksum is checked.
    Verified,
}

#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct GetOutcome {
    pub(crate) connections: u32,
    pub(crate) partitions: u32,
    pub(crate) seconds: f64,
    /// 0 when records were not looked at.
    pub(crate) messages: u64,
    pub(crate) messages_per_second: f64,
    /// Of values as received, record headers included, in 10^6 bytes.
    pub(crate) megabytes_per_second: f64,
    pub(crate) gets: u64,
    /// Bytes the partitions held when each was read to its end the last time.
    pub(crate) bytes_held: u64,
    /// From a get to the last byte of its value.
    pub(crate) latency: LatencySummary,
}

/// Puts messages until the topic holds about `bytes` more; how many they were.
pub(crate) fn fill(plan: &GetPlan, bytes: u64, body_bytes: usize) -> Result<u64> {
    let outcome = put::run(&PutPlan {
        broker: plan.broker,
        topic: plan.topic.clone(),
        partitions: plan.partitions,
        connections: 4,
        outstanding: 64,
        body_bytes,
        threads: 1,
        checksum: false,
        until: Until::Messages(bytes.div_ceil((body_bytes + RECORD_HEADER_BYTES) as u64)),
    })?;
    crate::out::say(outcome.errors_by_text.to_string().trim_end());
    ensure!(outcome.errors == 0, "{} of the puts that fill the topic {} failed", outcome.errors, plan.topic);
    Ok(outcome.messages)
}

pub(crate) fn run(plan: &GetPlan) -> Result<GetOutcome> {
    ensure!(plan.partitions > 0 && plan.connections > 0 && plan.bytes_max > 0, "counts begin at 1");
    let connections = plan.connections.min(plan.partitions);
    let readers: Result<Vec<Reader>> = (0..connections).map(|_| Reader::connect(plan.broker, plan.bytes_max)).collect();
    let clock = Clock::start();
    let phases = Phases::new(clock, plan.warmup, plan.measured);
    let tallies: Vec<Result<Tally>> = std::thread::scope(|scope| {
        let workers = readers?.into_iter().zip(0..).map(|(reader, number)| {
            let partitions: Vec<u32> = (number..plan.partitions).step_by(connections as usize).collect();
            scope.spawn(move || catch_up(plan, reader, &partitions, clock, phases))
        });
        let workers: Vec<_> = workers.collect();
        anyhow::Ok(workers.into_iter().map(|worker| worker.join().expect("a reader thread never panics")).collect())
    })?;
    let mut total = Tally::new();
    for tally in tallies {
        total.add(&tally?);
    }
    ensure!(total.bytes_held > 0, "there is nothing to read in {}: fill it with --fill", plan.topic);
    let seconds = phases.seconds();
    Ok(GetOutcome {
        connections,
        partitions: plan.partitions,
        seconds,
        messages: total.messages,
        messages_per_second: total.messages as f64 / seconds,
        megabytes_per_second: total.bytes as f64 / seconds / 1e6,
        gets: total.latencies.summary().count,
        bytes_held: total.bytes_held,
        latency: total.latencies.summary(),
    })
}

struct Tally {
    messages: u64,
    bytes: u64,
    bytes_held: u64,
    latencies: Latencies,
}

impl Tally {
    fn new() -> Tally {
        Tally { messages: 0, bytes: 0, bytes_held: 0, latencies: Latencies::new() }
    }

    fn add(&mut self, other: &Tally) {
        self.messages += other.messages;
        self.bytes += other.bytes;
        self.bytes_held += other.bytes_held;
        self.latencies.add(&other.latencies);
    }
}

/// Reads the partitions one after the other, each to its end, until the time is over.
fn catch_up(plan: &GetPlan, mut reader: Reader, partitions: &[u32], clock: Clock, phases: Phases) -> Result<Tally> {
    let mut tally = Tally::new();
    let mut held = 0;
    loop {
        for partition in partitions {
            let ended = read_to_end(plan, &mut reader, *partition, clock, phases, &mut tally)?;
            let Some(bytes) = ended else { return Ok(tally) };
            held += bytes;
        }
        tally.bytes_held = std::mem::take(&mut held);
        if tally.bytes_held == 0 {
            return Ok(tally);
        }
    }
}

/// The bytes this partition held; `None` when the time was over before its end.
fn read_to_end(
    plan: &GetPlan,
    reader: &mut Reader,
    partition: u32,
    clock: Clock,
    phases: Phases,
    tally: &mut Tally,
) -> Result<Option<u64>> {
    let bytes_max = plan.bytes_max;
    let mut held = 0;
    let mut offset = 0;
    let mut asked_ns = clock.now_ns();
    while asked_ns < phases.to_ns {
        let question = GetQuestion { topic: &plan.topic, group: "load", partition, offset, bytes_max, wait_ms: None };
        let value = match reader.get(&question)? {
            Answer::Value(value) => value,
            Answer::Nothing => return Ok(Some(held)),
            Answer::Moved(to) if to > offset => {
                offset = to;
                continue;
            }
            other => bail!("the broker answers {other:?} to a get at {offset} of {}-{partition}", plan.topic),
        };
        let mut messages = 0;
        let taken = match plan.records {
            Records::Ignored => value.len(),
            records => walk_records(value, records == Records::Verified, |_| messages += 1)?,
        };
        ensure!(taken > 0, "a value of {} bytes at {offset} holds no whole record: raise --max", value.len());
        let now_ns = clock.now_ns();
        if phases.measured(now_ns) {
            tally.messages += messages;
            tally.bytes += taken as u64;
            tally.latencies.record(now_ns - asked_ns);
        }
        held += taken as u64;
        offset += taken as i64;
        asked_ns = now_ns;
    }
    // Short runs over long logs never see an end; what was read is held.
    tally.bytes_held = tally.bytes_held.max(held);
    Ok(None)
}
