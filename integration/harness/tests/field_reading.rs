//! Field cases of reading: F13, F33, long polls, and what a restart keeps.

use anyhow::Result;
use metaq_harness::process::{Site, wait_until};
use metaq_harness::raw::Raw;
use std::fs;

/// F13: an offset out of range is answered by the rule, never by 0 unless 0 is the smallest.
#[test]
fn f13_out_of_range_offsets() -> Result<()> {
    for moves in ["true", "false"] {
        let mut site = Site::new()?;
        site.set("updateConsumerOffsets", moves).set("maxSegmentSize", "4096");
        let broker = site.start_master(&[])?;
        let mut raw = Raw::connect(&broker.address)?;
        for _ in 0..200 {
            raw.put("test", 0, &[b'x'; 80])?.stored()?;
        }
        let end = raw.end("test", 0)?;
        assert_eq!(end, 20_000);
        assert_eq!(raw.get("test", 0, i64::MAX, 1024)?.text(), "20000");
        let above = raw.get("test", 0, 21_000, 1024)?;
        if moves == "true" {
            assert_eq!((above.code, above.text().as_str()), (301, "20000"));
        } else {
            assert_eq!(above.code, 404);
        }
        assert_eq!(raw.get("test", 0, end as i64, 1024)?.code, 404, "the end itself is never moved");
        assert_eq!(raw.get("test", 0, -1, 1024)?.text(), "0");
        assert!(broker.stop()?.success());

        // Lose the two oldest segments, as retention would.
        let partition = site.data().join("test-0");
        let mut segments: Vec<_> =
            fs::read_dir(&partition)?.map(|e| e.map(|e| e.file_name())).collect::<Result<_, _>>()?;
        segments.sort();
        fs::remove_file(partition.join(&segments[0]))?;
        fs::remove_file(partition.join(&segments[1]))?;
        let smallest = segments[2].to_string_lossy()[..20].parse::<u64>()?;
        let broker = site.start_master(&[])?;
        let mut raw = Raw::connect(&broker.address)?;
        for below in [10, 0, -5] {
            let reply = raw.get("test", 0, below, 1024)?;
            assert_eq!((reply.code, reply.text()), (301, smallest.to_string()));
        }
        assert_eq!(raw.ask("offset test g 0 10 5")?.text(), smallest.to_string());
    }
    Ok(())
}

/// F33: a reader at the end sees each message once, and is never moved, although nothing is synced before the answer.
#[test]
fn f33_tailing_unsynced_messages_sees_each_once() -> Result<()> {
    let mut site = Site::new()?;
    site.set("unflushThreshold", "1000").set("updateConsumerOffsets", "true");
    let broker = site.start_master(&[])?;
    let (mut writer, mut reader) = (Raw::connect(&broker.address)?, Raw::connect(&broker.address)?);
    let (mut at, mut seen) = (0, Vec::new());
    for i in 0..500 {
        writer.put("test", 0, format!("{i}").as_bytes())?.stored()?;
        wait_until("the message to be readable", || {
            let reply = reader.get("test", 0, at, 1 << 20)?;
            assert_ne!(reply.code, 301, "moved to {} while tailing at {at}", reply.text());
            if !reply.is_value {
                return Ok(None);
            }
            let records = reply.records(at as u64);
            at = records.last().expect("a value holds a record").end() as i64;
            seen.extend(records.into_iter().map(|r| String::from_utf8_lossy(&r.body).into_owned()));
            Ok(Some(()))
        })?;
    }
    assert_eq!(seen, (0..500).map(|i| i.to_string()).collect::<Vec<_>>());
    Ok(())
}

/// A long poll is answered by the message it waits for, synced before the answer or not, and by 404 at its end.
#[test]
fn a_long_poll_is_answered_by_the_next_message() -> Result<()> {
    for threshold in ["0", "1000"] {
        let mut site = Site::new()?;
        site.set("unflushThreshold", threshold);
        let broker = site.start_master(&[])?;
        let (mut writer, mut reader) = (Raw::connect(&broker.address)?, Raw::connect(&broker.address)?);
        // On a partition that does not exist yet, too.
        reader.send(b"get test g 0 0 1024 7 wait=20000\r\n")?;
        let first = writer.put("test", 0, b"first")?.stored()?;
        assert_eq!(reader.reply()?.records(0)[0].id, first.id);
        reader.send(b"get test g 0 25 1024 8 wait=20000\r\nversion 9\r\n")?;
        assert_eq!(reader.reply()?.opaque, 9, "the connection is not held up");
        let second = writer.put("test", 0, b"second")?.stored()?;
        assert_eq!(reader.reply()?.records(25)[0].id, second.id);
        let reply = reader.ask("get test g 0 51 1024 10 wait=30")?;
        assert_eq!((reply.code, reply.opaque), (404, 10));
    }
    Ok(())
}

/// Ids grow across restarts, in order or not, and no acknowledged message is lost by a kill.
#[test]
fn a_restart_keeps_messages_and_ids_go_on_growing() -> Result<()> {
    let site = Site::new()?;
    let mut last = 0;
    let mut count = 0;
    for round in 0..4 {
        let broker = site.start_master(&[])?;
        let mut raw = Raw::connect(&broker.address)?;
        for _ in 0..10 {
            let stored = raw.put("test", 0, b"hello")?.stored()?;
            assert!(stored.id > last, "id {} after {last}", stored.id);
            assert_eq!(stored.offset, count * 25);
            last = stored.id;
            count += 1;
        }
        assert_eq!(raw.read_all("test", 0, 0)?.len() as u64, count);
        if round % 2 == 0 { broker.kill()? } else { assert!(broker.stop()?.success()) }
    }
    Ok(())
}
