//! What a promotion may lose, said before it happens.
//!
//! While a slave follows its master it keeps `.metaq/replica.json` in its data directory: whom it followed, how far each
//! partition of the master was known to reach, and when the master was last heard. A start without a slave id on such
//! data is the promotion: the record is held against the slave's own ends ([`measure`]), the result is shown, and the
//! record is set aside under another name.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use metaq_types::{Offset, PartitionId};
use serde::{Deserialize, Serialize};

use crate::members::KnownMember;

pub(crate) const DIRECTORY: &str = ".metaq";
const FILE_NAME: &str = "replica.json";

/// Partitions listed one by one in the printed page; the others are counted.
const LISTED_MAX: usize = 20;

/// What a slave last knew of its master.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    pub slave_id: u32,
    /// `host:port`, as the registry or the flag named it.
    pub master: String,
    /// The last time the master answered anything; 0 for never.
    pub heard_unix_ms: u64,
    /// By the partition's directory name.
    pub partitions: BTreeMap<String, Known>,
    /// The fewest members the master asked for to acknowledge a message, itself included; 1: it asked nobody.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub quorum: u32,
    /// The slaves that the master may have counted in its quorum, this one included.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub members: Vec<KnownMember>,
    /// The number of that list ([`crate::roll`]).
    #[serde(default)]
    pub roll: u64,
}

impl Default for Record {
    fn default() -> Record {
        Record {
            slave_id: 0,
            master: String::new(),
            heard_unix_ms: 0,
            partitions: BTreeMap::new(),
            quorum: 1,
            members: Vec::new(),
            roll: 0,
        }
    }
}

fn one() -> u32 {
    1
}

fn is_one(quorum: &u32) -> bool {
    *quorum == 1
}

/// What was known of one partition of the master.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Known {
    pub end: u64,
    pub seen_unix_ms: u64,
    /// What a quorum held, as the master last said; `None`: it asked for none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub confirmed: Option<u64>,
    /// Why this slave no longer copied the partition, in words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stopped: Option<String>,
}

#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    #[error("{}: {source}", path.display())]
    File { path: PathBuf, source: io::Error },
    #[error("{}: not a record of replication: {source}", path.display())]
    Form { path: PathBuf, source: serde_json::Error },
}

impl Record {
    /// `None` when the data directory has not been a slave's since its last promotion.
    pub fn load(data_path: &Path) -> Result<Option<Record>, RecordError> {
        let path = path_of(data_path);
        let bytes = match fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(RecordError::File { path, source }),
        };
        serde_json::from_slice(&bytes).map(Some).map_err(|source| RecordError::Form { path, source })
    }

    /// Replaces the file whole and durably: after a crash there is the old one or the new one.
    pub fn save(&self, data_path: &Path) -> Result<(), RecordError> {
        let path = path_of(data_path);
        let bytes = serde_json::to_vec(self).map_err(|source| RecordError::Form { path: path.clone(), source })?;
        replace(&path, &bytes).map_err(|source| RecordError::File { path, source })
    }

    /// Renames the record to `replica.json.promoted-N`, with the first free N; answers the new name.
    pub fn set_aside(data_path: &Path) -> Result<PathBuf, RecordError> {
        let path = path_of(data_path);
        let failed = |source| RecordError::File { path: path.clone(), source };
        let aside = (1u32..)
            .map(|n| path.with_file_name(format!("{FILE_NAME}.promoted-{n}")))
            .find(|aside| !aside.exists())
            .expect("a directory cannot hold four thousand million files of this name");
        fs::rename(&path, &aside).map_err(failed)?;
        sync_directory(&path).map_err(failed)?;
        Ok(aside)
    }
}

fn path_of(data_path: &Path) -> PathBuf {
    data_path.join(DIRECTORY).join(FILE_NAME)
}

pub(crate) fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    if let Some(directory) = path.parent() {
        fs::create_dir_all(directory)?;
    }
    let temporary = path.with_extension("json.new");
    let mut file = File::create(&temporary)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&temporary, path)?;
    sync_directory(path)
}

fn sync_directory(path: &Path) -> io::Result<()> {
    path.parent().map_or(Ok(()), |directory| File::open(directory)?.sync_all())
}

/// A record held against the slave's own logs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Measurement {
    pub master: String,
    /// Since the master was last heard; what it acknowledged meanwhile nobody here can know. `None`: never heard.
    pub silence: Option<Duration>,
    /// Every partition known of the master, by name.
    pub partitions: Vec<PartitionRisk>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartitionRisk {
    pub partition: String,
    /// `None`: the slave has no such partition yet.
    pub own_end: Option<Offset>,
    pub master_end: Offset,
    /// Bytes the master was known to have and this slave has not; never more than the master's whole log.
    pub bytes_at_risk: u64,
    /// How old the knowledge of the master's end is.
    pub age: Duration,
    pub stopped: Option<String>,
}

/// Compares what was known of the master with `own_ends`, the slave's log ends.
pub fn measure(record: &Record, own_ends: &BTreeMap<PartitionId, Offset>, now_unix_ms: u64) -> Measurement {
    let age_of = |unix_ms: u64| Duration::from_millis(now_unix_ms.saturating_sub(unix_ms));
    let risk = |(name, known): (&String, &Known)| {
        let own_end = name.parse::<PartitionId>().ok().and_then(|id| own_ends.get(&id).copied());
        let master_end = Offset::new(known.end).unwrap_or(Offset::MAX);
        PartitionRisk {
            partition: name.clone(),
            own_end,
            master_end,
            bytes_at_risk: master_end.bytes_since(own_end.unwrap_or(Offset::ZERO)),
            age: age_of(known.seen_unix_ms),
            stopped: known.stopped.clone(),
        }
    };
    Measurement {
        master: record.master.clone(),
        silence: (record.heard_unix_ms > 0).then(|| age_of(record.heard_unix_ms)),
        partitions: record.partitions.iter().map(risk).collect(),
    }
}

impl Measurement {
    pub fn bytes_at_risk(&self) -> u64 {
        self.partitions.iter().map(|partition| partition.bytes_at_risk).sum()
    }

    /// Nothing is known to be missing and no partition had stopped.
    pub fn is_level(&self) -> bool {
        self.partitions.iter().all(|partition| partition.bytes_at_risk == 0 && partition.stopped.is_none())
    }
}

impl fmt::Display for Measurement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.silence {
            Some(silence) => writeln!(
                f,
                "promotion: was the slave of {}, last heard {} ago; what it acknowledged after that is not known here",
                self.master,
                Seconds(silence)
            )?,
            None => writeln!(f, "promotion: was the slave of {}, which it never heard", self.master)?,
        }
        let of_note: Vec<_> = self
            .partitions
            .iter()
            .filter(|partition| partition.bytes_at_risk > 0 || partition.stopped.is_some())
            .collect();
        let level = self.partitions.len() - of_note.len();
        writeln!(
            f,
            "promotion: {level} of {} partitions end where the master was known to end",
            self.partitions.len()
        )?;
        for partition in of_note.iter().take(LISTED_MAX) {
            writeln!(f, "promotion: {partition}")?;
        }
        if of_note.len() > LISTED_MAX {
            writeln!(f, "promotion: and {} more partitions that are behind", of_note.len() - LISTED_MAX)?;
        }
        write!(f, "promotion: {} bytes known to be on the master are not here", self.bytes_at_risk())
    }
}

impl fmt::Display for PartitionRisk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let PartitionRisk { partition, own_end, master_end, bytes_at_risk, age, stopped } = self;
        match own_end {
            Some(own_end) => write!(f, "{partition} ends at {own_end}, ")?,
            None => write!(f, "{partition} is not here, ")?,
        }
        write!(f, "the master at {master_end} ({} ago): {bytes_at_risk} bytes at risk", Seconds(*age))?;
        if let Some(stopped) = stopped {
            write!(f, "; copying had stopped: {stopped}")?;
        }
        Ok(())
    }
}

/// Seconds with one decimal: the precision at which a person decides.
struct Seconds(Duration);

impl fmt::Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.1} s", self.0.as_secs_f64())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> Record {
        let known = |end, seen_unix_ms| Known { end, seen_unix_ms, ..Known::default() };
        let stopped = Known { end: 70, seen_unix_ms: 9_000, stopped: Some("gap".into()), confirmed: Some(60) };
        Record {
            slave_id: 0,
            master: "10.0.0.1:8123".into(),
            heard_unix_ms: 10_000,
            partitions: BTreeMap::from([
                ("level-0".to_owned(), known(100, 10_000)),
                ("behind-0".to_owned(), known(150, 9_500)),
                ("ahead-0".to_owned(), known(10, 9_500)),
                ("absent-7".to_owned(), known(30, 9_500)),
                ("gap-0".to_owned(), stopped),
            ]),
            quorum: 2,
            members: vec![KnownMember { slave_id: 0, node: "ab".into(), uri: "meta://h:1".into() }],
            roll: 7,
        }
    }

    fn own_ends() -> BTreeMap<PartitionId, Offset> {
        [("level-0", 100), ("behind-0", 120), ("ahead-0", 12), ("gap-0", 70)]
            .map(|(name, end)| (name.parse().unwrap(), Offset::new(end).unwrap()))
            .into()
    }

    #[test]
    fn bytes_at_risk_are_what_the_master_was_known_to_have_more() {
        let measurement = measure(&record(), &own_ends(), 12_500);
        let risks: Vec<_> = measurement.partitions.iter().map(|p| (p.partition.as_str(), p.bytes_at_risk)).collect();
        assert_eq!(risks, [("absent-7", 30), ("ahead-0", 0), ("behind-0", 30), ("gap-0", 0), ("level-0", 0)]);
        assert_eq!(measurement.bytes_at_risk(), 60);
        assert_eq!(measurement.silence, Some(Duration::from_millis(2_500)));
        assert!(!measurement.is_level());
    }

    #[test]
    fn the_page_names_what_is_behind_and_counts_the_rest() {
        let page = measure(&record(), &own_ends(), 12_500).to_string();
        assert_eq!(
            page,
            "promotion: was the slave of 10.0.0.1:8123, last heard 2.5 s ago; what it acknowledged after that is not \
             known here\n\
             promotion: 2 of 5 partitions end where the master was known to end\n\
             promotion: absent-7 is not here, the master at 30 (3.0 s ago): 30 bytes at risk\n\
             promotion: behind-0 ends at 120, the master at 150 (3.0 s ago): 30 bytes at risk\n\
             promotion: gap-0 ends at 70, the master at 70 (3.5 s ago): 0 bytes at risk; copying had stopped: gap\n\
             promotion: 60 bytes known to be on the master are not here"
        );
        let mut many = record();
        many.partitions = (0..50).map(|n| (format!("t-{n}"), Known { end: 5, ..Known::default() })).collect();
        let page = measure(&many, &BTreeMap::new(), 12_500).to_string();
        assert!(page.contains("and 30 more partitions"), "{page}");
        assert!(page.lines().count() < 30);
    }

    #[test]
    fn a_clock_that_stepped_back_makes_no_negative_age() {
        let measurement = measure(&record(), &own_ends(), 5);
        assert_eq!(measurement.silence, Some(Duration::ZERO));
    }

    #[test]
    fn the_record_survives_on_disk_and_is_set_aside_under_a_free_name() {
        let directory = tempfile::tempdir().unwrap();
        let data = directory.path();
        assert_eq!(Record::load(data).unwrap(), None);
        record().save(data).unwrap();
        assert_eq!(Record::load(data).unwrap(), Some(record()));
        let first = Record::set_aside(data).unwrap();
        assert!(first.ends_with(".metaq/replica.json.promoted-1") && first.exists());
        assert_eq!(Record::load(data).unwrap(), None);
        record().save(data).unwrap();
        assert!(Record::set_aside(data).unwrap().ends_with(".metaq/replica.json.promoted-2"));
    }

    #[test]
    fn a_damaged_record_is_an_error_that_names_the_file() {
        let directory = tempfile::tempdir().unwrap();
        fs::create_dir(directory.path().join(DIRECTORY)).unwrap();
        fs::write(path_of(directory.path()), b"{\"slave_id\":").unwrap();
        let error = Record::load(directory.path()).unwrap_err().to_string();
        assert!(error.contains("replica.json: not a record of replication"), "{error}");
    }
}
