//! Who may hold what a master has acknowledged, so that a promotion knows whom to ask.
//!
//! A slave that becomes a master asks the others it knows of, and one it does not know of it cannot ask. So a master counts
//! nobody in its quorum before enough of those who count already have the new name on their own disks: whoever is promoted
//! then either knows it or has to ask somebody who does. The names are those of one reign; that a candidate lives in the
//! newest reign is the fence's business.
//!
//! How many members are asked for is part of the same knowledge: whoever has been told of three lets one of them be silent,
//! and whoever has been told of none asks nobody. So when fewer are asked for than before, or any after none, more have to
//! hold what is acknowledged until everybody who might be promoted by the old word has the new one.
//!
//! The roll has a number that grows with every name, over reigns too. A slave keeps the roll in its record and repeats its
//! number in every greeting.

use metaq_types::{Epoch, SlaveId};

use crate::members::Member;

/// Names that one reign can have; the numbers of its rolls lie between those of the reigns before and after.
const NAMES_BITS: u32 = 24;

/// Names remembered; more than that never count.
const NAMES_MAX: usize = 1024;

#[derive(Debug)]
pub struct Roll {
    number: u64,
    entries: Vec<Entry>,
    /// The fewest members anybody asks for, as greetings tell; 1: nobody is asked.
    quorum: u32,
    /// As many are needed while somebody has not heard of `quorum`.
    until: u32,
}

/// One data directory under one slave id: another directory with the same id is somebody else.
#[derive(Debug)]
struct Entry {
    member: Member,
    /// The newest roll it has on disk.
    knows: u64,
    connected: bool,
    /// It counts, or has counted in this reign.
    admitted: bool,
    /// What it was told would let it be promoted although others, of fewer, are silent: more than two, or none.
    unbound: bool,
    /// What it knew before this roll misleads it.
    must_know: u64,
}

impl Entry {
    fn is_misled(&self) -> bool {
        self.knows < self.must_know
    }
}

impl Roll {
    pub fn of(epoch: Epoch) -> Roll {
        Roll { number: epoch.0 << NAMES_BITS, entries: Vec::new(), quorum: 1, until: 1 }
    }

    pub fn number(&self) -> u64 {
        self.number
    }

    /// The fewest members that anybody asks for from now on; 1: nobody is asked.
    pub fn ask(&mut self, quorum: u32) {
        let before = std::mem::replace(&mut self.quorum, quorum);
        // After none no number is enough: what was told lets anybody be promoted.
        let until = if before == 1 { u32::MAX } else { before };
        if quorum == 1 || quorum >= until || self.entries.is_empty() {
            return;
        }
        self.until = until.max(self.least());
        self.number += 1;
        self.entries.iter_mut().for_each(|entry| entry.must_know = self.number);
    }

    /// No fewer members are enough, whatever is asked for.
    pub fn least(&self) -> u32 {
        if self.entries.iter().any(Entry::is_misled) { self.until } else { 1 }
    }

    /// Who keeps it from being fewer.
    pub fn misled(&self) -> Vec<Member> {
        self.entries.iter().filter(|entry| entry.is_misled()).map(|entry| entry.member.clone()).collect()
    }

    /// A slave of this reign is here and has roll `knows` on its disk.
    pub fn greet(&mut self, member: &Member, knows: u64) {
        let unbound = self.quorum != 2;
        if let Some(entry) = self.find(member.id, &member.node) {
            entry.member.clone_from(member);
            let returns = !std::mem::replace(&mut entry.connected, true) && !entry.admitted;
            // A directory that was restored from a copy may know less than before.
            entry.knows = knows;
            entry.unbound = unbound || (entry.unbound && entry.is_misled());
            // Meanwhile it was not named to anybody.
            self.number += u64::from(returns);
            return;
        }
        if self.entries.len() >= NAMES_MAX {
            return;
        }
        // Whoever went before it counted holds nothing that was acknowledged, and asks before it is promoted.
        self.entries.retain(|entry| entry.admitted || entry.connected || entry.unbound);
        let member = member.clone();
        self.entries.push(Entry { member, knows, connected: true, admitted: false, unbound, must_know: 0 });
        self.number += 1;
    }

    pub fn part(&mut self, id: SlaveId) {
        self.entries.iter_mut().filter(|entry| entry.member.id == id).for_each(|entry| entry.connected = false);
    }

    /// Lets those count who may; `quorum` is the fewest members that anybody asks for. `true`: somebody has come to count.
    pub fn admit(&mut self, quorum: u32) -> bool {
        let (number, quorum) = (self.number, quorum.max(self.least()));
        let counting = self.entries.iter().filter(|entry| entry.admitted);
        let (all, aware) =
            counting.fold((0, 0), |(all, aware), entry| (all + 1, aware + u32::from(entry.knows == number)));
        let everybody_here =
            self.entries.iter().all(|entry| !entry.admitted || !entry.connected || entry.knows == number);
        if aware < (quorum - 1).min(all) || !everybody_here {
            return false;
        }
        let mut came = false;
        for entry in self.entries.iter_mut().filter(|entry| !entry.admitted && entry.knows == number) {
            entry.admitted = true;
            came = true;
        }
        came
    }

    pub fn is_admitted(&self, id: SlaveId, node: &str) -> bool {
        self.entries.iter().any(|entry| entry.admitted && entry.member.id == id && entry.member.node == node)
    }

    /// Everybody who may come to hold something that was acknowledged.
    pub fn members(&self) -> Vec<Member> {
        let named = self.entries.iter().filter(|entry| entry.admitted || entry.connected);
        named.map(|entry| entry.member.clone()).collect()
    }

    fn find(&mut self, id: SlaveId, node: &str) -> Option<&mut Entry> {
        self.entries.iter_mut().find(|entry| entry.member.id == id && entry.member.node == node)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(id: i64) -> Member {
        Member { id: SlaveId::new(id).unwrap(), node: format!("n{id}"), ..Member::default() }
    }

    fn asking(quorum: u32) -> Roll {
        let mut roll = Roll::of(Epoch(3));
        roll.ask(quorum);
        roll
    }

    /// Greets with the roll as it is now known; whether it counts then.
    fn knows(roll: &mut Roll, id: i64, number: u64) -> bool {
        roll.greet(&member(id), number);
        roll.admit(2);
        roll.is_admitted(SlaveId::new(id).unwrap(), &format!("n{id}"))
    }

    #[test]
    fn the_first_counts_when_it_knows_of_itself() {
        let mut roll = asking(2);
        assert!(!knows(&mut roll, 0, 0));
        let number = roll.number();
        assert!(number > 3 << 24 && number < 4 << 24);
        // What it kept of an earlier reign is no news.
        assert!(!knows(&mut roll, 0, (2 << 24) + 9));
        assert!(knows(&mut roll, 0, number));
    }

    #[test]
    fn the_next_counts_when_enough_of_the_others_know_of_it() {
        let mut roll = asking(2);
        knows(&mut roll, 0, 0);
        let first = roll.number();
        assert!(knows(&mut roll, 0, first));
        knows(&mut roll, 1, 0);
        let second = roll.number();
        assert!(!knows(&mut roll, 1, second), "slave 0 does not know");
        assert!(knows(&mut roll, 0, second), "and counts meanwhile");
        assert!(knows(&mut roll, 1, second));
        // Of two that count one is away: the other is enough for a quorum of two, not for one of three.
        roll.part(SlaveId::new(0).unwrap());
        knows(&mut roll, 2, 0);
        let third = roll.number();
        knows(&mut roll, 1, third);
        roll.greet(&member(2), third);
        assert!(!roll.admit(3));
        assert!(knows(&mut roll, 2, third));
        assert_eq!(roll.members().len(), 3);
    }

    #[test]
    fn while_the_only_one_that_counts_is_away_nobody_takes_its_place() {
        let mut roll = asking(2);
        knows(&mut roll, 0, 0);
        let first = roll.number();
        knows(&mut roll, 0, first);
        roll.part(SlaveId::new(0).unwrap());
        knows(&mut roll, 1, 0);
        let second = roll.number();
        assert!(!knows(&mut roll, 1, second));
        // Not with its id either: another directory is somebody else.
        let other = Member { node: "other".to_owned(), ..member(0) };
        roll.greet(&other, 0);
        let third = roll.number();
        roll.greet(&other, third);
        roll.admit(2);
        assert!(!roll.is_admitted(other.id, "other"));
        // It returns and learns of both.
        assert!(knows(&mut roll, 0, third));
        assert!(knows(&mut roll, 1, third) && roll.is_admitted(other.id, "other"));
    }

    #[test]
    fn fewer_are_enough_when_everybody_who_counts_has_heard_of_it() {
        let mut roll = asking(3);
        knows(&mut roll, 0, 0);
        knows(&mut roll, 1, 0);
        let both = roll.number();
        assert!(knows(&mut roll, 0, both) && knows(&mut roll, 1, both));
        // One that is told of three lets the other be silent: with two that other may hold something alone.
        roll.part(SlaveId::new(1).unwrap());
        roll.ask(2);
        assert_eq!((roll.number(), roll.least()), (both + 1, 3));
        knows(&mut roll, 0, both + 1);
        assert_eq!((roll.least(), roll.misled()), (3, vec![member(1)]));
        roll.ask(4);
        roll.ask(3);
        assert_eq!(roll.least(), 4);
        let last = roll.number();
        knows(&mut roll, 0, last);
        knows(&mut roll, 1, last);
        assert_eq!((roll.least(), roll.misled()), (1, vec![]));
    }

    #[test]
    fn whoever_was_told_of_none_keeps_all_from_counting() {
        let mut roll = asking(1);
        roll.greet(&member(0), 0);
        roll.greet(&member(1), 0);
        roll.part(SlaveId::new(1).unwrap());
        // It is remembered although it counted for nothing.
        roll.greet(&member(2), 0);
        roll.ask(2);
        let number = roll.number();
        roll.greet(&member(0), number);
        roll.greet(&member(2), number);
        assert_eq!((roll.least(), roll.misled()), (u32::MAX, vec![member(1)]));
        roll.greet(&member(1), number);
        assert_eq!(roll.least(), 1);
        // From then on it asks before it is promoted.
        roll.part(SlaveId::new(1).unwrap());
        roll.greet(&member(3), 0);
        assert!(!roll.members().contains(&member(1)));
    }

    #[test]
    fn whoever_goes_before_it_counts_is_forgotten() {
        let mut roll = asking(2);
        knows(&mut roll, 0, 0);
        roll.part(SlaveId::new(0).unwrap());
        knows(&mut roll, 1, 0);
        assert_eq!(roll.members(), [member(1)]);
        let number = roll.number();
        assert!(knows(&mut roll, 1, number));
    }
}
