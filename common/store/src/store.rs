use crate::clean::{self, CleanEntry, CleanMark};
use crate::committer::{COMMITTERS, Committers};
use crate::disk::{Disk, OsDisk, create_dirs};
use crate::ended::{self, Ended};
use crate::errors::{CloseError, CreateError, OpenError};
use crate::files::{FileCache, cached_files_max, files_limit};
use crate::full::{Full, Lacks};
use crate::ids::{IdClock, WallClock};
use crate::kind;
use crate::load::load;
use crate::lost::{KnownEnds, Lost};
use crate::metrics::{FlushCause, StoreMetrics};
use crate::partition::{Partition, Shared};
use crate::recovery::{RecoveryReport, recover_all};
use crate::reigns;
use crate::releases::Releases;
use crate::roots::{Root, gone, node_id};
use crate::rules::PartitionRules;
use crate::segment::Segment;
use crate::wal::{self, Wal, WalOptions, replay};
use crate::writer::is_disk_full;
use metaq_types::{BrokerId, JOURNAL_TOPIC, Offset, PartitionId, TopicName};
use parking_lot::{Mutex, RwLock};
use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{SystemTime, UNIX_EPOCH};
use tokio::sync::Notify;

/// The settings of a topic, by name.
pub type RulesFor = Arc<dyn Fn(&str) -> PartitionRules + Send + Sync>;

/// Whether the configuration has a partition.
pub type Expects = Arc<dyn Fn(&PartitionId) -> bool + Send + Sync>;

#[derive(Clone)]
pub struct StoreOptions {
    /// Holds the store's identity and its partitions, but for topics with a path of their own.
    pub data_path: PathBuf,
    /// Searched for partitions, too.
    pub extra_data_paths: Vec<PathBuf>,
    /// Where the transaction journal lies: its own directory, in no data path. `None`: this store keeps none.
    pub journal_path: Option<PathBuf>,
    pub broker_id: BrokerId,
    /// Asked for each partition found.
    pub rules: RulesFor,
    /// Asked where something else stands in the place of a partition's directory: nobody misses one that it does not know.
    pub expects: Expects,
    pub now: WallClock,
    pub disk: Arc<dyn Disk>,
    /// `None`: there is no write-ahead log, each partition's file is synced.
    pub wal: Option<WalOptions>,
}

impl StoreOptions {
    /// With the machine's clock and file system.
    pub fn new(data_path: impl Into<PathBuf>, broker_id: BrokerId, rules: RulesFor) -> StoreOptions {
        StoreOptions {
            data_path: data_path.into(),
            extra_data_paths: Vec::new(),
            journal_path: None,
            broker_id,
            rules,
            expects: Arc::new(|_| true),
            now: Arc::new(wall_clock_ms),
            disk: Arc::new(OsDisk),
            wal: Some(WalOptions::default()),
        }
    }
}

pub(crate) fn wall_clock_ms() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as i64)
}

/// All partitions of one broker. Owns its data paths: they are locked until it is closed or dropped. Dropped without
/// [`Store::close`] it is as after a crash: nothing more is synced, and the next opening reads the last segments.
pub struct Store {
    pub(crate) shared: Arc<Shared>,
    pub(crate) node_id: String,
    pub(crate) lineage_path: PathBuf,
    pub(crate) epoch: AtomicU64,
    report: RecoveryReport,
    clean_mark: PathBuf,
    partitions: RwLock<HashMap<TopicName, BTreeMap<u32, Arc<Partition>>>>,
    /// Not served, with the reason.
    pub(crate) failed: HashMap<PartitionId, String>,
    /// Where logs ended whose files were removed.
    pub(crate) ended: Ended,
    /// Locked while a partition is created or the store is closed.
    pub(crate) roots: Mutex<Roots>,
    catalog: AtomicU64,
    catalog_moved: Notify,
}

/// What ends when the store is closed.
pub(crate) struct Roots {
    pub(crate) locked: Vec<Root>,
    /// `None` once the store is closed.
    committers: Option<Vec<JoinHandle<()>>>,
}

impl Store {
    /// Locks the data paths, loads every partition and repairs what a crash left. Blocks while it reads. A partition
    /// that cannot be served is reported, and the others are served.
    pub fn open(options: StoreOptions) -> Result<Store, OpenError> {
        let disk = options.disk.clone();
        let locked = lock_roots(&*disk, &options)?;
        let system = &locked[0];
        let node_id = node_id(&*disk, &system.ours("identity"))?;
        let lineage_path = system.ours("lineage");
        let lineage = reigns::read(&lineage_path)?;
        let ids = IdClock::open(system.ours("ids"), options.broker_id, disk.clone(), options.now.clone())?;
        let clean_mark = system.ours("clean");
        let clean = clean::read(&clean_mark)?;
        let ended = ended::update(&*disk, &system.ours("ended"), &locked, clean.as_ref())?;
        wal::check(&system.ours("wal"))?;
        clean::remove(&*disk, &clean_mark).map_err(OpenError::io("remove", &clean_mark))?;
        let (wal, unrestored) = match options.wal {
            Some(wal) => open_wal(&disk, &locked, wal).map(|(wal, unrestored)| (Some(wal), unrestored))?,
            None => (None, BTreeMap::new()),
        };
        let shared = Arc::new(Shared {
            wal,
            disk,
            files: FileCache::new(cached_files_max(files_limit())),
            ids,
            committers: Committers::default(),
            releases: Releases::default(),
            metrics: StoreMetrics::default(),
            full: Full::default(),
            lost: Lost::default(),
            queued_bytes: AtomicUsize::new(0),
        });
        let (clean, node) = (clean.as_ref(), node_id.clone());
        let known = KnownEnds::new(clean, &lineage, &node);
        let recovered = recover_all(&shared, &locked, clean, &known, &options.rules, &options.expects, unrestored)?;
        if let Err(error) = shared.ids.reserve() {
            // Reading goes on without ids; each append tries again.
            tracing::error!(%error, "appends are refused until this succeeds");
        }
        let mut partitions = HashMap::<_, BTreeMap<_, _>>::new();
        for partition in recovered.partitions {
            partitions.entry(partition.id.topic.clone()).or_default().insert(partition.id.number, partition);
        }
        let committers = start_committers(&shared)?;
        let store = Store {
            shared,
            node_id,
            lineage_path,
            epoch: AtomicU64::new(lineage.epoch().0),
            report: recovered.report,
            clean_mark,
            partitions: RwLock::new(partitions),
            failed: recovered.failed,
            ended,
            roots: Mutex::new(Roots { locked, committers: Some(committers) }),
            // From the clock, so that a generation of an earlier run is not taken for one of this.
            catalog: AtomicU64::new((options.now)().max(1) as u64),
            catalog_moved: Notify::new(),
        };
        if let Some(path) = &options.journal_path {
            let id = PartitionId::journal();
            if store.existing(&id).is_none() && !store.failed.contains_key(&id) && known.had(&id) {
                store.shared.lost.no_journal(path);
            }
            let rules = PartitionRules { data_path: path.clone(), ..(options.rules)(JOURNAL_TOPIC) };
            store.get_or_create(&id, &rules, Offset::ZERO).map_err(OpenError::Journal)?;
        }
        Ok(store)
    }

    /// The transaction journal, if this store keeps one. Asked for each time: joining a master may replace it.
    pub fn journal(&self) -> Option<Arc<Partition>> {
        self.existing(&PartitionId::journal())
    }

    /// A topic's partition; the journal is none.
    pub fn get(&self, topic: &str, partition: i32) -> Option<Arc<Partition>> {
        let number = u32::try_from(partition).ok()?;
        if topic == JOURNAL_TOPIC {
            return None;
        }
        self.partitions.read().get(topic)?.get(&number).cloned()
    }

    /// Why a partition that exists is not served: its files could not be loaded at the opening.
    pub fn unserved(&self, topic: &str, partition: i32) -> Option<&str> {
        let number = u32::try_from(partition).ok().filter(|_| !self.failed.is_empty())?;
        self.failed.iter().find(|(id, _)| id.number == number && *id.topic == *topic).map(|(_, reason)| reason.as_str())
    }

    /// Where a master's new partition begins: at 0, or where an earlier one of that name ended.
    pub fn first_offset(&self, id: &PartitionId) -> Offset {
        self.ended.first_offset(id)
    }

    /// Creates the partition at `first` if there is none. Blocks on the disk when it does.
    pub fn get_or_create(
        &self,
        id: &PartitionId,
        rules: &PartitionRules,
        first: Offset,
    ) -> Result<Arc<Partition>, CreateError> {
        if let Some(partition) = self.existing(id) {
            return Ok(partition);
        }
        if let Some(reason) = self.failed.get(id) {
            return Err(CreateError::Failed { partition: id.clone(), reason: reason.clone() });
        }
        let mut roots = self.roots.lock();
        if roots.committers.is_none() {
            return Err(CreateError::Closing);
        }
        if let Some(partition) = self.existing(id) {
            return Ok(partition);
        }
        let root = self.root_for(&mut roots, &rules.data_path).map_err(|error| cannot_create(id, error.to_string()))?;
        let partition = self.create(id, rules, root, first).inspect_err(|error| {
            if let CreateError::Io { reason, disk_full, .. } = error {
                let lacks = if *disk_full { Lacks::Room } else { Lacks::Other };
                self.shared.full.refused(id, lacks, reason);
            }
        })?;
        self.partitions.write().entry(id.topic.clone()).or_default().insert(id.number, partition.clone());
        self.bump_catalog();
        Ok(partition)
    }

    /// Puts another object in the place of a partition's; nobody creates, replaces or closes anything meanwhile.
    pub(crate) fn exchange<T>(
        &self,
        id: &PartitionId,
        make: impl FnOnce(&Arc<Partition>) -> Result<(Partition, T), CreateError>,
    ) -> Result<T, CreateError> {
        let roots = self.roots.lock();
        if roots.committers.is_none() {
            return Err(CreateError::Closing);
        }
        let old = self.existing(id).ok_or_else(|| cannot_create(id, "there is no such partition".to_owned()))?;
        let (new, made) = make(&old)?;
        self.partitions.write().entry(id.topic.clone()).or_default().insert(id.number, Arc::new(new));
        self.bump_catalog();
        Ok(made)
    }

    fn existing(&self, id: &PartitionId) -> Option<Arc<Partition>> {
        self.partitions.read().get(&id.topic)?.get(&id.number).cloned()
    }

    /// The lock on a data path, taken now if a topic brought a new one.
    fn root_for(&self, roots: &mut Roots, data_path: &Path) -> Result<Arc<Path>, OpenError> {
        if let Some(root) = roots.locked.iter().find(|root| root.is_at(data_path)) {
            return gone(&root.path).map_or(Ok(root.path.clone()), |reason| Err(OpenError::Misplaced(reason)));
        }
        let root = Root::lock(&*self.shared.disk, data_path)?;
        let path = root.path.clone();
        roots.locked.push(root);
        Ok(path)
    }

    fn create(
        &self,
        id: &PartitionId,
        rules: &PartitionRules,
        root: Arc<Path>,
        first: Offset,
    ) -> Result<Arc<Partition>, CreateError> {
        let disk = &*self.shared.disk;
        let directory = root.join(id.to_string());
        let cannot = |error: std::io::Error| CreateError::Io {
            partition: id.clone(),
            reason: format!("in {}: {error}", directory.display()),
            disk_full: is_disk_full(&error),
        };
        kind::directory(&directory).map_err(|reason| cannot_create(id, reason))?;
        create_dirs(disk, &directory).map_err(cannot)?;
        if let Some(wal) = &self.shared.wal {
            wal.give_back(id, &root).map_err(|error| cannot_create(id, error.to_string()))?;
        }
        // A directory that was there already may hold segments, as when a topic's path was changed to an old one.
        let shared = self.shared.clone();
        if let Some(found) = load(disk, id, &directory, None).map_err(|reason| cannot_create(id, reason))? {
            let (segments, end, records) = (found.segments, found.end, found.records);
            return Ok(Arc::new(Partition::new(id.clone(), root, shared, rules, segments, end, records)));
        }
        let segment = Arc::new(Segment::new(first));
        disk.create_new(&segment.path(&directory)).map_err(cannot)?;
        disk.sync_dir(&directory).map_err(cannot)?;
        Ok(Arc::new(Partition::new(id.clone(), root, shared, rules, vec![segment], first, 0)))
    }

    /// Of topics, in no particular order.
    pub fn partitions(&self) -> Vec<Arc<Partition>> {
        self.logs().into_iter().filter(|log| !log.id.is_journal()).collect()
    }

    /// Every log: the partitions, and the journal.
    pub fn logs(&self) -> Vec<Arc<Partition>> {
        self.partitions.read().values().flat_map(BTreeMap::values).cloned().collect()
    }

    /// Grows with every new partition, and with [`Store::bump_catalog`].
    pub fn catalog_generation(&self) -> u64 {
        self.catalog.load(Ordering::SeqCst)
    }

    /// For who followed [`Store::catalog_generation`]: something else about the partitions has changed, like where they
    /// begin.
    pub fn bump_catalog(&self) {
        self.catalog.fetch_add(1, Ordering::SeqCst);
        self.catalog_moved.notify_waiters();
    }

    /// Returns the generation once it is beyond `generation`. May be cancelled at any time.
    pub async fn catalog_beyond(&self, generation: u64) -> u64 {
        loop {
            let mut moved = std::pin::pin!(self.catalog_moved.notified());
            moved.as_mut().enable();
            let now = self.catalog_generation();
            if now > generation {
                return now;
            }
            moved.await;
        }
    }

    pub fn ids(&self) -> &IdClock {
        &self.shared.ids
    }

    /// The name of this data directory among all others.
    pub fn node_id(&self) -> &str {
        &self.node_id
    }

    pub fn recovery_report(&self) -> &RecoveryReport {
        &self.report
    }

    pub fn metrics(&self) -> &StoreMetrics {
        &self.shared.metrics
    }

    /// Bytes of message bodies that wait to be written.
    pub fn queued_bytes(&self) -> usize {
        self.shared.queued_bytes.load(Ordering::Relaxed)
    }

    /// Ends appending, makes all that is written durable, leaves the mark of an orderly stop and unlocks the data paths.
    /// Blocks on the disk. A second call does nothing.
    pub fn close(&self) -> Result<(), CloseError> {
        let mut roots = self.roots.lock();
        if roots.committers.is_none() {
            return Ok(());
        }
        let partitions = self.stop(&mut roots);
        let mut faults = Vec::new();
        let mut mark = CleanMark::new();
        for partition in &partitions {
            partition.commit(FlushCause::Close);
            match CleanEntry::of(partition) {
                Ok(entry) => {
                    mark.insert(partition.id.clone(), entry);
                }
                Err(fault) => faults.push(format!("{}: {fault}", partition.id)),
            }
        }
        // Where a partition's file could not be synced the log may hold what that lacks: the next opening replays it.
        if faults.is_empty()
            && let Some(wal) = &self.shared.wal
            && let Err(error) = wal.close()
        {
            faults.push(format!("cannot clear the write-ahead log: {error}"));
        }
        if let Err(error) = self.shared.ids.close() {
            faults.push(error.to_string());
        }
        if let Err(error) = clean::write(&*self.shared.disk, &self.clean_mark, &mark) {
            faults.push(format!("cannot write {}: {error}", self.clean_mark.display()));
        }
        roots.locked.clear();
        if faults.is_empty() { Ok(()) } else { Err(CloseError(faults)) }
    }

    /// Accepts nothing more and ends the committers.
    fn stop(&self, roots: &mut Roots) -> Vec<Arc<Partition>> {
        let partitions = self.logs();
        for partition in &partitions {
            partition.close();
        }
        self.shared.committers.stop();
        if let Some(wal) = &self.shared.wal {
            wal.stop();
        }
        for committer in roots.committers.take().into_iter().flatten() {
            if committer.join().is_err() {
                tracing::error!("a committer had panicked");
            }
        }
        partitions
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        let mut roots = self.roots.lock();
        if roots.committers.is_some() {
            for partition in self.stop(&mut roots) {
                partition.abandon();
            }
        }
    }
}

fn cannot_create(id: &PartitionId, reason: String) -> CreateError {
    CreateError::Io { partition: id.clone(), reason, disk_full: false }
}

/// The system's data path first, then each other one once.
fn lock_roots(disk: &dyn Disk, options: &StoreOptions) -> Result<Vec<Root>, OpenError> {
    let mut locked = vec![Root::lock(disk, &options.data_path)?];
    for path in options.extra_data_paths.iter().chain(&options.journal_path) {
        let canonical = fs::canonicalize(path).ok();
        if !locked.iter().any(|root| Some(&*root.path) == canonical.as_deref()) {
            locked.push(Root::lock(disk, path)?);
        }
    }
    Ok(locked)
}

/// Gives the partitions back what a crash took of their files, before anything looks at them; with those where that was
/// not possible, and why.
fn open_wal(
    disk: &Arc<dyn Disk>,
    locked: &[Root],
    options: WalOptions,
) -> Result<(Wal, BTreeMap<PartitionId, String>), OpenError> {
    let directory = locked[0].ours("wal");
    let roots: Vec<_> = locked.iter().map(|root| root.path.clone()).collect();
    let mut replayed = replay(&**disk, &directory, &roots)?;
    for (partition, bytes) in &replayed.restored {
        tracing::info!(%partition, bytes, "restored from the write-ahead log");
    }
    let unrestored = std::mem::take(&mut replayed.unrestored);
    let wal = Wal::new(disk.clone(), directory, options, replayed)
        .map_err(OpenError::io("get memory for", "the write-ahead log"))?;
    Ok((wal, unrestored))
}

/// The threads that sync, and the one behind the write-ahead log.
fn start_committers(shared: &Arc<Shared>) -> Result<Vec<JoinHandle<()>>, OpenError> {
    let start = |name: String, run: fn(&Shared, usize), place: usize| {
        let shared = shared.clone();
        let thread = std::thread::Builder::new().name(name).spawn(move || run(&shared, place));
        thread.map_err(OpenError::io("start a thread for", "a committer"))
    };
    let own = |place| {
        let run = |shared: &Shared, place: usize| shared.committers.at(place).run(shared);
        start(format!("committer-{place}"), run, place)
    };
    let mut started: Vec<_> = (0..COMMITTERS).map(own).collect();
    if shared.wal.is_some() {
        started.push(start("committer".to_owned(), |shared, _| shared.committers.common().run(shared), 0));
        let keep = |shared: &Shared, _: usize| shared.wal.iter().for_each(Wal::keep);
        started.push(start("wal-keeper".to_owned(), keep, 0));
    }
    let started: Result<Vec<_>, _> = started.into_iter().collect();
    if started.is_err() {
        // Those that did start have nothing to do and end.
        shared.committers.stop();
        shared.wal.iter().for_each(Wal::stop);
    }
    started
}
