use crate::checkpoint::Checkpoints;
use crate::commit::Commits;
use crate::entry::Number;
use crate::held::{Held, NewMessage, placed};
use crate::recovery::{self, Recovered};
use crate::reply::{Done, PutDone, Refused};
use crate::table::{Claim, Command, HeldMax, Line, SessionId, State, Table, Taken, Work};
use metaq_store::{Ack, AckSink, AppendError, Appended, Health, Partition, RulesFor, Store};
use metaq_types::limits::{JOURNAL_BYTES_MAX, TRANSACTIONS_HELD_BYTES_MAX};
use metaq_types::{MessageId, Offset, PartitionId};
use metaq_wire::TransactionKey;
use parking_lot::Mutex;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// How often timeouts, unfinished commits and the journal's length are looked at.
const TICK: Duration = Duration::from_millis(250);

/// What the configuration says about transactions.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Prepare, commit and the rollback of a prepared branch are answered after a sync of the journal.
    pub synced: bool,
    /// What asks for a longer timeout gets this.
    pub timeout_max: Duration,
    pub timers_max: u32,
    /// Bytes of messages that a transaction keeps in memory before they go into the journal.
    pub held_bytes_max: u32,
    pub checkpoints_max: u32,
    pub checkpoint_interval: Duration,
    /// A checkpoint is due as well when the journal has grown by so much.
    pub checkpoint_bytes: u64,
    /// Where the original kept its journal, to be imported once; need not exist.
    pub original_journal: PathBuf,
    /// How long prepare and commit wait for the members that hold the journal, where others are asked.
    pub confirm_within: Duration,
}

#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("the store keeps no transaction journal")]
    NoJournal,
    #[error("the transaction journal cannot be read: {0}")]
    Read(std::io::Error),
    #[error("the transaction journal cannot be written: {0}")]
    Append(AppendError),
    #[error(
        "what was committed cannot be stored in {partition}: {reason}; free the disk or repair it, then start again"
    )]
    Complete { partition: PartitionId, reason: String },
    #[error("cannot import the journal of the original in {path}: {reason}; move it elsewhere to start without it", path = .path.display())]
    Import { path: PathBuf, reason: String },
}

/// All transactions of a master. Dropping it abandons what is in motion, as a crash would.
pub struct Coordinator {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub(crate) store: Arc<Store>,
    pub(crate) journal: Arc<Partition>,
    pub(crate) settings: Settings,
    rules: RulesFor,
    pub(crate) table: Mutex<Table>,
    pub(crate) commits: Mutex<Commits>,
    pub(crate) checkpoints: Mutex<Checkpoints>,
    /// The journal had no room for what came last.
    pub(crate) disk_full: AtomicBool,
    runtime: Handle,
    stop: CancellationToken,
    tasks: TaskTracker,
}

impl Coordinator {
    /// Reads the journal and finishes what it says is decided: after this every committed message is once in its
    /// partition, what was undecided is rolled back, and prepared branches wait. Blocks; to be called before anybody
    /// appends, on a thread that may block, within a runtime.
    pub fn open(store: Arc<Store>, settings: Settings, rules: RulesFor) -> Result<(Coordinator, Recovered), OpenError> {
        let journal = store.journal().ok_or(OpenError::NoJournal)?;
        let (table, recovered) = recovery::recover(&store, &journal, &settings, &rules)?;
        let inner = Arc::new(Inner {
            checkpoints: Mutex::new(Checkpoints::new(&journal)),
            store,
            journal,
            settings,
            rules,
            table: Mutex::new(table),
            commits: Mutex::default(),
            disk_full: AtomicBool::new(false),
            runtime: Handle::current(),
            stop: CancellationToken::new(),
            tasks: TaskTracker::new(),
        });
        inner.tasks.spawn_on(tick(Arc::clone(&inner)), &inner.runtime);
        Ok((Coordinator { inner }, recovered))
    }

    /// Begins a transaction; a second time changes nothing. Nothing is written before its first message.
    pub fn begin(&self, session: SessionId, key: &TransactionKey, timeout_seconds: Option<i32>) -> Result<(), Refused> {
        let Settings { timeout_max, timers_max, .. } = self.inner.settings;
        let seconds = timeout_seconds.and_then(|seconds| u64::try_from(seconds).ok()).filter(|seconds| *seconds > 0);
        let timeout = seconds.map(|seconds| Duration::from_secs(seconds).min(timeout_max));
        if let Health::Poisoned(reason) = self.inner.journal.health() {
            return Err(Refused::plain(format!("no transaction can begin: {reason}")));
        }
        self.inner.table.lock().begin(session, key, timeout, timers_max, Instant::now())
    }

    /// The transaction a message may be put into now.
    pub fn opened(&self, session: SessionId, key: &TransactionKey) -> Result<Opened, Refused> {
        self.inner.table.lock().open(session, key).map(Opened)
    }

    /// Puts a checked message into a transaction; the answer is its id. A message waits in memory where there is room,
    /// else it goes into the journal: then the answer is given to what `later` makes, usually before this returns.
    pub fn put(
        &self,
        Opened(number): Opened,
        key: &TransactionKey,
        partition: &PartitionId,
        message: NewMessage,
        later: impl FnOnce() -> PutDone,
    ) -> Option<Result<MessageId, Refused>> {
        match self.inner.take(number, key, partition, message) {
            Ok((id, Taken::Held)) => Some(Ok(id)),
            Ok((id, Taken::Run(run))) => {
                self.inner.write_run(number, run, id, later());
                None
            }
            Err(refused) => Some(Err(refused)),
        }
    }

    /// Carries out a command that may end the transaction. What it changes is claimed before this returns, so that a
    /// later put of the same connection is refused; `done` is called when it is as safe as the settings say, and held by
    /// as many members as have to confirm the journal. `shortage`: they are not there, so nothing new is decided.
    pub fn command(
        &self,
        command: Command,
        session: SessionId,
        key: &TransactionKey,
        shortage: Option<String>,
        done: Done,
    ) {
        let claim = self.inner.table.lock().claim(command, session, key);
        match claim {
            Claim::Answer(reply) => done(reply),
            Claim::Go(number, Work::Commit { by_operator }) if self.inner.is_settled(number) => {
                self.inner.submit(number, key.clone(), by_operator, shortage, done);
            }
            Claim::Go(number, work) => {
                let (inner, key) = (Arc::clone(&self.inner), key.clone());
                self.inner.spawn(async move { done(inner.carry_out(number, &key, work, shortage).await) });
            }
            Claim::Wait(turn) => {
                let (inner, key) = (Arc::clone(&self.inner), key.clone());
                self.inner.spawn(async move { done(inner.in_turn(turn, command, session, &key, shortage).await) });
            }
        }
    }

    /// The keys of all prepared branches and of those the operator ended; with a qualifier only those that bear it.
    pub fn recover(&self, qualifier: Option<&str>) -> Vec<String> {
        self.inner.table.lock().recover(qualifier)
    }

    /// The connection is gone: its local transactions are rolled back.
    pub fn session_ended(&self, session: SessionId) {
        let ended = self.inner.table.lock().of_session(session);
        for number in ended {
            self.inner.roll_back_unasked(number);
        }
    }

    /// Every transaction that is not over.
    pub fn lines(&self) -> Vec<Line> {
        self.inner.table.lock().lines(Instant::now())
    }

    /// Length of the journal as it is kept.
    pub fn journal_bytes(&self) -> u64 {
        self.inner.journal.bytes()
    }

    /// Syncs of the journal since it was opened: each serves all that waits for one.
    pub fn journal_syncs(&self) -> u64 {
        self.inner.journal.sync_count()
    }

    /// A replica must hold the journal up to here before it appends partition bytes served now: then no batch is
    /// anywhere without its decision.
    pub fn journal_bound(&self) -> Offset {
        let positions = self.inner.journal.positions();
        if self.inner.settings.synced { positions.durable } else { positions.written }
    }

    /// Waits until nothing is in motion, at most `patience`. Nothing is accepted afterwards; what is open is rolled back
    /// by the next start.
    pub async fn close(&self, patience: Duration) {
        self.inner.stop.cancel();
        self.inner.tasks.close();
        if tokio::time::timeout(patience, self.inner.tasks.wait()).await.is_err() {
            tracing::warn!("transactions were still in motion at the stop; the next start finishes them");
        }
        // A store that is poisoned or full answers at once as well.
        self.inner.write_notes().await;
    }
}

impl Drop for Coordinator {
    fn drop(&mut self) {
        self.inner.stop.cancel();
    }
}

impl Inner {
    pub(crate) fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.tasks.spawn_on(work, &self.runtime);
    }

    /// On the threads of whoever calls: a session's, where the answers of the store arrive and the replies go out, so that
    /// no commit wakes another thread. Not for work that takes long.
    pub(crate) fn spawn_here(&self, work: impl Future<Output = ()> + Send + 'static) {
        let here = Handle::try_current();
        self.tasks.spawn_on(work, here.as_ref().unwrap_or(&self.runtime));
    }

    fn is_settled(&self, number: Number) -> bool {
        self.table.lock().unsettled(number).is_none()
    }

    fn take(
        &self,
        number: Number,
        key: &TransactionKey,
        partition: &PartitionId,
        message: NewMessage,
    ) -> Result<(MessageId, Taken), Refused> {
        if self.journal.bytes() > JOURNAL_BYTES_MAX {
            let text = format!(
                "not stored: the transaction journal has more than {JOURNAL_BYTES_MAX} bytes, which an old transaction \
                 keeps it from shedding; see 'metaq txn list'"
            );
            return Err(Refused::plain(text));
        }
        let not_stored = |reason: &dyn std::fmt::Display| Refused::plain(format!("not stored: {reason}"));
        if let Health::Poisoned(reason) = self.journal.health() {
            return Err(not_stored(&reason));
        }
        let id = self.next_id().map_err(|refusal| not_stored(&refusal))?;
        let held = Held::new(number, key, id, partition, message);
        // What finds a full disk is to be refused now, not at its commit.
        let full = self.disk_full.load(Ordering::Relaxed);
        let of_one = if full { 0 } else { self.settings.held_bytes_max.into() };
        let held_max = HeldMax { of_one, of_all: TRANSACTIONS_HELD_BYTES_MAX };
        let mut table = self.table.lock();
        let taken = table.put(number, key, partition, held, held_max, self.journal.positions().written)?;
        Ok((id, taken))
    }

    fn write_run(self: &Arc<Self>, number: Number, run: Vec<Held>, id: MessageId, done: PutDone) {
        let records = run.iter().map(Held::record).collect();
        let waiting = WaitingRun { inner: Arc::clone(self), number, id, left: Mutex::new(Some((run, done))) };
        self.journal.append_batch(records, Ack::new(Arc::new(waiting), 0));
    }

    /// Waits for whoever is at it, then tries the command again.
    async fn in_turn(
        self: &Arc<Self>,
        mut turn: tokio::sync::oneshot::Receiver<()>,
        command: Command,
        session: SessionId,
        key: &TransactionKey,
        shortage: Option<String>,
    ) -> Result<String, Refused> {
        loop {
            // Ends by being dropped.
            let _ = turn.await;
            let claim = self.table.lock().claim(command, session, key);
            match claim {
                Claim::Answer(reply) => return reply,
                Claim::Go(number, work) => return self.carry_out(number, key, work, shortage).await,
                Claim::Wait(next) => turn = next,
            }
        }
    }

    /// Rolls back an open transaction whose time or whose connection is over; others are left alone.
    fn roll_back_unasked(self: &Arc<Self>, number: Number) {
        let mut table = self.table.lock();
        if table.end_unwritten(number) {
            return;
        }
        let Some(key) = table.get(number).map(|transaction| transaction.key.clone()) else { return };
        if table.claim_own(number, |state| *state == State::Open) {
            drop(table);
            let inner = Arc::clone(self);
            let work = Work::Rollback { by_operator: false };
            let work = async move { drop(inner.carry_out(number, &key, work, None).await) };
            self.tasks.spawn_on(work, &self.runtime);
        }
    }

    /// The partition of a batch, created if need be: a decision is carried out whatever the configuration says by then.
    pub(crate) fn partition(&self, id: &PartitionId) -> Result<Arc<Partition>, String> {
        partition_of(&self.store, &self.rules, id)
    }
}

pub(crate) fn partition_of(store: &Store, rules: &RulesFor, id: &PartitionId) -> Result<Arc<Partition>, String> {
    match store.get(&id.topic, id.number as i32) {
        Some(partition) => Ok(partition),
        None => store.get_or_create(id, &rules(&id.topic), store.first_offset(id)).map_err(|error| error.to_string()),
    }
}

/// A transaction that took messages a moment ago.
pub struct Opened(Number);

/// Messages on their way into the journal. The last of them waits for its answer.
struct WaitingRun {
    inner: Arc<Inner>,
    number: Number,
    /// Of the last.
    id: MessageId,
    left: Mutex<Option<(Vec<Held>, PutDone)>>,
}

impl AckSink for WaitingRun {
    fn acked(&self, _ticket: u64, outcome: Result<Appended, AppendError>) {
        let Some((run, done)) = self.left.lock().take() else { return };
        self.inner.note_disk(&outcome);
        let mut table = self.inner.table.lock();
        let reply = match outcome {
            Ok(appended) => {
                table.run_done(self.number, placed(&run, appended.offset));
                Ok(self.id)
            }
            Err(error) => {
                table.run_failed(self.number, run);
                Err(match error {
                    AppendError::Refused(refusal) => Refused::plain(format!("not stored: {refusal}")),
                    other => Refused::plain(other.to_string()),
                })
            }
        };
        drop(table);
        done(reply);
    }
}

async fn tick(inner: Arc<Inner>) {
    let mut tick = tokio::time::interval(TICK);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut beats = 0u32;
    loop {
        tokio::select! {
            _ = tick.tick() => {}
            () = inner.stop.cancelled() => return,
        }
        let expired = inner.table.lock().expired(Instant::now());
        for number in expired {
            inner.roll_back_unasked(number);
        }
        inner.write_notes().await;
        beats = beats.wrapping_add(1);
        if beats.is_multiple_of(4) {
            inner.finish_decided().await;
            inner.checkpoint().await;
        }
    }
}
