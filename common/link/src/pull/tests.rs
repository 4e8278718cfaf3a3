use bytes::BytesMut;
use metaq_types::MessageId;
use metaq_wire::RecordHeader;

use super::*;

const DELAY: Duration = Duration::from_millis(500);

fn at(offset: u64) -> Offset {
    Offset::new(offset).unwrap()
}

fn record(id: i64, body: &[u8]) -> Bytes {
    let mut bytes = BytesMut::from(&RecordHeader::of(MessageId(id), 0, body).encode()[..]);
    bytes.extend_from_slice(body);
    bytes.freeze()
}

fn records(count: i64) -> Bytes {
    let mut bytes = BytesMut::new();
    for id in 1..=count {
        bytes.extend_from_slice(&record(id, b"0123456789"));
    }
    bytes.freeze()
}

fn value(body: Bytes, segment: u64, end: u64) -> Answer {
    Answer::Value {
        body,
        extra: Some(ValueExtra { segment: at(segment), end: at(end), epoch: 0, journal: None, confirmed: None }),
    }
}

fn present(first: u64, end: u64) -> Pull {
    Pull::new(Log::Present { first: at(first), end: at(end) })
}

#[test]
fn whole_records_are_appended_and_the_torn_rest_is_asked_for_again() {
    let mut pull = present(0, 300);
    let body = records(3);
    let torn = body.slice(..75);
    let step = pull.on_answer(value(torn, 0, 390), DELAY);
    assert_eq!(step, Step::Append { at: at(300), segment: Some(at(0)), bytes: body.slice(..60) });
    pull.on_appended(at(360));
    assert_eq!(pull.next_get(), Some(NextGet { offset: at(360), waiting: true, bytes_min: 0 }));
    assert!(matches!(pull.on_answer(value(body.slice(60..), 0, 390), DELAY), Step::Append { .. }));
    pull.on_appended(at(390));
    assert_eq!(pull.next_get(), Some(NextGet { offset: at(390), waiting: false, bytes_min: 0 }));
}

#[test]
fn a_missing_log_begins_where_the_masters_begins() {
    let mut pull = Pull::new(Log::Absent { from: Offset::ZERO });
    assert_eq!(pull.on_answer(Answer::NoPartition { early: false }, DELAY), Step::Get);
    assert_eq!(pull.on_answer(Answer::Moved(at(4096)), DELAY), Step::Get);
    assert_eq!(pull.next_get().map(|get| get.offset), Some(at(4096)));
    let step = pull.on_answer(value(records(1), 4096, 4126), DELAY);
    assert!(matches!(step, Step::Append { at: first, .. } if first == at(4096)));
    pull.on_appended(at(4126));
    assert_eq!(pull.log(), Log::Present { first: at(4096), end: at(4126) });
}

#[test]
fn an_empty_log_of_the_master_is_created_with_its_first_offset() {
    let mut pull = Pull::new(Log::Absent { from: Offset::ZERO });
    pull.on_listing(at(5000), at(5000));
    assert_eq!(pull.on_answer(Answer::Nothing { early: true }, DELAY), Step::Create { first: at(5000) });
    pull.on_created(at(5000));
    assert_eq!(pull.on_answer(Answer::Nothing { early: false }, DELAY), Step::Get);
}

#[test]
fn a_log_never_begins_inside_a_segment_of_the_master() {
    let mut pull = Pull::new(Log::Absent { from: at(130) });
    assert_eq!(pull.on_answer(value(records(1), 100, 500), DELAY), Step::Get);
    assert_eq!(pull.position(), at(100));
}

#[test]
fn a_gap_is_stepped_over_where_a_segment_begins() {
    let mut pull = present(0, 1000);
    assert_eq!(pull.on_answer(Answer::Moved(at(5000)), DELAY), Step::Get);
    assert_eq!(pull.next_get().unwrap().offset, at(5000), "looked at first");
    assert_eq!(pull.on_answer(value(records(1), 5000, 9000), DELAY), Step::StepOver { to: at(5000) });
    pull.on_stepped_over(at(5000));
    assert_eq!(pull.log(), Log::Present { first: at(0), end: at(5000) });
    assert!(pull.note().unwrap().contains("gap: the master no longer had 1000 to 5000"));
    assert!(
        matches!(pull.on_answer(value(records(1), 5000, 9000), DELAY), Step::Append { at: from, .. } if from == at(5000))
    );

    // A master whose log is empty above the gap.
    let mut pull = present(0, 1000);
    assert_eq!(pull.on_answer(Answer::Moved(at(5000)), DELAY), Step::Get);
    assert_eq!(pull.on_answer(Answer::Nothing { early: true }, DELAY), Step::StepOver { to: at(5000) });
}

#[test]
fn damage_inside_the_masters_log_is_not_stepped_over() {
    let mut pull = present(0, 1000);
    assert_eq!(pull.on_answer(Answer::Moved(at(1200)), DELAY), Step::Get);
    assert_eq!(pull.on_answer(value(records(1), 0, 9000), DELAY), Step::Stop);
    assert_eq!(pull.stopped(), Some(&Stop::Damaged { own_end: at(1000), master_goes_on: at(1200) }));
    assert_eq!(pull.next_get(), None);
}

#[test]
fn a_slave_beyond_its_master_stops() {
    let mut pull = present(0, 1000);
    pull.on_listing(at(0), at(900));
    assert_eq!(pull.stopped(), Some(&Stop::Diverged { own_end: at(1000), master_end: at(900) }));

    let mut pull = present(0, 1000);
    assert_eq!(pull.on_answer(Answer::Moved(at(900)), DELAY), Step::Stop);
    assert_eq!(pull.stopped(), Some(&Stop::Diverged { own_end: at(1000), master_end: at(900) }));

    let mut level = present(0, 1000);
    level.on_listing(at(0), at(1000));
    assert_eq!(level.stopped(), None);
}

#[test]
fn a_record_larger_than_the_fetch_is_fetched_by_its_size() {
    let mut pull = present(0, 0);
    let big = record(1, &[7; 5000]);
    assert_eq!(pull.on_answer(value(big.slice(..1000), 0, 5020), DELAY), Step::Get);
    assert_eq!(pull.next_get(), Some(NextGet { offset: at(0), waiting: true, bytes_min: 5020 }));
    assert!(matches!(pull.on_answer(value(big, 0, 5020), DELAY), Step::Append { .. }));
    pull.on_appended(at(5020));
    assert_eq!(pull.next_get().map(|get| get.bytes_min), Some(0));
}

#[test]
fn even_a_header_that_is_cut_is_fetched_whole() {
    let mut pull = present(0, 0);
    assert_eq!(pull.on_answer(value(records(1).slice(..7), 0, 30), DELAY), Step::Get);
    assert_eq!(pull.next_get().map(|get| get.bytes_min), Some(20));
    assert_eq!(pull.on_answer(value(records(1).slice(..20), 0, 30), DELAY), Step::Get);
    assert_eq!(pull.next_get().map(|get| get.bytes_min), Some(30));
}

#[test]
fn a_master_that_cannot_deliver_a_record_is_told_the_size() {
    let mut pull = present(0, 0);
    let part = record(1, &[7; 5000]).slice(..1000);
    pull.on_answer(value(part.clone(), 0, 5020), DELAY);
    assert_eq!(pull.on_answer(value(part, 0, 5020), DELAY), Step::Stop);
    let text = pull.stopped().unwrap().to_string();
    assert!(text.contains("set maxTransferSize on the master to at least 5020"), "{text}");
}

#[test]
fn a_bad_record_stops_the_partition_after_some_tries_and_what_precedes_it_is_kept() {
    let mut pull = present(0, 0);
    let mut body = BytesMut::from(&records(3)[..]);
    body[30 + 25] ^= 1;
    let body = body.freeze();
    let step = pull.on_answer(value(body.clone(), 0, 90), DELAY);
    assert_eq!(step, Step::Append { at: at(0), segment: Some(at(0)), bytes: body.slice(..30) });
    pull.on_appended(at(30));
    for _ in 1..FAULTS_MAX {
        assert!(matches!(pull.on_answer(value(body.slice(30..), 0, 90), DELAY), Step::Pause(_)));
        assert_eq!(pull.position(), at(30));
    }
    assert_eq!(pull.on_answer(value(body.slice(30..), 0, 90), DELAY), Step::Stop);
    assert!(matches!(pull.stopped(), Some(Stop::Corrupt { at: offset, .. }) if *offset == at(30)));
}

#[test]
fn a_bad_answer_that_heals_leaves_no_trace() {
    let mut pull = present(0, 0);
    let mut bad = BytesMut::from(&records(1)[..]);
    bad[25] ^= 1;
    pull.on_answer(value(bad.freeze(), 0, 30), DELAY);
    assert!(matches!(pull.on_answer(value(records(1), 0, 30), DELAY), Step::Append { .. }));
    pull.on_appended(at(30));
    assert_eq!((pull.faults, pull.stopped()), (0, None));
}

#[test]
fn garbage_and_zeros_are_never_appended() {
    for garbage in [vec![0xff; 64], vec![0; 64]] {
        let mut pull = present(0, 0);
        let answer = value(Bytes::from(garbage), 0, 64);
        assert!(matches!(pull.on_answer(answer, DELAY), Step::Pause(_)));
        assert_eq!(pull.position(), at(0));
    }
    let mut pull = present(0, 0);
    let length = Bytes::from(vec![0x7f; 20]);
    assert!(matches!(pull.on_answer(value(length, 0, 64), DELAY), Step::Pause(_)), "2 GiB are not asked for");
}

#[test]
fn what_passes_by_itself_is_noted_and_tried_again() {
    let mut pull = present(0, 0);
    assert!(matches!(pull.on_answer(Answer::Refused("busy".into()), DELAY), Step::Pause(_)));
    assert_eq!(pull.note().as_deref(), Some("the master answers: busy"));
    assert!(matches!(pull.on_answer(value(records(1), 0, 30), DELAY), Step::Append { .. }));
    assert!(matches!(pull.on_local_trouble("disk full".into()), Step::Pause(_)));
    assert_eq!((pull.note().as_deref(), pull.position()), (Some("waiting: disk full"), at(0)));
    assert!(matches!(pull.on_answer(value(records(1), 0, 30), DELAY), Step::Append { .. }));
    pull.on_appended(at(30));
    assert_eq!((pull.note(), pull.stopped()), (None, None));
}

#[test]
fn a_master_that_does_not_wait_is_polled_ever_more_slowly() {
    let mut pull = present(0, 0);
    let mut pauses = Vec::new();
    for _ in 0..12 {
        if let Step::Pause(pause) = pull.on_answer(Answer::Nothing { early: true }, DELAY) {
            pauses.push(pause.as_millis());
        }
    }
    assert_eq!(pauses, [50, 100, 150, 200, 250, 300, 350, 400, 450, 500, 500, 500]);
    let java = Answer::Value { body: records(1), extra: None };
    assert!(matches!(pull.on_answer(java, DELAY), Step::Append { segment: None, .. }));
    pull.on_appended(at(30));
    assert_eq!(pull.next_get().map(|get| get.waiting), Some(true), "until it says that there is nothing");
    assert_eq!(pull.on_answer(Answer::Nothing { early: true }, DELAY), Step::Pause(DELAY / 10));
    assert_eq!(pull.next_get().map(|get| get.waiting), Some(false));
}

#[test]
fn an_original_that_has_not_flushed_what_it_handed_out_has_not_diverged() {
    let mut pull = present(0, 300);
    pull.set_unflushed();
    pull.on_listing(at(0), at(200));
    assert!(pull.next_get().is_some());
    let compare = Step::Compare { master_end: at(200) };
    assert_eq!(pull.on_answer(Answer::Moved(at(200)), DELAY), compare);
    assert!(matches!(pull.on_compared(true, at(200), DELAY), Step::Pause(_)));
    assert_eq!(pull.next_get().map(|get| get.offset), Some(at(300)));
    assert_eq!(pull.on_answer(Answer::Moved(at(200)), DELAY), compare);
    assert_eq!(pull.on_compared(false, at(200), DELAY), Step::Stop);
    assert_eq!(pull.stopped(), Some(&Stop::Diverged { own_end: at(300), master_end: at(200) }));
}

#[test]
fn what_follows_in_the_same_segment_is_appended_behind_when_all_of_it_is_good() {
    let mut pull = present(0, 300);
    let body = records(2);
    assert!(matches!(pull.on_answer(value(body.clone(), 0, 400), DELAY), Step::Append { .. }));
    let (segment, journal) = (at(0), at(1000));
    let also = pull.also(segment, journal, &value(body.clone(), 0, 500));
    assert_eq!(also, Some(body.clone()));
    assert_eq!(pull.master_end(), Some(at(500)));
    assert_eq!(pull.position(), at(300), "nothing is stored yet");

    let mut bad = BytesMut::from(&body[..]);
    bad[59] ^= 1;
    let behind_the_journal = |bound| Answer::Value {
        body: body.clone(),
        extra: Some(ValueExtra { segment: at(0), end: at(500), epoch: 0, journal: Some(at(bound)), confirmed: None }),
    };
    for alone in [
        value(body.slice(..59), 0, 600),
        value(bad.freeze(), 0, 600),
        value(body.clone(), 360, 600),
        value(Bytes::new(), 0, 600),
        Answer::Value { body: body.clone(), extra: None },
        behind_the_journal(1001),
        Answer::Nothing { early: false },
        Answer::Moved(at(600)),
    ] {
        assert_eq!(pull.also(segment, journal, &alone), None, "{alone:?}");
        assert_eq!(pull.master_end(), Some(at(500)));
    }
    assert!(pull.also(segment, journal, &behind_the_journal(1000)).is_some());
    for end in [360, 420] {
        pull.on_appended(at(end));
        assert_eq!(pull.next_get().map(|get| get.offset), Some(at(end)));
    }
}
