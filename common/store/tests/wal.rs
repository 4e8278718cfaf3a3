//! The write-ahead log: what was answered survives the loss of power, whatever of the rest does.

#![expect(clippy::unwrap_used, reason = "the helpers of tests are test code")]

mod support;

use metaq_store::{Ack, Partition, Store, StoreOptions, WalOptions};
use metaq_types::Offset;
use metaq_types::limits::WAL_UNSETTLED_BYTES_MAX;
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;
use support::power::{PowerDisk, WAL, begin, open};
use support::*;

fn wal_file(setup: &Setup, place: usize) -> PathBuf {
    setup.path().join(".metaq").join("wal").join(place.to_string())
}

/// A reproducible row of numbers.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound.max(1)
    }
}

#[test]
fn many_partitions_are_made_durable_by_one_file() {
    let setup = Setup::new(0, 1 << 20);
    let disk = Arc::new(PowerDisk::default());
    let store = open(&setup, &disk, WalOptions { file_bytes: 1 << 20, ..WAL });
    begin(&setup, &store, &disk);
    let partitions: Vec<_> = (0..20).map(|number| setup.partition(&store, &format!("test-{number}"))).collect();
    for partition in &partitions {
        put(partition, b"a message").unwrap();
        assert_eq!(partition.positions().durable, partition.positions().written);
    }
    let own: u64 = (0..20).map(|number| disk.syncs_in(&format!("test-{number}"))).sum();
    assert_eq!(own, 0, "syncs of the partitions' own files");
    disk.turn_off();
    drop(store);
    disk.lose(&mut |_| 0);
    for number in 0..20 {
        assert_eq!(fs::metadata(setup.segment(&format!("test-{number}"), 0)).unwrap().len(), 0, "nothing is left");
    }
    let store = setup.open();
    for number in 0..20 {
        let partition = store.get("test", number).unwrap();
        assert_eq!(bodies(&read_from(&partition, 0, 4096)), [b"a message"]);
    }
}

/// A file of the log keeps open those of the partitions it stands for: with very many of them, opening the next failed, and
/// so did letting a connection in.
#[test]
fn no_more_files_are_kept_open_than_the_process_may_have() {
    for at_once in [1, 3] {
        let (setup, disk) = (Setup::new(0, 1 << 20), Arc::new(PowerDisk::default()));
        let store = open(&setup, &disk, WalOptions { partitions_max: 4, file_bytes: 1 << 20, ..WAL });
        begin(&setup, &store, &disk);
        let partitions: Vec<_> = (0..40).map(|number| setup.partition(&store, &format!("test-{number}"))).collect();
        for some in partitions.chunks(at_once) {
            let outcomes = Arc::new(Outcomes::default());
            some.iter().zip(0..).for_each(|(partition, ticket)| {
                append(partition, b"a message", Ack::new(outcomes.clone(), ticket));
            });
            for ticket in 0..some.len() as u64 {
                outcomes.wait(ticket).unwrap();
            }
        }
        let synced = || (0..40).filter(|number| disk.syncs_in(&format!("test-{number}")) > 0).count();
        let until = Instant::now() + DEADLINE;
        while synced() < 40 - 4 * WAL.files {
            assert!(Instant::now() < until, "{} of 40 are synced, {at_once} at once", synced());
            std::thread::yield_now();
        }
    }
}

/// Or all of it would have to be synced at once, when the log's file is full.
#[test]
fn a_partition_that_much_is_put_into_is_synced_before_the_logs_file_is_full() {
    let setup = Setup::new(0, 1 << 30);
    let disk = Arc::new(PowerDisk::default());
    let store = open(&setup, &disk, WalOptions { file_bytes: 64 << 20, ..WAL });
    begin(&setup, &store, &disk);
    let (busy, idle) = (setup.partition(&store, "test-0"), setup.partition(&store, "test-1"));
    put(&idle, b"little").unwrap();
    let until = Instant::now() + DEADLINE;
    while disk.syncs_in("test-0") < 3 {
        put(&busy, &[7; 20_000]).unwrap();
        assert!(Instant::now() < until, "it is not synced");
    }
    assert!(disk.syncs_in("test-0") <= busy.positions().written.get() / u64::from(WAL_UNSETTLED_BYTES_MAX));
    assert_eq!(disk.syncs_in("test-1"), 0);
}

#[test]
fn an_orderly_stop_leaves_nothing_to_replay() {
    let setup = Setup::new(0, 1 << 20);
    let disk = Arc::new(PowerDisk::default());
    let store = open(&setup, &disk, WAL);
    begin(&setup, &store, &disk);
    put(&setup.partition(&store, "test-0"), b"ours").unwrap();
    store.close().unwrap();
    drop(store);
    // Others go on with the directory and leave no mark of a stop.
    fs::write(setup.segment("test-0", 0), b"").unwrap();
    let _ = fs::remove_file(setup.path().join(".metaq").join("clean"));
    assert!(wal_file(&setup, 0).exists());
    let store = setup.open();
    assert!(read_from(&store.get("test", 0).unwrap(), 0, 4096).is_empty(), "the log is cleared at the stop");
}

/// After a crash somebody put another file in the place of ours.
#[test]
fn a_file_with_other_bytes_is_left_alone_and_the_logs_bytes_are_kept() {
    let setup = Setup::new(0, 1 << 20);
    let disk = Arc::new(PowerDisk::default());
    let store = open(&setup, &disk, WAL);
    begin(&setup, &store, &disk);
    let partition = setup.partition(&store, "test-0");
    put(&partition, b"ours").unwrap();
    let end = partition.positions().written.get();
    disk.turn_off();
    drop((store, partition));
    let other = Setup::new(0, 1 << 20);
    let store = other.open();
    put(&other.partition(&store, "test-0"), b"theirs, from elsewhere").unwrap();
    store.close().unwrap();
    fs::copy(other.segment("test-0", 0), setup.segment("test-0", 0)).unwrap();
    let store = setup.open();
    assert_eq!(bodies(&read_from(&store.get("test", 0).unwrap(), 0, 4096)), [b"theirs, from elsewhere"]);
    let mut copy = setup.segment("test-0", 0).into_os_string();
    copy.push(".unreplayed-1");
    assert_eq!(fs::metadata(copy).unwrap().len(), end);
}

/// A cut takes bytes away that the log still has, and others come in their place.
#[test]
fn what_was_cut_does_not_come_back() {
    let setup = Setup::new(0, 1 << 20);
    let disk = Arc::new(PowerDisk::default());
    let store = open(&setup, &disk, WAL);
    begin(&setup, &store, &disk);
    let partition = setup.partition(&store, "test-0");
    put(&partition, b"kept").unwrap();
    let to = partition.positions().written;
    put(&partition, b"cut").unwrap();
    drop(partition);
    store.cut(&id("test-0"), to).unwrap().unwrap();
    let partition = store.get("test", 0).unwrap();
    put(&partition, b"after").unwrap();
    disk.turn_off();
    drop((store, partition));
    disk.lose(&mut |_| 0);
    let store = setup.open();
    assert_eq!(bodies(&read_from(&store.get("test", 0).unwrap(), 0, 4096)), [&b"kept"[..], b"after"]);
}

/// While the log is cleared, too: what a cut made untrue in it must be gone before the entry that says so. The old bytes
/// lie where the new ones are zeros, and look as if only the file had lost them.
#[test]
fn what_was_cut_does_not_come_back_whenever_the_power_goes() {
    // Two entries a file, so that old and new bytes lie in different ones, each in every place of the ring.
    let options = WalOptions { file_bytes: 3 * 4096, ..WAL };
    for (shift, orderly) in (0..6).flat_map(|shift| [(shift, false), (shift, true)]) {
        for changes in 0.. {
            let setup = Setup::new(0, 1 << 20);
            let disk = Arc::new(PowerDisk::default());
            let store = open(&setup, &disk, options);
            begin(&setup, &store, &disk);
            let through_log = |name: &str, body: &[u8]| {
                let to = setup.partition(&store, name).positions().written;
                let until = Instant::now() + DEADLINE;
                // A round for which the log has no room yet goes to the file.
                loop {
                    let partition = setup.partition(&store, name);
                    let before = disk.syncs_in(name);
                    put(&partition, body).unwrap();
                    if disk.syncs_in(name) == before {
                        return partition.positions().written;
                    }
                    assert!(Instant::now() < until, "the log stays full");
                    store.cut(&id(name), to).unwrap();
                }
            };
            for _ in 0..shift {
                through_log("test-9", b"shift");
            }
            let to = through_log("test-0", b"kept");
            through_log("test-0", b"a message that ends where a sector does not");
            through_log("test-0", b"another one");
            store.cut(&id("test-0"), to).unwrap().unwrap();
            put(&setup.partition(&store, "test-0"), &[0; 3000]).unwrap();
            if orderly {
                disk.turn_off_after(changes);
                let _ = store.close();
            }
            disk.turn_off();
            drop(store);
            disk.lose(&mut |_| 0);
            let again = Arc::new(PowerDisk::default());
            again.turn_off_after(changes);
            let opened =
                Store::open(StoreOptions { disk: again.clone(), wal: Some(options), ..setup.options() }).is_ok();
            again.turn_off();
            again.lose(&mut |_| 0);
            let store = setup.open();
            let found = bodies(&read_from(&store.get("test", 0).unwrap(), 0, 8192));
            assert_eq!(found, [&b"kept"[..], &[0; 3000]], "shift {shift}, orderly {orderly}, off after {changes}");
            if opened {
                break;
            }
        }
    }
}

#[test]
fn where_the_log_cannot_be_written_the_files_are_synced() {
    let setup = Setup::new(0, 1 << 20);
    let disk = Arc::new(faulty::FaultyDisk::default());
    let options = StoreOptions { disk: disk.clone(), wal: Some(WAL), ..setup.options() };
    let store = Store::open(options).unwrap();
    let partition = setup.partition(&store, "test-0");
    let until = Instant::now() + DEADLINE;
    while store.metrics().wal_syncs.load(Ordering::Relaxed) == 0 {
        put(&partition, b"until the log begins").unwrap();
        assert!(Instant::now() < until, "the log does not begin");
    }
    let other = setup.partition(&store, "test-1");
    // Of the file that has just begun: its keeper may be making the next one, or syncing the first partition.
    disk.add(faulty::Fault::SyncErrorOf(fs::metadata(wal_file(&setup, 0)).unwrap().ino()));
    put(&other, b"stored all the same").unwrap();
    assert_eq!(store.metrics().wal_failed.load(Ordering::Relaxed), 1);
    assert_eq!(other.positions().durable, other.positions().written);
    put(&partition, b"and on").unwrap();
    store.close().unwrap();
}

/// Answered through the log, and then the partition's own file cannot be synced, not even at the stop.
#[test]
fn what_only_the_log_holds_outlives_a_stop() {
    let setup = Setup::new(0, 1 << 20);
    let options = |disk| StoreOptions { disk, wal: Some(WalOptions { files: 2, ..WAL }), ..setup.options() };
    let disk = Arc::new(faulty::FaultyDisk::default());
    let until = Instant::now() + DEADLINE;
    // The second time at the latest the message goes into a file of the log that has room for it.
    for fails in [false, true] {
        let store = Store::open(options(disk.clone())).unwrap();
        let partition = setup.partition(&store, "test-0");
        while store.metrics().wal_syncs.load(Ordering::Relaxed) == 0 || !wal_file(&setup, 1).exists() {
            put(&partition, b"until the log begins").unwrap();
            assert!(Instant::now() < until, "the log does not begin");
        }
        put(&partition, b"in the log alone").unwrap();
        if fails {
            let segment = fs::metadata(setup.segment("test-0", 0)).unwrap();
            disk.add(faulty::Fault::SyncErrorOf(segment.ino()));
        }
        assert_eq!(store.close().is_err(), fails);
    }
    disk.power_failure(&setup.path());
    let store = setup.open();
    let held = bodies(&read_from(&store.get("test", 0).unwrap(), 0, 1 << 20));
    assert_eq!(held.iter().filter(|body| *body == b"in the log alone").count(), 2);
}

struct Run {
    setup: Setup,
    numbers: Numbers,
    /// Acknowledged, by partition and offset.
    stored: BTreeMap<(String, u64), Vec<u8>>,
    next: u64,
}

impl Run {
    fn body(&mut self) -> Vec<u8> {
        self.next += 1;
        let bytes = match self.numbers.below(12) {
            0 => 0,
            1 => 70_000 + self.numbers.below(40_000),
            2..5 => self.numbers.below(3000),
            _ => self.numbers.below(300),
        };
        let mut body = self.next.to_le_bytes().to_vec();
        body.resize(8 + bytes as usize, (self.next % 251) as u8);
        body
    }

    /// Random appends and cuts until the power goes in the middle of some.
    fn live(&mut self) {
        let disk = Arc::new(PowerDisk::default());
        let store = open(&self.setup, &disk, WAL);
        let outcomes = Arc::new(Outcomes::default());
        let mut sent: Vec<(String, Vec<u8>)> = Vec::new();
        let mut noted = 0;
        let steps = 20 + self.numbers.below(150);
        for _ in 0..steps {
            let name = format!("test-{}", self.numbers.below(4));
            let partition = self.setup.partition(&store, &name);
            if self.numbers.below(40) == 0 {
                self.settle(&outcomes, &sent, &mut noted);
                self.cut(&store, &name, &partition);
                continue;
            }
            let body = self.body();
            append(&partition, &body, Ack::new(outcomes.clone(), sent.len() as u64));
            sent.push((name, body));
            if self.numbers.below(4) == 0 {
                outcomes.wait(sent.len() as u64 - 1).unwrap();
            }
        }
        disk.turn_off();
        // What still waits is answered: by a sync that had ended, or by the end of the store.
        drop(store);
        self.settle(&outcomes, &sent, &mut noted);
        let numbers = &mut self.numbers;
        disk.lose(&mut |bound| numbers.below(bound));
    }

    /// Waits for every answer so far and notes what is stored; `noted` is how many were noted before.
    fn settle(&mut self, outcomes: &Outcomes, sent: &[(String, Vec<u8>)], noted: &mut usize) {
        for (ticket, (name, body)) in sent.iter().enumerate().skip(*noted) {
            if let Ok(stored) = outcomes.wait(ticket as u64) {
                self.stored.insert((name.clone(), stored.offset.get()), body.clone());
            }
        }
        *noted = sent.len();
    }

    fn cut(&mut self, store: &Store, name: &str, partition: &Arc<Partition>) {
        let stored: Vec<u64> = self.stored.keys().filter(|(held, _)| held == name).map(|(_, offset)| *offset).collect();
        let Some(to) = stored.get(self.numbers.below(stored.len() as u64 + 1) as usize) else { return };
        let (to, kept) = (Offset::new(*to).unwrap(), partition.positions().kept);
        if to >= kept {
            store.cut(&id(name), to).unwrap();
            self.stored.retain(|(held, offset), _| held != name || *offset < to.get());
        }
    }

    fn check(&mut self, seed: u64) {
        while self.numbers.below(3) == 0 {
            // The power goes while it is opened.
            let disk = Arc::new(PowerDisk::default());
            disk.turn_off_after(self.numbers.below(40));
            let opened = Store::open(StoreOptions { disk: disk.clone(), wal: Some(WAL), ..self.setup.options() });
            disk.turn_off();
            drop(opened);
            let numbers = &mut self.numbers;
            disk.lose(&mut |bound| numbers.below(bound));
        }
        // And again afterwards: what was restored and shown has to stay.
        let disk = Arc::new(PowerDisk::default());
        let store = open(&self.setup, &disk, WAL);
        for name in (0..4).map(|number| format!("test-{number}")) {
            let expected = self.stored.iter().filter(|((held, _), _)| *held == name);
            let mut expected = expected.map(|((_, offset), body)| (*offset, body));
            let found = self.setup.partition(&store, &name);
            let found: BTreeMap<u64, Vec<u8>> =
                read_from(&found, 0, 1 << 20).into_iter().map(|message| (message.offset, message.body)).collect();
            let lost = expected.find(|(offset, body)| found.get(offset) != Some(*body));
            assert_eq!(lost.map(|(offset, _)| offset), None, "seed {seed}: {name} lost what was acknowledged");
            // What was not acknowledged may be there; from now on it is.
            self.stored.extend(found.into_iter().map(|(offset, body)| ((name.clone(), offset), body)));
        }
        if self.numbers.below(3) == 0 {
            store.close().unwrap();
        }
        disk.turn_off();
        drop(store);
        let numbers = &mut self.numbers;
        disk.lose(&mut |bound| numbers.below(bound));
    }
}

#[test]
fn nothing_acknowledged_is_lost_with_the_power() {
    let seeds = std::env::var("METAQ_SEEDS").map_or(25, |seeds| seeds.parse().unwrap());
    for seed in 0..seeds {
        // What only the page cache held may be damaged inside; where that is is known of the last segment only.
        let (threshold, segment_bytes_max) = if seed % 4 == 3 { (3, 1 << 30) } else { (0, 30_000) };
        let setup = Setup::new(threshold, segment_bytes_max);
        let mut run = Run { setup, numbers: Numbers(seed), stored: BTreeMap::new(), next: 0 };
        for _ in 0..4 {
            let before = run.stored.clone();
            run.live();
            if run.setup.threshold > 0 {
                // An answer promised nothing; what was read after the last crash has to stay, but for what was cut.
                run.stored.retain(|place, body| before.get(place) == Some(body));
            }
            run.check(seed);
        }
    }
}
