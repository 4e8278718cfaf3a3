//! The program as it is started: for two of the machine's limits it starts itself a second time.

use std::fs;
use std::process::Command;

#[test]
fn every_limit_is_measured_and_nothing_is_left() {
    let dir = tempfile::tempdir().unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_metaq-load"))
        .args(["machine", "--json", "--seconds", "0.2", "--dir"])
        .arg(dir.path())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let limits: serde_json::Map<String, serde_json::Value> = serde_json::from_slice(&output.stdout).unwrap();
    assert!(limits.contains_key("puts_bare") && limits.contains_key("puts_bare_synced"));
    for (name, limit) in &limits {
        let figure = limit.get("p50_us").unwrap_or(limit).as_f64();
        assert!(figure.is_some_and(|figure| figure > 0.0), "{name}: {limit}");
    }
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn a_bare_server_without_its_file_says_which() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("gone");
    let output = Command::new(env!("CARGO_BIN_EXE_metaq-load")).arg("bare-server").arg(&path).output().unwrap();
    assert!(!output.status.success() && output.stdout.is_empty());
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(text.contains(&format!("cannot open {}", path.display())), "{text}");
}
