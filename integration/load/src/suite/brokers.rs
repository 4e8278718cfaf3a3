//! Starts and stops the two brokers, configured alike.

use super::cells::{TOPICS, Topic};
use crate::reader::Reader;
use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};
use std::fmt::Write as _;
use std::fs::{self, File};
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

const START_WAIT: Duration = Duration::from_secs(60);
const STOP_WAIT: Duration = Duration::from_secs(30);
const LOOK_AGAIN: Duration = Duration::from_millis(20);
const LOG_BYTES_SHOWN: usize = 2000;

/// A running broker; it is stopped when this is dropped, the original's data is removed.
pub(crate) struct Broker {
    pub(crate) name: &'static str,
    pub(crate) address: SocketAddr,
    pub(crate) pid: u32,
    pub(crate) version: String,
    /// Heeds `get … wait=MS`.
    pub(crate) long_poll: bool,
    process: Process,
}

enum Process {
    Metaq { child: Child },
    Original { script: PathBuf, run_dir: PathBuf, _topics: TempDir },
}

/// Configuration, data and log of a broker of ours; it may be started there again and again. Removed when dropped.
pub(crate) struct MetaqHome {
    dir: TempDir,
    address: SocketAddr,
}

impl MetaqHome {
    pub(crate) fn new(dir: &Path, topics: &str) -> Result<MetaqHome> {
        let dir = scratch(dir)?;
        let [port, console_port] = free_ports()?;
        fs::write(dir.path().join("server.ini"), metaq_config(dir.path(), port, console_port, topics))?;
        Ok(MetaqHome { dir, address: SocketAddr::from(([127, 0, 0, 1], port)) })
    }

    /// Returns when the broker answers.
    pub(crate) fn start(&self, binary: &Path) -> Result<Broker> {
        let log = self.dir.path().join("metaq-master.log");
        let child = Command::new(binary)
            .arg("--config")
            .arg(self.dir.path().join("server.ini"))
            .stdin(Stdio::null())
            .stdout(File::create(&log)?)
            .stderr(File::options().append(true).open(&log)?)
            .spawn()
            .with_context(|| format!("cannot start {}: build it first", binary.display()))?;
        let pid = child.id();
        let mut process = Process::Metaq { child };
        let version = wait_for_version(self.address, || process.ended()).with_context(|| {
            let text = fs::read(&log).unwrap_or_default();
            let shown = &text[text.len().saturating_sub(LOG_BYTES_SHOWN)..];
            format!("{} did not come up; its log ends with:\n{}", binary.display(), String::from_utf8_lossy(shown))
        })?;
        Ok(Broker { name: "metaq", address: self.address, pid, version, long_poll: true, process })
    }
}

pub(crate) fn start_original(script: &Path, run_dir: &Path, dir: &Path) -> Result<Broker> {
    let script = script.canonicalize().with_context(|| format!("no {}", script.display()))?;
    fs::create_dir_all(run_dir)?;
    let run_dir = run_dir.canonicalize()?;
    let topics = scratch(dir)?;
    let topics_file = topics.path().canonicalize()?.join("topics.ini");
    fs::write(&topics_file, topic_sections())?;
    let [port, zookeeper_port] = free_ports()?;
    let process = Process::Original { script: script.clone(), run_dir: run_dir.clone(), _topics: topics };
    let started = Command::new(&script)
        .arg("--dir")
        .arg(&run_dir)
        .args(["stop", "wipe", "start"])
        .env("PORT", port.to_string())
        .env("ZK_PORT", zookeeper_port.to_string())
        .env("UNFLUSH_THRESHOLD", "0")
        .env("EXTRA_TOPICS_FILE", &topics_file)
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("cannot run {}", script.display()))?;
    ensure!(
        started.status.success(),
        "{} failed:\n{}{}",
        script.display(),
        String::from_utf8_lossy(&started.stdout),
        String::from_utf8_lossy(&started.stderr)
    );
    let pid = fs::read_to_string(run_dir.join("pids/broker"))?.trim().parse().context("the original's pid file")?;
    let address = SocketAddr::from(([127, 0, 0, 1], port));
    let version = wait_for_version(address, || None)?;
    Ok(Broker { name: "original", address, pid, version, long_poll: false, process })
}

fn scratch(dir: &Path) -> Result<TempDir> {
    let made = tempfile::Builder::new().prefix("metaq-load-suite-").tempdir_in(dir);
    made.with_context(|| format!("cannot make a scratch directory in {}", dir.display()))
}

/// Ports nobody listens on. Both are held until both are known, so that they differ.
fn free_ports() -> Result<[u16; 2]> {
    let listeners = [TcpListener::bind("127.0.0.1:0")?, TcpListener::bind("127.0.0.1:0")?];
    Ok([listeners[0].local_addr()?.port(), listeners[1].local_addr()?.port()])
}

/// Asks until the broker answers; `ended` says that it never will.
fn wait_for_version(address: SocketAddr, mut ended: impl FnMut() -> Option<String>) -> Result<String> {
    let start = Instant::now();
    loop {
        match Reader::connect(address, 0).and_then(|mut reader| reader.version()) {
            Ok(version) => return Ok(version),
            Err(error) if start.elapsed() > START_WAIT => return Err(error),
            Err(_) => {}
        }
        if let Some(status) = ended() {
            bail!("it ended with {status}");
        }
        std::thread::sleep(LOOK_AGAIN);
    }
}

/// The same values the original is started with, but for the registry: ours needs none.
fn metaq_config(dir: &Path, port: u16, console_port: u16, topics: &str) -> String {
    format!(
        "[system]\n\
         brokerId=1\n\
         hostName=127.0.0.1\n\
         serverPort={port}\n\
         dashboardHttpPort={console_port}\n\
         numPartitions=1\n\
         unflushThreshold=0\n\
         unflushInterval=10000\n\
         maxSegmentSize=1073741824\n\
         maxTransferSize=1048576\n\
         deletePolicy=delete,168\n\
         deleteWhen=0 0 6,18 * * ?\n\
         dataPath={data}\n\
         \n\
         [zookeeper]\n\
         zk.zkEnable=false\n\
         zk.zkConnect=127.0.0.1:2181\n\
         {topics}",
        data = dir.join("data").display(),
    )
}

/// The suite's topics as sections of either broker's configuration.
pub(crate) fn topic_sections() -> String {
    let mut text = String::new();
    for Topic { name, partitions, unflush_threshold, .. } in &TOPICS {
        write!(text, "\n[topic={name}]\nnumPartitions={partitions}\nunflushThreshold={unflush_threshold}\n")
            .expect("a String takes all");
    }
    text
}

impl Broker {
    /// Stops it as an operator would and says when it did not end well. Dropping it afterwards does nothing more.
    pub(crate) fn stop(&mut self) -> Result<()> {
        self.process.stop()
    }
}

impl Process {
    /// How it ended, if it did.
    fn ended(&mut self) -> Option<String> {
        match self {
            Process::Metaq { child } => child.try_wait().ok().flatten().map(|status| status.to_string()),
            Process::Original { .. } => None,
        }
    }

    fn stop(&mut self) -> Result<()> {
        match self {
            Process::Metaq { child } => stop_child(child),
            Process::Original { script, run_dir, .. } => {
                let status = Command::new(script)
                    .arg("--dir")
                    .arg(run_dir)
                    .args(["stop", "wipe"])
                    .stdout(Stdio::null())
                    .status()?;
                ensure!(status.success(), "the original's script ended with {status}");
                Ok(())
            }
        }
    }
}

fn stop_child(child: &mut Child) -> Result<()> {
    let pid = Pid::from_child(child);
    let start = Instant::now();
    if child.try_wait()?.is_none() {
        kill_process(pid, Signal::TERM)?;
    }
    loop {
        if let Some(status) = child.try_wait()? {
            ensure!(status.success(), "metaq ended with {status}");
            return Ok(());
        }
        if start.elapsed() > STOP_WAIT {
            child.kill()?;
            child.wait()?;
            bail!("metaq ignored TERM for {} s and was killed", STOP_WAIT.as_secs());
        }
        std::thread::sleep(LOOK_AGAIN);
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Err(error) = self.stop() {
            eprintln!("metaq-load: stopping a broker: {error:#}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_broker_that_ends_at_once_is_reported_with_its_log() {
        let dir = tempfile::tempdir().unwrap();
        let binary = dir.path().join("broker");
        fs::write(&binary, "#!/bin/sh\necho \"cannot use $2\"\nexit 78\n").unwrap();
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        fs::set_permissions(&binary, mode).unwrap();
        let home = MetaqHome::new(dir.path(), "").unwrap();
        let Err(error) = home.start(&binary) else { panic!("it started") };
        let text = format!("{error:#}");
        assert!(text.contains("cannot use ") && text.contains("server.ini") && text.contains("78"), "{text}");
    }

    #[test]
    fn both_brokers_are_given_the_same_topics() {
        let config = metaq_config(Path::new("/data"), 1, 2, &topic_sections());
        assert!(config.ends_with(&topic_sections()));
        assert!(config.contains("\n[topic=load-os-8]\nnumPartitions=8\nunflushThreshold=1000\n"));
    }
}
