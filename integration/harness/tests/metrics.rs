//! Metrics, readiness and the lag of slaves, as an operator's tools see them.

use anyhow::{Context, Result, bail};
use metaq_harness::console::Console;
use metaq_harness::pair::{slave_site, start_slave, wait_level, wait_same};
use metaq_harness::process::{Broker, Site, wait_until};
use metaq_harness::raw::Raw;
use metaq_harness::zookeeper::ZooKeeper;
use rustix::process::Signal;
use std::net::{TcpListener, TcpStream};
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Producers that wait for each answer, until they are told to stop.
struct Load {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<Result<Duration>>>,
}

impl Load {
    fn start(broker: &Broker, producers: i32, bytes: usize) -> Load {
        let stop = Arc::new(AtomicBool::new(false));
        let threads = (0..producers).map(|partition| {
            let (stop, address) = (Arc::clone(&stop), broker.address.clone());
            std::thread::spawn(move || {
                let mut raw = Raw::connect(&address)?;
                let mut longest = Duration::ZERO;
                while !stop.load(Ordering::Relaxed) {
                    let sent = Instant::now();
                    raw.put("test", partition, &vec![b'x'; bytes])?.stored()?;
                    longest = longest.max(sent.elapsed());
                }
                Ok(longest)
            })
        });
        Load { threads: threads.collect(), stop }
    }

    /// The longest any put has waited.
    fn end(self) -> Result<Duration> {
        self.stop.store(true, Ordering::Relaxed);
        let mut longest = Duration::ZERO;
        for thread in self.threads {
            match thread.join() {
                Ok(waited) => longest = longest.max(waited?),
                Err(_) => bail!("a producer panicked"),
            }
        }
        Ok(longest)
    }
}

fn four_partitions(site: &mut Site) {
    site.topic("test", &[("numPartitions", "4"), ("unflushThreshold", "1000")]);
}

#[test]
fn metrics_show_what_stats_shows_and_only_on_loopback() -> Result<()> {
    let mut site = Site::new()?;
    let console = Console::on(&mut site)?;
    let master = site.start_master(&[])?;
    let mut raw = Raw::connect(&master.address)?;
    for body in [&b"one"[..], b"two", b"three"] {
        raw.put("test", 0, body)?.stored()?;
    }
    assert_eq!(raw.put("no-such-topic", 0, b"x")?.code, 500);
    raw.get("test", 0, 0, 1024)?;
    let metrics = console.metrics()?;
    let stats = raw.ask("stats")?.text();
    for (series, line) in [
        ("metaq_broker_puts_total", "cmd_put"),
        ("metaq_broker_gets_total", "cmd_get"),
        ("metaq_broker_failed_puts_total", "put_failed"),
        ("metaq_broker_connections", "curr_connections"),
        ("metaq_txn_begins_total", "tx_begin"),
    ] {
        let told = stats.lines().find_map(|it| it.strip_prefix(line)?.trim().parse::<f64>().ok()).context(line)?;
        assert_eq!(metrics.at(series)?, told, "{series}");
    }
    assert_eq!(metrics.at("metaq_store_appended_records_total")?, 3.0);
    assert_eq!(metrics.at("metaq_store_partitions")?, 1.0);
    assert_eq!(metrics.at("metaq_broker_ready")?, 1.0);
    assert_eq!(metrics.at("metaq_broker_accepting")?, 1.0);
    assert!(metrics.at("metaq_store_syncs_total")? >= 1.0);
    assert!(
        metrics.names().any(|series| series.starts_with("metaq_broker_info{") && series.contains("role=\"master\""))
    );

    assert_eq!(console.ask("GET /healthz")?, (200, "ok\n".to_owned()));
    assert!(console.ask("GET /")?.1.contains("/readyz"));
    assert_eq!(console.ask("GET /no-such-page")?.0, 404);
    assert_eq!(console.ask("POST /readyz")?.0, 405);
    // Another address of this machine: it would answer if it listened everywhere.
    assert!(TcpStream::connect(("127.0.0.2", console.port)).is_err());
    Ok(())
}

#[test]
fn a_port_that_is_taken_keeps_nobody_from_serving() -> Result<()> {
    let mut site = Site::new()?;
    let console = Console::on(&mut site)?;
    let other = TcpListener::bind(("127.0.0.1", console.port))?;
    let mut master = site.start_master(&[])?;
    Raw::connect(&master.address)?.put("test", 0, b"x")?.stored()?;
    master.wait_for_line("no metrics: cannot listen")?;
    drop(other);
    console.wait_ready()
}

#[test]
fn a_master_without_zookeeper_is_not_ready_and_says_why() -> Result<()> {
    let mut zookeeper = ZooKeeper::start()?;
    let mut site = Site::new()?;
    site.set_zookeeper("zk.zkEnable", "true").set_zookeeper("zk.zkConnect", &zookeeper.connect());
    site.set_zookeeper("zk.zkSessionTimeoutMs", "2000");
    let console = Console::on(&mut site)?;
    let _master = site.start_master(&[])?;
    console.wait_ready()?;
    assert_eq!(console.metrics()?.at("metaq_registry_registered")?, 1.0);
    zookeeper.kill();
    console.wait_reason("not_registered")?;
    console.wait_reason("gate_shut")?;
    assert_eq!(console.metrics()?.at("metaq_broker_not_ready{reason=\"gate_shut\"}")?, 1.0);
    assert_eq!(console.ask("GET /healthz")?.0, 200);
    zookeeper.run()?;
    console.wait_ready()
}

#[test]
fn the_lag_of_a_frozen_slave_appears_and_goes() -> Result<()> {
    let mut site = Site::new()?;
    four_partitions(&mut site);
    let console = Console::on(&mut site)?;
    let mut slaves = slave_site(four_partitions)?;
    let slave_console = Console::on(&mut slaves)?;
    let mut master = site.start_master(&[])?;
    let mut raw = Raw::connect(&master.address)?;
    raw.put("test", 0, b"first")?.stored()?;
    let slave = start_slave(&slaves, 0, &master)?;
    wait_level(&master, &slave, "test", 1)?;
    console.wait_standing("following")?;
    slave_console.wait_ready()?;
    wait_until("no lag", || Ok((console.metrics()?.lag(0)?.0 == 0.0).then_some(())))?;

    slave.signal(Signal::STOP)?;
    for _ in 0..20 {
        raw.put("test", 0, &[b'y'; 500])?.stored()?;
    }
    // Read once more, so that what was written is synced and with that the master's end.
    wait_until("the lag", || {
        raw.get("test", 0, i64::MAX, 1024)?;
        let (bytes, messages, _) = console.metrics()?.lag(0)?;
        Ok((bytes == 20.0 * 520.0 && messages == Some(20.0)).then_some(()))
    })?;
    console.wait_standing("lagging")?;
    master.wait_for_line("the slave is lagging")?;
    let (status, _, notes) = console.ready()?;
    assert_eq!((status, notes), (200, vec!["slave_lagging".to_owned()]), "a master serves without its slaves");
    assert!(console.metrics()?.lag(0)?.2 > 0.5);

    slave.signal(Signal::CONT)?;
    console.wait_standing("following")?;
    master.wait_for_line("the slave keeps up again")?;
    wait_until("no lag", || {
        let (bytes, _, seconds) = console.metrics()?.lag(0)?;
        Ok((bytes == 0.0 && seconds == 0.0).then_some(()))
    })?;
    assert_eq!(console.metrics()?.at("metaq_broker_throttled_puts_total")?, 0.0, "only reported, unless asked to");

    master.signal(Signal::STOP)?;
    slave_console.wait_reason("link_down")?;
    assert_eq!(slave_console.metrics()?.at("metaq_link_following")?, 0.0);
    master.signal(Signal::CONT)?;
    slave_console.wait_ready()?;
    drop(slave);
    console.wait_standing("absent")
}

#[test]
fn a_master_that_needs_its_slave_is_not_ready_without_it() -> Result<()> {
    let mut site = Site::new()?;
    site.set("ackQuorum", "2");
    let console = Console::on(&mut site)?;
    let slaves = slave_site(|site| _ = site.set("ackQuorum", "2"))?;
    let master = site.start_master(&[])?;
    console.wait_reason("quorum")?;
    assert_eq!(Raw::connect(&master.address)?.put("test", 0, b"x")?.code, 503);
    let slave = start_slave(&slaves, 0, &master)?;
    console.wait_ready()?;
    wait_until("a message to be taken", || Ok(Raw::connect(&master.address)?.put("test", 0, b"x")?.stored().ok()))?;
    drop(slave);
    console.wait_reason("quorum")?;
    let metrics = console.metrics()?;
    assert_eq!(metrics.at("metaq_broker_short_of_quorum_partitions")?, 1.0);
    assert!(metrics.at("metaq_broker_quorum_refused_puts_total")? >= 1.0);
    Ok(())
}

#[test]
fn metrics_tell_how_each_topic_stands_with_its_quorum() -> Result<()> {
    let quorum = |site: &mut Site| {
        site.set("ackQuorum", "2").set("ackTimeoutInMills", "1500").topic("alone", &[("ackQuorum", "1")]);
    };
    let mut site = Site::new()?;
    quorum(&mut site);
    let console = Console::on(&mut site)?;
    let slaves = slave_site(quorum)?;
    let master = site.start_master(&[])?;
    let slave = start_slave(&slaves, 0, &master)?;
    let mut raw = Raw::connect(&master.address)?;
    wait_until("a message to be taken", || Ok(raw.put("test", 0, b"x")?.stored().ok()))?;
    raw.put("alone", 0, b"x")?.stored()?;
    let of_test = |name: &str| console.metrics()?.at(&format!("{name}{{topic=\"test\"}}"));
    assert_eq!(of_test("metaq_broker_quorum_required_members")?, 2.0);
    assert_eq!(of_test("metaq_broker_quorum_members")?, 2.0);
    assert_eq!(of_test("metaq_broker_unconfirmed_bytes")?, 0.0);
    assert_eq!(console.metrics()?.get("metaq_broker_quorum_required_members{topic=\"alone\"}"), None);
    let unconfirmed = || console.metrics()?.at("metaq_broker_unconfirmed_puts_total");
    let before = unconfirmed()?;

    slave.signal(Signal::STOP)?;
    assert_eq!(raw.put("test", 0, &[b'x'; 100])?.code, 500);
    assert_eq!(of_test("metaq_broker_quorum_members")?, 1.0);
    assert_eq!(of_test("metaq_broker_unconfirmed_bytes")?, 120.0);
    assert_eq!(unconfirmed()? - before, 1.0);
    slave.signal(Signal::CONT)?;
    wait_until("the quorum to have it", || Ok((of_test("metaq_broker_unconfirmed_bytes")? == 0.0).then_some(())))?;
    assert_eq!(of_test("metaq_broker_quorum_members")?, 2.0);
    assert_eq!(console.metrics()?.at("metaq_broker_beyond_end_claims_total")?, 0.0);
    Ok(())
}

/// A slave that is late holds producers back, for a bounded time each, until it keeps up again under their load.
#[test]
fn producers_are_held_back_until_the_slave_keeps_up() -> Result<()> {
    let mut site = Site::new()?;
    four_partitions(&mut site);
    site.set("slaveLagAction", "throttle").set("slaveMaxDelayInMills", "200");
    let console = Console::on(&mut site)?;
    let slaves = slave_site(four_partitions)?;
    let mut master = site.start_master(&[])?;
    let limits = "slaveMaxDelayInMills=200\n";
    let slave = start_limited_slave(&slaves, &master, limits)?;
    let load = Load::start(&master, 4, 1000);
    wait_until("the slave to ask", || Ok(console.metrics()?.lag(3).ok()))?;
    console.wait_standing("following")?;
    // Frozen while it asks for something the slave is late; frozen between two questions it is merely silent, which is no
    // reason to hold anybody back. So it is frozen again until it was asking.
    wait_until("a slave that is frozen while it asks", || {
        slave.signal(Signal::STOP)?;
        let held = console.is_held_back_within(Duration::from_secs(2))?;
        if !held {
            slave.signal(Signal::CONT)?;
            console.wait_standing("following")?;
        }
        Ok(held.then_some(()))
    })?;
    master.wait_for_line("producers are held back")?;
    slave.signal(Signal::CONT)?;
    wait_until("the slave to keep up under load", || {
        let metrics = console.metrics()?;
        let following = metrics.at("metaq_link_slave_standing{slave=\"0\",standing=\"following\"}")? == 1.0;
        Ok((following && metrics.at("metaq_broker_throttled_puts_total")? > 0.0).then_some(()))
    })?;
    let longest = load.end()?;
    assert!(longest < Duration::from_secs(3), "a put waited for {longest:?}");
    assert!(console.metrics()?.at("metaq_broker_throttled_seconds_total")? > 0.0);
    wait_until("nobody to be held back", || {
        Ok((console.metrics()?.at("metaq_broker_throttle_delay_seconds")? == 0.0).then_some(()))
    })?;
    master.wait_for_line("producers are no longer held back")?;
    wait_same(&site.data(), &slaves.data())
}

#[test]
fn a_catch_up_is_limited_and_shows_how_far_it_is() -> Result<()> {
    let mut site = Site::new()?;
    four_partitions(&mut site);
    let console = Console::on(&mut site)?;
    let mut slaves = slave_site(four_partitions)?;
    let slave_console = Console::on(&mut slaves)?;
    let mut master = site.start_master(&[])?;
    let mut raw = Raw::connect(&master.address)?;
    for message in 0..60 {
        raw.put("test", message % 4, &[b'z'; 100_000])?.stored()?;
    }
    for partition in 0..4 {
        raw.get("test", partition, 0, 1024)?;
    }
    let began = Instant::now();
    let slave = start_limited_slave(&slaves, &master, "slaveCatchUpBytesPerSecond=1500000\n")?;
    console.wait_standing("catching-up")?;
    slave_console.wait_reason("lagging")?;
    let left = wait_until("an estimate", || {
        let metrics = slave_console.metrics()?;
        let left = metrics.get("metaq_link_left_seconds").filter(|left| *left > 0.0);
        Ok(left.map(|_| metrics.at("metaq_link_left_bytes")))
    })??;
    assert!(left > 0.0 && left < 6_100_000.0, "{left}");
    let progress = Raw::connect(&slave.address)?.ask("stats replication")?.text();
    assert!(progress.contains("\r\nprogress copied_bytes "), "{progress}");
    slave_console.wait_ready()?;
    assert!(began.elapsed() > Duration::from_secs(2), "6 MB at 1.5 MB/s took {:?}", began.elapsed());
    console.wait_standing("following")?;
    master.wait_for_line("the slave has caught up")?;
    assert_eq!(slave_console.metrics()?.at("metaq_link_left_bytes")?, 0.0);
    wait_same(&site.data(), &slaves.data())
}

fn start_limited_slave(site: &Site, master: &Broker, properties: &str) -> Result<Broker> {
    let path = site.path().join("slave.properties");
    std::fs::write(&path, properties)?;
    let path = path.display().to_string();
    site.start_slave(&["--slave-id", "0", "--master", &master.address, "--slave-config", &path])
}

/// F56: what is none of ours in a data path is named and passed over; what is called as a partition is missed.
#[test]
fn f56_foreign_directories_are_named_and_do_not_make_a_node_unready() -> Result<()> {
    let mut site = Site::new()?;
    site.set("numPartitions", "2");
    let console = Console::on(&mut site)?;
    let broker = site.start_master(&[])?;
    Raw::connect(&broker.address)?.put("test", 0, b"x")?.stored()?;
    assert!(broker.stop()?.success());
    let names = ["foo-bar", "test-0.bak", "test-", "-", "test--1x", "test-007"];
    for name in names.iter().chain(&["lost+found", "nodash"]) {
        std::fs::create_dir(site.data().join(name))?;
    }
    std::fs::create_dir(site.data().join(std::ffi::OsStr::from_bytes(b"t\xff-0")))?;
    std::fs::write(site.data().join("file-x"), "x")?;
    // Of partitions that the configuration does not have: a core dump, and one more than the topic's two.
    for name in ["core-1234", "test-2"] {
        std::fs::write(site.data().join(name), "x")?;
    }
    let broker = site.start_master(&[])?;
    console.wait_ready()?;
    let (_, body) = console.ask("GET /readyz")?;
    assert!(body.contains("passed_over") && body.contains("/foo-bar"), "{body}");
    let log = broker.log_text();
    for name in names.into_iter().chain(["core-1234", "test-2"]) {
        let path = format!("{} ", site.data().join(name).display());
        assert_eq!(log.lines().filter(|line| line.contains(&path)).count(), 1, "{name}: {log}");
    }
    assert!(log.contains("failed=0 passed_over=9"), "{log}");
    assert_eq!(Raw::connect(&broker.address)?.read_all("test", 0, 0)?.len(), 1);
    assert!(broker.stop()?.success());
    std::fs::create_dir(site.data().join("test-1"))?;
    std::fs::write(site.data().join("test-1/what.meta"), "x")?;
    let broker = site.start_master(&[])?;
    console.wait_reason("not_served")?;
    assert!(broker.stop()?.success());
    std::fs::remove_dir_all(site.data().join("test-1"))?;
    a_file_in_the_place_of_a_partition_is_told(&mut site, &console, "test-1")?;
    std::fs::create_dir(site.data().join("test-1"))?;
    a_file_in_the_place_of_a_partition_is_told(&mut site, &console, "test-1/00000000000000000000.meta")
}

/// A file where there should be a directory, and a fifo where there should be a file.
fn a_file_in_the_place_of_a_partition_is_told(site: &mut Site, console: &Console, name: &str) -> Result<()> {
    let path = site.data().join(name);
    match path.extension() {
        None => std::fs::write(&path, "x")?,
        Some(_) => {
            use rustix::fs::{CWD, FileType, Mode, mknodat};
            mknodat(CWD, &path, FileType::Fifo, Mode::from_raw_mode(0o600), 0)?;
        }
    }
    let broker = site.start_master(&[])?;
    console.wait_reason("not_served")?;
    let shown = path.display().to_string();
    let log = broker.log_text();
    assert_eq!(log.lines().filter(|line| line.contains(&shown)).count(), 1, "{log}");
    let mut client = Raw::connect(&broker.address)?;
    let put = client.put("test", 1, b"x")?;
    assert_eq!((put.code, put.text().contains(&shown)), (500, true), "{}", put.text());
    assert_eq!(client.put("test", 0, b"x")?.stored()?.partition, 0);
    assert!(broker.stop()?.success());
    std::fs::remove_file(path)?;
    Ok(())
}

/// Those who connect to the console and say nothing keep nobody from asking whether the node is ready.
#[test]
fn idle_connections_do_not_keep_the_console_from_answering() -> Result<()> {
    let mut site = Site::new()?;
    let console = Console::on(&mut site)?;
    let _broker = site.start_master(&[])?;
    console.wait_ready()?;
    let idle = (0..300).map(|_| TcpStream::connect(("127.0.0.1", console.port)));
    let _idle = idle.collect::<std::io::Result<Vec<_>>>()?;
    let asked = Instant::now();
    assert_eq!(console.ask("GET /readyz")?.0, 200);
    assert!(asked.elapsed() < Duration::from_secs(5), "{:?}", asked.elapsed());
    Ok(())
}
