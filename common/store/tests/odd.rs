//! Something else stands where a file or a directory of ours belongs: it is named, nothing waits on it, nothing is done to
//! it, and what does not concern it is served.
#![expect(clippy::unwrap_used, reason = "also in the functions that tests share")]

mod support;

use metaq_store::{Store, inspect};
use metaq_types::{Epoch, Offset};
use rustix::fs::{CWD, FileType, Mode, mknodat};
use std::fs;
use std::os::unix::fs::{FileTypeExt, PermissionsExt, chown, symlink};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::Arc;
use support::{Setup, at, bodies, id, put, read_from};

#[derive(Clone, Copy, Debug, PartialEq)]
enum Odd {
    File,
    Directory,
    Fifo,
    Socket,
    Dangling,
    /// To a fifo: what counts is what it leads to.
    LinkToFifo,
}

impl Odd {
    fn make(self, path: &Path) {
        match self {
            Odd::File => fs::write(path, "x").unwrap(),
            Odd::Directory => fs::create_dir(path).unwrap(),
            Odd::Fifo => mknodat(CWD, path, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap(),
            Odd::Socket => drop(UnixListener::bind(path).unwrap()),
            Odd::Dangling => symlink("/nowhere/at all", path).unwrap(),
            Odd::LinkToFifo => {
                let fifo = path.with_file_name("the-fifo");
                Odd::Fifo.make(&fifo);
                symlink(fifo, path).unwrap();
            }
        }
    }

    /// As it was made.
    fn is_at(self, path: &Path) -> bool {
        let found = fs::symlink_metadata(path).unwrap().file_type();
        match self {
            Odd::File => found.is_file(),
            Odd::Directory => found.is_dir(),
            Odd::Fifo => found.is_fifo(),
            Odd::Socket => found.is_socket(),
            Odd::Dangling | Odd::LinkToFifo => found.is_symlink(),
        }
    }

    fn words(self) -> &'static str {
        match self {
            Odd::File => "is a file",
            Odd::Directory => "is a directory",
            Odd::Fifo | Odd::LinkToFifo => "is a fifo",
            Odd::Socket => "is a socket",
            Odd::Dangling => "is a link to /nowhere/at all",
        }
    }
}

const NO_FILES: [Odd; 5] = [Odd::Directory, Odd::Fifo, Odd::Socket, Odd::Dangling, Odd::LinkToFifo];
const NO_DIRECTORIES: [Odd; 5] = [Odd::File, Odd::Fifo, Odd::Socket, Odd::Dangling, Odd::LinkToFifo];

/// Two partitions, after an orderly stop or a crash.
fn stopped(orderly: bool) -> Setup {
    let setup = Setup::new(0, 4096);
    let store = setup.open();
    store.begin_reign(Epoch(1)).unwrap();
    for name in ["test-0", "test-1"] {
        put(&setup.partition(&store, name), name.as_bytes()).unwrap();
    }
    if orderly {
        store.close().unwrap();
    }
    drop(store);
    setup
}

fn check_unserved(setup: &Setup, odd: Odd, path: &Path, case: &str) {
    let store = setup.open();
    let report = store.recovery_report();
    let [(name, reason)] = &report.failed[..] else { panic!("{case}: {:?}", report.failed) };
    assert_eq!((name.as_str(), report.served), ("test-0", 1), "{case}");
    let shown = path.display().to_string();
    for words in [&*shown, odd.words(), if odd == Odd::Dangling { "remove the link" } else { "move it elsewhere" }] {
        assert!(reason.contains(words), "{case}: {reason}");
    }
    assert_eq!(store.unserved("test", 0), Some(&**reason), "{case}");
    let refused = store.get_or_create(&id("test-0"), &setup.rules(), Offset::ZERO).err().unwrap();
    assert!(refused.to_string().contains(&shown), "{case}: {refused}");
    let other = store.get("test", 1).unwrap();
    assert_eq!(bodies(&read_from(&other, 0, 4096)), [b"test-1"], "{case}");
    put(&other, b"more").unwrap();
    inspect(&[setup.path()]).unwrap();
    store.begin_reign(Epoch(2)).unwrap();
    assert!(odd.is_at(path), "{case}");
}

#[test]
fn what_is_no_segment_is_named_and_its_partition_not_served() {
    for (odd, orderly) in NO_FILES.into_iter().flat_map(|odd| [(odd, false), (odd, true)]) {
        for name in ["00000000000000000000.meta", "0.meta", "00000000000000009999.meta"] {
            let case = format!("{odd:?} {name}, orderly: {orderly}");
            let setup = stopped(orderly);
            let path = setup.path().join("test-0").join(name);
            let _ = fs::remove_file(setup.segment("test-0", 0));
            odd.make(&path);
            check_unserved(&setup, odd, &path, &case);
            let left = fs::read_dir(path.parent().unwrap()).unwrap().map(|entry| entry.unwrap().file_name());
            let left: Vec<_> = left.filter(|left| left != "the-fifo").collect();
            assert_eq!(left, [name], "{case}: nothing is made beside it");
        }
    }
}

#[test]
fn what_is_no_directory_is_named_and_its_partition_not_served() {
    for (odd, orderly) in NO_DIRECTORIES.into_iter().flat_map(|odd| [(odd, false), (odd, true)]) {
        let setup = stopped(orderly);
        let path = setup.path().join("test-0");
        fs::rename(&path, setup.directory.path().join("away")).unwrap();
        odd.make(&path);
        check_unserved(&setup, odd, &path, &format!("{odd:?}, orderly: {orderly}"));
        // Moved away, and the partition put back: it is as it was.
        fs::remove_file(&path).unwrap();
        fs::rename(setup.directory.path().join("away"), &path).unwrap();
        let store = setup.open();
        assert_eq!(bodies(&read_from(&store.get("test", 0).unwrap(), 0, 4096)), [b"test-0"], "{odd:?}");
    }
}

/// The same of one that comes while the broker runs.
#[test]
fn a_new_partition_names_what_stands_in_its_place() {
    let setup = stopped(true);
    let store = setup.open();
    let place = |name: &str| setup.path().join(name);
    let cases = NO_DIRECTORIES.into_iter().map(|odd| (odd, false)).chain(NO_FILES.into_iter().map(|odd| (odd, true)));
    for (number, (odd, inside)) in (10..).zip(cases) {
        let name = format!("test-{number}");
        let path = if inside { place(&name).join("00000000000000000000.meta") } else { place(&name) };
        fs::create_dir_all(if inside { place(&name) } else { place("elsewhere") }).unwrap();
        let _ = fs::remove_file(place("the-fifo"));
        odd.make(&path);
        let refused = store.get_or_create(&id(&name), &setup.rules(), at(0)).err().unwrap().to_string();
        let says = |words: &str| assert!(refused.contains(words), "{odd:?}: {refused}");
        says(&path.display().to_string());
        says(odd.words());
        assert!(odd.is_at(&path), "{odd:?}");
    }
}

/// A partition's number is written in one way; of what is written in another nobody's messages are missed.
#[test]
fn a_directory_that_is_not_called_as_we_call_it_is_foreign() {
    let setup = stopped(true);
    let foreign = ["test-007", "test-00", "test-01", "a-b-0000000012"];
    for name in foreign {
        fs::create_dir(setup.path().join(name)).unwrap();
        fs::copy(setup.segment("test-0", 0), setup.segment(name, 0)).unwrap();
    }
    // Of what is no directory, and not called like a partition, nothing is said at all.
    fs::write(setup.path().join("test-008"), "x").unwrap();
    Odd::Fifo.make(&setup.path().join("notes-"));
    symlink("/nowhere", setup.path().join("old")).unwrap();
    let store = setup.open();
    let report = store.recovery_report();
    let mut passed_over = report.passed_over.clone();
    passed_over.sort_unstable();
    let names: Vec<_> = passed_over.iter().map(|(name, _)| name.clone()).collect();
    let mut expected = foreign.map(|name| setup.path().join(name).display().to_string());
    expected.sort_unstable();
    assert_eq!((names, &report.failed[..], report.served), (expected.to_vec(), &[][..], 2));
    assert!(passed_over.iter().any(|(_, reason)| reason.contains("test-7")), "{passed_over:?}");
    assert_eq!((store.unserved("test", 7), store.unserved("test", 1)), (None, None));
    assert_eq!(inspect(&[setup.path()]).unwrap().logs.len(), 2);
    // The partition of that number is another one, and can be made.
    put(&setup.partition(&store, "test-7"), b"x").unwrap();
}

/// A core dump has the name of a partition. Nobody misses one that the configuration does not have; where a link leads
/// nowhere there may be messages.
#[test]
fn what_is_called_like_a_partition_that_nobody_has_is_passed_over() {
    for odd in NO_DIRECTORIES {
        let setup = stopped(true);
        let path = setup.path().join("core-1234");
        odd.make(&path);
        let mut options = setup.options();
        options.expects = Arc::new(|id| &*id.topic == "test");
        let store = Store::open(options.clone()).unwrap();
        let report = store.recovery_report();
        let shown = path.display().to_string();
        match odd {
            Odd::Dangling => {
                assert!(report.failed[0].1.contains(&shown) && report.passed_over.is_empty(), "{report:?}")
            }
            _ => {
                assert_eq!((&report.failed[..], store.unserved("core", 1234)), (&[][..], None), "{odd:?}");
                assert_eq!(report.passed_over.iter().map(|(name, _)| name).collect::<Vec<_>>(), [&shown], "{odd:?}");
                // A reload may bring it all the same.
                let refused = store.get_or_create(&id("core-1234"), &setup.rules(), at(0)).err().unwrap().to_string();
                assert!(refused.contains(&shown) && refused.contains(odd.words()), "{refused}");
            }
        }
        drop(store);
        options.expects = Arc::new(|id| &*id.topic == "core");
        let store = Store::open(options).unwrap();
        assert!(store.unserved("core", 1234).is_some() && odd.is_at(&path), "{odd:?}");
    }
}

fn refused(setup: &Setup) -> String {
    match Store::open(setup.options()) {
        Ok(_) => panic!("opened"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn what_stands_in_the_place_of_our_own_directories_and_files_is_named() {
    let directories = [".metaq", ".metaq/wal"].map(|name| (name, NO_DIRECTORIES));
    let files = ["lock", "identity", "lineage", "ids", "clean", "ended", "wal/0", "wal/kept"];
    let files = files.map(|name| (format!(".metaq/{name}"), NO_FILES));
    let all = directories.map(|(name, odds)| (name.to_owned(), odds)).into_iter().chain(files);
    for (name, odd) in all.flat_map(|(name, odds)| odds.map(|odd| (name.clone(), odd))) {
        let setup = stopped(true);
        let path = setup.path().join(&name);
        fs::create_dir_all(setup.path().join(".metaq/wal")).unwrap();
        if path.symlink_metadata().is_ok() {
            fs::rename(&path, setup.directory.path().join("away")).unwrap();
        }
        odd.make(&path);
        let error = refused(&setup);
        let step = if odd == Odd::Dangling { "bring back" } else { "move it elsewhere" };
        for words in [&*path.display().to_string(), odd.words(), step] {
            assert!(error.contains(words), "{name} {odd:?}: {error}");
        }
        assert!(odd.is_at(&path), "{name} {odd:?}");
    }
}

/// The disk cannot read a file: as the system says it, once, and with a next step.
#[test]
fn an_error_of_the_system_is_told_once() {
    let setup = stopped(true);
    let path = setup.path().join(".metaq/lineage");
    fs::remove_file(&path).unwrap();
    symlink("/proc/self/mem", &path).unwrap();
    let error = Store::open(setup.options()).err().unwrap();
    let text = error.to_string();
    assert!(text.contains(&path.display().to_string()) && text.contains("the system's log"), "{text}");
    assert!(std::error::Error::source(&error).is_none(), "who prints the causes as well says it twice");
}

/// Nobody is kept out by modes who is root.
#[test]
fn a_directory_of_ours_that_cannot_be_written_is_named() {
    let setup = stopped(true);
    let ours = setup.path().join(".metaq");
    fs::set_permissions(&ours, fs::Permissions::from_mode(0o500)).unwrap();
    let error = as_nobody(&setup.path(), || refused(&setup));
    fs::set_permissions(&ours, fs::Permissions::from_mode(0o700)).unwrap();
    assert!(error.contains(&ours.display().to_string()) && error.contains("owner, mode or mount"), "{error}");
    as_nobody(&setup.path(), || drop(setup.open()));
}

/// Runs on a thread that modes hold for, with all below `directory` its own: to root they mean nothing.
fn as_nobody<T: Send>(directory: &Path, act: impl FnOnce() -> T + Send) -> T {
    if !rustix::process::geteuid().is_root() {
        return act();
    }
    let nobody = 65534;
    let mut rest = vec![directory.to_path_buf()];
    while let Some(path) = rest.pop() {
        chown(&path, Some(nobody), Some(nobody)).unwrap();
        rest.extend(fs::read_dir(&path).into_iter().flatten().map(|entry| entry.unwrap().path()));
    }
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            rustix::thread::set_thread_uid(rustix::process::Uid::from_raw(nobody)).unwrap();
            act()
        });
        thread.join().unwrap()
    })
}
