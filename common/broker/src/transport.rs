//! What a session needs of a byte stream: plain TCP, which takes files from the kernel, and streams that encrypt, for
//! which file bytes pass through a buffer.

use metaq_net::quic::{RecvStream, SendStream};
use metaq_net::tls::TlsStream;
use metaq_store::Slice;
use parking_lot::Mutex;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, Join, ReadBuf};
use tokio::net::TcpStream;

/// A stream as a session uses it. A method that answers `Pending` has left the task's waker, but for
/// [`Transport::poll_send`] and what goes ahead of it.
pub(crate) trait Transport: Send + Unpin + 'static {
    /// Room made before a read.
    const READ_BYTES: usize;
    /// Closing with unread bytes would take the last answer with it, so the peer's are read away for a moment.
    const LINGERS: bool;

    fn poll_read(&mut self, cx: &mut Context<'_>, window: &mut ReadBuf<'_>) -> Poll<io::Result<()>>;

    /// Takes some of `bytes`, perhaps only into a buffer.
    fn poll_write(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>>;

    /// As [`Transport::poll_write`], with a slice right behind; `Pending` as of [`Transport::poll_send`].
    fn poll_write_ahead(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_write(cx, bytes)
    }

    /// Takes some of a slice behind its first `sent` bytes; `Pending` when there is no room, and
    /// [`Transport::poll_writable`] tells when there is.
    fn poll_send(&mut self, cx: &mut Context<'_>, slice: &Slice, sent: u32) -> Poll<io::Result<usize>>;

    /// Ready when what was refused may be tried again.
    fn poll_writable(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>>;

    /// Sends what was taken into a buffer.
    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>>;

    fn is_flushed(&self) -> bool;

    /// Tells the peer that nothing more comes.
    fn poll_close(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>>;
}

impl Transport for TcpStream {
    const READ_BYTES: usize = 16 * 1024;
    const LINGERS: bool = true;

    fn poll_read(&mut self, cx: &mut Context<'_>, window: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        AsyncRead::poll_read(Pin::new(self), cx, window)
    }

    fn poll_write(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        AsyncWrite::poll_write(Pin::new(self), cx, bytes)
    }

    fn poll_write_ahead(&mut self, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match metaq_net::tcp::send_ahead(self, bytes) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Poll::Pending,
            sent => Poll::Ready(sent),
        }
    }

    fn poll_send(&mut self, _: &mut Context<'_>, slice: &Slice, sent: u32) -> Poll<io::Result<usize>> {
        let (position, left) = (slice.position() + u64::from(sent), (slice.len() - sent) as usize);
        match metaq_net::tcp::sendfile(self, slice.file(), position, left) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Poll::Pending,
            sent => Poll::Ready(sent),
        }
    }

    fn poll_writable(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_write_ready(cx)
    }

    fn poll_flush(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn is_flushed(&self) -> bool {
        true
    }

    fn poll_close(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        AsyncWrite::poll_shutdown(Pin::new(self), cx)
    }
}

/// A stream that encrypts.
pub(crate) trait Encrypting: AsyncRead + AsyncWrite + Send + Unpin + 'static {
    const READ_BYTES: usize;
    const LINGERS: bool;
}

impl Encrypting for TlsStream<TcpStream> {
    const READ_BYTES: usize = 16 * 1024;
    const LINGERS: bool = true;
}

/// One stream of a connection between nodes, of which there are many and on which requests are short.
impl Encrypting for Join<RecvStream, SendStream> {
    const READ_BYTES: usize = 512;
    /// What was written is delivered however much is left unread.
    const LINGERS: bool = false;
}

/// Gathers what is to be encrypted in a buffer, which it has only while something is in it.
pub(crate) struct Staged<S> {
    stream: S,
    buffers: Arc<Buffers>,
    out: Option<Buffer>,
    /// Given to the stream, which may still hold it.
    unflushed: bool,
}

impl<S: Encrypting> Staged<S> {
    pub(crate) fn new(stream: S, buffers: Arc<Buffers>) -> Staged<S> {
        Staged { stream, buffers, out: None, unflushed: false }
    }

    /// Gives the buffer's content to the stream and the buffer back.
    fn poll_push(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while let Some(out) = &mut self.out {
            if out.from == out.to {
                self.out = None;
                break;
            }
            let pushed = ready!(Pin::new(&mut self.stream).poll_write(cx, &out.bytes[out.from..out.to]))?;
            if pushed == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            out.from += pushed;
            self.unflushed = true;
        }
        Poll::Ready(Ok(()))
    }

    /// A buffer with room.
    fn poll_room(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<&mut Buffer>> {
        if self.out.as_ref().is_some_and(|out| out.to == out.bytes.len()) {
            ready!(self.poll_push(cx))?;
        }
        Poll::Ready(Ok(self.out.get_or_insert_with(|| self.buffers.take())))
    }
}

impl<S: Encrypting> Transport for Staged<S> {
    const READ_BYTES: usize = S::READ_BYTES;
    const LINGERS: bool = S::LINGERS;

    fn poll_read(&mut self, cx: &mut Context<'_>, window: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, window)
    }

    fn poll_write(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let out = ready!(self.poll_room(cx))?;
        let taken = bytes.len().min(out.bytes.len() - out.to);
        out.bytes[out.to..out.to + taken].copy_from_slice(&bytes[..taken]);
        out.to += taken;
        Poll::Ready(Ok(taken))
    }

    fn poll_send(&mut self, cx: &mut Context<'_>, slice: &Slice, sent: u32) -> Poll<io::Result<usize>> {
        let out = ready!(self.poll_room(cx))?;
        let taken = slice.read_at(sent, &mut out.bytes[out.to..])?;
        out.to += taken;
        Poll::Ready(Ok(taken))
    }

    fn poll_writable(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_flush(cx)
    }

    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_push(cx))?;
        if self.unflushed {
            ready!(Pin::new(&mut self.stream).poll_flush(cx))?;
            self.unflushed = false;
        }
        Poll::Ready(Ok(()))
    }

    fn is_flushed(&self) -> bool {
        self.out.is_none() && !self.unflushed
    }

    fn poll_close(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

const BUFFER_BYTES: usize = 64 * 1024;
/// Buffers of that size in use and kept, over all connections of a node: 32 MiB.
const BUFFERS_MAX: usize = 512;
/// While all of them are out, for instance to peers that do not read, a connection makes do with one of this size.
const SMALL_BUFFER_BYTES: usize = 4 * 1024;

/// The buffers of the connections that encrypt.
#[derive(Default)]
pub(crate) struct Buffers {
    kept: Mutex<Kept>,
}

#[derive(Default)]
struct Kept {
    free: Vec<Box<[u8]>>,
    made: usize,
}

/// Holds bytes `from..to`.
struct Buffer {
    bytes: Box<[u8]>,
    from: usize,
    to: usize,
    /// Whose it is; `None` for a small one.
    home: Option<Arc<Buffers>>,
}

impl Buffers {
    fn take(self: &Arc<Buffers>) -> Buffer {
        let mut kept = self.kept.lock();
        let free = kept.free.pop();
        if free.is_none() && kept.made >= BUFFERS_MAX {
            return Buffer { bytes: vec![0; SMALL_BUFFER_BYTES].into(), from: 0, to: 0, home: None };
        }
        kept.made += usize::from(free.is_none());
        drop(kept);
        let bytes = free.unwrap_or_else(|| vec![0; BUFFER_BYTES].into());
        Buffer { bytes, from: 0, to: 0, home: Some(Arc::clone(self)) }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if let Some(home) = self.home.take() {
            home.kept.lock().free.push(std::mem::take(&mut self.bytes));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_used_again_and_bounded() {
        let buffers = Arc::<Buffers>::default();
        drop(buffers.take());
        let mut out: Vec<Buffer> = (0..BUFFERS_MAX).map(|_| buffers.take()).collect();
        assert!(out.iter().all(|buffer| buffer.bytes.len() == BUFFER_BYTES));
        assert_eq!(buffers.kept.lock().made, BUFFERS_MAX);
        assert_eq!(buffers.take().bytes.len(), SMALL_BUFFER_BYTES, "nobody waits for a buffer");
        out.pop();
        assert_eq!(buffers.take().bytes.len(), BUFFER_BYTES);
        drop(out);
        assert_eq!(buffers.kept.lock().free.len(), BUFFERS_MAX);
    }
}
