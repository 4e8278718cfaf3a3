//! Nobody counts in a quorum who has not greeted this master, does not live in its reign, or was never level with it, and
//! nobody is taken to hold more than there is.

use crate::master::slave_id;
use crate::node::{NAMES, Node};
use metaq_types::{Offset, PartitionId};
use std::collections::BTreeMap;

#[derive(Debug, Default)]
pub(crate) struct Members {
    /// By master and slave, since the slave connected last.
    seen: BTreeMap<(usize, usize), BTreeMap<PartitionId, Seen>>,
}

#[derive(Debug, Default)]
struct Seen {
    level: bool,
    /// Where the master ended at the last get.
    goal: Option<Offset>,
}

impl Members {
    pub(crate) fn on_connect(&mut self, master: usize, slave: usize) {
        self.seen.remove(&(master, slave));
    }

    pub(crate) fn on_get(&mut self, link: (usize, usize), partition: &PartitionId, offset: Offset, end: Offset) {
        let seen = self.seen.entry(link).or_default().entry(partition.clone()).or_default();
        if offset > end {
            *seen = Seen::default();
            return;
        }
        seen.level |= offset == end || seen.goal.is_some_and(|goal| offset >= goal);
        seen.goal = Some(end);
    }

    /// The log holds nothing, and so does everybody who is there.
    pub(crate) fn on_empty(&mut self, master: usize, slaves: impl Iterator<Item = usize>, partition: &PartitionId) {
        for slave in slaves {
            self.seen.entry((master, slave)).or_default().entry(partition.clone()).or_default().level = true;
        }
    }

    pub(super) fn inspect(&self, nodes: &[Node]) -> Result<(), String> {
        for ((at, node), name) in nodes.iter().enumerate().zip(NAMES) {
            let Some((master, epoch)) = node.master().and_then(|master| Some((master, master.epoch?))) else {
                continue;
            };
            for standing in master.quorums.standings() {
                let partition = &standing.partition;
                let log = node.disk.logs.get(partition);
                let (first, end) = log.map_or_else(Default::default, |log| (log.first(), log.end()));
                for (id, held) in &standing.in_sync {
                    let place = (0..nodes.len()).find(|place| slave_id(*place) == *id).unwrap_or_default();
                    let slave = NAMES[place];
                    if !master.greeted.values().any(|greeted| *greeted == place) {
                        return Err(format!("{name} counts {slave}, which has no connection"));
                    }
                    let seen = self.seen.get(&(at, place)).and_then(|seen| seen.get(partition));
                    if !seen.is_some_and(|seen| seen.level) {
                        return Err(format!("{name} counts {slave} for {partition}, where it was never level"));
                    }
                    if *held > end {
                        return Err(format!("{name} takes {slave} to hold {partition} up to {held} of {end}"));
                    }
                    let host = &nodes[place];
                    let following = host.slave().and_then(|slave| slave.following());
                    let Some(session) = following.filter(|s| master.greeted.contains_key(&s.number)) else { continue };
                    let own = host.disk.logs.get(partition).map_or(Offset::ZERO, |log| log.end());
                    // Of what its master has deleted because it is old nobody holds more than nothing: a slave that was not
                    // so far asks for what follows before its own log goes on there.
                    if own < *held && *held > first {
                        return Err(format!("{name} takes {slave} to hold {partition} up to {held}, it ends at {own}"));
                    }
                    let lives_in = host.disk.lineage.epoch();
                    if lives_in != epoch && !session.held.is_empty() {
                        return Err(format!("{name} of epoch {epoch} counts {slave}, which lives in epoch {lives_in}"));
                    }
                }
            }
        }
        Ok(())
    }
}
