use std::path::{Path, PathBuf};

use anyhow::Context as _;
use metaq_store::{PartitionFiles, Piece, RecordFile, partition_files};
use metaq_types::Offset;

/// The bytes of a log by their offsets, over its segments.
pub(super) struct LogBytes {
    /// Ascending.
    runs: Vec<Run>,
    open: Option<(usize, RecordFile)>,
}

struct Run {
    start: u64,
    end: u64,
    path: PathBuf,
}

impl LogBytes {
    /// Of files that were verified, up to where the log ends.
    pub(super) fn new(files: &PartitionFiles, end: Offset) -> LogBytes {
        let end = end.get();
        let run = |place: usize| {
            let segment = &files.segments[place];
            let start = segment.base.get();
            let own = start + segment.bytes;
            // The last may have grown since it was listed; of others that overlap the next one counts.
            let limit = files.segments.get(place + 1).map_or(end, |next| next.base.get().min(own));
            Run { start, end: limit.min(end).max(start), path: segment.path.clone() }
        };
        LogBytes { runs: (0..files.segments.len()).map(run).collect(), open: None }
    }

    /// Of the files in a directory; reads the last segment to find the end. `None`: there is no segment.
    pub(super) fn open(directory: &Path) -> anyhow::Result<Option<LogBytes>> {
        let cannot = || format!("cannot read {}", directory.display());
        let files = partition_files(directory).with_context(cannot)?;
        let Some(last) = files.segments.last() else { return Ok(None) };
        let file = RecordFile::open(&last.path).with_context(|| format!("cannot open {}", last.path.display()))?;
        let mut end = last.base;
        for piece in file.pieces(0) {
            match piece.with_context(|| format!("cannot read {}", last.path.display()))? {
                Piece::Record { end: to, .. } => end = last.base + to,
                Piece::Damage(range) => end = last.base + range.end,
                Piece::Tail(_) => break,
            }
        }
        Ok(Some(LogBytes::new(&files, end)))
    }

    pub(super) fn first(&self) -> u64 {
        self.runs.first().map_or(0, |run| run.start)
    }

    pub(super) fn end(&self) -> u64 {
        self.runs.last().map_or(0, |run| run.end)
    }

    /// Fills `bytes` from `offset` on, as far as the segment goes; 0 in a gap and at the end.
    pub(super) fn read(&mut self, offset: u64, bytes: &mut [u8]) -> anyhow::Result<usize> {
        let Some(place) = self.runs.partition_point(|run| run.start <= offset).checked_sub(1) else { return Ok(0) };
        let run = &self.runs[place];
        let count = (run.end.saturating_sub(offset)).min(bytes.len() as u64) as usize;
        if count == 0 {
            return Ok(0);
        }
        let cannot = || format!("cannot read {}; if retention has just removed it, try again", run.path.display());
        if self.open.as_ref().is_none_or(|(open, _)| *open != place) {
            self.open = Some((place, RecordFile::open(&run.path).with_context(cannot)?));
        }
        let (_, file) = self.open.as_ref().expect("it was opened if it was not open");
        file.read_at(offset - run.start, &mut bytes[..count]).with_context(cannot)?;
        Ok(count)
    }

    /// Where bytes go on behind `offset`, which lies in a gap; the end where they do not.
    pub(super) fn next_run(&self, offset: u64) -> u64 {
        self.runs.iter().find(|run| run.start > offset && run.end > run.start).map_or(self.end(), |run| run.start)
    }

    /// Whether there is nothing from `from` up to `to`, and something behind.
    pub(super) fn is_gap(&mut self, from: u64, to: u64) -> anyhow::Result<bool> {
        Ok(to < self.end() && self.next_run(from) == to && self.read(from, &mut [0])? == 0)
    }

    /// Where the record begins that holds the byte at `offset`; the offset itself when none is found.
    pub(super) fn record_around(&self, offset: u64) -> u64 {
        let run = self.runs.iter().rfind(|run| run.start <= offset);
        let found = run.and_then(|run| {
            let file = RecordFile::open(&run.path).ok()?;
            let place = offset - run.start;
            file.pieces(0).map_while(Result::ok).find_map(|piece| match piece {
                Piece::Record { at, end, .. } if end > place => Some(run.start + at),
                Piece::Damage(range) | Piece::Tail(range) if range.end > place => Some(run.start + range.start),
                _ => None,
            })
        });
        found.unwrap_or(offset)
    }
}
