use std::process::ExitCode;

fn main() -> ExitCode {
    metaq_master::cli::parse().map_or_else(|code| code, |args| metaq_slave::run(&args))
}
