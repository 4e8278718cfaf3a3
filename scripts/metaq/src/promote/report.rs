use metaq_broker::Untold;
use metaq_link::progress::LinkState;
use metaq_link::verdict::{Claim, Rival, may_reign};
use metaq_types::Offset;
use metaq_types::limits::{MESSAGE_BYTES_MAX, RECORD_HEADER_BYTES};
use serde::Serialize;

use std::time::Duration;

use super::Consent;
use super::gather::{Facts, Registry, Replica, Running};

/// What the start of a promotion would find. The first three fields are for whoever reads only them.
#[derive(Debug, PartialEq, Serialize)]
pub(super) struct Report {
    pub(super) verdict: Verdict,
    pub(super) exit_code: u8,
    /// Why it is no better verdict.
    pub(super) reasons: Vec<String>,
    /// What does not count for the verdict, and should be looked at.
    pub(super) notes: Vec<String>,
    pub(super) waits_for: Vec<String>,
    pub(super) broker: u16,
    pub(super) config: String,
    pub(super) data_path: String,
    pub(super) slave: Option<u32>,
    /// Where the slave runs; `null` when nothing answers.
    pub(super) slave_address: Option<String>,
    /// What the slave says of its link.
    pub(super) link: Option<String>,
    /// The newest reign this data knows.
    pub(super) epoch: u64,
    /// The one that the promotion would begin.
    pub(super) next_epoch: u64,
    pub(super) fence: Option<FenceLine>,
    /// ZooKeeper was asked for the fence and did not answer.
    pub(super) fence_unknown: bool,
    pub(super) master: Option<MasterLine>,
    pub(super) bytes_at_risk: u64,
    pub(super) messages_at_risk: Messages,
    pub(super) partitions: Vec<PartitionLine>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Verdict {
    Safe,
    PossibleLoss,
    Refused,
}

#[derive(Debug, PartialEq, Serialize)]
pub(super) struct FenceLine {
    pub(super) epoch: u64,
    pub(super) node: String,
    pub(super) address: String,
    pub(super) since_unix_ms: u64,
    /// This data goes on from that reign.
    pub(super) is_known: bool,
}

#[derive(Debug, PartialEq, Serialize)]
pub(super) struct MasterLine {
    pub(super) address: String,
    pub(super) answers: bool,
    /// Since it was last heard; `null` for never.
    pub(super) silent_seconds: Option<f64>,
}

#[derive(Debug, PartialEq, Serialize)]
pub(super) struct PartitionLine {
    pub(super) partition: String,
    pub(super) own_end: Option<u64>,
    /// The last end of the master that was heard of.
    pub(super) master_end: u64,
    pub(super) bytes_at_risk: u64,
    pub(super) messages_at_risk: Messages,
    /// How old the knowledge of the master's end is.
    pub(super) age_seconds: f64,
    /// Missing inside, from where to where.
    pub(super) gaps: Vec<(u64, u64)>,
    /// Why it is not copied.
    pub(super) stopped: Option<String>,
}

/// How many messages some bytes that nobody here has seen may be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(super) struct Messages {
    /// All of the largest size there can be.
    pub(super) at_least: u64,
    /// As large as the newest ones that are here; `null` where there is none to go by.
    pub(super) about: Option<u64>,
    /// All of them empty.
    pub(super) at_most: u64,
}

impl Messages {
    fn of(bytes: u64, record_bytes: Option<u64>) -> Messages {
        if bytes == 0 {
            return Messages { about: Some(0), ..Messages::default() };
        }
        Messages {
            at_least: bytes.div_ceil(u64::from(RECORD_HEADER_BYTES + MESSAGE_BYTES_MAX)),
            about: record_bytes.map(|average| (bytes / average.max(1)).max(1)),
            at_most: bytes.div_ceil(RECORD_HEADER_BYTES.into()),
        }
    }

    fn and(self, other: Messages) -> Messages {
        Messages {
            at_least: self.at_least + other.at_least,
            about: self.about.zip(other.about).map(|(a, b)| a + b),
            at_most: self.at_most + other.at_most,
        }
    }
}

/// ZooKeeper ends sessions a little after their time, and none sooner than two of its ticks (2 s unless set).
const REGISTRATION_SLACK: Duration = Duration::from_secs(5);

/// What stands against the promotion, by its weight.
#[derive(Default)]
struct Against {
    refusals: Vec<String>,
    losses: Vec<String>,
    waits: Vec<String>,
}

pub(super) fn judge(facts: &Facts, consent: Consent) -> Report {
    let mut against = Against::default();
    let claim = may_reign(rival(facts), &facts.lineage, facts.node.as_deref().unwrap_or_default());
    weigh_registry(facts, claim, consent, &mut against);
    weigh_process(facts.running.as_ref(), &mut against);
    weigh_gaps(facts, consent, &mut against);
    weigh_quorum(facts, consent, &mut against);
    weigh_knowledge(facts, &mut against);
    let (verdict, exit_code) = match &against {
        Against { refusals, .. } if !refusals.is_empty() => (Verdict::Refused, 20),
        Against { losses, .. } if !losses.is_empty() => (Verdict::PossibleLoss, 10),
        _ => (Verdict::Safe, 0),
    };
    let partitions = partition_lines(facts);
    let zero = Messages::of(0, None);
    let (Claim::Reign(next) | Claim::Replaced(next)) = claim;
    Report {
        verdict,
        exit_code,
        reasons: against.refusals.into_iter().chain(against.losses).collect(),
        notes: notes(facts),
        waits_for: against.waits,
        broker: facts.broker_id.get(),
        config: facts.config.display().to_string(),
        data_path: facts.data_path.display().to_string(),
        slave: facts.replica.as_ref().map(|replica| replica.slave_id),
        slave_address: facts.running.as_ref().map(|running| running.address.clone()),
        link: facts.running.as_ref().map(link_text),
        epoch: facts.lineage.epoch().0,
        next_epoch: next.0,
        fence: fence_line(facts, claim),
        fence_unknown: matches!(facts.registry, Registry::Silent(_)),
        master: facts.replica.as_ref().map(master_line),
        bytes_at_risk: partitions.iter().map(|line| line.bytes_at_risk).sum(),
        messages_at_risk: partitions.iter().map(|line| line.messages_at_risk).fold(zero, Messages::and),
        partitions,
    }
}

fn rival(facts: &Facts) -> Option<Rival<'_>> {
    let Registry::Told { standing, .. } = &facts.registry else { return None };
    standing.fence.as_ref().map(|fence| Rival { epoch: fence.epoch, node: &fence.node })
}

fn weigh_registry(facts: &Facts, claim: Claim, consent: Consent, against: &mut Against) {
    match &facts.registry {
        Registry::Off => {
            if let Some(replica) = facts.replica.as_ref().filter(|replica| replica.master_answers) {
                against.refusals.push(alive(&replica.measurement.master));
            }
        }
        Registry::Silent(reason) => {
            against.losses.push(format!("whether another master reigns is not known: {reason}"));
            against.waits.push("ZooKeeper: until it answers, messages are refused and reads are served".to_owned());
        }
        Registry::Told { standing, master_answers } => {
            let is_own = |address: &str| {
                let running = facts.running.as_ref();
                running.filter(|running| running.address == address.trim_start_matches("meta://"))
            };
            match &standing.registered {
                Some(address) if *master_answers && is_own(address).is_none() => against.refusals.push(alive(address)),
                // It is the master itself, which is refused already.
                Some(address) if is_own(address).is_some_and(|running| running.link.is_none()) => {}
                Some(address) => {
                    weigh_registration(facts, address, against);
                    against.waits.push(format!(
                    "the end of the session of {address}, which is registered and does not answer: at most {:.0} s after \
                     it died (zk.zkSessionTimeoutMs)",
                    facts.session.as_secs_f64()
                ))
                }
                None => {}
            }
            let unregistered = facts.replica.as_ref().filter(|r| r.master_answers && standing.registered.is_none());
            if let Some(replica) = unregistered {
                let master = &replica.measurement.master;
                against.losses.push(format!("{master} answers although it is not registered: stop it first"));
            }
            if let (Claim::Replaced(_), Some(fence)) = (claim, &standing.fence) {
                let text = format!(
                    "{} began epoch {} (node {}), and this data does not know that reign: what was stored under it is lost",
                    fence.uri, fence.epoch, fence.node
                );
                match consent.loss {
                    true => against.losses.push(text),
                    false => against.refusals.push(format!("{text}; only --accept-loss starts it all the same")),
                }
            }
        }
    }
}

/// A dead master is forgotten when its session ends. One that is not was alive after this slave last heard it.
fn weigh_registration(facts: &Facts, address: &str, against: &mut Against) {
    let replica = facts.replica.as_ref().filter(|replica| replica.measurement.master == address);
    let Some(silence) = replica.and_then(|replica| replica.measurement.silence) else { return };
    if silence > facts.session + REGISTRATION_SLACK {
        against.losses.push(format!(
            "{address} is registered, and this slave last heard it {:.1} s ago, which is longer than the session of a dead \
             one lasts by this configuration (zk.zkSessionTimeoutMs, {:.0} s): it went on without this slave, and what it \
             acknowledged then is not here; if it still runs, stop it in order first",
            silence.as_secs_f64(),
            facts.session.as_secs_f64()
        ));
    }
}

fn alive(master: &str) -> String {
    format!("the master {master} answers: stop it in order first, then nothing it acknowledged is lost")
}

fn weigh_process(running: Option<&Running>, against: &mut Against) {
    match running {
        Some(Running { address, link: None, .. }) => {
            against.refusals.push(format!("{address} serves this data as a master already"));
        }
        Some(Running { address, .. }) => against.waits.insert(0, format!("the stop of the slave at {address}")),
        None => {}
    }
}

fn weigh_gaps(facts: &Facts, consent: Consent, against: &mut Against) {
    if facts.gaps.is_empty() {
        return;
    }
    let ranges: Vec<String> = facts.gaps.iter().map(|(id, from, to)| format!("{id} from {from} to {to}")).collect();
    let text = format!("ranges are missing inside the logs: {}", ranges.join(", "));
    match consent.gap {
        true => against.losses.push(text),
        false => against.refusals.push(format!("{text}; only --accept-gap starts it all the same")),
    }
}

fn weigh_quorum(facts: &Facts, consent: Consent, against: &mut Against) {
    let Some(replica) = facts.replica.as_ref().filter(|replica| replica.quorum > 1) else { return };
    let quorum = replica.quorum;
    against.waits.push(format!(
        "the other slaves, as {quorum} had to hold what was acknowledged: what they have more is copied"
    ));
    if replica.doubts.is_empty() {
        return;
    }
    let text =
        format!("messages that {quorum} members acknowledged may be missing here: {}", replica.doubts.join("; "));
    match consent.loss {
        true => against.losses.push(text),
        false => against.refusals.push(format!("{text}; only --accept-loss starts it all the same")),
    }
}

fn weigh_knowledge(facts: &Facts, against: &mut Against) {
    let Some(replica) = &facts.replica else {
        let reigned = facts.lineage.newest().is_some_and(|newest| Some(&newest.node) == facts.node.as_ref());
        if !reigned {
            let text = "this data has followed no master that is known: what a master had more cannot be told";
            against.losses.push(text.to_owned());
        }
        return;
    };
    let measurement = &replica.measurement;
    if measurement.bytes_at_risk() > 0 {
        against.losses.push(format!("{} bytes known to be on the master are not here", measurement.bytes_at_risk()));
    }
    for partition in &measurement.partitions {
        if let Some(stopped) = partition.stopped.as_ref().filter(|stopped| !stopped.starts_with("gap")) {
            against.losses.push(format!("{} was not being copied: {stopped}", partition.partition));
        }
    }
    match (measurement.silence, &facts.running) {
        (None, _) => against.losses.push("this slave has never heard its master".to_owned()),
        (Some(silence), None) => against.losses.push(format!(
            "the slave does not run and last heard its master {:.1} s ago: what the master acknowledged after that is not \
             known",
            silence.as_secs_f64()
        )),
        (Some(_), Some(running)) => weigh_hearing(running.unheard, replica, against),
    }
    for (partition, bytes) in facts.running.iter().flat_map(|running| &running.damaged) {
        against.losses.push(format!(
            "{bytes} bytes of {partition} are damaged in the files here, and readers would be led across: promote another \
             slave, or have this one copied anew first (docs/runbooks/replace-a-slave.md)"
        ));
    }
}

/// A slave knows what it lacks if it listened until the link ended. Under a quorum the others know, if it was kept to.
fn weigh_hearing(unheard: Option<Duration>, replica: &Replica, against: &mut Against) {
    let others_know = replica.quorum > 1 && !replica.downgrades;
    if let Some(unheard) = unheard.filter(|unheard| !unheard.is_zero() && !others_know) {
        against.losses.push(format!(
            "this slave did not hear its master for {:.1} s, and not since: what the master acknowledged then is not \
             known. If it was down all that time nothing is missing; else compare with its files (metaq log verify)",
            unheard.as_secs_f64()
        ));
    }
}

/// What would surprise afterwards: messages are there, and the promoted broker tells nobody of them.
fn notes(facts: &Facts) -> Vec<String> {
    let config = facts.config.display();
    let note = |why, what: &str| {
        let ids: Vec<String> = facts.untold.iter().filter(|(_, is)| *is == why).map(|(id, _)| id.to_string()).collect();
        let (first, count) = (ids.first()?, ids.len());
        Some(format!(
            "{count} partitions have messages and {what} in {config}, {first} the first: as the master this broker takes \
                      no messages for them, and consumers do not find them in ZooKeeper; correct it before the promotion"
        ))
    };
    let (section, number) =
        (note(Untold::NoSection, "no section"), note(Untold::AboveCount, "are above numPartitions"));
    section.into_iter().chain(number).collect()
}

fn link_text(running: &Running) -> String {
    match &running.link {
        None => "it is a master".to_owned(),
        Some(LinkState::NoMaster) => "no master is known".to_owned(),
        Some(LinkState::Connecting { master }) => format!("connecting to {master}"),
        Some(LinkState::Following { master }) => format!("following {master}"),
        Some(LinkState::Lost { master, reason }) => format!("lost {master}: {reason}"),
    }
}

fn fence_line(facts: &Facts, claim: Claim) -> Option<FenceLine> {
    let Registry::Told { standing, .. } = &facts.registry else { return None };
    let fence = standing.fence.clone()?;
    Some(FenceLine {
        epoch: fence.epoch.0,
        node: fence.node,
        address: fence.uri,
        since_unix_ms: fence.since_unix_ms,
        is_known: matches!(claim, Claim::Reign(_)),
    })
}

fn master_line(replica: &Replica) -> MasterLine {
    let Replica { measurement, master_answers, .. } = replica;
    let silent_seconds = measurement.silence.map(|silence| silence.as_secs_f64());
    MasterLine { address: measurement.master.clone(), answers: *master_answers, silent_seconds }
}

fn partition_lines(facts: &Facts) -> Vec<PartitionLine> {
    let known = facts.replica.iter().flat_map(|replica| &replica.measurement.partitions);
    let line = |risk: &metaq_link::promotion::PartitionRisk| {
        let gaps = facts.gaps.iter().filter(|(id, ..)| id.to_string() == risk.partition);
        PartitionLine {
            partition: risk.partition.clone(),
            own_end: risk.own_end.map(Offset::get),
            master_end: risk.master_end.get(),
            bytes_at_risk: risk.bytes_at_risk,
            messages_at_risk: Messages::of(risk.bytes_at_risk, facts.record_bytes.get(&risk.partition).copied()),
            age_seconds: risk.age.as_secs_f64(),
            gaps: gaps.map(|(_, from, to)| (from.get(), to.get())).collect(),
            stopped: risk.stopped.clone(),
        }
    };
    known.map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use metaq_link::promotion::{Measurement, Record, measure};
    use metaq_registry::fence::Standing;
    use std::collections::BTreeMap;

    const MASTER: &str = "meta://a:1";

    /// A slave that runs, is level by what it knows, and heard its master that many seconds ago.
    fn level(silence: u64, unheard_ms: u64, registered: bool, quorum: u32) -> Facts {
        let record = Record { master: MASTER.into(), heard_unix_ms: 1000, ..Record::default() };
        let measurement: Measurement = measure(&record, &BTreeMap::new(), 1000 + silence * 1000);
        let link = LinkState::Lost { master: MASTER.into(), reason: "it has ended".into() };
        let unheard = Some(Duration::from_millis(unheard_ms));
        let standing = Standing { fence: None, registered: registered.then(|| MASTER.to_owned()) };
        Facts {
            config: "server.ini".into(),
            broker_id: metaq_types::BrokerId::new(0).unwrap(),
            data_path: "data".into(),
            node: Some("b".into()),
            lineage: "epoch 1 node a began 0\n".parse().unwrap(),
            gaps: Vec::new(),
            untold: Vec::new(),
            record_bytes: BTreeMap::new(),
            running: Some(Running { address: "b:2".into(), link: Some(link), unheard, damaged: Vec::new() }),
            replica: Some(Replica {
                slave_id: 0,
                measurement,
                master_answers: false,
                quorum,
                doubts: Vec::new(),
                downgrades: false,
            }),
            registry: Registry::Told { standing, master_answers: false },
            session: Duration::from_secs(6),
        }
    }

    #[track_caller]
    fn check(facts: Facts, code: u8, words: &[&str]) {
        let report = judge(&facts, Consent::default());
        let found = words.iter().zip(&report.reasons).all(|(words, reason)| reason.contains(words));
        assert!(report.exit_code == code && report.reasons.len() == words.len() && found, "{report:?}");
    }

    #[test]
    fn a_slave_that_listened_to_the_end_is_safe_however_long_ago_that_was() {
        check(level(5, 0, true, 1), 0, &[]);
        check(level(900, 0, false, 1), 0, &[]);
    }

    #[test]
    fn a_slave_that_did_not_listen_is_not() {
        check(level(5, 4000, true, 1), 10, &["did not hear its master for 4.0 s"]);
        // Under a quorum the other members tell, who are asked.
        check(level(5, 4000, true, 2), 0, &[]);
        let downgrades = |mut facts: Facts| {
            facts.replica.as_mut().unwrap().downgrades = true;
            facts
        };
        check(downgrades(level(5, 4000, true, 2)), 10, &["did not hear its master for 4.0 s"]);
    }

    #[test]
    fn what_the_promoted_broker_would_tell_nobody_of_is_noted() {
        let mut facts = level(5, 0, false, 1);
        facts.untold = [("a-0", Untold::NoSection), ("a-1", Untold::NoSection), ("b-4", Untold::AboveCount)]
            .map(|(name, why)| (name.parse().unwrap(), why))
            .into();
        let report = judge(&facts, Consent::default());
        assert_eq!((report.exit_code, report.notes.len()), (0, 2), "{report:?}");
        assert!(report.notes[0].starts_with("2 partitions have messages and no section in server.ini, a-0 the first"));
        assert!(report.notes[1].starts_with("1 partitions have messages and are above numPartitions"), "{report:?}");
    }

    #[test]
    fn what_is_damaged_here_is_missing_here() {
        let mut facts = level(5, 0, false, 1);
        facts.running.as_mut().unwrap().damaged = vec![("a-0".parse().unwrap(), 1020)];
        check(facts, 10, &["1020 bytes of a-0 are damaged"]);
    }

    #[test]
    fn a_master_that_is_registered_for_longer_than_a_dead_one_lives() {
        check(level(10, 0, true, 1), 0, &[]);
        check(level(12, 0, true, 1), 10, &["meta://a:1 is registered, and this slave last heard it 12.0 s ago"]);
    }
}
