//! The slaves of a quorum by name: who they are, why one does not count, and the words for both.

use std::fmt;
use std::time::Duration;

use metaq_types::{Epoch, SlaveId};
use metaq_wire::Level;
use serde::{Deserialize, Serialize};

/// A slave as its master knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    pub id: SlaveId,
    /// Its data directory; empty while unknown.
    pub node: String,
    /// Where its connection comes from.
    pub address: String,
    /// Where it serves; empty while unknown.
    pub uri: String,
    /// How safely it holds what it confirms, where it says so.
    pub level: Option<Level>,
}

impl Default for Member {
    fn default() -> Member {
        let id = SlaveId::new(0).expect("0 is a slave id");
        Member { id, node: String::new(), address: String::new(), uri: String::new(), level: None }
    }
}

/// Why a slave does not count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Absence {
    /// It does.
    None,
    /// It has no connection.
    Gone,
    /// It has not settled its past with this master.
    OtherReign { epoch: Epoch, ours: Epoch },
    /// The members that count have not heard of it, and those that are gone cannot.
    Unknown,
    /// It has let a put wait too long, and has asked for nothing meanwhile: it hangs, or is gone and nobody said so.
    Silent,
    /// It has not been level since it connected, or has let a put wait too long.
    Behind,
}

impl Absence {
    /// One word for tables.
    pub fn word(self) -> &'static str {
        match self {
            Absence::None => "counts",
            Absence::Gone => "gone",
            Absence::OtherReign { .. } => "other-reign",
            Absence::Unknown => "unknown",
            Absence::Silent => "silent",
            Absence::Behind => "behind",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemberState {
    pub absence: Absence,
    /// For how long this has been so.
    pub since: Duration,
}

/// Why a put is refused: who is missing, and since when.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shortage {
    /// Members asked for, the master included.
    pub quorum: u32,
    /// Members there, the master included.
    pub members: u32,
    pub missing: Vec<(Member, MemberState)>,
    /// They have not heard yet how many are asked for now, and so might be promoted by what they heard before.
    pub misled: Vec<Member>,
    /// How long the master has reigned: nobody who left before is known.
    pub age: Duration,
}

impl fmt::Display for Shortage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Shortage { quorum, members, missing, misled, age } = self;
        write!(f, "not enough in-sync replicas: {members} of the {quorum} members that ackQuorum asks for")?;
        for Member { id, address, .. } in misled {
            write!(
                f,
                "; slave {id} ({address}) has not heard yet what ackQuorum is now (if it does not come back, restart the \
                 master: its next reign begins with whoever is there)"
            )?;
        }
        if missing.is_empty() && misled.is_empty() {
            return write!(f, "; no other slave has connected in the {} s this master reigns", age.as_secs());
        }
        for (member, MemberState { absence, since }) in missing {
            let seconds = since.as_secs_f64();
            write!(f, "; slave {} ({}) ", member.id, member.address)?;
            match absence {
                Absence::Gone => write!(f, "is gone since {seconds:.1} s")?,
                Absence::Silent => write!(f, "is silent since {seconds:.1} s")?,
                Absence::Behind => write!(f, "is behind since {seconds:.1} s")?,
                Absence::Unknown => write!(
                    f,
                    "is new and counts when the other members have heard of it (if they do not come back, restart the \
                     master: its next reign begins with whoever is there)"
                )?,
                Absence::OtherReign { epoch, ours } => {
                    write!(f, "lives in epoch {epoch} instead of {ours} since {seconds:.1} s")?;
                }
                Absence::None => write!(f, "counts")?,
            }
        }
        Ok(())
    }
}

/// A member as it is remembered by another: in the record of a slave, and on the wire.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KnownMember {
    pub slave_id: u32,
    pub node: String,
    /// Where it serves; empty while unknown.
    pub uri: String,
}

impl KnownMember {
    /// One data directory under one id; a node that is not told may be any.
    pub fn is(&self, slave_id: u32, node: &str) -> bool {
        self.slave_id == slave_id && (self.node.is_empty() || node.is_empty() || self.node == node)
    }
}

/// The word of a greeting: `0@NODE@URI,1@NODE@URI`.
pub fn members_word(members: &[Member]) -> String {
    let one = |member: &Member| format!("{}@{}@{}", member.id, member.node, member.uri);
    members.iter().map(one).collect::<Vec<_>>().join(",")
}

/// Reads what [`members_word`] wrote; what cannot be read is left out.
pub fn parse_members(word: &str) -> Vec<KnownMember> {
    let one = |text: &str| {
        let mut parts = text.splitn(3, '@');
        let slave_id = parts.next()?.parse().ok()?;
        Some(KnownMember { slave_id, node: parts.next()?.to_owned(), uri: parts.next()?.to_owned() })
    };
    word.split(',').filter_map(one).collect()
}

/// What a slave has on disk about the quorum of its master, as it tells another that is to be promoted: the lines of
/// `stats roll`.
pub fn roll_text(roll: u64, quorum: u32, members: &[KnownMember]) -> String {
    let one = |member: &KnownMember| format!("{}@{}@{}", member.slave_id, member.node, member.uri);
    let members: Vec<String> = members.iter().map(one).collect();
    format!("roll {roll} quorum {quorum} members {}\r\n", members.join(","))
}

/// Reads what [`roll_text`] wrote: number, quorum, members.
pub fn parse_roll(text: &str) -> Option<(u64, u32, Vec<KnownMember>)> {
    let line = text.lines().find(|line| line.starts_with("roll "))?;
    let mut words = line.split(' ');
    let mut after = |name: &str| words.next().filter(|word| *word == name).and_then(|_| words.next());
    let (roll, quorum) = (after("roll")?.parse().ok()?, after("quorum")?.parse().ok()?);
    Some((roll, quorum, parse_members(after("members")?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shortage_names_who_is_missing_and_since_when() {
        let member = |id, address: &str| Member {
            id: SlaveId::new(id).unwrap(),
            address: address.to_owned(),
            ..Member::default()
        };
        let state = |absence, millis| MemberState { absence, since: Duration::from_millis(millis) };
        let mut shortage =
            Shortage { quorum: 2, members: 1, missing: Vec::new(), misled: Vec::new(), age: Duration::from_secs(7) };
        assert_eq!(
            shortage.to_string(),
            "not enough in-sync replicas: 1 of the 2 members that ackQuorum asks for; no other slave has connected in \
             the 7 s this master reigns"
        );
        shortage.missing = vec![
            (member(0, "10.0.0.2:5555"), state(Absence::Gone, 12_340)),
            (member(1, "10.0.0.3:5555"), state(Absence::Behind, 500)),
            (member(2, "h:1"), state(Absence::OtherReign { epoch: Epoch(3), ours: Epoch(5) }, 0)),
        ];
        let text = shortage.to_string();
        assert!(text.contains("slave 0 (10.0.0.2:5555) is gone since 12.3 s"), "{text}");
        assert!(text.contains("slave 1 (10.0.0.3:5555) is behind since 0.5 s"), "{text}");
        assert!(text.ends_with("slave 2 (h:1) lives in epoch 3 instead of 5 since 0.0 s"), "{text}");
    }

    #[test]
    fn members_are_read_back() {
        let some = |id, node: &str, uri: &str| Member {
            id: SlaveId::new(id).unwrap(),
            node: node.to_owned(),
            uri: uri.to_owned(),
            ..Member::default()
        };
        let word = members_word(&[some(0, "ab-cd", "meta://h:1"), some(7, "", "")]);
        assert_eq!(word, "0@ab-cd@meta://h:1,7@@");
        let read = parse_members(&word);
        let known =
            |slave_id, node: &str, uri: &str| KnownMember { slave_id, node: node.to_owned(), uri: uri.to_owned() };
        assert_eq!(read, [known(0, "ab-cd", "meta://h:1"), known(7, "", "")]);
        let text = roll_text(9, 2, &read);
        assert_eq!(parse_roll(&format!("STATS\r\n{text}END\r\n")), Some((9, 2, read)));
        assert_eq!(parse_roll("STATS\r\nroll\r\nresultCode 1\r\nEND\r\n"), None);
        assert_eq!(parse_members(""), []);
        assert_eq!(parse_members("x@y@z,3@n"), []);
    }
}
