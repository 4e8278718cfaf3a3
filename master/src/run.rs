use crate::assembly::{self, Signals};
use crate::cli::{CommonArgs, in_words, report_config, start_logging};
use crate::reign::{self, Consent};
use crate::reload::reload;
use crate::retention::Retention;
use crate::secure;
use crate::succession;
use anyhow::{Context, Result, bail};
use metaq_broker::{Node, NodeOptions, NodeRole, Successor};
use metaq_config::{BrokerConfig, Live};
use metaq_console::Console;
use metaq_registry::fence::{Fence, look};
use metaq_registry::{Registry, Role, State};
use metaq_store::Store;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::{Handle, Runtime};
use tokio_util::task::AbortOnDropHandle;
use tracing::{error, info, warn};

/// A master from its command line to its exit code.
pub fn run(args: &CommonArgs) -> ExitCode {
    if args.check_config {
        return report_config(BrokerConfig::load(&args.config));
    }
    start_logging(args.log_format);
    let config = match args.load_config() {
        Ok(config) => config,
        failed => return report_config(failed),
    };
    let (runtime, sessions) = match runtimes() {
        Ok(runtimes) => runtimes,
        Err(error) => {
            error!(%error, "cannot start the runtime");
            return ExitCode::FAILURE;
        }
    };
    match runtime.block_on(serve(config, args.local, args.consent(), sessions.handle().clone())) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            error!("{}", in_words(&error));
            ExitCode::FAILURE
        }
    }
}

/// One for everything, and one for the clients' connections: a thread of theirs that waits for a slow disk in the middle
/// of a write then keeps neither ZooKeeper's session nor the slaves waiting. Clients have a thread less than there are
/// processors, since committers and the rest need some of one, and since on two processors one thread alone was measured
/// to answer a fifth to a third more puts than two that wake each other.
fn runtimes() -> std::io::Result<(Runtime, Runtime)> {
    let processors = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let mut sessions = tokio::runtime::Builder::new_multi_thread();
    sessions.worker_threads(processors.saturating_sub(1).max(1)).thread_name("session");
    let main = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    Ok((main, sessions.enable_all().build()?))
}

async fn serve(config: BrokerConfig, local: bool, consent: Consent, sessions: Handle) -> Result<()> {
    let hangup = assembly::heed_signals()?;
    assembly::raise_descriptor_limit();
    assembly::log_configuration(&config, "master");
    let live = Live::new(config);
    let config = live.snapshot();
    let identity = secure::load(&config)?;
    let store = assembly::open_store(&live).await?;
    let transport = secure::link_transport(&config, identity.as_ref());
    succession::settle(&config, &store, &transport, consent).await?;
    let promotion = reign::measure_promotion(&store, &config.system.data_path)?;
    let promoted = promotion.is_some();
    reign::check_gaps(&store, consent)?;
    let _embedded = if local { Some(assembly::start_embedded(&config)?) } else { None };

    // Clients that see the registration connect at once: listen first (client-behaviour, "2.1").
    let (listener, uri) = assembly::listen(&config).await?;
    let node = Node::start(NodeOptions {
        config: live.clone(),
        store: Arc::clone(&store),
        role: NodeRole::Master,
        uri: uri.clone(),
        listener,
        sessions,
        fenced_by_greeting: !config.zookeeper.enable,
    })?;
    secure::serve(&node, &config, identity.as_ref())?;
    let console = Console::start(node.view(), config.system.slave_max_delay);
    let mut signals = Signals::new()?.since(hangup);
    let registry = if config.zookeeper.enable {
        info!(uri, "serving reads; messages are accepted once ZooKeeper confirms the reign");
        let claim = async {
            let fence = reign::take_fence(&config, &store, node.gate(), &uri, consent).await?;
            succession::settle_again(&config, &store, &transport, consent, (&node, &fence)).await?;
            anyhow::Ok(fence)
        };
        let fence = tokio::select! {
            fence = claim => fence?,
            () = signals.stop() => return assembly::stop(node, &store, None, Duration::ZERO).await,
        };
        reign::begin(&store, node.gate(), fence.epoch, &config.system.data_path, promoted).await?;
        begin_transactions(&live, &store, &node).await?;
        node.begin_quorum().await;
        Registry::reign(&config.zookeeper, assembly::wanted(&config, &store, Role::Master, &uri), fence)
    } else {
        reign::begin(&store, node.gate(), reign::next_epoch(&store), &config.system.data_path, promoted).await?;
        begin_transactions(&live, &store, &node).await?;
        node.begin_quorum().await;
        node.gate().open(None);
        Registry::start(&config.zookeeper, assembly::wanted(&config, &store, Role::Master, &uri))
    };
    console.follow_registry(registry.state());
    info!(uri, epoch = %store.epoch(), "serving as master");
    let predecessor = promotion.filter(|_| !config.zookeeper.enable).map(|promotion| promotion.master);
    let _telling = predecessor.map(|old| {
        let telling = reign::tell_predecessor(old, uri.clone(), transport, Arc::clone(&store));
        AbortOnDropHandle::new(tokio::spawn(telling))
    });

    let retention = Retention::start(&live, &store);
    let outcome = until_stopped(&live, &node, &store, &registry, &uri, &retention, &mut signals).await;
    drop(retention);
    assembly::stop(node, &store, Some(registry), config.zookeeper.sync_time).await?;
    outcome
}

async fn begin_transactions(live: &Live, store: &Arc<Store>, node: &Node) -> Result<()> {
    let (live, store) = (live.clone(), Arc::clone(store));
    let opened = tokio::task::spawn_blocking(move || assembly::open_transactions(&live, &store));
    node.begin_transactions(opened.await.context("opening the transactions")??);
    Ok(())
}

/// Follows signals, the lease and the store's partitions until the node has to stop.
async fn until_stopped(
    live: &Live,
    node: &Node,
    store: &Arc<Store>,
    registry: &Registry,
    uri: &str,
    retention: &Retention,
    signals: &mut Signals,
) -> Result<()> {
    let (mut lease, mut state, mut successor) = (registry.lease(), registry.state(), node.gate().successor());
    let mut accepting = None;
    let mut generation = store.catalog_generation();
    let want = || registry.want(assembly::wanted(&live.snapshot(), store, Role::Master, uri));
    loop {
        tokio::select! {
            _ = signals.terminate.recv() => return Ok(()),
            _ = signals.interrupt.recv() => return Ok(()),
            _ = signals.hangup.recv() => {
                if reload(live, node) {
                    retention.reloaded();
                    want();
                }
            }
            // A topic made by a pattern's first put has to be found by consumers.
            grown = store.catalog_beyond(generation) => {
                generation = grown;
                want();
            }
            Ok(()) = lease.changed() => {
                reign::follow_lease(node, &lease.borrow_and_update().clone(), &mut accepting);
            }
            () = reign::lease_ends(accepting) => accepting = None,
            Ok(()) = successor.changed() => {
                let successor = successor.borrow_and_update().clone();
                bail!("{}", over(successor.as_ref(), store));
            }
            Ok(()) = state.changed() => {
                let conflict = match &*state.borrow_and_update() {
                    State::Conflict { holder, .. } => Some(holder.clone()),
                    _ => None,
                };
                if let Some(holder) = conflict {
                    refuse_a_living_holder(&live.snapshot(), &holder, uri, store).await?;
                }
            }
        }
    }
}

/// The last words of a master whose reign is over.
fn over(successor: Option<&Successor>, store: &Store) -> String {
    let (epoch, who) = successor.map_or((store.epoch(), String::new()), |s| (s.epoch, s.name()));
    format!(
        "another master has begun to reign in epoch {epoch} {who}: nothing is acknowledged here any more; start this node \
         as its slave with 'metaq-slave --slave-id N', without ZooKeeper with --master and its HOST:PORT as well"
    )
}

/// Another address stands in our place in the registry. A dead one goes with its session; a living one is a second
/// master with our id, and two of them would split the messages between them.
async fn refuse_a_living_holder(config: &BrokerConfig, holder: &str, uri: &str, store: &Store) -> Result<()> {
    if holder == uri {
        return Ok(());
    }
    let fence = look(&config.zookeeper, config.system.broker_id).await.ok().and_then(|standing| standing.fence);
    if let Some(Fence { epoch, node, uri, .. }) = fence.filter(|fence| fence.node != store.node_id()) {
        bail!("{}", over(Some(&Successor { epoch, node, uri }), store));
    }
    if assembly::is_alive(holder).await {
        bail!(
            "another broker with our brokerId is alive: {holder} is registered, we are {uri}; give one of them another \
             brokerId, or stop the other one first"
        );
    }
    warn!(holder, "the registration of a broker that does not answer stands in our place; waiting for it to go");
    Ok(())
}
