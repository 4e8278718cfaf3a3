//! What the node looks like now, as the texts of `stats` (stats, "2. Items").

use crate::node::{NodeRole, Shared, VERSION};
use crate::realtime::Kind;
use crate::topics::TopicState;
use metaq_link::members::roll_text;
use metaq_link::promotion::Record;
use metaq_link::quorum_report::Report;
use metaq_link::replica_report::write_stats;
use metaq_net::refusals::Reason;
use metaq_store::{Partition, Positions};
use metaq_types::{Offset, PartitionId, TopicName};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::sync::Arc;
use std::time::Instant;

/// Partitions of one topic, summed up.
#[derive(Default)]
struct Held {
    partitions: u32,
    messages: u64,
    bytes: u64,
}

impl Held {
    fn add(&mut self, partition: &Partition) {
        self.partitions += 1;
        self.messages += partition.record_count();
        self.bytes += partition.bytes();
    }
}

fn held(node: &Shared) -> BTreeMap<TopicName, Held> {
    let mut held = BTreeMap::<TopicName, Held>::new();
    for partition in node.store.partitions() {
        held.entry(partition.id().topic.clone()).or_default().add(&partition);
    }
    held
}

/// Configured topics that hold nothing yet.
fn empty_topics(node: &Shared, held: &BTreeMap<TopicName, Held>) -> Vec<TopicName> {
    node.config.current().topics.keys().filter(|name| !held.contains_key(*name)).cloned().collect()
}

/// The whole answer to `stats <item>`, framed by STATS and END; `config` is not framed and not here.
pub(crate) fn stats(node: &Shared, item: &str) -> String {
    let mut out = String::from("STATS\r\n");
    match item.trim() {
        "" => broker(node, &mut out),
        "help" => out.push_str(HELP),
        "topics" => topics(node, &mut out),
        "offsets" => offsets(node, &mut out),
        "realtime" => realtime(node, &mut out),
        "transactions" => node.transactions.write_stats(&mut out),
        "replicas" => out.push_str(&write_stats(&node.replica_lines())),
        "quorum" => quorum(node, &mut out),
        "durability" => durability(node, &mut out),
        "roll" if matches!(node.role, NodeRole::Slave { .. }) => roll(node, &mut out),
        "lineage" => lineage(node, &mut out),
        "replication" if let NodeRole::Slave { progress, .. } = &node.role => {
            out.push_str(&metaq_link::progress::write_stats(&progress()));
            for (PartitionId { topic, number }, bytes) in &node.store.recovery_report().damaged {
                let _ = write!(out, "damaged {topic} {number} bytes {bytes}\r\n");
            }
        }
        "transport" => transport(node, &mut out),
        "reset" => {
            reset(node);
            out.push_str("reset ok\r\n");
        }
        topic => one_topic(node, topic, &mut out),
    }
    out.push_str("END\r\n");
    out
}

/// The reigns this node remembers, for a slave that joins.
fn lineage(node: &Shared, out: &mut String) {
    // An error is no lineage, and whoever reads it must not take it for an empty one.
    let text = node.store.lineage().map_or_else(|error| format!("ERROR {error}\n"), |lineage| lineage.to_string());
    out.push_str(&text.replace('\n', "\r\n"));
}

/// Who stands behind acknowledgements: counters, slaves, and every partition that asks for a quorum.
fn quorum(node: &Shared, out: &mut String) {
    let counters = &node.counters;
    let (slaves, mut logs, beyond_end) =
        node.quorum.look(|quorums| (quorums.slaves(Instant::now()), quorums.standings(), quorums.beyond_end()));
    logs.retain(|log| !log.partition.is_journal());
    let report = Report {
        refused: counters.puts_refused_by_quorum(),
        unconfirmed: counters.puts_unconfirmed(),
        downgraded: counters.puts_downgraded(),
        beyond_end,
        slaves,
        logs,
    };
    out.push_str(&report.to_string());
}

/// When a put to each topic is answered, by the settings in force: of every section, and of what was made by a pattern.
fn durability(node: &Shared, out: &mut String) {
    let config = node.config.snapshot();
    let held = node.store.partitions().into_iter().map(|partition| partition.id().topic.clone());
    let names: BTreeSet<TopicName> = config.topics.keys().cloned().chain(held).collect();
    for name in names {
        let Some(topic) = config.topic(&name) else { continue };
        let _ = write!(
            out,
            "topic {} partitions {} unflush_threshold {} unflush_interval_ms {} ack_quorum {} ack_timeout_ms {} \
             ack_quorum_downgrade {}\r\n",
            name,
            topic.num_partitions,
            topic.unflush_threshold,
            topic.unflush_interval.as_millis(),
            topic.ack.quorum,
            topic.ack.timeout.as_millis(),
            topic.ack.downgrade,
        );
    }
}

/// What this slave has on disk about its master's quorum.
fn roll(node: &Shared, out: &mut String) {
    match Record::load(&node.config.current().system.data_path) {
        Ok(record) => {
            let record = record.unwrap_or_default();
            out.push_str(&roll_text(record.roll, record.quorum, &record.members));
        }
        // An error is no roll, and whoever reads it must not take it for an empty one.
        Err(error) => out.push_str(&format!("ERROR {error}\r\n")),
    }
}

/// Who was not let in, by reason.
fn transport(node: &Shared, out: &mut String) {
    for reason in Reason::ALL {
        let _ = write!(out, "refused_handshakes {} {}\r\n", reason.label(), node.refusals.count(reason));
    }
}

const HELP: &str = "*EMPTY* Returns broker info.\r\n\
    help Returns help menu.\r\n\
    topics Returns topics statistics detail info.\r\n\
    offsets Returns partitions detail info.\r\n\
    realtime Returns realtime statistics detail info.\r\n\
    config Returns broker's config file content.\r\n";

fn broker(node: &Shared, out: &mut String) {
    let held = held(node);
    let counters = &node.counters;
    let lines: [(&str, String); 20] = [
        ("pid", std::process::id().to_string()),
        ("broker_id", node.broker_id.to_string()),
        ("port", node.listens.port().to_string()),
        ("uptime", node.started.elapsed().as_secs().to_string()),
        ("version", VERSION.to_owned()),
        ("slave", matches!(node.role, NodeRole::Slave { .. }).to_string()),
        ("curr_connections", node.admission.connections().to_string()),
        ("threads", threads().to_string()),
        ("cmd_put", counters.puts().to_string()),
        ("cmd_get", counters.gets().to_string()),
        ("cmd_offset", counters.offsets().to_string()),
        ("tx_begin", counters.begins().to_string()),
        ("tx_xa_begin", counters.xa_begins().to_string()),
        ("tx_commit", counters.commits().to_string()),
        ("tx_rollback", counters.rollbacks().to_string()),
        ("get_miss", counters.get_misses().to_string()),
        ("put_failed", counters.puts_failed().to_string()),
        ("total_messages", held.values().map(|h| h.messages).sum::<u64>().to_string()),
        ("topics", (held.len() + empty_topics(node, &held).len()).to_string()),
        ("config_checksum", node.config.current().checksum.to_string()),
    ];
    for (key, value) in lines {
        let _ = write!(out, "{key} {value}\r\n");
    }
}

/// Threads of this process; 0 where /proc does not tell.
fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").map_or(0, Iterator::count)
}

fn topics(node: &Shared, out: &mut String) {
    let held = held(node);
    let config = node.config.snapshot();
    for (name, h) in &held {
        let settings = config.topic(name);
        let accepts = |f: fn(&metaq_config::Topic) -> bool| settings.is_some_and(f);
        let _ = write!(
            out,
            "{name} partitions {} message_count {} message_bytes {} accept_publish {} accept_subscribe {}\r\n",
            h.partitions,
            h.messages,
            h.bytes,
            accepts(|t| t.accept_publish),
            accepts(|t| t.accept_subscribe),
        );
    }
    for name in empty_topics(node, &held) {
        let _ = write!(out, "{name} *Empty*\r\n");
    }
}

/// The same for a replica, which copies the transaction journal as well, and first; up to ends that no quorum holds yet.
pub(crate) fn replica_offsets(node: &Shared, end: impl Fn(&Positions) -> Offset) -> String {
    let mut out = String::from("STATS\r\n");
    let mut partitions = node.store.partitions();
    partitions.sort_by(|a, b| a.id().cmp(b.id()));
    write_offsets(node.store.journal().into_iter().chain(partitions), end, &mut out);
    out.push_str("END\r\n");
    out
}

fn offsets(node: &Shared, out: &mut String) {
    let mut partitions = node.store.partitions();
    partitions.sort_by(|a, b| a.id().cmp(b.id()));
    write_offsets(partitions, |positions| positions.readable, out);
}

fn write_offsets(
    partitions: impl IntoIterator<Item = Arc<Partition>>,
    end: impl Fn(&Positions) -> Offset,
    out: &mut String,
) {
    for partition in partitions {
        let positions = partition.positions();
        let _ = write!(
            out,
            "{} part {} min_offset {} max_offset {}\r\n",
            partition.id().topic,
            partition.id().number,
            positions.kept,
            end(&positions),
        );
    }
}

fn realtime(node: &Shared, out: &mut String) {
    let now = Instant::now();
    let topics = node.topics.snapshot();
    let rates: Vec<_> = topics.iter().map(|t| t.rates()).collect();
    for kind in Kind::ALL {
        let _ = write!(out, "{} {}\r\n", kind.name(), node.period.total(&rates, kind, now));
    }
}

pub(crate) fn reset(node: &Shared) {
    let topics = node.topics.snapshot();
    node.period.reset(topics.iter().map(|t| t.rates()), Instant::now());
}

/// Any other word is taken as a topic's name (wire-protocol, "7.7").
fn one_topic(node: &Shared, topic: &str, out: &mut String) {
    let now = Instant::now();
    let mut held = Held::default();
    for partition in node.store.partitions().iter().filter(|p| &*p.id().topic == topic) {
        held.add(partition);
    }
    let code = match (held.partitions, node.config.current().topics.contains_key(topic)) {
        (1.., _) => 0,
        (0, true) => 2,
        (0, false) => 1,
    };
    let _ = write!(
        out,
        "{topic}\r\nresultCode {code}\r\npartitions {}\r\nmessage_count {}\r\nbytes {}\r\n",
        held.partitions, held.messages, held.bytes
    );
    let topics: Vec<Arc<TopicState>> = node.topics.snapshot();
    let all: Vec<_> = topics.iter().map(|t| t.rates()).collect();
    let own = topics.iter().find(|t| &*t.name == topic).map(|t| t.rates());
    for kind in Kind::ALL {
        let _ = write!(out, "topic_{} {}\r\n", kind.name(), node.period.of_topic(&all, topic, own, kind, now));
    }
}
