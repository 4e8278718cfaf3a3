//! From what stands to what is wanted, as a list of operations: registration, repair and reload are one function.

use crate::wanted::{Kind, Layout, Node};
use std::collections::{BTreeMap, BTreeSet};

/// A node found in the registry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Standing {
    pub(crate) data: String,
    /// The session that holds it; 0 for a persistent node.
    pub(crate) owner: i64,
}

pub(crate) type Standings = BTreeMap<String, Standing>;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    Create(Node),
    Set(Node),
    Delete(String),
}

impl Operation {
    pub(crate) fn path(&self) -> &str {
        match self {
            Operation::Create(node) | Operation::Set(node) => &node.path,
            Operation::Delete(path) => path,
        }
    }
}

/// The sessions this process may call its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sessions {
    pub(crate) current: i64,
    /// Sessions of this process that ended; their nodes may outlive them for a while.
    pub(crate) earlier: Vec<i64>,
    /// This process has not held its node yet, so a node with our URI was left by a run before this one. Afterwards
    /// it is a second process with our address, and whoever came last keeps it: two must not push each other out.
    pub(crate) newcomer: bool,
}

/// Another broker holds the node that makes us one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Conflict {
    pub(crate) path: String,
    pub(crate) holder: String,
    pub(crate) ours: String,
    /// It belongs to no session, so that it does not go by itself.
    pub(crate) lasts: bool,
}

/// Operations in the order in which they must be done; empty when everything stands as wanted.
///
/// First go nodes of ours that are no longer wanted, then come the layout's nodes in its order. Once the holder's
/// node is ours, whatever another session left under our name is replaced: it cannot belong to a living broker.
pub(crate) fn plan(layout: &Layout, stands: &Standings, sessions: &Sessions) -> Result<Vec<Operation>, Conflict> {
    let wanted: BTreeSet<&str> = layout.nodes.iter().map(|node| node.path.as_str()).collect();
    let retired = stands.iter().filter(|(path, standing)| {
        !wanted.contains(path.as_str()) && (standing.owner == sessions.current || layout.absent.contains(path))
    });
    let mut operations: Vec<Operation> = retired.map(|(path, _)| Operation::Delete(path.clone())).collect();
    for node in &layout.nodes {
        let Some(standing) = stands.get(&node.path) else {
            // The parent of the holder's node is made before anything else.
            let create = node.kind != Kind::Legacy;
            operations.push(if create { Operation::Create(node.clone()) } else { Operation::Set(node.clone()) });
            continue;
        };
        let ours = standing.owner == if node.kind.is_ephemeral() { sessions.current } else { 0 };
        if node.kind == Kind::Holder && !ours && !left_by_us(node, standing, sessions) {
            let (path, holder, ours) = (node.path.clone(), standing.data.clone(), node.data.clone());
            return Err(Conflict { path, holder, ours, lasts: standing.owner == 0 });
        }
        match (ours, standing.data == node.data) {
            (true, true) => {}
            (true, false) if node.kind != Kind::Topic => operations.push(Operation::Set(node.clone())),
            // Per node, so that a topic is out of sight of one kind of client at a time, and for one operation.
            _ => operations.extend([Operation::Delete(node.path.clone()), Operation::Create(node.clone())]),
        }
    }
    Ok(operations)
}

fn left_by_us(node: &Node, standing: &Standing, sessions: &Sessions) -> bool {
    sessions.earlier.contains(&standing.owner) || (sessions.newcomer && standing.data == node.data)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::paths::{Paths, Role};
    use crate::wanted::tests::{recorded, slave};
    use crate::wanted::{Wanted, WantedTopic};
    use metaq_types::TopicName;

    const ME: i64 = 7;
    const OTHER: i64 = 8;

    fn sessions() -> Sessions {
        Sessions { current: ME, earlier: Vec::new(), newcomer: false }
    }

    fn layout(wanted: &Wanted) -> Layout {
        wanted.layout(&Paths::new("/meta"))
    }

    /// Everything `wanted` asks for, held by `owner`.
    fn standing(wanted: &Wanted, owner: i64) -> Standings {
        let nodes = layout(wanted).nodes.into_iter();
        nodes
            .map(|node| {
                let owner = if node.kind.is_ephemeral() { owner } else { 0 };
                (node.path, Standing { data: node.data, owner })
            })
            .collect()
    }

    /// One line an operation: `+path data`, `=path data`, `-path`, without the common prefix.
    fn lines(operations: &[Operation]) -> Vec<String> {
        let short = |path: &str| path.strip_prefix("/meta/brokers/").expect("below brokers").to_owned();
        let line = |operation: &Operation| match operation {
            Operation::Create(node) => format!("+{} {}", short(&node.path), node.data),
            Operation::Set(node) => format!("={} {}", short(&node.path), node.data),
            Operation::Delete(path) => format!("-{}", short(path)),
        };
        operations.iter().map(line).collect()
    }

    fn difference(old: &Wanted, new: &Wanted) -> Vec<String> {
        lines(&plan(&layout(new), &standing(old, ME), &sessions()).unwrap())
    }

    fn topic(name: &str) -> TopicName {
        TopicName::new(name).unwrap()
    }

    #[test]
    fn an_empty_registry_gets_every_node_in_layout_order() {
        let layout = layout(&recorded(Role::Master));
        let operations = plan(&layout, &Standings::new(), &sessions()).unwrap();
        let paths = |nodes: &[Node]| nodes.iter().map(|node| node.path.clone()).collect::<Vec<_>>();
        assert_eq!(operations.iter().map(Operation::path).collect::<Vec<_>>(), paths(&layout.nodes));
        assert_eq!(
            lines(&operations)[..3],
            ["+ids/0/master meta://127.0.0.1:8323", "=ids/0 meta://127.0.0.1:8323", "+topics/golden-trim/0-m 1"]
        );
    }

    #[test]
    fn nothing_is_touched_when_all_stands() {
        for role in [Role::Master, slave()] {
            assert_eq!(difference(&recorded(role), &recorded(role)), Vec::<String>::new());
        }
    }

    #[test]
    fn a_new_partition_count_takes_one_tree_at_a_time_and_the_checksum_comes_last() {
        let mut new = recorded(Role::Master);
        new.topics.get_mut("test").unwrap().partitions = 3;
        new.checksum = Some(1);
        let expected = [
            "-topics/test/0-m",
            "+topics/test/0-m 3",
            "-topics-pub/test/0-m",
            "+topics-pub/test/0-m {\"numParts\":3,\"broker\":\"0-m\"}",
            "-topics-sub/test/0-m",
            "+topics-sub/test/0-m {\"numParts\":3,\"broker\":\"0-m\"}",
            "=ids/0/master_config_checksum 1",
        ];
        assert_eq!(difference(&recorded(Role::Master), &new), expected);
    }

    #[test]
    fn topics_come_and_go() {
        let mut new = recorded(Role::Master);
        new.topics.remove("meta-tx");
        new.topics.insert(topic("a"), WantedTopic { partitions: 2, publish: false, subscribe: true });
        let expected = [
            "-topics-pub/meta-tx/0-m",
            "-topics-sub/meta-tx/0-m",
            "-topics/meta-tx/0-m",
            "+topics/a/0-m 2",
            "+topics-sub/a/0-m {\"numParts\":2,\"broker\":\"0-m\"}",
        ];
        assert_eq!(difference(&recorded(Role::Master), &new), expected);
    }

    #[test]
    fn a_topic_closed_to_producers_leaves_only_their_tree() {
        let mut new = recorded(Role::Master);
        new.topics.get_mut("test").unwrap().publish = false;
        assert_eq!(difference(&recorded(Role::Master), &new), ["-topics-pub/test/0-m"]);
    }

    #[test]
    fn a_closed_topics_node_of_a_run_before_is_removed() {
        let mut closed = recorded(Role::Master);
        closed.topics.get_mut("test").unwrap().publish = false;
        let newcomer = Sessions { newcomer: true, ..sessions() };
        let operations = plan(&layout(&closed), &standing(&recorded(Role::Master), OTHER), &newcomer).unwrap();
        assert_eq!(lines(&operations)[0], "-topics-pub/test/0-m");
    }

    #[test]
    fn the_nodes_of_our_own_previous_run_are_replaced_at_once() {
        let wanted = recorded(slave());
        let newcomer = Sessions { newcomer: true, ..sessions() };
        let operations = plan(&layout(&wanted), &standing(&wanted, OTHER), &newcomer).unwrap();
        assert_eq!(lines(&operations)[..2], ["-ids/0/slave0", "+ids/0/slave0 meta://127.0.0.1:8324"]);
        assert_eq!(operations.len(), 2 * layout(&wanted).nodes.len());
    }

    #[test]
    fn another_address_in_our_place_is_a_conflict() {
        let mut other = recorded(Role::Master);
        other.uri = "meta://10.0.0.9:8123".to_owned();
        let newcomer = Sessions { newcomer: true, ..sessions() };
        let conflict = plan(&layout(&recorded(Role::Master)), &standing(&other, OTHER), &newcomer).unwrap_err();
        assert_eq!(conflict.path, "/meta/brokers/ids/0/master");
        assert_eq!(
            (conflict.holder.as_str(), conflict.ours.as_str()),
            ("meta://10.0.0.9:8123", "meta://127.0.0.1:8323")
        );
    }

    #[test]
    fn a_twin_that_took_our_place_is_left_in_it() {
        let wanted = recorded(Role::Master);
        assert!(plan(&layout(&wanted), &standing(&wanted, OTHER), &sessions()).is_err());
        let expired = Sessions { earlier: vec![OTHER], ..sessions() };
        assert!(plan(&layout(&wanted), &standing(&wanted, OTHER), &expired).is_ok());
    }

    #[test]
    fn a_new_address_is_set_in_place() {
        let mut moved = recorded(Role::Master);
        moved.uri = "meta://10.0.0.1:8323".to_owned();
        let expected = ["=ids/0/master meta://10.0.0.1:8323", "=ids/0 meta://10.0.0.1:8323"];
        assert_eq!(difference(&recorded(Role::Master), &moved), expected);
    }

    #[test]
    fn a_vanished_node_is_put_back() {
        let wanted = recorded(Role::Master);
        let mut stands = standing(&wanted, ME);
        stands.remove("/meta/brokers/topics-sub/test/0-m");
        let operations = plan(&layout(&wanted), &stands, &sessions()).unwrap();
        assert_eq!(lines(&operations), ["+topics-sub/test/0-m {\"numParts\":1,\"broker\":\"0-m\"}"]);
    }
}
