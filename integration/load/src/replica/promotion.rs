//! From the start command of a promoted slave to its first acknowledged put: with a real ZooKeeper, with the registry
//! that the master itself serves, and without one.

use super::Sample;
use super::site::{DELAY_MAX, Member, Site, Transport, put_one, wait_for, wait_level};
use super::zookeeper::ZooKeeper;
use crate::node::{Home, free_ports};
use anyhow::{Context, Result, bail};
use serde::Serialize;
use std::fs;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

const TOPIC: &str = "load-promotion";
const PARTITIONS: u32 = 4;
/// What the slave holds when it is promoted.
const BYTES: u64 = 64 * 1024 * 1024;

/// The shortest that keeps a busy machine's sessions alive.
const SESSION_TIMEOUT: Duration = Duration::from_secs(4);
/// From the start command on, when nobody else can be the master any more.
const BAR: Duration = Duration::from_secs(2);
const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Registry {
    ZooKeeper(SocketAddr),
    /// Served by the master on this port.
    Embedded(SocketAddr),
    None,
}

/// When the slave is started as the master.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum When {
    /// The old master's session is gone.
    SessionGone,
    /// At once.
    Killed,
}

#[derive(Serialize)]
struct Detail {
    stop_ms: f64,
    killed_to_session_gone_ms: Option<f64>,
    start_to_first_answer_ms: f64,
    refused_before: u64,
}

pub(super) fn run(site: &Site<'_>) -> Result<Vec<Sample>> {
    let bar_ms = BAR.as_secs_f64() * 1e3;
    let mut samples = Vec::new();
    if ZooKeeper::is_installed() {
        let zookeeper = ZooKeeper::start(&site.args.dir)?;
        let registry = Registry::ZooKeeper(zookeeper.address);
        let gone = promote(site, registry, When::SessionGone, Some(&zookeeper))?;
        samples.push(sample("zookeeper, session gone", &gone)?.within(1.0, bar_ms));
        drop(zookeeper);
        // Anew: nothing of the first promotion is to be in the way.
        let zookeeper = ZooKeeper::start(&site.args.dir)?;
        let registry = Registry::ZooKeeper(zookeeper.address);
        let killed = promote(site, registry, When::Killed, Some(&zookeeper))?;
        let limit = SESSION_TIMEOUT.as_secs_f64() * 1e3;
        samples.push(sample("zookeeper, master just killed, session 4 s", &killed)?.within(1.0, limit));
    } else {
        crate::out::say("  no ZooKeeper here (apt-get install libzookeeper-java default-jre-headless): left out");
    }
    let [port, _] = free_ports()?;
    let embedded = Registry::Embedded(SocketAddr::from(([127, 0, 0, 1], port)));
    samples.push(sample("embedded registry", &promote(site, embedded, When::Killed, None)?)?.within(1.0, bar_ms));
    samples.push(sample("no registry", &promote(site, Registry::None, When::Killed, None)?)?.within(1.0, bar_ms));
    Ok(samples)
}

fn sample(name: &str, detail: &Detail) -> Result<Sample> {
    Sample::new(format!("promotion, {name}"), "ms", detail.start_to_first_answer_ms).with(detail)
}

fn promote(site: &Site<'_>, registry: Registry, when: When, zookeeper: Option<&ZooKeeper>) -> Result<Detail> {
    let mut settings = site.settings(Transport::Tcp, &format!("\n[topic={TOPIC}]\nnumPartitions={PARTITIONS}\n"));
    if let Registry::ZooKeeper(address) | Registry::Embedded(address) = registry {
        settings.zookeeper.extend([
            ("zk.zkEnable", "true".to_owned()),
            ("zk.zkConnect", address.to_string()),
            ("zk.zkSessionTimeoutMs", SESSION_TIMEOUT.as_millis().to_string()),
            ("zk.zkSyncTimeMs", "200".to_owned()),
        ]);
    }
    let serves = match registry {
        Registry::Embedded(_) => &["--local"][..],
        Registry::ZooKeeper(_) | Registry::None => &[],
    };
    let home = Home::new(&site.args.dir, &settings)?;
    let mut master = site.start_master(home, serves)?;
    let home = Home::new(&site.args.dir, &settings)?;
    let properties = home.path().join("async_slave.properties");
    fs::write(&properties, format!("slaveMaxDelayInMills={}\n", DELAY_MAX.as_millis()))?;
    let properties = properties.display().to_string();
    let address = master.home.address.to_string();
    let mut arguments = vec!["--slave-id", "1", "--slave-config", &properties];
    if registry == Registry::None {
        arguments.extend(["--master", &address]);
    }
    let binary = site.binary("metaq-slave");
    let node = home.start(&binary, &arguments)?;
    let mut slave = Member { node, home };
    site.fill(&master, TOPIC, PARTITIONS, BYTES)?;
    wait_level(PATIENCE, master.home.address, slave.home.address, TOPIC, PARTITIONS)?;
    let held = || zookeeper.map_or(Ok(false), |zookeeper| zookeeper.holds("/brokers/ids/1/master"));
    if zookeeper.is_some() {
        wait_for(PATIENCE, "the master's registration", held)?;
    }
    master.node.kill()?;
    let killed_to_session_gone = match when {
        When::SessionGone => Some(wait_for(PATIENCE, "the old session's end", || Ok(!held()?))?),
        When::Killed => None,
    };
    let stopping = Instant::now();
    slave.node.stop()?;
    let stop = stopping.elapsed();
    let started = Instant::now();
    slave.node = slave.home.spawn(&binary, serves)?;
    let refused_before = first_put(&mut slave).with_context(|| slave.home.end_of_log(&binary))?;
    let start_to_first_answer = started.elapsed();
    let ms = |duration: Duration| duration.as_secs_f64() * 1e3;
    Ok(Detail {
        stop_ms: ms(stop),
        killed_to_session_gone_ms: killed_to_session_gone.map(ms),
        start_to_first_answer_ms: ms(start_to_first_answer),
        refused_before,
    })
}

/// Puts until one is acknowledged; how many were not.
fn first_put(slave: &mut Member) -> Result<u64> {
    let mut refused = 0;
    wait_for(PATIENCE, "an acknowledged put", || {
        if let Some(status) = slave.node.ended() {
            bail!("the promoted slave ended with {status}");
        }
        match put_one(slave, TOPIC) {
            Ok(outcome) if outcome.errors == 0 => Ok(true),
            Ok(_) => {
                refused += 1;
                Ok(false)
            }
            // It does not listen yet.
            Err(_) => Ok(false),
        }
    })?;
    Ok(refused)
}
