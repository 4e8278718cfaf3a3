use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use metaq_client::ClientError;
use metaq_store::Store;
use metaq_types::limits::LONG_POLL_MAX;
use metaq_types::{MessageId, Offset, PartitionId};
use metaq_wire::{Greeting, Level, Role, Text};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::board::Board;
use super::budget::Budget;
use super::follow::{self, Follow};
use super::join::{Held, compare_ends, join};
use super::transport::{Way, refuses};
use super::trim;
use super::{LinkOptions, introduction};
use crate::listing::{self, Listed};
use crate::pull::{Log, Pull};

/// A master that does not answer a keep-alive for this long beyond its wait is taken for gone. Short: a master that was
/// killed, or has lost its end of the connection, tells nobody, and until then this slave waits for nothing.
const KEEP_ALIVE_PATIENCE: Duration = Duration::from_secs(3);

/// The same for a question whose answer takes longer the more there is.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

const KEEP_ALIVE_WAIT: Duration = Duration::from_secs(1);

/// The list of partitions is asked for no more often than this.
const LIST_INTERVAL_MIN: Duration = Duration::from_millis(250);

/// How a session ended; it never ends well, since a link has no end of its own.
pub(super) struct SessionEnd {
    pub(super) reason: String,
    /// The master had accepted the greeting.
    pub(super) connected: bool,
    /// This side left: another master, or the end of the link.
    pub(super) moved: bool,
}

impl SessionEnd {
    fn failed(reason: impl ToString) -> SessionEnd {
        SessionEnd { reason: reason.to_string(), connected: false, moved: false }
    }
}

/// Follows the master at `uri` until the connection or the reason to follow it ends. All appends in flight are
/// acknowledged when this returns.
pub(super) async fn run(
    options: &Arc<LinkOptions>,
    board: &Arc<Board>,
    uri: &str,
    master: &mut watch::Receiver<Option<String>>,
    cancel: &CancellationToken,
) -> SessionEnd {
    let opened = tokio::select! {
        opened = Session::open(options, board, uri) => opened,
        moved = moved_away(master, uri, cancel) => return SessionEnd { reason: moved, connected: false, moved: true },
    };
    let mut session = match opened {
        Ok(session) => session,
        Err(reason) => return SessionEnd::failed(reason),
    };
    board.following(uri);
    info!(master = uri, transport = session.way.name(), partitions = session.followed.len(), "following the master");
    let (reason, moved) = tokio::select! {
        reason = session.serve() => (session.way.why(reason), false),
        reason = moved_away(master, uri, cancel) => (reason, true),
    };
    // Over QUIC a process that dies says nothing. Its machine does, where it is asked over TCP.
    if board.ended() && !moved && session.way.streams.is_some() && refuses(uri).await {
        board.gone();
    }
    session.close().await;
    SessionEnd { reason, connected: true, moved }
}

/// Returns when there is a reason to leave this master, with the reason.
async fn moved_away(master: &mut watch::Receiver<Option<String>>, uri: &str, cancel: &CancellationToken) -> String {
    loop {
        tokio::select! {
            () = cancel.cancelled() => return "the slave stops".to_owned(),
            changed = master.changed() => {
                if changed.is_err() {
                    return "nobody looks for a master any more".to_owned();
                }
                // A master whose registration is gone may still serve; the connection tells.
                let now = master.borrow_and_update().clone();
                if let Some(now) = now && now != uri {
                    return format!("the master is now {now}");
                }
            }
        }
    }
}

/// One greeted connection with its partitions.
struct Session {
    options: Arc<LinkOptions>,
    board: Arc<Board>,
    way: Way,
    budget: Arc<Budget>,
    /// The master's generation of its list; `None` behind a master without greetings.
    catalog: Option<u64>,
    /// The checksum of the master's configuration when it was last fetched, as the master told it.
    config: Option<Option<u32>>,
    followed: HashSet<PartitionId>,
    /// Not followed, as their logs are not those of the master.
    held: Held,
    /// The master remembers no reigns, as the original: each log is compared with its own before it is followed.
    compares: bool,
    /// The master heeds what a get says of what is held.
    reads_ahead: bool,
    /// The master's epoch at the first greeting.
    reign: Option<u64>,
    tasks: JoinSet<()>,
    stop: CancellationToken,
}

impl Session {
    async fn open(options: &Arc<LinkOptions>, board: &Arc<Board>, uri: &str) -> Result<Session, String> {
        let way = Way::open(&options.transport, uri).await?;
        let begun = Session::begin(options, board, way.clone()).await;
        begun.map_err(|reason| {
            board.met();
            way.why(reason)
        })
    }

    async fn begin(options: &Arc<LinkOptions>, board: &Arc<Board>, way: Way) -> Result<Session, String> {
        let mut session = Session {
            options: Arc::clone(options),
            board: Arc::clone(board),
            way,
            budget: Arc::new(Budget::new(options.catch_up_bytes_per_second)),
            catalog: None,
            config: None,
            followed: HashSet::new(),
            held: Held::new(),
            compares: false,
            reads_ahead: false,
            reign: None,
            tasks: JoinSet::new(),
            stop: CancellationToken::new(),
        };
        let greeting = session.greet(None).await?;
        session.reads_ahead = greeting.as_ref().is_some_and(|greeting| greeting.ahead);
        let listed = session.list().await?;
        match greeting.as_ref().filter(|greeting| greeting.epoch > 0) {
            None => session.compares = true,
            Some(greeting) => {
                session.held = join(options, board, &session.way.client, greeting, &listed).await?;
                session.show_held(&listed, session.held.keys());
            }
        }
        session.take_list(listed).await?;
        session.fetch_config(greeting.and_then(|greeting| greeting.config)).await?;
        Ok(session)
    }

    /// Serves until the connection fails; the answer says how.
    async fn serve(&mut self) -> String {
        // The first new partition is followed at once; many new ones do not cause as many lists.
        let mut list_at = Instant::now();
        loop {
            let known = self.catalog;
            let config = match self.greet(Some(KEEP_ALIVE_WAIT)).await {
                Ok(greeting) => greeting.and_then(|greeting| greeting.config),
                Err(reason) => return reason,
            };
            if let Err(reason) = self.fetch_config(config).await {
                return reason;
            }
            if self.catalog == known && known.is_some() {
                continue;
            }
            tokio::time::sleep_until(list_at).await;
            list_at = Instant::now() + LIST_INTERVAL_MIN;
            match self.list().await {
                Ok(listed) => {
                    if let Err(reason) = self.take_list(listed).await {
                        return reason;
                    }
                }
                Err(reason) => return reason,
            }
        }
    }

    /// Stops the partitions' tasks and waits for the appends they have in flight.
    async fn close(mut self) {
        self.stop.cancel();
        while let Some(ended) = self.tasks.join_next().await {
            if let Err(error) = ended {
                std::panic::resume_unwind(error.into_panic());
            }
        }
    }

    /// The greeting, and with `wait` the long poll for a change of the master's partitions.
    async fn greet(&mut self, wait: Option<Duration>) -> Result<Option<Greeting>, String> {
        let own_node = self.options.store.node_id();
        let greeting = Greeting {
            slave_id: Some(self.options.slave_id.get()),
            catalog: self.catalog,
            wait: wait.filter(|_| self.catalog.is_some()),
            level: Some(level(&self.options.store)),
            uri: Text::from(&*self.options.uri),
            roll: Some(self.board.saved_roll()),
            ..introduction(&self.options.store, Role::Slave)
        };
        let asked = Instant::now();
        let answer = in_time(self.way.client.version(Some(&greeting)), wait).await?;
        self.board.heard(asked.into_std());
        let Some(theirs) = Greeting::parse(&answer) else {
            // A master without greetings answers at once.
            if let Some(wait) = wait {
                tokio::time::sleep(wait).await;
            }
            return Ok(None);
        };
        if theirs.role != Role::Master {
            return Err("this is a slave, not a master".to_owned());
        }
        if !theirs.node.is_empty() && *theirs.node == *own_node {
            return Err(
                "duplicate: this data directory is a copy of the master's, or the slave's own address is registered \
                        as the master's; if it is a copy, remove .metaq from its data path"
                    .to_owned(),
            );
        }
        if *self.reign.get_or_insert(theirs.epoch) != theirs.epoch {
            return Err("the master has begun another reign, which this slave joins anew".to_owned());
        }
        self.board.see_quorum(&theirs).await;
        self.catalog = theirs.catalog;
        if let Some(mark) = theirs.ids {
            self.raise_ids(MessageId(mark)).await?;
        }
        Ok(Some(theirs))
    }

    /// Before any record with an id up to `mark` is kept here, the mark is durable: a promoted slave gives no id twice.
    async fn raise_ids(&self, mark: MessageId) -> Result<(), String> {
        let store = Arc::clone(&self.options.store);
        match tokio::task::spawn_blocking(move || store.ids().raise_to(mark)).await {
            Ok(raised) => raised.map_err(|error| format!("the high mark of message ids cannot be kept: {error}")),
            Err(error) => std::panic::resume_unwind(error.into_panic()),
        }
    }

    /// The master's partitions. There is no other source of what to follow: a partition of the configuration that the
    /// master does not have would cost a poll for nothing, and comes into the list with its first message.
    async fn list(&self) -> Result<Vec<Listed>, String> {
        let asked = Instant::now();
        let text = in_time(self.way.client.stats("offsets"), None).await?;
        self.board.heard(asked.into_std());
        Ok(listing::parse(&String::from_utf8_lossy(&text)))
    }

    /// Fetches the master's configuration for whoever follows it, when it is another than before (`checksum` is what the
    /// master says now) or when somebody asked.
    async fn fetch_config(&mut self, checksum: Option<u32>) -> Result<(), String> {
        let asked = self.board.config_asked.swap(false, Ordering::Relaxed);
        if self.board.config.receiver_count() == 0 || (self.config == Some(checksum) && !asked) {
            return Ok(());
        }
        let text = in_time(self.way.client.stats("config"), None).await?;
        self.config = Some(checksum);
        self.board.config.send_replace(Some(text));
        Ok(())
    }

    /// Shows the partitions that are not followed, and why.
    fn show_held<'a>(&self, listed: &[Listed], held: impl Iterator<Item = &'a PartitionId>) {
        for partition in held {
            let stop = &self.held[partition];
            let end = listed.iter().find(|l| l.partition == *partition).map(|l| l.end);
            let log = self.options.store.get(&partition.topic, partition.number as i32);
            let positions = log.map(|log| log.positions());
            let mut pull = Pull::new(match positions {
                None => Log::Absent { from: Offset::ZERO },
                Some(positions) => Log::Present { first: positions.kept, end: positions.written },
            });
            pull.hold(stop.clone(), end);
            self.board.update(&self.board.cell(partition), &pull, true);
            warn!(%partition, "the partition is not copied: {stop}");
        }
    }

    /// Takes off the logs what the master no longer has.
    fn trim(&mut self, listed: &[Listed]) {
        let followed = listed.iter().filter(|listed| !self.held.contains_key(&listed.partition));
        let behind = trim::behind(&self.options.store, followed);
        if !behind.is_empty() {
            self.tasks.spawn(trim::run(Arc::clone(&self.options.store), behind));
        }
    }

    async fn take_list(&mut self, listed: Vec<Listed>) -> Result<(), String> {
        if self.compares {
            self.compare(&listed).await?;
        }
        self.follow(listed);
        Ok(())
    }

    /// Holds what is not followed yet against the master's. What differed is looked at again: the original lists less
    /// than it holds until it has flushed, and an operator may have put it right.
    async fn compare(&mut self, listed: &[Listed]) -> Result<(), String> {
        let new: Vec<Listed> = listed.iter().filter(|l| !self.followed.contains(&l.partition)).cloned().collect();
        let held = compare_ends(&self.options, &self.way.client, &new).await?;
        let before = std::mem::replace(&mut self.held, held);
        self.show_held(listed, self.held.keys().filter(|id| !before.contains_key(id)));
        Ok(())
    }

    /// Starts what is not followed yet.
    fn follow(&mut self, listed: Vec<Listed>) {
        self.trim(&listed);
        let has: HashSet<&PartitionId> = listed.iter().map(|listed| &listed.partition).collect();
        self.board.see_partitions(|partition| has.contains(partition) || self.followed.contains(partition));
        for Listed { partition, first, end } in listed {
            if self.held.contains_key(&partition) || !self.followed.insert(partition.clone()) {
                continue;
            }
            let follow = Follow {
                options: Arc::clone(&self.options),
                cell: self.board.cell(&partition),
                board: Arc::clone(&self.board),
                way: self.way.clone(),
                budget: Arc::clone(&self.budget),
                stop: self.stop.clone(),
                partition,
                first,
                end,
                compares: self.compares,
                reads_ahead: self.reads_ahead,
            };
            self.tasks.spawn(follow::run(follow));
        }
        self.budget.set_listeners(self.followed.len());
        // Tasks of partitions that stopped have ended: their results are not kept.
        while self.tasks.try_join_next().is_some() {}
    }
}

/// How safely everything is held that this slave confirms.
fn level(store: &Store) -> Level {
    match store.logs().iter().filter(|log| !log.id().is_journal()).all(|log| log.answers_after_sync()) {
        true => Level::Fsync,
        false => Level::Os,
    }
}

async fn in_time<T>(answer: impl Future<Output = Result<T, ClientError>>, wait: Option<Duration>) -> Result<T, String> {
    let limit = wait.map_or(ANSWER_TIMEOUT, |wait| wait + KEEP_ALIVE_PATIENCE);
    match tokio::time::timeout(limit, answer).await {
        Ok(answered) => answered.map_err(|error| error.to_string()),
        Err(_) => Err(format!("no answer within {} s", limit.as_secs_f32())),
    }
}

const _: () = assert!(KEEP_ALIVE_WAIT.as_millis() < LONG_POLL_MAX.as_millis());
