//! What a slave that catches up costs the producers of its master: the same puts without a slave, beside one that is
//! level, and beside one that has all of a large topic before it.

use super::Sample;
use super::site::{BODY_BYTES, Member, Site, Transport, wait_level};
use crate::latency::{self, LatencyOutcome, LatencyPlan, Reading};
use crate::node::Settings;
use crate::put::{self, PutOutcome, PutPlan, Until};
use crate::reader::Reader;
use anyhow::{Result, ensure};
use std::time::Duration;

const HELD: &str = "load-held";
const PUTS: &str = "load-puts";

/// Of the paced puts.
const MESSAGES_PER_SECOND: f64 = 2000.0;
const CONNECTIONS: u32 = 16;
/// `slaveCatchUpBytesPerSecond` of the limited one.
const LIMITED_BYTES_PER_SECOND: u64 = 50_000_000;
/// The bar: a tenth.
const SLOWED_TO: f64 = 0.9;

/// The same puts at one state of the slave.
struct Seen {
    paced: LatencyOutcome,
    most: PutOutcome,
}

pub(super) fn run(site: &Site<'_>, transport: Transport) -> Result<Vec<Sample>> {
    // The master does not wait for its disk while it is filled.
    let quick = "unflushThreshold=100000\nunflushInterval=1000\n";
    let master = site.master(&site.settings(transport, &format!("\n[topic={HELD}]\n{quick}\n[topic={PUTS}]\n")))?;
    let settings = site.settings(transport, &format!("\n[topic={HELD}]\n\n[topic={PUTS}]\n"));
    site.fill(&master, HELD, 1, site.args.fill)?;
    site.settle()?;
    let alone = puts(site, &master)?;
    let limited = format!("slaveCatchUpBytesPerSecond={LIMITED_BYTES_PER_SECOND}\n");
    let (behind, _) = beside(site, &settings, &master, "")?;
    let (behind_limited, _) = beside(site, &settings, &master, &limited)?;
    let slave = site.slave(&settings, 1, &master)?;
    wait_level(Duration::from_secs(300), master.home.address, slave.home.address, HELD, 1)?;
    wait_level(Duration::from_secs(60), master.home.address, slave.home.address, PUTS, 1)?;
    site.settle()?;
    let level = puts(site, &master)?;
    let mut samples = Vec::new();
    for (state, seen) in
        [("no slave", &alone), ("level slave", &level), ("catch-up", &behind), ("catch-up at 50 MB/s", &behind_limited)]
    {
        let name = |what: &str| format!("puts {what}, {state}, {transport}");
        let most = Sample::new(name("16 connections"), "msg/s", seen.most.messages_per_second).with(&seen.most)?;
        let paced = Sample::new(name("2000/s p50"), "µs", seen.paced.due_to_acknowledged.p50_us).with(&seen.paced)?;
        let beside_level = state.starts_with("catch-up");
        samples.push(match beside_level {
            true => most.at_least(SLOWED_TO, level.most.messages_per_second),
            false => most,
        });
        samples.push(match beside_level {
            true => paced.within(1.0 / SLOWED_TO, level.paced.due_to_acknowledged.p50_us),
            false => paced,
        });
    }
    Ok(samples)
}

/// Puts while a new slave catches up, for as long as it does.
fn beside(site: &Site<'_>, settings: &Settings, master: &Member, lines: &str) -> Result<(Seen, Member)> {
    let slave = site.slave_with(settings, 1, master, lines)?;
    let seen = puts(site, master)?;
    let end = |member: &Member| -> Result<i64> {
        Ok(Reader::connect(member.home.address, 1024)?.readable_end(HELD, 0)?.unwrap_or(0))
    };
    ensure!(end(&slave)? < end(master)?, "the slave was level before the puts were over: raise --fill");
    Ok((seen, slave))
}

fn puts(site: &Site<'_>, master: &Member) -> Result<Seen> {
    let (warmup, measured) = (Duration::from_millis(300), site.args.seconds.0 / 4);
    let broker = master.home.address;
    let most = put::run(&PutPlan {
        broker,
        topic: PUTS.into(),
        partitions: 1,
        connections: CONNECTIONS,
        outstanding: 1,
        body_bytes: BODY_BYTES,
        threads: 1,
        checksum: false,
        until: Until::Time { warmup, measured },
    })?;
    let paced = latency::run(&LatencyPlan {
        broker,
        reader: broker,
        topic: PUTS.into(),
        partition: 0,
        body_bytes: BODY_BYTES,
        messages_per_second: MESSAGES_PER_SECOND,
        reading: Reading::LongPoll { wait_ms: 1000 },
        warmup,
        measured,
    })?;
    ensure!(most.errors + paced.errors == 0, "{:?} {:?}", most.errors_by_text, paced.errors_by_text);
    Ok(Seen { paced, most })
}
