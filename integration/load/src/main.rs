//! `metaq-load`: how fast is a broker, measured from outside over the original's text protocol, and beside it how fast
//! is this machine. Plain threads and sockets, nothing allocated or formatted for a message: it shares the processors
//! with the broker it measures.
//!
//! Start reading at `put.rs` (many connections, one thread) or `suite.rs` (the comparison with the original).
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod args;
mod bare;
mod columns;
mod frame;
mod get;
mod host;
mod lane;
mod latency;
mod machine;
mod measure;
mod node;
mod out;
mod put;
mod rate;
mod reader;
mod replica;
mod suite;
mod txn;
mod window;

use anyhow::Result;
use args::{Args, Command};
use clap::Parser;
use clap::error::ErrorKind;
use std::process::ExitCode;

fn main() -> ExitCode {
    let outcome = match Args::try_parse() {
        Ok(args) => run(&args),
        Err(error) => help(&error),
    };
    outcome.unwrap_or_else(|error| {
        out::say(&format!("metaq-load: {error:#}"));
        ExitCode::FAILURE
    })
}

/// The help that was asked for, or what is wrong with the command line.
fn help(error: &clap::Error) -> Result<ExitCode> {
    let printed = error.print();
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => out::taken(printed).map(|()| ExitCode::SUCCESS),
        _ => Ok(ExitCode::from(error.exit_code() as u8)),
    }
}

fn run(args: &Args) -> Result<ExitCode> {
    let json = args.json;
    let errors = match &args.command {
        Command::Put(put) => {
            let outcome = put::run(&put.plan()?)?;
            out::result(json, &outcome, put_page)?;
            outcome.errors
        }
        Command::Get(get) => {
            let plan = get.plan()?;
            if let Some(bytes) = get.fill {
                get::fill(&plan, bytes, get.bytes)?;
            }
            out::result(json, &get::run(&plan)?, get_page)?;
            0
        }
        Command::Latency(latency) => {
            let outcome = latency::run(&latency.plan()?)?;
            out::result(json, &outcome, latency_page)?;
            outcome.errors
        }
        Command::Txn(txn) => {
            let outcome = txn::run(&txn.plan()?)?;
            out::result(json, &outcome, txn_page)?;
            u64::from(outcome.bar_met == Some(false))
        }
        Command::Machine(machine) => {
            out::result(json, &machine::run(&machine.dir, machine.seconds.0)?, machine::Limits::page)?;
            0
        }
        Command::BareServer { ring } => {
            bare::run(ring.as_deref())?;
            0
        }
        Command::Suite(suite) => return suite::run(suite, json),
        Command::Replica(replica) => return replica::run(replica, json),
    };
    Ok(if errors == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn put_page(outcome: &put::PutOutcome) -> String {
    format!(
        "{:.0} msg/s  {:.1} MB/s\n  put to answer: {}\n{}",
        outcome.messages_per_second, outcome.megabytes_per_second, outcome.latency, outcome.errors_by_text
    )
}

fn txn_page(outcome: &txn::TxnOutcome) -> String {
    let mut page = format!(
        "{:.0} commits/s of {} messages\n  commit to answer: {}\n",
        outcome.commits_per_second, outcome.messages_a_transaction, outcome.commit
    );
    if let Some(syncs) = outcome.journal_syncs_per_commit {
        page += &format!("  journal syncs per commit: {syncs:.3}\n");
    }
    if let Some(met) = outcome.bar_met {
        page += if met { "  bar: met\n" } else { "  bar: missed\n" };
    }
    page
}

fn get_page(outcome: &get::GetOutcome) -> String {
    format!(
        "{:.0} msg/s  {:.1} MB/s\n  {} gets of {} bytes held: {}\n",
        outcome.messages_per_second, outcome.megabytes_per_second, outcome.gets, outcome.bytes_held, outcome.latency
    )
}

fn latency_page(outcome: &latency::LatencyOutcome) -> String {
    [
        format!("{} messages at {} /s\n", outcome.messages, outcome.messages_per_second),
        format!("  due to consumed:     {}\n", outcome.due_to_consumed),
        format!("  sent to consumed:    {}\n", outcome.sent_to_consumed),
        format!("  due to acknowledged: {}\n", outcome.due_to_acknowledged),
        format!("  acknowledged to consumed: {}\n", outcome.acknowledged_to_consumed),
        format!("  gets {}  out of order {}  missing {}\n", outcome.gets, outcome.out_of_order, outcome.missing),
        outcome.errors_by_text.to_string(),
    ]
    .concat()
}
