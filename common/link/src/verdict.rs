//! Whether a node may begin a reign, from what the fence says and what its own data remembers.

use metaq_types::{Epoch, Lineage};

/// The reign the fence names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rival<'a> {
    pub epoch: Epoch,
    pub node: &'a str,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim {
    /// Under this number.
    Reign(Epoch),
    /// A reign has begun that this data does not know: what was stored under it would be lost. The number is the one a
    /// reign would have that begins all the same.
    Replaced(Epoch),
}

/// A node may go on after its own last reign, and a slave after that of the master it followed, if that is the newest
/// there is. Nobody may go on after a reign whose messages it cannot know.
pub fn may_reign(rival: Option<Rival<'_>>, own: &Lineage, node: &str) -> Claim {
    let Some(rival) = rival else { return Claim::Reign(own.epoch().next()) };
    let next = rival.epoch.max(own.epoch()).next();
    let known = own.newest().is_some_and(|newest| newest.epoch == rival.epoch && newest.node == rival.node);
    if rival.node == node || known { Claim::Reign(next) } else { Claim::Replaced(next) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(rival: Option<(u64, &str)>, own: &str) -> Claim {
        let rival = rival.map(|(epoch, node)| Rival { epoch: Epoch(epoch), node });
        may_reign(rival, &own.parse().unwrap(), "a")
    }

    #[test]
    fn only_the_newest_reign_has_a_successor() {
        let (a1, a1b2) = ("epoch 1 node a began 0\n", "epoch 1 node a began 0\nepoch 2 node b began 0\n");
        assert_eq!(claim(None, ""), Claim::Reign(Epoch(1)));
        assert_eq!(claim(None, a1), Claim::Reign(Epoch(2)));
        // Restarted, also after a fence was written and the start failed behind it.
        assert_eq!(claim(Some((1, "a")), a1), Claim::Reign(Epoch(2)));
        assert_eq!(claim(Some((4, "a")), a1), Claim::Reign(Epoch(5)));
        // The slave of b takes over from it.
        assert_eq!(claim(Some((2, "b")), a1b2), Claim::Reign(Epoch(3)));
        // b was promoted while a was away; or b began again and a has not followed since; or a is empty.
        assert_eq!(claim(Some((2, "b")), a1), Claim::Replaced(Epoch(3)));
        assert_eq!(claim(Some((3, "b")), a1b2), Claim::Replaced(Epoch(4)));
        assert_eq!(claim(Some((7, "b")), ""), Claim::Replaced(Epoch(8)));
        // Another node with the same number.
        assert_eq!(claim(Some((2, "c")), a1b2), Claim::Replaced(Epoch(3)));
    }
}
