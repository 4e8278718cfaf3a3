//! Byte streams to peers: how sockets are opened and tuned, how a file reaches one without passing through us, and who
//! may talk over the ones that are encrypted.
//!
//! [`certs`] holds a node's certificate and the authorities it trusts, and replaces them while connections go on;
//! [`tls`] makes configurations of them; [`quic`] listens and connects between nodes; [`refusals`] counts who was sent
//! away and why. The broker listens, the client and the link connect through them. Invariants: nothing is spoken over
//! QUIC before both sides have shown a certificate of the cluster; a certificate that cannot serve is never taken over.
//!
//! What must never come in here: anything about messages.

pub mod certs;
mod datagrams;
pub mod quic;
pub mod refusals;
mod resets;
pub mod tcp;
pub mod tls;
mod x509;

pub use x509::{Facts, cluster_id, facts};
