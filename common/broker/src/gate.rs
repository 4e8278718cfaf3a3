//! Whether this node may acknowledge messages now: a lease that runs out, and a reign that may be over; and whether it
//! takes new ones, which it does not while it stops.

use metaq_types::Epoch;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;
use tokio::sync::watch;

/// Open until an instant, in nanoseconds since `begun`; this stands for "for ever".
const FOR_EVER: u64 = u64::MAX;

const LEAVING: &str = "the broker stops; try again when it is back, or send to another";

/// Whoever took over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Successor {
    pub epoch: Epoch,
    pub node: String,
    /// Where it can be reached, empty while unknown.
    pub uri: String,
}

impl Successor {
    /// Its address, or what else is known of it.
    pub fn name(&self) -> String {
        if self.uri.is_empty() { format!("node {}", self.node) } else { self.uri.clone() }
    }
}

/// One look costs a load, and a clock reading where there is a lease.
pub struct Gate {
    begun: Instant,
    open_until_ns: AtomicU64,
    /// The node stops: what it has taken it still acknowledges.
    leaving: AtomicBool,
    /// Why it is shut, for producers.
    reason: Mutex<String>,
    successor: watch::Sender<Option<Successor>>,
}

impl Gate {
    /// Shut, with a reason.
    pub(crate) fn shut(reason: &str) -> Gate {
        Gate {
            begun: Instant::now(),
            open_until_ns: AtomicU64::new(0),
            leaving: AtomicBool::new(false),
            reason: Mutex::new(reason.to_owned()),
            successor: watch::channel(None).0,
        }
    }

    /// Still shut, and now for this reason.
    pub fn say(&self, reason: &str) {
        if !self.is_open() && self.successor.borrow().is_none() {
            reason.clone_into(&mut self.reason.lock());
        }
    }

    /// Nobody else can be the master of this broker id before `until`; `None`: nobody ever.
    pub fn open(&self, until: Option<Instant>) {
        if self.successor.borrow().is_some() {
            return;
        }
        let until = until.map_or(FOR_EVER, |until| until.duration_since(self.begun).as_nanos() as u64);
        self.open_until_ns.store(until, Ordering::SeqCst);
        let reason = "the master has lost ZooKeeper and cannot rule out that another took its place; it acknowledges \
                      nothing until it is back";
        reason.clone_into(&mut self.reason.lock());
    }

    /// The reign is over for good: another has begun.
    pub fn replace(&self, successor: Successor) {
        self.open_until_ns.store(0, Ordering::SeqCst);
        *self.reason.lock() = format!(
            "this master was replaced: {} reigns in epoch {}; send messages there",
            successor.name(),
            successor.epoch
        );
        self.successor.send_replace(Some(successor));
    }

    /// From now on no message is taken.
    pub(crate) fn leave(&self) {
        self.leaving.store(true, Ordering::SeqCst);
    }

    /// Who took over, once somebody did.
    pub fn successor(&self) -> watch::Receiver<Option<Successor>> {
        self.successor.subscribe()
    }

    pub(crate) fn is_open(&self) -> bool {
        match self.open_until_ns.load(Ordering::SeqCst) {
            FOR_EVER => true,
            0 => false,
            until => self.begun.elapsed().as_nanos() < u128::from(until),
        }
    }

    /// Whether a message may be taken, with the reason if not.
    pub(crate) fn admits(&self) -> Result<(), String> {
        match (self.is_open(), self.leaving.load(Ordering::SeqCst)) {
            (false, _) => Err(self.reason()),
            (true, true) => Err(LEAVING.to_owned()),
            (true, false) => Ok(()),
        }
    }

    pub(crate) fn reason(&self) -> String {
        self.reason.lock().clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_lease_runs_out_and_a_reign_ends_for_good() {
        let gate = Gate::shut("starting");
        assert!(!gate.is_open());
        assert_eq!(gate.reason(), "starting");
        gate.say("waiting");
        assert_eq!(gate.admits(), Err("waiting".to_owned()));
        gate.open(Some(Instant::now() + Duration::from_secs(3600)));
        assert!(gate.is_open());
        gate.open(Some(Instant::now()));
        assert!(!gate.is_open());
        gate.open(None);
        assert!(gate.is_open());
        assert_eq!(gate.admits(), Ok(()));
        gate.leave();
        assert!(gate.is_open(), "for what was taken before");
        assert_eq!(gate.admits(), Err(LEAVING.to_owned()));
        gate.replace(Successor { epoch: Epoch(9), node: "b".into(), uri: "meta://b:1".into() });
        assert!(!gate.is_open());
        assert!(gate.reason().contains("meta://b:1"));
        gate.open(None);
        assert!(!gate.is_open(), "never again");
    }
}
