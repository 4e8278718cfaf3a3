//! A relay between two processes, for TCP and for UDP, which can be told to delay, to lose, to reorder, to stall one
//! direction or both, and to reset.
//!
//! Over TCP a stalled direction loses nothing and passes on nothing, not even an end: what TCP makes of lost packets, as
//! long as they are lost. What was held back arrives when the direction is opened again. A lost piece arrives late, as
//! after a retransmission, and nothing is reordered. Over UDP packets are lost and reordered as told.

mod chance;
mod datagrams;

use crate::relay::chance::Chance;
use anyhow::{Context, Result};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
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
        let listener = runtime
            .block_on(TcpListener::bind(listen))
            .with_context(|| format!("the relay cannot listen on {listen}"))?;
        let address = listener.local_addr()?;
        let rule = watch::Sender::new(Rule::default());
        let open = Arc::new(AtomicUsize::new(0));
        runtime.spawn(accept(listener, server, rule.subscribe(), Arc::clone(&open)));
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

async fn accept(listener: TcpListener, server: SocketAddr, rule: watch::Receiver<Rule>, open: Arc<AtomicUsize>) {
    while let Ok((client, _)) = listener.accept().await {
        let (rule, open) = (rule.clone(), Arc::clone(&open));
        tokio::spawn(async move {
            open.fetch_add(1, Ordering::SeqCst);
            // How it ended is for the two sides to find out.
            let _ = serve(client, server, rule).await;
            open.fetch_sub(1, Ordering::SeqCst);
        });
    }
}

async fn serve(client: TcpStream, server: SocketAddr, mut rule: watch::Receiver<Rule>) -> std::io::Result<()> {
    let begun = rule.borrow().resets;
    // While packets are lost nobody connects.
    let passes = |rule: &Rule| rule.resets != begun || !(rule.to_server.stalled || rule.to_client.stalled);
    if rule.wait_for(passes).await.is_err() {
        return Ok(());
    }
    let server = TcpStream::connect(server).await?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    tokio::try_join!(
        pump(from_client, to_server, rule.clone(), begun, |rule| rule.to_server),
        pump(from_server, to_client, rule, begun, |rule| rule.to_client),
    )?;
    Ok(())
}

/// Passes on one direction until its end. An error ends both.
async fn pump(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
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
            return to.shutdown().await;
        }
        let Flow { delay, lost_per_mille, .. } = flow(&now);
        let again = if chance.befalls(lost_per_mille) { RETRANSMISSION } else { Duration::ZERO };
        tokio::time::sleep(delay + again).await;
        to.write_all(&piece[..read]).await?;
    }
}
