//! `metaq log`: what lies in the files of data paths, whether it is whole, and whether two nodes have the same.
//!
//! Files are opened for reading only, no lock is taken, and a broker may run on them.

mod bytes;
mod compare;
mod dump;
mod files;
mod page;
mod report;
mod verify;

use std::process::ExitCode;

use clap::Subcommand;

use crate::cluster::Place;
use crate::show::Format;

#[derive(Subcommand)]
pub(crate) enum LogCommand {
    /// Check every message in the files, or compare them with another node's
    Verify(report::VerifyArgs),
    /// Print the messages in the files of a partition, or in one file, damaged places too
    Dump(dump::DumpArgs),
}

pub(crate) async fn run(place: &Place, command: &LogCommand, format: Format) -> anyhow::Result<ExitCode> {
    match command {
        LogCommand::Verify(args) => report::run(place, args, format).await,
        LogCommand::Dump(args) => dump::run(place, args, format).map(|()| ExitCode::SUCCESS),
    }
}
