//! Real processes for tests: brokers on scratch directories and free ports, a ZooKeeper, raw sockets.
//!
//! Everything started here is a child of the test, is waited for by a condition, and ends with it.

pub mod authority;
pub mod console;
pub mod fire;
pub mod members;
pub mod original;
pub mod pair;
pub mod ports;
pub mod process;
pub mod raw;
pub mod relay;
pub mod shaky_disk;
pub mod zookeeper;
