use metaq_types::Offset;
use std::sync::atomic::{AtomicU64, Ordering};

/// Where one partition's log stands; each value is the first byte *after* what it covers.
///
/// ```text
///   0        kept       readable          durable        written
///   ├─ gone ─┼─ served ─┼─ not confirmed ─┼─ page cache ─┤──►  offset
/// ```
///
/// kept ≤ readable ≤ durable ≤ written, and readable = min(durable, confirmed).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Positions {
    pub kept: Offset,
    pub readable: Offset,
    pub durable: Offset,
    pub written: Offset,
}

/// Who reads, and with it how far: a consumer up to `readable`, a greeted replica up to `durable`, or no quorum could
/// ever form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reader {
    Consumer,
    Replica,
}

/// The positions as readers and writers share them. Each is published after the bytes it covers, so whoever sees one
/// may read up to it. The writer moves `written`, the sync `durable`, the quorum `confirmed`, retention `kept`.
pub(crate) struct Cursors {
    /// How far the log's own files are durable; from here to `durable` the write-ahead log has the bytes.
    settled: AtomicU64,
    kept: AtomicU64,
    confirmed: AtomicU64,
    durable: AtomicU64,
    written: AtomicU64,
}

impl Cursors {
    pub(crate) fn new(kept: Offset, end: Offset) -> Cursors {
        assert!(kept <= end, "a log that ends before it begins");
        Cursors {
            settled: AtomicU64::new(end.get()),
            kept: AtomicU64::new(kept.get()),
            confirmed: AtomicU64::new(Offset::MAX.get()),
            durable: AtomicU64::new(end.get()),
            written: AtomicU64::new(end.get()),
        }
    }

    /// Loaded from the lowest to the highest: whatever moves meanwhile, the order between them holds.
    pub(crate) fn snapshot(&self) -> Positions {
        let kept = load(&self.kept);
        let durable = self.durable();
        let readable = durable.min(load(&self.confirmed));
        Positions { kept, readable, durable, written: self.written() }
    }

    pub(crate) fn kept(&self) -> Offset {
        load(&self.kept)
    }

    pub(crate) fn durable(&self) -> Offset {
        load(&self.durable)
    }

    pub(crate) fn written(&self) -> Offset {
        load(&self.written)
    }

    pub(crate) fn settled(&self) -> Offset {
        load(&self.settled)
    }

    /// What is durable in the log's own file is durable.
    pub(crate) fn publish_settled(&self, to: Offset) {
        self.settled.fetch_max(to.get(), Ordering::SeqCst);
        self.publish_durable(to);
    }

    /// The end that `reader` may read up to.
    pub(crate) fn end_for(&self, reader: Reader) -> Offset {
        match reader {
            Reader::Consumer => self.durable().min(load(&self.confirmed)),
            Reader::Replica => self.durable(),
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

    /// Two syncs may end in either order; the further one counts.
    pub(crate) fn publish_durable(&self, to: Offset) {
        assert!(to <= self.written(), "durable beyond written");
        self.durable.fetch_max(to.get(), Ordering::SeqCst);
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
        assert_eq!(cursors.snapshot(), Positions { kept: at(10), readable: at(40), durable: at(60), written: at(90) });
        assert_eq!(cursors.end_for(Reader::Replica), at(60));
        cursors.publish_durable(at(50));
        assert_eq!(cursors.durable(), at(60));
    }

    #[test]
    #[should_panic(expected = "durable beyond written")]
    fn durable_never_passes_written() {
        Cursors::new(at(0), at(0)).publish_durable(at(1));
    }
}
