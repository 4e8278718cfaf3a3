//! What should stand in the registry, as data. No I/O: see `plan.rs` for how it comes to stand there.

use crate::paths::{self, Paths, Role, Tree};
use metaq_types::{BrokerId, TopicName};
use std::collections::BTreeMap;

/// What one node wants to be known for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    pub broker_id: BrokerId,
    pub role: Role,
    /// `meta://host:port`, where clients reach this node.
    pub uri: String,
    pub topics: BTreeMap<TopicName, WantedTopic>,
    /// CRC-32 of `server.ini`; masters only. Slaves fetch the file when it changes.
    pub checksum: Option<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WantedTopic {
    pub partitions: u32,
    pub publish: bool,
    pub subscribe: bool,
}

/// One node that should exist.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Node {
    pub(crate) path: String,
    pub(crate) data: String,
    pub(crate) kind: Kind,
}

/// How a node lives, and how new data is brought to those who watch it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Ephemeral `ids/B/master` or `ids/B/slaveK`. Whoever holds it *is* the broker; clients read it when a topic
    /// node appears, so it stands before all of them.
    Holder,
    /// Persistent `ids/B`, for clients before 1.4. Set in place.
    Legacy,
    /// Ephemeral, below a topic. Clients watch only the children of the topic: new data means delete and create.
    Topic,
    /// Ephemeral, its data watched by slaves. Set in place, so that each change is one event.
    Checksum,
}

impl Kind {
    pub(crate) const fn is_ephemeral(self) -> bool {
        !matches!(self, Kind::Legacy)
    }
}

/// A [`Wanted`] spelled out in nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Layout {
    /// In the order in which they are to appear: holder, `ids/B`, each topic's nodes, the checksum last.
    pub(crate) nodes: Vec<Node>,
    /// Paths where no node of this broker may stand: topics closed to producers or consumers.
    pub(crate) absent: Vec<String>,
}

impl Wanted {
    /// Topics whose name ZooKeeper refuses as a path are left out; see [`Wanted::unpublishable`].
    pub(crate) fn layout(&self, paths: &Paths) -> Layout {
        let (id, role) = (self.broker_id, self.role);
        let mut layout = Layout::default();
        layout.nodes.push(Node { path: paths.holder(id, role), data: self.uri.clone(), kind: Kind::Holder });
        if role == Role::Master {
            layout.nodes.push(Node { path: paths.broker(id), data: self.uri.clone(), kind: Kind::Legacy });
        }
        for (name, topic) in self.topics.iter().filter(|(name, _)| paths::publishable(name)) {
            for tree in Tree::ALL {
                let path = paths.registration(tree, name, id, role);
                if topic.appears_in(tree) {
                    let data = paths::registration_value(tree, id, role, topic.partitions);
                    layout.nodes.push(Node { path, data, kind: Kind::Topic });
                } else {
                    layout.absent.push(path);
                }
            }
        }
        if let (Role::Master, Some(checksum)) = (role, self.checksum) {
            let data = paths::checksum_value(checksum);
            layout.nodes.push(Node { path: paths.checksum(id), data, kind: Kind::Checksum });
        }
        layout
    }

    /// Topics that are served but cannot be announced; the original's clients could not find them either.
    pub fn unpublishable(&self) -> Vec<&TopicName> {
        self.topics.keys().filter(|name| !paths::publishable(name)).collect()
    }
}

impl WantedTopic {
    fn appears_in(self, tree: Tree) -> bool {
        match tree {
            Tree::Topics => true,
            Tree::Publish => self.publish,
            Tree::Subscribe => self.subscribe,
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use metaq_types::SlaveId;
    use serde_json::Value;

    /// The brokers of the recording `zk-1-master-and-slave.json`.
    pub(crate) fn recorded(role: Role) -> Wanted {
        let topic = |name: &str, partitions, publish| {
            (TopicName::new(name).unwrap(), WantedTopic { partitions, publish, subscribe: true })
        };
        let port = if role == Role::Master { 8323 } else { 8324 };
        Wanted {
            broker_id: BrokerId::new(0).unwrap(),
            role,
            uri: format!("meta://127.0.0.1:{port}"),
            topics: BTreeMap::from([
                topic("golden-trim", 1, true),
                topic("meta-bench", 10, true),
                topic("meta-closed", 1, false),
                topic("meta-test", 4, true),
                topic("meta-tx", 2, true),
                topic("test", 1, true),
            ]),
            checksum: (role == Role::Master).then_some(278453567),
        }
    }

    pub(crate) fn slave() -> Role {
        Role::Slave(SlaveId::new(0).unwrap())
    }

    /// Path → (ephemeral, data) of everything brokers wrote in a recording; JSON data in one member order.
    fn recording(name: &str) -> BTreeMap<String, (bool, String)> {
        let path = format!("{}/../../integration/golden/{name}", env!("CARGO_MANIFEST_DIR"));
        let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
        let nodes: Vec<Value> = serde_json::from_str(&text).unwrap();
        let brokers = nodes.iter().filter(|node| node["path"].as_str().unwrap().starts_with("/meta/brokers/"));
        brokers
            .filter(|node| !node["data"].is_null())
            .map(|node| {
                let data = canonical(node["data"].as_str().unwrap());
                (node["path"].as_str().unwrap().to_owned(), (node["ephemeral"].as_bool().unwrap(), data))
            })
            .collect()
    }

    fn canonical(data: &str) -> String {
        serde_json::from_str::<Value>(data).map_or(data.to_owned(), |value| value.to_string())
    }

    fn written(wanted: &[Wanted]) -> BTreeMap<String, (bool, String)> {
        let paths = Paths::new("/meta");
        let nodes = wanted.iter().flat_map(|wanted| wanted.layout(&paths).nodes);
        nodes.map(|node| (node.path, (node.kind.is_ephemeral(), canonical(&node.data)))).collect()
    }

    #[test]
    fn a_master_and_its_slave_write_what_the_original_wrote() {
        let ours = written(&[recorded(Role::Master), recorded(slave())]);
        assert_eq!(ours, recording("zk-1-master-and-slave.json"));
    }

    #[test]
    fn a_slave_alone_leaves_the_legacy_node_alone() {
        let mut left = recording("zk-4-master-stopped.json");
        assert_eq!(left.remove("/meta/brokers/ids/0"), Some((false, String::new())));
        assert_eq!(written(&[recorded(slave())]), left);
    }

    #[test]
    fn the_holder_comes_first_and_the_checksum_last() {
        let nodes = recorded(Role::Master).layout(&Paths::new("/meta")).nodes;
        let kinds: Vec<Kind> = nodes.iter().map(|node| node.kind).collect();
        assert_eq!(kinds[..2], [Kind::Holder, Kind::Legacy]);
        assert!(kinds[2..kinds.len() - 1].iter().all(|kind| *kind == Kind::Topic));
        assert_eq!(kinds[kinds.len() - 1], Kind::Checksum);
    }

    #[test]
    fn a_topic_closed_to_producers_must_not_stand_in_their_tree() {
        let layout = recorded(Role::Master).layout(&Paths::new("/meta"));
        assert_eq!(layout.absent, ["/meta/brokers/topics-pub/meta-closed/0-m"]);
    }

    #[test]
    fn a_topic_zookeeper_would_refuse_is_left_out_and_named() {
        let mut wanted = recorded(Role::Master);
        let crab = TopicName::new("\u{1f980}").unwrap();
        wanted.topics.insert(crab.clone(), WantedTopic { partitions: 1, publish: true, subscribe: true });
        assert_eq!(wanted.layout(&Paths::new("/meta")), recorded(Role::Master).layout(&Paths::new("/meta")));
        assert_eq!(wanted.unpublishable(), [&crab]);
    }
}
