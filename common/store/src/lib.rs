//! Partition logs on disk, and nothing above them: open, append, sync, read, recover.
//!
//! The broker appends and reads through [`Partition`], a slave's link appends verbatim, a node opens and closes the
//! [`Store`]. Files are the original's, byte for byte; what is ours lies in `.metaq` inside the data path.
//!
//! What holds at all times: one writer a partition; bytes are published after they are written, so `kept ≤ readable ≤
//! durable ≤ written`; every append is answered exactly once; a disk error is a state of the partition. Start reading
//! at `partition.rs`, then `writer.rs` (the way of a put), `committer.rs` (when it is synced) and `read.rs` (the way of a get).
//!
//! What must never come in here: sockets, the protocol, configuration files, who the replicas are. A second cursor may
//! hold answers back ([`Partition::confirm`]); why it does is none of the store's business.

mod acks;
mod archive;
mod at_risk;
mod clean;
mod committer;
mod confirm;
mod disk;
mod ended;
mod errors;
mod examine;
mod files;
mod full;
mod ids;
mod inspect;
mod join;
mod kind;
mod load;
mod lost;
mod metrics;
mod partition;
mod positions;
mod queue;
mod read;
mod recovery;
mod reigns;
mod releases;
mod removed;
mod retention;
mod roots;
mod rules;
mod scan;
mod segment;
mod slice;
mod store;
mod sync;
mod texts;
mod wal;
mod walk;
mod window;
mod writer;

pub use acks::{Ack, AckSink, Appended};
pub use disk::{Disk, OsDisk};
pub use errors::{AppendError, CloseError, CreateError, IdError, OpenError, Refusal};
pub use examine::{
    Holder, Misplaced, PartitionFiles, PathContent, PieceFault, RecordFile, SegmentFile, holder, partition_files,
    path_content, unreplayed,
};
pub use files::{files_limit, open_files_max};
pub use ids::{IdClock, WallClock, unix_ms};
pub use inspect::{Inspection, LogFiles, inspect};
pub use join::SetAside;
pub use load::Repair;
pub use metrics::{FlushCause, StoreMetrics};
pub use partition::{Health, Partition};
pub use positions::{Positions, Reader};
pub use queue::BatchRecord;
pub use recovery::RecoveryReport;
pub use retention::{Disposal, RemoveError, Removed, Retention};
pub use rules::{Flush, PartitionRules};
pub use scan::{Piece, Pieces};
pub use slice::{Slice, SliceAt};
pub use store::{Expects, RulesFor, Store, StoreOptions};
pub use wal::WalOptions;
