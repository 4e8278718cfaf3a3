use crate::log::Log;
use crate::master::Master;
use crate::net::NODES;
use crate::queue::Ms;
use crate::slave::Slave;
use metaq_link::promotion::Record;
use metaq_types::{Lineage, PartitionId};
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
    pub(crate) logs: BTreeMap<PartitionId, Log>,
    pub(crate) lineage: Lineage,
    pub(crate) record: Option<Record>,
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
}

#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) disk: Disk,
    pub(crate) process: Process,
    /// Grows with every start.
    pub(crate) incarnation: u32,
    pub(crate) paused_until: Ms,
    /// How long a sync takes at most.
    pub(crate) sync_ms: Ms,
    pub(crate) syncing: BTreeSet<PartitionId>,
    pub(crate) exit: Option<Exit>,
}

pub(crate) const SYNC_MS: Ms = 4;

impl Node {
    pub(crate) fn new() -> Node {
        Node {
            disk: Disk::default(),
            process: Process::Down,
            incarnation: 0,
            paused_until: 0,
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
