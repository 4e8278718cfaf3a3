//! The text protocol and the stored record, as pure functions on bytes.
//!
//! The broker decodes requests and encodes answers with it; the client and the replication link do the reverse; the
//! store encodes, checks and walks records with it. One layout of a record serves the disk, consumers and slaves.
//!
//! Invariants: "more bytes are needed" is not an error and consumes nothing; sizes are decided from the header line
//! alone, before a body is waited for; what was decoded shares the bytes it came in, without a copy; nothing panics,
//! whatever the input.
//!
//! What must never come in here: sockets, files, clocks, a runtime, or whether a topic exists.

mod decode;
mod encode;
mod greeting;
mod line;
mod record;
mod request;
mod response;
mod text;
mod txid;

pub use decode::{DecodeError, Decoded, Skipped, decode, skip};
pub use encode::{
    encode_get, encode_offset, encode_put, encode_quit, encode_result, encode_stats, encode_stored, encode_transaction,
    encode_transactional_put, encode_value_head, encode_version,
};
pub use greeting::{Greeting, Level, Role};
pub use record::{
    BadRecord, NegativeLength, RecordFault, RecordHeader, Records, attribute_fits, checksum, split_attribute,
};
pub use request::{Get, OffsetQuery, Put, Request, Stats, Sync, Transaction, TransactionKind, Version};
pub use response::{RESPONSE_BODY_BYTES_MAX, Response, ValueExtra, confirmed_of, decode_response};
pub use text::Text;
pub use txid::{KeyError, TransactionKey};
