//! The keys about certificates and encrypted transports, and what must hold between them.

use crate::keys::{self, Key};
use crate::values::Values;
use std::path::PathBuf;
use std::str::FromStr;

/// `replicationTransport`: how a slave reaches its master, and how a master lets slaves in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplicationTransport {
    /// QUIC where certificates are configured, else TCP; a master takes both.
    Auto,
    /// Nothing but QUIC.
    Quic,
    /// Nothing but TCP.
    Tcp,
}

/// `tlsClientAuth`: whether clients on `tlsPort` must show a certificate of the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TlsClientAuth {
    None,
    Required,
}

/// Where this node's certificate lies, in PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    pub certificate: PathBuf,
    pub key: PathBuf,
    pub authorities: PathBuf,
}

macro_rules! words {
    ($($type:ident: $($word:literal = $variant:ident),+;)+) => {
        $(
            impl FromStr for $type {
                type Err = String;

                fn from_str(text: &str) -> Result<$type, String> {
                    match text {
                        $($word => Ok($type::$variant),)+
                        _ => Err(format!("is none of {}", [$($word),+].join(", "))),
                    }
                }
            }

            impl std::fmt::Display for $type {
                fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                    formatter.write_str(match self {
                        $($type::$variant => $word,)+
                    })
                }
            }
        )+
    };
}

words! {
    ReplicationTransport: "auto" = Auto, "quic" = Quic, "tcp" = Tcp;
    TlsClientAuth: "none" = None, "required" = Required;
}

/// What `[system]` says about all this.
pub(crate) struct Security {
    pub(crate) tls_port: u16,
    pub(crate) tls_files: Option<TlsFiles>,
    pub(crate) tls_client_auth: TlsClientAuth,
    pub(crate) replication_transport: ReplicationTransport,
}

impl Security {
    pub(crate) fn parse(values: &mut Values<'_>) -> Security {
        let security = Security {
            tls_port: values.unsigned(&keys::TLS_PORT),
            tls_files: files(values),
            tls_client_auth: values.parsed(&keys::TLS_CLIENT_AUTH, str::parse).unwrap_or(TlsClientAuth::None),
            replication_transport: values
                .parsed(&keys::REPLICATION_TRANSPORT, str::parse)
                .unwrap_or(ReplicationTransport::Auto),
        };
        if security.tls_files.is_none() {
            let needs = "needs a certificate; write tlsCertFile, tlsKeyFile and tlsCaFile";
            if security.tls_port != 0 {
                fault(values, &keys::TLS_PORT, needs);
            }
            if security.replication_transport == ReplicationTransport::Quic {
                fault(values, &keys::REPLICATION_TRANSPORT, needs);
            }
        }
        security
    }
}

/// All three files or none.
fn files(values: &mut Values<'_>) -> Option<TlsFiles> {
    let keys = [&keys::TLS_CERT_FILE, &keys::TLS_KEY_FILE, &keys::TLS_CA_FILE];
    let [certificate, key, authorities] = keys.map(|key| values.text(key).map(PathBuf::from));
    match (certificate, key, authorities) {
        (Some(certificate), Some(key), Some(authorities)) => Some(TlsFiles { certificate, key, authorities }),
        (None, None, None) => None,
        _ => {
            let written = keys.into_iter().find(|key| values.entry(key).is_some());
            for missing in keys.into_iter().filter(|key| values.entry(key).is_none()).collect::<Vec<_>>() {
                let message = format!("is of no use without {}; write all three or none", missing.name);
                fault(values, written.unwrap_or(missing), &message);
            }
            None
        }
    }
}

fn fault(values: &mut Values<'_>, key: &Key, what: &str) {
    let line = values.entry(key).map(|entry| entry.line);
    values.findings.error(line, format!("{} {what}", key.name));
}
