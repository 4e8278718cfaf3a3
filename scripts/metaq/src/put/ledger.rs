use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::sync::Mutex;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Context as _;
use metaq_client::Stored;
use serde::Serialize;

use super::Line;
use crate::show;

/// What became of each line, for those who must know afterwards what was promised. Every entry reaches the operating
/// system before the next message of its lane is sent.
pub(super) struct Ledger {
    file: Option<Mutex<File>>,
}

#[derive(Serialize)]
struct Entry<'a> {
    line: u64,
    outcome: &'static str,
    topic: &'a str,
    #[serde(flatten)]
    stored: Option<Place>,
    body_bytes: usize,
    /// CRC-32 of the body without its top bit, as in the stored record.
    checksum: i32,
    attempt: u32,
    unix_ms: u64,
    broker: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<&'a str>,
}

#[derive(Serialize)]
struct Place {
    partition: u32,
    offset: u64,
    id: i64,
}

/// One try of one line.
pub(super) struct Attempt<'a> {
    pub(super) line: &'a Line,
    pub(super) topic: &'a str,
    pub(super) broker: &'a str,
    pub(super) number: u32,
}

impl Ledger {
    pub(super) fn open(path: Option<&Path>) -> anyhow::Result<Ledger> {
        let create = |path: &Path| File::create(path).with_context(|| format!("cannot write {}", path.display()));
        Ok(Ledger { file: path.map(create).transpose()?.map(Mutex::new) })
    }

    pub(super) fn stored(&self, attempt: &Attempt<'_>, stored: &Stored) -> anyhow::Result<()> {
        let place = Place { partition: stored.partition, offset: stored.offset.get(), id: stored.id.0 };
        self.write(attempt, "stored", Some(place), None)
    }

    pub(super) fn refused(&self, attempt: &Attempt<'_>, text: &str) -> anyhow::Result<()> {
        self.write(attempt, "refused", None, Some(text))
    }

    /// The answer was lost, or left it open.
    pub(super) fn unknown(&self, attempt: &Attempt<'_>, text: &str) -> anyhow::Result<()> {
        self.write(attempt, "unknown", None, Some(text))
    }

    pub(super) fn close(&self) -> anyhow::Result<()> {
        let Some(file) = &self.file else { return Ok(()) };
        let file = file.lock().expect("no lane panics while it writes");
        file.sync_all().context("writing the ledger")
    }

    fn write(
        &self,
        attempt: &Attempt<'_>,
        outcome: &'static str,
        stored: Option<Place>,
        text: Option<&str>,
    ) -> anyhow::Result<()> {
        let Some(file) = &self.file else { return Ok(()) };
        let Attempt { line, topic, broker, number } = attempt;
        let entry = Entry {
            line: line.number,
            outcome,
            topic,
            stored,
            body_bytes: line.body.len(),
            checksum: metaq_wire::checksum(&line.body),
            attempt: *number,
            unix_ms: unix_ms(),
            broker,
            text,
        };
        let mut bytes = show::json(&entry)?.into_bytes();
        bytes.push(b'\n');
        file.lock().expect("no lane panics while it writes").write_all(&bytes).context("writing the ledger")
    }
}

fn unix_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use metaq_types::{MessageId, Offset};

    use super::*;

    #[test]
    fn an_entry_is_one_line_of_json() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("ledger");
        let ledger = Ledger::open(Some(&path)).unwrap();
        let line = Line { number: 3, body: "hello".into() };
        let attempt = Attempt { line: &line, topic: "t", broker: "h:1", number: 2 };
        ledger.unknown(&attempt, "lost\nanswer").unwrap();
        let stored = Stored { id: MessageId(9), partition: 1, offset: Offset::new(25).unwrap() };
        ledger.stored(&attempt, &stored).unwrap();
        ledger.close().unwrap();
        let text = std::fs::read_to_string(path).unwrap();
        let entries: Vec<serde_json::Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(entries.len(), 2);
        assert_eq!((&entries[0]["outcome"], &entries[0]["text"]), (&"unknown".into(), &"lost\nanswer".into()));
        let place = ["line", "partition", "offset", "id", "checksum", "attempt"].map(|key| entries[1][key].as_i64());
        assert_eq!(place, [Some(3), Some(1), Some(25), Some(9), Some(907_060_870), Some(2)]);
        assert!(entries[0].get("partition").is_none());
    }
}
