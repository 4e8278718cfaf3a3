use crate::ini::{parse_entry, parse_header};
use crate::keys::Key;
use crate::lines::{ends_in_continuation, trim};

const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// `server.ini` cut into sections and lines without losing a byte, for who writes one. Lines are told apart as
/// [`crate::ini`] does, which reads it; bytes that are not UTF-8 stay what they are.
#[derive(Debug)]
pub(crate) struct Pieces<'a> {
    /// The byte order mark, if there is one.
    pub(crate) mark: &'a [u8],
    /// In the order of the file; the first is what stands before the first header.
    pub(crate) pieces: Vec<Piece<'a>>,
    /// How lines outside topic sections end, which may have come from elsewhere.
    pub(crate) newline: &'static [u8],
}

/// A header with the comment right above it and what follows, up to the next one of these.
#[derive(Debug)]
pub(crate) struct Piece<'a> {
    pub(crate) place: Place,
    pub(crate) items: Vec<Item<'a>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    Start,
    System,
    Topic(String),
    /// `[zookeeper]`, or none that is known.
    Other,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Item<'a> {
    Header {
        lines: &'a [u8],
    },
    /// With the lines that continue it.
    Entry {
        key: String,
        value: String,
        lines: &'a [u8],
    },
    Comment {
        line: &'a [u8],
    },
    /// A blank line, or one that cannot be read.
    Other {
        lines: &'a [u8],
    },
}

impl<'a> Item<'a> {
    pub(crate) fn bytes(&self) -> &'a [u8] {
        match self {
            Item::Header { lines } | Item::Entry { lines, .. } | Item::Other { lines } => lines,
            Item::Comment { line } => line,
        }
    }
}

impl<'a> Pieces<'a> {
    pub(crate) fn of(text: &'a [u8]) -> Pieces<'a> {
        let mark = if text.starts_with(BYTE_ORDER_MARK) { &text[..BYTE_ORDER_MARK.len()] } else { &[] };
        let text = &text[mark.len()..];
        let mut pieces = vec![Piece { place: Place::Start, items: Vec::new() }];
        for item in items(text) {
            let last = pieces.last_mut().expect("there is always one");
            let Item::Header { lines } = &item else {
                last.items.push(item);
                continue;
            };
            let comment = last.items.iter().rev().take_while(|item| matches!(item, Item::Comment { .. })).count();
            let mut items = last.items.split_off(last.items.len() - comment);
            let place = place(lines);
            items.push(item);
            pieces.push(Piece { place, items });
        }
        let newline = newline(&pieces);
        Pieces { mark, pieces, newline }
    }

    pub(crate) fn topics(&self) -> impl Iterator<Item = (&str, &Piece<'a>)> {
        self.pieces.iter().filter_map(|piece| match &piece.place {
            Place::Topic(name) => Some((name.as_str(), piece)),
            _ => None,
        })
    }

    /// What `[system]` says of a key: the value and its lines, unless it is not written or blank.
    pub(crate) fn of_system(&self, key: &Key) -> Option<(&str, &'a [u8])> {
        let items = self.pieces.iter().filter(|piece| piece.place == Place::System).flat_map(|piece| &piece.items);
        let mut written = items.filter_map(|item| match item {
            Item::Entry { key: name, value, lines } if name == key.name => Some((value.as_str(), *lines)),
            _ => None,
        });
        // The last one counts.
        written.by_ref().last().filter(|(value, _)| !value.trim().is_empty())
    }
}

fn newline(pieces: &[Piece<'_>]) -> &'static [u8] {
    let own = pieces.iter().filter(|piece| !matches!(piece.place, Place::Topic(_)));
    let first = own.flat_map(|piece| &piece.items).next();
    if first.is_some_and(|item| item.bytes().ends_with(b"\r\n")) { b"\r\n" } else { b"\n" }
}

fn place(header: &[u8]) -> Place {
    match parse_header(&logical_text(header)).as_deref() {
        Ok("system") => Place::System,
        Ok(name) => name.strip_prefix("topic=").map_or(Place::Other, |topic| Place::Topic(topic.to_owned())),
        Err(_) => Place::Other,
    }
}

/// Every line, continued ones as one. What the end of the file cuts off inside a continuation is ignored by whoever
/// reads it, and would swallow what is written behind it, so it is left out.
fn items(text: &[u8]) -> Vec<Item<'_>> {
    let mut items = Vec::new();
    let (mut start, mut at) = (0, 0);
    let mut open = false;
    while at < text.len() {
        let end = at + physical_line_bytes(&text[at..]);
        let line = String::from_utf8_lossy(&text[at..end]);
        let trimmed = trim(&line);
        let passes = trimmed.is_empty() || (!open && trimmed.starts_with([';', '#']));
        open = if passes { open } else { ends_in_continuation(trimmed) };
        at = end;
        if open {
            continue;
        }
        items.push(item(&text[start..end], trimmed));
        start = end;
    }
    items
}

fn item<'a>(lines: &'a [u8], last_line: &str) -> Item<'a> {
    if last_line.is_empty() {
        return Item::Other { lines };
    }
    let text = logical_text(lines);
    if text.starts_with([';', '#']) {
        return Item::Comment { line: lines };
    }
    if text.starts_with('[') {
        return Item::Header { lines };
    }
    match parse_entry(&text) {
        Ok((key, value)) => Item::Entry { key, value, lines },
        Err(_) => Item::Other { lines },
    }
}

/// Joined and trimmed as a reader does.
fn logical_text(lines: &[u8]) -> String {
    let (mut text, mut at) = (String::new(), 0);
    while at < lines.len() {
        let end = at + physical_line_bytes(&lines[at..]);
        let line = String::from_utf8_lossy(&lines[at..end]);
        let trimmed = trim(&line);
        text.push_str(if ends_in_continuation(trimmed) { &trimmed[..trimmed.len() - 1] } else { trimmed });
        at = end;
    }
    text
}

/// Up to and with LF, CR LF or CR.
fn physical_line_bytes(text: &[u8]) -> usize {
    match text.iter().position(|byte| matches!(byte, b'\n' | b'\r')) {
        None => text.len(),
        Some(end) if text[end..].starts_with(b"\r\n") => end + 2,
        Some(end) => end + 1,
    }
}
