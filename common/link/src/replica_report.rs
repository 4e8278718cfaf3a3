//! The text of `stats replicas`, written for the master's node and read back for the operator's tool.

use std::fmt::Write as _;

use metaq_types::{Offset, PartitionId, SlaveId};

use crate::standing::Standing;

/// One slave and partition, as `stats replicas` shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReplicaLine {
    pub slave: SlaveId,
    pub address: String,
    pub partition: PartitionId,
    pub confirmed: Offset,
    /// The master's end at the time of the question.
    pub end: Offset,
    pub lag_bytes: u64,
    /// An estimate; `None` where there is nothing to tell it by.
    pub lag_messages: Option<u64>,
    /// The age of the oldest byte that the slave lacks.
    pub behind_ms: u64,
    pub connected: bool,
    pub standing: Standing,
}

/// The lines of the answer to `stats replicas`, without the frame of `STATS` and `END`.
pub fn write_stats(lines: &[ReplicaLine]) -> String {
    let mut text = String::with_capacity(lines.len() * 112);
    for line in lines {
        let ReplicaLine { slave, address, partition, confirmed, end, lag_bytes, behind_ms, connected, .. } = line;
        let PartitionId { topic, number } = partition;
        let lag_messages = line.lag_messages.map_or("-".to_owned(), |messages| messages.to_string());
        write!(
            text,
            "slave {slave} {address} {topic} {number} confirmed {confirmed} end {end} \
             lag_bytes {lag_bytes} behind_ms {behind_ms} connected {connected} lag_messages {lag_messages} \
             standing {}\r\n",
            line.standing
        )
        .expect("a String takes every write");
    }
    text
}

/// Reads what [`write_stats`] wrote. Lines of another kind are left out; a line of this kind that cannot be read is an
/// error that quotes it.
pub fn parse_stats(text: &str) -> Result<Vec<ReplicaLine>, StatsLineError> {
    text.lines()
        .filter(|line| line.starts_with("slave "))
        .map(|line| parse_line(line).ok_or_else(|| StatsLineError { line: line.to_owned() }))
        .collect()
}

/// A line of `stats replicas` that does not have the expected form.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("this is not a line of 'stats replicas': {line:?}")]
pub struct StatsLineError {
    pub line: String,
}

fn parse_line(line: &str) -> Option<ReplicaLine> {
    let mut words = line.split_ascii_whitespace();
    let mut after = |name: &str| words.next().filter(|word| *word == name).and_then(|_| words.next());
    let slave = SlaveId::new(after("slave")?.parse().ok()?).ok()?;
    let address = words.next()?.to_owned();
    let topic = metaq_types::TopicName::new(words.next()?).ok()?;
    let number = words.next()?.parse().ok()?;
    let mut after = |name: &str| words.next().filter(|word| *word == name).and_then(|_| words.next());
    Some(ReplicaLine {
        slave,
        address,
        partition: PartitionId { topic, number },
        confirmed: Offset::from_wire(after("confirmed")?.parse().ok()?)?,
        end: Offset::from_wire(after("end")?.parse().ok()?)?,
        lag_bytes: after("lag_bytes")?.parse().ok()?,
        behind_ms: after("behind_ms")?.parse().ok()?,
        connected: after("connected")?.parse().ok()?,
        lag_messages: after("lag_messages").and_then(|messages| messages.parse().ok()),
        standing: after("standing").and_then(Standing::of_word).unwrap_or_default(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(offset: u64) -> Offset {
        Offset::new(offset).unwrap()
    }

    #[test]
    fn the_stats_text_reads_back() {
        let line = ReplicaLine {
            slave: SlaveId::new(2).unwrap(),
            address: "10.0.0.7:49152".into(),
            partition: "a-b-订单-12".parse().unwrap(),
            confirmed: at(10),
            end: at(30),
            lag_bytes: 20,
            lag_messages: Some(2),
            behind_ms: 40,
            connected: false,
            standing: Standing::Absent,
        };
        let text = write_stats(std::slice::from_ref(&line));
        assert_eq!(
            text,
            "slave 2 10.0.0.7:49152 a-b-订单 12 confirmed 10 end 30 lag_bytes 20 behind_ms 40 \
             connected false lag_messages 2 standing absent\r\n"
        );
        assert_eq!(parse_stats(&format!("STATS\r\n{text}END\r\n")), Ok(vec![line]));
        assert_eq!(parse_stats("STATS\r\nEND\r\n"), Ok(vec![]));
        assert!(parse_stats("slave 2 x").is_err());
    }
}
