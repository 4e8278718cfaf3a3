use crate::metrics::FlushCause;
use crate::partition::{Partition, Shared};
use metaq_types::limits::READER_SYNC_INTERVAL_MIN;
use parking_lot::{Condvar, Mutex};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Why a partition needs the committer; several may hold at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wants {
    /// Appends wait for a sync, in the queue or in the file.
    Commit,
    Threshold,
    Interval,
    /// A reader's request.
    Reader,
}

impl Wants {
    pub(crate) fn bit(self) -> u8 {
        1 << self as u8
    }

    /// The most urgent of several.
    fn cause(bits: u8) -> FlushCause {
        if bits & Wants::Commit.bit() != 0 {
            FlushCause::Commit
        } else if bits & Wants::Threshold.bit() != 0 {
            FlushCause::Threshold
        } else if bits & Wants::Interval.bit() != 0 {
            FlushCause::Interval
        } else {
            FlushCause::Reader
        }
    }
}

/// Threads that sync. They mostly wait for the disk, and a disk syncs several files at once in little more than the time
/// of one: 6,300 fdatasync/s of one file, 25,000/s of eight files by eight threads (ext4 on a virtual disk,
/// `metaq-load machine`).
pub(crate) const COMMITTERS: usize = 8;

/// All committers of a store. A partition belongs to one of them for as long as it is open, so it has one writer to
/// sync it; partitions made one after the other, as those of one topic, belong to different ones. While the write-ahead
/// log is used, the common one serves all partitions, so that one sync serves all, and leaves to their own what is too
/// much for the log.
#[derive(Default)]
pub(crate) struct Committers {
    common: Committer,
    own: [Committer; COMMITTERS],
    assigned: AtomicUsize,
}

impl Committers {
    /// The place of the committer of the next partition.
    pub(crate) fn assign(&self) -> usize {
        self.assigned.fetch_add(1, Ordering::Relaxed) % COMMITTERS
    }

    pub(crate) fn at(&self, place: usize) -> &Committer {
        &self.own[place]
    }

    pub(crate) fn common(&self) -> &Committer {
        &self.common
    }

    /// Ends every thread after its round.
    pub(crate) fn stop(&self) {
        self.common.stop();
        self.own.iter().for_each(Committer::stop);
    }
}

/// One thread that syncs, for many partitions. Whatever is left to it while a round runs makes up the next round, so
/// the more there is to do the more each sync does. A round does not wait for more: holding it back until the producers
/// that were just answered come again was measured to cost a tenth at 16 connections, as their work then no longer
/// happens during a sync.
#[derive(Default)]
pub(crate) struct Committer {
    state: Mutex<State>,
    wake: Condvar,
}

#[derive(Default)]
struct State {
    /// Each partition at most once: whoever sets the first bit of its `wants` puts it here.
    wanting: Vec<Arc<Partition>>,
    /// Each partition at most once: whoever sets its `passed_on` puts it here.
    passed_on: Vec<Arc<Partition>>,
    timers: BinaryHeap<Reverse<Timer>>,
    stopped: bool,
}

struct Timer {
    due: Instant,
    wants: Wants,
    partition: Arc<Partition>,
}

/// A partition with what it wants.
pub(crate) struct Work {
    pub(crate) partition: Arc<Partition>,
    cause: FlushCause,
}

impl Committer {
    /// Only for [`Partition::want`], which keeps a partition from being queued twice.
    pub(crate) fn enqueue(&self, partition: &Arc<Partition>) {
        let mut state = self.state.lock();
        if !state.stopped {
            state.wanting.push(partition.clone());
            self.wake.notify_one();
        }
    }

    /// A sync is due when a partition's oldest unsynced bytes are this old.
    pub(crate) fn sync_after(&self, partition: &Arc<Partition>, interval: Duration) {
        self.start_timer(partition, Wants::Interval, interval);
    }

    fn start_timer(&self, partition: &Arc<Partition>, wants: Wants, after: Duration) {
        let due = Instant::now().checked_add(after).unwrap_or_else(|| Instant::now() + Duration::from_secs(86_400));
        let mut state = self.state.lock();
        if !state.stopped {
            let first = state.timers.peek().is_none_or(|Reverse(next)| due < next.due);
            state.timers.push(Reverse(Timer { due, wants, partition: partition.clone() }));
            if first {
                self.wake.notify_one();
            }
        }
    }

    /// Only for [`pass_on`].
    fn take_over(&self, partition: Arc<Partition>) {
        let mut state = self.state.lock();
        if !state.stopped {
            state.passed_on.push(partition);
            self.wake.notify_one();
        }
    }

    /// The thread: rounds until it is stopped.
    pub(crate) fn run(&self, shared: &Shared) {
        while let Some(round) = self.next_round() {
            // All writes first: what the later partitions wrote is then on its way while the first ones are synced.
            for work in &round {
                work.partition.write_all_queued();
            }
            self.sync_round(round, shared);
            if shared.ids.is_low()
                && let Err(error) = shared.ids.reserve()
            {
                tracing::error!(%error, "message ids run out unless this succeeds");
            }
        }
    }

    fn sync_round(&self, round: Vec<Work>, shared: &Shared) {
        let is_common = std::ptr::eq(self, shared.committers.common());
        let round = match &shared.wal {
            Some(wal) if is_common => wal.commit(round, &shared.metrics),
            Some(wal) => {
                if round.iter().any(|work| work.cause == FlushCause::Commit) {
                    wal.note_round_without();
                }
                round
            }
            None => round,
        };
        for work in round {
            if is_common {
                pass_on(work.partition);
            } else {
                work.partition.settle(work.cause);
            }
        }
    }

    /// Ends the thread after its round. What is left to it afterwards is dropped: the store closes the partitions.
    fn stop(&self) {
        let mut state = self.state.lock();
        state.stopped = true;
        state.timers.clear();
        state.wanting.clear();
        state.passed_on.clear();
        self.wake.notify_one();
    }

    /// Waits for work; `None` when stopped.
    fn next_round(&self) -> Option<Vec<Work>> {
        let mut state = self.state.lock();
        loop {
            if state.stopped {
                return None;
            }
            let now = Instant::now();
            while state.timers.peek().is_some_and(|Reverse(timer)| timer.due <= now)
                && let Some(Reverse(timer)) = state.timers.pop()
            {
                state.ring(timer);
            }
            let (wanting, passed_on) = (std::mem::take(&mut state.wanting), std::mem::take(&mut state.passed_on));
            if !wanting.is_empty() || !passed_on.is_empty() {
                drop(state);
                let taken_over = passed_on.into_iter().map(|partition| {
                    partition.passed_on.store(false, Ordering::SeqCst);
                    Work { partition, cause: FlushCause::Commit }
                });
                return Some(taken_over.chain(wanting.into_iter().filter_map(|want| self.accept(want))).collect());
            }
            match state.timers.peek().map(|Reverse(timer)| timer.due) {
                Some(due) => {
                    let _ = self.wake.wait_until(&mut state, due);
                }
                None => self.wake.wait(&mut state),
            }
        }
    }

    /// Takes a partition's wants, so that new ones queue it again. A sync only a reader asked for may have to wait.
    fn accept(&self, partition: Arc<Partition>) -> Option<Work> {
        let bits = partition.wants.swap(0, Ordering::SeqCst);
        let cause = Wants::cause(bits);
        if cause == FlushCause::Reader {
            let now = Instant::now();
            let mut last = partition.last_reader_sync.lock();
            let next = last.map_or(now, |last| last + READER_SYNC_INTERVAL_MIN);
            if next > now {
                if !partition.reader_waits.swap(true, Ordering::SeqCst) {
                    self.start_timer(&partition, Wants::Reader, next - now);
                }
                return None;
            }
            *last = Some(now);
        }
        Some(Work { partition, cause })
    }
}

/// Leaves a partition to its own committer.
fn pass_on(partition: Arc<Partition>) {
    if !partition.passed_on.swap(true, Ordering::SeqCst) {
        partition.clone().own_committer().take_over(partition);
    }
}

impl State {
    fn ring(&mut self, timer: Timer) {
        let partition = timer.partition;
        // The flag first: whoever writes from now on starts the next timer, whoever wrote before is seen here.
        let flag = if timer.wants == Wants::Interval { &partition.interval_runs } else { &partition.reader_waits };
        flag.store(false, Ordering::SeqCst);
        if partition.cursors.written() > partition.cursors.durable()
            && partition.wants.fetch_or(timer.wants.bit(), Ordering::SeqCst) == 0
        {
            self.wanting.push(partition);
        }
    }
}

impl PartialEq for Timer {
    fn eq(&self, other: &Timer) -> bool {
        self.due == other.due
    }
}

impl Eq for Timer {}

impl PartialOrd for Timer {
    fn partial_cmp(&self, other: &Timer) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Timer {
    fn cmp(&self, other: &Timer) -> std::cmp::Ordering {
        self.due.cmp(&other.due)
    }
}
