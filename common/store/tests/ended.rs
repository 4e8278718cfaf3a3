//! A partition whose files were removed begins, when it comes again, where it ended.
#![expect(clippy::unwrap_used, reason = "also in the functions that tests share")]

mod support;

use metaq_store::Store;
use metaq_types::{Epoch, Offset};
use std::fs;
use support::{Setup, at, id, put};

fn fill(store: &Store, setup: &Setup, name: &str, first: Offset) -> Offset {
    let partition = store.get_or_create(&id(name), &setup.rules(), first).unwrap();
    put(&partition, b"0123456789").unwrap();
    partition.positions().written
}

#[test]
fn a_removed_partition_goes_on_where_it_ended() {
    let setup = Setup::new(0, 4096);
    let store = setup.open();
    let end = fill(&store, &setup, "gone-0", at(500));
    fill(&store, &setup, "kept-0", at(0));
    assert_eq!(store.first_offset(&id("gone-0")), at(0));
    store.close().unwrap();
    drop(store);
    fs::remove_dir_all(setup.path().join("gone-0")).unwrap();

    // Known from the next start on, over a crash and further starts.
    for _ in 0..2 {
        let store = setup.open();
        assert_eq!(store.first_offset(&id("gone-0")), end);
        assert_eq!(store.first_offset(&id("kept-0")), at(0));
    }
    let ended = setup.path().join(".metaq/ended");
    assert_eq!(fs::read_to_string(&ended).unwrap(), format!("metaq-ended 1\ngone-0 {end}\n"));
    let store = setup.open();
    let end = fill(&store, &setup, "gone-0", store.first_offset(&id("gone-0")));
    store.close().unwrap();
    drop(store);
    fs::remove_dir_all(setup.path().join("gone-0")).unwrap();
    let store = setup.open();
    assert_eq!(store.first_offset(&id("gone-0")), end, "the later end counts");
    drop(store);

    // Told so.
    fs::write(&ended, "metaq-ended 1\n").unwrap();
    assert_eq!(setup.open().first_offset(&id("gone-0")), at(0));
    fs::write(&ended, "metaq-ended 1\ngone-0 x\n").unwrap();
    let Err(error) = Store::open(setup.options()) else { panic!("a damaged file is no empty one") };
    assert!(error.to_string().contains("gone-0 x"), "{error}");
}

/// Where the newest reign of a store says that `gone-0` begins.
fn start(store: &Store) -> u64 {
    store.lineage().unwrap().starts().get(&id("gone-0")).map_or(0, |start| start.get())
}

/// A slave that still has the log may then take it for the master's past, and no more than that.
#[test]
fn a_reign_names_where_a_removed_partition_goes_on_if_that_is_its_own_end() {
    let setup = Setup::new(0, 4096);
    let ended = setup.path().join(".metaq/ended");
    let store = setup.open();
    store.begin_reign(Epoch(1)).unwrap();
    let end = fill(&store, &setup, "gone-0", at(0));
    store.close().unwrap();
    drop(store);
    fs::remove_dir_all(setup.path().join("gone-0")).unwrap();

    // And again in each reign after that.
    for epoch in 2..4 {
        let store = setup.open();
        store.begin_reign(Epoch(epoch)).unwrap();
        assert_eq!(start(&store), end.get());
    }
    // It came again, and its files are gone after a crash: where it ended is not known.
    let store = setup.open();
    let again = fill(&store, &setup, "gone-0", end);
    store.begin_reign(Epoch(4)).unwrap();
    assert_eq!(start(&store), again.get());
    drop(store);
    fs::remove_dir_all(setup.path().join("gone-0")).unwrap();
    let store = setup.open();
    store.begin_reign(Epoch(5)).unwrap();
    assert_eq!((store.first_offset(&id("gone-0")), start(&store)), (end, 0), "the line is older than the log");
    drop(store);

    // Begun at 0 again, as the operator wants it.
    fs::remove_file(&ended).unwrap();
    let store = setup.open();
    fill(&store, &setup, "gone-0", at(0));
    store.begin_reign(Epoch(6)).unwrap();
    store.close().unwrap();
    drop(store);
    fs::remove_dir_all(setup.path().join("gone-0")).unwrap();
    let store = setup.open();
    store.begin_reign(Epoch(7)).unwrap();
    let first = store.first_offset(&id("gone-0"));
    assert!(first > Offset::ZERO && first.get() == start(&store));
    drop(store);
    fs::remove_file(&ended).unwrap();
    let store = setup.open();
    store.begin_reign(Epoch(8)).unwrap();
    assert_eq!(start(&store), 0);
}

/// Its start is noted durably: noted beyond what a loss of power leaves, the next start would say that files were cut.
#[test]
fn a_reign_begins_where_the_log_is_durable() {
    let setup = Setup::new(1000, 1000);
    let store = setup.open();
    let partition = setup.partition(&store, "test-0");
    put(&partition, b"stored by a recovery").unwrap();
    assert!(partition.positions().durable < partition.positions().written);
    store.begin_reign(Epoch(1)).unwrap();
    let start = store.lineage().unwrap().starts()[partition.id()];
    assert_eq!((start, partition.positions().durable), (partition.positions().written, start));
}
