//! One master and two slaves, fsync everywhere: the same puts acknowledged by the master alone and by two members, one
//! after the other in the same cluster.

use super::Sample;
use super::site::{BODY_BYTES, Member, Site, Syncs, Transport, wait_for};
use crate::machine::Limits;
use crate::put::{self, PutOutcome, PutPlan, Until};
use anyhow::{Result, ensure};
use serde::Serialize;
use std::time::Duration;

const ALONE: &str = "load-alone";
const QUORUM: &str = "load-quorum";
const UNSYNCED: &str = "load-unsynced";

/// Of the throughput without a quorum.
const PART: f64 = 0.6;

#[derive(Serialize)]
struct Detail {
    alone: PutOutcome,
    quorum: PutOutcome,
    unsynced: PutOutcome,
    /// Mean of the slaves' syncs during the quorum puts.
    slave_sync_us: f64,
    /// Of a quorum put what neither an unsynced put takes, which is the way to the client and back, nor a slave's sync:
    /// the way to the slave and back, wake-ups and queues. The master's own sync runs beside it.
    network_us: f64,
}

pub(super) fn run(site: &Site<'_>, transport: Transport, machine: &Limits) -> Result<Vec<Sample>> {
    let topics = format!(
        "\n[topic={ALONE}]\nackQuorum=1\n\n[topic={QUORUM}]\nackQuorum=2\n\n[topic={UNSYNCED}]\nackQuorum=1\nunflushThreshold=1000\n"
    );
    let settings = site.settings(transport, &topics);
    let master = site.master(&settings)?;
    let slaves = [site.slave(&settings, 1, &master)?, site.slave(&settings, 2, &master)?];
    // Until both are counted, puts are refused.
    wait_for(Duration::from_secs(20), "a put that a quorum holds", || {
        Ok(puts(&master, QUORUM, 1, Until::Messages(1)).is_ok_and(|outcome| outcome.errors == 0))
    })?;
    puts(&master, ALONE, 1, Until::Messages(100))?;
    let limit = machine.sync_and_round_trip_us();
    let mut samples = Vec::new();
    for connections in [1, 16, 64] {
        let until = Until::Time { warmup: site.args.warmup.0, measured: site.args.seconds.0 };
        let unsynced = puts(&master, UNSYNCED, connections, until)?;
        let alone = puts(&master, ALONE, connections, until)?;
        site.settle()?;
        let before = [Syncs::look(&slaves[0])?, Syncs::look(&slaves[1])?];
        let quorum = puts(&master, QUORUM, connections, until)?;
        let mean = |slave: usize| anyhow::Ok(Syncs::look(&slaves[slave])?.mean_us_since(before[slave]));
        let slave_sync_us = f64::midpoint(mean(0)?, mean(1)?);
        ensure!(quorum.errors + alone.errors == 0, "{:?} {:?}", quorum.errors_by_text, alone.errors_by_text);
        let network_us = quorum.latency.mean_us - unsynced.latency.mean_us - slave_sync_us;
        let detail = Detail { slave_sync_us, network_us, alone, quorum, unsynced };
        let (alone, quorum) = (&detail.alone, &detail.quorum);
        let name = |what: &str| format!("quorum put, {connections} connections, {what}, {transport}");
        let rates = Sample::new(name("rate"), "msg/s", quorum.messages_per_second);
        if connections == 1 {
            samples.push(Sample::new(name("p50"), "µs", quorum.latency.p50_us).within(2.0, limit));
            samples.push(Sample::new(name("p99"), "µs", quorum.latency.p99_us).within(4.0, limit));
            samples.push(Sample::new(name("p50 without quorum"), "µs", alone.latency.p50_us).beside(limit));
            samples.push(rates.beside(alone.messages_per_second).with(&detail)?);
        } else {
            samples.push(rates.at_least(PART, alone.messages_per_second).with(&detail)?);
        }
        samples.push(Sample::new(name("slave's sync"), "µs", slave_sync_us).beside(quorum.latency.mean_us));
        samples.push(Sample::new(name("network"), "µs", detail.network_us).beside(quorum.latency.mean_us));
    }
    Ok(samples)
}

fn puts(master: &Member, topic: &str, connections: u32, until: Until) -> Result<PutOutcome> {
    put::run(&PutPlan {
        broker: master.home.address,
        topic: topic.into(),
        partitions: 1,
        connections,
        outstanding: 1,
        body_bytes: BODY_BYTES,
        threads: 1,
        checksum: false,
        until,
    })
}
