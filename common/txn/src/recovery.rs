//! A start, or a promotion, out of the journal: finish what is decided, roll back what is not, keep what is prepared.

use crate::coordinator::{OpenError, Settings, partition_of};
use crate::entry::{Number, Part, What, encode};
use crate::original;
use crate::replay::{Decision, History, Logged, Past, replay};
use crate::reply::Refused;
use crate::table::{State, Table};
use crate::work::{ack, read_message};
use metaq_store::{AppendError, Appended, BatchRecord, Partition, RulesFor, Store};
use metaq_types::{MessageId, Offset};
use metaq_wire::{Text, TransactionKey};
use std::collections::HashSet;
use std::io;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Instant;

/// What a start found in the journal.
#[derive(Clone, Debug, Default)]
pub struct Recovered {
    /// Branches that wait for their coordinator.
    pub prepared: Vec<String>,
    /// Transactions that were neither prepared nor decided.
    pub rolled_back: usize,
    /// Committed ones that had to be stored, wholly or in part, each with what was done.
    pub completed: Vec<String>,
    /// What could not be read or stored, each a sentence.
    pub trouble: Vec<String>,
    /// Transactions taken over from the original's journal.
    pub imported: usize,
}

pub(crate) fn recover(
    store: &Store,
    journal: &Arc<Partition>,
    settings: &Settings,
    rules: &RulesFor,
) -> Result<(Table, Recovered), OpenError> {
    let mut recovered = Recovered::default();
    let mut history = replay(journal).map_err(OpenError::Read)?;
    let imported = original::import(&settings.original_journal, store, journal, &history, &mut recovered)
        .map_err(|reason| OpenError::Import { path: settings.original_journal.clone(), reason })?;
    if imported {
        history = replay(journal).map_err(OpenError::Read)?;
    }
    recovered.trouble.append(&mut history.damage);
    let mut recovery = Recovery { store, journal, rules, table: Table::new(history.last), recovered };
    recovery.run(history)?;
    if imported {
        original::set_aside(&settings.original_journal)
            .map_err(|reason| OpenError::Import { path: settings.original_journal.clone(), reason })?;
    }
    let Recovery { table, mut recovered, .. } = recovery;
    recovered.prepared = table.recover(None);
    Ok((table, recovered))
}

/// Which batches are completed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Which {
    /// Those of which a part is there.
    Torn,
    All,
}

struct Recovery<'a> {
    store: &'a Store,
    journal: &'a Arc<Partition>,
    rules: &'a RulesFor,
    table: Table,
    recovered: Recovered,
}

impl Recovery<'_> {
    fn run(&mut self, history: History) -> Result<(), OpenError> {
        let now = Instant::now();
        let mut committed = Vec::new();
        for (number, past) in history.transactions {
            let key = match TransactionKey::parse(&Text::from(past.key.as_str())) {
                Ok(Some(key)) => key,
                _ => {
                    self.recovered.trouble.push(format!("'{}' is no transaction key", past.key));
                    continue;
                }
            };
            if let Some(decision) = past.commit.clone() {
                committed.push((number, key, past, decision));
            } else if let Some(outcome) = past.ended {
                self.table.restore(number, &key, State::Ended(outcome), past.first, now).outcome = Some(outcome);
            } else if past.prepared {
                let transaction = self.table.restore(number, &key, State::Prepared, past.first, now);
                add_messages(transaction, &past.messages);
                transaction.lost = past.lost();
                if transaction.lost > 0 {
                    let reason = Refused::lost(&key, transaction.lost);
                    self.recovered.trouble.push(format!("the prepared branch '{key}': {}", reason.text()));
                }
            } else if past.applied.is_empty() {
                self.enter(number, &past.key, &What::Rollback { by_operator: false })?;
                self.recovered.rolled_back += 1;
            }
            // Else it was committed, and all but the end of its entries was cut off the journal.
        }
        for (_, key, past, decision) in &committed {
            self.complete_torn(key, past, decision);
        }
        // In the order they were decided, as they would have been stored.
        committed.sort_unstable_by_key(|(.., decision)| decision.at);
        for (number, key, past, decision) in &committed {
            self.finish(*number, key, past, decision)?;
        }
        Ok(())
    }

    /// Completes batches whose write was cut short, while nothing stands behind them yet. What cannot be done now is
    /// told by [`Recovery::finish`].
    fn complete_torn(&mut self, key: &TransactionKey, past: &Past, decision: &Decision) {
        for part in &decision.parts {
            let messages = past.messages_for(part);
            let applied = past.applied_to(part);
            if let Ok(Some(appended)) = self.finish_part(part, applied, &messages, Which::Torn) {
                self.recovered.completed.push(format!("'{key}' in {} at {}", part.partition, appended.at));
            }
        }
    }

    /// Sees to it that every batch of a decision is in its partition, once and whole.
    fn finish(
        &mut self,
        number: Number,
        key: &TransactionKey,
        past: &Past,
        decision: &Decision,
    ) -> Result<(), OpenError> {
        let Decision { at, by_operator, parts } = decision;
        let (mut stored, mut left) = (Vec::new(), Vec::new());
        for part in parts {
            let (messages, applied) = (past.messages_for(part), past.applied_to(part));
            if messages.len() < part.size as usize {
                // The front of the journal is cut when what it told is safe; the end of it may remain.
                if applied.is_some_and(|applied| self.reaches(applied)) {
                    continue;
                }
                let lost = part.size as usize - messages.len();
                self.recovered.trouble.push(format!("{lost} messages of '{key}' for {} are lost", part.partition));
            }
            match self.finish_part(part, applied, &messages, Which::All) {
                Ok(None) => {}
                Ok(Some(appended)) => {
                    self.recovered.completed.push(format!("'{key}' in {} at {}", part.partition, appended.at));
                    stored.push(appended);
                }
                Err(reason) => {
                    self.recovered
                        .trouble
                        .push(format!("'{key}' cannot be stored in {} yet: {reason}", part.partition));
                    left.push(part.partition.clone());
                }
            }
        }
        if !stored.is_empty() {
            self.enter(number, &past.key, &What::Applied { parts: stored })?;
        }
        // Not confirmed by those who have to hold it, it was not answered as done: who asks again must not be told that it
        // is unknown, and so forgotten, before they do.
        let confirmed = self.journal.confirmed() > *at || matches!(key, TransactionKey::Local { .. });
        let by_operator = *by_operator;
        let state = match (left.is_empty() && confirmed, by_operator) {
            (true, false) => return Ok(()),
            (true, true) => State::Ended(crate::entry::Outcome::Committed),
            (false, _) => State::Decided { at: *at, parts: parts.clone(), left, by_operator },
        };
        let transaction = self.table.restore(number, key, state, past.first, Instant::now());
        transaction.outcome = Some(crate::entry::Outcome::Committed);
        add_messages(transaction, &past.messages);
        Ok(())
    }

    /// Whether a partition has all of the place where a batch was stored.
    fn reaches(&self, applied: &Part) -> bool {
        let Part { partition, at, size } = applied;
        let partition = self.store.get(&partition.topic, partition.number as i32);
        partition.is_none_or(|partition| partition.positions().written >= *at + u64::from(*size))
    }

    /// `None` when the batch was there.
    fn finish_part(
        &self,
        part: &Part,
        applied: Option<&Part>,
        messages: &[&Logged],
        which: Which,
    ) -> Result<Option<Part>, String> {
        let Some(first) = messages.first() else { return Ok(None) };
        let partition = partition_of(self.store, self.rules, &part.partition)?;
        if applied.is_some_and(|applied| is_there(&partition, applied, first)) {
            return Ok(None);
        }
        let ids: Vec<_> = messages.iter().map(|message| message.id).collect();
        let Missing { ids: missing, cut_short } =
            missing(&partition, part.at, &ids).map_err(|error| error.to_string())?;
        if which == Which::Torn && !cut_short {
            return Ok(None);
        }
        let records: Result<Vec<BatchRecord>, String> = messages
            .iter()
            .filter(|message| missing.contains(&message.id))
            .map(|message| read_message(self.journal, message.at, message.bytes))
            .collect();
        let records = records?;
        if records.is_empty() {
            return Ok(None);
        }
        let (ack, outcome) = ack();
        partition.append_batch(records, ack);
        let Appended { offset, bytes, .. } = outcome.wait().map_err(|error| error.to_string())?;
        // Of a batch that was cut short, this is its end; the whole of it begins earlier.
        let already: u64 = messages
            .iter()
            .filter(|message| cut_short && !missing.contains(&message.id))
            .map(|message| self.bytes_of(message))
            .sum();
        let at = Offset::new(offset.get().saturating_sub(already)).unwrap_or(offset);
        Ok(Some(Part { partition: part.partition.clone(), at, size: bytes + already as u32 }))
    }

    /// Of the stored record.
    fn bytes_of(&self, message: &Logged) -> u64 {
        read_message(self.journal, message.at, message.bytes).map_or(0, |record| 20 + record.body.len() as u64)
    }

    fn enter(&self, number: Number, key: &str, what: &What) -> Result<(), OpenError> {
        let (ack, outcome) = ack();
        self.journal.append_entry(encode(number, &key, what), false, ack);
        outcome.wait().map(drop).map_err(|error: AppendError| OpenError::Append(error))
    }
}

fn add_messages(transaction: &mut crate::table::Transaction, messages: &[Logged]) {
    for Logged { at, bytes, partition, .. } in messages {
        transaction.add(partition, *at, *bytes);
    }
}

/// Whether a batch is where it was said to be, or has been there: what retention took away was stored.
fn is_there(partition: &Partition, applied: &Part, first: &Logged) -> bool {
    let positions = partition.positions();
    if applied.at < positions.kept {
        return true;
    }
    let end = applied.at + u64::from(applied.size);
    end <= positions.written
        && partition.header_at(applied.at).is_some_and(|header| header.id == first.id)
        && !partition.has_damage(applied.at, end)
}

/// What a partition does not hold of a batch.
pub(crate) struct Missing {
    pub(crate) ids: HashSet<MessageId>,
    /// The others are the end of the log: what is missing belongs right behind them.
    cut_short: bool,
}

/// Which messages of a batch a partition does not hold from `from` on. A batch of which the first messages are there
/// and end the log was cut short. One with other messages behind it has damage in it: its commit may have been answered
/// before it was synced, and what a power failure leaves of bytes that were not may be the later ones.
pub(crate) fn missing(partition: &Partition, from: Offset, ids: &[MessageId]) -> io::Result<Missing> {
    let mut missing: HashSet<_> = ids.iter().copied().collect();
    let mut last_found_end = None;
    partition.walk(from, |at, header, _| {
        if missing.remove(&header.id) {
            last_found_end = Some(at + header.record_bytes());
        }
        if missing.is_empty() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })?;
    let cut_short = last_found_end.is_some_and(|end| end == partition.positions().written);
    Ok(Missing { ids: missing, cut_short })
}
