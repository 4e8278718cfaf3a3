use crate::acks::Ack;
use bytes::Bytes;
use metaq_types::limits::{BATCH_BYTES_MAX, RECORD_HEADER_BYTES};
use metaq_types::{MessageId, Offset};
use parking_lot::Mutex;
use std::collections::VecDeque;

/// Records in one gathering write: each is two parts, header and body.
const BATCH_RECORDS_MAX: usize = crate::disk::WRITE_PARTS_MAX / 2;

/// What the answer to an append waits for here; members of a quorum may have to hold it, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AnswerAfter {
    /// What the flush rule says.
    Rule,
    /// A sync, whatever the rule.
    Sync,
    /// The write, whatever the rule.
    Write,
}

impl AnswerAfter {
    pub(crate) fn sync_or_rule(synced: bool) -> AnswerAfter {
        if synced { AnswerAfter::Sync } else { AnswerAfter::Rule }
    }
}

/// A record without its id, which it gets together with its offset.
pub(crate) struct NewRecord {
    pub(crate) flag: i32,
    pub(crate) checksum: i32,
    pub(crate) body: Bytes,
    pub(crate) ack: Ack,
    pub(crate) after: AnswerAfter,
}

/// A message of a batch, with the id it was given before.
#[derive(Clone, Debug)]
pub struct BatchRecord {
    pub id: MessageId,
    pub flag: i32,
    pub checksum: i32,
    pub body: Bytes,
}

/// Messages that are stored in one run or not at all.
pub(crate) struct NewBatch {
    pub(crate) records: Vec<BatchRecord>,
    pub(crate) ack: Ack,
    pub(crate) after: AnswerAfter,
}

/// A replica's range of whole records.
pub(crate) struct Verbatim {
    pub(crate) at: Offset,
    pub(crate) segment: Offset,
    pub(crate) bytes: Bytes,
    pub(crate) ack: Ack,
}

pub(crate) enum Append {
    Record(NewRecord),
    Batch(NewBatch),
    Verbatim(Verbatim),
}

impl BatchRecord {
    pub(crate) fn bytes(&self) -> u32 {
        RECORD_HEADER_BYTES + self.body.len() as u32
    }
}

impl NewBatch {
    pub(crate) fn bytes(&self) -> u64 {
        self.records.iter().map(|record| u64::from(record.bytes())).sum()
    }
}

impl NewRecord {
    pub(crate) fn bytes(&self) -> u32 {
        RECORD_HEADER_BYTES + self.body.len() as u32
    }
}

impl Append {
    pub(crate) fn body_bytes(&self) -> usize {
        match self {
            Append::Record(record) => record.body.len(),
            Append::Batch(batch) => batch.records.iter().map(|record| record.body.len()).sum(),
            Append::Verbatim(range) => range.bytes.len(),
        }
    }

    pub(crate) fn into_ack(self) -> Ack {
        match self {
            Append::Record(record) => record.ack,
            Append::Batch(batch) => batch.ack,
            Append::Verbatim(range) => range.ack,
        }
    }
}

/// What the writer does next.
pub(crate) enum Batch {
    Empty,
    Records(Vec<NewRecord>),
    Whole(NewBatch),
    Verbatim(Verbatim),
}

/// Appends of one partition in the order they came, until the writer takes them.
#[derive(Default)]
pub(crate) struct AppendQueue(Mutex<Waiting>);

#[derive(Default)]
struct Waiting {
    appends: VecDeque<Append>,
    closed: bool,
}

impl AppendQueue {
    /// Gives the append back when the queue is closed.
    pub(crate) fn push(&self, append: Append) -> Result<(), Append> {
        let mut waiting = self.0.lock();
        if waiting.closed {
            return Err(append);
        }
        waiting.appends.push_back(append);
        Ok(())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.lock().appends.is_empty()
    }

    /// What waits can still be taken; nothing new is accepted.
    pub(crate) fn close(&self) {
        self.0.lock().closed = true;
    }

    pub(crate) fn take_all(&self) -> VecDeque<Append> {
        std::mem::take(&mut self.0.lock().appends)
    }

    /// The next batch that goes into one segment with one write. The record that fills the last of `room` is the last
    /// one taken: a segment is exceeded by at most that record, as the original's is.
    pub(crate) fn take_batch(&self, room: u64) -> Batch {
        let mut waiting = self.0.lock();
        let mut records = Vec::new();
        let mut bytes = 0;
        while records.len() < BATCH_RECORDS_MAX && bytes < room {
            match waiting.appends.pop_front() {
                Some(Append::Record(record)) => {
                    let larger = bytes + u64::from(record.bytes());
                    if larger > u64::from(BATCH_BYTES_MAX) && !records.is_empty() {
                        waiting.appends.push_front(Append::Record(record));
                        break;
                    }
                    bytes = larger;
                    records.push(record);
                }
                Some(Append::Verbatim(range)) if records.is_empty() => return Batch::Verbatim(range),
                Some(Append::Batch(batch)) if records.is_empty() => return Batch::Whole(batch),
                Some(other) => {
                    waiting.appends.push_front(other);
                    break;
                }
                None => {
                    waiting.release_memory();
                    break;
                }
            }
        }
        if records.is_empty() { Batch::Empty } else { Batch::Records(records) }
    }
}

impl Waiting {
    /// A burst must not leave its memory with each of ten thousand partitions.
    fn release_memory(&mut self) {
        if self.appends.capacity() > 64 {
            self.appends = VecDeque::new();
        }
    }
}
