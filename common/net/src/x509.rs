use rustls::pki_types::CertificateDer;
use std::net::IpAddr;
use x509_parser::extensions::{GeneralName, ParsedExtension};
use x509_parser::prelude::{FromDer, X509Certificate};

const DAY_SECONDS: i64 = 24 * 3600;

/// What a person wants to know of a certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// As in `CN=node-a, O=orders`.
    pub subject: String,
    pub issuer: String,
    /// Host names and addresses it is good for.
    pub names: Vec<String>,
    pub not_before_unix: i64,
    /// The last second it is valid in.
    pub not_after_unix: i64,
    /// It may sign others.
    pub is_authority: bool,
    /// It may be shown by a server, and by a client; a certificate that does not say so may do both.
    pub for_servers: bool,
    pub for_clients: bool,
}

impl Facts {
    /// Whole days until it ends; negative once it has.
    pub fn days_left(&self, now_unix: i64) -> i64 {
        (self.not_after_unix - now_unix).div_euclid(DAY_SECONDS)
    }
}

/// Reads a certificate; the error is the reader's own words.
pub fn facts(certificate: &CertificateDer<'_>) -> Result<Facts, String> {
    let (_, parsed) = X509Certificate::from_der(certificate).map_err(|error| error.to_string())?;
    let uses = parsed.extended_key_usage().map_err(|error| error.to_string())?.map(|extension| extension.value);
    Ok(Facts {
        subject: parsed.subject().to_string(),
        issuer: parsed.issuer().to_string(),
        names: names(&parsed),
        not_before_unix: parsed.validity().not_before.timestamp(),
        not_after_unix: parsed.validity().not_after.timestamp(),
        is_authority: parsed.is_ca(),
        for_servers: uses.is_none_or(|uses| uses.any || uses.server_auth),
        for_clients: uses.is_none_or(|uses| uses.any || uses.client_auth),
    })
}

/// The id of the cluster that an authority stands for: 128 bits of the SHA-256 of its public key, in hex. A renewed
/// certificate of the same key keeps it.
pub fn cluster_id(authority: &CertificateDer<'_>) -> Result<String, String> {
    let (_, parsed) = X509Certificate::from_der(authority).map_err(|error| error.to_string())?;
    let digest = ring::digest::digest(&ring::digest::SHA256, parsed.public_key().raw);
    Ok(digest.as_ref()[..16].iter().map(|byte| format!("{byte:02x}")).collect())
}

fn names(certificate: &X509Certificate<'_>) -> Vec<String> {
    let alternative = certificate.extensions().iter().find_map(|extension| match extension.parsed_extension() {
        ParsedExtension::SubjectAlternativeName(names) => Some(names),
        _ => None,
    });
    let shown = |name: &GeneralName<'_>| match name {
        GeneralName::DNSName(name) => (*name).to_owned(),
        GeneralName::IPAddress(bytes) => address(bytes).map_or_else(|| format!("{bytes:02x?}"), |ip| ip.to_string()),
        other => other.to_string(),
    };
    alternative.map(|names| names.general_names.iter().map(shown).collect()).unwrap_or_default()
}

fn address(bytes: &[u8]) -> Option<IpAddr> {
    <[u8; 4]>::try_from(bytes).map(IpAddr::from).or_else(|_| <[u8; 16]>::try_from(bytes).map(IpAddr::from)).ok()
}
