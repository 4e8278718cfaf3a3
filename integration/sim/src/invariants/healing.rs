//! Once faults have stopped, one node reigns, both others follow it, and all three are the same.

use crate::node::{NAMES, Node};
use crate::queue::Ms;

/// What keeps the three from being whole, if anything does.
pub(crate) fn sick(nodes: &[Node], now: Ms) -> Option<String> {
    let open = |node: &&usize| nodes[**node].master().is_some_and(|master| master.is_open(now, None));
    let places: Vec<usize> = (0..nodes.len()).collect();
    let masters: Vec<&usize> = places.iter().filter(open).collect();
    let [master] = masters[..] else { return Some(format!("{} nodes accept messages", masters.len())) };
    if let Some(short) = nodes[*master].master().and_then(|master| super::waiting::short_of(master, nodes.len())) {
        return Some(short);
    }
    for (place, node) in nodes.iter().enumerate().filter(|(place, _)| place != master) {
        let name = NAMES[place];
        let Some(session) = node.slave().and_then(|slave| slave.following()) else {
            return Some(format!("{name} follows nobody"));
        };
        if session.master != *master {
            return Some(format!("{name} follows {}, and {} reigns", NAMES[session.master], NAMES[*master]));
        }
        if let Some((partition, common)) = session.held.first_key_value() {
            return Some(format!("{name} holds {partition} back, which is its master's up to {common} only"));
        }
        for (partition, log) in &nodes[*master].disk.logs {
            let stopped = session.followed.get(partition).and_then(|follow| follow.pull.stopped());
            if let Some(stop) = stopped {
                return Some(format!("{name} does not copy {partition}: {stop}"));
            }
            let own = node.disk.logs.get(partition).map(|log| log.end());
            if own != Some(log.end()) {
                return Some(format!("{name} has {partition} up to {own:?}, its master up to {}", log.end()));
            }
        }
    }
    None
}
