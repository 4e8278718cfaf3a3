use crate::refusals::{Reason, Refusals};
use quinn::udp::{RecvMeta, Transmit};
use quinn::{AsyncUdpSocket, UdpPoller};
use std::io::{self, IoSliceMut};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

/// A first byte with this bit belongs to a packet of a handshake, which names its version.
const LONG_HEADER: u8 = 0x80;
/// Set in every packet of version 1; that a peer may clear it is not negotiated here.
const FIXED_BIT: u8 = 0x40;
const VERSION: [u8; 4] = 1u32.to_be_bytes();

/// What the kernel takes at once, however many datagrams it makes of it: the largest one over IPv4.
const SEND_BYTES_MAX: usize = 65_507;

/// A UDP socket as QUIC uses it here: it sends no more at once than the kernel takes, and counts what comes and cannot
/// be QUIC. The datagrams are handed on as they are: the endpoint drops them.
#[derive(Debug)]
pub(crate) struct Datagrams {
    socket: Arc<dyn AsyncUdpSocket>,
    /// Of datagrams of the largest size.
    segments_max: usize,
    /// `None` where nobody is let in.
    refusals: Option<Arc<Refusals>>,
}

impl Datagrams {
    /// `bytes_max`: the largest datagram that will be sent.
    pub(crate) fn new(socket: Arc<dyn AsyncUdpSocket>, bytes_max: u16, refusals: Option<Arc<Refusals>>) -> Datagrams {
        Datagrams { socket, segments_max: segments_max(bytes_max), refusals }
    }

    fn look(&self, bytes: &[u8], meta: &RecvMeta) {
        let Some(refusals) = &self.refusals else { return };
        let bytes = &bytes[..meta.len.min(bytes.len())];
        for datagram in bytes.chunks(meta.stride.max(1)) {
            if !may_be_quic(datagram) {
                let detail = format!("{} bytes on the UDP port that are not QUIC version 1", datagram.len());
                refusals.refuse(Reason::Garbage, meta.addr, &detail);
            }
        }
    }
}

/// More at once is refused by the kernel as one datagram too large, which QUIC takes for a loss on the way: it would
/// lose every full batch over a link with jumbo frames.
fn segments_max(bytes_max: u16) -> usize {
    (SEND_BYTES_MAX / usize::from(bytes_max.max(1))).max(1)
}

fn may_be_quic(datagram: &[u8]) -> bool {
    match datagram {
        [first, version @ ..] if first & LONG_HEADER != 0 => version.starts_with(&VERSION),
        [first, ..] => first & FIXED_BIT != 0,
        [] => false,
    }
}

impl AsyncUdpSocket for Datagrams {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        Arc::clone(&self.socket).create_io_poller()
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        self.socket.try_send(transmit)
    }

    fn poll_recv(
        &self,
        cx: &mut Context<'_>,
        buffers: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        let received = ready!(self.socket.poll_recv(cx, buffers, meta))?;
        for (buffer, meta) in buffers.iter().zip(&*meta).take(received) {
            self.look(buffer, meta);
        }
        Poll::Ready(Ok(received))
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    fn max_transmit_segments(&self) -> usize {
        self.socket.max_transmit_segments().min(self.segments_max)
    }

    fn max_receive_segments(&self) -> usize {
        self.socket.max_receive_segments()
    }

    fn may_fragment(&self) -> bool {
        self.socket.may_fragment()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_sent_at_once_is_no_more_than_the_kernel_takes() {
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let peer = socket.local_addr().unwrap();
        for bytes in [1200, 1452, 8952, u16::MAX - 8] {
            let whole = segments_max(bytes) * usize::from(bytes);
            assert!(whole <= SEND_BYTES_MAX || segments_max(bytes) == 1, "{bytes}");
        }
        assert!(socket.send_to(&[0; SEND_BYTES_MAX], peer).is_ok());
        assert!(socket.send_to(&[0; SEND_BYTES_MAX + 1], peer).is_err());
    }

    #[test]
    fn what_cannot_be_quic_is_told_apart() {
        assert!(may_be_quic(&[0xc0, 0, 0, 0, 1, 8]));
        assert!(may_be_quic(&[0x43, 1, 2]));
        assert!(!may_be_quic(&[]));
        assert!(!may_be_quic(b"\x00\x01"));
        assert!(!may_be_quic(&[0xc0, 0, 0, 0, 2, 8]), "another version");
        assert!(!may_be_quic(&[0xc0, 0, 0]), "too short");
        assert!(!may_be_quic("ÿgarbage".as_bytes()));
    }
}
