use crate::line::unsigned64;
use crate::text::Text;
use std::fmt;
use std::time::Duration;

/// Which part a node plays for its broker id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    Master,
    Slave,
}

/// How safely a node holds what it has taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Level {
    /// In the page cache: a crash of the machine may take it back.
    Os,
    /// On stable storage.
    Fsync,
}

impl Level {
    pub fn word(self) -> &'static str {
        match self {
            Level::Os => "os",
            Level::Fsync => "fsync",
        }
    }

    fn from_word(word: &[u8]) -> Option<Level> {
        [Level::Os, Level::Fsync].into_iter().find(|level| level.word().as_bytes() == word)
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

/// What one node tells another in the trailing words of `version` and in the text of its answer.
///
/// Words that are not known, and known words with a malformed value, are ignored: the original ignores all of them,
/// and a newer node may say more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Greeting {
    pub role: Role,
    pub slave_id: Option<u32>,
    /// `brokerId`: masters and slaves of one id belong together.
    pub broker: Option<u32>,
    /// 0 when not told.
    pub epoch: u64,
    /// The node's UUID; empty when not told.
    pub node: Text,
    /// The generation of the list of partitions.
    pub catalog: Option<u64>,
    /// The high mark of message ids.
    pub ids: Option<i64>,
    /// The checksum of the configuration in force.
    pub config: Option<u32>,
    /// How safely a slave holds what it confirms.
    pub level: Option<Level>,
    /// Where a slave serves, `meta://host:port`; empty when not told.
    pub uri: Text,
    /// The fewest members that a master with a quorum asks for, itself included; `None`: it has none.
    pub quorum: Option<u32>,
    /// The slaves that a master may count in its quorum, in the form of the link.
    pub members: Text,
    /// The number of that list; of a slave, the newest it has on disk.
    pub roll: Option<u64>,
    /// A master that heeds `held=` in gets.
    pub ahead: bool,
    /// Asks that the answer wait until the catalog differs from `catalog`, at most this long.
    pub wait: Option<Duration>,
}

impl Greeting {
    pub fn new(role: Role) -> Greeting {
        Greeting {
            role,
            slave_id: None,
            broker: None,
            epoch: 0,
            node: Text::default(),
            catalog: None,
            ids: None,
            config: None,
            level: None,
            uri: Text::default(),
            quorum: None,
            members: Text::default(),
            roll: None,
            ahead: false,
            wait: None,
        }
    }

    /// Reads the words of an answer's text, `VERSION role=master epoch=7 …`; `None` when no role is told, which is
    /// how a broker that knows no greetings answers.
    pub fn parse(text: &str) -> Option<Greeting> {
        Greeting::from_words(text.split(' ').map(str::as_bytes))
    }

    pub(crate) fn from_words<'a>(words: impl Iterator<Item = &'a [u8]>) -> Option<Greeting> {
        let mut role = None;
        let mut greeting = Greeting::new(Role::Slave);
        for (name, value) in words.filter_map(named_value) {
            match name {
                b"role" => {
                    role = match value {
                        b"master" => Some(Role::Master),
                        b"slave" => Some(Role::Slave),
                        _ => role,
                    }
                }
                b"id" => greeting.slave_id = unsigned64(value).and_then(|id| u32::try_from(id).ok()),
                b"broker" => greeting.broker = unsigned64(value).and_then(|id| u32::try_from(id).ok()),
                b"epoch" => greeting.epoch = unsigned64(value).unwrap_or(0),
                b"node" => greeting.node = Text::from(&*String::from_utf8_lossy(value)),
                b"catalog" => greeting.catalog = unsigned64(value),
                b"ids" => greeting.ids = std::str::from_utf8(value).ok().and_then(|ids| ids.parse().ok()),
                b"config" => greeting.config = unsigned64(value).and_then(|config| u32::try_from(config).ok()),
                b"level" => greeting.level = Level::from_word(value),
                b"uri" => greeting.uri = Text::from(&*String::from_utf8_lossy(value)),
                b"quorum" => greeting.quorum = unsigned64(value).and_then(|quorum| u32::try_from(quorum).ok()),
                b"roll" => greeting.roll = unsigned64(value),
                b"members" => greeting.members = Text::from(&*String::from_utf8_lossy(value)),
                b"ahead" => greeting.ahead = value == b"1",
                b"wait" => greeting.wait = unsigned64(value).map(Duration::from_millis),
                _ => {}
            }
        }
        role.map(|role| Greeting { role, ..greeting })
    }
}

/// Splits a trailing word `name=value`.
pub(crate) fn named_value(word: &[u8]) -> Option<(&[u8], &[u8])> {
    let equals = memchr::memchr(b'=', word)?;
    Some((&word[..equals], &word[equals + 1..]))
}

/// The words as they travel, without a blank in front.
impl fmt::Display for Greeting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.role {
            Role::Master => "role=master",
            Role::Slave => "role=slave",
        })?;
        if let Some(id) = self.slave_id {
            write!(f, " id={id}")?;
        }
        if let Some(broker) = self.broker {
            write!(f, " broker={broker}")?;
        }
        write!(f, " epoch={}", self.epoch)?;
        if !self.node.is_empty() {
            write!(f, " node={}", self.node)?;
        }
        if let Some(catalog) = self.catalog {
            write!(f, " catalog={catalog}")?;
        }
        if let Some(ids) = self.ids {
            write!(f, " ids={ids}")?;
        }
        if let Some(config) = self.config {
            write!(f, " config={config}")?;
        }
        if let Some(level) = self.level {
            write!(f, " level={level}")?;
        }
        if !self.uri.is_empty() {
            write!(f, " uri={}", self.uri)?;
        }
        if let Some(quorum) = self.quorum {
            write!(f, " quorum={quorum}")?;
        }
        if let Some(roll) = self.roll {
            write!(f, " roll={roll}")?;
        }
        if !self.members.is_empty() {
            write!(f, " members={}", self.members)?;
        }
        if self.ahead {
            f.write_str(" ahead=1")?;
        }
        if let Some(wait) = self.wait {
            write!(f, " wait={}", wait.as_millis())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_read_after_its_version_text() {
        let greeting =
            Greeting::parse("0.1.0 role=master epoch=7 node=ab-cd catalog=3 ids=-9 config=4294967295").unwrap();
        let expected = Greeting {
            epoch: 7,
            node: Text::from("ab-cd"),
            catalog: Some(3),
            ids: Some(-9),
            config: Some(u32::MAX),
            ..Greeting::new(Role::Master)
        };
        assert_eq!(greeting, expected);
        assert_eq!(greeting.to_string(), "role=master epoch=7 node=ab-cd catalog=3 ids=-9 config=4294967295");
        assert_eq!(Greeting::parse("1.4.6.2"), None);
    }

    #[test]
    fn a_slave_tells_how_safely_it_holds_and_where_it_serves() {
        let text = "role=slave id=3 broker=5 epoch=7 level=fsync uri=meta://h:8123";
        let greeting = Greeting::parse(text).unwrap();
        assert_eq!((greeting.slave_id, greeting.broker), (Some(3), Some(5)));
        assert_eq!((greeting.level, &*greeting.uri), (Some(Level::Fsync), "meta://h:8123"));
        assert_eq!(greeting.to_string(), text);
        assert_eq!(Greeting::parse("role=slave level=disk").unwrap().level, None);
    }

    #[test]
    fn a_master_says_that_slaves_may_read_ahead() {
        let text = "role=master epoch=7 ahead=1";
        let greeting = Greeting::parse(text).unwrap();
        assert!(greeting.ahead);
        assert_eq!(greeting.to_string(), text);
        assert!(!Greeting::parse("role=master epoch=7 ahead=2").unwrap().ahead, "it means something else");
    }

    #[test]
    fn unknown_and_malformed_words_are_ignored() {
        let greeting =
            Greeting::parse("role=slave id=x epoch=-1 ids=1e3 wait=+5 catalog= config=4294967296 new=thing =").unwrap();
        assert_eq!(greeting, Greeting::new(Role::Slave));
        assert_eq!(Greeting::parse("role=king epoch=7"), None);
    }
}
