//! The records of the original's redo files (transactions, "4. Journal record, byte by byte").

use crate::entry::Part;
use bytes::Bytes;
use metaq_types::limits::{DISCARD_BYTES_MAX, MESSAGE_BYTES_MAX};
use metaq_types::{MessageId, Offset, PartitionId, TopicName};
use std::collections::BTreeMap;

/// Stands in keys of releases before 1.4.5, which had no such part; without it they could not be named on the wire.
const OLD_QUALIFIER: &str = "before-1.4.5";

#[derive(Debug, PartialEq, Eq)]
pub(super) struct OldPut {
    pub(super) id: MessageId,
    pub(super) partition: PartitionId,
    pub(super) flag: i32,
    pub(super) body: Bytes,
}

#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct OldTransaction {
    pub(super) key: String,
    pub(super) puts: Vec<OldPut>,
    pub(super) prepared: bool,
    /// Where the commit said its batches are.
    pub(super) commit: Option<Vec<Part>>,
}

/// All transactions that are committed or prepared. What is neither was going to be rolled back. Checkpoints are not
/// looked at: they may lie behind what is still prepared.
pub(super) fn read(files: &[(u64, Vec<u8>)], trouble: &mut Vec<String>) -> Vec<OldTransaction> {
    let mut reading = Reading::default();
    for (number, bytes) in files {
        let mut at = 0;
        while at < bytes.len() {
            match reading.record(&bytes[at..], trouble) {
                Some(length) => at += length,
                None => {
                    let rest = bytes.len() - at;
                    trouble.push(format!(
                        "the last {rest} bytes of redo.{number}, from {at} on, are no record; kept aside"
                    ));
                    break;
                }
            }
        }
    }
    let mut all = reading.committed;
    all.extend(reading.open.into_values().filter(|transaction| transaction.prepared));
    all
}

#[derive(Default)]
struct Reading {
    open: BTreeMap<String, OldTransaction>,
    committed: Vec<OldTransaction>,
}

impl Reading {
    /// Takes one record with its attachment; its length, or `None` when there is none.
    fn record(&mut self, bytes: &[u8], trouble: &mut Vec<String>) -> Option<usize> {
        let length = usize::try_from(i32::from_be_bytes(*bytes.first_chunk()?)).ok()?;
        if length == 0 || length > DISCARD_BYTES_MAX as usize {
            return None;
        }
        let behind = 4 + length;
        let command = Fields::read(bytes.get(4..behind)?)?;
        let content = Fields::read(command.bytes(2)?)?;
        match command.number(1)? {
            1 => {
                let id = MessageId(content.number(1)? as i64);
                match put(content.bytes(2)?, id) {
                    Ok((key, put)) => self.transaction(key).puts.push(put),
                    Err(reason) => {
                        trouble.push(format!("message {id} of the original's journal is left out: {reason}"))
                    }
                }
                Some(behind)
            }
            2 => {
                let attachment = usize::try_from(content.number(4).unwrap_or(0)).ok()?;
                let places = bytes.get(behind..behind.checked_add(attachment)?)?;
                let key = full_key(std::str::from_utf8(content.bytes(3)?).ok()?);
                self.operation(content.number(1)?, key, places, trouble)?;
                Some(behind + attachment)
            }
            _ => None,
        }
    }

    fn transaction(&mut self, key: String) -> &mut OldTransaction {
        let made = OldTransaction { key: key.clone(), ..OldTransaction::default() };
        self.open.entry(key).or_insert(made)
    }

    fn operation(&mut self, kind: u64, key: String, places: &[u8], trouble: &mut Vec<String>) -> Option<()> {
        match kind {
            1 => {
                if let Some(transaction) = self.open.get_mut(&key) {
                    transaction.prepared = true;
                }
            }
            2 | 4 => {
                let places = read_places(places, &key, trouble);
                if let Some(mut transaction) = self.open.remove(&key) {
                    (transaction.prepared, transaction.commit) = (false, Some(places));
                    self.committed.push(transaction);
                }
            }
            3 | 5 => drop(self.open.remove(&key)),
            _ => return None,
        }
        Some(())
    }
}

/// The attachment of a commit: offset, length, checksum, name of each partition.
fn read_places(mut bytes: &[u8], key: &str, trouble: &mut Vec<String>) -> Vec<Part> {
    let mut places = Vec::new();
    while let Some((head, rest)) = bytes.split_first_chunk::<20>() {
        let int = |at: usize| i32::from_be_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let offset = i64::from(int(0)) << 32 | i64::from(int(4) as u32);
        let Some((name, behind)) = usize::try_from(int(16)).ok().and_then(|length| rest.split_at_checked(length))
        else {
            trouble.push(format!("where the messages of '{key}' are is told only in part; they are looked for"));
            break;
        };
        bytes = behind;
        let partition = std::str::from_utf8(name).ok().and_then(|name| name.parse::<PartitionId>().ok());
        // An append that failed was noted with an offset of -1.
        if let (Some(partition), Some(at), Ok(size)) = (partition, Offset::from_wire(offset), u32::try_from(int(8))) {
            places.push(Part { partition, at, size });
        }
    }
    places
}

/// The embedded put, `put TOPIC PARTITION LENGTH FLAG [CHECKSUM] KEY OPAQUE` and a body.
fn put(bytes: &[u8], id: MessageId) -> Result<(String, OldPut), String> {
    let line_bytes = bytes.windows(2).position(|pair| pair == b"\r\n").ok_or("it has no header line")?;
    let line = std::str::from_utf8(&bytes[..line_bytes]).map_err(|_| "its header line is not UTF-8")?;
    let words: Vec<&str> = line.split(' ').collect();
    let (topic, partition, length, flag, key) = match words[..] {
        ["put", topic, partition, length, flag, _, key, _] | ["put", topic, partition, length, flag, key, _] => {
            (topic, partition, length, flag, key)
        }
        _ => return Err(format!("'{line}' is no put of a transaction")),
    };
    let topic = TopicName::new(topic).map_err(|error| error.to_string())?;
    let number = partition.parse::<u32>().ok().filter(|n| *n <= i32::MAX as u32).ok_or("its partition is no number")?;
    let flag = flag.parse().map_err(|_| "its flag is no number")?;
    let body = &bytes[line_bytes + 2..];
    if length.parse() != Ok(body.len()) || body.len() > MESSAGE_BYTES_MAX as usize {
        return Err(format!("its body has {} bytes, told were {length}, the limit is {MESSAGE_BYTES_MAX}", body.len()));
    }
    let partition = PartitionId { topic, number };
    Ok((full_key(key), OldPut { id, partition, flag, body: Bytes::copy_from_slice(body) }))
}

fn full_key(key: &str) -> String {
    match key.starts_with("XID:") && key.split(':').count() == 4 {
        true => format!("{key}:{OLD_QUALIFIER}"),
        false => key.to_owned(),
    }
}

/// The fields of one protobuf message, as far as the journal uses them.
struct Fields<'a>(Vec<(u64, Value<'a>)>);

enum Value<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

impl<'a> Fields<'a> {
    fn read(mut bytes: &'a [u8]) -> Option<Fields<'a>> {
        let mut fields = Vec::new();
        while !bytes.is_empty() {
            let tag = varint(&mut bytes)?;
            let value = match tag & 7 {
                0 => Value::Number(varint(&mut bytes)?),
                2 => {
                    let length = usize::try_from(varint(&mut bytes)?).ok()?;
                    let (value, rest) = bytes.split_at_checked(length)?;
                    bytes = rest;
                    Value::Bytes(value)
                }
                _ => return None,
            };
            fields.push((tag >> 3, value));
        }
        Some(Fields(fields))
    }

    fn number(&self, field: u64) -> Option<u64> {
        self.0.iter().find_map(|(number, value)| match value {
            Value::Number(value) if *number == field => Some(*value),
            _ => None,
        })
    }

    fn bytes(&self, field: u64) -> Option<&'a [u8]> {
        self.0.iter().find_map(|(number, value)| match value {
            Value::Bytes(value) if *number == field => Some(*value),
            _ => None,
        })
    }
}

fn varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0u64;
    for shift in (0..64).step_by(7) {
        let (byte, rest) = bytes.split_first()?;
        *bytes = rest;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(digits: &str) -> Vec<u8> {
        let digits: Vec<u8> = digits.bytes().filter(u8::is_ascii_hexdigit).collect();
        digits.chunks(2).map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
    }

    fn append(id: &[u8], put: &[u8]) -> Vec<u8> {
        let mut content = vec![0x08];
        content.extend(id);
        content.extend([0x12, put.len() as u8]);
        content.extend(put);
        let mut command = vec![0x08, 0x01, 0x12, content.len() as u8];
        command.extend(content);
        [&(command.len() as i32).to_be_bytes()[..], &command].concat()
    }

    /// The worked example of the reference: a local transaction over two partitions, then a branch.
    fn example() -> Vec<u8> {
        let commit =
            |head: &str, key: &str, length: u8| [hex(head), key.as_bytes().to_vec(), vec![0x20, length]].concat();
        [
            append(&[1], b"put test 0 5 0 -1 TX:sess:1 7\r\nhello"),
            append(&hex("808080a09cf09c8db401"), b"put test 1 6 0 -1 TX:sess:1 7\r\nworld!"),
            commit("00000015 08021211 080410001a09", "TX:sess:1", 0x34),
            hex("0000000000000000 00000019 763fa56e 00000006"),
            b"test-0".to_vec(),
            hex("0000000000000000 0000001a 191bb9f7 00000006"),
            b"test-1".to_vec(),
            append(&hex("808080a09cf09c8db401"), b"put test 0 2 0 -1 XID:100:010203:0a0b:uq 7\r\nxa"),
            [hex("00000022 0802121c 080110001a16"), b"XID:100:010203:0a0b:uq".to_vec(), hex("1801")].concat(),
        ]
        .concat()
    }

    #[test]
    fn the_worked_example_is_read() {
        let mut trouble = Vec::new();
        let read = read(&[(1, example())], &mut trouble);
        assert_eq!(trouble, Vec::<String>::new());
        let [committed, prepared] = &read[..] else { panic!("two transactions, not {read:?}") };
        assert_eq!((committed.key.as_str(), committed.puts.len()), ("TX:sess:1", 2));
        assert_eq!(committed.puts[0].body, "hello");
        assert_eq!(committed.puts[1].id.0, -5_468_931_796_311_736_320);
        let places: Vec<_> =
            committed.commit.as_ref().unwrap().iter().map(|p| (p.partition.to_string(), p.size)).collect();
        assert_eq!(places, [("test-0".to_owned(), 25), ("test-1".to_owned(), 26)]);
        assert!(prepared.prepared && prepared.commit.is_none());
        assert_eq!(prepared.key, "XID:100:010203:0a0b:uq");
    }

    /// H3, H4, H14, H15: nothing but a tail that is no record ends the reading, and never in an error.
    #[test]
    fn a_bad_tail_costs_itself_and_an_unknown_commit_its_attachment() {
        let whole = example();
        for cut in 0..whole.len() {
            let mut trouble = Vec::new();
            read(&[(1, whole[..cut].to_vec()), (2, example())], &mut trouble);
            assert!(trouble.len() <= 1, "cut at {cut}: {trouble:?}");
        }
        let mut trouble = Vec::new();
        // Without its puts the commit is unknown, and what follows its attachment is still read.
        let commit = whole.iter().position(|byte| *byte == 0x15).unwrap() - 3;
        let read_on = read(&[(1, whole[commit..].to_vec())], &mut trouble);
        assert_eq!((read_on.len(), read_on[0].prepared, trouble.len()), (1, true, 0));
        for tail in ["ffffffff00", "7fffffff00", "00000000"] {
            let mut trouble = Vec::new();
            assert_eq!(read(&[(1, [example(), hex(tail)].concat())], &mut trouble).len(), 2);
            assert_eq!(trouble.len(), 1);
        }
    }

    #[test]
    fn old_forms_are_read() {
        let old = append(&[1], b"put test 0 2 0 XID:100:01:0a 7\r\nxa");
        let prepare = [hex("0000001a 08021216 080110001a0d"), b"XID:100:01:0a".to_vec()].concat();
        let mut trouble = Vec::new();
        // The length of the prepare record is computed here rather than trusted.
        let prepare = [&((prepare.len() - 4) as i32).to_be_bytes()[..], &prepare[4..]].concat();
        let mut prepare = prepare;
        prepare[7] = (prepare.len() - 8) as u8;
        let read = read(&[(1, [old, prepare].concat())], &mut trouble);
        assert_eq!(trouble, Vec::<String>::new());
        assert_eq!(read[0].key, "XID:100:01:0a:before-1.4.5");
        assert!(read[0].prepared);
    }
}
