//! Readers of every member at once, which remember what they saw: whatever anybody could read once is there for good,
//! on every member that shows as much.

use crate::fire::check::Partition;
use crate::fire::{PARTITIONS, TOPICS};
use crate::raw::{Raw, Record};
use anyhow::{Context, Result, ensure};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

/// A member that is stopped answers nothing; it is asked again.
const PATIENCE: Duration = Duration::from_secs(2);
const IDLE_PAUSE: Duration = Duration::from_millis(30);
const FETCH_BYTES: i32 = 256 * 1024;

/// What tells a message from another: its id, its checksum and its length.
type Mark = (i64, u32, usize);

#[derive(Debug, Default)]
struct Seen {
    records: BTreeMap<(Partition, u64), Mark>,
    findings: Vec<String>,
}

/// Reads until it is dropped.
#[derive(Debug)]
pub struct Witness {
    seen: Arc<Mutex<Seen>>,
    over: Arc<AtomicBool>,
    readers: Vec<JoinHandle<()>>,
}

impl Witness {
    /// Of the members at these addresses, masters and slaves alike.
    pub fn start(addresses: Vec<String>) -> Witness {
        let (seen, over) = (Arc::<Mutex<Seen>>::default(), Arc::new(AtomicBool::new(false)));
        let reader = |address: String| {
            let (seen, over) = (Arc::clone(&seen), Arc::clone(&over));
            std::thread::spawn(move || read(&address, &seen, &over))
        };
        let readers = addresses.into_iter().map(reader).collect();
        Witness { seen, over, readers }
    }

    /// Holds all that was seen so far against what the member at `address` shows now. Ids grow along a partition.
    pub fn check(&self, address: &str) -> Result<usize> {
        let before = {
            let seen = self.seen.lock().ok().context("a reader panicked")?;
            ensure!(seen.findings.is_empty(), "seen by a consumer: {}", seen.findings.join("; "));
            seen.records.clone()
        };
        let mut raw = Raw::connect(address)?;
        let mut there = BTreeMap::new();
        for topic in TOPICS {
            for partition in 0..PARTITIONS {
                let records = raw.read_all(topic, partition, 0)?;
                let grow = records.windows(2).all(|pair| pair[0].id < pair[1].id);
                ensure!(grow, "an id of {topic}-{partition} was given twice, or is smaller than one before");
                there.extend(records.iter().map(|record| (((topic, partition), record.offset), mark(record))));
            }
        }
        let gone = before.iter().find(|(place, mark)| there.get(place) != Some(mark));
        ensure!(gone.is_none(), "a ghost: {gone:?} was read, and is not there any more");
        Ok(before.len())
    }
}

impl Drop for Witness {
    fn drop(&mut self) {
        self.over.store(true, Ordering::SeqCst);
        for reader in self.readers.drain(..) {
            // What it panicked with was printed.
            let _ = reader.join();
        }
    }
}

fn mark(record: &Record) -> Mark {
    (record.id, crc32fast::hash(&record.body), record.body.len())
}

fn read(address: &str, seen: &Mutex<Seen>, over: &AtomicBool) {
    let mut positions: BTreeMap<Partition, u64> =
        TOPICS.iter().flat_map(|topic| (0..PARTITIONS).map(|partition| ((*topic, partition), 0))).collect();
    let mut connection = None;
    while !over.load(Ordering::SeqCst) {
        let progress = match connection.take().or_else(|| Raw::connect_for(address, PATIENCE).ok()) {
            None => false,
            Some(mut raw) => match read_once(&mut raw, &mut positions, seen, over) {
                Ok(progress) => {
                    connection = Some(raw);
                    progress
                }
                // The member went away in the middle of it.
                Err(_) => false,
            },
        };
        if !progress {
            std::thread::park_timeout(IDLE_PAUSE);
        }
    }
}

/// One get a partition; whether anything came. A member that shows less than before is asked again later.
fn read_once(
    raw: &mut Raw,
    positions: &mut BTreeMap<Partition, u64>,
    seen: &Mutex<Seen>,
    over: &AtomicBool,
) -> Result<bool> {
    let mut progress = false;
    for (partition, position) in positions {
        if over.load(Ordering::SeqCst) {
            break;
        }
        let reply = raw.get(partition.0, partition.1, *position as i64, FETCH_BYTES)?;
        if !reply.is_value {
            continue;
        }
        let records = reply.records(*position);
        let mut seen = seen.lock().ok().context("a reader panicked")?;
        for record in &records {
            let (place, mark) = ((*partition, record.offset), mark(record));
            if let Some(other) = seen.records.insert(place, mark).filter(|other| *other != mark) {
                seen.findings.push(format!("{other:?} and {mark:?} at {place:?}"));
            }
        }
        *position = records.last().context("a value without a whole record")?.end();
        progress = true;
    }
    Ok(progress)
}
