//! `metaq group`: which partitions a consumer group reads, who owns them, and how far it is behind.

mod judge;

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::{Args, Subcommand};
use metaq_registry::{ClusterBroker, Group, lookup_groups};
use serde::Serialize;

use crate::cluster::{self, Source};
use crate::show::{self, Column, Format, or_dash};
use judge::{Brokers, Row, Spans};

/// Between the two looks of `--growing`.
const APART: Duration = Duration::from_secs(1);

#[derive(Subcommand)]
pub(crate) enum GroupCommand {
    /// All consumer groups: members, partitions, those that nobody owns, bytes to read
    List,
    /// The partitions of one group: owner, stored offset, what there is to read, lag
    #[command(
        after_help = "LAG BYTES is what can be read from the stored offset on. STATE: 'owned'; 'no owner', which for \
                            more than a moment means that nobody reads the partition, or with --growing 'no owner, lag \
                            growing'; 'topic gone' where the partition's broker does not announce the topic, 'no broker' \
                            where nobody answers for it; 'slave' for the group of a slave, which reads without owning. 'watch metaq group describe GROUP --growing' goes \
                            on looking."
    )]
    Describe(DescribeArgs),
}

#[derive(Args)]
pub(crate) struct DescribeArgs {
    /// As 'metaq group list' shows it
    group: String,

    /// Only this topic
    #[arg(long, value_name = "NAME")]
    topic: Option<String>,

    /// Look twice, one second apart, and say whose lag is growing
    #[arg(long)]
    growing: bool,
}

/// One group among all.
#[derive(Serialize)]
struct Summary {
    group: String,
    members: usize,
    topics: usize,
    partitions: usize,
    no_owner: usize,
    /// Of the partitions of which it is known; `null` where of none.
    lag_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    note: Option<String>,
}

pub(crate) async fn run(source: &Source, command: GroupCommand, format: Format) -> anyhow::Result<()> {
    match command {
        GroupCommand::List => list(source, format).await,
        GroupCommand::Describe(args) => describe(source, &args, format).await,
    }
}

async fn list(source: &Source, format: Format) -> anyhow::Result<()> {
    let (groups, brokers) = look(source, None).await?;
    let summaries: Vec<Summary> = groups.iter().map(|(name, group)| summary(name, group, &brokers)).collect();
    if summaries.is_empty() && format == Format::Table {
        return show::print("no consumer group is known");
    }
    let columns = [
        Column("GROUP", false),
        Column("MEMBERS", true),
        Column("TOPICS", true),
        Column("PARTITIONS", true),
        Column("NO OWNER", true),
        Column("LAG BYTES", true),
        Column("", false),
    ];
    show::rows(format, &columns, &summaries, |summary| {
        vec![
            summary.group.clone(),
            summary.members.to_string(),
            summary.topics.to_string(),
            summary.partitions.to_string(),
            summary.no_owner.to_string(),
            or_dash(summary.lag_bytes),
            summary.note.clone().unwrap_or_default(),
        ]
    })
}

fn summary(name: &str, group: &Group, brokers: &Brokers) -> Summary {
    let rows = judge::rows(name, group, brokers);
    let mut topics: Vec<&str> = rows.iter().map(|row| row.topic.as_str()).collect();
    topics.dedup();
    Summary {
        group: name.to_owned(),
        members: group.members.len(),
        topics: topics.len(),
        partitions: rows.len(),
        no_owner: rows.iter().filter(|row| row.state == judge::NO_OWNER).count(),
        lag_bytes: rows.iter().filter_map(|row| row.lag_bytes).reduce(u64::saturating_add),
        note: judge::note(name, group),
    }
}

async fn describe(source: &Source, args: &DescribeArgs, format: Format) -> anyhow::Result<()> {
    let (mut rows, mut note) = rows_of(source, args).await?;
    if args.growing {
        tokio::time::sleep(APART).await;
        let before = rows;
        (rows, note) = rows_of(source, args).await?;
        judge::mark_growing(&before, &mut rows);
    }
    if let Some(topic) = &args.topic
        && rows.is_empty()
    {
        bail!("the group '{}' neither reads the topic '{topic}' nor has stored an offset of it", args.group);
    }
    let columns = [
        Column("TOPIC", false),
        Column("BROKER", true),
        Column("PARTITION", true),
        Column("OWNER", false),
        Column("STORED", true),
        Column("FIRST", true),
        Column("END", true),
        Column("LAG BYTES", true),
        Column("STATE", false),
        Column("", false),
    ];
    show::rows(format, &columns, &rows, |row| {
        vec![
            row.topic.clone(),
            or_dash(row.broker),
            or_dash(row.partition),
            or_dash(row.owner.as_ref()),
            or_dash(row.stored),
            or_dash(row.first),
            or_dash(row.end),
            or_dash(row.lag_bytes),
            row.state.to_owned(),
            row.note.clone().unwrap_or_default(),
        ]
    })?;
    if let Some(note) = note.filter(|_| format == Format::Table) {
        show::say(&format!("metaq: group {}: {note}", show::escape(args.group.as_bytes())));
    }
    Ok(())
}

/// The rows that were asked for, and what is to be said of the group.
async fn rows_of(source: &Source, args: &DescribeArgs) -> anyhow::Result<(Vec<Row>, Option<String>)> {
    let (groups, brokers) = look(source, Some(&args.group)).await?;
    let group = groups
        .get(&args.group)
        .with_context(|| format!("no group '{}' is known; 'metaq group list' shows which are", args.group))?;
    let mut rows = judge::rows(&args.group, group, &brokers);
    rows.retain(|row| args.topic.as_ref().is_none_or(|topic| *topic == row.topic));
    Ok((rows, judge::note(&args.group, group)))
}

/// What consumers have written, and what the brokers say of their partitions. The brokers are asked last, so that no
/// offset that was stored meanwhile seems to lie beyond an end.
async fn look(source: &Source, only: Option<&str>) -> anyhow::Result<(BTreeMap<String, Group>, Brokers)> {
    let groups = lookup_groups(source.registry()?, only).await?;
    let cluster = source.look().await?;
    let mut spans = BTreeMap::new();
    for (id, broker) in &cluster.brokers {
        spans.insert(*id, ask(broker).await.map_err(|error| format!("{error:#}")));
    }
    Ok((groups, Brokers { cluster, spans }))
}

/// What the master holds, or a slave when it does not answer.
async fn ask(broker: &ClusterBroker) -> anyhow::Result<Spans> {
    let mut last = None;
    for address in broker.master.iter().chain(broker.slaves.values()) {
        match partitions(address).await {
            Ok(spans) => return Ok(spans),
            Err(error) => last = Some(error),
        }
    }
    Err(last.context("no node of this broker is registered")?)
}

async fn partitions(address: &str) -> anyhow::Result<Spans> {
    let listed = cluster::partitions(&cluster::connect(address).await?).await?;
    let span = |listed: metaq_link::listing::Listed| {
        ((listed.partition.topic.as_str().to_owned(), listed.partition.number), (listed.first, listed.end))
    };
    Ok(listed.into_iter().map(span).collect())
}
