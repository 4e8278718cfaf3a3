//! Certificates, and what is served and reached with them; alike for a master and a slave.

use anyhow::{Context, Result};
use metaq_broker::Node;
use metaq_config::{BrokerConfig, ReplicationTransport, TlsClientAuth};
use metaq_link::driver::LinkTransport;
use metaq_net::certs::{CertFiles, Certificates, Identity};
use metaq_net::tls::ClientAuth;
use std::net::SocketAddr;
use std::sync::Arc;
use tracing::{error, info};

/// This node's certificates, where they are configured. Certificates that cannot serve are an error: nothing is
/// quietly left out.
pub fn load(config: &BrokerConfig) -> Result<Option<Arc<Identity>>> {
    let Some(files) = &config.system.tls_files else { return Ok(None) };
    let files = CertFiles {
        certificate: files.certificate.clone(),
        key: files.key.clone(),
        authorities: files.authorities.clone(),
    };
    let identity = Identity::load(files).context("the certificates of tlsCertFile, tlsKeyFile and tlsCaFile")?;
    say("certificates", &identity.current());
    Ok(Some(Arc::new(identity)))
}

/// Opens the encrypted ways in that the configuration asks for, beside the plain port.
pub fn serve(node: &Node, config: &BrokerConfig, identity: Option<&Arc<Identity>>) -> Result<()> {
    let (Some(identity), system) = (identity, &config.system) else { return Ok(()) };
    if system.replication_transport != ReplicationTransport::Tcp {
        let addr = node.address();
        let quic = node.serve_quic(addr, Arc::clone(identity)).with_context(|| {
            format!("cannot listen on UDP {addr}: does something else use it? replicationTransport=tcp does without")
        })?;
        info!(%quic, "serving nodes of the cluster over QUIC");
    }
    if system.tls_port != 0 {
        let auth = match system.tls_client_auth {
            TlsClientAuth::None => ClientAuth::None,
            TlsClientAuth::Required => ClientAuth::Required,
        };
        let addr = SocketAddr::new(node.address().ip(), system.tls_port);
        let tls = node
            .serve_tls(addr, Arc::clone(identity), auth)
            .with_context(|| format!("cannot listen on {addr}: tlsPort sets the port"))?;
        info!(%tls, client_auth = %system.tls_client_auth, "serving clients over TLS");
    }
    node.keep_identity(Arc::clone(identity));
    Ok(())
}

/// How a slave of this configuration reaches its master.
pub fn link_transport(config: &BrokerConfig, identity: Option<&Arc<Identity>>) -> LinkTransport {
    match (config.system.replication_transport, identity) {
        (ReplicationTransport::Auto | ReplicationTransport::Quic, Some(identity)) => {
            LinkTransport::Quic(Arc::clone(identity))
        }
        // `quic` without certificates was refused when the configuration was read.
        (_, None) | (ReplicationTransport::Tcp, _) => LinkTransport::Tcp,
    }
}

/// Takes over new certificate files for handshakes to come; what cannot serve leaves the old ones in place.
pub(crate) fn reload(node: &Node) {
    let Some(identity) = node.identity() else { return };
    let old = identity.current();
    match identity.reload() {
        // Whom it trusts is as much of it as what it shows: a change of authorities goes step by step on every node.
        Ok(new) if new.facts == old.facts && new.trusted == old.trusted => {}
        Ok(new) => say("certificates reloaded", &new),
        Err(error) => error!("reload: the certificates stay as they were: {error}"),
    }
}

fn say(what: &str, certificates: &Certificates) {
    let facts = &certificates.facts;
    let days_left = facts.days_left(metaq_net::certs::now_unix());
    let (names, cluster, trusts) = (facts.names.join(","), &certificates.cluster_id, certificates.trusted.join(","));
    info!(subject = facts.subject, names, cluster, trusts, days_left, "{what}");
    if let Some(days) = certificates.ends_soon() {
        tracing::warn!(days, "our certificate ends soon; issue a new one with 'metaq cert issue', then reload");
    }
}
