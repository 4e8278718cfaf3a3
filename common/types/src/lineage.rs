//! Who wrote which part of a log: the reigns a data directory has lived under.

use crate::{Offset, PartitionId};
use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

/// The number of a reign; grows with every start of a master. 0 stands for "none yet".
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Epoch(pub u64);

impl Epoch {
    #[must_use]
    pub const fn next(self) -> Epoch {
        Epoch(self.0 + 1)
    }
}

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// One master's time: everything it appended begins where `starts` says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reign {
    pub epoch: Epoch,
    /// The data directory of that master.
    pub node: String,
    pub began_unix_ms: u64,
    /// Where partitions ended when the reign began. A partition that is missing ended where it had at the begin of the
    /// reign before, so that idle partitions cost nothing; one that no reign names was empty.
    pub starts: BTreeMap<PartitionId, Offset>,
}

impl Reign {
    /// Two directories that name the same reign share what was written under it.
    pub fn is_same(&self, other: &Reign) -> bool {
        self.epoch == other.epoch && self.node == other.node
    }
}

/// The reigns of a data directory, oldest first, epochs growing. A slave takes over its master's.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lineage(Vec<Reign>);

/// Reigns remembered; older ones are forgotten, and with them the way back of a node that was away for so long.
pub const REIGNS_MAX: usize = 64;

impl Lineage {
    /// `None` when the epochs do not grow.
    pub fn new(reigns: Vec<Reign>) -> Option<Lineage> {
        reigns.is_sorted_by(|a, b| a.epoch < b.epoch).then_some(Lineage(reigns))
    }

    pub fn reigns(&self) -> &[Reign] {
        &self.0
    }

    pub fn newest(&self) -> Option<&Reign> {
        self.0.last()
    }

    pub fn epoch(&self) -> Epoch {
        self.newest().map_or(Epoch(0), |reign| reign.epoch)
    }

    /// Begins another reign, whose `starts` name every partition the node holds, and where it would let a removed one go
    /// on: one of the past that they do not name is not there (a slave took over the past and had not come to copy it) and
    /// so ends at 0. Of the starts only those are kept that are news. The oldest reigns are forgotten beyond
    /// [`REIGNS_MAX`].
    pub fn begin(&mut self, mut reign: Reign) {
        assert!(reign.epoch > self.epoch(), "epochs grow");
        for partition in self.0.iter().flat_map(|past| past.starts.keys()) {
            if !reign.starts.contains_key(partition) {
                reign.starts.insert(partition.clone(), Offset::ZERO);
            }
        }
        if let Some(newest) = self.0.len().checked_sub(1) {
            reign.starts.retain(|partition, start| self.start_of(newest, partition) != *start);
        }
        self.0.push(reign);
        while self.0.len() > REIGNS_MAX {
            let forgotten = self.0.remove(0);
            for (partition, start) in forgotten.starts {
                self.0[0].starts.entry(partition).or_insert(start);
            }
        }
    }

    /// Where each partition ended when the newest reign began.
    pub fn starts(&self) -> BTreeMap<PartitionId, Offset> {
        let mut starts = BTreeMap::new();
        for reign in &self.0 {
            starts.extend(reign.starts.iter().map(|(partition, start)| (partition.clone(), *start)));
        }
        starts
    }

    /// Where a partition ended when the reign at `index` began.
    fn start_of(&self, index: usize, partition: &PartitionId) -> Offset {
        let named = self.0[..=index].iter().rev().find_map(|reign| reign.starts.get(partition));
        named.copied().unwrap_or(Offset::ZERO)
    }

    /// Up to where a partition still is what it was in the reign at `index`; `None` while that is the newest.
    ///
    /// Not simply where the next reign began: a slave takes over its master's past before it holds all of it, and one
    /// that is promoted then begins its reign before the point at which the reign before had begun.
    fn end_of(&self, index: usize, partition: &PartitionId) -> Option<Offset> {
        (index + 1..self.0.len()).map(|later| self.start_of(later, partition)).min()
    }
}

/// The form on disk and on the wire: a line `epoch N node ID began MS` a reign, oldest first, each followed by its
/// `start PARTITION OFFSET` lines.
impl fmt::Display for Lineage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for Reign { epoch, node, began_unix_ms, starts } in &self.0 {
            writeln!(f, "epoch {epoch} node {node} began {began_unix_ms}")?;
            for (partition, start) in starts {
                writeln!(f, "start {partition} {start}")?;
            }
        }
        Ok(())
    }
}

/// A line that is not of a lineage's form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LineageTextError(String);

impl fmt::Display for LineageTextError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "not a line of a lineage: {:?}", self.0)
    }
}

impl std::error::Error for LineageTextError {}

impl FromStr for Lineage {
    type Err = LineageTextError;

    fn from_str(text: &str) -> Result<Lineage, LineageTextError> {
        let mut reigns = Vec::<Reign>::new();
        for line in text.lines() {
            take_line(&mut reigns, line).ok_or_else(|| LineageTextError(line.to_owned()))?;
        }
        Lineage::new(reigns).ok_or_else(|| LineageTextError("epochs that do not grow".to_owned()))
    }
}

fn take_line(reigns: &mut Vec<Reign>, line: &str) -> Option<()> {
    let words: Vec<&str> = line.split(' ').collect();
    match words[..] {
        ["epoch", epoch, "node", node, "began", began] => reigns.push(Reign {
            epoch: Epoch(epoch.parse().ok()?),
            node: node.to_owned(),
            began_unix_ms: began.parse().ok()?,
            starts: BTreeMap::new(),
        }),
        ["start", partition, offset] => {
            let start = Offset::new(offset.parse().ok()?)?;
            reigns.last_mut()?.starts.insert(partition.parse().ok()?, start);
        }
        _ => return None,
    }
    Some(())
}

/// How one directory's past relates to another's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kinship<'a> {
    /// One of the two remembers nothing: only the bytes can tell.
    Unknown,
    /// Both remember, and share no reign.
    Foreign,
    /// Up to `ours` and `theirs`, positions in each list, it is the same past.
    Shared(Shared<'a>),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shared<'a> {
    own: &'a Lineage,
    theirs: &'a Lineage,
    own_index: usize,
    their_index: usize,
}

impl<'a> Kinship<'a> {
    /// Compares from newest to oldest.
    pub fn of(own: &'a Lineage, theirs: &'a Lineage) -> Kinship<'a> {
        if own.0.is_empty() || theirs.0.is_empty() {
            return Kinship::Unknown;
        }
        for (own_index, reign) in own.0.iter().enumerate().rev() {
            if let Some(their_index) = theirs.0.iter().rposition(|other| other.is_same(reign)) {
                return Kinship::Shared(Shared { own, theirs, own_index, their_index });
            }
        }
        Kinship::Foreign
    }
}

impl Shared<'_> {
    /// The newest reign both remember.
    pub fn reign(&self) -> &Reign {
        &self.own.0[self.own_index]
    }

    /// Whether the other side has had no reign since: it may still be in it.
    pub fn is_their_newest(&self) -> bool {
        self.their_index + 1 == self.theirs.0.len()
    }

    /// Up to where two logs of a partition that end at `own_end` and `their_end` hold the same bytes. Without a log of
    /// theirs: up to where their newest reign would let it go on.
    pub fn common_end(&self, partition: &PartitionId, own_end: Offset, their_end: Option<Offset>) -> Offset {
        let their_end = their_end.unwrap_or_else(|| self.theirs.start_of(self.theirs.0.len() - 1, partition));
        let own = self.own.end_of(self.own_index, partition).map_or(own_end, |end| end.min(own_end));
        let theirs = self.theirs.end_of(self.their_index, partition).map_or(their_end, |end| end.min(their_end));
        own.min(theirs)
    }

    /// Whether it was its own restart that made a partition of the shared reign end at `end`: the same node reigned on
    /// from there, with all of that reign that its disk had kept.
    pub fn ended_by_restart(&self, partition: &PartitionId, end: Offset) -> bool {
        let next = self.their_index + 1;
        let reigned_on = self.theirs.0.get(next).is_some_and(|reign| reign.node == self.reign().node);
        reigned_on && self.theirs.start_of(next, partition) == end
    }

    /// Who wrote the own bytes from `from` on: the node of the newest own reign that had begun by then.
    pub fn writer_of(&self, partition: &PartitionId, from: Offset) -> &str {
        let begun = (0..self.own.0.len()).rev().find(|index| self.own.start_of(*index, partition) <= from);
        &self.own.0[begun.unwrap_or(self.own_index)].node
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn partition() -> PartitionId {
        "t-0".parse().unwrap()
    }

    fn at(offset: u64) -> Offset {
        Offset::new(offset).unwrap()
    }

    /// Reigns as (epoch, node, start of t-0).
    fn lineage(reigns: &[(u64, &str, u64)]) -> Lineage {
        let reign = |(epoch, node, start): &(u64, &str, u64)| Reign {
            epoch: Epoch(*epoch),
            node: (*node).to_owned(),
            began_unix_ms: 0,
            starts: BTreeMap::from([(partition(), at(*start))]),
        };
        Lineage::new(reigns.iter().map(reign).collect()).unwrap()
    }

    fn common(own: &[(u64, &str, u64)], own_end: u64, theirs: &[(u64, &str, u64)], their_end: u64) -> Option<u64> {
        let (own, theirs) = (lineage(own), lineage(theirs));
        match Kinship::of(&own, &theirs) {
            Kinship::Shared(shared) => Some(shared.common_end(&partition(), at(own_end), Some(at(their_end))).get()),
            Kinship::Foreign | Kinship::Unknown => None,
        }
    }

    #[test]
    fn an_old_master_keeps_what_its_successor_had() {
        // B was promoted at 80; A had written up to 100.
        assert_eq!(common(&[(1, "a", 0)], 100, &[(1, "a", 0), (2, "b", 80)], 500), Some(80));
        // A came to life once more, alone, before it joined.
        assert_eq!(common(&[(1, "a", 0), (2, "a", 100)], 130, &[(1, "a", 0), (2, "b", 80)], 500), Some(80));
        // B had been promoted after A lost nothing.
        assert_eq!(common(&[(1, "a", 0)], 100, &[(1, "a", 0), (2, "b", 100)], 500), Some(100));
    }

    #[test]
    fn a_successor_that_was_behind_ends_every_reign_before() {
        // C took over the past of B, had copied up to 60 of it, and was promoted: what A and B wrote behind that is gone.
        let theirs = [(1, "a", 0), (2, "b", 80), (3, "c", 60)];
        assert_eq!(common(&[(1, "a", 0)], 100, &theirs, 500), Some(60));
        assert_eq!(common(&[(1, "a", 0), (2, "b", 80)], 300, &theirs, 500), Some(60));
        assert_eq!(common(&theirs, 500, &[(1, "a", 0)], 100), Some(60));
    }

    #[test]
    fn a_slave_that_is_merely_behind_has_nothing_to_cut() {
        assert_eq!(common(&[(1, "a", 0)], 60, &[(1, "a", 0), (2, "b", 80), (3, "b", 90)], 500), Some(60));
        assert_eq!(common(&[(1, "a", 0)], 60, &[(1, "a", 0)], 70), Some(60));
    }

    #[test]
    fn a_master_restored_from_an_older_copy_ends_before_its_slave() {
        assert_eq!(common(&[(1, "a", 0), (2, "a", 50)], 100, &[(1, "a", 0), (3, "a", 40)], 45), Some(40));
        assert_eq!(common(&[(1, "a", 0)], 100, &[(1, "a", 0)], 90), Some(90));
    }

    #[test]
    fn a_partition_made_in_a_later_reign_was_empty_before() {
        let (mut own, mut theirs) = (lineage(&[(1, "a", 0)]), lineage(&[(1, "a", 0), (2, "b", 0)]));
        own.0.iter_mut().chain(&mut theirs.0).for_each(|reign| reign.starts.clear());
        let Kinship::Shared(shared) = Kinship::of(&own, &theirs) else { panic!("they share a reign") };
        assert_eq!(shared.common_end(&partition(), at(10), Some(at(50))), at(0));
    }

    /// A removed it, knows that it ended at 100, and would go on there.
    #[test]
    fn a_log_that_was_removed_is_common_up_to_where_it_would_go_on() {
        let common = |theirs: &[(u64, &str, u64)]| {
            let (own, theirs) = (lineage(&[(1, "a", 0)]), lineage(theirs));
            let Kinship::Shared(shared) = Kinship::of(&own, &theirs) else { panic!("they share a reign") };
            shared.common_end(&partition(), at(130), None).get()
        };
        assert_eq!(common(&[(1, "a", 0), (2, "a", 100)]), 100);
        assert_eq!(common(&[(1, "a", 0), (2, "a", 100), (3, "a", 0)]), 0, "it is to begin at 0 again");
        assert_eq!(common(&[(1, "a", 0), (2, "a", 0)]), 0, "nobody knows where it ended");
        assert_eq!(common(&[(1, "a", 70)]), 70, "not served at the moment");
    }

    #[test]
    fn its_text_is_read_back() {
        let some = lineage(&[(1, "a", 0), (2, "b", 80)]);
        assert_eq!(some.to_string(), "epoch 1 node a began 0\nstart t-0 0\nepoch 2 node b began 0\nstart t-0 80\n");
        assert_eq!(some.to_string().parse::<Lineage>().unwrap(), some);
        assert_eq!("".parse::<Lineage>().unwrap(), Lineage::default());
        for bad in [
            "start t-0 1",
            "epoch x node a began 0",
            "epoch 1 node a",
            "what",
            "epoch 2 node a began 0\nepoch 1 node a began 0",
        ] {
            assert!(bad.parse::<Lineage>().is_err(), "{bad}");
        }
    }

    #[test]
    fn strangers_and_the_forgetful() {
        assert_eq!(common(&[(1, "a", 0)], 10, &[(1, "c", 0), (2, "b", 0)], 10), None);
        let (none, some) = (Lineage::default(), lineage(&[(1, "a", 0)]));
        assert_eq!(Kinship::of(&none, &some), Kinship::Unknown);
        assert_eq!(Kinship::of(&some, &none), Kinship::Unknown);
    }

    #[test]
    fn the_writer_of_a_tail_is_known() {
        let (own, theirs) = (lineage(&[(1, "a", 0), (2, "b", 80)]), lineage(&[(1, "a", 0), (3, "c", 60)]));
        let Kinship::Shared(shared) = Kinship::of(&own, &theirs) else { panic!("they share a reign") };
        assert_eq!(shared.writer_of(&partition(), at(60)), "a");
        assert_eq!(shared.writer_of(&partition(), at(80)), "b");
    }

    #[test]
    fn the_end_that_a_restart_made_is_known() {
        let ended = |own: &[(u64, &str, u64)], theirs: &[(u64, &str, u64)], end: u64| {
            let (own, theirs) = (lineage(own), lineage(theirs));
            let Kinship::Shared(shared) = Kinship::of(&own, &theirs) else { panic!("they share a reign") };
            shared.ended_by_restart(&partition(), at(end))
        };
        let own = [(1, "a", 0)];
        assert!(ended(&own, &[(1, "a", 0), (2, "a", 80)], 80));
        // Whoever came later began at or behind that.
        assert!(ended(&own, &[(1, "a", 0), (2, "a", 80), (3, "b", 90)], 80));
        // Another was promoted, or the reign after the next began before it.
        assert!(!ended(&own, &[(1, "a", 0), (2, "b", 80)], 80));
        assert!(!ended(&own, &[(1, "a", 0), (2, "a", 80), (3, "b", 60)], 60));
        assert!(!ended(&own, &own, 80), "it reigns still");
    }

    /// B took over the past of A, where t-0 reached to 80, and was promoted before it had copied any of it.
    #[test]
    fn a_partition_that_a_successor_does_not_hold_ends_at_zero() {
        let old = lineage(&[(1, "a", 0), (2, "a", 80)]);
        let mut new = old.clone();
        new.begin(Reign { epoch: Epoch(3), node: "b".into(), began_unix_ms: 0, starts: BTreeMap::new() });
        let Kinship::Shared(shared) = Kinship::of(&old, &new) else { panic!("they share a reign") };
        assert_eq!(shared.common_end(&partition(), at(300), Some(at(500))), at(0));
    }

    #[test]
    fn old_reigns_are_forgotten_and_what_did_not_change_is_not_repeated() {
        let mut lineage = Lineage::default();
        for epoch in 1..=70 {
            let starts = BTreeMap::from([(partition(), at(7)), ("busy-0".parse().unwrap(), at(epoch))]);
            lineage.begin(Reign { epoch: Epoch(epoch), node: "a".into(), began_unix_ms: 0, starts });
        }
        assert_eq!(lineage.reigns()[0].starts.len(), 2, "what a forgotten reign said is remembered by the next");
        assert!(lineage.reigns()[1..].iter().all(|reign| reign.starts.len() == 1));
        assert_eq!(lineage.start_of(REIGNS_MAX - 1, &partition()), at(7));
        assert_eq!(lineage.starts(), BTreeMap::from([(partition(), at(7)), ("busy-0".parse().unwrap(), at(70))]));
        assert_eq!(lineage.reigns().len(), REIGNS_MAX);
        assert_eq!((lineage.reigns()[0].epoch, lineage.epoch()), (Epoch(7), Epoch(70)));
        assert!(Lineage::new(lineage.reigns().iter().rev().cloned().collect()).is_none());
    }
}
