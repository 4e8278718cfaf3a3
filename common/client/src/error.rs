use std::io;
use std::time::Duration;

/// Why a request has no result.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// No connection could be made.
    #[error("cannot connect to {addr}: {source}")]
    Connect { addr: String, source: io::Error },
    /// The connection ended before the answer came; what was asked may have been done.
    #[error("the connection to {addr} has ended: {reason}")]
    Closed { addr: String, reason: String },
    /// No answer came in time; what was asked may have been done.
    #[error("no answer from {addr} within {} ms", .after.as_millis())]
    Timeout { addr: String, after: Duration },
    /// The broker has stopped reading, and requests that were given up fill the way to it; this one was not sent.
    #[error("{addr} does not read: {unwritten_bytes} bytes of earlier requests still wait to be written to it")]
    Stuck { addr: String, unwritten_bytes: usize },
    /// The broker answered, with something other than success.
    #[error("answer {code}: {text}")]
    Answer { code: i32, text: String },
    /// What was to be sent cannot be said in the protocol, or what came cannot be meant.
    #[error("{0}")]
    Protocol(String),
}
