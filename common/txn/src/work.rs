//! Carrying out what was claimed: the order of journal, partitions and answer.

use crate::commit::{Decided, last_byte};
use crate::coordinator::Inner;
use crate::entry::{Number, Outcome, Part, What, decode, encode};
use crate::held::{Held, placed};
use crate::recovery::missing;
use crate::reply::Refused;
use crate::table::{State, Work};
use bytes::Bytes;
use metaq_store::{Ack, AckSink, AppendError, Appended, BatchRecord, Health, Partition, Reader, Refusal};
use metaq_types::{MessageId, Offset, PartitionId};
use metaq_wire::TransactionKey;
use parking_lot::Mutex;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::oneshot;

/// The messages of a transaction for one partition, in the order they were put.
pub(crate) struct Batch {
    pub(crate) partition: PartitionId,
    pub(crate) records: Vec<BatchRecord>,
}

/// What it takes to commit a transaction.
pub(crate) struct Ready {
    /// Its messages that are not in the journal yet.
    pub(crate) held: Vec<Held>,
    /// All its messages.
    pub(crate) batches: Vec<Batch>,
    /// Where each batch will be at the earliest.
    pub(crate) parts: Vec<Part>,
}

impl Inner {
    pub(crate) async fn carry_out(
        self: &Arc<Self>,
        number: Number,
        key: &TransactionKey,
        work: Work,
        shortage: Option<String>,
    ) -> Result<String, Refused> {
        self.settle(number).await;
        match work {
            Work::Prepare => self.prepare(number, key, shortage).await,
            Work::Commit { by_operator } => {
                let (sender, reply) = oneshot::channel();
                // A receiver that is gone was dropped with the coordinator.
                let done = Box::new(move |reply| drop(sender.send(reply)));
                self.submit(number, key.clone(), by_operator, shortage, done);
                reply.await.unwrap_or_else(|_| Err(Refused::in_doubt(key, "the broker gave up")))
            }
            Work::Apply => self.apply_left(number, key, self.settings.confirm_within).await,
            Work::Rollback { by_operator } => self.roll_back(number, key, by_operator).await,
            Work::Complete => {
                let next = State::Ended(Outcome::Completed);
                self.note(number, key, &What::Complete, next).await
            }
            Work::Forget => {
                self.note(number, key, &What::Forget, State::Busy).await?;
                self.table.lock().end(number);
                Ok(String::new())
            }
        }
    }

    /// Waits for the puts in flight; no more come, since the transaction is claimed.
    pub(crate) async fn settle(&self, number: Number) {
        loop {
            let unsettled = self.table.lock().unsettled(number);
            match unsettled {
                None => return,
                // Ends by being dropped.
                Some(settled) => drop(settled.await),
            }
        }
    }

    /// Waits until as many members as have to hold the journal beyond `at`; at once where nobody is asked. `false`: not in
    /// time.
    pub(crate) async fn confirmed(&self, at: Offset, patience: Duration) -> bool {
        let is_held = || self.journal.confirmed() > at;
        // A partition that is closed ends the wait as well.
        let _ = tokio::time::timeout(patience, async {
            if !is_held() {
                self.journal.readable_beyond(at, Reader::Consumer).await;
            }
        })
        .await;
        is_held()
    }

    async fn prepare(&self, number: Number, key: &TransactionKey, shortage: Option<String>) -> Result<String, Refused> {
        if self.ends_empty(number) {
            return Ok("3".to_owned());
        }
        if let Some(reason) = shortage {
            self.table.lock().release(number, State::Open);
            return Err(Refused::unavailable(key, reason));
        }
        let held = self.take_held(number);
        let placed_before = self.table.lock().get(number).map_or(0, |transaction| transaction.messages.len());
        let prepare = What::Prepare { messages: Some((placed_before + held.len()) as u32) };
        match self.enter_behind(&held, number, key, &prepare).await {
            Ok(appended) => {
                {
                    let mut table = self.table.lock();
                    if let Some(transaction) = table.get(number) {
                        transaction.messages.extend(placed(&held, appended.offset));
                    }
                    table.release(number, State::Prepared);
                }
                match self.confirmed(last_byte(&appended), self.settings.confirm_within).await {
                    true => Ok("0".to_owned()),
                    false => Err(Refused::prepared_alone(key)),
                }
            }
            Err(AppendError::Refused(refusal)) => {
                let mut table = self.table.lock();
                table.hold_again(number, held);
                table.release(number, State::Open);
                Err(Refused::unavailable(key, refusal))
            }
            Err(error) => Err(self.doubt(number, key, &error)),
        }
    }

    /// An error: this cannot be stored.
    pub(crate) fn ready(&self, number: Number) -> Result<Ready, String> {
        let held = self.take_held(number);
        let batches = self.read_batches(number, None, &held)?;
        let mut parts = Vec::with_capacity(batches.len());
        for batch in &batches {
            let partition = self.partition(&batch.partition)?;
            if let Health::Poisoned(reason) = partition.health() {
                return Err(reason);
            }
            let (at, size) = (partition.positions().written, batch.records.len() as u32);
            parts.push(Part { partition: batch.partition.clone(), at, size });
        }
        Ok(Ready { held, batches, parts })
    }

    fn take_held(&self, number: Number) -> Vec<Held> {
        let mut table = self.table.lock();
        table.take_held(number, self.journal.positions().written)
    }

    /// Reads the messages of a transaction, of all its partitions or of these; `held` come behind those.
    fn read_batches(&self, number: Number, only: Option<&[PartitionId]>, held: &[Held]) -> Result<Vec<Batch>, String> {
        let (mut messages, targets) = {
            let mut table = self.table.lock();
            let transaction = table.get(number).ok_or("the transaction is gone")?;
            (transaction.messages.clone(), transaction.targets.clone())
        };
        messages.sort_unstable_by_key(|message| message.at);
        let mut batches: Vec<Batch> =
            targets.into_iter().map(|partition| Batch { partition, records: Vec::new() }).collect();
        for message in messages {
            let batch = &mut batches[message.target as usize];
            if only.is_none_or(|only| only.contains(&batch.partition)) {
                batch.records.push(read_message(&self.journal, message.at, message.bytes)?);
            }
        }
        for held in held {
            batches[held.target as usize].records.push(held.message());
        }
        batches.retain(|batch| !batch.records.is_empty());
        Ok(batches)
    }

    /// Before the decision: a prepared branch stays prepared, anything else is rolled back.
    pub(crate) async fn not_committed(&self, number: Number, key: &TransactionKey, reason: &str) -> Refused {
        let was_prepared = self.table.lock().get(number).is_some_and(|transaction| transaction.was_prepared);
        tracing::warn!(%key, reason, "a transaction could not be committed");
        if was_prepared {
            self.table.lock().release(number, State::Prepared);
            return Refused::unavailable(key, reason);
        }
        // Without the entry the next start does the same.
        let _ = self.enter(number, key, &What::Rollback { by_operator: false }, false).await;
        self.table.lock().end(number);
        Refused::commit_failed()
    }

    /// Stores what is left of a decision. A batch whose fate is unknown waits for the next start, which looks for it: its
    /// partition takes no appends until then.
    async fn apply_left(&self, number: Number, key: &TransactionKey, patience: Duration) -> Result<String, Refused> {
        let decided = {
            let mut table = self.table.lock();
            let state = table.get(number).map(|transaction| transaction.state.clone());
            let claimed = table.claim_own(number, |state| matches!(state, State::Decided { .. }));
            state.filter(|_| claimed)
        };
        let Some(State::Decided { at, parts, left, by_operator }) = decided else {
            return Err(Refused::committing(key, "somebody else is at it"));
        };
        match self.read_batches(number, Some(&left), &[]) {
            Ok(mut batches) => {
                for batch in &mut batches {
                    self.keep_missing(batch, &parts);
                }
                batches.retain(|batch| !batch.records.is_empty());
                let (key, placed) = (key.clone(), Vec::new());
                let decided = Decided { number, key, by_operator, batches, parts, placed, again: true };
                let storing = self.append_batches(at, vec![decided]);
                self.sync_owed();
                self.finish(storing, patience).await.pop().expect("one decision gets one answer")
            }
            Err(reason) => {
                self.table.lock().release(number, State::Decided { at, parts, left, by_operator });
                Err(Refused::committing(key, reason))
            }
        }
    }

    /// Leaves of a batch what its partition does not hold yet: a start may have found a part of it there.
    fn keep_missing(&self, batch: &mut Batch, parts: &[Part]) {
        let Some(part) = parts.iter().find(|part| part.partition == batch.partition) else { return };
        let Ok(partition) = self.partition(&batch.partition) else { return };
        let ids: Vec<_> = batch.records.iter().map(|record| record.id).collect();
        // Unreadable, it is refused by the append as well.
        if let Ok(missing) = missing(&partition, part.at, &ids) {
            batch.records.retain(|record| missing.ids.contains(&record.id));
        }
    }

    /// Tries again what a full disk kept from being stored, and ends what is confirmed by now.
    pub(crate) async fn finish_decided(&self) {
        let decided = self.table.lock().decided();
        for number in decided {
            let key = self.table.lock().get(number).map(|transaction| transaction.key.clone());
            if let Some(key) = key {
                // Said in the log by `conclude` already.
                let _ = self.apply_left(number, &key, Duration::ZERO).await;
            }
        }
    }

    async fn roll_back(&self, number: Number, key: &TransactionKey, by_operator: bool) -> Result<String, Refused> {
        let was_prepared = self.table.lock().get(number).is_some_and(|transaction| transaction.was_prepared);
        let synced = was_prepared && self.settings.synced;
        match self.enter(number, key, &What::Rollback { by_operator }, synced).await {
            Err(AppendError::Refused(refusal)) if was_prepared => {
                self.table.lock().release(number, State::Prepared);
                return Err(Refused::unavailable(key, refusal));
            }
            Err(error) if was_prepared => return Err(self.doubt(number, key, &error)),
            // What was not prepared is rolled back by the next start, with the entry or without.
            _ => {}
        }
        self.ended(number, Outcome::RolledBack, by_operator);
        Ok(String::new())
    }

    /// Writes an entry about a prepared branch or one that was ended; `next` is its state then.
    async fn note(&self, number: Number, key: &TransactionKey, what: &What, next: State) -> Result<String, Refused> {
        let before = match what {
            What::Forget => self.ended_as(number),
            _ => State::Prepared,
        };
        match self.enter(number, key, what, self.settings.synced).await {
            Ok(_) => {
                self.table.lock().release(number, next);
                Ok(String::new())
            }
            Err(AppendError::Refused(refusal)) => {
                self.table.lock().release(number, before);
                Err(Refused::unavailable(key, refusal))
            }
            Err(error) => Err(self.doubt(number, key, &error)),
        }
    }

    /// How the operator had ended it, which its claim has hidden.
    fn ended_as(&self, number: Number) -> State {
        let outcome = self.table.lock().get(number).and_then(|transaction| transaction.outcome);
        outcome.map_or(State::Prepared, State::Ended)
    }

    pub(crate) fn ended(&self, number: Number, outcome: Outcome, by_operator: bool) {
        let mut table = self.table.lock();
        if by_operator {
            table.release(number, State::Ended(outcome));
        } else {
            table.end(number);
        }
    }

    /// None of its puts has reached the journal, so it is over without a trace.
    pub(crate) fn ends_empty(&self, number: Number) -> bool {
        let mut table = self.table.lock();
        let empty = table.get(number).is_none_or(|transaction| transaction.is_empty());
        if empty {
            table.end(number);
        }
        empty
    }

    pub(crate) fn doubt(&self, number: Number, key: &TransactionKey, error: &AppendError) -> Refused {
        let reason = error.to_string();
        tracing::error!(%key, reason, "the outcome of a transaction is unknown until the next start");
        self.table.lock().release(number, State::InDoubt(reason.clone()));
        Refused::in_doubt(key, reason)
    }

    async fn enter(&self, number: Number, key: &TransactionKey, what: &What, synced: bool) -> Result<(), AppendError> {
        let records = self.entry_records([encode(number, key, what)])?;
        self.append(records, synced).await.map(drop)
    }

    /// Messages and what is said of them, in one run, as safe as a decision.
    async fn enter_behind(
        &self,
        held: &[Held],
        number: Number,
        key: &TransactionKey,
        what: &What,
    ) -> Result<Appended, AppendError> {
        let mut records: Vec<_> = held.iter().map(Held::record).collect();
        records.extend(self.entry_records([encode(number, key, what)])?);
        self.append(records, self.settings.synced).await
    }

    pub(crate) fn next_id(&self) -> Result<MessageId, Refusal> {
        self.store.ids().next().map_err(|error| match error.disk_full {
            true => Refusal::DiskFull(error.to_string()),
            false => Refusal::Unavailable(error.to_string()),
        })
    }

    /// Entries with ids.
    pub(crate) fn entry_records(
        &self,
        entries: impl IntoIterator<Item = Bytes>,
    ) -> Result<Vec<BatchRecord>, AppendError> {
        let record = |body: Bytes| {
            let id = self.next_id()?;
            Ok(BatchRecord { id, flag: 0, checksum: metaq_wire::checksum(&body), body })
        };
        entries.into_iter().map(record).collect()
    }

    /// One run of entries. `synced`: answered after a sync.
    pub(crate) async fn append(&self, records: Vec<BatchRecord>, synced: bool) -> Result<Appended, AppendError> {
        let (ack, outcome) = ack();
        self.journal.append_entries(records, synced, ack);
        self.sync_owed();
        let outcome = outcome.await;
        self.note_disk(&outcome);
        outcome
    }

    /// On a full disk messages are refused when they are put, not when they are committed.
    pub(crate) fn note_disk(&self, outcome: &Result<Appended, AppendError>) {
        let full = matches!(outcome, Err(AppendError::Refused(Refusal::DiskFull(_))));
        self.disk_full.store(full, Ordering::Relaxed);
    }
}

/// One message out of the journal, as it goes into its partition.
pub(crate) fn read_message(journal: &Partition, at: Offset, bytes: u32) -> Result<BatchRecord, String> {
    let (header, body) = journal.read_record(at, bytes).map_err(|error| format!("in the journal {error}"))?;
    match decode(&body).map(|entry| entry.what) {
        Ok(What::Put { flag, body, .. }) => {
            Ok(BatchRecord { id: header.id, flag, checksum: metaq_wire::checksum(&body), body })
        }
        Ok(_) => Err(format!("in the journal at {at} stands no message")),
        Err(error) => Err(format!("in the journal at {at}: {error}")),
    }
}

struct Once(Mutex<Option<oneshot::Sender<Result<Appended, AppendError>>>>);

impl AckSink for Once {
    fn acked(&self, _ticket: u64, outcome: Result<Appended, AppendError>) {
        if let Some(sender) = self.0.lock().take() {
            // A receiver that is gone was dropped with the coordinator.
            let _ = sender.send(outcome);
        }
    }
}

/// Where the outcome of one append arrives.
pub(crate) struct Outcoming(oneshot::Receiver<Result<Appended, AppendError>>);

impl Future for Outcoming {
    type Output = Result<Appended, AppendError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(cx).map(|outcome| outcome.unwrap_or(Err(AppendError::Dropped)))
    }
}

impl Outcoming {
    /// For threads that may block.
    pub(crate) fn wait(self) -> Result<Appended, AppendError> {
        self.0.blocking_recv().unwrap_or(Err(AppendError::Dropped))
    }
}

pub(crate) fn ack() -> (Ack, Outcoming) {
    let (sender, receiver) = oneshot::channel();
    (Ack::new(Arc::new(Once(Mutex::new(Some(sender)))), 0), Outcoming(receiver))
}
