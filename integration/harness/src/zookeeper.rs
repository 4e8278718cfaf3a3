//! A real ZooKeeper (Debian's package) as a child process, on a free port and a scratch directory.
//!
//! `ZOOKEEPER_CLASSPATH` in the environment takes another version's jars instead.

use crate::ports::free_address_of;
use crate::process::PATIENCE;
use anyhow::{Context, Result, bail, ensure};
use std::env;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const CLASSPATH: &str = "ZOOKEEPER_CLASSPATH";

/// Its manifest names everything it needs.
const JAR: &str = "/usr/share/java/zookeeper.jar";

/// Logs to standard error where it is installed; without it ZooKeeper is silent.
const LOGGER_JAR: &str = "/usr/share/java/slf4j-simple.jar";

/// A port found free may be taken before ZooKeeper has it.
const ATTEMPTS: u32 = 5;

/// Between two looks at a server that is starting.
const POLL: Duration = Duration::from_millis(50);

/// Half of the shortest session time-out a client may ask for, in milliseconds.
const TICK_MS: u32 = 250;

/// A running ZooKeeper; killed when it is dropped.
#[derive(Debug)]
pub struct ZooKeeper {
    dir: tempfile::TempDir,
    address: SocketAddr,
    child: Option<Child>,
}

impl ZooKeeper {
    /// Starts on a free port and returns when it answers.
    pub fn start() -> Result<ZooKeeper> {
        ZooKeeper::start_on(Ipv4Addr::LOCALHOST.into())
    }

    /// The same on another address of this machine, or of the network namespace that the calling thread is in.
    pub fn start_on(host: IpAddr) -> Result<ZooKeeper> {
        ensure!(
            env::var_os(CLASSPATH).is_some() || Path::new(JAR).exists(),
            "{JAR} is not there: these tests run against a real ZooKeeper; apt-get install libzookeeper-java (scripts/test.sh does)"
        );
        let mut attempt = 0;
        loop {
            let dir = tempfile::Builder::new().prefix("zookeeper-").tempdir()?;
            let address = free_address_of(host)?;
            let mut zookeeper = ZooKeeper { dir, address, child: None };
            attempt += 1;
            match zookeeper.run() {
                Err(error) if attempt == ATTEMPTS => return Err(error),
                Err(_) => {}
                Ok(()) => return Ok(zookeeper),
            }
        }
    }

    /// What `zk.zkConnect` is to be set to.
    pub fn connect(&self) -> String {
        self.address.to_string()
    }

    /// Kills it; what it stored stays.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            // It may have ended by itself.
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Starts again on the same port after [`ZooKeeper::kill`].
    pub fn run(&mut self) -> Result<()> {
        ensure!(self.child.is_none(), "zookeeper runs already");
        let log = File::options().create(true).append(true).open(self.log())?;
        fs::write(self.dir.path().join("zoo.cfg"), self.configuration())?;
        let classpath = env::var(CLASSPATH).unwrap_or_else(|_| format!("{JAR}:{LOGGER_JAR}"));
        let child = Command::new("java")
            // Small and quick to start; no JMX, no web console, no fsync: nothing here has to survive the machine.
            .args(["-Xmx128m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"])
            .args(["-Dzookeeper.forceSync=no", "-Dzookeeper.jmx.log4j.disable=true"])
            .args(["-cp", &classpath, "org.apache.zookeeper.server.quorum.QuorumPeerMain"])
            .arg(self.dir.path().join("zoo.cfg"))
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .context("cannot start java: apt-get install openjdk-17-jdk-headless (scripts/test.sh does)")?;
        self.child = Some(child);
        self.wait_until_serving()
    }

    /// Kills it, forgets everything it stored, and starts it on the same port.
    pub fn wipe(&mut self) -> Result<()> {
        self.kill();
        fs::remove_dir_all(self.data())?;
        self.run()
    }

    fn configuration(&self) -> String {
        let (host, port, data) = (self.address.ip(), self.address.port(), self.data().display().to_string());
        format!(
            "tickTime={TICK_MS}\ndataDir={data}\nclientPort={port}\nclientPortAddress={host}\n\
             admin.enableServer=false\nmaxClientCnxns=0\n4lw.commands.whitelist=srvr\n"
        )
    }

    fn data(&self) -> PathBuf {
        self.dir.path().join("data")
    }

    fn log(&self) -> PathBuf {
        self.dir.path().join("zookeeper.log")
    }

    fn wait_until_serving(&mut self) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        while !self.serves() {
            let ended = match &mut self.child {
                Some(child) => child.try_wait()?,
                None => bail!("zookeeper was not started"),
            };
            if ended.is_some() || Instant::now() > deadline {
                let log = fs::read_to_string(self.log()).unwrap_or_default();
                bail!("zookeeper does not serve on {} (ended: {ended:?}); its log:\n{log}", self.address);
            }
            std::thread::sleep(POLL);
        }
        Ok(())
    }

    /// Another process on the port would not answer so.
    fn serves(&self) -> bool {
        let ask = || -> std::io::Result<String> {
            let mut stream = TcpStream::connect(self.address)?;
            stream.set_read_timeout(Some(Duration::from_secs(1)))?;
            stream.write_all(b"srvr")?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer)?;
            Ok(answer)
        };
        ask().is_ok_and(|answer| answer.contains("Mode: "))
    }
}

impl Drop for ZooKeeper {
    fn drop(&mut self) {
        self.kill();
    }
}
