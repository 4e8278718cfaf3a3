//! A promotion under a quorum while the old master lives on, cut off from ZooKeeper and from whoever takes over.

use anyhow::{Context, Result, ensure};
use metaq_harness::pair::wait_level;
use metaq_harness::ports::free_port;
use metaq_harness::process::{Broker, Site, wait_until};
use metaq_harness::raw::Raw;
use metaq_harness::relay::Relay;
use metaq_harness::zookeeper::ZooKeeper;
use std::net::SocketAddr;

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
