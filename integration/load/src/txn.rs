//! Local transactions as fast as the answers come: begin, messages one after the other, commit; a thread a connection.

use crate::measure::{Clock, Latencies, LatencySummary, Phases, nanoseconds};
use anyhow::{Context, Result, bail};
use serde::Serialize;
use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// An answer that takes longer ends the run.
const ANSWER_WAIT: Duration = Duration::from_secs(30);

#[derive(Debug, Clone)]
pub(crate) struct TxnPlan {
    pub(crate) broker: SocketAddr,
    pub(crate) topic: String,
    pub(crate) partitions: u32,
    pub(crate) connections: u32,
    /// Messages a transaction.
    pub(crate) messages: u32,
    pub(crate) body_bytes: usize,
    pub(crate) warmup: Duration,
    pub(crate) measured: Duration,
    /// Commits a second.
    pub(crate) bar: Option<f64>,
}

#[derive(Debug, Clone, Serialize)]
pub(crate) struct TxnOutcome {
    pub(crate) connections: u32,
    pub(crate) messages_a_transaction: u32,
    pub(crate) seconds: f64,
    pub(crate) commits: u64,
    pub(crate) commits_per_second: f64,
    /// From the request to commit to its answer.
    pub(crate) commit: LatencySummary,
    /// Over the whole run, warm-up included; `None` from a broker that does not count them.
    pub(crate) journal_syncs_per_commit: Option<f64>,
    pub(crate) bar_met: Option<bool>,
}

/// What one connection has done.
struct Tally {
    latencies: Latencies,
    /// Measured or not.
    commits: u64,
}

pub(crate) fn run(plan: &TxnPlan) -> Result<TxnOutcome> {
    let clock = Clock::start();
    let syncs_before = journal_syncs(plan.broker)?;
    let phases = Phases::new(clock, plan.warmup, plan.measured);
    let tallies: Vec<Result<Tally>> = std::thread::scope(|scope| {
        let workers: Vec<_> =
            (0..plan.connections).map(|number| scope.spawn(move || drive(plan, number, clock, phases))).collect();
        workers.into_iter().map(|worker| worker.join().expect("a client thread never panics")).collect()
    });
    let (mut latencies, mut commits) = (Latencies::new(), 0);
    for tally in tallies {
        let tally = tally?;
        latencies.add(&tally.latencies);
        commits += tally.commits;
    }
    let syncs = syncs_before.zip(journal_syncs(plan.broker)?).map(|(before, after)| after.saturating_sub(before));
    let journal_syncs_per_commit = syncs.filter(|_| commits > 0).map(|syncs| syncs as f64 / commits as f64);
    let (commit, seconds) = (latencies.summary(), phases.seconds());
    let per_second = commit.count as f64 / seconds;
    Ok(TxnOutcome {
        connections: plan.connections,
        messages_a_transaction: plan.messages,
        seconds,
        commits: commit.count,
        commits_per_second: per_second,
        commit,
        journal_syncs_per_commit,
        bar_met: plan.bar.map(|bar| per_second >= bar && journal_syncs_per_commit.is_none_or(|syncs| syncs < 1.0)),
    })
}

fn connect(broker: SocketAddr) -> Result<BufReader<TcpStream>> {
    let stream = TcpStream::connect(broker).with_context(|| format!("connecting to {broker}"))?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(ANSWER_WAIT))?;
    Ok(BufReader::new(stream))
}

/// How often the broker has synced its journal, where it tells.
fn journal_syncs(broker: SocketAddr) -> Result<Option<u64>> {
    // Others may answer that they know no such item.
    let text = ask(&mut connect(broker)?, b"stats transactions 1\r\n", &[]).unwrap_or_default();
    Ok(text.lines().find_map(|line| line.strip_prefix("journal_syncs ")?.trim().parse().ok()))
}

fn drive(plan: &TxnPlan, connection: u32, clock: Clock, phases: Phases) -> Result<Tally> {
    let mut stream = connect(plan.broker)?;
    let body = vec![b'x'; plan.body_bytes];
    let mut latencies = Latencies::new();
    let mut request = String::new();
    let mut number = 0u32;
    while clock.now_ns() < phases.to_ns {
        number += 1;
        let session = format!("load-{connection}");
        let key = format!("TX:{session}:{number}");
        ask(&mut stream, format!("transaction {key} {session} BEGIN 1\r\n").as_bytes(), &[])?;
        for message in 0..plan.messages {
            request.clear();
            let partition = message % plan.partitions;
            write!(request, "put {} {partition} {} 0 -1 {key} 1\r\n", plan.topic, body.len())?;
            ask(&mut stream, request.as_bytes(), &body)?;
        }
        let asked = Instant::now();
        ask(&mut stream, format!("transaction {key} {session} COMMIT_ONE_PHASE 1\r\n").as_bytes(), &[])?;
        if phases.measured(clock.now_ns()) {
            latencies.record(nanoseconds(asked.elapsed()));
        }
    }
    Ok(Tally { latencies, commits: number.into() })
}

/// Sends a request and reads its answer, which has to be a success; its text.
fn ask(stream: &mut BufReader<TcpStream>, head: &[u8], body: &[u8]) -> Result<String> {
    stream.get_mut().write_all(&[head, body].concat())?;
    let mut line = String::new();
    stream.read_line(&mut line)?;
    let words: Vec<&str> = line.split_ascii_whitespace().collect();
    let ["result", code, length, _] = words[..] else { bail!("not an answer: {line:?}") };
    let mut text = vec![0; length.parse()?];
    stream.read_exact(&mut text)?;
    let text = String::from_utf8_lossy(&text).into_owned();
    if code != "200" {
        bail!("answered {code} {text}");
    }
    Ok(text)
}
