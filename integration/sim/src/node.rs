use crate::log::Log;
use crate::master::Master;
use crate::net::NODES;
use crate::queue::Ms;
use crate::setup::Config;
use crate::slave::Slave;
use metaq_link::confirmed::Kept;
use metaq_link::promotion::Record;
use metaq_types::{Lineage, Offset, PartitionId};
use std::collections::{BTreeMap, BTreeSet};

pub(crate) const NAMES: [&str; NODES] = ["a", "b", "c"];

/// When a put is acknowledged: once it is written, or once it is synced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Level {
    Os,
    Fsync,
}

/// By the name of the topic, the same everywhere.
pub(crate) fn level(partition: &PartitionId) -> Level {
    if partition.topic.starts_with("os") { Level::Os } else { Level::Fsync }
}

/// What outlives a process.
#[derive(Debug, Default)]
pub(crate) struct Disk {
    /// Its identity: another disk in the same machine has another.
    pub(crate) name: String,
    pub(crate) logs: BTreeMap<PartitionId, Log>,
    pub(crate) lineage: Lineage,
    pub(crate) record: Option<Record>,
    /// What was confirmed under a master on this disk.
    pub(crate) kept: Option<Kept>,
}

#[derive(Debug)]
pub(crate) enum Process {
    Down,
    Master(Box<Master>),
    Slave(Box<Slave>),
}

/// Why a process ended by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    /// Another has begun to reign.
    Replaced,
    /// The registered master lives.
    Occupied,
    /// Something that was acknowledged may be missing.
    Doubts,
    /// Ranges are missing that nobody has accepted.
    Gaps,
}

#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) disk: Disk,
    /// In force, and the same after the next start.
    pub(crate) config: Config,
    /// Consumers of this process read no further; what is not named, they read as far as it is durable.
    pub(crate) limits: BTreeMap<PartitionId, Offset>,
    pub(crate) process: Process,
    /// Grows with every start.
    pub(crate) incarnation: u32,
    pub(crate) paused_until: Ms,
    /// What was due while it was stopped comes no later than this.
    pub(crate) behind_until: Ms,
    /// How long a sync takes at most.
    pub(crate) sync_ms: Ms,
    pub(crate) syncing: BTreeSet<PartitionId>,
    pub(crate) exit: Option<Exit>,
}

pub(crate) const SYNC_MS: Ms = 4;

impl Disk {
    /// Empty but for the journal.
    pub(crate) fn named(name: String) -> Disk {
        let journal = crate::setup::JOURNAL.parse().expect("a partition's name");
        Disk { name, logs: BTreeMap::from([(journal, Log::new(Offset::ZERO))]), ..Disk::default() }
    }
}

impl Node {
    pub(crate) fn new(place: usize, config: Config) -> Node {
        Node {
            disk: Disk::named(NAMES[place].to_owned()),
            config,
            limits: BTreeMap::new(),
            process: Process::Down,
            incarnation: 0,
            paused_until: 0,
            behind_until: 0,
            sync_ms: SYNC_MS,
            syncing: BTreeSet::new(),
            exit: None,
        }
    }

    pub(crate) fn master(&self) -> Option<&Master> {
        match &self.process {
            Process::Master(master) => Some(master),
            Process::Down | Process::Slave(_) => None,
        }
    }

    pub(crate) fn master_mut(&mut self) -> Option<&mut Master> {
        match &mut self.process {
            Process::Master(master) => Some(master),
            Process::Down | Process::Slave(_) => None,
        }
    }

    pub(crate) fn slave(&self) -> Option<&Slave> {
        match &self.process {
            Process::Slave(slave) => Some(slave),
            Process::Down | Process::Master(_) => None,
        }
    }

    pub(crate) fn slave_mut(&mut self) -> Option<&mut Slave> {
        match &mut self.process {
            Process::Slave(slave) => Some(slave),
            Process::Down | Process::Master(_) => None,
        }
    }

    /// Bytes of all logs: what ranks candidates that followed the same reign.
    pub(crate) fn bytes(&self) -> u64 {
        self.disk.logs.values().map(|log| log.end().get()).sum()
    }
}
