//! Ways in which the original loses or doubles messages of transactions that only a whole broker can show; the others
//! are in common/txn/tests, with a table of all of them in hazards.rs.

use anyhow::{Context, Result};
use metaq_harness::process::{Broker, Site, wait_until};
use metaq_harness::raw::{Raw, Reply};
use std::thread;

fn command(raw: &mut Raw, key: &str, kind: &str) -> Result<Reply> {
    raw.ask(&format!("transaction {key} s {kind} 7"))
}

#[track_caller]
fn expect(reply: &Reply, text: &str) {
    assert_eq!((reply.code, reply.text()), (200, text.to_owned()));
}

fn put(raw: &mut Raw, key: &str, body: &[u8]) -> Result<()> {
    let reply = raw.put_with("test", 0, &format!("0 -1 {key}"), body)?;
    assert_eq!(reply.code, 200, "{}", reply.text());
    Ok(())
}

const BRANCHES: usize = 64;
const EARLY: &[u8] = b"early";

fn branch(number: usize) -> String {
    format!("XID:1:aa:{number:02x}:q")
}

/// Starts a broker that may still be reading its journal; the address is where it already listens.
fn start_listening(site: &Site) -> Result<Broker> {
    site.write_ini()?;
    let mut broker = Broker::spawn(site, "metaq-master", &[])?;
    let line = broker.wait_for_line("advertised address")?;
    let uri = line.split_ascii_whitespace().find_map(|word| word.strip_prefix("uri=")).context("no uri=")?;
    broker.address = uri.trim_matches('"').trim_start_matches("meta://").to_owned();
    Ok(broker)
}

/// H17: the original tells coordinators in this window that their branches have not been started, and rolls back what a
/// fast client begins in it. Here whoever comes before the journal is read is refused with a reason, never told something that is not so; the
/// first transaction that begins is kept.
#[test]
fn h17_nobody_is_answered_before_the_journal_is_read() -> Result<()> {
    let site = Site::new()?;
    let master = site.start_master(&[])?;
    let mut raw = Raw::connect(&master.address)?;
    // So long that reading it takes a while.
    let body = vec![b'x'; 512 * 1024];
    for number in 0..BRANCHES {
        let key = branch(number);
        expect(&command(&mut raw, &key, "BEGIN")?, "");
        put(&mut raw, &key, &body)?;
        expect(&command(&mut raw, &key, "PREPARE")?, "0");
    }
    master.kill()?;
    let mut round = 0;
    // A test that gets no processor for long comes when everything is read: it tries once more.
    while !is_met_in_the_window(&site, round)? {
        round += 1;
        assert!(round < 20, "nobody ever came before the journal was read");
    }
    let master = site.start_master(&[])?;
    let mut raw = Raw::connect(&master.address)?;
    expect(&command(&mut raw, &branch(0), "COMMIT_TWO_PHASE")?, "");
    let records = raw.read_all("test", 0, 0)?;
    let early = records.iter().filter(|record| record.body == EARLY).count();
    assert_eq!((records.len(), early), (round + 2, round + 1));
    Ok(())
}

/// Starts the broker and asks it from the first moment on, then kills it; whether it was asked too early once.
fn is_met_in_the_window(site: &Site, round: usize) -> Result<bool> {
    let master = start_listening(site)?;
    let fast = thread::spawn({
        let address = master.address.clone();
        move || commit_as_soon_as_possible(&address, round)
    });
    let mut refused = 0;
    let mut raw = Raw::connect(&master.address)?;
    let all = wait_until("the branches to be listed", || {
        let reply = raw.ask("transaction null s RECOVER 7")?;
        refused += usize::from(reply.code != 200);
        Ok((reply.code == 200).then(|| reply.text()))
    })?;
    let restored = all.split("\r\n").filter(|key| key.starts_with("XID:1:aa:")).count();
    assert_eq!(restored, BRANCHES, "the first list is whole");
    fast.join().expect("no panic")?;
    master.kill()?;
    Ok(refused > 0)
}

/// Begins, puts and commits; nothing but the beginning may be refused.
fn commit_as_soon_as_possible(address: &str, round: usize) -> Result<()> {
    let key = format!("XID:1:bb:{round:02x}:q");
    let mut raw = Raw::connect(address)?;
    wait_until("a transaction to begin", || {
        let reply = command(&mut raw, &key, "BEGIN")?;
        assert!(!reply.text().contains("not been started"), "{}", reply.text());
        Ok((reply.code == 200).then_some(()))
    })?;
    put(&mut raw, &key, EARLY)?;
    expect(&command(&mut raw, &key, "COMMIT_ONE_PHASE")?, "");
    Ok(())
}
