//! A put that its quorum does not confirm is answered as unknown once its time is over, and puts are taken again when
//! enough members are back.

use crate::node::{NAMES, Node};
use crate::queue::Ms;
use crate::setup::QUORUM_TICK_MS;
use metaq_types::Offset;

/// Beyond the time-out, on a node that runs.
const SLACK_MS: Ms = 4 * QUORUM_TICK_MS;

/// What a master that has just begun may refuse before its members have joined.
const JOIN_MS: Ms = 1_000;

#[derive(Debug, Default)]
pub(super) struct Waiting {
    /// The first and the last of the refusals that follow each other closely.
    refused: Option<(Ms, Ms)>,
}

impl Waiting {
    pub(super) fn on_refused(&mut self, now: Ms) {
        let first = self.refused.filter(|(_, last)| now < last + JOIN_MS).map_or(now, |(first, _)| first);
        self.refused = Some((first, now));
    }

    pub(super) fn on_end(&self, now: Ms) -> Result<(), String> {
        match self.refused.filter(|(first, last)| now < last + JOIN_MS && now >= first + JOIN_MS) {
            None => Ok(()),
            Some((_, at)) => Err(format!("a put was refused at {at} ms, although everybody is there")),
        }
    }
}

pub(super) fn inspect(nodes: &[Node], now: Ms) -> Result<(), String> {
    for (node, name) in nodes.iter().zip(NAMES) {
        let Some(master) = node.master() else { continue };
        for put in &master.unacknowledged {
            let confirmed = master.confirmed.get(&put.partition).copied().unwrap_or(Offset::MAX);
            let timeout = node.config.rules(&put.partition).timeout.as_millis() as Ms;
            // The time that a process is stopped is not known to it.
            let since = put.stored_at.max(node.behind_until);
            if put.end > confirmed && now > since + timeout + SLACK_MS {
                return Err(format!("a put to {} waits on {name} since {} ms", put.partition, put.stored_at));
            }
        }
    }
    Ok(())
}

/// Who is missing in a quorum of this master, if anybody is.
pub(super) fn short_of(master: &crate::master::Master, members: usize) -> Option<String> {
    let standings = master.quorums.standings();
    let short = standings.iter().find(|standing| (standing.members as usize) < members)?;
    Some(format!("{} of {members} members count for {}", short.members, short.partition))
}
