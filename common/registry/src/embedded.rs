//! The embedded registry of `--local`: a server of ZooKeeper's own protocol, on loopback and in memory.
//!
//! For a first look and for tests: it serves the original's Java client, our own, and nobody from another machine.
//! Everything is forgotten when it ends; the sessions of a server before it are told that they expired, and register
//! again. `ensemble` decides, this file moves frames. Every decision is made and every frame it causes is queued
//! under one lock, so that no client sees an answer before the watch events that belong before it.

mod ensemble;
mod jute;
mod protocol;
mod tree;
mod watches;

use bytes::{Bytes, BytesMut};
use ensemble::{Admission, Ensemble};
use parking_lot::Mutex;
use protocol::{Connect, Request};
use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::tcp::OwnedWriteHalf;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc};
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{debug, info, warn};
use watches::ConnectionId;

const CONNECTIONS_MAX: usize = 1024;

/// ZooKeeper's own limit for one request.
const FRAME_BYTES_MAX: usize = 1024 * 1024;

/// Answers and events queued for one connection; one that does not read more than this is closed.
const OUTPUT_FRAMES_MAX: usize = 1024;

/// A connection has to say what it wants within this.
const CONNECT_PATIENCE: Duration = Duration::from_secs(10);

/// The last answers of a connection that closes are written within this.
const FLUSH_PATIENCE: Duration = Duration::from_secs(1);

/// How late an expired session may be noticed.
const EXPIRY_TICK: Duration = Duration::from_millis(100);

/// A running embedded registry; it ends when this is dropped.
#[derive(Debug)]
pub struct Embedded {
    address: SocketAddr,
    closing: CancellationToken,
    tasks: TaskTracker,
}

impl Embedded {
    /// Listens at a loopback address; port 0 takes a free one. Must be called within a tokio runtime.
    pub fn start(address: SocketAddr) -> io::Result<Embedded> {
        if !address.ip().is_loopback() {
            let text = format!("the embedded registry serves loopback only, not {address}: run a zookeeper there");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        let listener = std::net::TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        let listener = TcpListener::from_std(listener)?;
        let address = listener.local_addr()?;
        let (closing, tasks) = (CancellationToken::new(), TaskTracker::new());
        let started_s = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let live = Live { ensemble: Ensemble::new(started_s), connections: HashMap::new(), last_connection: 0 };
        let shared = Arc::new(Shared { live: Mutex::new(live), closing: closing.clone(), tasks: tasks.clone() });
        tasks.spawn(accept(shared.clone(), listener));
        tasks.spawn(expire(shared));
        info!(%address, "embedded registry listening; it keeps nothing over a restart");
        Ok(Embedded { address, closing, tasks })
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Closes every connection and the port. Sessions end without their clients being told.
    pub async fn close(&self) {
        self.closing.cancel();
        self.tasks.close();
        self.tasks.wait().await;
    }
}

impl Drop for Embedded {
    fn drop(&mut self) {
        self.closing.cancel();
    }
}

/// The loopback address at which an embedded registry has to listen to be found by `zk.zkConnect`. No look-up:
/// `localhost` is 127.0.0.1. Without a port it is ZooKeeper's, 2181.
pub fn embedded_address(connect: &str) -> io::Result<SocketAddr> {
    const ZOOKEEPER_PORT: u16 = 2181;
    let refuse = |why: &str| {
        let text = format!("zk.zkConnect={connect} {why}; with --local write localhost:{ZOOKEEPER_PORT}");
        io::Error::new(io::ErrorKind::InvalidInput, text)
    };
    if connect.contains(',') {
        return Err(refuse("names more than one server"));
    }
    if connect.contains('/') {
        return Err(refuse("names a path below the server"));
    }
    let (host, port) = match connect.rsplit_once(':') {
        Some((host, port)) if !host.contains(':') || host.ends_with(']') => {
            (host, port.parse().map_err(|_| refuse("has no port number after the last ':'"))?)
        }
        _ => (connect, ZOOKEEPER_PORT),
    };
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let ip = match host {
        "localhost" => Ok(IpAddr::V4(Ipv4Addr::LOCALHOST)),
        host => host.parse().map_err(|_| refuse("names no loopback address")),
    }?;
    if ip.is_loopback() { Ok(SocketAddr::new(ip, port)) } else { Err(refuse("names no loopback address")) }
}

struct Shared {
    live: Mutex<Live>,
    closing: CancellationToken,
    tasks: TaskTracker,
}

struct Live {
    ensemble: Ensemble,
    connections: HashMap<ConnectionId, Output>,
    last_connection: ConnectionId,
}

/// Where frames for a connection go.
struct Output {
    frames: mpsc::Sender<Bytes>,
    cut: CancellationToken,
}

impl Live {
    /// Queues what the last request or expiry told. A connection too slow to take it is cut.
    fn deliver_events(&mut self) {
        for event in self.ensemble.take_events() {
            let Some(output) = self.connections.get(&event.connection) else { continue };
            if output.frames.try_send(protocol::notification(event.kind, &event.path)).is_err() {
                output.cut.cancel();
            }
        }
    }

    fn cut(&self, connection: ConnectionId) {
        if let Some(output) = self.connections.get(&connection) {
            output.cut.cancel();
        }
    }
}

async fn accept(shared: Arc<Shared>, listener: TcpListener) {
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let accepted = tokio::select! {
            () = shared.closing.cancelled() => return,
            accepted = listener.accept() => accepted,
        };
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                // Out of file descriptors, usually: wait for some to be closed.
                warn!(%error, "embedded registry cannot accept a connection");
                tokio::time::sleep(EXPIRY_TICK).await;
                continue;
            }
        };
        let Ok(place) = places.clone().try_acquire_owned() else {
            debug!(limit = CONNECTIONS_MAX, "embedded registry refuses a connection: too many");
            continue;
        };
        let shared = shared.clone();
        shared.tasks.clone().spawn(async move {
            if let Err(error) = converse(&shared, stream).await {
                debug!(%error, "embedded registry: connection ended");
            }
            drop(place);
        });
    }
}

async fn expire(shared: Arc<Shared>) {
    let mut tick = tokio::time::interval(EXPIRY_TICK);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = shared.closing.cancelled() => return,
            now = tick.tick() => {
                let mut live = shared.live.lock();
                let connections = live.ensemble.expire(now);
                connections.into_iter().for_each(|connection| live.cut(connection));
                live.deliver_events();
            }
        }
    }
}

/// One connection from its first frame to its end.
async fn converse(shared: &Shared, stream: TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let (reader, mut writer) = stream.into_split();
    let mut reader = BufReader::new(reader);
    let first = tokio::select! {
        () = shared.closing.cancelled() => return Ok(()),
        first = timeout(CONNECT_PATIENCE, first_frame(&mut reader)) => first.map_err(|_| io::ErrorKind::TimedOut)??,
    };
    let connect = match first {
        First::Word(word) => return writer.write_all(four_letters(word)).await,
        First::Connect(connect) => connect,
    };
    let (frames, queued) = mpsc::channel(OUTPUT_FRAMES_MAX);
    let cut = shared.closing.child_token();
    let Some((session, connection)) = admit(shared, &connect, &frames, &cut) else {
        return writer.write_all(&protocol::connected(0, 0, [0; 16], connect.has_read_only)).await;
    };
    let reading = async {
        let served = tokio::select! {
            () = cut.cancelled() => Ok(()),
            served = serve(shared, (session, connection), &mut reader, frames) => served,
        };
        let mut live = shared.live.lock();
        live.connections.remove(&connection);
        live.ensemble.disconnected(session, connection);
        served
    };
    let mut writing = std::pin::pin!(write(queued, writer));
    let served = tokio::select! {
        served = reading => served,
        // The client does not read any more: dropping both halves closes the connection.
        written = &mut writing => {
            let mut live = shared.live.lock();
            live.connections.remove(&connection);
            live.ensemble.disconnected(session, connection);
            return written;
        }
    };
    let _ = timeout(FLUSH_PATIENCE, writing).await;
    served
}

/// Takes up the session and queues the answer, before any event can be; `None` when it expired.
fn admit(
    shared: &Shared,
    connect: &Connect,
    frames: &mpsc::Sender<Bytes>,
    cut: &CancellationToken,
) -> Option<(i64, ConnectionId)> {
    let mut live = shared.live.lock();
    live.last_connection += 1;
    let connection = live.last_connection;
    let Admission::Session { id, timeout_ms, password, displaced } =
        live.ensemble.connect(connection, connect, Instant::now())
    else {
        return None;
    };
    displaced.into_iter().for_each(|displaced| live.cut(displaced));
    let answer = protocol::connected(timeout_ms, id, password, connect.has_read_only);
    frames.try_send(answer).expect("the queue is new and empty");
    live.connections.insert(connection, Output { frames: frames.clone(), cut: cut.clone() });
    Some((id, connection))
}

/// Reads and executes requests until the session or the stream ends.
async fn serve(
    shared: &Shared,
    client: (i64, ConnectionId),
    reader: &mut (impl AsyncRead + Unpin),
    frames: mpsc::Sender<Bytes>,
) -> io::Result<()> {
    loop {
        // A place for the answer comes before the request, so that the answer cannot fail under the lock.
        let Ok(place) = frames.reserve().await else { return Ok(()) };
        let Some(frame) = next_frame(reader).await? else { return Ok(()) };
        let Ok((xid, request)) = Request::decode(frame) else {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "a request without a header"));
        };
        let closes = request == Request::CloseSession;
        let now_ms = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
        let now_ms = i64::try_from(now_ms).unwrap_or(i64::MAX);
        let mut live = shared.live.lock();
        let (zxid, answer) = live.ensemble.execute(client, request, Instant::now(), now_ms);
        live.deliver_events();
        let ends = closes || answer == Err(protocol::Code::SessionExpired);
        place.send(protocol::reply(xid, zxid, &answer));
        drop(live);
        if ends {
            return Ok(());
        }
    }
}

/// Writes queued frames, as many as there are at once, until the queue is closed and empty.
async fn write(mut queued: mpsc::Receiver<Bytes>, mut writer: OwnedWriteHalf) -> io::Result<()> {
    let mut batch = Vec::new();
    let mut buffer = BytesMut::new();
    while queued.recv_many(&mut batch, 64).await > 0 {
        buffer.clear();
        batch.drain(..).for_each(|frame| buffer.extend_from_slice(&frame));
        writer.write_all(&buffer).await?;
    }
    writer.shutdown().await
}

/// What a connection begins with.
enum First {
    /// A four-letter word of monitoring scripts.
    Word([u8; 4]),
    Connect(Connect),
}

async fn first_frame(reader: &mut (impl AsyncRead + Unpin)) -> io::Result<First> {
    let mut head = [0; 4];
    reader.read_exact(&mut head).await?;
    if head.iter().all(u8::is_ascii_lowercase) {
        return Ok(First::Word(head));
    }
    let frame = frame_body(head, reader).await?;
    let malformed = |_| io::Error::new(io::ErrorKind::InvalidData, "not a connect request");
    Connect::decode(frame).map(First::Connect).map_err(malformed)
}

/// `None` at the end of the stream between two frames.
async fn next_frame(reader: &mut (impl AsyncRead + Unpin)) -> io::Result<Option<Bytes>> {
    let mut head = [0; 4];
    if reader.read(&mut head[..1]).await? == 0 {
        return Ok(None);
    }
    reader.read_exact(&mut head[1..]).await?;
    frame_body(head, reader).await.map(Some)
}

async fn frame_body(head: [u8; 4], reader: &mut (impl AsyncRead + Unpin)) -> io::Result<Bytes> {
    let length = i32::from_be_bytes(head);
    let Some(length) = usize::try_from(length).ok().filter(|length| *length <= FRAME_BYTES_MAX) else {
        let text = format!("a frame of {length} bytes is not within 0..{FRAME_BYTES_MAX}");
        return Err(io::Error::new(io::ErrorKind::InvalidData, text));
    };
    let mut frame = BytesMut::zeroed(length);
    reader.read_exact(&mut frame).await?;
    Ok(frame.freeze())
}

fn four_letters(word: [u8; 4]) -> &'static [u8] {
    match &word {
        b"ruok" => b"imok",
        b"isro" => b"rw",
        b"srvr" => b"metaq embedded registry\nMode: standalone\n",
        _ => b"this server knows ruok, isro and srvr\n",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_is_what_zk_connect_names_on_loopback() {
        let cases = [
            ("localhost:2181", "127.0.0.1:2181"),
            ("localhost", "127.0.0.1:2181"),
            ("127.0.0.1:0", "127.0.0.1:0"),
            ("[::1]:2182", "[::1]:2182"),
            ("::1", "[::1]:2181"),
        ];
        for (connect, address) in cases {
            assert_eq!(embedded_address(connect).unwrap().to_string(), address, "{connect}");
        }
        for bad in ["", "10.0.0.1:2181", "zk1:2181", "localhost:2181,localhost:2182", "localhost:2181/a", "localhost:x"]
        {
            assert!(embedded_address(bad).is_err(), "{bad}");
        }
    }

    #[tokio::test]
    async fn only_loopback_is_served() {
        let error = Embedded::start("0.0.0.0:0".parse().unwrap()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
    }
}
