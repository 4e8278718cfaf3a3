use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use metaq_client::{ClientError, GetAnswer};
use metaq_store::{AppendError, CreateError, Partition, Reader, Refusal};
use metaq_types::limits::{LONG_POLL_MAX, TRANSFER_BYTES_MIN};
use metaq_types::{Offset, PartitionId};
use metaq_wire::ValueExtra;
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use super::LinkOptions;
use super::append;
use super::board::{Board, Cell};
use super::compare;
use super::lane::{Lane, Question};
use super::transport::Way;
use crate::listing::Listed;
use crate::pace::Pace;
use crate::pull::{Answer, Log, NextGet, Pull, Step};

/// What a get asks for when its bytes are known to wait.
const FETCH_BYTES: u32 = 1024 * 1024;

/// Bytes that gets with waiting bytes may have in flight, until they are appended.
const WAITING_BYTES_MAX: u32 = 64 * 1024 * 1024;

/// Bytes that all listening gets together ask for: their master may answer all of them in one instant.
const LISTENING_BYTES_MAX: u32 = 32 * 1024 * 1024;

/// A listening get asks for no less, however many there are: a small message should come with the first answer.
const LISTENING_BYTES_MIN: u32 = 2 * 1024;

/// Listening gets that end with nothing, in a second: many partitions wait longer each, so that idle ones cost little.
/// What comes is answered at once however long the wait.
const IDLE_GETS_PER_SECOND_MAX: u32 = 1000;

/// A get that is not answered for this long beyond its wait is given up; the keep-alive decides about the connection.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

const JOURNAL_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Partition bytes that wait longer for the journal than this are worth a line.
const JOURNAL_PATIENCE: Duration = Duration::from_secs(10);

const BUDGET_UNIT_BYTES: u32 = 1024;

/// Bounds the memory of a link.
pub(super) struct Budget {
    waiting: Arc<Semaphore>,
    listeners: AtomicUsize,
    /// Of partitions that catch up.
    pace: Mutex<Pace>,
}

impl Budget {
    pub(super) fn new(catch_up_bytes_per_second: u64) -> Budget {
        let units = (WAITING_BYTES_MAX / BUDGET_UNIT_BYTES) as usize;
        let pace = Mutex::new(Pace::new(catch_up_bytes_per_second));
        Budget { waiting: Arc::new(Semaphore::new(units)), listeners: AtomicUsize::new(1), pace }
    }

    pub(super) fn set_listeners(&self, listeners: usize) {
        self.listeners.store(listeners.max(1), Ordering::Relaxed);
    }

    fn listening_bytes(&self) -> u32 {
        let listeners = u32::try_from(self.listeners.load(Ordering::Relaxed)).unwrap_or(u32::MAX);
        (LISTENING_BYTES_MAX / listeners).clamp(LISTENING_BYTES_MIN, FETCH_BYTES)
    }

    fn listening_wait(&self, delay_max: Duration) -> Duration {
        let listeners = u32::try_from(self.listeners.load(Ordering::Relaxed)).unwrap_or(u32::MAX);
        delay_max.max(Duration::from_secs(1) * listeners / IDLE_GETS_PER_SECOND_MAX).min(LONG_POLL_MAX)
    }

    /// Waits until `bytes` may be asked for. Cancel-safe.
    async fn take(&self, bytes: u32) -> OwnedSemaphorePermit {
        Arc::clone(&self.waiting).acquire_many_owned(units(bytes)).await.expect("the budget is never closed")
    }

    /// `None` when others need what is left: who holds bytes must not wait for room for more.
    fn try_take(&self, bytes: u32) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.waiting).try_acquire_many_owned(units(bytes)).ok()
    }
}

fn units(bytes: u32) -> u32 {
    bytes.min(WAITING_BYTES_MAX).div_ceil(BUDGET_UNIT_BYTES)
}

/// One partition being followed over one connection.
pub(super) struct Follow {
    pub(super) options: Arc<LinkOptions>,
    pub(super) board: Arc<Board>,
    pub(super) cell: Arc<Cell>,
    pub(super) way: Way,
    pub(super) budget: Arc<Budget>,
    pub(super) stop: CancellationToken,
    pub(super) partition: PartitionId,
    /// The first offset that the master listed.
    pub(super) first: Offset,
    /// The end that it listed.
    pub(super) end: Offset,
    /// The master remembers no reigns, as the original: see [`super::compare`].
    pub(super) compares: bool,
    /// The master heeds what a get says of what is held: see [`Follow::ask_ahead`].
    pub(super) reads_ahead: bool,
}

/// What a get came to, with the room in the budget that its bytes take until they are appended.
type Answered = (Answer, Option<OwnedSemaphorePermit>);

/// Follows until told to stop, until the partition stops by itself, or until the connection is gone. Never abandons an
/// append: its outcome is waited for.
pub(super) async fn run(follow: Follow) {
    let mut log = follow.local();
    let mut pull = Pull::new(match &log {
        None => Log::Absent { from: Offset::ZERO },
        Some(log) => Log::Present { first: log.positions().kept, end: log.positions().written },
    });
    follow.set_gaps(&mut pull, log.as_deref());
    if follow.compares {
        pull.set_unflushed();
    }
    pull.on_listing(follow.first, follow.end);
    follow.board.update(&follow.cell, &pull, true);
    let mut lane = Lane::of(&follow.way);
    let mut ahead: Option<(Offset, Answered)> = None;
    while let Some(get) = pull.next_get() {
        let answered = match ahead.take().filter(|(offset, _)| *offset == get.offset) {
            Some((_, answered)) => Some(answered),
            None => follow.ask_until_stopped(&mut lane, get).await,
        };
        // The permit is held until the bytes are appended.
        let Some((answer, permit)) = answered else { return };
        if !get.waiting {
            follow.board.level_until_now(&follow.cell);
        }
        if let Answer::Value { extra: Some(ValueExtra { journal: Some(bound), .. }), .. } = &answer
            && !follow.journal_reached(*bound).await
        {
            return;
        }
        follow.limit(log.as_deref());
        follow.board.keep_limit(&follow.cell).await;
        let step = pull.on_answer(answer, follow.options.delay_max);
        follow.board.update(&follow.cell, &pull, true);
        let before = pull.position();
        let pause = match follow.ahead_of(&pull, &step) {
            None => follow.take(step, &mut pull, &mut log).await,
            Some((get, room)) => {
                let asked = follow.ask_ahead(&mut lane, get, before, room);
                let (pause, answered) = tokio::join!(follow.take(step, &mut pull, &mut log), asked);
                ahead = answered.map(|answered| (get.offset, answered));
                pause
            }
        };
        follow.board.update(&follow.cell, &pull, false);
        drop(permit);
        let pause = pause.or_else(|| follow.pace(pull.position().bytes_since(before)));
        if let Some(pause) = pause {
            follow.pause(pause).await;
        }
    }
    if let Some(stop) = pull.stopped() {
        warn!(partition = %follow.partition, "the partition is no longer copied: {stop}");
    }
}

/// Why something was not stored.
enum Failure {
    /// Nothing was changed, and it may go well in a moment.
    Passing(String),
    Lasting(String),
}

impl From<AppendError> for Failure {
    fn from(error: AppendError) -> Failure {
        let text = error.to_string();
        match error {
            AppendError::Refused(Refusal::DiskFull(_) | Refusal::Unavailable(_) | Refusal::Overloaded { .. }) => {
                Failure::Passing(text)
            }
            AppendError::Refused(_) | AppendError::Unknown(_) | AppendError::Unconfirmed | AppendError::Dropped => {
                Failure::Lasting(text)
            }
        }
    }
}

impl Follow {
    fn local(&self) -> Option<Arc<Partition>> {
        if self.partition.is_journal() {
            return self.options.store.journal();
        }
        let number = i32::try_from(self.partition.number).ok()?;
        self.options.store.get(&self.partition.topic, number)
    }

    /// Gaps are worth telling, but for the journal's: its master cuts only what nobody needs any more.
    fn set_gaps(&self, pull: &mut Pull, log: Option<&Partition>) {
        let log = log.filter(|_| !self.partition.is_journal());
        pull.set_gaps(log.map(Partition::gaps).unwrap_or_default());
    }

    /// Waits until this slave's transaction journal is durable up to `bound`: without the decision no batch may be here,
    /// or a promotion could neither finish it nor know that it is one. `false` when told to stop.
    async fn journal_reached(&self, bound: Offset) -> bool {
        let begun = Instant::now();
        let mut said = false;
        loop {
            // Asked for anew each time: stepping over a gap replaces it.
            let Some(journal) = self.options.store.journal() else { return true };
            let Some(before) = bound.get().checked_sub(1).and_then(Offset::new) else { return true };
            tokio::select! {
                () = journal.readable_beyond(before, Reader::Replica) => {}
                () = tokio::time::sleep(JOURNAL_CHECK_INTERVAL) => {}
                () = self.stop.cancelled() => return false,
            }
            if journal.positions().durable >= bound {
                return true;
            }
            if begun.elapsed() >= JOURNAL_PATIENCE && !std::mem::replace(&mut said, true) {
                warn!(partition = %self.partition, %bound, "waiting for the transaction journal, which is not copied that far");
            }
        }
    }

    /// Does one step; answers how long to wait before the next get.
    async fn take(&self, step: Step, pull: &mut Pull, log: &mut Option<Arc<Partition>>) -> Option<Duration> {
        let done = match step {
            Step::Get | Step::Stop => return None,
            Step::Pause(pause) => return Some(pause),
            Step::Create { first } => self.create(first).await.map(|created| {
                *log = Some(created);
                pull.on_created(first);
            }),
            Step::Compare { master_end } => match self.compare(log.as_ref(), master_end).await {
                Ok(is_prefix) => match pull.on_compared(is_prefix, master_end, self.options.delay_max) {
                    Step::Pause(pause) => return Some(pause),
                    _ => return None,
                },
                Err(failure) => Err(failure),
            },
            Step::StepOver { to } => self.step_over(to).await.map(|stepped| {
                *log = Some(stepped);
                pull.on_stepped_over(to);
                self.set_gaps(pull, log.as_deref());
            }),
            Step::Append { at, segment, bytes } => match self.segment(at, segment).await {
                None => return Some(self.options.delay_max),
                Some(segment) => self.append(log, at, segment, bytes).await.map(|end| pull.on_appended(end)),
            },
        };
        match done {
            Ok(()) => None,
            Err(Failure::Passing(reason)) => match pull.on_local_trouble(reason) {
                Step::Pause(pause) => Some(pause),
                _ => None,
            },
            Err(Failure::Lasting(reason)) => {
                pull.on_local_failure(reason);
                None
            }
        }
    }

    /// Whether the master holds the own log, although it says that it ends at `master_end`, before ours.
    async fn compare(&self, log: Option<&Arc<Partition>>, master_end: Offset) -> Result<bool, Failure> {
        let Some(log) = log else { return Ok(true) };
        let listed = Listed { partition: self.partition.clone(), first: self.first, end: master_end };
        compare::is_prefix(&self.options, &self.way.client, log, &listed).await.map_err(Failure::Passing)
    }

    /// Lets consumers read what the master's quorum holds and no more; what they could read once stays readable.
    fn limit(&self, log: Option<&Partition>) {
        let (Some(log), Some(told)) = (log, self.cell.confirmed()) else { return };
        let before = log.confirmed();
        let to = match told {
            None => Offset::MAX,
            Some(to) if before == Offset::MAX => to.max(log.positions().durable),
            Some(to) => to.max(before),
        };
        if to != before {
            log.limit(to);
        }
    }

    /// Counts bytes that came; how long to leave room for others, where this slave is far behind and is to.
    fn pace(&self, bytes: u64) -> Option<Duration> {
        if bytes == 0 {
            return None;
        }
        let late = self.options.catch_up_bytes_per_second > 0 && self.board.is_late(&self.cell, self.options.delay_max);
        late.then(|| self.budget.pace.lock().take(bytes, std::time::Instant::now())).filter(|pause| !pause.is_zero())
    }

    /// Ends early when told to stop.
    async fn pause(&self, pause: Duration) {
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = self.stop.cancelled() => {}
        }
    }

    /// As [`Follow::ask`], and `None` when told to stop as well.
    async fn ask_until_stopped(&self, lane: &mut Lane, get: NextGet) -> Option<Answered> {
        tokio::select! {
            // An answer that came before the connection ended is used.
            biased;
            answered = self.ask(lane, get) => answered,
            () = self.stop.cancelled() => None,
        }
    }

    /// Sends one get; `None` when the connection is gone. Cancelling it abandons only the answer.
    async fn ask(&self, lane: &mut Lane, get: NextGet) -> Option<Answered> {
        let (bytes, permit, wait) = if get.waiting {
            let bytes = FETCH_BYTES.max(get.bytes_min);
            (bytes, Some(self.budget.take(bytes).await), None)
        } else {
            let bytes = self.budget.listening_bytes().max(get.bytes_min).max(TRANSFER_BYTES_MIN);
            (bytes, None, Some(self.budget.listening_wait(self.options.delay_max)))
        };
        let answer = self.get(lane, get.offset, None, bytes, wait).await?;
        Some((answer, permit))
    }

    /// The get behind what is about to be appended, where far more waits and there is room for it.
    fn ahead_of(&self, pull: &Pull, step: &Step) -> Option<(NextGet, OwnedSemaphorePermit)> {
        let Step::Append { at, bytes, .. } = step else { return None };
        // Who is to be slow gains nothing; who is nearly level confirms sooner without.
        let offset = *at + bytes.len() as u64;
        let far = pull.master_end().is_some_and(|end| end >= offset + u64::from(FETCH_BYTES));
        if !self.reads_ahead || !far || self.options.catch_up_bytes_per_second > 0 {
            return None;
        }
        let room = self.budget.try_take(FETCH_BYTES)?;
        Some((NextGet { offset, waiting: true, bytes_min: 0 }, room))
    }

    /// Fetches what comes next while what was fetched is being stored, so that link and disk work side by side. Says to the
    /// master that only what lies before `held` is stored.
    async fn ask_ahead(
        &self,
        lane: &mut Lane,
        get: NextGet,
        held: Offset,
        room: OwnedSemaphorePermit,
    ) -> Option<Answered> {
        let answer = tokio::select! {
            biased;
            answer = self.get(lane, get.offset, Some(held), FETCH_BYTES, None) => answer?,
            () = self.stop.cancelled() => return None,
        };
        Some((answer, Some(room)))
    }

    async fn get(
        &self,
        lane: &mut Lane,
        offset: Offset,
        held: Option<Offset>,
        bytes: u32,
        wait: Option<Duration>,
    ) -> Option<Answer> {
        let max_bytes = i32::try_from(bytes).unwrap_or(i32::MAX);
        let asked = Instant::now();
        let (partition, group, offset) = (&self.partition, self.options.group.as_str(), offset.wire());
        let question = Question { partition, group, offset, max_bytes, wait, held };
        let answered = tokio::time::timeout(wait.unwrap_or_default() + ANSWER_TIMEOUT, lane.get(&question)).await;
        // Anything but most of the wait: a master that does not know `wait=`, or has too many waiting.
        let early = || wait.is_none_or(|wait| asked.elapsed() < wait.mul_f32(0.8));
        Some(match answered {
            Ok(Ok(GetAnswer::Value { body, extra })) => {
                self.board.see_confirmed(&self.cell, extra.and_then(|extra| extra.confirmed));
                Answer::Value { body, extra }
            }
            Ok(Ok(GetAnswer::NotYet { confirmed })) => {
                self.board.see_confirmed(&self.cell, confirmed);
                Answer::Nothing { early: early() }
            }
            Ok(Ok(GetAnswer::NoPartition)) => Answer::NoPartition { early: early() },
            Ok(Ok(GetAnswer::Moved(to))) => Answer::Moved(to),
            Ok(Err(ClientError::Answer { code, text })) => Answer::Refused(format!("{code} {text}")),
            Ok(Err(ClientError::Timeout { .. })) | Err(_) => Answer::Refused("nothing in time".to_owned()),
            Ok(Err(error)) if lane.outlives_an_error() => Answer::Refused(error.to_string()),
            Ok(Err(_)) => return None,
        })
    }

    /// The start of the master's segment that holds `at`; a master that does not say it in the answer is asked
    /// (`offset` with an offset inside the log answers with it). `None` when it cannot be known now.
    async fn segment(&self, at: Offset, told: Option<Offset>) -> Option<Offset> {
        if told.is_some() {
            return told;
        }
        let number = i32::try_from(self.partition.number).ok()?;
        let (topic, group) = (&self.partition.topic, &self.options.group);
        let question = self.way.client.offset(topic, group, number, at.wire());
        match tokio::time::timeout(ANSWER_TIMEOUT, question).await {
            Ok(Ok(Some(segment))) if segment <= at => Some(segment),
            _ => None,
        }
    }

    async fn create(&self, first: Offset) -> Result<Arc<Partition>, Failure> {
        let (options, id) = (Arc::clone(&self.options), self.partition.clone());
        let created = tokio::task::spawn_blocking(move || {
            let rules = (options.rules)(&id);
            options.store.get_or_create(&id, &rules, first).map_err(|error| match error {
                CreateError::Io { .. } => Failure::Passing(error.to_string()),
                CreateError::Closing | CreateError::Failed { .. } => Failure::Lasting(error.to_string()),
            })
        });
        let log = match created.await {
            Ok(created) => created?,
            Err(error) => std::panic::resume_unwind(error.into_panic()),
        };
        let written = log.positions().written;
        if written != first {
            let there = format!("a log that ends at {written} is there already, where a new one at {first} was due");
            return Err(Failure::Lasting(there));
        }
        self.limit(Some(&log));
        Ok(log)
    }

    async fn step_over(&self, to: Offset) -> Result<Arc<Partition>, Failure> {
        let (store, id) = (Arc::clone(&self.options.store), self.partition.clone());
        let done = tokio::task::spawn_blocking(move || store.skip_to(&id, to)).await;
        match done {
            Ok(Ok(())) => {
                warn!(partition = %self.partition, %to, "the master no longer has what comes next: the log goes on behind a gap");
                self.local().ok_or_else(|| Failure::Lasting("the partition is gone".to_owned()))
            }
            Ok(Err(error @ CreateError::Io { .. })) => Err(Failure::Passing(error.to_string())),
            Ok(Err(error)) => Err(Failure::Lasting(error.to_string())),
            Err(error) => std::panic::resume_unwind(error.into_panic()),
        }
    }

    /// Appends and waits until it is as safe as the topic's rule asks; answers the log's new end.
    async fn append(
        &self,
        log: &mut Option<Arc<Partition>>,
        at: Offset,
        segment: Offset,
        bytes: Bytes,
    ) -> Result<Offset, Failure> {
        let partition = match log {
            Some(partition) => partition,
            None => log.insert(self.create(at).await?),
        };
        let bytes_len = bytes.len() as u64;
        let end = at + bytes_len;
        let (ack, outcome) = append::ack();
        partition.append_verbatim(at, segment, bytes, ack);
        match outcome.await {
            Ok(Ok(_)) => {
                self.board.copied(bytes_len);
                Ok(end)
            }
            Ok(Err(error)) => Err(error.into()),
            Err(_) => Err(Failure::Lasting("the append was never answered".to_owned())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
