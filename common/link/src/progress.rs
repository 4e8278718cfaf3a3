//! What a slave says of its copying, and the text in which it says it: the lines of `stats replication`, written for the
//! slave's node and read back for the operator's tool.

use std::fmt::Write as _;
use std::time::Duration;

use metaq_types::{Offset, PartitionId, TopicName};

use crate::rate::time_left;

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
    /// How long ago that was, as the slave itself counts it: others have other clocks. `None` for never, or if a slave of
    /// an earlier version does not tell.
    pub heard_age_ms: Option<u64>,
    /// For how long before their link ended, and after it until somebody was last met at its address, the master may have
    /// acknowledged what this slave did not hear of; 0 where the link ended as it does with a master that ends. `None`
    /// if a slave of an earlier version does not tell, or has never heard a master.
    pub unheard_ms: Option<u64>,
    /// Bytes of the master's logs stored here since the link was started.
    pub copied_bytes: u64,
    /// The same in a second, lately.
    pub bytes_per_second: u64,
    pub partitions: Vec<PartitionStatus>,
}

impl LinkStatus {
    /// What is known to be missing and comes: not what a partition lacks that is not copied.
    pub fn left_bytes(&self) -> u64 {
        self.partitions.iter().filter(|copy| !copy.is_stopped()).map(PartitionStatus::lag_bytes).sum()
    }

    /// When all of it will be here at the rate of late; `None` while nothing comes.
    pub fn time_left(&self) -> Option<Duration> {
        time_left(self.left_bytes(), self.bytes_per_second)
    }

    /// The partition that is furthest behind `bound`, or that was never level, of those that are copied.
    pub fn late(&self, bound: Duration) -> Option<&PartitionStatus> {
        let is_late = |copy: &&PartitionStatus| {
            !copy.is_stopped() && (copy.never_level || u128::from(copy.behind_ms) > bound.as_millis())
        };
        self.partitions.iter().filter(is_late).max_by_key(|copy| (copy.behind_ms, copy.lag_bytes()))
    }

    /// The partition that is furthest behind.
    pub fn worst(&self) -> Option<&PartitionStatus> {
        self.partitions.iter().max_by_key(|partition| (partition.behind_ms, partition.lag_bytes()))
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartitionStatus {
    pub partition: PartitionId,
    pub own_end: Offset,
    /// As far as this slave has heard.
    pub master_end: Option<Offset>,
    /// The age of the oldest byte that is known to be missing.
    pub behind_ms: u64,
    /// Something of it has been missing ever since the slave was started. Only the slave itself knows: false in what is
    /// read from `stats replication`.
    pub never_level: bool,
    /// Why it is not copied now, unless it is.
    pub note: Option<String>,
}

impl PartitionStatus {
    pub fn lag_bytes(&self) -> u64 {
        self.master_end.map_or(0, |end| end.bytes_since(self.own_end))
    }

    /// The note's first word, where it names a state that does not pass by itself: `diverged`, `gap`, `damaged`,
    /// `corrupt`, `too large`, `local`.
    pub fn trouble(&self) -> Option<&str> {
        let (word, _) = self.note.as_deref()?.split_once(':')?;
        ["diverged", "gap", "damaged", "corrupt", "too large", "local"].contains(&word).then_some(word)
    }

    /// It has a trouble with which it is not copied; behind a gap the copying goes on.
    fn is_stopped(&self) -> bool {
        self.trouble().is_some_and(|trouble| trouble != "gap")
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
    let seconds_left = status.time_left().map_or("-".to_owned(), |left| left.as_secs_f64().ceil().to_string());
    let LinkStatus { copied_bytes, bytes_per_second, .. } = status;
    let left_bytes = status.left_bytes();
    let [heard_age_ms, unheard_ms] =
        [status.heard_age_ms, status.unheard_ms].map(|ms| ms.map_or("-".to_owned(), |ms| ms.to_string()));
    line(
        &mut text,
        &format!(
            "progress copied_bytes {copied_bytes} left_bytes {left_bytes} bytes_per_second {bytes_per_second} \
             seconds_left {seconds_left} heard_age_ms {heard_age_ms} unheard_ms {unheard_ms}"
        ),
    );
    for PartitionStatus { partition, own_end, master_end, behind_ms, note, .. } in &status.partitions {
        let PartitionId { topic, number } = partition;
        let master_end = master_end.map_or(-1, Offset::wire);
        let note = note.as_deref().unwrap_or_default();
        line(
            &mut text,
            &format!("copy {topic} {number} own_end {own_end} master_end {master_end} behind_ms {behind_ms} {note}"),
        );
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
    let progress = text.lines().find_map(|line| parse_progress(line.strip_prefix("progress ")?));
    let (copied_bytes, bytes_per_second, [heard_age_ms, unheard_ms]) = progress.unwrap_or_default();
    let partitions = text.lines().filter_map(|line| parse_copy(line.strip_prefix("copy ")?)).collect();
    Some(LinkStatus { state, heard_unix_ms, heard_age_ms, unheard_ms, copied_bytes, bytes_per_second, partitions })
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

/// Bytes copied, and in a second, and the two times of the master's silence; the rest follows from the partitions.
fn parse_progress(line: &str) -> Option<(u64, u64, [Option<u64>; 2])> {
    let mut words = line.split(' ');
    let mut after = |name: &str| words.by_ref().skip_while(|word| *word != name).nth(1);
    let (copied, rate) = (after("copied_bytes")?.parse().ok()?, after("bytes_per_second")?.parse().ok()?);
    Some((copied, rate, ["heard_age_ms", "unheard_ms"].map(|name| after(name).and_then(|ms| ms.parse().ok()))))
}

fn parse_copy(line: &str) -> Option<PartitionStatus> {
    let mut words = line.splitn(9, ' ');
    let topic = TopicName::new(words.next()?).ok()?;
    let number = words.next()?.parse().ok()?;
    let _ = words.next().filter(|word| *word == "own_end")?;
    let own_end = Offset::from_wire(words.next()?.parse().ok()?)?;
    let _ = words.next().filter(|word| *word == "master_end")?;
    let master_end = Offset::from_wire(words.next()?.parse().ok()?);
    let _ = words.next().filter(|word| *word == "behind_ms")?;
    let behind_ms = words.next()?.parse().ok()?;
    let (never_level, note) = (false, words.next().map(str::to_owned));
    Some(PartitionStatus {
        partition: PartitionId { topic, number },
        own_end,
        master_end,
        behind_ms,
        never_level,
        note,
    })
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
            behind_ms: 70,
            never_level: false,
            note: note.map(str::to_owned),
        };
        let mut status = LinkStatus {
            state: LinkState::Lost { master: "meta://h:1".into(), reason: "no answer in time".into() },
            heard_unix_ms: 17,
            heard_age_ms: Some(40),
            unheard_ms: Some(6),
            copied_bytes: 500,
            bytes_per_second: 8,
            partitions: vec![copy("a-b-0", Some(at(30)), None), copy("c-1", None, Some("gap: it is gone"))],
        };
        let text = write_stats(&status);
        assert_eq!(
            text,
            "link lost meta://h:1 heard_unix_ms 17 no answer in time\r\n\
             progress copied_bytes 500 left_bytes 20 bytes_per_second 8 seconds_left 3 heard_age_ms 40 unheard_ms 6\r\n\
             copy a-b 0 own_end 10 master_end 30 behind_ms 70\r\n\
             copy c 1 own_end 10 master_end -1 behind_ms 70 gap: it is gone\r\n"
        );
        assert_eq!(parse_stats(&format!("STATS\r\n{text}END\r\n")).as_ref(), Some(&status));
        assert_eq!(status.partitions[0].lag_bytes(), 20);
        assert_eq!(status.partitions.iter().map(PartitionStatus::trouble).collect::<Vec<_>>(), [None, Some("gap")]);
        let of_before = text.replace(" heard_age_ms 40 unheard_ms 6", "");
        let told = LinkStatus { heard_age_ms: None, unheard_ms: None, ..status.clone() };
        assert_eq!(parse_stats(&of_before), Some(told));
        (status.state, status.heard_age_ms, status.unheard_ms) = (LinkState::NoMaster, None, None);
        assert_eq!(parse_stats(&write_stats(&status)), Some(status));
        assert_eq!(parse_stats("STATS\r\nreplication\r\nresultCode 1\r\nEND\r\n"), None);
    }

    /// A catch-up ends although one partition stands still, which has a word of its own.
    #[test]
    fn what_is_not_copied_is_not_left() {
        let at = |offset| Offset::new(offset).unwrap();
        let copy = |name: &str, note: Option<&str>| PartitionStatus {
            partition: name.parse().unwrap(),
            own_end: at(10),
            master_end: Some(at(40)),
            behind_ms: 70,
            never_level: true,
            note: note.map(str::to_owned),
        };
        let left = |notes: &[Option<&str>]| {
            let status = LinkStatus {
                state: LinkState::NoMaster,
                heard_unix_ms: 0,
                heard_age_ms: None,
                unheard_ms: None,
                copied_bytes: 0,
                bytes_per_second: 10,
                partitions: notes.iter().map(|note| copy("a-0", *note)).collect(),
            };
            (status.left_bytes(), status.late(Duration::ZERO).is_some())
        };
        for stopped in ["diverged: x", "damaged: x", "corrupt: x", "too large: x", "local: x"] {
            assert_eq!(left(&[Some(stopped)]), (0, false), "{stopped}");
            assert_eq!(left(&[None, Some(stopped)]), (30, true), "{stopped}");
        }
        assert_eq!(left(&[Some("gap: x"), Some("waiting: disk full")]), (60, true));
    }

    #[test]
    fn a_text_from_elsewhere_stays_on_its_line() {
        let state = LinkState::Lost { master: "m".into(), reason: "a\r\ncopy x 0".into() };
        let (copied_bytes, bytes_per_second, partitions) = (0, 0, Vec::new());
        let (heard_unix_ms, heard_age_ms, unheard_ms) = (0, None, None);
        let status =
            LinkStatus { state, heard_unix_ms, heard_age_ms, unheard_ms, copied_bytes, bytes_per_second, partitions };
        let text = write_stats(&status);
        assert_eq!(text.lines().count(), 2);
    }
}
