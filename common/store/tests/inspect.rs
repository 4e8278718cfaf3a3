//! A look at a data directory sees what its next opening will see, and changes nothing.

mod support;

use metaq_store::inspect;
use metaq_types::Epoch;
use std::fs::{self, File};
use std::io::Write;
use support::{Setup, id, put};

#[test]
fn what_is_inspected_is_what_is_opened() {
    let setup = Setup::new(0, 200);
    let store = setup.open();
    store.begin_reign(Epoch(3)).unwrap();
    let partition = store.get_or_create(&id("t-0"), &setup.rules(), support::at(1000)).unwrap();
    for _ in 0..10 {
        put(&partition, &[b'x'; 30]).unwrap();
    }
    let end = partition.positions().written;
    let seen = inspect(&[setup.path(), setup.path().join("absent")]).unwrap();
    assert!(!seen.is_clean, "it is in use");
    assert_eq!(seen.node_id.as_deref(), Some(store.node_id()));
    assert_eq!(seen.lineage.epoch(), Epoch(3));
    let log = &seen.logs[0];
    assert_eq!((log.first, log.end, log.gaps.len()), (support::at(1000), end, 0));
    assert_eq!(log.record_bytes_average().unwrap(), Some(50));
    store.close().unwrap();
    drop((partition, store));
    assert!(inspect(&[setup.path()]).unwrap().is_clean);

    let directory = setup.path().join("t-0");
    let mut names: Vec<_> = fs::read_dir(&directory).unwrap().map(|e| e.unwrap().path()).collect();
    names.sort();
    let last = names.last().unwrap();
    File::options().append(true).open(last).unwrap().write_all(&[7; 13]).unwrap();
    let log = &inspect(&[setup.path()]).unwrap().logs[0];
    assert_eq!((log.end, log.checked_end().unwrap()), (end + 13, end), "a torn tail is not an end");
    fs::remove_file(&names[1]).unwrap();
    let gaps = inspect(&[setup.path()]).unwrap().logs.remove(0).gaps;
    assert_eq!(gaps, [(support::at(1200), support::at(1400))]);
}

#[test]
fn the_newest_records_tell_the_average() {
    let setup = Setup::new(1000, 1 << 20);
    let store = setup.open();
    let partition = store.get_or_create(&id("t-0"), &setup.rules(), support::at(0)).unwrap();
    for size in [10, 980] {
        for _ in 0..400 {
            put(&partition, &vec![b'x'; size]).unwrap();
        }
    }
    let average = inspect(&[setup.path()]).unwrap().logs[0].record_bytes_average().unwrap();
    assert_eq!(average, Some(1000));
}
