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
    /// A put is acknowledged although its quorum does not hold it.
    AckUnconfirmed,
    /// A put is stored although there are not enough members.
    StoreWithoutMembers,
    /// A slave counts that has not settled its past with its master.
    CountOtherReigns,
    /// A slave counts before the others have heard of it.
    CountUnknownMembers,
    /// A slave counts before it was level.
    CountBeforeLevel,
    /// A claim to hold more than there is counts as one to hold all.
    CountBeyondEnd,
    /// A slave that has once been counted out is not heard again.
    ForgetReturns,
    /// Slaves are told what members hold, and not what the master's own disk holds as well.
    TellUnsynced,
    /// A put waits for its quorum for ever.
    NeverGiveUp,
    /// Consumers read what the quorum does not hold.
    ReadUnconfirmed,
    /// A node that starts shows all that it has.
    ShowAllAtStart,
    /// A slave is promoted without asking the other members.
    AskNobody,
    /// A slave is promoted that has asked the others only while its old master could still acknowledge.
    AskOnce,
    /// A slave is promoted although it may lack something that was acknowledged.
    IgnoreDoubts,
    /// A master lets segments go that the quorum does not hold.
    RetireUnconfirmed,
    /// A slave lets segments go that its master has.
    SlaveRetires,
    /// A node reigns over a gap that nobody has accepted.
    AcceptGaps,
}

pub const MUTATIONS: [(&str, Mutation); 27] = [
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
    ("ack-unconfirmed", Mutation::AckUnconfirmed),
    ("store-without-members", Mutation::StoreWithoutMembers),
    ("count-other-reigns", Mutation::CountOtherReigns),
    ("count-unknown-members", Mutation::CountUnknownMembers),
    ("count-before-level", Mutation::CountBeforeLevel),
    ("count-beyond-end", Mutation::CountBeyondEnd),
    ("forget-returns", Mutation::ForgetReturns),
    ("tell-unsynced", Mutation::TellUnsynced),
    ("never-give-up", Mutation::NeverGiveUp),
    ("read-unconfirmed", Mutation::ReadUnconfirmed),
    ("show-all-at-start", Mutation::ShowAllAtStart),
    ("ask-nobody", Mutation::AskNobody),
    ("ask-once", Mutation::AskOnce),
    ("ignore-doubts", Mutation::IgnoreDoubts),
    ("retire-unconfirmed", Mutation::RetireUnconfirmed),
    ("slave-retires", Mutation::SlaveRetires),
    ("accept-gaps", Mutation::AcceptGaps),
];

impl FromStr for Mutation {
    type Err = String;

    fn from_str(name: &str) -> Result<Mutation, String> {
        let found = MUTATIONS.iter().find(|(known, _)| *known == name).map(|(_, mutation)| *mutation);
        let names: Vec<&str> = MUTATIONS.iter().map(|(name, _)| *name).collect();
        found.ok_or_else(|| format!("no mutation {name:?}; there are {}", names.join(", ")))
    }
}
