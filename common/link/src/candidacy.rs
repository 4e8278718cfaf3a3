//! Whether a slave of a quorum holds everything that was acknowledged, by counting: a plain function of its record and of
//! what the other members answer.
//!
//! Everything acknowledged is held by `quorum` members. When fewer than `quorum - 1` of the slaves that counted cannot be
//! asked, at least one of those that answer holds all of it, for each partition; and since the logs of one reign are
//! prefixes of each other, whoever is furthest does.
//!
//! That is so for what was acknowledged in the reign the candidate lives in. What was before, others may hold; but all of
//! it lies before the point at which that reign began, and a candidate that has not come so far is refused.

use std::collections::BTreeMap;

use metaq_types::{Epoch, Offset, PartitionId};

use crate::members::KnownMember;
use crate::promotion::Record;

/// Doubts about single partitions that are named; the others are counted.
const NAMED_MAX: usize = 5;

/// The slave that is to be promoted.
#[derive(Clone, Copy, Debug)]
pub struct Candidate<'a> {
    pub record: &'a Record,
    pub node: &'a str,
    /// The reign it lives in: that of the master it followed.
    pub epoch: Epoch,
    pub ends: &'a BTreeMap<PartitionId, Offset>,
    /// Where its master ended when that reign began.
    pub starts: &'a BTreeMap<PartitionId, Offset>,
}

/// What another slave of the same master answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    Ends {
        epoch: Epoch,
        ends: BTreeMap<PartitionId, Offset>,
    },
    /// Nothing, for this reason.
    Silent(String),
}

/// Why the candidate may lack something that was acknowledged, in words; empty: it lacks nothing. `others` are the other
/// members it knows, and whoever else was found.
pub fn doubts(candidate: Candidate<'_>, others: &[(KnownMember, Answer)]) -> Vec<String> {
    let Candidate { record, node, epoch, ends, starts } = candidate;
    let mut doubts = Vec::new();
    if !record.members.iter().any(|member| member.is(record.slave_id, node)) {
        doubts.push("its master has never counted it among those who hold what was acknowledged".to_owned());
    }
    let known = record.partitions.iter().filter_map(|(name, known)| {
        let (partition, confirmed) = (name.parse::<PartitionId>().ok()?, Offset::new(known.confirmed?)?);
        let own = ends.get(&partition).copied().unwrap_or_default();
        let lacks = confirmed.bytes_since(own);
        (lacks > 0).then(|| format!("{partition} lacks {lacks} bytes that were acknowledged"))
    });
    add(&mut doubts, known.collect());
    let begun = starts.iter().filter_map(|(partition, start)| {
        let lacks = start.bytes_since(ends.get(partition).copied().unwrap_or_default());
        (lacks > 0).then(|| format!("{partition} lacks {lacks} bytes that its master had when epoch {epoch} began"))
    });
    add(&mut doubts, begun.collect());
    for (member, answer) in others {
        match answer {
            Answer::Ends { epoch: theirs, .. } if *theirs > epoch => doubts.push(format!(
                "slave {} ({}) lives in epoch {theirs}, later than ours ({epoch}): it has followed a newer master",
                member.slave_id, member.uri
            )),
            // Of an earlier reign: it holds nothing that was acknowledged in this one.
            Answer::Ends { epoch: theirs, .. } if *theirs < epoch => {}
            Answer::Ends { ends: theirs, .. } => add(&mut doubts, ahead(member, theirs, ends)),
            Answer::Silent(_) => {}
        }
    }
    doubts.extend(unheard(record, node, others));
    doubts
}

fn ahead(
    member: &KnownMember,
    theirs: &BTreeMap<PartitionId, Offset>,
    own: &BTreeMap<PartitionId, Offset>,
) -> Vec<String> {
    let more = theirs.iter().filter_map(|(partition, end)| {
        let bytes = end.bytes_since(own.get(partition).copied().unwrap_or_default());
        let KnownMember { slave_id, uri, .. } = member;
        (bytes > 0).then(|| format!("slave {slave_id} ({uri}) holds {bytes} bytes more of {partition}"))
    });
    more.collect()
}

fn add(doubts: &mut Vec<String>, mut more: Vec<String>) {
    let left = more.len().saturating_sub(NAMED_MAX);
    more.truncate(NAMED_MAX);
    doubts.append(&mut more);
    if left > 0 {
        doubts.push(format!("and {left} more partitions"));
    }
}

/// Members that nobody could ask, when they are so many that they may hold something alone.
fn unheard(record: &Record, node: &str, others: &[(KnownMember, Answer)]) -> Option<String> {
    let heard = |member: &KnownMember| {
        let same = |(other, answer): &(KnownMember, Answer)| {
            other.is(member.slave_id, &member.node) && matches!(answer, Answer::Ends { .. })
        };
        others.iter().any(same)
    };
    let unheard: Vec<&KnownMember> =
        record.members.iter().filter(|member| !member.is(record.slave_id, node) && !heard(member)).collect();
    if (unheard.len() as u32) < record.quorum.saturating_sub(1) {
        return None;
    }
    let reason = |member: &KnownMember| {
        let told = others.iter().find_map(|(other, answer)| match answer {
            Answer::Silent(reason) if other.is(member.slave_id, &member.node) => Some(reason.as_str()),
            _ => None,
        });
        format!("slave {} ({}): {}", member.slave_id, member.uri, told.unwrap_or("it was not asked"))
    };
    let named: Vec<String> = unheard.into_iter().map(reason).collect();
    Some(format!("who may hold acknowledged messages alone cannot be asked: {}", named.join("; ")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::promotion::Known;

    fn member(slave_id: u32) -> KnownMember {
        KnownMember { slave_id, node: format!("n{slave_id}"), uri: format!("meta://h:{slave_id}") }
    }

    fn ends(ends: &[(&str, u64)]) -> BTreeMap<PartitionId, Offset> {
        ends.iter().map(|(name, end)| (name.parse().unwrap(), Offset::new(*end).unwrap())).collect()
    }

    /// Slave 0 of a master that asked `quorum` members and counted these slaves, with confirmed ends.
    fn record(quorum: u32, members: &[u32], confirmed: &[(&str, u64)]) -> Record {
        let known = |(name, end): &(&str, u64)| {
            ((*name).to_owned(), Known { end: *end, confirmed: Some(*end), ..Known::default() })
        };
        Record {
            quorum,
            members: members.iter().map(|id| member(*id)).collect(),
            partitions: confirmed.iter().map(known).collect(),
            ..Record::default()
        }
    }

    fn check(record: &Record, own: &[(&str, u64)], others: &[(u32, Answer)]) -> Vec<String> {
        let (own, starts) = (ends(own), BTreeMap::new());
        let others: Vec<_> = others.iter().map(|(id, answer)| (member(*id), answer.clone())).collect();
        doubts(Candidate { record, node: "n0", epoch: Epoch(5), ends: &own, starts: &starts }, &others)
    }

    fn at(epoch: u64, of: &[(&str, u64)]) -> Answer {
        Answer::Ends { epoch: Epoch(epoch), ends: ends(of) }
    }

    fn silent() -> Answer {
        Answer::Silent("connection refused".to_owned())
    }

    #[test]
    fn the_only_slave_of_a_quorum_of_two_holds_everything() {
        let record = record(2, &[0], &[("t-0", 90)]);
        assert_eq!(check(&record, &[("t-0", 100)], &[]), [""; 0]);
        let lacking = check(&record, &[("t-0", 70)], &[]);
        assert_eq!(lacking, ["t-0 lacks 20 bytes that were acknowledged"]);
    }

    #[test]
    fn the_furthest_of_those_who_answer_holds_everything() {
        let record = record(2, &[0, 1], &[("t-0", 90)]);
        assert_eq!(check(&record, &[("t-0", 100)], &[(1, at(5, &[("t-0", 95)]))]), [""; 0]);
        let behind = check(&record, &[("t-0", 100)], &[(1, at(5, &[("t-0", 120), ("u-0", 7)]))]);
        assert_eq!(
            behind,
            ["slave 1 (meta://h:1) holds 20 bytes more of t-0", "slave 1 (meta://h:1) holds 7 bytes more of u-0"]
        );
        let many: Vec<(String, u64)> = (0..9).map(|n| (format!("m-{n}"), 1)).collect();
        let many: Vec<(&str, u64)> = many.iter().map(|(name, end)| (name.as_str(), *end)).collect();
        let behind = check(&record, &[("t-0", 100)], &[(1, at(5, &many))]);
        assert_eq!((behind.len(), behind[5].as_str()), (6, "and 4 more partitions"));
    }

    /// It joined the reign that its master began after a restart, and was cut off before it had copied what the last one
    /// had left: that may be held by others, who have not joined.
    #[test]
    fn what_the_reign_began_with_is_not_missing_either() {
        let record = record(2, &[0], &[]);
        let (own, starts) = (ends(&[("t-0", 70), ("u-0", 50)]), ends(&[("t-0", 100), ("u-0", 50), ("new-0", 9)]));
        let candidate = Candidate { record: &record, node: "n0", epoch: Epoch(5), ends: &own, starts: &starts };
        assert_eq!(
            doubts(candidate, &[]),
            [
                "new-0 lacks 9 bytes that its master had when epoch 5 began",
                "t-0 lacks 30 bytes that its master had when epoch 5 began"
            ]
        );
    }

    #[test]
    fn who_cannot_be_asked_counts() {
        let two = record(2, &[0, 1], &[("t-0", 90)]);
        let text = check(&two, &[("t-0", 100)], &[(1, silent())]).join("");
        assert!(text.contains("slave 1 (meta://h:1): connection refused"), "{text}");
        assert!(check(&two, &[("t-0", 100)], &[]).join("").contains("it was not asked"));
        // Of a quorum of three, with two slaves, each of them holds all.
        let three = record(3, &[0, 1], &[("t-0", 90)]);
        assert_eq!(check(&three, &[("t-0", 100)], &[(1, silent())]), [""; 0]);
        let three = record(3, &[0, 1, 2], &[("t-0", 90)]);
        assert_eq!(check(&three, &[("t-0", 100)], &[(1, silent()), (2, at(5, &[("t-0", 95)]))]), [""; 0]);
        assert_eq!(check(&three, &[("t-0", 100)], &[(1, silent()), (2, silent())]).len(), 1);
    }

    #[test]
    fn whoever_was_never_counted_is_no_heir() {
        let text = check(&record(2, &[1], &[]), &[], &[(1, at(5, &[]))]).join("");
        assert!(text.contains("never counted it"), "{text}");
        let mut other_directory = record(2, &[0], &[]);
        other_directory.members[0].node = "n7".to_owned();
        let text = check(&other_directory, &[], &[]).join("");
        assert!(text.contains("never counted it") && text.contains("slave 0 (meta://h:0): it was not asked"), "{text}");
    }

    #[test]
    fn other_reigns_are_told_apart() {
        let record = record(2, &[0, 1], &[("t-0", 90)]);
        assert_eq!(check(&record, &[("t-0", 100)], &[(1, at(4, &[("t-0", 999)]))]), [""; 0], "its tail was never ours");
        let text = check(&record, &[("t-0", 100)], &[(1, at(6, &[]))]).join("");
        assert!(text.contains("lives in epoch 6, later than ours (5)"), "{text}");
    }
}
