//! Ten thousand partitions on one store: none costs a thread or an open file while it is idle.

#![expect(clippy::unwrap_used, reason = "the helpers of tests are test code")]

mod support;

use metaq_types::limits::OPEN_FILES_MAX;
use std::fs;
use std::time::Instant;
use support::*;

const PARTITIONS: u32 = 10_000;

/// Made by hand: creating them through the store would sync each directory.
fn make_partitions(setup: &Setup) {
    for number in 0..PARTITIONS {
        let directory = setup.path().join(format!("many-{number}"));
        fs::create_dir_all(&directory).unwrap();
        fs::write(directory.join("00000000000000000000.meta"), b"").unwrap();
    }
}

fn open_files() -> usize {
    fs::read_dir("/proc/self/fd").unwrap().count()
}

fn resident_bytes() -> usize {
    let pages: usize = fs::read_to_string("/proc/self/statm").unwrap().split(' ').nth(1).unwrap().parse().unwrap();
    pages * 4096
}

fn threads() -> usize {
    fs::read_dir("/proc/self/task").unwrap().count()
}

#[test]
fn idle_partitions_hold_no_thread_no_file_and_little_memory() {
    let setup = Setup::new(1000, 1 << 20);
    make_partitions(&setup);
    let running = threads();
    setup.open().close().unwrap();
    let (files, bytes) = (open_files(), resident_bytes());
    let store = setup.open();
    assert!(store.recovery_report().clean);
    assert_eq!(store.partitions().len(), PARTITIONS as usize);
    assert!(open_files() <= files + 8, "the lock, and what a test needs");
    // The system may still list some of the store's before, although they were joined.
    let until = Instant::now() + DEADLINE;
    while threads() > running + 10 && Instant::now() < until {
        std::thread::yield_now();
    }
    assert_eq!(threads(), running + 10, "the committers, and what keeps the write-ahead log");
    let each = resident_bytes().saturating_sub(bytes) / PARTITIONS as usize;
    assert!(each < 4096, "{each} bytes each");
    for number in 0..1500 {
        put(&store.get("many", number).unwrap(), b"x").unwrap();
    }
    store.close().unwrap();
    for number in 0..1500 {
        assert_eq!(read_from(&store.get("many", number).unwrap(), 0, 100).len(), 1);
    }
    assert!(open_files() <= files + OPEN_FILES_MAX + 8, "{} files are open", open_files());
}
