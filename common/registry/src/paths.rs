//! Every ZooKeeper path and value of the system, written and read in this one file.
//!
//! Clients that will not be changed read these nodes with strict parsers (zookeeper, "4. Naming rules"): a child of
//! `ids` that is no integer, or a third member in a topic's JSON, makes them lose the cluster. So nothing is added.

use metaq_types::{BrokerId, Offset, SlaveId, TopicName};

/// What a node registers as; a master and its slaves share one broker id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    Master,
    Slave(SlaveId),
}

/// The three trees in which a broker announces a topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Tree {
    /// Read by the Python, Ruby and .NET clients and by Java clients before 1.4.3: a plain number.
    Topics,
    /// Read by producers.
    Publish,
    /// Read by consumers and slaves.
    Subscribe,
}

impl Tree {
    /// In the order in which a broker writes them.
    pub const ALL: [Tree; 3] = [Tree::Topics, Tree::Publish, Tree::Subscribe];

    fn node(self) -> &'static str {
        match self {
            Tree::Topics => "topics",
            Tree::Publish => "topics-pub",
            Tree::Subscribe => "topics-sub",
        }
    }
}

/// The paths under one `zk.zkRoot`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Paths {
    root: String,
}

impl Paths {
    /// `root` is `zk.zkRoot` as configured: a leading `/` is added when absent, one trailing `/` is dropped.
    pub fn new(root: &str) -> Paths {
        let root = root.strip_suffix('/').unwrap_or(root);
        let slash = if root.is_empty() || root.starts_with('/') { "" } else { "/" };
        Paths { root: format!("{slash}{root}") }
    }

    /// Consumer groups; written by consumers only.
    pub fn consumers(&self) -> String {
        format!("{}/consumers", self.root)
    }

    /// What a group keeps: `ids` its members, `owners` and `offsets` a node a partition below one a topic.
    pub fn group(&self, group: &str, kind: &str) -> String {
        format!("{}/consumers/{group}/{kind}", self.root)
    }

    /// Everything brokers write lies below this.
    pub fn brokers(&self) -> String {
        format!("{}/brokers", self.root)
    }

    pub fn ids(&self) -> String {
        format!("{}/brokers/ids", self.root)
    }

    /// Persistent; holds the master's URI for clients before 1.4.
    pub fn broker(&self, id: BrokerId) -> String {
        format!("{}/brokers/ids/{id}", self.root)
    }

    pub fn master(&self, id: BrokerId) -> String {
        format!("{}/brokers/ids/{id}/master", self.root)
    }

    pub fn checksum(&self, id: BrokerId) -> String {
        format!("{}/brokers/ids/{id}/master_config_checksum", self.root)
    }

    /// The node whose holder is this broker: `master` or `slaveK`.
    pub fn holder(&self, id: BrokerId, role: Role) -> String {
        match role {
            Role::Master => self.master(id),
            Role::Slave(slave) => format!("{}/brokers/ids/{id}/slave{slave}", self.root),
        }
    }

    /// Parent of the fences; beside what the original writes, where no client looks.
    pub fn fences(&self) -> String {
        format!("{}/fences", self.root)
    }

    /// Persistent: the newest reign of a broker id.
    pub fn fence(&self, id: BrokerId) -> String {
        format!("{}/fences/{id}", self.root)
    }

    /// Ephemeral: the session of the master that may acknowledge.
    pub fn seat(&self, id: BrokerId) -> String {
        format!("{}/fences/{id}/seat", self.root)
    }

    pub fn tree(&self, tree: Tree) -> String {
        format!("{}/brokers/{}", self.root, tree.node())
    }

    /// Persistent parent of what brokers say about one topic.
    pub fn topic(&self, tree: Tree, topic: &str) -> String {
        format!("{}/brokers/{}/{topic}", self.root, tree.node())
    }

    pub fn registration(&self, tree: Tree, topic: &str, id: BrokerId, role: Role) -> String {
        format!("{}/brokers/{}/{topic}/{}", self.root, tree.node(), member(id, role))
    }
}

/// The path of the node above; empty for a child of the root.
pub fn parent(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(parent, _)| parent)
}

/// How a broker is called in a topic's tree: `0-m`, `0-s3`.
pub fn member(id: BrokerId, role: Role) -> String {
    match role {
        Role::Master => format!("{id}-m"),
        Role::Slave(slave) => format!("{id}-s{slave}"),
    }
}

/// The broker a child of a topic's tree stands for; `None` for what is not ours to understand.
pub fn parse_member(name: &str) -> Option<(BrokerId, Role)> {
    let (id, role) = name.split_once('-')?;
    let id = BrokerId::new(number(id)?).ok()?;
    match role.strip_prefix('s') {
        Some(slave) => Some((id, Role::Slave(SlaveId::new(number(slave)?).ok()?))),
        None => (role == "m").then_some((id, Role::Master)),
    }
}

/// The broker id a child of `ids` names.
pub fn parse_broker(name: &str) -> Option<BrokerId> {
    BrokerId::new(number(name)?).ok()
}

/// The partition a child of a group's `owners/T` or `offsets/T` names: `0-3` is number 3 of broker 0.
pub fn parse_partition(name: &str) -> Option<(BrokerId, u32)> {
    let (id, number_text) = name.split_once('-')?;
    let partition = number(number_text)?;
    Some((BrokerId::new(number(id)?).ok()?, i32::try_from(partition).ok()?.unsigned_abs()))
}

/// The offset in a consumer's `msgId-offset`, or in the bare `offset` of clients before 1.4. Ids are negative in
/// practice, so the last `-` counts, unless the text begins with it.
pub fn parse_stored_offset(data: &[u8]) -> Option<Offset> {
    let text = std::str::from_utf8(data).ok()?;
    let offset = match text.rsplit_once('-') {
        Some((id, offset)) if !id.is_empty() => {
            id.parse::<i64>().ok()?;
            offset
        }
        _ => text,
    };
    Offset::from_wire(number(offset)?)
}

/// The slave a child of `ids/B` names.
pub fn parse_slave(name: &str) -> Option<SlaveId> {
    SlaveId::new(number(name.strip_prefix("slave")?)?).ok()
}

/// What a broker writes about one of its topics.
pub fn registration_value(tree: Tree, id: BrokerId, role: Role, partitions: u32) -> String {
    match tree {
        Tree::Topics => partitions.to_string(),
        Tree::Publish | Tree::Subscribe => {
            format!("{{\"numParts\":{partitions},\"broker\":\"{}\"}}", member(id, role))
        }
    }
}

/// The partition count in a topic node of any tree.
pub fn parse_partitions(tree: Tree, data: &[u8]) -> Option<u32> {
    match tree {
        Tree::Topics => std::str::from_utf8(data).ok()?.trim().parse().ok(),
        Tree::Publish | Tree::Subscribe => {
            let value: serde_json::Value = serde_json::from_slice(data).ok()?;
            value.get("numParts")?.as_u64()?.try_into().ok()
        }
    }
}

/// The checksum of `server.ini` as published: decimal, unsigned.
pub fn checksum_value(checksum: u32) -> String {
    checksum.to_string()
}

pub fn parse_checksum(data: &[u8]) -> Option<u32> {
    std::str::from_utf8(data).ok()?.trim().parse().ok()
}

/// Whether ZooKeeper takes this topic as a path element. It refuses control characters, the private use area, the
/// specials at the end of the basic plane and, as it looks at UTF-16 units, every character beyond that plane.
pub fn publishable(topic: &TopicName) -> bool {
    topic.chars().all(path_character)
}

/// ZooKeeper's rule for one character of a path.
pub(crate) fn path_character(character: char) -> bool {
    !matches!(u32::from(character), 0..=0x1f | 0x7f..=0x9f | 0xd800..=0xf8ff | 0xfff0..)
}

fn number(text: &str) -> Option<i64> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(number: i64) -> BrokerId {
        BrokerId::new(number).unwrap()
    }

    fn slave(number: i64) -> Role {
        Role::Slave(SlaveId::new(number).unwrap())
    }

    #[test]
    fn the_root_is_normalised_as_the_original_does() {
        let cases = [("/meta", "/meta/brokers/ids"), ("meta", "/meta/brokers/ids"), ("/a/b/", "/a/b/brokers/ids")];
        for (root, ids) in cases.into_iter().chain([("/", "/brokers/ids"), ("", "/brokers/ids")]) {
            assert_eq!(Paths::new(root).ids(), ids, "{root:?}");
        }
    }

    #[test]
    fn members_read_back_and_strangers_are_ignored() {
        for (name, id, role) in [("0-m", id(0), Role::Master), ("1023-s7", id(1023), slave(7))] {
            assert_eq!(member(id, role), name);
            assert_eq!(parse_member(name), Some((id, role)));
        }
        for bad in ["", "0", "0-", "0-x", "0-s", "0-s-1", "1024-m", "-1-m", "a-m", "0-m1", "+1-m"] {
            assert_eq!(parse_member(bad), None, "{bad:?}");
        }
        assert_eq!(parse_slave("slave12"), SlaveId::new(12).ok());
        assert_eq!(parse_slave("slave"), None);
        assert_eq!(parse_slave("slave-1"), None);
        assert_eq!(parse_broker("12"), Some(id(12)));
        assert_eq!(parse_broker("x"), None);
    }

    #[test]
    fn values_read_back_in_any_member_order() {
        for tree in Tree::ALL {
            let value = registration_value(tree, id(3), slave(0), 12);
            assert_eq!(parse_partitions(tree, value.as_bytes()), Some(12));
        }
        assert_eq!(parse_partitions(Tree::Publish, br#" { "broker":"0-m", "numParts": 4 } "#), Some(4));
        assert_eq!(parse_partitions(Tree::Subscribe, br#"{"numParts":4}"#), Some(4));
        assert_eq!(parse_partitions(Tree::Publish, br#"{"numParts":-4}"#), None);
        assert_eq!(parse_partitions(Tree::Publish, b"4"), None);
        assert_eq!(parse_checksum(checksum_value(u32::MAX).as_bytes()), Some(u32::MAX));
        assert_eq!(parse_checksum(b"-1"), None);
    }

    #[test]
    fn what_consumers_write_is_read_as_they_read_it() {
        let places = [("-5468931697623957504-155", 155), ("-1-0", 0), ("17-170", 170), ("170", 170), ("0", 0)];
        for (text, offset) in places.into_iter().chain([("0-9223372036854775807", i64::MAX as u64)]) {
            assert_eq!(parse_stored_offset(text.as_bytes()).map(Offset::get), Some(offset), "{text}");
        }
        for bad in
            [&b""[..], b"-", b"-5", b"1-", b"x-5", b"5-x", b"1-+5", b" 5", b"5\n", b"\xff", b"9223372036854775808"]
        {
            assert_eq!(parse_stored_offset(bad), None, "{bad:?}");
        }
        assert_eq!(parse_partition("0-3"), Some((id(0), 3)));
        for bad in ["", "0", "0-", "-1", "0-m", "1024-0", "0-1-2", "0-2147483648"] {
            assert_eq!(parse_partition(bad), None, "{bad}");
        }
    }

    #[test]
    fn topics_zookeeper_refuses_are_known_beforehand() {
        for good in ["test", "app-*", "订单", "a.b", "日本語"] {
            assert!(publishable(&TopicName::new(good).unwrap()), "{good}");
        }
        for bad in ["\u{1f980}", "\u{e000}x", "x\u{fff9}"] {
            assert!(!publishable(&TopicName::new(bad).unwrap()), "{bad:?}");
        }
    }
}
