use bytes::{Bytes, BytesMut};
use metaq_client::{Client, ClientError, GetAnswer};
use metaq_net::quic::{self, Connection, RecvStream, SendStream};
use metaq_types::{Offset, Opaque, PartitionId};
use metaq_wire::{Response, decode_response};
use std::time::Duration;

use super::transport::Way;

/// The most packets whose bytes are taken from a stream at once: each time, the whole connection is locked.
const CHUNKS_MAX: usize = 32;

/// One get of a partition.
pub(super) struct Question<'a> {
    pub(super) partition: &'a PartitionId,
    pub(super) group: &'a str,
    pub(super) offset: i64,
    pub(super) max_bytes: i32,
    pub(super) wait: Option<Duration>,
    /// Where what is stored ends, when that is before `offset`: the master heeds it.
    pub(super) held: Option<Offset>,
}

/// The way the gets of one partition take.
pub(super) enum Lane {
    /// With all others, over one connection.
    Shared(Client),
    /// On a stream of its own, so that no partition waits behind another.
    Own(Box<OwnStream>),
}

impl Lane {
    pub(super) fn of(way: &Way) -> Lane {
        match &way.streams {
            None => Lane::Shared(way.client.clone()),
            Some(connection) => Lane::Own(Box::new(OwnStream { connection: connection.clone(), open: None, asked: 0 })),
        }
    }

    /// Whether an error ends only the stream it happened on.
    pub(super) fn outlives_an_error(&self) -> bool {
        match self {
            Lane::Shared(_) => false,
            Lane::Own(stream) => stream.connection.close_reason().is_none(),
        }
    }

    /// Asks, and waits for the answer. May be cancelled; the next question is then asked on a new stream.
    pub(super) async fn get(&mut self, question: &Question<'_>) -> Result<GetAnswer, ClientError> {
        let Question { partition, group, offset, max_bytes, wait, held } = *question;
        match self {
            Lane::Shared(client) => {
                let number = i32::try_from(partition.number).unwrap_or(i32::MAX);
                match held {
                    None => client.get(&partition.topic, group, number, offset, max_bytes, wait).await,
                    Some(held) => client.get_ahead(&partition.topic, group, number, offset, max_bytes, held).await,
                }
            }
            Lane::Own(stream) => stream.get(question).await,
        }
    }
}

/// Opened with the first question. It holds no buffer while it waits for an answer.
pub(super) struct OwnStream {
    connection: Connection,
    /// Idle: nothing is asked and nothing unread.
    open: Option<(SendStream, RecvStream)>,
    asked: i32,
}

impl OwnStream {
    async fn get(&mut self, question: &Question<'_>) -> Result<GetAnswer, ClientError> {
        // Taken out, so that a question that is given up leaves no stream with half an answer.
        let (mut sender, mut receiver) = match self.open.take() {
            Some(open) => open,
            None => self.connection.open_bi().await.map_err(|error| self.closed(quic::explain(&error)))?,
        };
        self.asked = self.asked.wrapping_add(1) & i32::MAX;
        let opaque = Opaque(self.asked);
        let mut request = BytesMut::with_capacity(128);
        let number = i32::try_from(question.partition.number).unwrap_or(i32::MAX);
        let Question { group, offset, max_bytes, wait, held, .. } = *question;
        let topic = &question.partition.topic;
        metaq_wire::encode_get(&mut request, topic, group, number, offset, max_bytes, opaque, wait, held);
        sender.write_all(&request).await.map_err(|error| self.closed(error.to_string()))?;
        let response = self.read(&mut receiver, max_bytes).await?;
        if response.opaque() != opaque {
            return Err(ClientError::Protocol(format!(
                "an answer to {:?} where one to {opaque:?} was due",
                response.opaque()
            )));
        }
        self.open = Some((sender, receiver));
        GetAnswer::read(response)
    }

    async fn read(&self, receiver: &mut RecvStream, max_bytes: i32) -> Result<Response, ClientError> {
        let mut input = BytesMut::new();
        loop {
            let mut chunks = [const { Bytes::new() }; CHUNKS_MAX];
            let read = receiver.read_chunks(&mut chunks).await.map_err(|error| self.closed(error.to_string()))?;
            let Some(read) = read else { return Err(self.closed("the master ended the stream".to_owned())) };
            for chunk in &chunks[..read] {
                input.extend_from_slice(chunk);
            }
            match decode_response(&mut input) {
                Ok(Some(response)) => return Ok(response),
                // The rest follows: room for it is made once.
                Ok(None) => input.reserve(usize::try_from(max_bytes).unwrap_or(0).saturating_sub(input.len())),
                Err(error) => return Err(ClientError::Protocol(error.to_string())),
            }
        }
    }

    fn closed(&self, reason: String) -> ClientError {
        ClientError::Closed { addr: self.connection.remote_address().to_string(), reason }
    }
}
