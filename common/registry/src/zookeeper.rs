//! The registry's handle and the task behind it: a session, and another one whenever it ends, for ever.

use crate::fence::{Fence, Lease};
use crate::follow::MasterAt;
use crate::paths::{Paths, Role};
use crate::session::{self, Keeper};
use crate::wanted::Wanted;
use metaq_config::ZooKeeper;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{info, warn};
use zookeeper_client::{Client, Error, SessionState};

/// Between two attempts, doubled from the first to the second of these.
const RETRY_MIN: Duration = Duration::from_millis(100);
const RETRY_MAX: Duration = Duration::from_secs(5);

/// A registry that fails the same way again is mentioned this often.
const REMIND_EVERY: Duration = Duration::from_secs(60);

/// A clean stop does not wait longer for a ZooKeeper that does not answer; the session's time-out does the rest.
const CLOSE_PATIENCE: Duration = Duration::from_secs(5);

/// The same while the connection is already broken: whoever promotes this slave waits for its stop.
const CLOSE_PATIENCE_DISCONNECTED: Duration = Duration::from_millis(500);

/// How far the registry is. Only [`State::Registered`] means that clients can find this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// `zk.zkEnable=false`.
    Disabled,
    /// No ZooKeeper answers, or the one that did is gone; `reason` is the last error.
    Connecting {
        since: Instant,
        reason: String,
    },
    /// Connected, and the nodes are not all in place; `reason` is what went wrong last, if anything.
    Registering {
        since: Instant,
        reason: Option<String>,
    },
    Registered,
    /// Another broker holds our node: `holder` is its address, `ours` the one we would have written.
    Conflict {
        path: String,
        holder: String,
        ours: String,
        /// Nobody's session ends it.
        lasts: bool,
    },
    /// [`Registry::close`] was called.
    Closed,
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            State::Disabled => write!(f, "not registered, as zk.zkEnable is false"),
            State::Connecting { since, reason } => {
                write!(f, "no zookeeper for {} s: {reason}", since.elapsed().as_secs())
            }
            State::Registering { reason: None, .. } => write!(f, "registering"),
            State::Registering { since, reason: Some(reason) } => {
                write!(f, "registering for {} s: {reason}", since.elapsed().as_secs())
            }
            State::Registered => write!(f, "registered"),
            State::Conflict { path, holder, ours, lasts: true } => {
                let holder = holder.escape_debug();
                write!(
                    f,
                    "{path} holds '{holder}' and belongs to no session, so it does not go by itself; we are {ours}: if no \
                     broker serves there, delete it (zkCli.sh: delete {path})"
                )
            }
            State::Conflict { path, holder, ours, .. } if holder == ours => {
                write!(f, "another process has our address {ours} and took {path}; stop one of the two")
            }
            State::Conflict { path, holder, ours, .. } => {
                let holder = holder.escape_debug();
                write!(
                    f,
                    "{path} is held by {holder}, we are {ours}; two brokers must not have one id; it goes when its session \
                     ends"
                )
            }
            State::Closed => write!(f, "unregistered"),
        }
    }
}

/// Keeps a [`Wanted`] standing in ZooKeeper. One task in the background; dropping the handle ends it and the session.
#[derive(Debug)]
pub struct Registry {
    wanted: watch::Sender<Wanted>,
    state: watch::Receiver<State>,
    master: watch::Receiver<Option<MasterAt>>,
    lease: watch::Receiver<Lease>,
    leaving: CancellationToken,
    withdrawn: watch::Receiver<bool>,
    closing: CancellationToken,
    task: TaskTracker,
}

/// What the task works with.
pub(crate) struct Shared {
    pub(crate) zk: ZooKeeper,
    pub(crate) paths: Paths,
    pub(crate) wanted: watch::Receiver<Wanted>,
    pub(crate) state: watch::Sender<State>,
    pub(crate) master: Arc<watch::Sender<Option<MasterAt>>>,
    /// The reign of a master, which its lease is about.
    pub(crate) reign: Option<Fence>,
    pub(crate) lease: watch::Sender<Lease>,
    /// The nodes are to go; the session stays.
    pub(crate) leaving: CancellationToken,
    pub(crate) withdrawn: watch::Sender<bool>,
    pub(crate) closing: CancellationToken,
}

impl Registry {
    /// Returns at once, and goes on trying for ever; [`Registry::state`] says how far it is. With `zk.zkEnable=false`
    /// it does nothing at all. Must be called within a tokio runtime.
    pub fn start(zk: &ZooKeeper, wanted: Wanted) -> Registry {
        Registry::begin(zk, wanted, None)
    }

    /// The same for a master, whose reign `fence` says; [`Registry::lease`] says for how long it may acknowledge.
    pub fn reign(zk: &ZooKeeper, wanted: Wanted, fence: Fence) -> Registry {
        Registry::begin(zk, wanted, Some(fence))
    }

    fn begin(zk: &ZooKeeper, wanted: Wanted, reign: Option<Fence>) -> Registry {
        let since = Instant::now();
        let initial = if zk.enable {
            State::Connecting { since, reason: "not connected yet".to_owned() }
        } else {
            State::Disabled
        };
        let (wanted, wanted_seen) = watch::channel(wanted);
        let (state, state_seen) = watch::channel(initial);
        let (master, master_seen) = watch::channel(None);
        let (lease, lease_seen) = watch::channel(Lease::None);
        let (withdrawn, withdrawn_seen) = watch::channel(!zk.enable);
        let leaving = CancellationToken::new();
        let (closing, task) = (CancellationToken::new(), TaskTracker::new());
        let shared = Shared {
            zk: zk.clone(),
            paths: Paths::new(&zk.root),
            wanted: wanted_seen,
            state,
            master: Arc::new(master),
            reign,
            lease,
            leaving: leaving.clone(),
            withdrawn,
            closing: closing.clone(),
        };
        if zk.enable {
            task.spawn(run(shared));
        } else {
            task.spawn(idle(shared));
        }
        task.close();
        Registry {
            wanted,
            state: state_seen,
            master: master_seen,
            lease: lease_seen,
            leaving,
            withdrawn: withdrawn_seen,
            closing,
            task,
        }
    }

    /// Publishes the difference, the checksum last. The broker id and the role are what they were at the start.
    pub fn want(&self, wanted: Wanted) {
        self.wanted.send_if_modified(|current| {
            let same_node = (current.broker_id, current.role) == (wanted.broker_id, wanted.role);
            assert!(same_node, "a running node cannot change its broker id or role");
            let changed = *current != wanted;
            *current = wanted;
            changed
        });
    }

    pub fn state(&self) -> watch::Receiver<State> {
        self.state.clone()
    }

    /// The master of a slave's broker id. Keeps the last one known while ZooKeeper is away; `None` when the master
    /// unregistered or its session ended. Always `None` on a master.
    pub fn master(&self) -> watch::Receiver<Option<MasterAt>> {
        self.master.clone()
    }

    /// Whether this master may acknowledge. [`Lease::None`] for ever without [`Registry::reign`].
    pub fn lease(&self) -> watch::Receiver<Lease> {
        self.lease.clone()
    }

    /// Unregisters in order, so that clients leave, and keeps the session: a master's seat stays taken until
    /// [`Registry::close`]. Waits for that only where ZooKeeper answers.
    pub async fn withdraw(&self) {
        self.leaving.cancel();
        if matches!(&*self.state.borrow(), State::Connecting { .. }) {
            return;
        }
        let mut withdrawn = self.withdrawn.clone();
        // An error: the task has ended, and there is nothing to wait for.
        let _ = withdrawn.wait_for(|withdrawn| *withdrawn).await;
    }

    /// Unregisters in order and ends the session; gives up after five seconds without an answer. May be called twice.
    pub async fn close(&self) {
        // The session is served until it is told to leave.
        self.leaving.cancel();
        self.closing.cancel();
        self.task.wait().await;
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        self.leaving.cancel();
        self.closing.cancel();
    }
}

/// Keeps the channels open, so that a receiver never sees them end before `close`.
async fn idle(shared: Shared) {
    shared.closing.cancelled().await;
    shared.state.send_replace(State::Closed);
}

async fn run(shared: Shared) {
    let mut keeper = Keeper::new(&shared.paths, &shared.wanted.borrow());
    let mut retry = Retry::new();
    let mut remind = Reminder::new();
    while !shared.closing.is_cancelled() {
        let connected = tokio::select! {
            () = shared.closing.cancelled() => break,
            connected = connect(&shared.zk) => connected,
        };
        let client = match connected {
            Ok(client) => client,
            Err(error) => {
                let reason = format!("{}: {error}", shared.zk.connect);
                if remind.due(&reason, Instant::now()) {
                    warn!(zookeeper = shared.zk.connect, %error, "no zookeeper answers; trying on");
                }
                shared.connecting(reason);
                tokio::select! {
                    () = shared.closing.cancelled() => break,
                    () = sleep(retry.next()) => continue,
                }
            }
        };
        info!(zookeeper = shared.zk.connect, session = %client.session_id(), "zookeeper session established");
        remind = Reminder::new();
        keeper.begin(client.session_id().0);
        // The session's future holds many operations; boxed, it does not weigh on the task while connecting.
        Box::pin(session::serve(&shared, &mut keeper, &client)).await;
        if shared.closing.is_cancelled() {
            end(&keeper, &shared, client).await;
            break;
        }
        warn!(session = %client.session_id(), "zookeeper session lost; registering again with a new one");
        shared.connecting("the session expired".to_owned());
        if keeper.was_registered() {
            retry = Retry::new();
        }
        tokio::select! {
            () = shared.closing.cancelled() => break,
            () = sleep(retry.next()) => {}
        }
    }
    shared.state.send_replace(State::Closed);
}

pub(crate) async fn connect(zk: &ZooKeeper) -> Result<Client, Error> {
    // Kept to what a ZooKeeper 3.4 understands, as many ensembles of the original's days still run: a create request
    // that it does not know is answered by closing the connection.
    let connector =
        Client::connector().with_session_timeout(zk.session_timeout).with_server_version(3, 4, 0).with_fail_eagerly();
    timeout(zk.connection_timeout, connector.connect(&zk.connect)).await.unwrap_or(Err(Error::Timeout))
}

/// What it means that not even the first node below the root can be made.
pub(crate) fn path_missing(connect: &str) -> String {
    let path = connect.find('/').map_or("", |at| &connect[at..]);
    format!(
        "the path {path} that zk.zkConnect names is not in this zookeeper; create it (zkCli.sh: create {path}, after \
         what is above it), or correct zk.zkConnect and restart"
    )
}

/// What is to be done about an error of ZooKeeper, behind its text; nothing where it may pass.
pub(crate) fn advice(error: &Error, root: &str) -> String {
    match error {
        Error::NoAuth => format!(
            "; brokers do not authenticate: give everybody all rights to {root} and what is below it (zkCli.sh: setAcl -R \
             {root} world:anyone:cdrwa), or set another zk.zkRoot"
        ),
        _ => String::new(),
    }
}

/// How long a stop waits for answers.
pub(crate) fn patience(client: &Client) -> Duration {
    match client.state() {
        SessionState::Disconnected => CLOSE_PATIENCE_DISCONNECTED,
        _ => CLOSE_PATIENCE,
    }
}

/// Unregisters and closes the session, so that clients leave before the broker does.
async fn end(keeper: &Keeper, shared: &Shared, client: Client) {
    if client.state().is_terminated() {
        return;
    }
    let mut states = client.state_watcher();
    let patience = patience(&client);
    let farewell = async {
        let unregistered = keeper.unregister(&client, &shared.wanted).await;
        // The session is closed once the last client is gone.
        drop(client);
        while !states.changed().await.is_terminated() {}
        unregistered
    };
    match timeout(patience, Box::pin(farewell)).await {
        Ok(Ok(())) => info!("unregistered from zookeeper"),
        Ok(Err(error)) => warn!(%error, "could not unregister; the nodes go with the session"),
        Err(_) => warn!("zookeeper did not answer; the nodes go when the session times out"),
    }
}

impl Shared {
    /// Says that no ZooKeeper answers, since now or since when it was said first.
    pub(crate) fn connecting(&self, reason: String) {
        self.state.send_modify(|state| {
            let since = if let State::Connecting { since, .. } = state { *since } else { Instant::now() };
            *state = State::Connecting { since, reason };
        });
    }

    pub(crate) fn registering(&self, reason: Option<String>) {
        self.state.send_modify(|state| {
            let since = if let State::Registering { since, .. } = state { *since } else { Instant::now() };
            *state = State::Registering { since, reason };
        });
    }

    /// Sets a state that says all by itself, if it is another one.
    pub(crate) fn is(&self, new: State) {
        self.state.send_if_modified(|state| {
            let changed = *state != new;
            *state = new;
            changed
        });
    }

    pub(crate) fn is_slave(&self) -> bool {
        matches!(self.wanted.borrow().role, Role::Slave(_))
    }
}

/// Capped exponential back-off.
pub(crate) struct Retry {
    next: Duration,
}

impl Retry {
    pub(crate) fn new() -> Retry {
        Retry { next: RETRY_MIN }
    }

    pub(crate) fn next(&mut self) -> Duration {
        let now = self.next;
        self.next = (now * 2).min(RETRY_MAX);
        now
    }
}

/// Lets a message through when it is new, and then once a minute.
pub(crate) struct Reminder {
    last: Option<(String, Instant)>,
}

impl Reminder {
    pub(crate) fn new() -> Reminder {
        Reminder { last: None }
    }

    pub(crate) fn due(&mut self, message: &str, now: Instant) -> bool {
        let due = match &self.last {
            Some((last, at)) => last != message || now.duration_since(*at) >= REMIND_EVERY,
            None => true,
        };
        if due {
            self.last = Some((message.to_owned(), now));
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retries_slow_down_to_a_cap() {
        let mut retry = Retry::new();
        let waits: Vec<Duration> = (0..8).map(|_| retry.next()).collect();
        assert_eq!(waits[0], RETRY_MIN);
        assert!(waits.is_sorted());
        assert_eq!(waits[7], RETRY_MAX);
    }

    #[test]
    fn the_same_message_is_said_once_a_minute() {
        let (mut reminder, now) = (Reminder::new(), Instant::now());
        assert!(reminder.due("a", now));
        assert!(!reminder.due("a", now));
        assert!(reminder.due("b", now));
        assert!(!reminder.due("b", now + REMIND_EVERY - Duration::from_millis(1)));
        assert!(reminder.due("b", now + REMIND_EVERY));
    }
}
