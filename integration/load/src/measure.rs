//! The clock of a run, latency summaries and the count of what went wrong.

use hdrhistogram::Histogram;
use serde::Serialize;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Longer latencies are counted as this.
const LATENCY_NS_MAX: u64 = 60_000_000_000;

/// Kinds of faults told apart; the rest is counted together, so that a text with a number in it cannot eat memory.
const FAULT_KINDS_MAX: usize = 16;
const FAULT_TEXT_CHARS_MAX: usize = 160;
const OTHER_FAULTS: &str = "(further texts)";

/// Nanoseconds since the run began; all threads of a run share one.
#[derive(Clone, Copy)]
pub(crate) struct Clock(Instant);

impl Clock {
    pub(crate) fn start() -> Clock {
        Clock(Instant::now())
    }

    pub(crate) fn now_ns(self) -> u64 {
        nanoseconds(self.0.elapsed())
    }
}

pub(crate) fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Latencies in nanoseconds, three significant digits.
#[derive(Clone)]
pub(crate) struct Latencies(Histogram<u64>);

impl Latencies {
    pub(crate) fn new() -> Latencies {
        Latencies(Histogram::new_with_bounds(1, LATENCY_NS_MAX, 3).expect("the bounds are in order"))
    }

    pub(crate) fn record(&mut self, nanoseconds: u64) {
        self.0.saturating_record(nanoseconds.max(1));
    }

    pub(crate) fn add(&mut self, other: &Latencies) {
        self.0.add(&other.0).expect("all have the same bounds");
    }

    pub(crate) fn summary(&self) -> LatencySummary {
        let at = |percentile| microseconds(self.0.value_at_quantile(percentile));
        LatencySummary {
            count: self.0.len(),
            mean_us: self.0.mean() / 1e3,
            p50_us: at(0.5),
            p90_us: at(0.9),
            p99_us: at(0.99),
            p999_us: at(0.999),
            max_us: microseconds(self.0.max()),
        }
    }
}

fn microseconds(nanoseconds: u64) -> f64 {
    nanoseconds as f64 / 1e3
}

#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct LatencySummary {
    pub(crate) count: u64,
    pub(crate) mean_us: f64,
    pub(crate) p50_us: f64,
    pub(crate) p90_us: f64,
    pub(crate) p99_us: f64,
    pub(crate) p999_us: f64,
    pub(crate) max_us: f64,
}

impl LatencySummary {
    /// Of several rounds, the median of each figure on its own, and the count of all.
    pub(crate) fn median<'a>(rounds: impl Iterator<Item = &'a LatencySummary>) -> LatencySummary {
        let rounds: Vec<&LatencySummary> = rounds.collect();
        let of =
            |value: fn(&LatencySummary) -> f64| median(&rounds.iter().map(|round| value(round)).collect::<Vec<f64>>());
        LatencySummary {
            count: rounds.iter().map(|round| round.count).sum(),
            mean_us: of(|round| round.mean_us),
            p50_us: of(|round| round.p50_us),
            p90_us: of(|round| round.p90_us),
            p99_us: of(|round| round.p99_us),
            p999_us: of(|round| round.p999_us),
            max_us: of(|round| round.max_us),
        }
    }
}

impl std::fmt::Display for LatencySummary {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let LatencySummary { mean_us, p50_us, p90_us, p99_us, p999_us, max_us, .. } = self;
        write!(f, "mean {mean_us:.1}  p50 {p50_us:.1}  p90 {p90_us:.1}  p99 {p99_us:.1}  p99.9 {p999_us:.1}  ")?;
        write!(f, "max {max_us:.1} µs")
    }
}

/// What went wrong, by text: answers other than success, garbled or missing replies, ended connections.
#[derive(Debug, Clone, Default, Serialize)]
#[serde(transparent)]
pub(crate) struct Faults(BTreeMap<String, u64>);

impl Faults {
    pub(crate) fn count(&mut self, text: &str, times: u64) {
        if let Some(known) = self.0.get_mut(text) {
            *known += times;
            return;
        }
        let text: String = text.chars().take(FAULT_TEXT_CHARS_MAX).collect();
        let kind = if self.0.len() < FAULT_KINDS_MAX || self.0.contains_key(&text) { &text } else { OTHER_FAULTS };
        *self.0.entry(kind.to_owned()).or_default() += times;
    }

    /// An answer whose code is not the one asked for.
    pub(crate) fn count_answer(&mut self, code: u16, body: &[u8]) {
        self.count(&format!("{code} {}", String::from_utf8_lossy(body)), 1);
    }

    pub(crate) fn add(&mut self, other: &Faults) {
        for (text, times) in &other.0 {
            self.count(text, *times);
        }
    }

    pub(crate) fn total(&self) -> u64 {
        self.0.values().sum()
    }
}

/// A line each.
impl std::fmt::Display for Faults {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.iter().try_for_each(|(text, times)| writeln!(f, "  error {times} × {text}"))
    }
}

/// The median of the values, 0 of none; of two in the middle the mean.
pub(crate) fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => 0.0,
        count if count % 2 == 1 => sorted[count / 2],
        count => f64::midpoint(sorted[count / 2 - 1], sorted[count / 2]),
    }
}

/// How a run's time is divided, on its [`Clock`]: what is answered before `from_ns` warms up, what is answered from
/// `to_ns` on is drained, and only the time between is measured.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Phases {
    pub(crate) from_ns: u64,
    pub(crate) to_ns: u64,
}

impl Phases {
    pub(crate) fn new(clock: Clock, warmup: Duration, measured: Duration) -> Phases {
        let from_ns = clock.now_ns() + nanoseconds(warmup);
        Phases { from_ns, to_ns: from_ns + nanoseconds(measured) }
    }

    pub(crate) fn measured(&self, now_ns: u64) -> bool {
        (self.from_ns..self.to_ns).contains(&now_ns)
    }

    pub(crate) fn seconds(&self) -> f64 {
        (self.to_ns - self.from_ns) as f64 / 1e9
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_keep_three_digits() {
        let mut latencies = Latencies::new();
        for microsecond in 1..=1000 {
            latencies.record(microsecond * 1000);
        }
        let mut twice = latencies.clone();
        twice.add(&latencies);
        let summary = twice.summary();
        assert_eq!(summary.count, 2000);
        for (value, expected) in [(summary.p50_us, 500.0), (summary.p99_us, 990.0), (summary.max_us, 1000.0)] {
            assert!((value / expected - 1.0).abs() < 0.002, "{value} is not {expected}");
        }
        latencies.record(u64::MAX);
        assert!(latencies.summary().max_us >= 59e6, "beyond the bound is not lost");
    }

    #[test]
    fn faults_are_told_apart_only_so_far() {
        let mut faults = Faults::default();
        for n in 0..100 {
            faults.count(&format!("500 failed at {n}"), 1);
        }
        faults.count("500 failed at 3", 2);
        let long = "x".repeat(1000);
        faults.count(&long, 1);
        assert_eq!(faults.total(), 103);
        assert_eq!(faults.0.len(), FAULT_KINDS_MAX + 1);
        assert_eq!(faults.0[OTHER_FAULTS], 85);
    }

    #[test]
    fn medians() {
        assert_eq!([median(&[]), median(&[3.0, 1.0, 2.0]), median(&[4.0, 1.0])], [0.0, 2.0, 2.5]);
    }
}
