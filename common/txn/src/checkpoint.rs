//! Keeping the journal short: marks of what is not needed any more, old live transactions told again, the front cut.

use crate::coordinator::Inner;
use crate::entry::{Number, Part, What, encode};
use crate::table::State;
use crate::work::ack;
use bytes::Bytes;
use metaq_store::{BatchRecord, Partition};
use metaq_types::{Offset, PartitionId};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Instant;

/// The marks taken, oldest first. The journal is cut at the oldest when there are more than may be kept, so that what
/// was committed lately is still there to be looked for after a loss of power, or on a slave that is promoted.
pub(crate) struct Checkpoints {
    marks: VecDeque<Mark>,
    /// Where the batches stored since the last mark end.
    applied: HashMap<PartitionId, Offset>,
    last_at: Instant,
    last_end: Offset,
}

/// Before `low` only finished transactions have entries; their batches are safe once their partitions are durable up to
/// `applied`.
struct Mark {
    low: Offset,
    applied: HashMap<PartitionId, Offset>,
}

impl Checkpoints {
    pub(crate) fn new(journal: &Partition) -> Checkpoints {
        let last_end = journal.positions().written;
        Checkpoints { marks: VecDeque::new(), applied: HashMap::new(), last_at: Instant::now(), last_end }
    }

    /// Takes a mark. `end`: where the journal ended before `oldest`, the first place that a live transaction needs, was
    /// looked up; whatever has come since is behind it.
    fn mark(&mut self, end: Offset, oldest: Option<Offset>) {
        let low = oldest.map_or(end, |oldest| oldest.min(end));
        let applied = std::mem::take(&mut self.applied);
        self.marks.push_back(Mark { low, applied });
        (self.last_at, self.last_end) = (Instant::now(), end);
    }

    pub(crate) fn note_applied(&mut self, parts: &[Part]) {
        for Part { partition, at, size } in parts {
            let end = *at + u64::from(*size);
            let known = self.applied.entry(partition.clone()).or_insert(end);
            *known = (*known).max(end);
        }
    }
}

impl Inner {
    /// Takes a mark when one is due, and cuts the journal where the oldest allows it.
    pub(crate) async fn checkpoint(self: &Arc<Self>) {
        // Before the table is looked at: what comes into the journal later is behind it.
        let end = self.journal.positions().written;
        let due = {
            let checkpoints = self.checkpoints.lock();
            let grown = end.bytes_since(checkpoints.last_end) >= self.settings.checkpoint_bytes;
            let old = checkpoints.last_at.elapsed() >= self.settings.checkpoint_interval && end > checkpoints.last_end;
            grown || old
        };
        if due {
            self.tell_again(self.old_and_live(end)).await;
            let oldest = self.table.lock().oldest();
            self.checkpoints.lock().mark(end, oldest);
        }
        self.cut().await;
    }

    /// Prepared and ended transactions whose entries lie far back: they may stay for days.
    fn old_and_live(&self, end: Offset) -> Vec<Number> {
        let table = self.table.lock();
        let is_old = |first: Offset| end.bytes_since(first) >= self.settings.checkpoint_bytes;
        let stays = |state: &State| matches!(state, State::Prepared | State::Ended(_));
        let old = table.all().filter(|(_, t)| stays(&t.state) && t.first.is_some_and(is_old));
        old.map(|(number, _)| number).collect()
    }

    async fn tell_again(&self, numbers: Vec<Number>) {
        for number in numbers {
            let state = self.table.lock().get(number).map(|transaction| transaction.state.clone());
            let Some(state) = state else { continue };
            let claimed = self.table.lock().claim_own(number, |now| *now == state && *now != State::Busy);
            if !claimed {
                continue;
            }
            if let Err(reason) = self.tell_one_again(number, &state).await {
                tracing::warn!(reason, "a prepared transaction could not be written to the journal anew");
            }
            self.table.lock().release(number, state);
        }
    }

    /// One run of entries that says all there is to say about a transaction, with the ids its messages have.
    async fn tell_one_again(&self, number: Number, state: &State) -> Result<(), String> {
        let (key, messages, lost) = {
            let mut table = self.table.lock();
            let transaction = table.get(number).ok_or("it is gone")?;
            (transaction.key.clone(), transaction.messages.clone(), transaction.lost)
        };
        let outcome = if let State::Ended(outcome) = state { Some(*outcome) } else { None };
        let mut records = vec![self.entry_record(encode(number, &key, &What::Again { outcome }))?];
        for message in &messages {
            let (header, body) =
                self.journal.read_record(message.at, message.bytes).map_err(|error| error.to_string())?;
            let body = Bytes::from(body);
            records.push(BatchRecord { id: header.id, flag: 0, checksum: header.checksum, body });
        }
        if outcome.is_none() {
            let prepared = What::Prepare { messages: Some(messages.len() as u32 + lost) };
            records.push(self.entry_record(encode(number, &key, &prepared))?);
        }
        let lengths: Vec<u64> = records.iter().map(|record| 20 + record.body.len() as u64).collect();
        let (ack, appended) = ack();
        self.journal.append_batch(records, ack);
        let appended = appended.await.map_err(|error| error.to_string())?;
        let whole = Part { partition: PartitionId::journal(), at: appended.offset, size: appended.bytes };
        self.checkpoints.lock().note_applied(&[whole]);
        let mut table = self.table.lock();
        let transaction = table.get(number).ok_or("it is gone")?;
        transaction.first = Some(appended.offset);
        let mut at = appended.offset + lengths[0];
        for (message, length) in transaction.messages.iter_mut().zip(&lengths[1..]) {
            message.at = at;
            at = at + *length;
        }
        Ok(())
    }

    fn entry_record(&self, body: Bytes) -> Result<BatchRecord, String> {
        let id = self.store.ids().next().map_err(|error| error.to_string())?;
        Ok(BatchRecord { id, flag: 0, checksum: metaq_wire::checksum(&body), body })
    }

    /// Drops the segments before the oldest mark, once there are marks enough and its batches are safe.
    async fn cut(&self) {
        let low = {
            let checkpoints = self.checkpoints.lock();
            if checkpoints.marks.len() <= self.settings.checkpoints_max as usize {
                return;
            }
            let mark = &checkpoints.marks[0];
            if !mark.applied.iter().all(|(partition, end)| self.is_durable(partition, *end)) {
                return;
            }
            mark.low
        };
        let journal = Arc::clone(&self.journal);
        let cut = tokio::task::spawn_blocking(move || journal.trim_to(journal.nearest(low.wire()))).await;
        match cut {
            Ok(removed) => {
                if let Some(fault) = removed.fault {
                    tracing::warn!(%fault, "the transaction journal could not be cut");
                }
                self.checkpoints.lock().marks.pop_front();
                if removed.segments > 0 {
                    // Slaves let theirs begin where ours does.
                    self.store.bump_catalog();
                }
            }
            Err(error) => tracing::error!(%error, "cutting the transaction journal ended badly"),
        }
    }

    /// Asks for a sync where it is not. A partition that is gone needs nothing any more.
    fn is_durable(&self, partition: &PartitionId, end: Offset) -> bool {
        let log = match partition.is_journal() {
            true => Some(Arc::clone(&self.journal)),
            false => self.store.get(&partition.topic, partition.number as i32),
        };
        let Some(log) = log else { return true };
        let durable = log.positions().durable >= end;
        if !durable {
            log.request_sync();
        }
        durable
    }
}

#[cfg(test)]
mod tests;
