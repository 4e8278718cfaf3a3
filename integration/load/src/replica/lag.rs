//! How far a slave is behind while a producer puts at a fixed rate.
//!
//! From outside: the time from when the producer has the answer, which the master gives when the message is durable
//! there, to when a reader that waits at the slave has the message, which the slave shows when it is durable there.
//! Either end is seen one way over the loopback after it came true, so the difference is the lag, and what a busy reader
//! adds.

use super::Sample;
use super::site::{BODY_BYTES, DELAY_MAX, Site, Transport, wait_level};
use crate::latency::{self, LatencyPlan, Reading};
use crate::machine::Limits;
use anyhow::{Result, ensure};
use std::time::Duration;

const TOPIC: &str = "load-lag";
const MESSAGES_PER_SECOND: f64 = 5000.0;

pub(super) fn run(site: &Site<'_>, transport: Transport, machine: &Limits) -> Result<Vec<Sample>> {
    let settings = site.settings(transport, &format!("\n[topic={TOPIC}]\n"));
    let master = site.master(&settings)?;
    let slave = site.slave(&settings, 1, &master)?;
    site.fill(&master, TOPIC, 1, 1)?;
    let (from, to) = (master.home.address, slave.home.address);
    wait_level(Duration::from_secs(10), from, to, TOPIC, 1)?;
    let plan = |reader| LatencyPlan {
        broker: from,
        reader,
        topic: TOPIC.into(),
        partition: 0,
        body_bytes: BODY_BYTES,
        messages_per_second: MESSAGES_PER_SECOND,
        reading: Reading::LongPoll { wait_ms: 1000 },
        warmup: site.args.warmup.0,
        measured: site.args.seconds.0,
    };
    let outcome = latency::run(&plan(to))?;
    ensure!(outcome.errors == 0, "{} errors: {:?}", outcome.errors, outcome.errors_by_text);
    let lag = &outcome.acknowledged_to_consumed;
    let limit = machine.sync_and_round_trip_us();
    let name = |what| format!("lag {what}, 5000/s fsync, {transport}");
    Ok(vec![
        Sample::new(name("p50"), "µs", lag.p50_us).beside(limit),
        Sample::new(name("p99"), "µs", lag.p99_us).within(3.0, limit).with(&outcome)?,
        Sample::new(name("max"), "µs", lag.max_us).within(1.0, DELAY_MAX.as_micros() as f64),
        Sample::new(name("put p99"), "µs", outcome.due_to_acknowledged.p99_us).beside(limit),
    ])
}
