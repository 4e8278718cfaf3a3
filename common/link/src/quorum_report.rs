//! The text of `stats quorum`, written for the master's node and read back for the operator's tool.

use std::fmt;
use std::time::Duration;

use metaq_config::AckRules;
use metaq_types::{Offset, PartitionId, SlaveId, TopicName};

use crate::members::{Member, MemberState};
use crate::quorum::LogStanding;

/// Who stands behind the acknowledgements of a master.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// Puts refused for want of members.
    pub refused: u64,
    /// Puts answered as unconfirmed.
    pub unconfirmed: u64,
    /// Puts taken on with fewer members than `ackQuorum`.
    pub downgraded: u64,
    /// Claims of slaves to hold more than there is.
    pub beyond_end: u64,
    pub slaves: Vec<(Member, MemberState)>,
    pub logs: Vec<LogStanding>,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Report { refused, unconfirmed, downgraded, beyond_end, slaves, logs } = self;
        write!(f, "quorum_refused {refused}\r\nquorum_unconfirmed {unconfirmed}\r\n")?;
        write!(f, "quorum_downgraded {downgraded}\r\nquorum_beyond_end {beyond_end}\r\n")?;
        for (Member { id, node, address, uri, level }, MemberState { absence, since }) in slaves {
            let level = level.map_or("unknown", |level| level.word());
            let (node, uri) = (or_dash(node), or_dash(uri));
            let (state, since_ms) = (absence.word(), since.as_millis());
            write!(
                f,
                "member {id} {address} node {node} uri {uri} level {level} state {state} since_ms {since_ms}\r\n"
            )?;
        }
        for LogStanding { partition, rules, members, confirmed, in_sync } in logs {
            let PartitionId { topic, number } = partition;
            let AckRules { quorum, timeout, downgrade } = rules;
            let confirmed = confirmed.map_or_else(|| "all".to_owned(), |confirmed| confirmed.to_string());
            let in_sync: Vec<String> = in_sync.iter().map(|(id, end)| format!("{id}:{end}")).collect();
            write!(
                f,
                "log {topic} {number} quorum {quorum} timeout_ms {} downgrade {downgrade} members {members} confirmed \
                 {confirmed} in_sync {}\r\n",
                timeout.as_millis(),
                or_dash(&in_sync.join(",")),
            )?;
        }
        Ok(())
    }
}

fn or_dash(text: &str) -> &str {
    if text.is_empty() { "-" } else { text }
}

/// A slave as the text tells of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemberLine {
    pub slave: SlaveId,
    pub address: String,
    pub node: String,
    pub uri: String,
    /// `os`, `fsync` or `unknown`.
    pub level: String,
    /// [`crate::members::Absence::word`].
    pub state: String,
    pub since: Duration,
}

/// What [`Report`] wrote; lines of another kind are left out.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReadReport {
    pub refused: u64,
    pub unconfirmed: u64,
    pub downgraded: u64,
    pub beyond_end: u64,
    pub members: Vec<MemberLine>,
    pub logs: Vec<LogStanding>,
}

pub fn parse(text: &str) -> ReadReport {
    let mut report = ReadReport::default();
    for line in text.lines() {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        match words[..] {
            ["quorum_refused", count] => report.refused = count.parse().unwrap_or(0),
            ["quorum_unconfirmed", count] => report.unconfirmed = count.parse().unwrap_or(0),
            ["quorum_downgraded", count] => report.downgraded = count.parse().unwrap_or(0),
            ["quorum_beyond_end", count] => report.beyond_end = count.parse().unwrap_or(0),
            ["member", ..] => report.members.extend(member(&words)),
            ["log", ..] => report.logs.extend(log(&words)),
            _ => {}
        }
    }
    report
}

/// What follows a name, `-` for nothing.
fn after<'a>(words: &[&'a str], name: &str) -> Option<&'a str> {
    let at = words.iter().position(|word| *word == name)?;
    words.get(at + 1).copied().map(|word| if word == "-" { "" } else { word })
}

fn member(words: &[&str]) -> Option<MemberLine> {
    let slave = SlaveId::new(words.get(1)?.parse().ok()?).ok()?;
    Some(MemberLine {
        slave,
        address: (*words.get(2)?).to_owned(),
        node: after(words, "node")?.to_owned(),
        uri: after(words, "uri")?.to_owned(),
        level: after(words, "level")?.to_owned(),
        state: after(words, "state")?.to_owned(),
        since: Duration::from_millis(after(words, "since_ms")?.parse().ok()?),
    })
}

fn log(words: &[&str]) -> Option<LogStanding> {
    let topic = TopicName::new(words.get(1)?).ok()?;
    // A topic may be called like one of the names.
    let (number, words) = (words.get(2)?.parse().ok()?, &words[3..]);
    let confirmed = match after(words, "confirmed")? {
        "all" => None,
        offset => Some(Offset::new(offset.parse().ok()?)?),
    };
    let in_sync = after(words, "in_sync")?.split(',').filter_map(|word| {
        let (id, end) = word.split_once(':')?;
        Some((SlaveId::new(id.parse().ok()?).ok()?, Offset::new(end.parse().ok()?)?))
    });
    Some(LogStanding {
        partition: PartitionId { topic, number },
        rules: AckRules {
            quorum: after(words, "quorum")?.parse().ok()?,
            timeout: Duration::from_millis(after(words, "timeout_ms")?.parse().ok()?),
            downgrade: after(words, "downgrade")?.parse().ok()?,
        },
        members: after(words, "members")?.parse().ok()?,
        confirmed,
        in_sync: in_sync.collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::members::Absence;

    #[test]
    fn the_text_reads_back() {
        let slave = |id| SlaveId::new(id).unwrap();
        let rules = AckRules { quorum: 2, timeout: Duration::from_secs(2), downgrade: false };
        let log = |partition: &str, confirmed, in_sync| LogStanding {
            partition: PartitionId { topic: TopicName::new(partition).unwrap(), number: 3 },
            rules,
            members: 2,
            confirmed,
            in_sync,
        };
        let at = |offset| Offset::new(offset).unwrap();
        let member =
            Member { id: slave(1), address: "10.0.0.2:5".into(), uri: "meta://h:1".into(), ..Member::default() };
        let state = MemberState { absence: Absence::Behind, since: Duration::from_millis(1500) };
        let report = Report {
            refused: 1,
            unconfirmed: 2,
            downgraded: 3,
            beyond_end: 4,
            slaves: vec![(member, state)],
            logs: vec![
                log("quorum", Some(at(70)), vec![(slave(1), at(70)), (slave(2), at(60))]),
                log("orders", None, vec![]),
            ],
        };
        let read = parse(&format!("STATS\r\n{report}END\r\n"));
        assert_eq!((read.refused, read.unconfirmed, read.downgraded, read.beyond_end), (1, 2, 3, 4));
        assert_eq!(read.logs, report.logs);
        let expected = MemberLine {
            slave: slave(1),
            address: "10.0.0.2:5".into(),
            node: String::new(),
            uri: "meta://h:1".into(),
            level: "unknown".into(),
            state: "behind".into(),
            since: Duration::from_millis(1500),
        };
        assert_eq!(read.members, [expected]);
    }
}
