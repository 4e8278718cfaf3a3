//! How long a put waits, and for whom: members that hang, are silent or slow, and what is given up.

use crate::scene::{FULL, Scene, TIMEOUT, at, log, slave};
use metaq_config::AckRules;
use metaq_link::quorum::{Act, Admission, Ends};
use metaq_types::PartitionId;
use std::time::Duration;

/// Rows 21 and 28: a member that hangs costs one time-out; every put is answered within it.
#[test]
fn a_member_that_hangs_costs_one_pause_and_then_does_not_count() {
    let mut scene = Scene::new(3, false);
    for id in 0..2 {
        scene.connect(id);
    }
    scene.admit().unwrap();
    scene.end = 100;
    assert_eq!(scene.get(0, 100), None);
    let acts = scene.pass(TIMEOUT);
    assert_eq!(acts, [Act::GiveUp(at(100))], "within the time-out, and once");
    let text = scene.admit().unwrap_err();
    assert!(text.contains("slave 1 (h:1) is behind") && !text.contains("slave 0 ("), "{text}");
    assert_eq!(scene.pass(TIMEOUT * 3), [], "nothing waits any more");
    // It wakes up and catches up: what was given up is confirmed now.
    assert_eq!(scene.get(1, 100), Some(Act::Confirm(at(100))));
    assert_eq!(scene.admit(), FULL);
}

/// A scene with a second partition, which everybody is level with.
fn with_another(quorum: u32, downgrade: bool) -> (Scene, PartitionId) {
    let (mut scene, other) = (Scene::new(quorum, downgrade), "other-0".parse().unwrap());
    scene.quorums.watch(&other, AckRules { quorum, timeout: TIMEOUT, downgrade }, at(0));
    scene.connect(0);
    for log in [log(), other.clone()] {
        // Downgraded until now: the members are asked for again, and the put is counted.
        if downgrade {
            let again = Ok(Admission::Downgraded(Some(Act::Hold)));
            assert_eq!(scene.quorums.admit(&log, true, scene.now), again);
            scene.quorums.held(&log, at(0));
        }
        assert_eq!(scene.quorums.admit(&log, true, scene.now), Ok(Admission::Full));
    }
    scene.end = 100;
    (scene, other)
}

/// Lets time pass in which only the first partition is written to.
fn pass_alone(scene: &mut Scene, time: Duration) -> Vec<(PartitionId, Act)> {
    let until = scene.now + time;
    let mut acts = Vec::new();
    while scene.now < until {
        scene.now += scene.quorums.tick_interval().unwrap();
        let end = |partition: &PartitionId| at(if *partition == log() { scene.end } else { 0 });
        let ends = |partition: &PartitionId| Some(Ends { offered: end(partition), written: end(partition) });
        acts.extend(scene.quorums.tick(scene.now, ends));
    }
    acts
}

/// Nobody says that a member over QUIC is gone: the first partition that waits for it finds out for all.
#[test]
fn a_member_that_says_nothing_costs_one_pause_for_all_partitions() {
    let (mut scene, other) = with_another(2, false);
    assert_eq!(pass_alone(&mut scene, TIMEOUT), [(log(), Act::GiveUp(at(100)))]);
    let text = scene.quorums.admit(&other, false, scene.now).unwrap_err().to_string();
    assert!(text.contains("slave 0 (h:1) is silent since "), "{text}");
    assert!(scene.admit().unwrap_err().contains("slave 0 (h:1) is behind since"), "as it was told of before");
    // With its first word it counts again where it is level.
    assert_eq!(scene.get(0, 0), None);
    assert_eq!(scene.quorums.admit(&other, false, scene.now), Ok(Admission::Full));
    assert!(scene.admit().is_err());
}

/// One that asks for something else meanwhile is alive, and slow with one partition only.
#[test]
fn a_member_that_is_slow_with_one_partition_counts_in_others() {
    let (mut scene, other) = with_another(2, false);
    pass_alone(&mut scene, TIMEOUT / 2);
    assert_eq!(scene.quorums.on_get(slave(0), &other, at(0), at(0), scene.now), None);
    assert_eq!(pass_alone(&mut scene, TIMEOUT / 2), [(log(), Act::GiveUp(at(100)))]);
    assert_eq!(scene.quorums.admit(&other, false, scene.now), Ok(Admission::Full));
    assert!(scene.admit().is_err());
}

/// Where a downgrade is allowed the others are not asked for a silent member either, and are again when it is back.
#[test]
fn a_downgrade_for_a_silent_member_ends_in_all_partitions() {
    let (mut scene, other) = with_another(2, true);
    pass_alone(&mut scene, TIMEOUT);
    let of_other = |scene: &Scene| scene.quorums.confirmed().find(|(log, _)| **log == other).unwrap().1;
    assert_eq!(of_other(&scene), None, "nobody is asked");
    assert_eq!(scene.get(0, 100), Some(Act::Hold));
    // Until the tick that tells it, a put asks for the members by itself, and is counted once more.
    assert_eq!(scene.quorums.admit(&other, false, scene.now), Ok(Admission::Downgraded(Some(Act::Hold))));
    scene.quorums.held(&other, at(0));
    assert_eq!(scene.quorums.admit(&other, false, scene.now), Ok(Admission::Full));
}

#[test]
fn with_others_enough_a_member_that_hangs_costs_nothing() {
    let mut scene = Scene::new(2, false);
    for id in 0..2 {
        scene.connect(id);
    }
    scene.admit().unwrap();
    for end in [100, 200, 300] {
        scene.end = end;
        assert_eq!(scene.get(0, end), Some(Act::Confirm(at(end))));
        assert_eq!(scene.pass(TIMEOUT * 2), []);
        assert_eq!(scene.admit(), FULL);
    }
}

/// No put waits longer than the time-out, none is given up long before it, whenever it came.
#[test]
fn every_put_is_given_up_in_its_time() {
    let mut scene = Scene::new(2, false);
    scene.connect(0);
    scene.admit().unwrap();
    let mut appended = Vec::new();
    let mut given_up = Vec::new();
    while given_up.len() < 100 {
        if appended.len() < 100 {
            scene.end += 10;
            appended.push((scene.end, scene.now));
        }
        for act in scene.pass(Duration::from_millis(33)) {
            let Act::GiveUp(to) = act else { panic!("{act:?}") };
            while let Some((_, since)) = appended.get(given_up.len()).filter(|(end, _)| at(*end) <= to) {
                given_up.push(scene.now - *since);
            }
        }
    }
    for waited in given_up {
        // A tick that overlaps `pass` adds to what is seen here, not to what a put waits.
        assert!(waited <= TIMEOUT + Duration::from_millis(83) && waited >= TIMEOUT * 8 / 10, "{waited:?}");
    }
}

/// The master's own disk stalls: nobody else is to blame.
#[test]
fn a_slow_master_blames_no_slave() {
    let mut scene = Scene::new(2, false);
    scene.connect(0);
    scene.admit().unwrap();
    let mut acts = Vec::new();
    for _ in 0..50 {
        scene.now += Duration::from_millis(50);
        let ends = |_: &PartitionId| Some(Ends { offered: at(0), written: at(100) });
        acts.extend(scene.quorums.tick(scene.now, ends));
    }
    assert_eq!(acts, [(log(), Act::GiveUp(at(100)))]);
    assert_eq!(scene.admit(), FULL);
}
