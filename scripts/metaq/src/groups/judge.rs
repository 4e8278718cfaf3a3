//! What is to be said of a group's partitions: plain functions of what the registry and the brokers said.

use std::collections::{BTreeMap, BTreeSet};

use metaq_registry::paths::parse_partition;
use metaq_registry::{Cluster, Group, GroupPartition, Stored};
use metaq_types::{BrokerId, Offset};
use serde::Serialize;

/// Slaves read under such a name unless `slaveGroup` gives them another.
const SLAVE_GROUP_PREFIX: &str = "meta-slave-group";

/// More of an unreadable offset is not shown.
const SHOWN_CHARS_MAX: usize = 60;

pub(super) const NO_OWNER: &str = "no owner";
const NO_OWNER_GROWING: &str = "no owner, lag growing";
const OWNED: &str = "owned";
const OWNED_GROWING: &str = "owned, lag growing";
const TOPIC_GONE: &str = "topic gone";
const NO_BROKER: &str = "no broker";
const SLAVE: &str = "slave";
const NO_PARTITION: &str = "no partition";

/// The first offset and the readable end of a broker's partitions, by topic and number.
pub(super) type Spans = BTreeMap<(String, u32), (Offset, Offset)>;

/// What is registered, and what each broker says of its partitions, or why it does not.
pub(super) struct Brokers {
    pub(super) cluster: Cluster,
    pub(super) spans: BTreeMap<BrokerId, Result<Spans, String>>,
}

/// One partition of a group.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Row {
    pub(super) topic: String,
    /// Broker and number are `null` for a node whose name is none of a partition.
    pub(super) broker: Option<u16>,
    pub(super) partition: Option<u32>,
    pub(super) owner: Option<String>,
    pub(super) stored: Option<u64>,
    pub(super) first: Option<u64>,
    pub(super) end: Option<u64>,
    /// What can be read from the stored offset on; `null` when that or the end is not known.
    pub(super) lag_bytes: Option<u64>,
    /// Before the first offset, and so gone unread.
    pub(super) gone_bytes: u64,
    pub(super) state: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) note: Option<String>,
}

/// Whether slaves read under this name.
fn is_slaves(group: &str) -> bool {
    group.starts_with(SLAVE_GROUP_PREFIX)
}

/// What is to be said of the whole group.
pub(super) fn note(name: &str, group: &Group) -> Option<String> {
    if is_slaves(name) {
        return Some("a slave's: it copies without owning partitions or storing offsets".to_owned());
    }
    let looks_like_one = !group.members.is_empty() && group.partitions.is_empty();
    looks_like_one.then(|| {
        "no partition has an owner or an offset: a slave with a slaveGroup of its own looks like this".to_owned()
    })
}

/// Every partition that the group has written something about, and every one that is announced of the topics it reads.
pub(super) fn rows(name: &str, group: &Group, brokers: &Brokers) -> Vec<Row> {
    let mut places: BTreeSet<(String, BrokerId, u32)> = BTreeSet::new();
    let mut strangers = Vec::new();
    let mut topics: BTreeSet<&str> = group.members.values().flatten().map(String::as_str).collect();
    for (topic, node) in group.partitions.keys() {
        topics.insert(topic);
        match parse_partition(node) {
            Some((broker, number)) => drop(places.insert((topic.clone(), broker, number))),
            None => strangers.push(stranger(topic, node)),
        }
    }
    for topic in topics {
        let announced = brokers.cluster.topics.get(topic).into_iter().flat_map(|topic| &topic.subscribe);
        for ((broker, _), count) in announced {
            places.extend((0..*count).map(|number| (topic.to_owned(), *broker, number)));
        }
    }
    let mut rows: Vec<Row> = places.iter().map(|place| row(name, group, brokers, place)).collect();
    rows.extend(strangers);
    rows.sort_by(|a, b| (&a.topic, a.broker, a.partition).cmp(&(&b.topic, b.broker, b.partition)));
    rows
}

fn row(name: &str, group: &Group, brokers: &Brokers, place: &(String, BrokerId, u32)) -> Row {
    let (topic, broker, number) = place;
    let nothing = GroupPartition::default();
    let kept = group.partitions.get(&(topic.clone(), format!("{broker}-{number}"))).unwrap_or(&nothing);
    let is_announced = brokers
        .cluster
        .topics
        .get(topic)
        .is_some_and(|topic| topic.subscribe.iter().any(|((id, _), count)| id == broker && number < count));
    let answers = matches!(brokers.spans.get(broker), Some(Ok(_)));
    let mut notes = Vec::new();
    let span = match brokers.spans.get(broker) {
        None => Err(format!("no broker {broker} is registered")),
        Some(Err(reason)) => Err(format!("broker {broker}: {reason}")),
        // A partition that its broker does not list holds nothing yet.
        Some(Ok(spans)) => {
            Ok(spans.get(&(topic.clone(), *number)).copied().or(is_announced.then_some((Offset::ZERO, Offset::ZERO))))
        }
    };
    let span = span.unwrap_or_else(|reason| {
        notes.push(reason);
        None
    });
    let stored = match &kept.stored {
        Some(Stored::At(offset)) => Some(*offset),
        Some(Stored::Unreadable(text)) => {
            notes.push(format!(
                "the stored offset cannot be read: '{}'",
                text.chars().take(SHOWN_CHARS_MAX).collect::<String>()
            ));
            None
        }
        None => None,
    };
    let lag = stored.zip(span).map(|(stored, (first, end))| end.bytes_since(stored.max(first)));
    let gone = stored.zip(span).map_or(0, |(stored, (first, _))| first.bytes_since(stored));
    if gone > 0 {
        notes.push(format!("{gone} bytes before the first offset are gone unread"));
    }
    if let Some((stored, (_, end))) = stored.zip(span).filter(|(stored, (_, end))| stored > end) {
        notes.push(match stored {
            Offset::MAX => "skips to the newest".to_owned(),
            _ => format!("stored {} bytes beyond the end", stored.bytes_since(end)),
        });
    }
    if let Some(owner) = kept.owner.as_ref().filter(|owner| !group.members.contains_key(*owner)) {
        notes.push(format!("its owner is no member: {owner}"));
    }
    Row {
        topic: topic.clone(),
        broker: Some(broker.get()),
        partition: Some(*number),
        owner: kept.owner.clone(),
        stored: stored.map(Offset::get),
        first: span.map(|(first, _)| first.get()),
        end: span.map(|(_, end)| end.get()),
        lag_bytes: lag,
        gone_bytes: gone,
        state: match &kept.owner {
            _ if is_slaves(name) => SLAVE,
            Some(_) => OWNED,
            None if is_announced => NO_OWNER,
            None if answers => TOPIC_GONE,
            None => NO_BROKER,
        },
        note: (!notes.is_empty()).then(|| notes.join("; ")),
    }
}

/// A node that is none of a partition; a consumer cannot make anything of it either.
fn stranger(topic: &str, node: &str) -> Row {
    Row {
        topic: topic.to_owned(),
        broker: None,
        partition: None,
        owner: None,
        stored: None,
        first: None,
        end: None,
        lag_bytes: None,
        gone_bytes: 0,
        state: NO_PARTITION,
        note: Some(format!("a node is called '{node}'")),
    }
}

/// Tells the partitions whose lag grew between two looks. Where no offset is stored, everything that comes adds to it.
pub(super) fn mark_growing(before: &[Row], after: &mut [Row]) {
    let key = |row: &Row| (row.topic.clone(), row.broker, row.partition);
    let earlier: BTreeMap<_, &Row> = before.iter().map(|row| (key(row), row)).collect();
    for row in after {
        let Some(earlier) = earlier.get(&key(row)) else { continue };
        let grows = match (earlier.lag_bytes, row.lag_bytes) {
            (Some(then), Some(now)) => now > then,
            _ => earlier.end.is_some_and(|then| row.end.is_some_and(|now| now > then)),
        };
        row.state = match row.state {
            NO_OWNER if grows => NO_OWNER_GROWING,
            OWNED if grows => OWNED_GROWING,
            same => same,
        };
    }
}

#[cfg(test)]
mod tests {
    use metaq_registry::{ClusterTopic, Role};

    use super::*;

    fn offset(at: u64) -> Offset {
        Offset::new(at).unwrap()
    }

    /// Broker 0 announces `t` with two partitions, the first of them from 100 to 200.
    fn brokers() -> Brokers {
        let id = BrokerId::new(0).unwrap();
        let mut cluster = Cluster::default();
        let topic = ClusterTopic { subscribe: BTreeMap::from([((id, Role::Master), 2)]), ..ClusterTopic::default() };
        cluster.topics.insert("t".to_owned(), topic);
        let spans = Spans::from([(("t".to_owned(), 0), (offset(100), offset(200)))]);
        Brokers { cluster, spans: BTreeMap::from([(id, Ok(spans))]) }
    }

    fn group(owner: Option<&str>, stored: Option<Stored>) -> Group {
        let mut group = Group::default();
        group.members.insert("g_1".to_owned(), vec!["t".to_owned()]);
        let partition = GroupPartition { owner: owner.map(str::to_owned), stored };
        group.partitions.insert(("t".to_owned(), "0-0".to_owned()), partition);
        group
    }

    fn first(owner: Option<&str>, stored: Option<Stored>) -> Row {
        rows("g", &group(owner, stored), &brokers()).swap_remove(0)
    }

    #[test]
    fn lag_is_never_negative_and_never_what_is_gone() {
        let of = |at: u64| {
            let row = first(Some("g_1"), Some(Stored::At(offset(at))));
            (row.lag_bytes, row.gone_bytes, row.note.unwrap_or_default())
        };
        assert_eq!(of(150), (Some(50), 0, String::new()));
        assert_eq!(of(200), (Some(0), 0, String::new()));
        let (lag, gone, note) = of(30);
        assert!((lag, gone) == (Some(100), 70) && note.contains("70 bytes"), "{note}");
        let (lag, gone, note) = of(250);
        assert!((lag, gone) == (Some(0), 0) && note.contains("50 bytes beyond"), "{note}");
        assert!(of(i64::MAX as u64).2.contains("newest"));
    }

    #[test]
    fn owners_are_told_and_so_is_that_there_is_none() {
        assert_eq!(first(Some("g_1"), None).state, OWNED);
        let row = first(None, Some(Stored::At(offset(150))));
        assert_eq!((row.state, row.owner), (NO_OWNER, None));
        assert!(first(Some("g_2"), None).note.unwrap().contains("no member: g_2"));
        let all = rows("g", &group(None, None), &brokers());
        assert_eq!(all.len(), 2, "announced partitions nobody wrote about");
        assert_eq!((all[1].end, all[1].lag_bytes), (Some(0), None));
    }

    #[test]
    fn what_cannot_be_read_is_named_and_hides_nothing() {
        let mut group = group(None, Some(Stored::Unreadable("x-y".to_owned())));
        group.partitions.insert(("t".to_owned(), "junk".to_owned()), GroupPartition::default());
        group.partitions.insert(("old".to_owned(), "0-7".to_owned()), GroupPartition::default());
        group.partitions.insert(("t".to_owned(), "9-0".to_owned()), GroupPartition::default());
        let all = rows("g", &group, &brokers());
        let note = |topic: &str, broker, partition| {
            let mut found =
                all.iter().filter(|row| (row.topic.as_str(), row.broker, row.partition) == (topic, broker, partition));
            found.next().map(|row| (row.state, row.note.clone().unwrap_or_default())).unwrap()
        };
        assert!(note("t", Some(0), Some(0)).1.contains("'x-y'"));
        assert!(note("t", None, None).1.contains("'junk'"));
        assert_eq!(note("old", Some(0), Some(7)).0, TOPIC_GONE);
        let (state, why) = note("t", Some(9), Some(0));
        assert!(state == NO_BROKER && why.contains("no broker 9"), "{why}");
        assert_eq!(note("t", Some(0), Some(1)).0, NO_OWNER);
    }

    #[test]
    fn a_slaves_group_is_no_stuck_consumer() {
        let group = group(None, None);
        assert!(rows("meta-slave-group_0", &group, &brokers()).iter().all(|row| row.state == SLAVE));
        assert!(note("meta-slave-group", &group).is_some() && note("g", &group).is_none());
        let named = Group { partitions: BTreeMap::new(), ..group };
        assert!(note("g", &named).unwrap().contains("slaveGroup"));
    }

    #[test]
    fn a_lag_grows_from_one_look_to_the_next() {
        let at = |owner, stored: Option<u64>| vec![first(owner, stored.map(|at| Stored::At(offset(at))))];
        let grown = |before: &[Row], mut after: Vec<Row>| {
            mark_growing(before, &mut after);
            after[0].state
        };
        assert_eq!(grown(&at(None, Some(160)), at(None, Some(150))), NO_OWNER_GROWING);
        assert_eq!(grown(&at(None, Some(150)), at(None, Some(150))), NO_OWNER);
        assert_eq!(grown(&at(Some("g_1"), Some(160)), at(Some("g_1"), Some(150))), OWNED_GROWING);
        let mut before = at(None, None);
        before[0].end = Some(150);
        assert_eq!(grown(&before, at(None, None)), NO_OWNER_GROWING);
    }
}
