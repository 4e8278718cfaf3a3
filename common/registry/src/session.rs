//! One ZooKeeper session of this node: look at what stands, do the plan, look again now and then.

use crate::fence::Lease;
use crate::follow::{Watch, fired, follow, watch};
use crate::hold::hold;
use crate::paths::{self, Paths, Role, Tree};
use crate::plan::{Operation, Sessions, Standing, Standings, plan};
use crate::wanted::{Kind, Layout, Node, Wanted};
use crate::zookeeper::{Reminder, Retry, Shared, State, advice, path_missing, patience};
use metaq_types::TopicName;
use std::collections::BTreeSet;
use std::future::Future;
use std::pin::{Pin, pin};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};
use tracing::{info, warn};
use zookeeper_client::{Acls, Client, CreateMode, CreateOptions, Error, SessionState};

/// Requests sent before the first answer is awaited. ZooKeeper executes a session's requests in order, so this
/// changes the time it takes to register ten thousand topics and nothing else.
const PIPELINE: usize = 128;

const PERSISTENT: CreateOptions<'static> = CreateMode::Persistent.with_acls(Acls::anyone_all());
const EPHEMERAL: CreateOptions<'static> = CreateMode::Ephemeral.with_acls(Acls::anyone_all());

/// A ZooKeeper that does not answer a question by then does not know it.
const LISTING_PATIENCE: Duration = Duration::from_secs(2);

/// Each node is read only this often, in sync times: a minute by default. What nodes there are is asked each time, where
/// they can be listed.
const RELOOK_TICKS: u32 = 12;

/// Sessions that ended and may have left nodes behind; older ones have certainly expired.
const EARLIER_SESSIONS_MAX: usize = 8;

/// What this node knows of its own nodes. Outlives its sessions.
pub(crate) struct Keeper {
    paths: Paths,
    holder: String,
    sessions: Sessions,
    stands: Standings,
    /// `stands` was read from ZooKeeper, and all that was done since is in it.
    observed: bool,
    /// Fires when the holder's node changes under us.
    holder_watch: Option<Watch>,
    listing: Listing,
    ticks_unread: u32,
    /// Topics of which the log says that ZooKeeper takes no such name.
    nameless: BTreeSet<TopicName>,
}

/// Whether this ZooKeeper can list what a session holds. Those before 3.6 cannot: some say so and close the
/// connection, some say nothing at all.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Listing {
    Unknown,
    Can,
    Cannot,
}

/// What went on between ZooKeeper and the plan.
enum Setback {
    /// Somebody else changed our nodes meanwhile: look again.
    Disturbed { path: String },
    /// ZooKeeper refused, or the connection broke.
    Failed { path: String, error: Error },
    /// The path of the ensemble that `zk.zkConnect` names is not there.
    NoPath,
}

impl Keeper {
    pub(crate) fn new(paths: &Paths, wanted: &Wanted) -> Keeper {
        Keeper {
            paths: paths.clone(),
            holder: paths.holder(wanted.broker_id, wanted.role),
            sessions: Sessions { current: 0, earlier: Vec::new(), newcomer: true },
            stands: Standings::new(),
            observed: false,
            holder_watch: None,
            listing: Listing::Unknown,
            ticks_unread: 0,
            nameless: BTreeSet::new(),
        }
    }

    /// A new session begins: nothing is known of it.
    pub(crate) fn begin(&mut self, session: i64) {
        if self.sessions.current != 0 {
            self.sessions.earlier.push(self.sessions.current);
            let surplus = self.sessions.earlier.len().saturating_sub(EARLIER_SESSIONS_MAX);
            self.sessions.earlier.drain(..surplus);
        }
        self.sessions.current = session;
        self.stands.clear();
        self.observed = false;
        self.holder_watch = None;
        self.listing = Listing::Unknown;
    }

    /// This process held its node in the current session.
    pub(crate) fn was_registered(&self) -> bool {
        self.stands.get(&self.holder).is_some_and(|standing| standing.owner == self.sessions.current)
    }
}

/// Keeps everything as wanted until the session ends or the registry is closing.
pub(crate) async fn serve(shared: &Shared, keeper: &mut Keeper, client: &Client) {
    let followed = async {
        match shared.is_slave() {
            true => follow(shared, client).await,
            false => std::future::pending().await,
        }
    };
    let mut holding = pin!(hold(shared, client));
    tokio::select! {
        () = shared.leaving.cancelled() => {}
        () = keep(shared, keeper, client) => return,
        () = &mut holding => return,
        _ = followed => return,
    }
    // Clients are told to leave while we still serve them: our seat stays ours until the registry is closed.
    let withdrawn = timeout(patience(client), Box::pin(keeper.unregister(client, &shared.wanted))).await;
    if let Ok(Err(error)) = &withdrawn {
        warn!(%error, "could not unregister; the nodes go with the session");
    }
    shared.withdrawn.send_replace(true);
    tokio::select! {
        () = shared.closing.cancelled() => {}
        () = holding => {}
    }
}

async fn keep(shared: &Shared, keeper: &mut Keeper, client: &Client) {
    let mut wanted = shared.wanted.clone();
    let mut states = client.state_watcher();
    let mut retry = Retry::new();
    let mut remind = Reminder::new();
    if shared.reign.is_some() {
        // Clients come as soon as they see us, and are to find a master that may answer.
        let _ = shared.lease.subscribe().wait_for(|lease| !matches!(lease, Lease::None | Lease::Awaits(_))).await;
    }
    loop {
        let now_wanted = wanted.borrow_and_update().clone();
        let pause = match keeper.reconcile(client, &now_wanted).await {
            Ok(outcome) => {
                match outcome {
                    None => registered(shared, keeper, &now_wanted),
                    Some(conflict) => in_conflict(shared, keeper, conflict, &mut remind),
                }
                retry = Retry::new();
                if !keeper.holder_is_watched(client).await {
                    // It changed since we looked, before there was a watch to tell us.
                    keeper.observed = false;
                    continue;
                }
                shared.zk.sync_time
            }
            Err(setback) => {
                keeper.observed = false;
                if let Some(reason) = troubled(shared, client, setback)
                    && remind.due(&reason, Instant::now())
                {
                    warn!("cannot register: {reason}; trying on");
                }
                retry.next()
            }
        };
        tokio::select! {
            changed = wanted.changed() => if changed.is_err() { return },
            state = states.changed() => {
                if state.is_terminated() { return }
                if state == SessionState::Disconnected { shared.connecting("the connection broke".to_owned()) }
                keeper.observed = false;
            }
            () = fired(&mut keeper.holder_watch) => keeper.observed = false,
            () = sleep(pause) => keeper.observed = keeper.observed && keeper.verify(client).await,
        }
    }
}

fn in_conflict(shared: &Shared, keeper: &mut Keeper, conflict: State, remind: &mut Reminder) {
    let message = conflict.to_string();
    if remind.due(&message, Instant::now()) {
        warn!("{message}; trying on");
    }
    shared.is(conflict);
    keeper.observed = false;
}

fn registered(shared: &Shared, keeper: &mut Keeper, wanted: &Wanted) {
    keeper.sessions.newcomer = false;
    // One may come later, by a reload or as the first put of a pattern's.
    for topic in wanted.unpublishable() {
        if keeper.nameless.insert(topic.clone()) {
            warn!(
                %topic,
                "zookeeper takes no such name; the topic is served, but clients cannot find it: call it otherwise, without \
                 characters beyond U+FFFF"
            );
        }
    }
    if *shared.state.borrow() == State::Registered {
        return;
    }
    info!(broker = %wanted.broker_id, member = paths::member(wanted.broker_id, wanted.role), uri = wanted.uri,
        topics = wanted.topics.len(), "registered in zookeeper");
    shared.is(State::Registered);
}

/// Says why it does not go on; the reason when it is worth a line in the log.
fn troubled(shared: &Shared, client: &Client, setback: Setback) -> Option<String> {
    if client.state() == SessionState::Disconnected {
        shared.connecting("the connection broke".to_owned());
        return None;
    }
    match setback {
        Setback::Disturbed { path } => {
            shared.registering(Some(format!("{path} was changed by somebody else")));
            None
        }
        Setback::Failed { path, error } => {
            let reason = format!("{path}: {error}{}", advice(&error, &shared.zk.root));
            shared.registering(Some(reason.clone()));
            Some(reason)
        }
        Setback::NoPath => {
            let reason = path_missing(&shared.zk.connect);
            shared.registering(Some(reason.clone()));
            Some(reason)
        }
    }
}

impl Keeper {
    /// Makes everything stand as wanted; `Some` is the conflict that forbids it.
    async fn reconcile(&mut self, client: &Client, wanted: &Wanted) -> Result<Option<State>, Setback> {
        let layout = wanted.layout(&self.paths);
        if !self.observed {
            self.observe(client, &layout).await?;
        }
        let operations = match plan(&layout, &self.stands, &self.sessions) {
            Ok(operations) => operations,
            Err(conflict) => {
                let crate::plan::Conflict { path, holder, ours, lasts } = conflict;
                return Ok(Some(State::Conflict { path, holder, ours, lasts }));
            }
        };
        if !operations.is_empty() {
            self.make_roots(client, wanted).await?;
            for batch in batches(&operations) {
                self.execute(client, batch).await?;
            }
        }
        Ok(None)
    }

    /// Reads every node of the layout, and those that must not be there.
    async fn observe(&mut self, client: &Client, layout: &Layout) -> Result<(), Setback> {
        let layout_paths = layout.nodes.iter().map(|node| &node.path).chain(&layout.absent);
        // And nodes no longer wanted that this session may still hold: known until they are seen to be gone.
        let paths: BTreeSet<String> = layout_paths.chain(self.stands.keys()).cloned().collect();
        let paths: Vec<String> = paths.into_iter().collect();
        self.stands = read(client, &paths).await.map_err(|(path, error)| Setback::Failed { path, error })?;
        self.observed = true;
        self.ticks_unread = 0;
        Ok(())
    }

    /// The persistent nodes above everything a broker writes.
    async fn make_roots(&self, client: &Client, wanted: &Wanted) -> Result<(), Setback> {
        let trees = Tree::ALL.map(|tree| self.paths.tree(tree));
        for path in [self.paths.broker(wanted.broker_id)].into_iter().chain(trees) {
            match client.mkdir(&path, &PERSISTENT).await {
                Ok(()) => {}
                Err(Error::NoNode) => return Err(Setback::NoPath),
                Err(error) => return Err(Setback::Failed { path, error }),
            }
        }
        Ok(())
    }

    /// Sends a batch in order, awaits it in order and remembers what was done. An operation that failed does not keep
    /// the rest of its batch from being done; the next batch is.
    async fn execute(&mut self, client: &Client, batch: &[Operation]) -> Result<(), Setback> {
        let parents: BTreeSet<&str> = batch.iter().filter_map(topic_parent).collect();
        let made: Vec<_> = parents.iter().map(|path| client.create(path, &[], &PERSISTENT)).collect();
        let answers: Vec<_> = batch.iter().map(|operation| send(client, operation)).collect();
        for (path, answer) in parents.iter().zip(made) {
            match answer.await {
                Ok(_) | Err(Error::NodeExists) => {}
                Err(error) => return Err(Setback::Failed { path: (*path).to_owned(), error }),
            }
        }
        let mut first = None;
        for (operation, answer) in batch.iter().zip(answers) {
            let setback = match (operation, answer.await) {
                (Operation::Delete(path), Ok(()) | Err(Error::NoNode)) => {
                    self.stands.remove(path);
                    None
                }
                (Operation::Create(node) | Operation::Set(node), Ok(())) => {
                    self.remember(node);
                    None
                }
                (operation, Err(Error::NodeExists | Error::NoNode)) => {
                    Some(Setback::Disturbed { path: operation.path().to_owned() })
                }
                (operation, Err(error)) => Some(Setback::Failed { path: operation.path().to_owned(), error }),
            };
            first = first.or(setback);
        }
        first.map_or(Ok(()), Err)
    }

    /// Watches the holder's node if that is not done yet; false when it is not the node that was observed. Without an
    /// answer there is no watch, and the next look at the nodes asks for one again.
    async fn holder_is_watched(&mut self, client: &Client) -> bool {
        if self.holder_watch.is_some() {
            return true;
        }
        let Ok((owner, watch)) = watch(client, &self.holder).await else { return true };
        self.holder_watch = Some(watch);
        owner == self.stands.get(&self.holder).map(|standing| standing.owner)
    }

    fn remember(&mut self, node: &Node) {
        let owner = if node.kind.is_ephemeral() { self.sessions.current } else { 0 };
        self.stands.insert(node.path.clone(), Standing { data: node.data.clone(), owner });
    }

    /// Whether all stands as we remember; false when that is worth a look at each node.
    ///
    /// One question instead of one a node, most of the time: does the session hold exactly what we remember, and is our
    /// own node what we wrote?
    async fn verify(&mut self, client: &Client) -> bool {
        self.ticks_unread += 1;
        if self.ticks_unread >= RELOOK_TICKS {
            return false;
        }
        if self.listing == Listing::Cannot {
            return true;
        }
        let brokers = self.paths.brokers();
        let held = match timeout(LISTING_PATIENCE, client.list_ephemerals(&brokers)).await {
            Ok(Ok(held)) => held,
            Ok(Err(Error::Unimplemented)) | Err(_) if self.listing == Listing::Unknown => {
                self.listing = Listing::Cannot;
                return true;
            }
            _ => return false,
        };
        self.listing = Listing::Can;
        let Ok((data, _)) = client.get_data(&self.holder).await else { return false };
        let remembered = self.held();
        held.into_iter().collect::<BTreeSet<_>>() == remembered
            && self.stands.get(&self.holder).is_some_and(|standing| standing.data.as_bytes() == data)
    }

    /// Removes our nodes in the order in which clients should notice (zookeeper, "5.6 Shutdown"): the holder, the
    /// checksum, `ids/B` (emptied when slaves still stand below it), the topics. Nodes of others stay.
    pub(crate) async fn unregister(&self, client: &Client, wanted: &watch::Receiver<Wanted>) -> Result<(), Error> {
        let (id, role) = {
            let wanted = wanted.borrow();
            (wanted.broker_id, wanted.role)
        };
        let mut held = self.held_now(client).await?;
        let was_holder = held.remove(&self.holder);
        if was_holder {
            ignore_absence(client.delete(&self.holder, None).await)?;
        }
        if held.remove(&self.paths.checksum(id)) {
            ignore_absence(client.delete(&self.paths.checksum(id), None).await)?;
        }
        if was_holder && role == Role::Master {
            let legacy = self.paths.broker(id);
            match client.delete(&legacy, None).await {
                Err(Error::NotEmpty) => ignore_absence(client.set_data(&legacy, &[], None).await.map(drop))?,
                answer => ignore_absence(answer)?,
            }
        }
        let topics: Vec<&String> = held.iter().collect();
        for chunk in topics.chunks(PIPELINE) {
            let answers: Vec<_> = chunk.iter().map(|path| client.delete(path, None)).collect();
            for answer in answers {
                ignore_absence(answer.await)?;
            }
        }
        Ok(())
    }

    /// What this session holds, asked now: a node that another process took since must not be deleted.
    async fn held_now(&self, client: &Client) -> Result<BTreeSet<String>, Error> {
        if self.listing == Listing::Can {
            return Ok(client.list_ephemerals(&self.paths.brokers()).await?.into_iter().collect());
        }
        let remembered: Vec<String> = self.held().into_iter().collect();
        let standings = read(client, &remembered).await.map_err(|(_, error)| error)?;
        Ok(standings
            .into_iter()
            .filter(|(_, standing)| standing.owner == self.sessions.current)
            .map(|(path, _)| path)
            .collect())
    }

    /// What this session holds as far as we know.
    fn held(&self) -> BTreeSet<String> {
        let ours = self.stands.iter().filter(|(_, standing)| standing.owner == self.sessions.current);
        ours.map(|(path, _)| path.clone()).collect()
    }
}

/// What stands at each path; a failure names the path.
async fn read(client: &Client, paths: &[String]) -> Result<Standings, (String, Error)> {
    let mut stands = Standings::new();
    for chunk in paths.chunks(PIPELINE) {
        let answers: Vec<_> = chunk.iter().map(|path| client.get_data(path)).collect();
        for (path, answer) in chunk.iter().zip(answers) {
            match answer.await {
                Ok((data, stat)) => {
                    let data = String::from_utf8_lossy(&data).into_owned();
                    stands.insert(path.clone(), Standing { data, owner: stat.ephemeral_owner });
                }
                Err(Error::NoNode) => {}
                Err(error) => return Err((path.clone(), error)),
            }
        }
    }
    Ok(stands)
}

fn ignore_absence(answer: Result<(), Error>) -> Result<(), Error> {
    match answer {
        Err(Error::NoNode) => Ok(()),
        answer => answer,
    }
}

/// Sends at once, in the order of calls; the future only waits for the answer.
fn send<'a>(
    client: &'a Client,
    operation: &'a Operation,
) -> Pin<Box<dyn Future<Output = Result<(), Error>> + Send + 'a>> {
    match operation {
        Operation::Delete(path) => Box::pin(client.delete(path, None)),
        Operation::Set(node) => {
            let answer = client.set_data(&node.path, node.data.as_bytes(), None);
            Box::pin(async move { answer.await.map(drop) })
        }
        Operation::Create(node) => {
            let options = if node.kind.is_ephemeral() { &EPHEMERAL } else { &PERSISTENT };
            let answer = client.create(&node.path, node.data.as_bytes(), options);
            Box::pin(async move { answer.await.map(drop) })
        }
    }
}

/// The topic above a node to be created; it may be new.
fn topic_parent(operation: &Operation) -> Option<&str> {
    match operation {
        Operation::Create(node) if node.kind == Kind::Topic => Some(paths::parent(&node.path)),
        _ => None,
    }
}

/// What may be sent without knowing how the one before went: topic nodes, and everything that goes away. The holder,
/// `ids/B` and the checksum wait for all before them and are waited for.
fn batches(operations: &[Operation]) -> impl Iterator<Item = &[Operation]> {
    let alone = |operation: &Operation| matches!(operation, Operation::Create(node) | Operation::Set(node) if node.kind != Kind::Topic);
    operations.chunk_by(move |a, b| !alone(a) && !alone(b)).flat_map(|batch| batch.chunks(PIPELINE))
}
