use crate::errors::AppendError;
use metaq_types::{MessageId, Offset};
use std::collections::VecDeque;
use std::sync::Arc;

/// What was stored, and where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Appended {
    /// Of a range appended verbatim: the id of its last record.
    pub id: MessageId,
    pub partition: u32,
    /// The first byte of what was stored.
    pub offset: Offset,
    /// Record headers included.
    pub bytes: u32,
}

/// Where outcomes of appends go. Called on the thread that learned the outcome, in log order within a partition (but for
/// logged batches, which wait for no sync) and with that partition's acks or its writer locked: it must not block and must
/// not call the store.
pub trait AckSink: Send + Sync {
    fn acked(&self, ticket: u64, outcome: Result<Appended, AppendError>);
}

/// The duty to answer one append exactly once. Dropped without an answer it answers [`AppendError::Dropped`].
pub struct Ack {
    sink: Option<Arc<dyn AckSink>>,
    ticket: u64,
}

impl Ack {
    pub fn new(sink: Arc<dyn AckSink>, ticket: u64) -> Ack {
        Ack { sink: Some(sink), ticket }
    }

    pub(crate) fn answer(mut self, outcome: Result<Appended, AppendError>) {
        if let Some(sink) = self.sink.take() {
            sink.acked(self.ticket, outcome);
        }
    }
}

impl Drop for Ack {
    fn drop(&mut self) {
        if let Some(sink) = self.sink.take() {
            sink.acked(self.ticket, Err(AppendError::Dropped));
        }
    }
}

struct Waiting {
    end: Offset,
    appended: Appended,
    ack: Ack,
}

/// Acks of one partition in log order, held back by two cursors: `local` (written or durable, by the flush rule) and
/// `confirmed` (what enough replicas hold; [`Offset::MAX`] while nobody has to be asked). This is the one place that
/// decides when a put is safe.
pub(crate) struct AckQueue {
    waiting: VecDeque<Waiting>,
    local: Offset,
    confirmed: Offset,
}

impl AckQueue {
    pub(crate) fn new(local: Offset) -> AckQueue {
        AckQueue { waiting: VecDeque::new(), local, confirmed: Offset::MAX }
    }

    pub(crate) fn push(&mut self, appended: Appended, ack: Ack) {
        let end = appended.offset + u64::from(appended.bytes);
        assert!(self.waiting.back().is_none_or(|last| last.end < end), "acks are queued in log order");
        self.waiting.push_back(Waiting { end, appended, ack });
    }

    /// A cursor that is already further stays: after a change of the flush rule `local` may have been `written`.
    pub(crate) fn on_local(&mut self, to: Offset) {
        self.local = self.local.max(to);
        self.release();
    }

    pub(crate) fn on_confirmed(&mut self, to: Offset) {
        self.confirmed = to;
        self.release();
    }

    /// Answers what still waits for the quorum and ends at or before `to` as unconfirmed: it has waited long enough.
    pub(crate) fn give_up(&mut self, to: Offset) {
        while let Some(waiting) = self.waiting.pop_front_if(|waiting| waiting.end <= to) {
            waiting.ack.answer(Err(AppendError::Unconfirmed));
        }
    }

    /// Answers what ends beyond `durable`: it is in the file, and nobody can say whether it will stay there.
    pub(crate) fn fail_beyond(&mut self, durable: Offset, reason: &str) {
        let safe = self.waiting.partition_point(|waiting| waiting.end <= durable);
        for waiting in self.waiting.drain(safe..) {
            waiting.ack.answer(Err(AppendError::Unknown(reason.to_string())));
        }
    }

    fn release(&mut self) {
        let safe = self.local.min(self.confirmed);
        while let Some(waiting) = self.waiting.pop_front_if(|waiting| waiting.end <= safe) {
            waiting.ack.answer(Ok(waiting.appended));
        }
        if self.waiting.is_empty() && self.waiting.capacity() > 1024 {
            self.waiting = VecDeque::new();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use parking_lot::Mutex;

    #[derive(Default)]
    struct Seen(Mutex<Vec<(u64, Result<Appended, AppendError>)>>);

    impl AckSink for Seen {
        fn acked(&self, ticket: u64, outcome: Result<Appended, AppendError>) {
            self.0.lock().push((ticket, outcome));
        }
    }

    fn queue(seen: &Arc<Seen>, ends: &[u64]) -> AckQueue {
        let mut queue = AckQueue::new(Offset::ZERO);
        let mut start = 0;
        for (ticket, end) in ends.iter().enumerate() {
            let offset = Offset::new(start).unwrap();
            let appended = Appended { id: MessageId(1), partition: 0, offset, bytes: (end - start) as u32 };
            queue.push(appended, Ack::new(seen.clone(), ticket as u64));
            start = *end;
        }
        queue
    }

    fn tickets(seen: &Seen) -> Vec<(u64, bool)> {
        seen.0.lock().iter().map(|(ticket, outcome)| (*ticket, outcome.is_ok())).collect()
    }

    #[test]
    fn both_cursors_hold_replies_back() {
        let seen = Arc::new(Seen::default());
        let mut queue = queue(&seen, &[20, 50, 70]);
        queue.on_confirmed(Offset::new(50).unwrap());
        assert_eq!(tickets(&seen), []);
        queue.on_local(Offset::new(70).unwrap());
        assert_eq!(tickets(&seen), [(0, true), (1, true)]);
        queue.on_confirmed(Offset::new(70).unwrap());
        assert_eq!(tickets(&seen), [(0, true), (1, true), (2, true)]);
        assert!(queue.waiting.is_empty());
    }

    #[test]
    fn what_was_given_up_is_not_answered_again_when_it_is_confirmed() {
        let seen = Arc::new(Seen::default());
        let mut queue = queue(&seen, &[20, 50, 70]);
        queue.on_confirmed(Offset::ZERO);
        queue.on_local(Offset::new(70).unwrap());
        queue.give_up(Offset::new(60).unwrap());
        assert_eq!(tickets(&seen), [(0, false), (1, false)]);
        assert!(matches!(seen.0.lock()[0].1, Err(AppendError::Unconfirmed)));
        queue.on_confirmed(Offset::new(70).unwrap());
        assert_eq!(tickets(&seen), [(0, false), (1, false), (2, true)]);
    }

    #[test]
    fn every_ack_is_answered_once() {
        let seen = Arc::new(Seen::default());
        let mut queue = queue(&seen, &[20, 50]);
        queue.on_local(Offset::new(20).unwrap());
        queue.fail_beyond(Offset::new(20).unwrap(), "fsync failed");
        drop(queue);
        drop(Ack::new(seen.clone(), 9));
        assert_eq!(tickets(&seen), [(0, true), (1, false), (9, false)]);
        assert!(matches!(seen.0.lock()[2].1, Err(AppendError::Dropped)));
    }
}
