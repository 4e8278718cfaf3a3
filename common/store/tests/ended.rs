//! A partition whose files were removed begins, when it comes again, where it ended.
#![expect(clippy::unwrap_used, reason = "also in the functions that tests share")]

mod support;

use metaq_store::Store;
use metaq_types::Offset;
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
