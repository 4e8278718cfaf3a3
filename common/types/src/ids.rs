use crate::limits::{BROKER_ID_MAX, PARTITIONS_PER_TOPIC_MAX, TOPIC_NAME_BYTES_MAX};
use std::borrow::Borrow;
use std::fmt;
use std::ops::Deref;
use std::str::FromStr;
use std::sync::Arc;

/// The name of a topic: part of a header line, of a directory's name and of a ZooKeeper path.
///
/// Letters, digits and every printable character but `/`, blanks and controls; not `.` or `..`; 1 to 200 bytes of
/// UTF-8. A name with `*` is a pattern in `server.ini` and an ordinary topic under its literal name.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TopicName(Arc<str>);

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TopicNameError {
    Empty,
    TooLong { bytes: usize },
    Dots,
    Character { character: char },
}

impl TopicName {
    pub fn new(name: &str) -> Result<TopicName, TopicNameError> {
        if name.is_empty() {
            return Err(TopicNameError::Empty);
        }
        if name.len() > TOPIC_NAME_BYTES_MAX {
            return Err(TopicNameError::TooLong { bytes: name.len() });
        }
        if name == "." || name == ".." {
            return Err(TopicNameError::Dots);
        }
        match name.chars().find(|c| c.is_whitespace() || c.is_control() || matches!(c, '/' | '\u{fffd}' | '\u{feff}')) {
            Some(character) => Err(TopicNameError::Character { character }),
            None => Ok(TopicName(name.into())),
        }
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Deref for TopicName {
    type Target = str;
    fn deref(&self) -> &str {
        &self.0
    }
}

impl Borrow<str> for TopicName {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for TopicName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for TopicName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

impl fmt::Display for TopicNameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TopicNameError::Empty => write!(f, "a topic name must not be empty"),
            TopicNameError::TooLong { bytes } => {
                write!(f, "a topic name of {bytes} bytes is longer than {TOPIC_NAME_BYTES_MAX}")
            }
            TopicNameError::Dots => write!(f, "a topic cannot be called '.' or '..'"),
            TopicNameError::Character { character } => {
                write!(f, "a topic name cannot contain '{}'", character.escape_debug())
            }
        }
    }
}

impl std::error::Error for TopicNameError {}

/// One partition of a topic; shown as its directory is called, `topic-number`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PartitionId {
    pub topic: TopicName,
    pub number: u32,
}

/// The topic whose one partition is the transaction journal. It lies where no topic's partitions do, and is no topic to
/// anybody but the nodes of one broker id.
pub const JOURNAL_TOPIC: &str = "$journal";

impl PartitionId {
    /// Of the transaction journal.
    pub fn journal() -> PartitionId {
        PartitionId { topic: TopicName(JOURNAL_TOPIC.into()), number: 0 }
    }

    pub fn is_journal(&self) -> bool {
        &*self.topic == JOURNAL_TOPIC
    }
}

/// Why a directory name is not that of a partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PartitionNameError {
    NoDash,
    Number,
    Topic(TopicNameError),
}

impl FromStr for PartitionId {
    type Err = PartitionNameError;

    /// Splits at the last `-` (storage, "1. Directory layout").
    fn from_str(name: &str) -> Result<PartitionId, PartitionNameError> {
        let (topic, number) = name.rsplit_once('-').ok_or(PartitionNameError::NoDash)?;
        let number = number
            .bytes()
            .all(|b| b.is_ascii_digit())
            .then(|| number.parse::<u32>().ok())
            .flatten()
            .filter(|n| *n <= i32::MAX as u32)
            .ok_or(PartitionNameError::Number)?;
        Ok(PartitionId { topic: TopicName::new(topic).map_err(PartitionNameError::Topic)?, number })
    }
}

impl fmt::Display for PartitionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.topic, self.number)
    }
}

impl fmt::Display for PartitionNameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PartitionNameError::NoDash => write!(f, "no '-' before a partition number"),
            PartitionNameError::Number => {
                write!(f, "what follows the last '-' is not a partition number (0 to {})", i32::MAX)
            }
            PartitionNameError::Topic(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for PartitionNameError {}

const _: () = assert!(PARTITIONS_PER_TOPIC_MAX <= i32::MAX as u32);

/// A number outside its range; says the name, the value and the range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdRangeError {
    pub name: &'static str,
    pub value: i64,
    pub max: i64,
}

impl fmt::Display for IdRangeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} is not within 0..{}", self.name, self.value, self.max)
    }
}

impl std::error::Error for IdRangeError {}

/// `brokerId`: unique under one ZooKeeper root, shared by a master and its slaves; 0 to 1023, as it is part of
/// message ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BrokerId(u16);

impl BrokerId {
    pub fn new(value: i64) -> Result<BrokerId, IdRangeError> {
        match u16::try_from(value) {
            Ok(id) if u32::from(id) <= BROKER_ID_MAX => Ok(BrokerId(id)),
            _ => Err(IdRangeError { name: "brokerId", value, max: BROKER_ID_MAX.into() }),
        }
    }

    pub const fn get(self) -> u16 {
        self.0
    }
}

impl fmt::Display for BrokerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// `slaveId`: tells the slaves of one broker id apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SlaveId(u32);

impl SlaveId {
    pub fn new(value: i64) -> Result<SlaveId, IdRangeError> {
        match u32::try_from(value) {
            Ok(id) if id <= i32::MAX as u32 => Ok(SlaveId(id)),
            _ => Err(IdRangeError { name: "slaveId", value, max: i32::MAX.into() }),
        }
    }

    pub const fn get(self) -> u32 {
        self.0
    }
}

impl fmt::Display for SlaveId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The id of a stored message. The original's are often negative; ours are positive and grow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MessageId(pub i64);

impl fmt::Display for MessageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A request's tag, copied into its answer (wire-protocol, "1.5 Opaque"): signed, and usually negative.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Opaque(pub i32);

impl Opaque {
    /// Stands in an answer to a request that carried none.
    pub const NONE: Opaque = Opaque(i32::MAX);
}

impl fmt::Display for Opaque {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn topic_names_are_safe_as_directories_and_paths() {
        for good in ["test", "meta-test", "a.b", "app-*", "订单", "x_1", "*", "test-"] {
            assert!(TopicName::new(good).is_ok(), "{good}");
        }
        let long = "x".repeat(201);
        for bad in ["", ".", "..", "a/b", "../evil", "a b", "a\tb", "a\u{0}b", "a\u{3000}b", "\u{fffd}", &long] {
            assert!(TopicName::new(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_partition_directory_is_split_at_its_last_dash() {
        let cases = [("meta-test-0", "meta-test", 0), ("a-b-12", "a-b", 12), ("test--1", "test-", 1)];
        for (name, topic, number) in cases {
            let id: PartitionId = name.parse().unwrap();
            assert_eq!((id.topic.as_str(), id.number, id.to_string().as_str()), (topic, number, name));
        }
        for bad in ["transactions", "foo-bar", "x-", "test-0x", "test-+1", "-3", "t-4294967296"] {
            assert!(bad.parse::<PartitionId>().is_err(), "{bad}");
        }
    }

    #[test]
    fn ids_name_their_range() {
        assert_eq!(BrokerId::new(1023).unwrap().get(), 1023);
        assert_eq!(BrokerId::new(1024).unwrap_err().to_string(), "brokerId 1024 is not within 0..1023");
        assert!(BrokerId::new(-1).is_err());
        assert!(SlaveId::new(-1).is_err());
    }
}
