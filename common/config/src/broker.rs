use crate::ack::AckRules;
use crate::finding::{ConfigErrors, Finding, Findings};
use crate::ini::{Ini, Section};
use crate::keys::{self, Key};
use crate::nearest::nearest;
use crate::pattern::Patterns;
use crate::system::System;
use crate::topic::{Topic, parse_topics};
use crate::values::Values;
use crate::zookeeper::ZooKeeper;
use metaq_types::TopicName;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// Far above ten thousand topic sections.
const FILE_BYTES_MAX: u64 = 16 * 1024 * 1024;

/// A name that is not known is compared with no more than this many that are: anybody may ask.
const COMPARED_MAX: usize = 1000;

/// A whole `server.ini`, checked: every value is within its range and nothing is left to resolve.
#[derive(Clone, Debug)]
pub struct BrokerConfig {
    pub system: System,
    pub zookeeper: ZooKeeper,
    /// Never empty.
    pub topics: BTreeMap<TopicName, Topic>,
    /// CRC-32 of the file's bytes, as masters publish it (configuration, "9. Config checksum").
    pub checksum: u32,
    /// The file's bytes, in the encoding they had.
    pub text: Vec<u8>,
    pub path: PathBuf,
    /// What the file says to no effect, or more than once; to be logged.
    pub warnings: Vec<Finding>,
    patterns: Patterns,
    /// Stands in for `ackQuorum` of `[system]`, whatever the file says.
    ack_quorum: Option<u32>,
}

impl BrokerConfig {
    pub fn load(path: &Path) -> Result<BrokerConfig, ConfigErrors> {
        match read(path) {
            Ok(bytes) => BrokerConfig::parse(path, bytes),
            Err(error) => {
                let mut findings = Findings::new(path);
                findings.error(None, format!("cannot be read: {error}; name the file with --config FILE"));
                Err(findings.into_result().expect_err("an error was just added"))
            }
        }
    }

    /// `path` is only what messages call the file.
    pub fn parse(path: &Path, bytes: impl Into<Vec<u8>>) -> Result<BrokerConfig, ConfigErrors> {
        let text = bytes.into();
        let mut findings = Findings::new(path);
        // What else is wrong with it follows from this.
        if let Some((line, message)) = no_text(&text) {
            findings.error(line, message);
            return Err(findings.into_result().expect_err("an error was just added"));
        }
        let ini = Ini::parse(&text, &mut findings);
        check_sections(&ini, &mut findings);
        let system = parse_section(&ini, "system", SYSTEM_MISSING, &mut findings, System::parse);
        let zookeeper = parse_section(&ini, "zookeeper", ZOOKEEPER_MISSING, &mut findings, ZooKeeper::parse);
        // Without [system] there is nothing to inherit; its absence is the one error worth reporting.
        let topics = system.as_ref().map(|system| parse_topics(&ini, system, &mut findings)).unwrap_or_default();
        if !ini.sections.iter().any(|section| section.name.starts_with("topic=")) {
            findings.error(None, "there is no topic; add a section, for example [topic=test]");
        }
        let warnings = findings.into_result()?;
        Ok(BrokerConfig {
            system: system.expect("a missing section is an error"),
            zookeeper: zookeeper.expect("a missing section is an error"),
            patterns: Patterns::of(topics.keys()),
            topics,
            ack_quorum: None,
            checksum: crc32fast::hash(&text),
            text,
            path: path.to_owned(),
            warnings,
        })
    }

    /// The topic's own section, else that of the pattern that fits best, else `None`: the topic is not accepted.
    ///
    /// Of several patterns the one with the most characters besides `*` fits best, then the first by name.
    pub fn topic(&self, name: &str) -> Option<&Topic> {
        self.topics.get(name).or_else(|| self.topics.get(self.patterns.best(name)?))
    }

    /// The section whose name is most like `name`, for whoever meant that one.
    pub fn nearest_topic(&self, name: &str) -> Option<&str> {
        nearest(name, self.topics.keys().take(COMPARED_MAX).map(|topic| topic.as_str()))
    }

    /// What is in force once `new` replaces this at run time: its topics, and what of its `[system]` a reload takes over,
    /// on top of the `[system]` and `[zookeeper]` that this process was started with (configuration, "8. Reload").
    #[must_use]
    pub fn with_topics_of(&self, new: BrokerConfig) -> BrokerConfig {
        let quorum = self.ack_quorum.unwrap_or(new.system.ack.quorum);
        let system = System { ack: AckRules { quorum, ..new.system.ack }, ..self.system.clone() };
        let topics = topics_under(&new, &system);
        BrokerConfig { system, zookeeper: self.zookeeper.clone(), topics, ack_quorum: self.ack_quorum, ..new }
    }

    /// With another `ackQuorum` in `[system]` than the file says, also after a reload; topics that set their own keep it.
    #[must_use]
    pub fn with_ack_quorum(mut self, quorum: u32) -> BrokerConfig {
        self.ack_quorum = Some(quorum);
        self.system.ack.quorum = quorum;
        self.topics = topics_under(&self, &self.system);
        self
    }
}

/// The topics of a file that was found valid, as they inherit from `system`; no range depends on what they inherit.
fn topics_under(config: &BrokerConfig, system: &System) -> BTreeMap<TopicName, Topic> {
    let mut ignored = Findings::new(&config.path);
    let ini = Ini::parse(&config.text, &mut ignored);
    parse_topics(&ini, system, &mut ignored)
}

/// Why these bytes are no text of ours: saved in another form, or left half empty by a crash, which might be read as a
/// file with fewer topics.
fn no_text(bytes: &[u8]) -> Option<(Option<u32>, &'static str)> {
    if bytes.starts_with(b"\xff\xfe") || bytes.starts_with(b"\xfe\xff") {
        return Some((None, "the file is UTF-16; save it as UTF-8"));
    }
    let zero = bytes.iter().position(|byte| *byte == 0)?;
    let line = bytes[..zero].iter().filter(|byte| **byte == b'\n').count() as u32 + 1;
    Some((Some(line), "zero bytes begin here, as after a crash of the machine; restore the file from a copy"))
}

/// Reads a file of bounded size, so that a mistaken path (a log, a device) is an error and not an ocean.
pub(crate) fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(io::Error::other(format!("it is longer than {FILE_BYTES_MAX} bytes")));
    }
    Ok(bytes)
}

const SYSTEM_MISSING: &str = "section [system] is missing; it holds brokerId and what else belongs to this node";
const ZOOKEEPER_MISSING: &str = "section [zookeeper] is missing or says nothing; write for example zk.zkConnect=localhost:2181, or zk.zkEnable=false";

fn parse_section<T>(
    ini: &Ini,
    name: &str,
    missing: &str,
    findings: &mut Findings,
    parse: impl Fn(&mut Values<'_>) -> T,
) -> Option<T> {
    let Some(section) = ini.section(name) else {
        findings.error(None, missing);
        return None;
    };
    let mut values = Values::new(format!("[{name}] "), Some(section.line), &section.entries, findings);
    if values.is_empty() {
        values.findings.error(section.line, missing);
        return None;
    }
    Some(parse(&mut values))
}

fn check_sections(ini: &Ini, findings: &mut Findings) {
    for section in &ini.sections {
        match section.name.as_str() {
            "system" => check_keys(section, keys::SYSTEM, keys::MEANINGLESS_SYSTEM, findings),
            "zookeeper" => check_keys(section, keys::ZOOKEEPER, keys::MEANINGLESS_ZOOKEEPER, findings),
            name if name.starts_with("topic=") => {}
            name => findings.error(section.line, unknown_section(name)),
        }
    }
}

fn unknown_section(name: &str) -> String {
    let (kind, rest) = match name.split_once(['=', ':']) {
        Some((kind, rest)) => (kind.trim(), Some(rest.trim())),
        None => (name.trim(), None),
    };
    match (nearest(kind, ["system", "zookeeper", "topic"]), rest) {
        (Some("topic"), rest) => {
            let topic = rest.filter(|rest| !rest.is_empty()).unwrap_or("NAME");
            format!("unknown section [{name}]; did you mean [topic={topic}]?")
        }
        (Some(near), _) => format!("unknown section [{name}]; did you mean [{near}]?"),
        (None, _) => format!("unknown section [{name}]; there are [system], [zookeeper] and [topic=NAME]"),
    }
}

fn check_keys(section: &Section, known: &[&Key], meaningless: &[&str], findings: &mut Findings) {
    for entry in &section.entries {
        let key = entry.key.as_str();
        if known.iter().any(|known| known.name == key) {
            continue;
        }
        if meaningless.contains(&key) {
            findings.warn(entry.line, format!("{key} means nothing and is ignored; remove this line"));
        } else if keys::SYSTEM.iter().any(|known| known.name == key) {
            // The original accepts these in [zookeeper].
            findings.warn(entry.line, format!("{key} is ignored in [{}]; it belongs in [system]", section.name));
        } else if keys::ZOOKEEPER.iter().any(|known| known.name == key) {
            findings.error(entry.line, format!("{key} does not belong in [{}]; write it in [zookeeper]", section.name));
        } else {
            findings.error(entry.line, unknown_key(key, section, known));
        }
    }
}

fn unknown_key(key: &str, section: &Section, known: &[&Key]) -> String {
    match nearest(key, known.iter().map(|key| key.name)) {
        Some(near) => format!("unknown key {key} in [{}]; did you mean {near}?", section.name),
        None => format!("unknown key {key} in [{}]; remove this line", section.name),
    }
}
