use std::str::FromStr;

/// A rule that is broken on purpose, to see that the invariants notice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutation {
    /// A master acknowledges although its lease has run out.
    NoLease,
    /// A master acknowledges once it has written the fence, without waiting for the seat.
    NoSeat,
    /// Whoever starts without a slave id reigns, whatever the fence says.
    NoVerdict,
    /// A slave follows its new master with its own tail in place.
    NoCut,
    /// A slave takes over its master's past although a partition is held.
    AdoptInDoubt,
    /// A slave cuts, or holds, where reigns alone say so, whatever the bytes are.
    TrustReignsAlone,
    /// A put is acknowledged before it is synced, whatever the topic says.
    AckBeforeSync,
    /// A slave asks for what comes next before what it has is synced.
    ConfirmBeforeSync,
    /// A master welcomes slaves before its reign has begun.
    WelcomeBeforeReign,
    /// A reign names only the partitions that its node holds, although others exist.
    ForgetAbsentPartitions,
}

pub const MUTATIONS: [(&str, Mutation); 10] = [
    ("no-lease", Mutation::NoLease),
    ("no-seat", Mutation::NoSeat),
    ("no-verdict", Mutation::NoVerdict),
    ("no-cut", Mutation::NoCut),
    ("adopt-in-doubt", Mutation::AdoptInDoubt),
    ("trust-reigns-alone", Mutation::TrustReignsAlone),
    ("ack-before-sync", Mutation::AckBeforeSync),
    ("confirm-before-sync", Mutation::ConfirmBeforeSync),
    ("welcome-before-reign", Mutation::WelcomeBeforeReign),
    ("forget-absent-partitions", Mutation::ForgetAbsentPartitions),
];

impl FromStr for Mutation {
    type Err = String;

    fn from_str(name: &str) -> Result<Mutation, String> {
        let found = MUTATIONS.iter().find(|(known, _)| *known == name).map(|(_, mutation)| *mutation);
        let names: Vec<&str> = MUTATIONS.iter().map(|(name, _)| *name).collect();
        found.ok_or_else(|| format!("no mutation {name:?}; there are {}", names.join(", ")))
    }
}
