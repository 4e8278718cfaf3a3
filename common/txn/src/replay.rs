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
    /// The decision to commit, and whether the operator made it.
    pub(crate) commit: Option<(bool, Vec<Part>)>,
    /// Where batches are that were stored.
    pub(crate) applied: Vec<Part>,
    /// Ended by the operator and not forgotten.
    pub(crate) ended: Option<Outcome>,
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
pub(crate) fn replay(journal: &Partition) -> io::Result<History> {
    let mut history = History::default();
    let from = journal.positions().kept;
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
            What::Prepare => past.prepared = true,
            What::Commit { by_operator, parts } => past.commit = Some((by_operator, parts)),
            What::Applied { parts } => {
                past.applied.retain(|old| parts.iter().all(|new| new.partition != old.partition));
                past.applied.extend(parts);
            }
            What::Rollback { by_operator: true } => past.end(Outcome::RolledBack),
            What::Complete => past.end(Outcome::Completed),
            What::Rollback { by_operator: false } => drop(self.transactions.remove(&number)),
            What::Forget => match &mut past.commit {
                // Its batches are still to be looked for.
                Some((by_operator, _)) => *by_operator = false,
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
    fn end(&mut self, outcome: Outcome) {
        self.ended = Some(outcome);
        self.messages = Vec::new();
    }
}
