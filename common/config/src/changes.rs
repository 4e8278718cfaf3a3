use crate::broker::BrokerConfig;
use crate::keys::{DATA_PATH, Key};
use crate::system::System;
use crate::topic::Topic;

type Settings = Vec<(&'static Key, String)>;

impl BrokerConfig {
    /// What `new` changes, one line each, for the log of a reload; empty when nothing that counts has changed.
    ///
    /// Topics are compared as they will be in force, see [`BrokerConfig::with_topics_of`].
    pub fn differences(&self, new: &BrokerConfig) -> Vec<String> {
        let mut lines = Vec::new();
        let (system, zookeeper) = (new.system.clone(), &new.zookeeper);
        let new = self.with_topics_of(new.clone());
        let system = System { ack: new.system.ack, ..system };
        section_lines("system", &self.system.settings(), &system.settings(), &mut lines);
        section_lines("zookeeper", &self.zookeeper.settings(), &zookeeper.settings(), &mut lines);
        for (name, old) in &self.topics {
            match new.topics.get(name) {
                None => lines.push(format!("topic {name} removed")),
                Some(topic) => topic_lines(old, topic, &mut lines),
            }
        }
        let added = new.topics.values().filter(|topic| !self.topics.contains_key(&topic.name));
        lines.extend(added.map(|topic| format!("topic {} added, numPartitions={}", topic.name, topic.num_partitions)));
        lines
    }
}

fn changes<'a>(old: &'a Settings, new: &'a Settings) -> impl Iterator<Item = (&'static Key, &'a str, &'a str)> {
    assert_eq!(old.len(), new.len(), "settings of one kind are the same list of keys");
    let pairs = old.iter().zip(new).map(|((key, old), (_, new))| (*key, old.as_str(), new.as_str()));
    pairs.filter(|(_, old, new)| old != new)
}

fn section_lines(section: &str, old: &Settings, new: &Settings, lines: &mut Vec<String>) {
    lines.extend(changes(old, new).map(|(key, old, new)| {
        let when = if key.reloadable { "" } else { " (needs a restart)" };
        format!("[{section}] {} {} → {}{when}", key.name, shown(old), shown(new))
    }));
}

fn topic_lines(old: &Topic, new: &Topic, lines: &mut Vec<String>) {
    lines.extend(changes(&old.settings(), &new.settings()).map(|(key, from, to)| {
        let when = if key.name == DATA_PATH.name { " (for partitions made from now on)" } else { "" };
        format!("topic {} {} {} → {}{when}", old.name, key.name, shown(from), shown(to))
    }));
}

fn shown(value: &str) -> &str {
    if value.is_empty() { "(empty)" } else { value }
}
