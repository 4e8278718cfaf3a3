//! What the pages are made of.

use metaq_broker::NodeView;
use metaq_registry::State;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::sync::watch;

/// One node, its registry and, where it is a slave, the bound it keeps to. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Watched {
    pub(crate) node: NodeView,
    /// Set once the node has begun to register.
    pub(crate) registry: Arc<OnceLock<watch::Receiver<State>>>,
    /// `slaveMaxDelayInMills`: a slave's own, a master's for its slaves.
    pub(crate) bound: Duration,
}

impl Watched {
    pub(crate) fn registry_state(&self) -> Option<State> {
        self.registry.get().map(|state| state.borrow().clone())
    }
}
