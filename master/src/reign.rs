//! How a master begins: measure what a promotion may lose, take the fence, begin the reign.

use crate::assembly::{self, Signals};
use anyhow::{Context, Result, bail};
use metaq_broker::{Gate, Node, Successor};
use metaq_config::BrokerConfig;
use metaq_link::driver::{LinkTransport, introduction};
use metaq_link::promotion::{Measurement, Record, measure};
use metaq_link::verdict::{Claim, Rival, may_reign};
use metaq_registry::fence::{ClaimError, Fence, Lease, Standing, claim};
use metaq_store::Store;
use metaq_types::{Epoch, Lineage};
use metaq_wire::{Greeting, Role, Text};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tracing::{info, warn};

/// Between two tries to reach ZooKeeper for the claim.
const CLAIM_PAUSE: Duration = Duration::from_millis(500);

/// Between two looks whether a full disk has room again.
const ROOM_PAUSE: Duration = Duration::from_millis(500);

/// Between two tries to reach an old master.
const TELL_PAUSE: Duration = Duration::from_secs(1);

/// What an operator grants to a start that would otherwise be refused.
#[derive(Clone, Copy, Debug, Default)]
pub struct Consent {
    /// Take over although another node reigned that this data does not know of.
    pub loss: bool,
    /// Take over although ranges are missing inside the logs.
    pub gap: bool,
}

/// If this data was a slave's: what is known to be missing, said before anything is changed.
pub(crate) fn measure_promotion(store: &Store, data_path: &Path) -> Result<Option<Measurement>> {
    let record = match Record::load(data_path) {
        Ok(Some(record)) => record,
        Ok(None) => return Ok(None),
        Err(error) => {
            warn!("promotion: what the old master had more is not known: {error}");
            return Ok(None);
        }
    };
    let ends = store.logs().iter().map(|p| (p.id().clone(), p.positions().written)).collect();
    let measurement = measure(&record, &ends, unix_ms());
    for line in measurement.to_string().lines() {
        if measurement.is_level() {
            info!("{line}");
        } else {
            warn!("{line}");
        }
    }
    Ok(Some(measurement))
}

/// Gaps in the logs are accepted by name, or a promotion does not go on.
pub(crate) fn check_gaps(store: &Store, consent: Consent) -> Result<()> {
    let gaps: Vec<String> = store
        .partitions()
        .iter()
        .flat_map(|p| p.gaps().into_iter().map(|(from, to)| format!("{} from {from} to {to}", p.id())))
        .collect();
    if gaps.is_empty() {
        return Ok(());
    }
    if !consent.gap {
        bail!(
            "ranges are missing inside the logs, as the old master no longer had them when they were copied: {}; start \
             with --accept-gap to serve without them",
            gaps.join(", ")
        );
    }
    warn!(gaps = gaps.join(", "), "serving without ranges that are missing inside the logs, as --accept-gap allows");
    Ok(())
}

/// Takes the fence of the broker id, or says why not. Waits for ZooKeeper for ever: without it another master cannot be
/// ruled out. May be cancelled.
pub(crate) async fn take_fence(
    config: &BrokerConfig,
    store: &Store,
    gate: &Gate,
    uri: &str,
    consent: Consent,
) -> Result<Fence> {
    let lineage = store.lineage()?;
    let mut said = String::new();
    loop {
        let decide = |standing: Standing| decide(standing, &lineage, store.node_id(), uri, (consent, gate));
        match claim(&config.zookeeper, config.system.broker_id, decide).await {
            Ok(fence) => return Ok(fence),
            Err(ClaimError::Refused(error)) => return Err(error),
            Err(error @ ClaimError::Foreign { .. }) => bail!("{error}"),
            Err(error @ (ClaimError::ZooKeeper { .. } | ClaimError::NoPath { .. })) => {
                let text = error.to_string();
                // Each time: meanwhile the gate said who is asked.
                gate.say(&format!(
                    "the master is starting, and ZooKeeper has not confirmed yet that no other reigns: {text}; the broker \
                     tries on, try again"
                ));
                if said != text {
                    warn!("puts are refused until ZooKeeper confirms that no other master reigns: {text}; trying on");
                    said = text;
                }
                tokio::time::sleep(CLAIM_PAUSE).await;
            }
        }
    }
}

async fn decide(
    standing: Standing,
    own: &Lineage,
    node: &str,
    uri: &str,
    (consent, gate): (Consent, &Gate),
) -> Result<Fence> {
    let registered = standing.registered.as_ref().filter(|holder| *holder != uri);
    if let Some(holder) = registered {
        // One that is frozen takes the connection and does not answer, for which is waited.
        gate.say(&format!("the master is starting, and asks whether {holder}, which is registered, lives; try again"));
    }
    let living = match registered {
        Some(holder) if assembly::is_alive(holder).await => Some(holder),
        _ => None,
    };
    let rival = standing.fence.as_ref().map(|fence| Rival { epoch: fence.epoch, node: &fence.node });
    let claim = may_reign(rival, own, node);
    if let (Claim::Replaced(_), Some(fence), false) = (claim, &standing.fence, consent.loss)
        && (living.is_none() || own.newest().is_some())
    {
        bail!("{}", replaced(fence, own));
    }
    // A directory without a past beside a living master: a mistake in the configuration rather than a return.
    if let Some(holder) = living {
        bail!(
            "another broker with our brokerId is alive: {holder} is registered, we are {uri}; give one of them another \
             brokerId, or stop the other one first"
        );
    }
    let (Claim::Reign(epoch) | Claim::Replaced(epoch)) = claim;
    if matches!(claim, Claim::Replaced(_)) {
        warn!(%epoch, "taking over from a reign this data does not know, as --accept-loss allows");
    }
    Ok(Fence { epoch, node: node.to_owned(), uri: uri.to_owned(), since_unix_ms: unix_ms() })
}

/// For whoever starts an old master again.
fn replaced(fence: &Fence, own: &Lineage) -> String {
    let since = Duration::from_millis(unix_ms().saturating_sub(fence.since_unix_ms)).as_secs();
    if own.newest().is_none() {
        return format!(
            "this data directory is new, and the messages of this brokerId are elsewhere: node {} began to reign {since} s \
             ago in epoch {} as {}. If that was this broker, its disk is not mounted, or dataPath is another than before: \
             correct that and start again. To copy them from a living master, join it with 'metaq-slave --slave-id N'. To \
             begin anew without them, start with --accept-loss",
            fence.node, fence.epoch, fence.uri
        );
    }
    format!(
        "this data was replaced: {} began to reign {since} s ago in epoch {} (node {}), our newest is {}. Join it as a \
         slave with 'metaq-slave --slave-id N' on this configuration: what it does not have is set aside, nothing is \
         deleted. To reign with this data all the same, and lose what was stored there, start with --accept-loss",
        fence.uri,
        fence.epoch,
        fence.node,
        own.epoch()
    )
}

/// The reign's number where no registry keeps count: the next one.
pub(crate) fn next_epoch(store: &Store) -> Epoch {
    store.epoch().next()
}

/// Makes the reign last, then sets the slave's record of its master aside: from now on it says nothing any more.
pub(crate) async fn begin(
    store: &Arc<Store>,
    gate: &Gate,
    epoch: Epoch,
    data_path: &Path,
    promoted: bool,
) -> Result<()> {
    wait_for_room(store, gate, epoch).await?;
    info!(%epoch, node = store.node_id(), "reign begun");
    if promoted {
        match Record::set_aside(data_path) {
            Ok(aside) => info!("promotion: the record of it is kept as {}", aside.display()),
            Err(error) => warn!("promotion: the record of it stays where it was: {error}"),
        }
    }
    Ok(())
}

/// Begins the reign, however long the disk is full: reads are served meanwhile, and an operator who starts a broker again
/// because its disk is full is not left without it.
async fn wait_for_room(store: &Arc<Store>, gate: &Gate, epoch: Epoch) -> Result<()> {
    let mut signals = Signals::new()?;
    let mut said = false;
    loop {
        let opened = Arc::clone(store);
        match tokio::task::spawn_blocking(move || opened.begin_reign(epoch)).await? {
            Err(error) if error.is_disk_full() => {
                if !std::mem::replace(&mut said, true) {
                    gate.say(&format!(
                        "the master is starting, and its disk is full: {error}; free some space, it goes on by itself"
                    ));
                    warn!("the disk is full: {error}; reads are served, puts are refused until there is space");
                }
            }
            begun => return begun.context("cannot begin a reign"),
        }
        tokio::select! {
            () = tokio::time::sleep(ROOM_PAUSE) => {}
            () = signals.stop() => bail!("asked to stop while the disk was full"),
        }
    }
}

/// Where no registry keeps two masters apart: tells the old master, over and over, that its reign is over, should it
/// live or come back; we serve at `own`. Ends when it is dropped.
pub(crate) async fn tell_predecessor(uri: String, own: String, transport: LinkTransport, store: Arc<Store>) {
    let greeting = Greeting { uri: Text::from(&*own), ..introduction(&store, Role::Master) };
    loop {
        // The way a slave would take: a master may listen to no other.
        if let Ok(way) = transport.reach(&uri).await
            && way.client.version(Some(&greeting)).await.is_ok()
        {
            info!(predecessor = uri, "the old master was told that its reign is over");
            // Until it is gone: what it answers to later is the next connection.
            way.client.closed().await;
        }
        tokio::time::sleep(TELL_PAUSE).await;
    }
}

/// Lets the gate follow the lease; `accepting` is until when the log knows messages to be accepted.
pub(crate) fn follow_lease(node: &Node, lease: &Lease, accepting: &mut Option<Instant>) {
    let gate: &Gate = node.gate();
    match lease {
        Lease::None => {}
        Lease::Awaits(holder) => gate.say(&awaits(holder)),
        Lease::Until(until) => {
            gate.open(Some(*until));
            if accepting.replace(*until).is_none() {
                info!("accepting messages");
            }
        }
        Lease::Replaced(fence) => {
            let Fence { epoch, node, uri, .. } = fence.clone();
            gate.replace(Successor { epoch, node, uri });
        }
    }
}

/// For producers, until the session of `holder` has ended.
pub(crate) fn awaits(holder: &str) -> String {
    format!(
        "the master is starting: {holder} still has a session in ZooKeeper as the master, and may acknowledge messages until \
         that ends (zk.zkSessionTimeoutMs after it died or froze); try again"
    )
}

/// Says so when the lease ends that messages are accepted by, which shuts the gate; waits for ever where there is none.
pub(crate) async fn lease_ends(accepting: Option<Instant>) {
    let Some(until) = accepting else { return std::future::pending().await };
    tokio::time::sleep_until(until.into()).await;
    warn!(
        "accepting no messages: ZooKeeper was not heard of for too long to rule out another master; reads are served, and \
         messages accepted again once it answers"
    );
}

pub(crate) fn unix_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}
