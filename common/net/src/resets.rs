//! How a node that was killed and started again tells its peers that it knows their connections no more, instead of
//! letting them wait for answers that nobody will send (the stateless reset of RFC 9000, "10.3").
//!
//! Peers believe it as it shows what only the process before it could have told them. So what it shows follows from the
//! node's private key and its name, which are the same after a start; after a renewal of the certificate it is another,
//! and the first start then goes unnoticed until the connections are idle for too long.

use quinn::{ConnectionId, ConnectionIdGenerator, EndpointConfig};
use ring::rand::{SecureRandom, SystemRandom};
use ring::{hkdf, hmac};
use rustls::pki_types::PrivateKeyDer;
use std::sync::Arc;
use std::time::Duration;

/// The private key tells nobody anything but what was derived from it for this purpose.
const PURPOSE: &[u8] = b"metaq stateless reset 1";

/// Several slaves speak at the same time, and each has to be told. A reset is shorter than what it answers, so nobody
/// gains by provoking them.
const PAUSE_MIN: Duration = Duration::from_millis(1);

/// What a private key keeps, for this purpose alone.
#[derive(Clone, Debug)]
pub(crate) struct Secret(hkdf::Prk);

impl Secret {
    pub(crate) fn of(key: &PrivateKeyDer<'_>) -> Secret {
        Secret(hkdf::Salt::new(hkdf::HKDF_SHA256, PURPOSE).extract(key.secret_der()))
    }

    /// For an endpoint that knows its connections after a restart for those of the node `node`, to end them: two nodes
    /// that share a key by mistake do not end each other's.
    pub(crate) fn endpoint_config(&self, node: &str) -> EndpointConfig {
        let mut config = EndpointConfig::new(Arc::new(self.key(node)));
        config.cid_generator(|| Box::new(Numbers(SystemRandom::new()))).min_reset_interval(PAUSE_MIN);
        config
    }

    fn key(&self, node: &str) -> hmac::Key {
        let derived = self.0.expand(&[node.as_bytes()], hmac::HMAC_SHA256).map(hmac::Key::from);
        derived.expect("a key of HMAC is short enough to be derived")
    }
}

/// Numbers of connections. Those that the library makes show who has made them, which the next process would not take for
/// its own.
struct Numbers(SystemRandom);

const NUMBER_BYTES: usize = 8;

impl ConnectionIdGenerator for Numbers {
    fn generate_cid(&mut self) -> ConnectionId {
        let mut bytes = [0; NUMBER_BYTES];
        self.0.fill(&mut bytes).expect("a system that has made keys has random numbers");
        ConnectionId::new(&bytes)
    }

    fn cid_len(&self) -> usize {
        NUMBER_BYTES
    }

    fn cid_lifetime(&self) -> Option<Duration> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_same_node_with_the_same_key_shows_the_same() {
        let shown = |key: &[u8], node: &str| {
            let key = Secret::of(&PrivateKeyDer::Pkcs8(key.to_vec().into())).key(node);
            hmac::sign(&key, b"a connection").as_ref().to_vec()
        };
        assert_eq!(shown(b"key", "a"), shown(b"key", "a"));
        assert_ne!(shown(b"key", "a"), shown(b"key", "b"));
        assert_ne!(shown(b"key", "a"), shown(b"another", "a"));
    }
}
