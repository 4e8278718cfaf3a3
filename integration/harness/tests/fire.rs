//! Faults on real processes under load: F16, F50, and rounds of random faults with every put in a ledger.
//!
//! METAQ_ROUNDS sets how many rounds (8), METAQ_SEED which (from the clock); both are printed.

use anyhow::{Result, ensure};
use metaq_harness::fire::cluster::{Cluster, Direction, Setup, Transport};
use metaq_harness::fire::load::Load;
use metaq_harness::fire::namespaces::{Cut, Hub};
use metaq_harness::fire::{rounds, say_loudly};
use metaq_harness::pair::{assert_same, wait_level};
use metaq_harness::ports::free_port;
use metaq_harness::process::{Broker, Site, wait_until};
use metaq_harness::raw::Raw;
use metaq_harness::relay::Relay;
use metaq_harness::zookeeper::ZooKeeper;
use rustix::process::Signal;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// A slave gives a master up that does not answer for its keep-alive wait and 3 s more.
const KEEP_ALIVE_BOUND: Duration = Duration::from_secs(4);

fn number(name: &str, default: u64) -> Result<u64> {
    Ok(std::env::var(name).map_or(Ok(default), |text| text.parse())?)
}

#[test]
fn rounds_of_faults_lose_nothing_that_was_confirmed() -> Result<()> {
    let rounds = number("METAQ_ROUNDS", 8)?;
    let seed = number("METAQ_SEED", SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs())?;
    println!("METAQ_SEED={seed} METAQ_ROUNDS={rounds}");
    let summary = rounds::run(seed, rounds as usize)?;
    println!("{summary:?}");
    let cut_off = summary.java.cut_off;
    ensure!(cut_off <= 1 + rounds as usize / 25, "the client cut itself off {cut_off} times, which is no accident");
    let least = summary.acknowledged.min(summary.java.received);
    ensure!(least > 100 * rounds as usize, "hardly any load: {summary:?}");
    Ok(())
}

/// F50: all packets between slave and master are lost for longer than the keep-alive bound. Afterwards the slave works
/// again within 5 s, and no connection is left behind.
#[test]
fn f50_a_slave_works_again_soon_after_a_stall() -> Result<()> {
    let mut cluster = Cluster::start()?;
    let load = Load::start(cluster.target());
    wait_until("some load", || Ok((load.acknowledged() > 30).then_some(())))?;
    let relay = cluster.members[0].relay()?;
    let before = relay.open();
    relay.stall();
    let stalled = Instant::now();
    for slave in cluster.slaves() {
        cluster.members[slave].broker()?.wait_for_line("not following the master")?;
    }
    ensure!(stalled.elapsed() < KEEP_ALIVE_BOUND + Duration::from_secs(3), "noticed after {:?}", stalled.elapsed());
    // Long enough for several attempts to pile up, if they did.
    wait_until("more attempts to connect", || Ok((stalled.elapsed() > 2 * KEEP_ALIVE_BOUND).then_some(())))?;
    load.pause()?;
    cluster.heal()?;
    let restored = Instant::now();
    cluster.wait_whole()?;
    ensure!(restored.elapsed() < Duration::from_secs(5), "working again after {:?}", restored.elapsed());
    let relay = cluster.members[0].relay()?;
    wait_until("connections left behind to end", || Ok((relay.open() <= before).then_some(())))?;
    cluster.assert_same()
}

/// The master's end of a connection is gone and nobody told the slave, which waits for answers that nobody will send.
#[test]
fn a_slave_works_again_soon_although_its_master_forgot_it() -> Result<()> {
    // The thread that enters a hub does not come back from it.
    std::thread::spawn(forgotten_by_the_master).join().expect("it fails without a panic")
}

fn forgotten_by_the_master() -> Result<()> {
    let hub = match Hub::enter() {
        Ok(hub) => Some(Arc::new(hub)),
        Err(reason) => {
            say_loudly(&format!("NOT TESTED: a slave whose master forgot it: {reason:#}"));
            return Ok(());
        }
    };
    let mut cluster = Cluster::start_on(Setup { hub, transport: Transport::Tcp }, |_, _| Ok(()))?;
    let load = Load::start(cluster.target());
    wait_until("some load", || Ok((load.acknowledged() > 30).then_some(())))?;
    let slaves =
        cluster.slaves().into_iter().map(|slave| Ok(cluster.members[slave].direct.parse::<SocketAddr>()?.ip()));
    let slaves = slaves.collect::<Result<Vec<_>>>()?;
    cluster.cut_replication(Direction::FromMaster, Cut::Reject)?;
    let master = cluster.members[0].broker()?.pid();
    wait_until("the master to lose its slaves", || Ok((connected_to(master, &slaves)? == 0).then_some(())))?;
    load.pause()?;
    cluster.heal()?;
    let healed = Instant::now();
    cluster.wait_whole()?;
    ensure!(healed.elapsed() < Duration::from_secs(5), "working again after {:?}", healed.elapsed());
    cluster.assert_same()
}

/// Established connections of the process's network namespace with these addresses.
fn connected_to(pid: u32, addresses: &[IpAddr]) -> Result<usize> {
    const ESTABLISHED: &str = "01";
    let shown = |address: &IpAddr| match address {
        IpAddr::V4(address) => format!("{:08X}:", u32::from_le_bytes(address.octets())),
        IpAddr::V6(address) => format!("{address}:"),
    };
    let shown: Vec<String> = addresses.iter().map(shown).collect();
    let table = std::fs::read_to_string(format!("/proc/{pid}/net/tcp"))?;
    let is_one = |line: &&str| {
        let words: Vec<&str> = line.split_ascii_whitespace().take(4).collect();
        matches!(words[..], [_, _, remote, ESTABLISHED] if shown.iter().any(|address| remote.starts_with(address)))
    };
    Ok(table.lines().filter(is_one).count())
}

/// F16: the link is lost while what came is still to be written; the slave goes on where its log ends.
#[test]
fn f16_a_slave_resumes_where_its_log_ends() -> Result<()> {
    let mut cluster = Cluster::start()?;
    let load = Load::start(cluster.target());
    for _ in 0..10 {
        let before = load.acknowledged();
        wait_until("some load", || Ok((load.acknowledged() > before + 20).then_some(())))?;
        // Frozen with bytes in its hands, then cut off, then let go: what it has is written before it asks again.
        cluster.members[1].broker()?.signal(Signal::STOP)?;
        cluster.members[0].relay()?.reset();
        cluster.members[1].broker()?.signal(Signal::CONT)?;
    }
    load.pause()?;
    cluster.wait_whole()?;
    cluster.assert_same()
}

/// A slave that reconnects before a restarted master's reign has begun must learn of that reign, or its own promotion
/// would later be refused although it holds everything.
#[test]
fn a_slave_knows_the_reign_it_follows() -> Result<()> {
    let mut zookeeper = ZooKeeper::start()?;
    let site = || -> Result<Site> {
        let mut site = Site::new()?;
        site.set_zookeeper("zk.zkEnable", "true");
        site.set_zookeeper("zk.zkConnect", &zookeeper.connect());
        site.set_zookeeper("zk.zkSessionTimeoutMs", "1500");
        Ok(site)
    };
    let (mut a, b) = (site()?, site()?);
    a.set("serverPort", &free_port()?.to_string());
    let mut master = a.start_master(&[])?;
    master.wait_for_line("accepting messages")?;
    let address = master.address.clone();
    let mut slave = b.start_slave(&["--slave-id", "0"])?;
    slave.wait_for_line("following the master")?;
    Raw::connect(&address)?.put("test", 0, b"one")?.stored()?;
    wait_level(&master, &slave, "test", 1)?;
    zookeeper.kill();
    master.kill()?;
    let mut master = Broker::spawn(&a, "metaq-master", &[])?;
    master.address.clone_from(&address);
    slave.wait_for_line("reign has not begun")?;
    zookeeper.run()?;
    master.wait_for_line("accepting messages")?;
    Raw::connect(&address)?.put("test", 0, b"two")?.stored()?;
    wait_level(&master, &slave, "test", 1)?;
    master.kill()?;
    ensure!(slave.stop()?.success());
    let mut promoted = b.start_slave(&[])?;
    promoted.wait_for_line("accepting messages")?;
    Ok(())
}

/// One partition of the slave is in doubt; the other is followed, also over a new connection, and nothing of it is cut
/// when the doubt is settled (simulation, seed 1).
#[test]
fn a_partition_in_doubt_casts_no_doubt_on_others() -> Result<()> {
    let site = || -> Result<Site> {
        let mut site = Site::new()?;
        site.topic("test", &[("numPartitions", "2")]);
        Ok(site)
    };
    let (a, b, c) = (site()?, site()?, site()?);
    let master = a.start_master(&[])?;
    let follow = |site: &Site, id: &str, master: &str, more: &[&str]| {
        site.start_slave(&[&["--slave-id", id, "--master", master], more].concat())
    };
    let relay = Relay::start("127.0.0.1:0".parse()?, master.address.parse()?)?;
    let behind = follow(&b, "0", &relay.address.to_string(), &[])?;
    let ahead = follow(&c, "1", &master.address, &[])?;
    let mut raw = Raw::connect(&master.address)?;
    (0..2).try_for_each(|partition| raw.put("test", partition, b"both have this")?.stored().map(drop))?;
    wait_level(&master, &behind, "test", 2)?;
    relay.stall();
    raw.put("test", 0, b"one slave has this")?.stored()?;
    wait_level(&master, &ahead, "test", 2)?;
    master.kill()?;
    ensure!(behind.stop()?.success() && ahead.stop()?.success());

    let promoted = b.start_slave(&[])?;
    let mut raw = Raw::connect(&promoted.address)?;
    (0..2).try_for_each(|partition| raw.put("test", partition, b"in the new reign")?.stored().map(drop))?;
    let level = |slave: &Broker, partition: i32| {
        let end = Raw::connect(&promoted.address)?.end("test", partition)?;
        wait_until("the slave to be level", || {
            Ok((Raw::connect(&slave.address)?.end("test", partition)? == end).then_some(()))
        })
    };
    let held = |slave: &Broker| -> Result<Vec<String>> {
        let text = Raw::connect(&slave.address)?.ask("stats replication")?.text();
        Ok(text.lines().filter(|line| line.contains("diverged")).map(str::to_owned).collect())
    };
    // The second time it has followed test-1 into a reign that it does not remember.
    for _ in 0..2 {
        let mut slave = follow(&c, "1", &promoted.address, &[])?;
        slave.wait_for_line("following the master")?;
        level(&slave, 1)?;
        let held = held(&slave)?;
        ensure!(held.len() == 1 && held[0].starts_with("copy test 0 "), "{held:?}\n{}", slave.log_text());
        ensure!(slave.stop()?.success());
    }
    let mut slave = follow(&c, "1", &promoted.address, &["--accept-divergence"])?;
    level(&slave, 0)?;
    level(&slave, 1)?;
    assert_same(&b.data(), &c.data())?;
    slave.wait_for_line("set aside and cut")?;
    let cuts = slave.log_text().lines().filter(|line| line.contains("set aside and cut")).count();
    ensure!(cuts == 1, "only what was in doubt is cut, not {cuts} logs");
    Ok(())
}
