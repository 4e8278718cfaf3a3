//! Field cases of the wire: F31, F48, F49, and everything `wire-protocol` lists as malformed.

use anyhow::{Context, Result};
use metaq_harness::console::Console;
use metaq_harness::process::{Site, wait_until};
use metaq_harness::raw::{Raw, Reply};
use std::time::Duration;

fn crc(body: &[u8]) -> i64 {
    i64::from(crc32fast::hash(body) & 0x7fff_ffff)
}

/// F31: what is accepted can be consumed, whatever the reader's buffer; what cannot is refused with the limit.
#[test]
fn f31_an_accepted_message_is_always_consumable() -> Result<()> {
    let mut site = Site::new()?;
    site.set("maxTransferSize", "64*1024");
    let broker = site.start_master(&[])?;
    let mut raw = Raw::connect(&broker.address)?;
    let mut accepted = Vec::new();
    for size in [65_516, 65_517, 65_520, 65_536, 100_000, 3_000_000] {
        let body = vec![b'x'; size];
        let reply = raw.put("test", 0, &body)?;
        if size + 20 <= 65_536 {
            accepted.push((reply.stored()?.offset, body));
        } else {
            assert_eq!(reply.code, 400, "{size}: {}", reply.text());
            assert!(reply.text().contains("65516") && reply.text().contains(&size.to_string()), "{}", reply.text());
        }
    }
    assert_eq!(accepted.len(), 1);
    let after = raw.put("test", 0, b"small")?.stored()?.offset;
    for (offset, body) in accepted {
        let reply = raw.get("test", 0, offset as i64, 1024)?;
        assert!(reply.is_value, "{}", reply.text());
        let records = reply.records(offset);
        assert_eq!(records.len(), 1, "one whole record although it is larger than asked for");
        assert_eq!(records[0].body, body);
        assert_eq!(records[0].end(), after);
    }
    Ok(())
}

/// F48: every form of put that any client sends, and checksums that do not fit.
#[test]
fn f48_old_and_new_put_forms_side_by_side() -> Result<()> {
    let broker = Site::new()?.start_master(&[])?;
    let mut raw = Raw::connect(&broker.address)?;
    let mut offsets = Vec::new();
    let body = b"test"; // its CRC-32 has the top bit set, so the mask matters
    for words in ["0".to_owned(), "0 -1".to_owned(), format!("0 {}", crc(body))] {
        offsets.push(raw.put_with("test", 0, &words, body)?.stored()?.offset);
    }
    assert_eq!(offsets, [0, 24, 48]);
    let end = raw.end("test", 0)?;
    let wrong = crc(body) + 1;
    let reply = raw.put_with("test", 0, &format!("0 {wrong}"), body)?;
    assert_eq!(reply.code, 500);
    assert!(reply.text().contains("Checksum failure"), "{}", reply.text());
    assert!(reply.text().contains(&crc(body).to_string()), "names the value computed: {}", reply.text());
    // The unmasked value is a negative int32: not -1, and not equal, so it is refused.
    let unmasked = crc32fast::hash(body) as i32;
    assert_eq!(raw.put_with("test", 0, &format!("0 {unmasked}"), body)?.code, 500);
    // The same bits without a sign: the connection goes on, and the answer has the right value.
    let reply = raw.put_with("test", 0, &format!("0 {}", crc32fast::hash(body)), body)?;
    assert!(reply.code == 500 && reply.text().contains(&crc(body).to_string()), "{}", reply.text());
    // A transaction that was never begun stores nothing, in both forms that carry a key.
    for words in ["0 TX:s-1:1", "0 -1 TX:s-1:1"] {
        assert_eq!(raw.put_with("test", 0, words, body)?.code, 500);
    }
    assert_eq!(raw.end("test", 0)?, end, "nothing of the refused was stored");
    let records = raw.read_all("test", 0, 0)?;
    assert_eq!(records.len(), 3);
    assert!(records.iter().all(|r| r.body == body && i64::from(r.checksum) == crc(body)));
    Ok(())
}

/// F49: attributes are bytes; one that does not fit its message is refused.
#[test]
fn f49_attributes_are_opaque_bytes_and_have_to_fit() -> Result<()> {
    let broker = Site::new()?.start_master(&[])?;
    let mut raw = Raw::connect(&broker.address)?;
    let long = vec![b'a'; 70_000];
    for attribute in [&b""[..], b" ", b"a\r\nput x 0 1 0 0 9\r\n", "\u{1f980}".as_bytes(), &long] {
        let mut body = (attribute.len() as i32).to_be_bytes().to_vec();
        body.extend_from_slice(attribute);
        body.extend_from_slice(b"payload");
        let stored = raw.put_with("test", 0, "1 -1", &body)?.stored()?;
        let back = raw.get("test", 0, stored.offset as i64, 1 << 20)?.records(stored.offset);
        assert_eq!((back[0].flag, &back[0].body), (1, &body));
    }
    let end = raw.end("test", 0)?;
    for length in [-1_i32, i32::MAX, i32::MIN, 8] {
        let mut body = length.to_be_bytes().to_vec();
        body.extend_from_slice(b"payload");
        let reply = raw.put_with("test", 0, "1 -1", &body)?;
        assert_eq!(reply.code, 400, "{length}");
        assert!(reply.text().contains(&length.to_string()), "{}", reply.text());
    }
    for body in [&b""[..], b"abc"] {
        assert_eq!(raw.put_with("test", 0, "1 -1", body)?.code, 400);
    }
    assert_eq!(raw.end("test", 0)?, end, "nothing of the refused was stored");
    Ok(())
}

/// A Chinese topic and group, and a group with a blank, which the line cannot carry.
#[test]
fn f49_names_in_utf8_work_and_blanks_cannot() -> Result<()> {
    let mut site = Site::new()?;
    site.topic("订单", &[]);
    let broker = site.start_master(&[])?;
    let mut raw = Raw::connect(&broker.address)?;
    raw.put("订单", 0, b"one")?.stored()?;
    assert!(raw.ask("get 订单 消费者 0 0 1024 5")?.is_value);
    let reply = raw.ask("get 订单 two words 0 0 1024 5")?;
    assert_eq!(reply.code, 400, "a word where the partition should be: {}", reply.text());
    assert!(raw.is_closed()?);
    Ok(())
}

/// Each malformed line is answered in words, then its connection closes; nothing is stored and nobody else notices.
#[test]
fn malformed_requests_are_answered_and_closed() -> Result<()> {
    let broker = Site::new()?.start_master(&[])?;
    let mut bystander = Raw::connect(&broker.address)?;
    let cases: &[&[u8]] = &[
        b"\r\n",
        b"   \r\n",
        b"nonsense 1\r\n",
        b"Put test 0 1 0 -1 5\r\nx",
        b"get test g 0 0\r\n",
        b"get test g 0 x 1024 5\r\n",
        b"get test g 99999999999 0 1024 5\r\n",
        b"get test g 0 0 1024 2147483648\r\n",
        b"get test  g 0 0 1024 5\r\n",
        b"put test 0 1 0 -1 5 6 7 8\r\nx",
        b"put test 0 1 5\r\nx",
        b"put test 0 -1 0 -1 5\r\n",
        b"put  test 0 1 0 -1 5\r\nx",
        b"put test 0 1 0 -1 bad-key 5\r\nx",
        b"put test 0 1 0 -1 TX:one 5\r\nx",
        b"put test 0 1 0 -1 XID:1:zz:00:q 5\r\nx",
        b"transaction TX:s:1 s SHRUG 5\r\n",
        b"transaction TX:s:1 s\r\n",
        b"put test 0 2000000000 0 -1 5\r\n",
        b"put test 0 2147483648 0 -1 5\r\n",
    ];
    for case in cases {
        let mut raw = Raw::connect(&broker.address)?;
        raw.send(case)?;
        let name = String::from_utf8_lossy(case);
        let reply = raw.reply()?;
        assert_eq!(reply.code, 400, "{name:?}");
        assert!(reply.text().len() > 10, "{name:?} is told what is wrong: {:?}", reply.text());
        assert!(raw.is_closed()?, "{name:?}");
        assert_eq!(bystander.ask("version 1")?.code, 200);
    }
    assert_eq!(bystander.get("test", 0, 0, 1024)?.code, 404, "nothing was stored");
    Ok(())
}

/// A line without an end is not waited for beyond its limit, and a body that is announced is not believed.
#[test]
fn long_lines_and_huge_bodies_cost_nothing() -> Result<()> {
    let broker = Site::new()?.start_master(&[])?;
    let mut bystander = Raw::connect(&broker.address)?;
    bystander.put("test", 0, b"before")?.stored()?;
    let before = broker.resident_bytes()?;

    let mut raw = Raw::connect(&broker.address)?;
    // The peer may close before all of it is taken; what counts is the answer.
    let _ = raw.send(&vec![b'a'; 10 * 1024 * 1024]);
    if let Ok(reply) = raw.reply() {
        assert_eq!(reply.code, 400);
    }
    for declared in ["2147483647", "2147483648", "67108865"] {
        let mut raw = Raw::connect(&broker.address)?;
        raw.send(format!("put test 0 {declared} 0 -1 5\r\n").as_bytes())?;
        let reply = raw.reply()?;
        assert_eq!(reply.code, 400, "{declared}");
        assert!(raw.is_closed()?);
    }
    let after = broker.resident_bytes()?;
    assert!(after < before + 32 * 1024 * 1024, "memory grew from {before} to {after}");
    assert_eq!(bystander.read_all("test", 0, 0)?.len(), 1);
    Ok(())
}

/// A thousand connections that send a byte now and then: others are served, memory stays flat, nothing is stored.
#[test]
fn a_thousand_dribbling_connections_disturb_nobody() -> Result<()> {
    let broker = Site::new()?.start_master(&[])?;
    let mut bystander = Raw::connect(&broker.address)?;
    bystander.put("test", 0, b"before")?.stored()?;
    let request = b"put test 0 1000 0 -1 5\r\nxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx";
    let mut dribblers = (0..1000).map(|_| Raw::connect(&broker.address)).collect::<Result<Vec<_>>>()?;
    let before = broker.resident_bytes()?;
    for byte in request.iter().take(40) {
        for dribbler in &mut dribblers {
            dribbler.send(&[*byte])?;
        }
        assert!(bystander.put("test", 0, b"meanwhile")?.code == 200);
    }
    let after = broker.resident_bytes()?;
    assert!(after < before + 64 * 1024 * 1024, "memory grew from {before} to {after}");
    assert!(connections(&mut bystander)? > 1000);
    drop(dribblers);
    wait_until("the dribblers to be gone", || Ok((connections(&mut bystander)? == 1).then_some(())))?;
    let records = bystander.read_all("test", 0, 0)?;
    assert_eq!(records.len(), 41, "no half message was stored");
    Ok(())
}

fn connections(raw: &mut Raw) -> Result<usize> {
    let text = raw.ask("stats")?.text();
    let line = text.lines().find_map(|line| line.strip_prefix("curr_connections ")).expect("stats has the line");
    Ok(line.parse()?)
}

/// Requests of one connection are executed and answered in order, whatever the packets.
#[test]
fn pipelined_requests_are_answered_in_order() -> Result<()> {
    let broker = Site::new()?.start_master(&[])?;
    let mut raw = Raw::connect(&broker.address)?;
    let mut batch = Vec::new();
    for i in 0..300 {
        batch.extend_from_slice(format!("put test 0 3 0 -1 {i}\r\n{i:03}").as_bytes());
    }
    batch.extend_from_slice(b"version 1000\r\nget test g 0 0 1048576 1001\r\nstats help 1002\r\nquit\r\n");
    raw.send(&batch)?;
    for i in 0..300 {
        let reply = raw.reply()?;
        assert_eq!((reply.opaque, reply.code), (i, 200));
        assert_eq!(reply.stored()?.offset, i as u64 * 23);
    }
    let opaques = [raw.reply()?.opaque, raw.reply()?.opaque, raw.reply()?.opaque];
    assert_eq!(opaques, [1000, 1001, 1002]);
    assert!(raw.is_closed()?, "quit closes after everything owed");
    Ok(())
}

/// However many requests come at once, all of them are answered, without another byte having to follow.
#[test]
fn more_requests_than_answers_may_wait_are_all_answered() -> Result<()> {
    const REQUESTS: usize = 5000;
    let broker = Site::new()?.start_master(&[])?;
    let mut raw = Raw::connect(&broker.address)?;
    raw.put("test", 0, b"one")?;
    for request in [
        "get test g 0 0 1024",
        "get test g 0 23 1024",
        "offset test g 0 0",
        "version",
        "stats topics",
        "put test 0 0 0",
    ] {
        let many: String = (0..REQUESTS).map(|opaque| format!("{request} {opaque}\r\n")).collect();
        raw.send(many.as_bytes())?;
        for opaque in 0..REQUESTS {
            let reply = raw.reply().with_context(|| format!("answer {opaque} to {request:?}"))?;
            assert_eq!(reply.opaque, opaque as i32, "{request}");
        }
    }
    Ok(())
}

/// A peer that asks and does not read is not read from any more: it takes no memory, disturbs nobody, and gets its
/// answers once it reads.
#[test]
fn who_does_not_read_is_not_answered_without_end() -> Result<()> {
    const FLOOD_BYTES_MAX: usize = 64 << 20;
    let mut site = Site::new()?;
    for number in 0..200 {
        site.topic(&format!("one-of-many-{number}"), &[]);
    }
    let broker = site.start_master(&[])?;
    let mut bystander = Raw::connect(&broker.address)?;
    bystander.put("test", 0, b"one")?;
    let before = broker.resident_bytes()?;
    for line in ["stats topics 7\r\n", "stats  7\r\n", "get test g 0 23 1024 7\r\n", "get test g 0 0 1024 7\r\n"] {
        let mut raw = Raw::connect(&broker.address)?;
        let sent = raw.flood(line, FLOOD_BYTES_MAX)?;
        let after = broker.resident_bytes()?;
        assert!(after < before + (64 << 20), "{line:?}: memory grew from {before} to {after}");
        assert!(sent < FLOOD_BYTES_MAX, "{line:?}: the broker still reads");
        assert_eq!(bystander.put("test", 0, b"meanwhile")?.code, 200);
        for number in 0..(sent / line.len()).min(2000) {
            let reply = raw.reply().with_context(|| format!("answer {number} to {line:?}"))?;
            assert_eq!(reply.opaque, 7, "{line:?}: {reply:?}");
        }
    }
    Ok(())
}

/// A peer that has said all it has to say gets what it asked for, long polls included: they need not wait any more.
#[test]
fn a_half_closed_peer_gets_its_answers() -> Result<()> {
    let broker = Site::new()?.start_master(&[])?;
    let mut raw = Raw::connect(&broker.address)?;
    raw.put("test", 0, b"abc")?;
    raw.send(b"get test g 0 23 1024 1 wait=30000\r\nget test g 0 0 1024 2\r\nget test g 0 23 1024 3 wait=30000\r\n")?;
    raw.send(b"put test 0 0 0 4\r\nput test 0 100 0 5\r\nthe rest never comes")?;
    raw.set_patience(Duration::from_secs(10))?;
    raw.finish()?;
    let mut replies = (0..4).map(|_| raw.reply()).collect::<Result<Vec<_>>>()?;
    replies.sort_by_key(|reply| reply.opaque);
    assert_eq!(replies.iter().map(|reply| reply.opaque).collect::<Vec<_>>(), [1, 2, 3, 4]);
    assert!(replies[1].is_value && replies[3].code == 200, "{replies:?}");
    assert!(raw.is_closed()?);
    Ok(())
}

/// What a large message took is given back, however long its producer stays connected.
#[test]
fn producers_of_large_messages_keep_no_memory() -> Result<()> {
    let broker = Site::new()?.start_master(&[])?;
    let before = broker.resident_bytes()?;
    let mut producers = Vec::new();
    for _ in 0..100 {
        let mut raw = Raw::connect(&broker.address)?;
        raw.put("test", 0, &vec![b'x'; 1_000_000])?.stored()?;
        producers.push(raw);
    }
    let after = broker.resident_bytes()?;
    assert!(after < before + 32 * 1024 * 1024, "memory grew from {before} to {after}");
    Ok(())
}

/// Producers that stop in the middle of a large message take no more memory than a bound; beyond it messages that are not
/// whole are refused, in words, and small ones go on.
#[test]
fn messages_that_do_not_come_to_an_end_are_bounded() -> Result<()> {
    const BYTES: usize = 1_000_000;
    let broker = Site::new()?.start_master(&[])?;
    let mut bystander = Raw::connect(&broker.address)?;
    let before = broker.resident_bytes()?;
    let mut stalled = Vec::new();
    for _ in 0..360 {
        let mut raw = Raw::connect(&broker.address)?;
        raw.send(format!("put test 0 {BYTES} 0 7\r\n").as_bytes())?;
        raw.send(&[b'x'; BYTES - 1])?;
        stalled.push(raw);
    }
    bystander.put("test", 0, b"small")?.stored()?;
    let after = broker.resident_bytes()?;
    assert!(after < before + (320 << 20), "memory grew from {before} to {after}");
    let mut refused = 0;
    for raw in &mut stalled {
        raw.send(b"x")?;
        let reply = raw.reply()?;
        let told = reply.text().contains("268435456 bytes of messages that are not whole yet");
        assert!(reply.opaque == 7 && (reply.code == 200 || reply.code == 503 && told), "{reply:?}");
        refused += usize::from(reply.code == 503);
    }
    assert!((50..360).contains(&refused), "{refused} were refused");
    assert_eq!(bystander.read_all("test", 0, 0)?.len(), 1 + 360 - refused);
    for raw in &mut stalled {
        raw.put("test", 0, &[b'y'; BYTES])?.stored()?;
    }
    Ok(())
}

/// Where the system allows few open files, it is connections that are refused, in words; those who are in go on, and the
/// broker has the files it needs.
#[test]
fn a_low_limit_of_open_files_refuses_newcomers_and_nobody_else() -> Result<()> {
    let mut site = Site::new()?;
    let console = Console::on(&mut site)?;
    site.topic("wide", &[("numPartitions", "20")]);
    site.launch_by(["sh", "-c", "ulimit -n 64 && exec \"$0\" \"$@\""].map(str::to_owned).to_vec());
    let broker = site.start_master(&[])?;
    let log = broker.log_text();
    assert!(log.contains("the limit of 64 open files leaves room for 20 connections; raise it (ulimit -n"), "{log}");
    let mut bystander = Raw::connect(&broker.address)?;
    bystander.put("wide", 0, b"x")?;
    let mut crowd = (0..60).map(|_| Raw::connect(&broker.address)).collect::<Result<Vec<_>>>()?;
    let mut served = 0;
    for raw in &mut crowd {
        // The last ones are told before they ask.
        let _ = raw.send(b"version 1\r\n");
        let reply = raw.reply()?;
        served += usize::from(reply.code == 200);
        let told = reply.text().contains("20 connections, which is its limit with a limit of 64 open files");
        assert!(reply.code == 200 || reply.code == 503 && told, "{reply:?}");
    }
    assert!((10..20).contains(&served), "{served} of 60 were served");
    for partition in 0..20 {
        bystander.put("wide", partition, b"x")?.stored()?;
    }
    assert_eq!(console.ask("GET /healthz")?.0, 200);
    drop(crowd);
    wait_until("there is room again", || {
        Ok(Raw::connect(&broker.address)?.ask("version 2").ok().filter(|r| r.code == 200))
    })?;
    Ok(())
}

/// Whoever is refused learns what was refused, where the limit is and what to do; a partition or a topic that is not
/// there is told in the original's words and no others (wire-protocol, "3.1 put").
#[test]
fn a_refused_put_names_value_limit_and_next_step() -> Result<()> {
    let mut site = Site::new()?;
    site.topic("shut", &[("acceptPublish", "false")]);
    let broker = site.start_master(&[])?;
    let mut raw = Raw::connect(&broker.address)?;
    for wrong in [1, 77, -2, i32::MAX, i32::MIN] {
        let reply = raw.put("test", wrong, b"x")?;
        assert!(
            reply.code == 500 && reply.text().ends_with(&format!("Detail:wrong partition {wrong}")),
            "{}",
            reply.text()
        );
    }
    assert!(raw.put("nobody", 0, b"x")?.text().ends_with("Detail:The server do not accept topic nobody"));
    let told = |reply: Reply, code: i32, parts: &[&str]| {
        let text = reply.text();
        assert_eq!(reply.code, code, "{text}");
        for part in parts.iter().chain(&["not stored"]) {
            assert!(text.contains(part), "no {part:?} in {text}");
        }
    };
    told(raw.put("shut", 0, b"x")?, 403, &["topic shut", "acceptPublish=false", "reload"]);
    told(
        raw.put("test", 0, &vec![0; 1 << 20])?,
        400,
        &["1048576 bytes", "limit of 1048556", "maxTransferSize", "in parts"],
    );
    Ok(())
}
