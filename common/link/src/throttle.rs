//! `slaveLagAction=throttle`: how much producers are held back so that slaves keep within their bound. A controller
//! without I/O: it sees the lag from time to time and answers a delay.

use std::time::Duration;

/// No put waits longer than this, however far a slave is behind.
pub const DELAY_MAX: Duration = Duration::from_secs(1);

/// Where it begins, and below which it ends.
const DELAY_MIN: Duration = Duration::from_millis(1);

/// The next delay of each turn of a producer. `behind` is the worst lag of the slaves that count, `None` when none does.
///
/// It grows faster the further the bound is broken (at most to twice as much), stays between half of the bound and the
/// bound, and below that shrinks by a quarter. Called in even steps, shorter than the bound.
pub fn next_delay(delay: Duration, behind: Option<Duration>, bound: Duration) -> Duration {
    let Some(behind) = behind else { return shrunk(delay) };
    if behind > bound {
        let factor = (behind.as_secs_f64() / bound.as_secs_f64().max(0.001)).clamp(1.25, 2.0);
        return delay.max(DELAY_MIN).mul_f64(factor).min(DELAY_MAX);
    }
    if behind * 2 > bound { delay } else { shrunk(delay) }
}

fn shrunk(delay: Duration) -> Duration {
    let less = delay * 3 / 4;
    if less < DELAY_MIN { Duration::ZERO } else { less }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUND: Duration = Duration::from_millis(500);

    #[test]
    fn nothing_is_delayed_while_the_bound_holds() {
        assert_eq!(next_delay(Duration::ZERO, Some(BOUND), BOUND), Duration::ZERO);
        assert_eq!(next_delay(Duration::ZERO, None, BOUND), Duration::ZERO);
    }

    #[test]
    fn it_grows_to_its_limit_and_ends_when_no_slave_counts() {
        let mut delay = Duration::ZERO;
        for _ in 0..40 {
            let next = next_delay(delay, Some(BOUND * 10), BOUND);
            assert!(next >= delay && next <= DELAY_MAX);
            delay = next;
        }
        assert_eq!(delay, DELAY_MAX);
        assert_eq!(next_delay(delay, Some(BOUND), BOUND), DELAY_MAX, "held where it is");
        for _ in 0..30 {
            delay = next_delay(delay, None, BOUND);
        }
        assert_eq!(delay, Duration::ZERO);
    }

    /// A slave of a fixed rate behind producers that would be three times as fast.
    #[test]
    fn it_settles_where_the_slave_can_follow() {
        let (step, producers, turn_bytes, slave_bytes_per_second) = (0.1, 16.0, 16_000.0, 1_000_000.0);
        let (mut delay, mut backlog, mut worst_after_settling) = (Duration::ZERO, 0.0_f64, 0.0_f64);
        for tick in 0..2000 {
            let turn_seconds = delay.as_secs_f64().max(0.085);
            let written = producers * turn_bytes * step / turn_seconds;
            backlog = (backlog + written - slave_bytes_per_second * step).max(0.0);
            let behind = backlog / slave_bytes_per_second;
            delay = next_delay(delay, Some(Duration::from_secs_f64(behind)), BOUND);
            if tick > 1000 {
                worst_after_settling = worst_after_settling.max(behind);
            }
        }
        assert!(worst_after_settling < 2.0 * BOUND.as_secs_f64(), "{worst_after_settling}");
    }
}
