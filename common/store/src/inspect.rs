//! What a data directory says of itself to somebody who only looks: nothing is locked, changed or repaired, and whoever
//! serves it may go on meanwhile.

use crate::errors::OpenError;
use crate::load::{Found, list};
use crate::recovery::partition_of;
use crate::reigns;
use crate::roots::{OURS, known_node_id};
use crate::scan::{next_good_in, scan};
use crate::window::Window;
use metaq_types::{Lineage, Offset, PartitionId};
use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

/// Bytes at the end of a log that are read for the average size of its newest records.
const SAMPLE_BYTES: u32 = 256 * 1024;

/// A data directory as its files are at this moment.
#[derive(Debug)]
pub struct Inspection {
    /// `None`: a broker of ours has never opened it.
    pub node_id: Option<String>,
    pub lineage: Lineage,
    /// The last broker stopped in order: the lengths of the files are the ends of the logs.
    pub is_clean: bool,
    pub logs: Vec<LogFiles>,
}

/// The files of one log.
#[derive(Debug)]
pub struct LogFiles {
    pub id: PartitionId,
    pub first: Offset,
    /// As long as the files are: a torn tail counts, see [`LogFiles::checked_end`].
    pub end: Offset,
    /// Ranges that are missing inside.
    pub gaps: Vec<(Offset, Offset)>,
    /// The last segment, and the last one that holds something.
    last: PathBuf,
    sample: PathBuf,
    base: Offset,
}

/// Looks at the data paths, of which the first is the system's.
pub fn inspect(roots: &[PathBuf]) -> Result<Inspection, OpenError> {
    let ours = |name: &str| roots[0].join(OURS).join(name);
    let mut logs: Vec<LogFiles> = Vec::new();
    for root in roots {
        let entries = match fs::read_dir(root) {
            Err(error) if error.kind() == ErrorKind::NotFound => continue,
            entries => entries.map_err(OpenError::io("read", root))?,
        };
        for entry in entries {
            let entry = entry.map_err(OpenError::io("read", root))?;
            let Some(Ok(id)) = partition_of(&entry.file_name()) else { continue };
            if logs.iter().any(|log| log.id == id) || !entry.path().is_dir() {
                continue;
            }
            // A directory that cannot be understood is not served either.
            logs.extend(list(&entry.path()).ok().and_then(|found| LogFiles::of(id, &entry.path(), found)));
        }
    }
    logs.sort_by(|a, b| a.id.cmp(&b.id));
    Ok(Inspection {
        node_id: known_node_id(&ours("identity"))?,
        lineage: reigns::read(&ours("lineage"))?,
        is_clean: ours("clean").exists(),
        logs,
    })
}

impl LogFiles {
    fn of(id: PartitionId, directory: &Path, mut found: Vec<Found>) -> Option<LogFiles> {
        found.sort_by_key(|segment| segment.base);
        let (first, last) = (found.first()?, found.last()?);
        let gap = |pair: &[Found]| {
            let end = pair[0].base + pair[0].bytes;
            (end < pair[1].base).then(|| Some((Offset::new(end)?, Offset::new(pair[1].base)?))).flatten()
        };
        let path = |segment: &Found| segment.path(directory);
        Some(LogFiles {
            first: Offset::new(first.base)?,
            end: Offset::new(last.base + last.bytes)?,
            gaps: found.windows(2).filter_map(gap).collect(),
            last: path(last),
            sample: path(found.iter().rfind(|segment| segment.bytes > 0).unwrap_or(last)),
            base: Offset::new(last.base)?,
            id,
        })
    }

    /// Where the log will end when it is next opened: reads the last segment, as that does.
    pub fn checked_end(&self) -> io::Result<Offset> {
        let file = File::open(&self.last)?;
        let length = u32::try_from(file.metadata()?.len()).unwrap_or(u32::MAX);
        Ok(self.base + scan(&file, length)?.end)
    }

    /// The average size of the records that were written last, headers included; `None` where there is none.
    pub fn record_bytes_average(&self) -> io::Result<Option<u64>> {
        let file = File::open(&self.sample)?;
        let length = u32::try_from(file.metadata()?.len()).unwrap_or(u32::MAX);
        let from = match length.checked_sub(SAMPLE_BYTES) {
            None | Some(0) => 0,
            Some(middle) => next_good_in(&file, length, middle)?.unwrap_or(0),
        };
        let mut window = Window::new(&file, length.into(), SAMPLE_BYTES as usize);
        let (mut at, mut records) = (u64::from(from), 0);
        while let Some((_, end)) = window.record(at)? {
            (at, records) = (end, records + 1);
        }
        Ok((records > 0).then(|| (at - u64::from(from)) / records))
    }
}
