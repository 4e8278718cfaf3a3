//! Brokers and a real ZooKeeper: F38, reload, what a stop leaves.

use anyhow::{Context, Result, ensure};
use metaq_config::BrokerConfig;
use metaq_harness::ports::free_address;
use metaq_harness::process::{Broker, Site, binary_path, wait_until};
use metaq_harness::raw::Raw;
use metaq_harness::zookeeper::ZooKeeper;
use metaq_registry::{Cluster, Role, lookup};
use metaq_types::BrokerId;
use rustix::process::Signal;
use std::net::TcpListener;
use std::process::Command;
use zookeeper_client::{Acls, Client, CreateMode};

struct Registered {
    zookeeper: ZooKeeper,
    runtime: tokio::runtime::Runtime,
}

impl Registered {
    fn start() -> Result<Registered> {
        Ok(Registered { zookeeper: ZooKeeper::start()?, runtime: tokio::runtime::Runtime::new()? })
    }

    /// A site that registers here, with sessions of 30 s, so that nothing is healed by a session that merely ends.
    fn site(&self) -> Result<Site> {
        let mut site = Site::new()?;
        site.set_zookeeper("zk.zkEnable", "true");
        site.set_zookeeper("zk.zkConnect", &self.zookeeper.connect());
        site.set_zookeeper("zk.zkSessionTimeoutMs", "30000");
        Ok(site)
    }

    fn look(&self, site: &Site) -> Result<Cluster> {
        let config = BrokerConfig::load(&site.ini_path())?;
        Ok(self.runtime.block_on(lookup(&config.zookeeper))?)
    }

    fn wait_for<T>(&self, what: &str, site: &Site, ask: impl Fn(&Cluster) -> Option<T>) -> Result<T> {
        wait_until(what, || Ok(ask(&self.look(site)?)))
    }

    /// Waits until a broker that registers here takes messages.
    fn start_accepting(&self, site: &Site) -> Result<Broker> {
        let mut broker = site.start_master(&[])?;
        broker.wait_for_line("accepting messages")?;
        Ok(broker)
    }

    fn wait_registered(&self, site: &Site, broker: &Broker) -> Result<()> {
        let uri = format!("meta://{}", broker.address);
        self.wait_for(&format!("{uri} to be the master"), site, |cluster| {
            let topics = cluster.topics.get("test").is_some_and(|t| !t.publish.is_empty() && !t.subscribe.is_empty());
            let id = BrokerId::new(0).expect("in range");
            (topics && cluster.brokers.get(&id)?.master.as_ref()? == &uri && cluster.brokers[&id].checksum.is_some())
                .then_some(())
        })
    }
}

/// A root that is written wrong looks like a cluster where nothing is wrong.
#[test]
fn a_root_without_brokers_is_no_answer() -> Result<()> {
    let zookeeper = ZooKeeper::start()?;
    for words in [["topic", "list"], ["replica", "status"], ["txn", "list"]] {
        let metaq = Command::new(binary_path("metaq")?)
            .args(["--zk", &zookeeper.connect(), "--root", "/mata"])
            .args(words)
            .output()?;
        let text = String::from_utf8(metaq.stderr)?;
        assert_eq!(metaq.status.code(), Some(1), "{words:?}: {text}");
        assert!(text.contains(&zookeeper.connect()) && text.contains("below /mata"), "{text}");
    }
    Ok(())
}

/// F38: killed and started again within its session's time: the old node is its own and is replaced at once.
#[test]
fn f38_a_restart_within_the_session_replaces_its_own_node() -> Result<()> {
    let zookeeper = Registered::start()?;
    let mut site = zookeeper.site()?;
    let broker = site.start_master(&[])?;
    zookeeper.wait_registered(&site, &broker)?;
    // The same address again, as a real broker has it.
    let port = broker.address.rsplit_once(':').expect("host:port").1.to_owned();
    site.set("serverPort", &port);
    broker.kill()?;
    let broker = zookeeper.start_accepting(&site)?;
    Raw::connect(&broker.address)?.put("test", 0, b"served at once")?.stored()?;
    zookeeper.wait_registered(&site, &broker)?;
    // It is ours now: the end of the dead session (30 s) is not waited for, and takes nothing away.
    assert!(broker.stop()?.success());
    let gone = zookeeper.look(&site)?;
    assert!(gone.brokers.values().all(|b| b.master.is_none()), "{gone:?}");
    Ok(())
}

/// F38: a living other broker with the same id is not displaced; the newcomer ends and names both addresses.
#[test]
fn f38_a_second_master_with_the_same_id_refuses() -> Result<()> {
    let zookeeper = Registered::start()?;
    let (first_site, second_site) = (zookeeper.site()?, zookeeper.site()?);
    let first = first_site.start_master(&[])?;
    zookeeper.wait_registered(&first_site, &first)?;
    second_site.write_ini()?;
    let mut second = Broker::spawn(&second_site, "metaq-master", &[])?;
    let own = second.wait_for_line("advertised address uri=")?;
    let own = own.split('"').nth(1).expect("the line has the address").to_owned();
    assert_eq!(second.wait_exit()?.code(), Some(1));
    let line = second.wait_for_line("another broker with our brokerId")?;
    assert!(line.contains(&first.address) && line.contains(&own), "{line}");
    zookeeper.wait_registered(&first_site, &first)?;
    Ok(())
}

/// The whole ensemble lost its memory: everything stands again, and messages went on for as long as the lease allowed.
#[test]
fn a_wiped_ensemble_is_repaired_while_the_data_plane_goes_on() -> Result<()> {
    let mut zookeeper = Registered::start()?;
    let site = zookeeper.site()?;
    let broker = site.start_master(&[])?;
    zookeeper.wait_registered(&site, &broker)?;
    let mut raw = Raw::connect(&broker.address)?;
    zookeeper.zookeeper.kill();
    raw.put("test", 0, b"without zookeeper")?.stored()?;
    zookeeper.zookeeper.wipe()?;
    zookeeper.wait_registered(&site, &broker)?;
    // Where the ensemble was away for longer than the lease, that is taken again beside the registration.
    wait_until("messages to be taken again", || Ok(raw.put("test", 0, b"and with it")?.stored().ok()))?;
    Ok(())
}

/// The same when it was away for longer than the lease: the reign is put back as well, or nothing were taken until a restart.
#[test]
fn an_ensemble_that_was_away_for_long_and_wiped_is_repaired() -> Result<()> {
    let mut zookeeper = Registered::start()?;
    let mut site = zookeeper.site()?;
    site.set_zookeeper("zk.zkSessionTimeoutMs", "1500");
    let mut broker = site.start_master(&[])?;
    zookeeper.wait_registered(&site, &broker)?;
    let mut raw = Raw::connect(&broker.address)?;
    raw.put("test", 0, b"before")?.stored()?;
    zookeeper.zookeeper.kill();
    wait_until("the lease to run out", || {
        Ok(raw.put("test", 0, b"on the lease")?.text().contains("has lost ZooKeeper").then_some(()))
    })?;
    zookeeper.zookeeper.wipe()?;
    zookeeper.wait_registered(&site, &broker)?;
    wait_until("messages to be taken again", || Ok(raw.put("test", 0, b"after")?.stored().ok()))?;
    broker.wait_for_line("the fence is there again")?;
    Ok(())
}

/// A reload takes a good file over whole, publishes the checksum last, and refuses a bad one whole.
#[test]
fn reload_is_all_or_nothing_and_published() -> Result<()> {
    let zookeeper = Registered::start()?;
    let mut site = zookeeper.site()?;
    let mut broker = site.start_master(&[])?;
    zookeeper.wait_registered(&site, &broker)?;
    let id = BrokerId::new(0)?;
    let before = zookeeper.look(&site)?.brokers[&id].checksum;
    let mut raw = Raw::connect(&broker.address)?;
    raw.put("test", 0, b"x")?.stored()?;

    site.topic("good", &[]).topic("bad", &[("numPartitons", "3")]).write_ini()?;
    broker.signal(Signal::HUP)?;
    let line = broker.wait_for_line("numPartitons")?;
    assert!(line.contains("server.ini:") && line.contains("numPartitions"), "file, line and the near name: {line}");
    broker.wait_for_line("reload refused")?;
    assert!(raw.put("good", 0, b"x")?.text().contains("The server do not accept topic good"));

    site.remove_topic("bad").topic("test", &[("numPartitions", "3")]).write_ini()?;
    broker.signal(Signal::HUP)?;
    broker.wait_for_line("reload done")?;
    raw.put("good", 0, b"x")?.stored()?;
    raw.put("test", 2, b"x")?.stored()?;
    let checksum = BrokerConfig::load(&site.ini_path())?.checksum;
    zookeeper.wait_for("the new topics and the checksum", &site, |cluster| {
        let published = |topic: &str| cluster.topics.get(topic)?.publish.get(&(id, Role::Master)).copied();
        (published("good") == Some(1)
            && published("test") == Some(3)
            && cluster.brokers[&id].checksum == Some(checksum))
        .then_some(())
    })?;
    assert_ne!(before, Some(checksum));

    // Removed: out of the registry at once, served for zkSyncTimeMs, then 403.
    site.remove_topic("good").write_ini()?;
    broker.signal(Signal::HUP)?;
    zookeeper.wait_for("the topic to be gone", &site, |cluster| {
        cluster.topics.get("good").is_none_or(|t| t.publish.is_empty()).then_some(())
    })?;
    wait_until("puts to be refused", || Ok((raw.put("good", 0, b"late")?.code == 403).then_some(())))?;
    raw.put("test", 0, b"others go on")?.stored()?;
    Ok(())
}

/// A topic that only a pattern admits is registered by its first put.
#[test]
fn a_topic_made_by_a_pattern_is_registered_at_its_first_put() -> Result<()> {
    let zookeeper = Registered::start()?;
    let mut site = zookeeper.site()?;
    site.topic("app-*", &[("numPartitions", "2")]);
    let mut broker = site.start_master(&[])?;
    zookeeper.wait_registered(&site, &broker)?;
    Raw::connect(&broker.address)?.put("app-one", 1, b"x")?.stored()?;
    zookeeper.wait_for("app-one", &site, |cluster| {
        (cluster.topics.get("app-one")?.subscribe.values().next() == Some(&2)).then_some(())
    })?;
    // ZooKeeper cannot hold every name that UTF-8 can.
    Raw::connect(&broker.address)?.put("app-😀", 1, b"x")?.stored()?;
    let line = broker.wait_for_line("zookeeper takes no such name")?;
    assert!(line.contains("app-😀") && line.contains("call it otherwise"), "{line}");
    Ok(())
}

/// Without a ZooKeeper the broker serves reads, says why it takes no messages, and takes them when it is confirmed.
#[test]
fn a_broker_serves_reads_before_zookeeper_is_there() -> Result<()> {
    let mut zookeeper = Registered::start()?;
    let site = zookeeper.site()?;
    let broker = zookeeper.start_accepting(&site)?;
    Raw::connect(&broker.address)?.put("test", 0, b"x")?.stored()?;
    assert!(broker.stop()?.success());
    zookeeper.zookeeper.kill();
    site.write_ini()?;
    let mut broker = Broker::spawn(&site, "metaq-master", &[])?;
    let line = broker.wait_for_line("serving reads")?;
    let address = line.split("meta://").nth(1).expect("the line has the address").trim_end_matches('"').to_owned();
    let mut raw = Raw::connect(&address)?;
    assert_eq!(raw.read_all("test", 0, 0)?.len(), 1);
    let reply = raw.put("test", 0, b"y")?;
    assert_eq!(reply.code, 503);
    assert!(reply.text().contains("ZooKeeper"), "{}", reply.text());
    zookeeper.zookeeper.run()?;
    broker.wait_for_line("accepting messages")?;
    raw.put("test", 0, b"y")?.stored()?;
    Ok(())
}

/// A producer that is refused while ZooKeeper does not answer is told which ZooKeeper that is.
#[test]
fn a_put_before_zookeeper_answers_names_it() -> Result<()> {
    let mut site = Site::new()?;
    let nowhere = free_address()?.to_string();
    site.set_zookeeper("zk.zkEnable", "true").set_zookeeper("zk.zkConnect", &nowhere);
    site.write_ini()?;
    let mut broker = Broker::spawn(&site, "metaq-master", &[])?;
    let line = broker.wait_for_line("serving reads; messages are accepted")?;
    let address = line.split('"').nth(1).and_then(|uri| uri.strip_prefix("meta://")).context("no address")?;
    broker.wait_for_line("puts are refused until ZooKeeper confirms")?;
    let reply = Raw::connect(address)?.put("test", 0, b"x")?;
    assert_eq!(reply.code, 503);
    for part in ["not stored", &nowhere, "try again"] {
        assert!(reply.text().contains(part), "{part}: {}", reply.text());
    }
    Ok(())
}

/// So is one beside somebody who is registered, does not answer, and is asked again before each try.
#[test]
fn a_put_that_zookeeper_gives_no_rights_for_says_so_whoever_is_registered() -> Result<()> {
    let zookeeper = Registered::start()?;
    let site = zookeeper.site()?;
    // The socket of a frozen master takes connections as well.
    let frozen = TcpListener::bind("127.0.0.1:0")?;
    let holder = format!("meta://{}", frozen.local_addr()?);
    let client = zookeeper.runtime.block_on(Client::connect(&zookeeper.zookeeper.connect()))?;
    let [everybody, nobody] = [Acls::anyone_all(), Acls::anyone_read()];
    zookeeper.runtime.block_on(async {
        client.mkdir("/meta/brokers/ids/0", &CreateMode::Persistent.with_acls(everybody)).await?;
        client.mkdir("/meta/fences", &CreateMode::Persistent.with_acls(nobody)).await?;
        let seat = CreateMode::Ephemeral.with_acls(everybody);
        client.create("/meta/brokers/ids/0/master", holder.as_bytes(), &seat).await
    })?;
    site.write_ini()?;
    let mut broker = Broker::spawn(&site, "metaq-master", &[])?;
    let line = broker.wait_for_line("serving reads; messages are accepted")?;
    let address = line.split('"').nth(1).and_then(|uri| uri.strip_prefix("meta://")).context("no address")?;
    broker.wait_for_line("puts are refused until ZooKeeper confirms")?;
    let mut raw = Raw::connect(address)?;
    for part in [holder.as_str(), "setAcl -R /meta"] {
        wait_until(&format!("the refusal to say {part}"), || {
            let refused = raw.put("test", 0, b"x")?;
            ensure!(refused.code == 503, "{} {}", refused.code, refused.text());
            Ok(refused.text().contains(part).then_some(()))
        })?;
    }
    Ok(())
}

/// A master whose disk is not mounted finds an empty directory: it does not begin anew, and says what to look at.
#[test]
fn f07_a_master_whose_data_is_not_there_refuses_and_asks_for_its_disk() -> Result<()> {
    let zookeeper = Registered::start()?;
    let site = zookeeper.site()?;
    let broker = zookeeper.start_accepting(&site)?;
    Raw::connect(&broker.address)?.put("test", 0, b"x")?.stored()?;
    assert!(broker.stop()?.success());
    let away = site.path().join("not-mounted");
    std::fs::rename(site.data(), &away)?;
    let mut broker = Broker::spawn(&site, "metaq-master", &[])?;
    broker.wait_for_line("is not mounted")?;
    assert_eq!(broker.wait_exit()?.code(), Some(1));
    std::fs::remove_dir_all(site.data())?;
    std::fs::rename(&away, site.data())?;
    let broker = zookeeper.start_accepting(&site)?;
    assert_eq!(Raw::connect(&broker.address)?.read_all("test", 0, 0)?.len(), 1);
    Ok(())
}
