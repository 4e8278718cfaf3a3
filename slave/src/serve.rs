use crate::Args;
use crate::config_sync::ConfigSync;
use anyhow::{Result, bail};
use metaq_broker::{Node, NodeOptions, NodeRole, rules_for};
use metaq_config::{BrokerConfig, Live, SlaveConfig};
use metaq_console::Console;
use metaq_link::driver::{Link, LinkOptions};
use metaq_master::assembly::Signals;
use metaq_master::{assembly, reload, secure};
use metaq_registry::{MasterAt, Registry, Role, State};
use metaq_store::Store;
use metaq_types::SlaveId;
use std::sync::Arc;
use tokio::sync::watch;
use tracing::info;

/// A slave from its checked configuration to its end.
pub(crate) async fn serve(config: BrokerConfig, slave_id: SlaveId, slave: SlaveConfig, args: &Args) -> Result<()> {
    if args.master.is_none() && !config.zookeeper.enable {
        bail!("zk.zkEnable is false, so the master cannot be looked up: name it with --master HOST:PORT");
    }
    let hangup = assembly::heed_signals()?;
    assembly::raise_descriptor_limit();
    let (master_sender, master) = watch::channel(args.master.as_deref().map(as_uri));
    assembly::log_configuration(&config, &format!("slave {slave_id}"));
    let live = Live::new(config);
    let config = live.snapshot();
    let identity = secure::load(&config)?;
    let store = assembly::open_store(&live).await?;
    let mut signals = Signals::new()?.since(hangup);
    let _embedded = if args.common.local { Some(assembly::start_embedded(&config)?) } else { None };

    let (listener, uri) = assembly::listen(&config).await?;
    let (follows_config, bound) = (slave.auto_sync_master_config, slave.slave_max_delay);
    metaq_link::confirmed::limit_all(&store, &config.system.data_path);
    let rules_from = live.clone();
    let link = Link::start(LinkOptions {
        slave_id,
        uri: uri.clone(),
        group: slave.slave_group,
        delay_max: slave.slave_max_delay,
        catch_up_bytes_per_second: slave.catch_up_bytes_per_second,
        accept_divergence: args.accept_divergence,
        store: Arc::clone(&store),
        transport: secure::link_transport(&config, identity.as_ref()),
        rules: Arc::new(move |id| rules_for(&rules_from.current(), &id.topic)),
        master: master.clone(),
        data_path: config.system.data_path.clone(),
    });
    let node = Node::start(NodeOptions {
        config: live.clone(),
        store: Arc::clone(&store),
        role: NodeRole::Slave { slave_id, master, progress: link.status_source() },
        uri: uri.clone(),
        listener,
        // What the link appends is answered on its own threads.
        sessions: tokio::runtime::Handle::current(),
        fenced_by_greeting: false,
    })?;
    secure::serve(&node, &config, identity.as_ref())?;
    let wanted = assembly::wanted(&config, &store, Role::Slave(slave_id), &uri);
    let registry = Registry::start(&config.zookeeper, wanted);
    let console = Console::start(node.view(), bound);
    console.follow_registry(registry.state());
    info!(uri, %slave_id, "serving as slave");

    let config_sync = match follows_config {
        true => ConfigSync::start(link.config_source(), config.path.clone()),
        false => ConfigSync::off(),
    };
    let slave = Slave { live, node, store, registry, config_sync, slave_id, uri };
    // A master named on the command line stays the one; its sender only has to live as long as the link looks at it.
    let looked_up = args.master.is_none().then_some(&master_sender);
    let outcome = slave.until_stopped(looked_up, &mut signals).await;
    link.close().await;
    assembly::stop(slave.node, &slave.store, Some(slave.registry), config.zookeeper.sync_time).await?;
    outcome
}

/// A master's address as the registry would have it, and as refused producers are told.
fn as_uri(address: &str) -> String {
    if address.contains("://") { address.to_owned() } else { format!("meta://{address}") }
}

/// A running slave, as far as signals and the registry move it.
struct Slave {
    live: Live,
    node: Node,
    store: Arc<Store>,
    registry: Registry,
    config_sync: ConfigSync,
    slave_id: SlaveId,
    uri: String,
}

impl Slave {
    /// Follows signals, the registry and the store's partitions until the node has to stop. `master` is told where the
    /// registry has the master; without it the command line has named one.
    async fn until_stopped(&self, master: Option<&watch::Sender<Option<String>>>, signals: &mut Signals) -> Result<()> {
        let mut state = self.registry.state();
        let mut registered_master = self.registry.master();
        let mut generation = self.store.catalog_generation();
        loop {
            tokio::select! {
                _ = signals.terminate.recv() => return Ok(()),
                _ = signals.interrupt.recv() => return Ok(()),
                _ = signals.hangup.recv() => {
                    if reload(&self.live, &self.node) {
                        self.publish();
                    }
                }
                () = self.config_sync.changed() => {
                    if reload(&self.live, &self.node) {
                        self.publish();
                    }
                }
                grown = self.store.catalog_beyond(generation) => {
                    generation = grown;
                    self.publish();
                }
                Ok(()) = registered_master.changed() => {
                    self.config_sync.ask_again();
                    if let Some(master) = master {
                        let at: Option<MasterAt> = registered_master.borrow_and_update().clone();
                        master.send_if_modified(|known| known_master(known, at.map(|at| at.uri)));
                    }
                }
                Ok(()) = state.changed() => {
                    let state = state.borrow_and_update().clone();
                    self.refuse_a_double(&state).await?;
                }
            }
        }
    }

    fn publish(&self) {
        let config = self.live.snapshot();
        self.registry.want(assembly::wanted(&config, &self.store, Role::Slave(self.slave_id), &self.uri));
    }

    /// Another living slave with our id would take our place in the registry, and with its master.
    async fn refuse_a_double(&self, state: &State) -> Result<()> {
        let State::Conflict { holder, .. } = state else { return Ok(()) };
        if *holder != self.uri && assembly::is_alive(holder).await {
            bail!(
                "slave {} of broker {} is running already: {holder} is registered, we are {}; give one of them another \
                 --slave-id, or stop the other one first",
                self.slave_id,
                self.live.current().system.broker_id,
                self.uri
            );
        }
        Ok(())
    }
}

/// A registration that vanishes does not make a slave leave a master that may still serve: the connection tells.
fn known_master(known: &mut Option<String>, now: Option<String>) -> bool {
    if now.is_none() || *known == now {
        return false;
    }
    *known = now;
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_master_stays_known_until_another_is_registered() {
        let mut known = None;
        assert!(!known_master(&mut known, None));
        assert!(known_master(&mut known, Some("a".to_owned())));
        assert!(!known_master(&mut known, Some("a".to_owned())));
        assert!(!known_master(&mut known, None));
        assert_eq!(known.as_deref(), Some("a"));
        assert!(known_master(&mut known, Some("b".to_owned())));
    }
}
