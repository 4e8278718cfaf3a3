//! `metaq-load`: how fast is a broker, measured from outside over the original's text protocol, and beside it how fast
//! is this machine. Plain threads and sockets, nothing allocated or formatted for a message: it shares the processors
//! with the broker it measures.
//!
//! Start reading at `put.rs` (many connections, one thread) or `suite.rs` (the comparison with the original).

mod args;
mod columns;
mod frame;
mod get;
mod host;
mod lane;
mod latency;
mod machine;
mod measure;
mod node;
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
use serde::Serialize;
use std::process::ExitCode;

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("metaq-load: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> Result<ExitCode> {
    let json = args.json;
    let errors = match &args.command {
        Command::Put(put) => {
            let outcome = put::run(&put.plan()?)?;
            show(json, &outcome, print_put)?;
            outcome.errors
        }
        Command::Get(get) => {
            let plan = get.plan()?;
            if let Some(bytes) = get.fill {
                get::fill(&plan, bytes, get.bytes)?;
            }
            show(json, &get::run(&plan)?, print_get)?;
            0
        }
        Command::Latency(latency) => {
            let outcome = latency::run(&latency.plan()?)?;
            show(json, &outcome, print_latency)?;
            outcome.errors
        }
        Command::Txn(txn) => {
            let outcome = txn::run(&txn.plan()?)?;
            show(json, &outcome, print_txn)?;
            u64::from(outcome.bar_met == Some(false))
        }
        Command::Machine(machine) => {
            show(json, &machine::run(&machine.dir, machine.seconds.0)?, machine::Limits::print)?;
            0
        }
        Command::Suite(suite) => return suite::run(suite, json),
        Command::Replica(replica) => return replica::run(replica, json),
    };
    Ok(if errors == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn show<T: Serialize>(json: bool, outcome: &T, print: fn(&T)) -> Result<()> {
    if json {
        println!("{}", serde_json::to_string_pretty(outcome)?);
    } else {
        print(outcome);
    }
    Ok(())
}

fn print_put(outcome: &put::PutOutcome) {
    println!("{:.0} msg/s  {:.1} MB/s", outcome.messages_per_second, outcome.megabytes_per_second);
    println!("  put to answer: {}", outcome.latency);
    outcome.errors_by_text.print();
}

fn print_txn(outcome: &txn::TxnOutcome) {
    println!("{:.0} commits/s of {} messages", outcome.commits_per_second, outcome.messages_a_transaction);
    println!("  commit to answer: {}", outcome.commit);
    if let Some(syncs) = outcome.journal_syncs_per_commit {
        println!("  journal syncs per commit: {syncs:.3}");
    }
    if let Some(met) = outcome.bar_met {
        println!("  bar: {}", if met { "met" } else { "missed" });
    }
}

fn print_get(outcome: &get::GetOutcome) {
    println!("{:.0} msg/s  {:.1} MB/s", outcome.messages_per_second, outcome.megabytes_per_second);
    println!("  {} gets of {} bytes held: {}", outcome.gets, outcome.bytes_held, outcome.latency);
}

fn print_latency(outcome: &latency::LatencyOutcome) {
    println!("{} messages at {} /s", outcome.messages, outcome.messages_per_second);
    println!("  due to consumed:     {}", outcome.due_to_consumed);
    println!("  sent to consumed:    {}", outcome.sent_to_consumed);
    println!("  due to acknowledged: {}", outcome.due_to_acknowledged);
    println!("  acknowledged to consumed: {}", outcome.acknowledged_to_consumed);
    println!("  gets {}  out of order {}  missing {}", outcome.gets, outcome.out_of_order, outcome.missing);
    outcome.errors_by_text.print();
}
