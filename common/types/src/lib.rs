//! The nouns of metaq, without I/O: names, ids, offsets, status codes and every bound of the system.
//!
//! Every other crate uses this one; it uses only `std`. A value of one of these types is already valid: a
//! [`TopicName`] can be a directory name, a [`BrokerId`] fits in a message id, an [`Offset`] is a place in a log.
//! What must never come in here: sockets, files, clocks, configuration.

mod ids;
pub mod limits;
mod lineage;
mod offset;
mod status;

pub use ids::{
    BrokerId, IdRangeError, JOURNAL_TOPIC, MessageId, Opaque, PartitionId, PartitionNameError, SlaveId, TopicName,
    TopicNameError,
};
pub use lineage::{Epoch, Kinship, Lineage, LineageTextError, REIGNS_MAX, Reign, Shared};
pub use offset::Offset;
pub use status::Status;
