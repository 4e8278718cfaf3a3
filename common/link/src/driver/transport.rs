use std::io::ErrorKind;
use std::sync::Arc;
use std::time::Duration;

use metaq_client::{Client, host_and_port};
use metaq_net::certs::Identity;
use metaq_net::quic::{self, Connection};
use metaq_types::limits::CONNECTION_PARKED_MAX;
use tokio::net::TcpStream;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);

/// A machine that is there answers sooner.
const PROBE_TIMEOUT: Duration = Duration::from_secs(1);

/// Requests outstanding on the stream of the greeting, which carries everything but the gets.
const QUESTIONS_MAX: usize = 1024;

/// How a link reaches its master. What fails over one is never tried over the other.
#[derive(Clone, Debug)]
pub enum LinkTransport {
    Tcp,
    /// With this node's certificate; the master has to show one of the same cluster.
    Quic(Arc<Identity>),
}

impl LinkTransport {
    /// Connects to the node at `uri`, without a greeting.
    pub async fn reach(&self, uri: &str) -> Result<Way, String> {
        Way::open(self, uri).await
    }
}

/// Whether nobody listens at the address, by the word of the machine there.
pub(super) async fn refuses(uri: &str) -> bool {
    let connected = tokio::time::timeout(PROBE_TIMEOUT, TcpStream::connect(host_and_port(uri))).await;
    matches!(connected, Ok(Err(error)) if error.kind() == ErrorKind::ConnectionRefused)
}

/// A way to a master, not greeted yet. It ends when the last copy is dropped.
#[derive(Clone)]
pub struct Way {
    /// For the greeting, and for every other question.
    pub client: Client,
    /// Over QUIC: where each partition gets a stream of its own.
    pub(super) streams: Option<Connection>,
}

impl Way {
    pub(super) async fn open(transport: &LinkTransport, uri: &str) -> Result<Way, String> {
        match transport {
            LinkTransport::Tcp => {
                let client = Client::connect_for(uri, CONNECT_TIMEOUT, CONNECTION_PARKED_MAX).await;
                Ok(Way { client: client.map_err(|error| error.to_string())?, streams: None })
            }
            LinkTransport::Quic(identity) => {
                let address = host_and_port(uri);
                let connection = quic::connect(identity, address, CONNECT_TIMEOUT)
                    .await
                    .map_err(|reason| format!("cannot connect to {address} over QUIC: {reason}"))?;
                let (sender, receiver) = connection.open_bi().await.map_err(|error| quic::explain(&error))?;
                let client = Client::over(receiver, sender, uri, QUESTIONS_MAX);
                Ok(Way { client, streams: Some(connection) })
            }
        }
    }

    /// For the log.
    pub(super) fn name(&self) -> &'static str {
        if self.streams.is_some() { "quic" } else { "tcp" }
    }

    /// Why what failed for `reason` failed, where the connection knows better.
    pub(super) fn why(&self, reason: String) -> String {
        match self.streams.as_ref().and_then(Connection::close_reason) {
            Some(error) => format!("the connection over QUIC has ended: {}", quic::explain(&error)),
            None => reason,
        }
    }
}
