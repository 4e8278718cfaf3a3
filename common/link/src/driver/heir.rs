//! Before a slave of a quorum is promoted: what do the other slaves hold, and the bytes it lacks, from them.
//!
//! Acknowledged messages of different partitions may lie on different slaves. The logs of one reign are prefixes of each
//! other, so whoever copies from each what it has more holds what all of them hold.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use metaq_client::{Client, ClientError, GetAnswer};
use metaq_store::{Partition, PartitionRules, Store};
use metaq_types::{Epoch, Offset, PartitionId};
use metaq_wire::{Greeting, Role};

use super::transport::LinkTransport;
use super::{append, introduction};
use crate::listing::{self, Listed};
use crate::members::{self, KnownMember};
use crate::pull::{Answer, Log, Pull, Step};

const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// What the peer has not synced yet, it syncs for us.
const SYNC_WAIT: Duration = Duration::from_secs(3);

const FETCH_BYTES: i32 = 1024 * 1024;

/// The group that reads of an heir appear as.
const GROUP: &str = "meta-heir";

/// Another slave, with what it holds.
pub struct Peer {
    client: Client,
    pub epoch: Epoch,
    /// Its data directory.
    pub node: String,
    /// The number of the list of members that it has on disk, and the list.
    pub roll: u64,
    pub members: Vec<KnownMember>,
    listed: Vec<Listed>,
}

impl Peer {
    /// Asks the slave at `uri`; an error says why it did not answer.
    pub async fn ask(transport: &LinkTransport, uri: &str, store: &Store) -> Result<Peer, String> {
        let client = transport.reach(uri).await?.client.with_timeout(ANSWER_TIMEOUT);
        // Whoever lives in the same reign reads as far as the log goes, confirmed or not.
        let greeting = introduction(store, Role::Master);
        let welcome = client.version(Some(&greeting)).await.map_err(text)?;
        let welcome = Greeting::parse(&welcome).ok_or("it knows no greetings")?;
        if welcome.role != Role::Slave {
            return Err(format!("it is a master, in epoch {}", welcome.epoch));
        }
        let roll = client.stats("roll").await.map_err(text)?;
        let roll = members::parse_roll(&String::from_utf8_lossy(&roll));
        let (roll, _, members) = roll.ok_or("it does not tell whom it knows")?;
        let listed = client.stats("offsets").await.map_err(text)?;
        let listed = listing::parse(&String::from_utf8_lossy(&listed));
        let node = welcome.node.to_string();
        Ok(Peer { client, node, epoch: Epoch(welcome.epoch), roll, members, listed })
    }

    pub fn ends(&self) -> BTreeMap<PartitionId, Offset> {
        self.listed.iter().map(|listed| (listed.partition.clone(), listed.end)).collect()
    }

    /// Copies what this peer has more; answers how many bytes. What was copied when it fails is good. `made` is told of
    /// each partition that was not here before, while nothing is in it.
    pub async fn copy_more(
        &self,
        store: &Arc<Store>,
        rules: impl Fn(&PartitionId) -> PartitionRules,
        made: impl Fn(&Arc<Partition>),
    ) -> Result<u64, String> {
        let mut bytes = 0;
        for listed in &self.listed {
            let Some(log) = log_for(store, listed, &rules, &made).await? else { continue };
            bytes += self.copy(&log, listed).await.map_err(|reason| format!("{}: {reason}", listed.partition))?;
        }
        Ok(bytes)
    }

    async fn copy(&self, log: &Arc<Partition>, listed: &Listed) -> Result<u64, String> {
        let positions = log.positions();
        let mut pull = Pull::new(Log::Present { first: positions.kept, end: positions.written });
        let (topic, number) = (&listed.partition.topic, listed.partition.number as i32);
        let mut asked = None;
        while pull.position() < listed.end {
            let get = pull.next_get().ok_or_else(|| pull.note().unwrap_or_default())?;
            let bytes = FETCH_BYTES.max(i32::try_from(get.bytes_min).unwrap_or(i32::MAX));
            // The same question would get the same answer for ever.
            if asked.replace((get.offset, bytes)) == Some((get.offset, bytes)) {
                return Err(format!("it does not deliver what follows {}", get.offset));
            }
            let answer = match self.client.get(topic, GROUP, number, get.offset.wire(), bytes, Some(SYNC_WAIT)).await {
                Ok(GetAnswer::Value { body, extra }) => Answer::Value { body, extra },
                Ok(other) => return Err(format!("it answered {other:?} at {}", get.offset)),
                Err(error) => return Err(text(error)),
            };
            match pull.on_answer(answer, Duration::ZERO) {
                Step::Get => {}
                Step::Append { at, segment, bytes } => {
                    let (end, segment) = (at + bytes.len() as u64, segment.ok_or("it names no segment")?);
                    let (ack, outcome) = append::ack();
                    log.append_verbatim(at, segment, bytes, ack);
                    outcome.await.map_err(|error| error.to_string())?.map_err(|error| error.to_string())?;
                    pull.on_appended(end);
                }
                _ => return Err(pull.note().unwrap_or_else(|| "its bytes failed their checks".to_owned())),
            }
        }
        Ok(pull.position().bytes_since(positions.written))
    }
}

/// The own log where the peer has more, made if there is none.
async fn log_for(
    store: &Arc<Store>,
    listed: &Listed,
    rules: impl Fn(&PartitionId) -> PartitionRules,
    made: impl Fn(&Arc<Partition>),
) -> Result<Option<Arc<Partition>>, String> {
    let id = &listed.partition;
    let own = if id.is_journal() { store.journal() } else { store.get(&id.topic, id.number as i32) };
    if let Some(own) = own {
        return Ok(Some(own).filter(|own| own.positions().written < listed.end));
    }
    let (store, id, rules, first) = (Arc::clone(store), id.clone(), rules(id), listed.first);
    let opened = tokio::task::spawn_blocking(move || store.get_or_create(&id, &rules, first));
    match opened.await {
        Ok(Ok(log)) => {
            made(&log);
            Ok(Some(log))
        }
        Ok(Err(error)) => Err(error.to_string()),
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}

fn text(error: ClientError) -> String {
    error.to_string()
}
