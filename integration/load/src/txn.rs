//! Local transactions as fast as the answers come: begin, messages one after the other, commit. One thread drives all
//! connections: a thread for each was measured to cost more than the broker, which had to wake one for every answer.

use crate::frame::Kind;
use crate::lane::Lane;
use crate::measure::{Clock, Latencies, LatencySummary, Phases};
use anyhow::{Context, Result, bail, ensure};
use rustix::event::{Timespec, epoll};
use serde::Serialize;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// An answer that takes longer ends the run.
const ANSWER_WAIT: Duration = Duration::from_secs(30);
const ANSWER_WAIT_LONG: Timespec = Timespec { tv_sec: ANSWER_WAIT.as_secs() as i64, tv_nsec: 0 };

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

/// A connection in the middle of a transaction.
struct Client {
    lane: Lane,
    session: String,
    /// Of the transaction, counted on this connection.
    number: u32,
    /// Requests of this transaction that are answered: begin, the messages, commit.
    answered: u32,
    /// When the commit was sent.
    asked_ns: u64,
}

pub(crate) fn run(plan: &TxnPlan) -> Result<TxnOutcome> {
    let clock = Clock::start();
    let syncs_before = journal_syncs(plan.broker)?;
    let phases = Phases::new(clock, plan.warmup, plan.measured);
    let (latencies, commits) = drive(plan, clock, phases)?;
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

/// Runs every connection to the end of its last transaction; latencies of the measured commits, and how many there were.
fn drive(plan: &TxnPlan, clock: Clock, phases: Phases) -> Result<(Latencies, u64)> {
    let body = vec![b'x'; plan.body_bytes];
    let poller = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    let mut clients = Vec::new();
    for number in 0..plan.connections {
        let lane = Lane::connect(plan.broker, 1, plan.body_bytes + 256)?;
        lane.stream().set_nonblocking(true)?;
        epoll::add(&poller, lane.stream(), epoll::EventData::new_u64(number.into()), epoll::EventFlags::IN)?;
        let mut client = Client { lane, session: format!("load-{number}"), number: 1, answered: 0, asked_ns: 0 };
        client.ask(plan, &body, clock)?;
        clients.push(client);
    }
    let (mut latencies, mut commits, mut running) = (Latencies::new(), 0, clients.len());
    let mut events = Vec::with_capacity(clients.len());
    while running > 0 {
        events.clear();
        epoll::wait(&poller, rustix::buffer::spare_capacity(&mut events), Some(&ANSWER_WAIT_LONG))?;
        ensure!(!events.is_empty(), "no answer within {} s", ANSWER_WAIT.as_secs());
        for event in &events {
            let client = &mut clients[event.data.u64() as usize];
            if !client.take_answer()? {
                continue;
            }
            let now_ns = clock.now_ns();
            if client.answered == plan.messages + 2 {
                commits += 1;
                if phases.measured(now_ns) {
                    latencies.record(now_ns - client.asked_ns);
                }
                if now_ns >= phases.to_ns {
                    running -= 1;
                    continue;
                }
                (client.number, client.answered) = (client.number + 1, 0);
            }
            client.ask(plan, &body, clock)?;
        }
    }
    Ok((latencies, commits))
}

impl Client {
    /// Sends the next request of the transaction.
    fn ask(&mut self, plan: &TxnPlan, body: &[u8], clock: Clock) -> Result<()> {
        let (session, number, out) = (&self.session, self.number, &mut self.lane.out);
        if self.answered == 0 {
            write!(out, "transaction TX:{session}:{number} {session} BEGIN 1\r\n")?;
        } else if self.answered <= plan.messages {
            let (topic, partition) = (&plan.topic, (self.answered - 1) % plan.partitions);
            write!(out, "put {topic} {partition} {} 0 -1 TX:{session}:{number} 1\r\n", body.len())?;
            out.extend_from_slice(body);
        } else {
            write!(out, "transaction TX:{session}:{number} {session} COMMIT_ONE_PHASE 1\r\n")?;
            self.asked_ns = clock.now_ns();
        }
        // One request at a time fits into any socket's buffer.
        ensure!(self.lane.flush()?, "the broker does not read a request of {} bytes", body.len());
        Ok(())
    }

    /// Whether the answer has come whole; anything but a success ends the run.
    fn take_answer(&mut self) -> Result<bool> {
        let mut answer = None;
        self.lane.receive(|_, head, body| {
            answer = Some(match head.kind {
                Kind::Result { code: 200 } => Ok(()),
                _ => Err(format!("{:?}: {}", head.kind, String::from_utf8_lossy(body))),
            });
        })?;
        match answer {
            None => Ok(false),
            Some(Err(refusal)) => bail!("answered {refusal}"),
            Some(Ok(())) => {
                self.answered += 1;
                Ok(true)
            }
        }
    }
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
