use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

/// Milliseconds since the simulation began.
pub(crate) type Ms = u64;

/// What is to happen, by time; of things due at the same time the first one put in comes first.
#[derive(Debug)]
pub(crate) struct Queue<E> {
    due: BinaryHeap<Reverse<(Ms, u64)>>,
    events: BTreeMap<u64, E>,
    next: u64,
}

impl<E> Queue<E> {
    pub(crate) fn new() -> Queue<E> {
        Queue { due: BinaryHeap::new(), events: BTreeMap::new(), next: 0 }
    }

    pub(crate) fn push(&mut self, at: Ms, event: E) {
        self.due.push(Reverse((at, self.next)));
        self.events.insert(self.next, event);
        self.next += 1;
    }

    pub(crate) fn pop(&mut self) -> Option<(Ms, E)> {
        let Reverse((at, number)) = self.due.pop()?;
        Some((at, self.events.remove(&number).expect("every number in the heap has its event")))
    }
}
