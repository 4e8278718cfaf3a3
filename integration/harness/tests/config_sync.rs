//! F41: a slave's server.ini follows its master's where they share, and nowhere else.

use anyhow::Result;
use metaq_harness::pair::{assert_same, slave_site, start_slave, wait_level};
use metaq_harness::process::{Broker, Site, wait_until};
use metaq_harness::raw::Raw;
use metaq_harness::zookeeper::ZooKeeper;
use rustix::process::Signal;
use std::fs;
use std::time::{Duration, Instant};

/// From the master's reload to the slave's: it is told. One that was not would try again after 5 s.
const WITHIN: Duration = Duration::from_secs(4);

/// A slave's site that follows its master's configuration, and the arguments to start it with.
struct Follower {
    site: Site,
    arguments: Vec<String>,
}

fn follower(configure: impl FnOnce(&mut Site)) -> Result<Follower> {
    let site = slave_site(configure)?;
    let properties = site.path().join("async_slave.properties");
    fs::write(&properties, "slaveId=0\nautoSyncMasterConfig=true\n")?;
    let arguments = ["--slave-id", "0", "--slave-config"].map(String::from).into_iter();
    let arguments = arguments.chain([properties.display().to_string()]).collect();
    Ok(Follower { site, arguments })
}

impl Follower {
    fn start(&self, more: &[&str]) -> Result<Broker> {
        let mut arguments: Vec<&str> = self.arguments.iter().map(String::as_str).collect();
        arguments.extend(more);
        self.site.start_slave(&arguments)
    }

    fn ini(&self) -> Result<Vec<u8>> {
        Ok(fs::read(self.site.ini_path())?)
    }

    fn previous(&self) -> Result<Vec<u8>> {
        Ok(fs::read(self.site.path().join("server.ini.previous"))?)
    }
}

fn contains(text: &[u8], part: &[u8]) -> bool {
    text.windows(part.len()).any(|window| window == part)
}

fn reloads(broker: &Broker) -> usize {
    broker.log_text().matches("reload done").count()
}

/// Adds bytes to the master's file, has it reloaded, and waits until the slave has done the same.
fn reload_both(site: &Site, master: &Broker, slave: &Broker, more: &[u8]) -> Result<()> {
    let (masters, slaves) = (reloads(master), reloads(slave));
    let text = [&fs::read(site.ini_path())?, more].concat();
    fs::write(site.ini_path(), text)?;
    master.signal(Signal::HUP)?;
    wait_until("the master to reload", || Ok((reloads(master) > masters).then_some(())))?;
    let since = Instant::now();
    wait_until("the slave to reload", || Ok((reloads(slave) > slaves).then_some(())))?;
    assert!(since.elapsed() < WITHIN, "it took the slave {:?}", since.elapsed());
    Ok(())
}

#[test]
fn f41_what_is_the_slaves_own_survives_and_comments_keep_their_bytes() -> Result<()> {
    let mut master_site = Site::new()?;
    master_site.set("hostName", "127.0.0.1").set("deletePolicy", "delete,24");
    let follower = follower(|site| {
        site.set("hostName", "localhost").set("bindHost", "127.0.0.1").set("maxCheckpoints", "5");
        site.topic("test", &[("dataPath", &site.path().join("own").display().to_string())]);
    })?;
    let master = master_site.start_master(&[])?;
    let slave = follower.start(&["--master", &master.address])?;
    // The shared keys of [system] come with the first connection.
    wait_until("the slave to take over deletePolicy", || {
        Ok(contains(&follower.ini()?, b"deletePolicy=delete,24\n").then_some(()))
    })?;
    wait_until("the slave to reload", || Ok((reloads(&slave) == 1).then_some(())))?;
    let before = follower.ini()?;
    let own_data = format!("dataPath={}/own\n", follower.site.path().display());
    assert!(!contains(&before, b"maxCheckpoints"), "the master leaves it at its default");

    let utf8 = "\n; 订单，UTF-8\n[topic=orders]\nnumPartitions=2\n".as_bytes();
    reload_both(&master_site, &master, &slave, utf8)?;
    let after = follower.ini()?;
    assert!(contains(&after, utf8) && follower.previous()? == before);
    let gbk = b"\n; \xb6\xa9\xb5\xa5 GBK\n[topic=app-*]\nnumPartitions=3\ndataPath=/nowhere/on/the/slave\n";
    reload_both(&master_site, &master, &slave, gbk)?;
    let text = follower.ini()?;
    assert!(contains(&text, b"\n; \xb6\xa9\xb5\xa5 GBK\n[topic=app-*]\nnumPartitions=3\n") && contains(&text, utf8));
    assert!(follower.previous()? == after);
    for own in ["hostName=localhost\n", "bindHost=127.0.0.1\n", "serverPort=0\n", &own_data] {
        assert!(contains(&text, own.as_bytes()), "{own} is gone from {}", String::from_utf8_lossy(&text));
    }
    assert!(!contains(&text, b"/nowhere") && !contains(&text, b"hostName=127.0.0.1"));

    let mut raw = Raw::connect(&master.address)?;
    for (topic, partition) in [("test", 0), ("orders", 1)] {
        raw.put(topic, partition, b"m")?.stored()?;
        wait_level(&master, &slave, topic, 2)?;
    }
    assert!(follower.site.path().join("own/test-0").is_dir(), "the topic's own path is in force");
    Ok(())
}

/// A file that is not good is neither published nor applied, and the next good one is.
#[test]
fn f41_a_bad_file_goes_nowhere() -> Result<()> {
    let master_site = Site::new()?;
    let follower = follower(|_| {})?;
    let mut master = master_site.start_master(&[])?;
    let mut slave = follower.start(&["--master", &master.address])?;
    let good = fs::read(master_site.ini_path())?;
    let before = follower.ini()?;
    fs::write(master_site.ini_path(), [&good[..], b"[topic=bad]\nnumPartition=1\n"].concat())?;
    master.signal(Signal::HUP)?;
    master.wait_for_line("reload refused")?;
    // A slave that connects now gets the configuration in force, not the file.
    slave.kill()?;
    slave = follower.start(&["--master", &master.address])?;
    slave.wait_for_line("following the master")?;
    fs::write(master_site.ini_path(), &good)?;
    reload_both(&master_site, &master, &slave, b"[topic=good]\n")?;
    let shown = |text: &[u8]| String::from_utf8_lossy(text).into_owned();
    assert_eq!(shown(&follower.ini()?), shown(&before) + "[topic=good]\n");
    assert_eq!(shown(&follower.previous()?), shown(&before));
    assert!(!slave.log_text().contains("topic=bad"));
    Ok(())
}

/// The registry tells of the change as well, and the slave finds its topics there again under its own address.
#[test]
fn a_registered_pair_follows_too() -> Result<()> {
    let zookeeper = ZooKeeper::start()?;
    let configure = |site: &mut Site| {
        site.set_zookeeper("zk.zkEnable", "true");
        site.set_zookeeper("zk.zkConnect", &zookeeper.connect());
    };
    let master_site = slave_site(configure)?;
    let follower = follower(configure)?;
    let master = master_site.start_master(&[])?;
    let mut slave = follower.start(&[])?;
    slave.wait_for_line("following the master")?;
    reload_both(&master_site, &master, &slave, b"\n[topic=orders]\nnumPartitions=2\n")?;
    Raw::connect(&master.address)?.put("orders", 1, b"m")?.stored()?;
    wait_level(&master, &slave, "orders", 2)?;
    assert!(contains(&follower.ini()?, b"[topic=orders]"));
    Ok(())
}

/// A topic that a pattern let in on the master reaches a slave whose own file knows no such pattern and follows nothing.
#[test]
fn a_patterns_topic_reaches_a_slave_that_has_no_pattern() -> Result<()> {
    let master_site = slave_site(|site| {
        site.topic("app-*", &[("numPartitions", "2")]);
    })?;
    let slave_site = slave_site(|_| {})?;
    let master = master_site.start_master(&[])?;
    let slave = start_slave(&slave_site, 0, &master)?;
    Raw::connect(&master.address)?.put("app-one", 1, b"m")?.stored()?;
    let since = Instant::now();
    wait_level(&master, &slave, "app-one", 2)?;
    assert!(since.elapsed() < WITHIN, "{:?}", since.elapsed());
    assert_same(&master_site.data(), &slave_site.data())
}
