use crate::decode::DecodeError;
use atoi::{FromRadix10Checked, FromRadix10SignedChecked};
use metaq_types::limits::HEADER_LINE_BYTES_MAX;
use std::fmt::Write;

/// The end of a header line.
pub(crate) const CRLF: &[u8; 2] = b"\r\n";

/// No command has more words that mean something by their position.
const WORDS_MAX: usize = 8;

const _: () = assert!(HEADER_LINE_BYTES_MAX <= u16::MAX as usize);

/// How many bytes stand before the first CR LF; `None` while it has not come. A lone CR or LF is an ordinary byte.
pub(crate) fn line_bytes(buf: &[u8]) -> Result<Option<usize>, DecodeError> {
    let window = &buf[..buf.len().min(HEADER_LINE_BYTES_MAX + CRLF.len())];
    let end = memchr::memchr_iter(b'\n', window).find(|lf| *lf > 0 && window[*lf - 1] == b'\r');
    match end {
        Some(lf) => Ok(Some(lf - 1)),
        None if buf.len() >= HEADER_LINE_BYTES_MAX + CRLF.len() => Err(DecodeError {
            opaque: None,
            reason: format!("a header line must end with CR LF within {HEADER_LINE_BYTES_MAX} bytes, this one goes on"),
        }),
        None => Ok(None),
    }
}

/// Where the words of one header line lie (wire-protocol, "1.3"): split at every single blank, so that two blanks
/// hold an empty word between them; empty words at the end do not count.
///
/// Holds places, not references: the line is first looked at in the read buffer and later in its own bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Words {
    places: [(u16, u16); WORDS_MAX],
    /// All words of the line, also those beyond `WORDS_MAX`.
    count: usize,
    /// Up to the end of the last word.
    end: usize,
}

impl Words {
    pub(crate) fn split(line: &[u8]) -> Words {
        assert!(line.len() <= HEADER_LINE_BYTES_MAX, "a line is bounded before it is split");
        let end = line.iter().rposition(|byte| *byte != b' ').map_or(0, |last| last + 1);
        let mut words = Words { places: [(0, 0); WORDS_MAX], count: 0, end };
        let mut start = 0;
        for blank in memchr::memchr_iter(b' ', &line[..end]) {
            words.push(start, blank);
            start = blank + 1;
        }
        words.push(start, end);
        words
    }

    fn push(&mut self, start: usize, end: usize) {
        if let Some(place) = self.places.get_mut(self.count) {
            *place = (start as u16, end as u16);
        }
        self.count += 1;
    }

    /// At least 1; an empty line counts as one empty word.
    pub(crate) fn count(&self) -> usize {
        self.count
    }

    pub(crate) fn get<'a>(&self, line: &'a [u8], index: usize) -> Option<&'a [u8]> {
        let (start, end) = *self.places[..self.count.min(WORDS_MAX)].get(index)?;
        Some(&line[usize::from(start)..usize::from(end)])
    }

    pub(crate) fn last<'a>(&self, line: &'a [u8]) -> &'a [u8] {
        let start = memchr::memrchr(b' ', &line[..self.end]).map_or(0, |blank| blank + 1);
        &line[start..self.end]
    }

    /// The words from number `index` on.
    pub(crate) fn from<'a>(&self, line: &'a [u8], index: usize) -> impl Iterator<Item = &'a [u8]> {
        assert!(0 < index && index <= WORDS_MAX, "every command has its own words first");
        let start = self.places[index - 1].1;
        let rest = if self.count > index { &line[usize::from(start) + 1..self.end] } else { &[] };
        rest.split(|byte| *byte == b' ')
    }
}

/// A signed 32-bit number as Java reads it: digits, at most one sign in front, nothing else.
pub(crate) fn int32(word: &[u8]) -> Option<i32> {
    signed(word)
}

/// A signed 64-bit number as Java reads it.
pub(crate) fn int64(word: &[u8]) -> Option<i64> {
    signed(word)
}

fn signed<N: FromRadix10SignedChecked>(word: &[u8]) -> Option<N> {
    // A sign alone would be read as 0.
    if !word.last()?.is_ascii_digit() {
        return None;
    }
    match N::from_radix_10_signed_checked(word) {
        (Some(number), used) if used == word.len() => Some(number),
        _ => None,
    }
}

/// Digits only; for our own words, which no Java client writes.
pub(crate) fn unsigned64(word: &[u8]) -> Option<u64> {
    match u64::from_radix_10_checked(word) {
        (Some(number), used) if used == word.len() && used > 0 => Some(number),
        _ => None,
    }
}

/// A word in quotes for a message to a person: escaped and cut, as it comes from the network.
pub(crate) fn shown(word: &[u8]) -> String {
    const SHOWN_BYTES_MAX: usize = 48;
    let cut = word.len() > SHOWN_BYTES_MAX;
    let text = String::from_utf8_lossy(&word[..word.len().min(SHOWN_BYTES_MAX)]);
    let mut shown = format!("'{}", text.escape_debug());
    shown.push('\'');
    if cut {
        write!(shown, "… ({} bytes)", word.len()).expect("writing to a String cannot fail");
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(line: &str) -> Vec<&str> {
        let words = Words::split(line.as_bytes());
        let text = |word| std::str::from_utf8(word).unwrap();
        let first = text(words.get(line.as_bytes(), 0).unwrap());
        let all: Vec<_> =
            std::iter::once(first).chain(words.from(line.as_bytes(), 1).map(text).take(words.count() - 1)).collect();
        assert_eq!(words.count(), all.len());
        assert_eq!(text(words.last(line.as_bytes())), *all.last().unwrap());
        for (index, word) in all.iter().enumerate().take(WORDS_MAX) {
            assert_eq!(text(words.get(line.as_bytes(), index).unwrap()), *word);
        }
        assert_eq!(words.get(line.as_bytes(), all.len()), None);
        all
    }

    #[test]
    fn a_line_is_split_at_every_single_blank() {
        assert_eq!(split("stats  -5"), ["stats", "", "-5"]);
        assert_eq!(split("stats "), ["stats"]);
        assert_eq!(split("stats    "), ["stats"]);
        assert_eq!(split("get t g 0 0 10 7 "), ["get", "t", "g", "0", "0", "10", "7"]);
        assert_eq!(split(" quit"), ["", "quit"]);
        assert_eq!(split(""), [""]);
        assert_eq!(split("a b c d e f g h i j k"), ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k"]);
    }

    #[test]
    fn words_after_the_fixed_ones_are_found_at_any_place() {
        let line = b"1 2 3 4 5 6 7 8 a=1  b=2 ";
        let words = Words::split(line);
        let rest = |index| words.from(line, index).collect::<Vec<_>>();
        assert_eq!(rest(8), [&b"a=1"[..], b"", b"b=2"]);
        assert_eq!(rest(7), [&b"8"[..], b"a=1", b"", b"b=2"]);
        let words = Words::split(b"1 2");
        assert!(words.from(b"1 2", 2).all(<[u8]>::is_empty));
        assert!(words.from(b"1 2", 7).all(<[u8]>::is_empty));
    }

    #[test]
    fn numbers_are_read_as_java_reads_them() {
        let good = [
            ("0", 0),
            ("+5", 5),
            ("-5", -5),
            ("007", 7),
            ("2147483647", i32::MAX),
            ("-2147483648", i32::MIN),
            ("-0", 0),
        ];
        for (word, number) in good {
            assert_eq!(int32(word.as_bytes()), Some(number), "{word}");
        }
        for bad in ["", "-", "+", "+-5", "--5", "5-", " 5", "5 ", "0x5", "1.0", "2147483648", "-2147483649", "5\r", "٣"]
        {
            assert_eq!(int32(bad.as_bytes()), None, "{bad}");
        }
        assert_eq!(int64(b"9223372036854775807"), Some(i64::MAX));
        assert_eq!(int64(b"-9223372036854775808"), Some(i64::MIN));
        assert_eq!(int64(b"9223372036854775808"), None);
        assert_eq!(unsigned64(b"18446744073709551615"), Some(u64::MAX));
        for bad in ["", "+5", "-5", "18446744073709551616", "5x"] {
            assert_eq!(unsigned64(bad.as_bytes()), None, "{bad}");
        }
    }

    #[test]
    fn a_line_ends_at_the_first_pair_only() {
        assert_eq!(line_bytes(b"version 1\n\rx\r"), Ok(None));
        assert_eq!(line_bytes(b"version 1\nx\r\r\ny\r\n"), Ok(Some(12)));
        assert_eq!(line_bytes(b"\r\n"), Ok(Some(0)));
    }

    #[test]
    fn a_line_may_be_as_long_as_the_limit_and_no_longer() {
        let mut line = vec![b'v'; HEADER_LINE_BYTES_MAX];
        line.extend_from_slice(b"\r");
        assert_eq!(line_bytes(&line), Ok(None));
        line.extend_from_slice(b"\n");
        assert_eq!(line_bytes(&line), Ok(Some(HEADER_LINE_BYTES_MAX)));
        line.insert(0, b'v');
        assert!(line_bytes(&line).is_err());
    }

    #[test]
    fn what_is_shown_to_a_person_is_escaped_and_short() {
        assert_eq!(shown(b"a\r\x1b"), "'a\\r\\u{1b}'");
        assert_eq!(shown(&[b'x'; 5000]), format!("'{}'… (5000 bytes)", "x".repeat(48)));
    }
}
