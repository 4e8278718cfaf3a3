use std::path::Path;

use anyhow::ensure;
use metaq_client::{Client, GetAnswer};
use metaq_types::PartitionId;
use serde::Serialize;

use super::bytes::LogBytes;

const BLOCK_BYTES: usize = 1024 * 1024;

/// Under which name a broker is asked: consumers' positions are not touched.
const GROUP: &str = "metaq-tool";

/// What two logs of one partition have in common.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Against {
    pub(super) result: Outcome,
    /// By how much one is behind the other, where the rest is the same.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) bytes: Option<u64>,
    /// The first offset at which they differ.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) at: Option<u64>,
    pub(super) text: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Outcome {
    Same,
    /// All that is here is there.
    Behind,
    /// All that is there is here.
    Ahead,
    Differs,
    /// The other has no such partition.
    Absent,
    /// It cannot be asked for.
    Unasked,
}

impl Against {
    fn differs(at: u64, text: String) -> Against {
        Against { result: Outcome::Differs, bytes: None, at: Some(at), text }
    }

    fn plain(result: Outcome, text: &str) -> Against {
        Against { result, bytes: None, at: None, text: text.to_owned() }
    }

    pub(super) fn absent() -> Against {
        Against::plain(Outcome::Absent, "the other has no such partition, or nothing in it")
    }

    pub(super) fn nothing() -> Against {
        Against::plain(Outcome::Same, "nothing was ever put into either")
    }

    /// Of two logs that are the same from `from` on as far as both go.
    fn level(from: u64, begins_elsewhere: bool, end: u64, other_end: u64) -> Against {
        let (result, bytes) = match end.cmp(&other_end) {
            std::cmp::Ordering::Equal => (Outcome::Same, None),
            std::cmp::Ordering::Less => (Outcome::Behind, Some(other_end - end)),
            std::cmp::Ordering::Greater => (Outcome::Ahead, Some(end - other_end)),
        };
        let mut text = match (result, bytes) {
            (Outcome::Behind, Some(bytes)) => format!("prefix: {bytes} bytes behind the other"),
            (_, Some(bytes)) => format!("the other is a prefix: {bytes} bytes behind"),
            _ => "same".to_owned(),
        };
        if begins_elsewhere {
            text.push_str(&format!("; compared from {from}, where the later of the two begins"));
        }
        Against { result, bytes, at: None, text }
    }
}

/// Compares a log with that in another directory.
pub(super) fn with_directory(own: &mut LogBytes, directory: &Path) -> anyhow::Result<Against> {
    match LogBytes::open(directory)? {
        Some(mut other) => with_log(own, &mut other),
        None => Ok(Against::absent()),
    }
}

fn with_log(own: &mut LogBytes, other: &mut LogBytes) -> anyhow::Result<Against> {
    let from = own.first().max(other.first());
    let to = own.end().min(other.end());
    if from > to {
        return Ok(nothing_in_common(own, other.first(), other.end()));
    }
    let (mut ours, mut theirs) = (vec![0; BLOCK_BYTES], vec![0; BLOCK_BYTES]);
    let mut at = from;
    while at < to {
        let wanted = (to - at).min(BLOCK_BYTES as u64) as usize;
        let here = own.read(at, &mut ours[..wanted])?;
        let there = other.read(at, &mut theirs[..wanted])?;
        match (here, there) {
            (0, 0) => at = own.next_run(at).min(other.next_run(at)).max(at + 1),
            (0, _) => return Ok(gap("here", at, own.next_run(at).min(to))),
            (_, 0) => return Ok(gap("there", at, other.next_run(at).min(to))),
            _ => {
                let count = here.min(there);
                if let Some(place) = first_difference(&ours[..count], &theirs[..count]) {
                    return Ok(difference(own, at + place as u64));
                }
                at += count as u64;
            }
        }
    }
    Ok(Against::level(from, own.first() != other.first(), own.end(), other.end()))
}

fn first_difference(a: &[u8], b: &[u8]) -> Option<usize> {
    if a == b { None } else { std::iter::zip(a, b).position(|(a, b)| a != b) }
}

fn nothing_in_common(own: &LogBytes, first: u64, end: u64) -> Against {
    let text = format!("nothing in common: here {} to {}, there {first} to {end}", own.first(), own.end());
    Against::differs(own.first().max(first), text)
}

fn gap(side: &str, from: u64, to: u64) -> Against {
    Against::differs(from, format!("differs at {from}: nothing from there to {to} {side}"))
}

fn difference(own: &LogBytes, at: u64) -> Against {
    let record = own.record_around(at);
    Against::differs(at, format!("differs at {at}, in the message that begins at {record} here"))
}

/// Compares a log with what a broker gives to consumers of it.
pub(super) async fn with_broker(own: &mut LogBytes, client: &Client, id: &PartitionId) -> anyhow::Result<Against> {
    if id.is_journal() {
        return Ok(Against::plain(Outcome::Unasked, "not compared: a broker gives its journal to its slaves only"));
    }
    let number = i32::try_from(id.number)?;
    let topic = id.topic.as_str();
    let Some(mut oldest) = client.offset(topic, GROUP, number, 0).await? else { return Ok(Against::absent()) };
    let mut from = own.first().max(oldest.get());
    let end = own.end();
    let mut block = vec![0; BLOCK_BYTES];
    let mut at = from;
    while at < end {
        match client.get(topic, GROUP, number, at as i64, BLOCK_BYTES as i32, None).await? {
            GetAnswer::Value { body, .. } => {
                ensure!(!body.is_empty(), "the broker sends nothing of {id} at {at}");
                let wanted = (body.len() as u64).min(end - at) as usize;
                if let Some(found) = with_bytes(own, &mut block, at, &body[..wanted])? {
                    return Ok(found);
                }
                at += wanted as u64;
            }
            // A gap that both have.
            GetAnswer::Moved(to) if to.get() > at && own.is_gap(at, to.get())? => at = to.get(),
            GetAnswer::Moved(to) if to.get() > at => {
                let before = oldest;
                oldest = client.offset(topic, GROUP, number, 0).await?.unwrap_or(before);
                if oldest.get() <= at {
                    let text = format!("differs at {at}: the broker has no whole message from there to {to}");
                    return Ok(Against::differs(at, text));
                }
                // Its retention took it meanwhile.
                (from, at) = (oldest.get(), oldest.get());
            }
            GetAnswer::NotYet { .. } | GetAnswer::Moved(_) => break,
            GetAnswer::NoPartition => return Ok(Against::absent()),
        }
    }
    let Some(other_end) = client.offset(topic, GROUP, number, i64::MAX).await? else { return Ok(Against::absent()) };
    if from > end.min(other_end.get()) {
        return Ok(nothing_in_common(own, oldest.get(), other_end.get()));
    }
    // It goes on meanwhile: what came behind the place where it had nothing more was not compared.
    let other_end = if at < end { at.min(other_end.get()) } else { other_end.get() };
    Ok(Against::level(from, own.first() != oldest.get(), end, other_end))
}

/// Compares what came from a broker, from `at` on.
fn with_bytes(own: &mut LogBytes, block: &mut [u8], at: u64, theirs: &[u8]) -> anyhow::Result<Option<Against>> {
    let mut done = 0;
    while done < theirs.len() {
        let wanted = (theirs.len() - done).min(block.len());
        let offset = at + done as u64;
        let count = own.read(offset, &mut block[..wanted])?;
        if count == 0 {
            return Ok(Some(gap("here", offset, own.next_run(offset))));
        }
        if let Some(place) = first_difference(&block[..count], &theirs[done..done + count]) {
            return Ok(Some(difference(own, offset + place as u64)));
        }
        done += count;
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use metaq_types::MessageId;
    use metaq_wire::RecordHeader;
    use std::fs;
    use std::time::Duration;
    use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
    use tokio::net::TcpListener;

    /// A broker with one partition, whose retention takes all before `trimmed` once it was asked where that begins.
    async fn serve(listener: TcpListener, log: Vec<u8>, trimmed: usize) {
        let (mut stream, _) = listener.accept().await.unwrap();
        let (reading, mut writing) = stream.split();
        let mut lines = BufReader::new(reading).lines();
        let mut first = 0;
        while let Some(line) = lines.next_line().await.unwrap() {
            let words: Vec<&str> = line.split(' ').collect();
            let (command, asked, opaque) = (words[0], words[4].parse::<usize>().unwrap(), words.last().unwrap());
            let number = |code, number: usize| {
                let body = number.to_string();
                format!("result {code} {} {opaque}\r\n{body}", body.len()).into_bytes()
            };
            let answer = match command {
                "offset" if asked > log.len() => number(200, log.len()),
                "offset" => number(200, std::mem::replace(&mut first, trimmed)),
                _ if asked < first => number(301, first),
                _ => [format!("value {} {opaque}\r\n", log.len() - asked).as_bytes(), &log[asked..]].concat(),
            };
            writing.write_all(&answer).await.unwrap();
        }
    }

    #[tokio::test]
    async fn what_the_brokers_retention_takes_meanwhile_is_no_difference() {
        let directory = tempfile::tempdir().unwrap();
        let record = |id| [&RecordHeader::of(MessageId(id), 0, &[b'x'; 30]).encode()[..], &[b'x'; 30]].concat();
        let log: Vec<u8> = (1..=3).flat_map(record).collect();
        fs::write(directory.path().join("00000000000000000000.meta"), &log).unwrap();
        let mut own = LogBytes::open(directory.path()).unwrap().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let broker = tokio::spawn(serve(listener, log, 50));
        let client = Client::connect(&address, Duration::from_secs(30)).await.unwrap();
        let found = with_broker(&mut own, &client, &"t-0".parse().unwrap()).await.unwrap();
        assert_eq!(found, Against::level(50, true, 150, 150));
        drop(client);
        broker.await.unwrap();
    }
}
