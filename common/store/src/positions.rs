use metaq_types::Offset;
use std::sync::atomic::{AtomicU64, Ordering};

/// Where one partition's log stands; each value is the first byte *after* what it covers.
///
/// ```text
///   0        kept       readable          durable     offered         written
///   ├─ gone ─┼─ served ─┼─ not confirmed ─┼─ syncing ─┼─ page cache ─┤──►  offset
/// ```
///
/// kept ≤ readable ≤ durable ≤ offered ≤ written, and readable = min(durable, confirmed).
///
/// `offered` lets the members of a quorum write and sync while we sync, so that a put waits for the longer of both and
/// not for their sum. It is safe because nothing up to it is told to anybody before our own sync: an answer waits for
/// min(local, confirmed), consumers for min(durable, confirmed), and a member is told to show its own consumers no more
/// than that. So it covers only whole appends whose answers wait for the sync. Bytes that were answered from the page
/// cache end it until they are synced, since a loss of power here would leave an acknowledged message on a member alone;
/// an append counts as written, and so can be offered, only once it is whole, and a write that fails is cut off before.
///
/// What follows: after a loss of power, or a failed sync, a member may be ahead of what this log holds when it is opened
/// again. The next reign begins at our own end, and the member sets aside what it has beyond (`link/lineage.rs`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Positions {
    pub kept: Offset,
    pub readable: Offset,
    pub durable: Offset,
    pub offered: Offset,
    pub written: Offset,
}

/// Who reads, and with it how far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reader {
    /// Up to `readable`.
    Consumer,
    /// A greeted replica that nobody waits for: up to `durable`, so that it never has more than we may lose.
    Replica,
    /// A greeted replica that a quorum waits for: up to `offered`.
    Member,
}

/// The positions as readers and writers share them. Each is published after the bytes it covers, so whoever sees one
/// may read up to it. The writer moves `written` and `offered`, the sync `durable`, the quorum `confirmed`, retention
/// `kept`.
pub(crate) struct Cursors {
    /// How far the log's own files are durable; from here to `durable` the write-ahead log has the bytes.
    settled: AtomicU64,
    kept: AtomicU64,
    confirmed: AtomicU64,
    durable: AtomicU64,
    offered: AtomicU64,
    written: AtomicU64,
    /// Somebody was told that all before this is stored, although it may not be durable here yet.
    told: AtomicU64,
}

impl Cursors {
    pub(crate) fn new(kept: Offset, end: Offset) -> Cursors {
        assert!(kept <= end, "a log that ends before it begins");
        Cursors {
            settled: AtomicU64::new(end.get()),
            kept: AtomicU64::new(kept.get()),
            confirmed: AtomicU64::new(Offset::MAX.get()),
            durable: AtomicU64::new(end.get()),
            offered: AtomicU64::new(end.get()),
            written: AtomicU64::new(end.get()),
            told: AtomicU64::new(end.get()),
        }
    }

    /// Loaded from the lowest to the highest: whatever moves meanwhile, the order between them holds.
    pub(crate) fn snapshot(&self) -> Positions {
        let kept = load(&self.kept);
        let durable = self.durable();
        let readable = durable.min(load(&self.confirmed));
        let offered = self.offered();
        Positions { kept, readable, durable, offered, written: self.written() }
    }

    pub(crate) fn kept(&self) -> Offset {
        load(&self.kept)
    }

    pub(crate) fn durable(&self) -> Offset {
        load(&self.durable)
    }

    pub(crate) fn offered(&self) -> Offset {
        load(&self.offered)
    }

    pub(crate) fn written(&self) -> Offset {
        load(&self.written)
    }

    pub(crate) fn settled(&self) -> Offset {
        load(&self.settled)
    }

    /// What is durable in the log's own file is durable; answers as [`Cursors::publish_durable`].
    pub(crate) fn publish_settled(&self, to: Offset) -> bool {
        self.settled.fetch_max(to.get(), Ordering::SeqCst);
        self.publish_durable(to)
    }

    /// The end that `reader` may read up to.
    pub(crate) fn end_for(&self, reader: Reader) -> Offset {
        match reader {
            Reader::Consumer => self.durable().min(load(&self.confirmed)),
            Reader::Replica => self.durable(),
            Reader::Member => self.offered(),
        }
    }

    pub(crate) fn publish_kept(&self, to: Offset) {
        assert!(to <= self.durable(), "a segment that is not sealed was given up");
        self.kept.fetch_max(to.get(), Ordering::SeqCst);
    }

    pub(crate) fn publish_written(&self, to: Offset) {
        let before = self.written.swap(to.get(), Ordering::SeqCst);
        assert!(before <= to.get(), "the written end moved back");
    }

    pub(crate) fn publish_told(&self, to: Offset) {
        assert!(to <= self.written(), "told beyond written");
        self.told.fetch_max(to.get(), Ordering::SeqCst);
    }

    pub(crate) fn told(&self) -> Offset {
        load(&self.told)
    }

    /// Offers what was just written from `from` to `to`, unless something before it is not offered. Answers whether
    /// members may read further than before.
    pub(crate) fn offer(&self, from: Offset, to: Offset) -> bool {
        assert!(to <= self.written(), "offered beyond written");
        self.offered() >= from && self.offered.fetch_max(to.get(), Ordering::SeqCst) < to.get()
    }

    /// Two syncs may end in either order; the further one counts. Answers whether members may read further than before.
    pub(crate) fn publish_durable(&self, to: Offset) -> bool {
        assert!(to <= self.written(), "durable beyond written");
        let offered = self.offered.fetch_max(to.get(), Ordering::SeqCst);
        self.durable.fetch_max(to.get(), Ordering::SeqCst);
        offered < to.get()
    }

    /// Answers what it was before. It may be set back only from "nobody has to be asked" (see [`Partition::hold`]).
    ///
    /// [`Partition::hold`]: crate::Partition::hold
    pub(crate) fn publish_confirmed(&self, to: Offset) -> Offset {
        Offset::new(self.confirmed.swap(to.get(), Ordering::SeqCst)).expect("only offsets are stored")
    }

    pub(crate) fn confirmed(&self) -> Offset {
        load(&self.confirmed)
    }
}

fn load(cursor: &AtomicU64) -> Offset {
    Offset::new(cursor.load(Ordering::SeqCst)).expect("only offsets are stored")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(position: u64) -> Offset {
        Offset::new(position).unwrap()
    }

    #[test]
    fn readable_is_the_lower_of_durable_and_confirmed() {
        let cursors = Cursors::new(at(10), at(30));
        cursors.publish_written(at(90));
        assert_eq!(cursors.end_for(Reader::Consumer), at(30));
        cursors.publish_durable(at(60));
        cursors.publish_confirmed(at(40));
        let (kept, readable, durable, offered, written) = (at(10), at(40), at(60), at(60), at(90));
        assert_eq!(cursors.snapshot(), Positions { kept, readable, durable, offered, written });
        assert_eq!(cursors.end_for(Reader::Replica), at(60));
        cursors.publish_durable(at(50));
        assert_eq!(cursors.durable(), at(60));
    }

    #[test]
    fn nothing_is_offered_behind_what_is_not() {
        let cursors = Cursors::new(at(0), at(30));
        cursors.publish_written(at(50));
        assert!(cursors.offer(at(30), at(50)));
        assert_eq!((cursors.end_for(Reader::Member), cursors.end_for(Reader::Replica)), (at(50), at(30)));
        // Up to 70 it was answered from the page cache.
        cursors.publish_written(at(90));
        assert!(!cursors.offer(at(70), at(90)));
        assert_eq!(cursors.end_for(Reader::Member), at(50));
        assert!(!cursors.publish_durable(at(50)), "members could read that far before");
        assert!(cursors.publish_durable(at(90)));
        assert_eq!(cursors.end_for(Reader::Member), at(90));
    }

    #[test]
    #[should_panic(expected = "durable beyond written")]
    fn durable_never_passes_written() {
        Cursors::new(at(0), at(0)).publish_durable(at(1));
    }
}
