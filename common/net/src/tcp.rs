use rustix::io::Errno;
use socket2::{Domain, Protocol, SockRef, Socket, TcpKeepalive, Type};
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::time::Duration;
use tokio::io::Interest;
use tokio::net::{TcpListener, TcpStream};

/// Connections that may wait to be accepted, as the original's (wire-protocol, "1.1").
pub const BACKLOG: u32 = 1000;

/// A peer that vanished without a word is noticed after the first plus three further of these: one minute.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(30);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
const KEEPALIVE_RETRIES: u32 = 3;

/// Listens on `addr`, also while connections of a former process linger there. `[::]` takes IPv4 as well. Must be
/// called within a tokio runtime.
pub fn listen(addr: SocketAddr, backlog: u32) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(addr), Type::STREAM.nonblocking(), Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    if addr.is_ipv6() {
        socket.set_only_v6(false)?;
    }
    socket.bind(&addr.into())?;
    socket.listen(i32::try_from(backlog).unwrap_or(i32::MAX))?;
    TcpListener::from_std(socket.into())
}

/// As [`listen`]; where `addr` leaves the port to the system, one whose UDP side is free as well a moment later.
pub fn listen_beside_udp(addr: SocketAddr, backlog: u32) -> io::Result<TcpListener> {
    /// The UDP sides of that many ports in a row are not taken by chance.
    const TRIES: u32 = 16;
    let mut tries = 0;
    loop {
        let listener = listen(addr, backlog)?;
        tries += 1;
        if addr.port() != 0 || tries == TRIES || std::net::UdpSocket::bind(listener.local_addr()?).is_ok() {
            return Ok(listener);
        }
    }
}

/// Sends small answers at once and notices dead peers.
pub fn tune(stream: &TcpStream) -> io::Result<()> {
    let keepalive =
        TcpKeepalive::new().with_time(KEEPALIVE_IDLE).with_interval(KEEPALIVE_INTERVAL).with_retries(KEEPALIVE_RETRIES);
    stream.set_nodelay(true)?;
    SockRef::from(stream).set_tcp_keepalive(&keepalive)
}

/// Of Linux: more follows at once, and goes out in one packet with this.
const MSG_MORE: i32 = 0x8000;

/// Sends some of `bytes` in one try that does not wait, held back until what follows them at once is sent as well: the
/// peer then wakes once for both. [`io::ErrorKind::WouldBlock`] as of [`sendfile`].
pub fn send_ahead(stream: &TcpStream, bytes: &[u8]) -> io::Result<usize> {
    stream.try_io(Interest::WRITABLE, || SockRef::from(stream).send_with_flags(bytes, MSG_MORE))
}

/// Sends up to `bytes` bytes of `file` from `position` on, within the kernel, in one try that does not wait for the
/// socket: how many were taken, or [`io::ErrorKind::WouldBlock`] when the socket has no room; await
/// [`TcpStream::writable`] then. It may wait for the disk when the bytes are not in the page cache. 0 means that the
/// file ends at or before `position`.
pub fn sendfile(stream: &TcpStream, file: impl AsFd, position: u64, bytes: usize) -> io::Result<usize> {
    stream.try_io(Interest::WRITABLE, || {
        let mut position = position;
        loop {
            match rustix::fs::sendfile(stream, &file, Some(&mut position), bytes) {
                Err(Errno::INTR) => {}
                sent => return Ok(sent?),
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use tokio::io::AsyncReadExt;

    async fn pair(addr: &str) -> (TcpStream, TcpStream) {
        let listener = listen(addr.parse().unwrap(), BACKLOG).unwrap();
        let (connected, accepted) = tokio::join!(TcpStream::connect(listener.local_addr().unwrap()), listener.accept());
        (connected.unwrap(), accepted.unwrap().0)
    }

    #[tokio::test]
    async fn streams_are_tuned() {
        let (stream, _peer) = pair("127.0.0.1:0").await;
        tune(&stream).unwrap();
        assert!(stream.nodelay().unwrap());
        assert!(SockRef::from(&stream).keepalive().unwrap());
        assert_eq!(SockRef::from(&stream).tcp_keepalive_time().unwrap(), KEEPALIVE_IDLE);
    }

    #[tokio::test]
    async fn a_port_is_free_again_at_once() {
        let first = listen("127.0.0.1:0".parse().unwrap(), BACKLOG).unwrap();
        let addr = first.local_addr().unwrap();
        let (_stream, accepted) = tokio::join!(TcpStream::connect(addr), first.accept());
        // The side that closes first lingers in TIME_WAIT.
        drop((accepted, first));
        listen(addr, BACKLOG).unwrap();
    }

    #[tokio::test]
    async fn a_port_of_the_systems_choice_is_free_for_udp() {
        let listener = listen_beside_udp("127.0.0.1:0".parse().unwrap(), BACKLOG).unwrap();
        std::net::UdpSocket::bind(listener.local_addr().unwrap()).unwrap();
        // A port that was asked for is taken whatever its UDP side is.
        let udp = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        if let Ok(listener) = listen_beside_udp(udp.local_addr().unwrap(), BACKLOG) {
            assert_eq!(listener.local_addr().unwrap().port(), udp.local_addr().unwrap().port());
        }
    }

    #[tokio::test]
    async fn the_unspecified_ipv6_address_takes_ipv4_too() {
        let Ok(listener) = listen("[::]:0".parse().unwrap(), BACKLOG) else { return }; // no IPv6 on this machine
        let port = listener.local_addr().unwrap().port();
        let (connected, _) = tokio::join!(TcpStream::connect(("127.0.0.1", port)), listener.accept());
        connected.unwrap();
    }

    #[tokio::test]
    async fn what_goes_ahead_of_a_file_arrives_with_it() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"and the rest").unwrap();
        let (stream, mut peer) = pair("127.0.0.1:0").await;
        stream.writable().await.unwrap();
        assert_eq!(send_ahead(&stream, b"the head ").unwrap(), 9);
        assert_eq!(sendfile(&stream, &file, 0, 12).unwrap(), 12);
        let mut all = vec![0; 64];
        // Of one packet, so of one read.
        let read = peer.read(&mut all).await.unwrap();
        assert_eq!(&all[..read], b"the head and the rest");
    }

    #[tokio::test]
    async fn a_file_goes_to_a_socket_in_pieces() {
        let content: Vec<u8> = (0..8 << 20).map(|i: u32| (i % 251) as u8).collect();
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&content).unwrap();
        let (stream, mut peer) = pair("127.0.0.1:0").await;
        let (from, to) = (3usize, content.len());
        let send = async {
            let (mut at, mut waits) = (from, 0);
            while at < to {
                match sendfile(&stream, &file, at as u64, to - at) {
                    Ok(sent) => at += sent,
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                        waits += 1;
                        stream.writable().await.unwrap();
                    }
                    Err(error) => panic!("{error}"),
                }
            }
            assert_eq!(sendfile(&stream, &file, to as u64, 1).unwrap(), 0);
            waits
        };
        let mut received = vec![0; to - from];
        let (waits, _) = tokio::join!(send, async { peer.read_exact(&mut received).await.unwrap() });
        assert!(waits > 0, "8 MiB fitted into the socket's buffers");
        assert!(received == content[from..]);
    }
}
