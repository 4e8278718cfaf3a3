//! The transactions that are not over. `claims.rs` has what each command means in each of their states. No I/O.

mod claims;
mod transaction;

pub use claims::Command;
pub(crate) use claims::{Claim, Work};
pub(crate) use transaction::{Message, State, Transaction};

use crate::entry::{Number, Outcome};
use crate::held::Held;
use crate::reply::Refused;
use metaq_types::limits::{RUN_BYTES_MAX, TRANSACTION_MESSAGES_MAX, TRANSACTIONS_MAX};
use metaq_types::{Offset, PartitionId};
use metaq_wire::{Text, TransactionKey};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// A connection, as far as local transactions are bound to one.
pub type SessionId = u64;

/// Of XA transactions, which any connection may end. No connection has this number.
const NO_SESSION: SessionId = 0;

/// How much of the messages that are not in the journal may wait in memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HeldMax {
    /// Of one transaction, in bytes.
    pub(crate) of_one: u64,
    /// Of all.
    pub(crate) of_all: u64,
}

/// What becomes of a message.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Taken {
    /// It waits in memory.
    Held,
    /// It goes into the journal now, behind what has waited.
    Run(Vec<Held>),
}

/// One line for an operator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    pub key: String,
    /// open, prepared, ending, committing, in-doubt, committed, rolled-back, completed
    pub state: &'static str,
    pub age: Duration,
    pub messages: usize,
    pub bytes: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Table {
    last: Number,
    by_number: BTreeMap<Number, Transaction>,
    by_name: HashMap<(SessionId, TransactionKey), Number>,
    deadlines: BTreeSet<(Instant, Number)>,
    by_session: BTreeSet<(SessionId, Number)>,
    /// Of all transactions.
    held_bytes: u64,
}

fn name(session: SessionId, key: &TransactionKey) -> (SessionId, TransactionKey) {
    match key {
        TransactionKey::Local { .. } => (session, key.clone()),
        TransactionKey::Xa { .. } => (NO_SESSION, key.clone()),
    }
}

/// In memory of its own: a key of a request shares the connection's read buffer.
fn detached(key: &TransactionKey) -> TransactionKey {
    match key {
        TransactionKey::Local { session, number } => {
            TransactionKey::Local { session: session.detached(), number: *number }
        }
        TransactionKey::Xa { format_id, global, branch, qualifier } => TransactionKey::Xa {
            format_id: *format_id,
            global: global.clone(),
            branch: branch.clone(),
            qualifier: Text::detached(qualifier),
        },
    }
}

impl Table {
    /// Numbers go on above `last`.
    pub(crate) fn new(last: Number) -> Table {
        Table { last, ..Table::default() }
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = (Number, &Transaction)> {
        self.by_number.iter().map(|(number, transaction)| (*number, transaction))
    }

    /// Begins a transaction, unless it has begun already.
    pub(crate) fn begin(
        &mut self,
        session: SessionId,
        key: &TransactionKey,
        timeout: Option<Duration>,
        timers_max: u32,
        now: Instant,
    ) -> Result<(), Refused> {
        let name = name(session, &detached(key));
        if let Some(known) = self.by_name.get(&name) {
            return match self.by_number[known].state {
                State::Ended(outcome) => Err(Refused::heuristic(key, outcome)),
                _ => Ok(()),
            };
        }
        if self.by_number.len() >= TRANSACTIONS_MAX {
            return Err(Refused::plain(format!("{TRANSACTIONS_MAX} transactions are open, which is the limit")));
        }
        if timeout.is_some() && self.deadlines.len() >= timers_max as usize {
            return Err(Refused::too_many_timers(self.deadlines.len() + 1, timers_max));
        }
        let deadline = timeout.and_then(|timeout| now.checked_add(timeout));
        let number = self.next_number();
        if let Some(deadline) = deadline {
            self.deadlines.insert((deadline, number));
        }
        self.insert(number, name, State::Open, deadline, now);
        Ok(())
    }

    /// Puts in what the journal tells of, from `first` on.
    pub(crate) fn restore(
        &mut self,
        number: Number,
        key: &TransactionKey,
        state: State,
        first: Offset,
        now: Instant,
    ) -> &mut Transaction {
        let transaction = self.insert(number, name(NO_SESSION, key), state, None, now);
        transaction.first = Some(first);
        transaction
    }

    pub(crate) fn next_number(&mut self) -> Number {
        self.last += 1;
        self.last
    }

    fn insert(
        &mut self,
        number: Number,
        (session, key): (SessionId, TransactionKey),
        state: State,
        deadline: Option<Instant>,
        since: Instant,
    ) -> &mut Transaction {
        if session != NO_SESSION {
            self.by_session.insert((session, number));
        }
        self.by_name.insert((session, key.clone()), number);
        let was_prepared = state != State::Open;
        let transaction = Transaction {
            key,
            session,
            state,
            was_prepared,
            messages: Vec::new(),
            lost: 0,
            held: Vec::new(),
            held_bytes: 0,
            targets: Vec::new(),
            first: None,
            outcome: None,
            run_bytes: 0,
            in_flight: 0,
            deadline,
            since,
            waiting: Vec::new(),
        };
        self.by_number.entry(number).or_insert(transaction)
    }

    pub(crate) fn get(&mut self, number: Number) -> Option<&mut Transaction> {
        self.by_number.get_mut(&number)
    }

    fn find(&self, session: SessionId, key: &TransactionKey) -> Option<Number> {
        self.by_name.get(&name(session, key)).copied()
    }

    /// The transaction, if it takes messages.
    pub(crate) fn open(&self, session: SessionId, key: &TransactionKey) -> Result<Number, Refused> {
        let number = self.find(session, key).ok_or_else(|| Refused::not_started(key).for_put())?;
        self.by_number[&number].takes_messages()?;
        Ok(number)
    }

    /// Takes a message in. `journal_end`: where the journal was written up to a moment ago.
    pub(crate) fn put(
        &mut self,
        number: Number,
        key: &TransactionKey,
        partition: &PartitionId,
        mut message: Held,
        held_max: HeldMax,
        journal_end: Offset,
    ) -> Result<Taken, Refused> {
        let transaction = self.by_number.get_mut(&number).ok_or_else(|| Refused::not_started(key).for_put())?;
        transaction.takes_messages()?;
        let messages = transaction.message_count();
        let larger = transaction.run_bytes + u64::from(message.message_bytes());
        if larger > u64::from(RUN_BYTES_MAX) || messages >= TRANSACTION_MESSAGES_MAX {
            let text = format!(
                "not stored: a transaction holds at most {RUN_BYTES_MAX} bytes in {TRANSACTION_MESSAGES_MAX} messages, \
                 and '{key}' has {} bytes in {messages} already",
                transaction.run_bytes
            );
            return Err(Refused::plain(text));
        }
        transaction.run_bytes = larger;
        message.target = transaction.target(partition);
        let bytes = u64::from(message.bytes());
        transaction.held.push(message);
        transaction.held_bytes += bytes;
        self.held_bytes += bytes;
        if transaction.held_bytes <= held_max.of_one && self.held_bytes <= held_max.of_all {
            return Ok(Taken::Held);
        }
        let run = self.take_held(number, journal_end);
        let transaction = self.by_number.get_mut(&number).expect("it was there a moment ago");
        transaction.in_flight += run.len() as u32;
        Ok(Taken::Run(run))
    }

    /// What has waited in memory and is to be written to the journal now; none of it will stand before `journal_end`.
    pub(crate) fn take_held(&mut self, number: Number, journal_end: Offset) -> Vec<Held> {
        let Some(transaction) = self.by_number.get_mut(&number) else { return Vec::new() };
        transaction.first.get_or_insert(journal_end);
        self.held_bytes -= std::mem::take(&mut transaction.held_bytes);
        std::mem::take(&mut transaction.held)
    }

    /// It could not be written, and waits on.
    pub(crate) fn hold_again(&mut self, number: Number, run: Vec<Held>) {
        let Some(transaction) = self.by_number.get_mut(&number) else { return };
        let bytes = run.iter().map(|held| u64::from(held.bytes())).sum::<u64>();
        transaction.held_bytes += bytes;
        self.held_bytes += bytes;
        transaction.held.extend(run);
        // Those that came meanwhile have larger ids.
        transaction.held.sort_by_key(Held::id);
    }

    /// A run of messages is in the journal.
    pub(crate) fn run_done(&mut self, number: Number, messages: Vec<Message>) {
        let Some(transaction) = self.by_number.get_mut(&number) else { return };
        transaction.landed(messages.len());
        transaction.messages.extend(messages);
    }

    /// A run of messages is surely not in the journal. The last of them is refused, those that were answered wait on.
    pub(crate) fn run_failed(&mut self, number: Number, mut run: Vec<Held>) {
        let Some(transaction) = self.by_number.get_mut(&number) else { return };
        transaction.landed(run.len());
        if let Some(refused) = run.pop() {
            transaction.run_bytes -= u64::from(refused.message_bytes());
        }
        self.hold_again(number, run);
    }

    /// `None` when no put is in flight; else what ends when that has changed.
    pub(crate) fn unsettled(&mut self, number: Number) -> Option<oneshot::Receiver<()>> {
        let transaction = self.by_number.get_mut(&number)?;
        (transaction.in_flight > 0).then(|| transaction.wait())
    }

    /// Ends an open transaction nothing of which was written: there is nothing to roll back. `false`: it is no such.
    pub(crate) fn end_unwritten(&mut self, number: Number) -> bool {
        let unwritten = self.by_number.get(&number).is_some_and(|t| t.state == State::Open && t.first.is_none());
        if unwritten {
            self.end(number);
        }
        unwritten
    }

    /// The transaction is over and forgotten.
    pub(crate) fn end(&mut self, number: Number) {
        let Some(transaction) = self.by_number.remove(&number) else { return };
        if let Some(deadline) = transaction.deadline {
            self.deadlines.remove(&(deadline, number));
        }
        self.held_bytes -= transaction.held_bytes;
        self.by_session.remove(&(transaction.session, number));
        self.by_name.remove(&(transaction.session, transaction.key));
    }

    /// Open transactions whose time is over, the oldest first.
    pub(crate) fn expired(&self, now: Instant) -> Vec<Number> {
        self.deadlines.iter().take_while(|(deadline, _)| *deadline <= now).map(|(_, number)| *number).collect()
    }

    /// The transactions bound to a connection.
    pub(crate) fn of_session(&self, session: SessionId) -> Vec<Number> {
        self.by_session.range((session, 0)..=(session, Number::MAX)).map(|(_, number)| *number).collect()
    }

    /// Committed ones with batches left to store.
    pub(crate) fn decided(&self) -> Vec<Number> {
        self.all().filter(|(_, t)| matches!(t.state, State::Decided { .. })).map(|(number, _)| number).collect()
    }

    /// Keys for a coordinator: the prepared in the order they began, then those the operator ended.
    pub(crate) fn recover(&self, qualifier: Option<&str>) -> Vec<String> {
        let matches = |transaction: &&Transaction| match &transaction.key {
            TransactionKey::Xa { qualifier: own, .. } => qualifier.is_none_or(|wanted| wanted == own.as_str()),
            TransactionKey::Local { .. } => false,
        };
        let is_ended = |transaction: &&Transaction| matches!(transaction.state, State::Ended(_));
        let listed: Vec<_> = self.by_number.values().filter(|t| t.was_prepared).filter(matches).collect();
        let prepared = listed.iter().filter(|t| !is_ended(t));
        let ended = listed.iter().filter(|t| is_ended(t));
        prepared.chain(ended).map(|transaction| transaction.key.to_string()).collect()
    }

    pub(crate) fn lines(&self, now: Instant) -> Vec<Line> {
        let line = |transaction: &Transaction| Line {
            key: transaction.key.to_string(),
            state: match (&transaction.state, transaction.was_prepared) {
                (State::Open, _) => "open",
                (State::Prepared, _) => "prepared",
                (State::Busy, _) => "ending",
                (State::Decided { .. }, _) => "committing",
                (State::InDoubt(_), _) => "in-doubt",
                (State::Ended(Outcome::Committed), _) => "committed",
                (State::Ended(Outcome::RolledBack), _) => "rolled-back",
                (State::Ended(Outcome::Completed), _) => "completed",
            },
            age: now.saturating_duration_since(transaction.since),
            messages: transaction.message_count(),
            bytes: transaction.run_bytes,
        };
        self.by_number.values().map(line).collect()
    }

    /// The journal is needed from here on, as far as transactions that are not over go.
    pub(crate) fn oldest(&self) -> Option<Offset> {
        self.by_number.values().filter_map(|transaction| transaction.first).min()
    }
}

#[cfg(test)]
mod tests;
