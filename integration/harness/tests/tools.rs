//! What the tools print: all of it or an error, and nothing when nobody reads.

use anyhow::{Result, ensure};
use metaq_harness::process::{Broker, Site, binary_path};
use metaq_harness::raw::Raw;
use std::fs::{self, File};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Output, Stdio};

const BRANCH: &str = "XID:7:01ab:02:uq";

/// A master that serves a registry of its own.
struct Local {
    site: Site,
    broker: Broker,
    registry: String,
}

impl Local {
    fn start(configure: impl FnOnce(&mut Site)) -> Result<Local> {
        let mut site = Site::new()?;
        let registry = TcpListener::bind("127.0.0.1:0")?.local_addr()?.to_string();
        site.set_zookeeper("zk.zkEnable", "true").set_zookeeper("zk.zkConnect", &registry);
        configure(&mut site);
        let mut broker = site.start_master(&["--local"])?;
        broker.wait_for_line("accepting messages")?;
        Ok(Local { site, broker, registry })
    }
}

/// How a command ends, as far as others see it.
#[derive(Debug, PartialEq)]
struct Ended {
    code: Option<i32>,
    said: String,
}

fn run(tool: &str, words: &[String], stdout: Stdio) -> Result<Ended> {
    let mut command = Command::new(binary_path(tool)?);
    let output = command.args(words).stdin(Stdio::null()).stdout(stdout).stderr(Stdio::piped()).spawn()?;
    let Output { status, stderr, .. } = output.wait_with_output()?;
    Ok(Ended { code: status.code(), said: String::from_utf8_lossy(&stderr).into_owned() })
}

/// What a tool prints to one that reads all of it.
fn printed(tool: &str, words: &[&str]) -> Result<String> {
    let output = Command::new(binary_path(tool)?).args(words).stdin(Stdio::null()).output()?;
    ensure!(output.status.success(), "{tool} {words:?}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8(output.stdout)?)
}

fn words(text: &str) -> Vec<String> {
    text.split_ascii_whitespace().map(str::to_owned).collect()
}

/// Every command of a tool that has none below it, as its help lists them.
fn commands(tool: &str, above: &str) -> Result<Vec<String>> {
    let mut asked = words(above);
    asked.push("--help".to_owned());
    let help = printed(tool, &asked.iter().map(String::as_str).collect::<Vec<_>>())?;
    let Some((_, listed)) = help.split_once("\nCommands:\n") else { return Ok(vec![above.trim().to_owned()]) };
    let mut all = Vec::new();
    for line in listed.lines().take_while(|line| !line.is_empty()) {
        let name = line.strip_prefix("  ").and_then(|line| line.split(' ').next()).unwrap_or_default();
        if !name.is_empty() && name != "help" {
            all.extend(commands(tool, &format!("{above} {name}"))?);
        }
    }
    Ok(all)
}

/// The disk behind standard output is full: an error. Nobody reads it: no word, and the exit code of the work itself.
/// `asked` makes the words of each of three runs.
fn check_output(tool: &str, asked: impl Fn(usize) -> Vec<String>) -> Result<()> {
    let alone = run(tool, &asked(0), Stdio::null())?;
    let full = run(tool, &asked(1), File::options().write(true).open("/dev/full")?.into())?;
    ensure!(full.code == Some(1), "{:?}: {full:?}", asked(1));
    ensure!(full.said.contains("standard output cannot be written: No space left"), "{:?}: {full:?}", asked(1));
    let (reader, writer) = std::io::pipe()?;
    drop(reader);
    let unread = run(tool, &asked(2), writer.into())?;
    ensure!(unread.said.is_empty() && unread.code == alone.code, "{:?}: {unread:?}, otherwise {alone:?}", asked(2));
    let may_tell_more = asked(0).iter().any(|word| word == "promote");
    ensure!(alone.code == Some(0) || may_tell_more, "{:?}: {alone:?}", asked(0));
    Ok(())
}

/// The words behind a command of `metaq`; files of their own for each run, below `dir`.
fn metaq_words(command: &str, dir: &Path, number: usize) -> String {
    let at = |name: &str| dir.join(name).display().to_string();
    match command {
        "put" => format!("--topic test {}", at("lines")),
        "consume" => "--topic test".to_owned(),
        "topic describe" => "test".to_owned(),
        "promote" => format!("--dry-run --config {}", at("node/server.ini")),
        "txn commit" | "txn rollback" | "txn forget" => BRANCH.to_owned(),
        "cert init" => format!("--cluster c --dir {}", at(&format!("authority{number}"))),
        "cert issue" => format!("--host h --name n{number} --dir {}", at("certs")),
        "cert show" => at("certs/ca.pem"),
        "topic list" | "replica status" | "txn list" => String::new(),
        other => panic!("a new command, 'metaq {other}': give it words here"),
    }
}

#[test]
fn no_command_panics_or_is_silent_about_what_could_not_be_printed() -> Result<()> {
    let local = Local::start(|_| {})?;
    let dir = local.site.path();
    fs::write(dir.join("lines"), "one\ntwo\n")?;
    fs::create_dir(dir.join("node"))?;
    let mut node = Site::new()?;
    node.set("dataPath", &dir.join("node/data").display().to_string()).write_ini()?;
    fs::copy(node.ini_path(), dir.join("node/server.ini"))?;
    let mut raw = Raw::connect(&local.broker.address)?;
    raw.put("test", 0, b"a message")?.stored()?;
    for verb in ["BEGIN", "PREPARE"] {
        ensure!(raw.ask(&format!("transaction {BRANCH} s {verb} 7"))?.code == 200, "{verb}");
        if verb == "BEGIN" {
            raw.put_with("test", 0, &format!("0 -1 {BRANCH}"), b"x")?;
        }
    }
    printed("metaq", &["cert", "init", "--cluster", "c", "--dir", &dir.join("certs").display().to_string()])?;
    for command in commands("metaq", "")? {
        for format in ["table", "json"] {
            check_output("metaq", |number| {
                let number = if format == "json" { number + 3 } else { number };
                let behind = metaq_words(&command, dir, number);
                words(&format!("--zk {} --format {format} {command} {behind}", local.registry))
            })?;
        }
        check_output("metaq", |_| words(&format!("{command} --help")))?;
    }
    check_output("metaq", |_| words("--version"))?;
    Ok(())
}

#[test]
fn the_load_generator_ends_as_well_when_nobody_reads() -> Result<()> {
    let site = Site::new()?;
    let broker = site.start_master(&[])?;
    let to_broker = format!("--broker {} --seconds 0.05 --warmup 0", broker.address);
    for command in commands("metaq-load", "")? {
        check_output("metaq-load", |_| words(&format!("{command} --help")))?;
        let behind = match command.as_str() {
            "put" | "get" | "txn" | "latency" => to_broker.clone(),
            "machine" => format!("--seconds 0.02 --dir {}", site.path().display()),
            // They take minutes, and print through the same function.
            "suite" | "replica" => continue,
            other => panic!("a new command, 'metaq-load {other}': give it words here"),
        };
        for json in ["", "--json"] {
            check_output("metaq-load", |_| words(&format!("{json} {command} {behind}")))?;
        }
    }
    Ok(())
}
