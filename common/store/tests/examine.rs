//! What is found in files by who only looks: whole records, and the kind and place of every damage, as an opening would.
#![expect(clippy::unwrap_used, reason = "the helpers of tests are test code")]

mod support;

use metaq_store::{Holder, Piece, PieceFault, RecordFile, holder, partition_files, path_content, unreplayed};
use metaq_types::MessageId;
use metaq_wire::{RecordFault, RecordHeader};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use support::power::{PowerDisk, WAL, begin, open};
use support::{Setup, id, put, read_from};

/// As of 2025-01-01 on broker 7.
const ID: i64 = 1_811_075_047_608_053_763;

fn record(number: i64, body: &[u8]) -> Vec<u8> {
    record_of(ID + number, 0, body)
}

fn record_of(id: i64, flag: i32, body: &[u8]) -> Vec<u8> {
    [&RecordHeader::of(MessageId(id), flag, body).encode()[..], body].concat()
}

/// Where pieces lie: `r` a record, `d` damage, `t` a tail.
fn pieces(path: &Path) -> Vec<(char, u64, u64)> {
    let file = RecordFile::open(path).unwrap();
    let place = |piece| match piece {
        Piece::Record { at, end, .. } => ('r', at, end),
        Piece::Damage(range) => ('d', range.start, range.end),
        Piece::Tail(range) => ('t', range.start, range.end),
    };
    file.pieces(0).map(|piece| place(piece.unwrap())).collect()
}

#[test]
fn every_kind_of_damage_is_found_and_named() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("00000000000000000000.meta");
    let whole: Vec<u8> = (1..=3).flat_map(|number| record(number, &[b'x'; 30])).collect();
    fs::write(&path, &whole).unwrap();
    assert_eq!(pieces(&path), [('r', 0, 50), ('r', 50, 100), ('r', 100, 150)]);
    let fault = |change: &dyn Fn(&mut Vec<u8>), expected: &[(char, u64, u64)], at| {
        let mut bytes = whole.clone();
        change(&mut bytes);
        fs::write(&path, &bytes).unwrap();
        assert_eq!(pieces(&path), expected);
        RecordFile::open(&path).unwrap().fault_at(at).unwrap()
    };
    let middle = [('r', 0, 50), ('d', 50, 100), ('r', 100, 150)];
    let flipped = fault(&|bytes| bytes[75] ^= 1, &middle, 50);
    assert!(matches!(flipped, PieceFault::Record(RecordFault::Checksum { length: 30, .. })), "{flipped}");
    let zeros = fault(&|bytes| bytes[50..100].fill(0), &middle, 50);
    assert_eq!(zeros, RecordFault::Zeros.into());
    let negative = fault(&|bytes| bytes[50] = 0x80, &middle, 50);
    assert!(matches!(negative, PieceFault::Record(RecordFault::Length(_))), "{negative}");
    let long = fault(&|bytes| bytes[50] = 1, &middle, 50);
    assert_eq!(long, PieceFault::Beyond { length: (1 << 24) + 30, left: 80 });
    let cut = [('r', 0, 50), ('r', 50, 100), ('t', 100, 149)];
    assert_eq!(fault(&|bytes| bytes.truncate(149), &cut, 100), PieceFault::Beyond { length: 30, left: 29 });
    let short = [('r', 0, 50), ('r', 50, 100), ('t', 100, 107)];
    assert_eq!(fault(&|bytes| bytes.truncate(107), &short, 100), PieceFault::Short { left: 7 });
}

/// Zeros and the first bytes of a short message read as the header of an empty one.
#[test]
fn zeros_do_not_swallow_the_message_behind_them() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("00000000000000000000.meta");
    for id in [ID, -5_468_931_796_009_734_144] {
        for (flag, length) in (0..60).flat_map(|length| [(0, length), (1, length)]) {
            let last = record_of(id, flag, &vec![b'x'; length]);
            fs::write(&path, [&record(1, b"first")[..], &[0; 75], &last].concat()).unwrap();
            let end = 100 + last.len() as u64;
            assert_eq!(pieces(&path), [('r', 0, 25), ('d', 25, 100), ('r', 100, end)], "{id} {flag} {length}");
        }
    }
}

#[test]
fn a_hole_larger_than_memory_is_passed_over() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("00000000000000000000.meta");
    let file = File::create(&path).unwrap();
    file.write_all_at(&record(1, b"first"), 0).unwrap();
    let last = record(2, b"last");
    let at = u64::from(u32::MAX) - last.len() as u64;
    file.write_all_at(&last, at).unwrap();
    assert_eq!(pieces(&path), [('r', 0, 25), ('d', 25, at), ('r', at, u32::MAX.into())]);
}

#[test]
fn what_would_not_be_opened_is_told_of_each_file() {
    let setup = Setup::new(0, 100);
    let store = setup.open();
    let partition = setup.partition(&store, "t-0");
    for _ in 0..8 {
        put(&partition, &[b'x'; 30]).unwrap();
    }
    store.close().unwrap();
    let directory = setup.path().join("t-0");
    let files = partition_files(&directory).unwrap();
    assert_eq!((files.segments.len(), files.faults.len()), (4, 0), "{files:?}");
    assert_eq!(files.segments[1].path, setup.segment("t-0", 100));
    for name in
        ["00000000000000000100.meta.torn-1", "00000000000000000100.meta.zip", "00000000000000000100.meta.gap", "x"]
    {
        fs::write(directory.join(name), "").unwrap();
    }
    fs::rename(setup.segment("t-0", 100), setup.segment("t-0", 90)).unwrap();
    fs::rename(setup.segment("t-0", 200), directory.join("copy.meta")).unwrap();
    fs::create_dir(setup.segment("t-0", 400)).unwrap();
    let files = partition_files(&directory).unwrap();
    assert_eq!(files.segments.iter().map(|segment| segment.base.get()).collect::<Vec<_>>(), [0, 90, 300]);
    for fault in
        ["copy.meta is not named by an offset", "400.meta is a directory", "at 0 ends at 100", "at 90 ends at 190"]
    {
        assert_eq!(files.faults.iter().filter(|said| said.contains(fault)).count(), 1, "{fault}: {files:?}");
    }
    assert_eq!(files.aside, [directory.join("00000000000000000100.meta.torn-1")]);
    assert_eq!(files.foreign, [directory.join("x")]);
}

#[test]
fn a_data_path_tells_its_partitions_and_who_has_it() {
    let setup = Setup::new(0, 1000);
    fs::create_dir_all(setup.path().join("lost+found")).unwrap();
    fs::create_dir(setup.path().join("t-007")).unwrap();
    fs::write(setup.path().join("u-1"), "").unwrap();
    assert_eq!(holder(&setup.path()), Holder::Unmarked);
    let store = setup.open();
    setup.partition(&store, "t-0");
    assert_eq!(holder(&setup.path()), Holder::Running { pid: std::process::id() });
    let content = path_content(&setup.path()).unwrap();
    assert_eq!(content.partitions.keys().collect::<Vec<_>>(), [&id("t-0")]);
    assert_eq!(content.foreign, [setup.path().join("lost+found")]);
    assert!(content.misnamed[0].contains("t-007") && content.misplaced[0].reason.contains("u-1"), "{content:?}");
    store.close().unwrap();
    drop(store);
    // In a container it cannot be known.
    assert!(matches!(holder(&setup.path()), Holder::Stopped | Holder::Unknown));
}

#[test]
fn what_only_the_write_ahead_log_has_is_told_and_left_there() {
    let setup = Setup::new(0, 1 << 20);
    let disk = Arc::new(PowerDisk::default());
    let store = open(&setup, &disk, WAL);
    begin(&setup, &store, &disk);
    put(&setup.partition(&store, "t-0"), b"nine byte").unwrap();
    disk.turn_off();
    drop(store);
    assert_eq!(unreplayed(&[setup.path()]).unwrap().get(&id("t-0")), None, "the file has it, if only in memory");
    disk.lose(&mut |_| 0);
    let changed = || fs::metadata(setup.path().join(".metaq/wal/0")).unwrap().modified().unwrap();
    let before = changed();
    for _ in 0..2 {
        assert_eq!(unreplayed(&[setup.path()]).unwrap().get(&id("t-0")), Some(&29));
    }
    assert_eq!(changed(), before);
    let store = setup.open();
    assert_eq!(read_from(&store.get("t", 0).unwrap(), 0, 4096).len(), 1, "it is still put back at the next opening");
}
