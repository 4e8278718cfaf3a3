use crate::calls::{Calls, OUTSTANDING_MAX};
use crate::connection;
use crate::error::ClientError;
use bytes::{Bytes, BytesMut};
use metaq_net::tcp;
use metaq_types::{MessageId, Offset, Opaque, Status};
use metaq_wire::{Greeting, Response, Transaction, TransactionKey, ValueExtra};
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::task::AbortHandle;

/// How long an answer is waited for unless [`Client::with_timeout`] says otherwise.
pub const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// One connection to a broker. Clones share it; it is closed when the last is dropped.
///
/// Requests are written in the order they were asked, and may be answered in any. Every method may be cancelled by
/// dropping its future; what was asked may then have been done.
#[derive(Clone)]
pub struct Client {
    connection: Arc<Connection>,
    timeout: Duration,
}

struct Connection {
    calls: Arc<Calls>,
    task: AbortHandle,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Where a message was stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stored {
    pub id: MessageId,
    pub partition: u32,
    pub offset: Offset,
}

/// What a get found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GetAnswer {
    Value {
        body: Bytes,
        extra: Option<ValueExtra>,
    },
    /// Nothing at that offset yet.
    NotYet {
        /// As [`ValueExtra::confirmed`].
        confirmed: Option<Offset>,
    },
    /// The broker has no such partition, or nothing was ever put into it.
    NoPartition,
    /// Go on at this offset instead.
    Moved(Offset),
}

impl GetAnswer {
    /// What the answer to a get says.
    pub fn read(response: Response) -> Result<GetAnswer, ClientError> {
        match response {
            Response::Value { body, extra, .. } => Ok(GetAnswer::Value { body, extra }),
            Response::Result { code, body, .. } => match Status::from_code(code) {
                Some(Status::Moved) => parse_offset(text(&body)?).map(GetAnswer::Moved),
                // The two are told apart by their texts only.
                Some(Status::NotFound) if body.starts_with(b"The topic") => Ok(GetAnswer::NoPartition),
                Some(Status::NotFound) => Ok(GetAnswer::NotYet { confirmed: metaq_wire::confirmed_of(&body) }),
                _ => Err(answer(code, &body)),
            },
        }
    }
}

impl Client {
    /// Connects to `host:port` or `meta://host:port`, within `timeout`.
    pub async fn connect(addr: &str, timeout: Duration) -> Result<Client, ClientError> {
        Client::connect_for(addr, timeout, OUTSTANDING_MAX).await
    }

    /// The same for `outstanding_max` requests at a time; for who keeps a long poll for each of many partitions.
    pub async fn connect_for(addr: &str, timeout: Duration, outstanding_max: usize) -> Result<Client, ClientError> {
        let connecting = async {
            let stream = TcpStream::connect(host_and_port(addr)).await?;
            tcp::tune(&stream)?;
            Ok(stream)
        };
        let stream = match tokio::time::timeout(timeout, connecting).await {
            Ok(Ok(stream)) => stream,
            Ok(Err(source)) => return Err(ClientError::Connect { addr: addr.to_owned(), source }),
            Err(_) => {
                let source =
                    io::Error::new(io::ErrorKind::TimedOut, format!("no answer in {} ms", timeout.as_millis()));
                return Err(ClientError::Connect { addr: addr.to_owned(), source });
            }
        };
        let (reader, writer) = stream.into_split();
        Ok(Client::over(reader, writer, addr, outstanding_max))
    }

    /// Speaks over a stream that is open already, as over TLS or on a stream of QUIC; `addr` is what errors call the
    /// broker. Must be called within a tokio runtime.
    pub fn over(
        reader: impl AsyncRead + Unpin + Send + 'static,
        writer: impl AsyncWrite + Unpin + Send + 'static,
        addr: &str,
        outstanding_max: usize,
    ) -> Client {
        let calls = Arc::new(Calls::new(addr.to_owned(), outstanding_max));
        let task = tokio::spawn(connection::run(reader, writer, calls.clone())).abort_handle();
        Client { connection: Arc::new(Connection { calls, task }), timeout: REQUEST_TIMEOUT }
    }

    /// The same connection, with another patience.
    pub fn with_timeout(&self, timeout: Duration) -> Client {
        Client { connection: self.connection.clone(), timeout }
    }

    /// Returns when the connection has ended, with the reason.
    pub async fn closed(&self) -> ClientError {
        self.calls().ended().await
    }

    pub fn is_closed(&self) -> bool {
        self.calls().has_ended()
    }

    /// Stores one message; `partition` -1 leaves the choice to the broker. Flag bit 0 says that the body begins with
    /// an attribute.
    pub async fn put(&self, topic: &str, partition: i32, flag: i32, body: Bytes) -> Result<Stored, ClientError> {
        check_name("topic", topic)?;
        let checksum = Some(metaq_wire::checksum(&body));
        let response = self
            .call(body.len(), Duration::ZERO, |out, opaque| {
                metaq_wire::encode_put(out, topic, partition, flag, checksum, opaque, &body);
            })
            .await?;
        parse_stored(text(&success(response)?)?)
    }

    /// Reads stored records from `offset` on, about `max_bytes` of them. With `wait`, a broker that has nothing yet
    /// answers when it has, or after that long.
    pub async fn get(
        &self,
        topic: &str,
        group: &str,
        partition: i32,
        offset: i64,
        max_bytes: i32,
        wait: Option<Duration>,
    ) -> Result<GetAnswer, ClientError> {
        let held = wait.unwrap_or_default();
        let get = |out: &mut BytesMut, opaque| {
            metaq_wire::encode_get(out, topic, group, partition, offset, max_bytes, opaque, wait, None);
        };
        GetAnswer::read(self.read_call(topic, group, held, get).await?)
    }

    /// As [`Client::get`] without a wait, for a slave that holds only what lies before `held`; the master must heed that
    /// word, or it takes the slave to hold everything before `offset`.
    pub async fn get_ahead(
        &self,
        topic: &str,
        group: &str,
        partition: i32,
        offset: i64,
        max_bytes: i32,
        held: Offset,
    ) -> Result<GetAnswer, ClientError> {
        let get = |out: &mut BytesMut, opaque| {
            metaq_wire::encode_get(out, topic, group, partition, offset, max_bytes, opaque, None, Some(held));
        };
        GetAnswer::read(self.read_call(topic, group, Duration::ZERO, get).await?)
    }

    /// The start of the segment that holds `offset`, or the nearest end of the log (wire-protocol, "3.3"); `None`
    /// when the broker has no such partition.
    pub async fn offset(
        &self,
        topic: &str,
        group: &str,
        partition: i32,
        offset: i64,
    ) -> Result<Option<Offset>, ClientError> {
        let query = |out: &mut BytesMut, opaque| {
            metaq_wire::encode_offset(out, topic, group, partition, offset, opaque);
        };
        match self.read_call(topic, group, Duration::ZERO, query).await? {
            Response::Result { code, .. } if Status::from_code(code) == Some(Status::NotFound) => Ok(None),
            response => parse_offset(text(&success(response)?)?).map(Some),
        }
    }

    /// The broker's version, and with a greeting what it says of itself ([`Greeting::parse`] reads it). A greeting
    /// with `wait` is a long poll.
    pub async fn version(&self, greeting: Option<&Greeting>) -> Result<String, ClientError> {
        if let Some(greeting) = greeting.filter(|greeting| !greeting.node.is_empty()) {
            check_name("node", &greeting.node)?;
        }
        let wait = greeting.and_then(|greeting| greeting.wait).unwrap_or_default();
        let response = self.call(0, wait, |out, opaque| metaq_wire::encode_version(out, opaque, greeting)).await?;
        text(&success(response)?).map(str::to_owned)
    }

    /// The text of a `stats` command, lines ended by CR LF; `item` may be empty.
    pub async fn stats(&self, item: &str) -> Result<Bytes, ClientError> {
        if !item.is_empty() {
            check_name("stats item", item)?;
        }
        success(self.call(0, Duration::ZERO, |out, opaque| metaq_wire::encode_stats(out, item, opaque)).await?)
    }

    /// A command about a transaction: begin it, end it, list what is prepared. The answer's text, often empty. `End` is
    /// never answered and so not to be sent this way; the opaque of `transaction` is not used.
    pub async fn transaction(&self, transaction: &Transaction) -> Result<Bytes, ClientError> {
        success(
            self.call(0, Duration::ZERO, |out, opaque| {
                metaq_wire::encode_transaction(out, &Transaction { opaque, ..transaction.clone() });
            })
            .await?,
        )
    }

    /// Puts a message into a transaction; its id, since its place is known at the commit only.
    pub async fn put_in_transaction(
        &self,
        topic: &str,
        partition: i32,
        key: &TransactionKey,
        body: Bytes,
    ) -> Result<Bytes, ClientError> {
        check_name("topic", topic)?;
        success(
            self.call(body.len(), Duration::ZERO, |out, opaque| {
                metaq_wire::encode_transactional_put(out, topic, partition, 0, key, opaque, &body);
            })
            .await?,
        )
    }

    /// What a consumer group asks; `held` as of [`Client::call`].
    async fn read_call(
        &self,
        topic: &str,
        group: &str,
        held: Duration,
        encode: impl FnOnce(&mut BytesMut, Opaque),
    ) -> Result<Response, ClientError> {
        check_name("topic", topic)?;
        check_name("group", group)?;
        self.call(0, held, encode).await
    }

    /// `held` is how long the broker may hold the answer back by agreement.
    async fn call(
        &self,
        body_bytes: usize,
        held: Duration,
        encode: impl FnOnce(&mut BytesMut, Opaque),
    ) -> Result<Response, ClientError> {
        self.calls().call(body_bytes, self.timeout + held, encode).await
    }

    fn calls(&self) -> &Calls {
        &self.connection.calls
    }
}

/// The `host:port` of an address as brokers are registered: `meta://host:port`, slaves with `?slaveId=K` behind it.
pub fn host_and_port(addr: &str) -> &str {
    let addr = addr.strip_prefix("meta://").unwrap_or(addr);
    addr.split_once('?').map_or(addr, |(addr, _)| addr).trim_end_matches('/')
}

/// A blank or a line end in a name would be read as another request.
fn check_name(what: &str, name: &str) -> Result<(), ClientError> {
    if name.is_empty() || name.contains([' ', '\r', '\n']) {
        return Err(ClientError::Protocol(format!("{what} {name:?} is not one word without blanks or line ends")));
    }
    Ok(())
}

fn success(response: Response) -> Result<Bytes, ClientError> {
    match response {
        Response::Result { code, body, .. } if Status::from_code(code) == Some(Status::Success) => Ok(body),
        Response::Result { code, body, .. } => Err(answer(code, &body)),
        Response::Value { .. } => Err(ClientError::Protocol("a value came where a result was expected".to_owned())),
    }
}

fn answer(code: i32, body: &[u8]) -> ClientError {
    ClientError::Answer { code, text: String::from_utf8_lossy(body).into_owned() }
}

fn text(body: &[u8]) -> Result<&str, ClientError> {
    std::str::from_utf8(body).map_err(|_| ClientError::Protocol(format!("an answer that is not UTF-8: {body:?}")))
}

fn parse_offset(text: &str) -> Result<Offset, ClientError> {
    text.parse()
        .ok()
        .and_then(Offset::from_wire)
        .ok_or_else(|| ClientError::Protocol(format!("{text:?} where an offset was expected")))
}

fn parse_stored(text: &str) -> Result<Stored, ClientError> {
    let mut words = text.split(' ');
    let mut word = || words.next().unwrap_or_default();
    match (word().parse(), word().parse(), parse_offset(word())) {
        (Ok(id), Ok(partition), Ok(offset)) => Ok(Stored { id: MessageId(id), partition, offset }),
        _ => Err(ClientError::Protocol(format!("{text:?} where message id, partition and offset were expected"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_taken_as_registered() {
        for addr in ["h:1", "meta://h:1", "meta://h:1/", "meta://h:1?slaveId=0"] {
            assert_eq!(host_and_port(addr), "h:1", "{addr}");
        }
        assert_eq!(host_and_port("meta://[::1]:8123"), "[::1]:8123");
    }
}
