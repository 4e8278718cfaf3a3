//! Our own files that a newer version has written, or somebody else: what is said of them leads nobody to remove the past.
#![expect(clippy::unwrap_used, reason = "also in the functions that tests share")]

mod support;

use metaq_store::{Inspection, OpenError, Store, inspect};
use metaq_types::Epoch;
use std::fs;
use std::path::PathBuf;
use support::{Setup, put};

/// Without these no store is opened.
const TEXTS: [&str; 4] = ["identity", "lineage", "ids", "ended"];

fn stopped() -> Setup {
    let setup = Setup::new(0, 4096);
    let store = setup.open();
    store.begin_reign(Epoch(1)).unwrap();
    put(&setup.partition(&store, "test-0"), b"first").unwrap();
    store.close().unwrap();
    fs::write(ours(&setup, "ended"), "metaq-ended 1\nold-0 7\n").unwrap();
    setup
}

fn ours(setup: &Setup, name: &str) -> PathBuf {
    setup.path().join(".metaq").join(name)
}

/// With the checksum, where there is one, as a newer version would have it.
fn of_format(text: &str, format: &str) -> String {
    let newer = text.replacen(" 1", &format!(" {format}"), 1);
    let end = newer.trim_end().rfind([' ', '\n']).unwrap() + 1;
    let body = &newer[..end];
    let body = if text.starts_with("metaq-ids") { body.trim_end() } else { body };
    let checksum = newer[end..].trim_end();
    let has_checksum = checksum.len() == 8 && checksum.bytes().all(|b| b.is_ascii_hexdigit());
    if has_checksum { format!("{}{:08x}\n", &newer[..end], crc32fast::hash(body.as_bytes())) } else { newer }
}

fn open(setup: &Setup) -> Result<Store, OpenError> {
    Store::open(setup.options())
}

fn looked_at(setup: &Setup) -> Result<Inspection, OpenError> {
    inspect(&[setup.path()])
}

#[test]
fn a_file_of_a_newer_version_asks_for_that_version() {
    for name in TEXTS {
        for format in ["2", "10", "99999999999999999999999"] {
            let setup = stopped();
            let path = ours(&setup, name);
            let text = of_format(&fs::read_to_string(&path).unwrap(), format);
            let as_written = [text.clone(), text.replacen('\n', " and more\n\0\u{fffd}\n", 1)];
            for content in as_written
                .iter()
                .map(|text| text.as_bytes())
                .chain([format!("metaq-{name} {format}").as_bytes()].into_iter().filter(|_| name != "identity"))
            {
                fs::write(&path, content).unwrap();
                let mut errors = vec![open(&setup).err().unwrap().to_string()];
                if matches!(name, "identity" | "lineage") {
                    errors.push(looked_at(&setup).err().unwrap().to_string());
                }
                for error in errors {
                    let format = format!("format {format}; this one knows 1");
                    for words in [&*path.display().to_string(), "newer version of metaq", &format, "start that version"]
                    {
                        assert!(error.contains(words), "{name}: {error}");
                    }
                    assert!(!error.contains("remove") && !error.contains("damaged"), "{name}: {error}");
                }
                assert_eq!(fs::read(&path).unwrap(), content, "{name} is as it was");
                assert!(ours(&setup, "clean").exists(), "{name}: nothing was done that would make the mark untrue");
            }
        }
    }
}

/// The mark of an orderly stop is worth time only; it is not used, and not called damaged.
#[test]
fn the_mark_of_a_newer_version_is_no_reason_not_to_start() {
    let setup = stopped();
    let path = ours(&setup, "clean");
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, of_format(&text, "2")).unwrap();
    let store = open(&setup).unwrap();
    assert!(!store.recovery_report().clean);
    assert!(store.get("test", 0).is_some());
}

#[test]
fn what_cannot_be_understood_is_called_damaged_and_comes_with_a_next_step() {
    for name in TEXTS {
        let setup = stopped();
        let path = ours(&setup, name);
        let whole = fs::read(&path).unwrap();
        let older = of_format(std::str::from_utf8(&whole).unwrap(), "0").into_bytes();
        let mut not_text = whole.clone();
        let at = whole.len() - 3;
        not_text[at] = 0xff;
        let contents: [&[u8]; 7] = [b"", b"\n", b"\xff\xfe\0m", b"metaq-", b"something else\n", &not_text, &older];
        for content in contents {
            fs::write(&path, content).unwrap();
            let error = open(&setup).err().unwrap().to_string();
            let shown = format!("{} is damaged: ", path.display());
            assert!(error.contains(&shown) && error.contains("; "), "{name}: {error}");
            assert!(error.contains("remove it") || error.contains("copy"), "{name}: {error}");
            assert!(!error.contains("newer"), "{name}: {error}");
            if matches!(name, "identity" | "lineage") {
                let error = looked_at(&setup).err().unwrap().to_string();
                assert!(error.contains(&shown), "{name}: {error}");
            }
        }
        fs::write(&path, whole).unwrap();
        open(&setup).unwrap();
    }
}

/// A file of the write-ahead log that another format begins, and one with an entry that is whole and says what nobody knows.
#[test]
fn a_write_ahead_log_of_a_newer_version_is_not_overwritten() {
    for (name, head) in [("0", b"metaqwa2"), ("1", b"metaqwb\0"), ("kept", b"metaqw\x02\0")] {
        let setup = stopped();
        fs::create_dir_all(ours(&setup, "wal")).unwrap();
        fs::write(ours(&setup, "wal/0"), [0; 4096]).unwrap();
        let path = ours(&setup, "wal").join(name);
        let mut content = vec![7; 8192];
        content[..8].copy_from_slice(head);
        fs::write(&path, &content).unwrap();
        let error = open(&setup).err().unwrap().to_string();
        assert!(error.contains(&path.display().to_string()) && error.contains("newer version of metaq"), "{error}");
        assert!(!error.contains("remove"), "{error}");
        assert_eq!(fs::read(&path).unwrap(), content);
        assert!(ours(&setup, "clean").exists());
    }
}

/// The same of an entry that is whole and says what this version does not know: what follows it would be lost.
#[test]
fn an_entry_of_a_newer_version_is_not_passed_over() {
    for payload in [&[9, 0, 0][..], &[1, 3, 0, b'a', b'-'], &[2, 1, 0, b'a']] {
        let setup = stopped();
        let with_crc = |parts: &[&[u8]], covered: &[u8]| {
            let crc = crc32fast::hash(&[&parts.concat()[..], covered].concat());
            [&parts.concat()[..], &crc.to_le_bytes()].concat()
        };
        let this: (&[u8], &[u8]) = (&[7; 8], &[1, 0, 0, 0, 0, 0, 0, 0]);
        let header = with_crc(&[b"metaqwal", this.0, this.1], &[]);
        let length = (payload.len() as u32).to_le_bytes();
        let entry = with_crc(&[b"ENTR", &length, this.0, this.1, &[0; 8]], payload);
        let mut content = vec![0; 16384];
        content[..header.len()].copy_from_slice(&header);
        content[4096..4096 + entry.len()].copy_from_slice(&entry);
        content[4096 + entry.len()..][..payload.len()].copy_from_slice(payload);
        fs::create_dir_all(ours(&setup, "wal")).unwrap();
        let path = ours(&setup, "wal/0");
        fs::write(&path, &content).unwrap();
        let error = open(&setup).err().unwrap().to_string();
        assert!(error.contains(&path.display().to_string()) && error.contains("newer version of metaq"), "{error}");
        assert_eq!(fs::read(&path).unwrap(), content);
        assert!(ours(&setup, "clean").exists());
    }
}
