use clap::Parser;
use metaq_slave::Args;
use std::process::ExitCode;

fn main() -> ExitCode {
    metaq_slave::run(&Args::parse())
}
