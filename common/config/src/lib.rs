//! Configuration files, read and checked: `server.ini` becomes a [`BrokerConfig`] and `async_slave.properties` a
//! [`SlaveConfig`] with nothing left to resolve; a fault is reported with its line, and all faults in one run.
//!
//! The binaries load them, `broker` and `registry` read them, `metaq` explains them. Invariants: a value that exists
//! is within its range; each key is declared once, in [`keys`]; a file with an unknown key or section is refused, so
//! that a typing error is never a silent default. Must never come in here: sockets other than to find out our own
//! address, a runtime, the state of a running node.

mod ack;
pub mod address;
mod broker;
mod changes;
mod finding;
mod ini;
pub mod keys;
mod lag;
mod lines;
mod live;
mod merge;
mod nearest;
mod number;
mod pattern;
mod pieces;
mod policy;
mod security;
mod slave;
mod system;
mod topic;
mod values;
mod zookeeper;

pub use ack::AckRules;
pub use broker::BrokerConfig;
pub use finding::{ConfigErrors, Finding};
pub use lag::SlaveLagAction;
pub use live::Live;
pub use merge::{Merged, merge};
pub use policy::{DeleteAction, DeletePolicy, DeleteWhen, in_local_time};
pub use security::{ReplicationTransport, TlsClientAuth, TlsFiles};
pub use slave::SlaveConfig;
pub use system::{FlushTxLog, System};
pub use topic::Topic;
pub use zookeeper::ZooKeeper;
