use crate::window::{HEADER, Window, end_of_record};
use metaq_types::MessageId;
use metaq_types::limits::{DISCARD_BYTES_MAX, INDEX_INTERVAL_BYTES};
use metaq_wire::RecordHeader;
use std::fs::File;
use std::io;
use std::ops::Range;

const SCAN_BLOCK_BYTES: usize = 256 * 1024;

/// What a disk writes whole or not at all: the least that any does.
const SECTOR_BYTES: u64 = 512;

/// What a full read of one segment found.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Scan {
    /// Where the good part ends: less than the file's length when there is a torn tail.
    pub(crate) end: u64,
    pub(crate) records: u64,
    pub(crate) last_id: Option<MessageId>,
    /// Highest id found.
    pub(crate) highest_id: Option<MessageId>,
    /// Record boundaries about every [`INDEX_INTERVAL_BYTES`].
    pub(crate) boundaries: Vec<u32>,
    /// Ranges that hold no whole record although good ones follow.
    pub(crate) damage: Vec<Range<u32>>,
}

/// Reads every record of a segment and checks it. What follows the last good record is the tail; a bad record with
/// good ones behind it is damage and stays where it is.
pub(crate) fn scan(file: &File, length: u32) -> io::Result<Scan> {
    let mut scan = Scan::default();
    for piece in Pieces::new(file, length.into(), 0) {
        match piece? {
            Piece::Record { header, end, .. } => {
                let last = scan.boundaries.last().copied().unwrap_or(0);
                if scan.end >= u64::from(last) + u64::from(INDEX_INTERVAL_BYTES) {
                    scan.boundaries.push(scan.end as u32);
                }
                scan.records += 1;
                scan.last_id = Some(header.id);
                scan.highest_id = scan.highest_id.max(scan.last_id);
                scan.end = end;
            }
            Piece::Damage(range) => {
                scan.damage.push(range.start as u32..range.end as u32);
                scan.end = range.end;
            }
            Piece::Tail(_) => break,
        }
    }
    Ok(scan)
}

/// What a file of records holds at one place; positions are those in the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece {
    /// A whole record with a right checksum.
    Record { at: u64, header: RecordHeader, end: u64 },
    /// No whole record, and good ones go on behind it.
    Damage(Range<u64>),
    /// No whole record up to the end of the file: it is the last piece.
    Tail(Range<u64>),
}

/// The pieces of a file of records, one after the other from a place where a record begins.
pub struct Pieces<'a> {
    window: Window<'a>,
    at: u64,
}

impl<'a> Pieces<'a> {
    pub(crate) fn new(file: &'a File, length: u64, at: u64) -> Pieces<'a> {
        Pieces { window: Window::new(file, length, SCAN_BLOCK_BYTES), at }
    }

    fn piece(&mut self) -> io::Result<Piece> {
        let (at, window) = (self.at, &mut self.window);
        if let Some((header, end)) = whole_record(window, at)? {
            return Ok(Piece::Record { at, header, end });
        }
        Ok(match next_good(window, at)? {
            Some(next) => Piece::Damage(at..next),
            None => Piece::Tail(at..window.length()),
        })
    }
}

impl Iterator for Pieces<'_> {
    type Item = io::Result<Piece>;

    fn next(&mut self) -> Option<io::Result<Piece>> {
        if self.at >= self.window.length() {
            return None;
        }
        let piece = self.piece();
        self.at = match &piece {
            Ok(Piece::Record { end, .. }) => *end,
            Ok(Piece::Damage(range) | Piece::Tail(range)) => range.end,
            Err(_) => self.window.length(),
        };
        Some(piece)
    }
}

/// The record at `at`, unless it is only what is left of one: see [`is_remnant`].
fn whole_record(window: &mut Window<'_>, at: u64) -> io::Result<Option<(RecordHeader, u64)>> {
    let Some((header, end)) = window.record(at)? else { return Ok(None) };
    Ok((!is_remnant(window, at, &header)?).then_some((header, end)))
}

/// Whether what reads as an empty record is the header of another, which lay over two sectors and of which a power failure
/// kept the second part only: zeros up to the sector's end, and behind it a body and not the begin of a next record.
pub(crate) fn is_remnant(window: &mut Window<'_>, at: u64, header: &RecordHeader) -> io::Result<bool> {
    let in_first = (SECTOR_BYTES - at % SECTOR_BYTES) as usize;
    if header.length != 0 || header.checksum != 0 || in_first >= HEADER as usize {
        return Ok(false);
    }
    if window.at(at, HEADER as usize)?[..in_first].iter().any(|byte| *byte != 0) {
        return Ok(false);
    }
    let next = at + HEADER;
    // No message is 16 MiB long, and producers set no flag bits but the lowest. What is torn itself may be shorter.
    let behind = window.at(next, HEADER as usize)?;
    let flags = behind.iter().enumerate().take(HEADER as usize).skip(16);
    let begins_one = behind.first().is_none_or(|byte| *byte == 0)
        && flags.into_iter().all(|(place, byte)| *byte <= u8::from(place == 19));
    Ok(!begins_one && window.record(next)?.is_none_or(|(header, _)| header.length == 0))
}

/// Where good records go on behind the bad one at `bad`; `None` when nothing good follows, so that it is a tail.
pub(crate) fn next_good_in(file: &File, length: u32, bad: u32) -> io::Result<Option<u32>> {
    let mut window = Window::new(file, length.into(), SCAN_BLOCK_BYTES);
    Ok(next_good(&mut window, bad.into())?.map(|next| next as u32))
}

/// A body may hold bytes that look like records (a message that carries messages). Therefore the place where the bad
/// record says it ends is tried first; and when it says it reaches to the end of the file or beyond, as a record torn
/// by a crash does, others count only if they lead exactly to the end of the file.
fn next_good(window: &mut Window<'_>, bad: u64) -> io::Result<Option<u64>> {
    let header = window.header(bad)?;
    let is_remnant = header.map_or(Ok(false), |header| is_remnant(window, bad, &header))?;
    let declared_end = match header {
        Some(header) if !is_remnant && header.length <= DISCARD_BYTES_MAX => end_of_record(&header, bad),
        _ => None,
    };
    // Of a remnant it is not known how far it reached.
    let whole_rest = is_remnant || declared_end.is_some_and(|end| end >= window.length());
    if let Some(end) = declared_end
        && matches!(chain(window, end)?, Chain::Good | Chain::ToTheEnd)
    {
        return Ok(Some(end));
    }
    let mut at = bad + 1;
    // Where rows of empty records break that begin at the same place within a header's length: each is followed once.
    let mut breaks = [0; HEADER as usize];
    while let Some(candidate) = next_candidate(window, at)? {
        let known_break = &mut breaks[(candidate % HEADER) as usize];
        if candidate <= *known_break {
            at = candidate + 1;
            continue;
        }
        match chain_as_far(window, candidate, whole_rest)? {
            Chain::ToTheEnd => return Ok(Some(candidate)),
            Chain::Good if !whole_rest => return Ok(Some(candidate)),
            Chain::Good => unreachable!("a chain followed to its end is never only good"),
            // Zeros and the first bytes of a header read as an empty record, and so do empty ones that follow: the real
            // ones begin within that.
            Chain::Broken { at: broken, is_empty: true } => {
                *known_break = broken;
                at = candidate + 1;
            }
            // What lies on a chain that breaks breaks there too: look on behind it, or this would be quadratic.
            Chain::Broken { at: broken, is_empty: false } => at = broken + 1,
        }
    }
    Ok(None)
}

enum Chain {
    /// Starts with records enough to be no accident.
    Good,
    /// Whole records up to the last byte of the file.
    ToTheEnd,
    Broken {
        at: u64,
        /// No record before that has a body.
        is_empty: bool,
    },
}

fn chain(window: &mut Window<'_>, start: u64) -> io::Result<Chain> {
    chain_as_far(window, start, false)
}

/// Follows whole records from `start`. A record with a body is good by its checksum; an empty one proves nothing by
/// itself, since 8 zero bytes are its length and checksum.
fn chain_as_far(window: &mut Window<'_>, start: u64, to_the_end: bool) -> io::Result<Chain> {
    let (mut at, mut is_empty) = (start, true);
    while at < window.length() {
        match window.record(at)? {
            Some((header, _)) if header.length > 0 && !to_the_end => return Ok(Chain::Good),
            Some((header, end)) => {
                is_empty &= header.length == 0;
                at = end;
            }
            None => return Ok(Chain::Broken { at, is_empty }),
        }
    }
    Ok(if at > start { Chain::ToTheEnd } else { Chain::Broken { at, is_empty } })
}

/// The next place from `from` on where a header could stand. Producers set no flag bits but the lowest; insisting on
/// that here makes random bytes cheap to pass over. A record with other bits is still read when it is reached in line.
fn next_candidate(window: &mut Window<'_>, from: u64) -> io::Result<Option<u64>> {
    let mut at = from;
    let length = window.length();
    while at + HEADER <= length {
        let block = window.at(at, HEADER as usize)?;
        let places = block.len() - HEADER as usize + 1;
        if block.iter().all(|byte| *byte == 0) {
            // A hole may be larger than any disk; a header may begin in its last bytes.
            let data = window.data_from(at + places as u64)?;
            at = (at + places as u64).max(data.saturating_sub(HEADER));
            continue;
        }
        for (place, bytes) in block.array_windows::<{ HEADER as usize }>().enumerate() {
            let at = at + place as u64;
            if bytes[16..19] == [0, 0, 0]
                && bytes[19] <= 1
                && let Ok(header) = RecordHeader::parse(bytes)
                && end_of_record(&header, at).is_some_and(|end| end <= length)
            {
                return Ok(Some(at));
            }
        }
        at += places as u64;
    }
    Ok(None)
}
