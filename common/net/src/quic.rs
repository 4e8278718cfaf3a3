use crate::certs::Identity;
use crate::datagrams::Datagrams;
use crate::refusals::{Reason, Refusals};
use crate::tls::HANDSHAKE_TIMEOUT;
use quinn::{
    ConnectionError, Endpoint, EndpointConfig, IdleTimeout, Runtime, TokioRuntime, TransportConfig, TransportErrorCode,
    VarInt,
};
use socket2::{Domain, Protocol, Socket, Type};
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

pub use quinn::{Connection, ReadError, RecvStream, SendStream};

/// Streams a peer may open before it has said who it is: one greeting, and something to spare.
pub const STREAMS_BEFORE_GREETING: u32 = 8;

/// A peer that is silent for this long is gone. Links speak once a second.
const IDLE_MAX: Duration = Duration::from_secs(10);
const KEEP_ALIVE: Duration = Duration::from_secs(3);
/// Whoever has connected speaks more often: a node that has started again can tell only who speaks to it.
const CONNECTED_KEEP_ALIVE: Duration = Duration::from_millis(500);

/// A round trip is taken for this long before one was measured: the first packet is repeated after three of them. Short,
/// as it is mostly lost because the node is about to start; to repeat it on a slow way costs a packet.
const FIRST_ROUND_TRIP: Duration = Duration::from_millis(50);

/// Handshakes at a time before newcomers have to show first that they receive at their address.
const HANDSHAKES_TRUSTED: usize = 32;
/// And before they are sent away.
const HANDSHAKES_MAX: usize = 256;

/// Unsent and unacknowledged bytes of one connection.
const SEND_WINDOW_BYTES: u64 = 16 * 1024 * 1024;
/// What a peer may send ahead of who reads, on one stream and on all of a connection: a slave asks for its bytes, a
/// master gets only requests.
const SLAVE_STREAM_WINDOW_BYTES: u32 = 2 * 1024 * 1024;
const SLAVE_WINDOW_BYTES: u32 = 32 * 1024 * 1024;
const MASTER_STREAM_WINDOW_BYTES: u32 = 64 * 1024;
const MASTER_WINDOW_BYTES: u32 = 4 * 1024 * 1024;

/// Datagrams that wait in the kernel for whoever reads or sends them. What does not fit is lost, and a loss makes the
/// peer send more slowly.
const SOCKET_BUFFER_BYTES: usize = 4 * 1024 * 1024;

/// The largest packet that is tried, for links with jumbo frames; what the path bears is found out.
const MTU_MAX: u16 = 8952;

/// Listens for nodes of the cluster.
pub struct Listener {
    endpoint: Endpoint,
    identity: Arc<Identity>,
    refusals: Arc<Refusals>,
    handshakes: Arc<AtomicUsize>,
}

impl Listener {
    /// Binds the UDP side of `addr`. Must be called within a tokio runtime. `node`: a name that no other node of the
    /// cluster has, by which this one, killed and started again with the same private key, ends its old connections.
    pub fn bind(
        addr: SocketAddr,
        identity: Arc<Identity>,
        node: &str,
        refusals: Arc<Refusals>,
    ) -> io::Result<Listener> {
        let config = identity.current().secret.endpoint_config(node);
        let endpoint = endpoint(addr, config, Some(server_config(&identity)), Some(Arc::clone(&refusals)))?;
        Ok(Listener { endpoint, identity, refusals, handshakes: Arc::default() })
    }

    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.endpoint.local_addr()
    }

    /// The next peer that begins a handshake; `None` once closed. May be cancelled.
    pub async fn accept(&self) -> Option<Incoming> {
        loop {
            let incoming = self.endpoint.accept().await?;
            let handshakes = self.handshakes.load(Ordering::Relaxed);
            let peer = incoming.remote_address();
            if handshakes >= HANDSHAKES_MAX {
                self.refusals.refuse(Reason::Full, peer, &format!("{HANDSHAKES_MAX} handshakes are under way"));
                incoming.refuse();
            } else if handshakes >= HANDSHAKES_TRUSTED && !incoming.remote_address_validated() {
                // Comes back with a token when the address is true.
                if let Err(error) = incoming.retry() {
                    self.refusals.refuse(Reason::Other, peer, &error.to_string());
                }
            } else {
                self.handshakes.fetch_add(1, Ordering::Relaxed);
                return Some(Incoming {
                    incoming,
                    config: Arc::new(server_config(&self.identity)),
                    refusals: Arc::clone(&self.refusals),
                    _under_way: UnderWay(Arc::clone(&self.handshakes)),
                });
            }
        }
    }

    /// Ends every connection, and waits for their peers to hear of it.
    pub async fn close(&self) {
        self.endpoint.close(VarInt::from_u32(0), b"the node stops");
        // Peers that do not answer are not waited for.
        let _ = tokio::time::timeout(Duration::from_secs(1), self.endpoint.wait_idle()).await;
    }
}

/// A peer in its handshake.
pub struct Incoming {
    incoming: quinn::Incoming,
    config: Arc<quinn::ServerConfig>,
    refusals: Arc<Refusals>,
    _under_way: UnderWay,
}

struct UnderWay(Arc<AtomicUsize>);

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Incoming {
    pub fn peer(&self) -> SocketAddr {
        self.incoming.remote_address()
    }

    /// A node of the cluster; `None` when it was refused, which was counted and said.
    pub async fn handshake(self) -> Option<Connection> {
        let peer = self.peer();
        let shaken = match self.incoming.accept_with(self.config) {
            Ok(connecting) => tokio::time::timeout(HANDSHAKE_TIMEOUT, connecting).await,
            Err(error) => Ok(Err(error)),
        };
        match shaken {
            Ok(Ok(connection)) => Some(connection),
            Ok(Err(error)) => {
                self.refusals.refuse(reason_of(&error), peer, &explain(&error));
                None
            }
            Err(_) => {
                let detail = format!("no handshake within {} s", HANDSHAKE_TIMEOUT.as_secs());
                self.refusals.refuse(Reason::TimedOut, peer, &detail);
                None
            }
        }
    }
}

/// Connects to the node at `host:port`, whose certificate must be of our cluster and name that host. The node may
/// still refuse ours: then the first stream ends, and [`explain`] says why.
pub async fn connect(identity: &Identity, address: &str, timeout: Duration) -> Result<Connection, String> {
    match tokio::time::timeout(timeout, try_connect(identity, address)).await {
        Ok(connected) => connected,
        Err(_) => Err(format!(
            "no answer over QUIC from {address} in {} ms; is its UDP port open, and has it certificates configured?",
            timeout.as_millis()
        )),
    }
}

async fn try_connect(identity: &Identity, address: &str) -> Result<Connection, String> {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    let mut failure = format!("{address} has no address");
    let found = tokio::net::lookup_host(address).await.map_err(|error| format!("cannot look up {address}: {error}"))?;
    for peer in found {
        // An endpoint of its own family, which lives as long as the connection does.
        let any = if peer.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
        let endpoint = endpoint(SocketAddr::new(any, 0), EndpointConfig::default(), None, None)
            .map_err(|error| format!("cannot open a UDP socket: {error}"))?;
        let connecting =
            endpoint.connect_with(client_config(identity), peer, host).map_err(|error| error.to_string())?;
        match connecting.await {
            Ok(connection) => return Ok(connection),
            Err(error) => failure = explain(&error),
        }
    }
    Err(failure)
}

/// Why a connection could not be made, or has ended, for a person.
pub fn explain(error: &ConnectionError) -> String {
    match error {
        ConnectionError::TransportError(error) => match alert(error.code) {
            Some(_) => format!("its certificate is refused: {}", words(&error.reason)),
            None => error.to_string(),
        },
        ConnectionError::ConnectionClosed(close) if alert(close.error_code).is_some() => {
            format!("it refuses our certificate: {}", words(&String::from_utf8_lossy(&close.reason)))
        }
        ConnectionError::ApplicationClosed(close) => {
            format!("it closed the connection: {}", String::from_utf8_lossy(&close.reason))
        }
        ConnectionError::Reset => "the node has started again and knows nothing of the connection".to_owned(),
        other => other.to_string(),
    }
}

fn words(reason: &str) -> String {
    let name = reason.rsplit(": ").next().unwrap_or(reason);
    let meaning = match name {
        _ if name.starts_with("UnknownIssuer") || name.starts_with("BadSignature") => "it is of another cluster",
        _ if reason.contains("xpired") => "it has expired",
        _ if reason.contains("NotValidYet") || reason.contains("not valid yet") => "it is not valid yet",
        _ if reason.contains("NotValidForName") || reason.contains("not valid for name") => {
            "it does not name the host that was asked for"
        }
        _ if reason.contains("no certificates") => "there is none",
        _ => return reason.to_owned(),
    };
    format!("{meaning} ({reason})")
}

/// The TLS alert in a code of QUIC (RFC 9001, "4.8").
fn alert(code: TransportErrorCode) -> Option<u8> {
    let code = u64::from(code);
    (code & !0xff == 0x100).then_some((code & 0xff) as u8)
}

fn reason_of(error: &ConnectionError) -> Reason {
    // Numbers of RFC 8446, "6.2".
    let refused = |code| match alert(code) {
        Some(45) => Reason::Expired,
        Some(48 | 51) => Reason::Foreign,
        Some(116) => Reason::NoCertificate,
        Some(120) => Reason::OtherProtocol,
        _ => Reason::Other,
    };
    match error {
        ConnectionError::TransportError(error) => refused(error.code),
        ConnectionError::ConnectionClosed(close) if alert(close.error_code).is_some() => Reason::RefusedUs,
        ConnectionError::VersionMismatch => Reason::OtherProtocol,
        ConnectionError::TimedOut => Reason::TimedOut,
        ConnectionError::ConnectionClosed(_)
        | ConnectionError::ApplicationClosed(_)
        | ConnectionError::Reset
        | ConnectionError::LocallyClosed => Reason::Vanished,
        ConnectionError::CidsExhausted => Reason::Other,
    }
}

/// Must be called within a tokio runtime.
fn endpoint(
    addr: SocketAddr,
    mut config: EndpointConfig,
    server: Option<quinn::ServerConfig>,
    refusals: Option<Arc<Refusals>>,
) -> io::Result<Endpoint> {
    let socket = Datagrams::new(TokioRuntime.wrap_udp_socket(bind(addr)?)?, MTU_MAX, refusals);
    // So that a datagram without the fixed bit is no packet of ours.
    config.grease_quic_bit(false);
    config.max_udp_payload_size(MTU_MAX).expect("the size is one that QUIC allows");
    Endpoint::new_with_abstract_socket(config, server, Arc::new(socket), Arc::new(TokioRuntime))
}

fn bind(addr: SocketAddr) -> io::Result<std::net::UdpSocket> {
    let socket = Socket::new(Domain::for_address(addr), Type::DGRAM.nonblocking(), Some(Protocol::UDP))?;
    if addr.is_ipv6() {
        socket.set_only_v6(false)?;
    }
    // The kernel gives what it is allowed to (net.core.rmem_max, wmem_max) and refuses none.
    socket.set_recv_buffer_size(SOCKET_BUFFER_BYTES)?;
    socket.set_send_buffer_size(SOCKET_BUFFER_BYTES)?;
    socket.bind(&addr.into())?;
    Ok(socket.into())
}

fn server_config(identity: &Identity) -> quinn::ServerConfig {
    let crypto = Arc::clone(&identity.current().configs.quic_server);
    let mut config = quinn::ServerConfig::with_crypto(crypto);
    let mut transport = transport_config();
    transport
        .max_concurrent_bidi_streams(STREAMS_BEFORE_GREETING.into())
        .stream_receive_window(MASTER_STREAM_WINDOW_BYTES.into())
        .receive_window(MASTER_WINDOW_BYTES.into());
    config.transport_config(Arc::new(transport)).max_incoming(HANDSHAKES_MAX);
    config
}

fn client_config(identity: &Identity) -> quinn::ClientConfig {
    let crypto = Arc::clone(&identity.current().configs.quic_client);
    let mut config = quinn::ClientConfig::new(crypto);
    let mut transport = transport_config();
    transport
        .keep_alive_interval(Some(CONNECTED_KEEP_ALIVE))
        .initial_rtt(FIRST_ROUND_TRIP)
        .max_concurrent_bidi_streams(0u32.into())
        .stream_receive_window(SLAVE_STREAM_WINDOW_BYTES.into())
        .receive_window(SLAVE_WINDOW_BYTES.into());
    config.transport_config(Arc::new(transport));
    config
}

fn transport_config() -> TransportConfig {
    let mut config = TransportConfig::default();
    let mut discovery = quinn::MtuDiscoveryConfig::default();
    discovery.upper_bound(MTU_MAX);
    config
        .max_concurrent_uni_streams(0u32.into())
        .max_idle_timeout(Some(IdleTimeout::try_from(IDLE_MAX).expect("ten seconds are within the range")))
        .keep_alive_interval(Some(KEEP_ALIVE))
        .send_window(SEND_WINDOW_BYTES)
        .mtu_discovery_config(Some(discovery))
        .datagram_receive_buffer_size(None);
    config
}

const _: () = assert!(KEEP_ALIVE.as_millis() * 3 < IDLE_MAX.as_millis());
const _: () =
    assert!(SLAVE_WINDOW_BYTES > SLAVE_STREAM_WINDOW_BYTES && MASTER_WINDOW_BYTES > MASTER_STREAM_WINDOW_BYTES);
