//! Transactions: what is open, prepared or decided, and the journal that outlives the process.
//!
//! [`Coordinator`] is all the broker sees: begin, put, the commands that end a transaction, recover. `table.rs` is the
//! state machine, without I/O; `coordinator.rs` and `work.rs` carry out what it allows; `entry.rs` is the form of the
//! journal's entries; `replay.rs` and `recovery.rs` make a start (or a promotion, which is the same) out of them;
//! `checkpoint.rs` keeps the journal short; `original.rs` reads the original's journal.
//!
//! The journal is a log of the store like any other: checked records, one committer, one replication. What holds: a
//! message of a transaction is in the journal before its put is answered; a decision is in the journal before anything
//! follows from it; a batch is in a partition whole or, until it is completed, not visible as a part of a decision that
//! could still be taken back. Bodies stay in the journal and are not kept in memory.
//!
//! Called by `broker` and, to open it, by `master`. Must never know: sockets, configuration files, who the replicas are.

mod checkpoint;
mod coordinator;
mod entry;
mod original;
mod recovery;
mod replay;
mod reply;
mod table;
mod work;

pub use coordinator::{Coordinator, OpenError, Settings};
pub use recovery::Recovered;
pub use reply::{Done, PutDone, Refused};
pub use table::{Command, Line, SessionId};
