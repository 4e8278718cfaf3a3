//! Whether a slave listened to its master until their link ended. What a master acknowledged while nobody listened no
//! slave can know of: one that was frozen or cut off believes that it is level.

use std::time::{Duration, Instant};

/// The longest time between two answers of a master that is there: one poll, and what a busy machine takes for it.
const USUAL: Duration = Duration::from_millis(1500);

/// The same until the death of a process is noticed where nothing but silence tells of it, as over QUIC: a poll, and the
/// patience with the slowest question.
const UNTIL_NOTICED: Duration = Duration::from_secs(8);

#[derive(Debug)]
pub(super) struct Hearing {
    /// The state of the master at this instant is known; `None`: it was not followed in this run.
    known_at: Option<Instant>,
    /// The link ended, or somebody was there at the master's address after that.
    ended_at: Option<Instant>,
    usual: Duration,
}

impl Default for Hearing {
    fn default() -> Hearing {
        Hearing { known_at: None, ended_at: None, usual: USUAL }
    }
}

impl Hearing {
    pub(super) fn begin(&mut self, now: Instant) {
        *self = Hearing { known_at: Some(now), ..Hearing::default() };
    }

    /// The master answered what was asked at `asked`. When that tells how it was: an answer that was long on its way
    /// does not say when it was given.
    pub(super) fn hear(&mut self, asked: Instant, now: Instant) -> Instant {
        let told = if now.duration_since(asked) <= self.usual { now } else { asked };
        match self.ended_at {
            // It is not followed, and is there.
            Some(_) => self.meet(now),
            None => self.known_at = self.known_at.map(|known| known.max(told)),
        }
        told
    }

    /// The link ends.
    pub(super) fn end(&mut self, now: Instant) {
        self.ended_at.get_or_insert(now);
    }

    /// The master's process is gone, and its machine says so: that is why nothing was heard.
    pub(super) fn bury(&mut self) {
        self.usual = UNTIL_NOTICED;
    }

    /// Somebody is at the master's address, although the link has ended.
    pub(super) fn meet(&mut self, now: Instant) {
        if let Some(ended) = &mut self.ended_at {
            *ended = now;
        }
    }

    /// For how long the master may have acknowledged what nobody heard of: nothing, if the link ended as it does when a
    /// master ends. `None`: it was not followed in this run.
    pub(super) fn unheard(&self, now: Instant) -> Option<Duration> {
        let silence = self.ended_at.unwrap_or(now).saturating_duration_since(self.known_at?);
        Some(if silence > self.usual { silence } else { Duration::ZERO })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Followed from its first second on.
    fn followed(begun: Instant) -> Hearing {
        let mut hearing = Hearing::default();
        assert_eq!(hearing.unheard(begun), None);
        hearing.begin(begun);
        hearing
    }

    #[test]
    fn a_master_that_ends_while_it_is_listened_to_leaves_nothing_unheard() {
        let begun = Instant::now();
        let at = |ms| begun + Duration::from_millis(ms);
        let mut hearing = followed(begun);
        assert_eq!(hearing.hear(at(0), at(1000)), at(1000));
        hearing.end(at(1900));
        assert_eq!(hearing.unheard(at(900_000)), Some(Duration::ZERO), "however long ago that was");
        // Over QUIC it takes longer to be noticed, and may as well be the network.
        hearing.begin(at(900_000));
        hearing.end(at(904_900));
        assert_eq!(hearing.unheard(at(950_000)), Some(Duration::from_millis(4900)));
        hearing.bury();
        assert_eq!(hearing.unheard(at(950_000)), Some(Duration::ZERO));
        hearing.meet(at(960_000));
        assert_eq!(hearing.unheard(at(960_000)), Some(Duration::from_secs(60)));
    }

    #[test]
    fn a_slave_that_was_frozen_or_cut_off_does_not_know() {
        let begun = Instant::now();
        let at = |ms| begun + Duration::from_millis(ms);
        let mut hearing = followed(begun);
        hearing.hear(at(0), at(1000));
        assert_eq!(hearing.unheard(at(4000)), Some(Duration::from_secs(3)), "while the link stands");
        // What lay in the socket when it woke was told long ago.
        assert_eq!(hearing.hear(at(1000), at(9000)), at(1000));
        hearing.end(at(9001));
        assert_eq!(hearing.unheard(at(9500)), Some(Duration::from_millis(8001)));
    }

    #[test]
    fn a_master_that_is_there_after_the_link_lived_on() {
        let begun = Instant::now();
        let at = |ms| begun + Duration::from_millis(ms);
        let mut hearing = followed(begun);
        hearing.end(at(100));
        hearing.end(at(5000));
        assert_eq!(hearing.unheard(at(5000)), Some(Duration::ZERO), "an attempt that met nobody says nothing");
        hearing.meet(at(7000));
        assert_eq!(hearing.unheard(at(7000)), Some(Duration::from_secs(7)));
        hearing.hear(at(8000), at(8000));
        assert_eq!(hearing.unheard(at(9000)), Some(Duration::from_secs(8)), "it refuses this slave");
        hearing.begin(at(9000));
        assert_eq!(hearing.unheard(at(9100)), Some(Duration::ZERO));
    }
}
