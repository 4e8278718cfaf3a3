//! Whether a node does its work, and if not, why: facts in, sentences out.

use crate::watched::Watched;
use metaq_link::progress::{LinkState, LinkStatus};
use metaq_link::standing::Standing;
use metaq_registry::State;
use metaq_store::Health;
use metaq_types::{PartitionId, SlaveId};
use serde::Serialize;
use std::time::Duration;

/// So many partitions are named in one sentence; the rest are counted.
const NAMED_MAX: usize = 5;

/// The answer of `/readyz`.
#[derive(Debug, Serialize)]
pub(crate) struct Readiness {
    pub(crate) ready: bool,
    /// Each of them alone makes the node not ready.
    pub(crate) reasons: Vec<Statement>,
    /// Worth a look, while this node does its work: a master goes on without its slaves.
    pub(crate) notes: Vec<Statement>,
}

#[derive(Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Statement {
    pub(crate) code: &'static str,
    pub(crate) detail: String,
}

/// What the decision rests on, as of one moment.
#[derive(Debug)]
pub(crate) struct Facts {
    pub(crate) stopping: bool,
    /// `None`: the node has not begun to register.
    pub(crate) registry: Option<State>,
    pub(crate) disk_low: bool,
    /// Without room on the disk for what came last, with the refusal.
    pub(crate) full: Vec<(PartitionId, String)>,
    /// Refused what came last for another reason that may pass, with the refusal.
    pub(crate) refusing: Vec<(PartitionId, String)>,
    /// Read-only after a disk error, with the error.
    pub(crate) poisoned: Vec<(PartitionId, String)>,
    /// Could not be opened.
    pub(crate) failed: Vec<String>,
    /// With damaged messages in the last file, as found at the start, and how many bytes of them.
    pub(crate) damaged: Vec<(PartitionId, u64)>,
    /// Lack files that they had, with what is known.
    pub(crate) lost: Vec<(PartitionId, String)>,
    /// What lies in a data path and is no partition.
    pub(crate) foreign: Vec<String>,
    pub(crate) role: Role,
}

#[derive(Debug)]
pub(crate) enum Role {
    Master {
        /// Why nothing is acknowledged now.
        gate_shut: Option<String>,
        /// The most members that a topic asks for and cannot do without.
        quorum: u32,
        /// Partitions that have fewer members than `ackQuorum` asks for, and refuse messages for that.
        short_of_quorum: Vec<PartitionId>,
        /// Those that take messages all the same, as `ackQuorumDowngrade` allows.
        downgraded: Vec<PartitionId>,
        slaves: Vec<(SlaveId, Standing)>,
    },
    Slave {
        link: LinkStatus,
        bound: Duration,
    },
}

impl Facts {
    pub(crate) fn look(watched: &Watched) -> Facts {
        let node = &watched.node;
        let role = match node.link() {
            Some(link) => Role::Slave { link, bound: watched.bound },
            None => {
                let short = node.short_of_quorum().into_iter();
                let (downgraded, refusing): (Vec<_>, Vec<_>) = short.partition(|log| log.rules.downgrade);
                let config = node.config();
                let rules = config.topics.values().map(|topic| topic.ack).chain([config.system.ack]);
                Role::Master {
                    gate_shut: node.gate_shut(),
                    quorum: rules.filter(|rules| !rules.downgrade).map(|rules| rules.quorum).max().unwrap_or(1),
                    short_of_quorum: refusing.into_iter().map(|log| log.partition).collect(),
                    downgraded: downgraded.into_iter().map(|log| log.partition).collect(),
                    slaves: node.slaves().into_iter().map(|(id, standing, _)| (id, standing)).collect(),
                }
            }
        };
        let store = node.store();
        let mut poisoned = Vec::new();
        // Looked for only when there is one: a node may hold many thousands.
        if store.metrics().poisoned.load(std::sync::atomic::Ordering::Relaxed) > 0 {
            let sick = store.logs().into_iter().filter_map(|log| match log.health() {
                Health::Ok => None,
                Health::Poisoned(reason) => Some((log.id().clone(), reason)),
            });
            poisoned.extend(sick);
            poisoned.sort();
        }
        let report = store.recovery_report();
        let names = |told: &[(String, String)]| -> Vec<String> { told.iter().map(|(name, _)| name.clone()).collect() };
        Facts {
            stopping: node.is_stopping(),
            registry: watched.registry_state(),
            disk_low: node.is_disk_low(),
            full: store.full(),
            refusing: store.refusing(),
            poisoned,
            failed: names(&report.failed),
            damaged: report.damaged.clone(),
            lost: store.lost(),
            foreign: names(&report.passed_over),
            role,
        }
    }
}

pub(crate) fn judge(facts: &Facts) -> Readiness {
    let (mut reasons, mut notes) = (Vec::new(), Vec::new());
    if facts.stopping {
        reasons.push(Statement { code: "stopping", detail: "the node was asked to stop".to_owned() });
    }
    reasons.extend(not_registered(facts.registry.as_ref()));
    if facts.disk_low {
        let detail = "free disk space is below minFreeDiskBytes: messages are refused".to_owned();
        reasons.push(Statement { code: "disk_low", detail });
    }
    reasons.extend(full(&facts.full));
    reasons.extend(refusing(&facts.refusing));
    reasons.extend(poisoned(&facts.poisoned));
    if !facts.failed.is_empty() {
        let names = some(facts.failed.iter().cloned(), facts.failed.len());
        let detail = format!("could not be opened: {names}; the log of the start says why");
        reasons.push(Statement { code: "not_served", detail });
    }
    notes.extend(lost(&facts.lost));
    if !facts.foreign.is_empty() {
        let names = some(facts.foreign.iter().cloned(), facts.foreign.len());
        notes.push(Statement { code: "passed_over", detail: format!("in a data path, and no partitions: {names}") });
    }
    match &facts.role {
        Role::Master { gate_shut, quorum, short_of_quorum, downgraded, slaves } => {
            reasons.extend(gate_shut.clone().map(|detail| Statement { code: "gate_shut", detail }));
            reasons.extend(alone(*quorum, slaves).or_else(|| too_few("quorum", short_of_quorum)));
            notes.extend(damaged(&facts.damaged, "if 'metaq log verify' finds a slave whole, promote it"));
            notes.extend(too_few("downgraded", downgraded));
            notes.extend(slaves.iter().filter_map(|(id, standing)| note_on(*id, *standing)));
        }
        Role::Slave { link, bound } => {
            reasons.extend(damaged(&facts.damaged, "have them copied anew: docs/runbooks/replace-a-slave.md"));
            slave_reasons(link, *bound, &mut reasons);
        }
    }
    Readiness { ready: reasons.is_empty(), reasons, notes }
}

fn not_registered(state: Option<&State>) -> Option<Statement> {
    let detail = match state {
        Some(State::Registered | State::Disabled) => return None,
        Some(state) => state.to_string(),
        None => "not registered yet".to_owned(),
    };
    Some(Statement { code: "not_registered", detail })
}

fn full(partitions: &[(PartitionId, String)]) -> Option<Statement> {
    let (_, reason) = partitions.first()?;
    let names = named(partitions);
    let detail = format!("no room for what comes to {names}: {reason}; free some space, no restart is needed");
    Some(Statement { code: "disk_full", detail })
}

fn refusing(partitions: &[(PartitionId, String)]) -> Option<Statement> {
    let (_, reason) = partitions.first()?;
    let names = named(partitions);
    let detail = format!("nothing can be stored in {names}: {reason}; put that right, no restart is needed");
    Some(Statement { code: "refusing", detail })
}

fn poisoned(partitions: &[(PartitionId, String)]) -> Option<Statement> {
    let (_, reason) = partitions.first()?;
    let names = named(partitions);
    let detail = format!("a disk error made {names} read-only until a restart: {reason}");
    Some(Statement { code: "poisoned", detail })
}

fn lost(logs: &[(PartitionId, String)]) -> Option<Statement> {
    let (_, text) = logs.first()?;
    let names = named(logs);
    let detail = format!("files are gone of {names}: {text}; the log says more");
    Some(Statement { code: "lost", detail })
}

/// Messages that no reader gets any more.
fn damaged(logs: &[(PartitionId, u64)], advice: &str) -> Option<Statement> {
    let bytes: u64 = logs.iter().map(|(_, bytes)| bytes).sum();
    let names = named(logs);
    let detail =
        format!("{bytes} bytes in the files here of {names} are no message, and readers are led across; {advice}");
    (!logs.is_empty()).then_some(Statement { code: "damaged", detail })
}

/// A master without as many slaves as a topic asks for, whether or not something was put already.
fn alone(quorum: u32, slaves: &[(SlaveId, Standing)]) -> Option<Statement> {
    let connected = slaves.iter().filter(|(_, standing)| *standing != Standing::Absent).count();
    if connected + 1 >= quorum as usize {
        return None;
    }
    let detail =
        format!("ackQuorum asks for {quorum} members, this master included, and {connected} slaves are connected");
    Some(Statement { code: "quorum", detail })
}

fn too_few(code: &'static str, partitions: &[PartitionId]) -> Option<Statement> {
    if partitions.is_empty() {
        return None;
    }
    let names = some(partitions.iter().map(ToString::to_string), partitions.len());
    let detail =
        format!("ackQuorum asks for more members than are there now: {names}; 'stats quorum' names the missing");
    Some(Statement { code, detail })
}

fn note_on(id: SlaveId, standing: Standing) -> Option<Statement> {
    let (code, what) = match standing {
        Standing::Following => return None,
        Standing::Absent => ("slave_absent", "holds no connection"),
        Standing::Silent => ("slave_silent", "holds its connection and asks for nothing"),
        Standing::CatchingUp => ("slave_catching_up", "is catching up"),
        Standing::Lagging => ("slave_lagging", "is further behind than slaveMaxDelayInMills"),
    };
    Some(Statement { code, detail: format!("slave {id} {what}") })
}

fn slave_reasons(link: &LinkStatus, bound: Duration, reasons: &mut Vec<Statement>) {
    let down = |detail: String| Statement { code: "link_down", detail };
    match &link.state {
        LinkState::Following { .. } => reasons.extend(lagging(link, bound)),
        LinkState::NoMaster => reasons.push(down("no master is registered".to_owned())),
        LinkState::Connecting { master } => reasons.push(down(format!("connecting to {master}"))),
        LinkState::Lost { master, reason } => {
            let codes = [("foreign:", "foreign"), ("duplicate:", "duplicate")];
            let code = codes.iter().find(|(word, _)| reason.contains(word)).map_or("link_down", |(_, code)| code);
            reasons.push(Statement { code, detail: format!("not following {master}: {reason}") });
        }
    }
    for (trouble, code) in [
        ("diverged", "diverged"),
        ("gap", "gap"),
        ("damaged", "damaged"),
        ("corrupt", "corrupt"),
        ("too large", "too_large"),
        ("local", "local"),
    ] {
        let concerned: Vec<_> = link.partitions.iter().filter(|copy| copy.trouble() == Some(trouble)).collect();
        if let Some(note) = concerned.first().and_then(|copy| copy.note.as_deref()) {
            let names = concerned.iter().map(|copy| copy.partition.to_string());
            reasons.push(Statement { code, detail: format!("{}: {note}", some(names, concerned.len())) });
        }
    }
}

fn lagging(link: &LinkStatus, bound: Duration) -> Option<Statement> {
    // Of one that was never level nobody knows how old what it lacks is.
    let late = link.late(bound)?;
    let left = link.time_left().map_or("not known".to_owned(), |left| format!("{:.0} s", left.as_secs_f64().ceil()));
    let how = match late.never_level {
        true => "has not been level since this slave was started".to_owned(),
        false => format!("is {:.1} s behind (bound {:.1} s)", late.behind_ms as f64 / 1000.0, bound.as_secs_f64()),
    };
    let detail = format!(
        "{} {how}; {} bytes are missing in all, {} come in a second, time left {left}",
        late.partition,
        link.left_bytes(),
        link.bytes_per_second,
    );
    Some(Statement { code: "lagging", detail })
}

fn named<Known>(logs: &[(PartitionId, Known)]) -> String {
    some(logs.iter().map(|(log, _)| log.to_string()), logs.len())
}

/// The first names, and how many more.
fn some(names: impl Iterator<Item = String>, count: usize) -> String {
    let mut text = names.take(NAMED_MAX).collect::<Vec<_>>().join(", ");
    if count > NAMED_MAX {
        text += &format!(" and {} more", count - NAMED_MAX);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use metaq_link::progress::PartitionStatus;
    use metaq_types::Offset;

    fn master(gate_shut: Option<&str>, standing: Standing) -> Facts {
        Facts {
            stopping: false,
            registry: Some(State::Registered),
            disk_low: false,
            full: Vec::new(),
            refusing: Vec::new(),
            poisoned: Vec::new(),
            failed: Vec::new(),
            damaged: Vec::new(),
            lost: Vec::new(),
            foreign: Vec::new(),
            role: Role::Master {
                gate_shut: gate_shut.map(str::to_owned),
                quorum: 1,
                short_of_quorum: Vec::new(),
                downgraded: Vec::new(),
                slaves: vec![(SlaveId::new(0).unwrap(), standing)],
            },
        }
    }

    fn slave(state: LinkState, copies: &[(&str, u64, Option<&str>)]) -> Facts {
        let copy = |(name, behind_ms, note): &(&str, u64, Option<&str>)| PartitionStatus {
            partition: name.parse().unwrap(),
            own_end: Offset::ZERO,
            master_end: Offset::new(1000),
            behind_ms: *behind_ms,
            never_level: false,
            note: note.map(str::to_owned),
        };
        let link = LinkStatus {
            state,
            heard_unix_ms: 0,
            heard_age_ms: None,
            unheard_ms: None,
            copied_bytes: 0,
            bytes_per_second: 500,
            partitions: copies.iter().map(copy).collect(),
        };
        Facts { role: Role::Slave { link, bound: Duration::from_millis(500) }, ..master(None, Standing::Following) }
    }

    fn check(facts: &Facts, reasons: &[&str], notes: &[&str]) {
        let readiness = judge(facts);
        let codes = |statements: &[Statement]| statements.iter().map(|it| it.code).collect::<Vec<_>>();
        assert_eq!((codes(&readiness.reasons), codes(&readiness.notes)), (reasons.to_vec(), notes.to_vec()));
        assert_eq!(readiness.ready, reasons.is_empty());
    }

    /// Whether the slave finds it out itself, or is told so by its master.
    #[test]
    fn a_duplicate_is_told_as_one() {
        for reason in ["duplicate: a copy of the master's", "answer 500: duplicate: slave id 0 is in use by h:1"] {
            let link = LinkState::Lost { master: "m".into(), reason: reason.into() };
            check(&slave(link, &[]), &["duplicate"], &[]);
        }
    }

    #[test]
    fn a_damaged_copy_is_none_and_a_damaged_master_serves_the_rest() {
        let damaged = |facts: Facts| Facts { damaged: vec![("a-0".parse().unwrap(), 1020)], ..facts };
        check(&damaged(master(None, Standing::Following)), &[], &["damaged"]);
        let following = LinkState::Following { master: "m".into() };
        check(&damaged(slave(following, &[("a-0", 0, None)])), &["damaged"], &[]);
    }

    #[test]
    fn a_master_is_ready_while_it_acknowledges_whatever_becomes_of_its_slaves() {
        check(&master(None, Standing::Following), &[], &[]);
        check(&master(None, Standing::Lagging), &[], &["slave_lagging"]);
        check(&master(None, Standing::Absent), &[], &["slave_absent"]);
        check(&master(Some("no lease"), Standing::Silent), &["gate_shut"], &["slave_silent"]);
        let mut short = master(None, Standing::Absent);
        if let Role::Master { short_of_quorum, downgraded, .. } = &mut short.role {
            short_of_quorum.push("t-0".parse().unwrap());
            downgraded.push("t-1".parse().unwrap());
        }
        check(&short, &["quorum"], &["downgraded", "slave_absent"]);
        for (standing, reasons) in [(Standing::Absent, &["quorum"][..]), (Standing::CatchingUp, &[])] {
            let mut needs_one = master(None, standing);
            if let Role::Master { quorum, .. } = &mut needs_one.role {
                *quorum = 2;
            }
            assert_eq!(judge(&needs_one).reasons.iter().map(|it| it.code).collect::<Vec<_>>(), reasons, "{standing}");
        }
        let unregistered =
            Facts { registry: None, disk_low: true, stopping: true, ..master(None, Standing::Following) };
        check(&unregistered, &["stopping", "not_registered", "disk_low"], &[]);
        check(&Facts { registry: Some(State::Disabled), ..master(None, Standing::Following) }, &[], &[]);
    }

    #[test]
    fn partitions_that_are_read_only_are_named_up_to_a_number() {
        let poisoned = (0..8).map(|n| (format!("t-{n}").parse().unwrap(), "no space".to_owned())).collect();
        let facts = Facts { poisoned, failed: vec!["t-9".to_owned()], ..master(None, Standing::Following) };
        check(&facts, &["poisoned", "not_served"], &[]);
        let detail = &judge(&facts).reasons[0].detail;
        assert!(detail.contains("t-0, t-1, t-2, t-3, t-4 and 3 more") && detail.contains("no space"), "{detail}");
    }

    #[test]
    fn what_may_pass_is_told_while_it_lasts() {
        let refusing = vec![("t-0".parse().unwrap(), "cannot create /d/t-0/7.meta: Permission denied".to_owned())];
        let facts = Facts { refusing, ..master(None, Standing::Following) };
        check(&facts, &["refusing"], &[]);
        let detail = &judge(&facts).reasons[0].detail;
        assert!(detail.contains("t-0: cannot create") && detail.contains("put that right"), "{detail}");
    }

    /// The node does its work with what is left, and somebody has to know that it is not all.
    #[test]
    fn files_that_are_gone_are_a_note() {
        let lost = vec![("t-0".parse().unwrap(), "it ends at 7, and ended at 9 before".to_owned())];
        let facts = Facts { lost, ..master(None, Standing::Following) };
        check(&facts, &[], &["lost"]);
        let detail = &judge(&facts).notes[0].detail;
        assert!(detail.contains("t-0") && detail.contains("ended at 9"), "{detail}");
    }

    #[test]
    fn a_disk_without_room_is_told_by_a_master_and_by_a_slave() {
        let full = || vec![("t-0".parse().unwrap(), "/d/t-0 at 7: No space left on device".to_owned())];
        let master = Facts { full: full(), ..master(None, Standing::Following) };
        check(&master, &["disk_full"], &[]);
        let detail = &judge(&master).reasons[0].detail;
        assert!(detail.contains("t-0: /d/t-0 at 7") && detail.contains("free some space"), "{detail}");
        let following = LinkState::Following { master: "m".into() };
        let slave = slave(following, &[("t-0", 9000, Some("waiting: disk full"))]);
        check(&Facts { full: full(), ..slave }, &["disk_full", "lagging"], &[]);
    }

    #[test]
    fn a_slave_is_ready_while_it_follows_within_its_bound() {
        let following = || LinkState::Following { master: "m".into() };
        check(&slave(following(), &[("t-0", 500, None)]), &[], &[]);
        check(&slave(following(), &[("t-0", 501, None)]), &["lagging"], &[]);
        let lost = |reason: &str| LinkState::Lost { master: "m".into(), reason: reason.into() };
        check(&slave(lost("no answer"), &[("t-0", 9000, None)]), &["link_down"], &[]);
        check(&slave(lost("foreign: another past"), &[]), &["foreign"], &[]);
        check(&slave(LinkState::NoMaster, &[]), &["link_down"], &[]);
        let troubled =
            [("a-0", 0, Some("gap: bytes are gone")), ("b-0", 0, Some("diverged: beyond")), ("c-0", 0, None)];
        check(&slave(following(), &troubled), &["diverged", "gap"], &[]);
        let passing = [("a-0", 0, Some("waiting: disk full"))];
        check(&slave(following(), &passing), &[], &[]);
    }

    /// For its first half second an empty slave was ready.
    #[test]
    fn a_slave_that_was_never_level_is_not_ready_within_its_bound() {
        let mut facts = slave(LinkState::Following { master: "m".into() }, &[("t-0", 1, None), ("t-1", 2, None)]);
        check(&facts, &[], &[]);
        if let Role::Slave { link, .. } = &mut facts.role {
            link.partitions[0].never_level = true;
        }
        check(&facts, &["lagging"], &[]);
        let detail = &judge(&facts).reasons[0].detail;
        assert!(detail.starts_with("t-0 has not been level since this slave was started; 2000 bytes"), "{detail}");
    }

    #[test]
    fn what_is_left_of_a_catch_up_is_told() {
        let facts = slave(LinkState::Following { master: "m".into() }, &[("t-0", 3000, None), ("t-1", 1, None)]);
        let detail = &judge(&facts).reasons[0].detail;
        assert_eq!(
            detail,
            "t-0 is 3.0 s behind (bound 0.5 s); 2000 bytes are missing in all, 500 come in a second, time left 4 s"
        );
    }
}
