//! `metaq topic describe`: when a put to a topic is answered, and what that can cost.

use std::collections::BTreeMap;

use anyhow::bail;
use metaq_client::Client;
use serde::Serialize;

use crate::cluster::{self, Source};
use crate::show::{self, Column, Format, or_dash};

/// A topic on one broker.
#[derive(Debug, PartialEq, Serialize)]
struct Row {
    broker: u16,
    topic: String,
    partitions: u32,
    /// `os`, `fsync` or `quorum`.
    level: &'static str,
    ack_quorum: u32,
    /// Members there now in the partition that has the fewest, the master included; `null` where nobody is asked, or no
    /// message was put since the broker started.
    members: Option<u32>,
    /// What an answered put may lose, in words.
    worst_loss: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    note: Option<String>,
}

/// The settings in force, as `stats durability` tells them.
#[derive(Debug, Clone, PartialEq)]
struct Settings {
    partitions: u32,
    unflush_threshold: u32,
    unflush_interval_ms: u64,
    quorum: u32,
    timeout_ms: u64,
    downgrade: bool,
}

pub(crate) async fn describe(source: &Source, topic: &str, format: Format) -> anyhow::Result<()> {
    let found = source.look_at_brokers().await?;
    let mut rows = Vec::new();
    for (id, broker) in &found.brokers {
        let Some(master) = &broker.master else { continue };
        let client = cluster::connect(master).await?;
        let text = client.stats("durability").await?;
        let Some(settings) = parse(&String::from_utf8_lossy(&text)).remove(topic) else { continue };
        let report = metaq_link::quorum_report::parse(&String::from_utf8_lossy(&client.stats("quorum").await?));
        let of_topic = report.logs.iter().filter(|log| *log.partition.topic == *topic);
        rows.push(row(id.get(), topic, &settings, of_topic.map(|log| log.members).min()));
    }
    if rows.is_empty() {
        bail!("no master that answers has a topic {topic}; 'metaq topic list' shows which there are");
    }
    let columns = [
        Column("TOPIC", false),
        Column("BROKER", true),
        Column("PARTITIONS", true),
        Column("LEVEL", false),
        Column("ACK QUORUM", true),
        Column("MEMBERS NOW", true),
        Column("WORST LOSS OF AN ANSWERED PUT", false),
        Column("", false),
    ];
    show::rows(format, &columns, &rows, |row| {
        vec![
            row.topic.clone(),
            row.broker.to_string(),
            row.partitions.to_string(),
            row.level.to_owned(),
            row.ack_quorum.to_string(),
            or_dash(row.members),
            row.worst_loss.clone(),
            row.note.clone().unwrap_or_default(),
        ]
    })?;
    Ok(())
}

fn row(broker: u16, topic: &str, settings: &Settings, members: Option<u32>) -> Row {
    let Settings { partitions, quorum, downgrade, timeout_ms, .. } = *settings;
    let (level, worst_loss) = promise(settings);
    let short = quorum > 1 && members.is_some_and(|members| members < quorum);
    let note = match (short, downgrade) {
        (true, true) => {
            Some("downgraded at the moment: fewer members than ackQuorum hold what is acknowledged".to_owned())
        }
        (true, false) => Some("puts are refused at the moment: see 'metaq replica status'".to_owned()),
        (false, _) if quorum > 1 => Some(format!("answered as unconfirmed after {timeout_ms} ms")),
        (false, _) => None,
    };
    Row {
        broker,
        topic: topic.to_owned(),
        partitions,
        level,
        ack_quorum: quorum,
        members: members.filter(|_| quorum > 1),
        worst_loss,
        note,
    }
}

/// The level and the worst loss it allows, in words.
fn promise(settings: &Settings) -> (&'static str, String) {
    let Settings { unflush_threshold, unflush_interval_ms, quorum, downgrade, .. } = *settings;
    let tail = match unflush_threshold {
        1 => format!("the last message of a partition, not older than {unflush_interval_ms} ms"),
        n => format!("the last {n} messages of a partition, none older than {unflush_interval_ms} ms"),
    };
    match (quorum, unflush_threshold) {
        (1, 0) => ("fsync", "power loss: nothing; the node lost for good: what no slave had copied".to_owned()),
        (1, _) => ("os", format!("power loss: {tail}; the node lost for good: what no slave had copied")),
        (_, threshold) => {
            let lost = quorum - 1;
            let nodes = if lost == 1 { "any node" } else { "any nodes, as many as" };
            let count = if lost == 1 { String::new() } else { format!(" {lost},") };
            let mut text = format!("{nodes}{count} lost for good: nothing");
            if threshold > 0 {
                text += &format!("; {quorum} nodes without power at once: {tail}");
            }
            if downgrade {
                text += "; while downgraded: as with ackQuorum=1";
            }
            ("quorum", text)
        }
    }
}

/// How many partitions a topic of this broker has, those without a message included; only a broker of ours tells.
pub(crate) async fn partitions(client: &Client, topic: &str) -> anyhow::Result<Option<u32>> {
    let text = client.stats("durability").await?;
    Ok(parse(&String::from_utf8_lossy(&text)).get(topic).map(|settings| settings.partitions))
}

/// The lines of `stats durability`, by topic.
fn parse(text: &str) -> BTreeMap<String, Settings> {
    text.lines().filter_map(parse_line).collect()
}

fn parse_line(line: &str) -> Option<(String, Settings)> {
    let words: Vec<&str> = line.strip_prefix("topic ")?.split_ascii_whitespace().collect();
    let (name, words) = words.split_first()?;
    let after = |name: &str| words.iter().position(|word| *word == name).and_then(|at| words.get(at + 1).copied());
    let settings = Settings {
        partitions: after("partitions")?.parse().ok()?,
        unflush_threshold: after("unflush_threshold")?.parse().ok()?,
        unflush_interval_ms: after("unflush_interval_ms")?.parse().ok()?,
        quorum: after("ack_quorum")?.parse().ok()?,
        timeout_ms: after("ack_timeout_ms")?.parse().ok()?,
        downgrade: after("ack_quorum_downgrade")?.parse().ok()?,
    };
    Some(((*name).to_owned(), settings))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(quorum: u32, unflush_threshold: u32, downgrade: bool) -> Settings {
        Settings { partitions: 3, unflush_threshold, unflush_interval_ms: 500, quorum, timeout_ms: 2000, downgrade }
    }

    #[test]
    fn the_lines_of_stats_durability_are_read() {
        let line = "topic partitions partitions 3 unflush_threshold 0 unflush_interval_ms 500 ack_quorum 2 \
                    ack_timeout_ms 2000 ack_quorum_downgrade false\r\n";
        let read = parse(&format!("STATS\r\n{line}END\r\n"));
        assert_eq!(read["partitions"], settings(2, 0, false), "whatever a topic is called");
    }

    #[test]
    fn every_level_says_what_it_can_cost() {
        let cases = [
            (settings(1, 0, false), "fsync", "power loss: nothing; the node lost for good: what no slave had copied"),
            (
                settings(1, 100, false),
                "os",
                "power loss: the last 100 messages of a partition, none older than 500 ms; the node lost for good: what \
                 no slave had copied",
            ),
            (
                settings(1, 1, false),
                "os",
                "power loss: the last message of a partition, not older than 500 ms; the node lost for good: what no slave \
                 had copied",
            ),
            (settings(2, 0, false), "quorum", "any node lost for good: nothing"),
            (
                settings(3, 0, true),
                "quorum",
                "any nodes, as many as 2, lost for good: nothing; while downgraded: as with ackQuorum=1",
            ),
        ];
        for (settings, level, loss) in cases {
            assert_eq!(promise(&settings), (level, loss.to_owned()));
        }
    }

    #[test]
    fn a_quorum_that_is_not_there_is_said() {
        assert!(row(0, "t", &settings(2, 0, false), Some(1)).note.is_some_and(|note| note.contains("refused")));
        assert!(row(0, "t", &settings(2, 0, true), Some(1)).note.is_some_and(|note| note.contains("downgraded")));
        assert_eq!(row(0, "t", &settings(1, 0, false), Some(1)).members, None);
    }
}
