//! What leaves the front of a log, and what nobody may notice of it.
#![expect(clippy::unwrap_used, reason = "also in the functions that tests share")]

mod support;

use metaq_store::{Disposal, Health, OsDisk, Partition, Reader, Retention, SliceAt, Store, StoreOptions};
use metaq_wire::RecordHeader;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use support::faulty::{Fault, FaultyDisk};
use support::*;

/// Two records of 50 bytes fill a segment of 100.
const BODY: usize = 30;
const SEGMENT: u32 = 100;
const START_MS: i64 = 1_900_000_000_000;
const AGE: Duration = Duration::from_secs(10);

struct Case {
    setup: Setup,
    disk: Arc<FaultyDisk>,
    store: Store,
    clock: Arc<AtomicI64>,
    disposal: Disposal,
}

fn case(disposal: Disposal) -> Case {
    let setup = Setup::new(0, SEGMENT);
    let (disk, clock) = (Arc::new(FaultyDisk::default()), Arc::new(AtomicI64::new(START_MS)));
    let store = open(&setup, disk.clone(), &clock, disposal);
    Case { setup, disk, store, clock, disposal }
}

fn open(setup: &Setup, disk: Arc<FaultyDisk>, clock: &Arc<AtomicI64>, disposal: Disposal) -> Store {
    let rules = rules(setup, disposal);
    let clock = clock.clone();
    let now = Arc::new(move || clock.load(Ordering::SeqCst));
    Store::open(StoreOptions { disk, now, rules: Arc::new(move |_| rules.clone()), ..setup.options() }).unwrap()
}

fn rules(setup: &Setup, disposal: Disposal) -> metaq_store::PartitionRules {
    metaq_store::PartitionRules { retention: Retention { age: AGE, bytes_max: None, disposal }, ..setup.rules() }
}

impl Case {
    fn partition(&self) -> Arc<Partition> {
        self.store.get_or_create(&id("test-0"), &rules(&self.setup, self.disposal), at(0)).unwrap()
    }

    /// Fills one segment and begins the next a second later.
    fn fill(&self, segments: usize) {
        let partition = self.partition();
        for _ in 0..segments {
            for _ in 0..2 {
                put(&partition, &[b'x'; BODY]).unwrap();
            }
            self.clock.fetch_add(1000, Ordering::SeqCst);
        }
    }

    fn now(&self) -> i64 {
        self.clock.load(Ordering::SeqCst)
    }

    /// Time passes.
    fn later(&self, seconds: i64) -> i64 {
        self.clock.fetch_add(seconds * 1000, Ordering::SeqCst) + seconds * 1000
    }

    fn reopen(self) -> Case {
        self.store.close().unwrap();
        let store = open(&self.setup, Arc::default(), &self.clock, self.disposal);
        Case { store, disk: Arc::default(), ..self }
    }

    /// As after a crash.
    fn crash(self) -> Case {
        drop(self.store);
        let store = open(&self.setup, Arc::default(), &self.clock, self.disposal);
        Case { store, disk: Arc::default(), setup: self.setup, clock: self.clock, disposal: self.disposal }
    }

    fn files(&self) -> Vec<String> {
        files(&self.setup.path().join("test-0"))
    }
}

fn files(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).unwrap();
    let mut names: Vec<_> =
        entries.map(|entry| entry.unwrap().file_name().to_string_lossy().trim_start_matches('0').to_owned()).collect();
    names.sort();
    names
}

#[test]
fn old_segments_go_from_the_front_and_never_the_active_one() {
    let case = case(Disposal::Delete);
    case.fill(3);
    let partition = case.partition();
    assert_eq!(partition.expire(case.now()).segments, 0);
    // The first segment's records are of second 0, the second's of second 1.
    let removed = partition.expire(START_MS + 10_001);
    assert_eq!((removed.segments, removed.bytes, removed.first), (1, 100, at(100)));
    assert_eq!(case.files(), ["100.meta", "200.meta"]);
    assert_eq!(partition.positions().kept, at(100));
    assert!(matches!(partition.slice(0, 1000, Reader::Consumer), SliceAt::Trimmed { oldest } if oldest == at(100)));
    assert_eq!((partition.nearest(0), partition.nearest(150)), (at(100), at(100)));
    assert_eq!(read_from(&partition, 100, 1000).len(), 4);

    let removed = partition.expire(case.later(3600));
    assert_eq!((removed.segments, removed.first), (1, at(200)));
    assert_eq!(case.files(), ["200.meta"], "the active segment stays, however old");
    assert_eq!(partition.bytes(), 100);

    let case = case.reopen();
    let partition = case.partition();
    assert_eq!(partition.positions().kept, at(200));
    assert_eq!(put(&partition, b"next").unwrap().offset, at(300), "offsets never start again");
    assert_eq!(partition.expire(case.later(3600)).segments, 1);
}

#[test]
fn the_age_is_that_of_the_newest_record() {
    let case = case(Disposal::Delete);
    let partition = case.partition();
    put(&partition, &[b'x'; BODY]).unwrap();
    case.later(60);
    put(&partition, &[b'x'; BODY]).unwrap();
    case.later(1);
    put(&partition, &[b'x'; BODY]).unwrap();
    // The first record is old, and the file of an hour ago.
    let path = case.setup.segment("test-0", 0);
    fs::File::options().write(true).open(path).unwrap().set_modified(UNIX_EPOCH).unwrap();
    assert_eq!(partition.expire(START_MS + 70_000).segments, 0);
    let case = case.crash();
    assert_eq!(case.partition().expire(START_MS + 70_000).segments, 0);
    assert_eq!(case.partition().expire(START_MS + 70_001).segments, 1);
}

#[test]
fn a_log_that_is_too_large_loses_its_oldest_segments_first() {
    let case = case(Disposal::Delete);
    case.fill(4);
    let partition = case.partition();
    let mut rules = rules(&case.setup, Disposal::Delete);
    rules.retention.bytes_max = Some(250);
    partition.set_rules(&rules);
    let removed = partition.expire(case.now());
    assert_eq!((removed.segments, removed.first), (2, at(200)));
    assert_eq!(partition.expire(case.now()).segments, 0);
}

/// Ids of the original tell no time: the files' own counts then, and still only from the front.
#[test]
fn where_ids_tell_no_time_the_files_do() {
    let setup = Setup::new(0, SEGMENT);
    let directory = setup.path().join("test-0");
    fs::create_dir_all(&directory).unwrap();
    let now = SystemTime::now();
    for (base, age_seconds) in [(0, 100), (50, 1), (100, 200), (150, 0)] {
        let body = [b'o'; BODY];
        let header = RecordHeader::of(metaq_types::MessageId(-5_468_931_796_009_734_144), 0, &body);
        let path = setup.segment("test-0", base);
        fs::write(&path, [&header.encode()[..], &body].concat()).unwrap();
        let modified = now - Duration::from_secs(age_seconds);
        fs::File::options().write(true).open(path).unwrap().set_modified(modified).unwrap();
    }
    let rules = rules(&setup, Disposal::Delete);
    let options = StoreOptions { rules: Arc::new(move |_| rules.clone()), ..setup.options() };
    let store = Store::open(options).unwrap();
    let now_ms = now.duration_since(UNIX_EPOCH).unwrap().as_millis() as i64;
    let partition = store.get("test", 0).unwrap();
    assert_eq!(partition.expire(now_ms).segments, 1);
    assert_eq!(files(&directory), ["100.meta", "150.meta", "50.meta"], "no hole");
    assert_eq!(partition.expire(now_ms + 60_000).segments, 2);
}

#[test]
fn archives_are_set_aside_under_names_of_their_own() {
    let case = case(Disposal::Archive);
    case.fill(3);
    let first = fs::read(case.setup.segment("test-0", 0)).unwrap();
    fs::write(case.setup.path().join("test-0/00000000000000000100.meta.arc"), b"older").unwrap();
    assert_eq!(case.partition().expire(case.later(60)).segments, 2);
    assert_eq!(case.files(), [".meta.arc", "100.meta.arc", "100.meta.arc-1", "200.meta"]);
    assert_eq!(fs::read(case.setup.path().join("test-0/00000000000000000000.meta.arc")).unwrap(), first);
    let case = case.reopen();
    assert_eq!(case.partition().positions().kept, at(200), "what is archived is not read again");
}

fn unzip(path: PathBuf) -> (String, Vec<u8>) {
    let mut archive = zip::ZipArchive::new(fs::File::open(path).unwrap()).unwrap();
    assert_eq!(archive.len(), 1);
    let mut entry = archive.by_index(0).unwrap();
    let mut bytes = Vec::new();
    entry.read_to_end(&mut bytes).unwrap();
    (entry.name().unwrap().into_owned(), bytes)
}

#[test]
fn a_compressed_segment_goes_only_when_its_archive_is_whole() {
    let case = case(Disposal::Compress);
    case.fill(2);
    let (partition, path) = (case.partition(), case.setup.segment("test-0", 0));
    let bytes = fs::read(&path).unwrap();
    for fault in [Fault::FullAfter(40), Fault::SyncError] {
        case.disk.add(fault);
        let removed = partition.expire(case.later(60));
        assert!(removed.fault.unwrap().to_string().starts_with("cannot compress"));
        case.disk.heal();
        assert_eq!(case.files(), [".meta", "100.meta"], "{fault:?} leaves nothing half done");
        assert_eq!(read_from(&partition, 0, 1000).len(), 4, "and the segment served");
    }
    let removed = partition.expire(case.now());
    assert!(removed.fault.is_none(), "{:?}", removed.fault);
    assert_eq!(case.files(), [".meta.zip", "100.meta"]);
    let packed = unzip(case.setup.path().join("test-0/00000000000000000000.meta.zip"));
    assert_eq!(packed, ("00000000000000000000.meta".to_owned(), bytes));
}

#[test]
fn a_slice_being_sent_keeps_its_bytes_and_the_disk_gets_its_space_back_afterwards() {
    let case = case(Disposal::Delete);
    case.fill(2);
    let partition = case.partition();
    let SliceAt::Bytes(slice) = partition.slice(0, 1000, Reader::Consumer) else { panic!("no bytes") };
    assert_eq!(partition.expire(case.later(60)).segments, 1);
    assert_eq!(read_slice(&slice).len(), 2);
    let open = || {
        let links = fs::read_dir("/proc/self/fd").unwrap().filter_map(|fd| fs::read_link(fd.ok()?.path()).ok());
        let directory = case.setup.path().join("test-0").canonicalize().unwrap();
        links.filter(|link| link.starts_with(&directory) && link.to_string_lossy().ends_with("(deleted)")).count()
    };
    assert_eq!(open(), 1, "the slice holds it");
    drop(slice);
    assert_eq!(open(), 0, "nobody else does");
}

/// Killed at any change a run makes, the log is one without a hole, and the next run finishes the work.
#[test]
fn a_crash_at_any_step_leaves_a_whole_log() {
    for disposal in [Disposal::Delete, Disposal::Archive, Disposal::Compress] {
        for step in 0.. {
            let case = case(disposal);
            case.fill(4);
            let now = case.later(60);
            case.disk.die_after(step);
            let done = case.partition().expire(now).fault.is_none();
            let case = case.crash();
            assert!(case.store.recovery_report().failed.is_empty(), "{disposal:?}, step {step}");
            let partition = case.partition();
            let kept = partition.positions().kept.get();
            assert_eq!(read_from(&partition, kept, 1000).len() as u64, (400 - kept) / 50);
            let removed = partition.expire(now);
            assert!(removed.fault.is_none(), "{disposal:?}, step {step}: {:?}", removed.fault);
            assert_eq!((removed.first, kept + removed.bytes), (at(300), 300), "{disposal:?}, step {step}");
            if done {
                break;
            }
        }
    }
}

/// What could not be unlinked is taken up by the next run before anything behind it goes.
#[test]
fn what_a_run_leaves_behind_is_finished_by_the_next() {
    let case = case(Disposal::Delete);
    case.fill(3);
    let partition = case.partition();
    let now = case.later(60);
    case.disk.add(Fault::Dead);
    assert_eq!(partition.expire(now).segments, 0);
    assert_eq!(case.files(), [".meta", "100.meta", "200.meta"]);
    case.disk.heal();
    let removed = partition.expire(now);
    assert_eq!((removed.segments, removed.bytes), (2, 200));
    assert_eq!(case.files(), ["200.meta"]);
    assert_eq!(partition.health(), Health::Ok);
}

#[test]
fn a_replica_follows_its_masters_first_offset_and_only_where_a_segment_begins() {
    let case = case(Disposal::Delete);
    case.fill(4);
    let partition = case.partition();
    for elsewhere in [0, 1, 50, 150, 399, 400, 1_000_000] {
        assert_eq!(partition.trim_to(at(elsewhere)).segments, 0, "{elsewhere}");
    }
    let removed = partition.trim_to(at(200));
    assert_eq!((removed.segments, removed.first), (2, at(200)));
    assert_eq!(partition.trim_to(at(100)).segments, 0, "never back");
    assert_eq!(partition.trim_to(at(300)).segments, 1);
    assert_eq!(case.files(), ["300.meta"]);
}

/// A gap is there to be seen for as long as the master keeps what follows it.
#[test]
fn a_gap_stays_until_the_master_has_moved_on() {
    let case = case(Disposal::Delete);
    case.fill(2);
    drop(case.partition());
    case.store.skip_to(&id("test-0"), at(900)).unwrap();
    case.fill(2);
    let partition = case.store.get("test", 0).unwrap();
    assert_eq!(partition.trim_to(at(900)).segments, 0);
    assert_eq!(partition.gaps(), [(at(200), at(900))]);
    let removed = partition.trim_to(at(1000));
    assert_eq!((removed.segments, removed.bytes, removed.first), (3, 300, at(1000)));
    assert_eq!((case.files(), partition.gaps()), (vec!["1000.meta".to_owned()], vec![]));
}

#[test]
fn retention_ends_when_the_store_closes() {
    let case = case(Disposal::Delete);
    case.fill(3);
    let partition = case.partition();
    case.store.close().unwrap();
    assert_eq!(partition.expire(case.later(60)).segments, 0);
}

/// Readers at the front, a writer that rolls and a run at once: nobody sees an error or a gap.
#[test]
fn readers_and_writers_go_on_meanwhile() {
    let setup = Setup::new(1000, SEGMENT);
    let mut now_rules = setup.rules();
    now_rules.retention = Retention { age: Duration::ZERO, bytes_max: None, disposal: Disposal::Delete };
    let store = Store::open(StoreOptions { disk: Arc::new(OsDisk), ..setup.options() }).unwrap();
    let partition = store.get_or_create(&id("test-0"), &now_rules, at(0)).unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..2000 {
                put(&partition, &[b'x'; BODY]).unwrap();
            }
            done.store(true, Ordering::SeqCst);
        });
        for _ in 0..2 {
            scope.spawn(|| {
                let mut offset = 0;
                while !done.load(Ordering::SeqCst) {
                    match partition.slice(offset, 1000, Reader::Consumer) {
                        SliceAt::Bytes(slice) => offset += read_slice(&slice).len() as i64 * 50,
                        SliceAt::Trimmed { oldest } => {
                            assert!(oldest.wire() > offset && oldest.get() % 100 == 0);
                            offset = oldest.wire();
                        }
                        SliceAt::AtEnd { .. } => partition.request_sync(),
                        SliceAt::Beyond { end } => panic!("{offset} is beyond {end}"),
                        SliceAt::Skip { to } => panic!("skip to {to}"),
                        SliceAt::Failed { reason } => panic!("{reason}"),
                    }
                    assert!(partition.nearest(0) <= partition.positions().readable);
                }
            });
        }
        scope.spawn(|| {
            while !done.load(Ordering::SeqCst) {
                let removed = partition.expire(i64::MAX);
                assert!(removed.fault.is_none(), "{:?}", removed.fault);
            }
        });
    });
    assert!(partition.positions().kept > at(0));
    store.close().unwrap();
}

/// F28: the clock was a year ahead for a while, and the ids still are. What is old goes all the same: by the files' times,
/// and what was written meanwhile by those behind it.
#[test]
fn a_clock_that_was_ahead_keeps_nothing_for_ever() {
    const YEAR: i64 = 365 * 86_400;
    let case = case(Disposal::Delete);
    let partition = case.partition();
    let written = |case: &Case, base: u64| {
        let time = UNIX_EPOCH + Duration::from_millis(case.now() as u64);
        let file = fs::File::options().write(true).open(case.setup.segment("test-0", base)).unwrap();
        file.set_modified(time).unwrap();
    };
    case.later(YEAR);
    for base in [0, 100] {
        case.fill(1);
        written(&case, base);
    }
    // A run meanwhile, which finds nothing old.
    assert_eq!(partition.expire(case.now()).segments, 0);
    case.later(-YEAR);
    for base in [200, 300, 400] {
        case.fill(1);
        written(&case, base);
    }
    assert_eq!(partition.expire(case.later(5)).segments, 0, "nothing is older than the age");
    // The segment at 200 was last written in second 3.
    let removed = partition.expire(START_MS + 13_500);
    assert_eq!((removed.segments, removed.first), (3, at(300)));
    assert_eq!(partition.expire(case.later(3600)).first, at(400));
}
