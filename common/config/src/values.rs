use crate::finding::Findings;
use crate::ini::Entry;
use crate::keys::{Key, Kind, Presence};
use crate::number::evaluate;
use std::collections::HashMap;
use std::path::PathBuf;
use std::time::Duration;

/// The entries of one section, by key. A getter that meets a fault reports it with its line and returns a value that
/// is within the key's range, so that reading goes on and every fault is found in one run.
///
/// A blank value is an absent one; of two entries with one key the last counts.
pub(crate) struct Values<'a> {
    entries: HashMap<&'a str, &'a Entry>,
    /// As a message names it, with a blank behind: "[system] "; empty when there are no sections.
    place: String,
    /// Where a missing key is reported.
    line: Option<u32>,
    pub(crate) findings: &'a mut Findings,
}

impl<'a> Values<'a> {
    pub(crate) fn new(
        place: String,
        line: Option<u32>,
        entries: &'a [Entry],
        findings: &'a mut Findings,
    ) -> Values<'a> {
        let mut by_key: HashMap<&str, &Entry> = HashMap::with_capacity(entries.len());
        for entry in entries {
            if let Some(earlier) = by_key.insert(&entry.key, entry) {
                findings.warn(
                    entry.line,
                    format!("{} is written twice; this line counts, not line {}", entry.key, earlier.line),
                );
            }
        }
        by_key.retain(|_, entry| !entry.value.trim().is_empty());
        Values { entries: by_key, place, line, findings }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The entry of `key`, when it is written and not blank.
    pub(crate) fn entry(&self, key: &Key) -> Option<&'a Entry> {
        self.entries.get(key.name).copied()
    }

    /// The text of `key`, else its default; `None` when neither says anything.
    pub(crate) fn text(&mut self, key: &Key) -> Option<&'a str> {
        if let Some(entry) = self.entry(key) {
            return Some(&entry.value);
        }
        match key.presence {
            Presence::Default("") => None,
            Presence::Default(text) => Some(text),
            Presence::Required { example } => {
                self.missing(key, example);
                Some(example)
            }
        }
    }

    pub(crate) fn missing(&mut self, key: &Key, example: &str) {
        let message = format!("{}lacks {}: {}; write for example {1}={example}", self.place, key.name, key.meaning);
        self.findings.error(self.line, message);
    }

    pub(crate) fn integer(&mut self, key: &Key) -> i64 {
        let text = self.text(key).unwrap_or("0");
        self.integer_in(key, text)
    }

    /// The written value, else `inherited`.
    pub(crate) fn integer_or(&mut self, key: &Key, inherited: i64) -> i64 {
        match self.entry(key) {
            Some(entry) => self.integer_in(key, &entry.value),
            None => inherited,
        }
    }

    /// For keys whose range lies within `T`.
    pub(crate) fn unsigned<T: TryFrom<i64>>(&mut self, key: &Key) -> T {
        T::try_from(self.integer(key)).unwrap_or_else(|_| panic!("the range of {} is wider than its type", key.name))
    }

    pub(crate) fn unsigned_or(&mut self, key: &Key, inherited: u64) -> u64 {
        match self.entry(key) {
            Some(_) => self.unsigned(key),
            None => inherited,
        }
    }

    pub(crate) fn millis(&mut self, key: &Key) -> Duration {
        Duration::from_millis(self.unsigned(key))
    }

    pub(crate) fn millis_or(&mut self, key: &Key, inherited: Duration) -> Duration {
        if self.entry(key).is_some() { self.millis(key) } else { inherited }
    }

    pub(crate) fn bool(&mut self, key: &Key) -> bool {
        let text = self.text(key).unwrap_or("false");
        self.bool_in(key, text)
    }

    pub(crate) fn bool_or(&mut self, key: &Key, inherited: bool) -> bool {
        match self.entry(key) {
            Some(entry) => self.bool_in(key, &entry.value),
            None => inherited,
        }
    }

    /// As [`Values::bool`], for the few switches whose letters may be of either case.
    pub(crate) fn bool_any_case_or(&mut self, key: &Key, inherited: bool) -> bool {
        match self.entry(key) {
            Some(entry) => self.bool_in(key, &entry.value.to_ascii_lowercase()),
            None => inherited,
        }
    }

    /// The written path, else `inherited`.
    pub(crate) fn path_or(&mut self, key: &Key, inherited: PathBuf) -> PathBuf {
        match self.entry(key) {
            Some(entry) => self.path_of(key, &entry.value),
            None => inherited,
        }
    }

    /// A path that was written. What a shell would have read otherwise is a slip of whoever wrote it.
    pub(crate) fn path_of(&mut self, key: &Key, text: &str) -> PathBuf {
        if text.starts_with(['~', '"', '\'', '$']) {
            self.fault(
                key,
                format!(
                    "{}: '{text}' would be below a directory of that name: no shell reads it; write the path in full, \
                     from / on, without quotes",
                    key.name
                ),
            );
        }
        PathBuf::from(text)
    }

    /// What `parse` makes of the text of `key`; its error reads on after the value: "'x' is not …".
    pub(crate) fn parsed<T>(&mut self, key: &Key, parse: impl Fn(&str) -> Result<T, String>) -> Option<T> {
        let text = self.text(key)?;
        self.parsed_text(key, text, &parse)
    }

    pub(crate) fn parsed_or<T>(&mut self, key: &Key, inherited: T, parse: impl Fn(&str) -> Result<T, String>) -> T {
        match self.entry(key) {
            Some(entry) => self.parsed_text(key, &entry.value, &parse).unwrap_or(inherited),
            None => inherited,
        }
    }

    fn parsed_text<T>(&mut self, key: &Key, text: &str, parse: &impl Fn(&str) -> Result<T, String>) -> Option<T> {
        match parse(text) {
            Ok(value) => Some(value),
            Err(why) => {
                self.fault(key, format!("{}: '{text}' {why}", key.name));
                None
            }
        }
    }

    fn integer_in(&mut self, key: &Key, text: &str) -> i64 {
        let Kind::Integer { min, max } = key.kind else { panic!("{} is not declared as a number", key.name) };
        match evaluate(text) {
            Ok(value) if (min..=max).contains(&value) => value,
            Ok(value) => {
                let unit = if key.unit.is_empty() { String::new() } else { format!(" {}", key.unit) };
                self.fault(key, format!("{} {value} is not within {min}..{max}{unit}", key.name));
                min
            }
            Err(error) => {
                self.fault(key, format!("{}: '{text}' {error}", key.name));
                min
            }
        }
    }

    fn bool_in(&mut self, key: &Key, text: &str) -> bool {
        match text {
            "true" => true,
            "false" => false,
            other => {
                self.fault(key, format!("{}: '{other}' is neither true nor false; write one of them", key.name));
                false
            }
        }
    }

    fn fault(&mut self, key: &Key, message: String) {
        let line = self.entry(key).map(|entry| entry.line).or(self.line);
        self.findings.error(line, message);
    }
}
