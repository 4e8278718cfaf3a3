//! Random sequences of everything a log goes through, compared with a vector.

#![expect(clippy::unwrap_used, reason = "the helpers of tests are test code")]

mod support;

use metaq_store::{Partition, Reader, SliceAt, Store};
use metaq_types::MessageId;
use metaq_wire::{RecordHeader, checksum};
use proptest::collection::vec;
use proptest::prelude::*;
use std::fs::OpenOptions;
use std::sync::Arc;
use support::*;

const SEGMENT_BYTES_MAX: u32 = 3000;

#[derive(Clone, Debug)]
enum Step {
    Append(usize),
    /// A replica's range of so many records, in the active segment or in a new one.
    Verbatim {
        records: usize,
        new_segment: bool,
    },
    Sync,
    Close,
    Crash,
    /// A crash, with so many bytes of the last segment lost.
    CutTail(u64),
    /// A crash, with so many zeros behind the last segment.
    ZeroTail(u64),
    Slice {
        place: prop::sample::Index,
        bytes_max: u32,
    },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (0usize..1500).prop_map(Step::Append),
        4 => Just(Step::Append(0)),
        3 => (1usize..5, any::<bool>()).prop_map(|(records, new_segment)| Step::Verbatim { records, new_segment }),
        2 => Just(Step::Sync),
        1 => Just(Step::Close),
        1 => Just(Step::Crash),
        1 => (0u64..2500).prop_map(Step::CutTail),
        1 => (1u64..100).prop_map(Step::ZeroTail),
        6 => (any::<prop::sample::Index>(), 1u32..4000).prop_map(|(place, bytes_max)| Step::Slice { place, bytes_max }),
    ]
}

struct Run {
    setup: Setup,
    store: Store,
    partition: Arc<Partition>,
    model: Vec<Message>,
    next_body: u8,
}

impl Run {
    fn new(threshold: u32) -> Run {
        let setup = Setup::new(threshold, SEGMENT_BYTES_MAX);
        let store = setup.open();
        let partition = setup.partition(&store, "test-0");
        Run { setup, store, partition, model: Vec::new(), next_body: 0 }
    }

    fn end(&self) -> u64 {
        self.model.last().map_or(0, |last| last.offset + last.header.record_bytes())
    }

    fn body(&mut self, bytes: usize) -> Vec<u8> {
        self.next_body = self.next_body.wrapping_add(1);
        vec![self.next_body; bytes]
    }

    fn message(&mut self, offset: u64, id: MessageId, body: Vec<u8>) -> Message {
        let header = RecordHeader { length: body.len() as u32, checksum: checksum(&body), id, flag: 0 };
        Message { offset, header, body }
    }

    fn apply(&mut self, step: Step) {
        match step {
            Step::Append(bytes) => {
                let body = self.body(bytes);
                let appended = put(&self.partition, &body).unwrap();
                assert_eq!(appended.offset.get(), self.end());
                assert!(self.model.last().is_none_or(|last| last.header.id < appended.id));
                let message = self.message(self.end(), appended.id, body);
                self.model.push(message);
            }
            Step::Verbatim { records, new_segment } => self.verbatim(records, new_segment),
            Step::Sync => self.sync(),
            Step::Close => {
                self.store.close().unwrap();
                self.reopen();
                assert!(self.store.recovery_report().clean);
            }
            Step::Crash => self.reopen(),
            Step::CutTail(bytes) => self.cut_tail(bytes),
            Step::ZeroTail(zeros) => {
                self.crash_with(|file| file.set_len(file.metadata().unwrap().len() + zeros).unwrap());
                assert_eq!(self.store.recovery_report().repaired[0].cut_bytes, zeros);
            }
            Step::Slice { place, bytes_max } => self.slice(place, bytes_max),
        }
        let positions = self.partition.positions();
        assert_eq!(positions.written.get(), self.end());
        assert!(positions.kept <= positions.readable && positions.readable <= positions.durable);
        assert!(positions.durable <= positions.written);
        assert_eq!(self.partition.bytes(), self.end());
    }

    fn verbatim(&mut self, records: usize, new_segment: bool) {
        let (start, active) = (self.end(), self.partition.active_segment().get());
        let mut bytes = Vec::new();
        for number in 0..records {
            let body = self.body(number * 31);
            let id = MessageId(self.store.ids().next().unwrap().0);
            let message = self.message(self.end(), id, body);
            bytes.extend_from_slice(&message.header.encode());
            bytes.extend_from_slice(&message.body);
            self.model.push(message);
        }
        let segment = if new_segment { start } else { active };
        let appended = put_verbatim(&self.partition, start, segment, &bytes).unwrap();
        assert_eq!((appended.offset.get(), appended.bytes as usize), (start, bytes.len()));
        assert_eq!(self.partition.active_segment().get(), segment);
    }

    fn sync(&self) {
        self.partition.request_sync();
        wait_synced(&self.partition);
    }

    fn reopen(&mut self) {
        self.crash_with(|_| {});
    }

    fn crash_with(&mut self, damage: impl FnOnce(&std::fs::File)) {
        let last = self.setup.segment("test-0", self.partition.active_segment().get());
        // The store has to let go before it can be opened again.
        let unused = Setup::new(0, 1).open();
        drop(std::mem::replace(&mut self.store, unused));
        damage(&OpenOptions::new().write(true).open(last).unwrap());
        self.store = self.setup.open();
        self.partition = self.store.get("test", 0).unwrap();
        // What is found after a crash is made durable first.
        assert_eq!(self.partition.positions().durable, self.partition.positions().written);
    }

    fn cut_tail(&mut self, bytes: u64) {
        let base = self.partition.active_segment().get();
        let cut_at = self.end().saturating_sub(bytes).max(base);
        self.model.retain(|message| message.offset + message.header.record_bytes() <= cut_at);
        let end = self.end().max(base);
        self.crash_with(|file| file.set_len(cut_at - base).unwrap());
        let repaired = self.store.recovery_report().repaired.first().map_or(0, |repair| repair.cut_bytes);
        assert_eq!(repaired, cut_at - end);
    }

    fn slice(&self, place: prop::sample::Index, bytes_max: u32) {
        let readable = self.partition.positions().readable.get();
        let visible: Vec<_> = self.model.iter().filter(|message| message.offset < readable).collect();
        if visible.is_empty() {
            assert!(matches!(self.partition.slice(readable as i64, 10, Reader::Consumer), SliceAt::AtEnd { .. }));
            return;
        }
        let first = place.index(visible.len());
        let SliceAt::Bytes(slice) = self.partition.slice(visible[first].offset as i64, bytes_max, Reader::Consumer)
        else {
            panic!("a message is there")
        };
        let read = read_slice(&slice);
        assert!(!read.is_empty() && (slice.len() <= bytes_max || read.len() == 1));
        for (found, expected) in read.iter().zip(&visible[first..]) {
            assert_eq!(found, *expected);
        }
    }

    fn finish(mut self) {
        self.sync();
        assert_eq!(read_from(&self.partition, 0, 1024), self.model);
        self.store.close().unwrap();
        self.reopen();
        assert_eq!(read_from(&self.partition, 0, 700), self.model);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_log_is_what_was_appended(threshold in prop_oneof![Just(0u32), Just(5), Just(1000)], steps in vec(step(), 1..80)) {
        let mut run = Run::new(threshold);
        for step in steps {
            run.apply(step);
        }
        run.finish();
    }
}
