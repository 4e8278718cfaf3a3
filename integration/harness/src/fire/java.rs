//! Consumers of the original client during rounds: what they say they saw, held against what is served.
//!
//! One process serves all rounds. It is built once, into `target/fire-consumer`, from `java/FireConsumer.java` and the
//! published client, whose jars the build fetches as `integration/java` does.

use crate::fire::check::{Beginning, Partition, Served};
use crate::fire::ledger::body;
use crate::fire::{PARTITIONS, TOPICS};
use crate::process::PATIENCE;
use anyhow::{Context, Result, bail, ensure};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

/// Of one group, in one process.
const CONSUMERS: usize = 2;

/// The root that a broker takes where none is configured.
const ROOT: &str = "/meta";

/// What the client logs of a connection that it closes because there is one to that broker: "connections beyond the limit
/// of 1, the connection is closed".
const ONE_TOO_MANY: &str = "超过设定值1";

/// What each consumer logs when it begins to follow a change of the brokers.
const CHANGE: &str = "Stopping fetch runners";

/// Lines that wait to be read; with more the process waits.
const LINES_MAX: usize = 1_000_000;

#[derive(Debug)]
pub struct JavaConsumers {
    child: Child,
    commands: ChildStdin,
    lines: Receiver<String>,
    _dir: tempfile::TempDir,
    log: PathBuf,
    zookeeper: String,
    groups: usize,
    seen: Seen,
    pub counts: Counts,
}

/// Over all groups.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub received: usize,
    /// Again, as delivery at least once allows: beyond the offset that was stored.
    pub again: usize,
    /// Groups that had read what was lost with an old master, as announced, and gave way to a new one.
    pub begun_anew: usize,
    /// Groups that had closed their own connection for good, as the client does now and then.
    pub cut_off: usize,
}

/// What the present group saw.
#[derive(Debug, Default)]
struct Seen {
    delivered: HashSet<u64>,
    stored: BTreeMap<Partition, u64>,
    /// It has read beyond the begin of a later reign: its positions mean nothing any more.
    beyond_loss: bool,
    findings: Vec<String>,
}

/// What is served, and where reigns began.
struct View<'a> {
    places: HashMap<u64, (Partition, u64)>,
    beginnings: &'a [Beginning],
}

impl JavaConsumers {
    /// Builds it unless that was done, and returns when it runs.
    pub fn start() -> Result<JavaConsumers> {
        let built = build()?;
        let dir = tempfile::Builder::new().prefix("fire-consumer-").tempdir()?;
        let log = dir.path().join("client.log");
        let settings = dir.path().join("log4j.properties");
        fs::write(
            &settings,
            "log4j.rootLogger=WARN, out\nlog4j.appender.out=org.apache.log4j.ConsoleAppender\n\
             log4j.appender.out.target=System.err\nlog4j.appender.out.layout=org.apache.log4j.PatternLayout\n\
             log4j.appender.out.layout.ConversionPattern=%d{HH:mm:ss,SSS} %p %c{1} %m%n\n",
        )?;
        let mut child = Command::new("java")
            .args(["-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"])
            .arg(format!("-Duser.home={}", dir.path().display()))
            .arg(format!("-Dmeta.recover.path={}/recover", dir.path().display()))
            .arg(format!("-Dlog4j.configuration=file:{}", settings.display()))
            .args(["-cp", &format!("{0}/classes:{0}/lib/*", built.display()), "FireConsumer"])
            .current_dir(dir.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(File::create(&log)?)
            .spawn()
            .context("cannot start java: apt-get install openjdk-17-jdk-headless (scripts/test.sh does)")?;
        let commands = child.stdin.take().context("its input is piped")?;
        let stdout = child.stdout.take().context("its output is piped")?;
        let (sender, lines) = sync_channel(LINES_MAX);
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        let (zookeeper, groups, seen, counts) = (String::new(), 0, Seen::default(), Counts::default());
        Ok(JavaConsumers { child, commands, lines, _dir: dir, log, zookeeper, groups, seen, counts })
    }

    /// A new group reads everything from the start, of the brokers that this ZooKeeper knows.
    pub fn begin(&mut self, zookeeper: &str) -> Result<()> {
        zookeeper.clone_into(&mut self.zookeeper);
        self.groups += 1;
        self.seen = Seen::default();
        let group = self.group();
        writeln!(self.commands, "begin {zookeeper} {ROOT} {group} {CONSUMERS} {}", TOPICS.join(","))?;
        self.commands.flush()?;
        Ok(())
    }

    /// The group leaves.
    pub fn end(&mut self) -> Result<()> {
        writeln!(self.commands, "end")?;
        self.commands.flush()?;
        let ended = format!("ended {}", self.group());
        let deadline = Instant::now() + PATIENCE;
        loop {
            match self.lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(line) if line == ended => return Ok(()),
                Ok(_) => {}
                Err(error) => bail!("the group did not leave ({error}); the client's log:\n{}", self.log_tail()),
            }
        }
    }

    /// Returns when the group has received everything that is served, and answers whether it is still the same group. An
    /// error says what it missed, or saw and must not have seen. Nothing may be written meanwhile.
    pub fn catch_up(&mut self, served: &Served, beginnings: &[Beginning]) -> Result<bool> {
        let group = self.groups;
        let places = served.places().collect();
        let view = View { places, beginnings };
        let mut deadline = Instant::now() + PATIENCE;
        loop {
            self.take_lines(&view)?;
            let Seen { findings, beyond_loss, delivered, .. } = &self.seen;
            ensure!(findings.is_empty(), "the Java consumers: {}\n{}", findings.join("; "), self.log_tail());
            if *beyond_loss {
                self.counts.begun_anew += 1;
                self.end()?;
                self.begin(&self.zookeeper.clone())?;
                continue;
            }
            let missing = view.places.len() - delivered.len();
            if missing == 0 {
                return Ok(self.groups == group);
            }
            if Instant::now() > deadline && self.has_closed_its_connection() {
                self.counts.cut_off += 1;
                self.end()?;
                self.begin(&self.zookeeper.clone())?;
                deadline = Instant::now() + PATIENCE;
                continue;
            }
            if Instant::now() > deadline {
                let first = view.places.iter().find(|(key, _)| !delivered.contains(key));
                bail!(
                    "stuck: the Java consumers lack {missing} messages after {PATIENCE:?}, so {first:?}; stored: {:?}; the \
                     client's log:\n{}\nits threads:\n{}",
                    self.seen.stored,
                    self.log_tail(),
                    self.threads()
                );
            }
        }
    }

    /// Waits a moment for a line, and takes all that came.
    fn take_lines(&mut self, view: &View<'_>) -> Result<()> {
        let mut next = self.lines.recv_timeout(Duration::from_millis(20));
        loop {
            match next {
                Ok(line) => self.seen.take(&line, view, &mut self.counts).with_context(|| format!("line {line:?}"))?,
                Err(RecvTimeoutError::Timeout) => return Ok(()),
                Err(RecvTimeoutError::Disconnected) => {
                    bail!("the Java consumers ended; their log:\n{}", self.log_tail());
                }
            }
            next = self.lines.recv_timeout(Duration::ZERO);
        }
    }

    fn group(&self) -> String {
        format!("fire-{}", self.groups)
    }

    fn has_closed_its_connection(&self) -> bool {
        closed_at_the_last_change(&fs::read_to_string(&self.log).unwrap_or_default())
    }

    /// What each thread of the client does: who is stuck waits somewhere.
    fn threads(&self) -> String {
        match Command::new("jcmd").arg(self.child.id().to_string()).arg("Thread.print").output() {
            Ok(printed) => String::from_utf8_lossy(&[printed.stdout, printed.stderr].concat()).into_owned(),
            Err(error) => format!("jcmd, which would print them: {error}"),
        }
    }

    /// The last the client logged.
    pub fn log_tail(&self) -> String {
        let log = fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(60)..].join("\n")
    }
}

/// Whether a consumer has closed its connection as one too many when the brokers changed last, by the client's log.
/// Whenever a slave comes or goes it closes its connection to the master and opens it again at once; when the old one is
/// not gone by then, it takes the new one for a second, closes that, too, and is left with none until the brokers change
/// again, though it may log that it is connected. Nothing that a broker does or leaves undone is to be seen in that.
fn closed_at_the_last_change(log: &str) -> bool {
    let change = log.rmatch_indices(CHANGE).take(CONSUMERS).last();
    change.is_some_and(|(at, _)| log[at..].contains(ONE_TOO_MANY))
}

impl Drop for JavaConsumers {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Seen {
    fn take(&mut self, line: &str, view: &View<'_>, counts: &mut Counts) -> Result<()> {
        if self.beyond_loss {
            return Ok(());
        }
        let words: Vec<&str> = line.split(' ').collect();
        match words[..] {
            ["begun" | "ended", _] => {}
            ["got", topic, partition, end, key, _, length, crc] => {
                let partition = partition_of(topic, partition)?;
                let (end, key): (u64, i64) = (end.parse()?, key.parse()?);
                let whole = u64::try_from(key).ok().map(|key| (key, body(key)));
                let fits = |body: &[u8]| length.parse() == Ok(body.len()) && crc.parse() == Ok(crc32fast::hash(body));
                match whole.filter(|(_, body)| fits(body)) {
                    Some((key, _)) => self.receive(partition, end, key, view, counts),
                    None => self.findings.push(format!("corrupt: {line}")),
                }
            }
            ["stored", topic, partition, offset] => {
                let (partition, offset) = (partition_of(topic, partition)?, offset.parse()?);
                if let Some(before) = self.stored.insert(partition, offset).filter(|before| *before > offset) {
                    self.findings.push(format!("moved back: the offset of {partition:?} from {before} to {offset}"));
                }
            }
            ["loaded", topic, partition, offset] => {
                let (partition, offset) = (partition_of(topic, partition)?, offset.parse::<u64>()?);
                if let Some(stored) = self.stored.get(&partition).filter(|stored| **stored > offset) {
                    self.findings.push(format!("moved back: {partition:?} begins at {offset}, {stored} was stored"));
                }
            }
            _ => bail!("not known"),
        }
        Ok(())
    }

    fn receive(&mut self, partition: Partition, end: u64, key: u64, view: &View<'_>, counts: &mut Counts) {
        let place = view.places.get(&key);
        if place.is_none() {
            // Sent to an old master that its successor did not follow so far?
            let lost = |beginning: &Beginning| end > beginning.ends.get(&partition).copied().unwrap_or(0);
            if view.beginnings.iter().any(lost) {
                self.beyond_loss = true;
            } else {
                self.findings.push(format!("ghost: message {key} that ends at {end} of {partition:?}"));
            }
            return;
        }
        if place != Some(&(partition, end)) {
            self.findings.push(format!("shifted: message {key} ends at {end} of {partition:?}, and at {place:?}"));
        }
        if let Some(stored) = self.stored.get(&partition).filter(|stored| **stored >= end) {
            self.findings.push(format!("again: message {key} ends at {end} of {partition:?}, {stored} was stored"));
        }
        counts.received += 1;
        if !self.delivered.insert(key) {
            counts.again += 1;
        }
    }
}

fn partition_of(topic: &str, partition: &str) -> Result<Partition> {
    let topic = TOPICS.into_iter().find(|known| *known == topic).context("an unknown topic")?;
    let number = partition.parse()?;
    ensure!((0..PARTITIONS).contains(&number), "an unknown partition");
    Ok((topic, number))
}

/// The directory with the classes and jars, which are fetched the first time. Tests of several processes may ask at once.
pub fn build() -> Result<PathBuf> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let (source, pom) = (here.join("java/FireConsumer.java"), here.join("../java/pom.xml"));
    let target = here.join("../../target/fire-consumer");
    fs::create_dir_all(&target)?;
    let target = fs::canonicalize(target)?;
    let lock = File::create(target.join("build.lock"))?;
    lock.lock()?;
    let (libraries, classes, stamp) = (target.join("lib"), target.join("classes"), target.join("lib.stamp"));
    if !is_newer(&stamp, &pom)? {
        let output = format!("-DoutputDirectory={}", libraries.display());
        let arguments = ["-q", "-B", "dependency:copy-dependencies", "-DincludeScope=runtime", &output, "-f"];
        succeed(Command::new("mvn").args(arguments).arg(pom))?;
        fs::write(stamp, "")?;
    }
    if !is_newer(&classes.join("FireConsumer.class"), &source)? {
        let jars = format!("{}/*", libraries.display());
        succeed(
            Command::new("javac").args(["-nowarn", "--release", "17", "-cp", &jars, "-d"]).arg(classes).arg(source),
        )?;
    }
    Ok(target)
}

fn is_newer(made: &Path, source: &Path) -> Result<bool> {
    let source = fs::metadata(source)?.modified()?;
    Ok(fs::metadata(made).and_then(|made| made.modified()).is_ok_and(|made| made >= source))
}

fn succeed(command: &mut Command) -> Result<()> {
    let output = command.output().with_context(|| format!("{command:?} (scripts/test.sh installs it)"))?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    ensure!(output.status.success(), "{command:?}:\n{}{}", text(&output.stdout), text(&output.stderr));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARTITION: Partition = (TOPICS[0], 1);

    fn got(key: u64, end: u64) -> String {
        let body = body(key);
        format!("got {} 1 {end} {key} 77 {} {}", TOPICS[0], body.len(), crc32fast::hash(&body))
    }

    /// Messages 1 to 3 end at 100, 200 and 300; the last reign began at 300.
    fn after(lines: &[String]) -> Seen {
        let places = (1..=3).map(|key| (key, (PARTITION, key * 100))).collect();
        let beginnings = [Beginning { reign: 1, ends: BTreeMap::from([(PARTITION, 300)]) }];
        let view = View { places, beginnings: &beginnings };
        let mut seen = Seen::default();
        lines.iter().for_each(|line| seen.take(line, &view, &mut Counts::default()).unwrap());
        seen
    }

    fn finding(lines: &[String], kind: &str) {
        let seen = after(lines);
        assert!(seen.findings.len() == 1 && seen.findings[0].starts_with(kind), "{kind}: {seen:?}");
    }

    #[test]
    fn each_kind_of_fault_is_found() {
        let stored = |offset: u64| format!("stored {} 1 {offset}", TOPICS[0]);
        let loaded = |offset: u64| format!("loaded {} 1 {offset}", TOPICS[0]);
        let fine = after(&[got(1, 100), got(2, 200), stored(100), loaded(100), got(2, 200), got(3, 300), stored(300)]);
        assert!(fine.findings.is_empty() && fine.delivered.len() == 3 && !fine.beyond_loss, "{fine:?}");
        finding(&[got(1, 100), stored(100), got(1, 100)], "again");
        finding(&[stored(200), stored(100)], "moved back");
        finding(&[stored(200), loaded(100)], "moved back");
        finding(&[got(1, 101)], "shifted");
        finding(&[got(4, 250)], "ghost");
        finding(&[got(1, 100).replace(" 77 ", " 77 1")], "corrupt");
        assert!(after(&[got(4, 400)]).beyond_loss);
    }

    #[test]
    fn a_connection_that_the_client_closed_is_told_by_its_log() {
        let change = "Stopping fetch runners,maybe master or slave changed\nClosed meta://h:1\n";
        let (connected, closed) = ("Connected to meta://h:1\n", "连接数(/h:1)超过设定值1，连接将被关闭\n");
        let log = |parts: &[&str]| parts.concat();
        assert!(!closed_at_the_last_change(""));
        assert!(!closed_at_the_last_change(&log(&[change, change, connected, connected])));
        assert!(closed_at_the_last_change(&log(&[change, change, connected, connected, closed])));
        assert!(closed_at_the_last_change(&log(&[change, change, connected, closed, connected])), "logged late");
        assert!(
            closed_at_the_last_change(&log(&[change, closed, connected, change, connected])),
            "the other was later"
        );
        let healed = log(&[change, change, closed, connected, change, change, connected, connected]);
        assert!(!closed_at_the_last_change(&healed));
    }
}
