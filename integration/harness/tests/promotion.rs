//! Before a promotion: what `metaq promote --dry-run` says is what the promotion finds (F05), and who comes first in
//! `metaq replica status`.

use anyhow::{Context, Result};
use metaq_harness::authority::Authority;
use metaq_harness::original::register;
use metaq_harness::pair::{assert_same, start_slave, wait_level};
use metaq_harness::process::{Broker, Site, binary_path, wait_until};
use metaq_harness::raw::{Raw, Stored};
use metaq_harness::zookeeper::ZooKeeper;
use rustix::process::Signal;
use serde_json::Value;
use std::fs;
use std::process::Command;

fn site(zookeeper: Option<&ZooKeeper>) -> Result<Site> {
    let mut site = Site::new()?;
    site.set("maxSegmentSize", "16*1024").topic("test", &[("numPartitions", "2")]);
    if let Some(zookeeper) = zookeeper {
        register(&mut site, zookeeper);
    }
    Ok(site)
}

fn put_many(broker: &Broker, count: usize) -> Result<Vec<Stored>> {
    let mut raw = Raw::connect(&broker.address)?;
    (0..count).map(|i| raw.put("test", (i % 2) as i32, &[b'm'; 80])?.stored()).collect()
}

/// The tool's exit code and its JSON.
fn metaq(site: &Site, words: &[&str]) -> Result<(i32, Value)> {
    let config = site.ini_path();
    let output = Command::new(binary_path("metaq")?)
        .arg("--config")
        .arg(config)
        .args(["--format", "json"])
        .args(words)
        .output()?;
    let text = String::from_utf8(output.stdout)?;
    let value = serde_json::from_str(&text)
        .with_context(|| format!("not JSON: {text:?}; standard error: {}", String::from_utf8_lossy(&output.stderr)))?;
    Ok((output.status.code().context("ended by a signal")?, value))
}

fn dry_run(site: &Site) -> Result<(i32, Value)> {
    metaq(site, &["promote", "--dry-run"])
}

/// As [`dry_run`], beside a slave without a registry to be found in.
fn dry_run_at(site: &Site, slave: &Broker) -> Result<(i32, Value)> {
    metaq(site, &["--broker", &slave.address, "promote", "--dry-run"])
}

/// The partitions with anything at risk: name, own end, master's end, bytes.
fn at_risk(report: &Value) -> Vec<(String, u64, u64, u64)> {
    let number = |line: &Value, key: &str| line[key].as_u64().expect("a number");
    let lines = report["partitions"].as_array().expect("a list");
    let risky = lines.iter().filter(|line| number(line, "bytes_at_risk") > 0);
    let row = |line: &Value| {
        let name = line["partition"].as_str().expect("a name").to_owned();
        (name, number(line, "own_end"), number(line, "master_end"), number(line, "bytes_at_risk"))
    };
    risky.map(row).collect()
}

/// F05: the master is killed while its slave is behind. The numbers of the dry run are those of the promotion, and those
/// that the old master's files then show.
#[test]
fn f05_the_dry_run_says_what_the_promotion_finds() -> Result<()> {
    let (a, b) = (site(None)?, site(None)?);
    let master = a.start_master(&[])?;
    let mut raw = Raw::connect(&master.address)?;
    for i in 0..800 {
        raw.put("test", i % 2, &[b'm'; MESSAGE_BYTES])?.stored()?;
    }
    let slave = start_slow_slave(&b, &master)?;
    let mut replica = Raw::connect(&slave.address)?;
    wait_until("the slave to be on its way", || {
        let ends: Vec<u64> = (0..2).map(|partition| replica.end("test", partition).unwrap_or(0)).collect();
        Ok(ends.iter().any(|end| *end > 0).then_some(()))
    })?;
    let (code, report) = dry_run_at(&b, &slave)?;
    assert_eq!(code, 20, "the master answers: {report}");
    assert!(report["reasons"][0].as_str().is_some_and(|reason| reason.contains(&master.address)), "{report}");

    let master_ends = [raw.end("test", 0)?, raw.end("test", 1)?];
    master.kill()?;
    wait_until("the slave to miss its master", || {
        Ok(replica.ask("stats replication")?.text().contains("link lost").then_some(()))
    })?;
    let (code, before) = dry_run_at(&b, &slave)?;
    assert_eq!((code, before["verdict"].as_str()), (10, Some("possible-loss")), "{before}");
    assert!(slave.stop()?.success());
    let (code, stopped) = dry_run(&b)?;
    assert_eq!(code, 10);
    let risks = at_risk(&stopped);
    assert_eq!(risks, at_risk(&before), "the same beside the running slave and from its files");
    assert!(!risks.is_empty());
    let lost_bytes: u64 = risks.iter().map(|(.., bytes)| bytes).sum();
    let lost = &stopped["messages_at_risk"];
    assert_eq!(lost["about"], lost_bytes / (20 + MESSAGE_BYTES as u64), "all are of one size: {lost}");
    assert!(lost["at_least"].as_u64() <= lost["about"].as_u64() && lost["about"].as_u64() <= lost["at_most"].as_u64());

    let promoted = b.start_slave(&[])?;
    let log = promoted.log_text();
    let mut raw = Raw::connect(&promoted.address)?;
    for (partition, own_end, master_end, bytes) in &risks {
        let number: usize = partition.rsplit_once('-').context("TOPIC-N")?.1.parse()?;
        assert_eq!(*master_end, master_ends[number], "the old master was idle: it ends where it was known to");
        assert_eq!(raw.end("test", number as i32)?, *own_end);
        assert!(log.contains(&format!("{partition} ends at {own_end}, the master at {master_end} (")), "{log}");
        assert!(log.contains(&format!("{bytes} bytes at risk")), "{log}");
    }
    assert!(log.contains(&format!("{lost_bytes} bytes known to be on the master are not here")), "{log}");
    Ok(())
}

/// F05: a slave that was frozen, or not there, while its master went on knows of nothing that it lacks. It is not level.
#[test]
fn f05_a_slave_that_did_not_listen_is_not_safe() -> Result<()> {
    let (a, b) = (site(None)?, site(None)?);
    let master = a.start_master(&[])?;
    let slave = start_slave(&b, 0, &master)?;
    put_many(&master, 20)?;
    wait_level(&master, &slave, "test", 2)?;
    slave.signal(Signal::STOP)?;
    put_many(&master, 20)?;
    let mut observer = Raw::connect(&master.address)?;
    wait_until("the master to miss the slave for longer than a poll takes", || {
        let behind = observer.ask("stats replicas")?.text();
        let ms = behind.lines().filter_map(|line| line.split_once("behind_ms ")?.1.split(' ').next()?.parse().ok());
        Ok(ms.max().is_some_and(|ms: u64| ms > 3000).then_some(()))
    })?;
    let ends = [observer.end("test", 0)?, observer.end("test", 1)?];
    let address = master.address.clone();
    master.kill()?;
    slave.signal(Signal::CONT)?;
    let why = |slave: &Broker| -> Result<(i32, String)> {
        wait_until("the slave to miss its master", || {
            let lost = Raw::connect(&slave.address)?.ask("stats replication")?.text().contains("link lost");
            Ok(lost.then_some(()))
        })?;
        let (code, report) = dry_run_at(&b, slave)?;
        Ok((code, report["reasons"].to_string()))
    };
    let (code, reasons) = why(&slave)?;
    assert!(
        code == 10 && reasons.contains("did not hear its master for"),
        "{code} {reasons}; {address} ended at {ends:?}"
    );
    // Neither does its start tell it anything.
    assert!(slave.stop()?.success());
    let again = b.start_slave(&["--slave-id", "0", "--master", &address])?;
    let (code, reasons) = why(&again)?;
    assert!(code == 10 && reasons.contains("did not hear its master for"), "{code} {reasons}");
    Ok(())
}

/// F10: a master that was put back from an older copy, and no registry. Asked at the master, the slave is known, and in
/// which state: it asks its master for nothing, so that the master has no word of it.
#[test]
fn f10_the_master_names_its_slaves_where_no_registry_does() -> Result<()> {
    let (a, b) = (site(None)?, site(None)?);
    let master = a.start_master(&[])?;
    put_many(&master, 10)?;
    assert!(master.stop()?.success());
    let older = tempfile::tempdir()?;
    assert!(Command::new("cp").arg("-a").arg(a.data()).arg(older.path()).status()?.success());
    let master = a.start_master(&[])?;
    let slave = start_slave(&b, 0, &master)?;
    put_many(&master, 10)?;
    wait_level(&master, &slave, "test", 2)?;
    assert!(slave.stop()?.success());
    master.kill()?;
    fs::remove_dir_all(a.data())?;
    assert!(Command::new("cp").arg("-a").arg(older.path().join("data")).arg(a.path()).status()?.success());
    let master = a.start_master(&[])?;
    let _slave = start_slave(&b, 0, &master)?;
    wait_until("the operator to be told", || {
        let (code, rows) = metaq(&a, &["--broker", &master.address, "replica", "status"])?;
        Ok((code == 0 && rows[0]["state"] == "diverged" && rows[0]["rank"].is_null()).then_some(()))
    })
}

/// A copy with a message that is none any more is level, and not safe: the promotion would lose that message.
#[test]
fn a_damaged_copy_is_not_safe() -> Result<()> {
    let (a, b) = (site(None)?, site(None)?);
    let master = a.start_master(&[])?;
    let slave = start_slave(&b, 0, &master)?;
    put_many(&master, 20)?;
    wait_level(&master, &slave, "test", 2)?;
    assert!(slave.stop()?.success());
    let segment = b.data().join("test-0/00000000000000000000.meta");
    let mut bytes = fs::read(&segment)?;
    bytes[130] ^= 0xff;
    fs::write(&segment, bytes)?;
    let mut slave = start_slave(&b, 0, &master)?;
    slave.wait_for_line("following the master")?;
    master.kill()?;
    wait_until("the operator to be told", || {
        let (code, report) = dry_run_at(&b, &slave)?;
        let told = report["reasons"].to_string();
        Ok((code == 10 && told.contains("100 bytes of test-0 are damaged")).then_some(()))
    })
}

/// Over QUIC a master that was killed is as silent as one that hangs, or that was cut off and goes on. Its machine tells.
#[test]
fn f05_over_quic_death_is_told_from_silence() -> Result<()> {
    let authority = Authority::new("orders")?;
    let (mut a, mut b) = (site(None)?, site(None)?);
    authority.issue("a")?.configure(&mut a);
    authority.issue("b")?.configure(&mut b);
    let lost = |slave: &Broker| {
        wait_until("the slave to miss its master", || {
            let told = Raw::connect(&slave.address)?.ask("stats replication")?.text();
            Ok(told.contains("link lost").then_some(()))
        })
    };
    for (signal, expected) in [(Signal::STOP, 10), (Signal::KILL, 0)] {
        let master = a.start_master(&[])?;
        let mut slave = start_slave(&b, 0, &master)?;
        slave.wait_for_line("transport=\"quic\"")?;
        put_many(&master, 20)?;
        wait_level(&master, &slave, "test", 2)?;
        master.signal(signal)?;
        lost(&slave)?;
        let (code, report) = dry_run_at(&b, &slave)?;
        assert_eq!(code, expected, "{signal:?}: {report}");
        master.kill()?;
        assert!(slave.stop()?.success());
    }
    Ok(())
}

const MESSAGE_BYTES: usize = 10_000;

/// Copies so little in a second that it is caught on its way.
fn start_slow_slave(site: &Site, master: &Broker) -> Result<Broker> {
    fs::create_dir_all(site.path().join("conf"))?;
    fs::write(site.path().join("conf/async_slave.properties"), "slaveCatchUpBytesPerSecond=200000\n")?;
    site.start_slave(&["--slave-id", "0", "--master", &master.address])
}

/// Beside a running slave that is level and whose master is gone nothing is known to be missing; the slave's own stop
/// makes that less sure, and a master that answers is not to be replaced.
#[test]
fn a_level_slave_is_safe_while_it_listens() -> Result<()> {
    let zookeeper = ZooKeeper::start()?;
    let (a, b) = (site(Some(&zookeeper))?, site(Some(&zookeeper))?);
    let mut master = a.start_master(&[])?;
    master.wait_for_line("accepting messages")?;
    let mut slave = b.start_slave(&["--slave-id", "0"])?;
    slave.wait_for_line("following the master")?;
    put_many(&master, 50)?;
    wait_level(&master, &slave, "test", 2)?;
    let (code, report) = wait_until("the slave to be registered", || {
        let (code, report) = dry_run(&b)?;
        Ok((!report["slave_address"].is_null()).then_some((code, report)))
    })?;
    assert_eq!((code, report["verdict"].as_str()), (20, Some("refused")), "{report}");
    assert!(master.stop()?.success());
    let report = wait_until("the slave to notice", || {
        let (code, report) = dry_run(&b)?;
        Ok((code == 0).then_some(report))
    })?;
    assert_eq!(report["bytes_at_risk"], 0, "{report}");
    assert_eq!(report["next_epoch"], 2, "{report}");
    assert!(report["fence"]["is_known"].as_bool().expect("a fence"), "{report}");
    assert!(slave.stop()?.success());
    let (code, report) = dry_run(&b)?;
    assert_eq!((code, report["verdict"].as_str()), (10, Some("possible-loss")), "{report}");

    // Promoted: the old master's data does not know the new reign.
    let mut promoted = b.start_slave(&[])?;
    promoted.wait_for_line("accepting messages")?;
    put_many(&promoted, 10)?;
    assert!(promoted.stop()?.success());
    let (code, report) = dry_run(&a)?;
    assert_eq!(code, 20, "{report}");
    assert!(report["reasons"][0].as_str().is_some_and(|reason| reason.contains("--accept-loss")), "{report}");
    let (code, _) = metaq(&a, &["promote", "--dry-run", "--accept-loss"])?;
    assert_eq!(code, 10);
    let (code, report) = dry_run(&b)?;
    assert_eq!((code, report["slave"].is_null()), (0, true), "it reigned last: {report}");
    Ok(())
}

/// With the master gone its slaves tell: the one that lacks least comes first.
#[test]
fn the_most_advanced_slave_comes_first() -> Result<()> {
    let zookeeper = ZooKeeper::start()?;
    let (a, b, c) = (site(Some(&zookeeper))?, site(Some(&zookeeper))?, site(Some(&zookeeper))?);
    let mut master = a.start_master(&[])?;
    master.wait_for_line("accepting messages")?;
    let mut slaves = [b.start_slave(&["--slave-id", "0"])?, c.start_slave(&["--slave-id", "1"])?];
    put_many(&master, 50)?;
    for slave in &mut slaves {
        slave.wait_for_line("following the master")?;
        wait_level(&master, slave, "test", 2)?;
    }
    let status = |expected: [u64; 2], state: &str| {
        wait_until("the slaves in their order and state", || {
            let (code, rows) = metaq(&a, &["replica", "status"])?;
            assert_eq!(code, 0);
            let order: Vec<_> = rows.as_array().context("a list")?.iter().map(|row| row["slave"].as_u64()).collect();
            let ranked = rows.as_array().is_some_and(|rows| rows.iter().all(|row| !row["rank"].is_null()));
            let first = rows[0]["state"] == state;
            Ok((ranked && first && order == expected.map(Some)).then_some(rows))
        })
    };
    let rows = status([0, 1], "following")?;
    assert_eq!(rows[0]["epoch"], 1, "{rows}");

    slaves[0].signal(Signal::STOP)?;
    put_many(&master, 50)?;
    wait_level(&master, &slaves[1], "test", 2)?;
    master.kill()?;
    slaves[0].signal(Signal::CONT)?;
    let rows = status([1, 0], "lost")?;
    assert_eq!(rows[0]["lag_bytes"], 0, "{rows}");
    // But for what was on its way to it when it froze.
    assert!(rows[1]["lag_bytes"].as_u64().is_some_and(|bytes| bytes > 4000), "{rows}");
    assert!(rows[0]["last_error"].is_string(), "{rows}");
    // Only a master knows of transactions: without one it is not told that there are none.
    wait_until("the transactions to be unknown", || {
        let told = metaq(&a, &["txn", "list"]).ok();
        assert!(told.as_ref().is_none_or(|(code, _)| *code == 1), "{told:?}");
        Ok(told)
    })?;
    Ok(())
}

/// A master of the third generation lacks what the second had copied from the first: the second, as its old master, comes
/// back with one command all the same.
#[test]
fn an_old_master_cuts_also_what_it_had_copied() -> Result<()> {
    let (a, b, c) = (site(None)?, site(None)?, site(None)?);
    let first = a.start_master(&[])?;
    put_many(&first, 20)?;
    let arguments = ["--slave-id", "1", "--master", first.address.as_str()];
    let late = c.start_slave(&arguments)?;
    wait_level(&first, &late, "test", 2)?;
    assert!(late.stop()?.success());
    put_many(&first, 20)?;
    let arguments = ["--slave-id", "0", "--master", first.address.as_str()];
    let second = b.start_slave(&arguments)?;
    wait_level(&first, &second, "test", 2)?;
    first.kill()?;
    assert!(second.stop()?.success());
    let second = b.start_slave(&[])?;
    second.kill()?;

    let third = c.start_slave(&[])?;
    put_many(&third, 10)?;
    let mut back = b.start_slave(&["--slave-id", "0", "--master", &third.address])?;
    wait_level(&third, &back, "test", 2)?;
    back.wait_for_line("set aside and cut")?;
    assert_same(&c.data(), &b.data())
}
