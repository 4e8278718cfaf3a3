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
    if !theirs.holds(own.first(), own.range(own.first(), own.end())) {
        let differs = (own.first().get()..own.end().get()).find(|at| own.byte(*at) != theirs.byte(*at));
        return Err(format!("{partition} differs at {differs:?}"));
    }
    let both = own.segments().len();
    if theirs.segments().get(..both) != Some(own.segments()) {
        return Err(format!("{partition} has the segments {:?}, its master {:?}", own.segments(), theirs.segments()));
    }
    Ok(())
}
