//! Before the first byte is copied: is the master's past ours, and up to where?
//!
//! A master of ours tells its reigns (`stats lineage`). The original knows none: then the bytes at the end of each log
//! are compared instead. What this node wrote itself while it reigned, and the new master does not have, is set aside and
//! cut; what it was given by somebody else is left as it is, and that partition is not followed: a master that has less
//! than it gave away is a case for a person.

use super::LinkOptions;
use crate::listing::Listed;
use crate::pull::Stop;
use metaq_client::{Client, GetAnswer};
use metaq_store::{CreateError, Partition, Reader, SliceAt, Store};
use metaq_types::{Kinship, Lineage, Offset, PartitionId};
use metaq_wire::Greeting;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tracing::{info, warn};

/// Bytes at the end of a log that are compared with a master that remembers no reigns.
const COMPARED_BYTES: u32 = 64 * 1024;

const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// The partitions that must not be followed, with the reason.
pub(super) type Held = HashMap<PartitionId, Stop>;

/// Makes the own logs a prefix of the master's, or says which are not. An error keeps the slave from this master.
pub(super) async fn join(
    options: &LinkOptions,
    client: &Client,
    greeting: Option<&Greeting>,
    listed: &[Listed],
) -> Result<Held, String> {
    let own = own_lineage(options).await?;
    let Some(greeting) = greeting.filter(|greeting| greeting.epoch > 0) else {
        return compare_ends(options, client, listed).await;
    };
    let newest = own.newest().map(|reign| (reign.epoch.0, reign.node.as_str()));
    if newest == Some((greeting.epoch, &greeting.node)) {
        return Ok(Held::new());
    }
    let theirs = their_lineage(client).await?;
    let held = match Kinship::of(&own, &theirs) {
        Kinship::Foreign => return Err(foreign(&own, &theirs)),
        Kinship::Unknown => compare_ends(options, client, listed).await?,
        Kinship::Shared(shared) => {
            let mut held = Held::new();
            for partition in options.store.logs() {
                let (id, own_end) = (partition.id().clone(), partition.positions().written);
                let their_end = listed.iter().find(|l| l.partition == id).map_or(Offset::ZERO, |l| l.end);
                let common = shared.common_end(&id, own_end, their_end);
                if common >= own_end {
                    continue;
                }
                if shared.writer_of(&id, common) == options.store.node_id() || options.accept_divergence {
                    cut(options, id, common).await?;
                } else {
                    held.insert(id, Stop::Diverged { own_end, master_end: common });
                }
            }
            held
        }
    };
    // With a partition in doubt the past stays what it was, or the next join would not see the doubt.
    if held.is_empty() {
        adopt(options, theirs).await?;
    }
    Ok(held)
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

/// Holds the last bytes of each own log against the master's.
async fn compare_ends(options: &LinkOptions, client: &Client, listed: &[Listed]) -> Result<Held, String> {
    let mut held = Held::new();
    for partition in options.store.partitions() {
        let (id, own_end) = (partition.id().clone(), partition.positions().written);
        let theirs = listed.iter().find(|l| l.partition == id);
        // A log that is beyond the master's end, or that it does not have, is seen by the listing.
        let Some(theirs) = theirs.filter(|l| l.first < own_end && own_end <= l.end) else { continue };
        if !same_end(&partition, client, own_end, theirs.first, &options.group).await? {
            held.insert(id, Stop::Diverged { own_end, master_end: own_end });
        }
    }
    Ok(held)
}

/// Whether both logs hold the same last bytes before `own_end`. Read within one segment, from wherever that begins: no
/// record boundary is needed to compare.
async fn same_end(
    partition: &Arc<Partition>,
    client: &Client,
    own_end: Offset,
    first: Offset,
    group: &str,
) -> Result<bool, String> {
    let Some(last) = own_end.get().checked_sub(1) else { return Ok(true) };
    let segment = partition.nearest(i64::try_from(last).unwrap_or(i64::MAX));
    let from = segment.max(first).get().max(own_end.get().saturating_sub(COMPARED_BYTES.into()));
    let bytes = (own_end.get() - from) as u32;
    let Some(own) = read_own(partition, from as i64, bytes) else { return Ok(true) };
    let (topic, number) = (&partition.id().topic, partition.id().number as i32);
    let answer = client.get(topic, group, number, from as i64, bytes as i32, None);
    let answer = tokio::time::timeout(ANSWER_TIMEOUT, answer).await.map_err(|_| "no answer in time".to_owned())?;
    match answer.map_err(|error| error.to_string())? {
        GetAnswer::Value { body, .. } => {
            let both = own.len().min(body.len());
            Ok(own[..both] == body[..both])
        }
        GetAnswer::NotYet | GetAnswer::NoPartition | GetAnswer::Moved(_) => Ok(false),
    }
}

fn read_own(partition: &Partition, from: i64, bytes: u32) -> Option<Vec<u8>> {
    let SliceAt::Bytes(slice) = partition.slice(from, bytes, Reader::Replica) else { return None };
    let mut own = vec![0; slice.len().min(bytes) as usize];
    let read = slice.read_at(0, &mut own).ok()?;
    own.truncate(read);
    Some(own)
}
