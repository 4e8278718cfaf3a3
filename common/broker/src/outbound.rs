//! The answers of one connection: slots in the order of the requests, filled in any order, sent in that order.

use crate::answer::{Answer, append_failure, failed};
use crate::gate::Gate;
use crate::metrics::Counters;
use bytes::BytesMut;
use metaq_store::{AckSink, AppendError, Appended, Slice};
use metaq_types::limits::{CONNECTION_PARKED_MAX, CONNECTION_REPLIES_MAX, CONNECTION_UNSENT_BYTES_MAX};
use metaq_types::{Opaque, Status};
use metaq_wire::Text;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};
use tokio_util::sync::CancellationToken;

/// Something to put on the socket.
pub(crate) enum Chunk {
    Bytes(BytesMut),
    Slice {
        slice: Slice,
        sent: u32,
    },
    /// Nothing follows: close when everything before it is sent.
    Close,
}

/// A request's place in the queue of answers.
enum Slot {
    Waiting(Owed),
    Filled(Opaque, Answer),
    Close,
}

/// What is needed to word the answer to a put that is on its way through the store.
struct Owed {
    opaque: Opaque,
    topic: Text,
    partition: u32,
    bytes: usize,
}

#[derive(Default)]
struct Queue {
    /// Ticket of the first slot.
    first: u64,
    slots: VecDeque<Slot>,
    /// Encoded, in order, not yet taken by the session.
    ready: VecDeque<Chunk>,
    /// What the encoded answers in `ready` take, and the texts of those in `slots`.
    ready_bytes: usize,
    filled_bytes: usize,
    /// Long polls that have no slot and will push an answer.
    parked: usize,
    /// The session's task, when it sleeps.
    waker: Option<Waker>,
    /// The peer asks for nothing more: close when no long poll is parked.
    ending: bool,
    closed: bool,
}

/// Shared by the session, the store's acks and parked long polls.
pub(crate) struct Outbound {
    queue: Mutex<Queue>,
    /// The peer asks for nothing more, or is gone: its long polls need not wait.
    ended: CancellationToken,
    uri: Arc<str>,
    /// Bytes of puts accepted and unanswered, over all connections (`admission.rs`).
    in_flight: Arc<AtomicUsize>,
    failures: Arc<Counters>,
    gate: Arc<Gate>,
}

impl Outbound {
    pub(crate) fn new(
        uri: Arc<str>,
        in_flight: Arc<AtomicUsize>,
        failures: Arc<Counters>,
        gate: Arc<Gate>,
    ) -> Outbound {
        Outbound { queue: Mutex::default(), ended: CancellationToken::new(), uri, in_flight, failures, gate }
    }

    /// Answers the request just read.
    pub(crate) fn answer(&self, opaque: Opaque, answer: Answer) {
        let mut queue = self.queue.lock();
        if queue.slots.is_empty() {
            queue.encode(opaque, answer);
        } else {
            queue.filled_bytes += answer.text_bytes();
            queue.slots.push_back(Slot::Filled(opaque, answer));
        }
    }

    /// Keeps the place of a put whose answer comes from the store; the ticket names it there. What has no bytes counts as
    /// one in flight: a stop waits while there are any.
    pub(crate) fn owe(&self, opaque: Opaque, topic: Text, partition: u32, bytes: usize) -> u64 {
        let bytes = bytes.max(1);
        self.in_flight.fetch_add(bytes, Ordering::Relaxed);
        let mut queue = self.queue.lock();
        queue.slots.push_back(Slot::Waiting(Owed { opaque, topic, partition, bytes }));
        queue.first + queue.slots.len() as u64 - 1
    }

    /// Keeps the place of an answer that [`Outbound::fill`] brings.
    pub(crate) fn owe_answer(&self, opaque: Opaque) -> u64 {
        self.owe(opaque, Text::default(), 0, 0)
    }

    /// Brings an answer that was owed.
    pub(crate) fn fill(&self, ticket: u64, answer: Answer) {
        let mut queue = self.queue.lock();
        let index = (ticket - queue.first) as usize;
        let Some(Slot::Waiting(owed)) = queue.slots.get(index) else { return };
        let opaque = owed.opaque;
        self.in_flight.fetch_sub(owed.bytes, Ordering::Relaxed);
        queue.fill(index, opaque, answer);
    }

    /// Close when everything owed so far is sent, but for long polls.
    pub(crate) fn close_after(&self) {
        self.queue.lock().close_after();
    }

    /// The peer asks for nothing more: close when everything owed is sent, long polls included, which end now.
    pub(crate) fn input_ended(&self) {
        let mut queue = self.queue.lock();
        queue.ending = true;
        if queue.parked == 0 {
            queue.close_after();
        }
        drop(queue);
        self.ended.cancel();
    }

    /// Until the peer asks for nothing more, or is gone.
    pub(crate) async fn ended(&self) {
        self.ended.cancelled().await;
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.ended.is_cancelled()
    }

    /// Counts a long poll in; `false` when the connection has as many as it may.
    pub(crate) fn park(&self) -> bool {
        let mut queue = self.queue.lock();
        let room = queue.parked < CONNECTION_PARKED_MAX;
        queue.parked += usize::from(room);
        room
    }

    /// The answer to a long poll that was counted in by [`Outbound::park`]; it goes out at the next chance.
    pub(crate) fn unpark(&self, opaque: Opaque, answer: Answer) {
        let mut queue = self.queue.lock();
        queue.parked -= 1;
        if !queue.closed {
            queue.encode(opaque, answer);
            if queue.ending && queue.parked == 0 {
                queue.close_after();
            }
            queue.wake();
        }
    }

    /// Answers in the making, long polls included.
    pub(crate) fn outstanding(&self) -> usize {
        let queue = self.queue.lock();
        queue.slots.len() + queue.parked
    }

    /// Whether as many answers wait as a connection may have: nothing more is read or executed until some are sent.
    pub(crate) fn is_full(&self) -> bool {
        let queue = self.queue.lock();
        queue.slots.len() + queue.ready.len() >= CONNECTION_REPLIES_MAX
            || queue.ready_bytes + queue.filled_bytes >= CONNECTION_UNSENT_BYTES_MAX
    }

    /// Moves what is ready to `sending`. While that holds something the rest stays here, where it is counted: a peer
    /// that does not read would pile up answers there.
    pub(crate) fn take(&self, sending: &mut VecDeque<Chunk>) {
        if sending.is_empty() {
            let mut queue = self.queue.lock();
            std::mem::swap(&mut queue.ready, sending);
            queue.ready_bytes = 0;
        }
    }

    /// Ready when there is something to [`take`](Outbound::take) and the session, by `may_take`, has nothing to send.
    pub(crate) fn poll_ready(&self, cx: &mut Context<'_>, may_take: bool) -> Poll<()> {
        let mut queue = self.queue.lock();
        if may_take && !queue.ready.is_empty() {
            return Poll::Ready(());
        }
        queue.waker = Some(cx.waker().clone());
        Poll::Pending
    }

    /// Wakes the session to look at what it was asked to do.
    pub(crate) fn nudge(&self) {
        if let Some(waker) = self.queue.lock().waker.take() {
            waker.wake();
        }
    }

    /// The session is awake again: answers given meanwhile need not wake it.
    pub(crate) fn awake(&self) {
        self.queue.lock().waker = None;
    }

    /// The connection is gone: what is still owed has nowhere to go.
    pub(crate) fn shut(&self) {
        let mut queue = self.queue.lock();
        queue.closed = true;
        queue.ready.clear();
        queue.waker = None;
        drop(queue);
        self.ended.cancel();
    }
}

impl AckSink for Outbound {
    fn acked(&self, ticket: u64, outcome: Result<Appended, AppendError>) {
        let mut queue = self.queue.lock();
        let index = (ticket - queue.first) as usize;
        let Some(Slot::Waiting(owed)) = queue.slots.get(index) else {
            return;
        };
        let opaque = owed.opaque;
        self.in_flight.fetch_sub(owed.bytes, Ordering::Relaxed);
        // What is in the log is not enough: a master that may have been replaced meanwhile promises nothing.
        let outcome = outcome.and_then(|stored| match self.gate.is_open() {
            true => Ok(stored),
            false => Err(AppendError::Unknown(self.gate.reason())),
        });
        let answer = match outcome {
            Ok(stored) => Answer::Stored(stored),
            Err(error) => {
                self.failures.put_failed();
                if matches!(error, AppendError::Unconfirmed) {
                    self.failures.quorum_unconfirmed();
                }
                let (status, detail) = append_failure(&error);
                Answer::text(status, failed(&self.uri, &owed.topic, i64::from(owed.partition), &detail))
            }
        };
        queue.fill(index, opaque, answer);
    }
}

impl Queue {
    fn fill(&mut self, index: usize, opaque: Opaque, answer: Answer) {
        self.filled_bytes += answer.text_bytes();
        self.slots[index] = Slot::Filled(opaque, answer);
        if index == 0 {
            self.release();
        }
    }

    fn close_after(&mut self) {
        if self.slots.is_empty() {
            self.ready.push_back(Chunk::Close);
        } else {
            self.slots.push_back(Slot::Close);
        }
    }

    /// Encodes the filled slots at the front.
    fn release(&mut self) {
        while !matches!(self.slots.front(), None | Some(Slot::Waiting(_))) {
            match self.slots.pop_front() {
                Some(Slot::Filled(opaque, answer)) => {
                    self.filled_bytes -= answer.text_bytes();
                    self.encode(opaque, answer);
                }
                Some(Slot::Close) => self.ready.push_back(Chunk::Close),
                Some(Slot::Waiting(_)) | None => unreachable!("the front was looked at"),
            }
            self.first += 1;
        }
        if self.closed {
            self.ready.clear();
        } else {
            self.wake();
        }
    }

    fn encode(&mut self, opaque: Opaque, answer: Answer) {
        if !matches!(self.ready.back(), Some(Chunk::Bytes(_))) {
            self.ready.push_back(Chunk::Bytes(BytesMut::with_capacity(128)));
        }
        let Some(Chunk::Bytes(out)) = self.ready.back_mut() else { unreachable!("pushed above") };
        let before = out.len();
        let slice = answer.encode(opaque, out);
        self.ready_bytes += out.len() - before;
        if let Some(slice) = slice {
            self.ready.push_back(Chunk::Slice { slice, sent: 0 });
        }
    }

    fn wake(&mut self) {
        if !self.ready.is_empty()
            && let Some(waker) = self.waker.take()
        {
            waker.wake();
        }
    }
}

/// Words for a request the broker could not read (design: answered, then closed).
pub(crate) fn malformed(reason: &str) -> Answer {
    Answer::text(Status::BadRequest, format!("malformed request: {reason}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A stop waits while anything is in flight: an empty message, and a command, too.
    #[test]
    fn what_has_no_bytes_is_in_flight() {
        let (in_flight, gate) = (Arc::new(AtomicUsize::new(0)), Arc::new(Gate::shut("")));
        let outbound = Outbound::new("meta://here:1".into(), Arc::clone(&in_flight), Arc::default(), gate);
        let tickets = [outbound.owe(Opaque::NONE, "test".into(), 0, 0), outbound.owe_answer(Opaque::NONE)];
        for (left, ticket) in (0..2).rev().zip(tickets) {
            assert!(in_flight.load(Ordering::Relaxed) > left);
            outbound.fill(ticket, Answer::text(Status::Success, String::new()));
        }
        assert_eq!(in_flight.load(Ordering::Relaxed), 0);
    }
}
