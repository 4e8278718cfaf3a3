//! `slaveCatchUpBytesPerSecond`: a slave that is far behind leaves room for others. Arithmetic; who waits does so outside.

use std::time::{Duration, Instant};

/// What may be taken at once after a pause.
const BURST: Duration = Duration::from_millis(100);

/// A rate of bytes, shared by all partitions that catch up.
#[derive(Debug)]
pub struct Pace {
    bytes_per_second: u64,
    /// When the bytes taken so far are paid for.
    paid_at: Option<Instant>,
}

impl Pace {
    /// 0: no limit.
    pub fn new(bytes_per_second: u64) -> Pace {
        Pace { bytes_per_second, paid_at: None }
    }

    /// `bytes` have come; how long to wait before asking for more.
    pub fn take(&mut self, bytes: u64, now: Instant) -> Duration {
        if self.bytes_per_second == 0 {
            return Duration::ZERO;
        }
        let cost = Duration::from_secs_f64(bytes as f64 / self.bytes_per_second as f64);
        let paid_at = self.paid_at.map_or(now, |at| at.max(now)) + cost;
        self.paid_at = Some(paid_at);
        paid_at.saturating_duration_since(now).saturating_sub(BURST)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_kept_over_all_who_take() {
        let mut pace = Pace::new(1_000_000);
        let start = Instant::now();
        let mut now = start;
        for _ in 0..100 {
            now += pace.take(100_000, now);
        }
        let took = now.duration_since(start).as_secs_f64();
        assert!((9.8..=10.0).contains(&took), "{took}");
        now += Duration::from_secs(60);
        assert_eq!(pace.take(100_000, now), Duration::ZERO, "a pause gives one burst");
        assert!(pace.take(1_000_000, now) >= Duration::from_millis(900), "and no more");
    }

    #[test]
    fn without_a_limit_nothing_waits() {
        assert_eq!(Pace::new(0).take(u64::MAX, Instant::now()), Duration::ZERO);
    }
}
