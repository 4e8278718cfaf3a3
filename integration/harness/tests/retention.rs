//! Old segments go, on the master by its schedule, on the slave after the master, and nobody who reads is cut off.

use anyhow::{Context, Result};
use metaq_harness::pair::{assert_same, segments, slave_site, start_slave, wait_level};
use metaq_harness::process::{Broker, Site, wait_until};
use metaq_harness::raw::Raw;
use rustix::process::Signal;
use std::path::Path;

/// Rolls the segment it is put into: files of this test hold 16 KiB.
const BODY: &[u8] = &[b'x'; 9 * 1024];

const EVERY_SECOND: &str = "* * * * * ?";

fn small_segments(site: &mut Site) {
    site.set("maxSegmentSize", "16*1024");
}

/// Puts what fills `count` segments; the last one stays open.
fn fill(broker: &Broker, topic: &str, count: usize) -> Result<()> {
    let mut raw = Raw::connect(&broker.address)?;
    for _ in 0..2 * count {
        raw.put(topic, 0, BODY)?.stored()?;
    }
    Ok(())
}

/// Names of the segments of partition 0, the oldest first.
fn names(data: &Path, topic: &str) -> Result<Vec<String>> {
    let directory = format!("{topic}-0");
    Ok(segments(data)?.into_keys().filter(|(partition, _)| *partition == directory).map(|(_, name)| name).collect())
}

fn wait_one_segment(data: &Path, topic: &str) -> Result<()> {
    wait_until(&format!("the sealed segments of {topic} to go"), || Ok((names(data, topic)?.len() == 1).then_some(())))
}

/// First and last offset of partition 0.
fn range(broker: &Broker, topic: &str) -> Result<(u64, u64)> {
    let text = Raw::connect(&broker.address)?.ask("stats offsets 1")?.text();
    let line = text.lines().find(|line| line.starts_with(&format!("{topic} part 0 "))).context("no such partition")?;
    let words: Vec<&str> = line.split(' ').collect();
    Ok((words[4].parse()?, words[6].parse()?))
}

/// F26: a topic added by a reload is cleaned by its own schedule, the others go by theirs, and a removed one's ends.
#[test]
fn f26_topics_added_by_reload_are_cleaned() -> Result<()> {
    let mut site = Site::new()?;
    small_segments(&mut site);
    // Old enough at once, but not due before next year.
    site.topic("a", &[("deletePolicy", "delete,0s"), ("deleteWhen", "0 0 0 1 JAN ?")]);
    let mut broker = site.start_master(&[])?;
    fill(&broker, "a", 3)?;
    let before = names(&site.data(), "a")?;

    site.topic("b", &[("deletePolicy", "delete,3s"), ("deleteWhen", "0/2 * * * * ?")]);
    site.write_ini()?;
    broker.signal(Signal::HUP)?;
    broker.wait_for_line("topic b added")?;
    broker.wait_for_line("reload done")?;
    fill(&broker, "b", 3)?;
    wait_one_segment(&site.data(), "b")?;
    assert_eq!(names(&site.data(), "a")?, before);
    let line = broker.wait_for_line("old segments removed")?;
    assert!(line.contains("partition=b-0") && line.contains("bytes="), "{line}");

    fill(&broker, "b", 3)?;
    site.remove_topic("b").topic("c", &[("deletePolicy", "delete,4s"), ("deleteWhen", "1/2 * * * * ?")]);
    site.write_ini()?;
    broker.signal(Signal::HUP)?;
    broker.wait_for_line("topic b removed")?;
    broker.wait_for_line("topic c added")?;
    wait_until("the reload to be done", || Ok((broker.log_text().matches("reload done").count() == 2).then_some(())))?;
    // A run that had begun before may go on meanwhile; the last sealed segment is too young for that.
    let left = names(&site.data(), "b")?;
    assert!(left.len() > 1, "nothing is left that could go: {left:?}");
    fill(&broker, "c", 3)?;
    // What is older in b, by a younger age, would have gone before this.
    wait_one_segment(&site.data(), "c")?;
    let now = names(&site.data(), "b")?;
    assert!(now.ends_with(&left[left.len() - 2..]), "{left:?} became {now:?}");
    assert_eq!(names(&site.data(), "a")?, before);
    Ok(())
}

/// The slave begins where the master begins, never later, whatever its own schedule says; both survive a crash.
#[test]
fn a_slave_follows_its_masters_first_offset() -> Result<()> {
    let kept: fn(&mut Site) = |site| {
        small_segments(site);
        site.topic("kept", &[("deletePolicy", "delete,0s"), ("deleteWhen", "0 0 0 1 JAN ?")]);
        site.topic("test", &[("deletePolicy", "delete,1s"), ("deleteWhen", EVERY_SECOND)]);
    };
    let master_site = slave_site(kept)?;
    let slave_site = slave_site(|site| {
        kept(site);
        // A schedule of the slave's own must not count.
        site.topic("kept", &[("deletePolicy", "delete,0s"), ("deleteWhen", EVERY_SECOND)]);
    })?;
    let master = master_site.start_master(&[])?;
    let slave = start_slave(&slave_site, 0, &master)?;
    fill(&master, "kept", 3)?;
    for _ in 0..3 {
        fill(&master, "test", 2)?;
        wait_level(&master, &slave, "test", 1)?;
        let mut ahead = false;
        wait_until("both to begin at the last segment", || {
            let slave_first = range(&slave, "test")?.0;
            let (first, end) = range(&master, "test")?;
            ahead |= slave_first > first;
            Ok((slave_first == first && end - first < 20 * 1024).then_some(()))
        })?;
        assert!(!ahead, "the slave was ahead of its master");
    }
    wait_level(&master, &slave, "kept", 1)?;
    assert_same(&master_site.data(), &slave_site.data())?;
    assert_eq!(range(&slave, "kept")?.0, 0);

    // A slave that was away when segments went.
    slave.kill()?;
    let before = range(&master, "test")?;
    fill(&master, "test", 1)?;
    master.kill()?;
    let master = master_site.start_master(&[])?;
    assert!(range(&master, "test")?.0 >= before.0, "what is gone stays gone");
    let slave = start_slave(&slave_site, 0, &master)?;
    wait_until("the restarted master to go on with retention", || {
        Ok((range(&master, "test")?.0 > before.0).then_some(()))
    })?;
    wait_until("the slave to begin there, too", || {
        Ok((range(&slave, "test")?.0 == range(&master, "test")?.0).then_some(()))
    })?;
    wait_level(&master, &slave, "test", 1)?;
    assert_same(&master_site.data(), &slave_site.data())
}

/// Archived on both, with the same names, and not read again.
#[test]
fn segments_are_archived_on_master_and_slave() -> Result<()> {
    let configure: fn(&mut Site) = |site| {
        small_segments(site);
        site.topic("plain", &[("deletePolicy", "archive,0s"), ("deleteWhen", EVERY_SECOND)]);
        site.topic("packed", &[("deletePolicy", "archive,0s,true"), ("deleteWhen", EVERY_SECOND)]);
    };
    let (master_site, slave_site) = (slave_site(configure)?, slave_site(configure)?);
    let master = master_site.start_master(&[])?;
    fill(&master, "plain", 2)?;
    fill(&master, "packed", 2)?;
    for topic in ["plain", "packed"] {
        wait_one_segment(&master_site.data(), topic)?;
    }
    // What went before the slave came is not copied, and is no gap.
    let slave = start_slave(&slave_site, 0, &master)?;
    for topic in ["plain", "packed"] {
        wait_level(&master, &slave, topic, 1)?;
        fill(&master, topic, 1)?;
        // Or the one segment would be that from before.
        wait_level(&master, &slave, topic, 1)?;
        wait_one_segment(&slave_site.data(), topic)?;
    }
    let archives = |site: &Site, topic: &str, suffix: &str| -> Result<usize> {
        let entries = std::fs::read_dir(site.data().join(format!("{topic}-0")))?;
        Ok(entries.filter_map(Result::ok).filter(|e| e.file_name().to_string_lossy().ends_with(suffix)).count())
    };
    for (topic, suffix) in [("plain", ".meta.arc"), ("packed", ".meta.zip")] {
        assert!(archives(&master_site, topic, suffix)? >= 2);
        assert!(archives(&slave_site, topic, suffix)? >= 1);
    }
    assert_same(&master_site.data(), &slave_site.data())
}

/// Answers that a slow reader has not taken yet come whole, although their segment is gone meanwhile.
#[test]
fn a_response_being_sent_is_not_cut() -> Result<()> {
    let mut site = Site::new()?;
    site.set("maxSegmentSize", "8*1024*1024");
    site.topic("test", &[("deletePolicy", "delete,0s"), ("deleteWhen", "0 0 0 1 JAN ?")]);
    let broker = site.start_master(&[])?;
    let mut writer = Raw::connect(&broker.address)?;
    let body = |i: u8| vec![i; 1_000_000];
    for i in 0..10 {
        writer.put("test", 0, &body(i))?.stored()?;
    }
    // Far more than sockets hold: the first of these are being sent when the segment goes.
    let mut reader = Raw::connect(&broker.address)?;
    for opaque in 0..64 {
        reader.send(format!("get test slow 0 0 1048576 {opaque}\r\n").as_bytes())?;
    }
    wait_until("the first answer to be on its way", || {
        Ok((!writer.ask("stats")?.text().contains("\r\ncmd_get 0\r\n")).then_some(()))
    })?;
    site.topic("test", &[("deletePolicy", "delete,0s"), ("deleteWhen", EVERY_SECOND)]);
    site.write_ini()?;
    broker.signal(Signal::HUP)?;
    wait_one_segment(&site.data(), "test")?;
    let mut whole = 0;
    for _ in 0..64 {
        let reply = reader.reply()?;
        if reply.is_value {
            assert!(reply.records(0)[0].body == body(0), "the first message, whole");
            whole += 1;
        } else {
            assert_eq!(reply.code, 301, "{}", reply.text());
        }
    }
    assert!(whole > 0, "no answer was on its way");
    Ok(())
}
