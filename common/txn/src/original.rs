//! The journal of the original, taken over once (transactions, "12. Opening an original journal").
//!
//! Everything in it is told again in entries of our own, finished transactions too; the recovery that follows finds out
//! which batches are in their partitions. So an import that was interrupted is simply done again.

use crate::entry::{Number, Part, What, encode};
use crate::original::redo::{OldTransaction, read};
use crate::recovery::Recovered;
use crate::replay::History;
use crate::work::ack;
use bytes::Bytes;
use metaq_store::{BatchRecord, Partition, Store};
use metaq_types::{MessageId, Offset};
use std::collections::{BTreeMap, HashSet};
use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::path::Path;
use std::sync::Arc;

mod redo;

/// A `heuristic.log` up to this size is empty, or holds an empty table.
const EMPTY_HEURISTIC_LOG_BYTES: u64 = 135;

/// Tells what the original's journal holds in our own. `false` when there is nothing to take over.
pub(crate) fn import(
    directory: &Path,
    store: &Store,
    journal: &Arc<Partition>,
    history: &History,
    recovered: &mut Recovered,
) -> Result<bool, String> {
    let files = redo_files(directory)?;
    if files.iter().all(|(_, bytes)| bytes.is_empty()) {
        return Ok(false);
    }
    let known: HashSet<MessageId> =
        history.transactions.values().flat_map(|past| past.messages.iter().map(|message| message.id)).collect();
    let old = read(&files, &mut recovered.trouble);
    let mut number = history.last;
    for transaction in old.iter().filter(|t| t.puts.first().is_some_and(|put| !known.contains(&put.id))) {
        number += 1;
        tell(store, journal, number, transaction)?;
        recovered.imported += 1;
    }
    if fs::metadata(directory.join("heuristic.log")).is_ok_and(|file| file.len() > EMPTY_HEURISTIC_LOG_BYTES) {
        let text =
            "heuristic.log of the original is kept and not taken over: branches its operator decided are unknown here";
        recovered.trouble.push(text.to_owned());
    }
    Ok(true)
}

/// Every `redo.N`, in order of N, with its bytes.
fn redo_files(directory: &Path) -> Result<Vec<(u64, Vec<u8>)>, String> {
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        // Whoever set it aside may have been killed before that was durable, and it must not come back later.
        Err(error) if error.kind() == ErrorKind::NotFound => {
            return sync_directory(directory).map(|()| Vec::new()).map_err(|error| error.to_string());
        }
        Err(error) => return Err(error.to_string()),
    };
    let mut files = BTreeMap::new();
    for entry in entries {
        let entry = entry.map_err(|error| error.to_string())?;
        let name = entry.file_name();
        let number = name.to_str().and_then(|name| name.strip_prefix("redo.")).and_then(|n| n.parse::<u64>().ok());
        if let Some(number) = number {
            let path = entry.path();
            let bytes = fs::read(&path).map_err(|error| format!("cannot read {}: {error}", path.display()))?;
            files.insert(number, bytes);
        }
    }
    Ok(files.into_iter().collect())
}

fn tell(store: &Store, journal: &Arc<Partition>, number: Number, old: &OldTransaction) -> Result<(), String> {
    let mut records = Vec::new();
    for put in &old.puts {
        let what = What::Put { partition: put.partition.clone(), flag: put.flag, body: put.body.clone() };
        records.push(record(put.id, encode(number, &old.key, &what)));
    }
    let mut note = |what: What| -> Result<(), String> {
        let id = store.ids().next().map_err(|error| error.to_string())?;
        records.push(record(id, encode(number, &old.key, &what)));
        Ok(())
    };
    if old.prepared {
        note(What::Prepare { messages: Some(old.puts.len() as u32) })?;
    }
    if let Some(stored) = &old.commit {
        note(What::Commit { by_operator: false, parts: parts(store, old, stored) })?;
        note(What::Applied { parts: stored.clone() })?;
    }
    let (ack, outcome) = ack();
    // Durable, as the original's journal will be set aside.
    journal.append_entries(records, true, ack);
    outcome.wait().map(drop).map_err(|error| error.to_string())
}

fn record(id: MessageId, body: Bytes) -> BatchRecord {
    BatchRecord { id, flag: 0, checksum: metaq_wire::checksum(&body), body }
}

/// Where each batch is at the earliest: where it was said to be, else anywhere.
fn parts(store: &Store, old: &OldTransaction, stored: &[Part]) -> Vec<Part> {
    let mut parts: Vec<Part> = Vec::new();
    for put in &old.puts {
        match parts.iter_mut().find(|part| part.partition == put.partition) {
            Some(part) => part.size += 1,
            None => {
                let said = stored.iter().find(|part| part.partition == put.partition).map(|part| part.at);
                let anywhere = || {
                    let partition = store.get(&put.partition.topic, put.partition.number as i32);
                    partition.map_or(Offset::ZERO, |partition| partition.positions().kept)
                };
                let at = said.unwrap_or_else(anywhere);
                parts.push(Part { partition: put.partition.clone(), at, size: 1 });
            }
        }
    }
    parts
}

/// Renames the directory to `transactions.imported-N`, with the first free N, so that it is taken over once.
pub(crate) fn set_aside(directory: &Path) -> Result<(), String> {
    let free = (1u32..)
        .map(|number| directory.with_file_name(format!("transactions.imported-{number}")))
        .find(|path| !path.exists())
        .expect("a directory cannot hold four thousand million files of this name");
    let renamed = fs::rename(directory, &free).and_then(|()| sync_directory(&free));
    renamed.map_err(|error| format!("cannot rename it to {}: {error}", free.display()))
}

fn sync_directory(path: &Path) -> io::Result<()> {
    path.parent().map_or(Ok(()), |parent| File::open(parent)?.sync_all())
}
