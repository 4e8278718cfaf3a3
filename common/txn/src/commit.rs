//! Commits, several at a time: all that wait share one write and one sync of the journal, and one write a partition.

use crate::coordinator::Inner;
use crate::entry::{Number, Outcome, Part, What, encode};
use crate::held::{Held, placed};
use crate::reply::{Done, Refused};
use crate::table::{Message, State};
use crate::work::{Batch, Outcoming, Ready, ack};
use bytes::Bytes;
use metaq_store::{AppendError, Appended, BatchRecord, Partition, Refusal};
use metaq_types::limits::{BATCH_BYTES_MAX, RECORD_HEADER_BYTES};
use metaq_types::{Offset, PartitionId};
use metaq_wire::TransactionKey;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;

/// A claimed transaction that is to be committed.
pub(crate) struct Commit {
    pub(crate) number: Number,
    pub(crate) key: TransactionKey,
    pub(crate) by_operator: bool,
    pub(crate) ready: Ready,
    pub(crate) done: Done,
}

/// Commits that wait for their turn at the journal.
#[derive(Default)]
pub(crate) struct Commits {
    waiting: VecDeque<Commit>,
    /// Somebody is at it and takes what waits when the journal has what came before.
    running: bool,
    /// Entries nobody waits for: they go with the next decision.
    notes: Vec<Bytes>,
    /// Partitions with batches nobody waits for: they are synced with what the journal takes next.
    owed: Vec<Arc<Partition>>,
}

/// A transaction whose decision is in the journal.
pub(crate) struct Decided {
    pub(crate) number: Number,
    pub(crate) key: TransactionKey,
    pub(crate) by_operator: bool,
    pub(crate) batches: Vec<Batch>,
    pub(crate) parts: Vec<Part>,
    /// Messages that came into the journal with the decision.
    pub(crate) placed: Vec<Message>,
    /// Tried before: what keeps it from being stored is in the log already.
    pub(crate) again: bool,
}

/// Decided transactions on their way into their partitions.
pub(crate) struct Storing {
    /// The last byte of their entries in the journal.
    at: Offset,
    decided: Vec<Decided>,
    runs: Vec<Run>,
}

/// Batches of one partition that are appended together.
struct Run {
    partition: PartitionId,
    log: Result<Arc<Partition>, String>,
    shares: Vec<Share>,
    outcome: Option<Outcoming>,
}

/// The batch of one transaction.
struct Share {
    /// Place of the transaction among the decided.
    of: usize,
    records: Vec<BatchRecord>,
}

/// What has become of a transaction's batches.
#[derive(Default)]
struct Fate {
    applied: Vec<Part>,
    left: Vec<PartitionId>,
    trouble: String,
}

impl Commit {
    /// In the journal and in its partitions.
    fn bytes(&self) -> u64 {
        let held = self.ready.held.iter().map(|held| u64::from(held.bytes())).sum::<u64>();
        held + self.ready.batches.iter().flat_map(|batch| &batch.records).map(record_bytes).sum::<u64>()
    }
}

impl Commits {
    /// As many as go into one write; at least one.
    fn next_group(&mut self) -> Vec<Commit> {
        let (mut group, mut bytes) = (Vec::new(), 0);
        while let Some(commit) = self.waiting.pop_front() {
            bytes += commit.bytes();
            if bytes > u64::from(BATCH_BYTES_MAX) && !group.is_empty() {
                self.waiting.push_front(commit);
                break;
            }
            group.push(commit);
        }
        self.running = !group.is_empty();
        group
    }
}

impl Inner {
    /// Nothing is decided until the entry is in the journal; from then on nothing can take it back. `shortage`: who has
    /// to hold the journal is not there.
    pub(crate) fn submit(
        self: &Arc<Self>,
        number: Number,
        key: TransactionKey,
        by_operator: bool,
        shortage: Option<String>,
        done: Done,
    ) {
        if self.ends_empty(number) {
            return done(Ok(String::new()));
        }
        let ready = match shortage {
            Some(reason) => Err(reason),
            None => self.ready(number),
        };
        match ready {
            Ok(ready) => {
                let mut commits = self.commits.lock();
                commits.waiting.push_back(Commit { number, key, by_operator, ready, done });
                if !std::mem::replace(&mut commits.running, true) {
                    self.spawn_here(Arc::clone(self).run_commits());
                }
            }
            Err(reason) => {
                let inner = Arc::clone(self);
                self.spawn(async move { done(Err(inner.not_committed(number, &key, &reason).await)) });
            }
        }
    }

    /// Until nothing waits. What comes while the journal is synced makes up the next group.
    async fn run_commits(self: Arc<Self>) {
        loop {
            // Behind the sessions that have something to do now: what they commit goes along.
            tokio::task::yield_now().await;
            let group = self.commits.lock().next_group();
            if group.is_empty() {
                return self.sync_owed();
            }
            // Several go into one write; one alone may be so large that a session must not be kept that long.
            let is_large = matches!(&group[..], [only] if only.bytes() > u64::from(BATCH_BYTES_MAX));
            if !is_large {
                self.commit_group(group).await;
                continue;
            }
            let (inner, (written, is_written)) = (Arc::clone(&self), oneshot::channel());
            self.spawn(async move {
                inner.commit_group(group).await;
                let _ = written.send(());
            });
            // It ends as well when the task is dropped, with the coordinator.
            let _ = is_written.await;
        }
    }

    async fn commit_group(self: &Arc<Self>, group: Vec<Commit>) {
        let decisions = self.decisions(&group);
        let outcome = match decisions {
            Ok((records, starts)) => {
                self.append(records, self.settings.synced).await.map(|appended| (appended, starts))
            }
            Err(error) => Err(error),
        };
        match outcome {
            Ok((appended, starts)) => self.decided(&appended, starts, group),
            // One alone may still fit on the disk.
            Err(AppendError::Refused(Refusal::DiskFull(_))) if group.len() > 1 => {
                for commit in group {
                    Box::pin(self.commit_group(vec![commit])).await;
                }
            }
            Err(AppendError::Refused(refusal)) => {
                for Commit { number, key, done, .. } in group {
                    done(Err(self.not_committed(number, &key, &refusal.to_string()).await));
                }
            }
            Err(error) => {
                for Commit { number, key, done, .. } in group {
                    done(Err(self.doubt(number, &key, &error)));
                }
            }
        }
    }

    /// The entries of a group, for one run, so that they are there or not, and how far behind its start those of each
    /// commit begin.
    fn decisions(&self, group: &[Commit]) -> Result<(Vec<BatchRecord>, Vec<u64>), AppendError> {
        let notes = std::mem::take(&mut self.commits.lock().notes);
        let mut records = self.entry_records(notes)?;
        let mut bytes: u64 = records.iter().map(record_bytes).sum();
        let mut starts = Vec::with_capacity(group.len());
        for commit in group {
            starts.push(bytes);
            let first = records.len();
            records.extend(commit.ready.held.iter().map(Held::record));
            let what = What::Commit { by_operator: commit.by_operator, parts: commit.ready.parts.clone() };
            records.extend(self.entry_records([encode(commit.number, &commit.key, &what)])?);
            bytes += records[first..].iter().map(record_bytes).sum::<u64>();
        }
        Ok((records, starts))
    }

    /// The batches go into their partitions in the order of the decisions; who waits for them is not waited for here.
    fn decided(self: &Arc<Self>, appended: &Appended, starts: Vec<u64>, group: Vec<Commit>) {
        let (mut decided, mut answers) = (Vec::with_capacity(group.len()), Vec::with_capacity(group.len()));
        for (Commit { number, key, by_operator, ready, done }, start) in group.into_iter().zip(starts) {
            let Ready { held, batches, parts } = ready;
            let placed = placed(&held, appended.offset + start);
            decided.push(Decided { number, key, by_operator, batches, parts, placed, again: false });
            answers.push(done);
        }
        let storing = self.append_batches(last_byte(appended), decided);
        let (inner, patience) = (Arc::clone(self), self.settings.confirm_within);
        self.spawn_here(async move {
            let replies = inner.finish(storing, patience).await;
            answers.into_iter().zip(replies).for_each(|(done, reply)| done(reply));
        });
    }

    /// One append a partition. `at`: the last byte of the decisions in the journal.
    pub(crate) fn append_batches(&self, at: Offset, mut decided: Vec<Decided>) -> Storing {
        let mut runs: Vec<Run> = Vec::new();
        for (of, one) in decided.iter_mut().enumerate() {
            for Batch { partition, records } in one.batches.drain(..) {
                let share = Share { of, records };
                match runs.iter_mut().find(|run| run.partition == partition) {
                    Some(run) => run.shares.push(share),
                    None => {
                        let log = self.partition(&partition);
                        runs.push(Run { partition, log, shares: vec![share], outcome: None });
                    }
                }
            }
        }
        let logged = runs.iter_mut().filter_map(|run| run.append(self.settings.synced));
        self.commits.lock().owed.extend(logged);
        Storing { at, decided, runs }
    }

    /// Has the batches synced that came into their partitions before. Their transactions are answered already.
    pub(crate) fn sync_owed(&self) {
        let owed = std::mem::take(&mut self.commits.lock().owed);
        owed.iter().for_each(Partition::sync_logged);
    }

    /// Waits for the partitions, and for as many members as have to hold the journal; the answers in the order of the
    /// decisions.
    pub(crate) async fn finish(&self, storing: Storing, patience: Duration) -> Vec<Result<String, Refused>> {
        let Storing { at, decided, runs } = storing;
        let mut fates: Vec<Fate> = decided.iter().map(|_| Fate::default()).collect();
        for run in runs {
            run.settle(&mut fates).await;
        }
        for fate in &fates {
            self.checkpoints.lock().note_applied(&fate.applied);
        }
        // Told of a commit, the coordinator forgets it: so whoever may be promoted must not find the branch undecided.
        let confirmed = fates.iter().all(|fate| !fate.left.is_empty()) || self.confirmed(at, patience).await;
        decided.into_iter().zip(fates).map(|(one, fate)| self.conclude(at, one, fate, confirmed)).collect()
    }

    fn conclude(&self, at: Offset, one: Decided, fate: Fate, confirmed: bool) -> Result<String, Refused> {
        let Decided { number, key, by_operator, parts, placed, again, .. } = one;
        let Fate { applied, left, trouble } = fate;
        if left.is_empty() && confirmed {
            // Lost, it only makes the next start look for the batches.
            let note = encode(number, &key, &What::Applied { parts: applied });
            self.commits.lock().notes.push(note);
            self.ended(number, Outcome::Committed, by_operator);
            return Ok(String::new());
        }
        let refused = match left.is_empty() {
            true => Refused::committing(&key, AppendError::Unconfirmed),
            false => Refused::committing(&key, &trouble),
        };
        if !left.is_empty() && !again {
            tracing::error!(%key, trouble, "a committed transaction is not stored everywhere yet; trying on");
        }
        let mut table = self.table.lock();
        if let Some(transaction) = table.get(number) {
            transaction.messages.extend(placed);
        }
        table.release(number, State::Decided { at, parts, left, by_operator });
        Err(refused)
    }

    /// Writes the entries nobody waits for, which no decision came to take along.
    pub(crate) async fn write_notes(&self) {
        let notes = std::mem::take(&mut self.commits.lock().notes);
        if let Ok(records) = self.entry_records(notes)
            && !records.is_empty()
        {
            // Lost, they only make the next start look for the batches.
            let _ = self.append(records, false).await;
        }
    }
}

impl Run {
    /// `is_logged`: the journal holds the batch durably, so there is no sync to wait for, and one is owed to the partition
    /// that comes back. Where members of a quorum are asked, they are waited for.
    fn append(&mut self, is_logged: bool) -> Option<Arc<Partition>> {
        match &self.log {
            Ok(log) => {
                let records = self.shares.iter().flat_map(|share| share.records.iter().cloned()).collect();
                let (ack, outcome) = ack();
                self.outcome = Some(outcome);
                if is_logged && log.confirmed() == Offset::MAX {
                    log.append_logged(records, ack);
                    return Some(Arc::clone(log));
                }
                log.append_batch(records, ack);
            }
            Err(reason) => tracing::error!(partition = %self.partition, reason, "a batch cannot be stored"),
        }
        None
    }

    /// Adds to each transaction's fate what has become of its share.
    async fn settle(self, fates: &mut [Fate]) {
        let Run { partition, log, shares, outcome } = self;
        let together = match outcome {
            Some(outcome) => outcome.await.map_err(Some),
            None => Err(None),
        };
        let several = shares.len() > 1;
        match (together, log) {
            (Ok(appended), _) => {
                let mut at = appended.offset;
                for share in shares {
                    let size = share.bytes();
                    fates[share.of].applied.push(Part { partition: partition.clone(), at, size });
                    at = at + u64::from(size);
                }
            }
            // One alone may still fit on the disk.
            (Err(Some(AppendError::Refused(Refusal::DiskFull(_)))), Ok(log)) if several => {
                for share in shares {
                    let log = Ok(Arc::clone(&log));
                    let mut run = Run { partition: partition.clone(), log, shares: vec![share], outcome: None };
                    run.append(false);
                    Box::pin(run.settle(fates)).await;
                }
            }
            (Err(error), log) => {
                let trouble = error.map(|error| error.to_string()).or(log.err()).unwrap_or_default();
                for share in shares {
                    fates[share.of].left.push(partition.clone());
                    fates[share.of].trouble.clone_from(&trouble);
                }
            }
        }
    }
}

impl Share {
    fn bytes(&self) -> u32 {
        self.records.iter().map(record_bytes).sum::<u64>() as u32
    }
}

fn record_bytes(record: &BatchRecord) -> u64 {
    u64::from(RECORD_HEADER_BYTES) + record.body.len() as u64
}

pub(crate) fn last_byte(appended: &Appended) -> Offset {
    appended.offset + u64::from(appended.bytes - 1)
}
