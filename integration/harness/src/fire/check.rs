//! Holds what a broker serves against the ledger.

use crate::fire::ledger::{Entry, Ledger, Outcome, key_of};
use crate::fire::{PARTITIONS, TOPICS};
use crate::raw::{Raw, Record};
use anyhow::{Result, ensure};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// A partition's name: topic and number.
pub type Partition = (&'static str, i32);

/// Where a reign began: what earlier ones acknowledged beyond it was lost with the old master, and is announced.
#[derive(Clone, Debug, Default)]
pub struct Beginning {
    pub reign: usize,
    pub ends: BTreeMap<Partition, u64>,
}

/// Every kind of fault with the messages that show it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Findings(pub BTreeMap<&'static str, Vec<String>>);

impl Findings {
    fn add(&mut self, kind: &'static str, what: String) {
        self.0.entry(kind).or_default().push(what);
    }

    pub fn assert_none(&self) -> Result<()> {
        let counts: Vec<String> = self
            .0
            .iter()
            .map(|(kind, all)| {
                format!("{kind} {}: {}", all.len(), all.iter().take(3).cloned().collect::<Vec<_>>().join("; "))
            })
            .collect();
        ensure!(counts.is_empty(), "{}", counts.join("\n"));
        Ok(())
    }
}

/// Whether an acknowledged message lay beyond the begin of a later reign.
pub fn is_announced(entry: &Entry, beginnings: &[Beginning]) -> bool {
    let partition = (entry.topic, entry.partition);
    let Some(end) = entry.end() else { return false };
    beginnings.iter().any(|later| later.reign > entry.reign && end > later.ends.get(&partition).copied().unwrap_or(0))
}

/// Every record that a broker serves.
#[derive(Debug)]
pub struct Served(Vec<(Partition, Record)>);

impl Served {
    /// Reads every partition whole.
    pub fn read(address: &str) -> Result<Served> {
        let mut raw = Raw::connect(address)?;
        let mut all = Vec::new();
        for topic in TOPICS {
            for partition in 0..PARTITIONS {
                let records = raw.read_all(topic, partition, 0)?;
                all.extend(records.into_iter().map(|record| ((topic, partition), record)));
            }
        }
        Ok(Served(all))
    }

    /// Each whole message's key, its partition, and where it ends.
    pub fn places(&self) -> impl Iterator<Item = (u64, (Partition, u64))> {
        self.0.iter().filter_map(|(partition, record)| Some((key_of(&record.body)?, (*partition, record.end()))))
    }
}

/// Reads everything and checks it; see [`check_served`].
pub fn check(address: &str, ledger: &Ledger, beginnings: &[Beginning]) -> Result<Findings> {
    Ok(check_served(&Served::read(address)?, ledger, beginnings))
}

/// `lost` is an acknowledged message that is not there and not announced as lost; `ghost` one that is there although it
/// was refused, or announced as lost; `shifted` lies elsewhere than was told.
pub fn check_served(served: &Served, ledger: &Ledger, beginnings: &[Beginning]) -> Findings {
    let entries: HashMap<u64, Entry> = ledger.entries().into_iter().map(|entry| (entry.key, entry)).collect();
    let mut findings = Findings::default();
    let (mut seen, mut ids) = (BTreeSet::new(), BTreeSet::new());
    let mut last_keys: HashMap<Partition, u64> = HashMap::new();
    for ((topic, partition), record) in &served.0 {
        let place = format!("{topic}-{partition} at {}", record.offset);
        let Some(key) = key_of(&record.body).filter(|_| checksum_fits(record)) else {
            findings.add("corrupt", place);
            continue;
        };
        if !ids.insert(record.id) {
            findings.add("duplicate id", format!("{} {place}", record.id));
        }
        if !seen.insert(key) {
            findings.add("duplicate", format!("message {key} {place}"));
        }
        let last_key = last_keys.insert((*topic, *partition), key).unwrap_or(0);
        if key <= last_key {
            findings.add("out of order", format!("message {key} after {last_key} {place}"));
        }
        match entries.get(&key) {
            None => findings.add("ghost", format!("message {key} {place} was never sent")),
            Some(entry) => check_one(&mut findings, entry, (*topic, *partition), record, beginnings),
        }
    }
    for entry in entries.values() {
        let stored = matches!(entry.outcome, Outcome::Acknowledged { .. });
        if stored && !seen.contains(&entry.key) && !is_announced(entry, beginnings) {
            findings.add("lost", format!("{entry:?}"));
        }
    }
    findings
}

fn check_one(findings: &mut Findings, entry: &Entry, partition: Partition, record: &Record, beginnings: &[Beginning]) {
    let Entry { key, topic, partition: number, outcome, .. } = entry;
    if (*topic, *number) != partition {
        findings.add("shifted", format!("message {key} was sent to {topic}-{number} and lies in {partition:?}"));
    }
    match outcome {
        Outcome::Refused => findings.add("ghost", format!("message {key} was refused and lies at {}", record.offset)),
        Outcome::Unknown => {}
        Outcome::Acknowledged { .. } if is_announced(entry, beginnings) => {
            findings.add("ghost", format!("message {key} was lost with an old master and lies at {}", record.offset));
        }
        Outcome::Acknowledged { id, offset } => {
            if (*id, *offset) != (record.id, record.offset) {
                findings
                    .add("shifted", format!("message {key} of {id} at {offset} is {} at {}", record.id, record.offset));
            }
        }
    }
}

fn checksum_fits(record: &Record) -> bool {
    (crc32fast::hash(&record.body) & 0x7fff_ffff) as i32 == record.checksum
}
