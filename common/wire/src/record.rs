use metaq_types::MessageId;
use metaq_types::limits::RECORD_HEADER_BYTES;

const HEADER: usize = RECORD_HEADER_BYTES as usize;

/// Flag bit 0: the body begins with an attribute.
const FLAG_ATTRIBUTE: i32 = 1;

/// The checksum of a message's body (storage, "2. Record layout"): CRC-32 without its top bit, so never negative.
pub fn checksum(body: &[u8]) -> i32 {
    (crc32fast::hash(body) & 0x7fff_ffff) as i32
}

/// The 20 bytes in front of every stored message, big-endian: length, checksum, id, flag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordHeader {
    /// Of the body; at most `i32::MAX`.
    pub length: u32,
    pub checksum: i32,
    pub id: MessageId,
    pub flag: i32,
}

/// The length field of a record is negative.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the length of a record is {0}, expected 0 or more")]
pub struct NegativeLength(pub i32);

impl RecordHeader {
    /// For a body that is to be stored; it must be shorter than 2 GiB.
    pub fn of(id: MessageId, flag: i32, body: &[u8]) -> RecordHeader {
        let length = i32::try_from(body.len()).expect("a body is bounded far below 2 GiB") as u32;
        RecordHeader { length, checksum: checksum(body), id, flag }
    }

    pub fn encode(&self) -> [u8; HEADER] {
        let mut bytes = [0; HEADER];
        bytes[0..4].copy_from_slice(&self.length.to_be_bytes());
        bytes[4..8].copy_from_slice(&self.checksum.to_be_bytes());
        bytes[8..16].copy_from_slice(&self.id.0.to_be_bytes());
        bytes[16..20].copy_from_slice(&self.flag.to_be_bytes());
        bytes
    }

    pub fn parse(bytes: &[u8; HEADER]) -> Result<RecordHeader, NegativeLength> {
        let field = |at: usize| [bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]];
        let length = i32::from_be_bytes(field(0));
        let id = u64::from(u32::from_be_bytes(field(8))) << 32 | u64::from(u32::from_be_bytes(field(12)));
        Ok(RecordHeader {
            length: u32::try_from(length).map_err(|_| NegativeLength(length))?,
            checksum: i32::from_be_bytes(field(4)),
            id: MessageId(id as i64),
            flag: i32::from_be_bytes(field(16)),
        })
    }

    /// Header and body.
    pub const fn record_bytes(&self) -> u64 {
        RECORD_HEADER_BYTES as u64 + self.length as u64
    }

    /// 20 zero bytes are a legal record of an empty body, but are what a crash leaves in a preallocated file. No
    /// broker gives the id 0, so they are never taken for a message.
    pub const fn is_zeros(&self) -> bool {
        self.length == 0 && self.checksum == 0 && self.id.0 == 0 && self.flag == 0
    }
}

/// False when the flag says "attribute" and the attribute's length is negative or more than the body holds: no client
/// could decode such a message.
pub fn attribute_fits(flag: i32, body: &[u8]) -> bool {
    split_attribute(flag, body).is_some()
}

/// Attribute and payload of a body; `None` when the attribute does not fit.
pub fn split_attribute(flag: i32, body: &[u8]) -> Option<(Option<&[u8]>, &[u8])> {
    if flag & FLAG_ATTRIBUTE == 0 {
        return Some((None, body));
    }
    let (length, rest) = body.split_first_chunk::<4>()?;
    let (attribute, payload) = rest.split_at_checked(usize::try_from(i32::from_be_bytes(*length)).ok()?)?;
    Some((Some(attribute), payload))
}

/// Walks the whole records at the front of a byte slice: yields each with its position, checked.
///
/// Bytes at the end that are no whole record yet end the walk without an error; [`Records::position`] tells where they
/// begin. A bad record is yielded as an error, and is the last item.
#[derive(Clone, Debug)]
pub struct Records<'a> {
    bytes: &'a [u8],
    position: usize,
    failed: bool,
}

/// A record that must not be served or copied, and where it begins.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("bad record at byte {position}: {fault}")]
pub struct BadRecord {
    pub position: usize,
    pub fault: RecordFault,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordFault {
    #[error(transparent)]
    Length(#[from] NegativeLength),
    #[error("20 zero bytes are not a message")]
    Zeros,
    #[error("its checksum is {stored}, its body of {length} bytes has {computed}")]
    Checksum { stored: i32, computed: i32, length: u32 },
}

impl<'a> Records<'a> {
    pub fn new(bytes: &'a [u8]) -> Records<'a> {
        Records { bytes, position: 0, failed: false }
    }

    /// The end of the last good record.
    pub fn position(&self) -> usize {
        self.position
    }

    /// The bytes behind the last good record.
    pub fn rest(&self) -> &'a [u8] {
        &self.bytes[self.position..]
    }

    fn check(&self, header: Result<RecordHeader, NegativeLength>, rest: &'a [u8]) -> Option<Checked<'a>> {
        let header = match header {
            Ok(header) if header.is_zeros() => return Some(Err(RecordFault::Zeros)),
            Ok(header) => header,
            Err(negative) => return Some(Err(negative.into())),
        };
        let body = rest.get(..header.length as usize)?;
        let computed = checksum(body);
        if computed != header.checksum {
            return Some(Err(RecordFault::Checksum { stored: header.checksum, computed, length: header.length }));
        }
        Some(Ok((header, body)))
    }
}

type Checked<'a> = Result<(RecordHeader, &'a [u8]), RecordFault>;

impl<'a> Iterator for Records<'a> {
    type Item = Result<(usize, RecordHeader, &'a [u8]), BadRecord>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.failed {
            return None;
        }
        let position = self.position;
        let (header, rest) = self.rest().split_first_chunk::<HEADER>()?;
        match self.check(RecordHeader::parse(header), rest)? {
            Ok((header, body)) => {
                self.position += HEADER + body.len();
                Some(Ok((position, header, body)))
            }
            Err(fault) => {
                self.failed = true;
                Some(Err(BadRecord { position, fault }))
            }
        }
    }
}

impl std::iter::FusedIterator for Records<'_> {}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(id: i64, flag: i32, body: &[u8]) -> Vec<u8> {
        let mut bytes = RecordHeader::of(MessageId(id), flag, body).encode().to_vec();
        bytes.extend_from_slice(body);
        bytes
    }

    fn hex(digits: &str) -> Vec<u8> {
        let digits: Vec<u8> = digits.bytes().filter(|digit| *digit != b' ').collect();
        digits.chunks(2).map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
    }

    /// storage, "2. Record layout", the worked examples; the third of wire-protocol, "8.1".
    #[test]
    fn records_have_the_bytes_of_the_original() {
        let cases: [(i64, i32, &[u8], &str); 5] = [
            (1_234_567_890_123, 0, b"hello", "00000005 3610a686 0000011f71fb04cb 00000000 68656c6c6f"),
            (-1, 1, b"\0\0\0\x04attrhello", "0000000d 4b62e51c ffffffffffffffff 00000001 00000004 61747472 68656c6c6f"),
            (0, 0, b"", "0000000000000000000000000000000000000000"),
            (
                0xb41a_747f_0b40_0000_u64 as i64,
                1,
                b"\0\0\0\0hello",
                "00000009 163b4535 b41a747f0b400000 00000001 00000000 68656c6c6f",
            ),
            (0, 0, b"msg0", "00000004 32daeb07 0000000000000000 00000000 6d736730"),
        ];
        for (id, flag, body, bytes) in cases {
            let bytes = hex(bytes);
            assert_eq!(record(id, flag, body), bytes);
            let header = RecordHeader::parse(bytes.first_chunk().unwrap()).unwrap();
            assert_eq!(header, RecordHeader::of(MessageId(id), flag, body));
            assert_eq!(header.record_bytes(), bytes.len() as u64);
        }
    }

    #[test]
    fn checksums_never_have_their_top_bit() {
        for (body, expected) in [("hello", 907_060_870), ("test", 1_484_750_348), ("", 0)] {
            assert_eq!(checksum(body.as_bytes()), expected, "{body}");
        }
    }

    #[test]
    fn an_attribute_is_split_off_where_it_fits() {
        type Split<'a> = Option<(Option<&'a [u8]>, &'a [u8])>;
        let cases: [(i32, &[u8], Split); 9] = [
            (0, b"hello", Some((None, b"hello"))),
            (2, b"", Some((None, b""))),
            (1, b"\0\0\0\x04attrhello", Some((Some(b"attr"), b"hello"))),
            (3, b"\0\0\0\0x", Some((Some(b""), b"x"))),
            (1, b"\0\0\0\x04attr", Some((Some(b"attr"), b""))),
            (1, b"\0\0\0\x05attr", None),
            (1, b"\xff\xff\xff\xffattr", None),
            (-1, b"\0\0\0", None),
            (1, b"", None),
        ];
        for (flag, body, expected) in cases {
            assert_eq!(split_attribute(flag, body), expected, "{flag} {body:?}");
            assert_eq!(attribute_fits(flag, body), expected.is_some());
        }
    }

    #[test]
    fn a_walk_ends_before_a_record_that_is_not_whole() {
        let mut bytes = record(1, 0, b"one");
        bytes.extend(record(2, 0, b""));
        let end = bytes.len();
        bytes.extend(record(3, 0, b"three"));
        for cut in end..bytes.len() {
            let mut records = Records::new(&bytes[..cut]);
            let found: Vec<_> = records.by_ref().map(|r| r.map(|(at, header, _)| (at, header.id.0)).unwrap()).collect();
            assert_eq!(found, [(0, 1), (23, 2)]);
            assert_eq!((records.position(), records.rest().len()), (end, cut - end));
        }
    }

    #[test]
    fn a_walk_ends_at_a_bad_record_and_says_why() {
        let good = record(1, 0, b"one");
        let mut flipped = record(2, 0, b"two");
        flipped[21] ^= 1;
        let mut negative = record(2, 0, b"two");
        negative[0] = 0x80;
        let zeros = vec![0; 40];
        for (bad, reason) in [
            (flipped, "its checksum is"),
            (negative, "the length of a record is -2147483645"),
            (zeros, "20 zero bytes are not a message"),
        ] {
            let mut bytes = good.clone();
            bytes.extend(bad);
            bytes.extend(&good);
            let mut records = Records::new(&bytes);
            assert!(records.next().unwrap().is_ok());
            let error = records.next().unwrap().unwrap_err();
            assert_eq!(error.position, good.len());
            assert!(error.to_string().contains(reason), "{error}");
            assert!(records.next().is_none());
            assert_eq!(records.position(), good.len());
        }
    }
}
