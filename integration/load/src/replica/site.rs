//! Masters and slaves of one run: where their binaries are, their certificates, and when a slave holds everything.

use crate::args::ReplicaArgs;
use crate::frame::{GetQuestion, RECORD_HEADER_BYTES};
use crate::get::{self, GetPlan, Records};
use crate::node::{Home, Node, Settings, scratch};
use crate::put::{self, PutOutcome, PutPlan, Until};
use crate::reader::Reader;
use anyhow::{Context, Result, ensure};
use std::collections::BTreeMap;
use std::fmt;
use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Body of every message.
pub(super) const BODY_BYTES: usize = 1024;

/// For the put that tells whether a master takes puts yet.
const READY: &str = "load-ready";

const LOOK_AGAIN: Duration = Duration::from_millis(2);

/// `slaveMaxDelayInMills` as shipped.
pub(super) const DELAY_MAX: Duration = Duration::from_millis(500);

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Transport {
    Tcp,
    Quic,
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Transport::Tcp => "tcp",
            Transport::Quic => "quic",
        })
    }
}

pub(super) struct Site<'a> {
    pub(super) args: &'a ReplicaArgs,
    certificates: TempDir,
}

/// A node with the directory it runs in; fields are dropped in this order.
pub(super) struct Member {
    pub(super) node: Node,
    pub(super) home: Home,
}

impl<'a> Site<'a> {
    pub(super) fn new(args: &'a ReplicaArgs) -> Result<Site<'a>> {
        let site = Site { args, certificates: scratch(&args.dir)? };
        site.tool(&["cert", "init", "--cluster", "load"])?;
        site.tool(&["cert", "issue", "--name", "node", "--host", "127.0.0.1"])?;
        Ok(site)
    }

    fn tool(&self, words: &[&str]) -> Result<()> {
        let binary = self.binary("metaq");
        let mut command = Command::new(&binary);
        command.args(words).arg("--dir").arg(self.certificates.path());
        let output = command.output().with_context(|| format!("cannot run {}: build it first", binary.display()))?;
        ensure!(output.status.success(), "{words:?} failed: {}", String::from_utf8_lossy(&output.stderr));
        Ok(())
    }

    pub(super) fn binary(&self, name: &str) -> PathBuf {
        self.args.bin_dir.join(name)
    }

    pub(super) fn version(&self) -> Result<String> {
        let output = Command::new(self.binary("metaq-master")).arg("--version").output()?;
        let text = String::from_utf8_lossy(&output.stdout);
        Ok(text.split_whitespace().last().unwrap_or("unknown").to_owned())
    }

    /// Every node of a transport has the same settings; what is said of topics here goes to all of them.
    pub(super) fn settings(&self, transport: Transport, topics: &str) -> Settings {
        let file = |name| self.certificates.path().join(name).display().to_string();
        let mut system = BTreeMap::from([("replicationTransport", transport.to_string())]);
        if transport == Transport::Quic {
            system.extend([
                ("tlsCertFile", file("node.pem")),
                ("tlsKeyFile", file("node.key")),
                ("tlsCaFile", file("ca.pem")),
            ]);
        }
        let topics = format!("\n[topic={READY}]\nackQuorum=1\n{topics}");
        Settings { system, zookeeper: BTreeMap::new(), topics }
    }

    pub(super) fn master(&self, settings: &Settings) -> Result<Member> {
        let home = Home::new(&self.args.dir, settings)?;
        self.start_master(home, &[])
    }

    /// Returns when it takes puts: it answers questions earlier.
    pub(super) fn start_master(&self, home: Home, arguments: &[&str]) -> Result<Member> {
        let node = home.start(&self.binary("metaq-master"), arguments)?;
        let master = Member { node, home };
        wait_for(Duration::from_secs(20), "the master to take puts", || {
            Ok(put_one(&master, READY).is_ok_and(|outcome| outcome.errors == 0))
        })?;
        Ok(master)
    }

    /// A new slave of that master.
    pub(super) fn slave(&self, settings: &Settings, id: u32, master: &Member) -> Result<Member> {
        self.slave_with(settings, id, master, "")
    }

    /// With lines of its own in `async_slave.properties`.
    pub(super) fn slave_with(&self, settings: &Settings, id: u32, master: &Member, lines: &str) -> Result<Member> {
        let home = Home::new(&self.args.dir, settings)?;
        let properties = home.path().join("async_slave.properties");
        fs::write(&properties, format!("slaveMaxDelayInMills={}\n{lines}", DELAY_MAX.as_millis()))?;
        let (id, master) = (id.to_string(), master.home.address.to_string());
        let properties = properties.display().to_string();
        let arguments = ["--slave-id", &id, "--slave-config", &properties, "--master", &master];
        let node = home.start(&self.binary("metaq-slave"), &arguments)?;
        Ok(Member { node, home })
    }

    /// Lets what was written before reach the disk, so that it does not slow what is measured next.
    pub(super) fn settle(&self) -> Result<()> {
        Ok(rustix::fs::syncfs(File::open(&self.args.dir)?)?)
    }

    /// Puts `bytes` into the topic and returns when all of them can be read.
    pub(super) fn fill(&self, master: &Member, topic: &str, partitions: u32, bytes: u64) -> Result<u64> {
        let plan = GetPlan {
            broker: master.home.address,
            topic: topic.into(),
            partitions,
            connections: 1,
            bytes_max: 1,
            records: Records::Ignored,
            warmup: Duration::ZERO,
            measured: Duration::ZERO,
        };
        let messages = get::fill(&plan, bytes, BODY_BYTES)?;
        let all = messages * (BODY_BYTES + RECORD_HEADER_BYTES) as u64;
        let mut reader = Reader::connect(master.home.address, 1024)?;
        wait_for(Duration::from_secs(60), "the master to show what was put", || {
            let mut readable = 0;
            for partition in 0..partitions {
                readable += reader.readable_end(topic, partition)?.unwrap_or(0) as u64;
            }
            Ok(readable >= all)
        })?;
        Ok(all)
    }
}

/// One message into partition 0.
pub(super) fn put_one(to: &Member, topic: &str) -> Result<PutOutcome> {
    put::run(&PutPlan {
        broker: to.home.address,
        topic: topic.into(),
        partitions: 1,
        connections: 1,
        outstanding: 1,
        body_bytes: BODY_BYTES,
        threads: 1,
        checksum: false,
        until: Until::Messages(1),
    })
}

/// Asks until it holds; says what was waited for otherwise.
pub(super) fn wait_for(patience: Duration, what: &str, mut holds: impl FnMut() -> Result<bool>) -> Result<Duration> {
    let start = Instant::now();
    while !holds()? {
        ensure!(start.elapsed() < patience, "waited {} s in vain for {what}", patience.as_secs());
        std::thread::sleep(LOOK_AGAIN);
    }
    Ok(start.elapsed())
}

/// Waits until the slave shows every partition up to where the master can be read now.
pub(super) fn wait_level(
    patience: Duration,
    master: SocketAddr,
    slave: SocketAddr,
    topic: &str,
    partitions: u32,
) -> Result<()> {
    let (mut from, mut to) = (Reader::connect(master, 1024)?, Reader::connect(slave, 1024)?);
    let ends: Result<Vec<i64>> =
        (0..partitions).map(|partition| Ok(from.readable_end(topic, partition)?.unwrap_or(0))).collect();
    let ends = ends?;
    let mut level = 0;
    wait_for(patience, &format!("the slave to hold {topic}"), || {
        // What is level stays so: nothing is put meanwhile.
        while let Some(end) = ends.get(level) {
            let partition = level as u32;
            let offset = to.readable_end(topic, partition)?.unwrap_or(0);
            if offset < *end {
                // Whoever asks for what is written and not synced yet has it synced.
                let question = GetQuestion { topic, group: "load", partition, offset, bytes_max: 1, wait_ms: None };
                to.get(&question)?;
                return Ok(false);
            }
            level += 1;
        }
        Ok(true)
    })?;
    Ok(())
}

/// Mean time of a node's syncs between two looks at its metrics.
#[derive(Debug, Clone, Copy)]
pub(super) struct Syncs {
    count: f64,
    seconds: f64,
}

impl Syncs {
    pub(super) fn look(member: &Member) -> Result<Syncs> {
        let mut stream = TcpStream::connect(member.home.console)?;
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: load\r\nConnection: close\r\n\r\n")?;
        let mut text = String::new();
        stream.read_to_string(&mut text)?;
        let value = |name: &str| -> Result<f64> {
            let line = text.lines().find_map(|line| line.strip_prefix(name)).with_context(|| format!("no {name}"))?;
            Ok(line.trim().parse()?)
        };
        Ok(Syncs { count: value("metaq_store_syncs_total ")?, seconds: value("metaq_store_sync_seconds_total ")? })
    }

    pub(super) fn mean_us_since(self, before: Syncs) -> f64 {
        (self.seconds - before.seconds) * 1e6 / (self.count - before.count).max(1.0)
    }
}
