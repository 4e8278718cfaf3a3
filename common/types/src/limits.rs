//! Every bound of the system, with its unit in the name. A bound that depends on another says so in an assertion.

use std::time::Duration;

/// Length, checksum, id and flag in front of every stored message.
pub const RECORD_HEADER_BYTES: u32 = 20;

/// The original's clients refuse to decode a message body above this (wire-protocol, "4.4"): a put above it is refused.
pub const MESSAGE_BYTES_MAX: u32 = 2 * 1024 * 1024 - RECORD_HEADER_BYTES;

/// The longest header line accepted, CR LF not counted. The longest legal one (topic, transaction key, numbers) is
/// below 2 KiB.
pub const HEADER_LINE_BYTES_MAX: usize = 8 * 1024;

/// A declared body above [`MESSAGE_BYTES_MAX`] and up to this is read and thrown away, so that the refusal reaches a
/// client that shares its connection with others. Above it the connection is closed.
pub const DISCARD_BYTES_MAX: u32 = 64 * 1024 * 1024;

pub const TOPIC_NAME_BYTES_MAX: usize = 200;

/// `transaction … timeout`, consumer groups: longer names are refused before they reach a map or a log line.
pub const GROUP_NAME_BYTES_MAX: usize = 255;

pub const BROKER_ID_MAX: u32 = 1023;

/// Members that may have to hold a message, the master included.
pub const ACK_QUORUM_MAX: u32 = 9;

/// Partition numbers are below this.
pub const PARTITIONS_PER_TOPIC_MAX: u32 = 100_000;

/// Segments are named by the offset of their first byte and addressed with 32 bits inside.
pub const SEGMENT_BYTES_MIN: u32 = 1024;
pub const SEGMENT_BYTES_MAX: u32 = i32::MAX as u32;

/// What one get may return at most is `maxTransferSize`, within these.
pub const TRANSFER_BYTES_MIN: u32 = 64;
pub const TRANSFER_BYTES_MAX: u32 = 64 * 1024 * 1024;

/// One write of the committer: it stops filling a batch beyond this.
pub const BATCH_BYTES_MAX: u32 = 4 * 1024 * 1024;

/// Bytes of put bodies accepted and not yet written, over all connections of a node; above it puts get 503.
pub const APPEND_QUEUE_BYTES_MAX: usize = 256 * 1024 * 1024;

/// Bytes read of messages that are not whole yet, over all connections of a node: above it a large one that is not whole
/// gets 503.
pub const UNFINISHED_BYTES_MAX: usize = 256 * 1024 * 1024;

/// An entry of the transaction journal: a message with its topic and transaction key in front.
pub const ENTRY_BYTES_MAX: u32 = MESSAGE_BYTES_MAX + 4 * 1024;

/// The messages of one transaction, headers included: they are read into memory at its commit and written in one run.
pub const RUN_BYTES_MAX: u32 = 128 * 1024 * 1024;

/// Transactions that are not over, prepared ones included.
pub const TRANSACTIONS_MAX: usize = 100_000;

pub const TRANSACTION_MESSAGES_MAX: usize = 100_000;

/// Messages that a transaction keeps in memory before they go into the journal, as entries of it.
pub const TRANSACTION_HELD_BYTES_MAX: u32 = 64 * 1024;

/// And those of all transactions.
pub const TRANSACTIONS_HELD_BYTES_MAX: u64 = 64 * 1024 * 1024;

/// The journal is cut at the front in pieces of this size.
pub const JOURNAL_SEGMENT_BYTES: u32 = 64 * 1024 * 1024;

/// Above this no message of a transaction is accepted: something keeps the journal from being cut.
pub const JOURNAL_BYTES_MAX: u64 = 4 * 1024 * 1024 * 1024;

/// Answers outstanding on one connection; above it the connection is not read until some are sent.
pub const CONNECTION_REPLIES_MAX: usize = 1024;

/// And the bytes of such answers, those of messages not counted. One answer may exceed it, and as much again is being sent.
pub const CONNECTION_UNSENT_BYTES_MAX: usize = 128 * 1024;

/// Long polls parked on one connection; one more is answered at once.
pub const CONNECTION_PARKED_MAX: usize = 100_000;

/// A `get … wait=MS` waits at most this long.
pub const LONG_POLL_MAX: Duration = Duration::from_secs(30);

/// A get or an offset that comes between the answer to a commit and the sync of its messages waits at most this long for
/// that sync.
pub const TOLD_WAIT_MAX: Duration = Duration::from_secs(1);

pub const CONNECTIONS_MAX: usize = 10_000;

/// Connections beyond those that are told so for a moment before they are closed; further ones are closed at once.
pub const CONNECTIONS_REFUSED_MAX: usize = 256;

/// A connection without a byte in either direction for this long is closed (wire-protocol, "1.7").
pub const CONNECTION_IDLE_MAX: Duration = Duration::from_secs(300);

/// Segment files kept open, over all partitions of a store.
pub const OPEN_FILES_MAX: usize = 1024;

/// Bytes between two entries of a segment's index of record boundaries.
pub const INDEX_INTERVAL_BYTES: u32 = 32 * 1024;

/// Unsynced bytes of one partition that are made durable through the write-ahead log: more of them are worth a sync of
/// the partition's own file, and would be written twice otherwise.
pub const WAL_RANGE_BYTES_MAX: u32 = 64 * 1024;

/// And of all partitions in one round.
pub const WAL_ROUND_BYTES_MAX: u32 = 2 * 1024 * 1024;

/// Bytes of one partition that only the write-ahead log holds: above that the partition's own file is synced.
pub const WAL_UNSETTLED_BYTES_MAX: u32 = 128 * 1024;

/// A reader that finds unsynced bytes asks for a sync at most this often a partition.
pub const READER_SYNC_INTERVAL_MIN: Duration = Duration::from_micros(200);

const _: () = assert!(MESSAGE_BYTES_MAX + RECORD_HEADER_BYTES <= 2 * 1024 * 1024);
const _: () = assert!(BATCH_BYTES_MAX > RECORD_HEADER_BYTES + MESSAGE_BYTES_MAX);
const _: () = assert!(DISCARD_BYTES_MAX > MESSAGE_BYTES_MAX);
const _: () = assert!(APPEND_QUEUE_BYTES_MAX as u64 > BATCH_BYTES_MAX as u64);
// Puts are limited by their number: the answer to one that was stored is below 100 bytes.
const _: () = assert!(CONNECTION_UNSENT_BYTES_MAX >= 100 * CONNECTION_REPLIES_MAX);
const _: () = assert!(RUN_BYTES_MAX as usize <= APPEND_QUEUE_BYTES_MAX / 2);
const _: () =
    assert!(ENTRY_BYTES_MAX as usize > MESSAGE_BYTES_MAX as usize + TOPIC_NAME_BYTES_MAX + 3 * GROUP_NAME_BYTES_MAX);
const _: () = assert!(SEGMENT_BYTES_MAX as u64 + (RECORD_HEADER_BYTES + MESSAGE_BYTES_MAX) as u64 <= u32::MAX as u64);
const _: () = assert!(TRANSACTION_HELD_BYTES_MAX as u64 <= TRANSACTIONS_HELD_BYTES_MAX);
const _: () = assert!(TRANSACTION_HELD_BYTES_MAX + ENTRY_BYTES_MAX < RUN_BYTES_MAX);
const _: () = assert!(HEADER_LINE_BYTES_MAX > 4 * (TOPIC_NAME_BYTES_MAX + GROUP_NAME_BYTES_MAX));
