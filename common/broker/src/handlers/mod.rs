//! One file a command. A handler answers, or leaves a slot behind that the store or a parked task fills; it never waits.

pub(crate) mod get;
pub(crate) mod offset;
pub(crate) mod put;
pub(crate) mod stats;
mod told;
pub(crate) mod transaction;
pub(crate) mod version;
