//! Sessions, watches and the tree together: what a request does and whom it concerns. No I/O; the clock is passed in.

use super::protocol::{Answer, Code, Connect, EventKind, Request};
use super::tree::{Mode, Tree, parent_of};
use super::watches::{ConnectionId, Watches};
use bytes::Bytes;
use std::collections::{BTreeSet, HashMap};
use std::hash::{BuildHasher, RandomState};
use std::time::Duration;
use tokio::time::Instant;

/// What a client may ask for as its session's time-out; anything else is moved into it.
const SESSION_TIMEOUT_MS_MIN: i32 = 1_000;
const SESSION_TIMEOUT_MS_MAX: i32 = 60_000;

/// Creation flags: 1 ephemeral, 2 sequential; everything above is a kind of node we do not have.
const EPHEMERAL: i32 = 1;
const SEQUENTIAL: i32 = 2;
const FLAGS_MAX: i32 = 3;

#[derive(Debug)]
struct Session {
    password: [u8; 16],
    timeout: Duration,
    expires: Instant,
    connection: Option<ConnectionId>,
}

/// The answer to a connection's first frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Admission {
    Session {
        id: i64,
        timeout_ms: i32,
        password: [u8; 16],
        /// A connection the session had until now.
        displaced: Option<ConnectionId>,
    },
    Expired,
}

/// A watch that fired for a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Event {
    pub(super) connection: ConnectionId,
    pub(super) kind: EventKind,
    pub(super) path: String,
}

#[derive(Debug)]
pub(super) struct Ensemble {
    tree: Tree,
    sessions: HashMap<i64, Session>,
    data_watches: Watches,
    child_watches: Watches,
    events: Vec<Event>,
    last_session: i64,
    random: RandomState,
}

impl Ensemble {
    /// `started_s` is the wall clock: sessions and transactions of one run are not those of the run before.
    pub(super) fn new(started_s: u64) -> Ensemble {
        let epoch = i64::try_from(started_s & 0x7fff_ffff).expect("31 bits fit");
        Ensemble {
            tree: Tree::new(epoch << 32),
            sessions: HashMap::new(),
            data_watches: Watches::default(),
            child_watches: Watches::default(),
            events: Vec::new(),
            last_session: epoch << 24,
            random: RandomState::new(),
        }
    }

    /// A session is admitted, or comes back on a new connection.
    pub(super) fn connect(&mut self, connection: ConnectionId, request: &Connect, now: Instant) -> Admission {
        let timeout_ms = request.timeout_ms.clamp(SESSION_TIMEOUT_MS_MIN, SESSION_TIMEOUT_MS_MAX);
        let timeout = Duration::from_millis(timeout_ms.unsigned_abs().into());
        let (id, displaced) = if request.session == 0 {
            self.last_session += 1;
            (self.last_session, None)
        } else {
            match self.sessions.get(&request.session) {
                Some(session) if session.password == request.password[..] => (request.session, session.connection),
                _ => return Admission::Expired,
            }
        };
        let password = self.password(id);
        let session = Session { password, timeout, expires: now + timeout, connection: Some(connection) };
        self.sessions.insert(id, session);
        displaced.into_iter().for_each(|displaced| self.forget_watches(displaced));
        Admission::Session { id, timeout_ms, password, displaced }
    }

    /// Not a secret worth more: it keeps a client from taking over another's session by mistake.
    fn password(&self, session: i64) -> [u8; 16] {
        let halves = [self.random.hash_one((session, 0)), self.random.hash_one((session, 1))];
        let mut password = [0; 16];
        password[..8].copy_from_slice(&halves[0].to_be_bytes());
        password[8..].copy_from_slice(&halves[1].to_be_bytes());
        password
    }

    /// The connection is gone; its session waits for another until it expires.
    pub(super) fn disconnected(&mut self, session: i64, connection: ConnectionId) {
        self.forget_watches(connection);
        if let Some(session) = self.sessions.get_mut(&session)
            && session.connection == Some(connection)
        {
            session.connection = None;
        }
    }

    fn forget_watches(&mut self, connection: ConnectionId) {
        self.data_watches.disconnected(connection);
        self.child_watches.disconnected(connection);
    }

    /// Ends the sessions not heard of for their time-out; the connections they still had.
    pub(super) fn expire(&mut self, now: Instant) -> Vec<ConnectionId> {
        let expired: Vec<i64> =
            self.sessions.iter().filter(|(_, session)| session.expires <= now).map(|(id, _)| *id).collect();
        expired.into_iter().filter_map(|id| self.end_session(id)).collect()
    }

    fn end_session(&mut self, id: i64) -> Option<ConnectionId> {
        let connection = self.sessions.remove(&id).and_then(|session| session.connection);
        for path in self.tree.delete_ephemerals(id) {
            self.deleted(&path);
        }
        connection
    }

    /// Watches that fired since the last call, in order.
    pub(super) fn take_events(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.events)
    }

    /// Executes one request of a session; with the answer comes the last transaction's number.
    pub(super) fn execute(
        &mut self,
        (id, connection): (i64, ConnectionId),
        request: Request,
        now: Instant,
        now_ms: i64,
    ) -> (i64, Result<Answer, Code>) {
        let answer = match self.sessions.get_mut(&id) {
            Some(session) if session.connection == Some(connection) => {
                session.expires = now + session.timeout;
                self.perform((id, connection), request, now_ms)
            }
            _ => Err(Code::SessionExpired),
        };
        (self.tree.zxid(), answer)
    }

    fn perform(
        &mut self,
        (id, connection): (i64, ConnectionId),
        request: Request,
        now_ms: i64,
    ) -> Result<Answer, Code> {
        match request {
            Request::Create { path, data, open, flags, with_stat } => {
                let (path, stat) = match flags {
                    0..=FLAGS_MAX if open => self.create(&path, data, flags, id, now_ms)?,
                    0..=FLAGS_MAX => return Err(Code::InvalidAcl),
                    _ => return Err(Code::Unimplemented),
                };
                Ok(if with_stat { Answer::PathStat(path, stat) } else { Answer::Path(path) })
            }
            Request::Delete { path, version } => {
                self.tree.delete(&path, version)?;
                self.deleted(&path);
                Ok(Answer::Empty)
            }
            Request::Exists { path, watch } => {
                // Watched even when it does not exist: that is how a client waits for a node.
                let stat = self.tree.stat(&path);
                if watch && stat != Err(Code::BadArguments) {
                    self.watch(&path, connection, false)?;
                }
                stat.map(Answer::Stat)
            }
            Request::GetData { path, watch } => {
                let (data, stat) = self.tree.data(&path)?;
                if watch {
                    self.watch(&path, connection, false)?;
                }
                Ok(Answer::Data(data, stat))
            }
            Request::SetData { path, data, version } => {
                let stat = self.tree.set(&path, data, version, now_ms)?;
                let watching = self.data_watches.take(&path);
                self.tell(watching, EventKind::DataChanged, &path);
                Ok(Answer::Stat(stat))
            }
            Request::GetAcl { path } => self.tree.stat(&path).map(Answer::OpenAcl),
            Request::GetChildren { path, watch, with_stat } => {
                let (names, stat) = self.tree.children(&path)?;
                if watch {
                    self.watch(&path, connection, true)?;
                }
                Ok(if with_stat { Answer::NamesStat(names, stat) } else { Answer::Names(names) })
            }
            Request::Sync { path } => Ok(Answer::Path(path)),
            Request::Ping | Request::Auth => Ok(Answer::Empty),
            Request::SetWatches { since, data, exist, child } => {
                self.set_watches(connection, since, [data, exist, child])
            }
            Request::RemoveWatches { path, data, child } => {
                let data = data && self.data_watches.remove(&path, connection);
                let child = child && self.child_watches.remove(&path, connection);
                if data || child { Ok(Answer::Empty) } else { Err(Code::NoWatcher) }
            }
            Request::GetEphemerals { prefix } => Ok(Answer::Names(self.tree.ephemerals(id, &prefix))),
            Request::CloseSession => {
                self.end_session(id);
                Ok(Answer::Empty)
            }
            Request::Unimplemented => Err(Code::Unimplemented),
            Request::Malformed => Err(Code::MarshallingError),
        }
    }

    fn create(
        &mut self,
        path: &str,
        data: Option<Bytes>,
        flags: i32,
        session: i64,
        now_ms: i64,
    ) -> Result<(String, super::tree::Stat), Code> {
        let owner = if flags & EPHEMERAL != 0 { session } else { 0 };
        let mode = Mode { owner, sequential: flags & SEQUENTIAL != 0 };
        let (path, stat) = self.tree.create(path, data, mode, now_ms)?;
        let watching = self.data_watches.take(&path);
        self.tell(watching, EventKind::Created, &path);
        self.children_changed(&path);
        Ok((path, stat))
    }

    fn watch(&mut self, path: &str, connection: ConnectionId, child: bool) -> Result<(), Code> {
        let watches = if child { &mut self.child_watches } else { &mut self.data_watches };
        if watches.add(path, connection) { Ok(()) } else { Err(Code::SystemError) }
    }

    /// A client that reconnects names the watches it had: what they would have told meanwhile is told now.
    fn set_watches(
        &mut self,
        connection: ConnectionId,
        since: i64,
        [data, exist, child]: [Vec<String>; 3],
    ) -> Result<Answer, Code> {
        for path in data {
            match self.tree.stat(&path) {
                Ok(stat) if stat.mzxid <= since => self.watch(&path, connection, false)?,
                Ok(_) => self.tell([connection].into(), EventKind::DataChanged, &path),
                Err(_) => self.tell([connection].into(), EventKind::Deleted, &path),
            }
        }
        for path in exist {
            match self.tree.stat(&path) {
                Ok(_) => self.tell([connection].into(), EventKind::Created, &path),
                Err(_) => self.watch(&path, connection, false)?,
            }
        }
        for path in child {
            match self.tree.stat(&path) {
                Ok(stat) if stat.pzxid <= since => self.watch(&path, connection, true)?,
                Ok(_) => self.tell([connection].into(), EventKind::ChildrenChanged, &path),
                Err(_) => self.tell([connection].into(), EventKind::Deleted, &path),
            }
        }
        Ok(Answer::Empty)
    }

    /// One event for a connection that watched both the node and its children.
    fn deleted(&mut self, path: &str) {
        let mut watching = self.data_watches.take(path);
        watching.append(&mut self.child_watches.take(path));
        self.tell(watching, EventKind::Deleted, path);
        self.children_changed(path);
    }

    fn children_changed(&mut self, path: &str) {
        let above = parent_of(path);
        let watching = self.child_watches.take(above);
        self.tell(watching, EventKind::ChildrenChanged, above);
    }

    fn tell(&mut self, watching: BTreeSet<ConnectionId>, kind: EventKind, path: &str) {
        let events = watching.into_iter().map(|connection| Event { connection, kind, path: path.to_owned() });
        self.events.extend(events);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Client {
        session: i64,
        connection: ConnectionId,
        password: [u8; 16],
    }

    fn connect(ensemble: &mut Ensemble, connection: ConnectionId, timeout_ms: i32, now: Instant) -> Client {
        let request = Connect { timeout_ms, session: 0, password: Bytes::new(), has_read_only: true };
        match ensemble.connect(connection, &request, now) {
            Admission::Session { id, password, .. } => Client { session: id, connection, password },
            Admission::Expired => panic!("a new session is always admitted"),
        }
    }

    fn ask(ensemble: &mut Ensemble, client: &Client, request: Request, now: Instant) -> Result<Answer, Code> {
        ensemble.execute((client.session, client.connection), request, now, 0).1
    }

    fn create(path: &str, flags: i32) -> Request {
        Request::Create { path: path.to_owned(), data: None, open: true, flags, with_stat: false }
    }

    fn exists(path: &str) -> Request {
        Request::Exists { path: path.to_owned(), watch: true }
    }

    fn children(path: &str) -> Request {
        Request::GetChildren { path: path.to_owned(), watch: true, with_stat: false }
    }

    fn delete(path: &str) -> Request {
        Request::Delete { path: path.to_owned(), version: -1 }
    }

    fn told(ensemble: &mut Ensemble) -> Vec<(ConnectionId, EventKind, String)> {
        ensemble.take_events().into_iter().map(|event| (event.connection, event.kind, event.path)).collect()
    }

    #[test]
    fn watches_fire_once_with_the_right_kind() {
        let now = Instant::now();
        let mut ensemble = Ensemble::new(1);
        let (a, b) = (connect(&mut ensemble, 1, 5000, now), connect(&mut ensemble, 2, 5000, now));
        assert_eq!(ask(&mut ensemble, &a, exists("/x"), now), Err(Code::NoNode));
        ask(&mut ensemble, &a, children("/"), now).unwrap();
        ask(&mut ensemble, &b, create("/x", 0), now).unwrap();
        let expected = [(1, EventKind::Created, "/x".to_owned()), (1, EventKind::ChildrenChanged, "/".to_owned())];
        assert_eq!(told(&mut ensemble), expected);
        ask(&mut ensemble, &b, create("/y", 0), now).unwrap();
        assert_eq!(told(&mut ensemble), []);
        // Watched as a node and as a parent by one connection: told once.
        ask(&mut ensemble, &a, exists("/x"), now).unwrap();
        ask(&mut ensemble, &a, children("/x"), now).unwrap();
        ask(&mut ensemble, &b, delete("/x"), now).unwrap();
        assert_eq!(told(&mut ensemble), [(1, EventKind::Deleted, "/x".to_owned())]);
    }

    #[test]
    fn an_expired_session_takes_its_nodes_along_and_tells() {
        let now = Instant::now();
        let mut ensemble = Ensemble::new(1);
        let (a, b) = (connect(&mut ensemble, 1, 1000, now), connect(&mut ensemble, 2, 60_000, now));
        ask(&mut ensemble, &a, create("/e", EPHEMERAL), now).unwrap();
        ask(&mut ensemble, &b, exists("/e"), now).unwrap();
        ensemble.take_events();
        let late = now + Duration::from_millis(999);
        ask(&mut ensemble, &a, Request::Ping, late).unwrap();
        assert!(ensemble.expire(now + Duration::from_millis(1000)).is_empty());
        assert_eq!(ensemble.expire(late + Duration::from_millis(1000)), [1]);
        assert_eq!(told(&mut ensemble), [(2, EventKind::Deleted, "/e".to_owned())]);
        assert_eq!(ask(&mut ensemble, &a, Request::Ping, late), Err(Code::SessionExpired));
    }

    #[test]
    fn a_session_comes_back_with_its_password_and_only_with_it() {
        let now = Instant::now();
        let mut ensemble = Ensemble::new(1);
        let a = connect(&mut ensemble, 1, 1000, now);
        ask(&mut ensemble, &a, create("/e", EPHEMERAL), now).unwrap();
        let mut request = Connect {
            timeout_ms: 1000,
            session: a.session,
            password: Bytes::copy_from_slice(&a.password),
            has_read_only: true,
        };
        match ensemble.connect(2, &request, now) {
            Admission::Session { id, displaced, .. } => assert_eq!((id, displaced), (a.session, Some(1))),
            Admission::Expired => panic!("the password is right"),
        }
        // The connection it left is no longer served, and its end does not end the session.
        assert_eq!(ask(&mut ensemble, &a, Request::Ping, now), Err(Code::SessionExpired));
        ensemble.disconnected(a.session, 1);
        let back = Client { connection: 2, ..a };
        assert_eq!(ask(&mut ensemble, &back, Request::Ping, now), Ok(Answer::Empty));
        request.password = Bytes::from_static(&[0; 16]);
        assert_eq!(ensemble.connect(3, &request, now), Admission::Expired);
        request.session += 1;
        assert_eq!(ensemble.connect(3, &request, now), Admission::Expired);
    }

    #[test]
    fn watches_set_again_tell_what_was_missed() {
        let now = Instant::now();
        let mut ensemble = Ensemble::new(1);
        let a = connect(&mut ensemble, 1, 5000, now);
        for path in ["/same", "/changed", "/gone", "/parent"] {
            ask(&mut ensemble, &a, create(path, 0), now).unwrap();
        }
        let since = ensemble.tree.zxid();
        let set = Request::SetData { path: "/changed".to_owned(), data: None, version: -1 };
        for request in [set, delete("/gone"), create("/born", 0), create("/parent/x", 0)] {
            ask(&mut ensemble, &a, request, now).unwrap();
        }
        let paths = |paths: &[&str]| paths.iter().map(|path| (*path).to_owned()).collect();
        let request = Request::SetWatches {
            since,
            data: paths(&["/same", "/changed", "/gone"]),
            exist: paths(&["/born", "/unborn"]),
            child: paths(&["/parent", "/same"]),
        };
        ask(&mut ensemble, &a, request, now).unwrap();
        let kinds: Vec<(EventKind, String)> =
            ensemble.take_events().into_iter().map(|event| (event.kind, event.path)).collect();
        let expected = [
            (EventKind::DataChanged, "/changed"),
            (EventKind::Deleted, "/gone"),
            (EventKind::Created, "/born"),
            (EventKind::ChildrenChanged, "/parent"),
        ];
        assert_eq!(kinds, expected.map(|(kind, path)| (kind, path.to_owned())));
        ask(&mut ensemble, &a, create("/unborn", 0), now).unwrap();
        assert_eq!(told(&mut ensemble), [(1, EventKind::Created, "/unborn".to_owned())]);
    }

    #[test]
    fn what_we_do_not_have_is_refused_by_name() {
        let now = Instant::now();
        let mut ensemble = Ensemble::new(1);
        let a = connect(&mut ensemble, 1, 5000, now);
        assert_eq!(ask(&mut ensemble, &a, create("/container", 4), now), Err(Code::Unimplemented));
        assert_eq!(ask(&mut ensemble, &a, Request::Unimplemented, now), Err(Code::Unimplemented));
        assert_eq!(ask(&mut ensemble, &a, Request::Malformed, now), Err(Code::MarshallingError));
        let closed = Request::Create { path: "/a".into(), data: None, open: false, flags: 0, with_stat: false };
        assert_eq!(ask(&mut ensemble, &a, closed, now), Err(Code::InvalidAcl));
        let remove = Request::RemoveWatches { path: "/".to_owned(), data: true, child: true };
        assert_eq!(ask(&mut ensemble, &a, remove.clone(), now), Err(Code::NoWatcher));
        ask(&mut ensemble, &a, children("/"), now).unwrap();
        assert_eq!(ask(&mut ensemble, &a, remove, now), Ok(Answer::Empty));
    }
}
