//! Replication under faults, in a simulation: the decisions of `link` and `types` (pull, replicas, lineage, verdict,
//! promotion) run in one thread on a clock, a network, disks and a registry that are all made up.
//!
//! A seed decides everything: the delays, losses and cuts of the network, when a process is killed or stopped, when a
//! machine loses what was not synced, what the operator does about it. Faults stop after a while, and then everything has
//! to be whole again. `invariants/` says what must hold meanwhile, one file each. The same seed gives the same run; a
//! `Mutation` breaks a rule on purpose, to see that an invariant notices.
//!
//! What is simulated here, and not the real code: the order of a slave's steps (`link/driver`), the claim of a reign
//! (`registry/fence.rs`, `master/reign.rs`), and a log's files. No sockets, threads, files or clocks must come in.

mod candidacy;
mod consumer;
mod faults;
mod invariants;
mod join;
mod log;
mod master;
mod message;
mod mutation;
mod net;
mod node;
mod operator;
mod queue;
mod quorum;
mod registry;
mod retention;
mod rng;
mod serving;
mod setup;
mod slave;
mod trace;
mod world;

pub use mutation::{MUTATIONS, Mutation};
pub use world::{Options, Outcome, run};
