//! `metaq`, the operator's tool: puts and reads messages, lists topics, shows how far replicas are.
//!
//! What it knows of a running cluster it learns over the protocol and the registry. `log` and `promote` look into the files
//! of data directories as well, for reading only: a broker may run on them. Results go to standard output (a table, or JSON
//! for programs), words about the run to standard error; both by way of `show`, as `println!` and `eprintln!` panic when
//! nobody reads.
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod cert;
mod cluster;
mod consume;
mod describe;
mod groups;
mod log;
mod position;
mod promote;
mod put;
mod ranking;
mod replicas;
mod show;
mod topics;
mod txn;

use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{Parser, Subcommand};

/// The command line was not understood (EX_USAGE of sysexits.h).
const EXIT_USAGE: u8 = 64;

/// Look at and use a metaq cluster.
#[derive(Parser)]
#[command(
    name = "metaq",
    version,
    subcommand_required = true,
    arg_required_else_help = true,
    after_help = "Exit codes: 0 done; 1 failed, the last line says why and what to do; 64 the command line is wrong; \
                  'promote' has more of its own."
)]
struct Args {
    /// How results are printed
    #[arg(long, global = true, value_enum, default_value_t = show::Format::Table)]
    format: show::Format,

    #[command(flatten)]
    place: cluster::Place,

    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Send messages, one a line, from a file or standard input
    Put(put::PutArgs),
    /// Read messages
    Consume(consume::ConsumeArgs),
    /// Topics
    #[command(subcommand)]
    Topic(TopicCommand),
    /// Consumer groups: who reads what, and how far
    #[command(subcommand)]
    Group(groups::GroupCommand),
    /// Replication
    #[command(subcommand)]
    Replica(ReplicaCommand),
    /// What the promotion of the slave of --config would find, wait for and lose
    Promote(promote::PromoteArgs),
    /// The files of data paths: whether they are whole and the same on two nodes, and what is in them
    #[command(subcommand)]
    Log(log::LogCommand),
    /// Transactions that are not over
    #[command(subcommand)]
    Txn(txn::TxnCommand),
    /// Certificates for nodes, and the authority that issues them
    #[command(subcommand)]
    Cert(cert::CertCommand),
}

#[derive(Subcommand)]
enum TopicCommand {
    /// All topics with their partitions, messages and bytes, by broker
    ///
    /// As the original counts them: messages are those that came since the broker's start, and what the last file of
    /// each partition held then; bytes are all that is kept.
    List,
    /// When a put to a topic is answered, and the worst that can happen to it then
    Describe {
        /// The topic's name
        topic: String,
    },
}

#[derive(Subcommand)]
enum ReplicaCommand {
    /// How far the slaves are, the one to promote first; they tell it themselves when the master is gone
    Status(replicas::StatusArgs),
}

fn main() -> ExitCode {
    let args = match Args::try_parse() {
        Ok(args) => args,
        Err(error) => {
            let printed = error.print();
            return match error.kind() {
                ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
                    ended(show::taken(printed).map(|()| ExitCode::SUCCESS))
                }
                _ => ExitCode::from(EXIT_USAGE),
            };
        }
    };
    let runtime = match tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            show::say(&format!("metaq: cannot start: {error}"));
            return ExitCode::FAILURE;
        }
    };
    let outcome = runtime.block_on(run(args));
    // A reader of standard input that still waits must not hold the process.
    runtime.shutdown_background();
    ended(outcome)
}

fn ended(outcome: anyhow::Result<ExitCode>) -> ExitCode {
    outcome.unwrap_or_else(|error| {
        show::say(&format!("metaq: {error:#}"));
        ExitCode::FAILURE
    })
}

async fn run(args: Args) -> anyhow::Result<ExitCode> {
    match &args.command {
        Command::Cert(command) => return cert::run(command, args.format).map(|()| ExitCode::SUCCESS),
        Command::Promote(promote) => return promote::run(&args.place, promote, args.format).await,
        Command::Log(command) => return log::run(&args.place, command, args.format).await,
        _ => {}
    }
    let source = args.place.source()?;
    match args.command {
        Command::Put(put) => put::run(&source, put, args.format).await,
        Command::Consume(consume) => consume::run(&source, consume, args.format).await,
        Command::Topic(TopicCommand::List) => topics::list(&source, args.format).await,
        Command::Topic(TopicCommand::Describe { topic }) => describe::describe(&source, &topic, args.format).await,
        Command::Group(command) => groups::run(&source, command, args.format).await,
        Command::Replica(ReplicaCommand::Status(status)) => replicas::status(&source, &status, args.format).await,
        Command::Txn(command) => txn::run(&source, command, args.format).await,
        Command::Cert(_) | Command::Promote(_) | Command::Log(_) => unreachable!("handled above"),
    }?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Args::command().debug_assert();
    }
}
