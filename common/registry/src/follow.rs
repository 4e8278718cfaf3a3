//! A slave's view of its master: where it is, and which configuration it has.

use crate::paths;
use crate::zookeeper::{Retry, Shared};
use std::time::Duration;
use tokio::time::sleep;
use zookeeper_client::{Client, Error, OneshotWatcher};

/// The master of a broker id, as published.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MasterAt {
    /// `meta://host:port`
    pub uri: String,
    /// CRC-32 of its `server.ini`; `None` between its registration and the publication of the checksum.
    pub checksum: Option<u32>,
}

/// Follows the master for as long as the session lives; never returns before that. Cancel-safe.
pub(crate) async fn follow(shared: &Shared, client: &Client) -> Error {
    let mut retry = Retry::new();
    loop {
        match look(shared, client).await {
            Ok(()) => retry = Retry::new(),
            Err(error) if ends_session(&error) => return error,
            // Disconnected: the library comes back or ends the session; the last known master stays.
            Err(_) => sleep(retry.next()).await,
        }
    }
}

pub(crate) fn ends_session(error: &Error) -> bool {
    matches!(error, Error::SessionExpired | Error::ClientClosed | Error::AuthFailed | Error::SessionMoved)
}

/// Publishes the master as it is now and returns when that changed, or after a while: a lost watch must not hide a
/// promotion.
async fn look(shared: &Shared, client: &Client) -> Result<(), Error> {
    let id = shared.wanted.borrow().broker_id;
    let (uri, uri_changed) = read_and_watch(client, &shared.paths.master(id)).await?;
    let (checksum, checksum_changed) = read_and_watch(client, &shared.paths.checksum(id)).await?;
    let master = uri.map(|uri| MasterAt {
        uri: String::from_utf8_lossy(&uri).into_owned(),
        checksum: checksum.as_deref().and_then(paths::parse_checksum),
    });
    shared.master.send_if_modified(|current| {
        let changed = *current != master;
        *current = master;
        changed
    });
    tokio::select! {
        _ = uri_changed.changed() => {}
        _ = checksum_changed.changed() => {}
        () = sleep(shared.zk.sync_time.max(Duration::from_secs(1))) => {}
    }
    Ok(())
}

/// A node's data, `None` when there is no such node, and a watcher that fires when either changes.
pub(crate) async fn read_and_watch(client: &Client, path: &str) -> Result<(Option<Vec<u8>>, OneshotWatcher), Error> {
    loop {
        match client.get_and_watch_data(path).await {
            Ok((data, _, watcher)) => return Ok((Some(data), watcher)),
            Err(Error::NoNode) => {}
            Err(error) => return Err(error),
        }
        // Created between the two questions: ask again.
        if let (None, watcher) = client.check_and_watch_stat(path).await? {
            return Ok((None, watcher));
        }
    }
}
