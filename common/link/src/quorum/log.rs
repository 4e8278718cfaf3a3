//! One partition that asks for a quorum: who holds how much of it, what is confirmed, and what has waited too long.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use metaq_config::AckRules;
use metaq_types::limits::ACK_QUORUM_MAX;
use metaq_types::{Epoch, Offset, SlaveId};

use super::{Act, Ends, Slave};

/// How exactly the age of waiting puts is known, as a part of their time-out.
pub(super) const MARKS_PER_TIMEOUT: u32 = 40;

#[derive(Debug)]
pub(super) struct Log {
    pub(super) rules: AckRules,
    /// No fewer members are enough, whatever the rules say: [`crate::roll::Roll::least`].
    pub(super) least: u32,
    pub(super) confirmed: Confirmed,
    pub(super) copies: BTreeMap<SlaveId, Copy>,
    /// What was written when, the oldest first; what is confirmed or given up by now is left out.
    pub(super) marks: VecDeque<Mark>,
    /// Nothing up to here waits any more.
    pub(super) given_up: Offset,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Confirmed {
    /// Downgraded to the master alone: nobody has to be asked.
    Everything,
    UpTo(Offset),
}

/// What a slave holds of one partition.
#[derive(Debug)]
pub(super) struct Copy {
    pub(super) end: Offset,
    pub(super) in_sync: bool,
    /// Not in sync: where the master ended at its last get. Whoever has reached that by the next one keeps up.
    pub(super) goal: Option<Offset>,
    /// When it fell out of sync or came back.
    pub(super) since: Instant,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Mark {
    pub(super) at: Instant,
    pub(super) ends: Ends,
}

impl Copy {
    pub(super) fn fall_out(&mut self, now: Instant) {
        if std::mem::take(&mut self.in_sync) {
            self.since = now;
        }
        self.goal = None;
    }
}

impl Confirmed {
    pub(super) fn offset(self) -> Option<Offset> {
        match self {
            Confirmed::Everything => None,
            Confirmed::UpTo(offset) => Some(offset),
        }
    }
}

impl Log {
    /// The copies that count.
    pub(super) fn in_sync<'a>(
        &'a self,
        slaves: &'a BTreeMap<SlaveId, Slave>,
        epoch: Epoch,
    ) -> impl Iterator<Item = (SlaveId, &'a Copy)> {
        let counts = move |id: &SlaveId| slaves.get(id).is_some_and(|slave| slave.counts(epoch));
        self.copies.iter().filter(move |(id, copy)| copy.in_sync && counts(id)).map(|(id, copy)| (*id, copy))
    }

    pub(super) fn asked(&self) -> u32 {
        self.rules.quorum.max(self.least)
    }

    /// What follows from the ends of the copies that count.
    pub(super) fn settle(&mut self, slaves: &BTreeMap<SlaveId, Slave>, epoch: Epoch) -> Option<Act> {
        let ends = self.in_sync(slaves, epoch).map(|(_, copy)| copy.end);
        let quorum = Furthest::of(ends);
        let asked = self.asked() as usize - 1;
        let needed = if self.rules.downgrade { asked.min(quorum.count) } else { asked };
        match (needed.checked_sub(1), self.confirmed) {
            (None, Confirmed::Everything) => None,
            (None, Confirmed::UpTo(_)) => {
                self.confirmed = Confirmed::Everything;
                Some(Act::ConfirmEverything)
            }
            (Some(_), Confirmed::Everything) => Some(Act::Hold),
            (Some(place), Confirmed::UpTo(before)) => {
                let to = quorum.at(place).filter(|to| *to > before)?;
                self.confirmed = Confirmed::UpTo(to);
                Some(Act::Confirm(to))
            }
        }
    }

    /// Forgets what is confirmed; answers what was written so long ago that it waits no longer.
    pub(super) fn take_late(&mut self, confirmed: Offset, now: Instant) -> Option<Mark> {
        // A little before its time: whoever was appended right before the mark waits the whole time-out then.
        let patience = self.rules.timeout - 2 * self.rules.timeout / MARKS_PER_TIMEOUT;
        let mut late = None;
        while let Some(mark) = self
            .marks
            .pop_front_if(|mark| mark.ends.written <= confirmed || now.saturating_duration_since(mark.at) >= patience)
        {
            late = Some(mark).filter(|mark| mark.ends.written > confirmed);
        }
        late
    }

    pub(super) fn mark(&mut self, ends: Ends, now: Instant) {
        let waits = self.confirmed.offset().is_some_and(|confirmed| confirmed.max(self.given_up) < ends.written);
        let is_news = |last: &Mark| last.ends.written < ends.written && now - last.at >= self.step();
        if waits && self.marks.back().is_none_or(is_news) {
            self.marks.push_back(Mark { at: now, ends });
        }
    }

    /// Between two marks.
    fn step(&self) -> Duration {
        self.rules.timeout / (2 * MARKS_PER_TIMEOUT)
    }
}

/// The furthest ends, as many as a quorum may ask for, the furthest first.
struct Furthest {
    ends: [Offset; ACK_QUORUM_MAX as usize - 1],
    /// Of all, also of those that had no place.
    count: usize,
}

impl Furthest {
    fn of(all: impl Iterator<Item = Offset>) -> Furthest {
        let mut furthest = Furthest { ends: [Offset::ZERO; ACK_QUORUM_MAX as usize - 1], count: 0 };
        for mut end in all {
            for kept in &mut furthest.ends[..(furthest.count + 1).min(ACK_QUORUM_MAX as usize - 1)] {
                if end > *kept {
                    std::mem::swap(&mut end, kept);
                }
            }
            furthest.count += 1;
        }
        furthest
    }

    fn at(&self, place: usize) -> Option<Offset> {
        (place < self.count).then(|| self.ends.get(place).copied()).flatten()
    }
}
