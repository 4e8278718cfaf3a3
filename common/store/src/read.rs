//! Reading a partition: what a reader gets now, where it may go on, and waiting for more.

use crate::committer::Wants;
use crate::partition::Partition;
use crate::positions::Reader;
use crate::segment::{Cut, Segment};
use crate::slice::{Slice, SliceAt};
use metaq_types::Offset;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

impl Partition {
    /// The end that `reader` may read up to. After a failed sync nobody knows what of it the file will hold.
    pub fn end_for(&self, reader: Reader) -> Offset {
        match reader {
            Reader::Member if self.poison.get().is_some() => self.cursors.durable(),
            _ => self.cursors.end_for(reader),
        }
    }

    /// Whether a sync would show `reader` more than it sees, if there are bytes behind that.
    fn waits_for_sync(&self, reader: Reader) -> bool {
        let synced = if reader == Reader::Member { self.cursors.offered() } else { self.cursors.durable() };
        self.cursors.written() > synced
    }

    /// What `reader` gets who asks for at most `bytes_max` from `offset` on. Never crosses a segment, ends on a record
    /// boundary and holds at least one whole record, even when that is longer than `bytes_max`. Usually reads nothing.
    pub fn slice(&self, offset: i64, bytes_max: u32, reader: Reader) -> SliceAt {
        // First the end, then the list: a list loaded later has every segment up to that end.
        let end = self.end_for(reader);
        let segments = self.segments.load();
        // Retention moves `kept` before the list, so `kept` may be ahead of this list, never behind it.
        let oldest = self.cursors.kept();
        let offset = match Offset::from_wire(offset) {
            Some(offset) if offset >= oldest => offset,
            _ => return SliceAt::Trimmed { oldest },
        };
        // Durable and not confirmed: the reader has been there under another master, and waits until it is again. A node
        // may have read ahead as a member, and now no longer may.
        let known = if reader == Reader::Consumer { self.cursors.durable() } else { self.cursors.offered() };
        let hidden = offset > end && offset <= known;
        if offset > end && !hidden {
            return SliceAt::Beyond { end };
        }
        if offset == end || hidden {
            return SliceAt::AtEnd { unsynced: self.waits_for_sync(reader) };
        }
        let (segment, segment_end) = find(&segments, offset, end);
        if offset >= segment_end {
            return SliceAt::Skip { to: end_of_gap(&segments, offset).unwrap_or(end) };
        }
        let from = offset.bytes_since(segment.base) as u32;
        let limit = segment_end.bytes_since(segment.base) as u32;
        let file = || self.file_of(segment);
        let cut = match reader {
            Reader::Consumer => segment.cut_good(from, bytes_max.max(1), limit, file),
            // A node checks every record itself, and is to see the log as it is.
            Reader::Replica | Reader::Member => segment.cut(from, bytes_max.max(1), limit, file),
        };
        match cut {
            Ok(Cut::Skip { to }) => SliceAt::Skip { to: segment.base + u64::from(to) },
            Ok(Cut::At(cut)) => match file() {
                Ok(file) => SliceAt::Bytes(Slice::new(file, segment.base, from, cut - from, end)),
                Err(error) => self.unreadable(segment, &error),
            },
            Err(error) => self.unreadable(segment, &error),
        }
    }

    fn unreadable(&self, segment: &Segment, error: &io::Error) -> SliceAt {
        let oldest = self.cursors.kept();
        if segment.base < oldest {
            return SliceAt::Trimmed { oldest };
        }
        SliceAt::Failed { reason: format!("cannot read {}: {error}", segment.path(&self.directory()).display()) }
    }

    /// Where a reader at `offset` may go on: the start of the segment that holds it, the oldest offset when it lies
    /// before the log, else the readable end (storage, "10. Segment search and nearest offset").
    pub fn nearest(&self, offset: i64) -> Offset {
        let end = self.cursors.end_for(Reader::Consumer);
        let segments = self.segments.load();
        let oldest = self.cursors.kept();
        match Offset::from_wire(offset) {
            Some(offset) if offset >= end => end,
            Some(offset) if offset >= oldest => {
                let (segment, segment_end) = find(&segments, offset, end);
                if offset < segment_end { segment.base } else { end_of_gap(&segments, offset).unwrap_or(end) }
            }
            _ => oldest,
        }
    }

    /// Returns once `reader` can see beyond `offset`, or the store is closed. While somebody waits here, what is written
    /// is synced soon, whatever the flush rule. May be cancelled at any time.
    pub async fn readable_beyond(self: &Arc<Self>, offset: Offset, reader: Reader) {
        let _waiting = Waiting::enter(&self.waiting_readers);
        loop {
            let mut moved = std::pin::pin!(self.readers.notified());
            moved.as_mut().enable();
            let mut confirmed = std::pin::pin!(self.consumers.notified());
            confirmed.as_mut().enable();
            let mut offered = std::pin::pin!(self.members.notified());
            offered.as_mut().enable();
            if self.end_for(reader) > offset || self.is_closed() {
                return;
            }
            if self.waits_for_sync(reader) {
                self.request_sync();
            }
            match reader {
                Reader::Replica => moved.await,
                // Not with every sync: what it makes durable was offered before.
                Reader::Member => offered.await,
                Reader::Consumer => tokio::select! {
                    () = moved => {}
                    () = confirmed => {}
                },
            }
        }
    }

    /// Whether somebody was told that something is stored whose sync is still on the way ([`Partition::append_logged`]).
    pub fn awaits_told(&self) -> bool {
        let told = self.cursors.told();
        told > self.cursors.durable() && self.poison.get().is_none()
    }

    /// Until what was told by now is durable; for ever if its sync fails. May be cancelled at any time.
    pub async fn told_is_durable(self: &Arc<Self>) {
        let told = self.cursors.told();
        while self.cursors.durable() < told && !self.is_closed() {
            self.readable_beyond(self.cursors.durable(), Reader::Replica).await;
        }
    }

    /// For a reader at the readable end with unsynced bytes behind it: they are synced soon. Any number of requests
    /// become one sync, and at most one in `READER_SYNC_INTERVAL_MIN` a partition.
    pub fn request_sync(self: &Arc<Self>) {
        if self.cursors.written() > self.cursors.durable() && self.poison.get().is_none() {
            self.want_reader_sync();
        }
    }

    /// While one waits for its time already, the committer need not be woken for another.
    pub(crate) fn want_reader_sync(self: &Arc<Self>) {
        if !self.reader_waits.load(Ordering::SeqCst) {
            self.want(Wants::Reader);
        }
    }
}

/// Counts a waiting reader for as long as it lives.
struct Waiting<'a>(&'a AtomicUsize);

impl Waiting<'_> {
    fn enter(count: &AtomicUsize) -> Waiting<'_> {
        count.fetch_add(1, Ordering::SeqCst);
        Waiting(count)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// The segment that holds `offset`, which is at or above the first one's base, and where it ends for a reader who
/// sees up to `end`.
fn find(segments: &[Arc<Segment>], offset: Offset, end: Offset) -> (&Arc<Segment>, Offset) {
    let next = segments.partition_point(|segment| segment.base <= offset);
    let segment = &segments[next - 1];
    let next = segment.gap_from().or(segments.get(next).map(|next| next.base));
    (segment, next.map_or(end, |next| next.min(end)))
}

/// Where the log goes on behind the gap that holds `offset`.
fn end_of_gap(segments: &[Arc<Segment>], offset: Offset) -> Option<Offset> {
    segments.iter().map(|segment| segment.base).find(|base| *base > offset)
}
