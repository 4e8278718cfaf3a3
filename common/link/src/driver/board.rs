use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use metaq_types::{Offset, PartitionId};
use metaq_wire::Greeting;
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};

use super::LinkOptions;
use super::hearing::Hearing;
use crate::lag::{LagClock, LogEnd};
use crate::members::{self, KnownMember};
use crate::pace::Backlog;
use crate::progress::{LinkState, LinkStatus, PartitionStatus};
use crate::promotion::{Known, Record};
use crate::pull::Pull;
use crate::rate::Rate;

/// Of a partition that the master does not list.
const GONE: &str = "not copied: the master does not have it now, or does not serve it";

/// How long a greeting waits for the record to be written.
const SAVE_PATIENCE: Duration = Duration::from_secs(2);

/// Where tasks put down what they see and others read it.
pub(super) struct Board {
    slave_id: u32,
    state: Mutex<LinkState>,
    heard_unix_ms: AtomicU64,
    /// In this run.
    heard_at: Mutex<Option<Instant>>,
    hearing: Mutex<Hearing>,
    cells: Mutex<BTreeMap<PartitionId, Arc<Cell>>>,
    /// Something in the record other than a time has changed since it was last written.
    changed: AtomicBool,
    /// Bytes stored since the start.
    copied_bytes: AtomicU64,
    rate: Mutex<Rate>,
    /// The master's configuration as last fetched; fetched only while somebody listens.
    pub(super) config: watch::Sender<Option<Bytes>>,
    /// It is to be fetched although the master has not told of a change.
    pub(super) config_asked: AtomicBool,
    quorum: Mutex<Quorum>,
    /// The list of members that is on disk.
    saved_roll: watch::Sender<u64>,
    /// Told when the record cannot wait for its time.
    pub(super) save: Notify,
    /// How often writing the record has begun, and the number of the last that was done.
    saves: AtomicU64,
    saved: watch::Sender<u64>,
    /// What earlier runs knew, for partitions and a master this run has not seen yet.
    before: Record,
}

pub(super) struct Cell(Mutex<Seen>);

struct Seen {
    since: Instant,
    own_end: Offset,
    master_end: Option<Offset>,
    /// The master's end when it was last counted what came.
    counted_end: Option<Offset>,
    clock: LagClock,
    seen_unix_ms: u64,
    note: Option<String>,
    /// It is not copied, and what it lacks does not come.
    stopped: bool,
    /// What the master last said of its quorum; `None`: nothing yet in this run.
    confirmed: Option<Option<Offset>>,
    /// The record on disk says that a quorum is asked for.
    limit_is_kept: bool,
    /// The master does not list the partition: what it had is only for the record.
    is_gone: bool,
}

impl Cell {
    fn new(limit_is_kept: bool) -> Cell {
        Cell(Mutex::new(Seen {
            since: Instant::now(),
            own_end: Offset::ZERO,
            master_end: None,
            counted_end: None,
            clock: LagClock::default(),
            seen_unix_ms: 0,
            note: None,
            stopped: false,
            confirmed: None,
            limit_is_kept,
            is_gone: false,
        }))
    }
}

impl Seen {
    /// The end up to which it is copied.
    fn wanted_end(&self) -> Option<Offset> {
        self.master_end.filter(|_| !self.is_gone)
    }

    /// What the machine of the partition knows; whether it is news.
    fn take_over(&mut self, pull: &Pull) -> bool {
        let note = pull.note();
        let is_news = self.master_end != pull.master_end() || self.note != note;
        self.is_gone = false;
        self.own_end = pull.position();
        self.master_end = pull.master_end();
        self.note = note;
        self.stopped = pull.stopped().is_some();
        is_news
    }

    fn observe(&mut self) {
        if let Some(end) = self.master_end {
            // How many messages these bytes are, only the master knows.
            self.clock.observe(self.own_end, LogEnd { end, records: 0 }, Instant::now());
        }
    }

    fn behind(&self) -> Duration {
        if self.lacks() { self.clock.behind(self.since, Instant::now()) } else { Duration::ZERO }
    }

    fn lacks(&self) -> bool {
        self.wanted_end().is_some_and(|end| end > self.own_end)
    }

    fn status(&self, partition: &PartitionId) -> PartitionStatus {
        PartitionStatus {
            partition: partition.clone(),
            own_end: self.own_end,
            master_end: self.wanted_end(),
            behind_ms: u64::try_from(self.behind().as_millis()).unwrap_or(u64::MAX),
            never_level: self.lacks() && !self.clock.is_known(),
            note: if self.is_gone { Some(GONE.to_owned()) } else { self.note.clone() },
        }
    }
}

/// Who stands behind the master's acknowledgements, as it says.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Quorum {
    members: Vec<KnownMember>,
    /// As [`Record::quorum`].
    smallest: u32,
    /// The number of the list of members.
    roll: u64,
}

impl Cell {
    /// What the master last said of its quorum, if anything.
    pub(super) fn confirmed(&self) -> Option<Option<Offset>> {
        self.0.lock().confirmed
    }
}

impl Board {
    pub(super) fn new(options: &LinkOptions) -> Board {
        let before = Record::load(&options.data_path).unwrap_or_else(|error| {
            tracing::warn!(%error, "the record of replication cannot be read and is begun anew");
            None
        });
        let before = before.unwrap_or_default();
        Board {
            slave_id: options.slave_id.get(),
            state: Mutex::new(LinkState::NoMaster),
            heard_unix_ms: AtomicU64::new(before.heard_unix_ms),
            heard_at: Mutex::new(None),
            hearing: Mutex::default(),
            cells: Mutex::default(),
            changed: AtomicBool::new(false),
            copied_bytes: AtomicU64::new(0),
            rate: Mutex::default(),
            config: watch::Sender::new(None),
            config_asked: AtomicBool::new(false),
            saved_roll: watch::Sender::new(before.roll),
            save: Notify::new(),
            saves: AtomicU64::new(0),
            saved: watch::Sender::new(0),
            quorum: Mutex::new(Quorum { members: before.members.clone(), smallest: before.quorum, roll: before.roll }),
            before,
        }
    }

    /// What the master's greeting says of its quorum. Returns when the members it names are on disk, or cannot be put
    /// there in time.
    pub(super) async fn see_quorum(&self, greeting: &Greeting) {
        let roll = greeting.roll.unwrap_or(0);
        let members = members::parse_members(&greeting.members);
        let quorum = Quorum { members, smallest: greeting.quorum.unwrap_or(1), roll };
        {
            let mut known = self.quorum.lock();
            if *known == quorum {
                return;
            }
            *known = quorum;
        }
        self.changed.store(true, Ordering::Relaxed);
        self.save.notify_one();
        let mut saved = self.saved_roll.subscribe();
        let _ = tokio::time::timeout(SAVE_PATIENCE, saved.wait_for(|saved| *saved == roll)).await;
    }

    /// The number of the list of members that is on disk.
    pub(super) fn saved_roll(&self) -> u64 {
        *self.saved_roll.borrow()
    }

    /// To be called before [`Board::record`]; answers the number of the save.
    pub(super) fn begin_save(&self) -> u64 {
        self.saves.fetch_add(1, Ordering::SeqCst) + 1
    }

    /// A record with this list of members is on disk.
    pub(super) fn on_saved(&self, save: u64, roll: u64) {
        self.saved_roll.send_replace(roll);
        self.saved.send_replace(save);
    }

    /// What the master last said to be acknowledged, in this run or an earlier one, if it asked a quorum for it.
    pub(super) fn acknowledged(&self, partition: &PartitionId) -> Option<Offset> {
        let told = self.cells.lock().get(partition).and_then(|cell| cell.confirmed());
        let before = || self.before.partitions.get(&partition.to_string()).and_then(|known| known.confirmed);
        told.unwrap_or_else(|| before().and_then(Offset::new))
    }

    /// Returns when the record on disk says of a partition that a quorum is asked for, where one is, or cannot be written
    /// in time. To be awaited before anything is appended that it may not hold: after a crash nobody is then shown more
    /// than it held, and a tail that the master has lost is known for one.
    pub(super) async fn keep_limit(&self, cell: &Cell) {
        let is_due = || matches!(*cell.0.lock(), Seen { confirmed: Some(Some(_)), limit_is_kept: false, .. });
        if !is_due() {
            return;
        }
        // One that runs already may have looked before the master said so.
        let next = self.saves.load(Ordering::SeqCst) + 1;
        self.changed.store(true, Ordering::SeqCst);
        self.save.notify_one();
        let mut saved = self.saved.subscribe();
        if let Ok(Ok(_)) = tokio::time::timeout(SAVE_PATIENCE, saved.wait_for(|saved| *saved >= next)).await {
            cell.0.lock().limit_is_kept = true;
        }
    }

    /// An answer said what the quorum holds of a partition, or that none is asked for.
    pub(super) fn see_confirmed(&self, cell: &Cell, confirmed: Option<Offset>) {
        let mut seen = cell.0.lock();
        if seen.confirmed != Some(confirmed) {
            seen.confirmed = Some(confirmed);
            seen.limit_is_kept &= confirmed.is_some();
            self.changed.store(true, Ordering::Relaxed);
        }
    }

    pub(super) fn without_master(&self) {
        *self.state.lock() = LinkState::NoMaster;
    }

    pub(super) fn connecting(&self, uri: &str) {
        let mut state = self.state.lock();
        // An attempt after a failed one is not news: what failed stays readable.
        if !matches!(&*state, LinkState::Lost { master, .. } if master == uri) {
            *state = LinkState::Connecting { master: uri.to_owned() };
        }
    }

    pub(super) fn following(&self, uri: &str) {
        self.hearing.lock().begin(Instant::now());
        *self.state.lock() = LinkState::Following { master: uri.to_owned() };
        self.changed.store(true, Ordering::Relaxed);
    }

    pub(super) fn lost(&self, reason: &str) {
        let mut state = self.state.lock();
        if let LinkState::Connecting { master } | LinkState::Following { master } | LinkState::Lost { master, .. } =
            &*state
        {
            *state = LinkState::Lost { master: master.clone(), reason: reason.to_owned() };
        }
    }

    /// The connection of a followed master has ended. Whether it was silent before that for longer than usual.
    pub(super) fn ended(&self) -> bool {
        let mut hearing = self.hearing.lock();
        hearing.end(Instant::now());
        hearing.unheard(Instant::now()).is_some_and(|unheard| !unheard.is_zero())
    }

    /// The process of the master whose connection has ended is gone.
    pub(super) fn gone(&self) {
        self.hearing.lock().bury();
    }

    /// Somebody took a connection at the master's address, and this slave does not follow.
    pub(super) fn met(&self) {
        self.hearing.lock().meet(Instant::now());
    }

    /// The master has answered what was asked at `asked`.
    pub(super) fn heard(&self, asked: Instant) {
        let told = self.hearing.lock().hear(asked, Instant::now());
        let age_ms = u64::try_from(told.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.heard_unix_ms.store(unix_ms().saturating_sub(age_ms), Ordering::Relaxed);
        *self.heard_at.lock() = Some(told);
    }

    /// Takes over what the machine of a partition knows; `heard` when it follows from an answer of the master.
    pub(super) fn update(&self, cell: &Cell, pull: &Pull, heard: bool) {
        let mut seen = cell.0.lock();
        if seen.take_over(pull) {
            self.changed.store(true, Ordering::Relaxed);
        }
        if heard {
            seen.seen_unix_ms = unix_ms();
        }
        seen.observe();
    }

    /// The master has none but these partitions. One that it lists again is looked at again.
    pub(super) fn see_partitions(&self, has: impl Fn(&PartitionId) -> bool) {
        for (_, cell) in self.cells.lock().iter().filter(|(partition, _)| !has(partition)) {
            cell.0.lock().is_gone = true;
        }
    }

    /// The master has answered a get that waited for more than is known here: until now it had no more.
    pub(super) fn level_until_now(&self, cell: &Cell) {
        cell.0.lock().observe();
    }

    /// Whether this slave has lacked something of the partition for longer than `bound`, or ever since it began.
    pub(super) fn is_late(&self, cell: &Cell, bound: Duration) -> bool {
        let seen = cell.0.lock();
        seen.lacks() && (!seen.clock.is_known() || seen.behind() > bound)
    }

    /// What is missing in all, and what came in the master's partitions since this was last asked.
    pub(super) fn backlog(&self) -> Backlog {
        backlog_of(self.cells.lock().values().map(|cell| &**cell))
    }

    pub(super) fn copied(&self, bytes: u64) {
        self.copied_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// To be called about once a second.
    pub(super) fn sample_rate(&self) {
        self.rate.lock().sample(self.copied_bytes.load(Ordering::Relaxed), Instant::now());
    }

    /// Whether the record has news; asking takes them.
    pub(super) fn take_changed(&self) -> bool {
        self.changed.swap(false, Ordering::Relaxed)
    }

    pub(super) fn heard_unix_ms(&self) -> u64 {
        self.heard_unix_ms.load(Ordering::Relaxed)
    }

    fn heard_age_ms(&self) -> Option<u64> {
        let in_this_run = self.heard_at.lock().map(|at| u64::try_from(at.elapsed().as_millis()).unwrap_or(u64::MAX));
        let before = Some(self.heard_unix_ms()).filter(|heard| *heard > 0);
        in_this_run.or_else(|| before.map(|heard| unix_ms().saturating_sub(heard)))
    }

    /// Behind a master that was not followed in this run everything since it was last heard.
    fn unheard_ms(&self) -> Option<u64> {
        let in_this_run = self.hearing.lock().unheard(Instant::now());
        in_this_run
            .map(|unheard| u64::try_from(unheard.as_millis()).unwrap_or(u64::MAX))
            .or_else(|| self.heard_age_ms())
    }

    pub(super) fn is_following(&self) -> bool {
        matches!(&*self.state.lock(), LinkState::Following { .. })
    }

    pub(super) fn cell(&self, partition: &PartitionId) -> Arc<Cell> {
        let new = || {
            let before = self.before.partitions.get(&partition.to_string());
            Arc::new(Cell::new(before.is_some_and(|known| known.confirmed.is_some())))
        };
        Arc::clone(self.cells.lock().entry(partition.clone()).or_insert_with(new))
    }

    pub(super) fn status(&self) -> LinkStatus {
        let status_of = |(partition, cell): (&PartitionId, &Arc<Cell>)| cell.0.lock().status(partition);
        LinkStatus {
            state: self.state.lock().clone(),
            heard_unix_ms: self.heard_unix_ms.load(Ordering::Relaxed),
            heard_age_ms: self.heard_age_ms(),
            unheard_ms: self.unheard_ms(),
            copied_bytes: self.copied_bytes.load(Ordering::Relaxed),
            bytes_per_second: self.rate.lock().bytes_per_second(),
            partitions: self.cells.lock().iter().map(status_of).collect(),
        }
    }

    /// The record as of now: this run's knowledge over that of earlier ones.
    pub(super) fn record(&self) -> Record {
        let master = match &*self.state.lock() {
            LinkState::Following { master } | LinkState::Lost { master, .. } => master.clone(),
            LinkState::NoMaster | LinkState::Connecting { .. } => self.before.master.clone(),
        };
        let Quorum { members, smallest, roll } = self.quorum.lock().clone();
        let mut record = Record {
            quorum: smallest,
            members,
            roll,
            slave_id: self.slave_id,
            master,
            heard_unix_ms: self.heard_unix_ms.load(Ordering::Relaxed),
            partitions: self.before.partitions.clone(),
        };
        for (partition, cell) in &*self.cells.lock() {
            let seen = cell.0.lock();
            if let Some(end) = seen.master_end {
                let name = partition.to_string();
                let before = self.before.partitions.get(&name).and_then(|known| known.confirmed);
                let confirmed = seen.confirmed.map_or(before, |told| told.map(Offset::get));
                let (seen_unix_ms, stopped) = (seen.seen_unix_ms, seen.note.clone());
                record.partitions.insert(name, Known { end: end.get(), seen_unix_ms, confirmed, stopped });
            }
        }
        record
    }
}

fn unix_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}

fn backlog_of<'a>(cells: impl Iterator<Item = &'a Cell>) -> Backlog {
    let mut backlog = Backlog { left_bytes: 0, came_bytes: 0 };
    for cell in cells {
        let mut seen = cell.0.lock();
        let Some(end) = seen.wanted_end().filter(|_| !seen.stopped) else { continue };
        backlog.left_bytes += end.bytes_since(seen.own_end.min(end));
        // Of one that is new here nobody knows since when.
        backlog.came_bytes += seen.counted_end.replace(end).map_or(0, |before| end.bytes_since(before.min(end)));
    }
    backlog
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pull::{Log, Stop};

    #[test]
    fn what_is_not_copied_is_no_backlog() {
        let at = |offset| Offset::new(offset).unwrap();
        let cells = [Cell::new(false), Cell::new(false)];
        let mut backlogs = Vec::new();
        for end in [1000, 1010] {
            for (cell, stops) in std::iter::zip(&cells, [false, true]) {
                let mut pull = Pull::new(Log::Present { first: at(0), end: at(100) });
                pull.on_listing(at(0), at(end));
                if stops {
                    pull.hold(Stop::Diverged { own_end: at(100), master_end: at(50) }, Some(at(end)));
                }
                cell.0.lock().take_over(&pull);
            }
            backlogs.push(backlog_of(cells.iter()));
        }
        let expected = [(900, 0), (910, 10)].map(|(left_bytes, came_bytes)| Backlog { left_bytes, came_bytes });
        assert_eq!(backlogs, expected);
    }
}
