//! What partitions cost that nobody uses: memory, and time to start.

use super::brokers::MetaqHome;
use crate::host::resident_megabytes;
use crate::out;
use crate::put::{self, PutPlan, Until};
use anyhow::{Result, ensure};
use serde::Serialize;
use std::path::Path;
use std::time::Instant;

const TOPIC: &str = "load-idle";

const ADDED_MEGABYTES_MAX: f64 = 100.0;
const START_SECONDS_MAX: f64 = 5.0;

#[derive(Debug, Serialize)]
pub(crate) struct IdleReport {
    pub(crate) partitions: u32,
    /// The first message of every partition, which makes its directory and its first file.
    pub(crate) creation_seconds: f64,
    pub(crate) empty_megabytes: f64,
    pub(crate) created_megabytes: f64,
    pub(crate) stop_seconds: f64,
    /// From the start of the process to its first answer, after a clean stop.
    pub(crate) start_seconds: f64,
    pub(crate) started_megabytes: f64,
    pub(crate) met: bool,
}

pub(crate) fn run(binary: &Path, dir: &Path, partitions: u32) -> Result<IdleReport> {
    out::say(&format!("{partitions} idle partitions on metaq"));
    let home = MetaqHome::new(dir, &format!("\n[topic={TOPIC}]\nnumPartitions={partitions}\n"))?;
    let mut broker = home.start(binary)?;
    let empty_megabytes = resident_megabytes(broker.pid);
    let outcome = put::run(&PutPlan {
        broker: broker.address,
        topic: TOPIC.into(),
        partitions,
        connections: 1,
        outstanding: 64,
        body_bytes: 64,
        threads: 1,
        checksum: false,
        until: Until::Messages(partitions.into()),
    })?;
    out::say(outcome.errors_by_text.to_string().trim_end());
    ensure!(outcome.errors == 0, "{} of {partitions} first messages failed", outcome.errors);
    let created_megabytes = resident_megabytes(broker.pid);
    let stopping = Instant::now();
    broker.stop()?;
    let stop_seconds = stopping.elapsed().as_secs_f64();
    let starting = Instant::now();
    let broker = home.start(binary)?;
    let start_seconds = starting.elapsed().as_secs_f64();
    let started_megabytes = resident_megabytes(broker.pid);
    let added_megabytes = created_megabytes.max(started_megabytes) - empty_megabytes;
    Ok(IdleReport {
        partitions,
        creation_seconds: outcome.seconds,
        empty_megabytes,
        created_megabytes,
        stop_seconds,
        start_seconds,
        started_megabytes,
        met: added_megabytes < ADDED_MEGABYTES_MAX && start_seconds < START_SECONDS_MAX,
    })
}

impl IdleReport {
    pub(crate) fn page(&self) -> String {
        format!(
            "{} idle partitions: created in {:.1} s, {:.0} MB before and {:.0} MB with them, stop {:.1} s, \
             start {:.2} s with {:.0} MB  (bar: < {ADDED_MEGABYTES_MAX:.0} MB more, < {START_SECONDS_MAX:.0} s)  {}\n",
            self.partitions,
            self.creation_seconds,
            self.empty_megabytes,
            self.created_megabytes,
            self.stop_seconds,
            self.start_seconds,
            self.started_megabytes,
            if self.met { "met" } else { "MISSED" },
        )
    }
}
