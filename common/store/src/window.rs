use metaq_types::limits::RECORD_HEADER_BYTES;
use metaq_wire::RecordHeader;
use rustix::fs::SeekFrom;
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

pub(crate) const HEADER: u64 = RECORD_HEADER_BYTES as u64;

/// Bodies are not looked at for holes where more than this is not left of them.
const HOLE_BYTES_MIN: u64 = 4 * 1024 * 1024;

/// The checksum of so many zero bytes, in steps that double.
fn zeros(count: u64) -> crc32fast::Hasher {
    let mut all = crc32fast::Hasher::new();
    let mut power = crc32fast::Hasher::new();
    power.update(&[0]);
    let mut left = count;
    while left > 0 {
        if left & 1 == 1 {
            all.combine(&power);
        }
        let same = power.clone();
        power.combine(&same);
        left >>= 1;
    }
    all
}

/// A moving view on a file's first `length` bytes: reads blocks forward, whatever the records' lengths claim.
pub(crate) struct Window<'a> {
    file: &'a File,
    length: u64,
    block: Vec<u8>,
    block_at: u64,
    block_bytes_max: usize,
}

/// Where bytes are stored next in a file, from `at` on, instead of a hole; at most `end`. `at` itself where the file
/// system cannot tell.
pub(crate) fn data_from(file: &File, at: u64, end: u64) -> io::Result<u64> {
    match rustix::fs::seek(file, SeekFrom::Data(at)) {
        Ok(data) => Ok(data.clamp(at, end.max(at))),
        // Nothing but a hole up to the end.
        Err(Errno::NXIO) => Ok(end.max(at)),
        Err(Errno::INVAL | Errno::OPNOTSUPP | Errno::NOSYS) => Ok(at),
        Err(error) => Err(error.into()),
    }
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

    /// Where bytes are stored next, from `at` on, instead of a hole; at most the end.
    pub(crate) fn data_from(&self, at: u64) -> io::Result<u64> {
        data_from(self.file, at, self.length)
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
        Ok((self.checksum(at + HEADER, end)? == header.checksum).then_some((header, end)))
    }

    /// The checksum of the body from `position` to `end`.
    pub(crate) fn checksum(&mut self, mut position: u64, end: u64) -> io::Result<i32> {
        let mut hasher = crc32fast::Hasher::new();
        while position < end {
            // What a damaged length takes for a body may be a hole larger than any disk.
            let data = if end - position > HOLE_BYTES_MIN { self.data_from(position)?.min(end) } else { position };
            if data > position {
                hasher.combine(&zeros(data - position));
                position = data;
                continue;
            }
            let bytes = self.at(position, 1)?;
            let bytes = &bytes[..bytes.len().min((end - position) as usize)];
            hasher.update(bytes);
            position += bytes.len() as u64;
        }
        Ok((hasher.finalize() & 0x7fff_ffff) as i32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zeros_have_the_checksum_that_reading_them_gives() {
        for count in [0, 1, 2, 3, 255, 4096, 1_000_003] {
            let (mut read, mut skipped) = (crc32fast::Hasher::new(), crc32fast::Hasher::new());
            for hasher in [&mut read, &mut skipped] {
                hasher.update(b"before");
            }
            read.update(&vec![0; count]);
            skipped.combine(&zeros(count as u64));
            for hasher in [&mut read, &mut skipped] {
                hasher.update(b"after");
            }
            assert_eq!(read.finalize(), skipped.finalize(), "{count}");
        }
    }

    #[test]
    fn a_hole_is_skipped_up_to_what_is_stored() {
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(b"x", 1 << 30).unwrap();
        let length = (1 << 30) + 1;
        let data = data_from(&file, 5, length).unwrap();
        assert!((5..=1 << 30).contains(&data), "{data}");
        assert_eq!(data_from(&file, 1 << 30, length).unwrap(), 1 << 30);
        file.set_len(1 << 40).unwrap();
        assert!(data_from(&file, 1 << 31, 1 << 40).unwrap() >= 1 << 31);
    }
}
