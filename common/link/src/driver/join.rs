//! Before the first byte is copied: is the master's past ours, and up to where?
//!
//! A master of ours tells its reigns (`stats lineage`). The original knows none: then the bytes at the end of each log
//! are compared instead ([`compare_ends`]). What this node wrote itself while it reigned, and the new master does not
//! have, is set aside and cut, and so is what a master gave away under a quorum and lost before it could acknowledge it;
//! what else it was given by somebody is left as it is, and that partition is not followed: a master that has less than
//! it gave away is a case for a person.

use super::LinkOptions;
use super::board::Board;
use super::compare::{common_end, is_prefix, same_until};
use crate::lineage::{Ends, Parting, Past, Verdict, judge};
use crate::listing::Listed;
use crate::pull::Stop;
use metaq_client::Client;
use metaq_store::{CreateError, Partition, Store};
use metaq_types::{Lineage, Offset, PartitionId};
use metaq_wire::Greeting;
use std::collections::HashMap;
use std::sync::Arc;
use tracing::{info, warn};

/// The partitions that must not be followed, with the reason.
pub(super) type Held = HashMap<PartitionId, Stop>;

/// Makes the own logs a prefix of the master's, or says which are not. An error keeps the slave from this master.
pub(super) async fn join(
    options: &LinkOptions,
    board: &Board,
    client: &Client,
    greeting: &Greeting,
    listed: &[Listed],
) -> Result<Held, String> {
    let own = own_lineage(options).await?;
    let newest = own.newest().map(|reign| (reign.epoch.0, reign.node.as_str()));
    if newest == Some((greeting.epoch, &greeting.node)) {
        return Ok(Held::new());
    }
    let theirs = their_lineage(client).await?;
    let logs: Vec<Ends> = options.store.logs().iter().map(|log| ends(log, board, listed)).collect();
    let held = match judge(&own, &theirs, options.store.node_id(), options.accept_divergence, &logs) {
        Past::Foreign => return Err(foreign(&own, &theirs)),
        Past::Unknown => compare_ends(options, client, listed).await?,
        Past::Shared(verdicts) => {
            let mut held = Held::new();
            for (id, verdict) in verdicts {
                if let Some(stop) = settle(options, client, listed, &id, verdict).await? {
                    held.insert(id, stop);
                }
            }
            held
        }
    };
    // With a partition in doubt the past stays what it was, or the next join would not see the doubt. So it does with one
    // that cannot be compared, as its files cannot be read at the moment.
    let unserved = listed.iter().map(|listed| &listed.partition).find(|id| is_unserved(options, id));
    match unserved {
        Some(partition) => warn!(
            %partition,
            "it cannot be read here, and so not be compared with the master's: until it can, or its directory is removed, \
             this slave keeps its old past and counts for no quorum"
        ),
        None if held.is_empty() => adopt(options, theirs).await?,
        None => {}
    }
    Ok(held)
}

/// Cuts a log that is not its master's, or says why it is not followed. What both hold from the verdict's end on stays:
/// while another partition was in doubt this one may have been followed into a reign that is not remembered here.
async fn settle(
    options: &LinkOptions,
    client: &Client,
    listed: &[Listed],
    id: &PartitionId,
    verdict: Verdict,
) -> Result<Option<Stop>, String> {
    let Some(log) = options.store.logs().into_iter().find(|log| log.id() == id) else { return Ok(None) };
    let (Verdict::Cut { to: common } | Verdict::Hold { common }) = verdict;
    let (kept, own_end) = (log.positions().kept, log.positions().written);
    let master_first = listed.iter().find(|l| l.partition == *id).map_or(Offset::ZERO, |l| l.first);
    let parting = Parting { common, kept, own_end, master_first };
    let alike = same_until(options, client, &log, parting.compared_from()).await?;
    let Some(common) = parting.cut_to(alike) else { return Ok(None) };
    match verdict {
        Verdict::Cut { .. } => cut(options, id.clone(), common).await.map(|()| None),
        Verdict::Hold { .. } => Ok(Some(Stop::Diverged { own_end, master_end: common })),
    }
}

fn ends(log: &Partition, board: &Board, listed: &[Listed]) -> Ends {
    let partition = log.id().clone();
    let theirs = listed.iter().find(|l| l.partition == partition).map(|l| l.end);
    let acknowledged = board.acknowledged(&partition);
    Ends { partition, own: log.positions().written, theirs, acknowledged }
}

fn foreign(own: &Lineage, theirs: &Lineage) -> String {
    let name = |lineage: &Lineage| {
        lineage.newest().map_or_else(String::new, |reign| format!("epoch {} of node {}", reign.epoch, reign.node))
    };
    format!(
        "foreign: this data directory lived under other masters (newest: {}) than this one ({}); nothing was changed. Check \
         brokerId and zk.zkRoot of both; to copy this master, give the slave an empty dataPath",
        name(own),
        name(theirs)
    )
}

async fn own_lineage(options: &LinkOptions) -> Result<Lineage, String> {
    on_disk(options, |store| store.lineage().map_err(|error| error.to_string())).await
}

async fn their_lineage(client: &Client) -> Result<Lineage, String> {
    let text = client.stats("lineage").await.map_err(|error| error.to_string())?;
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<&str> = text.lines().filter(|line| !matches!(*line, "STATS" | "END")).collect();
    lines.join("\n").parse().map_err(|error| format!("the master's lineage: {error}"))
}

async fn adopt(options: &LinkOptions, theirs: Lineage) -> Result<(), String> {
    let epoch = theirs.epoch();
    on_disk(options, move |store| store.adopt_lineage(&theirs).map_err(|error| error.to_string())).await?;
    info!(%epoch, "this slave's past is in accord with its master's");
    Ok(())
}

async fn cut(options: &LinkOptions, id: PartitionId, to: Offset) -> Result<(), String> {
    let done = on_disk(options, {
        let id = id.clone();
        move |store| store.cut(&id, to).map_err(|error: CreateError| error.to_string())
    });
    if let Some(cut) = done.await? {
        let copies: Vec<String> = cut.copies.iter().map(|path| path.display().to_string()).collect();
        warn!(
            partition = %id, from = %cut.from, bytes = cut.bytes, copies = copies.join(", "),
            "what the master does not have was set aside and cut"
        );
    }
    Ok(())
}

async fn on_disk<T: Send + 'static>(
    options: &LinkOptions,
    work: impl FnOnce(&Store) -> Result<T, String> + Send + 'static,
) -> Result<T, String> {
    let store = Arc::clone(&options.store);
    match tokio::task::spawn_blocking(move || work(&store)).await {
        Ok(done) => done,
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}

/// Holds the last bytes of each listed log against the master's. What differs must not be followed, unless the operator
/// has said that the master is right: then it is cut to what both have.
pub(super) async fn compare_ends(options: &LinkOptions, client: &Client, listed: &[Listed]) -> Result<Held, String> {
    let mut held = Held::new();
    for listed in listed {
        let id = &listed.partition;
        let Some(log) = own_log(options, id) else { continue };
        if is_prefix(options, client, &log, listed).await? {
            continue;
        }
        let own_end = log.positions().written;
        if !options.accept_divergence {
            held.insert(id.clone(), Stop::Diverged { own_end, master_end: own_end.min(listed.end) });
            continue;
        }
        let common = common_end(options, client, &log, listed).await?;
        let parting = Parting { common, kept: log.positions().kept, own_end, master_first: listed.first };
        cut(options, id.clone(), parting.begin_if_empty(common)).await?;
    }
    Ok(held)
}

fn is_unserved(options: &LinkOptions, id: &PartitionId) -> bool {
    i32::try_from(id.number).is_ok_and(|number| options.store.unserved(&id.topic, number).is_some())
}

fn own_log(options: &LinkOptions, id: &PartitionId) -> Option<Arc<Partition>> {
    let number = i32::try_from(id.number).ok()?;
    if id.is_journal() { options.store.journal() } else { options.store.get(&id.topic, number) }
}
