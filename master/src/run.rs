use crate::assembly;
use crate::cli::{CommonArgs, report_config, start_logging};
use crate::reload::reload;
use crate::secure;
use crate::retention::Retention;
use anyhow::{Context, Result, bail};
use metaq_broker::{Node, NodeOptions, NodeRole};
use metaq_config::{BrokerConfig, Live};
use metaq_registry::{Registry, Role, State};
use metaq_store::Store;
use std::process::ExitCode;
use std::sync::Arc;
use tokio::signal::unix::{SignalKind, signal};
use tracing::{error, info, warn};

/// A master from its command line to its exit code.
pub fn run(args: &CommonArgs) -> ExitCode {
    if args.check_config {
        return report_config(BrokerConfig::load(&args.config));
    }
    start_logging(args.log_format);
    let config = match BrokerConfig::load(&args.config) {
        Ok(config) => config,
        failed => return report_config(failed),
    };
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            error!(%error, "cannot start the runtime");
            return ExitCode::FAILURE;
        }
    };
    match runtime.block_on(serve(config, args.local)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            error!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn serve(config: BrokerConfig, local: bool) -> Result<()> {
    assembly::raise_descriptor_limit();
    assembly::log_configuration(&config, "master");
    let live = Live::new(config);
    let config = live.snapshot();
    let identity = secure::load(&config)?;
    let store = {
        let live = live.clone();
        tokio::task::spawn_blocking(move || assembly::open_store(&live)).await.context("opening the store")??
    };
    let _embedded = if local { Some(assembly::start_embedded(&config)?) } else { None };

    // Clients that see the registration connect at once: listen first (client-behaviour, "2.1").
    let (listener, uri) = assembly::listen(&config).await?;
    let node = Node::start(NodeOptions {
        config: live.clone(),
        store: Arc::clone(&store),
        role: NodeRole::Master,
        uri: uri.clone(),
        listener,
        epoch: 0,
    })?;
    secure::serve(&node, &config, identity.as_ref())?;
    let registry = Registry::start(&config.zookeeper, assembly::wanted(&config, &store, Role::Master, &uri));
    info!(uri, "serving as master");

    let retention = Retention::start(&live, &store);
    let outcome = until_stopped(&live, &node, &store, &registry, &uri, &retention).await;
    drop(retention);
    assembly::stop(node, &store, registry, config.zookeeper.sync_time).await?;
    outcome
}

/// Follows signals and the store's partitions until the node has to stop.
async fn until_stopped(
    live: &Live,
    node: &Node,
    store: &Arc<Store>,
    registry: &Registry,
    uri: &str,
    retention: &Retention,
) -> Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut hangup = signal(SignalKind::hangup())?;
    let mut state = registry.state();
    let mut generation = store.catalog_generation();
    loop {
        tokio::select! {
            _ = terminate.recv() => return Ok(()),
            _ = interrupt.recv() => return Ok(()),
            _ = hangup.recv() => {
                if reload(live, node) {
                    retention.reloaded();
                    registry.want(assembly::wanted(&live.snapshot(), store, Role::Master, uri));
                }
            }
            // A topic made by a pattern's first put has to be found by consumers.
            grown = store.catalog_beyond(generation) => {
                generation = grown;
                registry.want(assembly::wanted(&live.snapshot(), store, Role::Master, uri));
            }
            changed = state.changed() => {
                if changed.is_err() {
                    continue;
                }
                let conflict = match &*state.borrow_and_update() {
                    State::Conflict { holder, .. } => Some(holder.clone()),
                    _ => None,
                };
                if let Some(holder) = conflict {
                    refuse_a_living_holder(&holder, uri).await?;
                }
            }
        }
    }
}

/// Another address stands in our place in the registry. A dead one goes with its session; a living one is a second
/// master with our id, and two of them would split the messages between them.
async fn refuse_a_living_holder(holder: &str, uri: &str) -> Result<()> {
    if holder == uri {
        return Ok(());
    }
    if assembly::is_alive(holder).await {
        bail!(
            "another broker with our brokerId is alive: {holder} is registered, we are {uri}; give one of them another \
             brokerId, or stop the other one first"
        );
    }
    warn!(
        holder,
        "the registration of a broker that does not answer stands in our place; waiting for its session to end"
    );
    Ok(())
}
