//! What a node knows to be held by a quorum when it starts, so that it hides no more from consumers than it has to, and
//! never shows what the quorum may not hold.
//!
//! A master under `ackQuorum` keeps `.metaq/quorum.json`, at most once a second: what was confirmed can only have grown
//! since. A slave's record of its master ([`crate::promotion`]) says the same of the partitions it copies.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use metaq_store::Store;
use metaq_types::{Epoch, Offset, PartitionId};
use serde::{Deserialize, Serialize};

use crate::promotion::{DIRECTORY, Record, RecordError, replace};

const FILE_NAME: &str = "quorum.json";

/// What was confirmed under a master of this data directory.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kept {
    /// Of its reign.
    pub epoch: u64,
    /// By the partition's directory name, those that asked for a quorum.
    pub partitions: BTreeMap<String, u64>,
}

impl Kept {
    pub fn load(data_path: &Path) -> Result<Option<Kept>, RecordError> {
        let path = path_of(data_path);
        match fs::read(&path) {
            Ok(bytes) => serde_json::from_slice(&bytes).map(Some).map_err(|source| RecordError::Form { path, source }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(RecordError::File { path, source }),
        }
    }

    /// Replaces the file whole and durably.
    pub fn save(&self, data_path: &Path) -> Result<(), RecordError> {
        let path = path_of(data_path);
        let bytes = serde_json::to_vec(self).map_err(|source| RecordError::Form { path: path.clone(), source })?;
        replace(&path, &bytes).map_err(|source| RecordError::File { path, source })
    }

    /// From now on no quorum is asked for.
    pub fn remove(data_path: &Path) -> Result<(), RecordError> {
        let path = path_of(data_path);
        match fs::remove_file(&path) {
            Err(source) if source.kind() != io::ErrorKind::NotFound => Err(RecordError::File { path, source }),
            _ => Ok(()),
        }
    }
}

fn path_of(data_path: &Path) -> PathBuf {
    data_path.join(DIRECTORY).join(FILE_NAME)
}

/// Where consumers may read to before anybody was asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Known {
    /// No quorum was ever asked for here: all that is stored was readable.
    Everything,
    /// Nothing beyond these; of what is not named, nothing.
    UpTo(BTreeMap<PartitionId, Offset>),
}

impl Known {
    /// From the files of a data directory whose newest reign is `epoch`. What cannot be read is as if it named nothing.
    pub fn load(data_path: &Path, epoch: Epoch) -> Known {
        match (Record::load(data_path), Kept::load(data_path)) {
            (Ok(record), Ok(kept)) => Known::of(record.as_ref(), kept.as_ref(), epoch),
            (Err(error), _) | (_, Err(error)) => {
                tracing::warn!("what a quorum held is not known, and is not readable until one is asked: {error}");
                Known::UpTo(BTreeMap::new())
            }
        }
    }

    /// A slave's record is newer than what its directory kept as a master, which in turn says nothing about a reign
    /// that was not its own.
    pub fn of(record: Option<&Record>, kept: Option<&Kept>, epoch: Epoch) -> Known {
        let parsed = |(name, end): (&String, u64)| Some((name.parse().ok()?, Offset::new(end)?));
        match (record, kept) {
            (Some(record), _) if record.quorum > 1 || record.partitions.values().any(|p| p.confirmed.is_some()) => {
                let known = record.partitions.iter().map(|(name, known)| {
                    // The master asked nobody about this one: what it showed was what it had.
                    (name, known.confirmed.unwrap_or(Offset::MAX.get()))
                });
                Known::UpTo(known.filter_map(parsed).collect())
            }
            (Some(_), _) | (None, None) => Known::Everything,
            (None, Some(kept)) if kept.epoch == epoch.0 => {
                Known::UpTo(kept.partitions.iter().map(|(name, end)| (name, *end)).filter_map(parsed).collect())
            }
            (None, Some(_)) => Known::UpTo(BTreeMap::new()),
        }
    }

    /// The end of what is known to be confirmed of a log that reaches from `first` to `end`.
    pub fn start(&self, partition: &PartitionId, first: Offset, end: Offset) -> Offset {
        match self {
            Known::Everything => end,
            Known::UpTo(known) => known.get(partition).copied().unwrap_or(first).clamp(first, end),
        }
    }
}

/// Before a slave serves: consumers read no further than what its master's quorum was known to hold.
pub fn limit_all(store: &Store, data_path: &Path) {
    let known = Known::load(data_path, store.epoch());
    if known == Known::Everything {
        return;
    }
    for log in store.partitions() {
        let positions = log.positions();
        log.limit(known.start(log.id(), positions.kept, positions.durable));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::promotion;

    fn at(offset: u64) -> Offset {
        Offset::new(offset).unwrap()
    }

    fn start(known: &Known, partition: &str) -> u64 {
        known.start(&partition.parse().unwrap(), at(10), at(100)).get()
    }

    #[test]
    fn a_directory_that_never_asked_anybody_shows_all_it_has() {
        assert_eq!(start(&Known::of(None, None, Epoch(3)), "t-0"), 100);
        let asynchronous = Record {
            partitions: BTreeMap::from([(
                "t-0".to_owned(),
                promotion::Known { end: 70, ..promotion::Known::default() },
            )]),
            ..Record::default()
        };
        assert_eq!(start(&Known::of(Some(&asynchronous), None, Epoch(3)), "t-0"), 100);
    }

    #[test]
    fn a_master_that_starts_again_shows_what_it_had_kept_and_no_more() {
        let partitions = BTreeMap::from([("t-0".to_owned(), 60), ("t-1".to_owned(), 500), ("t-2".to_owned(), 3)]);
        let kept = Kept { epoch: 3, partitions };
        let known = Known::of(None, Some(&kept), Epoch(3));
        assert_eq!((start(&known, "t-0"), start(&known, "t-1")), (60, 100));
        assert_eq!((start(&known, "t-2"), start(&known, "new-0")), (10, 10));
        // What it kept of an older reign may speak of other bytes.
        assert_eq!(start(&Known::of(None, Some(&kept), Epoch(4)), "t-0"), 10);
    }

    #[test]
    fn a_promoted_slave_shows_what_its_master_said() {
        let known = |end, confirmed| promotion::Known { end, confirmed, ..promotion::Known::default() };
        let record = Record {
            quorum: 2,
            partitions: BTreeMap::from([
                ("t-0".to_owned(), known(90, Some(60))),
                ("async-0".to_owned(), known(90, None)),
            ]),
            ..Record::default()
        };
        let kept = Kept { epoch: 3, partitions: BTreeMap::from([("t-0".to_owned(), 80)]) };
        let known = Known::of(Some(&record), Some(&kept), Epoch(3));
        assert_eq!((start(&known, "t-0"), start(&known, "async-0"), start(&known, "new-0")), (60, 100, 10));
    }

    #[test]
    fn it_is_kept_on_disk() {
        let directory = tempfile::tempdir().unwrap();
        assert_eq!(Kept::load(directory.path()).unwrap(), None);
        let kept = Kept { epoch: 7, partitions: BTreeMap::from([("t-0".to_owned(), 60)]) };
        kept.save(directory.path()).unwrap();
        assert_eq!(Kept::load(directory.path()).unwrap(), Some(kept));
        Kept::remove(directory.path()).unwrap();
        Kept::remove(directory.path()).unwrap();
        assert_eq!(Kept::load(directory.path()).unwrap(), None);
        fs::write(path_of(directory.path()), "{").unwrap();
        assert_eq!(Known::load(directory.path(), Epoch(7)), Known::UpTo(BTreeMap::new()));
    }
}
