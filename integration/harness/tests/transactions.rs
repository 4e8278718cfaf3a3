//! Transactions over the wire: every text, what becomes visible when, restarts, and a promotion.

use anyhow::{Context, Result};
use metaq_harness::pair::{assert_same, slave_site, start_slave, wait_level};
use metaq_harness::process::{Broker, Site, wait_until};
use metaq_harness::raw::{Raw, Reply};
use metaq_types::limits::TOLD_WAIT_MAX;
use std::time::Instant;

const XID: &str = "XID:100:01ab:02:uq";

fn topics(site: &mut Site) {
    site.topic("test", &[("numPartitions", "4")]).topic("closed", &[("acceptPublish", "false")]);
}

fn site() -> Result<Site> {
    slave_site(topics)
}

fn command(raw: &mut Raw, key: &str, kind: &str) -> Result<Reply> {
    raw.ask(&format!("transaction {key} s {kind} 7"))
}

#[track_caller]
fn check(reply: &Reply, code: i32, text: &str) {
    assert_eq!((reply.code, reply.text()), (code, text.to_owned()));
}

fn put(raw: &mut Raw, key: &str, partition: i32, body: &[u8]) -> Result<Reply> {
    raw.put_with("test", partition, &format!("0 -1 {key}"), body)
}

/// A transaction of one message a partition.
fn fill(raw: &mut Raw, key: &str, partitions: i32) -> Result<()> {
    check(&command(raw, key, "BEGIN")?, 200, "");
    for partition in 0..partitions {
        let reply = put(raw, key, partition, key.as_bytes())?;
        let text = reply.text();
        assert!(reply.code == 200 && text.ends_with(&format!(" {partition} -1")), "{text}");
    }
    Ok(())
}

/// How many messages with this body each partition holds.
fn held(raw: &mut Raw, body: &str, partitions: i32) -> Result<Vec<usize>> {
    (0..partitions)
        .map(|partition| {
            let records = raw.read_all("test", partition, 0)?;
            Ok(records.iter().filter(|record| record.body == body.as_bytes()).count())
        })
        .collect()
}

fn recover(raw: &mut Raw) -> Result<Vec<String>> {
    let reply = raw.ask("transaction null s RECOVER 7")?;
    Ok(reply.text().split("\r\n").filter(|key| !key.is_empty()).map(str::to_owned).collect())
}

/// The rows of wire-protocol, "6.2" and "6.3", on a real socket.
#[test]
fn every_error_has_its_text() -> Result<()> {
    let site = site()?;
    let master = site.start_master(&[])?;
    let mut raw = Raw::connect(&master.address)?;
    let local = "Local transaction 'TX:s:1' has not been started.";
    let xa = format!("XAException:code=-4,msg=XA transaction '{XID}' has not been started.");
    for kind in ["COMMIT_ONE_PHASE", "COMMIT_TWO_PHASE", "ROLLBACK"] {
        check(&command(&mut raw, "TX:s:1", kind)?, 500, local);
        check(&command(&mut raw, XID, kind)?, 500, &xa);
    }
    check(&command(&mut raw, XID, "PREPARE")?, 500, &xa);
    check(&command(&mut raw, XID, "FORGET")?, 200, "");
    check(&command(&mut raw, "TX:s:1", "FORGET")?, 500, "XAException:code=-4,msg=TX:s:1 is not a valid xid");
    check(&command(&mut raw, "null", "FORGET")?, 500, "XAException:code=-4,msg=null is not a valid xid");
    check(&put(&mut raw, "TX:s:1", 0, b"x")?, 500, local);
    check(&put(&mut raw, XID, 0, b"x")?, 500, &format!("XA transaction '{XID}' has not been started."));
    check(&command(&mut raw, "TX:s:1", "BEGIN")?, 200, "");
    check(&command(&mut raw, "TX:s:1", "BEGIN")?, 200, "");
    let not_local = "XAException:code=-3,msg=Prepare not implemented on Local Transactions.";
    check(&command(&mut raw, "TX:s:1", "PREPARE")?, 500, not_local);
    check(&put(&mut raw, "TX:s:1", -1, b"x")?, 500, "Invalid partition for transaction command:-1");
    check(&put(&mut raw, "TX:s:1", 4, b"x")?, 500, "wrong partition 4");
    let unknown = raw.put_with("nope", 0, "0 -1 TX:s:1", b"x")?;
    check(&unknown, 500, "The server do not accept topic nope");
    assert_eq!(raw.put_with("closed", 0, "0 -1 TX:s:1", b"x")?.code, 403);
    let wrong = raw.put_with("test", 0, "0 5 TX:s:1", b"x")?;
    assert!(wrong.code == 500 && wrong.text().starts_with("Checksum failure"), "{}", wrong.text());
    check(&command(&mut raw, "TX:s:1", "COMMIT_ONE_PHASE")?, 200, "");
    check(&command(&mut raw, XID, "BEGIN")?, 200, "");
    check(&command(&mut raw, XID, "PREPARE")?, 200, "3");
    fill(&mut raw, XID, 1)?;
    let not_prepared = "XAException:code=-6,msg=Cannot do 2 phase commit if the transaction has not been prepared.";
    check(&command(&mut raw, XID, "COMMIT_TWO_PHASE")?, 500, not_prepared);
    check(&command(&mut raw, XID, "PREPARE")?, 200, "0");
    check(&command(&mut raw, XID, "PREPARE")?, 500, "XAException:code=-6,msg=Cannot call prepare now.");
    let late = put(&mut raw, XID, 0, b"late")?;
    assert!(late.code == 500 && late.text().starts_with("not stored: "), "{}", late.text());
    // Interleaved: another connection ends the branch.
    let mut other = Raw::connect(&master.address)?;
    assert_eq!(recover(&mut other)?, [XID]);
    assert_eq!(other.ask("transaction null s RECOVER other 7")?.text(), "");
    assert_eq!(other.ask("transaction null s RECOVER uq 7")?.text(), XID);
    check(&command(&mut other, XID, "COMMIT_TWO_PHASE")?, 200, "");
    check(&command(&mut raw, XID, "COMMIT_TWO_PHASE")?, 500, &xa);
    assert_eq!(held(&mut raw, XID, 1)?, [1]);
    let stats = raw.ask("stats")?.text();
    for line in ["tx_begin 4", "tx_xa_begin 2", "tx_commit 8", "tx_rollback 2"] {
        assert!(stats.contains(&format!("\r\n{line}\r\n")), "no line {line} in {stats}");
    }
    Ok(())
}

#[test]
fn nothing_is_visible_before_the_commit_and_all_of_it_after() -> Result<()> {
    let site = site()?;
    let master = site.start_master(&[])?;
    let (mut raw, mut reader) = (Raw::connect(&master.address)?, Raw::connect(&master.address)?);
    fill(&mut raw, "TX:s:1", 4)?;
    let second = put(&mut raw, "TX:s:1", 0, b"TX:s:1")?;
    assert_eq!(second.code, 200);
    raw.put("test", 0, b"between")?.stored()?;
    assert_eq!(held(&mut reader, "TX:s:1", 4)?, [0; 4]);
    check(&command(&mut raw, "TX:s:1", "COMMIT_ONE_PHASE")?, 200, "");
    assert_eq!(held(&mut reader, "TX:s:1", 4)?, [2, 1, 1, 1]);
    // One run, in the order of the puts, behind what came before the commit, with the ids that were told.
    let records = reader.read_all("test", 0, 0)?;
    let bodies: Vec<_> = records.iter().map(|record| String::from_utf8_lossy(&record.body).into_owned()).collect();
    assert_eq!(bodies, ["between", "TX:s:1", "TX:s:1"]);
    assert_eq!(second.text(), format!("{} 0 -1", records[2].id));
    fill(&mut raw, "TX:s:2", 4)?;
    check(&command(&mut raw, "TX:s:2", "ROLLBACK")?, 200, "");
    assert_eq!(held(&mut reader, "TX:s:2", 4)?, [0; 4]);
    Ok(())
}

/// What is answered to a question about messages whose commit was answered; anew where their sync took longer than a broker
/// waits for it.
fn in_time(mut ask: impl FnMut() -> Result<Reply>, is_early: impl Fn(&Reply) -> bool) -> Result<Reply> {
    loop {
        let asked = Instant::now();
        let reply = ask()?;
        if asked.elapsed() < TOLD_WAIT_MAX || !is_early(&reply) {
            return Ok(reply);
        }
    }
}

/// The answer to a commit does not wait for the sync of the partition, which comes with the next: the question that
/// follows it does, be it for the messages or for the end.
#[test]
fn what_a_commit_was_answered_for_is_read_by_the_next_get() -> Result<()> {
    let site = site()?;
    let master = site.start_master(&[])?;
    let (mut writer, mut reader) = (Raw::connect(&master.address)?, Raw::connect(&master.address)?);
    let mut ends = [0; 4];
    for number in 1..=100 {
        let key = format!("TX:s:{number}");
        fill(&mut writer, &key, 4)?;
        check(&command(&mut writer, &key, "COMMIT_ONE_PHASE")?, 200, "");
        for (partition, end) in ends.iter_mut().enumerate() {
            let reply = in_time(|| reader.get("test", partition as i32, *end, 1 << 20), |reply| reply.code == 404)?;
            let records = reply.records(*end as u64);
            let bodies: Vec<_> = records.iter().map(|record| record.body.as_slice()).collect();
            assert_eq!(bodies, [key.as_bytes()], "partition {partition} at {end}");
            *end += 20 + key.len() as i64;
        }
        fill(&mut writer, &key, 4)?;
        check(&command(&mut writer, &key, "COMMIT_ONE_PHASE")?, 200, "");
        for (partition, end) in ends.iter_mut().enumerate() {
            *end += 20 + key.len() as i64;
            let (question, code) = match partition % 2 {
                0 => (format!("get test raw {partition} {} 1024 7", i64::MAX), 301),
                _ => (format!("offset test raw {partition} {} 7", i64::MAX), 200),
            };
            let end = end.to_string();
            check(&in_time(|| reader.ask(&question), |reply| reply.text() != end)?, code, &end);
        }
    }
    Ok(())
}

#[test]
fn a_connection_that_ends_and_a_timeout_roll_back() -> Result<()> {
    let site = site()?;
    let master = site.start_master(&[])?;
    let mut raw = Raw::connect(&master.address)?;
    let mut gone = Raw::connect(&master.address)?;
    fill(&mut gone, "TX:gone:1", 2)?;
    drop(gone);
    check(&raw.ask(&format!("transaction {XID} s BEGIN 1 uq 7"))?, 200, "");
    put(&mut raw, XID, 0, b"late")?;
    wait_until("both to be over", || Ok((!raw.ask("stats transactions")?.text().contains("state ")).then_some(())))?;
    let xa = format!("XAException:code=-4,msg=XA transaction '{XID}' has not been started.");
    check(&command(&mut raw, XID, "PREPARE")?, 500, &xa);
    assert_eq!(held(&mut raw, "TX:gone:1", 2)?, [0; 2]);
    Ok(())
}

/// Prepared before a crash, decided after it; H1: what was put in between stays.
#[test]
fn prepared_branches_outlive_a_crash_and_everything_else_does_not() -> Result<()> {
    let site = site()?;
    let master = site.start_master(&[])?;
    let mut raw = Raw::connect(&master.address)?;
    let (kept, dropped) = ("XID:1:aa:01:q", "XID:1:aa:02:q");
    for key in [kept, XID] {
        fill(&mut raw, key, 4)?;
        check(&command(&mut raw, key, "PREPARE")?, 200, "0");
    }
    for key in [dropped, "TX:s:1"] {
        fill(&mut raw, key, 4)?;
    }
    fill(&mut raw, "TX:s:2", 4)?;
    check(&command(&mut raw, "TX:s:2", "COMMIT_ONE_PHASE")?, 200, "");
    master.kill()?;
    let master = site.start_master(&[])?;
    let mut raw = Raw::connect(&master.address)?;
    assert_eq!(recover(&mut raw)?, [kept, XID]);
    for partition in 0..4 {
        raw.put("test", partition, b"new")?.stored()?;
    }
    check(&command(&mut raw, kept, "COMMIT_TWO_PHASE")?, 200, "");
    check(&command(&mut raw, XID, "ROLLBACK")?, 200, "");
    assert!(master.stop()?.success());
    let master = site.start_master(&[])?;
    let mut raw = Raw::connect(&master.address)?;
    assert!(recover(&mut raw)?.is_empty());
    for (body, count) in [(kept, 1), ("new", 1), ("TX:s:2", 1), (XID, 0), (dropped, 0), ("TX:s:1", 0)] {
        assert_eq!(held(&mut raw, body, 4)?, [count; 4], "{body}");
    }
    Ok(())
}

/// H18: what the operator decides is told to the coordinator, also after a crash, and listed once, until it forgets.
#[test]
fn heuristic_decisions_are_kept_and_told() -> Result<()> {
    let site = site()?;
    let master = site.start_master(&[])?;
    let mut raw = Raw::connect(&master.address)?;
    let cases = [
        ("XID:1:aa:01:q", "HEURISTIC_COMMIT", "code=7", "committed", 1),
        ("XID:1:aa:02:q", "HEURISTIC_ROLLBACK", "code=6", "rolled back", 0),
        ("XID:1:aa:03:q", "HEURISTIC_COMPLETE", "code=8", "completed", 0),
    ];
    for (key, verb, ..) in cases {
        fill(&mut raw, key, 2)?;
        assert_eq!(command(&mut raw, key, verb)?.code, 500, "not prepared");
        check(&command(&mut raw, key, "PREPARE")?, 200, "0");
        check(&command(&mut raw, key, verb)?, 200, "");
    }
    master.kill()?;
    let master = site.start_master(&[])?;
    let mut raw = Raw::connect(&master.address)?;
    assert_eq!(recover(&mut raw)?, cases.map(|(key, ..)| key));
    for (key, _, code, words, count) in cases {
        let text = format!("XAException:{code},msg=XA transaction '{key}' has been heuristically {words}.");
        check(&command(&mut raw, key, "COMMIT_TWO_PHASE")?, 500, &text);
        assert_eq!(held(&mut raw, key, 2)?, [count; 2]);
        assert!(recover(&mut raw)?.contains(&key.to_owned()), "the refusal ends nothing");
        check(&command(&mut raw, key, "FORGET")?, 200, "");
    }
    assert!(recover(&mut raw)?.is_empty());
    master.kill()?;
    let master = site.start_master(&[])?;
    assert!(recover(&mut Raw::connect(&master.address)?)?.is_empty());
    Ok(())
}

fn wait_journal(master: &Broker, slave: &Site) -> Result<()> {
    let journal = |site: &Site| site.data().join(".metaq/journal/$journal-0/00000000000000000000.meta");
    let _ = master;
    let path = journal(slave);
    wait_until("the slave to hold the journal", || {
        Ok(std::fs::metadata(&path).ok().filter(|file| file.len() > 0).map(|_| ()))
    })
}

/// The original loses all of this: a promoted slave lists the branches and carries out what is decided.
#[test]
fn prepared_branches_are_there_after_a_promotion() -> Result<()> {
    let (master_site, slave_site) = (site()?, slave_site(topics)?);
    let master = master_site.start_master(&[])?;
    let slave = start_slave(&slave_site, 0, &master)?;
    let mut raw = Raw::connect(&master.address)?;
    let keys: Vec<String> = (0..8).map(|branch| format!("XID:1:aa:{branch:02x}:q")).collect();
    for key in &keys {
        fill(&mut raw, key, 4)?;
        check(&command(&mut raw, key, "PREPARE")?, 200, "0");
    }
    check(&command(&mut raw, &keys[0], "COMMIT_TWO_PHASE")?, 200, "");
    fill(&mut raw, "TX:s:1", 4)?;
    check(&command(&mut raw, "TX:s:1", "COMMIT_ONE_PHASE")?, 200, "");
    wait_journal(&master, &slave_site)?;
    wait_level(&master, &slave, "test", 4)?;
    assert_same(&master_site.data(), &slave_site.data())?;
    let refusal = command(&mut Raw::connect(&slave.address)?, XID, "BEGIN")?;
    assert!(refusal.code == 500 && refusal.text().contains(&master.address), "{}", refusal.text());
    master.kill()?;
    assert!(slave.stop()?.success());
    let promoted = slave_site.start_slave(&[]).context("the promotion")?;
    let mut raw = Raw::connect(&promoted.address)?;
    assert_eq!(recover(&mut raw)?, keys[1..]);
    for (branch, key) in keys[1..].iter().enumerate() {
        let kind = if branch % 2 == 0 { "COMMIT_TWO_PHASE" } else { "ROLLBACK" };
        check(&command(&mut raw, key, kind)?, 200, "");
    }
    for (branch, key) in keys.iter().enumerate() {
        let count = usize::from(branch == 0 || branch % 2 == 1);
        assert_eq!(held(&mut raw, key, 4)?, [count; 4], "{key}");
    }
    assert_eq!(held(&mut raw, "TX:s:1", 4)?, [1; 4]);
    Ok(())
}

/// The master dies in the middle of commits: whatever the slave has of them, every reader of the promoted one sees each
/// transaction whole or not at all, each that was answered and copied is there, and none twice.
#[test]
fn commits_are_whole_after_a_promotion_in_the_middle_of_them() -> Result<()> {
    for round in 0..3 {
        let (master_site, slave_site) = (site()?, slave_site(topics)?);
        let master = master_site.start_master(&[])?;
        let slave = start_slave(&slave_site, 0, &master)?;
        let writers: Vec<_> = (0..4)
            .map(|writer| {
                let address = master.address.clone();
                std::thread::spawn(move || commit_until_it_dies(&address, writer))
            })
            .collect();
        let mut reader = Raw::connect(&slave.address)?;
        wait_until("the slave to hold some", || {
            let held = reader.get("test", 3, i64::MAX, 1024)?;
            Ok((held.code == 301 && held.text().parse::<u64>()? > 2000 * (round + 1)).then_some(()))
        })?;
        master.kill()?;
        let asked: Vec<Vec<String>> = writers.into_iter().map(|writer| writer.join().expect("no panic")).collect();
        assert!(slave.stop()?.success());
        let promoted = slave_site.start_slave(&[]).context("the promotion")?;
        let mut raw = Raw::connect(&promoted.address)?;
        let partitions: Vec<Vec<String>> = (0..4)
            .map(|partition| {
                let records = raw.read_all("test", partition, 0)?;
                Ok(records.iter().map(|record| String::from_utf8_lossy(&record.body).into_owned()).collect())
            })
            .collect::<Result<_>>()?;
        for keys in &asked {
            let whole: Vec<bool> = keys.iter().map(|key| whole(&partitions, key)).collect();
            // Of one connection a prefix: what was committed later is not there without what was before it.
            assert!(whole.is_sorted_by(|earlier, later| earlier >= later), "round {round}: {whole:?}");
        }
        assert!(recover(&mut raw)?.is_empty());
    }
    Ok(())
}

/// The keys of the commits that were asked for, until the connection ends.
fn commit_until_it_dies(address: &str, writer: u32) -> Vec<String> {
    let mut keys = Vec::new();
    let Ok(mut raw) = Raw::connect(address) else { return keys };
    for number in 0.. {
        let key = format!("TX:w{writer}:{number}");
        if fill_quietly(&mut raw, &key).is_err() {
            break;
        }
        keys.push(key.clone());
        if command(&mut raw, &key, "COMMIT_ONE_PHASE").is_err() {
            break;
        }
    }
    keys
}

fn fill_quietly(raw: &mut Raw, key: &str) -> Result<()> {
    command(raw, key, "BEGIN")?;
    (0..4).try_for_each(|partition| put(raw, key, partition, key.as_bytes()).map(drop))
}

#[track_caller]
fn whole(partitions: &[Vec<String>], key: &str) -> bool {
    let counts: Vec<usize> = partitions.iter().map(|held| held.iter().filter(|body| *body == key).count()).collect();
    assert!(counts == [0; 4] || counts == [1; 4], "{key}: {counts:?}");
    counts[0] == 1
}

/// What an operator does about a branch whose coordinator is gone.
#[test]
fn the_tool_lists_and_decides() -> Result<()> {
    let site = site()?;
    let master = site.start_master(&[])?;
    let mut raw = Raw::connect(&master.address)?;
    fill(&mut raw, XID, 2)?;
    check(&command(&mut raw, XID, "PREPARE")?, 200, "0");
    let run = |words: &[&str]| -> Result<std::process::Output> {
        let mut metaq = std::process::Command::new(metaq_harness::process::binary_path("metaq")?);
        Ok(metaq.args(["--broker", &master.address, "txn"]).args(words).output()?)
    };
    let tool = |words: &[&str]| -> Result<String> {
        let output = run(words)?;
        assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
        Ok(String::from_utf8(output.stdout)?)
    };
    let listed = tool(&["list", "--format", "json"])?;
    assert!(listed.contains(XID) && listed.contains("\"state\":\"prepared\""), "{listed}");
    // What nobody has decided yet is not forgotten, and not said to be.
    for words in [&["forget", XID][..], &["forget", XID, "--yes"]] {
        let refused = run(words)?;
        assert_eq!(refused.status.code(), Some(1));
        assert!(String::from_utf8(refused.stderr)?.contains("is prepared"));
    }
    assert!(tool(&["commit", XID])?.starts_with("would commit"));
    assert_eq!(recover(&mut raw)?, [XID]);
    assert!(tool(&["commit", XID, "--yes"])?.starts_with("done"));
    assert_eq!(held(&mut raw, XID, 2)?, [1; 2]);
    assert!(tool(&["list"])?.contains("committed"));
    tool(&["forget", XID, "--yes"])?;
    assert!(tool(&["list"])?.starts_with("no transaction"));
    Ok(())
}
