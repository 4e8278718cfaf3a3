//! Seeds that must hold, and that a seed is all there is to a run.

use metaq_sim::{Options, run};

const SEEDS: u64 = 300;

#[test]
fn no_invariant_is_violated() {
    let failed: Vec<String> = (0..SEEDS)
        .map(|seed| run(seed, Options::default()))
        .filter_map(|outcome| outcome.violation.map(|violation| format!("seed {}: {violation}", outcome.seed)))
        .collect();
    assert!(failed.is_empty(), "look at one with 'cargo run -p metaq-sim -- --seed N':\n{}", failed.join("\n"));
}

/// Fresh ones in every run; a failing one prints itself.
#[test]
fn seeds_nobody_has_seen_hold_as_well() {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("after 1970");
    let first = since.as_secs() << 16;
    for seed in first..first + 50 {
        let outcome = run(seed, Options::default());
        assert_eq!(outcome.violation, None, "seed {seed}: add it to the named ones below");
    }
}

#[test]
fn the_same_seed_is_the_same_run() {
    for seed in 0..20 {
        let readable = Options { readable: true, ..Options::default() };
        let (first, second) = (run(seed, readable), run(seed, readable));
        assert_eq!(first, second);
        assert_eq!(first.digest, run(seed, Options::default()).digest, "reading along changes nothing");
    }
}

/// A run in which nothing happens proves nothing.
#[test]
fn runs_are_full_of_life() {
    let outcomes: Vec<_> = (0..50).map(|seed| run(seed, Options::default())).collect();
    let sum = |of: fn(&metaq_sim::Outcome) -> u64| outcomes.iter().map(of).sum::<u64>();
    assert!(sum(|outcome| outcome.acknowledged) > 50 * 50, "messages are acknowledged");
    assert!(sum(|outcome| outcome.under_quorum) > 50 * 10, "many by a quorum");
    assert!(sum(|outcome| outcome.reigns) > 50 * 2, "and reigns change");
    assert!(sum(|outcome| outcome.lost_unconfirmed) > 0, "and some messages were confirmed by nobody who came after");
}

/// Seeds that have found something. What they ran then may have changed since; they stay for what they may yet find.
#[test]
fn seeds_that_once_failed() {
    for (seed, what) in [
        (1, "a partition in doubt made the slave cut others, which it had followed into a reign it did not remember"),
        (1180, "a reign that began below the begin of the one before left a tail in place"),
        (2005, "a reign did not end a partition that its node did not hold"),
        (2341, "bytes beyond a wrong common end were compared, and the segments did not fit"),
        (13209, "a partition held back was forgotten when the master made it anew"),
    ] {
        assert_eq!(run(seed, Options::default()).violation, None, "seed {seed}: {what}");
    }
}
