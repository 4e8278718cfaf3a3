use crate::greeting::Greeting;
use crate::text::Text;
use crate::txid::TransactionKey;
use bytes::Bytes;
use metaq_types::{MessageId, Offset, Opaque};
use std::time::Duration;

/// What a client or a slave asks; numbers as they came, negative ones included, since what an odd number means is
/// for the handler to say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    Put(Put),
    Get(Get),
    Offset(OffsetQuery),
    Version(Version),
    Stats(Stats),
    Transaction(Transaction),
    Sync(Sync),
    /// `quit`, and every other word that begins with `q`; no answer, the connection is closed.
    Quit,
    /// A `result` or `value` sent to a broker: decoded, matched to nothing, ignored.
    Response,
}

/// `put TOPIC PARTITION LENGTH FLAG [CHECKSUM] [TXKEY] OPAQUE` and a body (wire-protocol, "3.1").
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Put {
    pub topic: Text,
    /// -1: the broker chooses.
    pub partition: i32,
    pub flag: i32,
    /// `None` when the client sent none, or -1.
    pub checksum: Option<i32>,
    pub transaction: Option<TransactionKey>,
    pub opaque: Opaque,
    pub body: Bytes,
}

/// `get TOPIC GROUP PARTITION OFFSET MAXSIZE OPAQUE [wait=MS] [held=OFFSET]` (wire-protocol, "3.2").
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Get {
    pub topic: Text,
    pub group: Text,
    pub partition: i32,
    pub offset: i64,
    pub max_bytes: i32,
    pub opaque: Opaque,
    /// With nothing to read yet, answer when there is something or after this long; as asked, not yet bounded.
    pub wait: Option<Duration>,
    /// A slave that reads ahead of what it has stored: it holds everything before this, and not before `offset`.
    pub held: Option<Offset>,
}

/// `offset TOPIC GROUP PARTITION OFFSET OPAQUE` (wire-protocol, "3.3").
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OffsetQuery {
    pub topic: Text,
    pub group: Text,
    pub partition: i32,
    pub offset: i64,
    pub opaque: Opaque,
}

/// `version [OPAQUE [role=… …]]` (wire-protocol, "3.4"), the heartbeat of the original's clients and the greeting of
/// a replica. Every word that begins with `v` and is not `value` means this.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Version {
    /// [`Opaque::NONE`] when none was sent.
    pub opaque: Opaque,
    pub greeting: Option<Greeting>,
}

/// `stats [ITEM [OPAQUE]]` (wire-protocol, "7").
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stats {
    /// Empty when none was sent.
    pub item: Text,
    /// [`Opaque::NONE`] when none was sent.
    pub opaque: Opaque,
}

/// `transaction TXKEY SESSION TYPE [TIMEOUT] [QUALIFIER] OPAQUE` (wire-protocol, "6.2").
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transaction {
    /// `None` for the word `null`.
    pub key: Option<TransactionKey>,
    pub session: Text,
    pub kind: TransactionKind,
    pub timeout_seconds: Option<i32>,
    pub qualifier: Option<Text>,
    pub opaque: Opaque,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TransactionKind {
    Begin,
    Prepare,
    CommitOnePhase,
    CommitTwoPhase,
    Rollback,
    Recover,
    Forget,
    /// An operator decides about a prepared branch in its coordinator's place; accepted from this machine only.
    HeuristicCommit,
    HeuristicRollback,
    /// Neither: the branch is taken off the list of the prepared.
    HeuristicComplete,
    /// Ignored, and the only request but `quit` that gets no answer.
    End,
}

impl TransactionKind {
    pub const ALL: [TransactionKind; 11] = [
        TransactionKind::Begin,
        TransactionKind::Prepare,
        TransactionKind::CommitOnePhase,
        TransactionKind::CommitTwoPhase,
        TransactionKind::Rollback,
        TransactionKind::Recover,
        TransactionKind::Forget,
        TransactionKind::HeuristicCommit,
        TransactionKind::HeuristicRollback,
        TransactionKind::HeuristicComplete,
        TransactionKind::End,
    ];

    /// As it stands on the wire.
    pub const fn word(self) -> &'static str {
        match self {
            TransactionKind::Begin => "BEGIN",
            TransactionKind::Prepare => "PREPARE",
            TransactionKind::CommitOnePhase => "COMMIT_ONE_PHASE",
            TransactionKind::CommitTwoPhase => "COMMIT_TWO_PHASE",
            TransactionKind::Rollback => "ROLLBACK",
            TransactionKind::Recover => "RECOVER",
            TransactionKind::Forget => "FORGET",
            TransactionKind::HeuristicCommit => "HEURISTIC_COMMIT",
            TransactionKind::HeuristicRollback => "HEURISTIC_ROLLBACK",
            TransactionKind::HeuristicComplete => "HEURISTIC_COMPLETE",
            TransactionKind::End => "END",
        }
    }

    pub(crate) fn from_word(word: &[u8]) -> Option<TransactionKind> {
        TransactionKind::ALL.into_iter().find(|kind| kind.word().as_bytes() == word)
    }
}

/// `sync TOPIC PARTITION LENGTH FLAG MSGID [CHECKSUM] OPAQUE` and a body: the original's synchronous replication
/// (wire-protocol, "3.5"). Decoded so that it can be refused by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sync {
    pub topic: Text,
    pub partition: i32,
    pub flag: i32,
    pub message_id: MessageId,
    /// `None` when the master sent none, or -1.
    pub checksum: Option<i32>,
    pub opaque: Opaque,
    pub body: Bytes,
}
