use crate::rng::Rng;
use bytes::Bytes;
use metaq_link::lag::LogEnd;
use metaq_types::{MessageId, Offset};
use metaq_wire::{RecordHeader, Records};

/// A segment is left when it holds this much.
const SEGMENT_BYTES: u64 = 400;

/// A partition's log in memory: what the kernel was given, and how much of that a loss of power leaves.
#[derive(Clone, Debug)]
pub(crate) struct Log {
    first: u64,
    bytes: Vec<u8>,
    durable: u64,
    /// Where each segment begins, oldest first.
    segments: Vec<u64>,
    /// Where each record ends.
    ends: Vec<u64>,
    /// What the log lacks inside, from where to where; filled with nothing here.
    gaps: Vec<(u64, u64)>,
}

/// What a read finds.
#[derive(Debug)]
pub(crate) enum Slice {
    Bytes {
        bytes: Bytes,
        segment: Offset,
    },
    AtEnd,
    Beyond,
    /// Nothing is here: it goes on there.
    Gap {
        to: Offset,
    },
}

impl Log {
    pub(crate) fn new(first: Offset) -> Log {
        let first = first.get();
        Log { first, bytes: Vec::new(), durable: first, segments: vec![first], ends: Vec::new(), gaps: Vec::new() }
    }

    pub(crate) fn first(&self) -> Offset {
        at(self.first)
    }

    pub(crate) fn end(&self) -> Offset {
        at(self.first + self.bytes.len() as u64)
    }

    pub(crate) fn durable(&self) -> Offset {
        at(self.durable)
    }

    /// As a master's view of its slaves sees it.
    pub(crate) fn log_end(&self) -> LogEnd {
        LogEnd { end: self.durable(), records: self.ends.partition_point(|end| *end <= self.durable) as u64 }
    }

    pub(crate) fn segments(&self) -> &[u64] {
        &self.segments
    }

    pub(crate) fn publish_durable(&mut self, to: Offset) {
        self.durable = self.durable.max(to.get().min(self.end().get()));
    }

    /// Appends one message; answers where it lies.
    pub(crate) fn append(&mut self, id: i64, body: &[u8]) -> (Offset, Offset) {
        let start = self.end();
        let segment = *self.segments.last().expect("a log has a segment");
        if start.get() - segment >= SEGMENT_BYTES {
            self.segments.push(start.get());
        }
        self.bytes.extend_from_slice(&RecordHeader::of(MessageId(id), 0, body).encode());
        self.bytes.extend_from_slice(body);
        self.ends.push(self.end().get());
        (start, self.end())
    }

    /// A replica's append: only at the end, and only in the segment the master has there.
    pub(crate) fn append_verbatim(&mut self, start: Offset, segment: Offset, bytes: &[u8]) -> Result<(), String> {
        if start != self.end() {
            return Err(format!("the log ends at {}, not at {start}", self.end()));
        }
        let last = *self.segments.last().expect("a log has a segment");
        if segment.get() != last {
            if segment != start {
                return Err(format!("the master's segment is {segment}, ours {last}"));
            }
            self.segments.push(start.get());
        }
        self.bytes.extend_from_slice(bytes);
        for (position, header, _) in Records::new(bytes).map_while(Result::ok) {
            self.ends.push(start.get() + position as u64 + header.record_bytes());
        }
        Ok(())
    }

    pub(crate) fn gaps(&self) -> &[(u64, u64)] {
        &self.gaps
    }

    pub(crate) fn has_gap_before(&self, offset: Offset) -> bool {
        self.gaps.iter().any(|(_, to)| *to == offset.get())
    }

    /// The log goes on at `to`, above its end.
    pub(crate) fn skip_to(&mut self, to: Offset) {
        let from = self.end().get();
        // An empty last segment gives way to the new one.
        self.segments.retain(|segment| *segment == self.first || *segment < from);
        self.gaps.push((from, to.get()));
        self.bytes.resize((to.get() - self.first) as usize, 0);
        self.segments.push(to.get());
        self.durable = to.get();
    }

    /// Takes off what lies before `first`, where a segment begins.
    pub(crate) fn trim(&mut self, first: Offset) {
        let first = first.get();
        self.bytes.drain(..(first - self.first) as usize);
        self.first = first;
        self.segments.retain(|segment| *segment >= first);
        self.ends.retain(|end| *end > first);
        self.gaps.retain(|(_, to)| *to > first);
    }

    /// The ids of the records that end by `to`, each with its place.
    pub(crate) fn records(&self, from: Offset, to: Offset) -> Vec<(i64, Offset, Offset)> {
        let (mut found, mut start) = (Vec::new(), from.max(self.first()));
        let ends = &self.ends[self.ends.partition_point(|end| *end <= start.get())..];
        for end in ends.iter().copied().take_while(|end| *end <= to.get()) {
            if let Some((_, to)) = self.gaps.iter().find(|(gap, to)| *gap <= start.get() && start.get() < *to) {
                start = at(*to);
            }
            let header = Records::new(self.range(start, at(end))).map_while(Result::ok).next();
            found.extend(header.map(|(_, header, _)| (header.id.0, start, at(end))));
            start = at(end);
        }
        found
    }

    /// At most `bytes_max`, at least one record, below `end`, within one segment.
    pub(crate) fn slice(&self, from: Offset, bytes_max: u64, end: Offset) -> Slice {
        if from >= end {
            return if from == end { Slice::AtEnd } else { Slice::Beyond };
        }
        if let Some((_, to)) = self.gaps.iter().find(|(gap, to)| *gap <= from.get() && from.get() < *to) {
            return Slice::Gap { to: at(*to) };
        }
        let place = self.segments.partition_point(|segment| *segment <= from.get()) - 1;
        let segment_end = self.segments.get(place + 1).copied().unwrap_or(u64::MAX).min(end.get());
        let whole = &self.ends[self.ends.partition_point(|end| *end <= from.get())..];
        let fits = |end: &&u64| **end <= segment_end && **end <= from.get().saturating_add(bytes_max);
        let to = whole.iter().take_while(fits).last().or(whole.first()).copied().unwrap_or(segment_end);
        let bytes = Bytes::copy_from_slice(self.range(from, at(to)));
        Slice::Bytes { bytes, segment: at(self.segments[place]) }
    }

    pub(crate) fn range(&self, from: Offset, to: Offset) -> &[u8] {
        &self.bytes[(from.get() - self.first) as usize..(to.get() - self.first) as usize]
    }

    /// Whether these bytes lie at this place.
    pub(crate) fn holds(&self, from: Offset, bytes: &[u8]) -> bool {
        let to = from.get() + bytes.len() as u64;
        from >= self.first() && to <= self.end().get() && self.range(from, at(to)) == bytes
    }

    pub(crate) fn byte(&self, position: u64) -> Option<u8> {
        position.checked_sub(self.first).and_then(|index| self.bytes.get(index as usize).copied())
    }

    /// Whether the message with this id lies at this place.
    pub(crate) fn contains_id(&self, start: Offset, end: Offset, id: i64) -> bool {
        if start < self.first() || end > self.end() {
            return false;
        }
        let found = Records::new(self.range(start, end)).map_while(Result::ok).next();
        found.is_some_and(|(_, header, _)| header.id.0 == id && start + header.record_bytes() == end)
    }

    /// How far both hold the same records from `from` on.
    pub(crate) fn same_until(&self, other: &Log, from: Offset) -> Offset {
        let both = self.end().min(other.end());
        let alike = |end: &&u64| **end <= both.get() && other.holds(from, self.range(from, at(**end)));
        let ends = &self.ends[self.ends.partition_point(|end| *end <= from.get())..];
        ends.iter().take_while(alike).last().map_or(from, |end| at(*end))
    }

    /// Ends the log at `to`; answers how many bytes went.
    pub(crate) fn cut(&mut self, to: Offset) -> u64 {
        let gone = self.end().bytes_since(to);
        if to < self.first() {
            *self = Log::new(to);
            return gone;
        }
        let inside = self.gaps.iter().find(|(from, end)| *from < to.get() && to.get() < *end);
        let to = inside.map_or(to, |(from, _)| at(*from));
        self.bytes.truncate((to.get() - self.first) as usize);
        self.segments.retain(|segment| *segment == self.first || *segment < to.get());
        self.ends.retain(|end| *end <= to.get());
        self.gaps.retain(|(_, end)| *end <= to.get());
        self.durable = self.durable.min(to.get());
        gone
    }

    /// The power is gone: of what was never synced, the records up to a random one are found again.
    pub(crate) fn lose_unsynced(&mut self, rng: &mut Rng) {
        let unsynced = self.ends.iter().copied().filter(|end| *end > self.durable);
        let keep = unsynced.take_while(|_| rng.percent(50)).last().unwrap_or(self.durable);
        self.cut(at(keep));
    }

    /// Recovery syncs what it found.
    pub(crate) fn recover(&mut self) {
        self.durable = self.end().get();
    }
}

pub(crate) fn at(position: u64) -> Offset {
    Offset::new(position).expect("a simulated log is short")
}
