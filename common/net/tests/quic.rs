//! Handshakes over the loopback: who comes in, and what is said to and of those who do not.

#![expect(clippy::unwrap_used, reason = "a test that cannot set up fails")]

use metaq_net::certs::{CertError, CertFiles, Identity};
use metaq_net::quic::{self, Connection, Listener};
use metaq_net::refusals::{Reason, Refusals};
use quinn::ConnectionError;
use rcgen::{CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;
use time::OffsetDateTime;
use tokio::net::UdpSocket;
use tokio::sync::watch;

struct Authority {
    dir: TempDir,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    fn new() -> Authority {
        let dir = tempfile::tempdir().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(rcgen::BasicConstraints::Constrained(0));
        let key = KeyPair::generate().unwrap();
        std::fs::write(dir.path().join("ca.pem"), params.self_signed(&key).unwrap().pem()).unwrap();
        Authority { dir, issuer: Issuer::new(params, key) }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Files of a node for `host`, its certificate changed by `change` before it is signed.
    fn issue(&self, name: &str, host: &str, change: impl FnOnce(&mut CertificateParams)) -> CertFiles {
        let mut params = CertificateParams::new(vec![host.to_owned()]).unwrap();
        params.not_before = OffsetDateTime::now_utc() - time::Duration::hours(1);
        params.not_after = OffsetDateTime::now_utc() + time::Duration::days(100);
        change(&mut params);
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        let files = CertFiles {
            certificate: self.path(&format!("{name}.pem")),
            key: self.path(&format!("{name}.key")),
            authorities: self.path("ca.pem"),
        };
        std::fs::write(&files.certificate, certificate.pem()).unwrap();
        std::fs::write(&files.key, key.serialize_pem()).unwrap();
        files
    }

    fn node(&self, name: &str) -> Arc<Identity> {
        Arc::new(Identity::load(self.issue(name, "127.0.0.1", |_| {})).unwrap())
    }
}

fn refusal(files: CertFiles) -> String {
    Identity::load(files).unwrap_err().to_string()
}

#[test]
fn what_cannot_serve_is_not_taken() {
    let (ours, theirs) = (Authority::new(), Authority::new());
    let good = ours.issue("good", "h", |_| {});
    let days = |days| OffsetDateTime::now_utc() + time::Duration::days(days);

    let expired = ours.issue("expired", "h", |params| params.not_after = days(-3));
    assert!(refusal(expired).contains("has expired 3 days ago"));
    let early = ours.issue("early", "h", |params| params.not_before = days(2));
    assert!(refusal(early).contains("not valid yet"));
    let one_sided =
        |params: &mut CertificateParams| params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    assert!(refusal(ours.issue("server", "h", one_sided)).contains("both servers and clients"));
    let foreign = CertFiles { authorities: theirs.path("ca.pem"), ..good.clone() };
    assert!(refusal(foreign).contains("was not issued by an authority in"));
    let other_key = CertFiles { key: ours.issue("other", "h", |_| {}).key, ..good.clone() };
    assert!(refusal(other_key).contains("does not belong to the certificate"));
    let absent = CertFiles { key: ours.path("absent"), ..good.clone() };
    assert!(refusal(absent).contains("absent cannot be read"));
    let swapped = CertFiles { certificate: good.key.clone(), ..good.clone() };
    assert!(refusal(swapped).contains("holds no certificate"));
    std::fs::write(ours.path("rubbish.pem"), "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n").unwrap();
    assert!(refusal(CertFiles { certificate: ours.path("rubbish.pem"), ..good }).contains("no usable certificate"));
}

#[test]
fn a_reload_takes_only_what_serves_in_the_same_cluster() {
    let (ours, theirs) = (Authority::new(), Authority::new());
    let files = ours.issue("node", "h", |_| {});
    let identity = Identity::load(files.clone()).unwrap();
    let put = |from: &CertFiles| {
        std::fs::copy(&from.certificate, &files.certificate).unwrap();
        std::fs::copy(&from.key, &files.key).unwrap();
    };
    let first = identity.current().facts.clone();
    put(&ours.issue("renewed", "renewed.example.org", |_| {}));
    assert_eq!(identity.reload().unwrap().facts.names, ["renewed.example.org"]);
    assert_ne!(identity.current().facts, first);

    // Certificate and authority of another cluster, as when a wrong directory is copied.
    let ca = std::fs::read_to_string(&files.authorities).unwrap();
    put(&theirs.issue("node", "h", |_| {}));
    std::fs::copy(theirs.path("ca.pem"), &files.authorities).unwrap();
    assert!(matches!(identity.reload(), Err(CertError::OtherCluster { .. })));
    assert_eq!(identity.current().facts.names, ["renewed.example.org"]);

    // As when an authority is changed: both are trusted first, then the certificate follows.
    let both = ca + &std::fs::read_to_string(theirs.path("ca.pem")).unwrap();
    std::fs::write(&files.authorities, both).unwrap();
    assert!(matches!(identity.reload(), Err(CertError::OtherCluster { .. })), "both at once is one step too many");
    put(&ours.issue("again", "again.example.org", |_| {}));
    identity.reload().unwrap();
    put(&theirs.issue("moved", "moved.example.org", |_| {}));
    assert_eq!(identity.reload().unwrap().facts.names, ["moved.example.org"]);
}

#[test]
fn an_end_that_comes_near_is_seen() {
    let authority = Authority::new();
    let soon = authority.issue("soon", "h", |params| {
        params.not_after = OffsetDateTime::now_utc() + time::Duration::hours(13 * 24 + 12);
    });
    assert_eq!(Identity::load(soon).unwrap().current().ends_soon(), Some(13));
    assert_eq!(authority.node("later").current().ends_soon(), None);
}

/// A listener that echoes what the first stream of each connection says.
fn echo(identity: &Arc<Identity>) -> (String, Arc<Refusals>) {
    let refusals = Arc::<Refusals>::default();
    (serve(identity, &refusals), refusals)
}

fn serve(identity: &Arc<Identity>, refusals: &Arc<Refusals>) -> String {
    let (any, identity) = ("127.0.0.1:0".parse().unwrap(), Arc::clone(identity));
    let listener = Listener::bind(any, identity, "the node", Arc::clone(refusals)).unwrap();
    let address = listener.local_addr().unwrap().to_string();
    tokio::spawn(async move {
        while let Some(incoming) = listener.accept().await {
            tokio::spawn(async move {
                let Some(connection) = incoming.handshake().await else { return };
                let Ok((mut sender, mut receiver)) = connection.accept_bi().await else { return };
                let said = receiver.read_to_end(1024).await.unwrap();
                sender.write_all(&said).await.unwrap();
                sender.finish().unwrap();
                connection.closed().await;
            });
        }
    });
    address
}

async fn connect(identity: &Identity, address: &str) -> Result<Connection, String> {
    quic::connect(identity, address, Duration::from_secs(5)).await
}

async fn say(connection: &Connection, text: &[u8]) -> Result<Vec<u8>, String> {
    let why = |error: String| connection.close_reason().map_or(error, |reason| quic::explain(&reason));
    let (mut sender, mut receiver) = connection.open_bi().await.map_err(|error| quic::explain(&error))?;
    sender.write_all(text).await.map_err(|error| why(error.to_string()))?;
    sender.finish().map_err(|error| why(error.to_string()))?;
    receiver.read_to_end(1024).await.map_err(|error| why(error.to_string()))
}

async fn counted(refusals: &Refusals, reason: Reason) {
    let some = async {
        while refusals.count(reason) == 0 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(5), some).await.unwrap_or_else(|_| panic!("{refusals:?}"));
}

#[tokio::test]
async fn nodes_of_one_cluster_speak() {
    let authority = Authority::new();
    let (address, refusals) = echo(&authority.node("master"));
    let connection = connect(&authority.node("slave"), &address).await.unwrap();
    assert_eq!(say(&connection, b"hello").await.unwrap(), b"hello");
    assert!(Reason::ALL.into_iter().all(|reason| refusals.count(reason) == 0), "{refusals:?}");
}

#[tokio::test]
async fn strangers_are_refused_by_both_sides() {
    let (ours, theirs) = (Authority::new(), Authority::new());
    let (address, refusals) = echo(&ours.node("master"));
    let refused = connect(&theirs.node("slave"), &address).await.unwrap_err();
    assert!(refused.contains("its certificate is refused: it is of another cluster"), "{refused}");
    counted(&refusals, Reason::RefusedUs).await;

    // One that trusts us, and that we do not.
    let mut files = theirs.issue("slave", "127.0.0.1", |_| {});
    files.authorities = both(&theirs, &ours);
    let refused = said_to(files, &address).await;
    assert!(refused.contains("it refuses our certificate: it is of another cluster"), "{refused}");
    counted(&refusals, Reason::Foreign).await;
}

fn both(one: &Authority, other: &Authority) -> PathBuf {
    let read = |authority: &Authority| std::fs::read_to_string(authority.path("ca.pem")).unwrap();
    let path = one.path("both.pem");
    std::fs::write(&path, read(one) + &read(other)).unwrap();
    path
}

/// What a node with these files is told, whether in the handshake or after it.
async fn said_to(files: CertFiles, address: &str) -> String {
    let identity = Identity::load(files).unwrap();
    match connect(&identity, address).await {
        Err(reason) => reason,
        Ok(connection) => say(&connection, b"hello").await.unwrap_err(),
    }
}

#[tokio::test]
async fn a_certificate_has_to_name_the_host_that_was_asked_for() {
    let authority = Authority::new();
    let master = Identity::load(authority.issue("master", "node-a.example.org", |_| {})).unwrap();
    let (address, _) = echo(&Arc::new(master));
    let refused = connect(&authority.node("slave"), &address).await.unwrap_err();
    assert!(refused.contains("does not name the host"), "{refused}");
}

#[tokio::test]
async fn handshakes_after_a_reload_show_the_new_certificate() {
    let authority = Authority::new();
    let files = authority.issue("master", "127.0.0.1", |_| {});
    let identity = Arc::new(Identity::load(files.clone()).unwrap());
    let (address, _) = echo(&identity);
    let slave = authority.node("slave");
    let old = connect(&slave, &address).await.unwrap();
    let shown = |connection: &Connection| {
        let chain = connection.peer_identity().unwrap();
        chain.downcast::<Vec<rustls::pki_types::CertificateDer<'static>>>().unwrap()[0].clone()
    };
    copy(&authority.issue("renewed", "127.0.0.1", |_| {}), &files);
    identity.reload().unwrap();
    let new = connect(&slave, &address).await.unwrap();
    assert!(shown(&old) != shown(&new));
    assert_eq!(say(&old, b"still here").await.unwrap(), b"still here");
}

fn copy(from: &CertFiles, to: &CertFiles) {
    for (from, to) in [(&from.certificate, &to.certificate), (&from.key, &to.key)] {
        let (from, to): (&Path, &Path) = (from, to);
        std::fs::copy(from, to).unwrap();
    }
}

#[tokio::test]
async fn what_is_no_quic_is_counted() {
    let authority = Authority::new();
    let (address, refusals) = echo(&authority.node("master"));
    let socket = tokio::net::UdpSocket::bind("127.0.0.1:0").await.unwrap();
    socket.send_to(b"\x16\x03\x01 not for this port", &address).await.unwrap();
    counted(&refusals, Reason::Garbage).await;
    let connection = connect(&authority.node("slave"), &address).await.unwrap();
    assert_eq!(say(&connection, b"hello").await.unwrap(), b"hello");
}

/// A node of which nothing is left but its address, as after a kill -9: datagrams go to whoever has it now.
struct Address {
    front: Arc<UdpSocket>,
    node: watch::Sender<String>,
}

impl Address {
    async fn of(node: &str) -> Address {
        let front = Arc::new(UdpSocket::bind("127.0.0.1:0").await.unwrap());
        let (node, mut now) = watch::channel(node.to_owned());
        let from_clients = Arc::clone(&front);
        tokio::spawn(async move {
            let (mut client, mut datagram, mut answer) = (None, vec![0; 65_535], vec![0; 65_535]);
            loop {
                let back = UdpSocket::bind("127.0.0.1:0").await.unwrap();
                let node = now.borrow_and_update().clone();
                back.connect(node).await.unwrap();
                loop {
                    tokio::select! {
                        received = from_clients.recv_from(&mut datagram) => {
                            let (length, from) = received.unwrap();
                            client = Some(from);
                            back.send(&datagram[..length]).await.unwrap();
                        }
                        length = back.recv(&mut answer) => {
                            from_clients.send_to(&answer[..length.unwrap()], client.unwrap()).await.unwrap();
                        }
                        changed = now.changed() => {
                            if changed.is_err() { return }
                            break;
                        }
                    }
                }
            }
        });
        Address { front, node }
    }

    fn moves_to(&self, node: &str) {
        self.node.send_replace(node.to_owned());
    }

    fn shown(&self) -> String {
        self.front.local_addr().unwrap().to_string()
    }
}

/// The successor of a process says to the peers of that process that their connections are over: they do not wait until
/// these have been idle for too long.
#[tokio::test]
async fn a_node_that_has_started_again_ends_the_connections_from_before() {
    let authority = Authority::new();
    let (files, slave) = (authority.issue("master", "127.0.0.1", |_| {}), authority.node("slave"));
    let start = || serve(&Arc::new(Identity::load(files.clone()).unwrap()), &Arc::default());
    let before = start();
    let mut peers = Vec::new();
    for _ in 0..3 {
        let address = Address::of(&before).await;
        let connection = connect(&slave, &address.shown()).await.unwrap();
        assert_eq!(say(&connection, b"hello").await.unwrap(), b"hello");
        peers.push((address, connection));
    }
    let after = start();
    peers.iter().for_each(|(address, _)| address.moves_to(&after));
    for (address, connection) in peers {
        let ended = connection.closed().await;
        assert!(matches!(ended, ConnectionError::Reset), "{ended:?}");
        assert_eq!(quic::explain(&ended), "the node has started again and knows nothing of the connection");
        let connection = connect(&slave, &address.shown()).await.unwrap();
        assert_eq!(say(&connection, b"hello").await.unwrap(), b"hello");
    }
}
