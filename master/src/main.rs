use clap::Parser;
use metaq_master::cli::{self, CommonArgs};
use std::process::ExitCode;

/// The master of a metaq broker id: takes messages, serves readers and slaves.
#[derive(Parser)]
#[command(name = "metaq-master", version, after_help = cli::EXIT_CODES)]
struct Args {
    #[command(flatten)]
    common: CommonArgs,
}

fn main() -> ExitCode {
    cli::parse().map_or_else(|code| code, |args: Args| metaq_master::run(&args.common))
}
