//! What a master knows of its slaves: the confirmed end of every partition, read off the offsets of their gets.
//!
//! Pure data; the broker keeps one [`Replicas`] behind a lock and passes the clock in.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use metaq_types::{Offset, PartitionId, SlaveId};

use crate::lag::{LagClock, LogEnd};
use crate::replica_report::ReplicaLine;
use crate::standing::{self, Sight, Standing};

/// Slaves remembered at most; beyond it the longest absent one is forgotten, and while all are connected one more is
/// refused.
pub const REPLICAS_MAX: usize = 64;

/// A connected slave that asks for nothing for this long is silent: it repeats its greeting every second.
pub const SILENT_AFTER: Duration = Duration::from_secs(10);

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
    /// The last request.
    heard: Instant,
    /// It has asked for something since it connected; before that nothing is known of it.
    asked: bool,
    standing: Standing,
    standing_since: Instant,
    /// When it broke the bound that it has not kept since.
    broke_at: Option<Instant>,
    partitions: HashMap<PartitionId, Confirmed>,
}

/// The slave holds every byte before `end`.
#[derive(Debug)]
struct Confirmed {
    end: Offset,
    clock: LagClock,
    /// A get waits at the end of the log: the slave is level for as long as nothing comes.
    parked: bool,
    /// It has not been within the bound since the slave connected.
    joining: bool,
}

/// A slave as its master judges it at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    pub slave: SlaveId,
    pub address: String,
    pub standing: Standing,
    /// The one before, and for how long it was that.
    pub before: Standing,
    pub lasted: Duration,
    /// It breaks the bound now, and did not before.
    pub breaks: bool,
    /// It is within the bound again, for how long it was not; whatever became of its connection meanwhile.
    pub holds_after: Option<Duration>,
    /// Of the partitions that have been within the bound since it connected: the worst.
    pub behind: Duration,
    pub worst: Option<PartitionId>,
}

/// Why a greeting is not accepted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GreetingError {
    #[error(
        "duplicate: slave id {id} is in use by {address}, which copies into another data directory: give one of them \
         another slaveId"
    )]
    IdTaken { id: SlaveId, address: String },
    #[error(
        "duplicate: slave {id} at {address} has the same node identity, so one data directory is a copy of the other: stop \
         one of them, remove .metaq from its data path, start it again"
    )]
    NodeTaken { id: SlaveId, address: String },
    #[error("{REPLICAS_MAX} slaves are connected, which is the most this master keeps")]
    TooMany,
}

impl Replicas {
    pub fn new() -> Replicas {
        Replicas::default()
    }

    /// A connection has greeted as slave `id`. Each accepted greeting is ended by one [`Replicas::on_disconnect`].
    pub fn on_greeting(&mut self, id: SlaveId, node: &str, address: &str, now: Instant) -> Result<(), GreetingError> {
        // Two nodes of one identity could each go on as the master after the other's reign.
        let mut others = self.slaves.iter().filter(|(other, slave)| **other != id && slave.connections > 0);
        if let Some((id, twin)) = others.find(|(_, slave)| !node.is_empty() && slave.node == node) {
            return Err(GreetingError::NodeTaken { id: *id, address: twin.address.clone() });
        }
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
            if slave.connections == 0 {
                // Until it is judged, which is done now and then: it is here.
                (slave.standing, slave.standing_since) = (Standing::CatchingUp, now);
            }
            slave.connections += 1;
            (slave.since, slave.heard) = (now, now);
            slave.asked &= slave.connections > 1;
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
            heard: now,
            asked: false,
            standing: Standing::CatchingUp,
            standing_since: now,
            broke_at: None,
            partitions: HashMap::new(),
        };
        self.slaves.insert(id, slave);
        Ok(())
    }

    /// A greeted slave asked for `offset` of a partition that ends at `log` here: it holds everything before.
    ///
    /// An offset beyond the end confirms no more than that: such a slave has diverged and says so itself.
    pub fn on_get(&mut self, id: SlaveId, partition: &PartitionId, offset: Offset, log: LogEnd, now: Instant) {
        let Some(slave) = self.slaves.get_mut(&id) else { return };
        (slave.heard, slave.asked) = (now, true);
        let held = offset.min(log.end);
        if !slave.partitions.contains_key(partition) {
            let unknown = Confirmed { end: held, clock: LagClock::default(), parked: false, joining: true };
            slave.partitions.insert(partition.clone(), unknown);
        }
        let confirmed = slave.partitions.get_mut(partition).expect("it was put there if it was not");
        (confirmed.end, confirmed.parked) = (held, false);
        confirmed.joining &= held < log.end;
        confirmed.clock.observe(held, log, now);
    }

    /// The get of a slave that is level waits for more.
    pub fn on_park(&mut self, id: SlaveId, partition: &PartitionId) {
        self.parked(id, partition, |confirmed| confirmed.parked = true);
    }

    /// It waits no more, whether or not something came: until now the slave was level.
    pub fn on_unpark(&mut self, id: SlaveId, partition: &PartitionId, now: Instant) {
        self.parked(id, partition, |confirmed| {
            if std::mem::take(&mut confirmed.parked) {
                confirmed.clock.still_level(now);
            }
        });
    }

    fn parked(&mut self, id: SlaveId, partition: &PartitionId, change: impl FnOnce(&mut Confirmed)) {
        if let Some(confirmed) = self.slaves.get_mut(&id).and_then(|slave| slave.partitions.get_mut(partition)) {
            change(confirmed);
        }
    }

    /// A connected slave has repeated its greeting.
    pub fn on_heard(&mut self, id: SlaveId, now: Instant) {
        if let Some(slave) = self.slaves.get_mut(&id) {
            (slave.heard, slave.asked) = (now, true);
        }
    }

    pub fn on_disconnect(&mut self, id: SlaveId, now: Instant) {
        if let Some(slave) = self.slaves.get_mut(&id) {
            slave.connections = slave.connections.saturating_sub(1);
            slave.since = now;
            if slave.connections == 0 {
                (slave.standing, slave.standing_since) = (Standing::Absent, now);
                for confirmed in slave.partitions.values_mut() {
                    (confirmed.joining, confirmed.parked) = (true, false);
                    confirmed.clock.forget_marks();
                }
            }
        }
    }

    /// How many slaves hold a connection.
    pub fn connected(&self) -> usize {
        self.slaves.values().filter(|slave| slave.connections > 0).count()
    }

    /// Judges every slave by the bound; see [`standing::judge`]. What is idle costs no look at its log.
    pub fn judge(
        &mut self,
        bound: Duration,
        end_of: impl Fn(&PartitionId) -> Option<LogEnd>,
        now: Instant,
    ) -> Vec<Verdict> {
        let mut verdicts = Vec::with_capacity(self.slaves.len());
        for (id, slave) in &mut self.slaves {
            let (mut behind, mut worst, mut joining) = (Duration::ZERO, None, !slave.asked);
            let connected = slave.connections > 0;
            let looked_at = slave.partitions.iter_mut().filter(|(_, confirmed)| connected && !confirmed.parked);
            for (partition, confirmed) in looked_at {
                let own = end_of(partition).filter(|log| log.end > confirmed.end);
                let own_behind = own.map_or(Duration::ZERO, |_| confirmed.clock.behind(slave.since, now));
                confirmed.joining &= own.is_some() && !(confirmed.clock.is_known() && own_behind <= bound);
                joining |= confirmed.joining;
                if own_behind > behind && !confirmed.joining {
                    (behind, worst) = (own_behind, Some(partition));
                }
            }
            let silent = now.saturating_duration_since(slave.heard) > SILENT_AFTER;
            let before = slave.standing;
            slave.standing = standing::judge(before, Sight { connected, silent, joining, behind }, bound);
            let lasted = now.saturating_duration_since(slave.standing_since);
            if slave.standing != before {
                slave.standing_since = now;
            }
            let breaks = slave.standing == Standing::Lagging && slave.broke_at.is_none();
            if breaks {
                slave.broke_at = Some(now);
            }
            let holds = slave.standing == Standing::Following;
            verdicts.push(Verdict {
                slave: *id,
                address: slave.address.clone(),
                standing: slave.standing,
                before,
                lasted,
                breaks,
                holds_after: slave.broke_at.take_if(|_| holds).map(|at| now.saturating_duration_since(at)),
                behind,
                worst: worst.cloned(),
            });
        }
        verdicts
    }

    /// Every slave as it was last judged, and how long ago it asked for something.
    pub fn standings(&self, now: Instant) -> Vec<(SlaveId, Standing, Duration)> {
        let told = |(id, slave): (&SlaveId, &Slave)| (*id, slave.standing, now.saturating_duration_since(slave.heard));
        self.slaves.iter().map(told).collect()
    }

    /// One line a slave and partition, in order; `end_of` is the master's end now, `None` for a partition that is gone.
    pub fn snapshot(&self, end_of: impl Fn(&PartitionId) -> Option<LogEnd>, now: Instant) -> Vec<ReplicaLine> {
        let mut lines = Vec::new();
        for (id, slave) in &self.slaves {
            let first = lines.len();
            for (partition, confirmed) in &slave.partitions {
                let Some(log) = end_of(partition) else { continue };
                let lag_bytes = log.end.bytes_since(confirmed.end);
                // What has just come wakes the get that waits for it.
                let level = lag_bytes == 0 || confirmed.parked;
                let behind = if level { Duration::ZERO } else { confirmed.clock.behind(slave.since, now) };
                lines.push(ReplicaLine {
                    slave: *id,
                    address: slave.address.clone(),
                    partition: partition.clone(),
                    confirmed: confirmed.end,
                    end: log.end.max(confirmed.end),
                    lag_bytes,
                    lag_messages: confirmed.clock.messages(confirmed.end, log),
                    behind_ms: u64::try_from(behind.as_millis()).unwrap_or(u64::MAX),
                    connected: slave.connections > 0,
                    standing: slave.standing,
                });
            }
            lines[first..].sort_by(|a, b| a.partition.cmp(&b.partition));
        }
        lines
    }
}

#[cfg(test)]
mod tests {
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

    /// A log of records of ten bytes each.
    fn log(end: u64) -> LogEnd {
        LogEnd { end: at(end), records: end / 10 }
    }

    fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    #[test]
    fn the_offset_of_a_get_is_what_the_slave_holds() {
        let start = Instant::now();
        let later = start + ms(700);
        let (s, p) = (slave(3), partition("orders-1"));
        let mut replicas = Replicas::new();
        replicas.on_greeting(s, "n1", "10.0.0.2:5555", start).unwrap();
        replicas.on_get(s, &p, at(100), log(100), start);
        let level = replicas.snapshot(|_| Some(log(100)), later);
        assert_eq!((level[0].lag_bytes, level[0].behind_ms, level[0].connected), (0, 0, true));

        let behind = replicas.snapshot(|_| Some(log(150)), later);
        assert_eq!((behind[0].confirmed, behind[0].end), (at(100), at(150)));
        assert_eq!((behind[0].lag_bytes, behind[0].lag_messages, behind[0].behind_ms), (50, Some(5), 700));

        replicas.on_get(s, &p, at(120), log(150), later);
        let nearer = replicas.snapshot(|_| Some(log(150)), later);
        assert_eq!(
            (nearer[0].lag_bytes, nearer[0].lag_messages, nearer[0].behind_ms),
            (30, Some(3), 700),
            "still behind since the last time it was level"
        );
        assert!(replicas.snapshot(|_| None, later).is_empty());
    }

    #[test]
    fn a_slave_that_waits_at_the_end_is_level_until_it_is_woken() {
        let start = Instant::now();
        let woken = start + ms(20_000);
        let (s, p) = (slave(0), partition("t-0"));
        let mut replicas = Replicas::new();
        replicas.on_greeting(s, "n", "a", start).unwrap();
        replicas.on_get(s, &p, at(100), log(100), start);
        replicas.on_park(s, &p);
        assert_eq!(replicas.snapshot(|_| Some(log(150)), woken)[0].behind_ms, 0);
        replicas.on_unpark(s, &p, woken);
        assert_eq!(replicas.snapshot(|_| Some(log(150)), woken + ms(30))[0].behind_ms, 30);
    }

    #[test]
    fn the_bound_is_judged_by_what_the_slave_has_once_held() {
        let start = Instant::now();
        let (s, old, new) = (slave(0), partition("t-0"), partition("t-1"));
        let mut replicas = Replicas::new();
        let told = |replicas: &mut Replicas, end: u64, at_ms: u64| {
            let verdict = replicas.judge(ms(500), |_| Some(log(end)), start + ms(at_ms)).remove(0);
            (verdict.breaks, verdict.holds_after)
        };
        let standing = |replicas: &mut Replicas, end: u64, at_ms: u64| {
            let verdict = replicas.judge(ms(500), |_| Some(log(end)), start + ms(at_ms)).remove(0);
            (verdict.standing, verdict.behind)
        };
        replicas.on_greeting(s, "n", "a", start).unwrap();
        assert_eq!(standing(&mut replicas, 100_000, 1).0, Standing::CatchingUp, "of it nothing is known");
        replicas.on_get(s, &old, at(0), log(100_000), start);
        assert_eq!(standing(&mut replicas, 100_000, 9_000), (Standing::CatchingUp, ms(0)));
        // It reaches what there was when it came, while more came: of that it was never level.
        replicas.on_get(s, &old, at(100_000), log(200_000), start + ms(9_900));
        assert_eq!(standing(&mut replicas, 200_000, 9_900).0, Standing::CatchingUp);
        replicas.on_get(s, &old, at(200_000), log(200_000), start + ms(9_950));
        assert_eq!(standing(&mut replicas, 200_000, 9_950), (Standing::Following, ms(0)));
        assert_eq!(standing(&mut replicas, 200_010, 10_450), (Standing::Following, ms(500)));
        assert_eq!(told(&mut replicas, 200_010, 10_451), (true, None));
        assert_eq!(standing(&mut replicas, 200_010, 10_451), (Standing::Lagging, ms(501)));
        // Another partition that is new to it does not hide that.
        replicas.on_get(s, &new, at(0), log(200_010), start + ms(10_460));
        assert_eq!(standing(&mut replicas, 200_010, 10_460).0, Standing::Lagging);
        assert_eq!(standing(&mut replicas, 200_010, 30_000).0, Standing::Silent);
        replicas.on_heard(s, start + ms(30_000));
        assert_eq!(standing(&mut replicas, 200_010, 30_000).0, Standing::Lagging);
        replicas.on_disconnect(s, start + ms(30_001));
        assert_eq!(standing(&mut replicas, 200_010, 30_002), (Standing::Absent, ms(0)));
        replicas.on_greeting(s, "n", "a", start + ms(60_000)).unwrap();
        replicas.on_get(s, &old, at(200_000), log(200_010), start + ms(60_000));
        assert_eq!(standing(&mut replicas, 200_010, 60_001).0, Standing::CatchingUp);
        assert_eq!(told(&mut replicas, 200_010, 60_002), (false, None), "it was said when it began");
        for partition in [&old, &new] {
            replicas.on_get(s, partition, at(200_010), log(200_010), start + ms(60_451));
        }
        assert_eq!(told(&mut replicas, 200_010, 60_451), (false, Some(ms(50_000))));
    }

    #[test]
    fn lag_is_never_negative_and_a_diverged_slave_confirms_nothing_more() {
        let now = Instant::now();
        let (s, p) = (slave(0), partition("t-0"));
        let mut replicas = Replicas::new();
        replicas.on_greeting(s, "", "a", now).unwrap();
        replicas.on_get(s, &p, at(900), log(400), now);
        let lines = replicas.snapshot(|_| Some(log(300)), now);
        assert_eq!((lines[0].confirmed, lines[0].end, lines[0].lag_bytes), (at(400), at(400), 0));
    }

    #[test]
    fn a_slave_is_connected_while_it_holds_a_connection() {
        let now = Instant::now();
        let (s, p) = (slave(0), partition("t-0"));
        let mut replicas = Replicas::new();
        replicas.on_greeting(s, "n", "a", now).unwrap();
        replicas.on_greeting(s, "n", "b", now).unwrap();
        replicas.on_get(s, &p, at(1), log(1), now);
        replicas.on_disconnect(s, now);
        assert!(replicas.snapshot(|_| Some(log(1)), now)[0].connected);
        assert_eq!(replicas.connected(), 1);
        replicas.on_disconnect(s, now);
        let lines = replicas.snapshot(|_| Some(log(1)), now);
        assert!(!lines[0].connected, "still shown, as absent");
        assert_eq!(replicas.connected(), 0);
    }

    #[test]
    fn a_slave_comes_and_goes_at_once_and_not_with_the_next_look() {
        let now = Instant::now();
        let s = slave(0);
        let mut replicas = Replicas::new();
        let standing = |replicas: &Replicas| replicas.standings(now)[0].1;
        for _ in 0..2 {
            replicas.on_greeting(s, "n", "a", now).unwrap();
            assert_eq!(standing(&replicas), Standing::CatchingUp);
            replicas.on_greeting(s, "n", "b", now).unwrap();
            replicas.on_get(s, &partition("t-0"), at(1), log(1), now);
            replicas.judge(ms(500), |_| Some(log(1)), now);
            assert_eq!(standing(&replicas), Standing::Following);
            replicas.on_disconnect(s, now);
            assert_eq!(standing(&replicas), Standing::Following, "on its other connection");
            replicas.on_disconnect(s, now);
            assert_eq!(standing(&replicas), Standing::Absent);
        }
    }

    #[test]
    fn one_slave_id_belongs_to_one_data_directory_at_a_time() {
        let now = Instant::now();
        let (s, p) = (slave(0), partition("t-0"));
        let mut replicas = Replicas::new();
        replicas.on_greeting(s, "n1", "a:1", now).unwrap();
        replicas.on_get(s, &p, at(5), log(5), now);
        let taken = replicas.on_greeting(s, "n2", "b:1", now).unwrap_err();
        assert!(taken.to_string().contains("slave id 0 is in use by a:1"), "{taken}");
        replicas.on_disconnect(s, now);
        replicas.on_greeting(s, "n2", "b:1", now).unwrap();
        assert!(replicas.snapshot(|_| Some(log(9)), now).is_empty(), "another directory has confirmed nothing yet");
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
    fn two_slaves_of_one_identity_are_not_both_taken() {
        let (mut replicas, now) = (Replicas::new(), Instant::now());
        let id = |n| SlaveId::new(n).unwrap();
        replicas.on_greeting(id(0), "node", "h:1", now).unwrap();
        let error = replicas.on_greeting(id(1), "node", "h:2", now).unwrap_err();
        assert!(error.to_string().starts_with("duplicate: slave 0 at h:1"), "{error}");
        replicas.on_greeting(id(1), "", "h:2", now).unwrap();
        replicas.on_disconnect(id(0), now);
        replicas.on_greeting(id(2), "node", "h:3", now).unwrap();
    }
}
