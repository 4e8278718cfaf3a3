use crate::broker::BrokerConfig;
use arc_swap::{ArcSwap, Guard};
use std::sync::Arc;

/// The configuration in force, replaced whole by a reload; a clone follows the same one.
///
/// Whoever looks at more than one value takes one snapshot, so that all of them are of one file.
#[derive(Clone, Debug)]
pub struct Live(Arc<ArcSwap<BrokerConfig>>);

impl Live {
    pub fn new(config: BrokerConfig) -> Live {
        Live(Arc::new(ArcSwap::from_pointee(config)))
    }

    /// For a look within one function; cheap, and not to be kept across an await.
    pub fn current(&self) -> Guard<Arc<BrokerConfig>> {
        self.0.load()
    }

    /// A snapshot to keep.
    pub fn snapshot(&self) -> Arc<BrokerConfig> {
        self.0.load_full()
    }

    pub fn replace(&self, config: BrokerConfig) {
        self.0.store(Arc::new(config));
    }
}
