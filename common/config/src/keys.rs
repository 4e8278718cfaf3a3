//! Every key of the configuration files, declared once. The readers, the check for unknown keys, `settings()` and the
//! test of the shipped files all use these.

use metaq_types::limits::{
    ACK_QUORUM_MAX, BROKER_ID_MAX, PARTITIONS_PER_TOPIC_MAX, SEGMENT_BYTES_MAX, SEGMENT_BYTES_MIN, TRANSFER_BYTES_MAX,
    TRANSFER_BYTES_MIN,
};

/// The file and section a key stands in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Section {
    /// `[system]` of server.ini.
    System,
    /// `[zookeeper]` of server.ini.
    ZooKeeper,
    /// async_slave.properties, which has no sections.
    Slave,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A whole number within `min..=max`; see `number.rs` for what may be written.
    Integer { min: i64, max: i64 },
    /// `true` or `false`.
    Bool,
    /// Text, checked where its type says so.
    Text,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    /// Must be written; the example goes into the error.
    Required { example: &'static str },
    /// What stands in its place when it is absent or blank; empty: nothing does.
    Default(&'static str),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key {
    pub name: &'static str,
    pub section: Section,
    pub kind: Kind,
    pub presence: Presence,
    /// Of the number, as in "ms"; empty for counts, names and switches.
    pub unit: &'static str,
    pub meaning: &'static str,
    /// `[topic=NAME]` may set its own value; without one it takes that of `[system]`.
    pub per_topic: bool,
    /// A slave takes this over from its master's file (`autoSyncMasterConfig`), else it keeps its own.
    pub shared_with_slave: bool,
    /// What `[system]` says takes effect at a reload as well, not only what a topic says.
    pub reloadable: bool,
    /// Checked, so that a file says nothing absurd, but nothing here depends on it.
    pub without_effect: bool,
}

impl Key {
    const fn new(section: Section, name: &'static str, kind: Kind, presence: Presence) -> Key {
        Key {
            name,
            section,
            kind,
            presence,
            unit: "",
            meaning: "",
            per_topic: false,
            shared_with_slave: false,
            reloadable: false,
            without_effect: false,
        }
    }

    const fn system(name: &'static str, kind: Kind, presence: Presence) -> Key {
        Key::new(Section::System, name, kind, presence)
    }

    const fn zookeeper(name: &'static str, kind: Kind, presence: Presence) -> Key {
        Key::new(Section::ZooKeeper, name, kind, presence)
    }

    const fn slave(name: &'static str, kind: Kind, presence: Presence) -> Key {
        Key::new(Section::Slave, name, kind, presence)
    }

    const fn unit(self, unit: &'static str) -> Key {
        Key { unit, ..self }
    }

    const fn means(self, meaning: &'static str) -> Key {
        Key { meaning, ..self }
    }

    const fn per_topic(self) -> Key {
        Key { per_topic: true, ..self }
    }

    const fn shared(self) -> Key {
        Key { shared_with_slave: true, ..self }
    }

    const fn reloadable(self) -> Key {
        Key { reloadable: true, ..self }
    }

    const fn without_effect(self) -> Key {
        Key { without_effect: true, ..self }
    }
}

/// Declares each key and the list of all of them from one text.
macro_rules! keys {
    ($(#[$doc:meta])* $list:ident: $($name:ident = $key:expr;)+) => {
        $(pub static $name: Key = $key;)+
        $(#[$doc])*
        pub static $list: &[&Key] = &[$(&$name),+];
    };
}

const fn within(min: i64, max: i64) -> Kind {
    Kind::Integer { min, max }
}

const INT_MAX: i64 = i32::MAX as i64;
const DAY_MS: i64 = 24 * 3600 * 1000;
/// More than any disk has, and still far from an overflow.
const DISK_BYTES_MAX: i64 = 1 << 50;

use Presence::{Default, Required};

keys! {
    /// Keys of `[system]`; those with `per_topic` may stand in `[topic=NAME]` as well.
    SYSTEM:
    BROKER_ID = Key::system("brokerId", within(0, BROKER_ID_MAX as i64), Required { example: "0" })
        .means("which broker this is: unique under one ZooKeeper root, the same for a master and its slaves");
    HOST_NAME = Key::system("hostName", Kind::Text, Default(""))
        .means("host name or address that clients are told; empty: the address used to reach ZooKeeper");
    BIND_HOST = Key::system("bindHost", Kind::Text, Default("0.0.0.0"))
        .means("address to listen on; 0.0.0.0: every interface of IPv4, and of IPv6 when an IPv6 address is advertised");
    SERVER_PORT = Key::system("serverPort", within(0, 65_535), Default("8123"))
        .means("TCP port for clients and slaves; 0: any free port");
    DASHBOARD_HTTP_PORT = Key::system("dashboardHttpPort", within(0, 65_535), Default("8120"))
        .means("port of the web console and metrics; 0: off");
    DASHBOARD_HTTP_HOST = Key::system("dashboardHttpHost", Kind::Text, Default("127.0.0.1"))
        .means("address that the web console and metrics listen on; 0.0.0.0: every interface");
    TLS_PORT = Key::system("tlsPort", within(0, 65_535), Default("0"))
        .means("TCP port for clients that speak TLS; 0: off");
    TLS_CERT_FILE = Key::system("tlsCertFile", Kind::Text, Default(""))
        .means("this node's certificate, in PEM");
    TLS_KEY_FILE = Key::system("tlsKeyFile", Kind::Text, Default(""))
        .means("the private key of tlsCertFile, in PEM");
    TLS_CA_FILE = Key::system("tlsCaFile", Kind::Text, Default(""))
        .means("the certificate authorities whose nodes are trusted, in PEM");
    TLS_CLIENT_AUTH = Key::system("tlsClientAuth", Kind::Text, Default("none"))
        .means("whether clients on tlsPort must show a certificate: none or required");
    REPLICATION_TRANSPORT = Key::system("replicationTransport", Kind::Text, Default("auto"))
        .means("how slaves reach their master: auto, quic or tcp");
    SLAVE_LAG_BOUND_IN_MILLS = Key::system("slaveMaxDelayInMills", within(1, 60_000), Default("500")).unit("ms").shared()
        .means("a slave that is further behind is reported as lagging by its master");
    SLAVE_LAG_ACTION = Key::system("slaveLagAction", Kind::Text, Default("report")).shared()
        .means("what a lagging slave leads to: report or throttle");
    DATA_PATH = Key::system("dataPath", Kind::Text, Default("~/meta")).per_topic()
        .means("directory of the partitions");
    DATA_LOG_PATH = Key::system("dataLogPath", Kind::Text, Default(""))
        .means("directory of the transaction journal; empty: dataPath");
    MIN_FREE_DISK_BYTES = Key::system("minFreeDiskBytes", within(0, DISK_BYTES_MAX), Default("0")).unit("bytes")
        .means("puts are refused while the file system of a partition has less free space; 0: until it is full");
    NUM_PARTITIONS =
        Key::system("numPartitions", within(1, PARTITIONS_PER_TOPIC_MAX as i64), Required { example: "1" })
        .per_topic().shared()
        .means("partitions of a topic");
    UNFLUSH_THRESHOLD = Key::system("unflushThreshold", within(-INT_MAX - 1, INT_MAX), Required { example: "0" })
        .unit("messages").per_topic().shared()
        .means("messages that may wait for the disk; 0 or less: each is on the disk before it is answered");
    UNFLUSH_INTERVAL = Key::system("unflushInterval", within(0, INT_MAX), Required { example: "10000" })
        .unit("ms").per_topic().shared()
        .means("how long a message may wait for the disk when unflushThreshold is above 0; 0: no longer than a write");
    ACK_QUORUM = Key::system("ackQuorum", within(1, ACK_QUORUM_MAX as i64), Default("1")).unit("members")
        .per_topic().shared().reloadable()
        .means("nodes, the master included, that must hold a message before its put is answered; 1: the master alone");
    ACK_TIMEOUT_IN_MILLS = Key::system("ackTimeoutInMills", within(10, 600_000), Default("2000")).unit("ms")
        .per_topic().shared().reloadable()
        .means("a put that its quorum does not hold after this is answered as unconfirmed");
    ACK_QUORUM_DOWNGRADE = Key::system("ackQuorumDowngrade", Kind::Bool, Default("false"))
        .per_topic().shared().reloadable()
        .means("go on with the members that are there when they are fewer than ackQuorum, instead of refusing puts");
    MAX_SEGMENT_SIZE = Key::system(
        "maxSegmentSize",
        within(SEGMENT_BYTES_MIN as i64, SEGMENT_BYTES_MAX as i64),
        Required { example: "1073741824" },
    )
        .unit("bytes").shared()
        .means("a partition's file is closed and the next begun when it reaches this");
    MAX_TRANSFER_SIZE = Key::system(
        "maxTransferSize",
        within(TRANSFER_BYTES_MIN as i64, TRANSFER_BYTES_MAX as i64),
        Required { example: "1048576" },
    )
        .unit("bytes").shared()
        .means("most bytes in the answer to one get, and so the largest message");
    DELETE_POLICY = Key::system("deletePolicy", Kind::Text, Default("delete,168")).per_topic().shared()
        .means("what becomes of old segments: delete,AGE or archive,AGE[,true]");
    RETENTION_BYTES = Key::system("retentionBytes", within(0, DISK_BYTES_MAX), Default("0")).unit("bytes")
        .per_topic().shared()
        .means("old segments of a partition go while it has more than this, however young they are; 0: only by age");
    DELETE_WHEN = Key::system("deleteWhen", Kind::Text, Default("0 0 6,18 * * ?")).per_topic().shared()
        .means("when deletePolicy is applied: a Quartz cron expression, seconds first");
    ACCEPT_PUBLISH = Key::system("acceptPublish", Kind::Bool, Default("true")).per_topic().shared()
        .means("producers find the topic here");
    ACCEPT_SUBSCRIBE = Key::system("acceptSubscribe", Kind::Bool, Default("true")).per_topic().shared()
        .means("consumers find the topic here");
    STAT = Key::system("stat", Kind::Bool, Default("false")).per_topic().shared()
        .means("counts puts and gets of the topic for the command 'stats realtime'");
    UPDATE_CONSUMER_OFFSETS = Key::system("updateConsumerOffsets", Kind::Bool, Default("false")).shared()
        .means("a consumer that asks beyond the end is led back to the end");
    FLUSH_TX_LOG_AT_COMMIT = Key::system("flushTxLogAtCommit", within(0, 2), Default("1")).shared()
        .means("when the transaction journal is synced: 0 never, 1 before each answer, 2 once a second");
    MAX_CHECKPOINTS = Key::system("maxCheckpoints", within(1, 1000), Default("3")).shared()
        .means("checkpoints of the transaction journal that are kept");
    CHECKPOINT_INTERVAL = Key::system("checkpointInterval", within(1, 365 * DAY_MS), Default("3600000"))
        .unit("ms").shared()
        .means("time between two checkpoints of the transaction journal");
    MAX_TX_TIMEOUT_TIMER_CAPACITY =
        Key::system("maxTxTimeoutTimerCapacity", within(1, 10_000_000), Default("30000")).shared()
        .means("transactions with a timeout that may be open at once");
    MAX_TX_TIMEOUT_IN_SECONDS = Key::system("maxTxTimeoutInSeconds", within(1, INT_MAX), Default("60"))
        .unit("s").shared()
        .means("longest timeout a transaction may ask for");
    GET_PROCESS_THREAD_COUNT = Key::system("getProcessThreadCount", within(1, INT_MAX), Default("")).without_effect()
        .means("the original's threads for gets; no request has a thread of its own here");
    PUT_PROCESS_THREAD_COUNT = Key::system("putProcessThreadCount", within(1, INT_MAX), Default("")).without_effect()
        .means("the original's threads for puts; no request has a thread of its own here");
    QUARTZ_THREAD_COUNT = Key::system("quartzThreadCount", within(1, INT_MAX), Default("5")).without_effect()
        .means("the original's threads for deleteWhen");
    LOAD_MESSAGE_STORES_IN_PARALLEL =
        Key::system("loadMessageStoresInParallel", Kind::Bool, Default("false")).without_effect()
        .means("the original's choice at start; partitions are opened in parallel as it pays");
    APP_CLASS_PATH = Key::system("appClassPath", Kind::Text, Default("")).without_effect()
        .means("the original's directory of Java filter classes, which cannot run here");
}

keys! {
    /// Keys of `[zookeeper]`.
    ZOOKEEPER:
    ZK_CONNECT = Key::zookeeper("zk.zkConnect", Kind::Text, Default("localhost:2181"))
        .means("the ZooKeeper ensemble: host:port,host:port");
    ZK_ENABLE = Key::zookeeper("zk.zkEnable", Kind::Bool, Default("true"))
        .means("false: nothing is registered and no ZooKeeper is needed");
    ZK_ROOT = Key::zookeeper("zk.zkRoot", Kind::Text, Default("/meta"))
        .means("path under which brokers and clients meet");
    ZK_SESSION_TIMEOUT_MS = Key::zookeeper("zk.zkSessionTimeoutMs", within(1, INT_MAX), Default("30000")).unit("ms")
        .means("a broker that is silent for this long is forgotten by ZooKeeper");
    ZK_CONNECTION_TIMEOUT_MS =
        Key::zookeeper("zk.zkConnectionTimeoutMs", within(1, INT_MAX), Default("30000")).unit("ms")
        .means("longest time for one attempt to connect");
    ZK_SYNC_TIME_MS = Key::zookeeper("zk.zkSyncTimeMs", within(0, DAY_MS), Default("5000")).unit("ms")
        .means("time clients are given to notice a change before it is enforced");
}

keys! {
    /// Keys of async_slave.properties.
    SLAVE:
    SLAVE_ID = Key::slave("slaveId", within(0, INT_MAX), Default(""))
        .means("which slave of its broker id this is; --slave-id wins over it");
    SLAVE_GROUP = Key::slave("slaveGroup", Kind::Text, Default(""))
        .means("consumer group the slave appears as; empty: meta-slave-group_ and its slaveId");
    SLAVE_MAX_DELAY_IN_MILLS = Key::slave("slaveMaxDelayInMills", within(1, 60_000), Default("500")).unit("ms")
        .means("longest time the slave may be behind its master, and longest wait of one of its gets");
    SLAVE_CATCH_UP_BYTES_PER_SECOND =
        Key::slave("slaveCatchUpBytesPerSecond", within(0, DISK_BYTES_MAX), Default("0")).unit("bytes")
        .means("what a slave that is further behind than slaveMaxDelayInMills fetches in a second; 0: all it can, and an eighth of the time while producers send");
    AUTO_SYNC_MASTER_CONFIG = Key::slave("autoSyncMasterConfig", Kind::Bool, Default("false"))
        .means("take over the topic sections of the master's server.ini when they change");
}

/// Keys that the original accepts in `[system]` without a meaning, because they name fields of its own.
pub(crate) const MEANINGLESS_SYSTEM: &[&str] = &[
    "closedPartitionMap",
    "configFileChecksum",
    "lastModified",
    "log",
    "path",
    "propertyChangeSupport",
    "serialVersionUID",
    "slaveConfig",
    "topicConfigMap",
    "topics",
    "zkConfig",
];

/// As [`MEANINGLESS_SYSTEM`], for `[zookeeper]`, where every key of `[system]` is meaningless as well.
pub(crate) const MEANINGLESS_ZOOKEEPER: &[&str] = &["serialVersionUID"];

/// As [`MEANINGLESS_SYSTEM`], for `[topic=NAME]`.
pub(crate) const MEANINGLESS_TOPIC: &[&str] = &["topic", "filterClassNames"];

/// The keys a topic section may hold.
pub fn topic_keys() -> impl Iterator<Item = &'static Key> {
    SYSTEM.iter().copied().filter(|key| key.per_topic)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn names_are_declared_once_and_explained() {
        let mut names = HashSet::new();
        for key in [SYSTEM, ZOOKEEPER, SLAVE].concat() {
            let file = key.section == Section::Slave;
            assert!(names.insert((file, key.name)), "{} is declared twice", key.name);
            assert!(!key.meaning.is_empty(), "{} has no meaning", key.name);
            assert!(!key.per_topic || key.section == Section::System, "{}", key.name);
        }
    }

    #[test]
    fn what_tells_nodes_apart_is_never_taken_over_by_a_slave() {
        for name in [
            "brokerId",
            "hostName",
            "bindHost",
            "serverPort",
            "dashboardHttpPort",
            "dashboardHttpHost",
            "dataPath",
            "dataLogPath",
            "tlsPort",
            "tlsCertFile",
            "tlsKeyFile",
            "tlsCaFile",
        ] {
            let key = SYSTEM.iter().find(|key| key.name == name).unwrap();
            assert!(!key.shared_with_slave, "{name}");
        }
    }
}
