use crate::disk::{Disk, replace_file};
use crate::errors::{IdError, OpenError};
use crate::texts::Form;
use crate::writer::is_disk_full;
use metaq_types::{BrokerId, MessageId};
use parking_lot::Mutex;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Milliseconds since 1970 at which the ids' clock reads 0 (storage, "3. Message ids").
const EPOCH_MS: i64 = 1_303_895_660_503;
const TIME_SHIFT: u32 = 22;
const BROKER_SHIFT: u32 = 12;
const SEQUENCE_MAX: i64 = (1 << BROKER_SHIFT) - 1;

/// Ids are reserved this far ahead of the clock, and again when less than half of it is left.
const RESERVED_AHEAD_MS: i64 = 60_000;

/// Ids found in logs, and the clock, count only up to here (about the year 2079): a wild one must not use up the range.
const FOUND_ID_MAX: i64 = i64::MAX / 64 * 63;

/// A clock set back by less than this is not worth a line.
const STEP_WARNED_MS: i64 = 1_000;
/// The same for a step while no broker ran, told by the ids that were given before.
const STEP_WHILE_DOWN_MS: i64 = 3_600_000;
const STEP_WARNING_INTERVAL: Duration = Duration::from_secs(60);

const FORM: Form = Form {
    word: "metaq-ids",
    format: 1,
    advice: "restore it from a copy; remove it only if no broker with this id has ever run ahead of this machine's clock",
};

/// Wall clock in milliseconds since 1970.
pub type WallClock = Arc<dyn Fn() -> i64 + Send + Sync>;

/// Gives message ids: wall clock, broker id, sequence, each larger than the last one given on this broker id, whatever
/// the clock does, over restarts and promotions.
///
/// A high mark above every id given is kept in a file, ahead of the clock, so that giving one costs no I/O; after a
/// crash ids go on from the mark. A slave keeps its master's mark with [`IdClock::raise_to`].
pub struct IdClock {
    broker_id: BrokerId,
    path: PathBuf,
    disk: Arc<dyn Disk>,
    now: WallClock,
    state: Mutex<State>,
    /// Held while the file is written, so that giving ids goes on meanwhile.
    writing: Mutex<()>,
    low: AtomicBool,
    /// That another broker's ids are here was said.
    told_of_other: AtomicBool,
}

struct State {
    /// Nothing up to this one is given any more.
    last: i64,
    /// Everything below is reserved durably.
    mark: i64,
    /// The latest time the clock has shown.
    latest_ms: i64,
    /// When the last line about a step was written, and how large that was.
    warned: Option<(Instant, i64)>,
}

impl IdClock {
    /// Whose ids these are.
    pub fn broker_id(&self) -> BrokerId {
        self.broker_id
    }

    /// Ids go on above the mark in the file and above the clock.
    pub(crate) fn open(
        path: PathBuf,
        broker_id: BrokerId,
        disk: Arc<dyn Disk>,
        now: WallClock,
    ) -> Result<IdClock, OpenError> {
        let mark = FORM.read(&path)?.map_or(Ok(0), |text| read_mark(&path, &text))?;
        // Each crash leaves the mark ahead by what was reserved, so only a large step back is one of the clock.
        let (now_ms, mark_ms) = (now(), time_of(mark) + EPOCH_MS - RESERVED_AHEAD_MS);
        let latest_ms = if mark_ms - now_ms > STEP_WHILE_DOWN_MS { mark_ms } else { now_ms };
        let state = State { last: mark.saturating_sub(1).max(0), mark, latest_ms, warned: None };
        let ids = IdClock {
            broker_id,
            path,
            disk,
            now,
            state: Mutex::new(state),
            writing: Mutex::new(()),
            low: AtomicBool::new(true),
            told_of_other: AtomicBool::new(false),
        };
        ids.tell_of_other(ids.other_broker_of_mark(mark));
        Ok(ids)
    }

    /// Takes notice of the newest id of a log at the opening, which tells whose log that is.
    pub(crate) fn found_at_start(&self, id: MessageId) {
        self.tell_of_other(Some(broker_of(id.0)).filter(|_| id.0 <= FOUND_ID_MAX));
        self.found(id);
    }

    /// A mark is an id that is given next, or the one behind the last that was given, whose sequence may have been full.
    fn other_broker_of_mark(&self, mark: i64) -> Option<i64> {
        let is_own = [mark, mark - 1].map(broker_of).contains(&self.broker_id.get().into());
        (mark > 0 && !is_own).then(|| broker_of(mark))
    }

    /// Once: each log would tell the same.
    fn tell_of_other(&self, broker: Option<i64>) {
        let own = i64::from(self.broker_id.get());
        if let Some(other) = broker.filter(|broker| *broker != own)
            && !self.told_of_other.swap(true, Ordering::Relaxed)
        {
            tracing::warn!(
                brokerId = own, before = other, ids = %self.path.display(),
                "the newest messages here are of another brokerId: consumers that stand somewhere in them are known under \
                 that one, and those of this one stand in other messages; if brokerId or dataPath is a mistake, stop and \
                 correct it before anything is put"
            );
        }
    }

    /// Blocks on the disk only when the reserve is used up, which the committer prevents.
    pub fn next(&self) -> Result<MessageId, IdError> {
        let mut given = None;
        self.take(1, |id| given = Some(id))?;
        Ok(given.expect("one id was asked for"))
    }

    /// Gives `count` ids, ascending, with one look at the clock.
    pub(crate) fn take(&self, count: usize, mut each: impl FnMut(MessageId)) -> Result<(), IdError> {
        let mut left = count;
        loop {
            {
                let mut state = self.state.lock();
                let wall_ms = self.read_clock(&mut state);
                while left > 0 {
                    let id = following(state.last, wall_ms, self.broker_id);
                    if id >= state.mark {
                        break;
                    }
                    state.last = id;
                    left -= 1;
                    each(MessageId(id));
                }
                if time_of(state.mark) - time_of(state.last) < RESERVED_AHEAD_MS / 2 {
                    self.low.store(true, Ordering::Relaxed);
                }
            }
            if left == 0 {
                return Ok(());
            }
            self.reserve()?;
        }
    }

    /// All ids given so far, here or by whoever's mark this store was raised to, are below this.
    pub fn high_mark(&self) -> MessageId {
        MessageId(self.state.lock().mark)
    }

    /// Makes durable that ids below `mark` may have been given elsewhere; costs nothing when that is known already.
    pub fn raise_to(&self, mark: MessageId) -> Result<(), IdError> {
        if mark.0 <= self.state.lock().mark {
            return Ok(());
        }
        let _turn = self.writing.lock();
        {
            let mut state = self.state.lock();
            if mark.0 <= state.mark {
                return Ok(());
            }
            state.last = state.last.max(mark.0 - 1);
        }
        self.persist(mark.0)
    }

    /// Takes notice of an id in a log: none up to it is given here.
    pub(crate) fn found(&self, id: MessageId) {
        let mut state = self.state.lock();
        if id.0 > state.last && id.0 <= FOUND_ID_MAX {
            state.last = id.0;
            self.low.store(true, Ordering::Relaxed);
        }
    }

    /// Whether the committer should call [`IdClock::reserve`].
    pub(crate) fn is_low(&self) -> bool {
        self.low.load(Ordering::Relaxed)
    }

    pub(crate) fn reserve(&self) -> Result<(), IdError> {
        let _turn = self.writing.lock();
        let mark = {
            let mut state = self.state.lock();
            let wall_ms = self.read_clock(&mut state);
            let first = following(state.last, wall_ms, self.broker_id);
            if time_of(state.mark) - time_of(first) >= RESERVED_AHEAD_MS / 2 {
                self.low.store(false, Ordering::Relaxed);
                return Ok(());
            }
            id_at(time_of(first) + RESERVED_AHEAD_MS, self.broker_id)
        };
        self.persist(mark)?;
        self.low.store(false, Ordering::Relaxed);
        Ok(())
    }

    /// At a clean stop: gives back what was reserved and not used.
    pub(crate) fn close(&self) -> Result<(), IdError> {
        let _turn = self.writing.lock();
        let last = self.state.lock().last;
        self.persist(last + 1)
    }

    /// Under `writing`: the file first, then the promise.
    fn persist(&self, mark: i64) -> Result<(), IdError> {
        let line = format!("{} {mark}", FORM.head());
        let content = format!("{line} {:08x}\n", crc32fast::hash(line.as_bytes()));
        replace_file(&*self.disk, &self.path, content.as_bytes()).map_err(|error| IdError {
            path: self.path.clone(),
            reason: error.to_string(),
            disk_full: is_disk_full(&error),
        })?;
        self.state.lock().mark = mark;
        Ok(())
    }

    /// The wall clock, and a line when it was set back: ids go on from the last one until it has caught up.
    fn read_clock(&self, state: &mut State) -> i64 {
        let now_ms = (self.now)();
        let back_ms = state.latest_ms.saturating_sub(now_ms);
        if back_ms >= STEP_WARNED_MS {
            // A clock that swings writes a line a minute; one that steps much further says so at once.
            let is_news = |(at, ms): (Instant, i64)| at.elapsed() >= STEP_WARNING_INTERVAL || back_ms >= 2 * ms;
            if state.warned.is_none_or(is_news) {
                tracing::warn!(back_ms, "the clock was set back; message ids go on from the last one given");
                state.warned = Some((Instant::now(), back_ms));
            }
            state.latest_ms = now_ms;
        } else {
            state.latest_ms = state.latest_ms.max(now_ms);
        }
        // Beyond what is left of the range the clock counts as standing still.
        now_ms.saturating_sub(EPOCH_MS).clamp(0, time_of(FOUND_ID_MAX))
    }
}

/// When an id of ours was given, in milliseconds since 1970. The original's, from a clock of their own, and wild ones tell
/// no time.
pub fn unix_ms(id: MessageId) -> Option<i64> {
    (id.0 > 0 && id.0 <= FOUND_ID_MAX).then(|| time_of(id.0) + EPOCH_MS)
}

fn time_of(id: i64) -> i64 {
    id >> TIME_SHIFT
}

fn broker_of(id: i64) -> i64 {
    id >> BROKER_SHIFT & 1023
}

fn id_at(time_ms: i64, broker_id: BrokerId) -> i64 {
    time_ms.min(i64::MAX >> TIME_SHIFT) << TIME_SHIFT | i64::from(broker_id.get()) << BROKER_SHIFT
}

/// The smallest id of this broker above `last` that is not behind the clock.
fn following(last: i64, wall_ms: i64, broker_id: BrokerId) -> i64 {
    let at_clock = id_at(wall_ms, broker_id);
    if at_clock > last {
        return at_clock;
    }
    // The clock stands still, is behind, or more ids than a millisecond holds were asked for.
    let next = last + 1;
    let same_broker = broker_of(next) == i64::from(broker_id.get());
    if same_broker && next & SEQUENCE_MAX != 0 { next } else { id_at(time_of(last) + 1, broker_id) }
}

fn read_mark(path: &Path, text: &str) -> Result<i64, OpenError> {
    let damaged = || FORM.damaged(path, format!("it is not a line '{} MARK CHECKSUM'", FORM.head()));
    let (line, checksum) = text.trim_end().rsplit_once(' ').ok_or_else(damaged)?;
    if format!("{:08x}", crc32fast::hash(line.as_bytes())) != checksum {
        return Err(damaged());
    }
    line.strip_prefix(&*FORM.head()).and_then(|mark| mark.strip_prefix(' ')?.parse().ok()).ok_or_else(damaged)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::OsDisk;
    use std::fs;
    use std::sync::atomic::AtomicI64;

    const NOW_MS: i64 = 1_800_000_000_000;

    struct Case {
        directory: tempfile::TempDir,
        clock: Arc<AtomicI64>,
    }

    impl Case {
        fn new() -> Case {
            Case { directory: tempfile::tempdir().unwrap(), clock: Arc::new(AtomicI64::new(NOW_MS)) }
        }

        fn open(&self, broker_id: i64) -> IdClock {
            let clock = self.clock.clone();
            let now: WallClock = Arc::new(move || clock.load(Ordering::SeqCst));
            let path = self.directory.path().join("ids");
            IdClock::open(path, BrokerId::new(broker_id).unwrap(), Arc::new(OsDisk), now).unwrap()
        }

        fn step(&self, ms: i64) {
            self.clock.fetch_add(ms, Ordering::SeqCst);
        }
    }

    #[test]
    fn an_id_is_clock_broker_and_sequence() {
        let case = Case::new();
        // The example of "3. Message ids": 2025-01-01T00:00:00Z, broker 7, sequence 3.
        case.clock.store(1_735_689_600_000, Ordering::SeqCst);
        let ids = case.open(7);
        let given: Vec<_> = (0..4).map(|_| ids.next().unwrap().0).collect();
        assert_eq!(given[3], 0x1922_3b29_0a40_7003);
        assert!(given.is_sorted_by(|a, b| a + 1 == *b));
    }

    /// F28: nothing fails and nothing repeats, whatever the clock does.
    #[test]
    fn ids_grow_when_the_clock_goes_back_and_when_a_millisecond_is_full() {
        let case = Case::new();
        let ids = case.open(7);
        let mut last = ids.next().unwrap();
        for step in [0, -10_000, -3_600_000, 1, 0] {
            case.step(step);
            ids.take(10_000, |id| {
                assert!(id > last && id.0 >> BROKER_SHIFT & 1023 == 7, "{id} after {last}");
                last = id;
            })
            .unwrap();
        }
    }

    /// The range ends in 2080: a clock that is set beyond that, for a moment or for good, must not use it up.
    #[test]
    fn a_clock_beyond_all_ids_uses_up_none() {
        let case = Case::new();
        let mut last = case.open(7).next().unwrap();
        for step in [2_500_000_000_000, i64::MAX / 4, -i64::MAX / 4, -2_500_000_000_000, 0] {
            case.step(step);
            let ids = case.open(7);
            for _ in 0..3 {
                ids.take(10_000, |id| {
                    assert!(id > last, "{id} after {last}, {step} ms on");
                    last = id;
                })
                .unwrap();
                ids.reserve().unwrap();
            }
        }
        assert!(time_of(last.0) < time_of(i64::MAX) - 30_000_000_000, "a year is left");
    }

    #[test]
    fn after_a_crash_ids_go_on_above_all_that_were_given() {
        let case = Case::new();
        let mut last = MessageId(0);
        for step in [0, 1, 600_000, -600_000, 29_999, 30_001, 60_001, -1_000_000_000] {
            let ids = case.open(7);
            for _ in 0..3 {
                let id = ids.next().unwrap();
                assert!(id > last && id < ids.high_mark(), "{id} after {last}");
                last = id;
                case.step(step);
            }
        }
    }

    #[test]
    fn a_clean_stop_gives_back_what_was_reserved() {
        let case = Case::new();
        let ids = case.open(7);
        let last = ids.next().unwrap();
        ids.close().unwrap();
        assert_eq!(case.open(7).next().unwrap().0, last.0 + 1);
    }

    #[test]
    fn data_of_another_broker_is_told_of_and_own_data_never() {
        let case = Case::new();
        let told = |ids: &IdClock| ids.told_of_other.load(Ordering::Relaxed);
        for stop in [IdClock::reserve, IdClock::close] {
            let ids = case.open(7);
            assert!(!told(&ids), "a new directory, or its own");
            // The last id before a stop may be the last of its millisecond.
            ids.take(SEQUENCE_MAX as usize + 1, |_| {}).unwrap();
            stop(&ids).unwrap();
            assert!(!told(&case.open(7)));
            assert!(told(&case.open(9)));
        }
        let logs = Case::new();
        let ids = logs.open(7);
        ids.found_at_start(MessageId(id_at(5, BrokerId::new(7).unwrap())));
        ids.found_at_start(MessageId(i64::MAX));
        assert!(!told(&ids));
        // As a Java broker gives them: the example of "3. Message ids".
        ids.found_at_start(MessageId(-5_468_931_796_009_734_144));
        assert!(told(&ids));
    }

    #[test]
    fn a_mark_from_elsewhere_is_kept() {
        let case = Case::new();
        let master = case.open(7);
        let given = master.next().unwrap();
        let other = Case::new();
        other.step(-3_600_000);
        let slave = other.open(7);
        slave.raise_to(master.high_mark()).unwrap();
        slave.raise_to(MessageId(5)).unwrap();
        assert_eq!(slave.high_mark(), master.high_mark());
        drop(slave);
        let promoted = other.open(7).next().unwrap();
        assert!(promoted > given && promoted >= master.high_mark());
    }

    #[test]
    fn ids_in_logs_count_unless_they_are_wild() {
        let case = Case::new();
        let ids = case.open(7);
        let found = MessageId(id_at(NOW_MS - EPOCH_MS + 90_000, BrokerId::new(3).unwrap()));
        ids.found(found);
        ids.found(MessageId(i64::MAX));
        ids.found(MessageId(-1));
        let next = ids.next().unwrap();
        assert!(next > found && time_of(next.0) == time_of(found.0) + 1, "{next} after {found}");
        assert!(ids.high_mark() > next);
    }

    #[test]
    fn a_damaged_mark_is_no_reason_to_start_over() {
        let case = Case::new();
        case.open(7).reserve().unwrap();
        let path = case.directory.path().join("ids");
        let mut bytes = fs::read(&path).unwrap();
        bytes[14] ^= 1;
        fs::write(&path, bytes).unwrap();
        let now: WallClock = Arc::new(|| NOW_MS);
        let opened = IdClock::open(path, BrokerId::new(7).unwrap(), Arc::new(OsDisk), now);
        assert!(matches!(opened, Err(OpenError::Damaged { .. })));
    }
}
