//! One connection that carries many puts at a time: two buffers of fixed size and the window of what is unanswered.

use crate::frame::{Garbled, Head, parse_head};
use crate::window::Window;
use anyhow::{Context, Result};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// A request without an answer for this long counts as failed. The Java client gives up after 3 s.
pub(crate) const ANSWER_WAIT: Duration = Duration::from_secs(10);

/// Holds the replies of one read; a put's reply is some 50 bytes, a refusal's text a few hundred.
const INPUT_BYTES: usize = 64 * 1024;

/// Why a connection can carry no more.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LaneError {
    #[error("the broker closed the connection")]
    Closed,
    #[error("no answer within {} s", ANSWER_WAIT.as_secs())]
    Silent,
    #[error("connection failed: {0}")]
    Io(#[from] io::Error),
    #[error(transparent)]
    Garbled(#[from] Garbled),
}

pub(crate) struct Lane {
    stream: TcpStream,
    pub(crate) window: Window,
    /// Frames not sent yet begin at `sent`.
    pub(crate) out: Vec<u8>,
    sent: usize,
    /// The socket took not all of `out`: its owner watches for more room.
    pub(crate) congested: bool,
    input: Box<[u8]>,
    filled: usize,
}

impl Lane {
    /// `out_bytes`: what the frames of a full window take, so that `out` never grows.
    pub(crate) fn connect(address: SocketAddr, outstanding_max: u32, out_bytes: usize) -> Result<Lane> {
        Ok(Lane {
            stream: connect(address)?,
            window: Window::new(outstanding_max),
            out: Vec::with_capacity(out_bytes),
            sent: 0,
            congested: false,
            input: vec![0; INPUT_BYTES].into_boxed_slice(),
            filled: 0,
        })
    }

    pub(crate) fn stream(&self) -> &TcpStream {
        &self.stream
    }

    /// Sends what is waiting; `false` when a non-blocking socket takes no more for now.
    pub(crate) fn flush(&mut self) -> Result<bool, LaneError> {
        while self.sent < self.out.len() {
            match self.stream.write(&self.out[self.sent..]) {
                Ok(0) => return Err(LaneError::Closed),
                Ok(bytes) => self.sent += bytes,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    self.out.drain(..self.sent);
                    self.sent = 0;
                    return Ok(false);
                }
                Err(error) => return Err(lost(error)),
            }
        }
        self.out.clear();
        self.sent = 0;
        Ok(true)
    }

    /// Reads once and hands every whole reply to `each`. A blocking socket waits for [`ANSWER_WAIT`] at most, a
    /// non-blocking one with nothing to read returns at once.
    pub(crate) fn receive(&mut self, mut each: impl FnMut(&mut Window, Head, &[u8])) -> Result<(), LaneError> {
        match self.stream.read(&mut self.input[self.filled..]) {
            Ok(0) => return Err(LaneError::Closed),
            Ok(bytes) => self.filled += bytes,
            Err(error) if error.kind() == ErrorKind::Interrupted => return Ok(()),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                return if self.stream.read_timeout()?.is_some() { Err(LaneError::Silent) } else { Ok(()) };
            }
            Err(error) => return Err(lost(error)),
        }
        let mut at = 0;
        while let Some(head) = parse_head(&self.input[at..self.filled])? {
            let body_at = at + head.head_bytes;
            if head.head_bytes + head.body_bytes > INPUT_BYTES {
                return Err(Garbled(format!("a reply with a body of {} bytes to a put", head.body_bytes)).into());
            }
            let Some(body) = self.input[..self.filled].get(body_at..body_at + head.body_bytes) else { break };
            each(&mut self.window, head, body);
            at = body_at + head.body_bytes;
        }
        self.input.copy_within(at..self.filled, 0);
        self.filled -= at;
        Ok(())
    }
}

/// The difference between "reset by peer" and "closed" is a matter of timing.
fn lost(error: io::Error) -> LaneError {
    match error.kind() {
        ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => LaneError::Closed,
        _ => LaneError::Io(error),
    }
}

/// A connection as every part of the generator uses it: no delay for small frames.
pub(crate) fn connect(address: SocketAddr) -> Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&address, ANSWER_WAIT)
        .with_context(|| format!("no broker answers at {address}: is it started?"))?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    fn pair() -> (Lane, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let lane = Lane::connect(listener.local_addr().unwrap(), 4, 4096).unwrap();
        (lane, listener.accept().unwrap().0)
    }

    #[test]
    fn replies_cut_anywhere_arrive_whole() {
        let (mut lane, mut broker) = pair();
        let bytes = b"result 200 5 7\r\n1 0 0result 500 3 8\r\nbad";
        let mut seen = Vec::new();
        for byte in bytes {
            broker.write_all(&[*byte]).unwrap();
            lane.receive(|_, head, body| seen.push((head.opaque, body.to_vec()))).unwrap();
        }
        assert_eq!(seen, [(7, b"1 0 0".to_vec()), (8, b"bad".to_vec())]);
    }

    #[test]
    fn an_ended_or_garbled_connection_says_so() {
        let (mut lane, mut broker) = pair();
        broker.write_all(b"hello\r\n").unwrap();
        assert!(matches!(lane.receive(|_, _, _| ()), Err(LaneError::Garbled(_))));

        let (mut lane, mut broker) = pair();
        broker.write_all(b"result 200 99999999 7\r\n").unwrap();
        assert!(matches!(lane.receive(|_, _, _| ()), Err(LaneError::Garbled(_))));

        let (mut lane, mut broker) = pair();
        broker.write_all(b"result 200 5 7\r\n1 0").unwrap();
        drop(broker);
        let mut replies = 0;
        let end = loop {
            if let Err(error) = lane.receive(|_, _, _| replies += 1) {
                break error;
            }
        };
        assert!(matches!(end, LaneError::Closed) && replies == 0, "{end}");
    }
}
