//! Every metric with its meaning, declared once; how they are written for Prometheus and for docs/metrics.md.

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;
use std::collections::BTreeMap;
use std::fmt;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Only grows, from the start of the process; `_total` is put behind its name.
    Counter,
    Gauge,
}

#[derive(Debug)]
pub(crate) struct Metric {
    pub(crate) name: &'static str,
    kind: Kind,
    help: &'static str,
    labels: &'static [&'static str],
}

macro_rules! metrics {
    ($($name:ident: $kind:ident $text:literal [$($label:literal),*] $help:literal;)+) => {
        $(pub(crate) static $name: Metric =
            Metric { name: $text, kind: Kind::$kind, help: $help, labels: &[$($label),*] };)+
        pub(crate) static ALL: &[&Metric] = &[$(&$name),+];
    };
}

metrics! {
    INFO: Gauge "metaq_broker_info" ["version", "role", "broker_id", "slave_id", "node"]
        "Always 1; the labels say what runs. slave_id is empty on a master";
    READY: Gauge "metaq_broker_ready" [] "1 when /readyz answers 200";
    NOT_READY: Gauge "metaq_broker_not_ready" ["reason"] "1 for each reason that /readyz names now";
    ACCEPTING: Gauge "metaq_broker_accepting" []
        "1 while a master acknowledges messages; 0 on a slave, and on a master without a confirmed reign";
    UPTIME: Gauge "metaq_broker_uptime_seconds" [] "Time since the node began to serve";
    CONNECTIONS: Gauge "metaq_broker_connections" [] "Client and slave connections open now";
    IN_FLIGHT: Gauge "metaq_broker_in_flight_bytes" [] "Bytes of messages taken in and not answered yet";
    DISK_LOW: Gauge "metaq_broker_disk_low" [] "1 while messages are refused for minFreeDiskBytes";
    PUTS: Counter "metaq_broker_puts" [] "Messages that came in, refused ones too";
    FAILED_PUTS: Counter "metaq_broker_failed_puts" []
        "Messages answered with an error, those to closed topics excepted";
    GETS: Counter "metaq_broker_gets" [] "Gets that came in, those of slaves too";
    GET_MISSES: Counter "metaq_broker_get_misses" [] "Gets answered with nothing to read, or with another offset";
    OFFSETS: Counter "metaq_broker_offsets" [] "Questions for an offset";
    MALFORMED: Counter "metaq_broker_malformed_requests" [] "Requests that could not be read; each ended its connection";
    THROTTLE_DELAY: Gauge "metaq_broker_throttle_delay_seconds" []
        "How long a producer's connection pauses after each turn, as slaves are behind (slaveLagAction=throttle); 0: nobody is held back, 1: the limit";
    THROTTLED_PUTS: Counter "metaq_broker_throttled_puts" [] "Messages after which their connection had to pause";
    THROTTLED_SECONDS: Counter "metaq_broker_throttled_seconds" [] "Time of these pauses, summed up over the connections";
    SHORT_OF_QUORUM: Gauge "metaq_broker_short_of_quorum_partitions" []
        "Partitions whose ackQuorum asks for more members than are there now; their messages are refused, or downgraded";
    QUORUM_MEMBERS: Gauge "metaq_broker_quorum_members" ["topic"]
        "On a master, members that count now, itself included, in that partition of the topic where they are fewest; partitions that hold nothing are left out";
    QUORUM_REQUIRED: Gauge "metaq_broker_quorum_required_members" ["topic"]
        "Members that the topic's ackQuorum asks for; absent for topics that ask for one";
    UNCONFIRMED_BYTES: Gauge "metaq_broker_unconfirmed_bytes" ["topic"]
        "Bytes stored here that the topic's ackQuorum has not confirmed; consumers do not see them";
    REFUSED_PUTS: Counter "metaq_broker_quorum_refused_puts" []
        "Messages refused for want of members; nothing of them was stored";
    UNCONFIRMED_PUTS: Counter "metaq_broker_unconfirmed_puts" []
        "Messages stored here that ackQuorum did not confirm within ackTimeoutInMills; their outcome is unknown to the producer";
    DOWNGRADED_PUTS: Counter "metaq_broker_downgraded_puts" [] "Messages taken on without their quorum (ackQuorumDowngrade)";
    BEYOND_END: Counter "metaq_broker_beyond_end_claims" []
        "Gets of slaves that claimed to hold more than there is; they confirm nothing";

    BEGINS: Counter "metaq_txn_begins" [] "Local transactions begun, repeated requests too";
    XA_BEGINS: Counter "metaq_txn_xa_begins" [] "XA branches begun, repeated requests too";
    COMMITS: Counter "metaq_txn_commits" [] "Requests to commit";
    ROLLBACKS: Counter "metaq_txn_rollbacks" [] "Requests to roll back";
    OPEN_TRANSACTIONS: Gauge "metaq_txn_open_transactions" [] "Transactions that are not over, prepared ones included";

    PARTITIONS: Gauge "metaq_store_partitions" [] "Partitions served";
    HELD_BYTES: Gauge "metaq_store_held_bytes" [] "Bytes of all partitions that can be read or are about to be";
    POISONED: Gauge "metaq_store_poisoned_partitions" [] "Partitions that are read-only after a disk error";
    FAILED_PARTITIONS: Gauge "metaq_store_failed_partitions" [] "Partitions that could not be opened at the start";
    LOST: Gauge "metaq_store_lost_partitions" []
        "Logs of which files are gone that were there: found at the start, or removed while the broker ran; readyz names them";
    QUEUED_BYTES: Gauge "metaq_store_queued_bytes" [] "Bytes of messages that wait to be written";
    APPENDED_RECORDS: Counter "metaq_store_appended_records" [] "Messages written, copied ones too";
    APPENDED_BYTES: Counter "metaq_store_appended_bytes" [] "Bytes written, headers of records included";
    WRITES: Counter "metaq_store_writes" [] "Writes they were made with";
    SYNCS: Counter "metaq_store_syncs" [] "Syncs of files that went well";
    SYNC_SECONDS: Counter "metaq_store_sync_seconds" [] "Time spent in them";
    WAL_SYNCS: Counter "metaq_store_wal_syncs" [] "Of these, syncs of the write-ahead log, each for many appends";
    WAL_FAILED: Gauge "metaq_store_wal_failed" [] "1: the write-ahead log failed, and partitions are synced one by one until a restart";
    FLUSHES: Counter "metaq_store_flushes" ["cause"] "Syncs by what they were made for";
    ROLLS: Counter "metaq_store_rolled_segments" [] "Segments begun because one was full";
    DISK_FULL: Counter "metaq_store_disk_full_appends" [] "Appends refused for want of space";
    RETIRED_SEGMENTS: Counter "metaq_store_retired_segments" [] "Segments that retention took";
    RETIRED_BYTES: Counter "metaq_store_retired_bytes" [] "Bytes of these";
    RECOVERY_SECONDS: Gauge "metaq_store_recovery_seconds" [] "Time that opening the data directory took";
    REPAIRED: Gauge "metaq_store_repaired_partitions" [] "Partitions whose torn tail was set aside and cut at the start";
    DAMAGED: Gauge "metaq_store_damaged_partitions" [] "Partitions with damage inside their last segment, as found at the start";
    EPOCH: Gauge "metaq_store_epoch" [] "The newest reign that this data knows of";

    LAG_BYTES: Gauge "metaq_link_lag_bytes" ["slave", "topic", "partition"]
        "What a slave lacks of a partition; on a master as confirmed by its slaves, on a slave by what it has heard";
    LAG_MESSAGES: Gauge "metaq_link_lag_messages" ["slave", "topic", "partition"]
        "The same in messages, an estimate by their mean size lately; only on a master, absent where nothing tells the size";
    LAG_SECONDS: Gauge "metaq_link_lag_seconds" ["slave", "topic", "partition"] "The age of the oldest byte it lacks";
    LAG_OMITTED: Gauge "metaq_link_lag_series_omitted" []
        "Partitions of slaves left out of the three above as there are too many; those that lag most are shown";
    LAG_BOUND: Gauge "metaq_link_lag_bound_seconds" [] "slaveMaxDelayInMills as this node judges by";
    SLAVE_STANDING: Gauge "metaq_link_slave_standing" ["slave", "standing"]
        "On a master, 1 for how the slave stands: absent, silent, catching-up, following or lagging; 0 for the others";
    SLAVE_HEARD_AGE: Gauge "metaq_link_slave_heard_age_seconds" ["slave"]
        "On a master, how long ago the slave asked for something";
    FOLLOWING: Gauge "metaq_link_following" [] "On a slave, 1 while it follows its master";
    HEARD_AGE: Gauge "metaq_link_heard_age_seconds" [] "On a slave, how long ago its master answered; absent before the first answer";
    COPIED_BYTES: Counter "metaq_link_copied_bytes" [] "On a slave, bytes of the master's logs stored";
    COPY_RATE: Gauge "metaq_link_copy_bytes_per_second" [] "On a slave, the same in a second, lately";
    LEFT_BYTES: Gauge "metaq_link_left_bytes" [] "On a slave, what is known to be missing in all; without what is not copied (metaq_link_troubled_partitions)";
    TIME_LEFT: Gauge "metaq_link_left_seconds" []
        "On a slave, when that will be here at the rate of late; absent while nothing comes";
    TROUBLED: Gauge "metaq_link_troubled_partitions" ["trouble"]
        "On a slave, partitions that do not go on by themselves, or lack something inside";

    REGISTERED: Gauge "metaq_registry_registered" [] "1 while clients can find this node in ZooKeeper; 1 without ZooKeeper";

    CERTIFICATE_DAYS: Gauge "metaq_net_certificate_left_days" []
        "Days until this node's certificate ends, negative afterwards; absent without one";
    REFUSED: Counter "metaq_net_refused_handshakes" ["reason"]
        "Peers that were not let in over TLS or QUIC; over TCP those that came while the broker was full";

    RESIDENT: Gauge "process_resident_memory_bytes" [] "Memory of the process";
    OPEN_FILES: Gauge "process_open_fds" [] "Files and connections it holds open";
}

/// Values of one moment.
#[derive(Debug, Default)]
pub(crate) struct Samples(BTreeMap<&'static str, (&'static Metric, Vec<Sample>)>);

#[derive(Debug)]
struct Sample {
    /// In the order of the metric's labels.
    labels: Vec<String>,
    value: f64,
}

impl Samples {
    /// A metric without labels.
    pub(crate) fn put(&mut self, metric: &'static Metric, value: f64) {
        self.put_for(metric, &[], value);
    }

    /// A count; exact up to 2^53.
    pub(crate) fn count(&mut self, metric: &'static Metric, value: u64) {
        self.put(metric, value as f64);
    }

    pub(crate) fn put_for(&mut self, metric: &'static Metric, labels: &[&str], value: f64) {
        assert_eq!(labels.len(), metric.labels.len(), "{} has other labels", metric.name);
        let labels = labels.iter().map(|label| (*label).to_owned()).collect();
        self.0.entry(metric.name).or_insert((metric, Vec::new())).1.push(Sample { labels, value });
    }
}

impl Collector for Samples {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        for (metric, samples) in self.0.values() {
            let kind = match metric.kind {
                Kind::Counter => MetricType::Counter,
                Kind::Gauge => MetricType::Gauge,
            };
            let mut family = encoder.encode_descriptor(metric.name, metric.help, None, kind)?;
            for Sample { labels, value } in samples {
                if labels.is_empty() {
                    write(&mut family, metric.kind, *value)?;
                } else {
                    let set: Vec<(&str, &str)> =
                        metric.labels.iter().copied().zip(labels.iter().map(String::as_str)).collect();
                    write(&mut family.encode_family(&set)?, metric.kind, *value)?;
                }
            }
        }
        Ok(())
    }
}

fn write(encoder: &mut MetricEncoder<'_>, kind: Kind, value: f64) -> fmt::Result {
    match kind {
        Kind::Counter => encoder.encode_counter::<NoLabelSet, f64, f64>(&value, None),
        Kind::Gauge => encoder.encode_gauge(&value),
    }
}

/// In the text format of OpenMetrics.
pub(crate) fn encode(samples: Samples) -> String {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(samples));
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry).expect("a string takes all that is written");
    text
}

/// The table of docs/metrics.md.
pub fn describe() -> String {
    let mut text = String::from("| metric | kind | labels | meaning |\n|---|---|---|---|\n");
    for Metric { name, kind, help, labels } in ALL {
        let (total, kind) = match kind {
            Kind::Counter => ("_total", "counter"),
            Kind::Gauge => ("", "gauge"),
        };
        text += &format!("| `{name}{total}` | {kind} | {} | {help} |\n", labels.join(", "));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn names_say_where_they_come_from_and_what_they_count() {
        let crates = ["broker", "txn", "store", "link", "registry", "net"];
        let mut seen = HashSet::new();
        for metric in ALL {
            assert!(seen.insert(metric.name), "{} is declared twice", metric.name);
            assert!(!metric.name.ends_with("_total"), "{}: it is put there", metric.name);
            assert!(!metric.help.ends_with('.') && metric.help.len() > 12, "{}", metric.name);
            let ours = metric.name.strip_prefix("metaq_").and_then(|rest| rest.split('_').next());
            assert!(ours.is_none_or(|name| crates.contains(&name)), "{}", metric.name);
        }
    }

    #[test]
    fn the_text_is_that_of_open_metrics() {
        let mut samples = Samples::default();
        samples.count(&PUTS, 3);
        samples.put_for(&LAG_SECONDS, &["0", "a\"b", "1"], 0.25);
        samples.put_for(&LAG_SECONDS, &["0", "c", "2"], 0.0);
        assert_eq!(
            encode(samples),
            "# HELP metaq_broker_puts Messages that came in, refused ones too\n\
             # TYPE metaq_broker_puts counter\n\
             metaq_broker_puts_total 3.0\n\
             # HELP metaq_link_lag_seconds The age of the oldest byte it lacks\n\
             # TYPE metaq_link_lag_seconds gauge\n\
             metaq_link_lag_seconds{slave=\"0\",topic=\"a\\\"b\",partition=\"1\"} 0.25\n\
             metaq_link_lag_seconds{slave=\"0\",topic=\"c\",partition=\"2\"} 0.0\n\
             # EOF\n"
        );
    }
}
