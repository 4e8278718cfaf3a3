//! What a configuration asks of the store, of the quorums and of transactions.

use metaq_config::{AckRules, BrokerConfig, DeleteAction, FlushTxLog, Topic};
use metaq_store::{Disposal, Flush, PartitionRules, Retention};
use metaq_types::limits::{JOURNAL_SEGMENT_BYTES, TRANSACTION_HELD_BYTES_MAX};
use metaq_types::{JOURNAL_TOPIC, PartitionId};
use std::path::PathBuf;
use std::time::Duration;

/// The part of a topic's settings the store keeps to.
pub(crate) fn partition_rules(topic: &Topic) -> PartitionRules {
    PartitionRules {
        flush: Flush { threshold: topic.unflush_threshold, interval: topic.unflush_interval },
        segment_bytes_max: topic.max_segment_size,
        retention: retention(topic),
        data_path: topic.data_path.clone(),
    }
}

fn retention(topic: &Topic) -> Retention {
    let disposal = match topic.delete_policy.action {
        DeleteAction::Delete => Disposal::Delete,
        DeleteAction::Archive { compress: false } => Disposal::Archive,
        DeleteAction::Archive { compress: true } => Disposal::Compress,
    };
    let bytes_max = Some(topic.retention_bytes).filter(|bytes| *bytes > 0);
    Retention { age: topic.delete_policy.age, bytes_max, disposal }
}

/// The rules for a topic's name by a configuration: its section, a pattern's, else the system's defaults, so that
/// partitions of topics no longer configured stay readable.
pub fn rules_for(config: &BrokerConfig, topic: &str) -> PartitionRules {
    if topic == JOURNAL_TOPIC {
        return journal_rules(config);
    }
    match config.topic(topic) {
        Some(topic) => partition_rules(topic),
        None => partition_rules(&config.system.topic_defaults()),
    }
}

/// Why clients that ask ZooKeeper are not told of a partition, whose messages stay readable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Untold {
    /// No section lets its topic in.
    NoSection,
    /// Its number is not below `numPartitions`.
    AboveCount,
}

/// `None`: they are told of it, or it is the transactions' journal.
pub fn untold(config: &BrokerConfig, id: &PartitionId) -> Option<Untold> {
    match config.topic(&id.topic) {
        _ if id.is_journal() => None,
        None => Some(Untold::NoSection),
        Some(topic) => (id.number >= topic.num_partitions).then_some(Untold::AboveCount),
    }
}

/// Where the transaction journal lies: below `dataLogPath`, in a directory the original passes over.
pub fn journal_path(config: &BrokerConfig) -> PathBuf {
    config.system.data_log_path.join(".metaq").join("journal")
}

/// Decisions are written before they are answered, and ask for a sync of their own where `flushTxLogAtCommit` says so.
fn journal_rules(config: &BrokerConfig) -> PartitionRules {
    let interval = match config.system.flush_tx_log_at_commit {
        FlushTxLog::BeforeAnswer | FlushTxLog::EverySecond => Duration::from_secs(1),
        // Left to the operating system, but for full segments, slaves and stops.
        FlushTxLog::Never => Duration::MAX,
    };
    PartitionRules {
        flush: Flush { threshold: u32::MAX, interval },
        segment_bytes_max: JOURNAL_SEGMENT_BYTES,
        retention: Retention::FOREVER,
        data_path: journal_path(config),
    }
}

/// Who has to hold the transaction journal: it serves all topics, so the one that asks for the most members decides.
pub(crate) fn strictest_ack(config: &BrokerConfig) -> AckRules {
    let topics = config.topics.values().map(|topic| topic.ack);
    topics.chain([config.system.ack]).max_by_key(|ack| ack.quorum).unwrap_or(config.system.ack)
}

/// What a configuration says about transactions.
pub fn transaction_settings(config: &BrokerConfig) -> metaq_txn::Settings {
    let system = &config.system;
    metaq_txn::Settings {
        synced: system.flush_tx_log_at_commit == FlushTxLog::BeforeAnswer,
        timeout_max: system.max_tx_timeout,
        timers_max: system.max_tx_timeout_timer_capacity,
        held_bytes_max: TRANSACTION_HELD_BYTES_MAX,
        checkpoints_max: system.max_checkpoints,
        checkpoint_interval: system.checkpoint_interval,
        checkpoint_bytes: JOURNAL_SEGMENT_BYTES.into(),
        original_journal: system.data_log_path.join("transactions"),
        confirm_within: strictest_ack(config).timeout,
    }
}
