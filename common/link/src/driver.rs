//! Runs the copying of a whole broker: the only place of this crate with sockets, tasks and clocks.
//!
//! Over TCP one connection to the master carries everything: the greeting, a long poll for new partitions that doubles as
//! keep-alive, and one get a partition. Over QUIC each partition's gets have a stream of their own. Partitions are independent: each has a task that sends a get, waits for its
//! answer, appends it, and sends the next one only after the append was acknowledged. When the connection ends, all
//! tasks end first (appends in flight included), so that the next connection starts from the true ends of the logs.
//!
//! Memory is bounded: a get whose bytes are known to wait takes its size out of a budget before it is sent; a get that
//! only listens asks for its share of a second one.

mod ahead;
mod append;
mod board;
mod budget;
mod compare;
mod follow;
mod hearing;
mod heir;
mod join;
mod lane;
mod recorder;
mod session;
mod transport;
mod trim;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use metaq_store::{PartitionRules, Store};
use metaq_types::{PartitionId, SlaveId};
use metaq_wire::{Greeting, Role, Text};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::progress::LinkStatus;
use board::Board;
use recorder::Recorder;
use session::SessionEnd;

pub use heir::Peer;
pub use transport::{LinkTransport, Way};

const RECONNECT_PAUSE_MIN: Duration = Duration::from_millis(50);
const RECONNECT_PAUSE_MAX: Duration = Duration::from_secs(1);

/// What a link is made of.
pub struct LinkOptions {
    pub slave_id: SlaveId,
    /// Where this slave serves, `meta://host:port`: members of a quorum are asked there before one is promoted.
    pub uri: String,
    /// The name under which this slave reads (`slaveGroup`).
    pub group: String,
    /// `slaveMaxDelayInMills`: the longest poll, and the longest pause behind a master that does not wait.
    pub delay_max: Duration,
    /// `slaveCatchUpBytesPerSecond`: while it is further behind than `delay_max`; 0: see `pace.rs`.
    pub catch_up_bytes_per_second: u64,
    pub store: Arc<Store>,
    pub transport: LinkTransport,
    /// The rules for a partition's log by the configuration of this moment.
    pub rules: Arc<dyn Fn(&PartitionId) -> PartitionRules + Send + Sync>,
    /// Set aside and cut also what this slave was given and the master no longer has.
    pub accept_divergence: bool,
    /// Where the master is (`meta://host:port`), while that is known.
    pub master: watch::Receiver<Option<String>>,
    /// Where the record for a promotion is kept; see [`crate::promotion`].
    pub data_path: std::path::PathBuf,
}

/// What a node says of itself to whichever other it greets.
pub fn introduction(store: &Store, role: Role) -> Greeting {
    Greeting {
        broker: Some(store.ids().broker_id().get().into()),
        epoch: store.epoch().0,
        node: Text::from(store.node_id()),
        ..Greeting::new(role)
    }
}

/// Asks a link how far it is.
pub type StatusSource = Arc<dyn Fn() -> LinkStatus + Send + Sync>;

/// The configuration of the master, fetched when somebody follows it.
pub struct ConfigSource(Arc<Board>);

impl ConfigSource {
    /// The master's `server.ini` as it is in force there, from the first one fetched after this call on. Fetched when
    /// the link connects and when the master says that it has another.
    pub fn follow(&self) -> watch::Receiver<Option<Bytes>> {
        self.0.config.subscribe()
    }

    /// Fetches it soon: a master without greetings does not tell of a change, but the registry does.
    pub fn ask_again(&self) {
        self.0.config_asked.store(true, Ordering::Relaxed);
    }
}

/// A running link. It goes on for ever, whether or not there is a master; [`Link::close`] ends it.
pub struct Link {
    board: Arc<Board>,
    cancel: CancellationToken,
    task: JoinHandle<()>,
}

impl Link {
    /// Returns at once.
    pub fn start(options: LinkOptions) -> Link {
        let board = Arc::new(Board::new(&options));
        let cancel = CancellationToken::new();
        let task = tokio::spawn(run(options, Arc::clone(&board), cancel.clone()));
        Link { board, cancel, task }
    }

    pub fn status(&self) -> LinkStatus {
        self.board.status()
    }

    /// For whoever takes over the master's configuration.
    pub fn config_source(&self) -> ConfigSource {
        ConfigSource(Arc::clone(&self.board))
    }

    /// For whoever shows the status while the link runs.
    pub fn status_source(&self) -> StatusSource {
        let board = Arc::clone(&self.board);
        Arc::new(move || board.status())
    }

    /// Ends the connection, waits for the appends in flight and writes the record. The store must still be open.
    pub async fn close(self) {
        self.cancel.cancel();
        if let Err(error) = self.task.await {
            warn!(%error, "the link ended badly");
        }
    }
}

async fn run(options: LinkOptions, board: Arc<Board>, cancel: CancellationToken) {
    let recorder = Recorder::start(options.data_path.clone(), Arc::clone(&board));
    let options = Arc::new(options);
    let mut master = options.master.clone();
    let mut pause = RECONNECT_PAUSE_MIN;
    let mut said = String::new();
    while !cancel.is_cancelled() {
        let Some(uri) = next_master(&mut master, &board, &cancel).await else { break };
        board.connecting(&uri);
        let end = session::run(&options, &board, &uri, &mut master, &cancel).await;
        pause = if end.connected { RECONNECT_PAUSE_MIN } else { (pause * 2).min(RECONNECT_PAUSE_MAX) };
        board.lost(&end.reason);
        say_once(&mut said, &uri, &end, &cancel);
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = cancel.cancelled() => {}
        }
    }
    recorder.finish().await;
}

/// Waits until a master is known.
async fn next_master(
    master: &mut watch::Receiver<Option<String>>,
    board: &Board,
    cancel: &CancellationToken,
) -> Option<String> {
    loop {
        let known = master.borrow_and_update().clone();
        if let Some(uri) = known {
            return Some(uri);
        }
        board.without_master();
        tokio::select! {
            changed = master.changed() => changed.ok()?,
            () = cancel.cancelled() => return None,
        }
    }
}

/// One line a change: a master that stays away is reported when it goes and when the reason changes.
fn say_once(said: &mut String, uri: &str, end: &SessionEnd, cancel: &CancellationToken) {
    let text = format!("{uri}: {}", end.reason);
    if cancel.is_cancelled() || (*said == text && !end.connected) {
        return;
    }
    if end.moved {
        info!(master = uri, "leaving this master: {}", end.reason);
    } else {
        warn!(master = uri, "not following the master, trying again for ever: {}", end.reason);
    }
    *said = text;
}
