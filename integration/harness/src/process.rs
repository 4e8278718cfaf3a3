//! Brokers as real processes, each with a scratch directory of its own, on a port the system chose.

use anyhow::{Context, Result, anyhow, bail};
use rustix::process::{Pid, Signal, kill_process};
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long anything is waited for before a test fails.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// A broker's directory: configuration, data and log. It outlives the process, so that a broker can be started again
/// on the same data.
#[derive(Debug)]
pub struct Site {
    dir: Arc<tempfile::TempDir>,
    system: Vec<(String, String)>,
    zookeeper: Vec<(String, String)>,
    topics: Vec<(String, Vec<(String, String)>)>,
    /// Words in front of the binary's path, for a process in a namespace of its own.
    launcher: Vec<String>,
}

impl Site {
    /// No ZooKeeper, any free port, group commit, one topic `test` of one partition.
    pub fn new() -> Result<Site> {
        let dir = tempfile::Builder::new().prefix("metaq-").tempdir()?;
        let path = dir.path().display().to_string();
        let mut site = Site {
            dir: Arc::new(dir),
            system: Vec::new(),
            zookeeper: Vec::new(),
            topics: Vec::new(),
            launcher: Vec::new(),
        };
        for (key, value) in [
            ("brokerId", "0"),
            ("hostName", "127.0.0.1"),
            ("serverPort", "0"),
            ("dashboardHttpPort", "0"),
            ("numPartitions", "1"),
            ("unflushThreshold", "0"),
            ("unflushInterval", "10000"),
            ("maxSegmentSize", "1073741824"),
            ("maxTransferSize", "1048576"),
            ("dataPath", &format!("{path}/data")),
        ] {
            site.set(key, value);
        }
        site.set_zookeeper("zk.zkEnable", "false");
        site.set_zookeeper("zk.zkSyncTimeMs", "200");
        site.topic("test", &[]);
        Ok(site)
    }

    /// Sets a key of `[system]`, replacing an earlier value.
    pub fn set(&mut self, key: &str, value: &str) -> &mut Site {
        put(&mut self.system, key, value);
        self
    }

    /// What a key of `[system]` is set to.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.system.iter().find(|(k, _)| k == key).map(|(_, value)| value.as_str())
    }

    pub fn set_zookeeper(&mut self, key: &str, value: &str) -> &mut Site {
        put(&mut self.zookeeper, key, value);
        self
    }

    /// Adds a topic, or replaces its settings.
    pub fn topic(&mut self, name: &str, settings: &[(&str, &str)]) -> &mut Site {
        self.topics.retain(|(topic, _)| topic != name);
        let settings = settings.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        self.topics.push((name.to_owned(), settings));
        self
    }

    pub fn remove_topic(&mut self, name: &str) -> &mut Site {
        self.topics.retain(|(topic, _)| topic != name);
        self
    }

    /// Words in front of the binary's path. What they run has to become the binary, so that signals meet it.
    pub fn launch_by(&mut self, launcher: Vec<String>) -> &mut Site {
        self.launcher = launcher;
        self
    }

    /// Puts the data path on a tmpfs of this size that only the broker sees, as `/proc/PID/root` shows it.
    pub fn data_on_tmpfs(&mut self, mebibytes: u32) -> Result<&mut Site> {
        fs::create_dir_all(self.data())?;
        let script =
            format!("mount -t tmpfs -o size={mebibytes}m tmpfs {} && exec \"$0\" \"$@\"", self.data().display());
        self.launcher = ["unshare", "--map-root-user", "--mount", "sh", "-c", &script].map(String::from).to_vec();
        Ok(self)
    }

    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// The system's data path as configured.
    pub fn data(&self) -> PathBuf {
        PathBuf::from(self.get("dataPath").expect("dataPath is always set"))
    }

    pub fn ini_path(&self) -> PathBuf {
        self.path().join("server.ini")
    }

    /// Writes `server.ini`; done by every start, and by a test before a reload.
    pub fn write_ini(&self) -> Result<()> {
        let mut text = String::from("[system]\n");
        let lines = |pairs: &[(String, String)]| pairs.iter().map(|(k, v)| format!("{k}={v}\n")).collect::<String>();
        text += &lines(&self.system);
        text += "\n[zookeeper]\n";
        text += &lines(&self.zookeeper);
        for (name, settings) in &self.topics {
            text += &format!("\n[topic={name}]\n{}", lines(settings));
        }
        Ok(fs::write(self.ini_path(), text)?)
    }

    pub fn start_master(&self, arguments: &[&str]) -> Result<Broker> {
        self.start("metaq-master", arguments, "serving as master")
    }

    pub fn start_slave(&self, arguments: &[&str]) -> Result<Broker> {
        self.start("metaq-slave", arguments, "serving as ")
    }

    /// Starts a broker and waits for the log line that holds `ready`; its `uri=` is where it serves.
    fn start(&self, binary: &str, arguments: &[&str], ready: &'static str) -> Result<Broker> {
        self.write_ini()?;
        let mut broker = Broker::spawn(self, binary, arguments)?;
        let line = broker.wait_for_line(ready)?;
        let uri = line
            .split_ascii_whitespace()
            .find_map(|word| word.strip_prefix("uri="))
            .with_context(|| format!("no uri= in the ready line: {line}"))?;
        broker.address = uri.trim_matches('"').trim_start_matches("meta://").to_owned();
        Ok(broker)
    }
}

fn put(pairs: &mut Vec<(String, String)>, key: &str, value: &str) {
    match pairs.iter_mut().find(|(k, _)| k == key) {
        Some((_, old)) => value.clone_into(old),
        None => pairs.push((key.to_owned(), value.to_owned())),
    }
}

/// A running broker; killed when it is dropped.
#[derive(Debug)]
pub struct Broker {
    child: Child,
    /// `host:port` it serves on.
    pub address: String,
    lines: mpsc::Receiver<String>,
    seen: Vec<String>,
    log: PathBuf,
    /// Writes the log; ends with the process, a little later.
    writer: Option<JoinHandle<()>>,
    /// The directory stays for as long as somebody uses it.
    _dir: Arc<tempfile::TempDir>,
}

impl Broker {
    /// Starts a process without waiting for it to serve.
    pub fn spawn(site: &Site, binary: &str, arguments: &[&str]) -> Result<Broker> {
        let binary_path = binary_path(binary)?;
        let mut command = match site.launcher.split_first() {
            None => Command::new(binary_path),
            Some((launcher, words)) => {
                let mut command = Command::new(launcher);
                command.args(words).arg(binary_path);
                command
            }
        };
        command.arg("--config").arg(site.ini_path()).args(arguments);
        Broker::watch(site, binary, &mut command)
    }

    /// Starts any command in the site's directory, and takes what it writes to standard error for its log.
    pub fn watch(site: &Site, name: &str, command: &mut Command) -> Result<Broker> {
        let mut child = command
            .current_dir(site.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start {name}"))?;
        let log = site.path().join(format!("{name}-{}.log", child.id()));
        let stderr = child.stderr.take().context("stderr is piped")?;
        let (sender, lines) = mpsc::sync_channel(100_000);
        let mut file = File::create(&log)?;
        let writer = std::thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                let _ = writeln!(file, "{line}");
                // A full channel means that nobody waits for lines any more; the file has them.
                let _ = sender.try_send(line);
            }
        });
        let (address, seen, writer) = (String::new(), Vec::new(), Some(writer));
        Ok(Broker { child, address, lines, seen, log, writer, _dir: Arc::clone(&site.dir) })
    }

    /// Waits for a log line that holds `text`, lines already seen included.
    pub fn wait_for_line(&mut self, text: &str) -> Result<String> {
        if let Some(line) = self.seen.iter().find(|line| line.contains(text)) {
            return Ok(line.clone());
        }
        let deadline = Instant::now() + PATIENCE;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.lines.recv_timeout(left) {
                Ok(line) => {
                    self.seen.push(line.clone());
                    if line.contains(text) {
                        return Ok(line);
                    }
                }
                Err(error) => {
                    bail!("no log line with {text:?} ({error}); the log:\n{}", self.log_text());
                }
            }
        }
    }

    /// Every log line written so far.
    pub fn log_text(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Resident memory in bytes.
    pub fn resident_bytes(&self) -> Result<u64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid()))?;
        let line = status.lines().find(|line| line.starts_with("VmRSS:")).context("no VmRSS")?;
        let kib: u64 = line.split_ascii_whitespace().nth(1).context("no number")?.parse()?;
        Ok(kib * 1024)
    }

    /// After SIGSTOP, once nothing of it runs any more.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        let pid = Pid::from_raw(self.pid() as i32).context("a pid is positive")?;
        kill_process(pid, signal)?;
        // The thread that is given the signal may have to wait for a processor, and the others go on until then.
        if signal == Signal::STOP {
            wait_until("the process to stop", || Ok(is_stopped(self.pid())?.then_some(())))?;
        }
        Ok(())
    }

    /// SIGKILL, and the process is gone.
    pub fn kill(mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    /// SIGTERM, and the exit status.
    pub fn stop(mut self) -> Result<ExitStatus> {
        self.signal(Signal::TERM)?;
        self.wait_exit()
    }

    /// The exit status, when it has ended.
    pub fn try_exit(&mut self) -> Result<Option<ExitStatus>> {
        Ok(self.child.try_wait()?)
    }

    /// Waits for a process that ends by itself; its log is whole then.
    pub fn wait_exit(&mut self) -> Result<ExitStatus> {
        let status = wait_until("the process to end", || Ok(self.child.try_wait()?))?;
        if let Some(writer) = self.writer.take() {
            writer.join().map_err(|_| anyhow!("the writer of the log panicked"))?;
        }
        Ok(status)
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("---- log of process {}:\n{}", self.child.id(), self.log_text());
        }
    }
}

/// Every thread is stopped, or is when its disk has answered.
fn is_stopped(pid: u32) -> Result<bool> {
    for task in fs::read_dir(format!("/proc/{pid}/task"))? {
        // A thread may have ended meanwhile.
        let Ok(stat) = fs::read_to_string(task?.path().join("stat")) else { continue };
        let state = stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
        if !matches!(state, Some('T' | 't' | 'D' | 'Z' | 'X')) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Asks again, with short pauses, until there is an answer or [`PATIENCE`] is over.
pub fn wait_until<T>(what: &str, mut ask: impl FnMut() -> Result<Option<T>>) -> Result<T> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(answer) = ask()? {
            return Ok(answer);
        }
        if Instant::now() > deadline {
            bail!("waited {PATIENCE:?} for {what}");
        }
        std::thread::park_timeout(Duration::from_millis(5));
    }
}

/// A binary of this workspace: in METAQ_BIN_DIR, or beside the running test.
pub fn binary_path(name: &str) -> Result<PathBuf> {
    let dir = match std::env::var_os("METAQ_BIN_DIR") {
        Some(dir) => PathBuf::from(dir),
        None => {
            let test = std::env::current_exe()?;
            test.ancestors().nth(2).context("a test runs in target/PROFILE/deps")?.to_owned()
        }
    };
    let path = dir.join(name);
    if !path.exists() {
        bail!("{} is not there: run 'cargo build --workspace' first, or set METAQ_BIN_DIR", path.display());
    }
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_of_a_process_runs_once_it_was_told_to_stop() -> Result<()> {
        let site = Site::new()?;
        let busy = Broker::watch(&site, "busy", Command::new("sh").args(["-c", "while :; do :; done"]))?;
        for _ in 0..20 {
            wait_until("it to run", || Ok((!is_stopped(busy.pid())?).then_some(())))?;
            busy.signal(Signal::STOP)?;
            assert!(is_stopped(busy.pid())?);
            busy.signal(Signal::CONT)?;
        }
        busy.kill()
    }
}
