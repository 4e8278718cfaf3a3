//! Breaking a rule is noticed: an invariant that no mutation violates would prove nothing.

use metaq_sim::{MUTATIONS, Mutation, Options, run};
use std::ops::Range;

/// In some seed among so many; most show in the first few.
const SEEDS: u64 = 500;

/// Two show in one of some hundreds or thousands: `metaq-sim --mutation NAME` finds where, when the simulation changes.
fn seeds(mutation: Mutation) -> Range<u64> {
    let first = match mutation {
        Mutation::NoSeat => 1_200,
        Mutation::ForgetAbsentPartitions => 8_700,
        _ => 0,
    };
    first..first + SEEDS
}

fn first_violation(mutation: Mutation) -> Option<String> {
    let options = Options { mutation: Some(mutation), ..Options::default() };
    seeds(mutation).find_map(|seed| run(seed, options).violation)
}

#[test]
fn every_broken_rule_is_noticed() {
    let unnoticed: Vec<&str> =
        MUTATIONS.iter().filter(|(_, mutation)| first_violation(*mutation).is_none()).map(|(name, _)| *name).collect();
    assert!(unnoticed.is_empty(), "none of {SEEDS} seeds shows {unnoticed:?}");
}

#[test]
fn the_violation_names_what_the_rule_protects() {
    for (mutation, name) in [
        (Mutation::NoLease, "two masters acknowledge"),
        (Mutation::NoSeat, "two masters acknowledge"),
        (Mutation::NoVerdict, "a confirmed message is lost"),
        (Mutation::AckBeforeSync, "a confirmed message is lost"),
        (Mutation::NoCut, "a slave is not its master's prefix"),
        (Mutation::ForgetAbsentPartitions, "a slave is not its master's prefix"),
        (Mutation::TrustReignsAlone, "a confirmed message is cut"),
        (Mutation::ConfirmBeforeSync, "a slave confirms what it does not hold"),
        (Mutation::AckUnconfirmed, "no quorum holds what is acknowledged"),
        (Mutation::StoreWithoutMembers, "a put is stored without enough members"),
        (Mutation::CountBeforeLevel, "somebody counts who must not"),
        (Mutation::CountBeyondEnd, "somebody counts who must not"),
        (Mutation::AskNobody, "an acknowledged message is lost"),
        (Mutation::AskOnce, "an acknowledged message is lost"),
        (Mutation::IgnoreDoubts, "an acknowledged message is lost"),
        (Mutation::ReadUnconfirmed, "what was read is lost"),
        (Mutation::NeverGiveUp, "a put waits too long"),
        (Mutation::RetireUnconfirmed, "deleted too early"),
        (Mutation::SlaveRetires, "deleted too early"),
        (Mutation::AcceptGaps, "a gap is not accepted"),
    ] {
        let options = Options { mutation: Some(mutation), ..Options::default() };
        let named = seeds(mutation).any(|seed| run(seed, options).violation.is_some_and(|v| v.starts_with(name)));
        assert!(named, "{mutation:?} never shows as {name:?} in {SEEDS} seeds");
    }
}
