//! A slave's view of its master: where it is, and which configuration it has.

use crate::paths;
use crate::zookeeper::{Retry, Shared};
use tokio::sync::oneshot;
use tokio::time::sleep;
use zookeeper_client::{Client, Error};

/// The master of a broker id, as published.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MasterAt {
    /// `meta://host:port`
    pub uri: String,
    /// CRC-32 of its `server.ini`; `None` between its registration and the publication of the checksum.
    pub checksum: Option<u32>,
}

/// Fires when a node was created, changed or deleted, or when the session ended.
pub(crate) type Watch = oneshot::Receiver<()>;

/// One node whose data is followed.
#[derive(Default)]
struct Followed {
    data: Option<Vec<u8>>,
    watch: Option<Watch>,
}

/// What is followed of a master.
#[derive(Default)]
struct Follower {
    uri: Followed,
    checksum: Followed,
}

/// Follows the master for as long as the session lives; never returns before that. Cancel-safe.
pub(crate) async fn follow(shared: &Shared, client: &Client) -> Error {
    let mut follower = Follower::default();
    let mut retry = Retry::new();
    loop {
        match follower.look(shared, client).await {
            Ok(()) => retry = Retry::new(),
            Err(error) if ends_session(&error) => return error,
            // Disconnected: the library comes back or ends the session; the last known master stays.
            Err(_) => sleep(retry.next()).await,
        }
    }
}

impl Follower {
    /// Publishes the master as it is now, and returns when that may have changed or after a while: a lost watch must
    /// not hide a promotion.
    async fn look(&mut self, shared: &Shared, client: &Client) -> Result<(), Error> {
        let id = shared.wanted.borrow().broker_id;
        self.uri.read(client, &shared.paths.master(id)).await?;
        self.checksum.read(client, &shared.paths.checksum(id)).await?;
        let master = self.uri.data.as_ref().map(|uri| MasterAt {
            uri: String::from_utf8_lossy(uri).into_owned(),
            checksum: self.checksum.data.as_deref().and_then(paths::parse_checksum),
        });
        shared.master.send_if_modified(|current| {
            let changed = *current != master;
            *current = master;
            changed
        });
        tokio::select! {
            () = fired(&mut self.uri.watch) => {}
            () = fired(&mut self.checksum.watch) => {}
            () = sleep(shared.zk.sync_time) => {}
        }
        Ok(())
    }
}

impl Followed {
    async fn read(&mut self, client: &Client, path: &str) -> Result<(), Error> {
        if self.watch.is_none() {
            let (_, watch) = watch(client, path).await?;
            self.watch = Some(watch);
        }
        self.data = match client.get_data(path).await {
            Ok((data, _)) => Some(data),
            Err(Error::NoNode) => None,
            Err(error) => return Err(error),
        };
        Ok(())
    }
}

/// Watches a node that need not exist. Also says which session holds it: `None` when it is not there, 0 when it is
/// persistent.
///
/// The watcher is kept until it fires, whatever becomes of the answer: to take it back is a request that a ZooKeeper
/// before 3.5 answers by closing the connection.
pub(crate) async fn watch(client: &Client, path: &str) -> Result<(Option<i64>, Watch), Error> {
    let (stat, watcher) = client.check_and_watch_stat(path).await?;
    let (fire, watch) = oneshot::channel();
    tokio::spawn(async move {
        watcher.changed().await;
        // Nobody may be waiting any more.
        let _ = fire.send(());
    });
    Ok((stat.map(|stat| stat.ephemeral_owner), watch))
}

/// Waits for a watch and takes it away when it fires; without one it never returns. Cancel-safe.
pub(crate) async fn fired(watch: &mut Option<Watch>) {
    match watch {
        // A watch whose task is gone tells nothing; it is set again as one that fired.
        Some(waiting) => drop(waiting.await),
        None => std::future::pending().await,
    }
    *watch = None;
}

fn ends_session(error: &Error) -> bool {
    matches!(error, Error::SessionExpired | Error::ClientClosed | Error::AuthFailed | Error::SessionMoved)
}
