//! One-shot watches by path and connection.

use std::collections::{BTreeSet, HashMap, HashSet};

/// One connection to the server; never used again.
pub(super) type ConnectionId = u64;

/// More than one machine's clients need; a further watch is refused.
const WATCHES_MAX: usize = 500_000;

/// Watches of one kind.
#[derive(Debug, Default)]
pub(super) struct Watches {
    by_path: HashMap<String, BTreeSet<ConnectionId>>,
    by_connection: HashMap<ConnectionId, HashSet<String>>,
    count: usize,
}

impl Watches {
    /// False when there are too many. A second watch of one connection on one path is the first one.
    #[must_use]
    pub(super) fn add(&mut self, path: &str, connection: ConnectionId) -> bool {
        if self.count >= WATCHES_MAX {
            return false;
        }
        if self.by_path.entry(path.to_owned()).or_default().insert(connection) {
            self.by_connection.entry(connection).or_default().insert(path.to_owned());
            self.count += 1;
        }
        true
    }

    /// Takes the watches on a path; each fires once.
    pub(super) fn take(&mut self, path: &str) -> BTreeSet<ConnectionId> {
        let connections = self.by_path.remove(path).unwrap_or_default();
        self.count -= connections.len();
        for connection in &connections {
            self.forget(*connection, path);
        }
        connections
    }

    /// False when there was none.
    pub(super) fn remove(&mut self, path: &str, connection: ConnectionId) -> bool {
        let Some(connections) = self.by_path.get_mut(path) else { return false };
        let removed = connections.remove(&connection);
        if connections.is_empty() {
            self.by_path.remove(path);
        }
        if removed {
            self.count -= 1;
            self.forget(connection, path);
        }
        removed
    }

    /// Forgets a connection that ended; its client sets them again on the next one.
    pub(super) fn disconnected(&mut self, connection: ConnectionId) {
        for path in self.by_connection.remove(&connection).unwrap_or_default() {
            self.count -= 1;
            if let Some(connections) = self.by_path.get_mut(&path) {
                connections.remove(&connection);
                if connections.is_empty() {
                    self.by_path.remove(&path);
                }
            }
        }
    }

    fn forget(&mut self, connection: ConnectionId, path: &str) {
        if let Some(paths) = self.by_connection.get_mut(&connection) {
            paths.remove(path);
            if paths.is_empty() {
                self.by_connection.remove(&connection);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_watch_is_taken_once_and_leaves_nothing() {
        let mut watches = Watches::default();
        for (path, connection) in [("/a", 1), ("/a", 2), ("/a", 1), ("/b", 1)] {
            assert!(watches.add(path, connection));
        }
        assert_eq!(watches.count, 3);
        assert_eq!(watches.take("/a"), BTreeSet::from([1, 2]));
        assert_eq!(watches.take("/a"), BTreeSet::new());
        assert!(!watches.remove("/a", 1));
        assert!(watches.remove("/b", 1));
        assert!(watches.add("/c", 3));
        watches.disconnected(3);
        assert!(watches.by_path.is_empty() && watches.by_connection.is_empty());
        assert_eq!(watches.count, 0);
    }
}
