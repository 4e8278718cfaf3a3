//! Transactions: what is open, prepared or decided, and the journal that outlives the process.
//!
//! [`Coordinator`] is all the broker sees: begin, put, the commands that end a transaction, recover. `table.rs` is the
//! state machine, without I/O; `coordinator.rs` and `work.rs` carry out what it allows, `commit.rs` for many at a time;
//! `held.rs` is a message before it is in the journal, `entry.rs` the form of the journal's entries; `replay.rs` and
//! `recovery.rs` make a start (or a promotion, which is the same) out of them; `checkpoint.rs` keeps the journal short;
//! `original.rs` reads the original's journal.
//!
//! The journal is a log of the store like any other: checked records, one committer, one replication. What holds: the
//! messages of a transaction are in the journal before its prepare or its commit is answered, and a decision is before
//! anything follows from it; a batch is in a partition whole or, until it is completed, not visible as a part of a
//! decision that could still be taken back. Bodies are kept in memory only while a transaction is open and short.
//!
//! Called by `broker` and, to open it, by `master`. Must never know: sockets, configuration files, who the replicas are.

mod checkpoint;
mod commit;
mod coordinator;
mod entry;
mod held;
mod original;
mod recovery;
mod replay;
mod reply;
mod table;
mod work;

pub use coordinator::{Coordinator, OpenError, Opened, Settings};
pub use held::NewMessage;
pub use recovery::Recovered;
pub use reply::{Done, PutDone, Refused};
pub use table::{Command, Line, SessionId};
