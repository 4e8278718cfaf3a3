//! How a slave joins its master: the pasts are compared, and what the master never had is cut or held.

use crate::log::Log as Stored;
use crate::mutation::Mutation;
use crate::node::NAMES;
use crate::world::World;
use metaq_link::lineage::{Parting, Past, Verdict, judge};
use metaq_types::{Lineage, Offset, PartitionId};
use std::collections::BTreeMap;

impl World {
    pub(crate) fn on_lineage(&mut self, node: usize, theirs: Lineage) {
        let mutation = self.options.mutation;
        let host = &self.nodes[node];
        let Some(slave) = host.slave() else { return };
        let Some(session) = &slave.session else { return };
        let accept = slave.accept_divergence;
        let ends: Vec<_> = host.disk.logs.iter().map(|(id, log)| slave.ends(&session.listed, id, log.end())).collect();
        let master = session.master;
        let verdicts = match judge(&host.disk.lineage, &theirs, &host.disk.name, accept, &ends) {
            Past::Shared(verdicts) => verdicts,
            // A node without a past has no bytes either; nobody removes the files of a node here.
            Past::Unknown if host.disk.logs.values().all(|log| log.end() == log.first()) => Vec::new(),
            Past::Unknown | Past::Foreign => return self.close_session(node),
        };
        let mut held = BTreeMap::new();
        for (partition, verdict) in verdicts {
            match self.settle(node, master, &partition, verdict) {
                None => {}
                Some(Verdict::Cut { .. }) if mutation == Some(Mutation::NoCut) => {}
                Some(Verdict::Cut { to }) => self.cut(node, &partition, to),
                Some(Verdict::Hold { common }) => {
                    held.insert(partition, common);
                }
            }
        }
        if held.is_empty() || mutation == Some(Mutation::AdoptInDoubt) {
            self.nodes[node].disk.lineage = theirs;
        }
        let now = self.now;
        self.trace.note(now, || format!("{} joins {}, holding {held:?}", NAMES[node], NAMES[master]));
        if let Some(session) = self.nodes[node].slave_mut().and_then(|slave| slave.session.as_mut()) {
            session.held = held;
        }
        self.follow(node);
    }

    /// What both hold from the verdict's end on stays; the reads that find it out are not simulated.
    fn settle(&self, node: usize, master: usize, partition: &PartitionId, verdict: Verdict) -> Option<Verdict> {
        if self.options.mutation == Some(Mutation::TrustReignsAlone) {
            return Some(verdict);
        }
        let (Verdict::Cut { to: common } | Verdict::Hold { common }) = verdict;
        let own = self.nodes[node].disk.logs.get(partition)?;
        let theirs = self.nodes[master].disk.logs.get(partition);
        let master_first = theirs.map_or(Offset::ZERO, Stored::first);
        let parting = Parting { common, kept: own.first(), own_end: own.end(), master_first };
        let from = parting.compared_from();
        let common = parting.cut_to(theirs.map_or(from, |theirs| own.same_until(theirs, from)))?;
        Some(match verdict {
            Verdict::Cut { .. } => Verdict::Cut { to: common },
            Verdict::Hold { .. } => Verdict::Hold { common },
        })
    }

    fn cut(&mut self, node: usize, partition: &PartitionId, to: Offset) {
        let now = self.now;
        let Some(log) = self.nodes[node].disk.logs.get_mut(partition) else { return };
        let held_from = log.first();
        let bytes = log.cut(to);
        // What was hidden stays so; what is appended behind the cut is not what was confirmed before it.
        let end = log.end();
        if let Some(limit) = self.nodes[node].limits.get_mut(partition).filter(|limit| **limit != Offset::MAX) {
            *limit = (*limit).min(end);
        }
        self.trace.note(now, || format!("{} sets {bytes} bytes of {partition} aside, from {to} on", NAMES[node]));
        self.checks.on_cut(node, partition, to.max(held_from));
    }
}
