use crate::finding::{ConfigErrors, Finding, Findings};
use crate::ini::Entry;
use crate::keys;
use crate::lines::{logical_lines, trim, unescape};
use crate::nearest::nearest;
use crate::values::Values;
use metaq_types::SlaveId;
use metaq_types::limits::GROUP_NAME_BYTES_MAX;
use std::io::ErrorKind;
use std::path::Path;
use std::time::Duration;

const GROUP_PREFIX: &str = "meta-slave-group";

/// `conf/async_slave.properties` (configuration, "10. Slave and plugin property files").
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlaveConfig {
    pub slave_id: Option<SlaveId>,
    pub slave_group: String,
    pub slave_max_delay: Duration,
    /// 0: no rate is set.
    pub catch_up_bytes_per_second: u64,
    pub auto_sync_master_config: bool,
    pub warnings: Vec<Finding>,
    group_written: bool,
}

impl SlaveConfig {
    /// A file that does not exist says nothing: every key has its default.
    pub fn load(path: &Path) -> Result<SlaveConfig, ConfigErrors> {
        match crate::broker::read(path) {
            Ok(bytes) => SlaveConfig::parse(path, &bytes),
            Err(error) if error.kind() == ErrorKind::NotFound => SlaveConfig::parse(path, b""),
            Err(error) => {
                let mut findings = Findings::new(path);
                findings.error(None, format!("cannot be read: {error}"));
                Err(findings.into_result().expect_err("an error was just added"))
            }
        }
    }

    pub fn parse(path: &Path, bytes: &[u8]) -> Result<SlaveConfig, ConfigErrors> {
        let mut findings = Findings::new(path);
        let entries = parse_entries(bytes, &mut findings);
        check_keys(&entries, &mut findings);
        let mut values = Values::new(String::new(), None, &entries, &mut findings);
        let slave_id = values.entry(&keys::SLAVE_ID).map(|_| values.integer(&keys::SLAVE_ID));
        let slave_id = slave_id.map(|id| SlaveId::new(id).expect("the key's range is that of slave ids"));
        let group = values.parsed(&keys::SLAVE_GROUP, check_group);
        let slave_max_delay = values.millis(&keys::SLAVE_MAX_DELAY_IN_MILLS);
        let catch_up_bytes_per_second = values.unsigned(&keys::SLAVE_CATCH_UP_BYTES_PER_SECOND);
        let auto_sync_master_config = values.bool_any_case_or(&keys::AUTO_SYNC_MASTER_CONFIG, false);
        Ok(SlaveConfig {
            slave_id,
            group_written: group.is_some(),
            slave_group: group.unwrap_or_else(|| default_group(slave_id)),
            slave_max_delay,
            catch_up_bytes_per_second,
            auto_sync_master_config,
            warnings: findings.into_result()?,
        })
    }

    /// The same with the id that the command line or the environment gives; a group that the file does not name
    /// follows the id.
    #[must_use]
    pub fn with_slave_id(self, slave_id: SlaveId) -> SlaveConfig {
        let slave_group = if self.group_written { self.slave_group } else { default_group(Some(slave_id)) };
        SlaveConfig { slave_id: Some(slave_id), slave_group, ..self }
    }
}

fn default_group(slave_id: Option<SlaveId>) -> String {
    match slave_id {
        Some(id) => format!("{GROUP_PREFIX}_{id}"),
        None => GROUP_PREFIX.to_owned(),
    }
}

/// A group is one word of a request's line.
fn check_group(text: &str) -> Result<String, String> {
    if text.len() > GROUP_NAME_BYTES_MAX {
        return Err(format!("is longer than {GROUP_NAME_BYTES_MAX} bytes"));
    }
    if text.contains(|c: char| c.is_whitespace() || c.is_control()) {
        return Err("is not one word without blanks".to_owned());
    }
    Ok(text.to_owned())
}

/// Java's properties format; unlike Java, blanks at the end of a value do not belong to it.
fn parse_entries(bytes: &[u8], findings: &mut Findings) -> Vec<Entry> {
    let text = String::from_utf8_lossy(bytes);
    let mut entries = Vec::new();
    for line in logical_lines(&text, &['#', '!']) {
        let (key, value) = split_property(&line.text);
        match (unescape(key), unescape(value)) {
            (Ok(key), Ok(value)) => entries.push(Entry { key, value, line: line.number }),
            (Err(message), _) | (_, Err(message)) => findings.error(line.number, message),
        }
    }
    entries
}

/// The key ends before the first blank, `=` or `:` that no `\` protects; one operator and blanks around it separate.
fn split_property(line: &str) -> (&str, &str) {
    let mut escaped = false;
    let end = line.find(|c: char| {
        let ends = !escaped && (c.is_ascii_whitespace() || matches!(c, '=' | ':'));
        escaped = c == '\\' && !escaped;
        ends
    });
    let (key, rest) = line.split_at(end.unwrap_or(line.len()));
    let rest = trim(rest);
    (key, trim(rest.strip_prefix(['=', ':']).unwrap_or(rest)))
}

fn check_keys(entries: &[Entry], findings: &mut Findings) {
    for entry in entries {
        if keys::SLAVE.iter().any(|key| key.name == entry.key) {
            continue;
        }
        let message = match nearest(&entry.key, keys::SLAVE.iter().map(|key| key.name)) {
            Some(near) => format!("unknown key {}; did you mean {near}?", entry.key),
            None => format!("unknown key {}; remove this line", entry.key),
        };
        findings.error(entry.line, message);
    }
}
