//! Producers that go on whatever happens, each with one message outstanding, and write down what they were told.

use crate::fire::ledger::{Entry, Ledger, Outcome, body};
use crate::fire::pauses::Metronome;
use crate::fire::{PARTITIONS, TOPICS, last};
use crate::raw::Raw;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// As the Java client: what is not answered by then may or may not be stored.
const ANSWER_PATIENCE: Duration = Duration::from_secs(3);

const PUT_PAUSE: Duration = Duration::from_millis(8);
const FAILURE_PAUSE: Duration = Duration::from_millis(50);

/// Where producers send to.
#[derive(Clone, Debug)]
pub struct Target {
    pub address: String,
    pub reign: usize,
}

#[derive(Debug)]
struct Shared {
    target: Mutex<Target>,
    ledger: Ledger,
    metronome: Metronome,
    next_key: AtomicU64,
    paused: AtomicBool,
    /// Producers that are between two puts because of that.
    idle: AtomicU64,
    over: AtomicBool,
}

/// One producer a topic, and a metronome beside them; they end when this is dropped.
#[derive(Debug)]
pub struct Load {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

impl Load {
    pub fn start(target: Target) -> Load {
        let shared = Arc::new(Shared {
            target: Mutex::new(target),
            ledger: Ledger::default(),
            metronome: Metronome::default(),
            next_key: AtomicU64::new(1),
            paused: AtomicBool::new(false),
            idle: AtomicU64::new(0),
            over: AtomicBool::new(false),
        });
        let producer = |topic| {
            let shared = Arc::clone(&shared);
            std::thread::spawn(move || produce(&shared, topic))
        };
        let mut threads: Vec<_> = TOPICS.into_iter().map(producer).collect();
        let beside = Arc::clone(&shared);
        threads.push(std::thread::spawn(move || {
            while !beside.over.load(Ordering::SeqCst) {
                beside.metronome.tick();
            }
        }));
        Load { shared, threads }
    }

    pub fn ledger(&self) -> &Ledger {
        &self.shared.ledger
    }

    pub fn metronome(&self) -> &Metronome {
        &self.shared.metronome
    }

    pub fn turn_to(&self, target: Target) {
        *self.shared.target.lock().expect("a producer never panics with the target in hand") = target;
    }

    /// Returns when no put is outstanding any more.
    pub fn pause(&self) -> anyhow::Result<()> {
        self.shared.paused.store(true, Ordering::SeqCst);
        let all = TOPICS.len() as u64;
        crate::process::wait_until("producers to pause", || {
            Ok((self.shared.idle.load(Ordering::SeqCst) == all).then_some(()))
        })
    }

    pub fn resume(&self) {
        self.shared.paused.store(false, Ordering::SeqCst);
        self.threads.iter().for_each(|thread| thread.thread().unpark());
    }

    pub fn acknowledged(&self) -> usize {
        let is_stored = |entry: &Entry| matches!(entry.outcome, Outcome::Acknowledged { .. });
        self.shared.ledger.entries().into_iter().filter(is_stored).count()
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.shared.over.store(true, Ordering::SeqCst);
        self.resume();
        for thread in self.threads.drain(..) {
            // What it panicked with was printed.
            let _ = thread.join();
        }
    }
}

fn produce(shared: &Shared, topic: &'static str) {
    let mut connection: Option<(String, Raw)> = None;
    let mut turn = 0;
    while !shared.over.load(Ordering::SeqCst) {
        if shared.paused.load(Ordering::SeqCst) {
            shared.idle.fetch_add(1, Ordering::SeqCst);
            while shared.paused.load(Ordering::SeqCst) {
                std::thread::park_timeout(ANSWER_PATIENCE);
            }
            shared.idle.fetch_sub(1, Ordering::SeqCst);
            continue;
        }
        let Target { address, reign } =
            shared.target.lock().expect("a producer never panics with the target in hand").clone();
        let fresh = connection.take().filter(|(to, _)| *to == address);
        let Some((_, mut raw)) = fresh.or_else(|| connect(&address).map(|raw| (address.clone(), raw))) else {
            last(FAILURE_PAUSE);
            continue;
        };
        let key = shared.next_key.fetch_add(1, Ordering::SeqCst);
        turn = (turn + 1) % PARTITIONS;
        let asked = Instant::now();
        let (outcome, usable) = put(&mut raw, topic, turn, key);
        shared.ledger.note(Entry { key, topic, partition: turn, outcome, reign, asked, at: Instant::now() });
        if usable {
            connection = Some((address, raw));
        }
        last(if matches!(outcome, Outcome::Acknowledged { .. }) { PUT_PAUSE } else { FAILURE_PAUSE });
    }
}

fn connect(address: &str) -> Option<Raw> {
    let raw = Raw::connect(address).ok()?;
    raw.set_patience(ANSWER_PATIENCE).ok()?;
    Some(raw)
}

/// What came of a put, and whether the connection can be used again.
fn put(raw: &mut Raw, topic: &str, partition: i32, key: u64) -> (Outcome, bool) {
    let Ok(reply) = raw.put(topic, partition, &body(key)) else { return (Outcome::Unknown, false) };
    if let Ok(stored) = reply.stored() {
        return (Outcome::Acknowledged { id: stored.id, offset: stored.offset }, true);
    }
    let text = reply.text();
    let outcome = if text.contains("may or may not") || text.contains("stored here") {
        Outcome::Unknown
    } else {
        Outcome::Refused
    };
    (outcome, true)
}
