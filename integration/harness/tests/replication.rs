//! The main job: a slave that is the same as its master, and takes its place.

use anyhow::Result;
use metaq_harness::authority::Authority;
use metaq_harness::pair::{assert_prefix, assert_same, slave_site, start_slave, wait_level, wait_same};
use metaq_harness::process::{Broker, Site, wait_until};
use metaq_harness::raw::{Raw, Stored};
use rustix::process::Signal;
use std::collections::HashSet;

/// Small segments, so that rolling is part of every test.
fn topics(site: &mut Site) {
    site.set("maxSegmentSize", "16*1024");
    site.topic("test", &[("numPartitions", "3")]);
}

fn master_site() -> Result<Site> {
    slave_site(topics)
}

/// Puts `count` messages of varied size over the three partitions; what was acknowledged.
fn put_many(broker: &Broker, count: usize) -> Result<Vec<Stored>> {
    let mut raw = Raw::connect(&broker.address)?;
    (0..count)
        .map(|i| raw.put("test", (i % 3) as i32, &vec![b'a' + (i % 26) as u8; 50 + (i * 37) % 900])?.stored())
        .collect()
}

#[test]
fn a_slave_is_byte_identical_and_serves_reads_and_refuses_puts() -> Result<()> {
    let (master_site, slave_site) = (master_site()?, slave_site(topics)?);
    let master = master_site.start_master(&[])?;
    put_many(&master, 200)?;
    let slave = start_slave(&slave_site, 0, &master)?;
    put_many(&master, 200)?;
    wait_level(&master, &slave, "test", 3)?;
    assert_same(&master_site.data(), &slave_site.data())?;

    let (mut m, mut s) = (Raw::connect(&master.address)?, Raw::connect(&slave.address)?);
    for partition in 0..3 {
        assert_eq!(m.read_all("test", partition, 0)?, s.read_all("test", partition, 0)?);
        let ask = format!("offset test g {partition} 20000 5");
        assert_eq!(m.ask(&ask)?, s.ask(&ask)?);
    }
    let refusal = s.put("test", 0, b"x")?;
    assert_eq!(refusal.code, 500);
    assert!(refusal.text().contains(&format!("meta://{}", master.address)), "{}", refusal.text());
    assert!(s.ask("stats")?.text().contains("\r\nslave true\r\n"));
    Ok(())
}

/// Far behind, where bytes are fetched, written and synced side by side: still the same, byte for byte, when it is killed on
/// its way.
#[test]
fn a_slave_that_is_far_behind_catches_up_to_the_same_files_though_killed_on_its_way() -> Result<()> {
    let authority = Authority::new("orders")?;
    for (transport, threshold, kills) in [("tcp", "0", 3), ("tcp", "1000", 1), ("quic", "0", 2)] {
        let files = authority.issue(&format!("node-{transport}-{threshold}"))?;
        let configure = |site: &mut Site| {
            site.set("maxSegmentSize", "12*1024*1024").set("unflushThreshold", threshold);
            site.topic("test", &[("numPartitions", "2")]);
            files.configure(site);
            site.set("replicationTransport", transport);
        };
        let (master_site, slave_site) = (slave_site(configure)?, slave_site(configure)?);
        let master = master_site.start_master(&[])?;
        let mut raw = Raw::connect(&master.address)?;
        for i in 0..320usize {
            let body: Vec<u8> = (0..100_000 + i * 613 % 90_000).map(|at| (at * (i + 1) % 251) as u8).collect();
            // Most of it in one partition.
            raw.put("test", i32::from(i % 5 == 0), &body)?.stored()?;
        }
        for kill in 1..=kills {
            let slave = start_slave(&slave_site, 0, &master)?;
            let mut there = Raw::connect(&slave.address)?;
            wait_until("the slave to be on its way", || {
                Ok((there.end("test", 0).unwrap_or(0) > kill * 4_000_000).then_some(()))
            })?;
            slave.kill()?;
            assert_prefix(&master_site.data(), &slave_site.data())?;
        }
        let _slave = start_slave(&slave_site, 0, &master)?;
        // With a threshold the master's readable end may be before that of its files for a while.
        wait_same(&master_site.data(), &slave_site.data())?;
    }
    Ok(())
}

/// A topic's partitions beyond those the slave knew, and a topic added by reload on both.
#[test]
fn new_topics_and_partitions_are_followed() -> Result<()> {
    let (mut master_site, mut slave_site) = (master_site()?, slave_site(topics)?);
    let master = master_site.start_master(&[])?;
    let slave = start_slave(&slave_site, 0, &master)?;
    for site in [&mut master_site, &mut slave_site] {
        site.topic("test", &[("numPartitions", "5")]).topic("orders", &[]).topic("app-*", &[("numPartitions", "2")]);
        site.write_ini()?;
    }
    let (mut master, slave) = (master, slave);
    master.signal(Signal::HUP)?;
    slave.signal(Signal::HUP)?;
    master.wait_for_line("reload done")?;
    let mut raw = Raw::connect(&master.address)?;
    for (topic, partition) in [("test", 4), ("orders", 0), ("app-one", 1)] {
        raw.put(topic, partition, b"new")?.stored()?;
    }
    wait_level(&master, &slave, "test", 5)?;
    wait_level(&master, &slave, "orders", 1)?;
    wait_level(&master, &slave, "app-one", 2)?;
    assert_same(&master_site.data(), &slave_site.data())
}

/// F01: frozen in the middle of bursts, killed, started again: still the same, byte for byte.
#[test]
fn f01_a_frozen_and_killed_slave_does_not_drift() -> Result<()> {
    let (master_site, slave_site) = (master_site()?, slave_site(topics)?);
    let master = master_site.start_master(&[])?;
    let mut slave = start_slave(&slave_site, 0, &master)?;
    for round in 0..3 {
        put_many(&master, 300)?;
        slave.signal(Signal::STOP)?;
        put_many(&master, 300)?;
        slave.signal(Signal::CONT)?;
        put_many(&master, 300)?;
        if round == 1 {
            slave.kill()?;
            put_many(&master, 300)?;
            slave = start_slave(&slave_site, 0, &master)?;
        }
    }
    wait_level(&master, &slave, "test", 3)?;
    assert_same(&master_site.data(), &slave_site.data())?;
    let mut raw = Raw::connect(&slave.address)?;
    for partition in 0..3 {
        let ids: Vec<_> = raw.read_all("test", partition, 0)?.iter().map(|r| r.id).collect();
        assert_eq!(ids.iter().collect::<HashSet<_>>().len(), ids.len(), "no id twice");
    }
    Ok(())
}

/// F12: a slave that is behind says "not yet", and never sends a reader backwards.
#[test]
fn f12_a_lagging_slave_never_moves_a_consumer_back() -> Result<()> {
    for moves in ["true", "false"] {
        let configure = |site: &mut Site| {
            topics(site);
            site.set("updateConsumerOffsets", moves);
        };
        let (master_site, slave_site) = (slave_site(configure)?, slave_site(configure)?);
        let master = master_site.start_master(&[])?;
        let slave = start_slave(&slave_site, 0, &master)?;
        put_many(&master, 30)?;
        wait_level(&master, &slave, "test", 3)?;
        // The master runs ahead of a slave that cannot reach it any more.
        master.signal(Signal::STOP)?;
        let mut raw = Raw::connect(&slave.address)?;
        let beyond = raw.end("test", 0)? as i64 + 5_000_000;
        for _ in 0..10_000 {
            assert_eq!(raw.get("test", 0, beyond, 1024)?.code, 404);
        }
        let lines = slave.log_text().lines().count();
        assert!(lines < 200, "{lines} log lines for 10,000 polls");
        master.signal(Signal::CONT)?;
    }
    Ok(())
}

#[test]
fn a_slave_survives_its_masters_absence_and_return() -> Result<()> {
    let (mut master_site, slave_site) = (master_site()?, slave_site(topics)?);
    let master = master_site.start_master(&[])?;
    let port = master.address.rsplit_once(':').expect("host:port").1.to_owned();
    master_site.set("serverPort", &port);
    let slave = start_slave(&slave_site, 0, &master)?;
    put_many(&master, 100)?;
    master.kill()?;
    // The slave still serves what it has.
    assert_eq!(Raw::connect(&slave.address)?.ask("version 1")?.code, 200);
    let master = master_site.start_master(&[])?;
    put_many(&master, 100)?;
    wait_level(&master, &slave, "test", 3)?;
    assert!(master.stop()?.success());
    let master = master_site.start_master(&[])?;
    put_many(&master, 100)?;
    wait_level(&master, &slave, "test", 3)?;
    assert_same(&master_site.data(), &slave_site.data())
}

/// Started without `--slave-id` on the same data the slave is the master: everything it had is there, offsets go on,
/// ids never go back, whatever the old master gave last.
#[test]
fn a_promoted_slave_goes_on_where_the_master_ended() -> Result<()> {
    let (master_site, slave_site) = (master_site()?, slave_site(topics)?);
    let master = master_site.start_master(&[])?;
    let slave = start_slave(&slave_site, 0, &master)?;
    let acked = put_many(&master, 300)?;
    wait_level(&master, &slave, "test", 3)?;
    master.kill()?;
    assert!(slave.stop()?.success());
    assert_prefix(&master_site.data(), &slave_site.data())?;

    let promoted = slave_site.start_slave(&[])?;
    let log = promoted.log_text();
    assert!(log.contains("promot"), "the promotion says what it measured:\n{log}");
    let mut raw = Raw::connect(&promoted.address)?;
    assert!(raw.ask("stats")?.text().contains("\r\nslave false\r\n"));
    let last_id = acked.iter().map(|s| s.id).max().expect("some");
    for stored in &acked {
        let reply = raw.get("test", stored.partition, stored.offset as i64, 4096)?;
        assert_eq!(reply.records(stored.offset)[0].id, stored.id);
    }
    for partition in 0..3 {
        let end = raw.end("test", partition)?;
        let stored = raw.put("test", partition, b"after")?.stored()?;
        assert_eq!(stored.offset, end);
        assert!(stored.id > last_id, "{} after {last_id}", stored.id);
    }
    drop(raw);
    // And again, from the promoted one's own files.
    promoted.kill()?;
    let promoted = slave_site.start_slave(&[])?;
    wait_until("the promoted slave to serve", || {
        Ok((Raw::connect(&promoted.address)?.read_all("test", 0, 0)?.len() == 101).then_some(()))
    })
}
