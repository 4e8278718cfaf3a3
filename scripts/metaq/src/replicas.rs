//! `metaq replica status`.

use std::collections::BTreeMap;

use metaq_link::progress;
use metaq_link::replicas::{ReplicaLine, parse_stats};
use metaq_types::{BrokerId, Offset, PartitionId, SlaveId};
use serde::Serialize;

use crate::cluster::{self, Source};
use crate::show::{self, Column, Format, or_dash};

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
    slaves: BTreeMap<SlaveId, Result<Slave, String>>,
}

/// What a slave says of itself.
struct Slave {
    ends: BTreeMap<PartitionId, Offset>,
    /// Partitions it does not copy at the moment, and why.
    notes: BTreeMap<PartitionId, String>,
}

pub(crate) async fn status(source: &Source, format: Format) -> anyhow::Result<()> {
    let found = source.look().await?;
    let mut rows = Vec::new();
    for (id, broker) in &found.brokers {
        let told = ask(*id, broker).await;
        rows.extend(rows_of(&told));
    }
    if rows.is_empty() && format == Format::Table {
        println!("no slave is known: neither registered nor to any master");
        return Ok(());
    }
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
    let mut told = Told { broker: id, replicas: Ok(Vec::new()), master_ends: BTreeMap::new(), slaves: BTreeMap::new() };
    match &broker.master {
        None => told.replicas = Err("no master is registered".to_owned()),
        Some(address) => match ask_master(address).await {
            Ok((replicas, ends)) => (told.replicas, told.master_ends) = (Ok(replicas), ends),
            Err(error) => told.replicas = Err(format!("the master does not answer: {error:#}")),
        },
    }
    for (slave, address) in &broker.slaves {
        let says = ask_slave(address).await.map_err(|error| format!("the slave does not answer: {error:#}"));
        told.slaves.insert(*slave, says);
    }
    told
}

async fn ask_master(address: &str) -> anyhow::Result<(Vec<ReplicaLine>, BTreeMap<PartitionId, Offset>)> {
    let client = cluster::connect(address).await?;
    let text = client.stats("replicas").await?;
    let replicas = parse_stats(&String::from_utf8_lossy(&text))?;
    Ok((replicas, ends(&client).await?))
}

async fn ask_slave(address: &str) -> anyhow::Result<Slave> {
    let client = cluster::connect(address).await?;
    let ends = ends(&client).await?;
    let text = client.stats("replication").await?;
    let copies = progress::parse_stats(&String::from_utf8_lossy(&text)).map(|status| status.partitions);
    let notes = copies.unwrap_or_default().into_iter().filter_map(|copy| Some((copy.partition, copy.note?)));
    Ok(Slave { ends, notes: notes.collect() })
}

async fn ends(client: &metaq_client::Client) -> anyhow::Result<BTreeMap<PartitionId, Offset>> {
    Ok(cluster::partitions(client).await?.into_iter().map(|listed| (listed.partition, listed.end)).collect())
}

/// Every partition that the master or the slave knows of, for every slave that is registered or known to the master.
fn rows_of(told: &Told) -> Vec<Row> {
    let lines = told.replicas.as_deref().unwrap_or_default();
    let mut slaves: Vec<SlaveId> = told.slaves.keys().copied().chain(lines.iter().map(|line| line.slave)).collect();
    slaves.sort_unstable();
    slaves.dedup();
    let mut rows = Vec::new();
    for slave in slaves {
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
    says: Option<&Result<Slave, String>>,
) -> Row {
    let own = says.and_then(|says| says.as_ref().ok());
    let slave_end = own.and_then(|own| own.ends.get(partition)).copied();
    let note = own.and_then(|own| own.notes.get(partition));
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
