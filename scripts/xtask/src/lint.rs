//! The checks of `.ci/run`, one after the other. All of them run, so that one look shows everything there is to mend.

use crate::tidy;
use anyhow::{Context, Result};
use std::path::Path;
use std::process::Command;
use std::time::Instant;

const STEPS: [(&str, &[&str]); 3] = [
    ("fmt", &["fmt", "--all", "--check"]),
    ("clippy", &["clippy", "--workspace", "--all-targets", "--locked", "--quiet", "--", "-D", "warnings"]),
    ("doc", &["doc", "--workspace", "--no-deps", "--locked", "--quiet"]),
];

/// `true` when every step passed.
pub(crate) fn run(root: &Path) -> Result<bool> {
    let mut failed = Vec::new();
    for (name, arguments) in STEPS {
        let start = Instant::now();
        let status = Command::new(env!("CARGO"))
            .args(arguments)
            .current_dir(root)
            .env("RUSTDOCFLAGS", "-D warnings")
            .status()
            .with_context(|| format!("cargo {name} could not be started"))?;
        report(name, status.success(), start);
        if !status.success() {
            failed.push(name);
        }
    }
    let start = Instant::now();
    let clean = tidy::run(root)?;
    report("tidy", clean, start);
    if !clean {
        failed.push("tidy");
    }
    if !failed.is_empty() {
        eprintln!("lint: failed: {}", failed.join(", "));
    }
    Ok(failed.is_empty())
}

fn report(name: &str, passed: bool, start: Instant) {
    println!("lint: {name} {} ({:.1} s)", if passed { "ok" } else { "FAILED" }, start.elapsed().as_secs_f64());
}
