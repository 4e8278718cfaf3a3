//! What a seed plays with: how many nodes, whom an acknowledgement has to wait for, how much a master keeps.

use crate::net::NODES;
use crate::node::{Level, level};
use crate::queue::Ms;
use crate::rng::Rng;
use metaq_config::AckRules;
use metaq_types::PartitionId;
use std::time::Duration;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Setup {
    pub(crate) members: usize,
    pub(crate) config: Config,
    /// Sealed segments that a master keeps; `None`: all.
    pub(crate) kept_segments: Option<usize>,
}

/// The part of a node's `server.ini` that matters here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Config {
    pub(crate) sync: AckRules,
    pub(crate) os: AckRules,
}

impl Setup {
    pub(crate) fn draw(rng: &mut Rng) -> Setup {
        let members = if rng.percent(20) { NODES - 1 } else { NODES };
        let quorum = match rng.within(0, 100) {
            0..30 => 1,
            30..75 => 2,
            _ => members as u32,
        };
        let timeout = Duration::from_millis(rng.within(400, 2_000));
        let rules = AckRules { quorum, timeout, downgrade: rng.percent(20) };
        let os = AckRules { quorum: if rng.percent(50) { quorum } else { 1 }, ..rules };
        Setup {
            members,
            config: Config { sync: rules, os },
            kept_segments: rng.percent(50).then(|| rng.within(1, 6) as usize),
        }
    }
}

impl Config {
    pub(crate) fn rules(&self, partition: &PartitionId) -> AckRules {
        match level(partition) {
            // All share the journal, so it asks for what any of them does.
            _ if is_journal(partition) => {
                if self.os.quorum > self.sync.quorum {
                    self.os
                } else {
                    self.sync
                }
            }
            Level::Os => self.os,
            Level::Fsync => self.sync,
        }
    }

    /// The fewest members that a partition which asks for any can ask for.
    pub(crate) fn fewest_asked(&self) -> Option<u32> {
        [self.sync, self.os].into_iter().filter(|rules| rules.is_on()).map(|rules| rules.quorum).min()
    }

    /// One rule changes, as an operator's edit and reload would have it.
    pub(crate) fn edit(&mut self, members: usize, rng: &mut Rng) {
        let quorum = rng.within(1, members as u64 + 1) as u32;
        let both = rng.percent(50);
        let rules = if rng.percent(70) { &mut self.sync } else { &mut self.os };
        match rng.within(0, 100) {
            0..75 => rules.quorum = quorum,
            _ => rules.downgrade = !rules.downgrade,
        }
        let rules = *rules;
        if both {
            (self.sync, self.os) = (rules, rules);
        }
    }
}

pub(crate) trait Promised {
    /// How many hold what is answered: where fewer may be enough, no more than the master is promised.
    fn promised(&self) -> u32;
}

impl Promised for AckRules {
    fn promised(&self) -> u32 {
        if self.downgrade { 1 } else { self.quorum }
    }
}

/// It is there from the beginning and takes no messages here: so a master that asks for a quorum says so from its first
/// greeting on.
pub(crate) const JOURNAL: &str = "journal-0";

pub(crate) fn is_journal(partition: &PartitionId) -> bool {
    partition.topic.starts_with("journal")
}

/// How often a master looks after what waits for its quorum.
pub(crate) const QUORUM_TICK_MS: Ms = 50;
