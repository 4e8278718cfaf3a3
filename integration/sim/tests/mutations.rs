//! Breaking a rule is noticed: an invariant that no mutation violates would prove nothing.

use metaq_sim::{MUTATIONS, Mutation, Options, run};

/// In some seed among these; most show in the first few.
const SEEDS: u64 = 500;

fn first_violation(mutation: Mutation) -> Option<String> {
    let options = Options { mutation: Some(mutation), ..Options::default() };
    (0..SEEDS).find_map(|seed| run(seed, options).violation)
}

#[test]
fn every_broken_rule_is_noticed() {
    let unnoticed: Vec<&str> =
        MUTATIONS.iter().filter(|(_, mutation)| first_violation(*mutation).is_none()).map(|(name, _)| *name).collect();
    assert!(unnoticed.is_empty(), "no seed below {SEEDS} shows {unnoticed:?}");
}

#[test]
fn the_violation_names_what_the_rule_protects() {
    for (mutation, name) in [
        (Mutation::NoLease, "two masters acknowledge"),
        (Mutation::NoSeat, "two masters acknowledge"),
        (Mutation::NoVerdict, "a confirmed message is lost"),
        (Mutation::AckBeforeSync, "a confirmed message is lost"),
        (Mutation::NoCut, "a slave is not its master's prefix"),
        (Mutation::TrustReignsAlone, "a confirmed message is cut"),
        (Mutation::ConfirmBeforeSync, "a slave confirms what it does not hold"),
        (Mutation::AckUnconfirmed, "no quorum holds what is acknowledged"),
        (Mutation::StoreWithoutMembers, "a put is stored without enough members"),
        (Mutation::CountBeforeLevel, "somebody counts who must not"),
        (Mutation::CountBeyondEnd, "somebody counts who must not"),
        (Mutation::AskNobody, "an acknowledged message is lost"),
        (Mutation::IgnoreDoubts, "an acknowledged message is lost"),
        (Mutation::ReadUnconfirmed, "what was read is lost"),
        (Mutation::NeverGiveUp, "a put waits too long"),
        (Mutation::RetireUnconfirmed, "deleted too early"),
        (Mutation::SlaveRetires, "deleted too early"),
        (Mutation::AcceptGaps, "a gap is not accepted"),
    ] {
        let options = Options { mutation: Some(mutation), ..Options::default() };
        let named = (0..SEEDS).any(|seed| run(seed, options).violation.is_some_and(|v| v.starts_with(name)));
        assert!(named, "{mutation:?} never shows as {name:?} in {SEEDS} seeds");
    }
}
