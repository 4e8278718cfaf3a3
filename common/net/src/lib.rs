//! Byte streams to peers: how sockets are opened and tuned, and how a file reaches one without passing through us.
//!
//! The broker listens, the client and the link connect through it. What must never come in here: anything about
//! messages.

pub mod tcp;
