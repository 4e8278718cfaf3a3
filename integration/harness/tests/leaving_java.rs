//! Leaving Java: a slave of ours copies the original's master, takes its place, and the way back (replication, "Part D").

use anyhow::{Context, Result};
use metaq_config::BrokerConfig;
use metaq_harness::original;
use metaq_harness::pair::{assert_prefix, assert_same, wait_level};
use metaq_harness::process::{Broker, Site, wait_until};
use metaq_harness::raw::{Raw, Stored};
use metaq_harness::zookeeper::ZooKeeper;
use metaq_registry::lookup;
use metaq_types::BrokerId;
use std::fs;
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
    let master = original::start(&java)?;
    acked.extend(put_many(&master, 200, b'c')?);
    wait_level(&master, &slave, "test", PARTITIONS)?;
    master.kill()?;
    wait_unregistered(&ours)?;
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
