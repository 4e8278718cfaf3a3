use crate::calls::Calls;
use bytes::{Buf, BytesMut};
use metaq_wire::decode_response;
use std::io;
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// Room kept in the read buffer.
const READ_BYTES: usize = 64 * 1024;

/// Moves bytes between the stream and the calls until one side of the connection ends. Reading goes on while a write
/// waits: a broker that cannot send its answers stops reading requests.
pub(crate) async fn run(reader: impl AsyncRead + Unpin, writer: impl AsyncWrite + Unpin, calls: Arc<Calls>) {
    let reason = tokio::select! {
        reason = read(reader, &calls) => reason,
        error = write(writer, &calls) => error.to_string(),
    };
    tracing::debug!(peer = %calls.addr, reason, "connection ended");
    calls.end(reason);
}

async fn read(mut reader: impl AsyncRead + Unpin, calls: &Calls) -> String {
    let mut buf = BytesMut::with_capacity(READ_BYTES);
    loop {
        match reader.read_buf(&mut buf).await {
            Ok(0) if buf.is_empty() => return "the broker closed it".to_owned(),
            Ok(0) => return format!("the broker closed it within an answer, after {} bytes of it", buf.len()),
            Ok(_) => {}
            Err(error) => return error.to_string(),
        }
        loop {
            match decode_response(&mut buf) {
                Ok(Some(response)) => calls.answer(response),
                Ok(None) => break,
                Err(error) => return error.to_string(),
            }
        }
        if buf.capacity() - buf.len() < READ_BYTES / 2 {
            buf.reserve(READ_BYTES);
        }
    }
}

/// Ends only with an error. What gathered during a write goes out with the next one.
async fn write(mut writer: impl AsyncWrite + Unpin, calls: &Calls) -> io::Error {
    loop {
        let mut out = calls.outgoing().await;
        while out.has_remaining() {
            if let Err(error) = writer.write_buf(&mut out).await {
                return error;
            }
        }
        // A stream that encrypts may hold some of it back.
        if let Err(error) = writer.flush().await {
            return error;
        }
    }
}
