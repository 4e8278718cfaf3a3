//! `metaq replica status`: the slaves in the order in which they would be promoted, or every copy of every partition.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{SystemTime, UNIX_EPOCH};

use clap::Args;
use metaq_link::progress;
use metaq_link::quorum_report::{self, ReadReport};
use metaq_link::replica_report::{ReplicaLine, parse_stats};
use metaq_types::{BrokerId, Lineage, Offset, PartitionId, SlaveId};
use serde::Serialize;

use crate::cluster::{self, Source};
use crate::ranking::{self, Candidate, Part, Said, Sight};
use crate::show::{self, Column, Format, or_dash};

#[derive(Args)]
pub(crate) struct StatusArgs {
    /// One line a slave and partition, instead of one a slave
    #[arg(long)]
    partitions: bool,
}

/// One slave's copy of one partition.
#[derive(Debug, PartialEq, Serialize)]
struct Row {
    broker: u16,
    slave: u32,
    topic: String,
    partition: u32,
    /// The master's durable end; `null` when the master does not answer.
    master_end: Option<u64>,
    /// Up to where the slave has told its master to hold everything.
    confirmed: Option<u64>,
    /// What the slave itself says; `null` when it does not answer.
    slave_end: Option<u64>,
    lag_bytes: Option<u64>,
    lag_seconds: Option<f64>,
    state: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    detail: Option<String>,
}

/// What master and slaves of one broker id say.
struct Told {
    broker: BrokerId,
    /// The master's view, or why it is not known.
    replicas: Result<Vec<ReplicaLine>, String>,
    master_ends: BTreeMap<PartitionId, Offset>,
    slaves: BTreeMap<SlaveId, Result<Said, String>>,
    addresses: BTreeMap<SlaveId, String>,
    /// What the master says of its quorum.
    quorum: ReadReport,
}

pub(crate) async fn status(source: &Source, args: &StatusArgs, format: Format) -> anyhow::Result<()> {
    let found = source.look_at_brokers().await?;
    let mut all = Vec::new();
    for (id, broker) in &found.brokers {
        all.push(ask(*id, broker).await);
    }
    if all.iter().all(|told| slave_ids(told).is_empty()) && format == Format::Table {
        return show::print("no slave is known: neither registered nor to any master");
    }
    match args.partitions {
        true => print_partitions(&all, format),
        false => print_candidates(&all, format),
    }
}

/// The slaves of each broker, the one to promote first.
fn print_candidates(all: &[Told], format: Format) -> anyhow::Result<()> {
    let now_unix_ms = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64);
    let candidates: Vec<Candidate> = all.iter().flat_map(|told| candidates_of(told, now_unix_ms)).collect();
    let columns = [
        Column("BROKER", true),
        Column("RANK", true),
        Column("SLAVE", true),
        Column("ADDRESS", false),
        Column("EPOCH", true),
        Column("STATE", false),
        Column("LAG BYTES", true),
        Column("LAG SECONDS", true),
        Column("HEARD", true),
        Column("LEVEL", true),
        Column("QUORUM", false),
        Column("LAST ERROR", false),
    ];
    let seconds = |seconds: Option<f64>| or_dash(seconds.map(|seconds| format!("{seconds:.1}")));
    show::rows(format, &columns, &candidates, |candidate| {
        vec![
            candidate.broker.to_string(),
            or_dash(candidate.rank),
            candidate.slave.to_string(),
            or_dash(candidate.address.clone()),
            or_dash(candidate.epoch),
            candidate.state.to_owned(),
            or_dash(candidate.lag_bytes),
            seconds(candidate.lag_seconds),
            or_dash(candidate.silent_seconds.map(|seconds| format!("{seconds:.1} s ago"))),
            format!("{}/{}", candidate.partitions - candidate.behind, candidate.partitions),
            or_dash(candidate.quorum.as_ref().map(part_text)),
            candidate.last_error.clone().unwrap_or_default(),
        ]
    })?;
    if format == Format::Table {
        print_quorums(all)?;
        for told in all {
            if let Err(reason) = &told.replicas {
                show::say(&format!("broker {}: {reason}; this is what its slaves say", told.broker));
            }
        }
    }
    Ok(())
}

fn part_text(part: &Part) -> String {
    let Part { state, level, holds_acknowledged } = part;
    format!("{state}, {level}, {}", if *holds_acknowledged { "holds all" } else { "may lack" })
}

/// How the quorum does, for each broker that has one.
fn print_quorums(all: &[Told]) -> anyhow::Result<()> {
    for Told { broker, quorum, .. } in all.iter().filter(|told| !told.quorum.logs.is_empty()) {
        let short = quorum.logs.iter().filter(|log| log.members < log.rules.quorum).count();
        let (all, ReadReport { refused, unconfirmed, downgraded, .. }) = (quorum.logs.len(), quorum);
        show::print(&format!(
            "broker {broker}: ackQuorum has its members in {} of {all} partitions; puts refused {refused}, unconfirmed \
             {unconfirmed}, downgraded {downgraded} since the master started",
            all - short
        ))?;
    }
    Ok(())
}

fn candidates_of(told: &Told, now_unix_ms: u64) -> Vec<Candidate> {
    let lines = told.replicas.as_deref().unwrap_or_default();
    let sight = |slave: &SlaveId| {
        let lines: Vec<&ReplicaLine> = lines.iter().filter(|line| line.slave == *slave).collect();
        let address = told.addresses.get(slave).or_else(|| lines.first().map(|line| &line.address));
        let says = told.slaves.get(slave).map(|says| says.as_ref().map_err(String::as_str));
        Sight { slave: slave.get(), address: address.map(String::as_str), says, lines }
    };
    let slaves: Vec<Sight<'_>> = slave_ids(told).iter().map(sight).collect();
    let mut ranked = ranking::rank(told.broker.get(), &slaves, &told.master_ends, now_unix_ms);
    for candidate in &mut ranked {
        candidate.quorum = ranking::part(&told.quorum, candidate.slave);
    }
    ranked
}

fn print_partitions(all: &[Told], format: Format) -> anyhow::Result<()> {
    let rows: Vec<Row> = all.iter().flat_map(rows_of).collect();
    let columns = [
        Column("BROKER", true),
        Column("SLAVE", true),
        Column("TOPIC", false),
        Column("PARTITION", true),
        Column("MASTER END", true),
        Column("CONFIRMED", true),
        Column("SLAVE END", true),
        Column("LAG BYTES", true),
        Column("LAG SECONDS", true),
        Column("STATE", false),
        Column("", false),
    ];
    show::rows(format, &columns, &rows, |row| {
        vec![
            row.broker.to_string(),
            row.slave.to_string(),
            row.topic.clone(),
            row.partition.to_string(),
            or_dash(row.master_end),
            or_dash(row.confirmed),
            or_dash(row.slave_end),
            or_dash(row.lag_bytes),
            or_dash(row.lag_seconds.map(|seconds| format!("{seconds:.1}"))),
            row.state.to_owned(),
            row.detail.clone().unwrap_or_default(),
        ]
    })?;
    Ok(())
}

async fn ask(id: BrokerId, broker: &metaq_registry::ClusterBroker) -> Told {
    let mut told = Told {
        broker: id,
        replicas: Ok(Vec::new()),
        master_ends: BTreeMap::new(),
        slaves: BTreeMap::new(),
        addresses: broker.slaves.clone(),
        quorum: ReadReport::default(),
    };
    match &broker.master {
        None => told.replicas = Err("no master is registered".to_owned()),
        Some(address) => match ask_master(address).await {
            Ok((replicas, ends, quorum)) => {
                (told.replicas, told.master_ends, told.quorum) = (Ok(replicas), ends, quorum);
            }
            Err(error) => told.replicas = Err(format!("the master does not answer: {error:#}")),
        },
    }
    // Where no registry names them, they have told their master where they serve.
    for member in told.quorum.members.iter().filter(|member| member.state != "gone" && !member.uri.is_empty()) {
        told.addresses.entry(member.slave).or_insert_with(|| member.uri.clone());
    }
    for (slave, address) in &told.addresses {
        let says = ask_slave(address).await.map_err(|error| format!("the slave does not answer: {error:#}"));
        told.slaves.insert(*slave, says);
    }
    told
}

type MastersView = (Vec<ReplicaLine>, BTreeMap<PartitionId, Offset>, ReadReport);

async fn ask_master(address: &str) -> anyhow::Result<MastersView> {
    let client = cluster::connect(address).await?;
    let text = client.stats("replicas").await?;
    let replicas = parse_stats(&String::from_utf8_lossy(&text))?;
    // A master without a word of quorums has none.
    let quorum = quorum_report::parse(&String::from_utf8_lossy(&client.stats("quorum").await?));
    Ok((replicas, ends(&client).await?, quorum))
}

pub(crate) async fn ask_slave(address: &str) -> anyhow::Result<Said> {
    let client = cluster::connect(address).await?;
    let ends = ends(&client).await?;
    let text = client.stats("replication").await?;
    let text = String::from_utf8_lossy(&text);
    let (link, damaged) = (progress::parse_stats(&text), damaged(&text));
    let text = client.stats("lineage").await?;
    let text = String::from_utf8_lossy(&text);
    let reigns: Vec<&str> = text.lines().filter(|line| !matches!(*line, "STATS" | "END")).collect();
    let lineage = reigns.join("\n").parse::<Lineage>().ok();
    Ok(Said { ends, link, epoch: lineage.map(|lineage| lineage.epoch().0), damaged })
}

/// What `stats replication` says of damaged messages in a slave's files: bytes by partition.
pub(crate) fn damaged(text: &str) -> Vec<(PartitionId, u64)> {
    let read = |line: &str| match line.split(' ').collect::<Vec<_>>()[..] {
        ["damaged", topic, number, "bytes", bytes] => {
            Some((format!("{topic}-{number}").parse().ok()?, bytes.parse().ok()?))
        }
        _ => None,
    };
    text.lines().filter_map(read).collect()
}

async fn ends(client: &metaq_client::Client) -> anyhow::Result<BTreeMap<PartitionId, Offset>> {
    Ok(cluster::partitions(client).await?.into_iter().map(|listed| (listed.partition, listed.end)).collect())
}

/// Registered, or known to the master.
fn slave_ids(told: &Told) -> BTreeSet<SlaveId> {
    let lines = told.replicas.as_deref().unwrap_or_default();
    told.slaves.keys().copied().chain(lines.iter().map(|line| line.slave)).collect()
}

/// Every partition that the master or the slave knows of, for every slave that is registered or known to the master.
fn rows_of(told: &Told) -> Vec<Row> {
    let lines = told.replicas.as_deref().unwrap_or_default();
    let mut rows = Vec::new();
    for slave in slave_ids(told) {
        let says = told.slaves.get(&slave);
        let own = says.and_then(|says| says.as_ref().ok());
        let confirmed: BTreeMap<&PartitionId, &ReplicaLine> =
            lines.iter().filter(|line| line.slave == slave).map(|line| (&line.partition, line)).collect();
        let mut partitions: Vec<&PartitionId> = confirmed.keys().copied().chain(told.master_ends.keys()).collect();
        partitions.extend(own.iter().flat_map(|own| own.ends.keys()));
        partitions.sort_unstable();
        partitions.dedup();
        for partition in partitions {
            rows.push(row(told, slave, partition, confirmed.get(partition).copied(), says));
        }
    }
    rows
}

fn row(
    told: &Told,
    slave: SlaveId,
    partition: &PartitionId,
    line: Option<&ReplicaLine>,
    says: Option<&Result<Said, String>>,
) -> Row {
    let own = says.and_then(|says| says.as_ref().ok());
    let slave_end = own.and_then(|own| own.ends.get(partition)).copied();
    let copies = own.and_then(|own| own.link.as_ref()).into_iter().flat_map(|link| &link.partitions);
    let note = copies.filter(|copy| copy.partition == *partition).find_map(|copy| copy.note.as_ref());
    let master_end = line.map(|line| line.end).or_else(|| told.master_ends.get(partition).copied());
    let reached = line.map(|line| line.confirmed).or(slave_end);
    let lag_bytes = line.map(|line| line.lag_bytes).or_else(|| {
        let known = master_end?;
        Some(known.bytes_since(reached.unwrap_or(Offset::ZERO)))
    });
    let (state, detail) = match (&told.replicas, line, says) {
        _ if note.is_some() => ("not copying", note.cloned()),
        (Err(reason), _, _) => ("no master", Some(reason.clone())),
        (Ok(_), None, _) => ("not copied", Some("the slave has not asked its master for it".to_owned())),
        (Ok(_), Some(line), _) if !line.connected => ("disconnected", None),
        (Ok(_), Some(_), Some(Err(reason))) => ("unreachable", Some(reason.clone())),
        (Ok(_), Some(line), _) if line.lag_bytes > 0 => ("behind", None),
        (Ok(_), Some(_), _) => ("level", None),
    };
    Row {
        broker: told.broker.get(),
        slave: slave.get(),
        topic: partition.topic.as_str().to_owned(),
        partition: partition.number,
        master_end: master_end.map(Offset::get),
        confirmed: line.map(|line| line.confirmed.get()),
        slave_end: slave_end.map(Offset::get),
        lag_bytes,
        lag_seconds: line.map(|line| line.behind_ms as f64 / 1000.0),
        state,
        detail,
    }
}
