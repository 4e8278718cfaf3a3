//! What the tools print: all of it or an error, nothing when nobody reads, and what `metaq group` tells of consumers.

use anyhow::{Context, Result, ensure};
use metaq_harness::pair::{slave_site, start_slave};
use metaq_harness::ports::free_address;
use metaq_harness::process::{Broker, Site, binary_path, wait_until};
use metaq_harness::raw::Raw;
use metaq_harness::zookeeper::ZooKeeper;
use serde_json::Value;
use std::fs::{self, File};
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use zookeeper_client::{Acls, Client, CreateMode};

/// Prepared, and nobody has decided.
const BRANCH: &str = "XID:7:01ab:02:uq";
/// Committed by the tool.
const DECIDED: &str = "XID:7:01ab:03:uq";

/// A master that serves a registry of its own.
struct Local {
    site: Site,
    broker: Broker,
    registry: String,
}

impl Local {
    fn start(configure: impl FnOnce(&mut Site)) -> Result<Local> {
        let mut site = Site::new()?;
        let registry = free_address()?.to_string();
        site.set_zookeeper("zk.zkEnable", "true").set_zookeeper("zk.zkConnect", &registry);
        configure(&mut site);
        let mut broker = site.start_master(&["--local"])?;
        broker.wait_for_line("accepting messages")?;
        broker.wait_for_line("registered in zookeeper")?;
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
    // What 'metaq consume' says of where it begins is meant for whoever looks on.
    let silent = unread.said.lines().all(|line| line.contains("reading from"));
    ensure!(silent && unread.code == alone.code, "{:?}: {unread:?}, otherwise {alone:?}", asked(2));
    let may_tell_more = asked(0).iter().any(|word| word == "promote");
    ensure!(alone.code == Some(0) || may_tell_more, "{:?}: {alone:?}", asked(0));
    Ok(())
}

/// The words behind a command of `metaq`; files of their own for each run, below `dir`.
fn metaq_words(command: &str, dir: &Path, number: usize) -> String {
    let at = |name: &str| dir.join(name).display().to_string();
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../golden/data-clean/data");
    match command {
        "put" => format!("--topic test {}", at("lines")),
        "consume" => "--topic test".to_owned(),
        "topic describe" => "test".to_owned(),
        "group describe" => "readers".to_owned(),
        "promote" => format!("--dry-run --config {}", at("node/server.ini")),
        "log verify" => format!("--data-path {} --topic test", golden.display()),
        "log dump" => golden.join("test-0/00000000000000033914.meta").display().to_string(),
        "txn commit" | "txn rollback" => BRANCH.to_owned(),
        "txn forget" => DECIDED.to_owned(),
        "cert init" => format!("--cluster c --dir {}", at(&format!("authority{number}"))),
        "cert issue" => format!("--host h --name n{number} --dir {}", at("certs")),
        "cert show" => at("certs/ca.pem"),
        "topic list" | "group list" | "replica status" | "txn list" => String::new(),
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
    for branch in [BRANCH, DECIDED] {
        ensure!(raw.ask(&format!("transaction {branch} s BEGIN 7"))?.code == 200);
        raw.put_with("test", 0, &format!("0 -1 {branch}"), b"x")?;
        ensure!(raw.ask(&format!("transaction {branch} s PREPARE 7"))?.code == 200);
    }
    printed("metaq", &["--broker", &local.broker.address, "txn", "commit", DECIDED, "--yes"])?;
    Registry::connect(&local.registry)?.write("readers/offsets/test/0-0", "-7-0")?;
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
fn who_asks_too_little_or_the_wrong_node_is_told_what_to_do() -> Result<()> {
    let promote = run("metaq", &words("promote"), Stdio::null())?;
    assert_eq!(promote.code, Some(64), "{promote:?}");
    for part in ["--dry-run", "metaServer.sh restart", "without --slave-id"] {
        assert!(promote.said.contains(part), "{promote:?}");
    }
    let master_site = slave_site(|_| {})?;
    let master = master_site.start_master(&[])?;
    let slave_site = slave_site(|_| {})?;
    let slave = start_slave(&slave_site, 0, &master)?;
    for command in ["list".to_owned(), format!("commit {BRANCH}")] {
        let asked = run("metaq", &words(&format!("txn {command} --broker {}", slave.address)), Stdio::null())?;
        let told = format!("{} is a slave", slave.address);
        assert!(asked.code == Some(1) && asked.said.contains(&told), "{command}: {asked:?}");
    }
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

/// A broker that takes nothing any more costs the time of one line, not of each; whoever goes on knows from where.
#[test]
fn putting_ends_with_the_first_line_that_was_given_up_and_says_how_to_go_on() -> Result<()> {
    let mut site = Site::new()?;
    site.topic("test", &[("numPartitions", "2")]);
    let broker = site.start_master(&[])?;
    let ledger = site.path().join("ledger");
    let mut command = Command::new(binary_path("metaq")?);
    command.args(["--broker", &broker.address, "put", "--topic", "test", "--give-up", "1", "--ledger"]).arg(&ledger);
    let mut putting = command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn()?;
    let mut lines = putting.stdin.take().context("a pipe")?;
    lines.write_all(b"1\n2\n3\n4\n5\n")?;
    wait_until("five lines to be stored", || {
        Ok((fs::read_to_string(&ledger).is_ok_and(|told| told.matches("\"stored\"").count() == 5)).then_some(()))
    })?;
    broker.kill()?;
    // The input has no end: nobody waits for it.
    lines.write_all(&b"x\n".repeat(40))?;
    let ended = wait_until("it to end", || Ok(putting.try_wait()?));
    // One that reads on ends with its input.
    drop(lines);
    let Output { status, stderr, .. } = putting.wait_with_output()?;
    let said = String::from_utf8(stderr)?;
    ended.with_context(|| said.clone())?;
    ensure!(status.code() == Some(1), "{said}");
    for words in ["; 5 lines are stored; when that is mended go on from line 6", "that line of the input", "--ledger"] {
        ensure!(said.contains(words), "{words} in {said}");
    }
    let given_up: Vec<_> =
        said.lines().filter_map(|line| line.strip_prefix("metaq: line ")?.split(':').next()).collect();
    // One for each partition: they were under way together.
    ensure!(given_up.iter().all(|line| ["6", "7"].contains(line)), "{said}");
    Ok(())
}

/// What the brokers print, who print nothing else.
#[test]
fn the_brokers_say_when_what_they_were_asked_for_cannot_be_written() -> Result<()> {
    let site = Site::new()?;
    site.write_ini()?;
    let checked = format!("--check-config --config {}", site.ini_path().display());
    for binary in ["metaq-master", "metaq-slave"] {
        for asked in ["--help", "--version", &*checked, &*format!("--slave-id 3 {checked}")] {
            if binary == "metaq-slave" || !asked.contains("--slave-id") {
                check_output(binary, |_| words(asked))?;
            }
        }
        let wrong = run(binary, &words("--nonsense"), Stdio::null())?;
        ensure!(wrong.code == Some(2) && wrong.said.contains("--nonsense"), "{wrong:?}");
    }
    Ok(())
}

/// Writes as consumers do.
struct Registry {
    runtime: tokio::runtime::Runtime,
    client: Client,
}

impl Registry {
    fn connect(address: &str) -> Result<Registry> {
        let runtime = tokio::runtime::Runtime::new()?;
        let client = runtime.block_on(Client::connector().with_server_version(3, 4, 0).connect(address))?;
        Ok(Registry { runtime, client })
    }

    /// `path` lies below `consumers`.
    fn write(&self, path: &str, text: &str) -> Result<()> {
        let path = format!("/meta/consumers/{path}");
        let options = CreateMode::Persistent.with_acls(Acls::anyone_all());
        let (parent, _) = path.rsplit_once('/').context("a path")?;
        self.runtime.block_on(self.client.mkdir(parent, &options))?;
        self.runtime.block_on(self.client.create(&path, text.as_bytes(), &options))?;
        Ok(())
    }
}

/// All segments of `test`-0 but the last are gone, `test`-1 holds one message, `test`-2 none.
struct Held {
    first: u64,
    end: u64,
}

fn fill(broker: &Broker) -> Result<Held> {
    let mut raw = Raw::connect(&broker.address)?;
    for _ in 0..8 {
        raw.put("test", 0, &[b'x'; 1000])?.stored()?;
    }
    raw.put("test", 1, b"x")?.stored()?;
    let end = raw.end("test", 0)?;
    let mut segment_of =
        |at: u64| -> Result<u64> { Ok(raw.ask(&format!("offset test raw 0 {at} 7"))?.text().parse()?) };
    let last = segment_of(end - 1)?;
    // Nothing that can go is left then, so that the first offset stays.
    wait_until("all segments but the last to go", || Ok((segment_of(0)? == last).then_some(())))?;
    Ok(Held { first: last, end })
}

/// The rows of a group by `TOPIC BROKER-NUMBER`.
fn describe(registry: &str, words: &[&str]) -> Result<Vec<(String, Value)>> {
    let mut all = vec!["--zk", registry, "--format", "json", "group", "describe"];
    all.extend(words);
    let rows: Vec<Value> = serde_json::from_str(&printed("metaq", &all)?)?;
    let name =
        |row: &Value| format!("{} {}-{}", row["topic"].as_str().unwrap_or_default(), row["broker"], row["partition"]);
    Ok(rows.into_iter().map(|row| (name(&row), row)).collect())
}

fn small_segments(site: &mut Site) {
    site.set("maxSegmentSize", "2048").set("deleteWhen", "0/1 * * * * ?").set("deletePolicy", "delete,1s");
    site.topic("test", &[("numPartitions", "3")]).topic("other", &[]);
}

/// F45: what nobody owns is told, with what can be read, whatever else stands there.
#[test]
fn f45_a_group_is_told_partition_by_partition() -> Result<()> {
    let local = Local::start(small_segments)?;
    let held = fill(&local.broker)?;
    check_groups(&local.registry, &held)?;
    let zookeeper = ZooKeeper::start()?;
    let mut site = Site::new()?;
    small_segments(&mut site);
    site.set_zookeeper("zk.zkEnable", "true").set_zookeeper("zk.zkConnect", &zookeeper.connect());
    let mut broker = site.start_master(&[])?;
    broker.wait_for_line("accepting messages")?;
    broker.wait_for_line("registered in zookeeper")?;
    let held = fill(&broker)?;
    check_groups(&zookeeper.connect(), &held)
}

fn check_groups(address: &str, Held { first, end }: &Held) -> Result<()> {
    let registry = Registry::connect(address)?;
    let empty = printed("metaq", &["--zk", address, "group", "list"])?;
    assert!(empty.contains("no consumer group"), "{empty}");
    // One that lives and owns one partition of three; a topic that is gone; a broker that never was.
    registry.write("readers/ids/readers_a", "test,other")?;
    registry.write("readers/owners/test/0-0", "readers_a")?;
    registry.write("readers/offsets/test/0-0", &format!("-5468931697623957504-{first}"))?;
    registry.write("readers/offsets/test/0-1", "0")?;
    registry.write("readers/offsets/gone/0-0", "-7-155")?;
    registry.write("readers/offsets/test/9-0", "-7-155")?;
    // A dead one's: below the first offset, beyond the end, garbage, and a node that is none of a partition.
    registry.write("dead/owners/test", "")?;
    registry.write("dead/offsets/test/0-0", "-7-10")?;
    registry.write("dead/offsets/test/0-1", "-7-999")?;
    registry.write("dead/offsets/test/0-2", "12x\u{1b}[2J")?;
    registry.write("dead/offsets/test/junk", "1")?;
    registry.write("meta-slave-group_0/ids/meta-slave-group_0_b", "test")?;

    let rows = describe(address, &["readers"])?;
    let row = |rows: &[(String, Value)], name: &str| -> Result<Value> {
        let found = rows.iter().find(|(other, _)| other == name);
        Ok(found.with_context(|| format!("{name} in {rows:?}"))?.1.clone())
    };
    let zero = row(&rows, "test 0-0")?;
    let expected = (Value::from("readers_a"), Value::from(*first), Value::from(*end), Value::from("owned"));
    assert_eq!((zero["owner"].clone(), zero["first"].clone(), zero["end"].clone(), zero["state"].clone()), expected);
    assert_eq!(zero["lag_bytes"], end - first);
    let one = row(&rows, "test 0-1")?;
    assert!(
        one["owner"].is_null() && one["state"] == "no owner" && one["stored"] == 0 && one["lag_bytes"] == 21,
        "{one}"
    );
    let two = row(&rows, "test 0-2")?;
    assert!(two["stored"].is_null() && two["lag_bytes"].is_null() && two["end"] == 0, "{two}");
    assert_eq!(row(&rows, "gone 0-0")?["state"], "topic gone");
    assert_eq!(row(&rows, "test 9-0")?["state"], "no broker");
    assert_eq!(row(&rows, "other 0-0")?["state"], "no owner");
    assert_eq!(describe(address, &["readers", "--topic", "other"])?.len(), 1);

    let rows = describe(address, &["dead", "--growing"])?;
    let zero = row(&rows, "test 0-0")?;
    assert!(zero["lag_bytes"] == end - first && zero["gone_bytes"] == first - 10, "{zero}");
    let one = row(&rows, "test 0-1")?;
    assert!(one["lag_bytes"] == 0 && one["note"].to_string().contains("978 bytes beyond the end"), "{one}");
    assert!(row(&rows, "test 0-2")?["note"].to_string().contains("12x"), "{rows:?}");
    assert!(row(&rows, "test null-null")?["note"].to_string().contains("junk"), "{rows:?}");
    let table = printed("metaq", &["--zk", address, "group", "describe", "dead"])?;
    assert!(table.contains("'12x\\x1b[2J'") && !table.contains('\u{1b}'), "{table}");

    assert!(describe(address, &["meta-slave-group_0"])?.iter().all(|(_, row)| row["state"] == "slave"));
    let listed = printed("metaq", &["--zk", address, "group", "list"])?;
    let line =
        |name: &str| listed.lines().find(|line| line.trim_start().starts_with(name)).unwrap_or_default().to_owned();
    assert!(line("meta-slave-group_0").contains("a slave's"), "{listed}");
    assert_eq!(words(&line("readers"))[1..5], ["1", "3", "6", "3"], "members, topics, partitions, no owner: {listed}");
    let unknown = run("metaq", &words(&format!("--zk {address} group describe nobody")), Stdio::null())?;
    assert!(unknown.code == Some(1) && unknown.said.contains("metaq group list"), "{unknown:?}");
    Ok(())
}

/// What comes while nobody reads is told as growth.
#[test]
fn f45_a_lag_that_grows_is_told() -> Result<()> {
    let local = Local::start(|_| {})?;
    Registry::connect(&local.registry)?.write("readers/offsets/test/0-0", "-7-0")?;
    let mut raw = Raw::connect(&local.broker.address)?;
    raw.put("test", 0, b"x")?.stored()?;
    assert_eq!(describe(&local.registry, &["readers", "--growing"])?[0].1["state"], "no owner");
    let (done, told) = std::sync::mpsc::channel();
    let registry = local.registry.clone();
    let looking = std::thread::spawn(move || {
        let rows = describe(&registry, &["readers", "--growing"]);
        let _ = done.send(());
        rows
    });
    while told.try_recv().is_err() {
        raw.put("test", 0, b"x")?.stored()?;
    }
    let rows = looking.join().expect("it does not panic")?;
    assert_eq!(rows[0].1["state"], "no owner, lag growing");
    Ok(())
}

/// F53: where reading begins is said, and what comes after the start is read where nothing was before.
#[test]
fn f53_consume_says_where_it_begins() -> Result<()> {
    let Local { site, broker, registry } = Local::start(|_| {})?;
    let mut raw = Raw::connect(&broker.address)?;
    let consume = |behind: &str| words(&format!("--zk {registry} consume --topic test {behind}"));
    let mut follower = Command::new("sh");
    follower.args(["-c", "exec \"$0\" \"$@\" >&2"]).arg(binary_path("metaq")?);
    follower.args(consume("--from end --follow"));
    let mut follower = Broker::watch(&site, "consume", &mut follower)?;
    follower.wait_for_line("test-0 of broker 0: reading from 0 (--from end), where nothing is yet")?;
    raw.put("test", 0, b"first")?.stored()?;
    follower.wait_for_line("first")?;
    raw.put("test", 0, b"second")?.stored()?;
    for (behind, said) in [
        ("", "reading from 0 (--from start)"),
        ("--from end", "reading from 51 (--from end)"),
        ("--from 25", "reading from 25 (--from 25)"),
        ("--newest 1", "reading from 25 (--from newest:1)"),
    ] {
        let ended = run("metaq", &consume(behind), Stdio::null())?;
        assert!(ended.code == Some(0) && ended.said.contains(said), "{behind}: {ended:?}");
    }
    let ended = run("metaq", &consume("--from 7"), Stdio::null())?;
    assert!(ended.code == Some(1) && ended.said.contains("no message begins at 7"), "{ended:?}");
    Ok(())
}

/// A topic into which nothing was put yet is there, also where a broker is asked without a registry.
#[test]
fn an_empty_topic_is_read_and_followed_at_a_broker_alone() -> Result<()> {
    let mut site = Site::new()?;
    site.topic("empty", &[("numPartitions", "3")]);
    let broker = site.start_master(&[])?;
    let consume = |behind: &str| words(&format!("--broker {} consume --topic {behind}", broker.address));
    let ended = run("metaq", &consume("empty"), Stdio::null())?;
    assert!(ended.code == Some(0) && ended.said.is_empty(), "{ended:?}");
    for (behind, said) in [
        ("empty --partition 3", "topic 'empty' has no partition 3; it has the numbers 0 to 2"),
        ("nobody", "no broker announces the topic 'nobody'; 'metaq topic list'"),
    ] {
        let ended = run("metaq", &consume(behind), Stdio::null())?;
        assert!(ended.code == Some(1) && ended.said.contains(said), "{behind}: {ended:?}");
    }
    let mut follower = Command::new("sh");
    follower.args(["-c", "exec \"$0\" \"$@\" >&2"]).arg(binary_path("metaq")?).args(consume("empty --follow"));
    let mut follower = Broker::watch(&site, "consume", &mut follower)?;
    for partition in 0..3 {
        follower.wait_for_line(&format!("empty-{partition} of broker 0: reading from 0 (--from start)"))?;
        Raw::connect(&broker.address)?.put("empty", partition, format!("one-{partition}").as_bytes())?.stored()?;
        follower.wait_for_line(&format!("one-{partition}"))?;
    }
    Ok(())
}
