//! Certificates: who is let in over QUIC and TLS, who is refused and told why, and what goes on meanwhile.

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use metaq_client::{Client, ClientError, GetAnswer};
use metaq_harness::authority::{Authority, Files};
use metaq_harness::pair::{assert_same, slave_site, start_slave, wait_level};
use metaq_harness::ports::free_port;
use metaq_harness::process::{Broker, Site, wait_until};
use metaq_harness::raw::Raw;
use rustix::process::Signal;
use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use std::net::UdpSocket;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use time::OffsetDateTime;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

/// A node's certificate that ends in `seconds`, which the tool does not make.
fn issue_for_seconds(authority: &Authority, name: &str, seconds: i64) -> Result<Files> {
    let ca = std::fs::read_to_string(authority.path("ca.pem"))?;
    let ca_key = rcgen::KeyPair::from_pem(&std::fs::read_to_string(authority.path("ca.key"))?)?;
    let issuer = rcgen::Issuer::from_ca_cert_pem(&ca, ca_key)?;
    let mut params = rcgen::CertificateParams::new(vec!["127.0.0.1".to_owned()])?;
    params.not_before = OffsetDateTime::now_utc() - time::Duration::hours(1);
    params.not_after = OffsetDateTime::now_utc() + time::Duration::seconds(seconds);
    let key = rcgen::KeyPair::generate()?;
    std::fs::write(authority.path(&format!("{name}.pem")), params.signed_by(&key, &issuer)?.pem())?;
    std::fs::write(authority.path(&format!("{name}.key")), key.serialize_pem())?;
    Ok(authority.files(name))
}

/// Small segments, so that rolling is part of every test.
fn site(files: Option<&Files>) -> Result<Site> {
    slave_site(|site| {
        site.set("maxSegmentSize", "16*1024");
        site.topic("test", &[("numPartitions", "3")]);
        if let Some(files) = files {
            files.configure(site);
        }
    })
}

fn put_many(broker: &Broker, count: usize) -> Result<()> {
    let mut raw = Raw::connect(&broker.address)?;
    for i in 0..count {
        raw.put("test", (i % 3) as i32, &vec![b'a' + (i % 26) as u8; 50 + (i * 37) % 900])?.stored()?;
    }
    Ok(())
}

/// How often `stats transport` says that somebody was refused for this reason.
fn refused(broker: &Broker, reason: &str) -> Result<u64> {
    let text = Raw::connect(&broker.address)?.ask("stats transport")?.text();
    let prefix = format!("refused_handshakes {reason} ");
    let line = text.lines().find_map(|line| line.strip_prefix(&prefix)).with_context(|| text.clone())?;
    Ok(line.trim().parse()?)
}

fn wait_refused(broker: &Broker, reason: &str) -> Result<()> {
    wait_until(&format!("a refusal for {reason}"), || Ok((refused(broker, reason)? > 0).then_some(())))
}

/// No slave is known to the master: neither lag nor quorum counts it.
fn assert_no_replica(master: &Broker) -> Result<()> {
    let text = Raw::connect(&master.address)?.ask("stats replicas")?.text();
    ensure!(!text.contains("slave"), "a replica that was never let in: {text}");
    Ok(())
}

fn port_of(broker: &Broker) -> &str {
    broker.address.rsplit_once(':').expect("host:port").1
}

#[test]
fn a_slave_follows_over_quic_and_both_come_back() -> Result<()> {
    let authority = Authority::new("orders")?;
    let mut master_site = site(Some(&authority.issue("master")?))?;
    let slave_site = site(Some(&authority.issue("slave")?))?;
    master_site.set("replicationTransport", "quic");
    let master = master_site.start_master(&[])?;
    let port = port_of(&master).to_owned();
    master_site.set("serverPort", &port);
    put_many(&master, 200)?;
    let mut slave = start_slave(&slave_site, 0, &master)?;
    let line = slave.wait_for_line("following the master")?;
    assert!(line.contains("transport=\"quic\""), "{line}");
    put_many(&master, 200)?;
    wait_level(&master, &slave, "test", 3)?;
    assert_same(&master_site.data(), &slave_site.data())?;

    slave.kill()?;
    put_many(&master, 300)?;
    let slave = start_slave(&slave_site, 0, &master)?;
    wait_level(&master, &slave, "test", 3)?;
    master.kill()?;
    let master = master_site.start_master(&[])?;
    put_many(&master, 300)?;
    wait_level(&master, &slave, "test", 3)?;
    assert!(master.stop()?.success());
    let master = master_site.start_master(&[])?;
    put_many(&master, 30)?;
    wait_level(&master, &slave, "test", 3)?;
    assert_same(&master_site.data(), &slave_site.data())
}

/// Over QUIC nothing tells a slave that its master was killed. The one that is started again does: its slaves do not wait
/// until their connections have been silent for too long (issue 4: nobody is stuck five seconds after healing).
#[test]
fn a_master_that_was_killed_and_started_again_tells_its_slaves_so() -> Result<()> {
    let authority = Authority::new("orders")?;
    let mut master_site = site(Some(&authority.issue("master")?))?;
    let slave_sites = [site(Some(&authority.issue("one")?))?, site(Some(&authority.issue("two")?))?];
    master_site.set("replicationTransport", "quic").set("serverPort", &free_port()?.to_string());
    let master = master_site.start_master(&[])?;
    let mut slaves = Vec::new();
    for (id, site) in slave_sites.iter().enumerate() {
        let mut slave = start_slave(site, id as u32, &master)?;
        slave.wait_for_line("following the master")?;
        slaves.push(slave);
    }
    put_many(&master, 100)?;
    master.kill()?;
    let master = master_site.start_master(&[])?;
    put_many(&master, 100)?;
    for slave in &mut slaves {
        let line = slave.wait_for_line("not following the master")?;
        assert!(line.contains("the node has started again"), "what it left the old connection for: {line}");
        wait_level(&master, slave, "test", 3)?;
    }
    Ok(())
}

#[test]
fn without_certificates_a_slave_follows_over_tcp() -> Result<()> {
    let authority = Authority::new("orders")?;
    let (master_site, slave_site) = (site(Some(&authority.issue("master")?))?, site(None)?);
    let master = master_site.start_master(&[])?;
    let mut slave = start_slave(&slave_site, 0, &master)?;
    let line = slave.wait_for_line("following the master")?;
    assert!(line.contains("transport=\"tcp\""), "{line}");
    put_many(&master, 100)?;
    wait_level(&master, &slave, "test", 3)?;
    assert_same(&master_site.data(), &slave_site.data())
}

#[test]
fn a_master_of_quic_only_lets_no_slave_in_that_proves_nothing() -> Result<()> {
    let authority = Authority::new("orders")?;
    let mut master_site = site(Some(&authority.issue("master")?))?;
    master_site.set("replicationTransport", "quic");
    let master = master_site.start_master(&[])?;
    let reply = Raw::connect(&master.address)?.ask("version 1 role=slave id=0 epoch=9 node=x")?;
    assert_eq!(reply.code, 403, "{}", reply.text());
    assert_eq!(refused(&master, "unproven")?, 1);
    assert_no_replica(&master)?;
    put_many(&master, 3)
}

/// Where no registry keeps two masters apart, the new one tells the old one, which here listens to nothing but QUIC.
#[test]
fn an_old_master_is_told_over_quic_that_its_reign_is_over() -> Result<()> {
    let authority = Authority::new("orders")?;
    let (mut a, mut b) = (site(Some(&authority.issue("a")?))?, site(Some(&authority.issue("b")?))?);
    for site in [&mut a, &mut b] {
        site.set("replicationTransport", "quic");
    }
    let mut master = a.start_master(&[])?;
    let slave = start_slave(&b, 0, &master)?;
    put_many(&master, 30)?;
    wait_level(&master, &slave, "test", 3)?;
    master.signal(Signal::STOP)?;
    assert!(slave.stop()?.success());
    let promoted = b.start_slave(&[])?;
    master.signal(Signal::CONT)?;
    assert_eq!(master.wait_exit()?.code(), Some(1));
    assert!(master.log_text().contains("another master has begun to reign"), "{}", master.log_text());
    put_many(&promoted, 3)
}

#[test]
fn a_certificate_of_another_cluster_is_refused_and_named_on_both_sides() -> Result<()> {
    let (ours, theirs) = (Authority::new("orders")?, Authority::new("payments")?);
    let master_site = site(Some(&ours.issue("master")?))?;
    let mut master = master_site.start_master(&[])?;
    put_many(&master, 30)?;
    // One that trusts only its own cluster refuses the master.
    let slave_site_one = site(Some(&theirs.issue("one")?))?;
    let mut slave = start_slave(&slave_site_one, 0, &master)?;
    slave.wait_for_line("its certificate is refused: it is of another cluster")?;
    wait_refused(&master, "refused_us")?;
    // One that would take the master is refused by it.
    let mut two = theirs.issue("two")?;
    let both = [&ours, &theirs].map(|authority| std::fs::read_to_string(authority.path("ca.pem")));
    let [ours_pem, theirs_pem] = both;
    two.authorities = theirs.path("both.pem");
    std::fs::write(&two.authorities, ours_pem? + &theirs_pem?)?;
    let slave_site_two = site(Some(&two))?;
    let mut slave = start_slave(&slave_site_two, 1, &master)?;
    slave.wait_for_line("it refuses our certificate: it is of another cluster")?;
    wait_refused(&master, "foreign")?;
    master.wait_for_line("reason=\"foreign\"")?;
    assert_no_replica(&master)?;
    let held = metaq_harness::pair::segments(&slave_site_two.data())?;
    assert!(held.is_empty(), "not a byte was given away: {:?}", held.keys());
    Ok(())
}

#[test]
fn an_expired_certificate_is_refused_and_keeps_a_node_from_starting() -> Result<()> {
    let authority = Authority::new("orders")?;
    let mut master_site = site(Some(&authority.issue("master")?))?;
    let master = master_site.start_master(&[])?;
    let port = port_of(&master).to_owned();
    master_site.set("serverPort", &port);
    // Time enough for a busy machine to start the slave.
    const SECONDS: i64 = 12;
    let end = OffsetDateTime::now_utc() + time::Duration::seconds(SECONDS);
    let slave_site = site(Some(&issue_for_seconds(&authority, "slave", SECONDS)?))?;
    let mut slave = start_slave(&slave_site, 0, &master)?;
    slave.wait_for_line("following the master")?;
    put_many(&master, 30)?;
    wait_level(&master, &slave, "test", 3)?;
    master.kill()?;
    wait_until("the certificate to end", || {
        Ok((OffsetDateTime::now_utc() > end + time::Duration::seconds(1)).then_some(()))
    })?;
    let master = master_site.start_master(&[])?;
    slave.wait_for_line("it refuses our certificate: it has expired")?;
    wait_refused(&master, "expired")?;
    assert_no_replica(&master)?;
    slave.kill()?;
    slave_site.write_ini()?;
    let mut slave = Broker::spawn(&slave_site, "metaq-slave", &["--slave-id", "0", "--master", &master.address])?;
    slave.wait_for_line("seconds ago; issue a new one")?;
    assert!(!slave.wait_exit()?.success());
    Ok(())
}

#[test]
fn garbage_on_the_udp_port_is_counted_and_disturbs_nobody() -> Result<()> {
    let authority = Authority::new("orders")?;
    let (master_site, slave_site) = (site(Some(&authority.issue("master")?))?, site(Some(&authority.issue("slave")?))?);
    let master = master_site.start_master(&[])?;
    let mut slave = start_slave(&slave_site, 0, &master)?;
    slave.wait_for_line("following the master")?;
    let socket = UdpSocket::bind("127.0.0.1:0")?;
    let mut seed = 7u64;
    for round in 0..2000usize {
        let datagram: Vec<u8> = (0..1 + round % 1400)
            .map(|_| {
                seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                (seed >> 56) as u8
            })
            .collect();
        socket.send_to(&datagram, &master.address)?;
    }
    wait_refused(&master, "garbage")?;
    put_many(&master, 100)?;
    wait_level(&master, &slave, "test", 3)?;
    assert_same(&master_site.data(), &slave_site.data())?;
    let lines = master.log_text().lines().filter(|line| line.contains("connection refused")).count();
    assert!(lines < 10, "{lines} lines for a flood");
    Ok(())
}

/// A TLS client as others write one.
async fn tls(port: u16, authority: &Path, own: Option<&Files>) -> Result<(Client, CertificateDer<'static>)> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(authority)?)?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots);
    let config = match own {
        None => builder.with_no_client_auth(),
        Some(own) => builder.with_client_auth_cert(
            vec![CertificateDer::from_pem_file(&own.certificate)?],
            PrivateKeyDer::from_pem_file(&own.key)?,
        )?,
    };
    let address = format!("127.0.0.1:{port}");
    let stream = TcpStream::connect(&address).await?;
    let stream = TlsConnector::from(Arc::new(config)).connect(ServerName::try_from("127.0.0.1")?, stream).await?;
    let shown = stream.get_ref().1.peer_certificates().context("a server shows its certificate")?[0].clone();
    let (reader, writer) = tokio::io::split(stream);
    Ok((Client::over(reader, writer, &address, 64), shown.into_owned()))
}

async fn answers(client: &Client) -> Result<(), ClientError> {
    client.with_timeout(Duration::from_secs(10)).version(None).await.map(drop)
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_put_and_get_over_tls_what_others_see_over_the_plain_port() -> Result<()> {
    let authority = Authority::new("orders")?;
    let mut site = site(Some(&authority.issue("master")?))?;
    let port = free_port()?;
    site.set("tlsPort", &port.to_string()).set("maxSegmentSize", "64*1024*1024").set("maxTransferSize", "4*1024*1024");
    let master = site.start_master(&[])?;
    let (client, _) = tls(port, &authority.path("ca.pem"), None).await?;
    // Messages beyond every buffer on the way, many at once.
    let bodies: Vec<Bytes> = (0..40usize).map(|i| vec![i as u8; 1 + i * 40_000].into()).collect();
    for body in &bodies {
        client.put("test", 0, 0, body.clone()).await?;
    }
    let (mut offset, mut read) = (0i64, Vec::new());
    while let GetAnswer::Value { body, .. } = client.get("test", "g", 0, offset, 4 << 20, None).await? {
        offset += body.len() as i64;
        read.extend_from_slice(&body);
    }
    let plain = Raw::connect(&master.address)?.read_all("test", 0, 0)?;
    assert_eq!(plain.len(), bodies.len());
    assert!(plain.iter().zip(&bodies).all(|(record, body)| record.body == *body));
    let on_disk: Vec<u8> = metaq_harness::pair::segments(&site.data())?.into_values().flatten().collect();
    assert!(read == on_disk, "{} bytes read over TLS, {} on the disk", read.len(), on_disk.len());
    let gets: Vec<_> = (0..50).map(|_| client.get("test", "g", 0, 0, 4 << 20, None)).collect();
    for get in gets {
        assert!(matches!(get.await?, GetAnswer::Value { .. }));
    }
    // Plain text on the TLS port is refused and counted.
    let _ = Raw::connect(&format!("127.0.0.1:{port}"))?.ask("version 1");
    wait_refused(&master, "garbage")?;
    answers(&client).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_may_be_asked_for_a_certificate() -> Result<()> {
    let (ours, theirs) = (Authority::new("orders")?, Authority::new("payments")?);
    let mut site = site(Some(&ours.issue("master")?))?;
    let port = free_port()?;
    site.set("tlsPort", &port.to_string()).set("tlsClientAuth", "required");
    let master = site.start_master(&[])?;
    let ca = ours.path("ca.pem");
    let (client, _) = tls(port, &ca, Some(&ours.issue("app")?)).await?;
    client.put("test", 0, 0, Bytes::from_static(b"let in")).await?;
    // With TLS 1.3 a refusal comes after the client's side of the handshake.
    if let Ok((nobody, _)) = tls(port, &ca, None).await {
        assert!(answers(&nobody).await.is_err());
    }
    wait_refused(&master, "no_certificate")?;
    if let Ok((stranger, _)) = tls(port, &ca, Some(&theirs.issue("app")?)).await {
        assert!(answers(&stranger).await.is_err());
    }
    wait_refused(&master, "foreign")
}

#[tokio::test(flavor = "multi_thread")]
async fn certificates_are_replaced_while_connections_go_on() -> Result<()> {
    let authority = Authority::new("orders")?;
    let files = authority.issue("master")?;
    let mut master_site = site(Some(&files))?;
    let port = free_port()?;
    master_site.set("tlsPort", &port.to_string());
    let mut master = master_site.start_master(&[])?;
    let slave_site = site(Some(&authority.issue("slave")?))?;
    let mut slave = start_slave(&slave_site, 0, &master)?;
    slave.wait_for_line("following the master")?;
    let ca = authority.path("ca.pem");
    let (before, old) = tls(port, &ca, None).await?;

    let renewed = authority.issue("renewed")?;
    std::fs::copy(&renewed.certificate, &files.certificate)?;
    std::fs::copy(&renewed.key, &files.key)?;
    master.signal(Signal::HUP)?;
    master.wait_for_line("certificates reloaded")?;
    let (after, new) = tls(port, &ca, None).await?;
    assert!(new != old, "new handshakes show the new certificate");
    answers(&before).await?;
    answers(&after).await?;

    // A second authority, as while authorities are changed: the certificate is the same, whom the node trusts is not.
    let own = std::fs::read_to_string(&ca)?;
    let next = std::fs::read_to_string(Authority::new("next")?.path("ca.pem"))?;
    std::fs::write(&ca, format!("{own}{next}"))?;
    master.signal(Signal::HUP)?;
    let line = master.wait_for_line("certificates reloaded")?;
    let id = line.split_once("cluster=\"").and_then(|(_, rest)| rest.split_once('"')).context("a cluster id")?.0;
    master.wait_for_line(&format!("trusts=\"{id},"))?;
    std::fs::write(&ca, own)?;

    // What cannot serve is refused, and the last good one stays.
    std::fs::write(&files.certificate, "-----BEGIN CERTIFICATE-----\nrubbish")?;
    master.signal(Signal::HUP)?;
    master.wait_for_line("the certificates stay as they were")?;
    let other = Authority::new("payments")?;
    let foreign = other.issue("master")?;
    for (from, to) in [(&foreign.certificate, &files.certificate), (&foreign.key, &files.key)] {
        std::fs::copy(from, to)?;
    }
    master.signal(Signal::HUP)?;
    master.wait_for_line("was not issued by an authority in")?;
    assert!(tls(port, &ca, None).await?.1 == new);
    put_many(&master, 50)?;
    wait_level(&master, &slave, "test", 3)?;
    let connections = slave.log_text().lines().filter(|line| line.contains("following the master")).count();
    assert_eq!(connections, 1, "the slave's connection outlived every reload");
    Ok(())
}
