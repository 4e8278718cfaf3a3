//! The bytes of the write-ahead log. A file is a header block and entries; everything begins on a block, so that a torn
//! write of one entry never touches another. Numbers are little-endian.
//!
//! ```text
//!   header   magic 8 │ session 8 │ sequence 8 │ CRC-32 of these 4
//!   entry    magic 4 │ payload length 4 │ session 8 │ sequence 8 │ number 8 │ CRC-32 of the rest and the payload 4
//!   payload  items: kind 1 │ name length 2 │ name │ for a range: segment 8 │ position 4 │ length 4 │ bytes
//! ```
//!
//! Files are used again and again: the session, a random number of one opening of the store, and the sequence of the
//! use say whether an entry belongs to the header in front of it. The number counts the entries of one use.

use metaq_types::PartitionId;

pub(super) const BLOCK_BYTES: u64 = 4096;
const FILE_MAGIC: [u8; 8] = *b"metaqwal";
const ENTRY_MAGIC: [u8; 4] = *b"ENTR";
pub(super) const HEADER_BYTES: usize = 28;
const ENTRY_HEAD_BYTES: usize = 36;
const KIND_RANGE: u8 = 1;
const KIND_FORGET: u8 = 2;

/// One use of one file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Use {
    pub(super) sequence: u64,
    pub(super) session: u64,
}

/// What an entry says about one partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Item<'a> {
    /// These bytes of a segment are durable.
    Range { partition: PartitionId, segment: u64, position: u32, bytes: &'a [u8] },
    /// Nothing said of this partition before counts any more: its files are about to be changed otherwise.
    Forget { partition: PartitionId },
}

pub(super) fn header(this: Use) -> Vec<u8> {
    let mut block = Vec::with_capacity(BLOCK_BYTES as usize);
    block.extend_from_slice(&FILE_MAGIC);
    block.extend_from_slice(&this.session.to_le_bytes());
    block.extend_from_slice(&this.sequence.to_le_bytes());
    block.extend_from_slice(&crc32fast::hash(&block).to_le_bytes());
    block.resize(BLOCK_BYTES as usize, 0);
    block
}

/// `None` where there is none, or not a whole one.
pub(super) fn parse_header(file: &[u8]) -> Option<Use> {
    let head = file.get(..HEADER_BYTES)?;
    let (body, crc) = head.split_at(HEADER_BYTES - 4);
    if body[..8] != FILE_MAGIC || u32_at(crc, 0)? != crc32fast::hash(body) {
        return None;
    }
    Some(Use { session: u64_at(body, 8)?, sequence: u64_at(body, 16)? })
}

/// Builds one entry in a buffer that is used again.
#[derive(Default)]
pub(super) struct EntryBuffer(Vec<u8>);

impl EntryBuffer {
    pub(super) fn begin(&mut self) -> EntryInProgress<'_> {
        self.0.clear();
        self.0.resize(ENTRY_HEAD_BYTES, 0);
        EntryInProgress(&mut self.0)
    }
}

pub(super) struct EntryInProgress<'a>(&'a mut Vec<u8>);

impl<'a> EntryInProgress<'a> {
    /// Room for the bytes of a range, to be filled by the caller; takes everything back when that fails.
    pub(super) fn range<E>(
        &mut self,
        partition: &PartitionId,
        segment: u64,
        position: u32,
        length: u32,
        fill: impl FnOnce(&mut [u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let before = self.0.len();
        self.name(KIND_RANGE, partition);
        self.0.extend_from_slice(&segment.to_le_bytes());
        self.0.extend_from_slice(&position.to_le_bytes());
        self.0.extend_from_slice(&length.to_le_bytes());
        let from = self.0.len();
        self.0.resize(from + length as usize, 0);
        let filled = fill(&mut self.0[from..]);
        if filled.is_err() {
            self.0.truncate(before);
        }
        filled
    }

    pub(super) fn forget(&mut self, partition: &PartitionId) {
        self.name(KIND_FORGET, partition);
    }

    fn name(&mut self, kind: u8, partition: &PartitionId) {
        let name = partition.to_string();
        self.0.push(kind);
        self.0.extend_from_slice(&(name.len() as u16).to_le_bytes());
        self.0.extend_from_slice(name.as_bytes());
    }

    pub(super) fn is_empty(&self) -> bool {
        self.payload_bytes() == 0
    }

    pub(super) fn payload_bytes(&self) -> usize {
        self.0.len() - ENTRY_HEAD_BYTES
    }

    /// What it will take in the file.
    pub(super) fn file_bytes(&self) -> u64 {
        ((ENTRY_HEAD_BYTES + self.payload_bytes()) as u64).next_multiple_of(BLOCK_BYTES)
    }

    /// The finished bytes, whole blocks.
    pub(super) fn finish(self, this: Use, number: u64) -> &'a [u8] {
        let payload_bytes = self.payload_bytes() as u32;
        let end = self.file_bytes() as usize;
        let head = &mut self.0[..ENTRY_HEAD_BYTES];
        head[..4].copy_from_slice(&ENTRY_MAGIC);
        head[4..8].copy_from_slice(&payload_bytes.to_le_bytes());
        head[8..16].copy_from_slice(&this.session.to_le_bytes());
        head[16..24].copy_from_slice(&this.sequence.to_le_bytes());
        head[24..32].copy_from_slice(&number.to_le_bytes());
        let crc = entry_crc(self.0);
        self.0[32..36].copy_from_slice(&crc.to_le_bytes());
        self.0.resize(end, 0);
        self.0
    }
}

/// Of an entry from its first byte to the end of its payload, without the checksum itself.
fn entry_crc(entry: &[u8]) -> u32 {
    let mut crc = crc32fast::Hasher::new();
    crc.update(&entry[..32]);
    crc.update(&entry[ENTRY_HEAD_BYTES..]);
    crc.finalize()
}

/// The items of a file's entries, up to the first entry that is not whole or not of this use.
pub(super) fn items(file: &[u8], this: Use) -> Vec<Item<'_>> {
    let mut items = Vec::new();
    let mut at = BLOCK_BYTES as usize;
    let mut number = 0;
    while let Some(payload) = entry_at(file, at, this, number) {
        let Some(()) = parse_items(payload, &mut items) else { break };
        at += (ENTRY_HEAD_BYTES + payload.len()).next_multiple_of(BLOCK_BYTES as usize);
        number += 1;
    }
    items
}

fn entry_at(file: &[u8], at: usize, this: Use, number: u64) -> Option<&[u8]> {
    let head = file.get(at..at + ENTRY_HEAD_BYTES)?;
    let length = u32_at(head, 4)? as usize;
    let belongs = head[..4] == ENTRY_MAGIC
        && u64_at(head, 8)? == this.session
        && u64_at(head, 16)? == this.sequence
        && u64_at(head, 24)? == number;
    let entry = file.get(at..at + ENTRY_HEAD_BYTES + length)?;
    (belongs && u32_at(head, 32)? == entry_crc(entry)).then_some(&entry[ENTRY_HEAD_BYTES..])
}

fn parse_items<'a>(mut payload: &'a [u8], items: &mut Vec<Item<'a>>) -> Option<()> {
    while let Some((&kind, rest)) = payload.split_first() {
        let (length, rest) = rest.split_first_chunk::<2>()?;
        let (name, rest) = rest.split_at_checked(u16::from_le_bytes(*length).into())?;
        let partition: PartitionId = std::str::from_utf8(name).ok()?.parse().ok()?;
        payload = match kind {
            KIND_FORGET => {
                items.push(Item::Forget { partition });
                rest
            }
            KIND_RANGE => {
                let (head, rest) = rest.split_at_checked(16)?;
                let (segment, position) = (u64_at(head, 0)?, u32_at(head, 8)?);
                let (bytes, rest) = rest.split_at_checked(u32_at(head, 12)? as usize)?;
                items.push(Item::Range { partition, segment, position, bytes });
                rest
            }
            _ => return None,
        };
    }
    Some(())
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const THIS: Use = Use { sequence: 3, session: 77 };

    fn id(name: &str) -> PartitionId {
        name.parse().unwrap()
    }

    type Named<'a> = (&'a str, u64, u32, &'a [u8]);

    fn file(entries: &[&[Named<'_>]]) -> Vec<u8> {
        let mut buffer = EntryBuffer::default();
        let mut file = header(THIS);
        for (number, ranges) in entries.iter().enumerate() {
            let mut entry = buffer.begin();
            for (name, segment, position, bytes) in *ranges {
                let fill = |room: &mut [u8]| {
                    room.copy_from_slice(bytes);
                    Ok::<_, ()>(())
                };
                entry.range(&id(name), *segment, *position, bytes.len() as u32, fill).unwrap();
            }
            file.extend_from_slice(entry.finish(THIS, number as u64));
        }
        file
    }

    #[test]
    fn what_was_written_is_read() {
        let long = vec![9; 10_000];
        let file = file(&[&[("a-0", 0, 5, b"abc"), ("b-c-17", 4096, 0, &long)], &[("a-0", 0, 8, b"d")]]);
        assert_eq!(file.len() as u64 % BLOCK_BYTES, 0);
        assert_eq!(parse_header(&file), Some(THIS));
        let range = |name, segment, position, bytes| Item::Range { partition: id(name), segment, position, bytes };
        let expected = [range("a-0", 0, 5, b"abc"), range("b-c-17", 4096, 0, &long[..]), range("a-0", 0, 8, b"d")];
        assert_eq!(items(&file, THIS), expected);
    }

    #[test]
    fn an_entry_counts_only_whole_and_in_its_own_use() {
        let whole = file(&[&[("a-0", 0, 0, b"one")], &[("a-0", 0, 3, b"two")], &[("a-0", 0, 6, b"three")]]);
        assert_eq!(items(&whole, THIS).len(), 3);
        assert!(items(&whole, Use { session: 78, ..THIS }).is_empty());
        assert!(items(&whole, Use { sequence: 4, ..THIS }).is_empty());
        for at in [0, 4, 9, 17, 25, 33, 36, 45] {
            let mut torn = whole.clone();
            torn[2 * BLOCK_BYTES as usize + at] ^= 1;
            assert_eq!(items(&torn, THIS).len(), 1, "byte {at} of the second entry");
        }
        for length in [0, 10, 4096, 4100, 8191, 8192] {
            let left = length / 4096;
            assert!(items(&whole[..length], THIS).len() <= left, "cut to {length}");
        }
        let mut torn = whole;
        torn[9] ^= 1;
        assert_eq!(parse_header(&torn), None);
    }

    #[test]
    fn a_range_that_cannot_be_filled_leaves_no_trace() {
        let mut buffer = EntryBuffer::default();
        let mut entry = buffer.begin();
        assert_eq!(entry.range(&id("a-0"), 0, 0, 100, |_| Err("unreadable")), Err("unreadable"));
        assert!(entry.is_empty());
        entry.forget(&id("a-0"));
        let mut file = header(THIS);
        file.extend_from_slice(entry.finish(THIS, 0));
        assert_eq!(file.len() as u64, 2 * BLOCK_BYTES);
        file.extend_from_slice(&[0; 5000]);
        assert_eq!(items(&file, THIS), [Item::Forget { partition: id("a-0") }]);
    }
}
