//! A consumer of every partition that goes on whatever happens, and notes what no consumer must see.

use crate::fire::check::{Beginning, Partition};
use crate::fire::ledger::key_of;
use crate::fire::load::Target;
use crate::fire::{PARTITIONS, TOPICS};
use crate::process::wait_until;
use crate::raw::{Raw, Reply};
use anyhow::{Context, Result, ensure};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(3);
const IDLE_PAUSE: Duration = Duration::from_millis(20);
const FETCH_BYTES: i32 = 256 * 1024;

#[derive(Debug)]
struct State {
    target: Target,
    positions: BTreeMap<Partition, u64>,
    findings: Vec<String>,
    read: u64,
}

/// Reads until it is dropped.
#[derive(Debug)]
pub struct Consumer {
    state: Arc<Mutex<State>>,
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Consumer {
    pub fn start(target: Target) -> Consumer {
        let all = TOPICS.iter().flat_map(|topic| (0..PARTITIONS).map(|partition| (*topic, partition)));
        let positions = all.map(|partition| (partition, 0)).collect();
        let state = Arc::new(Mutex::new(State { target, positions, findings: Vec::new(), read: 0 }));
        let over = Arc::new(AtomicBool::new(false));
        let thread = std::thread::spawn({
            let (state, over) = (Arc::clone(&state), Arc::clone(&over));
            move || consume(&state, &over)
        });
        Consumer { state, over, thread: Some(thread) }
    }

    /// Another master serves. Where it began its reign below the consumer's position, what was read beyond went with the
    /// old master; there the consumer begins where the reign does.
    pub fn turn_to(&self, target: Target, beginning: &Beginning) -> Result<()> {
        let mut state = lock(&self.state)?;
        for (partition, position) in &mut state.positions {
            *position = (*position).min(beginning.ends.get(partition).copied().unwrap_or(0));
        }
        state.target = target;
        Ok(())
    }

    /// Waits until it has read everything up to these ends, and says what it should not have seen.
    pub fn catch_up(&self, ends: &BTreeMap<Partition, u64>) -> Result<u64> {
        wait_until("the consumer to read everything", || {
            let state = lock(&self.state)?;
            let behind = |(partition, end): (&Partition, &u64)| state.positions.get(partition) < Some(end);
            Ok((!ends.iter().any(behind) || !state.findings.is_empty()).then_some(()))
        })?;
        let state = lock(&self.state)?;
        ensure!(state.findings.is_empty(), "the consumer: {}", state.findings.join("; "));
        Ok(state.read)
    }
}

impl Drop for Consumer {
    fn drop(&mut self) {
        self.over.store(true, Ordering::SeqCst);
        if let Some(thread) = self.thread.take() {
            // What it panicked with was printed.
            let _ = thread.join();
        }
    }
}

fn lock(state: &Mutex<State>) -> Result<std::sync::MutexGuard<'_, State>> {
    state.lock().ok().context("the consumer panicked")
}

fn consume(state: &Mutex<State>, over: &AtomicBool) {
    let mut connection: Option<(String, Raw)> = None;
    while !over.load(Ordering::SeqCst) {
        let Ok((target, positions)) = lock(state).map(|state| (state.target.clone(), state.positions.clone())) else {
            return;
        };
        if connection.as_ref().is_none_or(|(to, _)| *to != target.address) {
            let raw = Raw::connect_for(&target.address, PATIENCE).ok();
            connection = raw.map(|raw| (target.address.clone(), raw));
        }
        let mut progress = false;
        if let Some((_, raw)) = &mut connection {
            match read_once(raw, state, &target, &positions) {
                Ok(more) => progress = more,
                Err(_) => connection = None,
            }
        }
        if !progress {
            std::thread::park_timeout(IDLE_PAUSE);
        }
    }
}

/// One get a partition; whether anything came.
fn read_once(
    raw: &mut Raw,
    state: &Mutex<State>,
    target: &Target,
    positions: &BTreeMap<Partition, u64>,
) -> Result<bool> {
    let mut progress = false;
    for ((topic, partition), position) in positions {
        let reply = raw.get(topic, *partition, *position as i64, FETCH_BYTES)?;
        let mut state = lock(state)?;
        // An answer of a master that is no longer asked says nothing.
        if state.target.reign == target.reign {
            progress |= state.take((topic, *partition), *position, &reply);
        }
    }
    Ok(progress)
}

impl State {
    fn take(&mut self, partition: Partition, position: u64, reply: &Reply) -> bool {
        let mut next = position;
        if reply.is_value {
            for record in reply.records(position) {
                if key_of(&record.body).is_none() {
                    self.findings.push(format!("what lies at {} of {partition:?} is no message", record.offset));
                }
                next = record.end();
                self.read += 1;
            }
            if next == position {
                self.findings.push(format!("a value without a whole record at {position} of {partition:?}"));
            }
        } else if reply.code == 301 {
            let text = reply.text();
            self.findings.push(format!("moved from {position} of {partition:?} to {text}"));
        }
        self.positions.insert(partition, next);
        next > position
    }
}
