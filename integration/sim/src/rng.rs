/// Random numbers that depend on nothing but their seed (SplitMix64).
#[derive(Clone, Debug)]
pub(crate) struct Rng(u64);

impl Rng {
    pub(crate) fn new(seed: u64) -> Rng {
        Rng(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// From `low` on, below `high`.
    pub(crate) fn within(&mut self, low: u64, high: u64) -> u64 {
        assert!(low < high, "an empty range has no number");
        low + self.next() % (high - low)
    }

    pub(crate) fn index(&mut self, len: usize) -> usize {
        self.within(0, len as u64) as usize
    }

    pub(crate) fn percent(&mut self, percent: u64) -> bool {
        self.within(0, 100) < percent
    }
}
