//! Starts and stops the two brokers, configured alike.

use super::cells::{TOPICS, Topic};
use crate::node::{Home, Node, Settings, free_ports, scratch, wait_for_version};
use anyhow::{Context, Result, ensure};
use std::fmt::Write as _;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use tempfile::TempDir;

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
    Metaq(Node),
    Original { script: PathBuf, run_dir: PathBuf, _topics: TempDir },
}

/// A broker of ours with the given topic sections; its data is removed when this is dropped.
pub(crate) struct MetaqHome(Home);

impl MetaqHome {
    pub(crate) fn new(dir: &Path, topics: &str) -> Result<MetaqHome> {
        Ok(MetaqHome(Home::new(dir, &Settings { topics: topics.to_owned(), ..Settings::default() })?))
    }

    /// Returns when the broker answers.
    pub(crate) fn start(&self, binary: &Path) -> Result<Broker> {
        let node = self.0.start(binary, &[])?;
        let (address, pid, version) = (node.address, node.pid, node.version.clone());
        Ok(Broker { name: "metaq", address, pid, version, long_poll: true, process: Process::Metaq(node) })
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
    fn stop(&mut self) -> Result<()> {
        match self {
            Process::Metaq(node) => node.stop(),
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

impl Drop for Process {
    fn drop(&mut self) {
        // A node of ours stops itself.
        if let Process::Original { .. } = self
            && let Err(error) = self.stop()
        {
            crate::out::say(&format!("metaq-load: stopping a broker: {error:#}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_topics_are_sections_of_either_configuration() {
        assert!(topic_sections().contains("\n[topic=load-os-8]\nnumPartitions=8\nunflushThreshold=1000\n"));
    }
}
