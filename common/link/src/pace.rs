//! How a slave that is far behind leaves room for the producers of its master: at a rate that it is told
//! (`slaveCatchUpBytesPerSecond`), or, when it is told none, for a part of the time while they send. Arithmetic; who
//! waits does so outside.

use std::time::{Duration, Instant};

/// What may be taken at once after a pause.
const BURST: Duration = Duration::from_millis(100);

/// Who lacks less is there in a moment, and is not made to wait.
const FAR_BYTES: u64 = 32 * 1024 * 1024;

/// Producers that send less have nothing to be slowed down.
const SENDING_BYTES_PER_SECOND: f64 = 64.0 * 1024.0;

/// Of the time that copying takes while producers send. A quarter was measured to cost 16 of them 12 (TCP) and 20 (QUIC) of
/// 100 puts, where master, slave and producers share two processors and a disk (`metaq-load replica --parts slowdown`).
const SHARE_MIN: f64 = 0.125;

/// How often it is looked whether producers send, and, while they do, whether the share is right.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);
const ADJUST_INTERVAL: Duration = Duration::from_secs(1);

/// What took longer stood still for a while, as behind a master that was stopped, and did not keep the disk busy.
const TOOK_MAX: Duration = Duration::from_secs(1);

/// All partitions of the link together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backlog {
    pub left_bytes: u64,
    /// What producers have sent since this was last asked.
    pub came_bytes: u64,
}

/// One account for all partitions that catch up.
#[derive(Debug)]
pub struct Pace {
    /// 0: none is told.
    bytes_per_second: u64,
    /// Of the time, where no rate is told.
    share: f64,
    /// Producers send, and much is missing.
    leaves_room: bool,
    left_bytes: u64,
    looked_at: Option<Instant>,
    taken_at: Option<Instant>,
    /// When what was taken so far is paid for.
    paid_at: Option<Instant>,
}

impl Pace {
    /// 0: no rate.
    pub fn new(bytes_per_second: u64) -> Pace {
        Pace {
            bytes_per_second,
            share: 1.0,
            leaves_room: false,
            left_bytes: 0,
            looked_at: None,
            taken_at: None,
            paid_at: None,
        }
    }

    /// Whether producers are left room although no rate is told.
    pub fn leaves_room(&self) -> bool {
        self.leaves_room
    }

    /// Whether copying is slower than it could be.
    pub fn is_held_back(&self) -> bool {
        self.bytes_per_second > 0 || self.share < 1.0
    }

    /// `bytes` have come, and took so long until they were stored; how long to wait before asking for more.
    pub fn take(&mut self, bytes: u64, took: Duration, now: Instant, backlog: impl FnOnce() -> Backlog) -> Duration {
        let (began, cost) = match self.bytes_per_second {
            0 => {
                self.look(now, backlog);
                let began = now.checked_sub(took.min(TOOK_MAX)).unwrap_or(now);
                // Partitions copy at once and wait for each other meanwhile: no time counts twice.
                let began = self.taken_at.replace(now).map_or(began, |at| at.max(began));
                if self.share >= 1.0 {
                    self.paid_at = None;
                    return Duration::ZERO;
                }
                (began, now.saturating_duration_since(began).div_f64(self.share))
            }
            rate => (now, Duration::from_secs_f64(bytes as f64 / rate as f64)),
        };
        let paid_at = self.paid_at.map_or(began, |at| at.max(began)) + cost;
        self.paid_at = Some(paid_at);
        paid_at.saturating_duration_since(now).saturating_sub(BURST)
    }

    /// Sees now and then whether room is to be left. To be called also while nothing is taken, or the last share would stay
    /// when all is copied.
    pub fn look(&mut self, now: Instant, backlog: impl FnOnce() -> Backlog) {
        let since = self.looked_at.map(|at| now.saturating_duration_since(at));
        if since.is_none_or(|since| since >= if self.leaves_room { ADJUST_INTERVAL } else { LOOK_INTERVAL }) {
            self.looked_at = Some(now);
            self.adjust(backlog(), since.unwrap_or(LOOK_INTERVAL));
        }
    }

    /// The smallest share, unless more comes than is copied with it: a slave that leaves room for ever never gets there.
    fn adjust(&mut self, backlog: Backlog, since: Duration) {
        let Backlog { left_bytes, came_bytes } = backlog;
        let before = std::mem::replace(&mut self.left_bytes, left_bytes);
        let copied = (before + came_bytes).saturating_sub(left_bytes);
        let sending = came_bytes as f64 >= SENDING_BYTES_PER_SECOND * since.as_secs_f64();
        let left_room = std::mem::replace(&mut self.leaves_room, sending && left_bytes >= FAR_BYTES);
        self.share = match copied {
            _ if !self.leaves_room => 1.0,
            _ if !left_room => SHARE_MIN,
            _ if copied < came_bytes + came_bytes / 2 => (self.share * 2.0).min(1.0),
            _ if copied >= 4 * came_bytes => (self.share / 2.0).max(SHARE_MIN),
            _ => self.share,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cmp::Reverse;
    use std::collections::BinaryHeap;

    const NOTHING: fn() -> Backlog = || Backlog { left_bytes: 0, came_bytes: 0 };

    #[test]
    fn the_rate_is_kept_over_all_who_take() {
        let mut pace = Pace::new(1_000_000);
        let start = Instant::now();
        let mut now = start;
        for _ in 0..100 {
            now += pace.take(100_000, Duration::ZERO, now, NOTHING);
        }
        let took = now.duration_since(start).as_secs_f64();
        assert!((9.8..=10.0).contains(&took), "{took}");
        now += Duration::from_secs(60);
        assert_eq!(pace.take(100_000, Duration::ZERO, now, NOTHING), Duration::ZERO, "a pause gives one burst");
        assert!(pace.take(1_000_000, Duration::ZERO, now, NOTHING) >= Duration::from_millis(900), "and no more");
    }

    /// What became of a slave that lacks `left` bytes in so many partitions.
    struct Copy {
        /// In each second.
        copied: Vec<u64>,
        left: f64,
        longest_pause: Duration,
    }

    /// Each partition asks for 1 MB, which takes the disk of all 4 ms, beside producers that send so much in a second.
    fn copy(partitions: usize, mut left: f64, sent_per_second: f64, seconds: usize) -> Copy {
        const BATCH: f64 = 1e6;
        let mut pace = Pace::new(0);
        let start = Instant::now();
        let (mut now, mut counted) = (start, None);
        let mut copied = vec![0; seconds];
        let mut longest_pause = Duration::ZERO;
        let mut asks: BinaryHeap<_> = std::iter::repeat_n(Reverse(start), partitions).collect();
        while let Some(Reverse(asked)) = asks.pop().filter(|_| left >= BATCH) {
            let before = now;
            now = asked.max(now) + Duration::from_millis(4);
            let Some(second) = copied.get_mut(now.duration_since(start).as_secs() as usize) else { break };
            *second += BATCH as u64;
            left += now.duration_since(before).as_secs_f64() * sent_per_second - BATCH;
            let came = |since: Instant| now.duration_since(since).as_secs_f64() * sent_per_second;
            let pause = pace.take(BATCH as u64, now.duration_since(asked), now, || {
                let came_bytes = counted.replace(now).map_or(0.0, came) as u64;
                Backlog { left_bytes: left as u64, came_bytes }
            });
            longest_pause = longest_pause.max(pause);
            asks.push(Reverse(now + pause));
        }
        Copy { copied, left, longest_pause }
    }

    #[test]
    fn while_producers_send_an_eighth_of_the_time_is_taken() {
        for partitions in [1, 4, 64] {
            let Copy { copied, longest_pause, .. } = copy(partitions, 20e9, 10e6, 10);
            assert!(copied[0] <= 160_000_000, "a moment until it is known, and a burst: {partitions}: {copied:?}");
            assert!(
                copied[1..].iter().all(|bytes| (27_000_000..=33_000_000).contains(bytes)),
                "{partitions}: {copied:?}"
            );
            assert!(longest_pause <= Duration::from_secs(3), "{partitions}: {longest_pause:?}");
        }
        let Copy { copied, .. } = copy(1, 20e9, 1000.0, 10);
        assert!(copied.iter().all(|bytes| *bytes > 240_000_000), "hardly anything is sent: {copied:?}");
    }

    #[test]
    fn it_gets_there_however_much_is_sent() {
        for sent_per_second in [1e6, 40e6, 55e6, 100e6, 180e6, 200e6] {
            for partitions in [1, 64] {
                let Copy { copied, left, .. } = copy(partitions, 1e9, sent_per_second, 120);
                assert!(left < 1e6, "{partitions}, {sent_per_second}: {left} bytes are left, {copied:?}");
            }
        }
    }

    /// As behind a master that was stopped for a moment: it says nothing of what a copy costs.
    #[test]
    fn a_get_that_stood_still_does_not_silence_the_link() {
        let mut pace = Pace::new(0);
        let mut now = Instant::now();
        let backlog = || Backlog { left_bytes: 20_000_000_000, came_bytes: 1_000_000_000 };
        for _ in 0..2 {
            now += Duration::from_secs(1);
            pace.take(1_000_000, Duration::from_millis(4), now, backlog);
        }
        assert!(pace.leaves_room());
        now += Duration::from_secs(60);
        let pause = pace.take(1_000_000, Duration::from_secs(60), now, backlog);
        assert!(pause <= Duration::from_secs(4), "{pause:?}");
    }

    #[test]
    fn whoever_is_there_is_held_back_no_more() {
        let mut pace = Pace::new(0);
        let now = Instant::now();
        let sending = |left_bytes| move || Backlog { left_bytes, came_bytes: 1_000_000_000 };
        pace.take(1_000_000, Duration::from_millis(4), now, sending(20_000_000_000));
        assert!(pace.is_held_back());
        pace.look(now + Duration::from_secs(1), sending(0));
        assert!(!pace.is_held_back() && !pace.leaves_room());
    }
}
