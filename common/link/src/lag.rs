//! How far a copy of a partition is behind, in seconds and messages: pure data, the clock is passed in.
//!
//! Bytes alone do not tell how long a message has to wait for its copy. The clock therefore remembers where the
//! original ended at some moments; when the copy has come as far, it holds everything of that moment.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use metaq_types::Offset;

/// Moments remembered for one copy.
const MARKS_MAX: usize = 16;

/// Where a log ends, and the number of records it has counted up to there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogEnd {
    pub end: Offset,
    pub records: u64,
}

/// The original ended here at this moment.
#[derive(Debug, Clone, Copy)]
struct Mark {
    log: LogEnd,
    at: Instant,
}

/// The age of the oldest byte that a copy lacks, and an estimate of the messages.
#[derive(Debug, Default)]
pub struct LagClock {
    /// The copy held all that there was at this moment; `None` while no such moment is known.
    level_at: Option<Instant>,
    /// The original as of that moment, or of a later one the copy has passed.
    passed: Option<LogEnd>,
    /// Not reached yet, the oldest first.
    marks: VecDeque<Mark>,
}

impl LagClock {
    /// The copy reaches up to `held` while the original ends at `log`.
    pub fn observe(&mut self, held: Offset, log: LogEnd, now: Instant) {
        if held >= log.end {
            self.marks.clear();
            (self.level_at, self.passed) = (Some(now), Some(log));
            return;
        }
        while let Some(mark) = self.marks.pop_front_if(|mark| mark.log.end <= held) {
            (self.level_at, self.passed) = (self.level_at.max(Some(mark.at)), Some(mark.log));
        }
        if self.marks.back().is_some_and(|mark| mark.log.end >= log.end) {
            return;
        }
        if self.marks.len() == MARKS_MAX {
            // The first is kept, as it is reached next; the others thin out.
            let mut place = 0;
            self.marks.retain(|_| {
                place += 1;
                place % 2 == 1
            });
        }
        self.marks.push_back(Mark { log, at: now });
    }

    /// The copy, level when last seen, was so until now.
    pub fn still_level(&mut self, now: Instant) {
        self.level_at = self.level_at.max(Some(now));
    }

    /// Nothing is known of what the copy holds by when: its connection is gone.
    pub fn forget_marks(&mut self) {
        self.marks.clear();
    }

    /// Whether there was a moment of which the copy is known to have held everything.
    pub fn is_known(&self) -> bool {
        self.level_at.is_some()
    }

    /// How long a copy that lacks something has lacked it; `since` stands in where that is not known.
    pub fn behind(&self, since: Instant, now: Instant) -> Duration {
        now.saturating_duration_since(self.level_at.unwrap_or(since))
    }

    /// Messages between `held` and the end, by the mean size of those that came since the copy was last known to be
    /// level: exact while the copy stands still there. `None` where nothing came to tell a size from.
    pub fn messages(&self, held: Offset, log: LogEnd) -> Option<u64> {
        let lag_bytes = log.end.bytes_since(held);
        if lag_bytes == 0 {
            return Some(0);
        }
        let base = self.passed.or_else(|| self.marks.front().map(|mark| mark.log))?;
        let (bytes, records) = (log.end.bytes_since(base.end), log.records.saturating_sub(base.records));
        if bytes == 0 || records == 0 {
            return None;
        }
        let messages = (u128::from(lag_bytes) * u128::from(records)).div_ceil(u128::from(bytes));
        Some(u64::try_from(messages).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(offset: u64) -> Offset {
        Offset::new(offset).unwrap()
    }

    fn log(end: u64, records: u64) -> LogEnd {
        LogEnd { end: at(end), records }
    }

    fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    #[test]
    fn a_copy_that_stands_still_ages_and_counts_exactly() {
        let start = Instant::now();
        let mut clock = LagClock::default();
        clock.observe(at(100), log(100, 5), start);
        assert_eq!(clock.messages(at(100), log(100, 5)), Some(0));
        assert_eq!(clock.messages(at(100), log(190, 8)), Some(3));
        assert_eq!(clock.behind(start, start + ms(700)), ms(700));
        clock.still_level(start + ms(600));
        assert_eq!(clock.behind(start, start + ms(700)), ms(100));
    }

    /// Under load there is always something that a copy lacks; that does not add up.
    #[test]
    fn a_copy_that_keeps_up_is_behind_by_one_round_and_not_by_all_of_them() {
        let start = Instant::now();
        let mut clock = LagClock::default();
        clock.observe(at(0), log(0, 0), start);
        for round in 1..=10_000u64 {
            let now = start + ms(round);
            clock.observe(at((round - 1) * 1000), log(round * 1000, round), now);
            assert!(clock.behind(start, now) <= ms(1), "round {round}: {:?}", clock.behind(start, now));
            assert_eq!(clock.messages(at((round - 1) * 1000), log(round * 1000, round)), Some(1));
        }
    }

    #[test]
    fn a_copy_that_falls_back_shows_the_age_of_what_it_lacks() {
        let start = Instant::now();
        let mut clock = LagClock::default();
        clock.observe(at(0), log(0, 0), start);
        // The original grows by 1000 a millisecond, the copy by 500.
        for tick in 1..=1000u64 {
            clock.observe(at(tick * 500), log(tick * 1000, tick), start + ms(tick));
        }
        // The copy holds what there was after half of the time.
        let behind = clock.behind(start, start + ms(1000));
        assert!(behind >= ms(500) && behind < ms(700), "{behind:?}");
        assert!(clock.marks.len() <= MARKS_MAX);
        clock.observe(at(1_000_000), log(1_000_000, 1000), start + ms(1001));
        assert_eq!(clock.behind(start, start + ms(1001)), ms(0));
    }

    #[test]
    fn without_a_moment_to_count_from_nothing_is_made_up() {
        let start = Instant::now();
        let mut clock = LagClock::default();
        clock.observe(at(0), log(4000, 40), start);
        assert!(!clock.is_known());
        assert_eq!(clock.messages(at(0), log(4000, 40)), None);
        assert_eq!(clock.messages(at(0), log(5000, 50)), Some(50), "by what came since");
        assert_eq!(clock.behind(start, start + ms(9)), ms(9));
        clock.observe(at(4000), log(5000, 50), start + ms(10));
        assert!(clock.is_known());
        assert_eq!(clock.messages(at(4000), log(5000, 50)), Some(10));
    }
}
