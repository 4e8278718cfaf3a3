//! `metaq topic list`.

use std::collections::BTreeMap;

use metaq_registry::Role;
use metaq_types::BrokerId;
use serde::Serialize;

use crate::cluster::{self, Source};
use crate::show::{self, Column, Format, or_dash};

#[derive(Serialize)]
struct Row {
    topic: String,
    broker: u16,
    /// As registered; for a broker that was named, as far as they exist.
    partitions: Option<u32>,
    messages: Option<u64>,
    bytes: Option<u64>,
    /// Not known of a topic that a named broker offers and holds nothing of: only the registry tells.
    publish: Option<bool>,
    subscribe: Option<bool>,
    /// Why messages and bytes are not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    unknown: Option<String>,
}

/// What a broker says of one topic in `stats topics`.
#[derive(Default, Clone, Copy)]
struct Held {
    messages: u64,
    bytes: u64,
}

pub(crate) async fn list(source: &Source, format: Format) -> anyhow::Result<()> {
    let found = source.look_at_brokers().await?;
    let mut rows = Vec::new();
    for (id, broker) in &found.brokers {
        let address = broker.master.as_ref().or_else(|| broker.slaves.values().next());
        let held = match address {
            Some(address) => held(address).await.map_err(|error| format!("{error:#}")),
            None => Err("no broker of this id is registered".to_owned()),
        };
        rows.extend(rows_of(*id, &found.topics, &held, matches!(source, Source::Registry(_))));
    }
    rows.sort_by(|a, b| (&a.topic, a.broker).cmp(&(&b.topic, b.broker)));
    let columns = [
        Column("TOPIC", false),
        Column("BROKER", true),
        Column("PARTITIONS", true),
        Column("MESSAGES", true),
        Column("BYTES", true),
        Column("PUBLISH", false),
        Column("SUBSCRIBE", false),
        Column("", false),
    ];
    let yes_or_no = |open: Option<bool>| open.map_or("-", |open| if open { "yes" } else { "no" }).to_owned();
    show::rows(format, &columns, &rows, |row| {
        vec![
            row.topic.clone(),
            row.broker.to_string(),
            or_dash(row.partitions),
            or_dash(row.messages),
            or_dash(row.bytes),
            yes_or_no(row.publish),
            yes_or_no(row.subscribe),
            row.unknown.clone().unwrap_or_default(),
        ]
    })?;
    Ok(())
}

fn rows_of(
    id: BrokerId,
    topics: &BTreeMap<String, metaq_registry::ClusterTopic>,
    held: &Result<BTreeMap<String, Held>, String>,
    registered: bool,
) -> Vec<Row> {
    let of_this_id = |counts: &BTreeMap<(BrokerId, Role), u32>| -> Option<u32> {
        counts.iter().filter(|((broker, _), _)| *broker == id).map(|(_, count)| *count).max()
    };
    let mut names: Vec<&String> = topics.keys().collect();
    if let Ok(held) = held {
        names.extend(held.keys().filter(|name| !topics.contains_key(*name)));
    }
    let mut rows = Vec::new();
    for name in names {
        let publish = topics.get(name).and_then(|topic| of_this_id(&topic.publish));
        let subscribe = topics.get(name).and_then(|topic| of_this_id(&topic.subscribe));
        let known = held.as_ref().ok().and_then(|held| held.get(name)).copied();
        if publish.is_none() && subscribe.is_none() && known.is_none() {
            continue;
        }
        // A registered topic that its broker does not list holds nothing yet.
        let known = known.or_else(|| held.is_ok().then(Held::default));
        let is_told = registered || topics.contains_key(name);
        rows.push(Row {
            topic: name.clone(),
            broker: id.get(),
            partitions: publish.max(subscribe),
            messages: known.map(|held| held.messages),
            bytes: known.map(|held| held.bytes),
            publish: is_told.then_some(publish.is_some()),
            subscribe: is_told.then_some(subscribe.is_some()),
            unknown: held.as_ref().err().cloned(),
        });
    }
    rows
}

async fn held(address: &str) -> anyhow::Result<BTreeMap<String, Held>> {
    let client = cluster::connect(address).await?;
    let text = client.stats("topics").await?;
    Ok(String::from_utf8_lossy(&text).lines().filter_map(parse_line).collect())
}

/// `test partitions 3 message_count 11 message_bytes 270 accept_publish true accept_subscribe true`, or
/// `test *Empty*` (stats, "topics").
fn parse_line(line: &str) -> Option<(String, Held)> {
    if let Some(name) = line.trim_end().strip_suffix(" *Empty*") {
        return Some((name.to_owned(), Held::default()));
    }
    let (name, numbers) = line.split_once(" partitions ")?;
    let words: Vec<&str> = numbers.split_ascii_whitespace().collect();
    let value = |name: &str| words.iter().position(|word| *word == name).and_then(|at| words.get(at + 1)?.parse().ok());
    Some((name.to_owned(), Held { messages: value("message_count")?, bytes: value("message_bytes")? }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lines_of_stats_topics_are_read() {
        let line = "a-b partitions 3 message_count 11 message_bytes 270 accept_publish true accept_subscribe true";
        let (name, held) = parse_line(line).unwrap();
        assert_eq!((name.as_str(), held.messages, held.bytes), ("a-b", 11, 270));
        let (name, held) = parse_line("gc *Empty*").unwrap();
        assert_eq!((name.as_str(), held.messages), ("gc", 0));
        assert!(parse_line("STATS").is_none() && parse_line("END").is_none());
    }

    #[test]
    fn what_only_the_registry_tells_is_not_said_of_a_broker_alone() {
        let held = Ok(BTreeMap::from([parse_line("gc *Empty*").unwrap()]));
        let open = |registered| {
            let rows = rows_of(BrokerId::new(0).unwrap(), &BTreeMap::new(), &held, registered);
            (rows[0].publish, rows[0].subscribe)
        };
        assert_eq!(open(false), (None, None), "it may well be open");
        assert_eq!(open(true), (Some(false), Some(false)), "it is not registered");
    }
}
