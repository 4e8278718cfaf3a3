//! Producers held back while slaves are behind (`slaveLagAction=throttle`): how much, and how often that was.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Shared by all connections. One load a turn where nothing is held back.
#[derive(Debug, Default)]
pub(crate) struct Throttle {
    delay_micros: AtomicU64,
    puts: AtomicU64,
    paused_micros: AtomicU64,
}

impl Throttle {
    /// How long a connection pauses after a turn in which it sent messages.
    pub(crate) fn delay(&self) -> Option<Duration> {
        match self.delay_micros.load(Relaxed) {
            0 => None,
            micros => Some(Duration::from_micros(micros)),
        }
    }

    pub(crate) fn set_delay(&self, delay: Duration) {
        self.delay_micros.store(delay.as_micros() as u64, Relaxed);
    }

    /// A connection pauses for `delay` after `puts` messages.
    pub(crate) fn count(&self, puts: u64, delay: Duration) {
        self.puts.fetch_add(puts, Relaxed);
        self.paused_micros.fetch_add(delay.as_micros() as u64, Relaxed);
    }

    /// Messages whose connections paused after them.
    pub(crate) fn puts(&self) -> u64 {
        self.puts.load(Relaxed)
    }

    /// The time of all pauses, summed up over the connections.
    pub(crate) fn paused(&self) -> Duration {
        Duration::from_micros(self.paused_micros.load(Relaxed))
    }
}
