//! A real ZooKeeper (Debian's package) as a child process, on a free port and a scratch directory.

use super::site::wait_for;
use crate::node::scratch;
use anyhow::{Context, Result};
use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use tempfile::TempDir;

/// Its manifest names everything it needs.
const JAR: &str = "/usr/share/java/zookeeper.jar";
const START_WAIT: Duration = Duration::from_secs(30);

/// Half of the shortest session time-out a client may ask for, in milliseconds.
const TICK_MS: u32 = 250;

/// Killed when it is dropped.
pub(super) struct ZooKeeper {
    pub(super) address: SocketAddr,
    child: Child,
    _dir: TempDir,
}

impl ZooKeeper {
    /// Whether there is one to start.
    pub(super) fn is_installed() -> bool {
        Path::new(JAR).exists() && Command::new("java").arg("-version").stderr(Stdio::null()).status().is_ok()
    }

    /// Returns when it answers.
    pub(super) fn start(dir: &Path) -> Result<ZooKeeper> {
        let dir = scratch(dir)?;
        let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
        let configuration = dir.path().join("zoo.cfg");
        fs::write(
            &configuration,
            format!(
                "tickTime={TICK_MS}\ndataDir={}\nclientPort={}\nclientPortAddress=127.0.0.1\n\
                 admin.enableServer=false\n4lw.commands.whitelist=srvr,dump\n",
                dir.path().join("data").display(),
                address.port()
            ),
        )?;
        let log = File::create(dir.path().join("zookeeper.log"))?;
        let child = Command::new("java")
            .args(["-Xmx128m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-cp", JAR])
            .arg("org.apache.zookeeper.server.quorum.QuorumPeerMain")
            .arg(&configuration)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .context("cannot start java")?;
        let zookeeper = ZooKeeper { address, child, _dir: dir };
        wait_for(START_WAIT, "zookeeper", || Ok(zookeeper.ask("srvr").is_ok_and(|answer| answer.contains("Mode: "))))?;
        Ok(zookeeper)
    }

    /// Whether a session holds an ephemeral node whose path ends so.
    pub(super) fn holds(&self, path_end: &str) -> Result<bool> {
        Ok(self.ask("dump")?.lines().any(|line| line.trim().ends_with(path_end)))
    }

    fn ask(&self, word: &str) -> Result<String> {
        let mut stream = TcpStream::connect(self.address)?;
        stream.set_read_timeout(Some(Duration::from_secs(1)))?;
        stream.write_all(word.as_bytes())?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    }
}

impl Drop for ZooKeeper {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
