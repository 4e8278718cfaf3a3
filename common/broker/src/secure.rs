//! The encrypted ways into a node: TLS for clients, QUIC for other nodes.

use crate::admission::Admitted;
use crate::dispatch::Peer;
use crate::full;
use crate::node::{Node, Shared};
use crate::transport::Staged;
use metaq_net::certs::Identity;
use metaq_net::quic::{Connection, Listener};
use metaq_net::refusals::{Reason, Refusals, Seldom};
use metaq_net::tls::{self, ClientAuth};
use metaq_types::SlaveId;
use metaq_types::limits::CONNECTION_PARKED_MAX;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{info, warn};

/// How often the end of our certificate is looked at.
const CERTIFICATE_CHECK: Duration = Duration::from_secs(12 * 3600);

impl Node {
    /// Serves the same protocol over TLS on `addr`, which is answered.
    pub fn serve_tls(&self, addr: SocketAddr, identity: Arc<Identity>, auth: ClientAuth) -> io::Result<SocketAddr> {
        let listener = metaq_net::tcp::listen(addr, metaq_net::tcp::BACKLOG)?;
        let addr = listener.local_addr()?;
        let door = self.door();
        self.tasks().spawn(accept_tls(listener, identity, auth, door));
        Ok(addr)
    }

    /// Serves nodes of the cluster over QUIC on the UDP side of `addr`, which is answered.
    pub fn serve_quic(&self, addr: SocketAddr, identity: Arc<Identity>) -> io::Result<SocketAddr> {
        let node = self.shared().store.node_id();
        let listener = Listener::bind(addr, identity, node, Arc::clone(self.refusals()))?;
        let addr = listener.local_addr()?;
        self.tasks().spawn(accept_quic(listener, self.door()));
        Ok(addr)
    }

    /// The certificates this node serves with.
    pub fn identity(&self) -> Option<&Arc<Identity>> {
        self.shared().identity.get()
    }

    /// Remembers the certificates, and says from time to time when they end soon, until the node stops.
    pub fn keep_identity(&self, identity: Arc<Identity>) {
        if self.shared().identity.set(Arc::clone(&identity)).is_err() {
            return;
        }
        let accepting = self.door().accepting;
        self.tasks().spawn(async move {
            let mut tick = tokio::time::interval(CERTIFICATE_CHECK);
            loop {
                tokio::select! {
                    _ = tick.tick() => {}
                    () = accepting.cancelled() => return,
                }
                if let Some(days) = identity.current().ends_soon() {
                    warn!(days, "our certificate ends soon; issue a new one with 'metaq cert issue', then reload");
                }
            }
        });
    }
}

/// What an accepting task needs of its node.
#[derive(Clone)]
pub(crate) struct Door {
    pub(crate) shared: Arc<Shared>,
    pub(crate) accepting: CancellationToken,
    pub(crate) tasks: TaskTracker,
}

impl Door {
    /// Lets a peer in, or counts that there is no room.
    fn admit(&self, peer: SocketAddr) -> Option<Admitted> {
        let admitted = self.shared.admission.connection();
        if admitted.is_none() {
            self.refusals().refuse(Reason::Full, peer, &self.shared.admission.room.used_up());
        }
        admitted
    }

    fn refusals(&self) -> &Refusals {
        &self.shared.refusals
    }
}

async fn accept_tls(listener: TcpListener, identity: Arc<Identity>, auth: ClientAuth, door: Door) {
    let mut failed = Seldom::default();
    let refused = Arc::new(Semaphore::new(door.shared.admission.room.refused));
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = door.accepting.cancelled() => return,
        };
        match accepted {
            Ok((stream, peer)) => match door.admit(peer) {
                Some(admitted) => {
                    door.tasks.spawn(serve_tls(stream, peer, Arc::clone(&identity), auth, door.clone(), admitted));
                }
                // A tunnel passes our close on to its client, which may be one that is stopped by that.
                None => {
                    if let Ok(place) = Arc::clone(&refused).try_acquire_owned() {
                        door.tasks.spawn(send_away(stream, door.clone(), place));
                    }
                }
            },
            Err(error) => {
                if let Some(since_last_line) = failed.line_is_due(std::time::Instant::now()) {
                    warn!(%error, since_last_line, "cannot accept a TLS connection");
                }
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

/// Without a handshake, which costs more than there may be to give, there is no word to say.
async fn send_away(stream: TcpStream, door: Door, place: OwnedSemaphorePermit) {
    tokio::select! {
        () = full::hold() => {}
        () = door.shared.stopping() => {}
    }
    drop((stream, place));
}

async fn serve_tls(
    stream: TcpStream,
    peer: SocketAddr,
    identity: Arc<Identity>,
    auth: ClientAuth,
    door: Door,
    admitted: Admitted,
) {
    if metaq_net::tcp::tune(&stream).is_err() {
        return;
    }
    let shaken = tokio::select! {
        shaken = tls::accept(&identity, auth, stream) => shaken,
        () = door.shared.stopping() => return,
    };
    match shaken {
        Ok(stream) => {
            let stream = Staged::new(stream, Arc::clone(&door.shared.buffers));
            door.shared.serve(stream, Peer::stranger(Some(peer))).await;
        }
        Err((reason, detail)) => door.refusals().refuse(reason, peer, &detail),
    }
    drop(admitted);
}

async fn accept_quic(listener: Listener, door: Door) {
    let connections = TaskTracker::new();
    loop {
        let incoming = tokio::select! {
            incoming = listener.accept() => incoming,
            () = door.accepting.cancelled() => break,
        };
        let Some(incoming) = incoming else { break };
        if let Some(admitted) = door.admit(incoming.peer()) {
            let door = door.clone();
            connections.spawn(async move {
                let shaken = tokio::select! {
                    shaken = incoming.handshake() => shaken,
                    () = door.shared.stopping() => None,
                };
                if let Some(connection) = shaken {
                    serve_quic(connection, &door).await;
                }
                drop(admitted);
            });
        }
    }
    connections.close();
    connections.wait().await;
    listener.close().await;
}

/// Serves the streams of one node until it, or we, have had enough.
async fn serve_quic(connection: Connection, door: &Door) {
    let address = connection.remote_address();
    let node = Arc::new(PeerNode { connection: connection.clone(), replica: OnceLock::new() });
    let streams = TaskTracker::new();
    loop {
        let accepted = tokio::select! {
            accepted = connection.accept_bi() => accepted,
            () = door.shared.stopping() => break,
        };
        let Ok((sender, receiver)) = accepted else { break };
        let stream = Staged::new(tokio::io::join(receiver, sender), Arc::clone(&door.shared.buffers));
        let (shared, peer) = (Arc::clone(&door.shared), Peer::node(address, Arc::clone(&node)));
        streams.spawn(async move { shared.serve(stream, peer).await });
    }
    streams.close();
    streams.wait().await;
    if let Some(slave) = node.replica.get() {
        info!(%slave, %address, "the slave's connection has ended");
    }
}

/// A node that has proved with its certificate to be of our cluster; all streams of its connection share this.
pub(crate) struct PeerNode {
    connection: Connection,
    /// Set by the greeting on one of the streams; those opened later are that replica's.
    replica: OnceLock<SlaveId>,
}

impl PeerNode {
    pub(crate) fn replica(&self) -> Option<SlaveId> {
        self.replica.get().copied()
    }

    /// A replica reads each partition on a stream of its own.
    pub(crate) fn greeted(&self, slave: SlaveId) {
        let streams = u32::try_from(CONNECTION_PARKED_MAX).unwrap_or(u32::MAX);
        self.connection.set_max_concurrent_bi_streams(streams.into());
        self.replica.get_or_init(|| slave);
    }

    /// The greeting's stream has ended, and with it the replica's presence.
    pub(crate) fn parted(&self) {
        self.connection.close(0u32.into(), b"the stream of the greeting has ended");
    }
}
