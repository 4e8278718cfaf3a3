//! A relay between two processes, for TCP and for UDP, which can be told to delay, to lose, to reorder, to stall one
//! direction or both, and to reset.
//!
//! Over TCP a stalled direction loses nothing and passes on nothing, not even an end: what TCP makes of lost packets, as
//! long as they are lost. What was held back arrives when the direction is opened again. A lost piece arrives late, as
//! after a retransmission, and nothing is reordered. Over UDP packets are lost and reordered as told.
//!
//! While the server does not listen, connections are refused. Clients know the difference: the original's network library
//! stops reading all its connections for up to 15 s when one ends in the moment in which it was made.

mod chance;
mod datagrams;
mod door;

use crate::relay::chance::Chance;
use crate::relay::door::{Bell, Door};
use anyhow::{Context, Result};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpStream, UdpSocket};
use tokio::sync::watch;

/// What TCP waits at least before it sends again what was lost.
const RETRANSMISSION: Duration = Duration::from_millis(200);

/// What happens to bytes that go one way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flow {
    /// Over UDP everything is lost meanwhile.
    pub stalled: bool,
    /// Before each piece is passed on.
    pub delay: Duration,
    /// Of a thousand pieces, so many are lost on the way.
    pub lost_per_mille: u32,
    /// Of a thousand datagrams, so many arrive after later ones.
    pub reordered_per_mille: u32,
}

impl Flow {
    pub const STALLED: Flow = Flow { stalled: true, delay: Duration::ZERO, lost_per_mille: 0, reordered_per_mille: 0 };
}

#[derive(Clone, Copy, Debug, Default)]
struct Rule {
    to_server: Flow,
    to_client: Flow,
    /// Connections made before the last reset are over.
    resets: u64,
}

/// A listening relay; its connections end when it is dropped.
#[derive(Debug)]
pub struct Relay {
    pub address: SocketAddr,
    rule: watch::Sender<Rule>,
    open: Arc<AtomicUsize>,
    _runtime: tokio::runtime::Runtime,
}

impl Relay {
    /// Listens on `listen` for TCP and passes on to `server`, which need not be there yet.
    pub fn start(listen: SocketAddr, server: SocketAddr) -> Result<Relay> {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let (door, bell) = {
            let _there = runtime.enter();
            Door::new(listen, server)?
        };
        let address = door.address();
        let rule = watch::Sender::new(Rule::default());
        let open = Arc::new(AtomicUsize::new(0));
        runtime.spawn(accept(door, bell, server, rule.subscribe(), Arc::clone(&open)));
        Ok(Relay { address, rule, open, _runtime: runtime })
    }

    /// The same for UDP on the same port besides.
    pub fn start_with_datagrams(listen: SocketAddr, server: SocketAddr) -> Result<Relay> {
        let relay = Relay::start(listen, server)?;
        let front = relay
            ._runtime
            .block_on(UdpSocket::bind(relay.address))
            .with_context(|| format!("the relay cannot listen on {} for datagrams", relay.address))?;
        relay._runtime.spawn(datagrams::relay(front, server, relay.rule.subscribe()));
        Ok(relay)
    }

    pub fn set(&self, to_server: Flow, to_client: Flow) {
        self.rule.send_modify(|rule| (rule.to_server, rule.to_client) = (to_server, to_client));
    }

    /// Nothing passes any more, in either direction.
    pub fn stall(&self) {
        self.set(Flow::STALLED, Flow::STALLED);
    }

    /// Everything passes again, what was held back first.
    pub fn restore(&self) {
        self.set(Flow::default(), Flow::default());
    }

    /// Ends every connection; new ones are accepted. Over UDP each client reaches the server from another port from now
    /// on, as behind a router that has forgotten it.
    pub fn reset(&self) {
        self.rule.send_modify(|rule| rule.resets += 1);
    }

    /// Connections over TCP that have not ended on both sides.
    pub fn open(&self) -> usize {
        self.open.load(Ordering::SeqCst)
    }
}

async fn accept(mut door: Door, bell: Bell, server: SocketAddr, rule: watch::Receiver<Rule>, open: Arc<AtomicUsize>) {
    loop {
        let client = match door.accept().await {
            Ok(client) => client,
            // Nobody comes through any more, and the test that needs it fails; here is why.
            Err(error) => return eprintln!("the relay to {server} has ended: {error:#}"),
        };
        let (bell, rule, open) = (bell.clone(), rule.clone(), Arc::clone(&open));
        tokio::spawn(async move {
            open.fetch_add(1, Ordering::SeqCst);
            // How it ended is for the two sides to find out.
            let _ = serve(client, server, bell, rule).await;
            open.fetch_sub(1, Ordering::SeqCst);
        });
    }
}

async fn serve(
    client: TcpStream,
    server: SocketAddr,
    bell: Bell,
    mut rule: watch::Receiver<Rule>,
) -> std::io::Result<()> {
    let begun = rule.borrow().resets;
    // While packets are lost nobody connects.
    let passes = |rule: &Rule| rule.resets != begun || !(rule.to_server.stalled || rule.to_client.stalled);
    if rule.wait_for(passes).await.is_err() {
        return Ok(());
    }
    let server = match TcpStream::connect(server).await {
        Ok(server) => server,
        Err(error) => {
            bell.look().await;
            return Err(error);
        }
    };
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let forth = async {
        pump(&mut from_client, &mut to_server, rule.clone(), begun, |rule| rule.to_server).await?;
        to_server.shutdown().await
    };
    let back = async {
        pump(&mut from_server, &mut to_client, rule.clone(), begun, |rule| rule.to_client).await?;
        // Clients that lose a connection try again at once, and must find the door shut if the server is gone.
        bell.look().await;
        to_client.shutdown().await
    };
    let ended = tokio::try_join!(forth, back);
    if ended.is_err() {
        bell.look().await;
    }
    ended.map(|_| ())
}

/// Passes on one direction, but for its end. An error ends both.
async fn pump(
    from: &mut OwnedReadHalf,
    to: &mut OwnedWriteHalf,
    mut rule: watch::Receiver<Rule>,
    begun: u64,
    flow: fn(&Rule) -> Flow,
) -> std::io::Result<()> {
    let over = || std::io::Error::from(std::io::ErrorKind::ConnectionReset);
    let mut chance = Chance::new();
    let mut piece = vec![0; 64 * 1024];
    loop {
        let mut watched = rule.clone();
        let read = tokio::select! {
            read = from.read(&mut piece) => read?,
            _ = watched.wait_for(|rule| rule.resets != begun) => return Err(over()),
        };
        let now = *rule.wait_for(|rule| rule.resets != begun || !flow(rule).stalled).await.map_err(|_| over())?;
        if now.resets != begun {
            return Err(over());
        }
        if read == 0 {
            return Ok(());
        }
        let Flow { delay, lost_per_mille, .. } = flow(&now);
        let again = if chance.befalls(lost_per_mille) { RETRANSMISSION } else { Duration::ZERO };
        tokio::time::sleep(delay + again).await;
        to.write_all(&piece[..read]).await?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::relay::door::stop_listening;
    use std::io::{ErrorKind, Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::time::Instant;

    const PATIENCE: Duration = Duration::from_secs(10);

    /// A server's listener, and what the relay answers whoever connects.
    fn served() -> (TcpListener, Relay) {
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        let relay = Relay::start("127.0.0.1:0".parse().unwrap(), server.local_addr().unwrap()).unwrap();
        (server, relay)
    }

    fn connect(relay: &Relay, server: &TcpListener) -> (TcpStream, TcpStream) {
        let mut client = TcpStream::connect(relay.address).unwrap();
        client.write_all(b"x").unwrap();
        let (mut accepted, _) = server.accept().unwrap();
        accepted.read_exact(&mut [0]).unwrap();
        client.set_read_timeout(Some(PATIENCE)).unwrap();
        (client, accepted)
    }

    fn refuses(relay: &Relay) -> bool {
        TcpStream::connect(relay.address).is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused)
    }

    /// By the time a client learns of the end of its connection, nobody can make another.
    #[test]
    fn a_server_that_is_gone_refuses() {
        for orderly in [true, false] {
            let (server, relay) = served();
            let at = server.local_addr().unwrap();
            let (mut client, accepted) = connect(&relay, &server);
            if !orderly {
                // Closed with something unread, it is reset.
                client.write_all(b"unread").unwrap();
                let until = Instant::now() + PATIENCE;
                while accepted.peek(&mut [0; 6]).unwrap() < 6 {
                    assert!(Instant::now() < until);
                }
            }
            stop_listening(&server).unwrap();
            drop((server, accepted));
            assert!(matches!(client.read(&mut [0]), Ok(0) | Err(_)));
            assert!(refuses(&relay));
            let _again = TcpListener::bind(at).unwrap();
            let until = Instant::now() + PATIENCE;
            while refuses(&relay) {
                assert!(Instant::now() < until);
            }
        }
    }

    #[test]
    fn a_connection_that_ends_is_not_the_end_of_the_server() {
        let (server, relay) = served();
        let (mut client, accepted) = connect(&relay, &server);
        drop(accepted);
        assert_eq!(client.read(&mut [0]).unwrap(), 0);
        connect(&relay, &server);
    }
}
