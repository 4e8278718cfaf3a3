//! What a slave follows is, byte for byte and segment for segment, a prefix of its master's, and the slave knows by
//! which reign it was written.

use crate::log::Log;
use crate::node::{NAMES, Node};
use metaq_types::PartitionId;

pub(super) fn inspect(nodes: &[Node]) -> Result<(), String> {
    for (node, name) in nodes.iter().zip(NAMES) {
        let Some(session) = node.slave().and_then(|slave| slave.following()) else { continue };
        let master = &nodes[session.master];
        // Only a connection that both ends know: what a master became later is another's.
        let Some(reigning) = master.master().filter(|m| m.greeted.contains_key(&session.number)) else { continue };
        let mut in_doubt = !session.held.is_empty();
        for (partition, follow) in &session.followed {
            if follow.pull.stopped().is_some() {
                in_doubt = true;
                continue;
            }
            let (own, theirs) = (node.disk.logs.get(partition), master.disk.logs.get(partition));
            compare(partition, own, theirs)
                .map_err(|reason| format!("{name} of {}: {reason}", NAMES[session.master]))?;
        }
        let (own, theirs) = (node.disk.lineage.epoch(), reigning.epoch);
        if !in_doubt && theirs.is_some_and(|theirs| theirs != own) {
            return Err(format!(
                "{name} follows {} in epoch {} and takes it for epoch {own}",
                NAMES[session.master],
                theirs.unwrap_or_default()
            ));
        }
    }
    Ok(())
}

fn compare(partition: &PartitionId, own: Option<&Log>, theirs: Option<&Log>) -> Result<(), String> {
    let Some(own) = own else { return Ok(()) };
    let Some(theirs) = theirs else {
        return if own.end() == own.first() { Ok(()) } else { Err(format!("{partition} is on the slave only")) };
    };
    if own.end() > theirs.end() {
        return Err(format!("{partition} ends at {} on the slave and at {} on its master", own.end(), theirs.end()));
    }
    let from = own.first().max(theirs.first());
    for (from, to) in pieces(from.get(), own, theirs) {
        let differs = (from..to).find(|at| own.byte(*at) != theirs.byte(*at));
        if let Some(at) = differs {
            return Err(format!("{partition} differs at {at}"));
        }
    }
    let starts = |log: &Log| log.segments().iter().copied().filter(|start| *start >= from.get()).collect::<Vec<_>>();
    let (ours, all) = (starts(own), starts(theirs));
    // An own gap is a segment that ends before the next begins.
    if own.gaps().is_empty() && theirs.gaps().is_empty() && all.get(..ours.len()) != Some(&ours) {
        return Err(format!("{partition} has the segments {ours:?}, its master {all:?}"));
    }
    Ok(())
}

/// What both have from `from` on, leaving out the gaps of either.
fn pieces(from: u64, own: &Log, theirs: &Log) -> Vec<(u64, u64)> {
    let mut gaps: Vec<(u64, u64)> = own.gaps().iter().chain(theirs.gaps()).copied().collect();
    gaps.sort_unstable();
    let (mut found, mut at) = (Vec::new(), from);
    for (gap, to) in gaps.into_iter().chain([(own.end().get(), u64::MAX)]) {
        if at < gap.min(own.end().get()) {
            found.push((at, gap.min(own.end().get())));
        }
        at = at.max(to);
    }
    found
}
