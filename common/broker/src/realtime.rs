//! Rates of topics with `stat=true` (stats, "2. Items", realtime): counted since the last reset, at most 30 minutes.

use parking_lot::Mutex;
use std::fmt::Write;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// In the order in which `stats` lists them.
#[derive(Clone, Copy)]
pub(crate) enum Kind {
    Put,
    Get,
    Offset,
    GetMiss,
    PutFailed,
    MessageSize,
}

impl Kind {
    pub(crate) const ALL: [Kind; 6] =
        [Kind::Put, Kind::Get, Kind::Offset, Kind::GetMiss, Kind::PutFailed, Kind::MessageSize];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Kind::Put => "realtime_put",
            Kind::Get => "realtime_get",
            Kind::Offset => "realtime_offset",
            Kind::GetMiss => "realtime_get_miss",
            Kind::PutFailed => "realtime_put_failed",
            Kind::MessageSize => "realtime_message_size",
        }
    }
}

#[derive(Default)]
struct Cell {
    /// Recorded since the start; survives a reset.
    ever: AtomicBool,
    count: AtomicU64,
    value: AtomicU64,
}

/// One topic's cells.
#[derive(Default)]
pub(crate) struct TopicRates([Cell; 6]);

impl TopicRates {
    pub(crate) fn add(&self, kind: Kind, value: u64) {
        let cell = &self.0[kind as usize];
        if !cell.ever.load(Relaxed) {
            cell.ever.store(true, Relaxed);
        }
        cell.count.fetch_add(1, Relaxed);
        cell.value.fetch_add(value, Relaxed);
    }

    fn reset(&self) {
        for cell in &self.0 {
            cell.count.store(0, Relaxed);
            cell.value.store(0, Relaxed);
        }
    }
}

/// When the cells of all topics were last set to zero.
pub(crate) struct Period(Mutex<Instant>);

const PERIOD_MAX: Duration = Duration::from_secs(30 * 60);

impl Period {
    pub(crate) fn begin(now: Instant) -> Period {
        Period(Mutex::new(now))
    }

    pub(crate) fn reset<'a>(&self, topics: impl Iterator<Item = &'a TopicRates>, now: Instant) {
        *self.0.lock() = now;
        topics.for_each(TopicRates::reset);
    }

    /// Whether the counters are due to start over.
    pub(crate) fn is_over(&self, now: Instant) -> bool {
        now.duration_since(*self.0.lock()) >= PERIOD_MAX
    }

    fn seconds(&self, now: Instant) -> u64 {
        now.duration_since(*self.0.lock()).as_secs()
    }

    /// `null`, or the sum over the topics.
    pub(crate) fn total(&self, topics: &[&TopicRates], kind: Kind, now: Instant) -> String {
        let cells = topics.iter().map(|t| &t.0[kind as usize]).filter(|c| c.ever.load(Relaxed));
        let mut any = false;
        let (mut count, mut value) = (0, 0);
        for cell in cells {
            any = true;
            count += cell.count.load(Relaxed);
            value += cell.value.load(Relaxed);
        }
        if any { format_rate(count, value, self.seconds(now)) } else { "null".to_owned() }
    }

    /// The same for one topic, `null` when no topic ever recorded this kind.
    pub(crate) fn of_topic(
        &self,
        all: &[&TopicRates],
        topic: &str,
        rates: Option<&TopicRates>,
        kind: Kind,
        now: Instant,
    ) -> String {
        let ever = |t: &TopicRates| t.0[kind as usize].ever.load(Relaxed);
        match rates.filter(|t| ever(t)) {
            Some(rates) => self.total(&[rates], kind, now),
            None if all.iter().any(|t| ever(t)) => format!("Invalid keyTwo:{topic}"),
            None => "null".to_owned(),
        }
    }
}

/// `Count=<c>,Value=<v>,Value/Count=<r>,Count/Duration=<q>,Duration=<d>` (wire-protocol, "7.4").
fn format_rate(count: u64, value: u64, seconds: u64) -> String {
    let mut out = format!("Count={count},Value={value},Value/Count=");
    ratio(&mut out, value, count);
    out.push_str(",Count/Duration=");
    ratio(&mut out, count, seconds);
    let _ = write!(out, ",Duration={seconds}");
    out
}

/// At most two decimals, half-even, no trailing zeros.
fn ratio(out: &mut String, numerator: u64, denominator: u64) {
    if denominator == 0 {
        out.push_str("invalid");
        return;
    }
    let (numerator, denominator) = (u128::from(numerator) * 100, u128::from(denominator));
    let (mut hundredths, rest) = (numerator / denominator, numerator % denominator);
    let twice = rest * 2;
    if twice > denominator || (twice == denominator && hundredths % 2 == 1) {
        hundredths += 1;
    }
    let _ = write!(out, "{}", hundredths / 100);
    match hundredths % 100 {
        0 => {}
        tens if tens % 10 == 0 => {
            let _ = write!(out, ".{}", tens / 10);
        }
        hundredths => {
            let _ = write!(out, ".{hundredths:02}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_printed_as_the_original_prints_them() {
        let cases = [
            (15, 70, 2, "Count=15,Value=70,Value/Count=4.67,Count/Duration=7.5,Duration=2"),
            (12, 12, 2, "Count=12,Value=12,Value/Count=1,Count/Duration=6,Duration=2"),
            (0, 0, 0, "Count=0,Value=0,Value/Count=invalid,Count/Duration=invalid,Duration=0"),
            (11, 11, 12, "Count=11,Value=11,Value/Count=1,Count/Duration=0.92,Duration=12"),
            (8, 1, 1, "Count=8,Value=1,Value/Count=0.12,Count/Duration=8,Duration=1"),
        ];
        for (count, value, seconds, text) in cases {
            assert_eq!(format_rate(count, value, seconds), text);
        }
    }

    #[test]
    fn a_kind_nobody_recorded_is_null_and_one_that_others_did_is_invalid() {
        let now = Instant::now();
        let period = Period::begin(now);
        let (a, b) = (TopicRates::default(), TopicRates::default());
        let all = [&a, &b];
        assert_eq!(period.total(&all, Kind::Get, now), "null");
        assert_eq!(period.of_topic(&all, "b", Some(&b), Kind::Get, now), "null");
        a.add(Kind::Get, 1);
        assert_eq!(period.of_topic(&all, "b", Some(&b), Kind::Get, now), "Invalid keyTwo:b");
        assert!(period.of_topic(&all, "a", Some(&a), Kind::Get, now).starts_with("Count=1,Value=1"));
        period.reset(all.into_iter(), now);
        assert!(period.total(&all, Kind::Get, now).starts_with("Count=0,Value=0"));
    }
}
