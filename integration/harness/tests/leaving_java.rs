//! Leaving Java: a slave of ours copies the original's master, takes its place, and the way back (replication, "Part D").

use anyhow::{Context, Result, ensure};
use metaq_config::BrokerConfig;
use metaq_harness::original;
use metaq_harness::pair::{assert_prefix, assert_same, wait_level};
use metaq_harness::process::{Broker, Site, binary_path, wait_until};
use metaq_harness::raw::{Raw, Stored};
use metaq_harness::zookeeper::ZooKeeper;
use metaq_registry::lookup;
use metaq_types::BrokerId;
use std::fs;
use std::process::Command;
use zookeeper_client::{Acls, Client, CreateMode};

const PARTITIONS: i32 = 3;

/// Small segments, so that rolling is part of every test.
fn topics(site: &mut Site) {
    site.set("maxSegmentSize", "16384");
    site.topic("test", &[("numPartitions", &PARTITIONS.to_string())]);
}

fn original_site(zookeeper: &ZooKeeper) -> Result<Site> {
    let mut site = original::site(zookeeper)?;
    topics(&mut site);
    Ok(site)
}

fn our_site(zookeeper: &ZooKeeper) -> Result<Site> {
    let mut site = Site::new()?;
    topics(&mut site);
    original::register(&mut site, zookeeper);
    Ok(site)
}

fn put_many(broker: &Broker, count: usize, fill: u8) -> Result<Vec<Stored>> {
    let mut raw = Raw::connect(&broker.address)?;
    let body = |i: usize| vec![fill; 50 + (i * 37) % 900];
    (0..count).map(|i| raw.put("test", i as i32 % PARTITIONS, &body(i))?.stored()).collect()
}

/// Every acknowledged message is where the answer said, under the id it said.
fn assert_holds(broker: &Broker, acked: &[Stored]) -> Result<()> {
    let mut raw = Raw::connect(&broker.address)?;
    for stored in acked {
        let reply = raw.get("test", stored.partition, stored.offset as i64, 4096)?;
        let first = reply.records(stored.offset).into_iter().next();
        assert_eq!(first.map(|record| record.id), Some(stored.id), "{stored:?}");
    }
    Ok(())
}

fn follow(site: &Site) -> Result<Broker> {
    let mut slave = site.start_slave(&["--slave-id", "0"])?;
    slave.wait_for_line("following the master")?;
    Ok(slave)
}

/// The original does not start, and ours does not register, while a dead master's session lives.
fn wait_unregistered(site: &Site) -> Result<()> {
    let config = BrokerConfig::load(&site.ini_path())?;
    let runtime = tokio::runtime::Runtime::new()?;
    wait_until("the dead master's session to end", || {
        let cluster = runtime.block_on(lookup(&config.zookeeper))?;
        let broker = cluster.brokers.get(&BrokerId::new(0)?);
        Ok(broker.is_none_or(|broker| broker.master.is_none()).then_some(()))
    })
}

/// What the page on leaving Java says before the switch: the slave, which runs, lacks nothing.
fn assert_safe(site: &Site, slave: &Broker) -> Result<()> {
    let mut metaq = Command::new(binary_path("metaq")?);
    metaq.arg("--config").arg(site.ini_path()).args(["--broker", &slave.address, "promote", "--dry-run"]);
    let page = String::from_utf8(metaq.output()?.stdout)?;
    ensure!(page.contains("verdict    safe"), "{page}");
    Ok(())
}

/// A consumer group's position as the Java client keeps it, and the version of the node that holds it.
struct GroupOffset {
    runtime: tokio::runtime::Runtime,
    client: Client,
}

const GROUP_OFFSET: &str = "/meta/consumers/group/offsets/test/0-0";

impl GroupOffset {
    fn write(zookeeper: &ZooKeeper, text: &str) -> Result<GroupOffset> {
        let runtime = tokio::runtime::Runtime::new()?;
        let client = runtime.block_on(Client::connect(&zookeeper.connect()))?;
        let options = CreateMode::Persistent.with_acls(Acls::anyone_all());
        let (parent, _) = GROUP_OFFSET.rsplit_once('/').context("a path")?;
        runtime.block_on(client.mkdir(parent, &options))?;
        runtime.block_on(client.create(GROUP_OFFSET, text.as_bytes(), &options))?;
        Ok(GroupOffset { runtime, client })
    }

    fn read(&self) -> Result<(String, i32)> {
        let (data, stat) = self.runtime.block_on(self.client.get_data(GROUP_OFFSET))?;
        Ok((String::from_utf8(data)?, stat.version))
    }
}

/// The whole way: follow, the master's restarts, its death, the promotion. Everything it acknowledged and had flushed is
/// there under the same ids and offsets, and nobody's position is touched.
#[test]
fn a_slave_of_the_original_takes_its_place() -> Result<()> {
    let zookeeper = ZooKeeper::start()?;
    let (java, ours) = (original_site(&zookeeper)?, our_site(&zookeeper)?);
    let master = original::start(&java)?;
    let mut acked = put_many(&master, 200, b'a')?;
    let slave = follow(&ours)?;
    acked.extend(put_many(&master, 200, b'b')?);
    wait_level(&master, &slave, "test", PARTITIONS)?;
    assert_same(&java.data(), &ours.data())?;
    let last = acked.iter().rfind(|stored| stored.partition == 0).context("some")?;
    let position = format!("{}-{}", last.id, last.offset);
    let group = GroupOffset::write(&zookeeper, &position)?;

    // An orderly restart, then a crash, both on the same address.
    master.stop()?;
    wait_unregistered(&ours)?;
    assert_safe(&ours, &slave)?;
    let master = original::start(&java)?;
    acked.extend(put_many(&master, 200, b'c')?);
    wait_level(&master, &slave, "test", PARTITIONS)?;
    master.kill()?;
    wait_unregistered(&ours)?;
    assert_safe(&ours, &slave)?;
    let master = original::start(&java)?;
    acked.extend(put_many(&master, 100, b'd')?);
    wait_level(&master, &slave, "test", PARTITIONS)?;
    assert_same(&java.data(), &ours.data())?;
    assert_eq!(Raw::connect(&slave.address)?.put("test", 0, b"x")?.code, 500);

    master.kill()?;
    assert!(slave.stop()?.success());
    let mut promoted = ours.start_slave(&[])?;
    promoted.wait_for_line("accepting messages")?;
    assert_holds(&promoted, &acked)?;
    let mut raw = Raw::connect(&promoted.address)?;
    for partition in 0..PARTITIONS {
        let end = raw.end("test", partition)?;
        let stored = raw.put("test", partition, b"after")?.stored()?;
        assert_eq!(stored.offset, end);
        assert!(acked.iter().all(|before| before.id < stored.id), "{stored:?}");
    }
    assert_prefix(&ours.data(), &java.data())?;
    assert_eq!(group.read()?, (position, 0), "nobody moved the group");
    // Clients find it: the dead master's registration went with its session.
    let config = BrokerConfig::load(&ours.ini_path())?;
    let runtime = tokio::runtime::Runtime::new()?;
    let uri = format!("meta://{}", promoted.address);
    wait_until("the promoted slave to be registered", || {
        let cluster = runtime.block_on(lookup(&config.zookeeper))?;
        Ok((cluster.brokers[&BrokerId::new(0)?].master.as_ref() == Some(&uri)).then_some(()))
    })
}

/// The way back: what a master of ours wrote and left in order, the original opens, serves, and continues.
#[test]
fn the_files_of_a_stopped_master_open_in_the_original() -> Result<()> {
    let zookeeper = ZooKeeper::start()?;
    let (mut java, ours) = (original_site(&zookeeper)?, our_site(&zookeeper)?);
    let mut master = ours.start_master(&[])?;
    master.wait_for_line("accepting messages")?;
    let mut acked = put_many(&master, 300, b'a')?;
    assert!(master.stop()?.success());

    // The original loads all partitions only where nothing but partitions is (storage, "19. Hazards", H5).
    fs::rename(ours.data().join(".metaq"), ours.path().join("metaq-state"))?;
    java.set("dataPath", &ours.data().display().to_string());
    let original = original::start(&java)?;
    assert_holds(&original, &acked)?;
    let mut raw = Raw::connect(&original.address)?;
    let ends: Vec<u64> = (0..PARTITIONS).map(|partition| raw.end("test", partition)).collect::<Result<_>>()?;
    acked.extend(put_many(&original, 100, b'b')?);
    for (partition, end) in ends.iter().enumerate() {
        let first = acked[300..].iter().find(|stored| stored.partition == partition as i32).context("some")?;
        assert_eq!(first.offset, *end, "puts continue the log");
    }
    original.stop()?;
    wait_unregistered(&ours)?;

    // And forward again, from what the original left.
    fs::rename(ours.path().join("metaq-state"), ours.data().join(".metaq"))?;
    let mut master = ours.start_master(&[])?;
    master.wait_for_line("accepting messages")?;
    assert_holds(&master, &acked)?;
    put_many(&master, 30, b'c')?;
    Ok(())
}

/// What `stats replication` says of one partition, once it satisfies `wanted`.
fn wait_copy(slave: &Broker, partition: i32, wanted: impl Fn(&str) -> bool) -> Result<String> {
    let mut raw = Raw::connect(&slave.address)?;
    let prefix = format!("copy test {partition} ");
    wait_until(&format!("the state of partition {partition}"), || {
        let text = raw.ask("stats replication")?.text();
        Ok(text.lines().find(|line| line.starts_with(&prefix) && wanted(line)).map(str::to_owned))
    })
}

/// Cuts the last `bytes` off a log, as a power loss does to what was never synced.
fn lose_tail(site: &Site, partition: &str, bytes: u64) -> Result<()> {
    let directory = site.data().join(partition);
    let mut segments: Vec<_> = fs::read_dir(directory)?.map(|e| e.map(|e| e.path())).collect::<Result<_, _>>()?;
    segments.retain(|path| path.extension().is_some_and(|extension| extension == "meta"));
    segments.sort();
    let last = fs::File::options().write(true).open(segments.last().context("a segment")?)?;
    Ok(last.set_len(last.metadata()?.len() - bytes)?)
}

/// The original lost what its slave has already copied. Where it is short of it, and where it has written something else
/// in that place, the partition stops under that name, nothing is deleted, the others go on; with the operator's word the
/// slave cuts to what both have.
#[test]
fn an_original_that_lost_its_tail_stops_the_partition() -> Result<()> {
    let zookeeper = ZooKeeper::start()?;
    let (java, ours) = (original_site(&zookeeper)?, our_site(&zookeeper)?);
    let master = original::start(&java)?;
    put_many(&master, 200, b'a')?;
    let mut raw = Raw::connect(&master.address)?;
    for partition in 0..PARTITIONS {
        raw.put("test", partition, b"lost in partition 0")?.stored()?;
    }
    let slave = follow(&ours)?;
    wait_level(&master, &slave, "test", PARTITIONS)?;
    let before = Raw::connect(&slave.address)?.end("test", 0)?;
    master.kill()?;
    lose_tail(&java, "test-0", 39)?;
    wait_unregistered(&ours)?;
    let master = original::start(&java)?;
    let line = wait_copy(&slave, 0, |line| line.contains("diverged"))?;
    assert!(line.contains(&format!("own_end {before}")), "{line}");
    // It writes on in that place, beyond the slave's end: the bytes tell.
    let mut raw = Raw::connect(&master.address)?;
    for i in 0..30 {
        raw.put("test", i % PARTITIONS, b"something else of another length")?.stored()?;
    }
    for partition in 1..PARTITIONS {
        let end = raw.end("test", partition)?;
        wait_copy(&slave, partition, |line| line.contains(&format!("own_end {end}")))?;
    }
    wait_copy(&slave, 0, |line| line.contains("diverged"))?;
    assert!(slave.stop()?.success());
    let slave = follow(&ours)?;
    wait_copy(&slave, 0, |line| line.contains("diverged"))?;
    assert_eq!(Raw::connect(&slave.address)?.end("test", 0)?, before, "nothing was cut");
    assert!(slave.stop()?.success());

    let mut slave = ours.start_slave(&["--slave-id", "0", "--accept-divergence"])?;
    let line = slave.wait_for_line("set aside and cut")?;
    assert!(line.contains("bytes=39") && line.contains(&format!("from={}", before - 39)), "{line}");
    wait_level(&master, &slave, "test", PARTITIONS)?;
    assert_same(&java.data(), &ours.data())
}

/// The original hands out bytes it has not flushed and lists only what it has; with updateConsumerOffsets it sends a
/// reader of such bytes back. A slave that holds them has not diverged, and is level when they are flushed.
#[test]
fn unflushed_bytes_of_the_original_are_no_divergence() -> Result<()> {
    let zookeeper = ZooKeeper::start()?;
    let (mut java, ours) = (original_site(&zookeeper)?, our_site(&zookeeper)?);
    java.set("updateConsumerOffsets", "true").set("unflushThreshold", "20").set("unflushInterval", "600000");
    java.set("maxSegmentSize", "1048576");
    java.topic("test", &[("numPartitions", "1")]);
    let master = original::start(&java)?;
    let mut raw = Raw::connect(&master.address)?;
    // Flushed after more than twenty; ten more are in its file only.
    for _ in 0..31 {
        raw.put("test", 0, &[b'a'; 100])?.stored()?;
    }
    assert_eq!(raw.end("test", 0)?, 21 * 120);
    let slave = follow(&ours)?;
    let whole = 31 * 120;
    wait_copy(&slave, 0, |line| line.contains(&format!("own_end {whole}")))?;
    assert!(slave.stop()?.success());
    let mut slave = follow(&ours)?;
    for count in [5, 6] {
        for _ in 0..count {
            raw.put("test", 0, &[b'b'; 100])?.stored()?;
        }
    }
    wait_copy(&slave, 0, |line| line.contains(&format!("own_end {}", 42 * 120)) && !line.contains("diverged"))?;
    assert!(!slave.log_text().contains("diverged"), "{}", slave.log_text());
    master.kill()?;
    assert!(slave.try_exit()?.is_none());
    assert_same(&java.data(), &ours.data())
}
