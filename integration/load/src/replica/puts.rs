//! Puts that are answered from the page cache while one slave copies behind.

use super::Sample;
use super::site::{BODY_BYTES, Site, Transport, wait_level};
use crate::put::{self, PutPlan, Until};
use anyhow::{Result, ensure};
use std::time::{Duration, Instant};

const TOPIC: &str = "load-async";

/// Messages a second, what comparable brokers reach with one asynchronous replica on such a machine.
const GOAL: f64 = 40_000.0;

pub(super) fn run(site: &Site<'_>, transport: Transport) -> Result<Vec<Sample>> {
    let settings = site.settings(transport, &format!("\n[topic={TOPIC}]\nunflushThreshold=1000\n"));
    let master = site.master(&settings)?;
    let mut samples = Vec::new();
    let puts = || {
        let outcome = put::run(&PutPlan {
            broker: master.home.address,
            topic: TOPIC.into(),
            partitions: 1,
            connections: 16,
            outstanding: 1,
            body_bytes: BODY_BYTES,
            threads: 1,
            checksum: false,
            until: Until::Time { warmup: site.args.warmup.0, measured: site.args.seconds.0 },
        })?;
        ensure!(outcome.errors == 0, "{:?}", outcome.errors_by_text);
        Ok(outcome)
    };
    let alone = puts()?;
    let slave = site.slave(&settings, 1, &master)?;
    let (from, to) = (master.home.address, slave.home.address);
    wait_level(Duration::from_secs(120), from, to, TOPIC, 1)?;
    site.settle()?;
    let beside = puts()?;
    let ended = Instant::now();
    wait_level(Duration::from_secs(120), from, to, TOPIC, 1)?;
    let level_ms = ended.elapsed().as_secs_f64() * 1e3;
    let name = |what: &str| format!("puts os, 16 connections, {what}, {transport}");
    samples.push(Sample::new(name("no slave"), "msg/s", alone.messages_per_second).with(&alone)?);
    samples
        .push(Sample::new(name("one slave"), "msg/s", beside.messages_per_second).at_least(1.0, GOAL).with(&beside)?);
    samples.push(Sample::new(name("slave level after"), "ms", level_ms));
    Ok(samples)
}
