//! The coordinator of this node's transactions: there is one only while it reigns.

use metaq_txn::{Coordinator, Line, SessionId};
use std::fmt::Write;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

#[derive(Default)]
pub(crate) struct Transactions {
    coordinator: OnceLock<Coordinator>,
    sessions: AtomicU64,
}

impl Transactions {
    /// From now on transactions are accepted. A second call changes nothing.
    pub(crate) fn begin(&self, coordinator: Coordinator) {
        let _ = self.coordinator.set(coordinator);
    }

    /// `None` on a slave, and on a master whose reign has not begun.
    pub(crate) fn get(&self) -> Option<&Coordinator> {
        self.coordinator.get()
    }

    /// A name for a connection, which local transactions are bound to; never 0.
    pub(crate) fn next_session(&self) -> SessionId {
        self.sessions.fetch_add(1, Relaxed) + 1
    }

    pub(crate) fn session_ended(&self, session: SessionId) {
        if let Some(coordinator) = self.get() {
            coordinator.session_ended(session);
        }
    }

    /// The lines of `stats transactions`: the journal's length and its syncs, then one each with its key last, which may
    /// hold anything but a blank.
    pub(crate) fn write_stats(&self, out: &mut String) {
        if let Some(coordinator) = self.get() {
            let _ = write!(out, "journal_bytes {}\r\n", coordinator.journal_bytes());
            let _ = write!(out, "journal_syncs {}\r\n", coordinator.journal_syncs());
        }
        for Line { key, state, age, messages, bytes } in self.get().map(Coordinator::lines).unwrap_or_default() {
            let _ = write!(
                out,
                "state {state} age_seconds {} messages {messages} bytes {bytes} key {key}\r\n",
                age.as_secs()
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use metaq_config::BrokerConfig;
    use metaq_types::JOURNAL_TOPIC;
    use std::path::Path;
    use std::time::Duration;

    /// Whether answers wait for a sync of the journal, and after what time it is synced unasked.
    fn journal(flush: u8) -> (bool, Duration) {
        let text = format!(
            "[system]\nbrokerId=0\nnumPartitions=1\nunflushThreshold=0\nunflushInterval=10000\n\
             maxSegmentSize=1048576\nmaxTransferSize=1048576\ndeletePolicy=delete,168\n\
             deleteWhen=0 0 6 * * ?\nserverPort=0\nhostName=here\nflushTxLogAtCommit={flush}\n\
             [zookeeper]\nzk.zkEnable=false\n[topic=test]\n"
        );
        let config = BrokerConfig::parse(Path::new("server.ini"), text.into_bytes()).unwrap();
        let rules = crate::rules_for(&config, JOURNAL_TOPIC);
        (crate::transaction_settings(&config).synced, rules.flush.interval)
    }

    #[test]
    fn the_levels_of_the_journal_differ() {
        assert_eq!(journal(1), (true, Duration::from_secs(1)));
        assert_eq!(journal(2), (false, Duration::from_secs(1)));
        assert_eq!(journal(0), (false, Duration::MAX));
    }
}
