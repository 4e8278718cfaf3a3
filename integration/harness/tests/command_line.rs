//! What people type: checks of the configuration, and what a wrong one says.

use anyhow::{Context, Result};
use metaq_harness::ports::{free_address, free_port};
use metaq_harness::process::{Broker, Site, binary_path, wait_until};
use metaq_harness::raw::Raw;
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::process::{Command, Output};

fn run(site: &Site, binary: &str, arguments: &[&str]) -> Result<(Output, String)> {
    site.write_ini()?;
    let output = Command::new(binary_path(binary)?)
        .arg("--config")
        .arg(site.ini_path())
        .args(arguments)
        .current_dir(site.path())
        .output()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    Ok((output, text))
}

#[test]
fn a_good_configuration_is_checked_and_exits_0() -> Result<()> {
    let (output, text) = run(&Site::new()?, "metaq-master", &["--check-config"])?;
    assert_eq!(output.status.code(), Some(0), "{text}");
    assert!(text.contains("1 topics"), "{text}");
    Ok(())
}

#[test]
fn every_error_is_named_with_its_line_and_exits_78() -> Result<()> {
    let mut site = Site::new()?;
    site.set("brokerId", "1024").set("unflushTreshold", "5").topic("a b", &[]);
    for arguments in [&["--check-config"][..], &[]] {
        let (output, text) = run(&site, "metaq-master", arguments)?;
        assert_eq!(output.status.code(), Some(78), "{text}");
        for part in ["server.ini:2: ", "1024", "unflushThreshold", "a b"] {
            assert!(text.contains(part), "{part} in {text}");
        }
    }
    Ok(())
}

#[test]
fn a_missing_file_says_what_to_do() -> Result<()> {
    let site = Site::new()?;
    let mut command = Command::new(binary_path("metaq-master")?);
    let output = command.args(["--config", "nowhere.ini"]).current_dir(site.path()).output()?;
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(78), "{text}");
    assert!(text.contains("nowhere.ini") && text.contains("--config"), "{text}");
    Ok(())
}

/// A data directory has one owner.
#[test]
fn a_second_broker_on_the_same_data_is_refused() -> Result<()> {
    let site = Site::new()?;
    let first = site.start_master(&[])?;
    let (output, text) = run(&site, "metaq-master", &[])?;
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("in use") && text.contains(&first.pid().to_string()), "names the holder: {text}");
    Ok(())
}

#[test]
fn a_slave_without_a_way_to_its_master_says_so() -> Result<()> {
    let (output, text) = run(&Site::new()?, "metaq-slave", &["--slave-id", "0"])?;
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("--master"), "{text}");
    Ok(())
}

/// A log that cannot be written, be the disk full or its reader gone, is no reason to stop serving.
#[test]
fn a_broker_outlives_its_log() -> Result<()> {
    let site = Site::new()?;
    for sink in ["exec \"$0\" \"$@\" >/dev/full 2>&1", "exec \"$0\" \"$@\" >&- 2>&-", "exec \"$0\" \"$@\" 2> >(exit)"] {
        let port = free_port()?;
        let mut site = Site::new()?;
        site.set("serverPort", &port.to_string()).write_ini()?;
        let mut command = Command::new("bash");
        command.args(["-c", sink]).arg(binary_path("metaq-master")?).arg("--config").arg(site.ini_path());
        let mut broker = command.current_dir(site.path()).spawn()?;
        let mut raw = wait_until("the broker", || Ok(Raw::connect(&format!("127.0.0.1:{port}")).ok()))?;
        for _ in 0..3 {
            kill_process(Pid::from_child(&broker), Signal::HUP)?;
            wait_until("a put", || Ok(raw.put("test", 0, b"x")?.stored().ok()))?;
        }
        kill_process(Pid::from_child(&broker), Signal::TERM)?;
        assert_eq!(broker.wait()?.code(), Some(0), "{sink}");
    }
    let mut checked = site;
    checked.set("brokerId", "1024").write_ini()?;
    let mut command = Command::new("bash");
    command.args(["-c", "exec \"$0\" \"$@\" >/dev/full 2>&1"]).arg(binary_path("metaq-master")?);
    let status = command.arg("--check-config").arg("--config").arg(checked.ini_path()).status()?;
    assert_eq!(status.code(), Some(78));
    Ok(())
}

/// What is in the place of the data directory is named, once, with what to do.
#[test]
fn a_data_path_that_is_no_directory_is_named() -> Result<()> {
    let site = Site::new()?;
    std::fs::write(site.data(), "x")?;
    let (output, text) = run(&site, "metaq-master", &[])?;
    assert!(output.status.code() == Some(1) && text.contains("is no directory; move away"), "{text}");
    std::fs::remove_file(site.data())?;
    std::os::unix::fs::symlink(site.path().join("nowhere"), site.data())?;
    let (output, text) = run(&site, "metaq-master", &[])?;
    assert!(output.status.code() == Some(1) && text.contains("nowhere: No such file"), "{text}");
    Ok(())
}

/// A file that is valid and all the same hardly what was meant.
#[test]
fn a_check_tells_its_warnings_and_paths_that_only_a_shell_reads_are_refused() -> Result<()> {
    let mut site = Site::new()?;
    site.topic("test", &[("numPartitions", "1"), ("numPartitions", "3")]);
    let (output, text) = run(&site, "metaq-master", &["--check-config"])?;
    assert!(output.status.success() && text.contains("numPartitions is written twice"), "{text}");
    let properties = site.path().join("slave.properties");
    let check = ["--check-config", "--slave-config", &properties.display().to_string()].map(str::to_owned);
    for (text, code, said) in [
        ("slaveId=0\nslaveId=1\n", 0, "slave.properties:2: slaveId is written twice"),
        ("slaveId=0\nslavId=1\n", 78, "slave.properties:2: unknown key slavId"),
    ] {
        fs::write(&properties, text)?;
        // What a promotion does not read keeps nobody from it, and is told all the same.
        for (id, code) in [(&[][..], 0), (&["--slave-id", "0"], code)] {
            let words: Vec<&str> = check.iter().map(String::as_str).chain(id.iter().copied()).collect();
            let (output, told) = run(&site, "metaq-slave", &words)?;
            assert!(output.status.code() == Some(code) && told.contains(said), "{words:?}: {told}");
        }
    }
    for path in ["~/data", "\"/data\"", "$HOME/data"] {
        for key in ["dataPath", "dataLogPath"] {
            let mut site = Site::new()?;
            site.set(key, path);
            let (output, text) = run(&site, "metaq-master", &[])?;
            assert!(output.status.code() == Some(78) && text.contains(path) && text.contains("in full"), "{text}");
        }
    }
    Ok(())
}

/// Whoever asks a Java broker for its threads, or another daemon for a new log file, does not end this one; a file that
/// may not grow is an error of its write; and a reload during the start is not lost.
#[test]
fn signals_that_are_not_meant_to_end_a_broker_do_not() -> Result<()> {
    let mut site = Site::new()?;
    let mut broker = site.start_master(&[])?;
    let mut raw = Raw::connect(&broker.address)?;
    for (signal, name) in [(Signal::QUIT, "SIGQUIT"), (Signal::USR1, "SIGUSR1"), (Signal::USR2, "SIGUSR2")] {
        broker.signal(signal)?;
        broker.wait_for_line(&format!("{name} changes nothing"))?;
        raw.put("test", 0, b"x")?.stored()?;
    }
    assert!(broker.stop()?.success());
    site.launch_by(["bash", "-c", "ulimit -f 64 && exec \"$0\" \"$@\""].map(str::to_owned).to_vec());
    let mut broker = site.start_master(&[])?;
    let mut raw = Raw::connect(&broker.address)?;
    let refused = (0..)
        .map(|_| raw.put("test", 0, &[0; 8192]))
        .find(|reply| !reply.as_ref().is_ok_and(|reply| reply.code == 200));
    let reply = refused.context("a file without end")??;
    assert!(reply.code >= 500, "{} {}", reply.code, reply.text());
    broker.wait_for_line("ulimit -f")?;
    assert_eq!(raw.read_all("test", 0, 0)?.first().map(|record| record.body.clone()), Some(b"x".to_vec()));
    Ok(())
}

/// A partition that does not exist is not an empty one, where that can be known.
#[test]
fn reading_a_partition_that_does_not_exist_fails() -> Result<()> {
    let mut site = Site::new()?;
    let registry = free_address()?.to_string();
    site.topic("test", &[("numPartitions", "2")]);
    site.set_zookeeper("zk.zkEnable", "true").set_zookeeper("zk.zkConnect", &registry);
    let mut broker = site.start_master(&["--local"])?;
    broker.wait_for_line("registered in zookeeper")?;
    Raw::connect(&broker.address)?.put("test", 0, b"x")?.stored()?;
    let consume = |from: &[&str], partition: &str| -> Result<(Option<i32>, String)> {
        let mut command = Command::new(binary_path("metaq")?);
        let output = command.args(from).args(["consume", "--topic", "test", "--partition", partition]).output()?;
        Ok((output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned()))
    };
    for place in [["--zk", &registry], ["--broker", &broker.address]] {
        for (partition, code) in [("0", 0), ("1", 0), ("2", 1), ("2147483647", 1)] {
            let (exit, text) = consume(&place, partition)?;
            assert_eq!(exit, Some(code), "{text}");
            assert!(code == 0 || text.contains("it has the numbers 0 to 1"), "{text}");
        }
    }
    Ok(())
}

/// A data path on a file system that was mounted again read-only, as after an error of its disk.
#[test]
fn a_data_path_that_cannot_be_written_is_named_with_its_user() -> Result<()> {
    let mut site = Site::new()?;
    let broker = site.start_master(&[])?;
    Raw::connect(&broker.address)?.put("test", 0, b"x")?.stored()?;
    assert!(broker.stop()?.success());
    let data = site.data().display().to_string();
    let script = format!("mount --bind {data} {data} && mount -o remount,ro,bind {data} && exec \"$0\" \"$@\"");
    site.launch_by(["unshare", "--map-root-user", "--mount", "sh", "-c", &script].map(String::from).to_vec());
    let mut broker = Broker::spawn(&site, "metaq-master", &[])?;
    let line = broker.wait_for_line("cannot be written by user")?;
    assert!(line.contains(&data) && line.matches("Read-only file system").count() == 1, "{line}");
    assert_eq!(broker.wait_exit()?.code(), Some(1));
    site.launch_by(Vec::new());
    let broker = site.start_master(&[])?;
    assert_eq!(Raw::connect(&broker.address)?.read_all("test", 0, 0)?.len(), 1);
    Ok(())
}

/// Levels that cannot be read are said to be wrong, where they were taken for the default in silence.
#[test]
fn log_levels_that_are_no_levels_are_named() -> Result<()> {
    let mut site = Site::new()?;
    site.launch_by(["env", "METAQ_LOG=metaq_store==,7x"].map(str::to_owned).to_vec());
    site.start_master(&[])?.wait_for_line("METAQ_LOG=metaq_store==,7x is not understood")?;
    site.launch_by(["env", "METAQ_LOG="].map(str::to_owned).to_vec());
    site.start_master(&[])?.wait_for_line("data directory opened")?;
    Ok(())
}

/// What the ZooKeeper library tells of its connection is for those who ask: the broker says itself what comes of it.
#[test]
fn the_zookeeper_library_is_heard_where_levels_are_asked_for() -> Result<()> {
    for (levels, heard) in [("METAQ_LOG=", false), ("METAQ_LOG=info", true)] {
        let mut site = Site::new()?;
        site.set_zookeeper("zk.zkEnable", "true").set_zookeeper("zk.zkConnect", &free_address()?.to_string());
        site.launch_by(["env", levels].map(str::to_owned).to_vec());
        let mut master = site.start_master(&["--local"])?;
        master.wait_for_line("zookeeper session established")?;
        master.wait_for_line("registered in zookeeper")?;
        let log = master.log_text();
        assert_eq!(log.contains("new session established"), heard, "{levels}: {log}");
    }
    Ok(())
}
