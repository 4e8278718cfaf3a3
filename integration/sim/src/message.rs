use crate::net::Place;
use crate::queue::Ms;
use crate::registry::{Ask, Told};
use bytes::Bytes;
use metaq_link::members::KnownMember;
use metaq_link::pull::Answer;
use metaq_types::{Epoch, Lineage, Offset, PartitionId};
use std::collections::BTreeMap;

/// What travels between processes. `session` is a connection of a slave to a master, `tag` matches an answer to its
/// question, `incarnation` a process to the one that asked.
#[derive(Clone, Debug)]
pub(crate) enum Message {
    /// The greeting, and with `wait` the keep-alive.
    Greet {
        session: u64,
        slave: usize,
        wait: bool,
        catalog: u64,
        epoch: Epoch,
        /// The newest list of members that the slave has on disk.
        roll: u64,
        tag: u64,
    },
    Greeted {
        session: u64,
        newest: Option<(u64, String)>,
        catalog: u64,
        quorum: TheirQuorum,
        tag: u64,
    },
    List {
        session: u64,
        tag: u64,
    },
    Listed {
        session: u64,
        logs: Vec<Listed>,
        tag: u64,
    },
    AskLineage {
        session: u64,
        tag: u64,
    },
    ToldLineage {
        session: u64,
        lineage: Lineage,
        tag: u64,
    },
    Get {
        session: u64,
        partition: PartitionId,
        offset: Offset,
        bytes_max: u32,
        wait: Option<Ms>,
        tag: u64,
    },
    Got {
        session: u64,
        partition: PartitionId,
        answer: Answer,
        /// What a quorum holds, where the answer tells; `Some(None)`: none is asked for.
        confirmed: Option<Option<Offset>>,
        tag: u64,
    },
    /// There is no such connection any more.
    Closed {
        session: u64,
    },
    Put {
        partition: PartitionId,
        id: i64,
        body: Vec<u8>,
    },
    /// A candidate asks another slave what it holds; it ends there itself.
    AskPeer {
        incarnation: u32,
        epoch: Epoch,
        ends: BTreeMap<PartitionId, Offset>,
    },
    ToldPeer {
        incarnation: u32,
        peer: Peer,
    },
    Ask {
        from: usize,
        incarnation: u32,
        sent: Ms,
        ask: Ask,
    },
    Told {
        incarnation: u32,
        sent: Ms,
        told: Told,
    },
    /// Whether the registered master lives.
    AreYouAlive {
        incarnation: u32,
    },
    Alive {
        incarnation: u32,
    },
}

impl Message {
    /// The connection it belongs to; 0 for none.
    pub(crate) fn session(&self) -> u64 {
        match self {
            Message::Greet { session, .. }
            | Message::Greeted { session, .. }
            | Message::List { session, .. }
            | Message::Listed { session, .. }
            | Message::AskLineage { session, .. }
            | Message::ToldLineage { session, .. }
            | Message::Get { session, .. }
            | Message::Got { session, .. }
            | Message::Closed { session } => *session,
            _ => 0,
        }
    }
}

/// What a greeting's answer tells of the quorum.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct TheirQuorum {
    /// The fewest members anybody asks for; 1: nobody is asked.
    pub(crate) smallest: u32,
    pub(crate) roll: u64,
    /// As on the wire.
    pub(crate) members: String,
}

/// What a slave tells a candidate.
#[derive(Clone, Debug)]
pub(crate) struct Peer {
    pub(crate) node: String,
    pub(crate) epoch: Epoch,
    pub(crate) roll: u64,
    pub(crate) members: Vec<KnownMember>,
    pub(crate) ends: BTreeMap<PartitionId, Offset>,
    /// What it has more; the gets that fetch it are not simulated.
    pub(crate) more: Vec<Piece>,
}

/// Bytes of one segment.
#[derive(Clone, Debug)]
pub(crate) struct Piece {
    pub(crate) partition: PartitionId,
    pub(crate) at: Offset,
    pub(crate) segment: Offset,
    pub(crate) bytes: Bytes,
}

/// A partition of a master with the first offset it keeps and its end.
#[derive(Clone, Debug)]
pub(crate) struct Listed {
    pub(crate) partition: PartitionId,
    pub(crate) first: Offset,
    pub(crate) end: Offset,
}

/// What happens at a moment.
#[derive(Debug)]
pub(crate) enum Event {
    Deliver {
        from: Place,
        to: Place,
        message: Message,
    },
    /// A process acts by itself; only while it is the one that set the timer.
    Timer {
        node: usize,
        incarnation: u32,
        timer: Timer,
    },
    Produce {
        producer: usize,
    },
    Consume,
    Fault,
    SwitchOver {
        node: usize,
    },
    /// Faults stop.
    Calm,
    Operate,
    Inspect,
}

#[derive(Clone, Debug)]
pub(crate) enum Timer {
    /// A master's next step towards its reign, or its next renewal.
    Claim,
    /// The disk has synced a partition up to here.
    Synced { partition: PartitionId, to: Offset },
    /// A get that waits has waited long enough.
    Unpark { tag: u64 },
    /// A slave looks around: for a master, for answers that are late.
    Tick,
    /// A partition's pause is over.
    Resume { session: u64, partition: PartitionId },
    /// The record for a promotion is written.
    Record,
    /// What waits for the quorum is looked at.
    Quorum,
    /// Old segments go.
    Retire,
}
