//! What a peer gets for which there is no room.

use crate::admission::Room;
use crate::answer::Answer;
use crate::outbound::malformed;
use bytes::{Buf, BytesMut};
use metaq_types::{Opaque, Status};
use metaq_wire::skip;
use std::io;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::{Instant, timeout_at};

/// A peer for which there is no room is kept this long. The original client's network library stops reading all its
/// connections for up to 15 s when one ends in the moment in which it was made.
const KEPT: Duration = Duration::from_secs(1);

/// Room made before a read; with a header line that is not whole yet, all that a refused peer takes of our memory.
const READ_BYTES: usize = 1024;

/// Refuses whatever is asked within [`KEPT`], then closes. May be cancelled at any point.
pub(crate) async fn refuse(mut stream: impl AsyncRead + AsyncWrite + Unpin, room: Room) {
    let mut answered = false;
    let conversation = converse(&mut stream, room, &mut answered);
    match timeout_at(Instant::now() + KEPT, conversation).await {
        // The peer has gone, or is told already what is wrong with what it sent.
        Ok(_) => {}
        // Nothing was written yet, so the system has room for this.
        Err(_) if !answered => drop(stream.write(&refusal(Opaque::NONE, room)).await),
        Err(_) => {}
    }
    let _ = stream.shutdown().await;
}

/// As long as a peer is kept that cannot be answered.
pub(crate) async fn hold() {
    tokio::time::sleep(KEPT).await;
}

/// Answers each request from its header line alone and throws its body away.
async fn converse(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    room: Room,
    answered: &mut bool,
) -> io::Result<()> {
    let mut input = BytesMut::new();
    let mut body_bytes = 0;
    loop {
        input.reserve(READ_BYTES);
        if stream.read_buf(&mut input).await? == 0 {
            return Ok(());
        }
        loop {
            let thrown_away = body_bytes.min(input.len());
            input.advance(thrown_away);
            body_bytes -= thrown_away;
            if body_bytes > 0 {
                break;
            }
            match skip(&mut input) {
                Ok(None) => break,
                Ok(Some(skipped)) => {
                    body_bytes = skipped.body_bytes as usize;
                    if let Some(opaque) = skipped.opaque {
                        *answered = true;
                        stream.write_all(&refusal(opaque, room)).await?;
                    }
                }
                Err(error) => {
                    let mut text = BytesMut::new();
                    let _ = malformed(&error.reason).encode(error.opaque.unwrap_or(Opaque::NONE), &mut text);
                    return stream.write_all(&text).await;
                }
            }
        }
    }
}

/// The answer to any request.
pub(crate) fn refusal(opaque: Opaque, room: Room) -> BytesMut {
    let reason = format!(
        "not executed: {}; close some that nobody needs or move clients to another broker, then try again",
        room.used_up()
    );
    let mut text = BytesMut::new();
    let _ = Answer::text(Status::ServiceUnavailable, reason).encode(opaque, &mut text);
    text
}

#[cfg(test)]
mod tests {
    use super::{KEPT, refuse};
    use crate::admission::Admission;
    use crate::node::{Node, NodeOptions, NodeRole};
    use crate::settings::rules_for;
    use metaq_config::{BrokerConfig, Live};
    use metaq_net::certs::{CertFiles, Identity};
    use metaq_net::refusals::Reason;
    use metaq_net::tls::ClientAuth;
    use metaq_store::{Store, StoreOptions};
    use metaq_types::BrokerId;
    use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
    use std::path::Path;
    use std::sync::Arc;
    use std::time::Duration;
    use tempfile::TempDir;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;
    use tokio::time::Instant;

    fn node(directory: &TempDir) -> Node {
        let text = format!(
            "[system]\nbrokerId=0\nnumPartitions=1\nunflushThreshold=0\nunflushInterval=10000\n\
             maxSegmentSize=1048576\nmaxTransferSize=1048576\ndeletePolicy=delete,168\n\
             deleteWhen=0 0 6 * * ?\nserverPort=0\nhostName=here\ndataPath={}\n\
             [zookeeper]\nzk.zkEnable=false\n[topic=test]\n",
            directory.path().display()
        );
        let config = BrokerConfig::parse(Path::new("server.ini"), text.into_bytes()).unwrap();
        let live = Live::new(config.clone());
        let rules = Arc::new(move |topic: &str| rules_for(&config, topic));
        let store = Store::open(StoreOptions::new(directory.path(), BrokerId::new(0).unwrap(), rules)).unwrap();
        Node::start(NodeOptions {
            config: live,
            store: Arc::new(store),
            role: NodeRole::Master,
            uri: "meta://here:0".to_owned(),
            listener: metaq_net::tcp::listen("127.0.0.1:0".parse().unwrap(), 16).unwrap(),
            sessions: tokio::runtime::Handle::current(),
            fenced_by_greeting: false,
        })
        .unwrap()
    }

    /// All that a peer gets which says `request`, and after what time it was sent away.
    async fn told(node: &Node, request: &str) -> (String, Duration) {
        // Before the node can have taken it in, whenever we go on.
        let from = Instant::now();
        let mut peer = TcpStream::connect(node.address()).await.unwrap();
        peer.write_all(request.as_bytes()).await.unwrap();
        let mut text = String::new();
        peer.read_to_string(&mut text).await.unwrap();
        (text, from.elapsed())
    }

    /// A connection that ends in the moment in which it was made stops the original client's network library for up to
    /// 15 s, all its other connections included.
    #[tokio::test]
    async fn a_full_broker_keeps_who_comes_for_a_moment_and_says_why_it_goes() {
        let directory = TempDir::new().unwrap();
        let node = node(&directory);
        let admission = &node.shared().admission;
        let places: Vec<_> = std::iter::from_fn(|| admission.connection()).collect();
        assert_eq!(places.len(), admission.room.connections);
        let requests = ["", "version 7\r\n", "get test group 0 0 1024 7\r\nversion 8\r\n"];
        let (silent, one, two) =
            tokio::join!(told(&node, requests[0]), told(&node, requests[1]), told(&node, requests[2]));
        for ((text, held), opaques) in [(silent, &["2147483647"][..]), (one, &["7"]), (two, &["7", "8"])] {
            assert!(held >= Duration::from_millis(900), "sent away after {held:?}: {text:?}");
            let heads = text.lines().filter(|line| line.contains("result 503 "));
            let answered: Vec<_> = heads.filter_map(|head| head.rsplit(' ').next()).collect();
            assert_eq!(answered, opaques, "{text:?}");
            assert!(text.contains("not executed: ") && text.contains(&admission.room.used_up()), "{text:?}");
        }
        assert_eq!(node.refusals().count(Reason::Full), 3);
        drop(places);
        let (text, _) = told(&node, "version 9\r\nquit\r\n").await;
        assert!(text.starts_with("result 200 "), "there is room again: {text:?}");
        node.stop(Duration::from_secs(10)).await;
    }

    /// Certificates of an authority made for this.
    fn identity(directory: &TempDir) -> Arc<Identity> {
        let path = |name: &str| directory.path().join(name);
        let mut authority = CertificateParams::new(Vec::new()).unwrap();
        authority.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        let key = KeyPair::generate().unwrap();
        std::fs::write(path("ca.pem"), authority.self_signed(&key).unwrap().pem()).unwrap();
        let issuer = Issuer::new(authority, key);
        let key = KeyPair::generate().unwrap();
        let node = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap().signed_by(&key, &issuer).unwrap();
        std::fs::write(path("node.pem"), node.pem()).unwrap();
        std::fs::write(path("node.key"), key.serialize_pem()).unwrap();
        let (certificate, key, authorities) = (path("node.pem"), path("node.key"), path("ca.pem"));
        Arc::new(Identity::load(CertFiles { certificate, key, authorities }).unwrap())
    }

    /// A tunnel passes our close on to its client, which may be the original's.
    #[tokio::test]
    async fn over_tls_as_well_nobody_is_sent_away_at_once() {
        let directory = TempDir::new().unwrap();
        let node = node(&directory);
        let address = node.serve_tls("127.0.0.1:0".parse().unwrap(), identity(&directory), ClientAuth::None).unwrap();
        let _places: Vec<_> = std::iter::from_fn(|| node.shared().admission.connection()).collect();
        let from = Instant::now();
        let mut peer = TcpStream::connect(address).await.unwrap();
        let mut text = String::new();
        peer.read_to_string(&mut text).await.unwrap();
        assert!(text.is_empty() && from.elapsed() >= Duration::from_millis(900), "{:?}: {text}", from.elapsed());
        assert_eq!(node.refusals().count(Reason::Full), 1);
        node.stop(Duration::from_secs(10)).await;
    }

    #[tokio::test]
    async fn only_so_many_are_kept_for_a_moment() {
        let directory = TempDir::new().unwrap();
        let node = node(&directory);
        let _places: Vec<_> = std::iter::from_fn(|| node.shared().admission.connection()).collect();
        let mut kept = Vec::new();
        for _ in 0..node.shared().admission.room.refused {
            kept.push(TcpStream::connect(node.address()).await.unwrap());
        }
        let (text, held) = told(&node, "").await;
        assert!(text.starts_with("result 503 ") && held < KEPT, "{held:?}: {text:?}");
        let first = kept[0].read_u8().await.unwrap();
        assert_eq!(first, b'r', "those before are told as well");
        node.stop(Duration::from_secs(10)).await;
    }

    #[tokio::test(start_paused = true)]
    async fn bodies_are_thrown_away_and_nonsense_is_named() {
        let (mut peer, stream) = tokio::io::duplex(64 * 1024);
        let refusing = tokio::spawn(refuse(stream, Admission::default().room));
        let body = vec![b'x'; 3 * 1024 * 1024];
        peer.write_all(format!("put test 0 {} 0 7\r\n", body.len()).as_bytes()).await.unwrap();
        peer.write_all(&body).await.unwrap();
        peer.write_all(b"version 8\r\nvalue 0 9\r\nnonsense\r\n").await.unwrap();
        let mut text = String::new();
        peer.read_to_string(&mut text).await.unwrap();
        let heads: Vec<_> = text.lines().filter(|line| line.contains("result ")).collect();
        assert_eq!(heads.len(), 3, "{text:?}");
        assert!(text.contains("malformed request: unknown command 'nonsense'"), "{text:?}");
        refusing.await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn who_does_not_read_is_not_waited_for() {
        let (mut peer, stream) = tokio::io::duplex(256);
        let refusing = tokio::spawn(refuse(stream, Admission::default().room));
        let from = Instant::now();
        let writing = async { while peer.write_all(b"version 7\r\n").await.is_ok() {} };
        let (_, refused) = tokio::join!(tokio::time::timeout(2 * KEPT, writing), refusing);
        refused.unwrap();
        assert!(from.elapsed() < 3 * KEPT);
    }
}
