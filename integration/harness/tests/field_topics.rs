//! A topic that is removed and comes again: F35; one that is not there, or not whole: F44, F56.

use anyhow::Result;
use metaq_harness::process::{Site, wait_until};
use metaq_harness::raw::Raw;
use rustix::process::Signal;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;

/// F35: the new topic's offsets begin where the old one's ended. A group at that end gets the new messages; one below
/// it is told where they begin. Nobody waits in silence, whatever updateConsumerOffsets says.
#[test]
fn f35_a_topic_that_comes_again_goes_on_where_it_ended() -> Result<()> {
    for moves in ["true", "false"] {
        let mut site = Site::new()?;
        site.set("updateConsumerOffsets", moves).topic("other", &[]);
        let broker = site.start_master(&[])?;
        let mut raw = Raw::connect(&broker.address)?;
        for _ in 0..100 {
            raw.put("test", 0, b"before")?.stored()?;
        }
        let end = raw.end("test", 0)?;
        site.remove_topic("test").write_ini()?;
        broker.signal(Signal::HUP)?;
        wait_until("puts to be refused", || Ok((raw.put("test", 0, b"x")?.code == 403).then_some(())))?;
        let end = end.max(raw.end("test", 0)?);
        assert!(broker.stop()?.success());
        fs::remove_dir_all(site.data().join("test-0"))?;
        let broker = site.start_master(&[])?;
        site.topic("test", &[]).write_ini()?;
        broker.signal(Signal::HUP)?;
        let mut raw = Raw::connect(&broker.address)?;
        let first = wait_until("the topic to be back", || Ok(raw.put("test", 0, b"again")?.stored().ok()))?;
        assert_eq!(first.offset, end);
        for _ in 0..4 {
            raw.put("test", 0, b"again")?.stored()?;
        }
        assert_eq!(raw.read_all("test", 0, end)?.len(), 5, "the group that had read everything");
        for behind in [0, end - 26] {
            let reply = raw.get("test", 0, behind as i64, 1024)?;
            assert_eq!((reply.code, reply.text()), (301, end.to_string()));
        }
    }
    Ok(())
}

/// F35: the same while the broker runs all the time. What is acknowledged afterwards is there after a restart.
#[test]
fn f35_a_topic_whose_data_goes_while_the_broker_runs() -> Result<()> {
    let mut site = Site::new()?;
    site.topic("other", &[]);
    let broker = site.start_master(&[])?;
    let mut raw = Raw::connect(&broker.address)?;
    for _ in 0..100 {
        raw.put("test", 0, b"before")?.stored()?;
    }
    let end = raw.end("test", 0)?;
    site.remove_topic("test").write_ini()?;
    broker.signal(Signal::HUP)?;
    wait_until("puts to be refused", || Ok((raw.put("test", 0, b"x")?.code == 403).then_some(())))?;
    let end = end.max(raw.end("test", 0).unwrap_or(end));
    fs::remove_dir_all(site.data().join("test-0"))?;
    site.topic("test", &[]).write_ini()?;
    broker.signal(Signal::HUP)?;
    let first = wait_until("the topic to be back", || Ok(raw.put("test", 0, b"again")?.stored().ok()))?;
    assert!(first.offset >= end, "no offset is used again: {} after {end}", first.offset);
    for _ in 0..4 {
        raw.put("test", 0, b"again")?.stored()?;
    }
    broker.kill()?;
    let broker = site.start_master(&[])?;
    let mut raw = Raw::connect(&broker.address)?;
    assert_eq!(raw.read_all("test", 0, first.offset)?.len(), 5, "the group that had read everything");
    let reply = raw.get("test", 0, 0, 1024)?;
    assert_eq!((reply.code, reply.text()), (301, first.offset.to_string()));
    Ok(())
}

/// F44: a dot is a dot, and whoever took it for any character is told which section is there.
#[test]
fn f44_an_unknown_topic_is_told_the_section_it_needs() -> Result<()> {
    let mut site = Site::new()?;
    site.topic("a.b", &[]);
    let broker = site.start_master(&[])?;
    let mut raw = Raw::connect(&broker.address)?;
    raw.put("a.b", 0, b"x")?.stored()?;
    let reply = raw.put("axb", 0, b"x")?;
    assert_eq!(reply.code, 500);
    for part in ["The server do not accept topic axb", "not stored", "[topic=axb]", "[topic=a.b]"] {
        assert!(reply.text().contains(part), "{part}: {}", reply.text());
    }
    let reply = raw.put("no/topic", 0, b"x")?;
    assert!(reply.code == 500 && reply.text().contains("cannot contain '/'"), "{}", reply.text());
    Ok(())
}

/// F56: a partition that cannot be read is not answered as if it were not there, takes no message meant for any
/// partition, and is back when its trouble is.
#[test]
fn f56_a_partition_that_is_not_served_says_so() -> Result<()> {
    let mut site = Site::new()?;
    site.set("numPartitions", "3");
    let broker = site.start_master(&[])?;
    let mut raw = Raw::connect(&broker.address)?;
    for partition in 0..3 {
        raw.put("test", partition, b"before")?.stored()?;
    }
    assert!(broker.stop()?.success());
    let foreign = site.data().join("test-1/what.meta");
    fs::write(&foreign, "x")?;
    let broker = site.start_master(&[])?;
    let mut raw = Raw::connect(&broker.address)?;
    let names_it = |text: &str| assert!(text.contains("what.meta") && text.contains("not served"), "{text}");
    let reply = raw.get("test", 1, 0, 1024)?;
    assert_eq!(reply.code, 500);
    names_it(&reply.text());
    let reply = raw.ask("offset test g 1 0 5")?;
    assert_eq!(reply.code, 500);
    names_it(&reply.text());
    let reply = raw.put("test", 1, b"x")?;
    assert!(reply.code == 500 && reply.text().contains("not stored"), "{}", reply.text());
    names_it(&reply.text());
    for _ in 0..6 {
        let stored = raw.put("test", -1, b"any")?.stored()?;
        assert_ne!(stored.partition, 1);
    }
    assert_eq!(raw.get("test", 3, 0, 1024)?.code, 404, "one that never was");
    assert!(broker.stop()?.success());
    fs::remove_file(foreign)?;
    let broker = site.start_master(&[])?;
    let mut raw = Raw::connect(&broker.address)?;
    assert_eq!(raw.read_all("test", 1, 0)?.len(), 1);
    raw.put("test", 1, b"after")?.stored()?;
    Ok(())
}

/// Fewer partitions: clients that ask ZooKeeper do not find what is in the others any more, and nothing else would say so.
#[test]
fn messages_above_a_lowered_number_of_partitions_are_told_of() -> Result<()> {
    let mut site = Site::new()?;
    site.topic("test", &[("numPartitions", "4")]);
    let mut broker = site.start_master(&[])?;
    let mut raw = Raw::connect(&broker.address)?;
    for partition in [0, 2] {
        raw.put("test", partition, b"x")?.stored()?;
    }
    let mut lower = |to: &str| -> Result<()> {
        site.remove_topic("test").topic("test", &[("numPartitions", to)]).write_ini()?;
        broker.signal(Signal::HUP)
    };
    lower("3")?;
    lower("1")?;
    let line = broker.wait_for_line("above numPartitions now")?;
    assert!(line.contains("partitions=1") && line.contains("first=test-2"), "{line}");
    assert_eq!(broker.log_text().matches("above numPartitions now").count(), 1);
    assert!(broker.stop()?.success());
    // Whoever reads the log of today's start learns of it, too; also of a section that went while the broker was down.
    let mut broker = site.start_master(&[])?;
    let line = broker.wait_for_line("messages in partitions above numPartitions")?;
    assert!(line.contains("partitions=1") && line.contains("first=test-2"), "{line}");
    assert!(!broker.log_text().contains("no section of the configuration"), "{}", broker.log_text());
    assert!(broker.stop()?.success());
    site.remove_topic("test").topic("other", &[]);
    let mut broker = site.start_master(&[])?;
    let line = broker.wait_for_line("no section of the configuration lets in")?;
    assert!(line.contains("partitions=2") && line.contains("first=test-0"), "{line}");
    Ok(())
}

/// F55: what an acknowledgement means is told of a topic that only a pattern admits, too, from its first message on.
#[test]
fn f55_the_level_of_a_topic_made_by_a_pattern_is_told() -> Result<()> {
    let mut site = Site::new()?;
    site.topic("app-*", &[("unflushThreshold", "5")]);
    let broker = site.start_master(&[])?;
    Raw::connect(&broker.address)?.put("app-one", 0, b"x")?.stored()?;
    let mut told = String::new();
    for again in [Some(broker), None] {
        let broker = again.map_or_else(|| site.start_master(&[]), Ok)?;
        told = Raw::connect(&broker.address)?.ask("stats durability 7")?.text();
        assert!(told.contains("topic app-one partitions 1 unflush_threshold 5 "), "{told}");
        broker.kill()?;
    }
    assert!(told.contains("topic app-* ") && told.contains("topic test "), "{told}");
    Ok(())
}

/// F56: by modes. The second of five partitions may not be read, be it its directory or its file, and the fourth is damaged
/// in the middle; each is handled on its own, and the second is back when its mode is.
#[test]
fn f56_recovery_does_not_stop_at_the_first_failure() -> Result<()> {
    for locked in ["test-1", "test-1/00000000000000000000.meta"] {
        let mut site = Site::new()?;
        site.set("numPartitions", "5");
        // Modes bind root as well, in a user namespace of its own.
        site.launch_by(["unshare", "--user"].map(String::from).to_vec());
        let broker = site.start_master(&[])?;
        let mut raw = Raw::connect(&broker.address)?;
        for partition in 0..5 {
            for body in [b"one", b"two", b"six"] {
                raw.put("test", partition, body)?.stored()?;
            }
        }
        assert!(broker.stop()?.success());
        let locked = site.data().join(locked);
        let mode = fs::metadata(&locked)?.permissions();
        fs::set_permissions(&locked, Permissions::from_mode(0o000))?;
        let damaged = site.data().join("test-3/00000000000000000000.meta");
        let mut bytes = fs::read(&damaged)?;
        bytes[23] ^= 0x7f;
        fs::write(&damaged, bytes)?;

        let broker = site.start_master(&[])?;
        let line = broker.log_text().lines().find(|line| line.contains("data directory opened")).map(str::to_owned);
        // The journal is one more.
        let line = line.expect("the summary");
        assert!(line.contains("served=5") && line.contains("damaged=1") && line.contains("failed=1"), "{line}");
        let mut raw = Raw::connect(&broker.address)?;
        for (partition, messages) in [(0, 3), (2, 3), (3, 2), (4, 3)] {
            assert_eq!(raw.read_all("test", partition, 0)?.len(), messages, "partition {partition}");
            raw.put("test", partition, b"new")?.stored()?;
        }
        let reply = raw.get("test", 1, 0, 1024)?;
        assert!(reply.code == 500 && reply.text().contains("Permission denied"), "{}", reply.text());
        assert_eq!(raw.put("test", 1, b"x")?.code, 500);
        broker.kill()?;
        fs::set_permissions(&locked, mode)?;
        let broker = site.start_master(&[])?;
        let mut raw = Raw::connect(&broker.address)?;
        assert_eq!(raw.read_all("test", 1, 0)?.len(), 3);
        raw.put("test", 1, b"after")?.stored()?;
    }
    Ok(())
}
