use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, bail};
use clap::Args;
use metaq_client::Client;
use metaq_store::partition_files;
use metaq_types::{Offset, PartitionId};
use serde::Serialize;

use super::bytes::LogBytes;
use super::compare::{Against, Outcome, with_broker, with_directory};
use super::files::{Broker, Directory, FilesArgs, PathLine, Site, check_data_path, with_journal};
use super::page;
use super::verify::{Checked, Progress, verify};
use crate::cluster::{self, Place};
use crate::show::{self, Format};

#[derive(Args)]
#[command(
    after_help = "Nothing is locked or changed, and a broker may run on the files: they are then checked as far as \
                        they are whole.\n\
                        SHA256 is that of 'cat DIR/TOPIC-PARTITION/*.meta': two nodes with the same FIRST, END and \
                        SHA256 have the same messages.\n\
                        Exit codes: 0 all is whole, and what was compared is the same, or one side has just not got as \
                        far as the other while a broker runs on the files; 1 something is damaged or differs, or could \
                        not be found out; the last line says what to do."
)]
pub(crate) struct VerifyArgs {
    #[command(flatten)]
    files: FilesArgs,

    /// Compare with the files in this data path: a copy, or another node's on this machine
    #[arg(long, value_name = "DIR", conflicts_with = "against_broker")]
    against: Option<PathBuf>,

    /// Compare with what this broker gives to consumers
    #[arg(long, value_name = "HOST:PORT")]
    against_broker: Option<String>,
}

#[derive(Serialize)]
pub(super) struct PartitionLine {
    pub(super) partition: String,
    directory: PathBuf,
    pub(super) segments: usize,
    pub(super) messages: u64,
    pub(super) bytes: u64,
    pub(super) first_offset: u64,
    pub(super) end_offset: u64,
    first_id: Option<i64>,
    last_id: Option<i64>,
    pub(super) sha256: String,
    pub(super) faults: Vec<String>,
    /// Those that are not listed.
    pub(super) faults_more: u64,
    pub(super) notes: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) against: Option<Against>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Verdict {
    Good,
    Damaged,
    Different,
}

#[derive(Serialize)]
pub(super) struct Report {
    pub(super) paths: Vec<PathLine>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) against: Option<String>,
    pub(super) partitions: Vec<PartitionLine>,
    /// Partitions that only the other has.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) only_there: Vec<String>,
    /// What is wrong with the data paths themselves.
    pub(super) faults: Vec<String>,
    pub(super) notes: Vec<String>,
    pub(super) verdict: Verdict,
    pub(super) next: String,
}

/// What the files are compared with.
enum Other {
    Path { partitions: BTreeMap<PartitionId, PathBuf>, broker: Broker },
    Broker(Client),
}

pub(super) async fn run(place: &Place, args: &VerifyArgs, format: Format) -> anyhow::Result<ExitCode> {
    let site = args.files.find(place)?;
    let other = match (&args.against, &args.against_broker) {
        (Some(path), _) => Some(other_path(path, &site)?),
        (None, Some(address)) => Some(Other::Broker(cluster::connect(address).await?)),
        (None, None) => None,
    };
    let mut lines = Vec::new();
    let mut progress = Progress::new();
    for directory in &site.partitions {
        let checked = verify(directory, &mut progress)?;
        let against = match &other {
            Some(other) => Some(compare(directory, &checked, other).await?),
            None => None,
        };
        lines.push(line(directory, checked, against));
    }
    let mut only_there = match &other {
        Some(other) => partitions_of(other).await?,
        None => Vec::new(),
    };
    only_there.retain(|id| args.files.names(id) && !site.partitions.iter().any(|found| found.id == *id));
    let only_there: Vec<String> = only_there.iter().map(PartitionId::to_string).collect();
    let against = args.against.as_ref().map(|path| path.display().to_string()).or_else(|| args.against_broker.clone());
    let stands_still = stands_still(&site, other.as_ref());
    let verdict = match judge(&site.faults, &lines, stands_still) {
        Verdict::Good if !only_there.is_empty() => Verdict::Different,
        verdict => verdict,
    };
    let next = next(&site, &lines, &only_there, verdict, against.as_deref());
    let Site { paths, faults, notes, .. } = site;
    let report = Report { paths, against, partitions: lines, only_there, faults, notes, verdict, next };
    show::print(&match format {
        Format::Json => show::json(&report)?,
        Format::Table => page::text(&report),
    })?;
    Ok(if verdict == Verdict::Good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn other_path(path: &Path, site: &Site) -> anyhow::Result<Other> {
    check_data_path(path)?;
    let same = |line: &PathLine| fs::canonicalize(&line.path).ok() == fs::canonicalize(path).ok();
    if site.paths.iter().any(same) {
        bail!("--against {} is the data path that is to be verified: name the other one", path.display());
    }
    let mut other = Site::default();
    for roots in with_journal(path) {
        other.look_into(&roots)?;
    }
    if other.partitions.is_empty() && !path.join(".metaq").exists() {
        bail!("there is no partition in {}: name a data path, with TOPIC-PARTITION directories in it", path.display());
    }
    let broker = other.paths[0].broker;
    let partitions = other.partitions.into_iter().map(|found| (found.id, found.directory)).collect();
    Ok(Other::Path { partitions, broker })
}

/// The partitions of the other that hold something.
async fn partitions_of(other: &Other) -> anyhow::Result<Vec<PartitionId>> {
    match other {
        Other::Path { partitions, .. } => {
            let mut held = Vec::new();
            for (id, directory) in partitions {
                let files =
                    partition_files(directory).with_context(|| format!("cannot read {}", directory.display()))?;
                if files.segments.iter().any(|segment| segment.base + segment.bytes > Offset::ZERO) {
                    held.push(id.clone());
                }
            }
            Ok(held)
        }
        Other::Broker(client) => {
            let listed = cluster::partitions(client).await.context("asking the broker for its partitions")?;
            let held = listed.into_iter().filter(|listed| listed.end > Offset::ZERO);
            Ok(held.map(|listed| listed.partition).collect())
        }
    }
}

async fn compare(directory: &Directory, checked: &Checked, other: &Other) -> anyhow::Result<Against> {
    let mut own = LogBytes::new(&checked.files, checked.end);
    let compared = match other {
        Other::Path { partitions, .. } => match partitions.get(&directory.id) {
            Some(there) => with_directory(&mut own, there),
            None => Ok(Against::absent()),
        },
        Other::Broker(client) => with_broker(&mut own, client, &directory.id).await,
    };
    let compared = compared.with_context(|| format!("comparing {}", directory.id))?;
    // Its directory is made before anything is put, and not on all nodes.
    let is_nothing = compared.result == Outcome::Absent && checked.end == Offset::ZERO;
    Ok(if is_nothing { Against::nothing() } else { compared })
}

fn line(directory: &Directory, checked: Checked, against: Option<Against>) -> PartitionLine {
    PartitionLine {
        partition: directory.id.to_string(),
        directory: directory.directory.clone(),
        segments: checked.files.segments.len(),
        messages: checked.messages,
        bytes: checked.bytes,
        first_offset: checked.first.get(),
        end_offset: checked.end.get(),
        first_id: checked.first_id.map(|id| id.0),
        last_id: checked.last_id.map(|id| id.0),
        sha256: checked.sha256,
        faults: checked.faults,
        faults_more: checked.faults_more,
        notes: checked.notes,
        against,
    }
}

/// No broker moves the ends of the files. One that is asked over the wire beside files that stand still is behind or ahead
/// of all that they will ever hold.
fn stands_still(site: &Site, other: Option<&Other>) -> bool {
    let there = !matches!(other, Some(Other::Path { broker: Broker::Running, .. }));
    there && site.paths.iter().all(|line| line.broker != Broker::Running)
}

fn judge(faults: &[String], lines: &[PartitionLine], stands_still: bool) -> Verdict {
    let differs = |against: &Against| match against.result {
        Outcome::Differs | Outcome::Absent => true,
        // Where nothing moves, what is missing is missing.
        Outcome::Behind | Outcome::Ahead => stands_still,
        Outcome::Same | Outcome::Unasked => false,
    };
    if !faults.is_empty() || lines.iter().any(|line| !line.faults.is_empty()) {
        Verdict::Damaged
    } else if lines.iter().any(|line| line.against.as_ref().is_some_and(differs)) {
        Verdict::Different
    } else {
        Verdict::Good
    }
}

/// The last line: what was found, and what to do.
fn next(
    site: &Site,
    lines: &[PartitionLine],
    only_there: &[String],
    verdict: Verdict,
    against: Option<&str>,
) -> String {
    let count = |result: &[Outcome]| {
        let told = lines.iter().filter_map(|line| line.against.as_ref());
        told.filter(|against| result.contains(&against.result)).count()
    };
    let damaged = lines.iter().filter(|line| !line.faults.is_empty()).count();
    let paths = if site.faults.is_empty() { "" } else { ", and a data path" };
    match verdict {
        Verdict::Damaged if site.is_slave => format!(
            "damaged: {damaged} of {} partitions{paths}; this is a slave's data: have it copied anew, docs/runbooks/replace-a-slave.md, \
             and promote another slave until then",
            lines.len()
        ),
        Verdict::Damaged => format!(
            "damaged: {damaged} of {} partitions{paths}; verify a slave's files: if they are whole, promote it \
             (docs/runbooks/switch-over.md) and have this node copied anew (docs/runbooks/replace-a-slave.md)",
            lines.len()
        ),
        Verdict::Different => {
            let (differ, lag) = (
                count(&[Outcome::Differs, Outcome::Absent]) + only_there.len(),
                count(&[Outcome::Behind, Outcome::Ahead]),
            );
            let advice = if differ > 0 {
                "find out which of the two is right before anything is promoted; an old master comes back by \
                 docs/runbooks/rejoin.md, a slave is copied anew by docs/runbooks/replace-a-slave.md"
            } else {
                "let the slave follow until it is level, docs/runbooks/switch-over.md"
            };
            format!(
                "different: {differ} partitions differ and {lag} end elsewhere than in {}: {advice}",
                against.unwrap_or("-")
            )
        }
        Verdict::Good => good(lines, against, count(&[Outcome::Behind, Outcome::Ahead])),
    }
}

fn good(lines: &[PartitionLine], against: Option<&str>, moving: usize) -> String {
    let messages: u64 = lines.iter().map(|line| line.messages).sum();
    let bytes: u64 = lines.iter().map(|line| line.bytes).sum();
    let whole = format!("good: {} partitions with {messages} messages in {bytes} bytes are whole", lines.len());
    match (against, moving) {
        (None, _) => format!("{whole}; nothing to do"),
        (Some(other), 0) => format!("{whole}, and the same in {other}; nothing to do"),
        (Some(other), moving) => format!(
            "{whole}, and the same in {other} as far as both go; {moving} partitions end elsewhere while a broker runs: for a \
             proof compare when both are stopped or idle, docs/runbooks/switch-over.md"
        ),
    }
}
