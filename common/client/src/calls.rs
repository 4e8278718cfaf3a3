use crate::error::ClientError;
use bytes::BytesMut;
use metaq_types::Opaque;
use metaq_wire::Response;
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;
use tokio::sync::{Notify, Semaphore, SemaphorePermit, oneshot};

/// Requests that may be outstanding on one connection unless it was made for more; one more waits for an answer to
/// another.
pub const OUTSTANDING_MAX: usize = 1024;

/// Bytes of bodies that may be outstanding on one connection; a longer body goes alone.
pub const OUTSTANDING_BYTES_MAX: usize = 32 * 1024 * 1024;

const _: () = assert!(OUTSTANDING_BYTES_MAX <= u32::MAX as usize);

/// The original client's counter begins anew this far below its end (wire-protocol, "1.5 Opaque"), and so never gives
/// [`Opaque::NONE`].
const OPAQUE_MARGIN: i32 = 10;

/// What the handles of a connection share with its task: requests encoded and not yet written, requests waiting for
/// their answer, and whether the connection has ended.
pub(crate) struct Calls {
    pub(crate) addr: String,
    state: Mutex<State>,
    /// Told when there is something to write.
    written: Notify,
    /// Told when the connection has ended.
    ended: Notify,
    slots: Semaphore,
    body_bytes: Semaphore,
}

struct State {
    out: BytesMut,
    waiting: HashMap<Opaque, oneshot::Sender<Response>>,
    next: Opaque,
    /// Why the connection has ended.
    ended: Option<String>,
}

impl Calls {
    pub(crate) fn new(addr: String, outstanding_max: usize) -> Calls {
        let state = State { out: BytesMut::new(), waiting: HashMap::new(), next: Opaque(i32::MIN), ended: None };
        Calls {
            addr,
            state: Mutex::new(state),
            written: Notify::new(),
            ended: Notify::new(),
            slots: Semaphore::new(outstanding_max),
            body_bytes: Semaphore::new(OUTSTANDING_BYTES_MAX),
        }
    }

    /// Sends one request, which `encode` writes with the opaque it is given, and waits for its answer. May be
    /// cancelled; the request may have been sent then, and its answer will be thrown away.
    pub(crate) async fn call(
        &self,
        body_bytes: usize,
        timeout: Duration,
        encode: impl FnOnce(&mut BytesMut, Opaque),
    ) -> Result<Response, ClientError> {
        let answered = async {
            let _room = self.room(body_bytes).await;
            let (waiting, answer) = self.send(encode)?;
            let answer = answer.await;
            drop(waiting);
            answer.map_err(|_| self.closed())
        };
        match tokio::time::timeout(timeout, answered).await {
            Ok(answer) => answer,
            Err(_) => Err(ClientError::Timeout { addr: self.addr.clone(), after: timeout }),
        }
    }

    async fn room(&self, body_bytes: usize) -> (SemaphorePermit<'_>, SemaphorePermit<'_>) {
        let body_bytes = body_bytes.min(OUTSTANDING_BYTES_MAX) as u32;
        let slot = self.slots.acquire().await.expect("the semaphore is never closed");
        let bytes = self.body_bytes.acquire_many(body_bytes).await.expect("the semaphore is never closed");
        (slot, bytes)
    }

    fn send(
        &self,
        encode: impl FnOnce(&mut BytesMut, Opaque),
    ) -> Result<(Waiting<'_>, oneshot::Receiver<Response>), ClientError> {
        let (sender, receiver) = oneshot::channel();
        let mut state = self.lock();
        if let Some(reason) = &state.ended {
            return Err(ClientError::Closed { addr: self.addr.clone(), reason: reason.clone() });
        }
        // Given-up requests no longer hold a permit but their bytes are still here.
        if state.out.len() > OUTSTANDING_BYTES_MAX {
            return Err(ClientError::Stuck { addr: self.addr.clone(), unwritten_bytes: state.out.len() });
        }
        let opaque = state.next_opaque();
        encode(&mut state.out, opaque);
        state.waiting.insert(opaque, sender);
        drop(state);
        self.written.notify_one();
        Ok((Waiting { calls: self, opaque }, receiver))
    }

    /// Takes what is to be written, in the order it was sent; returns when there is something. May be cancelled.
    pub(crate) async fn outgoing(&self) -> BytesMut {
        loop {
            let out = std::mem::take(&mut self.lock().out);
            if !out.is_empty() {
                return out;
            }
            self.written.notified().await;
        }
    }

    /// Gives an answer to who waits for it; one that nobody waits for any more is dropped.
    pub(crate) fn answer(&self, response: Response) {
        let waiting = self.lock().waiting.remove(&response.opaque());
        if let Some(waiting) = waiting {
            // The receiver is gone when the call was cancelled just now.
            let _ = waiting.send(response);
        }
    }

    /// The connection is over: all who wait, and all who ask later, get the reason.
    pub(crate) fn end(&self, reason: String) {
        let mut state = self.lock();
        state.ended.get_or_insert(reason);
        state.waiting.clear();
        state.out = BytesMut::new();
        drop(state);
        self.ended.notify_waiters();
    }

    /// Returns when the connection has ended, with the reason. May be cancelled.
    pub(crate) async fn ended(&self) -> ClientError {
        loop {
            let ended = self.ended.notified();
            if self.lock().ended.is_some() {
                return self.closed();
            }
            ended.await;
        }
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.lock().ended.is_some()
    }

    fn closed(&self) -> ClientError {
        let reason = self.lock().ended.clone().unwrap_or_else(|| "it was given up".to_owned());
        ClientError::Closed { addr: self.addr.clone(), reason }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("nothing panics while it holds the state")
    }
}

impl State {
    fn next_opaque(&mut self) -> Opaque {
        loop {
            let opaque = self.next;
            self.next = if opaque.0 >= i32::MAX - OPAQUE_MARGIN { Opaque(i32::MIN) } else { Opaque(opaque.0 + 1) };
            // After a round of the counter, a long poll may still wait under its number.
            if !self.waiting.contains_key(&opaque) {
                return opaque;
            }
        }
    }
}

/// A request that waits; dropping it forgets the request.
struct Waiting<'a> {
    calls: &'a Calls,
    opaque: Opaque,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.calls.lock().waiting.remove(&self.opaque);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::BufMut;

    /// Nobody writes here, as if the peer did not read: what was given up must not gather for ever.
    #[tokio::test]
    async fn requests_that_were_given_up_do_not_gather_without_a_bound() {
        let calls = Calls::new("h:1".to_owned(), OUTSTANDING_MAX);
        let body = vec![0; OUTSTANDING_BYTES_MAX / 4];
        let mut stuck = 0;
        for _ in 0..100 {
            let call = calls.call(body.len(), Duration::from_millis(1), |out, _| out.put_slice(&body)).await;
            stuck += usize::from(matches!(call.unwrap_err(), ClientError::Stuck { .. }));
        }
        assert_eq!(stuck, 95);
        assert_eq!(calls.lock().waiting.len(), 0);
        assert!(calls.outgoing().await.len() <= OUTSTANDING_BYTES_MAX + body.len());
    }

    #[test]
    fn opaques_count_up_from_the_bottom_and_begin_anew_near_the_top() {
        let calls = Calls::new(String::new(), OUTSTANDING_MAX);
        let mut state = calls.lock();
        assert_eq!(state.next_opaque(), Opaque(i32::MIN));
        assert_eq!(state.next_opaque(), Opaque(i32::MIN + 1));
        state.next = Opaque(i32::MAX - OPAQUE_MARGIN);
        state.waiting.insert(Opaque(i32::MIN), oneshot::channel().0);
        assert_eq!(state.next_opaque(), Opaque(i32::MAX - OPAQUE_MARGIN));
        assert_eq!(state.next_opaque(), Opaque(i32::MIN + 1), "the bottom is still waiting");
    }
}
