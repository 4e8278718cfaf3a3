//! What people type: checks of the configuration, and what a wrong one says.

use anyhow::Result;
use metaq_harness::process::{Site, binary_path};
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
