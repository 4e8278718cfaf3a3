//! Holds a log against a master that remembers no reigns, byte for byte.
//!
//! Such a master may be the original, which lists and begins an answer only where it has flushed, but hands out whatever
//! its file holds behind that: a slave may rightly be beyond the end that it lists.

use super::LinkOptions;
use crate::listing::Listed;
use metaq_client::{Client, GetAnswer};
use metaq_store::{Partition, Reader, SliceAt};
use metaq_types::{Offset, PartitionId};
use metaq_wire::Records;
use std::sync::Arc;
use std::time::Duration;

/// Bytes before the end of what both have that are compared.
const COMPARED_BYTES: u64 = 64 * 1024;

/// Bytes of one question: what the original answers at most unless it is told otherwise.
const QUESTION_BYTES: u32 = 1024 * 1024;

const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// Whether the master holds this log's last bytes, whatever it has behind them. An error says nothing about the logs.
pub(super) async fn is_prefix(
    options: &LinkOptions,
    client: &Client,
    log: &Partition,
    listed: &Listed,
) -> Result<bool, String> {
    let own_end = log.positions().written;
    let first = listed.first.max(log.positions().kept);
    if own_end <= first {
        return Ok(true);
    }
    let both = own_end.min(listed.end);
    if both <= first {
        return Ok(false);
    }
    let master = Master { client, group: &options.group, partition: log.id() };
    let from = segment_of(log, both).max(first).get().max(both.get().saturating_sub(COMPARED_BYTES));
    let length = (both.get() - from) as u32;
    if !same(&master, log, from, length).await? {
        return Ok(false);
    }
    if both == own_end {
        return Ok(true);
    }
    if log.nearest(both.wire()) == both {
        // It hands out nothing of a segment of which it has flushed nothing, so nothing of it can be here.
        return Ok(false);
    }
    // The last byte that it admits to, and all behind it.
    let length = u32::try_from(own_end.bytes_since(both) + 1).unwrap_or(u32::MAX).min(QUESTION_BYTES);
    same(&master, log, both.get() - 1, length).await
}

/// The end of the records that both have, looked for from the newest segment on: reads a segment of the master.
pub(super) async fn common_end(
    options: &LinkOptions,
    client: &Client,
    log: &Arc<Partition>,
    listed: &Listed,
) -> Result<Offset, String> {
    let master = Master { client, group: &options.group, partition: log.id() };
    let first = listed.first.max(log.positions().kept);
    let own_end = log.positions().written;
    let mut segment = segment_of(log, own_end.min(listed.end));
    // A segment that begins alike is where the logs part, if they part at all behind it.
    while segment > first && !same(&master, log, segment.get(), head_bytes(segment, listed.end)).await? {
        segment = segment_of(log, segment);
    }
    same_until(options, client, log, segment.max(first)).await
}

/// How far both logs are the same from `from` on, in whole records: where reigns can no longer tell, the bytes do.
pub(super) async fn same_until(
    options: &LinkOptions,
    client: &Client,
    log: &Arc<Partition>,
    from: Offset,
) -> Result<Offset, String> {
    let master = Master { client, group: &options.group, partition: log.id() };
    let own_end = log.positions().written;
    // Only what is synced can be read here.
    if let Some(last) = own_end.get().checked_sub(1).and_then(Offset::new) {
        let synced = tokio::time::timeout(ANSWER_TIMEOUT, log.readable_beyond(last, Reader::Replica)).await;
        synced.map_err(|_| format!("{} is not synced in time", log.id()))?;
    }
    let mut at = from;
    while at < own_end {
        let Some(own) = read_own(log, at.get(), QUESTION_BYTES) else { break };
        let theirs = master.read(at.get(), own.len() as u32).await?;
        let alike = own.iter().zip(&theirs).take_while(|(own, theirs)| own == theirs).count();
        let whole = whole_records(&own[..alike]);
        at = at + whole as u64;
        if whole < own.len() {
            break;
        }
    }
    Ok(at)
}

/// The first record of a segment tells: an id and a checksum are in it.
fn head_bytes(segment: Offset, master_end: Offset) -> u32 {
    master_end.bytes_since(segment).clamp(1, 4096) as u32
}

fn whole_records(bytes: &[u8]) -> usize {
    let mut records = Records::new(bytes);
    while let Some(Ok(_)) = records.next() {}
    records.position()
}

/// Where the own segment begins that holds the byte before `end`.
fn segment_of(log: &Partition, end: Offset) -> Offset {
    let last = i64::try_from(end.get().saturating_sub(1)).unwrap_or(i64::MAX);
    log.nearest(last)
}

/// Whether the master holds at `from` the own bytes there, `length` of them unless the own log ends before.
async fn same(master: &Master<'_>, log: &Partition, from: u64, length: u32) -> Result<bool, String> {
    // What cannot be read here cannot be held against anything.
    let Some(own) = read_own(log, from, length) else { return Ok(true) };
    let theirs = master.read(from, own.len() as u32).await?;
    Ok(theirs.get(..own.len()).is_some_and(|theirs| *theirs == own[..]))
}

fn read_own(log: &Partition, from: u64, bytes: u32) -> Option<Vec<u8>> {
    let from = i64::try_from(from).ok()?;
    let SliceAt::Bytes(slice) = log.slice(from, bytes, Reader::Replica) else { return None };
    let mut own = vec![0; slice.len().min(bytes) as usize];
    let read = slice.read_at(0, &mut own).ok()?;
    own.truncate(read);
    Some(own)
}

struct Master<'a> {
    client: &'a Client,
    group: &'a str,
    partition: &'a PartitionId,
}

impl Master<'_> {
    /// Up to `length` bytes from `from` on: fewer where its segment ends, none where it has nothing.
    async fn read(&self, from: u64, length: u32) -> Result<Vec<u8>, String> {
        let mut bytes = Vec::new();
        let (topic, number) = (&self.partition.topic, self.partition.number as i32);
        while bytes.len() < length as usize {
            let at = i64::try_from(from + bytes.len() as u64).map_err(|_| "beyond every offset".to_owned())?;
            let max = i32::try_from(length as usize - bytes.len()).unwrap_or(i32::MAX);
            let answer = self.client.get(topic, self.group, number, at, max, None);
            let answer =
                tokio::time::timeout(ANSWER_TIMEOUT, answer).await.map_err(|_| "no answer in time".to_owned())?;
            match answer.map_err(|error| error.to_string())? {
                GetAnswer::Value { body, .. } if !body.is_empty() => bytes.extend_from_slice(&body),
                _ => break,
            }
        }
        Ok(bytes)
    }
}
