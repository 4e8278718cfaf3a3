//! Cutting a divergent tail, stepping over a gap, and the reigns of a directory.

#![expect(clippy::unwrap_used, reason = "the helpers of tests are test code")]

mod support;

use metaq_store::{Reader, SliceAt};
use metaq_types::{Epoch, Offset};
use std::fs;
use support::*;

/// Ten messages of 100 bytes in segments of two: 0, 240, 480, …
fn ten(setup: &Setup, store: &metaq_store::Store) {
    let partition = setup.partition(store, "test-0");
    for number in 0..10u8 {
        assert_eq!(put(&partition, &[number; 100]).unwrap().offset, at(u64::from(number) * 120));
    }
}

#[test]
fn a_cut_sets_everything_beyond_aside_and_the_log_goes_on_there() {
    for (to, kept, copies) in [(1080, 9, 1), (960, 8, 1), (480, 4, 3), (360, 3, 4), (120, 1, 5), (0, 0, 5)] {
        let setup = Setup::new(0, 240);
        let store = setup.open();
        ten(&setup, &store);
        let cut = store.cut(&id("test-0"), at(to)).unwrap().unwrap();
        assert_eq!((cut.from, cut.bytes, cut.copies.len()), (at(to), 1200 - to, copies), "to {to}");
        let aside: Vec<u8> = cut.copies.iter().flat_map(|path| fs::read(path).unwrap()).collect();
        assert_eq!(aside.len() as u64, 1200 - to, "nothing is lost, to {to}");
        assert!(cut.copies.iter().all(|path| path.to_string_lossy().contains(".meta.diverged-")));
        let partition = store.get("test", 0).unwrap();
        assert_eq!(partition.positions().durable, at(to));
        assert_eq!(read_from(&partition, 0, 10_000).len(), kept);
        assert_eq!(put(&partition, b"after").unwrap().offset, at(to));
        drop(partition);
        store.close().unwrap();
        let store = setup.open();
        assert_eq!(store.recovery_report().failed.len(), 0);
        assert_eq!(read_from(&store.get("test", 0).unwrap(), 0, 10_000).len(), kept + 1);
    }
}

#[test]
fn a_cut_at_or_beyond_the_end_does_nothing() {
    let setup = Setup::new(0, 240);
    let store = setup.open();
    ten(&setup, &store);
    assert_eq!(store.cut(&id("test-0"), at(1200)).unwrap(), None);
    assert_eq!(store.cut(&id("test-0"), at(5000)).unwrap(), None);
    assert_eq!(put(&store.get("test", 0).unwrap(), b"on").unwrap().offset, at(1200));
}

#[test]
fn a_gap_is_stepped_over_marked_and_kept_over_a_restart() {
    let setup = Setup::new(0, 240);
    let store = setup.open();
    ten(&setup, &store);
    store.skip_to(&id("test-0"), at(9000)).unwrap();
    assert!(store.skip_to(&id("test-0"), at(9000)).is_err(), "not below the end any more");
    assert_eq!(put(&store.get("test", 0).unwrap(), b"behind").unwrap().offset, at(9000));
    drop(store);
    // As after a crash, and then as after an orderly stop.
    for _ in 0..2 {
        let store = setup.open();
        let partition = store.get("test", 0).unwrap();
        assert_eq!(partition.gaps(), [(at(1200), at(9000))]);
        for inside in [1200, 1201, 8999] {
            assert!(matches!(
                partition.slice(inside, 1000, Reader::Consumer), SliceAt::Skip { to } if to == at(9000)
            ));
            assert_eq!(partition.nearest(inside), at(9000));
        }
        assert_eq!(partition.nearest(1199), at(960));
        assert_eq!(read_from(&partition, 960, 10_000).len(), 3, "across the gap");
        assert_eq!(bodies(&read_from(&partition, 9000, 10_000)), [b"behind".to_vec()]);
        assert_eq!(partition.positions().kept, Offset::ZERO);
        drop(partition);
        store.close().unwrap();
    }
}

/// The log that is served after a cut or a step shows consumers no more than before, and nothing that is appended behind.
#[test]
fn what_was_hidden_stays_hidden_when_the_files_change() {
    let shown = |store: &metaq_store::Store| store.get("test", 0).unwrap().positions().readable;
    for (confirmed, cut, after_cut) in [(600, 1080, 600), (600, 360, 360), (1200, 1080, 1080)] {
        let setup = Setup::new(0, 240);
        let store = setup.open();
        ten(&setup, &store);
        store.get("test", 0).unwrap().limit(at(confirmed));
        store.cut(&id("test-0"), at(cut)).unwrap().unwrap();
        put(&store.get("test", 0).unwrap(), b"behind the cut").unwrap();
        assert_eq!(shown(&store), at(after_cut), "confirmed up to {confirmed}, cut to {cut}");
        store.skip_to(&id("test-0"), at(9000)).unwrap();
        put(&store.get("test", 0).unwrap(), b"behind the gap").unwrap();
        assert_eq!(shown(&store), at(after_cut), "and stepped over");
    }
}

/// A hole that nobody marked is not served: a file is missing.
#[test]
fn an_unmarked_hole_is_refused() {
    let setup = Setup::new(0, 240);
    let store = setup.open();
    ten(&setup, &store);
    store.close().unwrap();
    fs::remove_file(setup.segment("test-0", 480)).unwrap();
    let store = setup.open();
    assert_eq!(store.recovery_report().failed.len(), 1);
    assert!(store.get("test", 0).is_none());
}

#[test]
fn reigns_are_kept_and_begin_where_the_logs_end() {
    let setup = Setup::new(0, 240);
    let store = setup.open();
    assert_eq!(store.epoch(), Epoch(0));
    store.begin_reign(Epoch(1)).unwrap();
    ten(&setup, &store);
    store.begin_reign(Epoch(4)).unwrap();
    let node = store.node_id().to_owned();
    drop(store);
    let store = setup.open();
    assert_eq!(store.epoch(), Epoch(4));
    let lineage = store.lineage().unwrap();
    let newest = lineage.newest().unwrap();
    assert_eq!((lineage.reigns().len(), &newest.node), (2, &node));
    assert_eq!(newest.starts[&id("test-0")], at(1200));
}
