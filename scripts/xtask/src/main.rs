//! Developer tasks: `cargo xtask lint`, `cargo xtask tidy`.

mod layers;
mod lint;
mod tidy;

use anyhow::{Context, Result};
use clap::Parser;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Developer tasks")]
enum Task {
    /// Everything that must hold before a change is taken: fmt, clippy, doc, tidy
    Lint,
    /// What compilers do not check: layers, words, file sizes
    Tidy,
}

fn main() -> Result<ExitCode> {
    let root = root()?;
    let clean = match Task::parse() {
        Task::Lint => lint::run(&root)?,
        Task::Tidy => tidy::run(&root)?,
    };
    Ok(if clean { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The directory of the workspace, wherever the task was called from.
fn root() -> Result<PathBuf> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let root = here.parent().and_then(Path::parent).context("xtask lies two directories below the workspace")?;
    Ok(root.to_owned())
}
