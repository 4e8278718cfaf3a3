//! Who reaches whom, how late, and with what luck. Every message has a delay of its own, so that messages of one
//! connection overtake each other as those of parked requests do; a lost one is a connection that has broken.

use crate::queue::Ms;
use crate::rng::Rng;

pub(crate) const NODES: usize = 3;

/// Where a message comes from or goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Place {
    Node(usize),
    Registry,
    Producers,
}

const PLACES: usize = NODES + 2;

impl Place {
    fn index(self) -> usize {
        match self {
            Place::Node(node) => node,
            Place::Registry => NODES,
            Place::Producers => NODES + 1,
        }
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Way {
    cut: bool,
    /// Added to every delay, at most.
    slow_ms: Ms,
    loss_percent: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Net {
    ways: [[Way; PLACES]; PLACES],
}

impl Net {
    /// How long a message takes; `None`: it never arrives.
    pub(crate) fn delay(&self, from: Place, to: Place, rng: &mut Rng) -> Option<Ms> {
        let way = self.ways[from.index()][to.index()];
        if way.cut || rng.percent(way.loss_percent) {
            return None;
        }
        Some(rng.within(0, 4) + rng.within(0, way.slow_ms + 1))
    }

    pub(crate) fn is_cut(&self, from: Place, to: Place) -> bool {
        self.ways[from.index()][to.index()].cut
    }

    /// Nothing gets from `from` to `to`; the other direction is another question.
    pub(crate) fn cut(&mut self, from: Place, to: Place) {
        self.ways[from.index()][to.index()].cut = true;
    }

    pub(crate) fn trouble(&mut self, from: Place, to: Place, slow_ms: Ms, loss_percent: u64) {
        let way = &mut self.ways[from.index()][to.index()];
        (way.slow_ms, way.loss_percent) = (slow_ms, loss_percent);
    }

    pub(crate) fn heal(&mut self) {
        *self = Net::default();
    }
}
