//! Before the first byte is copied: what becomes of each own log, from both sides' reigns.
//!
//! A member of a quorum may be ahead of its master's own disk (`metaq_store::Positions`). When that master loses power,
//! starts again and begins its next reign at its own end, what the member has beyond was never acknowledged: an answer
//! waits for the master's disk as well, and what that had kept the next reign begins with. So such a tail is set aside
//! without asking anybody, if both sides bear it out: the reigns say that it was the master's own restart that ended the
//! log here, and the slave was never told that more than this was acknowledged. A master whose files were put back from
//! an older copy fails the second, and a successor that was promoted fails the first.

use metaq_types::{Kinship, Lineage, Offset, PartitionId};

/// One own log, and how far the master's reaches, where it has one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ends {
    pub partition: PartitionId,
    pub own: Offset,
    pub theirs: Option<Offset>,
    /// What the master last said to be acknowledged under a quorum; `None`: it asked for none, and then everything that
    /// it gave away was on its disk.
    pub acknowledged: Option<Offset>,
}

/// How the two pasts relate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Past {
    /// One of the two remembers nothing: the bytes have to be compared.
    Unknown,
    /// Both remember, and share nothing: the slave must not follow.
    Foreign,
    /// The logs that are not a prefix of the master's, each with what is to be done; all others are.
    Shared(Vec<(PartitionId, Verdict)>),
}

/// What becomes of a log that goes on where the master's is another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Set aside what lies from here on, and cut it.
    Cut { to: Offset },
    /// Leave it, and do not follow: the master has less than it once gave away, which a person has to look at.
    Hold { common: Offset },
}

/// A node cuts what it wrote itself while it reigned, and as the last master it knows of whatever its log goes on with:
/// its successor was promoted without that. What a slave was given by another it cuts if that was never acknowledged, else
/// only with `accept_divergence`.
pub fn judge(own: &Lineage, theirs: &Lineage, node: &str, accept_divergence: bool, logs: &[Ends]) -> Past {
    let shared = match Kinship::of(own, theirs) {
        Kinship::Unknown => return Past::Unknown,
        Kinship::Foreign => return Past::Foreign,
        Kinship::Shared(shared) => shared,
    };
    let reigned_last = own.newest().is_some_and(|newest| newest.node == node);
    let verdict = |log: &Ends| {
        let common = shared.common_end(&log.partition, log.own, log.theirs);
        if common >= log.own {
            return None;
        }
        let lost_before_its_answer =
            log.acknowledged.is_some_and(|to| to <= common) && shared.ended_by_restart(&log.partition, common);
        let wrote = reigned_last || shared.writer_of(&log.partition, common) == node;
        let cut = accept_divergence || wrote || lost_before_its_answer;
        let verdict = if cut { Verdict::Cut { to: common } } else { Verdict::Hold { common } };
        Some((log.partition.clone(), verdict))
    };
    Past::Shared(logs.iter().filter_map(verdict).collect())
}

/// Where the reigns part two logs, and where both begin: what the bytes behind may still say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Parting {
    /// By the reigns alone.
    pub common: Offset,
    pub kept: Offset,
    pub own_end: Offset,
    /// 0 where the master has no such log.
    pub master_first: Offset,
}

impl Parting {
    /// From where on the bytes are compared: what one of the two no longer has cannot be, what follows it can.
    pub fn compared_from(&self) -> Offset {
        let gone = Some(self.master_first).filter(|first| *first < self.own_end).unwrap_or_default();
        self.common.max(self.kept).max(gone)
    }

    /// Where the own log is to end when both are alike up to `alike`; `None`: it stays whole.
    pub fn cut_to(&self, alike: Offset) -> Option<Offset> {
        if alike >= self.own_end {
            return None;
        }
        let common = if alike > self.compared_from() { alike } else { self.common };
        Some(self.begin_if_empty(common))
    }

    /// A log that is left with nothing begins where a segment of the master begins, or before all of them: inside one it
    /// could not be followed.
    pub fn begin_if_empty(&self, to: Offset) -> Offset {
        if to <= self.kept { self.kept.min(self.master_first) } else { to }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(own: &str, theirs: &str, node: &str, accept: bool, ends: (u64, u64)) -> Past {
        judged_knowing(own, theirs, node, accept, ends, None)
    }

    fn judged_knowing(
        own: &str,
        theirs: &str,
        node: &str,
        accept: bool,
        ends: (u64, u64),
        acknowledged: Option<u64>,
    ) -> Past {
        let at = |offset| Offset::new(offset).unwrap();
        let (own_end, their_end, acknowledged) = (at(ends.0), at(ends.1), acknowledged.map(at));
        let master_end = Some(their_end);
        let log = Ends { partition: "t-0".parse().unwrap(), own: own_end, theirs: master_end, acknowledged };
        judge(&own.parse().unwrap(), &theirs.parse().unwrap(), node, accept, &[log])
    }

    #[test]
    fn what_a_node_wrote_is_cut_and_what_it_was_given_is_held() {
        let a = "epoch 1 node a began 0\n";
        let b = "epoch 1 node a began 0\nepoch 2 node b began 0\nstart t-0 80\n";
        let partition: PartitionId = "t-0".parse().unwrap();
        let to = Offset::new(80).unwrap();
        let cut = Past::Shared(vec![(partition.clone(), Verdict::Cut { to })]);
        assert_eq!(judged(a, b, "a", false, (100, 500)), cut);
        let held = Past::Shared(vec![(partition, Verdict::Hold { common: to })]);
        assert_eq!(judged(a, b, "c", false, (100, 500)), held);
        assert_eq!(judged(a, b, "c", true, (100, 500)), cut);
        assert_eq!(judged(a, b, "c", false, (80, 500)), Past::Shared(vec![]));
        // It reigned last, over what another had written and it had copied; its slave had not yet.
        let heir = "epoch 1 node x began 0\nepoch 2 node a began 0\nstart t-0 90\n";
        let next = format!("{heir}epoch 3 node b began 0\nstart t-0 80\n");
        assert_eq!(judged(heir, &next, "a", false, (100, 500)), cut);
        assert_eq!(judged(heir, &next, "c", false, (90, 500)), held);
        assert_eq!(judged("", b, "c", false, (80, 500)), Past::Unknown);
        assert_eq!(judged("epoch 1 node x began 0\n", b, "c", false, (80, 500)), Past::Foreign);
    }

    #[test]
    fn what_a_restarted_master_lost_before_its_answer_is_cut() {
        let own = "epoch 1 node a began 0\n";
        let restarted = "epoch 1 node a began 0\nepoch 2 node a began 0\nstart t-0 80\n";
        let partition: PartitionId = "t-0".parse().unwrap();
        let to = Offset::new(80).unwrap();
        let cut = Past::Shared(vec![(partition.clone(), Verdict::Cut { to })]);
        let held = Past::Shared(vec![(partition, Verdict::Hold { common: to })]);
        let judged = |theirs: &str, acknowledged| judged_knowing(own, theirs, "c", false, (100, 500), acknowledged);
        assert_eq!(judged(restarted, Some(80)), cut);
        assert_eq!(judged(restarted, Some(40)), cut);
        // Its files were put back from an older copy.
        assert_eq!(judged(restarted, Some(90)), held);
        // Without a quorum whatever was given away had been on the master's disk.
        assert_eq!(judged(restarted, None), held);
        let promoted = "epoch 1 node a began 0\nepoch 2 node b began 0\nstart t-0 80\n";
        assert_eq!(judged(promoted, Some(40)), held);
    }

    #[test]
    fn the_bytes_are_compared_where_both_have_them() {
        let at = |offset| Offset::new(offset).unwrap();
        let parting = |common, kept, master_first| Parting {
            common: at(common),
            kept: at(kept),
            own_end: at(900),
            master_first: at(master_first),
        };
        let case = |parting: Parting, alike| (parting.compared_from(), parting.cut_to(at(alike)));
        assert_eq!(case(parting(300, 0, 0), 900), (at(300), None));
        assert_eq!(case(parting(300, 0, 0), 500), (at(300), Some(at(500))));
        assert_eq!(case(parting(300, 0, 0), 300), (at(300), Some(at(300))));
        // The master no longer has what lies behind the end of what was common.
        assert_eq!(case(parting(300, 0, 600), 900), (at(600), None));
        assert_eq!(case(parting(300, 0, 600), 700), (at(600), Some(at(700))));
        assert_eq!(case(parting(300, 0, 600), 600), (at(600), Some(at(300))));
        assert_eq!(case(parting(300, 0, 2000), 300), (at(300), Some(at(300))), "nor anything of this log");
        // The own log begins behind it.
        assert_eq!(case(parting(300, 480, 0), 480), (at(480), Some(at(0))));
        assert_eq!(case(parting(300, 480, 240), 480), (at(480), Some(at(240))));
        assert_eq!(case(parting(300, 480, 2000), 480), (at(480), Some(at(480))));
        assert_eq!(case(parting(300, 480, 0), 700), (at(480), Some(at(700))));
        assert_eq!(case(parting(0, 0, 600), 600), (at(600), Some(at(0))));
    }
}
