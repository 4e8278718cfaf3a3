//! A quorum of two out of three under faults, and the disk these faults need.
//!
//! METAQ_ROUNDS sets how many rounds (6), METAQ_SEED which (from the clock); both are printed.

use anyhow::{Result, ensure};
use metaq_harness::fire::check::check;
use metaq_harness::fire::cluster::{MEMBERS, Transport};
use metaq_harness::fire::load::Load;
use metaq_harness::fire::quorum_members::Members;
use metaq_harness::fire::{Rng, quorum_rounds};
use metaq_harness::process::wait_until;
use metaq_harness::shaky_disk::{Faults, ShakyDisk};
use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

fn number(name: &str, default: u64) -> Result<u64> {
    Ok(std::env::var(name).map_or(Ok(default), |text| text.parse())?)
}

#[test]
fn rounds_of_faults_lose_nothing_that_a_quorum_acknowledged() -> Result<()> {
    if ShakyDisk::is_missing("a quorum under faults, with power losses") {
        return Ok(());
    }
    let rounds = number("METAQ_ROUNDS", 6)?;
    let seed = number("METAQ_SEED", SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs())?;
    println!("METAQ_SEED={seed} METAQ_ROUNDS={rounds}");
    let summary = quorum_rounds::run(seed, rounds as usize)?;
    println!("acknowledged lost 0, ghosts readable 0, shifted 0: {summary:#?}");
    ensure!(summary.acknowledged > 60 * rounds as usize, "hardly any load: {summary:?}");
    Ok(())
}

/// The rounds can fail: on disks that lie about their syncs messages are lost, and that is found.
#[test]
fn a_loss_is_found() -> Result<()> {
    if ShakyDisk::is_missing("that rounds under a quorum find a loss") {
        return Ok(());
    }
    let mut members = Members::start(Transport::Tcp)?;
    let load = Load::start(members.cluster.target());
    (0..MEMBERS).for_each(|member| members.set_disk(member, Faults::lying()));
    wait_until("some load", || Ok((load.acknowledged() > 60).then_some(())))?;
    load.pause()?;
    members.cut_power(&[0, 1, 2], &mut Rng::new(3))?;
    members.start_master(0)?;
    let findings = check(&members.cluster.members[0].direct, load.ledger(), &[])?;
    ensure!(findings.0.contains_key("lost"), "{findings:?}");
    Ok(())
}

/// The file system as a program sees it.
#[test]
fn the_disk_behaves_as_one_until_it_loses_power() -> Result<()> {
    if ShakyDisk::is_missing("the disk of the fault rounds itself") {
        return Ok(());
    }
    let disk = ShakyDisk::mount()?;
    let directory = disk.path().join("a/b");
    fs::create_dir_all(&directory)?;
    let sync_names = || -> Result<()> {
        for path in [disk.path(), &disk.path().join("a"), &directory] {
            File::open(path)?.sync_all()?;
        }
        Ok(())
    };
    let file = File::options().read(true).write(true).create_new(true).open(directory.join("log"))?;
    file.write_all_at(&[1; 10_000], 0)?;
    file.write_all_at(&[2; 100], 5_000)?;
    file.sync_data()?;
    sync_names()?;
    file.write_all_at(&[3; 10_000], 10_000)?;
    file.set_len(18_000)?;
    ensure!(file.metadata()?.len() == 18_000);
    fs::rename(directory.join("log"), directory.join("moved"))?;
    let held = fs::read(directory.join("moved"))?;
    ensure!(held.len() == 18_000 && held[5_000..5_100] == [2; 100] && held[10_000..] == [3; 8_000]);
    ensure!(File::create_new(directory.join("moved")).is_err_and(|error| error.kind() == ErrorKind::AlreadyExists));
    fs::create_dir(directory.join("empty"))?;
    fs::remove_dir(directory.join("empty"))?;
    ensure!(fs::read_dir(&directory)?.count() == 1);
    drop(file);

    let loss = disk.lose_power(&mut Rng::new(1));
    ensure!(loss.files == 1 && loss.bytes == 10_000 && loss.names == 3, "{loss:?}");
    let names: Vec<_> =
        fs::read_dir(&directory)?.map(|entry| entry.map(|entry| entry.path())).collect::<Result<_, _>>()?;
    ensure!(names.len() == 1 || names.iter().any(|name| name.ends_with("empty")), "{names:?}");
    let log = names.iter().find(|name| !name.ends_with("empty")).expect("one of both names");
    let held = fs::read(log)?;
    ensure!(held.len() >= 10_000 && held[..5_000] == [1; 5_000] && held[5_000..5_100] == [2; 100]);
    Ok(())
}

#[test]
fn the_disk_is_slow_full_or_broken_when_told() -> Result<()> {
    if ShakyDisk::is_missing("the disk of the fault rounds itself") {
        return Ok(());
    }
    let disk = ShakyDisk::mount()?;
    let mut file = File::create_new(disk.path().join("log"))?;
    disk.set(Faults::full_after(1_000));
    let error = file.write_all(&[1; 2_000]).expect_err("there is room for half of it");
    ensure!(error.kind() == ErrorKind::StorageFull && file.metadata()?.len() == 1_000, "{error}");
    let error = File::create_new(disk.path().join("more")).expect_err("there is no room for a name");
    ensure!(error.kind() == ErrorKind::StorageFull, "{error}");
    // What is there can be written over.
    file.write_all_at(&[2; 1_000], 0)?;
    file.sync_data()?;
    File::open(disk.path())?.sync_all()?;

    disk.set(Faults::slow(Duration::from_millis(100)));
    let begun = Instant::now();
    file.sync_data()?;
    ensure!(begun.elapsed() >= Duration::from_millis(100));

    disk.set(Faults::broken());
    file.write_all_at(&[3; 500], 0)?;
    ensure!(file.sync_data().is_err(), "a sync went well on a broken disk");
    disk.set(Faults::default());
    file.sync_data()?;
    drop(file);
    disk.lose_power(&mut Rng::new(1));
    ensure!(fs::read(disk.path().join("log"))? == [2; 1_000], "a later sync made durable what an earlier one had lost");
    Ok(())
}

/// A sync that a process waits for ends with the process, without effect.
#[test]
fn an_interrupted_sync_does_not_happen() -> Result<()> {
    if ShakyDisk::is_missing("the disk of the fault rounds itself") {
        return Ok(());
    }
    let disk = ShakyDisk::mount()?;
    let file = File::create_new(disk.path().join("log"))?;
    File::open(disk.path())?.sync_all()?;
    file.write_all_at(&[1; 100], 0)?;
    disk.set(Faults::slow(Duration::from_secs(600)));
    std::thread::scope(|scope| -> Result<()> {
        let sync = scope.spawn(|| file.sync_data());
        // Until it has begun there is nothing to interrupt.
        while !sync.is_finished() {
            disk.interrupt();
            std::thread::park_timeout(Duration::from_millis(5));
        }
        ensure!(sync.join().expect("it does not panic").is_err());
        Ok(())
    })?;
    drop(file);
    ensure!(disk.lose_power(&mut Rng::new(3)).bytes == 100, "it was durable");
    Ok(())
}
