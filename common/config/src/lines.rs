//! What `server.ini` and Java property files share: logical lines and backslash escapes.

/// A line as written, or several joined by a `\` at their ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LogicalLine {
    /// Of its first physical line, counted from 1.
    pub(crate) number: u32,
    pub(crate) text: String,
    /// The file ended where a continuation was announced.
    pub(crate) cut: bool,
}

/// Splits `text` at LF, CR LF or CR; trims each line; drops blank lines and lines that begin with one of
/// `comment_marks`; joins continuations (configuration, "1. server.ini: file syntax").
///
/// Inside a continuation blank lines are skipped and a comment mark is an ordinary character.
pub(crate) fn logical_lines(text: &str, comment_marks: &[char]) -> Vec<LogicalLine> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut lines = Vec::new();
    let mut open: Option<LogicalLine> = None;
    for (number, physical) in (1u32..).zip(physical_lines(text)) {
        let trimmed = trim(physical);
        if trimmed.is_empty() || (open.is_none() && trimmed.starts_with(comment_marks)) {
            continue;
        }
        let mut line = open.take().unwrap_or(LogicalLine { number, text: String::new(), cut: false });
        if ends_in_continuation(trimmed) {
            line.text.push_str(&trimmed[..trimmed.len() - 1]);
            open = Some(line);
        } else {
            line.text.push_str(trimmed);
            lines.push(line);
        }
    }
    lines.extend(open.map(|line| LogicalLine { cut: true, ..line }));
    lines
}

/// Trims what Java's `String.trim` trims: blanks and controls of ASCII, not U+3000.
pub(crate) fn trim(text: &str) -> &str {
    text.trim_matches(|c| c <= ' ')
}

/// Resolves `\\ \t \n \f \b \r \uXXXX`; any other `\c` is `c`. The error says what is malformed.
pub(crate) fn unescape(text: &str) -> Result<String, String> {
    if !text.contains('\\') {
        return Ok(text.to_owned());
    }
    // UTF-16 units, because a character outside the basic plane is written as two \u escapes.
    let mut units = Vec::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        let unescaped = match c {
            '\\' => match chars.next() {
                Some('u') => {
                    units.push(hex_unit(&mut chars)?);
                    continue;
                }
                Some('t') => '\t',
                Some('n') => '\n',
                Some('f') => '\u{c}',
                Some('b') => '\u{8}',
                Some('r') => '\r',
                Some(other) => other,
                None => return Err(format!("'{text}' ends in a single \\; write \\\\ for a backslash")),
            },
            plain => plain,
        };
        units.extend_from_slice(unescaped.encode_utf16(&mut [0; 2]));
    }
    Ok(String::from_utf16_lossy(&units))
}

fn hex_unit(chars: &mut std::str::Chars<'_>) -> Result<u16, String> {
    let digits: String = chars.by_ref().take(4).collect();
    if digits.len() == 4 && digits.bytes().all(|b| b.is_ascii_hexdigit()) {
        return Ok(u16::from_str_radix(&digits, 16).expect("four hexadecimal digits fit in 16 bits"));
    }
    Err(format!("\\u{digits} is not \\u and four hexadecimal digits; write \\\\ for a backslash"))
}

pub(crate) fn ends_in_continuation(line: &str) -> bool {
    line.bytes().rev().take_while(|b| *b == b'\\').count() % 2 == 1
}

fn physical_lines(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = Some(text);
    std::iter::from_fn(move || {
        let text = rest?;
        let Some(end) = text.find(['\n', '\r']) else {
            rest = None;
            return Some(text);
        };
        let after = if text[end..].starts_with("\r\n") { end + 2 } else { end + 1 };
        rest = Some(&text[after..]);
        Some(&text[..end])
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expect: &[(u32, &str)]) {
        let lines = logical_lines(text, &[';', '#']);
        let got: Vec<_> = lines.iter().map(|line| (line.number, line.text.as_str())).collect();
        assert_eq!(got, expect, "{text:?}");
    }

    #[test]
    fn lines_end_in_lf_crlf_or_cr_and_are_trimmed() {
        check("a\nb\r\nc\rd", &[(1, "a"), (2, "b"), (3, "c"), (4, "d")]);
        check("\u{feff}a\n\n \t b \u{1}\n", &[(1, "a"), (3, "b")]);
        check("\u{3000}a", &[(1, "\u{3000}a")]);
        check("", &[]);
    }

    #[test]
    fn comments_begin_a_line() {
        check("; a\n  # b\na ; c\n! d", &[(3, "a ; c"), (4, "! d")]);
        check("; not continued \\\na", &[(2, "a")]);
    }

    #[test]
    fn an_odd_number_of_backslashes_continues() {
        check("a \\\n  b\nc", &[(1, "a b"), (3, "c")]);
        check("a\\\\\nb", &[(1, "a\\\\"), (2, "b")]);
        check("a\\\\\\\nb", &[(1, "a\\\\b")]);
        check("a\\\n\n ; no comment\nb", &[(1, "a; no comment"), (4, "b")]);
        check("a\\ \t\nb", &[(1, "ab")]);
    }

    #[test]
    fn a_continuation_cut_by_the_end_is_marked() {
        let lines = logical_lines("a\nb\\\n\n", &[]);
        assert_eq!(lines.iter().map(|line| line.cut).collect::<Vec<_>>(), [false, true]);
    }

    #[test]
    fn escapes() {
        let cases = [
            ("plain", "plain"),
            (r"C:\temp", "C:\temp"),
            (r"C:\\temp", r"C:\temp"),
            (r"\n\f\b\r", "\n\u{c}\u{8}\r"),
            (r"\x\=\;", "x=;"),
            (r"\u8ba2\u5355", "订单"),
            (r"\ud83d\ude00", "😀"),
            ("订单", "订单"),
        ];
        for (input, expect) in cases {
            assert_eq!(unescape(input).as_deref(), Ok(expect), "{input}");
        }
        for bad in [r"\u12", r"\u12g4", r"a\", r"\u+123"] {
            assert!(unescape(bad).is_err(), "{bad}");
        }
    }
}
