//! What each command means in each state, and who may work on a transaction meanwhile.

use super::transaction::State;
use super::{SessionId, Table};
use crate::entry::Number;
use crate::reply::Refused;
use metaq_wire::TransactionKey;
use tokio::sync::oneshot;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    Prepare,
    CommitOnePhase,
    CommitTwoPhase,
    Rollback,
    Forget,
    /// The operator decides in the coordinator's place.
    OperatorCommit,
    OperatorRollback,
    OperatorComplete,
}

/// What is to be done about a command.
pub(crate) enum Claim {
    Answer(Result<String, Refused>),
    /// Ask again when this ends.
    Wait(oneshot::Receiver<()>),
    Go(Number, Work),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    Prepare,
    Commit {
        by_operator: bool,
    },
    /// Store what was decided before.
    Apply,
    Rollback {
        by_operator: bool,
    },
    Complete,
    Forget,
}

impl Table {
    /// Decides what becomes of a command, and claims the transaction for it if something is to be done.
    pub(crate) fn claim(&mut self, command: Command, session: SessionId, key: &TransactionKey) -> Claim {
        let local = matches!(key, TransactionKey::Local { .. });
        if local && command == Command::Forget {
            return Claim::Answer(Err(Refused::no_xid(&key.to_string())));
        }
        let Some(number) = self.find(session, key) else {
            return Claim::Answer(match command {
                Command::Forget => Ok(String::new()),
                _ => Err(Refused::not_started(key)),
            });
        };
        if local && command == Command::Prepare {
            return Claim::Answer(Err(Refused::no_local_prepare()));
        }
        let transaction = self.by_number.get_mut(&number).expect("what is named exists");
        let work = match (&transaction.state, command) {
            (State::Busy, _) => return Claim::Wait(transaction.wait()),
            (State::InDoubt(reason), _) => return Claim::Answer(Err(Refused::in_doubt(key, reason))),
            (State::Ended(_), Command::Forget) => Work::Forget,
            (State::Ended(outcome), _) => return Claim::Answer(Err(Refused::heuristic(key, *outcome))),
            (_, Command::Forget) => return Claim::Answer(Ok(String::new())),
            (State::Decided { .. }, Command::CommitOnePhase | Command::CommitTwoPhase) => Work::Apply,
            (State::Decided { .. }, _) => {
                return Claim::Answer(Err(Refused::committing(key, "they were refused or not confirmed before")));
            }
            (State::Prepared, Command::Prepare) => return Claim::Answer(Err(Refused::prepared_already())),
            (State::Open, Command::CommitTwoPhase) if !local => {
                return Claim::Answer(Err(Refused::not_prepared()));
            }
            (State::Open, Command::OperatorCommit | Command::OperatorRollback | Command::OperatorComplete) => {
                let text = format!("'{key}' is not prepared: only a prepared branch is the operator's to decide");
                return Claim::Answer(Err(Refused::plain(text)));
            }
            (State::Open, command) if transaction.is_empty() => {
                self.end(number);
                let read_only = command == Command::Prepare;
                return Claim::Answer(Ok(if read_only { "3".to_owned() } else { String::new() }));
            }
            (State::Open, Command::Rollback) if transaction.first.is_none() => {
                self.end(number);
                return Claim::Answer(Ok(String::new()));
            }
            (State::Open, Command::Prepare) => Work::Prepare,
            (State::Prepared, Command::CommitOnePhase | Command::CommitTwoPhase) if transaction.lost > 0 => {
                return Claim::Answer(Err(Refused::lost(key, transaction.lost)));
            }
            (State::Open | State::Prepared, Command::CommitOnePhase | Command::CommitTwoPhase) => {
                Work::Commit { by_operator: false }
            }
            (State::Open | State::Prepared, Command::Rollback) => Work::Rollback { by_operator: false },
            (State::Prepared, Command::OperatorCommit) => Work::Commit { by_operator: true },
            (State::Prepared, Command::OperatorRollback) => Work::Rollback { by_operator: true },
            (State::Prepared, Command::OperatorComplete) => Work::Complete,
        };
        if work != Work::Apply {
            transaction.state = State::Busy;
        }
        Claim::Go(number, work)
    }

    /// Claims a transaction by its number for work nobody asked for; `false` when it is not in a state for that.
    pub(crate) fn claim_own(&mut self, number: Number, allowed: impl FnOnce(&State) -> bool) -> bool {
        let Some(transaction) = self.by_number.get_mut(&number) else { return false };
        let allowed = allowed(&transaction.state);
        if allowed {
            transaction.state = State::Busy;
        }
        allowed
    }

    /// The claimed work is done, and this is what it came to.
    pub(crate) fn release(&mut self, number: Number, state: State) {
        let Some(transaction) = self.by_number.get_mut(&number) else { return };
        if state != State::Open {
            transaction.was_prepared = true;
            if let Some(deadline) = transaction.deadline.take() {
                self.deadlines.remove(&(deadline, number));
            }
        }
        if let State::Ended(outcome) = state {
            transaction.outcome = Some(outcome);
        }
        transaction.state = state;
        transaction.waiting.clear();
    }
}
