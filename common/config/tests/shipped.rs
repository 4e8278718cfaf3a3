//! The files in `conf/` are the manual of the configuration: they hold every key, with its true default and range.

use metaq_config::keys::{self, Key, Kind, Presence};
use metaq_config::{BrokerConfig, SlaveConfig};
use std::path::{Path, PathBuf};

fn shipped(name: &str) -> (PathBuf, String) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../conf").join(name);
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    (path, text)
}

/// `key`'s line in the file, without the mark of a comment, and the paragraph it stands in.
fn find<'a>(text: &'a str, key: &Key) -> (bool, &'a str, &'a str) {
    let begins = format!("{}=", key.name);
    for paragraph in text.split("\n\n") {
        for line in paragraph.lines() {
            let bare = line.strip_prefix([';', '#']).unwrap_or(line);
            if let Some(value) = bare.strip_prefix(&begins) {
                return (bare.len() == line.len(), value, paragraph);
            }
        }
    }
    panic!("{} does not stand in the file", key.name);
}

/// Keys whose shipped value is on purpose not the default.
const CHOSEN: &[(&str, &str)] =
    &[("dataPath", "data"), ("stat", "true"), ("slaveId", "0"), ("autoSyncMasterConfig", "true")];

fn check(text: &str, known: &[&Key]) {
    for key in known {
        let (active, value, paragraph) = find(text, key);
        let explains = |words: &str| assert!(paragraph.contains(words), "{} is not said to be '{words}'", key.name);
        match key.presence {
            Presence::Required { example } => {
                explains("Required");
                assert!(active && value == example, "{}: {value}", key.name);
            }
            Presence::Default(default) => {
                explains(&if default.is_empty() { "efault".to_owned() } else { format!("Default {default}") });
                let chosen = CHOSEN.iter().find(|(name, _)| *name == key.name).map(|(_, value)| *value);
                assert_eq!(value, chosen.unwrap_or(default), "{}", key.name);
                assert!(active || chosen.is_none(), "{} shows something else than its default", key.name);
            }
        }
        match key.kind {
            Kind::Integer { min, max } => {
                let unit = if key.unit.is_empty() { String::new() } else { format!(" {}", key.unit) };
                explains(&format!("{min}..{max}{unit}"));
            }
            Kind::Bool if !key.without_effect => explains("true or false"),
            Kind::Bool | Kind::Text => {}
        }
    }
}

#[test]
fn server_ini_explains_every_key_and_is_valid() {
    let (path, text) = shipped("server.ini");
    check(&text, keys::SYSTEM);
    check(&text, keys::ZOOKEEPER);
    let config = BrokerConfig::load(&path).unwrap_or_else(|errors| panic!("{errors}"));
    assert!(config.warnings.is_empty(), "{:?}", config.warnings);
    let topics: Vec<_> = config.topics.values().map(|topic| (topic.name.to_string(), topic.num_partitions)).collect();
    assert_eq!(topics, [("meta-test".to_owned(), 4), ("test".to_owned(), 1)]);
    assert_eq!(config.topic("test").unwrap().unflush_threshold, 0, "what is shipped loses nothing");
}

#[test]
fn server_ini_names_every_key_of_a_topic() {
    let (_, text) = shipped("server.ini");
    let about_topics = text.split("---- Topics ---").nth(1).unwrap();
    for key in keys::topic_keys() {
        assert!(about_topics.contains(key.name), "{}", key.name);
    }
}

#[test]
fn async_slave_properties_explains_every_key_and_is_valid() {
    let (path, text) = shipped("async_slave.properties");
    check(&text, keys::SLAVE);
    let config = SlaveConfig::load(&path).unwrap_or_else(|errors| panic!("{errors}"));
    assert_eq!(config.slave_group, "meta-slave-group_0");
    assert!(config.auto_sync_master_config);
}

#[test]
fn every_commented_key_may_be_uncommented() {
    let (path, text) = shipped("server.ini");
    let uncommented: String = text
        .lines()
        .map(|line| {
            let bare = line.strip_prefix(';').unwrap_or(line);
            let is_key = bare.split('=').next().is_some_and(|key| !key.is_empty() && !key.contains(' '));
            format!("{}\n", if bare.contains('=') && is_key { bare } else { line })
        })
        .collect();
    assert_ne!(uncommented, text);
    let config = BrokerConfig::parse(&path, uncommented).unwrap_or_else(|errors| panic!("{errors}"));
    let as_shipped = BrokerConfig::load(&path).unwrap();
    assert_eq!(as_shipped.differences(&config), [""; 0], "a default that is written out changes nothing");
}

/// `settings()` shows every key that has an effect, so that no change of one goes unnoticed at a reload.
#[test]
fn settings_are_complete() {
    let (path, _) = shipped("server.ini");
    let config = BrokerConfig::load(&path).unwrap();
    let check = |settings: Vec<(&'static Key, String)>, mut expect: Vec<&str>| {
        let mut names: Vec<_> = settings.iter().map(|(key, _)| key.name).collect();
        names.sort_unstable();
        expect.sort_unstable();
        assert_eq!(names, expect);
    };
    let effective = keys::SYSTEM.iter().filter(|key| !key.without_effect);
    check(config.system.settings(), effective.map(|key| key.name).collect());
    check(config.zookeeper.settings(), keys::ZOOKEEPER.iter().map(|key| key.name).collect());
    check(config.topic("test").unwrap().settings(), keys::topic_keys().map(|key| key.name).collect());
}
