use metaq_types::limits::RECORD_HEADER_BYTES;
use metaq_wire::RecordHeader;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

pub(crate) const HEADER: u64 = RECORD_HEADER_BYTES as u64;

/// A moving view on a file's first `length` bytes: reads blocks forward, whatever the records' lengths claim.
pub(crate) struct Window<'a> {
    file: &'a File,
    length: u64,
    block: Vec<u8>,
    block_at: u64,
    block_bytes_max: usize,
}

/// Where the record of this header says it ends when it starts at `at`; `None` for a header no record has.
pub(crate) fn end_of_record(header: &RecordHeader, at: u64) -> Option<u64> {
    (header.checksum >= 0 && !header.is_zeros()).then(|| at + header.record_bytes())
}

impl<'a> Window<'a> {
    pub(crate) fn new(file: &'a File, length: u64, block_bytes_max: usize) -> Window<'a> {
        Window { file, length, block: Vec::new(), block_at: 0, block_bytes_max }
    }

    pub(crate) fn length(&self) -> u64 {
        self.length
    }

    /// The bytes from `at` to at most the end of the block that holds it, at least `least` of them unless the file
    /// ends before.
    pub(crate) fn at(&mut self, at: u64, least: usize) -> io::Result<&[u8]> {
        let block_end = self.block_at + self.block.len() as u64;
        let wanted_end = (at + least as u64).min(self.length);
        if at < self.block_at || wanted_end > block_end || at >= block_end {
            let bytes = (self.length.saturating_sub(at)).min(self.block_bytes_max.max(least) as u64) as usize;
            self.block.resize(bytes, 0);
            self.block_at = at;
            if let Err(error) = self.file.read_exact_at(&mut self.block, at) {
                self.block.clear();
                return Err(error);
            }
        }
        Ok(&self.block[(at - self.block_at) as usize..])
    }

    /// The header at `at`, or `None` when the file ends within it.
    /// Neither is there one when its length is negative.
    pub(crate) fn header(&mut self, at: u64) -> io::Result<Option<RecordHeader>> {
        if at + HEADER > self.length {
            return Ok(None);
        }
        let bytes = self.at(at, HEADER as usize)?.first_chunk().expect("a header was asked for");
        Ok(RecordHeader::parse(bytes).ok())
    }

    /// Where the record at `at` says it ends, if that is within the file.
    pub(crate) fn end_of(&mut self, at: u64) -> io::Result<Option<u64>> {
        Ok(self.header(at)?.and_then(|header| end_of_record(&header, at)).filter(|end| *end <= self.length))
    }

    /// Whether a whole record with a right checksum starts at `at`; its header and end if so. The body is read in
    /// blocks, so a wrong length costs time, never memory.
    pub(crate) fn record(&mut self, at: u64) -> io::Result<Option<(RecordHeader, u64)>> {
        let Some(header) = self.header(at)? else { return Ok(None) };
        let Some(end) = end_of_record(&header, at).filter(|end| *end <= self.length) else { return Ok(None) };
        let mut hasher = crc32fast::Hasher::new();
        let mut position = at + HEADER;
        while position < end {
            let bytes = self.at(position, 1)?;
            let bytes = &bytes[..bytes.len().min((end - position) as usize)];
            hasher.update(bytes);
            position += bytes.len() as u64;
        }
        let checksum = (hasher.finalize() & 0x7fff_ffff) as i32;
        Ok((checksum == header.checksum).then_some((header, end)))
    }
}
