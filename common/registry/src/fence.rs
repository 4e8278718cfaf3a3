//! One master at a time for a broker id: a persistent node with the newest reign, changed by compare-and-set, and a
//! lease that ends before the session does.
//!
//! Whoever begins a reign writes the fence first. It then takes the seat, an ephemeral node that an earlier master holds
//! for as long as its session lives, and serves only when it has the seat and the fence is still its own. The earlier
//! master, in turn, acknowledges only for a part of the session time-out after ZooKeeper last confirmed both. So there
//! is no moment at which both may acknowledge.

use crate::paths::Paths;
use crate::zookeeper::{advice, connect, path_missing};
use metaq_config::ZooKeeper;
use metaq_types::{BrokerId, Epoch};
use serde::{Deserialize, Serialize};
use std::time::{Duration, Instant};
use tokio::time::{sleep, timeout};
use tracing::warn;
use zookeeper_client::{Acls, Client, CreateMode, CreateOptions, Error};

/// Who may be the master of a broker id: the node whose reign began last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fence {
    pub epoch: Epoch,
    /// The data directory that reigns.
    pub node: String,
    /// Where it could be reached when its reign began.
    pub uri: String,
    pub since_unix_ms: u64,
}

/// As it stands in ZooKeeper.
#[derive(Serialize, Deserialize)]
struct Text {
    epoch: u64,
    node: String,
    uri: String,
    since: u64,
}

impl Fence {
    fn text(&self) -> String {
        let Fence { epoch, node, uri, since_unix_ms } = self.clone();
        let text = Text { epoch: epoch.0, node, uri, since: since_unix_ms };
        serde_json::to_string(&text).expect("strings and numbers are JSON")
    }

    fn parse(data: &[u8]) -> Option<Fence> {
        let Text { epoch, node, uri, since } = serde_json::from_slice(data).ok()?;
        Some(Fence { epoch: Epoch(epoch), node, uri, since_unix_ms: since })
    }
}

/// What the registry knows of this master's right to acknowledge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lease {
    /// Not confirmed yet.
    None,
    /// Not confirmed, as another still has a session as the master: its address.
    Awaits(String),
    /// Nobody else can reign before this.
    Until(Instant),
    /// Another reign has begun; ours is over for good.
    Replaced(Fence),
}

/// Why the fence was not taken.
#[derive(Debug, thiserror::Error)]
pub enum ClaimError<R> {
    #[error("zookeeper at {connect}: {error}{advice}")]
    ZooKeeper { connect: String, error: Error, advice: String },
    /// The path of the ensemble that `zk.zkConnect` names is not there.
    #[error("{text}")]
    NoPath { text: String },
    #[error("the fence {path} holds what is not understood: {data:?}; look at it and delete it if no broker runs")]
    Foreign { path: String, data: String },
    /// The caller's own refusal.
    #[error("{0}")]
    Refused(R),
}

/// What stands in the way of a reign.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Standing {
    pub fence: Option<Fence>,
    /// The address registered as the master at this moment.
    pub registered: Option<String>,
}

const FENCE: CreateOptions<'static> = CreateMode::Persistent.with_acls(Acls::anyone_all());

const SEAT: CreateOptions<'static> = CreateMode::Ephemeral.with_acls(Acls::anyone_all());

/// Between two tries to take the seat.
pub(crate) const SEAT_PAUSE: Duration = Duration::from_millis(100);

/// The lease is this part of the session time-out, counted from before the question to ZooKeeper was sent.
const LEASE_PART: f32 = 0.6;

/// And it is renewed so often within the time-out.
const RENEWALS: u32 = 6;

/// Looks at the fence and who is registered, and writes the fence that `decide` makes of it, unless it refuses. When two
/// claim at once, one writes and the other decides anew on what it finds then.
pub async fn claim<R, F>(
    zk: &ZooKeeper,
    id: BrokerId,
    mut decide: impl FnMut(Standing) -> F,
) -> Result<Fence, ClaimError<R>>
where
    F: Future<Output = Result<Fence, R>>,
{
    let failed = |error| ClaimError::ZooKeeper { connect: zk.connect.clone(), advice: advice(&error, &zk.root), error };
    let client = connect(zk).await.map_err(failed)?;
    let paths = Paths::new(&zk.root);
    let path = paths.fence(id);
    loop {
        let found = read(&client, &path).await.map_err(failed)?;
        let (fence, version) = match found {
            None => (None, None),
            Some((data, version)) => match Fence::parse(&data) {
                Some(fence) => (Some(fence), Some(version)),
                None => {
                    let data = String::from_utf8_lossy(&data).into_owned();
                    return Err(ClaimError::Foreign { path, data });
                }
            },
        };
        let registered = read(&client, &paths.master(id)).await.map_err(failed)?;
        let registered = registered.map(|(data, _)| String::from_utf8_lossy(&data).into_owned());
        let new = decide(Standing { fence, registered }).await.map_err(ClaimError::Refused)?;
        if version.is_none() {
            make_parent(&client, &paths).await.map_err(|error| match error {
                Error::NoNode => ClaimError::NoPath { text: path_missing(&zk.connect) },
                error => failed(error),
            })?;
        }
        match write(&client, &paths, id, &new, version).await {
            Ok(()) => return Ok(new),
            Err(Error::BadVersion | Error::NodeExists | Error::NoNode) => {}
            Err(error) => return Err(failed(error)),
        }
    }
}

/// The fence as it stands, for whoever only wants to know.
pub async fn look(zk: &ZooKeeper, id: BrokerId) -> Result<Standing, ClaimError<std::convert::Infallible>> {
    let failed = |error| ClaimError::ZooKeeper { connect: zk.connect.clone(), advice: advice(&error, &zk.root), error };
    let client = connect(zk).await.map_err(failed)?;
    let paths = Paths::new(&zk.root);
    let fence = read(&client, &paths.fence(id)).await.map_err(failed)?.and_then(|(data, _)| Fence::parse(&data));
    let registered = read(&client, &paths.master(id)).await.map_err(failed)?;
    Ok(Standing { fence, registered: registered.map(|(data, _)| String::from_utf8_lossy(&data).into_owned()) })
}

async fn read(client: &Client, path: &str) -> Result<Option<(Vec<u8>, i32)>, Error> {
    match client.get_data(path).await {
        Ok((data, stat)) => Ok(Some((data, stat.version))),
        Err(Error::NoNode) => Ok(None),
        Err(error) => Err(error),
    }
}

/// What the first fence of an ensemble is written below; without a node only if the path of `zk.zkConnect` is not there.
pub(crate) async fn make_parent(client: &Client, paths: &Paths) -> Result<(), Error> {
    client.mkdir(&paths.fences(), &FENCE).await
}

/// Under the version that was found, so that of two who write one does.
pub(crate) async fn write(
    client: &Client,
    paths: &Paths,
    id: BrokerId,
    fence: &Fence,
    version: Option<i32>,
) -> Result<(), Error> {
    let path = paths.fence(id);
    match version {
        Some(version) => client.set_data(&path, fence.text().as_bytes(), Some(version)).await.map(drop),
        None => client.create(&path, fence.text().as_bytes(), &FENCE).await.map(drop),
    }
}

/// Returns when nobody who reigned before `ours`, which is the fence, can acknowledge anything any more: no lease is given
/// against our fence, and the seat of whoever had one is free. Also returns when the fence is not ours any more; the seat
/// will say so. `awaits` is told of whoever is waited for. Waits for ZooKeeper for ever. May be cancelled.
pub async fn wait_for_vacancy(zk: &ZooKeeper, id: BrokerId, ours: &Fence, awaits: impl Fn(&str)) {
    let (paths, mut said) = (Paths::new(&zk.root), false);
    loop {
        if let Ok(client) = connect(zk).await {
            while let Ok(holder) = holder(&client, &paths, id, ours).await {
                let Some(holder) = holder else { return };
                if !std::mem::replace(&mut said, true) {
                    warn!("{holder} still has a session as the master; waiting for it to end");
                    awaits(&holder);
                }
                sleep(SEAT_PAUSE).await;
            }
        }
        sleep(SEAT_PAUSE).await;
    }
}

/// Whoever reigned before `ours` and still has a session.
async fn holder(client: &Client, paths: &Paths, id: BrokerId, ours: &Fence) -> Result<Option<String>, Error> {
    let fence = read(client, &paths.fence(id)).await?.and_then(|(data, _)| Fence::parse(&data));
    if fence.is_none_or(|fence| (fence.epoch, &fence.node) != (ours.epoch, &ours.node)) {
        return Ok(None);
    }
    Ok(match read(client, &paths.seat(id)).await? {
        None => None,
        Some((data, _)) => match Fence::parse(&data) {
            // Left by a process that ran on our data: it is dead, or the data would still be locked.
            Some(seated) if seated.node == ours.node => None,
            Some(seated) => Some(seated.uri),
            None => Some("a stranger".to_owned()),
        },
    })
}

/// Who holds the seat of a broker id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Seat {
    Ours,
    /// By an address; until its session ends.
    Taken {
        by: String,
    },
}

/// Takes the seat, an ephemeral node, or finds it held by this session. One left by a process that ran on our data is
/// replaced: it is dead, or the data would still be locked.
pub(crate) async fn take_seat(client: &Client, paths: &Paths, id: BrokerId, ours: &Fence) -> Result<Seat, Error> {
    let path = paths.seat(id);
    loop {
        match client.create(&path, ours.text().as_bytes(), &SEAT).await {
            Ok(_) => return Ok(Seat::Ours),
            Err(Error::NodeExists) => {}
            Err(error) => return Err(error),
        }
        let (data, stat) = match client.get_data(&path).await {
            Ok(found) => found,
            Err(Error::NoNode) => continue,
            Err(error) => return Err(error),
        };
        if stat.ephemeral_owner == client.session_id().0 {
            return Ok(Seat::Ours);
        }
        match Fence::parse(&data) {
            Some(holder) if holder.node == ours.node => match client.delete(&path, Some(stat.version)).await {
                Ok(()) | Err(Error::NoNode | Error::BadVersion) => {}
                Err(error) => return Err(error),
            },
            Some(holder) => return Ok(Seat::Taken { by: holder.uri }),
            None => return Ok(Seat::Taken { by: "a stranger".to_owned() }),
        }
    }
}

/// What a living master finds when it looks at the fence.
pub(crate) enum Renewal {
    /// [`Lease::Until`] only counts for who is in its seat.
    Lease(Lease),
    /// There is none, or that of an earlier reign than ours (with its version): the ensemble lost its memory.
    Forgotten(Option<i32>),
    /// Nobody's reign; the data.
    Foreign(String),
}

/// One look at the fence by a master. `None` when ZooKeeper did not answer in time; the last lease then runs out by itself.
pub(crate) async fn renew(client: &Client, paths: &Paths, id: BrokerId, ours: &Fence) -> Option<Renewal> {
    let lease = client.session_timeout().mul_f32(LEASE_PART);
    let sent = Instant::now();
    let path = paths.fence(id);
    let Some((data, version)) = timeout(lease, read(client, &path)).await.ok()?.ok()? else {
        return Some(Renewal::Forgotten(None));
    };
    Some(match Fence::parse(&data) {
        None => Renewal::Foreign(String::from_utf8_lossy(&data).into_owned()),
        Some(fence) if (fence.epoch, &fence.node) == (ours.epoch, &ours.node) => {
            Renewal::Lease(Lease::Until(sent + lease))
        }
        Some(fence) if fence.epoch < ours.epoch => Renewal::Forgotten(Some(version)),
        Some(fence) => Renewal::Lease(Lease::Replaced(fence)),
    })
}

/// The pause between two renewals.
pub(crate) fn renewal_pause(client: &Client) -> Duration {
    client.session_timeout() / RENEWALS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fence_is_read_back_and_strangers_are_not_understood() {
        let fence = Fence {
            epoch: Epoch(7),
            node: "n-1".into(),
            uri: "meta://h:8123".into(),
            since_unix_ms: 1_795_993_878_339,
        };
        assert_eq!(Fence::parse(fence.text().as_bytes()), Some(fence));
        for strange in ["", "7", "{}", "{\"epoch\":-1,\"node\":\"\",\"uri\":\"\",\"since\":0}"] {
            assert_eq!(Fence::parse(strange.as_bytes()), None, "{strange}");
        }
    }
}
