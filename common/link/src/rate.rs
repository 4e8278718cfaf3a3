//! How fast bytes come lately: arithmetic over samples that somebody takes in even steps.

use std::time::{Duration, Instant};

/// How much of the rate the last second decides.
const WEIGHT: f64 = 0.3;

/// An average over the last seconds, the latest counting most.
#[derive(Debug, Default)]
pub struct Rate {
    last: Option<(Instant, u64)>,
    bytes_per_second: f64,
}

impl Rate {
    /// `total` bytes have come by `now`. To be called about once a second.
    pub fn sample(&mut self, total: u64, now: Instant) {
        if let Some((at, before)) = self.last.replace((now, total)) {
            let seconds = now.saturating_duration_since(at).as_secs_f64().max(0.001);
            let latest = total.saturating_sub(before) as f64 / seconds;
            // The first second counts whole, or a catch-up would begin with an estimate far too long.
            let weight = if self.bytes_per_second < 1.0 { 1.0 } else { WEIGHT };
            self.bytes_per_second += weight * (latest - self.bytes_per_second);
        }
    }

    pub fn bytes_per_second(&self) -> u64 {
        self.bytes_per_second as u64
    }
}

/// How long `left_bytes` take at this rate; `None` while nothing comes.
pub fn time_left(left_bytes: u64, bytes_per_second: u64) -> Option<Duration> {
    if left_bytes == 0 {
        return Some(Duration::ZERO);
    }
    (bytes_per_second > 0).then(|| Duration::from_secs_f64(left_bytes as f64 / bytes_per_second as f64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_follows_what_comes_and_ends_with_it() {
        let start = Instant::now();
        let mut rate = Rate::default();
        for second in 0..10 {
            rate.sample(second * 1_000_000, start + Duration::from_secs(second));
        }
        assert_eq!(rate.bytes_per_second(), 1_000_000);
        for second in 10..60 {
            rate.sample(9_000_000, start + Duration::from_secs(second));
        }
        assert_eq!(rate.bytes_per_second(), 0);
        assert_eq!(time_left(5_000_000, 1_000_000), Some(Duration::from_secs(5)));
        assert_eq!(time_left(5, 0), None);
        assert_eq!(time_left(0, 0), Some(Duration::ZERO));
    }
}
