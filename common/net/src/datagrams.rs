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

/// A UDP socket that counts what cannot be QUIC. The datagrams are handed on as they are: the endpoint drops them.
#[derive(Debug)]
pub(crate) struct Datagrams {
    socket: Arc<dyn AsyncUdpSocket>,
    refusals: Arc<Refusals>,
}

impl Datagrams {
    pub(crate) fn new(socket: Arc<dyn AsyncUdpSocket>, refusals: Arc<Refusals>) -> Datagrams {
        Datagrams { socket, refusals }
    }

    fn look(&self, bytes: &[u8], meta: &RecvMeta) {
        let bytes = &bytes[..meta.len.min(bytes.len())];
        for datagram in bytes.chunks(meta.stride.max(1)) {
            if !may_be_quic(datagram) {
                let detail = format!("{} bytes on the UDP port that are not QUIC version 1", datagram.len());
                self.refusals.refuse(Reason::Garbage, meta.addr, &detail);
            }
        }
    }
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
        self.socket.max_transmit_segments()
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
