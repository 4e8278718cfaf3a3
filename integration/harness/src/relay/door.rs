//! A listener that is there only while somebody listens behind it: whoever connects meanwhile is refused, as by the
//! server's own kernel, and not accepted only to be told that there is nobody.

use anyhow::{Context, Result};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::AsFd;
use std::time::Duration;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::{mpsc, oneshot};

/// How often a server that was not there is looked for: it is found before it has told anybody that it is there.
const LOOK: Duration = Duration::from_millis(5);

const BACKLOG: u32 = 128;

pub(super) struct Door {
    address: SocketAddr,
    server: SocketAddr,
    /// Keeps the port while nobody listens.
    _keeper: TcpSocket,
    listener: Option<TcpListener>,
    asked: mpsc::Receiver<oneshot::Sender<()>>,
}

/// For those who notice that the server may be gone.
#[derive(Clone)]
pub(super) struct Bell(mpsc::Sender<oneshot::Sender<()>>);

impl Bell {
    /// Returns when nobody is let in any more, unless the server is there.
    pub(super) async fn look(&self) {
        let (done, looked) = oneshot::channel();
        if self.0.send(done).await.is_ok() {
            // An error: the relay is over.
            let _ = looked.await;
        }
    }
}

impl Door {
    pub(super) fn new(address: SocketAddr, server: SocketAddr) -> Result<(Door, Bell)> {
        let keeper = bound(address)?;
        let address = keeper.local_addr()?;
        let (ring, asked) = mpsc::channel(1);
        let mut door = Door { address, server, _keeper: keeper, listener: None, asked };
        door.adjust()?;
        Ok((door, Bell(ring)))
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// The next connection.
    pub(super) async fn accept(&mut self) -> Result<TcpStream> {
        loop {
            let accepted = async {
                match &self.listener {
                    Some(listener) => listener.accept().await.map(|(client, _)| Some(client)),
                    None => {
                        tokio::time::sleep(LOOK).await;
                        Ok(None)
                    }
                }
            };
            let done = tokio::select! {
                biased;
                Some(done) = self.asked.recv() => Some(done),
                accepted = accepted => match accepted? {
                    Some(client) => return Ok(client),
                    None => None,
                },
            };
            self.adjust()?;
            if let Some(done) = done {
                // An error: whoever asked has gone.
                let _ = done.send(());
            }
        }
    }

    /// Listens if the server does.
    fn adjust(&mut self) -> Result<()> {
        if !is_listened_at(self.server)? {
            if let Some(listener) = self.listener.take() {
                stop_listening(&listener).context("the relay cannot stop listening")?;
            }
        } else if self.listener.is_none() {
            let listening = bound(self.address)?.listen(BACKLOG);
            self.listener = Some(listening.with_context(|| format!("the relay cannot listen on {}", self.address))?);
        }
        Ok(())
    }
}

/// Closing it is not enough: for a moment a process that another thread has just started holds it as well, and whoever
/// came meanwhile would be let in only to be cut off.
pub(super) fn stop_listening(listener: impl AsFd) -> io::Result<()> {
    Ok(rustix::net::shutdown(listener, rustix::net::Shutdown::Both)?)
}

fn bound(address: SocketAddr) -> Result<TcpSocket> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    socket.set_reuseaddr(true)?;
    socket.bind(address).with_context(|| format!("the relay cannot have {address}"))?;
    Ok(socket)
}

/// By the kernel's tables for the network namespace of this thread, so that the server notices nothing.
fn is_listened_at(server: SocketAddr) -> Result<bool> {
    let reaches = |address: &SocketAddr| {
        let ip = address.ip().to_canonical();
        address.port() == server.port() && (ip == server.ip().to_canonical() || ip.is_unspecified())
    };
    let mut found = false;
    for table in ["tcp", "tcp6"] {
        match std::fs::read_to_string(format!("/proc/thread-self/net/{table}")) {
            Ok(table) => found |= table.lines().filter_map(listening).any(|address| reaches(&address)),
            // A kernel without IPv6.
            Err(error) if error.kind() == io::ErrorKind::NotFound && table == "tcp6" => {}
            Err(error) => return Err(error).context("cannot see who listens"),
        }
    }
    Ok(found)
}

/// The address of a line of those tables, if it stands for a listener.
fn listening(line: &str) -> Option<SocketAddr> {
    const LISTEN: &str = "0A";
    let mut words = line.split_ascii_whitespace().skip(1);
    let (ip, port) = words.next()?.split_once(':')?;
    if words.nth(1)? != LISTEN {
        return None;
    }
    // Words of 32 bits in the order of this machine, which hold their bytes in the order of the network.
    let word = |at: usize| Some(u32::from_str_radix(ip.get(8 * at..8 * at + 8)?, 16).ok()?.to_ne_bytes());
    let ip = match ip.len() {
        8 => IpAddr::V4(Ipv4Addr::from(word(0)?)),
        _ => {
            let words = [word(0)?, word(1)?, word(2)?, word(3)?];
            IpAddr::V6(Ipv6Addr::from(<[u8; 16]>::try_from(words.concat()).ok()?))
        }
    };
    Some(SocketAddr::new(ip, u16::from_str_radix(port, 16).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listeners_are_told_from_connections() {
        let line =
            |local: &str, state: &str| format!("  0: {local} 00000000:0000 {state} 00000000:00000000 00:00000000");
        let v4 = u32::from_ne_bytes([127, 0, 0, 11]);
        assert_eq!(listening(&line(&format!("{v4:08X}:1FBB"), "0A")), Some("127.0.0.11:8123".parse().unwrap()));
        assert_eq!(listening(&line(&format!("{v4:08X}:1FBB"), "01")), None);
        let (mapped, v4) = (u32::from_ne_bytes([0, 0, 255, 255]), u32::from_ne_bytes([127, 0, 0, 1]));
        let v6 = format!("0000000000000000{mapped:08X}{v4:08X}:0050");
        assert_eq!(listening(&line(&v6, "0A")), Some("[::ffff:127.0.0.1]:80".parse().unwrap()));
        assert_eq!(listening("  sl  local_address rem_address   st tx_queue rx_queue"), None);
    }

    #[test]
    fn listeners_of_both_families_are_found() {
        for address in ["127.0.0.1:0", "0.0.0.0:0", "[::ffff:127.0.0.1]:0"] {
            let listener = std::net::TcpListener::bind(address).unwrap();
            let at = SocketAddr::from(([127, 0, 0, 1], listener.local_addr().unwrap().port()));
            assert!(is_listened_at(at).unwrap(), "{address}");
        }
        let elsewhere = std::net::TcpListener::bind("127.0.0.2:0").unwrap();
        let port = elsewhere.local_addr().unwrap().port();
        assert!(!is_listened_at(SocketAddr::from(([127, 0, 0, 1], port))).unwrap());
    }

    #[test]
    fn nobody_listens_any_more_though_somebody_still_holds_the_listener() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let (at, _held) = (listener.local_addr().unwrap(), listener.try_clone().unwrap());
        stop_listening(&listener).unwrap();
        drop(listener);
        assert!(!is_listened_at(at).unwrap());
        let refused = std::net::TcpStream::connect(at).map_err(|error| error.kind());
        assert_eq!(refused.err(), Some(io::ErrorKind::ConnectionRefused));
        let _again = std::net::TcpListener::bind(at).unwrap();
    }
}
