use anyhow::{Result, bail};
use clap::Parser;
use metaq_sim::{Mutation, Options, Outcome, run};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// Runs seeds of the simulation; prints the first that fails with its trace, and exits with 1.
#[derive(Parser, Debug)]
struct Args {
    /// How many seeds
    #[arg(long, default_value_t = 1000)]
    seeds: u64,
    /// The first of them
    #[arg(long, default_value_t = 0)]
    first: u64,
    /// Only this seed, with its trace
    #[arg(long)]
    seed: Option<u64>,
    /// Break a rule, to see that it is noticed
    #[arg(long)]
    mutation: Option<Mutation>,
}

fn main() -> Result<()> {
    let args = Args::parse();
    let options = Options { mutation: args.mutation, readable: false };
    if let Some(seed) = args.seed {
        return report(&run(seed, Options { readable: true, ..options }));
    }
    let begun = Instant::now();
    let outcomes = run_all(args.first, args.seeds, options);
    let sum = |of: fn(&Outcome) -> u64| outcomes.iter().map(of).sum::<u64>();
    println!(
        "{} seeds from {} in {:.1} s: {} messages acknowledged, {} of them by a quorum, {} reigns, {} lost that nobody \
         promoted had confirmed",
        outcomes.len(),
        args.first,
        begun.elapsed().as_secs_f64(),
        sum(|outcome| outcome.acknowledged),
        sum(|outcome| outcome.under_quorum),
        sum(|outcome| outcome.reigns),
        sum(|outcome| outcome.lost_unconfirmed),
    );
    let failed: Vec<&Outcome> = outcomes.iter().filter(|outcome| outcome.violation.is_some()).collect();
    println!("{} passed, {} failed", outcomes.len() - failed.len(), failed.len());
    for outcome in failed.iter().skip(1).take(20) {
        println!("seed {}: {}", outcome.seed, outcome.violation.as_deref().unwrap_or_default());
    }
    match failed.first() {
        None => Ok(()),
        Some(first) => {
            println!("the first that fails, with its trace:");
            report(&run(first.seed, Options { readable: true, ..options }))
        }
    }
}

/// One thread a processor; the order of the outcomes is that of the seeds.
fn run_all(first: u64, seeds: u64, options: Options) -> Vec<Outcome> {
    let next = AtomicU64::new(first);
    let work = || {
        let mut outcomes = Vec::new();
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= first + seeds {
                return outcomes;
            }
            outcomes.push(run(seed, options));
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let mut outcomes: Vec<Outcome> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        workers.into_iter().flat_map(|worker| worker.join().expect("a simulation does not panic")).collect()
    });
    outcomes.sort_by_key(|outcome| outcome.seed);
    outcomes
}

fn report(outcome: &Outcome) -> Result<()> {
    outcome.trace.iter().for_each(|line| println!("{line}"));
    println!("seed {}: digest {:016x}, {} acknowledged", outcome.seed, outcome.digest, outcome.acknowledged);
    match &outcome.violation {
        None => Ok(()),
        Some(violation) => bail!("seed {}: {violation}", outcome.seed),
    }
}
