//! What befalls a packet, by numbers that are the same in every run.

use crate::fire::Rng;

pub(super) struct Chance(Rng);

impl Chance {
    pub(super) fn new() -> Chance {
        Chance(Rng::new(0))
    }

    pub(super) fn befalls(&mut self, per_mille: u32) -> bool {
        per_mille > 0 && self.0.within(0, 1000) < u64::from(per_mille)
    }
}
