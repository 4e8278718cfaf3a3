//! A new slave beside a master that holds much: from its start command until it holds everything durably.

use super::Sample;
use super::site::{Site, Transport, wait_level};
use crate::host;
use crate::machine::Limits;
use anyhow::Result;
use serde::Serialize;
use std::time::{Duration, Instant};

const TOPIC: &str = "load-catch-up";
const PATIENCE: Duration = Duration::from_secs(300);

/// Of the lower of what the disk and what the loopback take.
const PART: f64 = 0.7;
const PART_MANY: f64 = PART / 2.0;

#[derive(Serialize)]
struct Detail {
    bytes: u64,
    seconds: f64,
    master_cores: f64,
    slave_cores: f64,
    slave_resident_megabytes: f64,
}

pub(super) fn run(site: &Site<'_>, transport: Transport, machine: &Limits) -> Result<Vec<Sample>> {
    let limit = limit(machine);
    let mut samples = Vec::new();
    let many = site.args.many_partitions;
    for (partitions, bytes, part) in
        [(1, site.args.fill, PART), (4, site.args.fill, PART), (many, site.args.fill_many, PART_MANY)]
    {
        // The master does not wait for its disk while it is filled; the slave syncs whatever it confirms.
        let topic = format!("\n[topic={TOPIC}]\nnumPartitions={partitions}\n");
        let quick = format!("{topic}unflushThreshold=100000\nunflushInterval=1000\n");
        let master = site.master(&site.settings(transport, &quick))?;
        let all = site.fill(&master, TOPIC, partitions, bytes)?;
        site.settle()?;
        let master_before = host::busy_seconds(master.node.pid);
        let start = Instant::now();
        let slave = site.slave(&site.settings(transport, &topic), 1, &master)?;
        wait_level(PATIENCE, master.home.address, slave.home.address, TOPIC, partitions)?;
        let seconds = start.elapsed().as_secs_f64();
        let detail = Detail {
            bytes: all,
            seconds,
            master_cores: (host::busy_seconds(master.node.pid) - master_before) / seconds,
            slave_cores: host::busy_seconds(slave.node.pid) / seconds,
            slave_resident_megabytes: host::resident_megabytes(slave.node.pid),
        };
        let name = format!("catch-up, {partitions} partitions, {:.1} GB, {transport}", all as f64 / 1e9);
        samples.push(Sample::new(name, "MB/s", all as f64 / seconds / 1e6).at_least(part, limit).with(&detail)?);
    }
    Ok(samples)
}

/// The slowest stretch of the way.
fn limit(machine: &Limits) -> f64 {
    machine.megabytes_sequential.min(machine.megabytes_loopback)
}
