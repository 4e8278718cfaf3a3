//! The life of one connection: read, execute in order, send in order, until one side closes.

use crate::admission::Unfinished;
use crate::dispatch::{Conversation, Next, Peer};
use crate::node::Shared;
use crate::outbound::{Chunk, Outbound};
use crate::transport::Transport;
use bytes::{Buf, BytesMut};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::ReadBuf;
use tokio::time::{Instant, Sleep};

/// What a session reads from one connection before it executes and sends, so that a flood does not starve others.
const READ_TURN_BYTES: usize = 256 * 1024;
/// What a connection keeps of its input's room when nothing is left in it: of a large message no more than of others.
const KEPT_BYTES: usize = 64 * 1024;
/// How long a closed connection is drained so that its last answer is not lost in a reset.
const LINGER: Duration = Duration::from_secs(1);
/// And how much of it.
const LINGER_BYTES_MAX: usize = 4 * 1024 * 1024;

/// What the node's sweeper sees of a session.
#[derive(Default)]
pub(crate) struct Activity {
    /// Grows with every read and every write.
    ticks: AtomicU64,
    /// Set by the node: finish what is owed, then close.
    leave: AtomicBool,
}

impl Activity {
    pub(crate) fn ticks(&self) -> u64 {
        self.ticks.load(Relaxed)
    }

    pub(crate) fn ask_to_leave(&self) {
        self.leave.store(true, Relaxed);
    }
}

/// One connection, or one stream of a connection between nodes.
pub(crate) struct Session<T> {
    stream: T,
    /// Read, not yet decoded.
    input: BytesMut,
    /// More than [`KEPT_BYTES`] were in `input`, so that it has room for as much.
    has_grown: bool,
    /// What of `input` is counted as a message that is not whole.
    unfinished: Unfinished,
    /// Body bytes of a refused message still to be thrown away.
    discard: usize,
    /// Being sent.
    sending: VecDeque<Chunk>,
    /// The input was left alone for want of room for answers, and may hold whole requests.
    held_up: bool,
    /// Nothing more is read: quit, a malformed request, or the node stops.
    closing: bool,
    /// Nothing is read or executed before it ends: slaves are behind, and messages came in.
    pause: Option<Pin<Box<Sleep>>>,
    conversation: Conversation,
    activity: Arc<Activity>,
}

enum Event {
    Read,
    EndOfInput,
    Work,
}

impl<T: Transport> Session<T> {
    pub(crate) fn new(stream: T, peer: Peer, node: Arc<Shared>, activity: Arc<Activity>) -> Session<T> {
        let unfinished = Unfinished::none(Arc::clone(&node.admission));
        let conversation = Conversation::new(node, peer);
        Session {
            stream,
            input: BytesMut::new(),
            has_grown: false,
            unfinished,
            discard: 0,
            sending: VecDeque::new(),
            held_up: false,
            closing: false,
            pause: None,
            conversation,
            activity,
        }
    }

    pub(crate) fn outbound(&self) -> &Arc<Outbound> {
        self.conversation.outbound()
    }

    /// Serves the connection until its end. May be cancelled at any point: what the store owes is dropped with it.
    pub(crate) async fn serve(mut self) {
        // An error here is the peer's going away; there is nobody left to tell.
        if self.run().await.is_ok() {
            self.linger().await;
        }
        self.conversation.end();
    }

    /// Until everything owed is sent after the last request, or the peer is gone.
    async fn run(&mut self) -> io::Result<()> {
        loop {
            self.execute();
            if self.conversation.owes_writes() {
                // The other connections that are ready now come first: one write then takes the messages of all of them.
                if self.conversation.has_company() {
                    tokio::task::yield_now().await;
                }
                self.conversation.write();
            }
            self.conversation.outbound().take(&mut self.sending);
            if poll_fn(|cx| Poll::Ready(self.send(cx))).await? {
                return Ok(());
            }
            match poll_fn(|cx| self.poll_event(cx)).await? {
                Event::Read | Event::Work => {}
                Event::EndOfInput => {
                    // Half-closed peers still get what they are owed.
                    self.closing = true;
                    self.conversation.outbound().input_ended();
                }
            }
        }
    }

    /// Executes every whole request in the input, as long as there is room for answers.
    fn execute(&mut self) {
        if self.activity.leave.load(Relaxed) && !self.closing {
            self.closing = true;
            self.conversation.outbound().close_after();
        }
        if self.pause.is_some() {
            return;
        }
        let puts = self.conversation.puts;
        self.execute_input();
        self.bound_unfinished();
        if self.has_grown && self.input.is_empty() {
            (self.input, self.has_grown) = (BytesMut::new(), false);
        }
        if self.conversation.puts != puts {
            self.hold_back(self.conversation.puts - puts);
        }
    }

    /// Pauses where producers are held back after a turn with messages.
    fn hold_back(&mut self, puts: u64) {
        let throttle = &self.conversation.node.throttle;
        if let Some(delay) = throttle.delay() {
            throttle.count(puts, delay);
            self.pause = Some(Box::pin(tokio::time::sleep(delay)));
        }
    }

    /// A large message that is not whole waits in memory for its rest; where all that do take too much, it is refused.
    fn bound_unfinished(&mut self) {
        let is_unfinished = self.input.len() > KEPT_BYTES && !self.held_up && !self.closing;
        if !self.unfinished.note(if is_unfinished { self.input.len() } else { 0 })
            && let Some(body_bytes) = self.conversation.refuse_unfinished(&mut self.input)
        {
            self.unfinished.note(0);
            self.discard = body_bytes;
            self.execute_input();
        }
    }

    fn execute_input(&mut self) {
        self.held_up = false;
        while !self.closing && !self.conversation.outbound().is_full() {
            if self.discard > 0 {
                let bytes = self.discard.min(self.input.len());
                self.input.advance(bytes);
                self.discard -= bytes;
                if self.discard > 0 {
                    return;
                }
                self.conversation.discarded();
            }
            match self.conversation.next(&mut self.input) {
                Next::Again => {}
                Next::NeedMore => return,
                Next::Discard(bytes) => self.discard = bytes,
                Next::Close => self.closing = true,
            }
        }
        self.held_up = !self.closing;
    }

    /// Waits for something to do. Reads when bytes are there and there is room for the answers they ask for.
    fn poll_event(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Event>> {
        if let Some(pause) = &mut self.pause
            && pause.as_mut().poll(cx).is_ready()
        {
            self.pause = None;
            return Poll::Ready(Ok(Event::Work));
        }
        let read = self.pause.is_none() && !self.closing && !self.conversation.outbound().is_full();
        if read && self.held_up {
            return Poll::Ready(Ok(Event::Work));
        }
        if read && let Poll::Ready(bytes) = self.poll_read(cx)? {
            self.conversation.outbound().awake();
            return Poll::Ready(Ok(if bytes == 0 { Event::EndOfInput } else { Event::Read }));
        }
        let unsent = !self.sending.is_empty() || !self.stream.is_flushed();
        if unsent && self.stream.poll_writable(cx)?.is_ready() {
            return Poll::Ready(Ok(Event::Work));
        }
        // Last, since it leaves the task's waker where answers are given.
        if self.conversation.outbound().poll_ready(cx, self.sending.is_empty()).is_ready() {
            return Poll::Ready(Ok(Event::Work));
        }
        if self.activity.leave.load(Relaxed) && !self.closing {
            return Poll::Ready(Ok(Event::Work));
        }
        Poll::Pending
    }

    fn poll_read(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let mut total = 0;
        loop {
            self.input.reserve(T::READ_BYTES);
            let mut window = ReadBuf::uninit(self.input.spare_capacity_mut());
            let whole = window.capacity();
            match self.stream.poll_read(cx, &mut window)? {
                Poll::Pending if total == 0 => return Poll::Pending,
                Poll::Pending => break,
                Poll::Ready(()) => {}
            }
            let bytes = window.filled().len();
            advance(&mut self.input, bytes);
            self.has_grown |= self.input.len() > KEPT_BYTES;
            total += bytes;
            if bytes < whole || total >= READ_TURN_BYTES {
                break;
            }
        }
        self.activity.ticks.fetch_add(1, Relaxed);
        Poll::Ready(Ok(total))
    }

    /// Sends as much as the socket takes; `true` when the connection is to be closed now.
    fn send(&mut self, cx: &mut Context<'_>) -> io::Result<bool> {
        while !self.sending.is_empty() {
            let is_head = matches!(self.sending.get(1), Some(Chunk::Slice { .. }));
            let sent = match &mut self.sending[0] {
                Chunk::Bytes(bytes) => {
                    let taken = match is_head {
                        true => self.stream.poll_write_ahead(cx, bytes)?,
                        false => self.stream.poll_write(cx, bytes)?,
                    };
                    let Poll::Ready(sent) = taken else { return Ok(false) };
                    bytes.advance(sent);
                    bytes.is_empty()
                }
                Chunk::Slice { slice, sent } => {
                    let Poll::Ready(bytes) = self.stream.poll_send(cx, slice, *sent)? else {
                        return Ok(false);
                    };
                    if bytes == 0 {
                        // The bytes announced will never come, so the peer must not wait for them.
                        let what = "segment shorter than its slice";
                        return Err(io::Error::new(io::ErrorKind::UnexpectedEof, what));
                    }
                    *sent += bytes as u32;
                    *sent == slice.len()
                }
                Chunk::Close => return Ok(self.stream.poll_flush(cx)?.is_ready()),
            };
            self.activity.ticks.fetch_add(1, Relaxed);
            if sent {
                self.sending.pop_front();
            }
            if self.sending.is_empty() {
                self.conversation.outbound().take(&mut self.sending);
            }
        }
        // What does not go out now goes out by `poll_event`.
        let _ = self.stream.poll_flush(cx)?;
        Ok(false)
    }

    /// Closes our side and reads the rest away for a moment: closing with unread bytes would reset the connection and
    /// take the last answer with it.
    async fn linger(&mut self) {
        let until = Instant::now() + LINGER;
        let closed = tokio::time::timeout_at(until, poll_fn(|cx| self.stream.poll_close(cx))).await;
        if !T::LINGERS || !matches!(closed, Ok(Ok(()))) {
            return;
        }
        let mut left = LINGER_BYTES_MAX;
        while left > 0 {
            self.input.clear();
            match tokio::time::timeout_at(until, poll_fn(|cx| self.poll_read(cx))).await {
                Ok(Ok(bytes)) if bytes > 0 => left = left.saturating_sub(bytes),
                _ => return,
            }
        }
    }
}

/// Counts in bytes that a read has put into the spare room.
fn advance(input: &mut BytesMut, bytes: usize) {
    // SAFETY: `ReadBuf::filled` says that this many bytes of the spare capacity were written.
    #[expect(unsafe_code, reason = "BytesMut offers no safe way to count in bytes written to its spare room")]
    unsafe {
        bytes::BufMut::advance_mut(input, bytes);
    }
}
