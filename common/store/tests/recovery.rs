#![expect(clippy::unwrap_used, reason = "the helpers of tests are test code")]

mod support;

use metaq_store::{OpenError, Reader, SliceAt, Store, StoreOptions};
use metaq_types::Offset;
use metaq_wire::{RecordHeader, checksum};
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use support::*;

/// A partition `test-0` with these bodies, left as by a crash.
fn crashed(bodies: &[&[u8]]) -> Setup {
    let setup = Setup::new(0, 1 << 20);
    let store = setup.open();
    let partition = setup.partition(&store, "test-0");
    for body in bodies {
        put(&partition, body).unwrap();
    }
    setup
}

fn edit(path: &Path, change: impl FnOnce(&File)) {
    change(&OpenOptions::new().read(true).write(true).open(path).unwrap());
}

fn record(body: &[u8]) -> Vec<u8> {
    let header =
        RecordHeader { length: body.len() as u32, checksum: checksum(body), id: metaq_types::MessageId(77), flag: 0 };
    [&header.encode(), body].concat()
}

/// F18: whatever part of the last record is missing, the two before it stay, and what was there is set aside.
#[test]
fn a_torn_last_record_is_set_aside_and_cut() {
    for cut in 1..=25u64 {
        let setup = crashed(&[b"first", b"second", b"third"]);
        let segment = setup.segment("test-0", 0);
        let whole = fs::read(&segment).unwrap();
        edit(&segment, |file| file.set_len(76 - cut).unwrap());
        let store = setup.open();
        let partition = store.get("test", 0).unwrap();
        assert_eq!(bodies(&read_from(&partition, 0, 1000)), [b"first".to_vec(), b"second".to_vec()]);
        assert_eq!((partition.record_count(), fs::metadata(&segment).unwrap().len()), (2, 51));
        let repaired = &store.recovery_report().repaired;
        if cut == 25 {
            assert!(repaired.is_empty(), "the file ends with the second record");
        } else {
            assert_eq!((repaired[0].end, repaired[0].cut_bytes), (at(51), 25 - cut));
            assert_eq!(fs::read(&repaired[0].copy).unwrap(), &whole[51..76 - cut as usize]);
        }
        assert_eq!(put(&partition, b"next").unwrap().offset, at(51));
    }
}

/// H1: zeros are what a power failure leaves, not messages; an empty message has an id.
#[test]
fn a_zero_tail_is_cut_and_empty_messages_stay() {
    for zeros in [1, 19, 20, 4096] {
        let setup = crashed(&[b"first", b"", b""]);
        edit(&setup.segment("test-0", 0), |file| file.set_len(65 + zeros).unwrap());
        let store = setup.open();
        let partition = store.get("test", 0).unwrap();
        assert_eq!((read_from(&partition, 0, 1000).len(), partition.positions().durable), (3, at(65)));
        assert_eq!(store.recovery_report().repaired[0].cut_bytes, zeros);
    }
}

/// A power failure may keep of a record what lies behind a sector's end and lose what lies before it. Zeros in front of
/// the rest of a header read as an empty message: it is none, and what really is one stays.
#[test]
fn what_is_left_of_a_header_over_two_sectors_is_no_message() {
    for before in 1..20 {
        let first = vec![b'f'; 492 - before];
        for body in [b"a".to_vec(), b"hello".to_vec(), vec![b'x'; 30], vec![0xab; 2737]] {
            let setup = crashed(&[&first, &body]);
            let segment = setup.segment("test-0", 0);
            let header = fs::read(&segment).unwrap()[512 - before..512].to_vec();
            edit(&segment, |file| file.write_all_at(&vec![0; before], 512 - before as u64).unwrap());
            let store = setup.open();
            let read = bodies(&read_from(&store.get("test", 0).unwrap(), 0, 1 << 20));
            match header.iter().all(|byte| *byte == 0) {
                true => assert_eq!(read, [first.clone(), body], "nothing was lost of it"),
                false => assert_eq!(read, std::slice::from_ref(&first), "{before} bytes lost, {} follow", body.len()),
            }
        }
        for (behind, cut) in [(&[][..], 0), (&[&b"next"[..]], 0), (&[&b""[..]], 0), (&[&[0xab; 3000][..]], 1)] {
            let all: Vec<&[u8]> = [&first, &b""[..]].into_iter().chain(behind.iter().copied()).collect();
            let setup = crashed(&all);
            let segment = setup.segment("test-0", 0);
            edit(&segment, |file| file.set_len(file.metadata().unwrap().len() - cut).unwrap());
            let store = setup.open();
            let read = bodies(&read_from(&store.get("test", 0).unwrap(), 0, 1 << 20));
            assert_eq!(
                read,
                all[..all.len() - cut as usize],
                "{before} bytes of the empty one before the sector's end"
            );
        }
    }
}

/// Behind zeros the begin of an empty message reads as one itself, some bytes too early, and so do those that follow it.
/// What ends the log must not be cut off for that, nor what stands in its middle be passed over.
#[test]
fn empty_messages_behind_zeros_stay() {
    let empty = |id: u64| RecordHeader { length: 0, checksum: 0, id: metaq_types::MessageId(id as i64), flag: 0 };
    for (zeros, count) in [(512, 1), (512, 2), (509, 30), (4096, 1000)] {
        for behind in [Vec::new(), record(b"next"), record(&[b'x'; 600])] {
            let setup = crashed(&[b"first"]);
            // Two of these ids in three end in zero bytes, as the first one of a millisecond does.
            let rest = (1..=count).flat_map(|number: u64| empty((number << 24) + number % 3 / 2).encode());
            let rest: Vec<u8> = std::iter::repeat_n(0, zeros).chain(rest).chain(behind.iter().copied()).collect();
            edit(&setup.segment("test-0", 0), |file| file.write_all_at(&rest, 25).unwrap());
            let store = setup.open();
            assert_eq!(store.recovery_report().repaired, [], "{count} behind {zeros} zeros");
            let read = read_from(&store.get("test", 0).unwrap(), 25 + zeros as u64, 1 << 20);
            let whole = count as usize + usize::from(!behind.is_empty());
            assert_eq!(read.len(), whole, "{count} behind {zeros} zeros, {} bytes behind them", behind.len());
        }
    }
}

/// F21: lengths are claims; neither memory nor time is spent on them.
#[test]
fn a_wrong_length_in_the_last_record_cuts_that_record_only() {
    for (length, sparse) in [(0x7fff_ffffu32, 0), (0xffff_ffff, 0), (0x7fff_ff00, 100_000_000u64)] {
        let setup = crashed(&[b"first", b"second", b"third"]);
        let segment = setup.segment("test-0", 0);
        edit(&segment, |file| {
            file.write_all_at(&length.to_be_bytes(), 51).unwrap();
            file.set_len(76 + sparse).unwrap();
        });
        let started = Instant::now();
        let store = setup.open();
        assert!(started.elapsed() < Duration::from_secs(60), "reading 100 MB of nothing took {:?}", started.elapsed());
        let partition = store.get("test", 0).unwrap();
        assert_eq!(read_from(&partition, 0, 1000).len(), 2);
        assert_eq!(store.recovery_report().repaired[0].cut_bytes, 25 + sparse);
        put(&partition, b"next").unwrap();
    }
}

#[test]
fn a_bad_record_with_good_ones_behind_it_stays_and_is_led_across() {
    let body = |file: &File| file.write_all_at(b"X", 46).unwrap();
    let short_length = |file: &File| file.write_all_at(&3u32.to_be_bytes(), 25).unwrap();
    let long_length = |file: &File| file.write_all_at(&0x7fff_ffffu32.to_be_bytes(), 25).unwrap();
    let to_the_end = |file: &File| file.write_all_at(&32u32.to_be_bytes(), 25).unwrap();
    let zeros = |file: &File| file.write_all_at(&[0; 26], 25).unwrap();
    let damages: [&dyn Fn(&File); 5] = [&body, &short_length, &long_length, &to_the_end, &zeros];
    for (number, damage) in damages.into_iter().enumerate() {
        let setup = crashed(&[b"first", b"second", b"third", b""]);
        let segment = setup.segment("test-0", 0);
        edit(&segment, damage);
        let before = fs::read(&segment).unwrap();
        // The second opening follows an orderly stop: what was found must not be forgotten.
        for round in 0..2 {
            let store = setup.open();
            let partition = store.get("test", 0).unwrap();
            let read = bodies(&read_from(&partition, 0, 1 << 20));
            assert_eq!(read, [b"first".to_vec(), b"third".to_vec(), b"".to_vec()], "damage {number}, round {round}");
            for inside in [25, 26, 50] {
                assert!(
                    matches!(partition.slice(inside, 1000, Reader::Consumer), SliceAt::Skip { to } if to == at(51)),
                    "damage {number}"
                );
            }
            let SliceAt::Bytes(slice) = partition.slice(0, 1000, Reader::Consumer) else { panic!("bytes are there") };
            assert_eq!(slice.len(), 25, "a slice ends before the damage");
            assert_eq!(store.recovery_report().damaged.len(), 1 - round);
            assert!(store.recovery_report().repaired.is_empty());
            assert_eq!(fs::read(&segment).unwrap(), before, "nothing is cut");
            store.close().unwrap();
        }
    }
}

/// A message may carry messages: a torn one must not bring those to life.
#[test]
fn records_inside_a_torn_or_damaged_body_are_no_messages() {
    let inner = [record(b"inner one"), record(b"inner two"), b"rest".to_vec()].concat();
    let setup = crashed(&[b"first", &inner]);
    edit(&setup.segment("test-0", 0), |file| file.set_len(45 + inner.len() as u64 - 2).unwrap());
    let store = setup.open();
    assert_eq!(bodies(&read_from(&store.get("test", 0).unwrap(), 0, 1000)), [b"first".to_vec()]);

    let setup = crashed(&[b"first", &inner, b"last"]);
    edit(&setup.segment("test-0", 0), |file| file.write_all_at(b"R", 45 + inner.len() as u64 - 4).unwrap());
    let store = setup.open();
    let read = bodies(&read_from(&store.get("test", 0).unwrap(), 0, 1000));
    assert_eq!(read, [b"first".to_vec(), b"last".to_vec()]);
}

/// A sealed segment is not read at start; a header that makes no sense is found by the reader who meets it.
#[test]
fn damage_in_a_sealed_segment_is_found_when_it_is_met() {
    let setup = Setup::new(0, 500_000);
    let store = setup.open();
    let partition = setup.partition(&store, "test-0");
    for number in 0..1000u32 {
        put(&partition, &[number.to_be_bytes().as_slice(), &[0xee; 976]].concat()).unwrap();
    }
    store.close().unwrap();
    edit(&setup.segment("test-0", 0), |file| file.write_all_at(&[0xff; 1200], 200_500).unwrap());
    let store = setup.open();
    let partition = store.get("test", 0).unwrap();
    let mut messages = Vec::new();
    let mut offset = 0;
    loop {
        match partition.slice(offset, 10_000, Reader::Consumer) {
            // The record whose body is hit is served as it is: its reader finds the checksum wrong.
            SliceAt::Bytes(slice) if slice.start() <= at(200_000) && slice.end() > at(200_000) => {
                let mut bytes = vec![0; slice.len() as usize];
                slice.read_at(0, &mut bytes).unwrap();
                messages.extend(metaq_wire::Records::new(&bytes).filter_map(Result::ok).map(|(at, ..)| at));
                offset += i64::from(slice.len());
            }
            SliceAt::Bytes(slice) => {
                messages.extend(read_slice(&slice).iter().map(|message| message.offset as usize));
                offset += i64::from(slice.len());
            }
            SliceAt::Skip { to } => offset = to.wire(),
            _ => break,
        }
    }
    assert!(messages.len() >= 990, "{} of 1000 messages are read", messages.len());
    assert_eq!(at(offset as u64), partition.positions().readable);
}

#[test]
fn an_orderly_stop_spares_reading_until_the_file_is_changed() {
    let setup = crashed(&[b"first", b"second"]);
    let store = setup.open();
    assert!(!store.recovery_report().clean);
    store.close().unwrap();
    let segment = setup.segment("test-0", 0);
    let modified = fs::metadata(&segment).unwrap().modified().unwrap();
    edit(&segment, |file| {
        file.write_all_at(b"X", 50).unwrap();
        file.set_modified(modified).unwrap();
    });
    let store = setup.open();
    assert!(store.recovery_report().clean && store.recovery_report().repaired.is_empty(), "not read");
    assert_eq!(store.get("test", 0).unwrap().record_count(), 2);
    store.close().unwrap();
    edit(&segment, |file| file.set_modified(modified + Duration::from_secs(1)).unwrap());
    let store = setup.open();
    assert_eq!(store.recovery_report().repaired.len(), 1, "read after it was changed");
    assert_eq!(store.get("test", 0).unwrap().record_count(), 1);
}

#[test]
fn a_mark_counts_only_once() {
    let setup = crashed(&[b"first"]);
    setup.open().close().unwrap();
    let store = setup.open();
    assert!(store.recovery_report().clean);
    drop(store);
    assert!(!setup.open().recovery_report().clean, "dropped without a close is a crash");
}

/// F56: what is wrong with one partition does not concern the others.
#[test]
fn partitions_that_cannot_be_served_are_reported_and_the_others_served() {
    let setup = crashed(&[b"first"]);
    let write = |name: &str, content: &[u8]| {
        let path = setup.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    };
    write("junk-0/abc.meta", b"");
    write("hole-0/00000000000000000000.meta", &record(b"one"));
    write("hole-0/00000000000000000030.meta", b"");
    write("short-3/5.meta", &record(b"short name"));
    write("short-3/35.meta", b"");
    write("short-3/5.meta.arc", b"archived");
    write("rolled-0/0.meta", &record(b"full"));
    write("rolled-0/00000000000000000024.meta", b"");
    write("foo-bar/0.meta", b"");
    write("transactions/redo.1", b"");
    fs::create_dir_all(setup.path().join("empty-0")).unwrap();
    let store = setup.open();
    let report = store.recovery_report();
    let names = |list: &[(String, String)]| {
        let mut names: Vec<_> = list.iter().map(|(path, _)| path.rsplit('/').next().unwrap().to_owned()).collect();
        names.sort_unstable();
        names
    };
    assert_eq!((report.served, names(&report.failed)), (3, vec!["hole-0".to_owned(), "junk-0".to_owned()]));
    assert_eq!(names(&report.passed_over), ["foo-bar"]);
    let short = store.get("short", 3).unwrap();
    assert_eq!(bodies(&read_from(&short, 5, 100)), [b"short name".to_vec()]);
    assert_eq!(put(&short, b"x").unwrap().offset, at(35));
    assert!(setup.path().join("short-3/35.meta").metadata().unwrap().len() == 21);
    assert_eq!(store.get("rolled", 0).unwrap().positions().written, at(24));
    assert!(store.get("hole", 0).is_none());
    let refused = store.get_or_create(&id("hole-0"), &setup.rules(), Offset::ZERO).err().unwrap();
    assert!(refused.to_string().contains("segments must join"), "{refused}");
    // A directory without a segment becomes a partition when somebody wants it, at the offset they want.
    let created = store.get_or_create(&id("empty-0"), &setup.rules(), at(500)).unwrap();
    assert_eq!((created.positions().kept, created.positions().written), (at(500), at(500)));
}

#[test]
fn a_data_path_belongs_to_one_store() {
    let setup = crashed(&[b"first"]);
    let store = setup.open();
    let Err(error) = Store::open(setup.options()) else { panic!("opened twice") };
    assert!(matches!(error, OpenError::Locked { .. }));
    assert!(error.to_string().contains(&format!("pid {}", std::process::id())), "{error}");
    let node = store.node_id().to_string();
    store.close().unwrap();
    assert_eq!(setup.open().node_id(), node);
}

#[test]
fn partitions_are_served_where_they_lie_and_created_where_the_topic_says() {
    let setup = crashed(&[b"first"]);
    let other = setup.directory.path().join("other");
    let options = StoreOptions { extra_data_paths: vec![other.clone(), setup.path()], ..setup.options() };
    let store = Store::open(options.clone()).unwrap();
    let moved = rules(&other, 0, 1 << 20);
    let partition = store.get_or_create(&id("test-1"), &moved, Offset::ZERO).unwrap();
    put(&partition, b"there").unwrap();
    let late = setup.directory.path().join("late");
    put(&store.get_or_create(&id("test-2"), &rules(&late, 0, 1 << 20), Offset::ZERO).unwrap(), b"x").unwrap();
    assert!(other.join("test-1/00000000000000000000.meta").exists());
    assert!(late.join("test-2/00000000000000000000.meta").exists());
    drop(store);
    let store = Store::open(options).unwrap();
    assert_eq!(store.partitions().len(), 2);
    assert_eq!(bodies(&read_from(&store.get("test", 1).unwrap(), 0, 100)), [b"there".to_vec()]);
}

#[test]
fn ids_grow_over_restarts_crashes_and_clock_steps() {
    let setup = Setup::new(0, 1 << 20);
    let clock = Arc::new(std::sync::atomic::AtomicI64::new(1_800_000_000_000));
    let mut highest = 0;
    for (round, step) in [0i64, -10_000, -3_600_000, 5, 100_000, -1_000_000_000, 0].into_iter().enumerate() {
        let reading = clock.clone();
        let now = Arc::new(move || reading.load(std::sync::atomic::Ordering::SeqCst));
        let store = Store::open(StoreOptions { now, ..setup.options() }).unwrap();
        let partition = setup.partition(&store, "test-0");
        for turn in 0..3 {
            let id = put(&partition, b"x").unwrap().id.0;
            assert!(id > highest, "round {round} turn {turn}: {id} after {highest}");
            assert_eq!(id >> 12 & 1023, 7, "the broker's id is in it");
            highest = id;
            clock.fetch_add(step, std::sync::atomic::Ordering::SeqCst);
        }
        assert!(store.ids().high_mark().0 > highest);
        if round % 2 == 0 {
            store.close().unwrap();
        }
        fs::remove_dir_all(setup.path().join("test-0")).unwrap();
    }
}

#[tokio::test]
async fn waiters_learn_of_new_partitions_and_bytes() {
    let setup = Setup::new(0, 1 << 20);
    let store = Arc::new(setup.open());
    let generation = store.catalog_generation();
    let waiting = tokio::spawn({
        let store = store.clone();
        async move { store.catalog_beyond(generation).await }
    });
    let partition = setup.partition(&store, "test-0");
    assert_eq!(waiting.await.unwrap(), generation + 1);
    let waiting = tokio::spawn({
        let partition = partition.clone();
        async move { partition.readable_beyond(at(0), Reader::Consumer).await }
    });
    append(&partition, b"x", metaq_store::Ack::new(Arc::new(Outcomes::default()), 0));
    tokio::time::timeout(DEADLINE, waiting).await.unwrap().unwrap();
    let waiting = tokio::spawn({
        let partition = partition.clone();
        async move { partition.readable_beyond(at(21), Reader::Consumer).await }
    });
    tokio::task::yield_now().await;
    store.close().unwrap();
    tokio::time::timeout(DEADLINE, waiting).await.unwrap().unwrap();
}

/// F21: a damaged record in the middle of a sealed segment, whether its length or its body, is met by readers only: they
/// are led across it, and everything else is read, however much is asked for at once.
#[test]
fn f21_damage_in_sealed_segments_is_passed_over() {
    for clean in [false, true] {
        let setup = Setup::new(0, 1000);
        let store = setup.open();
        for name in ["a-0", "b-0", "c-0"] {
            let partition = setup.partition(&store, name);
            for number in 0..40u8 {
                put(&partition, &[number; 80]).unwrap();
            }
        }
        if clean {
            store.close().unwrap();
        }
        drop(store);
        for (name, base, place, bytes) in [
            ("a-0", 1000, 300, i32::MAX.to_be_bytes()),
            ("a-0", 2000, 0, u32::MAX.to_be_bytes()),
            ("b-0", 1000, 900, 0x8000_0000_u32.to_be_bytes()),
            ("b-0", 0, 450, *b"XXXX"),
        ] {
            edit(&setup.segment(name, base), |file| file.write_all_at(&bytes, place).unwrap());
        }
        let store = setup.open();
        for (name, missing) in [("a", vec![13, 20]), ("b", vec![4, 19]), ("c", vec![])] {
            let expected: Vec<u8> = (0..40).filter(|number| !missing.contains(number)).collect();
            let partition = store.get(name, 0).unwrap();
            for bytes_max in [1, 250, 1 << 20] {
                let read: Vec<u8> = read_from(&partition, 0, bytes_max).iter().map(|m| m.body[0]).collect();
                assert_eq!(read, expected, "{name} by {bytes_max}");
            }
        }
    }
}

/// A consumer that goes on in the middle of a sealed segment, or right at the damage.
#[test]
fn damage_is_met_wherever_a_reader_begins() {
    for begin in [100, 200, 300, 400] {
        let setup = Setup::new(0, 1000);
        let store = setup.open();
        let partition = setup.partition(&store, "a-0");
        for number in 0..20u8 {
            put(&partition, &[number; 80]).unwrap();
        }
        drop((partition, store));
        edit(&setup.segment("a-0", 0), |file| file.write_all_at(&i32::MAX.to_be_bytes(), 300).unwrap());
        let store = setup.open();
        let read: Vec<u8> = read_from(&store.get("a", 0).unwrap(), begin, 1 << 20).iter().map(|m| m.body[0]).collect();
        let expected: Vec<u8> = ((begin / 100) as u8..20).filter(|number| *number != 3).collect();
        assert_eq!(read, expected, "from {begin}");
    }
}

/// F21: a length that lies, in files that say they are as large as it does or larger: opened at once, handled as a torn
/// tail, in several partitions, without a copy of the emptiness.
#[test]
fn f21_a_file_of_holes_costs_nothing() {
    let setup = Setup::new(0, 1 << 30);
    let store = setup.open();
    let lengths: [(u64, u32); 4] =
        [(2 << 30, 0x7fff_ff00), (2 << 30, (2 << 30) - 70), (3 << 30, u32::MAX), (6 << 30, 7)];
    for number in 0..lengths.len() {
        let partition = setup.partition(&store, &format!("test-{number}"));
        for _ in 0..3 {
            put(&partition, b"12345").unwrap();
        }
    }
    drop(store);
    for (number, (bytes, length)) in lengths.iter().enumerate() {
        edit(&setup.segment(&format!("test-{number}"), 0), |file| {
            file.write_all_at(&length.to_be_bytes(), 50).unwrap();
            file.set_len(*bytes).unwrap();
        });
    }
    let started = Instant::now();
    let store = setup.open();
    assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
    assert!(store.recovery_report().failed.is_empty(), "{:?}", store.recovery_report());
    for (number, (bytes, _)) in lengths.iter().enumerate() {
        let partition = store.get("test", number as i32).unwrap();
        assert_eq!(read_from(&partition, 0, 1 << 20).len(), 2);
        assert_eq!(put(&partition, b"again").unwrap().offset, at(50));
        let repair = store.recovery_report().repaired.iter().find(|r| r.partition == id(&format!("test-{number}")));
        let repair = repair.unwrap();
        assert_eq!(repair.cut_bytes, bytes - 50);
        let copy = fs::metadata(&repair.copy).unwrap();
        assert_eq!(copy.len(), bytes - 50);
        assert!(std::os::unix::fs::MetadataExt::blocks(&copy) < 1000, "the copy is as empty");
    }
}
