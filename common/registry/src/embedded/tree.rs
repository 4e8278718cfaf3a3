//! The nodes: a tree in memory with ZooKeeper's rules for versions, ephemeral owners and errors. No I/O, no clock.

use super::jute::Writer;
use super::protocol::Code;
use crate::paths::{parent, path_character};
use bytes::Bytes;
use std::collections::{BTreeSet, HashMap};

/// More than any cluster on one machine needs, and what keeps a runaway client from taking all memory.
const NODES_MAX: usize = 200_000;
const DATA_BYTES_MAX: usize = 64 * 1024 * 1024;

/// What ZooKeeper tells about a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Stat {
    pub(super) czxid: i64,
    pub(super) mzxid: i64,
    pub(super) ctime_ms: i64,
    pub(super) mtime_ms: i64,
    pub(super) version: i32,
    pub(super) cversion: i32,
    pub(super) ephemeral_owner: i64,
    pub(super) data_bytes: i32,
    pub(super) children: i32,
    pub(super) pzxid: i64,
}

impl Stat {
    pub(super) fn encode(&self, writer: &mut Writer) {
        writer.long(self.czxid);
        writer.long(self.mzxid);
        writer.long(self.ctime_ms);
        writer.long(self.mtime_ms);
        writer.int(self.version);
        writer.int(self.cversion);
        // Access lists never change here.
        writer.int(0);
        writer.long(self.ephemeral_owner);
        writer.int(self.data_bytes);
        writer.int(self.children);
        writer.long(self.pzxid);
    }
}

#[derive(Debug, Default)]
struct Node {
    data: Option<Bytes>,
    czxid: i64,
    mzxid: i64,
    pzxid: i64,
    ctime_ms: i64,
    mtime_ms: i64,
    version: i32,
    /// Children ever created: the number of the next sequential one.
    creations: i32,
    owner: i64,
    children: BTreeSet<String>,
}

impl Node {
    fn stat(&self) -> Stat {
        let children = i32::try_from(self.children.len()).unwrap_or(i32::MAX);
        Stat {
            czxid: self.czxid,
            mzxid: self.mzxid,
            ctime_ms: self.ctime_ms,
            mtime_ms: self.mtime_ms,
            version: self.version,
            // Creations plus deletions.
            cversion: self.creations.wrapping_mul(2).wrapping_sub(children),
            ephemeral_owner: self.owner,
            data_bytes: i32::try_from(bytes_of(&self.data)).unwrap_or(i32::MAX),
            children,
            pzxid: self.pzxid,
        }
    }
}

/// How a node is to be created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Mode {
    /// The session the node lives with; 0 for a persistent one.
    pub(super) owner: i64,
    pub(super) sequential: bool,
}

#[derive(Debug)]
pub(super) struct Tree {
    nodes: HashMap<String, Node>,
    ephemerals: HashMap<i64, BTreeSet<String>>,
    data_bytes: usize,
    zxid: i64,
}

impl Tree {
    /// Transactions count on from `zxid`.
    pub(super) fn new(zxid: i64) -> Tree {
        let root = Node { children: BTreeSet::from(["zookeeper".to_owned()]), ..Node::default() };
        let nodes = HashMap::from([("/".to_owned(), root), ("/zookeeper".to_owned(), Node::default())]);
        Tree { nodes, ephemerals: HashMap::new(), data_bytes: 0, zxid }
    }

    /// The last transaction.
    pub(super) fn zxid(&self) -> i64 {
        self.zxid
    }

    /// The path it got: with `mode.sequential` it is the given one and ten digits.
    pub(super) fn create(
        &mut self,
        path: &str,
        data: Option<Bytes>,
        mode: Mode,
        now_ms: i64,
    ) -> Result<(String, Stat), Code> {
        // A sequential node's name may consist of its number alone.
        check_path(if mode.sequential { path.strip_suffix('/').unwrap_or(path) } else { path })?;
        let above = self.nodes.get(parent_of(path)).ok_or(Code::NoNode)?;
        let path = if mode.sequential { format!("{path}{:010}", above.creations) } else { path.to_owned() };
        if self.nodes.contains_key(&path) {
            return Err(Code::NodeExists);
        }
        if above.owner != 0 {
            return Err(Code::NoChildrenForEphemerals);
        }
        self.admit(1, 0, bytes_of(&data))?;
        self.zxid += 1;
        let zxid = self.zxid;
        let node = Node {
            data,
            czxid: zxid,
            mzxid: zxid,
            pzxid: zxid,
            ctime_ms: now_ms,
            mtime_ms: now_ms,
            owner: mode.owner,
            ..Node::default()
        };
        let stat = node.stat();
        let above = self.nodes.get_mut(parent_of(&path)).expect("looked up above");
        above.children.insert(name_of(&path).to_owned());
        above.creations = above.creations.wrapping_add(1);
        above.pzxid = zxid;
        if mode.owner != 0 {
            self.ephemerals.entry(mode.owner).or_default().insert(path.clone());
        }
        self.nodes.insert(path.clone(), node);
        Ok((path, stat))
    }

    /// `version` -1 matches any.
    pub(super) fn delete(&mut self, path: &str, version: i32) -> Result<(), Code> {
        check_path(path)?;
        let node = self.nodes.get(path).ok_or(Code::NoNode)?;
        if version != -1 && version != node.version {
            return Err(Code::BadVersion);
        }
        if !node.children.is_empty() {
            return Err(Code::NotEmpty);
        }
        self.zxid += 1;
        self.remove(path);
        Ok(())
    }

    /// Removes everything a session held, as one transaction; the paths it held.
    pub(super) fn delete_ephemerals(&mut self, owner: i64) -> BTreeSet<String> {
        let paths = self.ephemerals.remove(&owner).unwrap_or_default();
        if !paths.is_empty() {
            self.zxid += 1;
        }
        paths.iter().for_each(|path| self.remove(path));
        paths
    }

    fn remove(&mut self, path: &str) {
        let Some(node) = self.nodes.remove(path) else { return };
        self.data_bytes -= bytes_of(&node.data);
        if let Some(held) = self.ephemerals.get_mut(&node.owner) {
            held.remove(path);
        }
        let above = self.nodes.get_mut(parent_of(path)).expect("a node's parent outlives it");
        above.children.remove(name_of(path));
        above.pzxid = self.zxid;
    }

    pub(super) fn set(&mut self, path: &str, data: Option<Bytes>, version: i32, now_ms: i64) -> Result<Stat, Code> {
        check_path_or_root(path)?;
        let node = self.nodes.get(path).ok_or(Code::NoNode)?;
        if version != -1 && version != node.version {
            return Err(Code::BadVersion);
        }
        self.admit(0, bytes_of(&node.data), bytes_of(&data))?;
        self.zxid += 1;
        let node = self.nodes.get_mut(path).expect("looked up above");
        node.data = data;
        node.mzxid = self.zxid;
        node.mtime_ms = now_ms;
        node.version = node.version.wrapping_add(1);
        Ok(node.stat())
    }

    /// Counts data that replaces other data, or refuses it, or the new nodes that come with it.
    fn admit(&mut self, nodes: usize, released_bytes: usize, data_bytes: usize) -> Result<(), Code> {
        let total_bytes = self.data_bytes - released_bytes + data_bytes;
        if self.nodes.len() + nodes > NODES_MAX || total_bytes > DATA_BYTES_MAX {
            return Err(Code::SystemError);
        }
        self.data_bytes = total_bytes;
        Ok(())
    }

    pub(super) fn stat(&self, path: &str) -> Result<Stat, Code> {
        check_path_or_root(path)?;
        self.nodes.get(path).map(Node::stat).ok_or(Code::NoNode)
    }

    pub(super) fn data(&self, path: &str) -> Result<(Option<Bytes>, Stat), Code> {
        check_path_or_root(path)?;
        self.nodes.get(path).map(|node| (node.data.clone(), node.stat())).ok_or(Code::NoNode)
    }

    pub(super) fn children(&self, path: &str) -> Result<(Vec<String>, Stat), Code> {
        check_path_or_root(path)?;
        let node = self.nodes.get(path).ok_or(Code::NoNode)?;
        Ok((node.children.iter().cloned().collect(), node.stat()))
    }

    pub(super) fn ephemerals(&self, owner: i64, prefix: &str) -> Vec<String> {
        let held = self.ephemerals.get(&owner).into_iter().flatten();
        held.filter(|path| path.starts_with(prefix)).cloned().collect()
    }
}

fn bytes_of(data: &Option<Bytes>) -> usize {
    data.as_ref().map_or(0, Bytes::len)
}

/// The path of the node above, `/` for the first level.
pub(super) fn parent_of(path: &str) -> &str {
    match parent(path) {
        "" => "/",
        above => above,
    }
}

fn name_of(path: &str) -> &str {
    path.rsplit_once('/').map_or(path, |(_, name)| name)
}

fn check_path_or_root(path: &str) -> Result<(), Code> {
    if path == "/" { Ok(()) } else { check_path(path) }
}

fn check_path(path: &str) -> Result<(), Code> {
    let elements = path.strip_prefix('/').ok_or(Code::BadArguments)?;
    let good = |element: &str| !matches!(element, "" | "." | "..") && element.chars().all(path_character);
    if elements.split('/').all(good) { Ok(()) } else { Err(Code::BadArguments) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PERSISTENT: Mode = Mode { owner: 0, sequential: false };

    fn tree() -> Tree {
        Tree::new(100)
    }

    fn create(tree: &mut Tree, path: &str) -> Result<String, Code> {
        tree.create(path, None, PERSISTENT, 5).map(|(path, _)| path)
    }

    #[test]
    fn a_node_needs_its_parent_and_a_proper_path() {
        let mut tree = tree();
        assert_eq!(create(&mut tree, "/a/b"), Err(Code::NoNode));
        assert_eq!(create(&mut tree, "/a"), Ok("/a".to_owned()));
        assert_eq!(create(&mut tree, "/a"), Err(Code::NodeExists));
        assert_eq!(create(&mut tree, "/a/b"), Ok("/a/b".to_owned()));
        for bad in ["", "/", "a", "/a/", "/a//b", "/a/..", "/./a", "/a\u{1}", "/\u{1f980}"] {
            assert_eq!(create(&mut tree, bad), Err(Code::BadArguments), "{bad:?}");
        }
        assert_eq!(tree.delete("/a", -1), Err(Code::NotEmpty));
        assert_eq!(tree.delete("/a/b", 1), Err(Code::BadVersion));
        assert_eq!(tree.delete("/a/b", 0), Ok(()));
        assert_eq!(tree.delete("/a/b", -1), Err(Code::NoNode));
        assert_eq!(tree.delete("/", -1), Err(Code::BadArguments));
    }

    #[test]
    fn versions_and_transactions_are_counted_as_zookeeper_does() {
        let mut tree = tree();
        create(&mut tree, "/a").unwrap();
        create(&mut tree, "/a/x").unwrap();
        create(&mut tree, "/a/y").unwrap();
        tree.delete("/a/x", -1).unwrap();
        tree.set("/a", Some(Bytes::from_static(b"abc")), 0, 9).unwrap();
        assert_eq!(tree.set("/a", None, 0, 9), Err(Code::BadVersion));
        let expected = Stat {
            czxid: 101,
            mzxid: 105,
            ctime_ms: 5,
            mtime_ms: 9,
            version: 1,
            cversion: 3,
            ephemeral_owner: 0,
            data_bytes: 3,
            children: 1,
            pzxid: 104,
        };
        assert_eq!(tree.stat("/a"), Ok(expected));
        assert_eq!(tree.zxid(), 105);
    }

    #[test]
    fn sequential_names_count_creations() {
        let mut tree = tree();
        create(&mut tree, "/q").unwrap();
        let mode = Mode { owner: 0, sequential: true };
        let mut next = |prefix| tree.create(prefix, None, mode, 0).map(|(path, _)| path);
        assert_eq!(next("/q/n-").unwrap(), "/q/n-0000000000");
        assert_eq!(next("/q/n-").unwrap(), "/q/n-0000000001");
        assert_eq!(next("/q/").unwrap(), "/q/0000000002");
        tree.delete("/q/n-0000000001", -1).unwrap();
        assert_eq!(tree.create("/q/n-", None, mode, 0).unwrap().0, "/q/n-0000000003");
    }

    #[test]
    fn ephemerals_have_no_children_and_go_with_their_session() {
        let mut tree = tree();
        create(&mut tree, "/a").unwrap();
        let mode = Mode { owner: 7, sequential: false };
        tree.create("/a/e", None, mode, 0).unwrap();
        tree.create("/f", None, mode, 0).unwrap();
        assert_eq!(create(&mut tree, "/a/e/x"), Err(Code::NoChildrenForEphemerals));
        assert_eq!(tree.ephemerals(7, "/a"), ["/a/e"]);
        // Deleted and created by another session: it belongs to that one.
        tree.delete("/f", -1).unwrap();
        tree.create("/f", None, Mode { owner: 8, sequential: false }, 0).unwrap();
        assert_eq!(tree.delete_ephemerals(7), BTreeSet::from(["/a/e".to_owned()]));
        assert_eq!((tree.stat("/a/e"), tree.stat("/f").is_ok()), (Err(Code::NoNode), true));
        assert_eq!(tree.stat("/a").unwrap().pzxid, tree.zxid());
    }

    #[test]
    fn data_is_bounded_and_given_back() {
        let mut tree = tree();
        let megabyte = Bytes::from(vec![0; 1024 * 1024]);
        let fits = DATA_BYTES_MAX / megabyte.len();
        for i in 0..fits {
            tree.create(&format!("/{i}"), Some(megabyte.clone()), PERSISTENT, 0).unwrap();
        }
        assert_eq!(tree.create("/x", Some(megabyte.clone()), PERSISTENT, 0), Err(Code::SystemError));
        assert!(tree.set("/0", Some(megabyte.clone()), -1, 0).is_ok());
        assert_eq!(tree.set("/0", Some([&megabyte[..], b"x"].concat().into()), -1, 0), Err(Code::SystemError));
        tree.delete("/0", -1).unwrap();
        assert!(tree.create("/x", Some(megabyte), PERSISTENT, 0).is_ok());
    }
}
