use metaq_types::Offset;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

/// What a read found.
pub enum SliceAt {
    Bytes(Slice),
    /// The offset is the end that this reader may see. `unsynced`: bytes lie behind it that a sync would show.
    AtEnd {
        unsynced: bool,
    },
    /// The offset is beyond what this reader may see.
    Beyond {
        end: Offset,
    },
    /// The offset lies before the oldest kept byte.
    Trimmed {
        oldest: Offset,
    },
    /// The bytes here are damaged; good records go on there.
    Skip {
        to: Offset,
    },
    /// The segment could not be opened or read.
    Failed {
        reason: String,
    },
}

/// Whole records of one segment, not yet read. Keeps the file open, so it can be sent whatever happens to the segment.
#[derive(Clone)]
pub struct Slice {
    file: Arc<File>,
    segment: Offset,
    position: u32,
    bytes: u32,
    end: Offset,
}

impl Slice {
    pub(crate) fn new(file: Arc<File>, segment: Offset, position: u32, bytes: u32, end: Offset) -> Slice {
        Slice { file, segment, position, bytes, end }
    }

    pub fn file(&self) -> &File {
        &self.file
    }

    /// Where in the file the slice begins.
    pub fn position(&self) -> u64 {
        self.position.into()
    }

    /// Never 0.
    #[expect(clippy::len_without_is_empty, reason = "a slice holds at least one byte")]
    pub fn len(&self) -> u32 {
        self.bytes
    }

    /// Offset of the first byte.
    pub fn start(&self) -> Offset {
        self.segment + u64::from(self.position)
    }

    /// Start of the segment the bytes lie in.
    pub fn segment(&self) -> Offset {
        self.segment
    }

    /// How far this reader could see when the slice was taken.
    pub fn end(&self) -> Offset {
        self.end
    }

    /// Reads from byte `at` of the slice; less than `buf` only at its end.
    pub fn read_at(&self, at: u32, buf: &mut [u8]) -> io::Result<usize> {
        let bytes = buf.len().min(self.bytes.saturating_sub(at) as usize);
        self.file.read_exact_at(&mut buf[..bytes], self.position() + u64::from(at))?;
        Ok(bytes)
    }
}
