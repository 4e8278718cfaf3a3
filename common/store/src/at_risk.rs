use metaq_types::Offset;
use std::collections::VecDeque;

/// At most about so many stretches are remembered, whatever the threshold.
const STRETCHES_MAX: u64 = 64;

/// Records that were answered before they were durable: what a power failure would take of what producers rely on.
/// Counted from above: a stretch counts whole until its last byte is durable.
#[derive(Default)]
pub(crate) struct AtRisk {
    /// Where each ends and how many records it has, in the order of the log.
    stretches: VecDeque<(Offset, u64)>,
    records: u64,
}

impl AtRisk {
    /// Whether `records` more may be answered at once, when everything before `durable` is durable and no more than
    /// `threshold` may be lost.
    pub(crate) fn has_room(&mut self, durable: Offset, records: u64, threshold: u32) -> bool {
        while let Some((_, safe)) = self.stretches.pop_front_if(|(end, _)| *end <= durable) {
            self.records -= safe;
        }
        self.records + records <= u64::from(threshold)
    }

    /// These were answered, and end at `end`.
    pub(crate) fn add(&mut self, end: Offset, records: u64, threshold: u32) {
        self.records += records;
        let short = u64::from(threshold) / STRETCHES_MAX;
        match self.stretches.back_mut() {
            Some(last) if last.1 + records <= short => *last = (end, last.1 + records),
            _ => self.stretches.push_back((end, records)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(position: u64) -> Offset {
        Offset::new(position).unwrap()
    }

    #[test]
    fn no_more_than_the_threshold_is_ever_at_risk() {
        let mut risk = AtRisk::default();
        assert!(risk.has_room(at(0), 3, 3));
        risk.add(at(30), 3, 3);
        assert!(!risk.has_room(at(0), 1, 3));
        assert!(!risk.has_room(at(29), 1, 3), "its last record is not durable");
        assert!(risk.has_room(at(30), 3, 3));
        assert!(!risk.has_room(at(30), 4, 3), "too many at once");
    }

    #[test]
    fn a_large_threshold_takes_no_more_memory() {
        let mut risk = AtRisk::default();
        let threshold = 1_000_000;
        for record in 1..=u64::from(threshold) {
            assert!(risk.has_room(at(0), 1, threshold), "{record}");
            risk.add(at(record), 1, threshold);
        }
        assert!(!risk.has_room(at(0), 1, threshold));
        assert!(risk.stretches.len() as u64 <= STRETCHES_MAX + 1, "{}", risk.stretches.len());
        assert!(risk.has_room(at(500_000), 400_000, threshold));
        assert!(risk.has_room(at(1_000_000), u64::from(threshold), threshold));
    }
}
