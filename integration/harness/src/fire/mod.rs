//! Fault rounds on real processes: a master, its slaves and a ZooKeeper under load, a ledger of every put, and a checker.

use std::io::Write;
use std::time::{Duration, Instant};

pub mod check;
pub mod cluster;
pub mod consume;
pub mod disk;
pub mod java;
pub mod ledger;
pub mod load;
pub mod namespaces;
pub mod pauses;
pub mod quorum_members;
pub mod quorum_rounds;
pub mod quorum_witness;
pub mod rounds;

/// The topics of the load; each has [`PARTITIONS`].
pub const TOPICS: [&str; 3] = ["fire-a", "fire-b", "fire-c"];
pub const PARTITIONS: i32 = 4;

/// Past the capture of a test's output: what could not be done must be seen also when all goes well.
pub fn say_loudly(what: &str) {
    // Nobody reads it: then nobody misses it.
    let _ = writeln!(std::io::stderr(), "\n!!! fire: {what}\n");
}

/// Lets a time pass, as for a fault, at whose end nothing happens that could be waited for. Uses no processor.
pub fn last(time: Duration) {
    let until = Instant::now() + time;
    while let Some(left) = until.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) {
        std::thread::park_timeout(left);
    }
}

/// Random numbers that depend on nothing but their seed (SplitMix64).
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    pub fn new(seed: u64) -> Rng {
        Rng(seed)
    }

    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// From `low` on, below `high`.
    pub fn within(&mut self, low: u64, high: u64) -> u64 {
        low + self.number() % (high - low)
    }
}
