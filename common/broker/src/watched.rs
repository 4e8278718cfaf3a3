//! The node as others may look at it: what the metrics and the readiness are read from, sampled when somebody asks.

use crate::metrics::Counters;
use crate::node::{NodeRole, Shared};
use metaq_config::BrokerConfig;
use metaq_link::progress::LinkStatus;
use metaq_link::quorum::{LogStanding, Quorums};
use metaq_link::replica_report::ReplicaLine;
use metaq_link::standing::Standing;
use metaq_net::refusals::Refusals;
use metaq_store::{Positions, Store};
use metaq_types::{PartitionId, SlaveId, TopicName};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A read-only look at a running node; it can change nothing. Cheap to clone.
#[derive(Clone)]
pub struct NodeView(Arc<Shared>);

/// Producers held back because slaves are behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Throttled {
    /// How long each turn of a producer's connection waits now; zero while nobody is held back.
    pub delay: Duration,
    /// Messages whose connections paused after them.
    pub puts: u64,
    /// All pauses, summed up over the connections.
    pub paused: Duration,
}

/// A topic that asks for a quorum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TopicQuorum {
    pub required: u32,
    /// Those that count, the master included, where they are fewest; `None` while no partition holds anything.
    pub members: Option<u32>,
    /// Stored here, and not held by the quorum yet.
    pub unconfirmed_bytes: u64,
}

impl NodeView {
    pub(crate) fn new(shared: Arc<Shared>) -> NodeView {
        NodeView(shared)
    }

    pub fn config(&self) -> Arc<BrokerConfig> {
        self.0.config.snapshot()
    }

    pub fn store(&self) -> &Store {
        &self.0.store
    }

    pub fn counters(&self) -> &Counters {
        &self.0.counters
    }

    /// Who was not let in, and why.
    pub fn refusals(&self) -> &Refusals {
        &self.0.refusals
    }

    pub fn uptime(&self) -> Duration {
        self.0.started.elapsed()
    }

    pub fn version(&self) -> &'static str {
        crate::node::VERSION
    }

    /// `None`: it is a master.
    pub fn slave_id(&self) -> Option<SlaveId> {
        match &self.0.role {
            NodeRole::Master => None,
            NodeRole::Slave { slave_id, .. } => Some(*slave_id),
        }
    }

    /// Connections open now.
    pub fn connections(&self) -> usize {
        self.0.admission.connections()
    }

    /// Bytes of messages taken in and not answered yet.
    pub fn bytes_in_flight(&self) -> usize {
        self.0.admission.in_flight()
    }

    /// Free disk space is below `minFreeDiskBytes`.
    pub fn is_disk_low(&self) -> bool {
        self.0.admission.is_disk_low()
    }

    pub fn is_stopping(&self) -> bool {
        self.0.is_stopping()
    }

    /// Why a master acknowledges nothing now; `None` while it does.
    pub fn gate_shut(&self) -> Option<String> {
        (!self.0.gate.is_open()).then(|| self.0.gate.reason())
    }

    pub fn throttled(&self) -> Throttled {
        let throttle = &self.0.throttle;
        Throttled { delay: throttle.delay().unwrap_or_default(), puts: throttle.puts(), paused: throttle.paused() }
    }

    /// Transactions that are not over; none on a slave.
    pub fn open_transactions(&self) -> usize {
        self.0.transactions.get().map_or(0, |coordinator| coordinator.lines().len())
    }

    /// Partitions whose quorum asks for more members than are there now, those that hold nothing yet excepted.
    pub fn short_of_quorum(&self) -> Vec<LogStanding> {
        let standings = self.quorums().into_iter().filter(|(_, positions)| positions.written > positions.kept);
        standings.map(|(log, _)| log).filter(|log| log.members < log.rules.quorum).collect()
    }

    /// Topics that ask for a quorum; none on a slave.
    pub fn quorums_of_topics(&self) -> BTreeMap<TopicName, TopicQuorum> {
        let mut topics = BTreeMap::<TopicName, TopicQuorum>::new();
        for (log, positions) in self.quorums() {
            let topic = topics.entry(log.partition.topic.clone()).or_default();
            topic.required = topic.required.max(log.rules.quorum);
            if positions.written > positions.kept {
                topic.members = Some(topic.members.map_or(log.members, |members| members.min(log.members)));
            }
            let confirmed = log.confirmed.unwrap_or(positions.written).min(positions.written);
            topic.unconfirmed_bytes += positions.written.bytes_since(confirmed);
        }
        topics
    }

    /// How often slaves have claimed to hold more than there is.
    pub fn claims_beyond_end(&self) -> u64 {
        self.0.quorum.look(Quorums::beyond_end)
    }

    /// The partitions that ask for a quorum, with where they stand.
    fn quorums(&self) -> Vec<(LogStanding, Positions)> {
        if !self.0.quorum.is_on() {
            return Vec::new();
        }
        let positions = |id: &PartitionId| Some(self.0.store.get(&id.topic, id.number as i32)?.positions());
        let standings = self.0.quorum.look(Quorums::standings);
        let with_positions = |log: LogStanding| positions(&log.partition).map(|positions| (log, positions));
        standings.into_iter().filter_map(with_positions).collect()
    }

    /// Until our certificate ends; `None` without one.
    pub fn certificate_days_left(&self) -> Option<i64> {
        self.0.identity.get().map(|identity| identity.current().facts.days_left(metaq_net::certs::now_unix()))
    }

    /// A master's slaves: how they stand, and how long ago each asked for something.
    pub fn slaves(&self) -> Vec<(SlaveId, Standing, Duration)> {
        self.0.replicas.lock().standings(Instant::now())
    }

    /// A master's slaves, partition by partition.
    pub fn replicas(&self) -> Vec<ReplicaLine> {
        self.0.replica_lines()
    }

    /// How far a slave has copied its master; `None` on a master.
    pub fn link(&self) -> Option<LinkStatus> {
        match &self.0.role {
            NodeRole::Master => None,
            NodeRole::Slave { progress, .. } => Some(progress()),
        }
    }
}
