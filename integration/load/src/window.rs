//! The requests of one connection that wait for their answer, found by opaque in constant time.

/// Every opaque given out has this many characters, so that it can be patched into a prepared frame.
pub(crate) const OPAQUE_DIGITS: usize = 11;

/// The Java client counts up from here, too; all opaques up to -1,000,000,000 have eleven characters.
const OPAQUE_FIRST: i64 = i32::MIN as i64;
const OPAQUES: i64 = -1_000_000_000 - OPAQUE_FIRST + 1;

/// What is remembered of a request until it is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Pending {
    pub(crate) opaque: i32,
    pub(crate) partition: u32,
    /// When it was sent, or should have been, on the clock of the run.
    pub(crate) started_ns: u64,
}

/// A fixed number of slots. An answer that fits none of them (never asked, or answered twice) is told apart from one
/// that does, whatever the order of answers.
pub(crate) struct Window {
    slots: Vec<Option<Pending>>,
    free: Vec<u32>,
    /// How often the opaques have gone round the slots.
    round: i64,
}

impl Window {
    pub(crate) fn new(outstanding_max: u32) -> Window {
        assert!(outstanding_max > 0 && i64::from(outstanding_max) < OPAQUES, "a window needs a slot");
        Window { slots: vec![None; outstanding_max as usize], free: (0..outstanding_max).rev().collect(), round: 0 }
    }

    pub(crate) fn outstanding_max(&self) -> usize {
        self.slots.len()
    }

    pub(crate) fn outstanding(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Takes a slot for a request; `None` when all wait for an answer.
    pub(crate) fn take(&mut self, partition: u32, started_ns: u64) -> Option<i32> {
        let slot = self.free.pop()?;
        let slots = self.slots.len() as i64;
        self.round = (self.round + 1) % (OPAQUES / slots);
        let opaque = (OPAQUE_FIRST + self.round * slots + i64::from(slot)) as i32;
        self.slots[slot as usize] = Some(Pending { opaque, partition, started_ns });
        Some(opaque)
    }

    /// Gives back the request an answer belongs to; `None` when no request with this opaque waits.
    pub(crate) fn settle(&mut self, opaque: i32) -> Option<Pending> {
        let slot = self.place(opaque);
        let pending = self.slots[slot].take_if(|pending| pending.opaque == opaque)?;
        self.free.push(slot as u32);
        Some(pending)
    }

    /// Where in the window an opaque belongs, whether or not a request with it waits.
    pub(crate) fn place(&self, opaque: i32) -> usize {
        ((i64::from(opaque) - OPAQUE_FIRST) % self.slots.len() as i64) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_settle_in_any_order_and_once() {
        let mut window = Window::new(3);
        let opaques: Vec<i32> = (0..3).map(|n| window.take(n, 10 + u64::from(n)).unwrap()).collect();
        assert!(window.take(9, 9).is_none(), "full");
        let pending = window.settle(opaques[1]).unwrap();
        assert_eq!((pending.partition, pending.started_ns), (1, 11));
        assert_eq!(window.settle(opaques[1]), None, "answered twice");
        let again = window.take(7, 20).unwrap();
        assert_ne!(again, opaques[1], "a late duplicate must not settle the next request");
        assert_eq!(window.settle(opaques[1]), None);
        assert_eq!(window.settle(12_345), None, "never asked");
        assert_eq!(window.outstanding(), 3);
    }

    #[test]
    fn every_opaque_has_eleven_characters() {
        let mut window = Window::new(7);
        window.round = OPAQUES / 7 - 3;
        for _ in 0..20 {
            let opaque = window.take(0, 0).unwrap();
            assert_eq!(opaque.to_string().len(), OPAQUE_DIGITS, "{opaque}");
            assert!(window.settle(opaque).is_some());
        }
    }
}
