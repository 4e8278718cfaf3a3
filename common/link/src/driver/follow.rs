use std::sync::Arc;
use std::time::Duration;

use metaq_client::{ClientError, GetAnswer};
use metaq_store::{AppendError, CreateError, Partition, Reader, Refusal};
use metaq_types::limits::TRANSFER_BYTES_MIN;
use metaq_types::{Offset, PartitionId};
use metaq_wire::ValueExtra;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use super::LinkOptions;
use super::ahead::Ahead;
use super::append::Appends;
use super::board::{Board, Cell};
use super::budget::{Budget, FETCH_BYTES};
use super::compare;
use super::lane::{Lane, Question};
use super::transport::Way;
use crate::listing::Listed;
use crate::pull::{Answer, Log, NextGet, Pull, Step};

/// A get that is not answered for this long beyond its wait is given up; the keep-alive decides about the connection.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

const JOURNAL_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Partition bytes that wait longer for the journal than this are worth a line.
const JOURNAL_PATIENCE: Duration = Duration::from_secs(10);

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
    /// The master heeds what a get says of what is held: see [`super::ahead`].
    pub(super) reads_ahead: bool,
}

/// What a get came to, with the room in the budget that its bytes take until they are appended.
type Answered = (Answer, Room);

/// `None` for the few bytes of a get that listened.
pub(super) type Room = Option<OwnedSemaphorePermit>;

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
    let follow = Arc::new(follow);
    let mut ahead = Ahead::new(Lane::of(&follow.way));
    while let Some(get) = pull.next_get() {
        let asked = std::time::Instant::now();
        let Some(fetched) = ahead.answer(&follow, get).await else { return };
        if !get.waiting {
            follow.board.level_until_now(&follow.cell);
        }
        if let Answer::Value { extra: Some(ValueExtra { journal: Some(bound), .. }), .. } = &fetched.answer
            && !follow.journal_reached(*bound).await
        {
            return;
        }
        let step = pull.on_answer(fetched.answer, follow.options.delay_max);
        follow.limit(log.as_deref());
        follow.board.keep_limit(&follow.cell).await;
        follow.board.update(&follow.cell, &pull, true);
        let before = pull.position();
        let pause = follow.take(step, fetched.room, &mut pull, &mut log, &mut ahead).await;
        follow.board.update(&follow.cell, &pull, false);
        let left = pull.master_end().map_or(0, |end| end.bytes_since(pull.position().min(end)));
        let pause = pause.or_else(|| follow.pace(pull.position().bytes_since(before), left, asked.elapsed()));
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

    /// Up to where the transaction journal is durable here; without one there is nothing to wait for.
    fn journal_held(&self) -> Offset {
        self.options.store.journal().map_or(Offset::MAX, |journal| journal.positions().durable)
    }

    /// Does one step, whose bytes have `room`; answers how long to wait before the next get.
    async fn take(
        self: &Arc<Self>,
        step: Step,
        room: Room,
        pull: &mut Pull,
        log: &mut Option<Arc<Partition>>,
        ahead: &mut Ahead,
    ) -> Option<Duration> {
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
                Some(segment) => {
                    let begun = match log {
                        Some(log) => Ok(Arc::clone(log)),
                        None => self.create(at).await.map(|created| Arc::clone(log.insert(created))),
                    };
                    match begun {
                        Ok(log) => {
                            let mut appends = Appends::new(log, at, segment);
                            appends.append(bytes, room);
                            self.append(appends, pull, ahead).await
                        }
                        Err(failure) => Err(failure),
                    }
                }
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

    /// Counts bytes that came and took so long; how long to leave room for others, where this slave is far behind. Who has
    /// one get `left` is there with it, and a quorum may wait for that.
    fn pace(&self, bytes: u64, left: u64, took: Duration) -> Option<Duration> {
        let is_far = self.options.catch_up_bytes_per_second > 0 || left >= u64::from(FETCH_BYTES);
        if bytes == 0 || !is_far || !self.board.is_late(&self.cell, self.options.delay_max) {
            self.budget.look(|| self.board.backlog());
            return None;
        }
        Some(self.budget.pace(bytes, took, || self.board.backlog())).filter(|pause| !pause.is_zero())
    }

    /// Ends early when told to stop.
    async fn pause(&self, pause: Duration) {
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = self.stop.cancelled() => {}
        }
    }

    /// As [`Follow::ask`], and `None` when told to stop as well.
    pub(super) async fn ask_until_stopped(&self, lane: &mut Lane, get: NextGet) -> Option<Answered> {
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

    pub(super) async fn get(
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

    /// Waits until what is being appended is as safe as the topic's rule asks, and fetches and appends meanwhile what
    /// comes behind it.
    async fn append(self: &Arc<Self>, mut appends: Appends, pull: &mut Pull, ahead: &mut Ahead) -> Result<(), Failure> {
        ahead.begin(appends.end());
        loop {
            while appends.take_more()
                && let journal = self.journal_held()
                && let Some((bytes, room)) = ahead.take_behind(pull, appends.end(), appends.segment(), journal)
            {
                self.limit(Some(appends.log()));
                self.board.keep_limit(&self.cell).await;
                ahead.go_on(self, pull);
                ahead.send().await;
                appends.append(bytes, room);
            }
            ahead.go_on(self, pull);
            tokio::select! {
                biased;
                stored = appends.stored() => {
                    let Some(end) = stored else { return appends.outcome().map_err(Failure::from) };
                    self.board.copied(end.bytes_since(pull.position()));
                    pull.on_appended(end);
                    self.board.update(&self.cell, pull, false);
                }
                () = ahead.advance() => {}
            }
        }
    }
}
