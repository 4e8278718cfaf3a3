use parking_lot::Mutex;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};
use tracing::warn;

/// One line a reason in this time; a flood is counted, not printed.
const LINE_INTERVAL: Duration = Duration::from_secs(10);

/// Why somebody was not let in, as the label of the metric `metaq_net_refused_handshakes`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// A certificate was asked for, and none came.
    NoCertificate,
    /// Its certificate is of another cluster.
    Foreign,
    /// Its certificate has expired or is not valid yet.
    Expired,
    /// It speaks something else over QUIC or TLS.
    OtherProtocol,
    /// What came is not the beginning of a handshake at all.
    Garbage,
    /// It refused our certificate.
    RefusedUs,
    /// The handshake took too long.
    TimedOut,
    /// It went away within the handshake.
    Vanished,
    /// As many connections are open as may be.
    Full,
    /// A replica on a connection that proves nothing, where `replicationTransport=quic`.
    Unproven,
    Other,
}

impl Reason {
    pub const ALL: [Reason; 11] = [
        Reason::NoCertificate,
        Reason::Foreign,
        Reason::Expired,
        Reason::OtherProtocol,
        Reason::Garbage,
        Reason::RefusedUs,
        Reason::TimedOut,
        Reason::Vanished,
        Reason::Full,
        Reason::Unproven,
        Reason::Other,
    ];

    pub fn label(self) -> &'static str {
        match self {
            Reason::NoCertificate => "no_certificate",
            Reason::Foreign => "foreign",
            Reason::Expired => "expired",
            Reason::OtherProtocol => "other_protocol",
            Reason::Garbage => "garbage",
            Reason::RefusedUs => "refused_us",
            Reason::TimedOut => "timed_out",
            Reason::Vanished => "vanished",
            Reason::Full => "full",
            Reason::Unproven => "unproven",
            Reason::Other => "other",
        }
    }

    fn index(self) -> usize {
        self as usize
    }
}

/// Counts who was sent away, and says so in the log, seldom.
#[derive(Debug, Default)]
pub struct Refusals {
    counts: [AtomicU64; Reason::ALL.len()],
    said: Mutex<[Seldom; Reason::ALL.len()]>,
}

/// Keeps what happens again and again from filling the log.
#[derive(Debug, Default, Clone, Copy)]
pub struct Seldom {
    at: Option<Instant>,
    /// Times since, without a line.
    silent: u64,
}

impl Seldom {
    /// It happened again: how many times it did without a line since the last one, when a line is due.
    pub fn line_is_due(&mut self, now: Instant) -> Option<u64> {
        if self.at.is_some_and(|at| now.duration_since(at) < LINE_INTERVAL) {
            self.silent += 1;
            return None;
        }
        self.at = Some(now);
        Some(std::mem::take(&mut self.silent))
    }
}

impl Refusals {
    /// Counts a refusal; `detail` says in words what was wrong.
    pub fn refuse(&self, reason: Reason, peer: SocketAddr, detail: &str) {
        self.counts[reason.index()].fetch_add(1, Relaxed);
        if let Some(silent) = self.line_is_due(reason, Instant::now()) {
            warn!(%peer, reason = reason.label(), since_last_line = silent, "connection refused: {detail}");
        }
    }

    /// Refusals for this reason since the start.
    pub fn count(&self, reason: Reason) -> u64 {
        self.counts[reason.index()].load(Relaxed)
    }

    fn line_is_due(&self, reason: Reason, now: Instant) -> Option<u64> {
        self.said.lock()[reason.index()].line_is_due(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_are_counted_and_few_are_told() {
        let refusals = Refusals::default();
        let start = Instant::now();
        assert_eq!(refusals.line_is_due(Reason::Foreign, start), Some(0));
        for _ in 0..5 {
            assert_eq!(refusals.line_is_due(Reason::Foreign, start), None);
        }
        assert_eq!(refusals.line_is_due(Reason::Expired, start), Some(0), "each reason has its own");
        assert_eq!(refusals.line_is_due(Reason::Foreign, start + LINE_INTERVAL), Some(5));
        for reason in Reason::ALL {
            assert_eq!(refusals.count(reason), 0);
            refusals.refuse(reason, "127.0.0.1:1".parse().unwrap(), "test");
            assert_eq!(refusals.count(reason), 1, "{}", reason.label());
        }
    }
}
