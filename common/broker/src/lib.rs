//! A running node: TCP, TLS and QUIC in, store out.
//!
//! [`Node`] assembles it and is where reading starts. `session.rs` is the life of one connection over any
//! `transport.rs`, `secure.rs` lets the encrypted ones in, `full.rs` sends away those for whom there is no room,
//! `outbound.rs` keeps a connection's answers in order, `dispatch.rs` is the single match over requests, `handlers/` has
//! one file a command.
//!
//! Invariants: requests of one connection are executed in the order they came, and answered in that order, but for
//! long polls; every request that is owed an answer gets exactly one; nothing is kept for a connection without a
//! bound. A handler never waits: what cannot be answered now leaves a slot behind (`outbound.rs`) that the
//! store or a parked task fills.
//!
//! Called by the master's and the slave's binaries. Must never know: ZooKeeper (it offers its topics, `registry`
//! follows them), command lines, log formats.

mod admission;
mod answer;
mod dispatch;
mod full;
mod gate;
mod handlers;
mod lag;
mod metrics;
mod node;
mod outbound;
mod quorum;
mod realtime;
mod secure;
mod session;
mod settings;
mod throttle;
mod topics;
mod transactions;
mod transport;
mod view;
mod watched;

pub use gate::{Gate, Successor};
pub use metrics::Counters;
pub use node::{Node, NodeOptions, NodeRole};
pub use settings::{Untold, journal_path, rules_for, transaction_settings, untold};
pub use watched::{NodeView, Throttled, TopicQuorum};
