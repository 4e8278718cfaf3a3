use crate::resets;
use crate::tls;
use crate::x509::{Facts, cluster_id, facts};
use arc_swap::ArcSwap;
use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::sign::CertifiedKey;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

/// From this many days on a certificate's end is worth a warning.
pub const DAYS_LEFT_WARNED: i64 = 14;

/// Far above any chain; a mistaken path is an error and not an ocean.
const FILE_BYTES_MAX: u64 = 1024 * 1024;

/// Where a node's certificate lies (`tlsCertFile`, `tlsKeyFile`, `tlsCaFile`), all in PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertFiles {
    /// The node's own, with intermediates behind it if there are any.
    pub certificate: PathBuf,
    pub key: PathBuf,
    /// The authorities this node trusts: its cluster's, and during a change of authorities the next one's.
    pub authorities: PathBuf,
}

/// Why certificates cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CertError {
    #[error("{path} cannot be read: {reason}")]
    Read { path: String, reason: String },
    #[error("{path} holds no {what} in PEM")]
    Empty { path: String, what: &'static str },
    #[error("{path} is no usable {what}: {reason}")]
    Unusable { path: String, what: &'static str, reason: String },
    #[error("the certificate in {path} has expired {ago} ago; issue a new one with 'metaq cert issue'")]
    Expired { path: String, ago: String },
    #[error("the certificate in {path} is not valid yet; is the clock right?")]
    NotYetValid { path: String },
    #[error("the certificate in {path} may not be shown by both servers and clients; nodes are both")]
    OneSided { path: String },
    #[error("the key in {key} does not belong to the certificate in {certificate}")]
    OtherKey { key: String, certificate: String },
    #[error("the certificate in {certificate} was not issued by an authority in {authorities}: {reason}")]
    Foreign { certificate: String, authorities: String, reason: String },
    #[error(
        "the new certificate belongs to cluster {new}, which this node does not trust yet; add its authority to \
         tlsCaFile and reload before the certificate changes"
    )]
    OtherCluster { new: String },
}

/// Certificates that were checked and can serve, with the configurations made of them.
pub struct Certificates {
    /// Of the node's own certificate.
    pub facts: Facts,
    /// Of the authority that issued it.
    pub cluster_id: String,
    /// Ids of every authority trusted, in the order of the file.
    pub trusted: Vec<String>,
    pub(crate) configs: tls::Configs,
    /// Follows from the private key.
    pub(crate) secret: resets::Secret,
}

/// A node's certificates, replaced whole while connections go on: whoever begins a handshake takes the current ones.
pub struct Identity {
    files: CertFiles,
    current: ArcSwap<Certificates>,
}

impl std::fmt::Debug for Identity {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Identity").field("files", &self.files).finish_non_exhaustive()
    }
}

impl Identity {
    /// Reads and checks the files. Blocks for the reading of three small files.
    pub fn load(files: CertFiles) -> Result<Identity, CertError> {
        let current = Certificates::load(&files, now_unix())?;
        Ok(Identity { files, current: ArcSwap::from_pointee(current) })
    }

    pub fn current(&self) -> Arc<Certificates> {
        self.current.load_full()
    }

    /// Reads the files again and serves new handshakes with what they hold. What cannot serve is refused and changes
    /// nothing; so does a certificate of an authority that was not trusted before, since that is a mistaken file.
    pub fn reload(&self) -> Result<Arc<Certificates>, CertError> {
        let new = Certificates::load(&self.files, now_unix())?;
        if !self.current.load().trusted.contains(&new.cluster_id) {
            return Err(CertError::OtherCluster { new: new.cluster_id });
        }
        let new = Arc::new(new);
        self.current.store(Arc::clone(&new));
        Ok(new)
    }
}

impl Certificates {
    fn load(files: &CertFiles, now_unix: i64) -> Result<Certificates, CertError> {
        let chain = read_certificates(&files.certificate)?;
        let key = read_key(&files.key)?;
        let authorities = read_certificates(&files.authorities)?;
        let facts = check_facts(&files.certificate, &chain[0], now_unix)?;
        let cluster_id = issuer(files, &chain, &authorities, now_unix)?;
        let mut trusted = Vec::new();
        for authority in &authorities {
            trusted.push(crate::cluster_id(authority).map_err(|reason| unusable(&files.authorities, reason))?);
        }
        let roots = Arc::new(roots_of(&authorities, &files.authorities)?);
        let secret = resets::Secret::of(&key);
        let signing = tls::provider().key_provider.load_private_key(key).map_err(|error| CertError::Unusable {
            path: shown(&files.key),
            what: "private key",
            reason: error.to_string(),
        })?;
        let certified = CertifiedKey::new(chain, signing);
        certified
            .keys_match()
            .map_err(|_| CertError::OtherKey { key: shown(&files.key), certificate: shown(&files.certificate) })?;
        let configs = tls::Configs::new(Arc::new(certified), &roots)
            .map_err(|error| unusable(&files.certificate, error.to_string()))?;
        Ok(Certificates { facts, cluster_id, trusted, configs, secret })
    }

    /// Days left when they are few enough to be worth a warning.
    pub fn ends_soon(&self) -> Option<i64> {
        Some(self.facts.days_left(now_unix())).filter(|days| *days < DAYS_LEFT_WARNED)
    }
}

fn check_facts(path: &Path, certificate: &CertificateDer<'_>, now_unix: i64) -> Result<Facts, CertError> {
    let facts = facts(certificate).map_err(|reason| unusable(path, reason))?;
    if facts.not_after_unix < now_unix {
        return Err(CertError::Expired { path: shown(path), ago: span(now_unix - facts.not_after_unix) });
    }
    if facts.not_before_unix > now_unix {
        return Err(CertError::NotYetValid { path: shown(path) });
    }
    if !(facts.for_servers && facts.for_clients) {
        return Err(CertError::OneSided { path: shown(path) });
    }
    Ok(facts)
}

/// The cluster id of the authority that issued the chain. Each is tried alone: two may have the same name.
fn issuer(
    files: &CertFiles,
    chain: &[CertificateDer<'static>],
    authorities: &[CertificateDer<'static>],
    now_unix: i64,
) -> Result<String, CertError> {
    let mut refusal = String::new();
    for authority in authorities {
        match verify(chain, authority, now_unix) {
            Ok(()) => return cluster_id(authority).map_err(|reason| unusable(&files.authorities, reason)),
            Err(reason) => refusal = reason,
        }
    }
    Err(CertError::Foreign {
        certificate: shown(&files.certificate),
        authorities: shown(&files.authorities),
        reason: refusal,
    })
}

/// Whether `authority` issued the chain and both are valid now; the error says what is wrong.
pub fn verify(
    chain: &[CertificateDer<'static>],
    authority: &CertificateDer<'static>,
    now_unix: i64,
) -> Result<(), String> {
    let (leaf, intermediates) = chain.split_first().ok_or("the chain is empty")?;
    let mut roots = RootCertStore::empty();
    roots.add(authority.clone()).map_err(|error| error.to_string())?;
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), tls::provider())
        .build()
        .map_err(|error| error.to_string())?;
    let now = UnixTime::since_unix_epoch(std::time::Duration::from_secs(now_unix.max(0).unsigned_abs()));
    verifier.verify_client_cert(leaf, intermediates, now).map(|_| ()).map_err(|error| error.to_string())
}

/// Every certificate of a PEM file, never none.
pub fn read_certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, CertError> {
    let pem = read(path)?;
    let certificates = CertificateDer::pem_slice_iter(&pem)
        .collect::<Result<Vec<_>, _>>()
        .map_err(|error| unusable(path, error.to_string()))?;
    if certificates.is_empty() {
        return Err(CertError::Empty { path: shown(path), what: "certificate" });
    }
    Ok(certificates)
}

fn read_key(path: &Path) -> Result<PrivateKeyDer<'static>, CertError> {
    let pem = read(path)?;
    PrivateKeyDer::from_pem_slice(&pem).map_err(|_| CertError::Empty { path: shown(path), what: "private key" })
}

fn read(path: &Path) -> Result<Vec<u8>, CertError> {
    let failed = |reason: String| CertError::Read { path: shown(path), reason };
    let length = std::fs::metadata(path).map_err(|error| failed(error.to_string()))?.len();
    if length > FILE_BYTES_MAX {
        return Err(failed(format!("it is longer than {FILE_BYTES_MAX} bytes")));
    }
    std::fs::read(path).map_err(|error| failed(error.to_string()))
}

fn roots_of(authorities: &[CertificateDer<'static>], path: &Path) -> Result<RootCertStore, CertError> {
    let mut roots = RootCertStore::empty();
    for authority in authorities {
        roots.add(authority.clone()).map_err(|error| unusable(path, error.to_string()))?;
    }
    Ok(roots)
}

/// A time in the unit a person would take.
fn span(seconds: i64) -> String {
    const UNITS: [(i64, &str); 3] = [(24 * 3600, "days"), (3600, "hours"), (60, "minutes")];
    let unit = UNITS.into_iter().find(|(length, _)| seconds >= 2 * length);
    unit.map_or_else(|| format!("{seconds} seconds"), |(length, name)| format!("{} {name}", seconds / length))
}

fn unusable(path: &Path, reason: String) -> CertError {
    CertError::Unusable { path: shown(path), what: "certificate", reason }
}

fn shown(path: &Path) -> String {
    path.display().to_string()
}

/// Whether somebody who connects can look for `host` in a certificate: a name, maybe with `*.` in front, or an address.
pub fn is_host(host: &str) -> bool {
    ServerName::try_from(host.strip_prefix("*.").unwrap_or(host)).is_ok()
}

/// The wall clock, in seconds.
pub fn now_unix() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| i64::try_from(since.as_secs()).unwrap_or(i64::MAX))
}
