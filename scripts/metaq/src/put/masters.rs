use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context as _, bail};
use metaq_client::Client;
use metaq_registry::Cluster;
use metaq_types::BrokerId;
use tokio::sync::Mutex;
use tokio::time::Instant;

use crate::cluster::{self, Source};

/// An answer must come within this, or it counts as lost.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// A search that failed is not repeated before this; meanwhile its failure is the answer.
const SEARCH_INTERVAL_MIN: Duration = Duration::from_millis(100);

/// A connection to the master of each broker id, found again when it is lost.
pub(super) struct Masters {
    source: Source,
    found: Mutex<Found>,
}

#[derive(Default)]
struct Found {
    clients: BTreeMap<BrokerId, Master>,
    failed: Option<(Instant, String)>,
}

#[derive(Clone)]
pub(super) struct Master {
    /// `host:port`
    pub(super) address: String,
    pub(super) client: Client,
}

impl Masters {
    pub(super) fn new(source: Source) -> Masters {
        Masters { source, found: Mutex::default() }
    }

    /// What is registered, once there is a master.
    pub(super) async fn cluster_with_master(&self, give_up: Duration) -> anyhow::Result<Cluster> {
        let started = Instant::now();
        loop {
            let looked = self.source.look().await;
            let over = started.elapsed() >= give_up;
            match (looked, &self.source) {
                (Ok(cluster), _) if cluster.brokers.values().any(|broker| broker.master.is_some()) => {
                    return Ok(cluster);
                }
                (Ok(_), Source::Broker(address)) => bail!(
                    "{address} is a slave and takes no messages: name its master with --broker, or let --zk find it"
                ),
                (Ok(_), Source::Registry(_)) if over => {
                    bail!("no master is registered: start one, or promote a slave by starting it without --slave-id")
                }
                (Err(error), _) if over => return Err(error),
                _ => tokio::time::sleep(SEARCH_INTERVAL_MIN).await,
            }
        }
    }

    /// The master of `id` as far as is known now. Several lanes wait for one search.
    pub(super) async fn get(&self, id: BrokerId) -> anyhow::Result<Master> {
        let mut found = self.found.lock().await;
        if let Some(master) = found.clients.get(&id).filter(|master| !master.client.is_closed()) {
            return Ok(master.clone());
        }
        if let Some((at, reason)) = &found.failed
            && at.elapsed() < SEARCH_INTERVAL_MIN
        {
            bail!("{reason}");
        }
        match self.search(id).await {
            Ok(master) => {
                found.failed = None;
                found.clients.insert(id, master.clone());
                Ok(master)
            }
            Err(error) => {
                found.failed = Some((Instant::now(), format!("{error:#}")));
                Err(error)
            }
        }
    }

    /// This master does not answer, or no longer is one: it is looked for anew.
    pub(super) async fn forget(&self, id: BrokerId) {
        self.found.lock().await.clients.remove(&id);
    }

    async fn search(&self, id: BrokerId) -> anyhow::Result<Master> {
        let cluster = self.source.look().await?;
        let address = cluster.brokers.get(&id).and_then(|broker| broker.master.clone());
        let address = address.with_context(|| format!("broker {id} has no master in the registry"))?;
        let client = cluster::connect(&address).await?.with_timeout(ANSWER_TIMEOUT);
        Ok(Master { address: address.trim_start_matches("meta://").to_owned(), client })
    }
}
