use crate::secure;
use metaq_broker::Node;
use metaq_config::{BrokerConfig, Live};
use tracing::{error, info, warn};

/// Reads the configuration again: takes it over whole, or not at all (configuration, "8. Reload"). `true` when topics
/// may have changed; the caller then publishes, the checksum last.
///
/// Certificates are read again as well, each time. Only topic sections change a running broker; other differences are named as needing a restart.
pub fn reload(live: &Live, node: &Node) -> bool {
    secure::reload(node);
    let old = live.snapshot();
    let new = match BrokerConfig::load(&old.path) {
        Ok(new) => new,
        Err(errors) => {
            for line in errors.to_string().lines() {
                error!("{line}");
            }
            error!("reload refused: nothing was changed; correct the lines above and reload again");
            return false;
        }
    };
    if new.checksum == old.checksum {
        info!("reload: the file has not changed");
        return false;
    }
    let differences = old.differences(&new);
    for line in &differences {
        info!("reload: {line}");
    }
    let grace = old.zookeeper.sync_time;
    live.replace(old.with_topics_of(new));
    node.reload(grace);
    let cut_off = node.cut_off_since(&old);
    if let Some(first) = cut_off.first() {
        warn!(
            partitions = cut_off.len(),
            %first,
            "reload: there are messages in partitions above numPartitions now: ZooKeeper no longer tells consumers of \
             them; unless all is read, raise it again until it is"
        );
    }
    info!(differences = differences.len(), checksum = live.snapshot().checksum, "reload done");
    true
}
