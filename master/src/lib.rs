//! The master: configuration in, running broker out.
//!
//! [`run`] is the whole life of a master and reads top to bottom: check the configuration, open the store, listen,
//! serve, register, follow signals, and the same backwards. [`assembly`] holds the steps a slave takes as well.
//!
//! Called by `metaq-master`, and by `metaq-slave` without `--slave-id`: promotion is starting as a master on the data
//! of a slave. Must never know: how bytes are stored or sent.

pub mod assembly;
pub mod cli;
mod reign;
mod reload;
mod retention;
mod run;
pub mod secure;
mod succession;

pub use reign::Consent;
pub use reload::reload;
pub use retention::Retention;
pub use run::run;
