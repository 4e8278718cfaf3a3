use crate::ack::AckRules;
use crate::finding::Findings;
use crate::ini::{Ini, Section};
use crate::keys::{self, Key};
use crate::nearest::nearest;
use crate::policy::{DeletePolicy, DeleteWhen};
use crate::system::{System, threshold};
use crate::values::Values;
use metaq_types::{JOURNAL_TOPIC, TopicName};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

/// How a topic is kept and offered; what its section leaves open is filled in from `[system]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topic {
    /// Of the section these settings are from; for a topic that a pattern let in, the pattern.
    pub name: TopicName,
    pub num_partitions: u32,
    /// Messages that may wait for the disk; 0: none, each is synced before it is answered (group commit).
    pub unflush_threshold: u32,
    /// How long a message may wait for the disk when the threshold is not 0.
    pub unflush_interval: Duration,
    /// Who has to hold a message besides this node before it is acknowledged.
    pub ack: AckRules,
    /// Bytes.
    pub max_segment_size: u32,
    pub data_path: PathBuf,
    pub delete_policy: DeletePolicy,
    /// Of a partition; 0: as much as the age allows.
    pub retention_bytes: u64,
    pub delete_when: DeleteWhen,
    pub accept_publish: bool,
    pub accept_subscribe: bool,
    pub stat: bool,
}

impl Topic {
    /// Each setting as one would write it in the file.
    pub fn settings(&self) -> Vec<(&'static Key, String)> {
        vec![
            (&keys::NUM_PARTITIONS, self.num_partitions.to_string()),
            (&keys::UNFLUSH_THRESHOLD, self.unflush_threshold.to_string()),
            (&keys::UNFLUSH_INTERVAL, self.unflush_interval.as_millis().to_string()),
            (&keys::ACK_QUORUM, self.ack.quorum.to_string()),
            (&keys::ACK_TIMEOUT_IN_MILLS, self.ack.timeout.as_millis().to_string()),
            (&keys::ACK_QUORUM_DOWNGRADE, self.ack.downgrade.to_string()),
            (&keys::DATA_PATH, self.data_path.display().to_string()),
            (&keys::DELETE_POLICY, self.delete_policy.to_string()),
            (&keys::RETENTION_BYTES, self.retention_bytes.to_string()),
            (&keys::DELETE_WHEN, self.delete_when.to_string()),
            (&keys::ACCEPT_PUBLISH, self.accept_publish.to_string()),
            (&keys::ACCEPT_SUBSCRIBE, self.accept_subscribe.to_string()),
            (&keys::STAT, self.stat.to_string()),
        ]
    }
}

/// Every `[topic=NAME]` section, resolved against `system`.
pub(crate) fn parse_topics(ini: &Ini, system: &System, findings: &mut Findings) -> BTreeMap<TopicName, Topic> {
    let mut topics = BTreeMap::new();
    for section in &ini.sections {
        let Some(name) = section.name.strip_prefix("topic=") else { continue };
        match TopicName::new(name) {
            Ok(name) if *name == *JOURNAL_TOPIC => {
                findings
                    .error(section.line, format!("[{}]: that is what the transaction journal is called", section.name));
            }
            Ok(name) => {
                let topic = parse_topic(name.clone(), section, system, findings);
                topics.insert(name, topic);
            }
            // What another encoding's bytes are read as.
            Err(_) if name.contains(char::REPLACEMENT_CHARACTER) => findings.error(
                section.line,
                format!("[{}]: the name is not UTF-8 (GBK?); save the file as UTF-8", section.name),
            ),
            Err(error) => findings.error(section.line, format!("[{}]: {error}", section.name)),
        }
    }
    topics
}

fn parse_topic(name: TopicName, section: &Section, system: &System, findings: &mut Findings) -> Topic {
    check_keys(section, findings);
    let inherited = Topic { name, ..system.topic_defaults() };
    let place = format!("[{}] ", section.name);
    let mut values = Values::new(place, Some(section.line), &section.entries, findings);
    Topic {
        num_partitions: narrow(values.integer_or(&keys::NUM_PARTITIONS, inherited.num_partitions.into())),
        unflush_threshold: threshold(values.integer_or(&keys::UNFLUSH_THRESHOLD, inherited.unflush_threshold.into())),
        unflush_interval: values.millis_or(&keys::UNFLUSH_INTERVAL, inherited.unflush_interval),
        ack: AckRules::parse_or(&mut values, inherited.ack),
        data_path: values.path_or(&keys::DATA_PATH, inherited.data_path),
        delete_policy: values.parsed_or(&keys::DELETE_POLICY, inherited.delete_policy, str::parse),
        retention_bytes: values.unsigned_or(&keys::RETENTION_BYTES, inherited.retention_bytes),
        delete_when: values.parsed_or(&keys::DELETE_WHEN, inherited.delete_when, str::parse),
        accept_publish: values.bool_or(&keys::ACCEPT_PUBLISH, inherited.accept_publish),
        accept_subscribe: values.bool_or(&keys::ACCEPT_SUBSCRIBE, inherited.accept_subscribe),
        // The original reads this one in any letter case, in topic sections only (configuration, "2. Value types").
        stat: values.bool_any_case_or(&keys::STAT, inherited.stat),
        ..inherited
    }
}

fn narrow(value: i64) -> u32 {
    u32::try_from(value).expect("the key's range lies within 32 bits")
}

fn check_keys(section: &Section, findings: &mut Findings) {
    for entry in &section.entries {
        let key = entry.key.as_str();
        if keys::topic_keys().any(|known| known.name == key) {
            continue;
        }
        let filter = key.strip_prefix("group.").or_else(|| key.strip_prefix("filter."));
        match filter {
            Some(_) if entry.value.trim().is_empty() => {}
            Some(group) => findings.error(entry.line, filter_message(key, group)),
            None if keys::MEANINGLESS_TOPIC.contains(&key) => {
                findings.warn(entry.line, format!("{key} means nothing and is ignored; remove this line"));
            }
            None => findings.error(entry.line, unknown_key(key, section)),
        }
    }
}

fn filter_message(key: &str, group: &str) -> String {
    if key.starts_with("group.") {
        format!(
            "{key} names a Java class, and Java classes cannot run here: remove this line and filter in the consumers \
             of {group}; a filter as an expression, filter.{group} = attribute ~ \"^order-\", is not supported yet"
        )
    } else {
        format!(
            "{key}: filter expressions are not supported yet: remove this line and filter in the consumers of {group}"
        )
    }
}

fn unknown_key(key: &str, section: &Section) -> String {
    if let Some(known) = keys::SYSTEM.iter().find(|known| known.name == key) {
        return format!("{} cannot be set for one topic; write it in [system]", known.name);
    }
    match nearest(key, keys::topic_keys().map(|key| key.name)) {
        Some(near) => format!("unknown key {key} in [{}]; did you mean {near}?", section.name),
        None => format!("unknown key {key} in [{}]; remove this line", section.name),
    }
}
