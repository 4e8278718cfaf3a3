//! From bytes to handlers: the single match over [`Request`].

use crate::answer::Answer;
use crate::handlers;
use crate::node::Shared;
use crate::outbound::{Outbound, malformed};
use crate::secure::PeerNode;
use bytes::{Bytes, BytesMut};
use metaq_store::{Ack, Partition};
use metaq_txn::SessionId;
use metaq_types::limits::UNFINISHED_BYTES_MAX;
use metaq_types::{Opaque, SlaveId, Status};
use metaq_wire::{Decoded, Request};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

/// Who is at the other end.
pub(crate) struct Peer {
    pub(crate) address: Option<SocketAddr>,
    /// What its certificate proved it to be.
    node: Option<Arc<PeerNode>>,
}

impl Peer {
    pub(crate) fn stranger(address: Option<SocketAddr>) -> Peer {
        Peer { address, node: None }
    }

    pub(crate) fn node(address: SocketAddr, node: Arc<PeerNode>) -> Peer {
        Peer { address: Some(address), node: Some(node) }
    }

    pub(crate) fn is_proven(&self) -> bool {
        self.node.is_some()
    }
}

/// One connection as the handlers see it, or one stream of a connection between nodes.
pub(crate) struct Conversation {
    pub(crate) node: Arc<Shared>,
    outbound: Arc<Outbound>,
    pub(crate) peer: Peer,
    /// Set by a replica's greeting; from then on its gets are those of a replica.
    pub(crate) replica: Option<SlaveId>,
    /// Set by the greeting of a node that is to become the master of a slave's reign: it reads all this slave holds.
    pub(crate) is_heir: bool,
    /// The greeting was said here, not on another stream.
    greeted: bool,
    /// What local transactions are bound to.
    pub(crate) session: SessionId,
    /// A refused message whose body is being thrown away.
    refused: Option<Refused>,
    /// Messages taken in on this connection.
    pub(crate) puts: u64,
    /// Messages were queued here that nobody has written yet.
    unwritten: Vec<Arc<Partition>>,
}

struct Refused {
    opaque: Opaque,
    answer: Answer,
}

/// What the session does next.
pub(crate) enum Next {
    Again,
    NeedMore,
    /// Throw away this many bytes of input, then call [`Conversation::discarded`].
    Discard(usize),
    Close,
}

impl Conversation {
    pub(crate) fn new(node: Arc<Shared>, peer: Peer) -> Conversation {
        let outbound = Arc::new(Outbound::new(
            Arc::clone(&node.uri),
            Arc::clone(&node.admission.in_flight),
            Arc::clone(&node.counters),
            Arc::clone(&node.gate),
        ));
        let replica = peer.node.as_ref().and_then(|node| node.replica());
        let session = node.transactions.next_session();
        Conversation {
            node,
            outbound,
            peer,
            replica,
            is_heir: false,
            greeted: false,
            session,
            refused: None,
            puts: 0,
            unwritten: Vec::new(),
        }
    }

    pub(crate) fn outbound(&self) -> &Arc<Outbound> {
        &self.outbound
    }

    /// Takes one request off the input and executes it.
    pub(crate) fn next(&mut self, input: &mut BytesMut) -> Next {
        match metaq_wire::decode(input) {
            Ok(None) => Next::NeedMore,
            Ok(Some(Decoded::Request(request))) => self.execute(request),
            Ok(Some(Decoded::TooLarge { opaque, topic, partition, bytes })) => {
                let detail = handlers::put::too_large(u64::from(bytes), self.node.message_bytes_max());
                let answer = self.node.put_failure(&topic, partition, Status::BadRequest, &detail);
                self.refused = Some(Refused { opaque, answer });
                Next::Discard(bytes as usize)
            }
            Err(error) => {
                self.node.counters.malformed();
                self.outbound.answer(error.opaque.unwrap_or(Opaque::NONE), malformed(&error.reason));
                self.outbound.close_after();
                Next::Close
            }
        }
    }

    /// Refuses the message whose begin is in the input for want of memory; answers how many bytes of it to throw away.
    pub(crate) fn refuse_unfinished(&mut self, input: &mut BytesMut) -> Option<usize> {
        let skipped = metaq_wire::skip(input).ok().flatten()?;
        let text = format!(
            "not stored: the broker is overloaded, {UNFINISHED_BYTES_MAX} bytes of messages that are not whole yet are \
             waited for; try again, or send smaller ones"
        );
        let answer = Answer::text(Status::ServiceUnavailable, text);
        self.refused = skipped.opaque.map(|opaque| Refused { opaque, answer });
        Some(skipped.body_bytes as usize)
    }

    /// The body of a message that was refused is gone: now its producer is told.
    pub(crate) fn discarded(&mut self) {
        let Some(refused) = self.refused.take() else { return };
        self.node.counters.put();
        self.node.counters.put_failed();
        self.outbound.answer(refused.opaque, refused.answer);
    }

    fn execute(&mut self, request: Request) -> Next {
        match request {
            Request::Put(put) => {
                self.puts += 1;
                handlers::put::put(self, put);
            }
            Request::Get(get) => handlers::get::get(self, get),
            Request::Offset(query) => handlers::offset::offset(self, &query),
            Request::Version(version) => handlers::version::version(self, version),
            Request::Stats(stats) => handlers::stats::stats(self, &stats),
            Request::Transaction(transaction) => handlers::transaction::transaction(self, &transaction),
            Request::Sync(sync) => {
                let text = Bytes::from_static(b"no handler for sync: this broker is not a synchronous slave");
                self.outbound.answer(sync.opaque, Answer::Text(Status::ServiceUnavailable, text));
            }
            Request::Quit => {
                self.outbound.close_after();
                return Next::Close;
            }
            // Matched to nothing and ignored (wire-protocol, "1.10").
            Request::Response => {}
        }
        Next::Again
    }

    /// Queues a message; where its topic leaves the write to us it is owed until [`Conversation::write`].
    pub(crate) fn append(&mut self, partition: Arc<Partition>, flag: i32, checksum: i32, body: Bytes, ack: Ack) {
        let owed = partition.append_queued(flag, checksum, body, ack);
        if owed && !self.unwritten.iter().any(|other| Arc::ptr_eq(other, &partition)) {
            self.unwritten.push(partition);
        }
    }

    pub(crate) fn owes_writes(&self) -> bool {
        !self.unwritten.is_empty()
    }

    /// Writes what was queued, together with what others have queued on the same partitions.
    pub(crate) fn write(&mut self) {
        for partition in self.unwritten.drain(..) {
            partition.write_queued();
        }
    }

    /// The peer is this replica from now on.
    pub(crate) fn become_replica(&mut self, slave: SlaveId) {
        (self.replica, self.greeted) = (Some(slave), true);
        if let Some(node) = &self.peer.node {
            node.greeted(slave);
        }
    }

    /// Whether other connections may have something to write as well.
    pub(crate) fn has_company(&self) -> bool {
        self.node.admission.connections() > 1
    }

    /// The connection is over: nothing is owed any more, and a replica counts as gone.
    pub(crate) fn end(&mut self) {
        self.write();
        self.outbound.shut();
        self.node.transactions.session_ended(self.session);
        if let Some(slave) = self.replica.take().filter(|_| self.greeted) {
            self.node.replicas.lock().on_disconnect(slave, Instant::now());
            self.node.quorum.on_disconnect(slave);
            if let Some(node) = &self.peer.node {
                node.parted();
            }
        }
    }
}
