//! Reading one's own log: up to the written end, past what readers may see.

use crate::partition::Partition;
use crate::scan::next_good_in;
use crate::segment::Segment;
use crate::window::{HEADER, Window};
use metaq_types::Offset;
use metaq_wire::RecordHeader;
use std::io;
use std::ops::{ControlFlow, Range};
use std::os::unix::fs::FileExt;
use std::sync::Arc;

const WALK_BLOCK_BYTES: usize = 256 * 1024;

impl Partition {
    /// Hands every good record from `from` to the written end to `visit`, in order, until it breaks off; answers the
    /// ranges that held none. What is missing in front or in a gap is not among them.
    pub fn walk(
        &self,
        from: Offset,
        mut visit: impl FnMut(Offset, &RecordHeader, &[u8]) -> ControlFlow<()>,
    ) -> io::Result<Vec<Range<Offset>>> {
        let end = self.positions().written;
        let segments = self.segments.load_full();
        let mut damage = Vec::new();
        for (place, segment) in segments.iter().enumerate() {
            let next = segments.get(place + 1).map_or(end, |next| next.base);
            let segment_end = segment.gap_from().unwrap_or(next).min(end);
            if segment_end <= from.max(segment.base) {
                continue;
            }
            let range = from.max(segment.base).bytes_since(segment.base)..segment_end.bytes_since(segment.base);
            if self.walk_segment(segment, range, &mut visit, &mut damage)?.is_break() {
                break;
            }
        }
        Ok(damage)
    }

    fn walk_segment(
        &self,
        segment: &Arc<Segment>,
        range: Range<u64>,
        visit: &mut impl FnMut(Offset, &RecordHeader, &[u8]) -> ControlFlow<()>,
        damage: &mut Vec<Range<Offset>>,
    ) -> io::Result<ControlFlow<()>> {
        let file = self.file_of(segment)?;
        let mut window = Window::new(&file, range.end, WALK_BLOCK_BYTES);
        let mut at = range.start;
        while at < range.end {
            let Some((header, end)) = window.record(at)? else {
                let to = next_good_in(&file, range.end as u32, at as u32)?.map_or(range.end, u64::from);
                damage.push(segment.base + at..segment.base + to);
                at = to;
                continue;
            };
            let body = &window.at(at + HEADER, header.length as usize)?[..header.length as usize];
            if visit(segment.base + at, &header, body).is_break() {
                return Ok(ControlFlow::Break(()));
            }
            at = end;
        }
        Ok(ControlFlow::Continue(()))
    }

    /// The header of the record that begins at `offset`, if one can; its body is not looked at.
    pub fn header_at(&self, offset: Offset) -> Option<RecordHeader> {
        let segments = self.segments.load();
        let segment = &segments[segments.partition_point(|segment| segment.base <= offset).checked_sub(1)?];
        let mut header = [0; HEADER as usize];
        self.file_of(segment).ok()?.read_exact_at(&mut header, offset.bytes_since(segment.base)).ok()?;
        RecordHeader::parse(&header).ok().filter(|header| !header.is_zeros())
    }

    /// Whether damage is known to lie between two places of one segment. All that a power failure has done is known.
    pub fn has_damage(&self, from: Offset, to: Offset) -> bool {
        let segments = self.segments.load();
        let after = segments.partition_point(|segment| segment.base <= from);
        let Some(segment) = after.checked_sub(1).map(|place| &segments[place]) else { return false };
        let lies_there = |damage: Range<u32>| {
            segment.base + u64::from(damage.start) < to && segment.base + u64::from(damage.end) > from
        };
        segment.damage().into_iter().any(lies_there)
    }

    /// The record at `offset`, which `bytes` long in all lies below the written end; checked.
    pub fn read_record(&self, offset: Offset, bytes: u32) -> io::Result<(RecordHeader, Vec<u8>)> {
        let wrong = |what: &str| io::Error::new(io::ErrorKind::InvalidData, format!("the record at {offset} {what}"));
        let segments = self.segments.load();
        let after = segments.partition_point(|segment| segment.base <= offset);
        let segment = after.checked_sub(1).map(|place| &segments[place]).ok_or_else(|| wrong("is gone"))?;
        let mut record = vec![0; bytes as usize];
        self.file_of(segment)?.read_exact_at(&mut record, offset.bytes_since(segment.base))?;
        let header = record.first_chunk().and_then(|header| RecordHeader::parse(header).ok());
        let header = header.filter(|header| header.record_bytes() == u64::from(bytes));
        let header = header.ok_or_else(|| wrong("has another length"))?;
        let body = record.split_off(HEADER as usize);
        if metaq_wire::checksum(&body) != header.checksum {
            return Err(wrong("has a wrong checksum"));
        }
        Ok((header, body))
    }
}
