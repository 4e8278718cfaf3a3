//! What a slave says of its copying, and the text in which it says it: the lines of `stats replication`, written for the
//! slave's node and read back for the operator's tool.

use std::fmt::Write as _;

use metaq_types::{Offset, PartitionId, TopicName};

/// What a link does now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LinkState {
    /// No master is known.
    NoMaster,
    Connecting {
        master: String,
    },
    Following {
        master: String,
    },
    /// The last attempt ended so; another follows.
    Lost {
        master: String,
        reason: String,
    },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LinkStatus {
    pub state: LinkState,
    /// When the master last answered; 0 for never.
    pub heard_unix_ms: u64,
    pub partitions: Vec<PartitionStatus>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartitionStatus {
    pub partition: PartitionId,
    pub own_end: Offset,
    /// As far as this slave has heard.
    pub master_end: Option<Offset>,
    /// Why it is not copied now, unless it is.
    pub note: Option<String>,
}

impl PartitionStatus {
    pub fn lag_bytes(&self) -> u64 {
        self.master_end.map_or(0, |end| end.bytes_since(self.own_end))
    }
}

/// The lines of `stats replication`, without the frame of `STATS` and `END`.
pub fn write_stats(status: &LinkStatus) -> String {
    let mut text = String::with_capacity(64 + status.partitions.len() * 80);
    let (state, master, reason) = match &status.state {
        LinkState::NoMaster => ("no-master", "-", ""),
        LinkState::Connecting { master } => ("connecting", master.as_str(), ""),
        LinkState::Following { master } => ("following", master.as_str(), ""),
        LinkState::Lost { master, reason } => ("lost", master.as_str(), reason.as_str()),
    };
    line(&mut text, &format!("link {state} {master} heard_unix_ms {} {reason}", status.heard_unix_ms));
    for PartitionStatus { partition, own_end, master_end, note } in &status.partitions {
        let PartitionId { topic, number } = partition;
        let master_end = master_end.map_or(-1, Offset::wire);
        let note = note.as_deref().unwrap_or_default();
        line(&mut text, &format!("copy {topic} {number} own_end {own_end} master_end {master_end} {note}"));
    }
    text
}

/// One line, whatever a text from elsewhere holds.
fn line(text: &mut String, line: &str) {
    for c in line.trim_end().chars() {
        text.push(if c.is_control() { ' ' } else { c });
    }
    text.write_str("\r\n").expect("a String takes every write");
}

/// Reads what [`write_stats`] wrote; `None` when there is no such line, as from a node that is not a slave.
pub fn parse_stats(text: &str) -> Option<LinkStatus> {
    let state = text.lines().find_map(|line| parse_link(line.strip_prefix("link ")?));
    let (state, heard_unix_ms) = state?;
    let partitions = text.lines().filter_map(|line| parse_copy(line.strip_prefix("copy ")?)).collect();
    Some(LinkStatus { state, heard_unix_ms, partitions })
}

fn parse_link(line: &str) -> Option<(LinkState, u64)> {
    let mut words = line.splitn(5, ' ');
    let (state, master) = (words.next()?, words.next()?.to_owned());
    let _ = words.next().filter(|word| *word == "heard_unix_ms")?;
    let heard_unix_ms = words.next()?.parse().ok()?;
    let state = match state {
        "no-master" => LinkState::NoMaster,
        "connecting" => LinkState::Connecting { master },
        "following" => LinkState::Following { master },
        "lost" => LinkState::Lost { master, reason: words.next().unwrap_or_default().to_owned() },
        _ => return None,
    };
    Some((state, heard_unix_ms))
}

fn parse_copy(line: &str) -> Option<PartitionStatus> {
    let mut words = line.splitn(7, ' ');
    let topic = TopicName::new(words.next()?).ok()?;
    let number = words.next()?.parse().ok()?;
    let _ = words.next().filter(|word| *word == "own_end")?;
    let own_end = Offset::from_wire(words.next()?.parse().ok()?)?;
    let _ = words.next().filter(|word| *word == "master_end")?;
    let master_end = Offset::from_wire(words.next()?.parse().ok()?);
    let note = words.next().map(str::to_owned);
    Some(PartitionStatus { partition: PartitionId { topic, number }, own_end, master_end, note })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stats_text_reads_back() {
        let at = |offset| Offset::new(offset).unwrap();
        let copy = |name: &str, master_end, note: Option<&str>| PartitionStatus {
            partition: name.parse().unwrap(),
            own_end: at(10),
            master_end,
            note: note.map(str::to_owned),
        };
        let mut status = LinkStatus {
            state: LinkState::Lost { master: "meta://h:1".into(), reason: "no answer in time".into() },
            heard_unix_ms: 17,
            partitions: vec![copy("a-b-0", Some(at(30)), None), copy("c-1", None, Some("gap: it is gone"))],
        };
        let text = write_stats(&status);
        assert_eq!(
            text,
            "link lost meta://h:1 heard_unix_ms 17 no answer in time\r\n\
             copy a-b 0 own_end 10 master_end 30\r\n\
             copy c 1 own_end 10 master_end -1 gap: it is gone\r\n"
        );
        assert_eq!(parse_stats(&format!("STATS\r\n{text}END\r\n")).as_ref(), Some(&status));
        assert_eq!(status.partitions[0].lag_bytes(), 20);
        status.state = LinkState::NoMaster;
        assert_eq!(parse_stats(&write_stats(&status)), Some(status));
        assert_eq!(parse_stats("STATS\r\nreplication\r\nresultCode 1\r\nEND\r\n"), None);
    }

    #[test]
    fn a_text_from_elsewhere_stays_on_its_line() {
        let state = LinkState::Lost { master: "m".into(), reason: "a\r\ncopy x 0".into() };
        let text = write_stats(&LinkStatus { state, heard_unix_ms: 0, partitions: Vec::new() });
        assert_eq!(text.lines().count(), 1);
    }
}
