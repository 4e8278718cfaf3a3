//! The nodes of a quorum: their configuration, and waiting until the members are there.

use crate::process::{Broker, Site, wait_until};
use crate::raw::{Raw, Stored};
use anyhow::{Context, Result};
use std::time::Duration;

/// Long enough for a member to answer whose disk others keep busy.
pub const TIMEOUT: Duration = Duration::from_millis(1500);

/// What a put may take beyond the time-out on a machine that is busy with other tests.
pub const SLACK: Duration = Duration::from_millis(1500);

pub fn member_site(quorum: u32) -> Result<Site> {
    let mut site = Site::new()?;
    site.set("maxSegmentSize", "16*1024");
    site.set("ackQuorum", &quorum.to_string()).set("ackTimeoutInMills", &TIMEOUT.as_millis().to_string());
    Ok(site)
}

/// Puts once there are enough members; a put that is refused was not stored. One that was stored and not confirmed is an
/// error: a second one would be there twice.
pub fn first_put(master: &Broker, partition: i32, body: &[u8]) -> Result<Stored> {
    let mut raw = Raw::connect(&master.address)?;
    wait_until("the quorum to be there", || {
        let reply = raw.put("test", partition, body)?;
        Ok((reply.code != 503).then_some(reply))
    })?
    .stored()
}

/// Waits until so many members count in so many partitions.
pub fn wait_members(master: &Broker, members: u32, partitions: usize) -> Result<()> {
    let mut raw = Raw::connect(&master.address)?;
    let word = format!(" members {members} ");
    let mut text = String::new();
    wait_until("the members to count", || {
        text = raw.ask("stats quorum")?.text();
        let logs = text.lines().filter(|line| line.starts_with("log ") && line.contains(&word)).count();
        Ok((logs >= partitions).then_some(()))
    })
    .with_context(|| format!("{text}; the master's log:\n{}", master.log_text()))
}
