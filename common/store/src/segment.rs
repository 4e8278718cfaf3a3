use crate::scan::next_good_in;
use crate::window::Window;
use arc_swap::ArcSwapOption;
use metaq_types::Offset;
use metaq_types::limits::INDEX_INTERVAL_BYTES;
use parking_lot::Mutex;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::AtomicBool;

/// How far behind a known boundary a reader may start so that walking there first is worth it.
const WALK_BYTES_MAX: u32 = 2 * 1024 * 1024;

/// Bytes read at once where all of them are needed.
const CHECK_BLOCK_BYTES: usize = 256 * 1024;

const WALK_BLOCK_BYTES: usize = INDEX_INTERVAL_BYTES as usize;

/// Digits of a segment's name as we and the original write it.
pub(crate) const NAME_DIGITS: u8 = 20;

/// One file of a partition, named by the offset of its first byte. It ends where the next one begins; positions inside
/// are 32 bits.
pub(crate) struct Segment {
    pub(crate) base: Offset,
    /// The original accepts shorter names than it writes, so we keep the width a name was found with.
    name_digits: u8,
    /// Where it ends, when the next segment begins beyond that: a gap follows.
    gap_from: Option<Offset>,
    /// The open file, while the cache keeps it.
    pub(crate) cached: ArcSwapOption<File>,
    /// Set at each use, cleared by the cache's hand.
    pub(crate) used: AtomicBool,
    /// It has left its log: whoever opens the file must not keep it open.
    pub(crate) retired: AtomicBool,
    /// When its newest record was written, once retention had to find out; a sealed segment's never changes.
    pub(crate) newest_ms: OnceLock<i64>,
    /// What the file held when it was found, and nobody has read since: it may be damaged.
    unread_bytes: u32,
    known: Mutex<Known>,
}

/// What is known of the inside of a segment.
#[derive(Default)]
struct Known {
    /// Places where records start, ascending, about [`INDEX_INTERVAL_BYTES`] apart where they are known at all. The
    /// segment's start is always one.
    boundaries: Vec<u32>,
    /// Bad records with good ones behind them, ascending.
    damage: Vec<Range<u32>>,
    /// Records of `unread_bytes` that were read since, one after the other, and are good.
    good: Range<u32>,
}

/// Where a read that starts at a given place may end.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Cut {
    At(u32),
    /// Nothing readable here; good records go on there.
    Skip {
        to: u32,
    },
}

impl Segment {
    pub(crate) fn new(base: Offset) -> Segment {
        Segment::found(base, NAME_DIGITS, Vec::new(), Vec::new())
    }

    pub(crate) fn found(base: Offset, name_digits: u8, boundaries: Vec<u32>, damage: Vec<Range<u32>>) -> Segment {
        Segment {
            base,
            name_digits,
            gap_from: None,
            cached: ArcSwapOption::empty(),
            used: AtomicBool::new(false),
            retired: AtomicBool::new(false),
            newest_ms: OnceLock::new(),
            unread_bytes: 0,
            known: Mutex::new(Known { boundaries, damage, good: 0..0 }),
        }
    }

    /// The same, where the first `bytes` of the file were found and not read.
    pub(crate) fn unread(mut self, bytes: u64) -> Segment {
        self.unread_bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        self
    }

    /// The same, with a gap behind it from `end` on.
    pub(crate) fn before_gap(mut self, end: Offset) -> Segment {
        self.gap_from = Some(end);
        self
    }

    /// Where a gap begins behind it.
    pub(crate) fn gap_from(&self) -> Option<Offset> {
        self.gap_from
    }

    pub(crate) fn path(&self, directory: &Path) -> PathBuf {
        directory.join(format!("{:0width$}.meta", self.base.get(), width = usize::from(self.name_digits)))
    }

    /// Remembers places where records start: the writer's, in order of the file.
    pub(crate) fn note_boundaries(&self, starts: impl Iterator<Item = u32>) {
        let mut known = self.known.lock();
        for start in starts {
            known.note(start);
        }
    }

    /// What can be found again by reading goes when the file's handle does; damage stays.
    pub(crate) fn forget_boundaries(&self) {
        self.known.lock().boundaries = Vec::new();
    }

    /// The last place before `at` where a record is known to start.
    pub(crate) fn boundary_before(&self, at: u32) -> u32 {
        self.known.lock().boundary_at_or_before(at.saturating_sub(1))
    }

    pub(crate) fn damage(&self) -> Vec<Range<u32>> {
        self.known.lock().damage.clone()
    }

    /// The end of a read of at most `bytes_max` from `from`, where `limit` is as far as the reader may see: on a record
    /// boundary, behind at least one whole record. A start that is no boundary is cut at `bytes_max`, as the original
    /// does: the reader finds the checksum wrong and asks where to go on.
    ///
    /// Reads the file only when the index does not know the answer.
    pub(crate) fn cut(
        &self,
        from: u32,
        bytes_max: u32,
        limit: u32,
        open: impl Fn() -> io::Result<Arc<File>>,
    ) -> io::Result<Cut> {
        loop {
            let (limit, hint) = {
                let known = self.known.lock();
                let damage = known.next_damage(from);
                if let Some(damage) = damage.as_ref().filter(|damage| damage.start <= from) {
                    return Ok(Cut::Skip { to: damage.end.min(limit) });
                }
                let limit = damage.map_or(limit, |damage| damage.start.min(limit));
                (limit, known.hint(from, bytes_max, limit))
            };
            let (start, trusted) = match hint {
                Hint::Cut(end) => return Ok(Cut::At(end)),
                Hint::Walk { start, trusted } => (start, trusted),
            };
            let target = from.saturating_add(bytes_max).min(limit);
            // `None`: damage that nobody knew of; now it is known, so ask again.
            if let Some(cut) = self.walk(&*open()?, Walk { start, trusted, from, target, limit })? {
                return Ok(cut);
            }
        }
    }

    /// The same for a reader that does not look at what it gets before it relies on it: what was found at the opening
    /// and not read since is read first, once, and damage in it is known from then on. So a consumer is led across a
    /// bad record of a sealed segment, instead of being given it again and again.
    pub(crate) fn cut_good(
        &self,
        from: u32,
        bytes_max: u32,
        limit: u32,
        open: impl Fn() -> io::Result<Arc<File>>,
    ) -> io::Result<Cut> {
        loop {
            let cut = self.cut(from, bytes_max, limit, &open)?;
            let Cut::At(end) = cut else { return Ok(cut) };
            if self.is_good(from, end) || self.check(&*open()?, from, end, limit)? {
                return Ok(cut);
            }
        }
    }

    fn is_good(&self, from: u32, end: u32) -> bool {
        let end = end.min(self.unread_bytes);
        if from >= end {
            return true;
        }
        let good = &self.known.lock().good;
        good.start <= from && end <= good.end
    }

    /// Reads the records from `from` to `end`. `false`: one is damaged, which is noted now. A place that nobody knows for
    /// the start of a record proves nothing when no record is found there.
    fn check(&self, file: &File, from: u32, end: u32, limit: u32) -> io::Result<bool> {
        let mut window = Window::new(file, end.into(), CHECK_BLOCK_BYTES);
        let mut at = u64::from(from);
        while let Some((_, next)) = window.record(at)? {
            at = next;
        }
        if at >= u64::from(end) {
            self.known.lock().note_good(from..end);
            return Ok(true);
        }
        let is_start = at > u64::from(from) || self.is_start(file, from)?;
        if is_start {
            self.note_bad(file, at as u32, limit)?;
        }
        Ok(!is_start)
    }

    /// Whether a record is known to start at `at`, if only by the lengths of those before it.
    fn is_start(&self, file: &File, at: u32) -> io::Result<bool> {
        let start = {
            let known = self.known.lock();
            if known.good.end == at {
                return Ok(true);
            }
            known.boundary_at_or_before(at)
        };
        if at - start > WALK_BYTES_MAX {
            return Ok(false);
        }
        let mut window = Window::new(file, at.into(), WALK_BLOCK_BYTES);
        let mut place = u64::from(start);
        while let Some(end) = window.end_of(place)? {
            place = end;
        }
        Ok(place == u64::from(at))
    }

    /// Steps over headers from `start` on to find the cut. From a trusted start every step is a boundary worth
    /// remembering, and a header that makes no sense is damage: `None` once that is noted.
    fn walk(&self, file: &File, walk: Walk) -> io::Result<Option<Cut>> {
        let Walk { start, trusted, from, target, limit } = walk;
        let mut window = Window::new(file, limit.into(), WALK_BLOCK_BYTES);
        let (mut at, mut noted, mut met_from, mut cut) = (start, start, start > from, None);
        while at <= from || at < target {
            met_from |= at == from;
            if at > from {
                cut = Some(at);
            }
            let due = trusted && at - noted >= INDEX_INTERVAL_BYTES;
            let end = if due { window.record(at.into())?.map(|(_, end)| end) } else { window.end_of(at.into())? };
            match end {
                Some(end) if due => {
                    self.note_boundaries([at].into_iter());
                    (noted, at) = (at, end as u32);
                }
                Some(end) => at = end as u32,
                None if trusted => return self.note_damage(file, walk),
                None => return Ok(Some(Cut::At(target))),
            }
        }
        if !met_from {
            return Ok(Some(Cut::At(target)));
        }
        match cut {
            _ if at == target => Ok(Some(Cut::At(target))),
            Some(cut) => Ok(Some(Cut::At(cut))),
            // The first record is longer than the wish and is given whole, but its length is not believed unread.
            None if window.record(from.into())?.is_some() => Ok(Some(Cut::At(at))),
            None if trusted => self.note_damage(file, walk),
            None => Ok(Some(Cut::At(target))),
        }
    }

    /// Finds the first bad record from the walk's trusted start on, and where good ones go on.
    fn note_damage(&self, file: &File, walk: Walk) -> io::Result<Option<Cut>> {
        let mut window = Window::new(file, walk.limit.into(), WALK_BLOCK_BYTES);
        let mut bad = u64::from(walk.start);
        while let Some((_, end)) = window.record(bad)? {
            bad = end;
        }
        if bad >= window.length() {
            return Ok(Some(Cut::At(walk.target)));
        }
        self.note_bad(file, bad as u32, walk.limit)?;
        Ok(None)
    }

    /// The record at `bad` is damaged.
    fn note_bad(&self, file: &File, bad: u32, limit: u32) -> io::Result<()> {
        let to = next_good_in(file, limit, bad)?.unwrap_or(limit);
        let mut known = self.known.lock();
        if known.next_damage(bad).is_none_or(|damage| damage.start > bad) {
            let place = known.damage.partition_point(|damage| damage.start < bad);
            known.damage.insert(place, bad..to);
            known.boundaries.retain(|place| !(bad..to).contains(place));
            tracing::warn!(
                segment = %self.base, from = bad, to, "a record is damaged; it is kept, and readers are led across it"
            );
        }
        Ok(())
    }
}

#[derive(Clone, Copy)]
struct Walk {
    /// A record starts here for sure when `trusted`.
    start: u32,
    trusted: bool,
    from: u32,
    /// The cut is to be at most here, unless the first record is longer.
    target: u32,
    limit: u32,
}

enum Hint {
    Cut(u32),
    Walk { start: u32, trusted: bool },
}

impl Known {
    fn note(&mut self, start: u32) {
        let place = self.boundaries.partition_point(|known| *known < start);
        let before = place.checked_sub(1).map_or(0, |before| self.boundaries[before]);
        if start - before >= INDEX_INTERVAL_BYTES && self.boundaries.get(place).is_none_or(|after| *after != start) {
            self.boundaries.insert(place, start);
        }
    }

    /// Readers of old messages mostly go on where they were: one stretch is enough, and it is the newest.
    fn note_good(&mut self, range: Range<u32>) {
        let joins = range.start <= self.good.end && self.good.start <= range.end && !self.good.is_empty();
        self.good = match joins {
            true => self.good.start.min(range.start)..self.good.end.max(range.end),
            false => range,
        };
    }

    /// The first damage that ends behind `from`.
    fn next_damage(&self, from: u32) -> Option<Range<u32>> {
        let place = self.damage.partition_point(|damage| damage.end <= from);
        self.damage.get(place).cloned()
    }

    /// The last place up to `at` where a record is known to start.
    fn boundary_at_or_before(&self, at: u32) -> u32 {
        let noted = self.boundaries.partition_point(|known| *known <= at);
        let behind_damage = self.damage.partition_point(|damage| damage.end <= at);
        let noted = noted.checked_sub(1).map_or(0, |place| self.boundaries[place]);
        noted.max(behind_damage.checked_sub(1).map_or(0, |place| self.damage[place].end))
    }

    fn hint(&self, from: u32, bytes_max: u32, limit: u32) -> Hint {
        if limit - from <= bytes_max {
            return Hint::Cut(limit);
        }
        let target = from + bytes_max;
        let near_target = self.boundary_at_or_before(target);
        if near_target > from && target - near_target <= bytes_max / 4 {
            return Hint::Cut(near_target);
        }
        let start = if near_target > from { near_target } else { self.boundary_at_or_before(from) };
        match from.saturating_sub(start) <= WALK_BYTES_MAX {
            true => Hint::Walk { start, trusted: true },
            false => Hint::Walk { start: from, trusted: false },
        }
    }
}
