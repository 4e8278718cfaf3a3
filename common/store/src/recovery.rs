use crate::clean::CleanMark;
use crate::errors::OpenError;
use crate::kind;
use crate::load::{Loaded, Repair, load};
use crate::lost::KnownEnds;
use crate::partition::{Partition, Shared};
use crate::roots::Root;
use crate::store::{Expects, RulesFor};
use metaq_types::{PartitionId, PartitionNameError};
use parking_lot::Mutex;
use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::ffi::OsStr;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Threads that read last segments.
const LOADERS_MAX: usize = 8;

/// What opening a store found.
#[derive(Clone, Debug, Default)]
pub struct RecoveryReport {
    /// Whether the last run ended with an orderly stop.
    pub clean: bool,
    /// Partitions served, repaired ones included.
    pub served: usize,
    /// Partitions whose torn tail was set aside.
    pub repaired: Vec<Repair>,
    /// Partitions with damaged records inside their last segment, and the bytes concerned.
    pub damaged: Vec<(PartitionId, u64)>,
    /// Not served, each with the reason: a partition, or a second directory of one.
    pub failed: Vec<(String, String)>,
    /// What lies in a data path and is no partition, with why it could be taken for one: in it nothing can be missing.
    pub passed_over: Vec<(String, String)>,
    pub took: Duration,
}

pub(crate) struct Recovered {
    pub(crate) partitions: Vec<Arc<Partition>>,
    pub(crate) failed: HashMap<PartitionId, String>,
    pub(crate) report: RecoveryReport,
}

/// A partition's directory.
struct Place {
    id: PartitionId,
    root: Arc<Path>,
}

/// Loads the partitions of all data paths, several at a time, each on its own: what is wrong with one does not concern
/// the others. `unserved`: those that were found not to be fit to be served before, and why.
pub(crate) fn recover_all(
    shared: &Arc<Shared>,
    roots: &[Root],
    clean: Option<&CleanMark>,
    known: &KnownEnds<'_>,
    rules: &RulesFor,
    expects: &Expects,
    mut unserved: BTreeMap<PartitionId, String>,
) -> Result<Recovered, OpenError> {
    let started = Instant::now();
    let mut report = RecoveryReport { clean: clean.is_some(), ..RecoveryReport::default() };
    let (mut places, misplaced) = list_places(roots, expects, &mut report)?;
    for (id, reason) in misplaced {
        unserved.entry(id).or_insert(reason);
    }
    places.retain(|place| !unserved.contains_key(&place.id));
    // The names of the partitions' directories. After an orderly stop, too: another broker may have made some since.
    for root in roots {
        shared.disk.sync_dir(&root.path).map_err(OpenError::io("sync", &*root.path))?;
    }
    let mut partitions = Vec::with_capacity(places.len());
    let mut failed = HashMap::new();
    let mut fail = |id: PartitionId, reason: String, report: &mut RecoveryReport| {
        tracing::error!(partition = %id, reason, "not served; the others are");
        report.failed.push((id.to_string(), reason.clone()));
        failed.insert(id, reason);
    };
    unserved.into_iter().for_each(|(id, reason)| fail(id, reason, &mut report));
    for (place, loaded) in load_all(shared, places, clean) {
        match loaded {
            Ok(Some(loaded)) => {
                note(&mut report, &place.id, &loaded);
                if let Some(known) = known.of(&place.id).filter(|known| loaded.end < *known) {
                    shared.lost.ends_before(&place.id, loaded.end, known);
                }
                if let Some(id) = loaded.highest_id {
                    shared.ids.found_at_start(id);
                }
                let rules = rules(&place.id.topic);
                let (segments, end, records) = (loaded.segments, loaded.end, loaded.records);
                let shared = shared.clone();
                let partition = Partition::new(place.id, place.root, shared, &rules, segments, end, records);
                partitions.push(Arc::new(partition));
            }
            Ok(None) => {}
            Err(reason) => fail(place.id, reason, &mut report),
        }
    }
    report.served = partitions.len();
    report.took = started.elapsed();
    Ok(Recovered { partitions, failed, report })
}

fn note(report: &mut RecoveryReport, id: &PartitionId, loaded: &Loaded) {
    report.repaired.extend(loaded.repair.clone());
    if loaded.damaged_bytes > 0 {
        report.damaged.push((id.clone(), loaded.damaged_bytes));
    }
}

/// The partition directories of all data paths, and what is called as one and is none. A partition that lies in two is
/// served from the first.
fn list_places(
    roots: &[Root],
    expects: &Expects,
    report: &mut RecoveryReport,
) -> Result<(Vec<Place>, BTreeMap<PartitionId, String>), OpenError> {
    let mut places = HashMap::<PartitionId, Arc<Path>>::new();
    let mut misplaced = BTreeMap::new();
    for root in roots {
        for entry in fs::read_dir(&root.path).map_err(OpenError::io("read", &*root.path))? {
            let entry = entry.map_err(OpenError::io("read", &*root.path))?;
            let Some(named) = partition_of(&entry.file_name()) else { continue };
            match (named, kind::directory(&entry.path())) {
                (Ok(id), Ok(Some(_))) => match places.entry(id) {
                    Entry::Vacant(place) => {
                        place.insert(root.path.clone());
                    }
                    Entry::Occupied(place) => {
                        let (id, served) = (place.key(), place.get().display());
                        let reason = format!(
                            "{id} is served from {served}; stop the broker, gather the files of {id} in one of the two \
                             directories, and remove the other"
                        );
                        tracing::warn!(directory = %entry.path().display(), reason, "not served");
                        report.failed.push((entry.path().display().to_string(), reason));
                    }
                },
                // A core dump, say. A link that leads nowhere may be a partition on a disk that is not mounted.
                (Ok(id), Err(_)) if !expects(&id) && entry.path().exists() => {
                    let reason = "it is no directory, and no topic of the configuration has such a partition";
                    pass_over(report, &entry.path(), reason.to_owned());
                }
                (Ok(id), Err(reason)) => {
                    misplaced.entry(id).or_insert(reason);
                }
                (Err(reason), Ok(Some(_))) => pass_over(report, &entry.path(), reason),
                // Nobody would look for messages in it; or it went in this moment.
                (Err(_), Err(_)) | (_, Ok(None)) => {}
            }
        }
    }
    misplaced.retain(|id, _| !places.contains_key(id));
    Ok((places.into_iter().map(|(id, root)| Place { id, root }).collect(), misplaced))
}

/// The partition whose directory has this name, or why there can be none; `None` for a name that nobody would take for one.
pub(crate) fn partition_of(name: &OsStr) -> Option<Result<PartitionId, String>> {
    let Some(name) = name.to_str() else { return Some(Err("its name is not UTF-8".to_owned())) };
    match name.parse::<PartitionId>() {
        Ok(id) if id.to_string() == name => Some(Ok(id)),
        // One number, one directory: it was copied or renamed by hand.
        Ok(id) => {
            let reason = format!("the directory of that partition is called {id}; rename this one if it is to be that");
            Some(Err(reason))
        }
        Err(PartitionNameError::NoDash) => None,
        Err(error) => Some(Err(error.to_string())),
    }
}

fn pass_over(report: &mut RecoveryReport, path: &Path, reason: String) {
    tracing::warn!(path = %path.display(), reason, "passed over");
    report.passed_over.push((path.display().to_string(), reason));
}

type Outcome = Result<Option<Loaded>, String>;

fn load_all(shared: &Shared, places: Vec<Place>, clean: Option<&CleanMark>) -> Vec<(Place, Outcome)> {
    let threads = std::thread::available_parallelism().map_or(1, |cores| cores.get() * 2).min(LOADERS_MAX);
    let next = AtomicUsize::new(0);
    let outcomes = Mutex::new(Vec::with_capacity(places.len()));
    std::thread::scope(|scope| {
        for _ in 0..threads.min(places.len()) {
            scope.spawn(|| {
                while let Some((number, place)) = {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    places.get(number).map(|place| (number, place))
                } {
                    let directory = place.root.join(place.id.to_string());
                    let entry = clean.and_then(|mark| mark.get(&place.id));
                    let outcome = load(&*shared.disk, &place.id, &directory, entry);
                    outcomes.lock().push((number, outcome));
                }
            });
        }
    });
    let mut outcomes = outcomes.into_inner();
    outcomes.sort_unstable_by_key(|(number, _)| *number);
    places.into_iter().zip(outcomes).map(|(place, (_, outcome))| (place, outcome)).collect()
}
