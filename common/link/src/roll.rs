//! Who may hold what a master has acknowledged, so that a promotion knows whom to ask.
//!
//! A slave that becomes a master asks the others it knows of, and one it does not know of it cannot ask. So a master counts
//! nobody in its quorum before enough of those who count already have the new name on their own disks: whoever is promoted
//! then either knows it or has to ask somebody who does. The names are those of one reign; that a candidate lives in the
//! newest reign is the fence's business.
//!
//! The roll has a number that grows with every name, over reigns too. A slave keeps the roll in its record and repeats its
//! number in every greeting.

use metaq_types::{Epoch, SlaveId};

use crate::members::Member;

/// Names that one reign can have; the numbers of its rolls lie between those of the reigns before and after.
const NAMES_BITS: u32 = 24;

#[derive(Debug)]
pub struct Roll {
    number: u64,
    entries: Vec<Entry>,
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
}

impl Roll {
    pub fn of(epoch: Epoch) -> Roll {
        Roll { number: epoch.0 << NAMES_BITS, entries: Vec::new() }
    }

    pub fn number(&self) -> u64 {
        self.number
    }

    /// A slave of this reign is here and has roll `knows` on its disk.
    pub fn greet(&mut self, member: &Member, knows: u64) {
        if let Some(entry) = self.find(member.id, &member.node) {
            entry.member.clone_from(member);
            entry.connected = true;
            // A directory that was restored from a copy may know less than before.
            entry.knows = knows;
            return;
        }
        // Whoever went before it counted holds nothing that was acknowledged.
        self.entries.retain(|entry| entry.admitted || entry.connected);
        self.entries.push(Entry { member: member.clone(), knows, connected: true, admitted: false });
        self.number += 1;
    }

    pub fn part(&mut self, id: SlaveId) {
        self.entries.iter_mut().filter(|entry| entry.member.id == id).for_each(|entry| entry.connected = false);
    }

    /// Lets those count who may; `quorum` is the fewest members that anybody asks for. `true`: somebody has come to count.
    pub fn admit(&mut self, quorum: u32) -> bool {
        let number = self.number;
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
        self.entries.iter().map(|entry| entry.member.clone()).collect()
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

    /// Greets with the roll as it is now known; whether it counts then.
    fn knows(roll: &mut Roll, id: i64, number: u64) -> bool {
        roll.greet(&member(id), number);
        roll.admit(2);
        roll.is_admitted(SlaveId::new(id).unwrap(), &format!("n{id}"))
    }

    #[test]
    fn the_first_counts_when_it_knows_of_itself() {
        let mut roll = Roll::of(Epoch(3));
        assert!(!knows(&mut roll, 0, 0));
        let number = roll.number();
        assert!(number > 3 << 24 && number < 4 << 24);
        // What it kept of an earlier reign is no news.
        assert!(!knows(&mut roll, 0, (2 << 24) + 9));
        assert!(knows(&mut roll, 0, number));
    }

    #[test]
    fn the_next_counts_when_enough_of_the_others_know_of_it() {
        let mut roll = Roll::of(Epoch(3));
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
        let mut roll = Roll::of(Epoch(3));
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
    fn whoever_goes_before_it_counts_is_forgotten() {
        let mut roll = Roll::of(Epoch(3));
        knows(&mut roll, 0, 0);
        roll.part(SlaveId::new(0).unwrap());
        knows(&mut roll, 1, 0);
        assert_eq!(roll.members(), [member(1)]);
        let number = roll.number();
        assert!(knows(&mut roll, 1, number));
    }
}
