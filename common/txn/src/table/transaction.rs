//! One transaction that is not over.

use super::SessionId;
use crate::entry::{Outcome, Part};
use crate::held::Held;
use crate::reply::Refused;
use metaq_types::{Offset, PartitionId};
use metaq_wire::TransactionKey;
use std::time::Instant;
use tokio::sync::oneshot;

/// A message in the journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Message {
    /// Of its entry's record.
    pub(crate) at: Offset,
    pub(crate) bytes: u32,
    /// Place in the transaction's targets.
    pub(crate) target: u32,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Open,
    Prepared,
    /// A command is being carried out; others wait.
    Busy,
    /// Committed by the entry at `at`, with the batches that are not in their partitions yet; with none of them left it
    /// waits to be confirmed by others.
    Decided {
        at: Offset,
        parts: Vec<Part>,
        left: Vec<PartitionId>,
        by_operator: bool,
    },
    /// Ended by the operator, kept until it is forgotten.
    Ended(Outcome),
    /// The journal failed over a decision.
    InDoubt(String),
}

#[derive(Debug)]
pub(crate) struct Transaction {
    pub(crate) key: TransactionKey,
    pub(super) session: SessionId,
    pub(crate) state: State,
    pub(crate) was_prepared: bool,
    /// Those in the journal, of which the last may stand before the first.
    pub(crate) messages: Vec<Message>,
    /// So many more it was prepared with, which the journal no longer has.
    pub(crate) lost: u32,
    /// Those that are not there yet; put after all that are.
    pub(super) held: Vec<Held>,
    /// Of their entries.
    pub(super) held_bytes: u64,
    pub(crate) targets: Vec<PartitionId>,
    /// None of its entries stands before this place of the journal; `None` before anything of it was written.
    pub(crate) first: Option<Offset>,
    /// How the operator ended it; stays while a claim hides the state.
    pub(crate) outcome: Option<Outcome>,
    pub(super) run_bytes: u64,
    /// Messages on their way into the journal.
    pub(super) in_flight: u32,
    pub(super) deadline: Option<Instant>,
    pub(super) since: Instant,
    /// Dropped when the state changes or the last put in flight is answered.
    pub(super) waiting: Vec<oneshot::Sender<()>>,
}

impl Transaction {
    pub(crate) fn target(&mut self, partition: &PartitionId) -> u32 {
        let place = self.targets.iter().position(|target| target == partition).unwrap_or_else(|| {
            self.targets.push(partition.clone());
            self.targets.len() - 1
        });
        place as u32
    }

    /// One that the journal tells of.
    pub(crate) fn add(&mut self, partition: &PartitionId, at: Offset, bytes: u32) {
        let target = self.target(partition);
        self.run_bytes += u64::from(bytes);
        self.messages.push(Message { at, bytes, target });
    }

    pub(super) fn takes_messages(&self) -> Result<(), Refused> {
        match &self.state {
            State::Open => Ok(()),
            State::Ended(outcome) => Err(Refused::heuristic(&self.key, *outcome).for_put()),
            _ => Err(Refused::put_after_prepare(&self.key)),
        }
    }

    pub(super) fn message_count(&self) -> usize {
        self.messages.len() + self.held.len() + self.in_flight as usize
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.message_count() == 0
    }

    /// So many messages are not on their way any more.
    pub(super) fn landed(&mut self, messages: usize) {
        self.in_flight -= messages as u32;
        if self.in_flight == 0 {
            self.waiting.clear();
        }
    }

    pub(super) fn wait(&mut self) -> oneshot::Receiver<()> {
        let (sender, receiver) = oneshot::channel();
        self.waiting.retain(|sender| !sender.is_closed());
        self.waiting.push(sender);
        receiver
    }
}
