use super::*;

fn name(text: &str) -> &OsStr {
    OsStr::new(text)
}

fn file(image: &mut Image, text: &str) -> u64 {
    image.create_file(ROOT, name(text)).unwrap()
}

fn sync(image: &mut Image, file: u64) {
    let taken = image.taken(file).unwrap();
    image.sync_file(file, taken).unwrap();
}

/// What a file holds after a power loss; `None`: it is not there.
fn after(image: &mut Image, seed: u64, text: &str) -> Option<Vec<u8>> {
    image.lose_power(&mut Rng::new(seed));
    let file = image.lookup(ROOT, name(text)).ok()?;
    Some(image.read(file, 0..u64::MAX).unwrap().to_vec())
}

#[test]
fn what_was_synced_is_there_whatever_happens() {
    for seed in 0..200 {
        let mut image = Image::default();
        let log = file(&mut image, "log");
        image.write(log, 0, &[1; 3000]).unwrap();
        sync(&mut image, log);
        image.sync_directory(ROOT).unwrap();
        image.write(log, 3000, &[2; 3000]).unwrap();
        let held = after(&mut image, seed, "log").unwrap();
        assert!(held.len() >= 3000 && held[..3000] == [1; 3000], "{seed}");
        assert!(held[3000..].iter().all(|byte| [0, 2].contains(byte)), "{seed}");
    }
}

#[test]
fn what_was_not_synced_may_be_there_be_missing_be_torn_or_be_zeros() {
    let mut kinds = BTreeSet::new();
    for seed in 0..300 {
        let mut image = Image::default();
        let log = file(&mut image, "log");
        image.sync_directory(ROOT).unwrap();
        image.write(log, 0, &[1; 4000]).unwrap();
        let held = after(&mut image, seed, "log").unwrap();
        let holes = held.contains(&0);
        kinds.insert(match held.len() {
            0 => "missing",
            4000 if !holes => "there",
            _ if holes => "zeros",
            _ => "torn",
        });
    }
    assert_eq!(kinds.len(), 4, "{kinds:?}");
}

#[test]
fn bytes_that_are_written_over_come_back() {
    let mut kinds = BTreeSet::new();
    for seed in 0..100 {
        let mut image = Image::default();
        let log = file(&mut image, "log");
        image.set_length(log, 8192).unwrap();
        image.write(log, 0, &[1; 1024]).unwrap();
        sync(&mut image, log);
        image.sync_directory(ROOT).unwrap();
        image.write(log, 512, &[2; 512]).unwrap();
        let held = after(&mut image, seed, "log").unwrap();
        assert_eq!(held.len(), 8192);
        assert_eq!(held[..512], [1; 512], "{seed}");
        kinds.insert(held[512]);
    }
    assert_eq!(kinds, [1, 2].into());
}

#[test]
fn a_sync_covers_what_was_written_before_it_began() {
    let mut lost = 0;
    for seed in 0..100 {
        let mut image = Image::default();
        let log = file(&mut image, "log");
        image.sync_directory(ROOT).unwrap();
        image.write(log, 0, &[1; 100]).unwrap();
        let taken = image.taken(log).unwrap();
        image.write(log, 100, &[2; 100]).unwrap();
        image.sync_file(log, taken).unwrap();
        let held = after(&mut image, seed, "log").unwrap();
        assert!(held.len() >= 100, "{seed}");
        lost += usize::from(held.len() < 200);
    }
    assert!(lost > 20, "{lost}");
}

#[test]
fn a_failed_sync_loses_for_good_what_it_was_for() {
    let mut image = Image::default();
    let log = file(&mut image, "log");
    image.sync_directory(ROOT).unwrap();
    image.write(log, 0, &[1; 100]).unwrap();
    image.fail_sync(log).unwrap();
    sync(&mut image, log);
    assert_eq!(image.read(log, 0..100).unwrap(), [1; 100], "it is still in the cache");
    assert_eq!(after(&mut image, 1, "log").unwrap(), b"");
}

#[test]
fn names_need_a_sync_of_their_directory() {
    let (mut there, mut missing) = (0, 0);
    for seed in 0..100 {
        let mut image = Image::default();
        let log = file(&mut image, "log.new");
        image.write(log, 0, b"new").unwrap();
        sync(&mut image, log);
        image.sync_directory(ROOT).unwrap();
        image.rename((ROOT, name("log.new")), (ROOT, name("log")), true).unwrap();
        match after(&mut image, seed, "log") {
            Some(bytes) => {
                assert_eq!(bytes, b"new");
                assert_eq!(image.lookup(ROOT, name("log.new")), Err(Fault::NoEntry));
                there += 1;
            }
            None => {
                assert!(image.lookup(ROOT, name("log.new")).is_ok());
                missing += 1;
            }
        }
    }
    assert!(there > 20 && missing > 20, "{there} {missing}");
}

#[test]
fn a_removed_file_may_come_back_with_what_was_durable_of_it() {
    let mut back = 0;
    for seed in 0..100 {
        let mut image = Image::default();
        let log = file(&mut image, "log");
        image.write(log, 0, b"old").unwrap();
        sync(&mut image, log);
        image.sync_directory(ROOT).unwrap();
        image.remove(ROOT, name("log"), false).unwrap();
        if let Some(bytes) = after(&mut image, seed, "log") {
            assert_eq!(bytes, b"old");
            back += 1;
        }
    }
    assert!(back > 20 && back < 80, "{back}");
}

#[test]
fn a_move_between_directories_is_whole_after_a_sync_of_either() {
    for seed in 0..50 {
        let mut image = Image::default();
        let (a, b) =
            (image.create_directory(ROOT, name("a")).unwrap(), image.create_directory(ROOT, name("b")).unwrap());
        image.create_file(a, name("f")).unwrap();
        image.sync_directory(a).unwrap();
        image.sync_directory(ROOT).unwrap();
        image.rename((a, name("f")), (b, name("f")), true).unwrap();
        image.sync_directory([a, b][seed as usize % 2]).unwrap();
        image.lose_power(&mut Rng::new(seed));
        let (a, b) = (image.lookup(ROOT, name("a")).unwrap(), image.lookup(ROOT, name("b")).unwrap());
        assert!(image.lookup(a, name("f")).is_err() && image.lookup(b, name("f")).is_ok(), "{seed}");
    }
}
