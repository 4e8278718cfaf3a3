//! Who reigns, and how a node comes back: F07, F10, and the rows of `replication` C that are about two masters.

use anyhow::{Result, ensure};
use metaq_harness::pair::{assert_same, start_slave, wait_level};
use metaq_harness::process::{Broker, Site, wait_until};
use metaq_harness::raw::{Raw, Stored};
use metaq_harness::zookeeper::ZooKeeper;
use rustix::process::Signal;
use std::fs;

fn topics(site: &mut Site) {
    site.set("maxSegmentSize", "16*1024");
    site.topic("test", &[("numPartitions", "2")]);
}

fn site() -> Result<Site> {
    let mut site = Site::new()?;
    topics(&mut site);
    Ok(site)
}

fn put_many(broker: &Broker, count: usize, fill: u8) -> Result<Vec<Stored>> {
    let mut raw = Raw::connect(&broker.address)?;
    (0..count).map(|i| raw.put("test", (i % 2) as i32, &vec![fill; 100 + i % 400])?.stored()).collect()
}

fn set_aside(site: &Site) -> Result<usize> {
    let mut count = 0;
    for partition in ["test-0", "test-1"] {
        for entry in fs::read_dir(site.data().join(partition))? {
            count += usize::from(entry?.file_name().to_string_lossy().contains(".diverged-"));
        }
    }
    Ok(count)
}

/// The old master's tail that no slave had: set aside, counted, cut; then it is a slave like any other.
#[test]
fn an_old_master_comes_back_as_a_slave() -> Result<()> {
    let (a, b) = (site()?, site()?);
    let master = a.start_master(&[])?;
    let slave = start_slave(&b, 0, &master)?;
    put_many(&master, 100, b'a')?;
    wait_level(&master, &slave, "test", 2)?;
    slave.signal(Signal::STOP)?;
    put_many(&master, 50, b'b')?;
    master.kill()?;
    slave.signal(Signal::CONT)?;
    assert!(slave.stop()?.success());
    let promoted = b.start_slave(&[])?;
    put_many(&promoted, 80, b'c')?;

    let mut back = start_slave(&a, 0, &promoted)?;
    wait_level(&promoted, &back, "test", 2)?;
    assert_same(&b.data(), &a.data())?;
    assert!(set_aside(&a)? >= 2, "both partitions had a tail");
    let line = back.wait_for_line("set aside and cut")?;
    assert!(line.contains("bytes=") && line.contains(".diverged-1"), "{line}");
    // And the other way round again, with nothing to cut.
    put_many(&promoted, 30, b'd')?;
    wait_level(&promoted, &back, "test", 2)?;
    assert!(promoted.stop()?.success());
    assert!(back.stop()?.success());
    let again = a.start_master(&[])?;
    let follower = start_slave(&b, 0, &again)?;
    put_many(&again, 30, b'e')?;
    wait_level(&again, &follower, "test", 2)?;
    assert_same(&a.data(), &b.data())?;
    assert_eq!(set_aside(&b)?, 0);
    Ok(())
}

/// F10: a master restored from an older copy has less than its slave: nothing is cut, the state is named, the lag is no
/// negative number, and other partitions go on.
#[test]
fn f10_a_restored_master_stops_the_partitions_concerned() -> Result<()> {
    let (a, b) = (site()?, site()?);
    let master = a.start_master(&[])?;
    let slave = start_slave(&b, 0, &master)?;
    put_many(&master, 20, b'a')?;
    wait_level(&master, &slave, "test", 2)?;
    assert!(master.stop()?.success());
    let partition = a.data().join("test-0");
    let copy = a.path().join("copy");
    fs::create_dir(&copy)?;
    for entry in fs::read_dir(&partition)? {
        let entry = entry?;
        fs::copy(entry.path(), copy.join(entry.file_name()))?;
    }
    let master = a.start_master(&[])?;
    drop(slave);
    let slave = start_slave(&b, 0, &master)?;
    put_many(&master, 40, b'b')?;
    wait_level(&master, &slave, "test", 2)?;
    master.kill()?;
    // Restore partition 0 from the copy; partition 1 keeps what it has.
    fs::remove_dir_all(&partition)?;
    fs::rename(&copy, &partition)?;
    let before = fs::metadata(b.data().join("test-0/00000000000000000000.meta"))?.len();
    drop(slave);
    let master = a.start_master(&[])?;
    let slave = start_slave(&b, 0, &master)?;
    let mut raw = Raw::connect(&slave.address)?;
    let line = wait_until("the slave to say that it is ahead", || {
        let text = raw.ask("stats replication")?.text();
        Ok(text.lines().find(|l| l.starts_with("copy test 0 ") && l.contains("diverged")).map(str::to_owned))
    })?;
    assert!(line.contains("own_end"), "{line}");
    let mut producer = Raw::connect(&master.address)?;
    producer.put("test", 1, b"others go on")?.stored()?;
    let end = producer.end("test", 1)?;
    wait_until("partition 1 to be followed", || Ok((raw.end("test", 1)? == end).then_some(())))?;
    assert_eq!(fs::metadata(b.data().join("test-0/00000000000000000000.meta"))?.len(), before, "nothing was cut");
    let lag = producer.ask("stats replicas")?.text();
    assert!(!lag.contains("lag_bytes -"), "{lag}");
    drop((raw, slave));

    // What a person has decided: set aside, cut, and go on.
    let slave = b.start_slave(&["--slave-id", "0", "--master", &master.address, "--accept-divergence"])?;
    wait_level(&master, &slave, "test", 2)?;
    assert_same(&a.data(), &b.data())?;
    assert!(set_aside(&b)? >= 1);
    Ok(())
}

/// A topic whose files go on the master only, between two runs, comes again on its slave as well: the slave keeps what it
/// has, and goes on behind it.
#[test]
fn a_topic_that_only_the_master_removed_goes_on_at_its_slave() -> Result<()> {
    let (a, b) = (site()?, site()?);
    let master = a.start_master(&[])?;
    let slave = start_slave(&b, 0, &master)?;
    put_many(&master, 40, b'a')?;
    wait_level(&master, &slave, "test", 2)?;
    assert!(slave.stop()?.success());
    assert!(master.stop()?.success());
    for partition in ["test-0", "test-1"] {
        fs::remove_dir_all(a.data().join(partition))?;
    }
    let master = a.start_master(&[])?;
    let slave = start_slave(&b, 0, &master)?;
    let again = put_many(&master, 40, b'b')?;
    wait_level(&master, &slave, "test", 2)?;
    let mut raw = Raw::connect(&slave.address)?;
    let text = raw.ask("stats replication")?.text();
    assert!(!text.contains("diverged") && !text.contains("gap"), "{text}");
    assert_eq!((raw.read_all("test", 0, 0)?.len(), raw.read_all("test", 1, 0)?.len()), (40, 40), "old and new");
    assert!(again[0].offset > 0 && raw.get("test", 0, again[0].offset as i64, 1024)?.code == 200);
    assert_eq!(set_aside(&b)?, 0);
    Ok(())
}

/// A directory with another past is not touched.
#[test]
fn a_foreign_directory_is_left_alone() -> Result<()> {
    let (a, b) = (site()?, site()?);
    let master = a.start_master(&[])?;
    put_many(&master, 10, b'a')?;
    let other = b.start_master(&[])?;
    put_many(&other, 30, b'b')?;
    assert!(other.stop()?.success());
    let mut slave = start_slave(&b, 0, &master)?;
    let line = slave.wait_for_line("foreign")?;
    assert!(line.contains("brokerId"), "says what to do: {line}");
    assert_eq!(Raw::connect(&slave.address)?.read_all("test", 0, 0)?.len(), 15, "and still serves what it has");
    assert_eq!(set_aside(&b)?, 0);
    Ok(())
}

/// A slave of another broker id copies nothing, however new it is, and what it knows of reigns ends none here.
#[test]
fn a_slave_of_another_broker_is_refused() -> Result<()> {
    let (a, mut b) = (site()?, site()?);
    let master = a.start_master(&[])?;
    put_many(&master, 10, b'a')?;
    b.set("brokerId", "1");
    // Its own past has more reigns than the master's.
    for _ in 0..3 {
        assert!(b.start_master(&[])?.stop()?.success());
    }
    let mut slave = start_slave(&b, 0, &master)?;
    let line = slave.wait_for_line("this is broker 0")?;
    assert!(line.contains("slave 0 of broker 1") && line.contains("brokerId") && line.contains("--master"), "{line}");
    assert!(Raw::connect(&slave.address)?.read_all("test", 0, 0)?.is_empty());
    put_many(&master, 10, b'b')?;
    let status = Raw::connect(&master.address)?.ask("stats replicas 1")?.text();
    assert!(!status.contains("slave 0"), "it is none of ours: {status}");
    Ok(())
}

/// A slave that was away while its master's oldest segments went: the log goes on behind the gap, which is shown, and a
/// promotion wants it accepted by name.
#[test]
fn a_gap_is_shown_and_has_to_be_accepted() -> Result<()> {
    let (a, b) = (site()?, site()?);
    let master = a.start_master(&[])?;
    let slave = start_slave(&b, 0, &master)?;
    put_many(&master, 20, b'a')?;
    wait_level(&master, &slave, "test", 2)?;
    drop(slave);
    put_many(&master, 400, b'b')?;
    assert!(master.stop()?.success());
    let partition = a.data().join("test-0");
    let mut segments: Vec<_> = fs::read_dir(&partition)?.map(|e| e.map(|e| e.path())).collect::<Result<_, _>>()?;
    segments.sort();
    for old in &segments[..2] {
        fs::remove_file(old)?;
    }
    let master = a.start_master(&[])?;
    let slave = start_slave(&b, 0, &master)?;
    wait_level(&master, &slave, "test", 2)?;
    let text = Raw::connect(&slave.address)?.ask("stats replication")?.text();
    assert!(text.lines().any(|l| l.starts_with("copy test 0 ") && l.contains("gap")), "{text}");
    let (own, theirs) = (Raw::connect(&slave.address)?, Raw::connect(&master.address)?);
    let first = segments[2].file_name().expect("a file").to_string_lossy()[..20].parse::<u64>()?;
    let (mut own, mut theirs) = (own, theirs);
    assert_eq!(own.read_all("test", 0, first)?, theirs.read_all("test", 0, first)?);
    assert_eq!(own.get("test", 0, first as i64 - 1, 1024)?.text(), first.to_string(), "readers are led across");
    master.kill()?;
    assert!(slave.stop()?.success());
    let mut refused = Broker::spawn(&b, "metaq-slave", &[])?;
    assert_eq!(refused.wait_exit()?.code(), Some(1));
    assert!(refused.log_text().contains("--accept-gap"), "{}", refused.log_text());
    b.start_slave(&["--accept-gap"])?;
    Ok(())
}

fn registered(zookeeper: &ZooKeeper, session_ms: u32) -> Result<Site> {
    let mut site = site()?;
    site.set_zookeeper("zk.zkEnable", "true");
    site.set_zookeeper("zk.zkConnect", &zookeeper.connect());
    site.set_zookeeper("zk.zkSessionTimeoutMs", &session_ms.to_string());
    Ok(site)
}

/// F07: the old master, started again with its old configuration, does not serve and says who replaced it.
#[test]
fn f07_an_old_master_with_its_old_configuration_refuses() -> Result<()> {
    let zookeeper = ZooKeeper::start()?;
    let (a, b) = (registered(&zookeeper, 2000)?, registered(&zookeeper, 2000)?);
    let mut master = a.start_master(&[])?;
    master.wait_for_line("accepting messages")?;
    let mut slave = b.start_slave(&["--slave-id", "0"])?;
    slave.wait_for_line("following the master")?;
    put_many(&master, 50, b'a')?;
    wait_level(&master, &slave, "test", 2)?;
    master.kill()?;
    assert!(slave.stop()?.success());
    let mut promoted = b.start_slave(&[])?;
    promoted.wait_for_line("accepting messages")?;
    put_many(&promoted, 50, b'b')?;

    let mut old = Broker::spawn(&a, "metaq-master", &[])?;
    assert_eq!(old.wait_exit()?.code(), Some(1));
    let log = old.log_text();
    let line = log.lines().rfind(|line| line.contains("ERROR")).expect("it says why");
    assert!(line.contains(&promoted.address) && line.contains("--slave-id"), "{line}");
    // As its slave it is welcome.
    let back = a.start_slave(&["--slave-id", "1"])?;
    wait_level(&promoted, &back, "test", 2)?;
    assert_same(&b.data(), &a.data())
}

/// A master that was stopped (SIGSTOP) while another was promoted acknowledges nothing when it wakes.
#[test]
fn a_master_that_slept_through_a_promotion_acknowledges_nothing() -> Result<()> {
    let zookeeper = ZooKeeper::start()?;
    let (a, b) = (registered(&zookeeper, 2000)?, registered(&zookeeper, 2000)?);
    let mut master = a.start_master(&[])?;
    master.wait_for_line("accepting messages")?;
    let mut slave = b.start_slave(&["--slave-id", "0"])?;
    slave.wait_for_line("following the master")?;
    let mut producer = Raw::connect(&master.address)?;
    producer.put("test", 0, b"before")?.stored()?;
    wait_level(&master, &slave, "test", 1)?;
    master.signal(Signal::STOP)?;
    assert!(slave.stop()?.success());
    let mut promoted = b.start_slave(&[])?;
    let mut early = Raw::connect(&promoted.address)?;
    wait_until("producers to be told for whom the new master waits", || {
        let refused = early.put("test", 0, b"too early")?;
        ensure!(refused.code == 503, "{} {}", refused.code, refused.text());
        Ok(refused.text().contains(&master.address).then_some(()))
    })?;
    promoted.wait_for_line("accepting messages")?;
    put_many(&promoted, 10, b'b')?;
    // Sent before it wakes: the first thing it reads.
    producer.send(b"put test 0 4 0 -1 77\r\nlate")?;
    master.signal(Signal::CONT)?;
    if let Ok(reply) = producer.reply() {
        assert_ne!(reply.code, 200, "{}", reply.text());
    }
    assert_eq!(master.wait_exit()?.code(), Some(1), "and it ends");
    assert!(master.log_text().contains("another master has begun to reign"), "{}", master.log_text());
    Ok(())
}

/// A master that loses ZooKeeper longer than its lease refuses puts, goes on with reads, and is back afterwards.
#[test]
fn a_master_without_zookeeper_stops_acknowledging_in_time() -> Result<()> {
    let mut zookeeper = ZooKeeper::start()?;
    let a = registered(&zookeeper, 2000)?;
    let mut master = a.start_master(&[])?;
    master.wait_for_line("accepting messages")?;
    let mut raw = Raw::connect(&master.address)?;
    raw.put("test", 0, b"before")?.stored()?;
    zookeeper.kill();
    wait_until("puts to be refused", || {
        let reply = raw.put("test", 0, b"x")?;
        // One that was taken while the lease lasted, and synced when it had run out, is not acknowledged either.
        assert!(reply.code == 200 || reply.text().contains("ZooKeeper"), "{} {}", reply.code, reply.text());
        Ok((reply.code == 503).then_some(()))
    })?;
    assert!(!raw.read_all("test", 0, 0)?.is_empty());
    master.wait_for_line("accepting no messages: ZooKeeper was not heard of for too long")?;
    zookeeper.run()?;
    wait_until("puts to be accepted again", || Ok((raw.put("test", 0, b"y")?.code == 200).then_some(())))?;
    wait_until("its log to say so", || Ok((master.log_text().matches("accepting messages").count() > 1).then_some(())))
}

/// Two slaves promoted at once: one reigns, the other ends and says who won.
#[test]
fn of_two_promotions_one_wins() -> Result<()> {
    let zookeeper = ZooKeeper::start()?;
    let (a, b, c) = (registered(&zookeeper, 2000)?, registered(&zookeeper, 2000)?, registered(&zookeeper, 2000)?);
    let mut master = a.start_master(&[])?;
    master.wait_for_line("accepting messages")?;
    let mut slaves = [b.start_slave(&["--slave-id", "0"])?, c.start_slave(&["--slave-id", "1"])?];
    put_many(&master, 20, b'a')?;
    for slave in &mut slaves {
        slave.wait_for_line("following the master")?;
        wait_level(&master, slave, "test", 2)?;
    }
    master.kill()?;
    for slave in slaves {
        assert!(slave.stop()?.success());
    }
    let mut both = [Broker::spawn(&b, "metaq-slave", &[])?, Broker::spawn(&c, "metaq-slave", &[])?];
    let loser = wait_until("one of the two to end", || {
        for (place, broker) in both.iter_mut().enumerate() {
            if let Some(status) = broker.try_exit()? {
                return Ok(Some((place, status)));
            }
        }
        Ok(None)
    })?;
    assert_eq!(loser.1.code(), Some(1));
    both[1 - loser.0].wait_for_line("accepting messages")?;
    Ok(())
}

/// Without ZooKeeper the pair is fenced by the greeting: whoever was promoted tells the old master.
#[test]
fn a_pair_without_zookeeper_is_fenced_by_the_greeting() -> Result<()> {
    let (a, b) = (site()?, site()?);
    let mut master = a.start_master(&[])?;
    let slave = start_slave(&b, 0, &master)?;
    put_many(&master, 20, b'a')?;
    wait_level(&master, &slave, "test", 2)?;
    assert!(slave.stop()?.success());
    // Promoted although the old master lives: nothing but the greeting can tell it.
    let promoted = b.start_slave(&[])?;
    assert_eq!(master.wait_exit()?.code(), Some(1));
    let line = master.wait_for_line("another master has begun to reign in epoch 2")?;
    assert!(line.contains(&format!("meta://{}", promoted.address)) && line.contains("--master"), "{line}");
    put_many(&promoted, 5, b'b')?;
    Ok(())
}
