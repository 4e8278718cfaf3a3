//! Messages of open transactions that are not in the journal yet.
//!
//! Nothing follows from a message before its transaction is prepared or committed, and a start rolls back what is
//! neither: so a message may wait in memory, and goes into the journal with the decision, in one write.

use crate::entry::{Number, What, encode};
use crate::table::Message;
use bytes::Bytes;
use metaq_store::BatchRecord;
use metaq_types::limits::RECORD_HEADER_BYTES;
use metaq_types::{MessageId, Offset, PartitionId};
use metaq_wire::TransactionKey;

/// A message as a put brings it, with its checksum.
#[derive(Clone, Debug)]
pub struct NewMessage {
    pub flag: i32,
    pub checksum: i32,
    pub body: Bytes,
}

/// One message, encoded for the journal, in memory of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Held {
    id: MessageId,
    /// Place in the transaction's targets.
    pub(crate) target: u32,
    flag: i32,
    checksum: i32,
    entry: Bytes,
    entry_checksum: i32,
    /// Where in the entry its body begins.
    body_at: usize,
}

impl Held {
    pub(crate) fn new(
        number: Number,
        key: &TransactionKey,
        id: MessageId,
        partition: &PartitionId,
        message: NewMessage,
    ) -> Held {
        let NewMessage { flag, checksum, body } = message;
        let body_bytes = body.len();
        let entry = encode(number, key, &What::Put { partition: partition.clone(), flag, body });
        let (entry_checksum, body_at) = (metaq_wire::checksum(&entry), entry.len() - body_bytes);
        Held { id, target: 0, flag, checksum, entry, entry_checksum, body_at }
    }

    pub(crate) fn id(&self) -> MessageId {
        self.id
    }

    /// Of its record in the journal.
    pub(crate) fn bytes(&self) -> u32 {
        RECORD_HEADER_BYTES + self.entry.len() as u32
    }

    /// Of its record in its partition.
    pub(crate) fn message_bytes(&self) -> u32 {
        self.bytes() - self.body_at as u32
    }

    /// As it goes into the journal; the id of the record is the message's.
    pub(crate) fn record(&self) -> BatchRecord {
        BatchRecord { id: self.id, flag: 0, checksum: self.entry_checksum, body: self.entry.clone() }
    }

    /// As it goes into its partition.
    pub(crate) fn message(&self) -> BatchRecord {
        let body = self.entry.slice(self.body_at..);
        BatchRecord { id: self.id, flag: self.flag, checksum: self.checksum, body }
    }
}

/// Where the messages of a run are that begins at `start` in the journal.
pub(crate) fn placed(run: &[Held], start: Offset) -> Vec<Message> {
    let mut at = start;
    let place = |held: &Held| {
        let message = Message { at, bytes: held.bytes(), target: held.target };
        at = at + u64::from(message.bytes);
        message
    };
    run.iter().map(place).collect()
}
