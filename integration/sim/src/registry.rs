//! ZooKeeper as far as masters need it: the fence, the seat, sessions that expire, and who is registered.
//!
//! The rules are those of `registry/fence.rs`; what is simulated is that every step is a message that may be late or lost.

use crate::queue::Ms;
use metaq_types::Epoch;
use std::collections::BTreeMap;

pub(crate) const SESSION_MS: Ms = 2_000;
/// Counted from before the question was sent.
pub(crate) const LEASE_MS: Ms = SESSION_MS * 6 / 10;
pub(crate) const RENEWAL_MS: Ms = SESSION_MS / 6;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fence {
    pub(crate) epoch: Epoch,
    pub(crate) node: usize,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Ask {
    /// The fence and the registered master; a slave registers itself as well.
    Look {
        slave: bool,
    },
    /// Compare and set.
    Write {
        fence: Fence,
        found: Option<Fence>,
    },
    /// Whether nobody has the seat any more who reigned before this fence.
    Vacancy {
        ours: Fence,
    },
    /// Take the seat, or keep it, then look at the fence; `None` opens a session first.
    Sit {
        session: Option<u64>,
    },
    Register {
        session: u64,
    },
    /// An orderly end.
    Leave {
        session: u64,
    },
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Told {
    Standing {
        fence: Option<Fence>,
        registered: Option<usize>,
    },
    /// Whether it was written.
    Written(bool),
    /// Whether the seat is free, or the fence is another one by now.
    Vacant(bool),
    Seat {
        session: u64,
        ours: bool,
        fence: Option<Fence>,
    },
    /// The session is over.
    Expired,
}

#[derive(Debug)]
struct Session {
    number: u64,
    node: usize,
    until: Ms,
}

#[derive(Debug, Default)]
pub(crate) struct Registry {
    fence: Option<Fence>,
    sessions: Vec<Session>,
    /// Sessions that hold an ephemeral node.
    seat: Option<u64>,
    registered: Option<u64>,
    /// Slaves, and until when they are registered.
    slaves: BTreeMap<usize, Ms>,
    opened: u64,
}

impl Registry {
    pub(crate) fn fence(&self) -> Option<Fence> {
        self.fence
    }

    pub(crate) fn slaves(&self, now: Ms) -> Vec<usize> {
        self.slaves.iter().filter(|(_, until)| **until > now).map(|(node, _)| *node).collect()
    }

    pub(crate) fn answer(&mut self, node: usize, ask: Ask, now: Ms) -> Option<Told> {
        self.expire(now);
        match ask {
            Ask::Look { slave } => {
                if slave {
                    self.slaves.insert(node, now + SESSION_MS);
                }
                Some(Told::Standing { fence: self.fence, registered: self.node_of(self.registered) })
            }
            Ask::Write { fence, found } => {
                let written = self.fence == found;
                if written {
                    self.fence = Some(fence);
                }
                Some(Told::Written(written))
            }
            Ask::Vacancy { ours } => {
                let seated = self.node_of(self.seat).filter(|seated| *seated != ours.node);
                Some(Told::Vacant(seated.is_none() || self.fence != Some(ours)))
            }
            Ask::Sit { session } => Some(self.sit(node, session, now)),
            Ask::Register { session } => {
                if self.refresh(session, now) && self.registered.is_none() {
                    self.registered = Some(session);
                }
                None
            }
            Ask::Leave { session } => {
                self.end(session);
                None
            }
        }
    }

    fn sit(&mut self, node: usize, session: Option<u64>, now: Ms) -> Told {
        let number = match session {
            Some(number) if self.refresh(number, now) => number,
            Some(_) => return Told::Expired,
            None => {
                self.opened += 1;
                self.sessions.push(Session { number: self.opened, node, until: now + SESSION_MS });
                self.opened
            }
        };
        // One left by a process on the same data is replaced: it is dead, or the data would still be locked.
        if self.seat.is_none() || self.node_of(self.seat) == Some(node) {
            self.seat = Some(number);
        }
        Told::Seat { session: number, ours: self.seat == Some(number), fence: self.fence }
    }

    fn node_of(&self, session: Option<u64>) -> Option<usize> {
        let number = session?;
        self.sessions.iter().find(|session| session.number == number).map(|session| session.node)
    }

    fn refresh(&mut self, number: u64, now: Ms) -> bool {
        let session = self.sessions.iter_mut().find(|session| session.number == number);
        session.map(|session| session.until = now + SESSION_MS).is_some()
    }

    fn expire(&mut self, now: Ms) {
        let over: Vec<u64> = self.sessions.iter().filter(|s| s.until <= now).map(|s| s.number).collect();
        over.into_iter().for_each(|number| self.end(number));
    }

    fn end(&mut self, number: u64) {
        self.sessions.retain(|session| session.number != number);
        self.seat = self.seat.filter(|seat| *seat != number);
        self.registered = self.registered.filter(|registered| *registered != number);
    }
}
