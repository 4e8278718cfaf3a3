//! What the node looks like from outside: `/metrics`, `/healthz`, `/readyz`, over HTTP on `dashboardHttpPort`.
//!
//! Everything is sampled when somebody asks, from what the other crates count anyway ([`metaq_broker::NodeView`], the
//! registry's state): nothing is done for a message that nobody looks at, and `stats` and the metrics cannot disagree.
//! [`Console`] is the running listener, `pages.rs` what it answers, `ready.rs` the decision whether the node is ready,
//! `metrics.rs` every metric with its meaning, `samples/` where each value comes from.
//!
//! Invariants: it changes nothing; it answers on loopback unless `dashboardHttpHost` says otherwise; a port that is taken
//! keeps nobody from serving messages; it holds a bounded number of connections. Must never know: the broker's protocol,
//! the disk.
//!
//! Called by the master's and the slave's binaries.

mod metrics;
mod pages;
mod ready;
mod samples;
mod serve;
mod watched;

pub use metrics::describe;
pub use serve::Console;
