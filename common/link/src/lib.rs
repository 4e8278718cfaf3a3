//! Replication, both halves in one place: how a slave copies its master, and what the master knows of its slaves.
//!
//! A slave pulls (replication, "A5"): every partition is read from the end of its own log with a long poll and the
//! bytes are appended verbatim, so the position of a slave is its log and nothing else. The decisions are plain
//! functions of (state, answer): [`pull`] for one partition on the slave, [`replicas`] for the master's view, [`quorum`]
//! for what is acknowledged, [`promotion`] for what a promotion may lose. Only [`driver`] touches sockets, tasks and clocks.
//!
//! Used by `broker` (the master's view, the `stats replicas` text), by `slave` (the driver) and by the operator's tool
//! (reading that text back). Nothing in here deletes or truncates: whatever does not fit stops one partition and says
//! what to do. What must never come in: ZooKeeper, client connections, segment files.

pub mod candidacy;
pub mod confirmed;
pub mod driver;
pub mod lag;
pub mod lineage;
pub mod listing;
pub mod members;
pub mod pace;
pub mod progress;
pub mod promotion;
pub mod pull;
pub mod quorum;
pub mod quorum_report;
pub mod rate;
pub mod replica_report;
pub mod replicas;
pub mod roll;
pub mod standing;
pub mod throttle;
pub mod verdict;
