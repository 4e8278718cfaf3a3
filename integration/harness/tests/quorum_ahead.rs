//! A member of a quorum may be ahead of its master's disk. What becomes of that when the master loses power, with real
//! processes; the loss is done to the file of a master that was killed.

use anyhow::{Context, Result};
use metaq_harness::fire::disk::SlowDisk;
use metaq_harness::members::first_put;
use metaq_harness::pair::{assert_same, start_slave, wait_level};
use metaq_harness::process::{Broker, Site, wait_until};
use metaq_harness::raw::Raw;
use rustix::process::Signal;
use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

fn site(quorum: u32) -> Result<Site> {
    let mut site = Site::new()?;
    site.set("ackQuorum", &quorum.to_string());
    site.set("ackTimeoutInMills", "3000");
    Ok(site)
}

fn segment(site: &Site) -> PathBuf {
    site.data().join("test-0/00000000000000000000.meta")
}

fn wait_for_copy(slave: &Broker, word: &str) -> Result<String> {
    let mut raw = Raw::connect(&slave.address)?;
    wait_until(&format!("the slave to say {word:?}"), || {
        let text = raw.ask("stats replication")?.text();
        Ok(text.lines().find(|line| line.starts_with("copy test 0 ") && line.contains(word)).map(str::to_owned))
    })
    .with_context(|| format!("the slave's log:\n{}", slave.log_text()))
}

fn shown(broker: &Broker) -> Result<Vec<String>> {
    let records = Raw::connect(&broker.address)?.read_all("test", 0, 0)?;
    Ok(records.iter().map(|record| String::from_utf8_lossy(&record.body).into_owned()).collect())
}

fn set_aside(site: &Site) -> Result<Vec<Vec<u8>>> {
    let mut copies = Vec::new();
    for entry in fs::read_dir(site.data().join("test-0"))? {
        let path = entry?.path();
        if path.to_string_lossy().contains(".diverged-") {
            copies.push(fs::read(path)?);
        }
    }
    Ok(copies)
}

/// What the power took from the master: everything from `end` on.
fn lose_from(site: &Site, end: u64) -> Result<()> {
    fs::OpenOptions::new().write(true).open(segment(site))?.set_len(end)?;
    Ok(())
}

/// While the master's disk hangs its member writes, syncs and confirms; and until the master has synced as well nobody is
/// answered, and no consumer is shown anything, here or there.
#[test]
fn members_sync_while_the_master_does_and_nothing_is_told_before() -> Result<()> {
    let (mut a, b) = (site(2)?, site(2)?);
    a.set("ackTimeoutInMills", "60000");
    let master = a.start_master(&[])?;
    let slave = start_slave(&b, 0, &master)?;
    first_put(&master, 0, b"first")?;
    wait_level(&master, &slave, "test", 1)?;
    let disk = SlowDisk::attach(master.pid(), Duration::from_secs(60))?;
    let answered = AtomicBool::new(false);
    std::thread::scope(|scope| -> Result<()> {
        let put = scope.spawn(|| -> Result<()> {
            let reply = Raw::connect(&master.address)?.put("test", 0, b"second")?;
            answered.store(true, Ordering::SeqCst);
            reply.stored().map(|_| ())
        });
        wait_for_copy(&slave, "own_end 51 ")?;
        let mut raw = Raw::connect(&master.address)?;
        wait_until("the slave's word to arrive", || {
            Ok(raw.ask("stats quorum")?.text().contains(" confirmed 51 ").then_some(()))
        })?;
        assert_eq!((shown(&master)?, shown(&slave)?), (vec!["first".to_owned()], vec!["first".to_owned()]));
        assert!(!answered.load(Ordering::SeqCst));
        drop(disk);
        put.join().expect("it does not panic")
    })?;
    wait_level(&master, &slave, "test", 1)?;
    assert_eq!((shown(&master)?, shown(&slave)?), (vec!["first".into(), "second".into()], shown(&master)?));
    Ok(())
}

/// Master and two slaves of a quorum of three. Slave 1 is frozen, so the last put is held by slave 0 and not acknowledged;
/// then the master loses it. Whether slave 0 lives on or starts again, it sets that tail aside by itself, and shows it to
/// nobody before or after.
#[test]
fn a_tail_that_the_master_lost_before_its_answer_is_set_aside() -> Result<()> {
    for restarted in [false, true] {
        let (mut a, b, c) = (site(3)?, site(3)?, site(3)?);
        let master = a.start_master(&[])?;
        let address = master.address.clone();
        a.set("serverPort", address.rsplit(':').next().unwrap_or_default());
        let (mut one, two) = (start_slave(&b, 0, &master)?, start_slave(&c, 1, &master)?);
        first_put(&master, 0, b"first")?;
        wait_level(&master, &one, "test", 1)?;
        wait_level(&master, &two, "test", 1)?;
        two.signal(Signal::STOP)?;
        assert_eq!(Raw::connect(&master.address)?.put("test", 0, b"never answered")?.code, 500);
        wait_for_copy(&one, "own_end 59 ")?;
        assert_eq!(shown(&one)?, ["first"]);
        master.kill()?;
        lose_from(&a, 25)?;
        if restarted {
            one.kill()?;
            one = b.start_slave(&["--slave-id", "0", "--master", &address])?;
        }
        let master = a.start_master(&[])?;
        two.signal(Signal::CONT)?;
        let line = one.wait_for_line("set aside and cut")?;
        assert!(line.contains("bytes=34") && line.contains(".diverged-1"), "{line}");
        first_put(&master, 0, b"after")?;
        wait_level(&master, &one, "test", 1)?;
        wait_level(&master, &two, "test", 1)?;
        assert_eq!((shown(&master)?, shown(&one)?), (vec!["first".into(), "after".into()], shown(&two)?));
        assert_eq!(shown(&one)?, ["first", "after"]);
        assert_same(&a.data(), &b.data())?;
        let copies = set_aside(&b)?;
        assert_eq!(copies.len(), 1);
        assert!(copies[0].ends_with(b"never answered"), "nothing is deleted");
    }
    Ok(())
}

/// A master that has less than it acknowledged: its files were put back from an older copy, or its disk lied. What the
/// slave has beyond is the only copy of acknowledged messages, and a person has to look at it.
#[test]
fn a_tail_that_was_acknowledged_is_never_cut_by_itself() -> Result<()> {
    let (mut a, b) = (site(2)?, site(2)?);
    let master = a.start_master(&[])?;
    a.set("serverPort", master.address.rsplit(':').next().unwrap_or_default());
    let slave = start_slave(&b, 0, &master)?;
    first_put(&master, 0, b"first")?;
    first_put(&master, 0, b"acknowledged")?;
    // As soon as the slave shows it, it was told.
    wait_level(&master, &slave, "test", 1)?;
    let whole = fs::read(segment(&b))?;
    master.kill()?;
    lose_from(&a, 25)?;
    let master = a.start_master(&[])?;
    wait_for_copy(&slave, "diverged")?;
    assert_eq!((fs::read(segment(&b))?, set_aside(&b)?.len()), (whole.clone(), 0));
    assert_eq!(shown(&slave)?, ["first", "acknowledged"], "and goes on showing it");
    // Nor does a restart of either change its mind.
    assert!(slave.stop()?.success());
    let slave = start_slave(&b, 0, &master)?;
    wait_for_copy(&slave, "diverged")?;
    assert_eq!((fs::read(segment(&b))?, set_aside(&b)?.len()), (whole, 0));
    assert_eq!(Raw::connect(&master.address)?.put("test", 0, b"refused")?.code, 503, "it does not count either");
    assert!(slave.stop()?.success());
    let slave = b.start_slave(&["--slave-id", "0", "--master", &master.address, "--accept-divergence"])?;
    first_put(&master, 0, b"after")?;
    wait_level(&master, &slave, "test", 1)?;
    assert_same(&a.data(), &b.data())?;
    assert_eq!(set_aside(&b)?.len(), 1);
    Ok(())
}
