//! The few frames a load generator needs, without an allocation a message.
//!
//! Deliberately not `metaq-wire`: what measures a broker must not share a bug with it, and a prepared frame with its
//! opaque patched in place costs less than any encoder. The parser judges: a reply that is not exactly what the
//! protocol allows is an error, never a number to be skipped.

use crate::window::OPAQUE_DIGITS;
use std::fmt::Write as _;

/// The longest reply line that is still plausible: three numbers and the trailing words of a replica's `value`.
const REPLY_LINE_BYTES_MAX: usize = 256;

/// Length, checksum, id and flag in front of every stored message.
pub(crate) const RECORD_HEADER_BYTES: usize = 20;

/// A reply that cannot be one; the connection is of no further use.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("garbled reply: {0}")]
pub(crate) struct Garbled(pub(crate) String);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Result { code: u16 },
    Value,
}

/// The header line of a reply, parsed; `head_bytes` counts its CR LF.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) kind: Kind,
    pub(crate) opaque: i32,
    pub(crate) head_bytes: usize,
    pub(crate) body_bytes: usize,
}

/// Reads the header line at the start of `buf`; `None` when it has not arrived whole.
pub(crate) fn parse_head(buf: &[u8]) -> Result<Option<Head>, Garbled> {
    let Some(end) = buf.iter().take(REPLY_LINE_BYTES_MAX).position(|byte| *byte == b'\n') else {
        return if buf.len() < REPLY_LINE_BYTES_MAX { Ok(None) } else { Err(garbled(buf, "no line end")) };
    };
    let Some(line) = buf[..end].strip_suffix(b"\r") else { return Err(garbled(buf, "a line feed alone")) };
    let mut words = line.split(|byte| *byte == b' ');
    let kind = match words.next() {
        Some(b"result") => match words.next().and_then(number) {
            Some(code) if (100..=599).contains(&code) => Kind::Result { code: code as u16 },
            _ => return Err(garbled(buf, "no status code")),
        },
        Some(b"value") => Kind::Value,
        _ => return Err(garbled(buf, "neither result nor value")),
    };
    let length = words.next().and_then(number).and_then(|length| usize::try_from(length).ok());
    let Some(body_bytes) = length.filter(|length| *length <= i32::MAX as usize) else {
        return Err(garbled(buf, "no body length"));
    };
    let Some(opaque) = words.next().and_then(number).and_then(|opaque| i32::try_from(opaque).ok()) else {
        return Err(garbled(buf, "no opaque"));
    };
    // The original's `result` ends here; a `value` may go on with words for replicas.
    if matches!(kind, Kind::Result { .. }) && words.next().is_some() {
        return Err(garbled(buf, "more than four words"));
    }
    Ok(Some(Head { kind, opaque, head_bytes: end + 1, body_bytes }))
}

/// What the body of a successful put says: `ID PARTITION OFFSET`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stored {
    pub(crate) id: i64,
    pub(crate) partition: i64,
    pub(crate) offset: i64,
}

pub(crate) fn parse_stored(body: &[u8]) -> Result<Stored, Garbled> {
    let mut words = body.split(|byte| *byte == b' ');
    let mut next = || words.next().and_then(number);
    match (next(), next(), next(), next()) {
        (Some(id), Some(partition), Some(offset), None) => Ok(Stored { id, partition, offset }),
        _ => Err(garbled(body, "not an id, a partition and an offset")),
    }
}

/// A decimal number as the protocol writes it; `None` for anything else, overflow included.
pub(crate) fn number(word: &[u8]) -> Option<i64> {
    let (negative, digits) = match word.split_first()? {
        (b'-', digits) => (true, digits),
        _ => (false, word),
    };
    if digits.is_empty() {
        return None;
    }
    // Counted downwards, as the smallest number has no positive counterpart.
    let mut sum: i64 = 0;
    for digit in digits {
        if !digit.is_ascii_digit() {
            return None;
        }
        sum = sum.checked_mul(10)?.checked_sub(i64::from(digit - b'0'))?;
    }
    if negative { Some(sum) } else { sum.checked_neg() }
}

fn garbled(bytes: &[u8], fault: &str) -> Garbled {
    let shown = &bytes[..bytes.len().min(60)];
    Garbled(format!("{fault} in `{}`", shown.escape_ascii()))
}

/// Ready-made `put` frames, one a partition, that need nothing but their opaque.
pub(crate) struct PutFrames {
    frames: Vec<Box<[u8]>>,
    body_bytes: usize,
}

impl PutFrames {
    /// With `checksum` the body's CRC goes along and the broker has to check it; without, -1 says "not supplied".
    pub(crate) fn new(topic: &str, partitions: u32, body: &[u8], checksum: bool) -> PutFrames {
        let crc = if checksum { i64::from(crc32fast::hash(body) & 0x7fff_ffff) } else { -1 };
        let frames = (0..partitions).map(|partition| {
            let blank = "0".repeat(OPAQUE_DIGITS);
            let mut frame = format!("put {topic} {partition} {} 0 {crc} {blank}\r\n", body.len()).into_bytes();
            frame.extend_from_slice(body);
            frame.into_boxed_slice()
        });
        PutFrames { frames: frames.collect(), body_bytes: body.len() }
    }

    pub(crate) fn partitions(&self) -> u32 {
        self.frames.len() as u32
    }

    pub(crate) fn frame_bytes_max(&self) -> usize {
        self.frames.iter().map(|frame| frame.len()).max().unwrap_or(0)
    }

    /// Appends the frame for `partition` to `out` and returns its body, to be changed where messages differ.
    pub(crate) fn append<'a>(&self, out: &'a mut Vec<u8>, partition: u32, opaque: i32) -> &'a mut [u8] {
        let frame = &self.frames[partition as usize];
        out.extend_from_slice(frame);
        let body_at = out.len() - self.body_bytes;
        let opaque_at = body_at - 2 - OPAQUE_DIGITS;
        write_opaque(&mut out[opaque_at..opaque_at + OPAQUE_DIGITS], opaque);
        &mut out[body_at..]
    }
}

/// Writes an opaque of exactly [`OPAQUE_DIGITS`] characters; `window` gives no other.
fn write_opaque(place: &mut [u8], opaque: i32) {
    let mut rest = opaque.unsigned_abs();
    for at in (1..OPAQUE_DIGITS).rev() {
        place[at] = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    place[0] = b'-';
    debug_assert!(opaque < 0 && rest == 0);
}

/// One question for the bytes of a partition.
#[derive(Debug, Clone, Copy)]
pub(crate) struct GetQuestion<'a> {
    pub(crate) topic: &'a str,
    pub(crate) group: &'a str,
    pub(crate) partition: u32,
    pub(crate) offset: i64,
    pub(crate) bytes_max: u32,
    /// Only a broker that knows the long poll heeds it.
    pub(crate) wait_ms: Option<u32>,
}

impl GetQuestion<'_> {
    /// Overwrites `line`, whose memory is used again.
    pub(crate) fn write(&self, line: &mut String, opaque: i32) {
        line.clear();
        let GetQuestion { topic, group, partition, offset, bytes_max, wait_ms } = self;
        write!(line, "get {topic} {group} {partition} {offset} {bytes_max} {opaque}").expect("a String takes all");
        if let Some(wait_ms) = wait_ms {
            write!(line, " wait={wait_ms}").expect("a String takes all");
        }
        line.push_str("\r\n");
    }
}

/// Walks whole records from the start of `bytes`, hands each body to `each`, and returns how many bytes they took;
/// what is left is the beginning of a record that did not fit. `verify` checks every checksum.
pub(crate) fn walk_records(bytes: &[u8], verify: bool, mut each: impl FnMut(&[u8])) -> Result<usize, Garbled> {
    let mut at = 0;
    while let Some(header) = bytes.get(at..at + RECORD_HEADER_BYTES) {
        let length = i32::from_be_bytes([header[0], header[1], header[2], header[3]]);
        let Ok(length) = usize::try_from(length) else {
            return Err(Garbled(format!("a record with length {length} at byte {at} of a value")));
        };
        let body_at = at + RECORD_HEADER_BYTES;
        let Some(body) = bytes.get(body_at..body_at + length) else { break };
        let checksum = u32::from_be_bytes([header[4], header[5], header[6], header[7]]);
        if verify && crc32fast::hash(body) & 0x7fff_ffff != checksum {
            return Err(Garbled(format!("a record with a wrong checksum at byte {at} of a value")));
        }
        each(body);
        at = body_at + length;
    }
    Ok(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_is_read_only_when_its_line_is_whole() {
        let reply = b"result 200 25 -2147483640\r\n-5468930708032454656 0 -1";
        for cut in 0..27 {
            assert_eq!(parse_head(&reply[..cut]).unwrap(), None, "{cut}");
        }
        let head = parse_head(reply).unwrap().unwrap();
        let expected =
            Head { kind: Kind::Result { code: 200 }, opaque: -2_147_483_640, head_bytes: 27, body_bytes: 25 };
        assert_eq!(head, expected);
        let stored = parse_stored(&reply[27..]).unwrap();
        assert_eq!(stored, Stored { id: -5_468_930_708_032_454_656, partition: 0, offset: -1 });
    }

    #[test]
    fn a_value_may_carry_words_for_replicas_and_a_result_may_not() {
        let head = parse_head(b"value 100 7 seg=0 end=100 epoch=1\r\n").unwrap().unwrap();
        assert_eq!((head.kind, head.body_bytes, head.opaque), (Kind::Value, 100, 7));
        assert!(parse_head(b"result 200 0 7 more\r\n").is_err());
    }

    #[test]
    fn what_is_no_reply_is_called_garbled() {
        let long = [b'x'; REPLY_LINE_BYTES_MAX];
        let bad: [&[u8]; 11] = [
            b"result 200 0\r\n",
            b"result OK 0 1\r\n",
            b"result 200 -1 1\r\n",
            b"result 200 0 2147483648\r\n",
            b"result 200 2147483648 1\r\n",
            b"result  200 0 1\r\n",
            b"result 200 0 1\n",
            b"value x 1\r\n",
            b"get t g 0 0 10 7\r\n",
            b"\r\n",
            &long,
        ];
        for reply in bad {
            assert!(parse_head(reply).is_err(), "{}", reply.escape_ascii());
        }
        for body in ["", "1 2", "1 2 3 4", "1 x 3", "1 2 3\r\n", "-  1"] {
            assert!(parse_stored(body.as_bytes()).is_err(), "{body:?}");
        }
    }

    #[test]
    fn numbers_keep_to_64_bits() {
        let cases: [(&str, Option<i64>); 8] = [
            ("0", Some(0)),
            ("-9223372036854775808", Some(i64::MIN)),
            ("9223372036854775807", Some(i64::MAX)),
            ("9223372036854775808", None),
            ("-", None),
            ("", None),
            ("+1", None),
            ("1a", None),
        ];
        for (word, expected) in cases {
            assert_eq!(number(word.as_bytes()), expected, "{word:?}");
        }
    }

    #[test]
    fn a_frame_differs_from_its_neighbour_by_its_opaque() {
        let frames = PutFrames::new("t", 2, b"hello", true);
        let mut out = Vec::new();
        frames.append(&mut out, 0, i32::MIN);
        frames.append(&mut out, 1, -1_000_000_000).copy_from_slice(b"world");
        let expected = "put t 0 5 0 907060870 -2147483648\r\nhelloput t 1 5 0 907060870 -1000000000\r\nworld";
        assert_eq!(String::from_utf8(out).unwrap(), expected);
        let mut out = Vec::new();
        PutFrames::new("t", 1, b"", false).append(&mut out, 0, -2_000_000_000);
        assert_eq!(out, b"put t 0 0 0 -1 -2000000000\r\n");
    }

    #[test]
    fn records_are_walked_up_to_the_one_that_is_cut() {
        let mut bytes = Vec::new();
        for body in ["one", "", "three"] {
            bytes.extend((body.len() as u32).to_be_bytes());
            bytes.extend((crc32fast::hash(body.as_bytes()) & 0x7fff_ffff).to_be_bytes());
            bytes.extend([0; 12]);
            bytes.extend(body.as_bytes());
        }
        let mut bodies = Vec::new();
        let whole = walk_records(&bytes[..bytes.len() - 1], true, |body| bodies.push(body.to_vec())).unwrap();
        assert_eq!((whole, bodies), (43, vec![b"one".to_vec(), Vec::new()]));

        bytes[RECORD_HEADER_BYTES] ^= 1;
        assert!(walk_records(&bytes, true, |_| ()).is_err());
        assert_eq!(walk_records(&bytes, false, |_| ()).unwrap(), bytes.len());
        bytes[0] = 0x80;
        assert!(walk_records(&bytes, false, |_| ()).is_err());
    }

    #[test]
    fn a_question_ends_with_its_wait() {
        let mut line = String::from("old");
        let mut question =
            GetQuestion { topic: "t", group: "g", partition: 1, offset: 5, bytes_max: 100, wait_ms: None };
        question.write(&mut line, 9);
        assert_eq!(line, "get t g 1 5 100 9\r\n");
        question.wait_ms = Some(500);
        question.write(&mut line, 9);
        assert_eq!(line, "get t g 1 5 100 9 wait=500\r\n");
    }
}
