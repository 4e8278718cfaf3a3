use clap::Parser;
use metaq_master::cli::CommonArgs;
use std::process::ExitCode;

/// The master of a metaq broker id: takes messages, serves readers and slaves.
#[derive(Parser)]
#[command(name = "metaq-master", version, after_help = metaq_master::cli::EXIT_CODES)]
struct Args {
    #[command(flatten)]
    common: CommonArgs,
}

fn main() -> ExitCode {
    metaq_master::run(&Args::parse().common)
}
