//! Data directories that the original broker wrote open in place: everything in them is read back, and puts continue.

#![expect(clippy::unwrap_used, reason = "the helpers of tests are test code")]

mod support;

use metaq_store::{Store, StoreOptions};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use support::*;

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../integration/golden").join(name)
}

fn copy_tree(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy_tree(&entry.path(), &target);
        } else {
            // Bytes only: the originals may be read-only.
            fs::write(target, fs::read(entry.path()).unwrap()).unwrap();
        }
    }
}

fn check(data: &str, manifest: &str) {
    let setup = Setup::new(0, 8192);
    copy_tree(&golden(data).join("data"), &setup.path());
    let manifest: Value = serde_json::from_slice(&fs::read(golden(manifest)).unwrap()).unwrap();
    let store = Store::open(StoreOptions { ..setup.options() }).unwrap();
    assert!(store.recovery_report().failed.is_empty(), "{:?}", store.recovery_report());
    let mut checked = 0;
    for described in manifest["partitions"].as_array().unwrap() {
        let number = described["partition"].as_i64().unwrap() as i32;
        let partition = store.get(described["topic"].as_str().unwrap(), number);
        if !described["exists"].as_bool().unwrap() {
            assert!(partition.is_none());
            continue;
        }
        let partition = partition.unwrap();
        let (min, max) = (described["min"].as_u64().unwrap(), described["max"].as_u64().unwrap());
        let positions = partition.positions();
        assert_eq!((positions.kept, positions.readable), (at(min), at(max)), "{}", partition.id());
        let messages = read_from(&partition, min, 4096);
        let expected = described["messages"].as_array().unwrap();
        assert_eq!(messages.len(), expected.len(), "{}", partition.id());
        for (message, expected) in messages.iter().zip(expected) {
            let header = message.header;
            let found = (message.offset, u64::from(header.length), i64::from(header.checksum), i64::from(header.flag));
            let number = |key: &str| expected[key].as_i64().unwrap();
            assert_eq!(found.0 as i64, number("offset"));
            assert_eq!((found.1 as i64, found.2, found.3), (number("length"), number("checksum"), number("flag")));
            assert_eq!(header.id.0.to_string(), expected["id"].as_str().unwrap());
            checked += 1;
        }
        let appended = put(&partition, b"continued").unwrap();
        assert_eq!(appended.offset, at(max));
        assert!(appended.id.0 > 0);
    }
    assert!(checked > 200, "{checked} messages were read back");
    store.close().unwrap();
}

#[test]
fn a_directory_the_original_left_in_order_opens() {
    check("data-clean", "manifest-clean.json");
}

#[test]
fn a_directory_the_original_left_by_a_kill_opens() {
    check("data-crash", "manifest-crash.json");
}
