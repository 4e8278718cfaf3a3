//! How much a link may have in flight, and how often it asks for nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use metaq_types::limits::LONG_POLL_MAX;
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tracing::info;

use crate::pace::{Backlog, Pace};

/// What a get asks for when its bytes are known to wait.
pub(super) const FETCH_BYTES: u32 = 1024 * 1024;

/// Bytes that gets with waiting bytes may have in flight, until they are appended.
const WAITING_BYTES_MAX: u32 = 64 * 1024 * 1024;

/// Bytes that all listening gets together ask for: their master may answer all of them in one instant.
const LISTENING_BYTES_MAX: u32 = 32 * 1024 * 1024;

/// A listening get asks for no less, however many there are: a small message should come with the first answer.
const LISTENING_BYTES_MIN: u32 = 2 * 1024;

/// Listening gets that end with nothing, in a second: many partitions wait longer each, so that idle ones cost little.
/// What comes is answered at once however long the wait.
const IDLE_GETS_PER_SECOND_MAX: u32 = 1000;

const BUDGET_UNIT_BYTES: u32 = 1024;

/// Producers that send now and then are not worth two lines each time.
const TELL_INTERVAL: Duration = Duration::from_secs(60);

/// Bounds the memory of a link.
pub(super) struct Budget {
    waiting: Arc<Semaphore>,
    listeners: AtomicUsize,
    /// Of partitions that catch up.
    pace: Mutex<Paced>,
}

/// A pace, and what the log says of it.
struct Paced {
    pace: Pace,
    /// That room is left.
    told: bool,
    told_at: Option<Instant>,
}

impl Paced {
    /// Whether room is left, where that is to be told now.
    fn news(&mut self, now: Instant) -> Option<bool> {
        let leaves_room = self.pace.leaves_room();
        if leaves_room == self.told || leaves_room && self.told_at.is_some_and(|at| now < at + TELL_INTERVAL) {
            return None;
        }
        if leaves_room {
            self.told_at = Some(now);
        }
        self.told = leaves_room;
        Some(leaves_room)
    }
}

impl Budget {
    pub(super) fn new(catch_up_bytes_per_second: u64) -> Budget {
        let units = (WAITING_BYTES_MAX / BUDGET_UNIT_BYTES) as usize;
        let pace = Mutex::new(Paced { pace: Pace::new(catch_up_bytes_per_second), told: false, told_at: None });
        Budget { waiting: Arc::new(Semaphore::new(units)), listeners: AtomicUsize::new(1), pace }
    }

    pub(super) fn set_listeners(&self, listeners: usize) {
        self.listeners.store(listeners.max(1), Ordering::Relaxed);
    }

    pub(super) fn listening_bytes(&self) -> u32 {
        let listeners = u32::try_from(self.listeners.load(Ordering::Relaxed)).unwrap_or(u32::MAX);
        (LISTENING_BYTES_MAX / listeners).clamp(LISTENING_BYTES_MIN, FETCH_BYTES)
    }

    pub(super) fn listening_wait(&self, delay_max: Duration) -> Duration {
        let listeners = u32::try_from(self.listeners.load(Ordering::Relaxed)).unwrap_or(u32::MAX);
        delay_max.max(Duration::from_secs(1) * listeners / IDLE_GETS_PER_SECOND_MAX).min(LONG_POLL_MAX)
    }

    /// How long to leave room for others after `bytes` came, which took so long.
    pub(super) fn pace(&self, bytes: u64, took: Duration, backlog: impl FnOnce() -> Backlog) -> Duration {
        let mut paced = self.pace.lock();
        let now = Instant::now();
        let pause = paced.pace.take(bytes, took, now, backlog);
        let told = paced.news(now);
        drop(paced);
        tell(told);
        pause
    }

    /// Nothing is to be paced: sees whether room is still to be left.
    pub(super) fn look(&self, backlog: impl FnOnce() -> Backlog) {
        let mut paced = self.pace.lock();
        if !paced.pace.leaves_room() {
            return;
        }
        let now = Instant::now();
        paced.pace.look(now, backlog);
        let told = paced.news(now);
        drop(paced);
        tell(told);
    }

    /// Whether room is to be left for others now.
    pub(super) fn is_held_back(&self) -> bool {
        self.pace.lock().pace.is_held_back()
    }

    /// Waits until `bytes` may be asked for. Cancel-safe.
    pub(super) async fn take(&self, bytes: u32) -> OwnedSemaphorePermit {
        Arc::clone(&self.waiting).acquire_many_owned(units(bytes)).await.expect("the budget is never closed")
    }

    /// `None` when others need what is left: who holds bytes must not wait for room for more.
    pub(super) fn try_take(&self, bytes: u32) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.waiting).try_acquire_many_owned(units(bytes)).ok()
    }
}

fn tell(leaves_room: Option<bool>) {
    match leaves_room {
        Some(true) => {
            info!(
                "far behind, while producers send: copying leaves room to them; slaveCatchUpBytesPerSecond sets a rate"
            );
        }
        Some(false) => info!("copying no longer leaves room: producers rest, or little is missing"),
        None => {}
    }
}

fn units(bytes: u32) -> u32 {
    bytes.min(WAITING_BYTES_MAX).div_ceil(BUDGET_UNIT_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_sends_now_and_then_fills_no_log() {
        let mut paced = Paced { pace: Pace::new(0), told: false, told_at: None };
        let start = Instant::now();
        let mut told = Vec::new();
        for second in 0..90 {
            let now = start + Duration::from_secs(second);
            let came_bytes = if second % 2 == 0 { 1_000_000 } else { 0 };
            let backlog = || Backlog { left_bytes: 20_000_000_000, came_bytes };
            paced.pace.take(1_000_000, Duration::from_millis(4), now, backlog);
            told.extend(paced.news(now).map(|leaves_room| (second, leaves_room)));
        }
        assert_eq!(told, [(0, true), (1, false), (60, true), (61, false)]);
    }

    #[test]
    fn idle_partitions_cost_no_more_than_so_many_gets() {
        let budget = Budget::new(0);
        let delay_max = Duration::from_millis(500);
        for (listeners, wait_ms) in [(1, 500), (500, 500), (2_000, 2_000), (10_000, 10_000), (100_000, 30_000)] {
            budget.set_listeners(listeners);
            assert_eq!(budget.listening_wait(delay_max).as_millis(), wait_ms, "{listeners}");
        }
    }
}
