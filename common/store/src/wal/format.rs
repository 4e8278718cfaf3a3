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

use memmap2::MmapMut;
use metaq_types::PartitionId;
use metaq_types::limits::WAL_ROUND_BYTES_MAX;
use std::io;

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

/// What begins the files of all formats: the rest of the magic is the format.
const ANY_MAGIC: [u8; 6] = *b"metaqw";

/// The format that a file begins with, if it is another than ours.
pub(super) fn other_format(file: &[u8]) -> Option<String> {
    let magic = file.first_chunk::<8>().filter(|magic| magic.starts_with(&ANY_MAGIC) && **magic != FILE_MAGIC)?;
    Some(magic.escape_ascii().to_string())
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

/// Builds one entry, in memory that lies as writes past the page cache need it, behind room for a header.
pub(super) struct Buffer {
    memory: MmapMut,
    /// Where the entry ends so far.
    end: usize,
}

/// Where the entry begins.
const ENTRY: usize = BLOCK_BYTES as usize;
const PAYLOAD: usize = ENTRY + ENTRY_HEAD_BYTES;

impl Buffer {
    /// Room for any entry. Only what is used of it takes memory.
    pub(super) fn new() -> io::Result<Buffer> {
        // An item is begun while the ranges are below their limit, and its name has 64 KiB at most.
        let bytes = WAL_ROUND_BYTES_MAX as usize + 2 * 65_536;
        Ok(Buffer { memory: MmapMut::map_anon(bytes)?, end: PAYLOAD })
    }

    pub(super) fn begin(&mut self) {
        self.end = PAYLOAD;
    }

    /// Room for the bytes of a range, to be filled by the caller; takes everything back when that fails.
    pub(super) fn range<E>(
        &mut self,
        partition: &PartitionId,
        segment: u64,
        position: u32,
        length: u32,
        fill: impl FnOnce(&mut [u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let before = self.end;
        self.name(KIND_RANGE, partition);
        self.put(&segment.to_le_bytes());
        self.put(&position.to_le_bytes());
        self.put(&length.to_le_bytes());
        let from = self.end;
        self.end += length as usize;
        let filled = fill(&mut self.memory[from..self.end]);
        if filled.is_err() {
            self.end = before;
        }
        filled
    }

    pub(super) fn forget(&mut self, partition: &PartitionId) {
        self.name(KIND_FORGET, partition);
    }

    fn name(&mut self, kind: u8, partition: &PartitionId) {
        let name = partition.to_string();
        self.put(&[kind]);
        self.put(&(name.len() as u16).to_le_bytes());
        self.put(name.as_bytes());
    }

    fn put(&mut self, bytes: &[u8]) {
        let from = self.end;
        self.end += bytes.len();
        self.memory[from..self.end].copy_from_slice(bytes);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.payload_bytes() == 0
    }

    pub(super) fn payload_bytes(&self) -> usize {
        self.end - PAYLOAD
    }

    /// What the entry will take in the file.
    pub(super) fn file_bytes(&self) -> u64 {
        ((self.end - ENTRY) as u64).next_multiple_of(BLOCK_BYTES)
    }

    /// The finished entry, whole blocks.
    pub(super) fn finish(&mut self, this: Use, number: u64) -> &[u8] {
        let payload_bytes = self.payload_bytes() as u32;
        let end = self.end.next_multiple_of(BLOCK_BYTES as usize);
        self.memory[self.end..end].fill(0);
        let (head, payload) = self.memory[ENTRY..self.end].split_at_mut(ENTRY_HEAD_BYTES);
        head[..4].copy_from_slice(&ENTRY_MAGIC);
        head[4..8].copy_from_slice(&payload_bytes.to_le_bytes());
        head[8..16].copy_from_slice(&this.session.to_le_bytes());
        head[16..24].copy_from_slice(&this.sequence.to_le_bytes());
        head[24..32].copy_from_slice(&number.to_le_bytes());
        let crc = entry_crc(head, payload);
        head[32..36].copy_from_slice(&crc.to_le_bytes());
        &self.memory[ENTRY..end]
    }

    /// The finished first entry of a use, behind the header.
    pub(super) fn finish_first(&mut self, this: Use) -> &[u8] {
        let bytes = self.finish(this, 0).len();
        let head = &mut self.memory[..HEADER_BYTES];
        head[..8].copy_from_slice(&FILE_MAGIC);
        head[8..16].copy_from_slice(&this.session.to_le_bytes());
        head[16..24].copy_from_slice(&this.sequence.to_le_bytes());
        let crc = crc32fast::hash(&head[..24]);
        head[24..].copy_from_slice(&crc.to_le_bytes());
        &self.memory[..ENTRY + bytes]
    }
}

/// Of all but the checksum itself.
fn entry_crc(head: &[u8], payload: &[u8]) -> u32 {
    let mut crc = crc32fast::Hasher::new();
    crc.update(&head[..32]);
    crc.update(payload);
    crc.finalize()
}

/// The items of a file's entries, up to the first entry that is not whole or not of this use. `None` where an entry is
/// whole and says what this version does not know: it may be about any partition.
pub(super) fn items(file: &[u8], this: Use) -> Option<Vec<Item<'_>>> {
    let mut items = Vec::new();
    let mut at = BLOCK_BYTES as usize;
    let mut number = 0;
    while let Some(payload) = entry_at(file, at, this, number) {
        parse_items(payload, &mut items)?;
        at += (ENTRY_HEAD_BYTES + payload.len()).next_multiple_of(BLOCK_BYTES as usize);
        number += 1;
    }
    Some(items)
}

fn entry_at(file: &[u8], at: usize, this: Use, number: u64) -> Option<&[u8]> {
    let head = file.get(at..at + ENTRY_HEAD_BYTES)?;
    let length = u32_at(head, 4)? as usize;
    let belongs = head[..4] == ENTRY_MAGIC
        && u64_at(head, 8)? == this.session
        && u64_at(head, 16)? == this.sequence
        && u64_at(head, 24)? == number;
    let payload = file.get(at + ENTRY_HEAD_BYTES..at + ENTRY_HEAD_BYTES + length)?;
    (belongs && u32_at(head, 32)? == entry_crc(head, payload)).then_some(payload)
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
        let mut buffer = Buffer::new().unwrap();
        let mut file = Vec::new();
        for (number, ranges) in entries.iter().enumerate() {
            buffer.begin();
            for (name, segment, position, bytes) in *ranges {
                let fill = |room: &mut [u8]| {
                    room.copy_from_slice(bytes);
                    Ok::<_, ()>(())
                };
                buffer.range(&id(name), *segment, *position, bytes.len() as u32, fill).unwrap();
            }
            file.extend_from_slice(match number {
                0 => buffer.finish_first(THIS),
                _ => buffer.finish(THIS, number as u64),
            });
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
        assert_eq!(items(&file, THIS).unwrap(), expected);
    }

    #[test]
    fn an_entry_counts_only_whole_and_in_its_own_use() {
        let whole = file(&[&[("a-0", 0, 0, b"one")], &[("a-0", 0, 3, b"two")], &[("a-0", 0, 6, b"three")]]);
        assert_eq!(items(&whole, THIS).unwrap().len(), 3);
        assert!(items(&whole, Use { session: 78, ..THIS }).unwrap().is_empty());
        assert!(items(&whole, Use { sequence: 4, ..THIS }).unwrap().is_empty());
        for at in [0, 4, 9, 17, 25, 33, 36, 45] {
            let mut torn = whole.clone();
            torn[2 * BLOCK_BYTES as usize + at] ^= 1;
            assert_eq!(items(&torn, THIS).unwrap().len(), 1, "byte {at} of the second entry");
        }
        for length in [0, 10, 4096, 4100, 8191, 8192] {
            let left = length / 4096;
            assert!(items(&whole[..length], THIS).unwrap().len() <= left, "cut to {length}");
        }
        let mut torn = whole;
        torn[9] ^= 1;
        assert_eq!(parse_header(&torn), None);
    }

    #[test]
    fn a_range_that_cannot_be_filled_leaves_no_trace() {
        let mut buffer = Buffer::new().unwrap();
        buffer.begin();
        assert_eq!(buffer.range(&id("a-0"), 0, 0, 100, |_| Err("unreadable")), Err("unreadable"));
        assert!(buffer.is_empty());
        buffer.forget(&id("a-0"));
        let mut file = buffer.finish_first(THIS).to_vec();
        assert_eq!(file.len() as u64, 2 * BLOCK_BYTES);
        file.extend_from_slice(&[0; 5000]);
        assert_eq!(items(&file, THIS).unwrap(), [Item::Forget { partition: id("a-0") }]);
    }
}
