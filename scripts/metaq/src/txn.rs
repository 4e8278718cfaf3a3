//! `metaq txn`: look at transactions, and decide about a prepared branch whose coordinator will not come back.

use anyhow::{Context as _, bail, ensure};
use clap::{Args, Subcommand};
use metaq_types::{BrokerId, Opaque};
use metaq_wire::{Text, Transaction, TransactionKey, TransactionKind};
use serde::Serialize;

use crate::cluster::{self, Source};
use crate::show::{self, Column, Format};

#[derive(Subcommand)]
pub(crate) enum TxnCommand {
    /// Every transaction that is not over
    List,
    /// Commit a prepared branch in its coordinator's place; the coordinator is told when it asks (code 7)
    Commit(Decision),
    /// Roll back a prepared branch in its coordinator's place; the coordinator is told when it asks (code 6)
    Rollback(Decision),
    /// Forget a branch that was committed or rolled back here: its coordinator will never ask again
    Forget(Decision),
}

/// Deciding is done on the broker's machine, with --broker 127.0.0.1:PORT.
#[derive(Args)]
pub(crate) struct Decision {
    /// The branch, as 'metaq txn list' shows it
    key: String,

    /// Do it; without this what would be done is shown
    #[arg(long)]
    yes: bool,
}

/// One transaction of one broker.
#[derive(Debug, PartialEq, Serialize)]
struct Row {
    broker: u16,
    key: String,
    state: String,
    age_seconds: u64,
    messages: u64,
    bytes: u64,
}

pub(crate) async fn run(source: &Source, command: TxnCommand, format: Format) -> anyhow::Result<()> {
    match command {
        TxnCommand::List => list(source, format).await,
        TxnCommand::Commit(decision) => decide(source, &decision, TransactionKind::HeuristicCommit).await,
        TxnCommand::Rollback(decision) => decide(source, &decision, TransactionKind::HeuristicRollback).await,
        TxnCommand::Forget(decision) => decide(source, &decision, TransactionKind::Forget).await,
    }
}

async fn list(source: &Source, format: Format) -> anyhow::Result<()> {
    let Found { rows, unknown } = look(source).await?;
    let rows: Vec<Row> = rows.into_iter().map(|(row, _)| row).collect();
    if unknown.is_empty() && rows.is_empty() && format == Format::Table {
        return show::print("no transaction is open or prepared");
    }
    let columns = [
        Column("BROKER", true),
        Column("KEY", false),
        Column("STATE", false),
        Column("AGE SECONDS", true),
        Column("MESSAGES", true),
        Column("BYTES", true),
    ];
    show::rows(format, &columns, &rows, |row| {
        vec![
            row.broker.to_string(),
            row.key.clone(),
            row.state.clone(),
            row.age_seconds.to_string(),
            row.messages.to_string(),
            row.bytes.to_string(),
        ]
    })?;
    ensure!(
        unknown.is_empty(),
        "{} has no master now: what is open or prepared there is not known until one reigns",
        unknown.join(", ")
    );
    Ok(())
}

struct Found {
    /// The transactions of all masters, each with its master's address.
    rows: Vec<(Row, String)>,
    /// Brokers without a master, which alone knows.
    unknown: Vec<String>,
}

async fn look(source: &Source) -> anyhow::Result<Found> {
    let (mut rows, mut unknown) = (Vec::new(), Vec::new());
    for (id, broker) in &source.look_at_brokers().await?.brokers {
        let Some(master) = &broker.master else {
            if let Source::Broker(address) = source {
                bail!(
                    "{address} is a slave, and only a master tells of transactions: name that, or leave --broker out"
                );
            }
            unknown.push(format!("broker {id}"));
            continue;
        };
        let client = cluster::connect(master).await?;
        let text = client.stats("transactions").await.with_context(|| format!("asking {master}"))?;
        let text = String::from_utf8_lossy(&text);
        rows.extend(text.lines().filter_map(|line| parse(*id, line)).map(|row| (row, master.clone())));
    }
    Ok(Found { rows, unknown })
}

/// `state S age_seconds N messages N bytes N key K`
fn parse(broker: BrokerId, line: &str) -> Option<Row> {
    let words: Vec<&str> = line.trim_end().split(' ').collect();
    let ["state", state, "age_seconds", age, "messages", messages, "bytes", bytes, "key", key] = words[..] else {
        return None;
    };
    Some(Row {
        broker: broker.get(),
        key: key.to_owned(),
        state: state.to_owned(),
        age_seconds: age.parse().ok()?,
        messages: messages.parse().ok()?,
        bytes: bytes.parse().ok()?,
    })
}

async fn decide(source: &Source, decision: &Decision, kind: TransactionKind) -> anyhow::Result<()> {
    let key = TransactionKey::parse(&Text::from(decision.key.as_str()))?.context("null is no transaction")?;
    let (row, master) = look(source)
        .await?
        .rows
        .into_iter()
        .find(|(row, _)| row.key == key.to_string())
        .with_context(|| format!("no broker knows {key}; 'metaq txn list' shows those that are known"))?;
    let what = match kind {
        TransactionKind::HeuristicCommit => "commit",
        TransactionKind::HeuristicRollback => "roll back",
        _ => "forget",
    };
    // The broker takes it and does nothing: what has to be forgotten was decided without its coordinator.
    if kind == TransactionKind::Forget && !matches!(row.state.as_str(), "committed" | "rolled-back") {
        bail!("{key} is {}: there is nothing to forget before 'metaq txn commit' or 'rollback' has decided", row.state);
    }
    if !decision.yes {
        return show::print(&format!(
            "would {what} {key} on broker {}: {}, {} messages, {} bytes, {} s old; add --yes to do it",
            row.broker, row.state, row.messages, row.bytes, row.age_seconds
        ));
    }
    let client = cluster::connect(&master).await?;
    let session = Text::from("metaq-txn");
    let command = Transaction {
        key: Some(key.clone()),
        session,
        kind,
        timeout_seconds: None,
        qualifier: None,
        opaque: Opaque(0),
    };
    if let Err(error) = client.transaction(&command).await {
        bail!("{key}: {error}");
    }
    let done = format!("done: {what} {key} on broker {}", row.broker);
    show::print(&done).context(done)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_and_others_left_out() {
        let id = BrokerId::new(3).unwrap();
        let row = parse(id, "state prepared age_seconds 17 messages 2 bytes 60 key XID:1:aa:bb:q\r").unwrap();
        assert_eq!((row.broker, row.key.as_str(), row.age_seconds), (3, "XID:1:aa:bb:q", 17));
        assert_eq!(parse(id, "STATS"), None);
        assert_eq!(parse(id, "state prepared age_seconds x messages 2 bytes 60 key k"), None);
    }
}
