//! Transactions under `ackQuorum`: what is answered outlives the master, and nothing is answered that could be lost.

use anyhow::{Context, Result};
use metaq_harness::pair::{slave_site, start_slave};
use metaq_harness::process::{Broker, Site, wait_until};
use metaq_harness::raw::{Raw, Reply};
use metaq_harness::shaky_disk::{Faults, ShakyDisk};
use rustix::process::Signal;
use std::time::Duration;

/// Long enough for a member to answer whose disk others keep busy.
const TIMEOUT_MS: &str = "1500";

fn site() -> Result<Site> {
    slave_site(|site| {
        site.set("ackQuorum", "2").set("ackTimeoutInMills", TIMEOUT_MS).topic("test", &[("numPartitions", "2")]);
    })
}

fn command(raw: &mut Raw, key: &str, kind: &str) -> Result<Reply> {
    raw.ask(&format!("transaction {key} s {kind} 7"))
}

#[track_caller]
fn check(reply: &Reply, code: i32, part: &str) {
    assert!(reply.code == code && reply.text().contains(part), "{} {}", reply.code, reply.text());
}

/// A message a partition, once there are enough members.
fn fill(raw: &mut Raw, key: &str) -> Result<()> {
    check(&command(raw, key, "BEGIN")?, 200, "");
    for partition in 0..2 {
        wait_until("the quorum to be there", || {
            let reply = raw.put_with("test", partition, &format!("0 -1 {key}"), key.as_bytes())?;
            Ok((reply.code == 200).then_some(()))
        })?;
    }
    Ok(())
}

fn held(raw: &mut Raw, body: &str) -> Result<[usize; 2]> {
    let mut count = |partition| -> Result<usize> {
        let records = raw.read_all("test", partition, 0)?;
        Ok(records.iter().filter(|record| record.body == body.as_bytes()).count())
    };
    Ok([count(0)?, count(1)?])
}

fn recover(raw: &mut Raw) -> Result<Vec<String>> {
    let reply = raw.ask("transaction null s RECOVER 7")?;
    Ok(reply.text().split("\r\n").filter(|key| !key.is_empty()).map(str::to_owned).collect())
}

/// Prepares once the journal, which has a quorum of its own, has its members too.
fn prepare(raw: &mut Raw, key: &str) -> Result<()> {
    wait_until("the quorum of the journal", || Ok((command(raw, key, "PREPARE")?.code == 200).then_some(())))
}

struct Pair {
    sites: (Site, Site),
    master: Broker,
    slave: Broker,
}

fn pair() -> Result<Pair> {
    let sites = (site()?, site()?);
    let master = sites.0.start_master(&[])?;
    let slave = start_slave(&sites.1, 0, &master)?;
    Ok(Pair { sites, master, slave })
}

/// The master is killed right after each answer: no wait for the slave to be level stands in between.
#[test]
fn what_was_answered_is_there_after_a_promotion() -> Result<()> {
    for round in 0..3 {
        let Pair { sites, master, slave } = pair()?;
        let mut raw = Raw::connect(&master.address)?;
        let keys: Vec<String> = (0..6).map(|branch| format!("XID:1:aa:{branch:02x}:q")).collect();
        for key in &keys {
            fill(&mut raw, key)?;
            prepare(&mut raw, key)?;
        }
        let committed = 1 + round;
        for key in &keys[..committed] {
            check(&command(&mut raw, key, "COMMIT_TWO_PHASE")?, 200, "");
        }
        master.kill()?;
        assert!(slave.stop()?.success());
        let mut site = sites.1;
        site.set("ackQuorum", "1");
        let promoted = site.start_slave(&[]).context("the promotion")?;
        let mut raw = Raw::connect(&promoted.address)?;
        assert_eq!(recover(&mut raw)?, keys[committed..], "round {round}");
        for key in &keys[..committed] {
            assert_eq!(held(&mut raw, key)?, [1; 2], "round {round}");
        }
        for key in &keys[committed..] {
            check(&command(&mut raw, key, "COMMIT_TWO_PHASE")?, 200, "");
            assert_eq!(held(&mut raw, key)?, [1; 2]);
        }
    }
    Ok(())
}

/// The slave hangs between prepare and commit. Asked again and again, the commit is not answered as done before the
/// slave has it.
#[test]
fn a_commit_is_not_answered_before_the_quorum_holds_the_decision() -> Result<()> {
    let Pair { master, slave, .. } = pair()?;
    let mut raw = Raw::connect(&master.address)?;
    let key = "XID:1:aa:01:q";
    fill(&mut raw, key)?;
    prepare(&mut raw, key)?;
    slave.signal(Signal::STOP)?;
    for _ in 0..3 {
        check(&command(&mut raw, key, "COMMIT_TWO_PHASE")?, 500, "XAException:code=-7,msg=");
        assert_eq!(held(&mut raw, key)?, [0; 2], "readable before it is confirmed");
    }
    slave.signal(Signal::CONT)?;
    wait_until("the decision to be confirmed", || {
        let reply = command(&mut raw, key, "COMMIT_TWO_PHASE")?;
        // It is finished without being asked as well, and forgotten then.
        Ok((reply.code == 200 || reply.text().contains("code=-4")).then_some(()))
    })?;
    wait_until("the messages", || Ok((held(&mut raw, key)? == [1; 2]).then_some(())))?;
    assert!(recover(&mut raw)?.is_empty());
    Ok(())
}

/// The slave hangs before prepare: the first is unknown, what comes later is refused before anything is written.
#[test]
fn nothing_is_prepared_or_committed_without_the_quorum() -> Result<()> {
    let Pair { master, slave, .. } = pair()?;
    let mut raw = Raw::connect(&master.address)?;
    let (first, alone, refused, local) = ("XID:1:aa:01:q", "XID:1:aa:02:q", "XID:1:aa:03:q", "TX:s:1");
    fill(&mut raw, first)?;
    prepare(&mut raw, first)?;
    for key in [alone, refused, local] {
        fill(&mut raw, key)?;
    }
    slave.signal(Signal::STOP)?;
    check(&command(&mut raw, alone, "PREPARE")?, 500, "code=-7,msg=prepared here, not confirmed by the quorum");
    // The member falls out a moment later, when its time is over.
    wait_until("the slave to count no more", || {
        let reply = command(&mut raw, refused, "PREPARE")?;
        assert_eq!(reply.code, 500, "{}", reply.text());
        Ok(reply.text().contains("not enough in-sync replicas").then_some(()))
    })?;
    check(&command(&mut raw, first, "COMMIT_TWO_PHASE")?, 500, "not enough in-sync replicas");
    check(&command(&mut raw, local, "COMMIT_ONE_PHASE")?, 500, "Transaction rolled back");
    check(&command(&mut raw, local, "COMMIT_ONE_PHASE")?, 500, "has not been started");
    assert_eq!(recover(&mut raw)?.iter().filter(|key| **key == refused).count(), 0);
    slave.signal(Signal::CONT)?;
    prepare(&mut raw, refused)?;
    for key in [first, alone, refused] {
        check(&command(&mut raw, key, "COMMIT_TWO_PHASE")?, 200, "");
    }
    wait_until("the messages", || Ok((held(&mut raw, refused)? == [1; 2]).then_some(())))?;
    assert_eq!(held(&mut raw, local)?, [0; 2]);
    Ok(())
}

/// Its syncs hang until this is dropped, or told to end.
struct Hanging<'a>(&'a ShakyDisk);

impl<'a> Hanging<'a> {
    fn begin(disk: &'a ShakyDisk) -> Hanging<'a> {
        disk.set(Faults::slow(Duration::from_secs(3600)));
        Hanging(disk)
    }
}

impl Drop for Hanging<'_> {
    fn drop(&mut self) {
        self.0.set(Faults::default());
    }
}

/// Sends a command on a prepared or filled branch and waits until the master is at it, then begins an orderly stop.
/// `meanwhile` is done while that goes on; with the answer to the command, if there is any.
fn stop_during(
    master: &mut Broker,
    raw: &mut Raw,
    (key, kind): (&str, &str),
    meanwhile: impl FnOnce(&mut Broker) -> Result<()>,
) -> Result<Result<Reply>> {
    let mut other = Raw::connect(&master.address)?;
    let mut state = || -> Result<String> {
        let text = other.ask("stats transactions")?.text();
        let line = text.lines().find(|line| line.ends_with(key)).unwrap_or_default();
        Ok(line.split(' ').nth(1).unwrap_or_default().to_owned())
    };
    let before = state()?;
    std::thread::scope(|scope| {
        let asked = scope.spawn(|| command(raw, key, kind));
        wait_until("the master to be at it", || Ok((state()? != before).then_some(())))?;
        master.signal(Signal::TERM)?;
        master.wait_for_line("stopping")?;
        meanwhile(master)?;
        Ok(asked.join().expect("it does not panic"))
    })
}

/// A master that stops in order, as for a switch-over, answers the commands it has taken: as done if its member confirms
/// them, and else when their time is over. (Only puts were waited for; the members were sent away first.)
#[test]
fn a_stop_in_order_answers_the_commands_in_flight() -> Result<()> {
    if ShakyDisk::is_missing("commits in flight when a master under a quorum stops") {
        return Ok(());
    }
    let key = "XID:1:aa:01:q";
    for (kind, confirms) in [("COMMIT_TWO_PHASE", true), ("COMMIT_TWO_PHASE", false), ("PREPARE", true)] {
        let (mut own, mut slaves, disk) = (site()?, site()?, ShakyDisk::mount()?);
        own.set("ackTimeoutInMills", if confirms { "40000" } else { "1500" });
        slaves.set("dataPath", &disk.data().display().to_string());
        let mut master = own.start_master(&[])?;
        let slave = start_slave(&slaves, 0, &master)?;
        let mut raw = Raw::connect(&master.address)?;
        raw.set_patience(Duration::from_secs(80))?;
        fill(&mut raw, key)?;
        if kind == "COMMIT_TWO_PHASE" {
            prepare(&mut raw, key)?;
        }
        let hanging = Hanging::begin(&disk);
        let reply = stop_during(&mut master, &mut raw, (key, kind), |_| {
            if confirms {
                disk.set(Faults::default());
            }
            Ok(())
        })?;
        let reply = reply.with_context(|| format!("no answer to {kind} at all"))?;
        drop(hanging);
        check(&reply, if confirms { 200 } else { 500 }, if confirms { "" } else { "not confirmed by the quorum" });
        assert!(master.wait_exit()?.success());
        assert!(!master.log_text().contains("did not end in time"), "{}", master.log_text());
        drop(slave);
        own.set("ackQuorum", "1");
        let master = own.start_master(&[])?;
        let mut raw = Raw::connect(&master.address)?;
        match kind {
            "PREPARE" => assert_eq!(recover(&mut raw)?, [key]),
            _ => assert_eq!(held(&mut raw, key)?, [1; 2], "confirmed: {confirms}"),
        }
    }
    Ok(())
}

/// The disk of the journal takes its time: the commit is answered once it has been synced. Where that takes longer than a
/// stop waits, it has happened, or the branch is still prepared, whatever its client was told or not.
#[test]
fn a_stop_in_order_waits_for_the_journal() -> Result<()> {
    if ShakyDisk::is_missing("commits in flight when a master with a slow disk stops") {
        return Ok(());
    }
    let key = "XID:1:aa:01:q";
    for is_in_time in [true, false] {
        let disk = ShakyDisk::mount()?;
        let site = slave_site(|site| {
            site.set("dataPath", &disk.data().display().to_string()).topic("test", &[("numPartitions", "2")]);
        })?;
        let mut master = site.start_master(&[])?;
        let mut raw = Raw::connect(&master.address)?;
        fill(&mut raw, key)?;
        prepare(&mut raw, key)?;
        let hanging = Hanging::begin(&disk);
        let reply = stop_during(&mut master, &mut raw, (key, "COMMIT_TWO_PHASE"), |master| {
            if !is_in_time {
                master.wait_for_line("did not end in time")?;
            }
            drop(hanging);
            Ok(())
        })?;
        let is_done = reply.is_ok_and(|reply| reply.code == 200);
        assert!(is_done || !is_in_time);
        master.wait_exit()?;
        let master = site.start_master(&[])?;
        let mut raw = Raw::connect(&master.address)?;
        let (prepared, held) = (recover(&mut raw)?, held(&mut raw, key)?);
        let happened = prepared.is_empty() && held == [1; 2];
        assert!(happened || !is_done && prepared == [key] && held == [0; 2], "{prepared:?} {held:?}");
    }
    Ok(())
}
