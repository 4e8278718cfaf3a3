//! Which slave of a broker would lose least as its next master.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use metaq_link::progress::{LinkState, LinkStatus};
use metaq_link::quorum::LogStanding;
use metaq_link::quorum_report::ReadReport;
use metaq_link::replica_report::ReplicaLine;
use metaq_link::standing::Standing;
use metaq_types::{Offset, PartitionId};
use serde::Serialize;

/// One slave, as its master and it itself describe it.
#[derive(Debug, Default)]
pub(crate) struct Sight<'a> {
    pub(crate) slave: u32,
    pub(crate) address: Option<&'a str>,
    /// What it says itself, or why it says nothing; `None` when it is not registered.
    pub(crate) says: Option<Result<&'a Said, &'a str>>,
    /// The master's lines about it; none while no master answers.
    pub(crate) lines: Vec<&'a ReplicaLine>,
}

/// What a slave says of itself.
#[derive(Debug, Default)]
pub(crate) struct Said {
    pub(crate) ends: BTreeMap<PartitionId, Offset>,
    /// The newest reign its data knows.
    pub(crate) epoch: Option<u64>,
    /// `None`: it does not copy, as a master.
    pub(crate) link: Option<LinkStatus>,
    /// Partitions with damaged messages in its files, and how many bytes of them.
    pub(crate) damaged: Vec<(PartitionId, u64)>,
}

/// A slave in its place among the others of its broker, the one to promote first.
#[derive(Debug, PartialEq, Serialize)]
pub(crate) struct Candidate {
    pub(crate) broker: u16,
    /// From 1; `null`: not one to promote.
    pub(crate) rank: Option<u32>,
    pub(crate) slave: u32,
    pub(crate) address: Option<String>,
    pub(crate) epoch: Option<u64>,
    pub(crate) state: &'static str,
    /// Known to be on the master and not here.
    pub(crate) lag_bytes: Option<u64>,
    /// The age of the oldest byte that it lacks.
    pub(crate) lag_seconds: Option<f64>,
    /// Since it last heard its master.
    pub(crate) silent_seconds: Option<f64>,
    /// Partitions that are not level or not copied, and all.
    pub(crate) behind: usize,
    pub(crate) partitions: usize,
    /// Its part in the master's quorum; `null` where none is asked for or no master answers.
    pub(crate) quorum: Option<Part>,
    pub(crate) last_error: Option<String>,
}

/// What a slave is to a master with `ackQuorum`.
#[derive(Debug, PartialEq, Serialize)]
pub(crate) struct Part {
    /// `counts`, or why it does not: `gone`, `other-reign`, `unknown`, `behind`.
    pub(crate) state: String,
    /// How safely it holds what it confirms: `os` or `fsync`.
    pub(crate) level: String,
    /// Everything that was acknowledged is here.
    pub(crate) holds_acknowledged: bool,
}

/// The part of slave `id` by what its master says of its quorum.
pub(crate) fn part(report: &ReadReport, id: u32) -> Option<Part> {
    let member = report.members.iter().find(|member| member.slave.get() == id)?;
    let end_of = |log: &LogStanding| log.in_sync.iter().find(|(slave, _)| slave.get() == id).map(|(_, end)| *end);
    let counts = report.logs.iter().all(|log| end_of(log).is_some());
    let holds = |log: &LogStanding| log.confirmed.is_some_and(|confirmed| end_of(log) >= Some(confirmed));
    let state = if member.state == "counts" && !counts { "behind" } else { &member.state };
    let holds_acknowledged = report.logs.iter().all(holds);
    (!report.logs.is_empty()).then(|| Part { state: state.to_owned(), level: member.level.clone(), holds_acknowledged })
}

/// In the order in which they are to be promoted. `master_ends` is what the master says now, if it answers.
pub(crate) fn rank(
    broker: u16,
    slaves: &[Sight<'_>],
    master_ends: &BTreeMap<PartitionId, Offset>,
    now_unix_ms: u64,
) -> Vec<Candidate> {
    let furthest = furthest(slaves, master_ends);
    let mut ranked: Vec<_> = slaves
        .iter()
        .map(|slave| {
            let candidate = candidate(broker, slave, &furthest, now_unix_ms);
            let lag_bytes = candidate.lag_bytes.unwrap_or(u64::MAX);
            // What is missing inside has to be accepted by name, and what nobody heard of may be missing at the end.
            let (has_flaws, is_deaf) = slave.said().map_or((false, false), |said| (said.has_flaws(), said.is_deaf()));
            let key = (!slave.is_fit(), Reverse(candidate.epoch), has_flaws, lag_bytes, is_deaf, candidate.slave);
            (key, candidate)
        })
        .collect();
    ranked.sort_by_key(|(key, _)| *key);
    let mut place = 0;
    for ((is_unfit, ..), candidate) in &mut ranked {
        if !*is_unfit {
            place += 1;
            candidate.rank = Some(place);
        }
    }
    ranked.into_iter().map(|(_, candidate)| candidate).collect()
}

/// The furthest end of each partition that anybody of the newest reign knows of: with a master that is gone, its slaves
/// tell.
fn furthest(slaves: &[Sight<'_>], master_ends: &BTreeMap<PartitionId, Offset>) -> BTreeMap<PartitionId, Offset> {
    let mut furthest = master_ends.clone();
    let mut see = |partition: &PartitionId, end: Offset| {
        let known = furthest.entry(partition.clone()).or_insert(end);
        *known = (*known).max(end);
    };
    let newest = slaves.iter().filter(|slave| slave.is_fit()).filter_map(|slave| slave.said()?.epoch).max();
    for said in slaves.iter().filter(|slave| slave.is_fit()).filter_map(Sight::said).filter(|said| said.epoch == newest)
    {
        said.ends.iter().for_each(|(partition, end)| see(partition, *end));
        for copy in said.link.iter().flat_map(|link| &link.partitions) {
            see(&copy.partition, copy.master_end.unwrap_or(copy.own_end).max(copy.own_end));
        }
    }
    slaves.iter().flat_map(|slave| &slave.lines).for_each(|line| see(&line.partition, line.end));
    furthest
}

impl<'a> Sight<'a> {
    fn said(&self) -> Option<&'a Said> {
        self.says.and_then(Result::ok)
    }

    /// Whether it may be promoted at all.
    fn is_fit(&self) -> bool {
        self.said().is_some() && !matches!(state(self).0, "foreign" | "duplicate" | "diverged" | "master")
    }
}

impl Said {
    /// Something is missing inside that the master had.
    fn has_flaws(&self) -> bool {
        let mut copies = self.link.iter().flat_map(|link| &link.partitions);
        !self.damaged.is_empty() || copies.any(|copy| copy.trouble() == Some("gap"))
    }

    /// The master may have gone on without it.
    fn is_deaf(&self) -> bool {
        self.link.as_ref().is_some_and(|link| link.unheard_ms.is_some_and(|ms| ms > 0))
    }

    fn end_of(&self, partition: &PartitionId) -> Offset {
        let copies = self.link.iter().flat_map(|link| &link.partitions);
        let copied = copies.filter(|copy| copy.partition == *partition).map(|copy| copy.own_end).max();
        // What consumers are shown may be less than what is there.
        copied.max(self.ends.get(partition).copied()).unwrap_or(Offset::ZERO)
    }
}

fn candidate(broker: u16, slave: &Sight<'_>, furthest: &BTreeMap<PartitionId, Offset>, now_unix_ms: u64) -> Candidate {
    let said = slave.said();
    let link = said.and_then(|said| said.link.as_ref());
    let missing: Vec<u64> = match said {
        Some(said) => furthest.iter().map(|(partition, end)| end.bytes_since(said.end_of(partition))).collect(),
        None => slave.lines.iter().map(|line| line.lag_bytes).collect(),
    };
    // Without a master the slave's own clock tells.
    let told = slave.lines.iter().map(|line| line.behind_ms).max();
    let behind_ms = told.or_else(|| link?.worst().map(|worst| worst.behind_ms));
    // Its own count, if it tells one: its clock may be another than ours.
    let heard = link.filter(|link| link.heard_unix_ms > 0);
    let silent_ms =
        heard.map(|link| link.heard_age_ms.unwrap_or_else(|| now_unix_ms.saturating_sub(link.heard_unix_ms)));
    let (state, last_error) = state(slave);
    let seconds = |ms: u64| ms as f64 / 1000.0;
    Candidate {
        broker,
        rank: None,
        slave: slave.slave,
        address: slave.address.map(str::to_owned),
        epoch: said.and_then(|said| said.epoch),
        state,
        lag_bytes: (said.is_some() || !slave.lines.is_empty()).then(|| missing.iter().sum()),
        lag_seconds: behind_ms.map(seconds),
        silent_seconds: silent_ms.map(seconds),
        behind: missing.iter().filter(|bytes| **bytes > 0).count(),
        partitions: missing.len(),
        quorum: None,
        last_error,
    }
}

/// One word for the worst of it, and the text behind that.
fn state(slave: &Sight<'_>) -> (&'static str, Option<String>) {
    let link = slave.said().and_then(|said| said.link.as_ref());
    let standing = slave.lines.iter().map(|line| line.standing).next();
    let judged = match standing {
        Some(Standing::Lagging) => "lagging",
        Some(Standing::CatchingUp) => "catching-up",
        Some(Standing::Silent) => "silent",
        Some(Standing::Absent) => "absent",
        Some(Standing::Following) | None => "following",
    };
    let link = match (slave.says, link) {
        (Some(Err(reason)), _) => return ("unreachable", Some(reason.to_owned())),
        (None, _) => return (judged, None),
        (Some(Ok(_)), None) => return ("master", Some("it is no slave any more".to_owned())),
        (Some(Ok(_)), Some(link)) => link,
    };
    let note = |word: &str| {
        let mut notes = link.partitions.iter().filter_map(|copy| Some((&copy.partition, copy.note.as_ref()?)));
        notes.find(|(_, note)| note.starts_with(word)).map(|(partition, note)| format!("{partition}: {note}"))
    };
    if let LinkState::Lost { reason, .. } = &link.state {
        for word in ["foreign", "duplicate"] {
            if reason.contains(&format!("{word}:")) {
                return (word, Some(reason.clone()));
            }
        }
    }
    for word in ["diverged", "damaged", "corrupt", "too large", "local"] {
        if let Some(note) = note(word) {
            return (if word == "diverged" { "diverged" } else { "stopped" }, Some(note));
        }
    }
    let damaged = slave.said().and_then(|said| said.damaged.first());
    let flaw = note("gap").map(|gap| ("gap", gap)).or_else(|| {
        damaged.map(|(partition, bytes)| ("damaged", format!("{partition}: {bytes} bytes in its files are no message")))
    });
    match &link.state {
        // Which of them is to be promoted hangs on what each lacks: all have lost their master.
        LinkState::Lost { reason, .. } => match flaw {
            Some((word, text)) => (word, Some(format!("{text}; {reason}"))),
            None => ("lost", Some(lost_text(link, reason))),
        },
        LinkState::NoMaster => ("lost", Some("no master is known".to_owned())),
        LinkState::Connecting { .. } => ("connecting", None),
        LinkState::Following { .. } => match flaw {
            Some((word, text)) if judged == "following" => (word, Some(text)),
            flaw => (judged, flaw.map(|(_, text)| text).or_else(|| note(""))),
        },
    }
}

fn lost_text(link: &LinkStatus, reason: &str) -> String {
    match link.unheard_ms {
        Some(ms @ 1..) => format!("did not hear its master for {:.1} s; {reason}", ms as f64 / 1000.0),
        _ => reason.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use metaq_link::progress::PartitionStatus;

    /// A slave of epoch `epoch` with one partition.
    fn said(epoch: u64, state: LinkState, own_end: u64, master_end: u64, note: Option<&str>) -> Said {
        let at = |offset| Offset::new(offset).unwrap();
        let copy = PartitionStatus {
            partition: "t-0".parse().unwrap(),
            own_end: at(own_end),
            master_end: Some(at(master_end)),
            behind_ms: 0,
            never_level: false,
            note: note.map(str::to_owned),
        };
        let link = LinkStatus {
            state,
            heard_unix_ms: 900,
            heard_age_ms: None,
            unheard_ms: None,
            copied_bytes: 0,
            bytes_per_second: 0,
            partitions: vec![copy],
        };
        Said { epoch: Some(epoch), link: Some(link), ..Said::default() }
    }

    fn following() -> LinkState {
        LinkState::Following { master: "m:1".to_owned() }
    }

    fn lost(reason: &str) -> LinkState {
        LinkState::Lost { master: "m:1".to_owned(), reason: reason.to_owned() }
    }

    fn sight(slave: u32, said: &Said) -> Sight<'_> {
        Sight { slave, says: Some(Ok(said)), ..Sight::default() }
    }

    fn order(slaves: &[Sight<'_>]) -> Vec<(u32, Option<u32>, &'static str, Option<u64>)> {
        let ranked = rank(0, slaves, &BTreeMap::new(), 1000);
        ranked.into_iter().map(|c| (c.slave, c.rank, c.state, c.lag_bytes)).collect()
    }

    #[test]
    fn with_the_master_gone_the_most_advanced_of_the_newest_reign_comes_first() {
        let of = |epoch, end| said(epoch, lost("gone"), end, 80, None);
        let (a, b, old) = (of(3, 70), of(3, 90), of(2, 500));
        let slaves = [sight(0, &a), sight(1, &b), sight(2, &old)];
        let expected = [(1, Some(1), "lost", Some(0)), (0, Some(2), "lost", Some(20)), (2, Some(3), "lost", Some(0))];
        assert_eq!(order(&slaves), expected);
    }

    #[test]
    fn what_has_another_past_is_no_candidate() {
        let level = said(3, following(), 100, 100, None);
        let foreign = said(9, lost("foreign: other masters"), 700, 0, None);
        let diverged = said(3, following(), 100, 90, Some("diverged: ends beyond"));
        let slaves = [sight(0, &foreign), sight(1, &diverged), sight(2, &level)];
        let order = order(&slaves);
        assert_eq!(order[0], (2, Some(1), "following", Some(0)));
        assert_eq!([(order[1].1, order[1].2), (order[2].1, order[2].2)], [(None, "foreign"), (None, "diverged")]);
    }

    #[test]
    fn a_gap_and_a_silent_node_are_named() {
        let gap = said(3, following(), 100, 100, Some("gap: the master no longer had 5 to 9"));
        let silent = Sight { slave: 1, says: Some(Err("does not answer")), ..Sight::default() };
        let mut other_clock = said(3, following(), 100, 100, None);
        other_clock.link.as_mut().unwrap().heard_age_ms = Some(200);
        assert_eq!(rank(0, &[sight(0, &other_clock)], &BTreeMap::new(), 1 << 40)[0].silent_seconds, Some(0.2));
        let ranked = rank(0, &[silent, sight(0, &gap)], &BTreeMap::new(), 1000);
        assert_eq!((ranked[0].state, ranked[0].rank, ranked[0].silent_seconds), ("gap", Some(1), Some(0.1)));
        assert_eq!((ranked[1].state, ranked[1].last_error.as_deref()), ("unreachable", Some("does not answer")));
    }

    /// With the master gone both have lost it. One may be promoted as it is, the other not: that has to be seen.
    #[test]
    fn what_is_missing_inside_comes_last_and_is_named_with_the_master_gone() {
        let gap = said(3, lost("gone"), 100, 100, Some("gap: the master no longer had 5 to 9"));
        let behind = said(3, lost("gone"), 90, 100, None);
        let mut damaged = said(3, lost("gone"), 100, 100, None);
        damaged.damaged = vec![("t-0".parse().unwrap(), 20)];
        let mut deaf = said(3, lost("gone"), 90, 90, None);
        deaf.link.as_mut().unwrap().unheard_ms = Some(5300);
        let slaves = [sight(0, &gap), sight(1, &damaged), sight(2, &deaf), sight(3, &behind)];
        let expected = [
            (3, Some(1), "lost", Some(10)),
            (2, Some(2), "lost", Some(10)),
            (0, Some(3), "gap", Some(0)),
            (1, Some(4), "damaged", Some(0)),
        ];
        assert_eq!(order(&slaves), expected);
        let ranked = rank(0, &slaves, &BTreeMap::new(), 1000);
        let errors = ranked.iter().map(|candidate| candidate.last_error.as_deref().unwrap()).collect::<Vec<_>>();
        assert_eq!(errors[1], "did not hear its master for 5.3 s; gone");
        assert_eq!(errors[2], "t-0: gap: the master no longer had 5 to 9; gone");
        assert_eq!(errors[3], "t-0: 20 bytes in its files are no message; gone");
    }

    #[test]
    fn the_part_in_a_quorum_is_told() {
        let text = "member 0 h:1 node n uri - level fsync state counts since_ms 5\r\n\
                    member 1 h:2 node m uri - level os state counts since_ms 5\r\n\
                    member 2 h:3 node k uri - level os state gone since_ms 5\r\n\
                    log t 0 quorum 2 timeout_ms 9 downgrade false members 3 confirmed 90 in_sync 0:100,1:70\r\n\
                    log t 1 quorum 2 timeout_ms 9 downgrade false members 2 confirmed 50 in_sync 0:50\r\n";
        let report = metaq_link::quorum_report::parse(text);
        let told = |id| part(&report, id).map(|part| (part.state, part.level, part.holds_acknowledged));
        assert_eq!(told(0), Some(("counts".to_owned(), "fsync".to_owned(), true)));
        assert_eq!(told(1), Some(("behind".to_owned(), "os".to_owned(), false)));
        assert_eq!(told(2), Some(("gone".to_owned(), "os".to_owned(), false)));
        assert_eq!(told(3), None);
        assert_eq!(part(&ReadReport::default(), 0), None);
    }
}
