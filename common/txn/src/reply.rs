//! What callers are told. The texts are read by the original's clients: they are part of the protocol.

use crate::entry::Outcome;
use metaq_types::MessageId;
use metaq_wire::TransactionKey;
use std::fmt;

/// Receives the answer to a command: the text of a success, often empty, or the error.
pub type Done = Box<dyn FnOnce(Result<String, Refused>) + Send>;

/// Receives the answer to a put. Called from within the store: it must not block and must not call the store.
pub type PutDone = Box<dyn FnOnce(Result<MessageId, Refused>) + Send>;

/// An error as the client gets it, in the body of a 500 (wire-protocol, "6.2").
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}{text}", Prefix(*.code))]
pub struct Refused {
    /// An XA error code, which stands in front of the text; not in answers to puts and not for local transactions.
    code: Option<i32>,
    text: String,
}

struct Prefix(Option<i32>);

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.map_or(Ok(()), |code| write!(f, "XAException:code={code},msg="))
    }
}

/// Codes of the XA specification, as far as they are used.
const XA_HEURISTIC_ROLLBACK: i32 = 6;
const XA_HEURISTIC_COMMIT: i32 = 7;
const XA_HEURISTIC_HAZARD: i32 = 8;
const XA_ROLLED_BACK_OTHER: i32 = 104;
const XA_RESOURCE_ERROR: i32 = -3;
const XA_NOT_KNOWN: i32 = -4;
const XA_PROTOCOL: i32 = -6;
/// The resource is not available now: the coordinator keeps its decision and asks again.
const XA_RESOURCE_FAILED: i32 = -7;

impl Refused {
    pub(crate) fn plain(text: impl Into<String>) -> Refused {
        Refused { code: None, text: text.into() }
    }

    fn xa(code: i32, text: impl Into<String>) -> Refused {
        Refused { code: Some(code), text: text.into() }
    }

    /// As an answer to a put: without the code.
    pub(crate) fn for_put(mut self) -> Refused {
        self.code = None;
        self
    }

    pub(crate) fn not_started(key: &TransactionKey) -> Refused {
        match key {
            TransactionKey::Local { .. } => Refused::plain(format!("Local transaction '{key}' has not been started.")),
            TransactionKey::Xa { .. } => {
                Refused::xa(XA_NOT_KNOWN, format!("XA transaction '{key}' has not been started."))
            }
        }
    }

    pub(crate) fn heuristic(key: &TransactionKey, outcome: Outcome) -> Refused {
        let (code, words) = match outcome {
            Outcome::Committed => (XA_HEURISTIC_COMMIT, "committed"),
            Outcome::RolledBack => (XA_HEURISTIC_ROLLBACK, "rolled back"),
            Outcome::Completed => (XA_HEURISTIC_HAZARD, "completed"),
        };
        Refused::xa(code, format!("XA transaction '{key}' has been heuristically {words}."))
    }

    pub(crate) fn no_local_prepare() -> Refused {
        Refused::xa(XA_RESOURCE_ERROR, "Prepare not implemented on Local Transactions.")
    }

    pub(crate) fn prepared_already() -> Refused {
        Refused::xa(XA_PROTOCOL, "Cannot call prepare now.")
    }

    pub(crate) fn not_prepared() -> Refused {
        Refused::xa(XA_PROTOCOL, "Cannot do 2 phase commit if the transaction has not been prepared.")
    }

    pub(crate) fn no_xid(key: &str) -> Refused {
        Refused::xa(XA_NOT_KNOWN, format!("{key} is not a valid xid"))
    }

    pub(crate) fn too_many_timers(timers: usize, limit: u32) -> Refused {
        Refused::plain(format!("Timer size {timers} is great than maxTimerCapacity {limit}"))
    }

    /// Nothing was stored, and the transaction is over.
    pub(crate) fn commit_failed() -> Refused {
        Refused::xa(XA_ROLLED_BACK_OTHER, "STORE COMMIT FAILED: Transaction rolled back.")
    }

    /// The transaction is as it was; the same may succeed later.
    pub(crate) fn unavailable(key: &TransactionKey, reason: impl fmt::Display) -> Refused {
        let text = format!("{reason}; the transaction is as it was, try again");
        Refused::of(key, XA_RESOURCE_FAILED, text)
    }

    /// Damage of the journal took messages of a prepared branch: to store the others is for a person to decide.
    pub(crate) fn lost(key: &TransactionKey, messages: u32) -> Refused {
        let text = format!(
            "{messages} of its messages are lost with damaged bytes of the journal; it stays prepared until it is rolled \
             back, by its coordinator or 'metaq txn rollback', or 'metaq txn commit' has the others stored"
        );
        Refused::of(key, XA_RESOURCE_FAILED, text)
    }

    /// Without the code.
    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// Prepared, but a promoted slave may not know it: the coordinator must not count on it.
    pub(crate) fn prepared_alone(key: &TransactionKey) -> Refused {
        let text = "prepared here, not confirmed by the quorum: roll it back, or commit it when the members are back";
        Refused::of(key, XA_RESOURCE_FAILED, text.to_owned())
    }

    /// Decided, and not yet everywhere it belongs.
    pub(crate) fn committing(key: &TransactionKey, reason: impl fmt::Display) -> Refused {
        let text = format!("committed, but not stored everywhere yet: {reason}; it will be, without further ado");
        Refused::of(key, XA_RESOURCE_FAILED, text)
    }

    /// The journal failed over a decision: what holds is what is found in it at the next start.
    pub(crate) fn in_doubt(key: &TransactionKey, reason: impl fmt::Display) -> Refused {
        let text = format!("the outcome is not known before the broker is restarted: {reason}");
        Refused::of(key, XA_RESOURCE_FAILED, text)
    }

    pub(crate) fn put_after_prepare(key: &TransactionKey) -> Refused {
        Refused::plain(format!(
            "not stored: transaction '{key}' takes no more messages, it is prepared or about to end"
        ))
    }

    fn of(key: &TransactionKey, code: i32, text: String) -> Refused {
        match key {
            TransactionKey::Local { .. } => Refused::plain(text),
            TransactionKey::Xa { .. } => Refused::xa(code, text),
        }
    }
}
