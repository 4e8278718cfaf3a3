use crate::metrics::FlushCause;
use crate::partition::{Partition, Shared};
use metaq_types::limits::READER_SYNC_INTERVAL_MIN;
use parking_lot::{Condvar, Mutex};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::num::NonZeroU64;
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
/// sync it; partitions made one after the other, as those of one topic, belong to different ones.
#[derive(Default)]
pub(crate) struct Committers {
    all: [Committer; COMMITTERS],
    assigned: AtomicUsize,
}

impl Committers {
    /// The place of the committer of the next partition.
    pub(crate) fn assign(&self) -> usize {
        self.assigned.fetch_add(1, Ordering::Relaxed) % COMMITTERS
    }

    pub(crate) fn at(&self, place: usize) -> &Committer {
        &self.all[place]
    }

    /// Ends every thread after its round.
    pub(crate) fn stop(&self) {
        self.all.iter().for_each(Committer::stop);
    }
}

/// One thread that syncs, for many partitions. Whatever is left to it while a round runs makes up the next round, so
/// the more there is to do the more each sync does.
#[derive(Default)]
pub(crate) struct Committer {
    state: Mutex<State>,
    wake: Condvar,
    /// Appends left to it since its last round took what there was.
    arrivals: AtomicUsize,
    /// A round waits for this many arrivals; 0 while none does.
    gathering: AtomicUsize,
}

/// What the last round tells about the next.
#[derive(Clone, Copy, Default)]
struct Pace {
    /// Appends it took.
    taken: usize,
    /// How long it ran, syncs included.
    ran: Duration,
}

/// A round that could be larger waits this part of the last one's time for what is on its way.
const GATHER_PART: u32 = 4;

/// And never longer.
const GATHER_MAX: Duration = Duration::from_micros(200);

#[derive(Default)]
struct State {
    /// Each partition at most once: whoever sets the first bit of its `wants` puts it here.
    wanting: Vec<Arc<Partition>>,
    timers: BinaryHeap<Reverse<Timer>>,
    stopped: bool,
}

struct Timer {
    due: Instant,
    wants: Wants,
    partition: Arc<Partition>,
}

/// A partition with what it wants.
struct Work {
    partition: Arc<Partition>,
    cause: FlushCause,
}

impl Committer {
    /// An append waits for a sync of ours.
    pub(crate) fn arrived(&self) {
        let arrivals = self.arrivals.fetch_add(1, Ordering::SeqCst) + 1;
        let wanted = self.gathering.load(Ordering::SeqCst);
        if wanted > 0 && arrivals >= wanted && self.gathering.swap(0, Ordering::SeqCst) > 0 {
            let _state = self.state.lock();
            self.wake.notify_one();
        }
    }

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

    /// The thread: rounds until it is stopped.
    pub(crate) fn run(&self, shared: &Shared) {
        // Waits of some ten microseconds would otherwise take twice their time; without the right to ask for that they do.
        let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
        let mut pace = Pace::default();
        while let Some(round) = self.next_round(pace) {
            let started = Instant::now();
            let taken = self.arrivals.swap(0, Ordering::SeqCst);
            let round: Vec<Work> = round.into_iter().filter_map(|partition| self.accept(partition)).collect();
            // All writes first: what the later partitions wrote is then on its way while the first ones are synced.
            for work in &round {
                work.partition.write_all_queued();
            }
            for work in &round {
                work.partition.sync(work.cause);
            }
            pace = Pace { taken, ran: started.elapsed() };
            if shared.ids.is_low()
                && let Err(error) = shared.ids.reserve()
            {
                tracing::error!(%error, "message ids run out unless this succeeds");
            }
        }
    }

    /// Ends the thread after its round. What is left to it afterwards is dropped: the store closes the partitions.
    fn stop(&self) {
        let mut state = self.state.lock();
        state.stopped = true;
        state.timers.clear();
        state.wanting.clear();
        self.wake.notify_one();
    }

    /// Waits for work; `None` when stopped.
    ///
    /// Producers that wait for each answer come back together, shortly after the last round answered them. Beginning at
    /// once with the few that came during its sync would let the others wait for a whole sync more, and so on for ever:
    /// the rounds would be half as large as they can be. So a round waits a moment for as many as the last one answered,
    /// on top of those that are here already. One producer alone never waits.
    fn next_round(&self, pace: Pace) -> Option<Vec<Arc<Partition>>> {
        let expected = pace.taken + self.arrivals.load(Ordering::SeqCst);
        let gathered_by = Instant::now() + (pace.ran / GATHER_PART).min(GATHER_MAX);
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
            if !state.wanting.is_empty() {
                if now >= gathered_by || !self.may_gather(expected) {
                    self.gathering.store(0, Ordering::SeqCst);
                    return Some(std::mem::take(&mut state.wanting));
                }
                let _ = self.wake.wait_until(&mut state, gathered_by);
                continue;
            }
            match state.timers.peek().map(|Reverse(timer)| timer.due) {
                Some(due) => {
                    let _ = self.wake.wait_until(&mut state, due);
                }
                None => self.wake.wait(&mut state),
            }
        }
    }

    /// Whether more appends are expected; whoever brings the last of them wakes us.
    fn may_gather(&self, expected: usize) -> bool {
        self.gathering.store(expected, Ordering::SeqCst);
        self.arrivals.load(Ordering::SeqCst) < expected
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
