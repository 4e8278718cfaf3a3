//! Appends of one partition under way, in the order of the log.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use metaq_store::{Ack, AckSink, AppendError, Appended, Partition};
use metaq_types::Offset;
use parking_lot::Mutex;
use tokio::runtime::RuntimeFlavor;
use tokio::sync::oneshot;

use super::follow::Room;

/// Appends under way: what is written while those before are synced is covered by the next sync.
const APPENDS_MAX: usize = 6;

/// So many bytes are written by the task that has just checked them.
const MANY_BYTES: usize = 64 * 1024;

type Outcome = Result<Appended, AppendError>;

/// Receives the outcome of one append.
struct Once {
    sender: Mutex<Option<oneshot::Sender<Outcome>>>,
}

impl AckSink for Once {
    fn acked(&self, _ticket: u64, outcome: Outcome) {
        if let Some(sender) = self.sender.lock().take() {
            // The receiver is gone only when its task was dropped, which happens at the end of the process.
            let _ = sender.send(outcome);
        }
    }
}

/// An ack for one append and where its outcome arrives.
pub(super) fn ack() -> (Ack, oneshot::Receiver<Outcome>) {
    let (sender, receiver) = oneshot::channel();
    (Ack::new(Arc::new(Once { sender: Mutex::new(Some(sender)) }), 0), receiver)
}

/// Bytes being stored behind one another in one segment.
pub(super) struct Appends {
    partition: Arc<Partition>,
    segment: Offset,
    end: Offset,
    under_way: VecDeque<UnderWay>,
    failure: Option<AppendError>,
}

struct UnderWay {
    end: Offset,
    outcome: oneshot::Receiver<Outcome>,
    _room: Room,
}

impl Appends {
    pub(super) fn new(partition: Arc<Partition>, at: Offset, segment: Offset) -> Appends {
        Appends { partition, segment, end: at, under_way: VecDeque::new(), failure: None }
    }

    /// Where the next bytes belong.
    pub(super) fn end(&self) -> Offset {
        self.end
    }

    pub(super) fn log(&self) -> &Partition {
        &self.partition
    }

    pub(super) fn segment(&self) -> Offset {
        self.segment
    }

    /// Whether there is room for more.
    pub(super) fn take_more(&self) -> bool {
        self.under_way.len() < APPENDS_MAX && self.failure.is_none()
    }

    /// Appends checked, whole records; `room` is held until they are stored.
    pub(super) fn append(&mut self, bytes: Bytes, room: Room) {
        let (ack, outcome) = ack();
        let at = self.end;
        self.end = at + bytes.len() as u64;
        self.under_way.push_back(UnderWay { end: self.end, outcome, _room: room });
        if bytes.len() < MANY_BYTES {
            return self.partition.append_verbatim(at, self.segment, bytes, ack);
        }
        if self.partition.append_verbatim_queued(at, self.segment, bytes, ack) {
            write_here(&self.partition);
        }
    }

    /// Up to where the bytes are as safe as the topic's rule asks, whenever it is further than before; `None` once nothing
    /// is under way. May be cancelled.
    pub(super) async fn stored(&mut self) -> Option<Offset> {
        loop {
            let next = self.under_way.front_mut()?;
            let outcome = (&mut next.outcome).await.unwrap_or(Err(AppendError::Dropped));
            let end = next.end;
            self.under_way.pop_front();
            match (outcome, &self.failure) {
                (Ok(_), None) => return Some(end),
                // Behind one that was refused, the others are, too: they do not fit any more.
                (_, Some(_)) => {}
                (Err(error), None) => self.failure = Some(error),
            }
        }
    }

    /// Why not all of them could be stored.
    pub(super) fn outcome(self) -> Result<(), AppendError> {
        self.failure.map_or(Ok(()), Err)
    }
}

/// Writes what is queued, on this thread, whose processor has just read the bytes. It may wait for the disk, so the other
/// tasks of a worker move on.
fn write_here(partition: &Arc<Partition>) {
    match tokio::runtime::Handle::current().runtime_flavor() {
        RuntimeFlavor::CurrentThread => partition.write_queued(),
        _ => tokio::task::block_in_place(|| partition.write_queued()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use metaq_store::{Flush, PartitionRules, Store, StoreOptions};
    use metaq_types::{BrokerId, MessageId, PartitionId};
    use metaq_wire::RecordHeader;

    fn record(id: i64, body: &[u8]) -> Bytes {
        let mut bytes = RecordHeader::of(MessageId(id), 0, body).encode().to_vec();
        bytes.extend_from_slice(body);
        bytes.into()
    }

    async fn all_stored(appends: &mut Appends) -> Vec<Offset> {
        let mut ends = Vec::new();
        while let Some(end) = appends.stored().await {
            ends.push(end);
        }
        ends
    }

    async fn check_flush(threshold: u32) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().to_path_buf();
        let rules = PartitionRules {
            retention: metaq_store::Retention::FOREVER,
            flush: Flush { threshold, interval: std::time::Duration::from_secs(10) },
            segment_bytes_max: 1 << 20,
            data_path: path.clone(),
        };
        let told = rules.clone();
        let options = StoreOptions::new(&path, BrokerId::new(0).unwrap(), Arc::new(move |_| told.clone()));
        let store = Store::open(options).unwrap();
        let id: PartitionId = "test-0".parse().unwrap();
        let log = store.get_or_create(&id, &rules, Offset::ZERO).unwrap();
        let mut appends = Appends::new(Arc::clone(&log), Offset::ZERO, Offset::ZERO);
        let mut due = Vec::new();
        for (number, body_bytes) in [MANY_BYTES, 10, MANY_BYTES + 1, 20].into_iter().enumerate() {
            appends.append(record(number as i64 + 1, &vec![7; body_bytes]), None);
            due.push(appends.end());
        }
        assert_eq!(all_stored(&mut appends).await, due);
        assert_eq!(log.positions().written, appends.end());
        appends.outcome().unwrap();

        // What cannot be stored ends the row: nothing behind it is stored, and nothing more taken.
        let mut appends = Appends::new(Arc::clone(&log), log.positions().written, Offset::ZERO);
        let first = record(5, b"stored");
        appends.append(first.clone(), None);
        let stored = appends.end();
        appends.append(first.slice(..first.len() - 1), None);
        appends.append(record(6, b"behind"), None);
        assert!(appends.take_more());
        assert_eq!(all_stored(&mut appends).await, [stored]);
        assert!(!appends.take_more());
        assert!(matches!(appends.outcome(), Err(AppendError::Refused(_))));
        assert_eq!(log.positions().written, stored);
        store.close().unwrap();
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn what_is_appended_in_a_row_is_stored_in_a_row_and_ends_with_the_first_refusal() {
        check_flush(0).await;
        check_flush(1000).await;
    }

    #[tokio::test]
    async fn so_it_is_on_a_single_thread() {
        check_flush(0).await;
    }
}
