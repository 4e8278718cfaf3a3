//! Processes of ours on free ports and in scratch directories, started and stopped as an operator does it.

use crate::reader::Reader;
use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};
use std::collections::BTreeMap;
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

/// What a node's `server.ini` says beyond the defaults of a [`Home`].
#[derive(Debug, Clone, Default)]
pub(crate) struct Settings {
    pub(crate) system: BTreeMap<&'static str, String>,
    pub(crate) zookeeper: BTreeMap<&'static str, String>,
    /// Whole sections.
    pub(crate) topics: String,
}

/// Configuration, data and log of a node; it may be started there again and again. Removed when dropped.
#[derive(Debug)]
pub(crate) struct Home {
    dir: TempDir,
    pub(crate) address: SocketAddr,
    /// `/metrics` is there.
    pub(crate) console: SocketAddr,
}

/// A running node; it is stopped when this is dropped.
#[derive(Debug)]
pub(crate) struct Node {
    child: Child,
    pub(crate) address: SocketAddr,
    pub(crate) pid: u32,
    pub(crate) version: String,
}

impl Home {
    pub(crate) fn new(dir: &Path, settings: &Settings) -> Result<Home> {
        let dir = scratch(dir)?;
        let [port, console_port] = free_ports()?;
        fs::write(dir.path().join("server.ini"), configuration(dir.path(), port, console_port, settings))?;
        let loopback = |port| SocketAddr::from(([127, 0, 0, 1], port));
        Ok(Home { dir, address: loopback(port), console: loopback(console_port) })
    }

    /// Returns when the node answers.
    pub(crate) fn start(&self, binary: &Path, arguments: &[&str]) -> Result<Node> {
        let mut node = self.spawn(binary, arguments)?;
        node.version = wait_for_version(self.address, || node.ended()).with_context(|| {
            format!("{} did not come up; its log ends with:\n{}", binary.display(), self.end_of_log(binary))
        })?;
        Ok(node)
    }

    /// Returns at once; the version is not known yet.
    pub(crate) fn spawn(&self, binary: &Path, arguments: &[&str]) -> Result<Node> {
        let log = File::options().create(true).append(true).open(self.log(binary))?;
        let child = Command::new(binary)
            .arg("--config")
            .arg(self.dir.path().join("server.ini"))
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .with_context(|| format!("cannot start {}: build it first", binary.display()))?;
        let pid = child.id();
        Ok(Node { child, address: self.address, pid, version: String::new() })
    }

    pub(crate) fn path(&self) -> &Path {
        self.dir.path()
    }

    pub(crate) fn end_of_log(&self, binary: &Path) -> String {
        let text = fs::read(self.log(binary)).unwrap_or_default();
        String::from_utf8_lossy(&text[text.len().saturating_sub(LOG_BYTES_SHOWN)..]).into_owned()
    }

    fn log(&self, binary: &Path) -> PathBuf {
        let name = binary.file_name().unwrap_or_default().to_string_lossy();
        self.dir.path().join(format!("{name}.log"))
    }
}

impl Node {
    /// How it ended, if it did.
    pub(crate) fn ended(&mut self) -> Option<String> {
        self.child.try_wait().ok().flatten().map(|status| status.to_string())
    }

    /// Stops it as an operator would and says when it did not end well. Dropping it afterwards does nothing more.
    pub(crate) fn stop(&mut self) -> Result<()> {
        let pid = Pid::from_child(&self.child);
        let start = Instant::now();
        if self.child.try_wait()?.is_none() {
            kill_process(pid, Signal::TERM)?;
        }
        loop {
            if let Some(status) = self.child.try_wait()? {
                ensure!(status.success(), "metaq ended with {status}");
                return Ok(());
            }
            if start.elapsed() > STOP_WAIT {
                self.child.kill()?;
                self.child.wait()?;
                bail!("metaq ignored TERM for {} s and was killed", STOP_WAIT.as_secs());
            }
            std::thread::sleep(LOOK_AGAIN);
        }
    }

    /// Ends it without a word, as a crash does.
    pub(crate) fn kill(&mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // Whoever kills it on purpose has its status already.
        if self.ended().is_none()
            && let Err(error) = self.stop()
        {
            crate::out::say(&format!("metaq-load: stopping a broker: {error:#}"));
        }
    }
}

pub(crate) fn scratch(dir: &Path) -> Result<TempDir> {
    let made = tempfile::Builder::new().prefix("metaq-load-").tempdir_in(dir);
    made.with_context(|| format!("cannot make a scratch directory in {}", dir.display()))
}

/// Ports nobody listens on. Both are held until both are known, so that they differ.
pub(crate) fn free_ports() -> Result<[u16; 2]> {
    let listeners = [TcpListener::bind("127.0.0.1:0")?, TcpListener::bind("127.0.0.1:0")?];
    Ok([listeners[0].local_addr()?.port(), listeners[1].local_addr()?.port()])
}

/// Asks until the broker answers; `ended` says that it never will.
pub(crate) fn wait_for_version(address: SocketAddr, mut ended: impl FnMut() -> Option<String>) -> Result<String> {
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
fn configuration(dir: &Path, port: u16, console_port: u16, settings: &Settings) -> String {
    let mut system = BTreeMap::from([
        ("brokerId", "1".to_owned()),
        ("hostName", "127.0.0.1".to_owned()),
        ("serverPort", port.to_string()),
        ("dashboardHttpPort", console_port.to_string()),
        ("numPartitions", "1".to_owned()),
        ("unflushThreshold", "0".to_owned()),
        ("unflushInterval", "10000".to_owned()),
        ("maxSegmentSize", "1073741824".to_owned()),
        ("maxTransferSize", "1048576".to_owned()),
        ("deletePolicy", "delete,168".to_owned()),
        ("deleteWhen", "0 0 6,18 * * ?".to_owned()),
        ("dataPath", dir.join("data").display().to_string()),
    ]);
    system.extend(settings.system.clone());
    let mut zookeeper =
        BTreeMap::from([("zk.zkEnable", "false".to_owned()), ("zk.zkConnect", "127.0.0.1:2181".to_owned())]);
    zookeeper.extend(settings.zookeeper.clone());
    let mut text = String::new();
    for (section, values) in [("system", system), ("zookeeper", zookeeper)] {
        writeln!(text, "[{section}]").expect("a String takes all");
        for (key, value) in values {
            writeln!(text, "{key}={value}").expect("a String takes all");
        }
    }
    text + &settings.topics
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_that_ends_at_once_is_reported_with_its_log() {
        let dir = tempfile::tempdir().unwrap();
        let binary = dir.path().join("broker");
        fs::write(&binary, "#!/bin/sh\necho \"cannot use $2\"\nexit 78\n").unwrap();
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        fs::set_permissions(&binary, mode).unwrap();
        let home = Home::new(dir.path(), &Settings::default()).unwrap();
        let Err(error) = home.start(&binary, &[]) else { panic!("it started") };
        let text = format!("{error:#}");
        assert!(text.contains("cannot use ") && text.contains("server.ini") && text.contains("78"), "{text}");
    }

    #[test]
    fn a_setting_takes_the_place_of_the_default() {
        let settings = Settings {
            system: BTreeMap::from([("unflushThreshold", "7".to_owned()), ("ackQuorum", "2".to_owned())]),
            zookeeper: BTreeMap::from([("zk.zkEnable", "true".to_owned())]),
            topics: "\n[topic=t]\n".to_owned(),
        };
        let text = configuration(Path::new("/data"), 1, 2, &settings);
        assert_eq!(text.matches("unflushThreshold=").count(), 1);
        assert!(text.contains("\nunflushThreshold=7\n") && text.contains("\nackQuorum=2\n"), "{text}");
        assert!(text.contains("[zookeeper]\n") && text.contains("zk.zkEnable=true\n"));
        assert!(text.ends_with("\n[topic=t]\n"));
    }
}
