//! What the journal says of each transaction it still holds.

use crate::entry::{Entry, Number, Outcome, Part, What, decode};
use metaq_store::Partition;
use metaq_types::{MessageId, Offset, PartitionId};
use std::collections::BTreeMap;
use std::io;
use std::ops::ControlFlow;

/// A message as the journal holds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Logged {
    pub(crate) id: MessageId,
    pub(crate) at: Offset,
    pub(crate) bytes: u32,
    pub(crate) partition: PartitionId,
}

#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Past {
    pub(crate) key: String,
    pub(crate) first: Offset,
    pub(crate) messages: Vec<Logged>,
    pub(crate) prepared: bool,
    /// How many messages it was prepared with, where that is known.
    pub(crate) prepared_with: Option<u32>,
    /// The decision to commit.
    pub(crate) commit: Option<Decision>,
    /// Where batches are that were stored.
    pub(crate) applied: Vec<Part>,
    /// Ended by the operator and not forgotten.
    pub(crate) ended: Option<Outcome>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Decision {
    pub(crate) at: Offset,
    pub(crate) by_operator: bool,
    pub(crate) parts: Vec<Part>,
}

#[derive(Debug, Default)]
pub(crate) struct History {
    /// Those that are not over, and those committed, whose batches are to be looked for.
    pub(crate) transactions: BTreeMap<Number, Past>,
    pub(crate) last: Number,
    /// Ranges of the journal that could not be read, in words.
    pub(crate) damage: Vec<String>,
}

/// Reads the whole journal. What is damaged costs what it held, never what follows.
///
/// A gap is where a slave stepped over what its master had cut. The master cut nothing that is live, so all of that is
/// told behind the gap; what stands before it may have been decided in the gap.
pub(crate) fn replay(journal: &Partition) -> io::Result<History> {
    let mut history = History::default();
    let from = journal.gaps().last().map_or(journal.positions().kept, |(_, to)| *to);
    let mut strange = Vec::new();
    let damage = journal.walk(from, |at, header, body| {
        match decode(body) {
            Ok(entry) => history.apply(at, header.id, header.record_bytes() as u32, entry),
            Err(error) => strange.push(format!("the entry at {at} is passed over: {error}")),
        }
        ControlFlow::Continue(())
    })?;
    let lost =
        damage.iter().map(|range| format!("the bytes from {} to {} are damaged and lost", range.start, range.end));
    history.damage = lost.chain(strange).collect();
    Ok(history)
}

impl History {
    fn apply(&mut self, at: Offset, id: MessageId, bytes: u32, entry: Entry) {
        let Entry { number, key, what } = entry;
        self.last = self.last.max(number);
        let past = self.transactions.entry(number).or_insert_with(|| Past { key, first: at, ..Past::default() });
        match what {
            What::Put { partition, .. } => past.messages.push(Logged { id, at, bytes, partition }),
            What::Prepare { messages } => {
                past.prepared = true;
                past.prepared_with = messages;
            }
            What::Commit { by_operator, parts } => past.commit = Some(Decision { at, by_operator, parts }),
            What::Applied { parts } => {
                past.applied.retain(|old| parts.iter().all(|new| new.partition != old.partition));
                past.applied.extend(parts);
            }
            What::Rollback { by_operator: true } => past.end(Outcome::RolledBack),
            What::Complete => past.end(Outcome::Completed),
            What::Rollback { by_operator: false } => drop(self.transactions.remove(&number)),
            What::Forget => match &mut past.commit {
                // Its batches are still to be looked for.
                Some(decision) => decision.by_operator = false,
                None => drop(self.transactions.remove(&number)),
            },
            What::Again { outcome } => {
                let key = std::mem::take(&mut past.key);
                *past = Past { key, first: at, ended: outcome, ..Past::default() };
            }
        }
    }
}

impl Past {
    /// Those for one of its partitions.
    pub(crate) fn messages_for(&self, part: &Part) -> Vec<&Logged> {
        self.messages.iter().filter(|message| message.partition == part.partition).collect()
    }

    /// How many messages of a prepared branch the journal no longer has.
    pub(crate) fn lost(&self) -> u32 {
        self.prepared_with.map_or(0, |messages| messages.saturating_sub(self.messages.len() as u32))
    }

    pub(crate) fn applied_to(&self, part: &Part) -> Option<&Part> {
        self.applied.iter().find(|applied| applied.partition == part.partition)
    }

    fn end(&mut self, outcome: Outcome) {
        self.ended = Some(outcome);
        self.messages = Vec::new();
    }
}
