//! Promotions under a quorum: while the old master lives on, cut off from ZooKeeper and from whoever takes over; and of a
//! slave that may lack something.

use anyhow::{Context, Result, ensure};
use metaq_harness::members::{first_put, member_site, wait_members};
use metaq_harness::pair::{start_slave, wait_level};
use metaq_harness::ports::free_port;
use metaq_harness::process::{Broker, Site, binary_path, wait_until};
use metaq_harness::raw::{Raw, bodies};
use metaq_harness::relay::Relay;
use metaq_harness::zookeeper::ZooKeeper;
use rustix::process::Signal;
use std::net::SocketAddr;
use std::process::Command;

/// Until its lease runs out the old master acknowledges what it gives to the slave that still reaches it, and that slave
/// was asked before. The new master asks it again.
#[test]
fn what_the_old_master_acknowledges_to_the_last_is_not_lost() -> Result<()> {
    let zookeeper = ZooKeeper::start()?;
    let site = |zookeeper: &str| -> Result<Site> {
        let mut site = Site::new()?;
        site.set("ackQuorum", "2");
        site.set_zookeeper("zk.zkEnable", "true").set_zookeeper("zk.zkConnect", zookeeper);
        // The lease has to last until the other slave was asked and the fence was taken, on a busy machine as well.
        site.set_zookeeper("zk.zkSessionTimeoutMs", "12000");
        Ok(site)
    };
    let port = free_port()?;
    let (shown, direct) = (SocketAddr::from(([127, 0, 0, 10], port)), SocketAddr::from(([127, 0, 0, 1], port)));
    let front = Relay::start(shown, direct)?;
    let to_zookeeper = Relay::start("127.0.0.1:0".parse()?, zookeeper.connect().parse()?)?;
    let mut a = site(&to_zookeeper.address.to_string())?;
    a.set("hostName", "127.0.0.10").set("bindHost", "127.0.0.1").set("serverPort", &port.to_string());
    let (mut b, c) = (site(&zookeeper.connect())?, site(&zookeeper.connect())?);
    b.set("serverPort", &free_port()?.to_string());
    let mut old = a.start_master(&[])?;
    old.wait_for_line("accepting messages")?;
    let mut heir = b.start_slave(&["--slave-id", "0"])?;
    let mut other = c.start_slave(&["--slave-id", "1", "--master", &direct.to_string()])?;
    for slave in [&mut heir, &mut other] {
        slave.wait_for_line("following the master")?;
    }
    let mut raw = Raw::connect(&direct.to_string())?;
    wait_until("both slaves to count", || {
        let put = raw.put("test", 0, b"first")?;
        Ok((put.code == 200 && raw.ask("stats quorum")?.text().contains(" members 3 ")).then_some(()))
    })?;

    ensure!(heir.stop()?.success());
    drop(front);
    to_zookeeper.stall();
    let mut heir = Broker::spawn(&b, "metaq-slave", &[])?;
    heir.wait_for_line("still has a session as the master")?;
    let last = raw.put("test", 0, b"acknowledged to the last")?.stored()?;
    heir.wait_for_line("accepting messages")?;
    heir.address = format!("127.0.0.1:{}", b.get("serverPort").context("it has one")?);
    old.kill()?;
    other.stop()?;
    let mut other = c.start_slave(&["--slave-id", "1"])?;
    other.wait_for_line("following the master")?;
    let mut raw = Raw::connect(&heir.address)?;
    wait_until("the quorum to be there", || Ok((raw.put("test", 0, b"after")?.code == 200).then_some(())))?;
    wait_level(&heir, &other, "test", 1)?;
    let all = raw.read_all("test", 0, 0)?;
    let found = all.iter().find(|record| (record.id, record.offset) == (last.id, last.offset));
    ensure!(found.is_some_and(|record| record.body == b"acknowledged to the last"), "it is lost: {all:?}");
    Ok(())
}

/// A slave that lacks what another may hold alone is not promoted, unless the operator accepts the loss.
#[test]
fn a_promotion_that_may_lose_something_is_refused() -> Result<()> {
    let (a, mut b, mut c) = (member_site(2)?, member_site(2)?, member_site(2)?);
    let master = a.start_master(&[])?;
    let (one, two) = (start_slave(&b, 0, &master)?, start_slave(&c, 1, &master)?);
    // Their addresses stay the same, as those of real nodes do.
    b.set("serverPort", one.address.rsplit(':').next().unwrap_or_default());
    c.set("serverPort", two.address.rsplit(':').next().unwrap_or_default());
    first_put(&master, 0, b"first")?;
    wait_members(&master, 3, 1)?;
    // Both have heard that both count, and have written it down.
    for site in [&b, &c] {
        wait_until("the record to name both", || {
            let record = std::fs::read_to_string(site.data().join(".metaq/replica.json")).unwrap_or_default();
            Ok((record.matches("\"slave_id\"").count() == 3).then_some(()))
        })?;
    }
    one.signal(Signal::STOP)?;
    let mut raw = Raw::connect(&master.address)?;
    // The first may still wait for slave 0 in its socket.
    for n in 0..5 {
        raw.put("test", 0, format!("slave 0 lacks {n}").as_bytes())?.stored()?;
    }
    master.kill()?;
    assert!(two.stop()?.success());
    one.signal(Signal::CONT)?;
    assert!(one.stop()?.success());

    let (code, page) = dry_run(&b)?;
    assert!(code == 20 && page.contains("cannot be asked: slave 1 (meta://127.0.0.1:"), "{code} {page}");
    let mut refused = Broker::spawn(&b, "metaq-slave", &[])?;
    assert_eq!(refused.wait_exit()?.code(), Some(1));
    let log = refused.log_text();
    assert!(log.contains("promotion refused") && log.contains("slave 1 (meta://127.0.0.1:"), "{log}");
    assert!(log.contains("--accept-loss"), "{log}");
    // With the other one there to be asked, what it holds more is copied first.
    let two = c.start_slave(&["--slave-id", "1", "--master", "127.0.0.1:1"])?;
    let (code, page) = dry_run(&b)?;
    assert!(code == 10 && !page.contains("may be missing here"), "{code} {page}");
    let mut promoted = b.start_slave(&[])?;
    let line = promoted.wait_for_line("nothing that a quorum acknowledged is missing")?;
    assert!(line.contains("others=1") && !line.contains("copied=0"), "{line}");
    drop(two);
    let _two = start_slave(&c, 1, &promoted)?;
    wait_members(&promoted, 2, 1)?;
    let seen = bodies(&Raw::connect(&promoted.address)?.read_all("test", 0, 0)?);
    let lacking = (0..5).map(|n| format!("slave 0 lacks {n}"));
    assert_eq!(seen, std::iter::once("first".to_owned()).chain(lacking).collect::<Vec<_>>());
    Ok(())
}

/// What `metaq promote --dry-run` says beside a site, and its exit code.
fn dry_run(site: &Site) -> Result<(i32, String)> {
    let mut command = Command::new(binary_path("metaq")?);
    let output = command.arg("--config").arg(site.ini_path()).args(["promote", "--dry-run"]).output()?;
    Ok((output.status.code().unwrap_or(-1), String::from_utf8(output.stdout)?))
}

/// What an operator has accepted is said, and done.
#[test]
fn an_accepted_loss_promotes() -> Result<()> {
    let (a, b, c) = (member_site(2)?, member_site(2)?, member_site(2)?);
    let master = a.start_master(&[])?;
    let (one, two) = (start_slave(&b, 0, &master)?, start_slave(&c, 1, &master)?);
    first_put(&master, 0, b"first")?;
    wait_members(&master, 3, 1)?;
    wait_until("the record to name both", || {
        let record = std::fs::read_to_string(b.data().join(".metaq/replica.json")).unwrap_or_default();
        Ok((record.matches("\"slave_id\"").count() == 3).then_some(()))
    })?;
    master.kill()?;
    two.kill()?;
    assert!(one.stop()?.success());
    let mut promoted = b.start_slave(&["--accept-loss"])?;
    promoted.wait_for_line("as --accept-loss allows")?;
    Ok(())
}
