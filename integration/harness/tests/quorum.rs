//! Acknowledgements by a quorum, with real processes: F03, F15, members that hang, die and return, and promotions.

use anyhow::{Result, ensure};
use metaq_harness::members::{SLACK, TIMEOUT, first_put, member_site, wait_members};
use metaq_harness::pair::{assert_same, start_slave, wait_level};
use metaq_harness::process::{Broker, Site, binary_path, wait_until};
use metaq_harness::raw::{Raw, Stored, bodies};
use rustix::process::Signal;
use std::process::Command;
use std::time::Instant;

fn counter(broker: &Broker, name: &str) -> Result<u64> {
    let text = Raw::connect(&broker.address)?.ask("stats quorum")?.text();
    let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
    Ok(line.trim().parse().unwrap_or(0))
}

/// F15: without any slave a put is refused by default, before anything is stored, and the text names the reason.
#[test]
fn f15_without_a_slave_a_put_is_refused() -> Result<()> {
    let site = member_site(2)?;
    let master = site.start_master(&[])?;
    let mut raw = Raw::connect(&master.address)?;
    for _ in 0..3 {
        let reply = raw.put("test", 0, b"x")?;
        assert_eq!(reply.code, 503, "{}", reply.text());
        assert!(reply.text().contains("not enough in-sync replicas: 1 of the 2 members"), "{}", reply.text());
        assert!(reply.text().contains("no other slave has connected"), "{}", reply.text());
    }
    assert_eq!(raw.get("test", 0, 0, 1024)?.code, 404);
    assert_eq!(counter(&master, "quorum_refused")?, 3);
    drop(raw);
    assert!(master.stop()?.success());
    let segment = site.data().join("test-0/00000000000000000000.meta");
    assert_eq!(std::fs::metadata(segment)?.len(), 0, "nothing was stored");
    Ok(())
}

/// F15: a downgrade has to be configured, is counted, and ends when the slave is there.
#[test]
fn f15_a_downgrade_is_configured_counted_and_ends() -> Result<()> {
    let (mut a, b) = (member_site(2)?, member_site(2)?);
    a.set("ackQuorumDowngrade", "true");
    let mut master = a.start_master(&[])?;
    let mut raw = Raw::connect(&master.address)?;
    for _ in 0..5 {
        raw.put("test", 0, b"alone")?.stored()?;
    }
    assert_eq!(counter(&master, "quorum_downgraded")?, 5);
    master.wait_for_line("fewer members than ackQuorum")?;
    assert_eq!(raw.read_all("test", 0, 0)?.len(), 5);
    let slave = start_slave(&b, 0, &master)?;
    wait_until("the slave to count", || {
        let text = raw.ask("stats quorum")?.text();
        Ok(text.contains(" members 2 confirmed ").then_some(()))
    })?;
    raw.put("test", 0, b"together")?.stored()?;
    assert_eq!(counter(&master, "quorum_downgraded")?, 5);
    drop(slave);
    raw.put("test", 0, b"alone again")?.stored()?;
    assert_eq!(raw.read_all("test", 0, 0)?.len(), 7);
    Ok(())
}

/// F03: the slave stops, 50 puts are each retried once, the slave comes back. Whatever is visible was accepted, once.
#[test]
fn f03_what_was_refused_is_never_seen() -> Result<()> {
    let (a, b) = (member_site(2)?, member_site(2)?);
    let master = a.start_master(&[])?;
    let slave = start_slave(&b, 0, &master)?;
    first_put(&master, 0, b"first")?;
    assert!(slave.stop()?.success());
    let mut raw = Raw::connect(&master.address)?;
    let mut accepted = vec!["first".to_owned()];
    for n in 0..50 {
        for _ in 0..2 {
            let body = format!("message {n}");
            let reply = raw.put("test", 0, body.as_bytes())?;
            match reply.code {
                200 => accepted.push(body),
                503 => assert!(reply.text().contains("slave 0 (127.0.0.1:"), "{}", reply.text()),
                code => panic!("{code} {}", reply.text()),
            }
        }
    }
    assert_eq!(bodies(&raw.read_all("test", 0, 0)?), accepted);
    let slave = start_slave(&b, 0, &master)?;
    accepted.push("last".to_owned());
    first_put(&master, 0, b"last")?;
    wait_level(&master, &slave, "test", 1)?;
    assert_eq!(bodies(&raw.read_all("test", 0, 0)?), accepted);
    assert_same(&a.data(), &b.data())
}

/// Of two slaves one freezes: with the other the quorum is complete, and no put waits for the frozen one.
#[test]
fn one_of_two_slaves_freezes_and_nobody_notices() -> Result<()> {
    let (a, b, c) = (member_site(2)?, member_site(2)?, member_site(2)?);
    let master = a.start_master(&[])?;
    let (one, two) = (start_slave(&b, 0, &master)?, start_slave(&c, 1, &master)?);
    first_put(&master, 0, b"first")?;
    wait_level(&master, &one, "test", 1)?;
    wait_level(&master, &two, "test", 1)?;
    let mut raw = Raw::connect(&master.address)?;
    one.signal(Signal::STOP)?;
    let began = Instant::now();
    for _ in 0..200 {
        raw.put("test", 0, &[b'x'; 300])?.stored()?;
    }
    assert!(began.elapsed() < TIMEOUT + SLACK * 4, "{:?}", began.elapsed());
    assert_eq!(counter(&master, "quorum_unconfirmed")?, 0);
    one.signal(Signal::CONT)?;
    wait_level(&master, &one, "test", 1)?;
    wait_level(&master, &two, "test", 1)?;
    assert_same(&a.data(), &b.data())?;
    assert_same(&a.data(), &c.data())
}

/// Rows 21 and 28: every slave freezes. The first put is unknown after one time-out, later ones are refused at once;
/// what is not confirmed stays unreadable, and becomes readable when the slave is back.
#[test]
fn frozen_members_make_one_pause_and_what_they_lack_is_confirmed_later() -> Result<()> {
    let (a, b) = (member_site(2)?, member_site(2)?);
    let master = a.start_master(&[])?;
    let slave = start_slave(&b, 0, &master)?;
    first_put(&master, 0, b"first")?;
    wait_level(&master, &slave, "test", 1)?;
    slave.signal(Signal::STOP)?;
    let mut raw = Raw::connect(&master.address)?;
    let began = Instant::now();
    let unknown = raw.put("test", 0, b"unknown")?;
    assert_eq!(unknown.code, 500);
    assert!(unknown.text().contains("stored here, not confirmed by the quorum"), "{}", unknown.text());
    let waited = began.elapsed();
    assert!(waited >= TIMEOUT / 2, "{waited:?}");
    assert!(waited <= TIMEOUT + SLACK, "{waited:?}");
    let began = Instant::now();
    for _ in 0..50 {
        let refused = raw.put("test", 0, b"refused")?;
        assert_eq!(refused.code, 503, "{}", refused.text());
        assert!(refused.text().contains("is behind since"), "{}", refused.text());
    }
    assert!(began.elapsed() < SLACK, "no second pause: {:?}", began.elapsed());
    assert_eq!(bodies(&raw.read_all("test", 0, 0)?), ["first"]);
    let end = raw.end("test", 0)?;
    assert_eq!(end, 25, "every end that consumers are told is the readable one");
    // A consumer that is sent nowhere waits for the quorum, and is woken by it.
    let mut waiting = Raw::connect(&master.address)?;
    waiting.send(b"get test g 0 25 1024 7 wait=20000\r\n")?;
    slave.signal(Signal::CONT)?;
    let reply = waiting.reply()?;
    assert!(reply.is_value, "{}", reply.text());
    assert_eq!(bodies(&reply.records(25)), ["unknown"]);
    first_put(&master, 0, b"after")?;
    assert_eq!(bodies(&raw.read_all("test", 0, 0)?), ["first", "unknown", "after"]);
    assert_eq!(counter(&master, "quorum_unconfirmed")?, 1);
    // Those after which `first_put` tried again are counted as well.
    assert!(counter(&master, "quorum_refused")? >= 50);
    Ok(())
}

/// A master that starts again shows what it knows to be confirmed, accepts nothing alone, and the rest when a slave is
/// level.
#[test]
fn a_restarted_master_shows_only_what_was_confirmed() -> Result<()> {
    let (mut a, b) = (member_site(2)?, member_site(2)?);
    let master = a.start_master(&[])?;
    a.set("serverPort", master.address.rsplit(':').next().unwrap_or_default());
    let slave = start_slave(&b, 0, &master)?;
    first_put(&master, 0, b"first")?;
    wait_level(&master, &slave, "test", 1)?;
    slave.signal(Signal::STOP)?;
    assert_eq!(Raw::connect(&master.address)?.put("test", 0, b"unknown")?.code, 500);
    assert!(master.stop()?.success());
    let master = a.start_master(&[])?;
    let mut raw = Raw::connect(&master.address)?;
    assert_eq!(bodies(&raw.read_all("test", 0, 0)?), ["first"]);
    assert_eq!(raw.put("test", 0, b"refused")?.code, 503);
    slave.signal(Signal::CONT)?;
    first_put(&master, 0, b"after")?;
    assert_eq!(bodies(&raw.read_all("test", 0, 0)?), ["first", "unknown", "after"]);
    // And after a crash no less than what was confirmed a moment before is hidden, and nothing else is shown.
    master.kill()?;
    drop(slave);
    let master = a.start_master(&[])?;
    let shown = bodies(&Raw::connect(&master.address)?.read_all("test", 0, 0)?);
    assert!(["first", "unknown", "after"].starts_with(&shown.iter().map(String::as_str).collect::<Vec<_>>()));
    Ok(())
}

/// A slave shows its consumers no more than its master's quorum holds.
#[test]
fn consumers_of_a_slave_see_what_is_confirmed() -> Result<()> {
    let (a, b, c) = (member_site(3)?, member_site(3)?, member_site(3)?);
    let master = a.start_master(&[])?;
    let (one, two) = (start_slave(&b, 0, &master)?, start_slave(&c, 1, &master)?);
    first_put(&master, 0, b"first")?;
    wait_level(&master, &one, "test", 1)?;
    two.signal(Signal::STOP)?;
    assert_eq!(Raw::connect(&master.address)?.put("test", 0, b"unknown")?.code, 500);
    let mut raw = Raw::connect(&one.address)?;
    wait_until("the slave to hold it", || {
        let text = raw.ask("stats replication")?.text();
        Ok(text.contains("copy test 0 own_end 52 ").then_some(()))
    })?;
    assert_eq!(bodies(&raw.read_all("test", 0, 0)?), ["first"]);
    two.signal(Signal::CONT)?;
    wait_until("the slave to show it", || Ok((raw.read_all("test", 0, 0)?.len() == 2).then_some(())))?;
    Ok(())
}

/// Reloaded without a restart, in both directions.
#[test]
fn the_quorum_is_switched_by_a_reload() -> Result<()> {
    let (mut a, b) = (member_site(1)?, member_site(1)?);
    let mut master = a.start_master(&[])?;
    let mut raw = Raw::connect(&master.address)?;
    raw.put("test", 0, b"alone")?.stored()?;
    a.set("ackQuorum", "2");
    a.write_ini()?;
    master.signal(Signal::HUP)?;
    master.wait_for_line("[system] ackQuorum 1 → 2")?;
    wait_until("the quorum to be asked for", || Ok((raw.put("test", 0, b"refused")?.code == 503).then_some(())))?;
    let seen = raw.read_all("test", 0, 0)?;
    assert!(!seen.is_empty(), "what was readable stays so");
    let slave = start_slave(&b, 0, &master)?;
    first_put(&master, 0, b"both")?;
    drop(slave);
    a.set("ackQuorum", "1");
    a.write_ini()?;
    master.signal(Signal::HUP)?;
    wait_until("the master to be enough", || Ok((raw.put("test", 0, b"alone")?.code == 200).then_some(())))?;
    let shown = bodies(&raw.read_all("test", 0, 0)?);
    assert!(
        shown.starts_with(&["alone".to_owned()]) && shown.ends_with(&["both".to_owned(), "alone".to_owned()]),
        "{shown:?}"
    );
    Ok(())
}

/// From three members to two while a slave is away: it still believes in three, by which it could be promoted although
/// the other is silent. So two are enough only when it has been here again, and soon then.
#[test]
fn fewer_are_enough_when_every_slave_has_heard_of_it() -> Result<()> {
    let (mut a, b, c) = (member_site(3)?, member_site(3)?, member_site(3)?);
    let mut master = a.start_master(&[])?;
    let one = start_slave(&b, 0, &master)?;
    let two = start_slave(&c, 1, &master)?;
    first_put(&master, 0, b"three")?;
    assert!(two.stop()?.success());
    a.set("ackQuorum", "2");
    a.write_ini()?;
    master.signal(Signal::HUP)?;
    master.wait_for_line("[system] ackQuorum 3 → 2")?;
    let mut raw = Raw::connect(&master.address)?;
    wait_until("the put to be refused for the slave that is away", || {
        let reply = raw.put("test", 0, b"refused")?;
        assert_eq!(reply.code, 503, "{}", reply.text());
        Ok(reply.text().contains("slave 1 (").then_some(()).filter(|()| reply.text().contains("has not heard yet")))
    })?;
    let two = start_slave(&c, 1, &master)?;
    first_put(&master, 0, b"two, all here")?;
    drop(two);
    first_put(&master, 0, b"two, one away")?;
    assert_eq!(bodies(&raw.read_all("test", 0, 0)?), ["three", "two, all here", "two, one away"]);
    drop(one);
    Ok(())
}

/// `--ack-quorum`, as `metaServer.sh start samsa` gives it, stands in for the file.
#[test]
fn the_command_line_asks_for_a_quorum() -> Result<()> {
    let mut site = Site::new()?;
    site.topic("alone", &[("ackQuorum", "1")]);
    let master = site.start_master(&["--ack-quorum", "2"])?;
    let mut raw = Raw::connect(&master.address)?;
    assert_eq!(raw.put("test", 0, b"x")?.code, 503);
    assert_eq!(raw.put("alone", 0, b"x")?.code, 200, "a topic that says otherwise keeps its own");
    Ok(())
}

/// Puts until the master is gone; everything that was acknowledged, with its bytes.
fn put_until_gone(address: &str, partition: i32, round: usize, acked: &mut Vec<(Stored, Vec<u8>)>) {
    let Ok(mut raw) = Raw::connect(address) else { return };
    for n in 0.. {
        let body = format!("round {round} partition {partition} message {n} {}", "x".repeat(n % 300)).into_bytes();
        match raw.put("test", partition, &body) {
            Ok(reply) => {
                if let Ok(stored) = reply.stored() {
                    acked.push((stored, body));
                }
            }
            Err(_) => return,
        }
    }
}

/// The bar of it all: a master killed under load, one of two slaves promoted, and again, with the old master as a slave.
/// Nothing that was acknowledged is lost or moved, ever (rows 22, 24, 26 and 30).
#[test]
fn nothing_acknowledged_is_lost_when_masters_are_killed_and_slaves_promoted() -> Result<()> {
    let rounds = std::env::var("METAQ_ROUNDS").ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(5);
    let mut sites = Vec::new();
    for _ in 0..3 {
        let mut site = member_site(2)?;
        site.topic("test", &[("numPartitions", "2")]);
        sites.push(site);
    }
    let mut acked: [Vec<(Stored, Vec<u8>)>; 2] = Default::default();
    let mut master = sites[0].start_master(&[])?;
    let mut reigning = 0;
    for round in 0..rounds {
        let (one, two) = ((reigning + 1) % 3, (reigning + 2) % 3);
        let (heir, other) =
            (start_slave(&sites[one], one as u32, &master)?, start_slave(&sites[two], two as u32, &master)?);
        for partition in 0..2 {
            let mut raw = Raw::connect(&master.address)?;
            let stored = wait_until("the quorum", || {
                let reply = raw.put("test", partition, b"begin")?;
                Ok((reply.code == 200).then_some(reply))
            })?;
            acked[partition as usize].push((stored.stored()?, b"begin".to_vec()));
        }
        wait_members(&master, 3, 2)?;
        let before = acked[0].len();
        let address = master.address.clone();
        std::thread::scope(|scope| -> Result<()> {
            for (partition, acked) in acked.iter_mut().enumerate() {
                let address = &address;
                scope.spawn(move || put_until_gone(address, partition as i32, round, acked));
            }
            let mut raw = Raw::connect(&master.address)?;
            wait_until("some messages", || Ok((raw.end("test", 0)? > 30_000 * (round as u64 + 1)).then_some(())))?;
            // The one that is to be promoted lacks what the other has acknowledged meanwhile.
            heir.signal(Signal::STOP)?;
            let end = raw.end("test", 0)?;
            wait_until("more messages", || Ok((raw.end("test", 0)? > end + 3_000).then_some(())))?;
            drop(raw);
            master.kill()?;
            Ok(())
        })?;
        assert!(acked[0].len() > before + 10, "the load was no load");
        heir.signal(Signal::CONT)?;
        assert!(heir.stop()?.success());
        master = sites[one].start_slave(&[])?;
        reigning = one;
        drop(other);
        // Held by the new master; readable as soon as its own quorum is there, which the next round asks for.
        let slave = start_slave(&sites[two], two as u32, &master)?;
        wait_members(&master, 2, 2)?;
        let mut raw = Raw::connect(&master.address)?;
        for (partition, acked) in acked.iter().enumerate() {
            let all = raw.read_all("test", partition as i32, 0)?;
            assert!(
                all.windows(2).all(|pair| pair[0].id < pair[1].id),
                "round {round}: an id was given twice or went back"
            );
            let mut found = all.iter().map(|record| (record.offset, record.id, &record.body));
            for (stored, body) in acked {
                let there =
                    found.any(|(offset, id, bytes)| (offset, id) == (stored.offset, stored.id) && bytes == body);
                assert!(there, "round {round}: lost or moved: {stored:?}");
            }
        }
        drop(slave);
        println!("round {round}: {} acknowledged, all there", acked.iter().map(Vec::len).sum::<usize>());
    }
    Ok(())
}

fn metaq(arguments: &[&str]) -> Result<String> {
    let output = Command::new(binary_path("metaq")?).args(arguments).output()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    ensure!(output.status.success(), "metaq {arguments:?}: {text} {}", String::from_utf8_lossy(&output.stderr));
    Ok(text)
}

/// The same over QUIC with certificates, where every partition has a stream of its own; and what an operator sees of it.
#[test]
fn a_quorum_over_quic_and_what_is_shown_of_it() -> Result<()> {
    let authority = tempfile::tempdir()?;
    let dir = authority.path().display().to_string();
    metaq(&["cert", "init", "--dir", &dir, "--cluster", "test"])?;
    let mut sites = Vec::new();
    for name in ["a", "b"] {
        metaq(&["cert", "issue", "--dir", &dir, "--host", "127.0.0.1", "--name", name])?;
        let mut site = member_site(2)?;
        site.set("replicationTransport", "quic");
        site.set("tlsCertFile", &format!("{dir}/{name}.pem"));
        site.set("tlsKeyFile", &format!("{dir}/{name}.key"));
        site.set("tlsCaFile", &format!("{dir}/ca.pem"));
        site.topic("test", &[("numPartitions", "3")]);
        sites.push(site);
    }
    let master = sites[0].start_master(&[])?;
    let slave = start_slave(&sites[1], 0, &master)?;
    first_put(&master, 0, b"first")?;
    let mut raw = Raw::connect(&master.address)?;
    for n in 0..90 {
        raw.put("test", n % 3, b"over quic")?.stored()?;
    }
    let broker = ["--broker", master.address.as_str()];
    let described = metaq(&[&broker[..], &["topic", "describe", "test"]].concat())?;
    assert!(described.contains("quorum") && described.contains("any node lost for good: nothing"), "{described}");
    let status = metaq(&[&broker[..], &["replica", "status"]].concat())?;
    assert!(status.contains("counts, fsync, holds all"), "{status}");
    assert!(status.contains("ackQuorum has its members in 3 of 3 partitions"), "{status}");
    slave.kill()?;
    // Nothing tells a node over QUIC that the other has died: first one put is unknown, then it is behind, then gone.
    wait_until("the slave to be missed", || {
        let reply = raw.put("test", 0, b"refused")?;
        Ok((reply.code == 503 && reply.text().contains("is gone since")).then_some(()))
    })?;
    let described = metaq(&[&broker[..], &["topic", "describe", "test"]].concat())?;
    assert!(described.contains("puts are refused at the moment"), "{described}");
    start_slave(&sites[1], 0, &master).and_then(|_slave| first_put(&master, 0, b"again")).map(drop)
}
