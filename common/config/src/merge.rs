//! What a slave's `server.ini` becomes when its master's changes: a function of the two files, byte for byte.

use crate::keys;
use crate::pieces::{Item, Pieces, Place};
use std::collections::BTreeMap;

/// A slave's file after it has taken over what it shares with its master.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Merged {
    pub text: Vec<u8>,
    /// What is not as it was, one line each; empty when `text` is the slave's file as it was.
    pub changes: Vec<String>,
}

/// Takes over from the master's `server.ini` its topic sections, with their comments, and each key of `[system]` that
/// slaves share; everything else of the slave's own file stays, whatever encoding either has: host, ports, paths, ids,
/// `[zookeeper]`, and the keys of topics that are a node's own (`dataPath`).
///
/// Both files must be ones that can be read; the result is to be checked like any other file. Merging the result again
/// changes nothing.
pub fn merge(own: &[u8], master: &[u8]) -> Merged {
    let (mine, theirs) = (Pieces::of(own), Pieces::of(master));
    let (shared, mut changes) = shared_changes(&mine, &theirs);
    changes.extend(topic_changes(&mine, &theirs));
    let text = assemble(&mine, shared, &merged_topics(&mine, &theirs));
    if changes.is_empty() && text != own {
        changes.push("topic sections are written otherwise and mean the same".to_owned());
    }
    Merged { text, changes }
}

/// The shared keys of `[system]` that differ, by name, with the lines they are to be written in; `None`: not at all.
type Shared<'a> = BTreeMap<&'static str, Option<&'a [u8]>>;

fn shared_changes<'a>(own: &Pieces<'_>, master: &Pieces<'a>) -> (Shared<'a>, Vec<String>) {
    let (mut shared, mut changes) = (Shared::new(), Vec::new());
    for key in keys::SYSTEM.iter().filter(|key| key.shared_with_slave) {
        let (mine, theirs) = (own.of_system(key), master.of_system(key));
        let (old, new) = (mine.map(|(value, _)| value), theirs.map(|(value, _)| value));
        if old != new {
            let shown = |value: Option<&str>| value.unwrap_or("(default)").to_owned();
            changes.push(format!("[system] {} {} → {}", key.name, shown(old), shown(new)));
            shared.insert(key.name, theirs.map(|(_, lines)| lines));
        }
    }
    (shared, changes)
}

fn topic_changes(own: &Pieces<'_>, master: &Pieces<'_>) -> Vec<String> {
    let (mine, theirs) = (said_of_topics(own), said_of_topics(master));
    let come_or_changed = theirs.iter().filter_map(|(name, says)| match mine.get(name) {
        None => Some(format!("topic {name} added")),
        Some(said) if said != says => Some(format!("topic {name} changed")),
        Some(_) => None,
    });
    let gone = mine.keys().filter(|name| !theirs.contains_key(*name)).map(|name| format!("topic {name} removed"));
    come_or_changed.chain(gone).collect()
}

/// What topic sections say of shared things, the last word of each key.
fn said_of_topics<'a>(pieces: &'a Pieces<'_>) -> BTreeMap<&'a str, BTreeMap<&'a str, &'a str>> {
    let mut topics = BTreeMap::<_, BTreeMap<_, _>>::new();
    for (name, piece) in pieces.topics() {
        let says = topics.entry(name).or_default();
        for item in &piece.items {
            if let Item::Entry { key, value, .. } = item
                && !is_nodes_own(key)
            {
                says.insert(key.as_str(), value.as_str());
            }
        }
    }
    topics
}

/// Whether a key of a topic section is each node's own.
fn is_nodes_own(key: &str) -> bool {
    keys::topic_keys().any(|known| known.name == key && !known.shared_with_slave)
}

/// The master's topic sections, each with the slave's own lines right behind its header instead of the master's.
fn merged_topics(own: &Pieces<'_>, master: &Pieces<'_>) -> Vec<Vec<u8>> {
    let mut kept = BTreeMap::<&str, Vec<&[u8]>>::new();
    for (name, piece) in own.topics() {
        let lines = piece.items.iter().filter(|item| matches!(item, Item::Entry { key, .. } if is_nodes_own(key)));
        kept.entry(name).or_default().extend(lines.map(Item::bytes));
    }
    let sections = master.topics().map(|(name, piece)| {
        let mut out = Out::new(b"", own.newline);
        for item in &piece.items {
            match item {
                Item::Entry { key, .. } if is_nodes_own(key) => {}
                Item::Header { lines } => {
                    out.lines(lines);
                    kept.remove(name).into_iter().flatten().for_each(|lines| out.lines(lines));
                }
                other => out.lines(other.bytes()),
            }
        }
        out.text
    });
    sections.collect()
}

/// The slave's file with the shared keys as they are now, and the topic sections where its first one was.
fn assemble(own: &Pieces<'_>, mut shared: Shared<'_>, topics: &[Vec<u8>]) -> Vec<u8> {
    let mut out = Out::new(own.mark, own.newline);
    let mut topics = Some(topics);
    let last_system = own.pieces.iter().rposition(|piece| piece.place == Place::System);
    let names: Vec<&str> = shared.keys().copied().collect();
    for (number, piece) in own.pieces.iter().enumerate() {
        if let Place::Topic(_) = piece.place {
            out.sections(topics.take());
            continue;
        }
        let last_entry = piece.items.iter().rposition(|item| matches!(item, Item::Header { .. } | Item::Entry { .. }));
        for (place, item) in piece.items.iter().enumerate() {
            match item {
                Item::Entry { key, .. } if piece.place == Place::System && names.contains(&key.as_str()) => {
                    // Where it is written first; again is once too often.
                    shared.remove(key.as_str()).flatten().into_iter().for_each(|lines| out.lines(lines));
                }
                other => out.lines(other.bytes()),
            }
            if Some(number) == last_system && Some(place) == last_entry {
                let unwritten = std::mem::take(&mut shared);
                unwritten.into_values().flatten().for_each(|lines| out.lines(lines));
            }
        }
    }
    out.sections(topics.take());
    out.text
}

/// A file in the making.
struct Out {
    text: Vec<u8>,
    /// Of the byte order mark, which is no line.
    mark_bytes: usize,
    newline: &'static [u8],
}

impl Out {
    fn new(mark: &[u8], newline: &'static [u8]) -> Out {
        Out { text: mark.to_vec(), mark_bytes: mark.len(), newline }
    }

    /// The last line of either file may not be ended.
    fn lines(&mut self, lines: &[u8]) {
        if self.text.len() > self.mark_bytes && !self.text.ends_with(b"\n") && !self.text.ends_with(b"\r") {
            self.text.extend_from_slice(self.newline);
        }
        self.text.extend_from_slice(lines);
    }

    fn sections(&mut self, sections: Option<&[Vec<u8>]>) {
        let Some(sections) = sections else { return };
        self.end_comment();
        sections.iter().for_each(|section| self.lines(section));
        self.end_comment();
    }

    /// A comment right above a header would be taken for that section's next time.
    fn end_comment(&mut self) {
        let pieces = Pieces::of(&self.text);
        let last = pieces.pieces.last().and_then(|piece| piece.items.last());
        if matches!(last, Some(Item::Comment { .. })) {
            let newline = self.newline;
            self.lines(newline);
        }
    }
}
