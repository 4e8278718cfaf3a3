//! What a master knows of its slaves: the confirmed end of every partition, read off the offsets of their gets.
//!
//! Pure data; the broker keeps one [`Replicas`] behind a lock and passes the clock in. The text of `stats replicas` is
//! written ([`write_stats`]) and read back ([`parse_stats`]) here, so that broker and tool cannot disagree.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::time::Instant;

use metaq_types::{Offset, PartitionId, SlaveId};

/// Slaves remembered at most; beyond it the longest absent one is forgotten, and while all are connected one more is
/// refused.
pub const REPLICAS_MAX: usize = 64;

/// Every slave that has greeted this master since it started.
#[derive(Debug, Default)]
pub struct Replicas {
    slaves: BTreeMap<SlaveId, Slave>,
}

#[derive(Debug)]
struct Slave {
    /// The slave's data directory; empty while unknown.
    node: String,
    address: String,
    /// A slave may hold several connections; it is connected while it holds one.
    connections: u32,
    /// The last greeting or the end of the last connection: the start of everything not known better.
    since: Instant,
    partitions: HashMap<PartitionId, Confirmed>,
}

/// The slave holds every byte before `end`.
#[derive(Debug)]
struct Confirmed {
    end: Offset,
    /// When `end` was last seen to be the master's own end.
    level_at: Instant,
}

/// Why a greeting is not accepted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GreetingError {
    #[error(
        "slave id {id} is in use by {address}, which copies into another data directory: give one of them another slaveId"
    )]
    IdTaken { id: SlaveId, address: String },
    #[error("{REPLICAS_MAX} slaves are connected, which is the most this master keeps")]
    TooMany,
}

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
    pub behind_ms: u64,
    pub connected: bool,
}

impl Replicas {
    pub fn new() -> Replicas {
        Replicas::default()
    }

    /// A connection has greeted as slave `id`. Each accepted greeting is ended by one [`Replicas::on_disconnect`].
    pub fn on_greeting(&mut self, id: SlaveId, node: &str, address: &str, now: Instant) -> Result<(), GreetingError> {
        if let Some(slave) = self.slaves.get_mut(&id) {
            let other_node = !node.is_empty() && !slave.node.is_empty() && slave.node != node;
            if slave.connections > 0 && other_node {
                return Err(GreetingError::IdTaken { id, address: slave.address.clone() });
            }
            if other_node {
                slave.partitions.clear();
            }
            if !node.is_empty() {
                node.clone_into(&mut slave.node);
            }
            address.clone_into(&mut slave.address);
            slave.connections += 1;
            slave.since = now;
            return Ok(());
        }
        if self.slaves.len() >= REPLICAS_MAX {
            let absent = self.slaves.iter().filter(|(_, s)| s.connections == 0).min_by_key(|(_, s)| s.since);
            let forgotten = *absent.ok_or(GreetingError::TooMany)?.0;
            self.slaves.remove(&forgotten);
        }
        let slave = Slave {
            node: node.to_owned(),
            address: address.to_owned(),
            connections: 1,
            since: now,
            partitions: HashMap::new(),
        };
        self.slaves.insert(id, slave);
        Ok(())
    }

    /// A greeted slave asked for `offset` of a partition that ends at `end` here: it holds everything before.
    ///
    /// An offset beyond `end` confirms no more than `end`: such a slave has diverged and says so itself.
    pub fn on_get(&mut self, id: SlaveId, partition: &PartitionId, offset: Offset, end: Offset, now: Instant) {
        let Some(slave) = self.slaves.get_mut(&id) else { return };
        let held = offset.min(end);
        match slave.partitions.get_mut(partition) {
            Some(confirmed) => {
                confirmed.end = held;
                if held == end {
                    confirmed.level_at = now;
                }
            }
            None => {
                let level_at = if held == end { now } else { slave.since };
                slave.partitions.insert(partition.clone(), Confirmed { end: held, level_at });
            }
        }
    }

    pub fn on_disconnect(&mut self, id: SlaveId, now: Instant) {
        if let Some(slave) = self.slaves.get_mut(&id) {
            slave.connections = slave.connections.saturating_sub(1);
            slave.since = now;
        }
    }

    /// How many slaves hold a connection.
    pub fn connected(&self) -> usize {
        self.slaves.values().filter(|slave| slave.connections > 0).count()
    }

    /// One line a slave and partition, in order; `end_of` is the master's end now, `None` for a partition that is gone.
    pub fn snapshot(&self, end_of: impl Fn(&PartitionId) -> Option<Offset>, now: Instant) -> Vec<ReplicaLine> {
        let mut lines = Vec::new();
        for (id, slave) in &self.slaves {
            let first = lines.len();
            for (partition, confirmed) in &slave.partitions {
                let Some(end) = end_of(partition) else { continue };
                let lag_bytes = end.bytes_since(confirmed.end);
                let behind = if lag_bytes == 0 { 0 } else { millis_between(confirmed.level_at, now) };
                lines.push(ReplicaLine {
                    slave: *id,
                    address: slave.address.clone(),
                    partition: partition.clone(),
                    confirmed: confirmed.end,
                    end: end.max(confirmed.end),
                    lag_bytes,
                    behind_ms: behind,
                    connected: slave.connections > 0,
                });
            }
            lines[first..].sort_by(|a, b| a.partition.cmp(&b.partition));
        }
        lines
    }
}

fn millis_between(earlier: Instant, later: Instant) -> u64 {
    u64::try_from(later.saturating_duration_since(earlier).as_millis()).unwrap_or(u64::MAX)
}

/// The lines of the answer to `stats replicas`, without the frame of `STATS` and `END`.
pub fn write_stats(lines: &[ReplicaLine]) -> String {
    let mut text = String::with_capacity(lines.len() * 112);
    for line in lines {
        let ReplicaLine { slave, address, partition, confirmed, end, lag_bytes, behind_ms, connected } = line;
        let PartitionId { topic, number } = partition;
        write!(
            text,
            "slave {slave} {address} {topic} {number} confirmed {confirmed} end {end} \
             lag_bytes {lag_bytes} behind_ms {behind_ms} connected {connected}\r\n"
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
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn slave(id: i64) -> SlaveId {
        SlaveId::new(id).unwrap()
    }

    fn partition(name: &str) -> PartitionId {
        name.parse().unwrap()
    }

    fn at(offset: u64) -> Offset {
        Offset::new(offset).unwrap()
    }

    #[test]
    fn the_offset_of_a_get_is_what_the_slave_holds() {
        let start = Instant::now();
        let later = start + Duration::from_millis(700);
        let (s, p) = (slave(3), partition("orders-1"));
        let mut replicas = Replicas::new();
        replicas.on_greeting(s, "n1", "10.0.0.2:5555", start).unwrap();
        replicas.on_get(s, &p, at(100), at(100), start);
        let level = replicas.snapshot(|_| Some(at(100)), later);
        assert_eq!((level[0].lag_bytes, level[0].behind_ms, level[0].connected), (0, 0, true));

        let behind = replicas.snapshot(|_| Some(at(150)), later);
        assert_eq!((behind[0].confirmed, behind[0].end), (at(100), at(150)));
        assert_eq!((behind[0].lag_bytes, behind[0].behind_ms), (50, 700));

        replicas.on_get(s, &p, at(120), at(150), later);
        let nearer = replicas.snapshot(|_| Some(at(150)), later);
        assert_eq!(
            (nearer[0].lag_bytes, nearer[0].behind_ms),
            (30, 700),
            "still behind since the last time it was level"
        );
        assert!(replicas.snapshot(|_| None, later).is_empty());
    }

    #[test]
    fn lag_is_never_negative_and_a_diverged_slave_confirms_nothing_more() {
        let now = Instant::now();
        let (s, p) = (slave(0), partition("t-0"));
        let mut replicas = Replicas::new();
        replicas.on_greeting(s, "", "a", now).unwrap();
        replicas.on_get(s, &p, at(900), at(400), now);
        let lines = replicas.snapshot(|_| Some(at(300)), now);
        assert_eq!((lines[0].confirmed, lines[0].end, lines[0].lag_bytes), (at(400), at(400), 0));
    }

    #[test]
    fn a_slave_is_connected_while_it_holds_a_connection() {
        let now = Instant::now();
        let (s, p) = (slave(0), partition("t-0"));
        let mut replicas = Replicas::new();
        replicas.on_greeting(s, "n", "a", now).unwrap();
        replicas.on_greeting(s, "n", "b", now).unwrap();
        replicas.on_get(s, &p, at(1), at(1), now);
        replicas.on_disconnect(s, now);
        assert!(replicas.snapshot(|_| Some(at(1)), now)[0].connected);
        assert_eq!(replicas.connected(), 1);
        replicas.on_disconnect(s, now);
        let lines = replicas.snapshot(|_| Some(at(1)), now);
        assert!(!lines[0].connected, "still shown, as absent");
        assert_eq!(replicas.connected(), 0);
    }

    #[test]
    fn one_slave_id_belongs_to_one_data_directory_at_a_time() {
        let now = Instant::now();
        let (s, p) = (slave(0), partition("t-0"));
        let mut replicas = Replicas::new();
        replicas.on_greeting(s, "n1", "a:1", now).unwrap();
        replicas.on_get(s, &p, at(5), at(5), now);
        let taken = replicas.on_greeting(s, "n2", "b:1", now).unwrap_err();
        assert!(taken.to_string().contains("slave id 0 is in use by a:1"), "{taken}");
        replicas.on_disconnect(s, now);
        replicas.on_greeting(s, "n2", "b:1", now).unwrap();
        assert!(replicas.snapshot(|_| Some(at(9)), now).is_empty(), "another directory has confirmed nothing yet");
    }

    #[test]
    fn the_longest_absent_slave_makes_room() {
        let now = Instant::now();
        let mut replicas = Replicas::new();
        for id in 0..REPLICAS_MAX as i64 {
            replicas.on_greeting(slave(id), "", "a", now).unwrap();
        }
        assert_eq!(replicas.on_greeting(slave(1000), "", "a", now), Err(GreetingError::TooMany));
        replicas.on_disconnect(slave(8), now + Duration::from_secs(2));
        replicas.on_disconnect(slave(7), now + Duration::from_secs(1));
        replicas.on_greeting(slave(1000), "", "a", now).unwrap();
        assert!(!replicas.slaves.contains_key(&slave(7)) && replicas.slaves.contains_key(&slave(8)));
    }

    #[test]
    fn the_stats_text_reads_back() {
        let line = ReplicaLine {
            slave: slave(2),
            address: "10.0.0.7:49152".into(),
            partition: partition("a-b-订单-12"),
            confirmed: at(10),
            end: at(30),
            lag_bytes: 20,
            behind_ms: 40,
            connected: false,
        };
        let text = write_stats(std::slice::from_ref(&line));
        assert_eq!(
            text,
            "slave 2 10.0.0.7:49152 a-b-订单 12 confirmed 10 end 30 lag_bytes 20 behind_ms 40 \
             connected false\r\n"
        );
        assert_eq!(parse_stats(&format!("STATS\r\n{text}END\r\n")), Ok(vec![line]));
        assert_eq!(parse_stats("STATS\r\nEND\r\n"), Ok(vec![]));
        assert!(parse_stats("slave 2 x").is_err());
    }
}
