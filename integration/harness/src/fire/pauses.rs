//! How long a producer went without an acknowledgement, and what made up that time: its own waits, refusals, and moments
//! in which the machine ran nobody at all.

use crate::fire::ledger::{Entry, Outcome};
use crate::fire::{TOPICS, last};
use std::fmt;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// The clock of the harness is looked at this often.
const TICK: Duration = Duration::from_millis(5);

/// Later than this by its own clock, the machine was busy with something else.
const LATE: Duration = Duration::from_millis(20);

/// When a thread that does nothing but sleep was woken late, and by how much: what the machine makes everybody wait.
#[derive(Debug, Default)]
pub struct Metronome(Mutex<Vec<(Instant, Duration)>>);

impl Metronome {
    /// Sleeps once.
    pub fn tick(&self) {
        let due = Instant::now() + TICK;
        last(TICK);
        let late = due.elapsed();
        if late > LATE {
            self.0.lock().expect("nobody panics with the metronome in hand").push((Instant::now(), late));
        }
    }

    /// How long the machine ran nobody between the two, as far as a sleeper can tell.
    fn stalled(&self, from: Instant, to: Instant) -> Duration {
        let all = self.0.lock().expect("nobody panics with the metronome in hand");
        let within = |(at, late): &(Instant, Duration)| {
            let begun = (*at - *late).max(from);
            (*at).min(to).saturating_duration_since(begun)
        };
        all.iter().map(within).sum()
    }
}

/// The longest time in which no put of a producer was acknowledged.
#[derive(Clone, Debug, Default)]
pub struct Pause {
    pub topic: &'static str,
    pub length: Duration,
    /// Of this, the machine ran nobody for so long.
    pub stalled: Duration,
    /// What the producer was told meanwhile, the end of the pause included, with how long each answer took.
    pub puts: Vec<(&'static str, Duration)>,
}

impl Pause {
    /// Of all producers, between the two.
    pub fn longest(entries: &[Entry], metronome: &Metronome, from: Instant, to: Instant) -> Pause {
        let of_topic = |topic| longest_of(topic, entries, from, to);
        let longest = TOPICS.into_iter().map(of_topic).max_by_key(|(begun, ended, _)| ended.duration_since(*begun));
        let (begun, ended, topic) = longest.unwrap_or((from, from, TOPICS[0]));
        let meanwhile = entries.iter().filter(|e| e.topic == topic && e.at > begun && e.asked < ended);
        let told = |entry: &Entry| (name(entry.outcome), entry.at.duration_since(entry.asked));
        Pause {
            topic,
            length: ended.duration_since(begun),
            stalled: metronome.stalled(begun, ended),
            puts: meanwhile.map(told).collect(),
        }
    }

    /// What is left when the machine is not to blame.
    pub fn own(&self) -> Duration {
        self.length.saturating_sub(self.stalled)
    }
}

impl fmt::Display for Pause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Pause { topic, length, stalled, puts } = self;
        write!(f, "{topic} {length:.1?}, of which the machine ran nobody for {stalled:.1?}:")?;
        puts.iter().take(8).try_for_each(|(told, took)| write!(f, " {told} after {took:.1?}"))?;
        if puts.len() > 8 { write!(f, " and {} more", puts.len() - 8) } else { Ok(()) }
    }
}

fn longest_of(topic: &'static str, entries: &[Entry], from: Instant, to: Instant) -> (Instant, Instant, &'static str) {
    let is_stored = |entry: &&Entry| entry.topic == topic && matches!(entry.outcome, Outcome::Acknowledged { .. });
    let times = entries.iter().filter(is_stored).map(|entry| entry.at).filter(|at| (from..to).contains(at));
    let mut longest = (from, from, topic);
    let mut before = from;
    for at in times.chain([to]) {
        if at.duration_since(before) > longest.1.duration_since(longest.0) {
            longest = (before, at, topic);
        }
        before = at;
    }
    longest
}

fn name(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Acknowledged { .. } => "200",
        Outcome::Refused => "refused",
        Outcome::Unknown => "unknown",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_pause_is_found_with_what_fills_it() {
        let begun = Instant::now();
        let at = |ms| begun + Duration::from_millis(ms);
        let put = |topic, asked, known, outcome| {
            let (asked, at) = (at(asked), at(known));
            Entry { key: known, topic, partition: 0, outcome, reign: 0, asked, at }
        };
        let stored = Outcome::Acknowledged { id: 1, offset: 0 };
        let entries = [
            put(TOPICS[0], 90, 100, stored),
            put(TOPICS[1], 100, 400, stored),
            put(TOPICS[0], 110, 300, Outcome::Unknown),
            put(TOPICS[0], 310, 320, Outcome::Refused),
            put(TOPICS[0], 330, 800, stored),
            put(TOPICS[1], 400, 810, stored),
            put(TOPICS[2], 10, 450, stored),
        ];
        let metronome = Metronome::default();
        metronome
            .0
            .lock()
            .unwrap()
            .extend([(at(150), Duration::from_millis(100)), (at(790), Duration::from_millis(30))]);
        let pause = Pause::longest(&entries, &metronome, at(0), at(900));
        let ms = Duration::from_millis;
        assert_eq!((pause.topic, pause.length, pause.stalled), (TOPICS[0], ms(700), ms(80)));
        assert_eq!(pause.puts, [("unknown", ms(190)), ("refused", ms(10)), ("200", ms(470))]);
        assert_eq!(pause.own(), ms(620));
        // A topic that nothing is acknowledged in pauses all the time.
        assert_eq!(Pause::longest(&[], &metronome, at(0), at(900)).length, ms(900));
    }
}
