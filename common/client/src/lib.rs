//! A small client of the text protocol, over TCP or any other stream, for the replication link, the operator's tool,
//! the tests and the load generator.
//!
//! One connection, many requests outstanding, answers matched by their opaque. Invariants: what is outstanding is
//! bounded in number and in bytes; every request ends, with an answer, at its deadline or with the connection; a
//! dropped future leaves nothing behind.
//!
//! What must never come in here: choosing a broker, retrying, or remembering offsets. A connection that ended stays
//! ended; the caller connects anew.

mod calls;
mod connection;
mod error;
mod requests;

pub use calls::{OUTSTANDING_BYTES_MAX, OUTSTANDING_MAX};
pub use error::ClientError;
pub use requests::{Client, GetAnswer, REQUEST_TIMEOUT, Stored, host_and_port};
