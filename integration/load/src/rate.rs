//! When each message of an open-loop run is due.

/// Hands out message numbers with their due times, evenly spaced; what was missed stays due.
pub(crate) struct Schedule {
    start_ns: u64,
    interval_ns: f64,
    next: u64,
    messages: u64,
}

impl Schedule {
    pub(crate) fn new(messages_per_second: f64, start_ns: u64, messages: u64) -> Schedule {
        Schedule { start_ns, interval_ns: 1e9 / messages_per_second, next: 0, messages }
    }

    /// The next message that should have been sent by now. Its due time is its own, however late the question.
    pub(crate) fn due(&mut self, now_ns: u64) -> Option<(u64, u64)> {
        let due_ns = self.next_due_ns().filter(|due_ns| *due_ns <= now_ns)?;
        let number = self.next;
        self.next += 1;
        Some((number, due_ns))
    }

    /// `None` when all are handed out. Computed from the start each time: rounding does not add up.
    pub(crate) fn next_due_ns(&self) -> Option<u64> {
        (self.next < self.messages).then(|| self.start_ns + (self.next as f64 * self.interval_ns) as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stall_does_not_move_what_is_due() {
        let mut schedule = Schedule::new(2000.0, 1_000_000, 5);
        assert_eq!(schedule.due(999_999), None);
        assert_eq!(schedule.due(1_000_000), Some((0, 1_000_000)));
        assert_eq!(schedule.due(1_000_001), None);
        assert_eq!(schedule.next_due_ns(), Some(1_500_000));
        // The generator was away for 10 ms: all are due at once, each with the time it should have gone.
        let late: Vec<_> = std::iter::from_fn(|| schedule.due(11_000_000)).collect();
        assert_eq!(late, [(1, 1_500_000), (2, 2_000_000), (3, 2_500_000), (4, 3_000_000)]);
        assert_eq!(schedule.next_due_ns(), None);
    }

    #[test]
    fn an_odd_rate_does_not_drift() {
        let mut schedule = Schedule::new(3.0, 0, 3_000_001);
        let last = std::iter::from_fn(|| schedule.due(u64::MAX)).last().unwrap();
        assert_eq!(last, (3_000_000, 1_000_000_000_000_000));
    }
}
