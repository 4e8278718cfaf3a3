//! Every decision of a quorum, on the pure machine: who counts, what is confirmed, what is refused, what is given up.
#![expect(clippy::unwrap_used, reason = "also in the functions that tests share")]

mod patience;
mod scene;

use metaq_config::AckRules;
use metaq_link::quorum::{Act, Admission};
use metaq_types::Epoch;
use scene::{EPOCH, FULL, Scene, TIMEOUT, at, greeting, log, slave};
use std::time::Duration;

#[test]
fn the_furthest_but_so_many_decides() {
    for (quorum, confirmed) in [(2, Some(90)), (3, Some(70)), (4, Some(50)), (5, None)] {
        let mut scene = Scene::new(quorum, false);
        for id in 0..3 {
            scene.connect(id);
            scene.get(id, 0);
        }
        scene.end = 100;
        let mut last = None;
        for (id, offset) in [(0, 70), (1, 50), (2, 90)] {
            last = scene.get(id, offset).or(last);
        }
        assert_eq!(last, confirmed.map(|to| Act::Confirm(at(to))), "ackQuorum={quorum}");
    }
}

/// F15 and row 23: without a slave a put is refused before anything is stored, and the text says who is missing.
#[test]
fn f15_without_members_a_put_is_refused_and_they_are_named() {
    let mut scene = Scene::new(2, false);
    scene.now += Duration::from_secs(7);
    let text = scene.admit().unwrap_err();
    assert!(text.contains("1 of the 2 members") && text.contains("no other slave has connected in the 7 s"), "{text}");
    scene.connect(3);
    assert_eq!(scene.admit(), FULL, "of an empty log everybody holds everything");
    scene.end = 100;
    assert_eq!(scene.get(3, 100), Some(Act::Confirm(at(100))));
    scene.now += Duration::from_secs(1);
    assert_eq!(scene.disconnect(3), []);
    scene.now += Duration::from_millis(12_300);
    let text = scene.admit().unwrap_err();
    assert!(text.contains("slave 3 (h:1) is gone since 12.3 s"), "{text}");
}

/// Row 22: a slave that comes back counts again when it is level, and not before.
#[test]
fn a_slave_counts_once_it_is_level_since_it_connected() {
    let mut scene = Scene::new(2, false);
    scene.end = 1000;
    scene.connect(0);
    assert_eq!(scene.get(0, 0), None);
    assert!(scene.admit().unwrap_err().contains("slave 0 (h:1) is behind since 0.0 s"));
    assert_eq!(scene.get(0, 500), None, "on its way");
    scene.end = 1200;
    // It has reached what the master had at its last get: it keeps up, though more came meanwhile.
    assert_eq!(scene.get(0, 1000), Some(Act::Confirm(at(1000))));
    assert_eq!(scene.admit(), FULL);
    // Once level it counts while it is a little behind.
    scene.end = 5000;
    assert_eq!(scene.get(0, 1200), Some(Act::Confirm(at(1200))));
    assert_eq!((scene.admit(), scene.members()), (FULL, 2));
    // A new connection shows everything again: the machine may have lost its page cache.
    scene.connect(0);
    assert!(scene.admit().is_err());
    assert_eq!(scene.get(0, 1100), None);
    assert_eq!(scene.get(0, 5000), Some(Act::Confirm(at(5000))));
}

#[test]
fn what_is_confirmed_stays_confirmed() {
    let mut scene = Scene::new(2, false);
    scene.connect(0);
    scene.connect(1);
    scene.admit().unwrap();
    scene.end = 100;
    assert_eq!(scene.get(0, 80), Some(Act::Confirm(at(80))));
    assert_eq!(scene.get(1, 50), None);
    assert_eq!(scene.disconnect(0), []);
    assert_eq!(scene.get(1, 60), None, "not set back to what is left");
    assert_eq!(scene.get(1, 90), Some(Act::Confirm(at(90))));
}

#[test]
fn another_reign_never_counts() {
    let mut scene = Scene::new(2, false);
    scene.quorums.on_connect(slave(0), "h:1", scene.now);
    assert_eq!(scene.greet(0, Epoch(4)), []);
    assert!(scene.admit().unwrap_err().contains("lives in epoch 4 instead of 5"));
    scene.end = 100;
    assert_eq!(scene.get(0, 100), None);
    assert!(scene.quorums.roll().members().is_empty());
    // It has settled its past and says so, and has heard that it may count: what it has shown since it connected counts.
    assert_eq!(scene.greet(0, EPOCH), []);
    assert!(scene.admit().unwrap_err().contains("is new and counts when the other members have heard of it"));
    assert_eq!(scene.greet(0, EPOCH), [(log(), Act::Confirm(at(100)))]);
    assert_eq!(scene.quorums.roll().members().len(), 1);
    // A newer one is no better.
    scene.end = 200;
    scene.greet(0, Epoch(6));
    assert_eq!(scene.get(0, 200), None);
}

#[test]
fn a_reign_that_begins_asks_everybody_again() {
    let mut scene = Scene::new(2, false);
    scene.connect(0);
    scene.admit().unwrap();
    scene.quorums.begin(Epoch(6), scene.now);
    assert!(scene.admit().is_err());
    scene.greet(0, Epoch(6));
    assert!(scene.admit().is_err());
    scene.greet(0, Epoch(6));
    assert_eq!(scene.admit(), FULL);
}

/// While the only slave that counts is away, another cannot take its place: promoted later, the first would not know of it.
#[test]
fn a_newcomer_counts_only_when_a_member_knows_of_it() {
    let mut scene = Scene::new(2, false);
    scene.connect(0);
    scene.end = 100;
    scene.get(0, 100);
    scene.disconnect(0);
    scene.connect(1);
    assert_eq!(scene.get(1, 100), None);
    scene.end = 200;
    assert_eq!(scene.get(1, 200), None);
    let text = scene.admit().unwrap_err();
    assert!(text.contains("slave 0 (h:1) is gone") && text.contains("slave 1 (h:1) is new"), "{text}");
    // The first is back and hears of the second.
    scene.quorums.on_connect(slave(0), "h:1", scene.now);
    assert_eq!(scene.quorums.on_greeting(slave(0), &greeting(0, EPOCH, 1)), [], "it has yet to hear of it");
    assert!(scene.admit().is_err());
    assert_eq!(scene.greet(0, EPOCH), [(log(), Act::Confirm(at(200)))]);
    assert_eq!(scene.admit(), FULL);
}

/// Row 29: whoever holds bytes that are not ours confirms nothing, and is counted.
#[test]
fn an_acknowledgement_beyond_the_end_never_counts() {
    let mut scene = Scene::new(2, false);
    scene.connect(0);
    scene.admit().unwrap();
    scene.end = 100;
    assert_eq!(scene.get(0, 101), None);
    assert_eq!(scene.quorums.beyond_end(), 1);
    assert!(scene.admit().is_err());
    assert_eq!(scene.quorums.standings()[0].confirmed, Some(at(0)));
}

/// A stranger who never greeted.
#[test]
fn a_get_of_nobody_changes_nothing() {
    let mut scene = Scene::new(2, false);
    scene.end = 100;
    assert_eq!(scene.get(9, 100), None);
    assert_eq!(scene.members(), 1);
}

#[test]
fn a_downgrade_happens_only_where_it_is_allowed_and_ends_by_itself() {
    let mut scene = Scene::new(2, true);
    assert_eq!(scene.admit(), Ok(Admission::Downgraded(Some(Act::ConfirmEverything))));
    assert_eq!(scene.admit(), Ok(Admission::Downgraded(None)));
    scene.end = 100;
    scene.connect(0);
    assert_eq!(scene.get(0, 0), None, "it has to be level first");
    assert_eq!(scene.get(0, 100), Some(Act::Hold));
    scene.quorums.held(&log(), at(100));
    assert_eq!(scene.admit(), FULL);
    scene.end = 200;
    assert_eq!(scene.get(0, 200), Some(Act::Confirm(at(200))));
    // Gone, in the middle of a put: the put is acknowledged by those who are left.
    scene.end = 300;
    assert_eq!(scene.disconnect(0), [(log(), Act::ConfirmEverything)]);
    // And when it hangs, after one time-out.
    scene.connect(0);
    scene.get(0, 300);
    scene.quorums.held(&log(), at(300));
    scene.end = 400;
    assert_eq!(scene.pass(TIMEOUT), [Act::ConfirmEverything]);
}

#[test]
fn rules_change_at_a_reload() {
    let mut scene = Scene::new(3, false);
    scene.connect(0);
    scene.end = 100;
    scene.get(0, 100);
    assert!(scene.admit().is_err());
    assert_eq!(scene.quorums.set_rules(&log(), rules(2)), Some(vec![]), "slave 0 has not heard of it");
    assert_eq!(scene.greet(0, EPOCH), [(log(), Act::Confirm(at(100)))]);
    assert_eq!(scene.admit(), FULL);
    assert_eq!(scene.quorums.set_rules(&"other-0".parse().unwrap(), rules(2)), None);
    scene.quorums.unwatch(&log());
    assert_eq!(scene.admit(), FULL, "what is not watched asks nobody");
    assert_eq!(scene.quorums.tick_interval(), None);
}

fn rules(quorum: u32) -> AckRules {
    AckRules { quorum, timeout: TIMEOUT, downgrade: false }
}

/// A slave that was told of three lets one other be silent when it is promoted: with two, that one may hold a message alone.
#[test]
fn fewer_are_enough_only_when_everybody_has_heard_of_it() {
    let mut scene = Scene::new(3, false);
    for id in 0..2 {
        scene.connect(id);
        scene.get(id, 0);
    }
    assert_eq!(scene.admit(), FULL);
    scene.disconnect(1);
    assert_eq!(scene.quorums.set_rules(&log(), rules(2)), Some(vec![]));
    scene.greet(0, EPOCH);
    let text = scene.admit().unwrap_err();
    assert!(text.contains("slave 1 (h:1) has not heard yet what ackQuorum is now"), "{text}");
    scene.end = 100;
    assert_eq!(scene.get(0, 100), None, "it is not acknowledged either");
    scene.connect(1);
    assert_eq!(scene.quorums.confirmed().next(), Some((&log(), Some(at(100)))));
    assert_eq!(scene.admit(), FULL);
}

/// A slave that was told of no quorum asks nobody when it is promoted.
#[test]
fn a_quorum_that_is_turned_on_waits_until_everybody_has_heard_of_it() {
    let mut scene = Scene::new(2, false);
    scene.quorums.unwatch(&log());
    scene.connect(0);
    scene.connect(1);
    scene.disconnect(1);
    scene.quorums.watch(&log(), rules(2), at(0));
    scene.greet(0, EPOCH);
    scene.greet(0, EPOCH);
    let text = scene.admit().unwrap_err();
    assert!(text.contains("slave 1 (h:1) has not heard yet what ackQuorum is now"), "{text}");
    scene.connect(1);
    assert_eq!(scene.admit(), FULL);
    // Whoever leaves from now on asks the others, and is not waited for.
    scene.disconnect(1);
    assert_eq!(scene.admit(), FULL);
}

/// Slaves are told what may be asked for before the first partition asks for it.
#[test]
fn what_is_expected_makes_nobody_wait() {
    let mut scene = Scene::new(3, false);
    scene.quorums.expect(Some(2));
    for id in 0..2 {
        scene.connect(id);
    }
    scene.disconnect(1);
    let (other, before) = ("other-0".parse().unwrap(), scene.quorums.roll().number());
    scene.quorums.watch(&other, rules(2), at(0));
    assert_eq!((scene.quorums.smallest(), scene.quorums.roll().number()), (Some(2), before));
    assert_eq!(scene.quorums.admit(&other, true, scene.now), Ok(Admission::Full));
}

#[test]
fn members_are_remembered_when_they_leave() {
    let mut scene = Scene::new(2, false);
    scene.connect(0);
    scene.connect(1);
    scene.disconnect(0);
    let members: Vec<_> = scene.quorums.roll().members().iter().map(|member| member.id).collect();
    assert_eq!(members, [slave(0), slave(1)], "it may hold what nobody else does");
    assert_eq!(scene.quorums.smallest(), Some(2));
}
