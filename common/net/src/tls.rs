use crate::refusals::Reason;
use rustls::client::Resumption;
use rustls::crypto::CryptoProvider;
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{CertificateError, CipherSuite, ClientConfig, RootCertStore, ServerConfig};
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;

pub use tokio_rustls::server::TlsStream;

/// What nodes say they speak over QUIC.
pub const ALPN: &[u8] = b"metaq/1";

/// A handshake that takes longer is given up.
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// Whether clients on `tlsPort` have to show a certificate of the cluster (`tlsClientAuth`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientAuth {
    None,
    Required,
}

/// What is made of one set of certificates.
pub(crate) struct Configs {
    /// QUIC between nodes: both sides show a certificate, nothing older than TLS 1.3.
    pub(crate) quic_server: Arc<quinn::crypto::rustls::QuicServerConfig>,
    pub(crate) quic_client: Arc<quinn::crypto::rustls::QuicClientConfig>,
    open: Arc<ServerConfig>,
    mutual: Arc<ServerConfig>,
}

impl Configs {
    pub(crate) fn new(key: Arc<CertifiedKey>, roots: &Arc<RootCertStore>) -> Result<Configs, rustls::Error> {
        let mut quic_server = server(&key, Some(roots), &[&rustls::version::TLS13])?;
        quic_server.alpn_protocols = vec![ALPN.to_vec()];
        let mut quic_client = ClientConfig::builder_with_provider(link_provider())
            .with_protocol_versions(&[&rustls::version::TLS13])?
            .with_root_certificates(Arc::clone(roots))
            .with_client_cert_resolver(Arc::new(SingleCertAndKey::from(Arc::clone(&key))));
        quic_client.alpn_protocols = vec![ALPN.to_vec()];
        // A resumed session would not look at the certificate again.
        quic_client.resumption = Resumption::disabled();
        let no_suite = |_| rustls::Error::General("no cipher suite for the first packets of QUIC".to_owned());
        Ok(Configs {
            quic_server: Arc::new(quic_server.try_into().map_err(no_suite)?),
            quic_client: Arc::new(quic_client.try_into().map_err(no_suite)?),
            open: Arc::new(server(&key, None, rustls::ALL_VERSIONS)?),
            mutual: Arc::new(server(&key, Some(roots), rustls::ALL_VERSIONS)?),
        })
    }

    fn tls(&self, auth: ClientAuth) -> Arc<ServerConfig> {
        Arc::clone(match auth {
            ClientAuth::None => &self.open,
            ClientAuth::Required => &self.mutual,
        })
    }
}

fn server(
    key: &Arc<CertifiedKey>,
    roots: Option<&Arc<RootCertStore>>,
    versions: &[&'static rustls::SupportedProtocolVersion],
) -> Result<ServerConfig, rustls::Error> {
    let builder = ServerConfig::builder_with_provider(provider()).with_protocol_versions(versions)?;
    let builder = match roots {
        None => builder.with_no_client_auth(),
        Some(roots) => {
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::clone(roots), provider())
                .build()
                .map_err(|error| rustls::Error::General(error.to_string()))?;
            builder.with_client_cert_verifier(verifier)
        }
    };
    let mut config = builder.with_cert_resolver(Arc::new(SingleCertAndKey::from(Arc::clone(key))));
    // A resumed session would not look at the certificate again.
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(config)
}

/// The one provider of cryptography in this program.
pub(crate) fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

/// As [`provider`], with what a slave asks for first: of two that are both safe the one that costs less a byte, since all
/// that is copied is encrypted.
fn link_provider() -> Arc<CryptoProvider> {
    let mut provider = rustls::crypto::ring::default_provider();
    provider.cipher_suites.sort_by_key(|suite| suite.suite() != CipherSuite::TLS13_AES_128_GCM_SHA256);
    Arc::new(provider)
}

/// The server's side of a TLS handshake, with the certificates of this moment. May be cancelled, which ends the
/// connection.
pub async fn accept(
    identity: &crate::certs::Identity,
    auth: ClientAuth,
    stream: TcpStream,
) -> Result<TlsStream<TcpStream>, (Reason, String)> {
    let acceptor = tokio_rustls::TlsAcceptor::from(identity.current().configs.tls(auth));
    match tokio::time::timeout(HANDSHAKE_TIMEOUT, acceptor.accept(stream)).await {
        Ok(Ok(stream)) => Ok(stream),
        Ok(Err(error)) => Err((reason_of(&error), error.to_string())),
        Err(_) => Err((Reason::TimedOut, format!("no handshake within {} s", HANDSHAKE_TIMEOUT.as_secs()))),
    }
}

fn reason_of(error: &io::Error) -> Reason {
    use rustls::Error;
    match error.get_ref().and_then(|inner| inner.downcast_ref::<Error>()) {
        Some(Error::NoCertificatesPresented) => Reason::NoCertificate,
        Some(Error::InvalidCertificate(CertificateError::UnknownIssuer | CertificateError::BadSignature)) => {
            Reason::Foreign
        }
        Some(Error::InvalidCertificate(
            CertificateError::Expired
            | CertificateError::ExpiredContext { .. }
            | CertificateError::NotValidYet
            | CertificateError::NotValidYetContext { .. },
        )) => Reason::Expired,
        Some(Error::InvalidMessage(_) | Error::InappropriateMessage { .. }) => Reason::Garbage,
        Some(Error::AlertReceived(_)) => Reason::RefusedUs,
        Some(_) => Reason::Other,
        None => Reason::Vanished,
    }
}
