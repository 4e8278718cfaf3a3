//! Makes a node known: keeps what it wants to be known for in ZooKeeper, and reads there what others are known for.
//!
//! Called by the master and the slave (`Registry`), by the operator's tool ([`lookup`]) and, for `--local`, by both
//! of the first ([`Embedded`]). [`paths`] holds every path and value, `wanted` says what should stand there as data,
//! `plan` compares that with what stands, `zookeeper` and `session` do it over and over, `follow` watches a slave's
//! master, `fence` keeps two masters of one id apart. The registry never stops the data plane: while ZooKeeper is away everything stays as it was, and it is
//! put right afterwards, whatever became of the session, of the nodes or of the whole ensemble.
//!
//! Invariants: the broker's own node stands before its topics, the configuration's checksum comes last; a node held by
//! another address is never touched. What must never come in here: connections to brokers, files, configuration rules.

mod embedded;
pub mod fence;
mod follow;
mod groups;
mod hold;
mod lookup;
pub mod paths;
mod plan;
mod session;
mod wanted;
mod zookeeper;

pub use embedded::{Embedded, embedded_address};
pub use follow::MasterAt;
pub use groups::{Group, GroupPartition, Stored, lookup_groups};
pub use lookup::{Cluster, ClusterBroker, ClusterTopic, LookupError, lookup};
pub use paths::Role;
pub use wanted::{Wanted, WantedTopic};
pub use zookeeper::{Registry, State};
