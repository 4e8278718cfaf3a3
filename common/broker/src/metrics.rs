//! The totals of a node since its start, as `stats` prints them (stats, "3. Counters").

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Never reset; each field is one line of `stats`.
#[derive(Debug, Default)]
pub struct Counters {
    put: AtomicU64,
    get: AtomicU64,
    offset: AtomicU64,
    get_miss: AtomicU64,
    put_failed: AtomicU64,
    malformed: AtomicU64,
    begin: AtomicU64,
    xa_begin: AtomicU64,
    commit: AtomicU64,
    rollback: AtomicU64,
    quorum_refused: AtomicU64,
    quorum_unconfirmed: AtomicU64,
    quorum_downgraded: AtomicU64,
}

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident, $total:ident;)*) => {
        impl Counters {
            $(
                $(#[$doc])*
                pub(crate) fn $name(&self) {
                    self.$name.fetch_add(1, Relaxed);
                }

                pub fn $total(&self) -> u64 {
                    self.$name.load(Relaxed)
                }
            )*
        }
    };
}

counters! {
    /// Every put on entry, refused ones too.
    put, puts;
    /// Every get on entry.
    get, gets;
    /// Every `offset`, and every get answered 301.
    offset, offsets;
    /// Gets answered 404 or 301.
    get_miss, get_misses;
    /// Puts answered with an error, those to closed partitions excepted.
    put_failed, puts_failed;
    /// Requests that could not be read; each ended its connection.
    malformed, malformed_requests;
    /// Every BEGIN, repeated ones too.
    begin, begins;
    /// The same of XA branches.
    xa_begin, xa_begins;
    /// Every request to commit, on entry.
    commit, commits;
    /// Every request to roll back, on entry.
    rollback, rollbacks;
    /// Puts refused because too few members of the quorum were there; nothing was stored.
    quorum_refused, puts_refused_by_quorum;
    /// Puts answered as unconfirmed: stored, and not held by the quorum in time.
    quorum_unconfirmed, puts_unconfirmed;
    /// Puts taken on without their quorum, as ackQuorumDowngrade allows.
    quorum_downgraded, puts_downgraded;
}
