//! What lines mean (wire-protocol, "1.3" and "1.10"), what is refused and with which words, and where the limits lie.

use bytes::BytesMut;
use metaq_types::limits::{DISCARD_BYTES_MAX, HEADER_LINE_BYTES_MAX, MESSAGE_BYTES_MAX, TOPIC_NAME_BYTES_MAX};
use metaq_types::{MessageId, Opaque};
use metaq_wire::{
    DecodeError, Decoded, Get, Greeting, Put, Request, Role, Stats, Sync, Text, Transaction, TransactionKey,
    TransactionKind, Version, decode,
};
use std::time::Duration;

fn decoded(bytes: &str) -> Result<Option<Decoded>, DecodeError> {
    let mut buf = BytesMut::from(bytes);
    let decoded = decode(&mut buf);
    match &decoded {
        Ok(Some(Decoded::Request(_))) => assert!(buf.is_empty(), "{bytes:?} left {buf:?}"),
        Ok(None) => assert_eq!(buf, bytes, "untouched while more bytes are needed"),
        _ => {}
    }
    decoded
}

fn request(bytes: &str) -> Request {
    match decoded(bytes) {
        Ok(Some(Decoded::Request(request))) => request,
        other => panic!("{bytes:?}: {other:?}"),
    }
}

fn refused(bytes: &str) -> DecodeError {
    decoded(bytes).expect_err(bytes)
}

fn version(opaque: i32) -> Request {
    Request::Version(Version { opaque: Opaque(opaque), greeting: None })
}

fn stats(item: &str, opaque: i32) -> Request {
    Request::Stats(Stats { item: Text::from(item), opaque: Opaque(opaque) })
}

fn put(text: &str) -> Put {
    match request(text) {
        Request::Put(put) => put,
        other => panic!("{other:?}"),
    }
}

#[test]
fn words_are_told_by_their_first_letter() {
    let get = Request::Get(Get {
        topic: Text::from("t"),
        group: Text::from("g"),
        partition: 0,
        offset: -1,
        max_bytes: 10,
        opaque: Opaque(7),
        wait: None,
        held: None,
    });
    for (line, expected) in [
        ("version 3\r\n", version(3)),
        ("version\r\n", version(i32::MAX)),
        ("version +5\r\n", version(5)),
        ("version -2147483648 and more\r\n", version(i32::MIN)),
        ("vfoo 3\r\n", version(3)),
        ("values 3\r\n", version(3)),
        ("quit\r\n", Request::Quit),
        ("qxyz 1 2 3\r\n", Request::Quit),
        ("stats\r\n", stats("", i32::MAX)),
        ("stats \r\n", stats("", i32::MAX)),
        ("stats  -5\r\n", stats("", -5)),
        ("stats 7\r\n", stats("7", i32::MAX)),
        ("stats topics 7 x\r\n", stats("topics", 7)),
        ("get t g 0 -1 10 7\r\n", get.clone()),
        ("get t g 0 -1 10 7 \r\n", get.clone()),
        ("get t g +0 -1 10 7 8 9 10 11\r\n", get),
        ("result 200 0 131\r\n", Request::Response),
        ("result 200 3 131 more\r\nabc", Request::Response),
        ("value 3 132\r\nabc", Request::Response),
    ] {
        assert_eq!(request(line), expected, "{line:?}");
    }
}

#[test]
fn every_form_of_a_put_is_taken() {
    let key = || TransactionKey::parse(&Text::from("TX:s:1")).unwrap();
    for (head, checksum, transaction) in [
        ("put t 0 5 0 9", None, None),
        ("put t 0 5 0 907060870 9", Some(907_060_870), None),
        ("put t 0 5 0 -1 9", None, None),
        ("put t 0 5 0 -2 9", Some(-2), None),
        // A plain CRC-32 is the number of the same bits, but for the one that would be "not supplied".
        ("put t 0 5 0 2147483648 9", Some(i32::MIN), None),
        ("put t 0 5 0 4294967294 9", Some(-2), None),
        ("put t 0 5 0 TX:s:1 9", None, key()),
        ("put t 0 5 0 null 9", None, None),
        ("put t 0 5 0 -1 TX:s:1 9", None, key()),
        ("put t 0 5 0 +7 TX:s:1 9", Some(7), key()),
        ("put t 0 5 0 12345 null 9  ", Some(12345), None),
    ] {
        let put = put(&format!("{head}\r\nhello"));
        assert_eq!((put.checksum, put.transaction), (checksum, transaction), "{head}");
        assert_eq!(
            (&*put.topic, put.partition, put.flag, put.opaque, &put.body[..]),
            ("t", 0, 0, Opaque(9), &b"hello"[..])
        );
    }
    assert_eq!(put("put t -1 0 -2147483648 -1 -9\r\n").flag, i32::MIN);
    assert_eq!(put("put \u{8ba2}\u{5355} 0 4 0 1\r\n\r\n\r\n").topic, "\u{8ba2}\u{5355}");
}

#[test]
fn both_forms_of_a_sync_are_taken() {
    for (head, checksum) in
        [("sync t 3 5 1 -4715 9", None), ("sync t 3 5 1 -4715 -1 9", None), ("sync t 3 5 1 -4715 7 9", Some(7))]
    {
        let expected = Sync {
            topic: Text::from("t"),
            partition: 3,
            flag: 1,
            message_id: MessageId(-4715),
            checksum,
            opaque: Opaque(9),
            body: "hello".into(),
        };
        assert_eq!(request(&format!("{head}\r\nhello")), Request::Sync(expected), "{head}");
    }
}

#[test]
fn a_timeout_is_told_from_a_qualifier_by_its_digits() {
    for (line, key, timeout_seconds, qualifier) in [
        ("transaction TX:s:1 s BEGIN 1\r\n", "TX:s:1", None, None),
        ("transaction TX:s:1 s BEGIN 30 1\r\n", "TX:s:1", Some(30), None),
        ("transaction TX:s:1 s BEGIN -5 1\r\n", "TX:s:1", None, Some("-5")),
        ("transaction XID:1:aa:bb:q s BEGIN q 1\r\n", "XID:1:aa:bb:q", None, Some("q")),
        ("transaction XID:1:aa:bb:q s BEGIN 60 q 1\r\n", "XID:1:aa:bb:q", Some(60), Some("q")),
        ("transaction XID:1:aa:bb:q s BEGIN -60 7 1\r\n", "XID:1:aa:bb:q", Some(-60), Some("7")),
        ("transaction null s BEGIN q 1\r\n", "null", None, Some("q")),
    ] {
        let expected = Transaction {
            key: TransactionKey::parse(&Text::from(key)).unwrap(),
            session: Text::from("s"),
            kind: TransactionKind::Begin,
            timeout_seconds,
            qualifier: qualifier.map(Text::from),
            opaque: Opaque(1),
        };
        assert_eq!(request(line), Request::Transaction(expected), "{line:?}");
    }
    for kind in TransactionKind::ALL {
        let line = format!("transaction null s {} 1\r\n", kind.word());
        assert!(matches!(request(&line), Request::Transaction(transaction) if transaction.kind == kind));
    }
}

#[test]
fn our_own_words_come_after_the_opaque() {
    let wait = |line: &str| match request(line) {
        Request::Get(get) => get.wait.map(|wait| wait.as_millis()),
        other => panic!("{other:?}"),
    };
    assert_eq!(wait("get t g 0 0 10 7 wait=500\r\n"), Some(500));
    assert_eq!(wait("get t g 0 0 10 7  new=1 wait=0 wait=9 x\r\n"), Some(0));
    for ignored in ["wait=", "wait=-1", "wait=+1", "wait=1s", "wait", "WAIT=1", "wait=18446744073709551616"] {
        assert_eq!(wait(&format!("get t g 0 0 10 7 {ignored}\r\n")), None, "{ignored}");
    }

    let greeting = Greeting {
        slave_id: Some(2),
        epoch: 7,
        node: Text::from("6f1e"),
        catalog: Some(12),
        ids: Some(i64::MAX),
        wait: Some(Duration::from_secs(1)),
        ..Greeting::new(Role::Slave)
    };
    let line = "version 9 role=slave id=2 epoch=7 node=6f1e catalog=12 ids=9223372036854775807 wait=1000 also=new\r\n";
    assert_eq!(request(line), Request::Version(Version { opaque: Opaque(9), greeting: Some(greeting) }));
    assert_eq!(request("version 9 epoch=7\r\n"), version(9));
}

#[test]
fn malformed_lines_are_refused_in_words() {
    for (line, opaque, reason) in [
        ("\r\n", None, "empty line"),
        (" \r\n", None, "empty line"),
        (" version 1\r\n", None, "begin with a blank"),
        ("hello\r\n", None, "unknown command 'hello'; known are put, get"),
        ("Put test 0 3 0 1\r\n", None, "unknown command 'Put'"),
        ("VERSION 1\r\n", None, "unknown command 'VERSION'"),
        ("puts test 0 3 0 1\r\n", None, "unknown command 'puts'"),
        ("gat test g 0 0 10 1\r\n", None, "unknown command 'gat'"),
        ("stat\r\n", None, "unknown command 'stat'"),
        ("results 1\r\n", None, "unknown command 'results'"),
        ("\u{1f600}\r\n", None, "unknown command"),
        ("get\r\n", None, "1 words where at least 7 are expected: get TOPIC GROUP PARTITION OFFSET MAXSIZE OPAQUE"),
        ("get test g 0 0 10\r\n", None, "6 words where at least 7"),
        ("get test g x 0 10 1\r\n", Some(1), "partition 'x' is not a whole number from -2147483648 to 2147483647"),
        ("get test g 0 99999999999999999999 10 1\r\n", Some(1), "offset '99999999999999999999' is not"),
        ("get test  g 0 0 10 1\r\n", Some(10), "partition 'g'"),
        ("get test g 0 0 10 x\r\n", None, "opaque 'x'"),
        ("offset test g\r\n", None, "3 words where at least 6"),
        ("offset test g 0 0 2147483648\r\n", None, "opaque '2147483648'"),
        ("version x\r\n", None, "opaque 'x'"),
        ("version 2147483648\r\n", None, "opaque '2147483648'"),
        ("stats topics x\r\n", None, "opaque 'x'"),
        ("put test 0 3\r\n", Some(3), "4 words where 6 to 8 are expected"),
        ("put test 0 3 0 1 2 3 4 5\r\n", Some(5), "10 words where 6 to 8"),
        ("put test 0 -3 0 1\r\n", Some(1), "body length '-3' is not a whole number from 0"),
        ("put test 0 x 0 1\r\n", Some(1), "body length 'x'"),
        ("put test 0 3000000000 0 1\r\n", Some(1), "body length '3000000000'"),
        ("put test 0 2147483647 0 1\r\n", Some(1), "a body of 2147483647 bytes is longer than 2097132"),
        ("put  test 0 3 0 1\r\n", Some(1), "partition 'test'"),
        ("put test 0 3 0 +5 1\r\nabc", Some(1), "transaction key '+5' begins with neither"),
        ("put test 0 3 0  1\r\nabc", Some(1), "transaction key ''"),
        ("put test 0 3 0 -1 foo 1\r\nabc", Some(1), "transaction key 'foo'"),
        ("put test 0 3 x 1\r\nabc", Some(1), "flag 'x'"),
        ("put test 0 3 0 1x 1\r\nabc", Some(1), "checksum '1x'"),
        ("put test 0 3 0 4294967295 1\r\nabc", Some(1), "checksum '4294967295'"),
        ("put test 0 3 0 4294967296 1\r\nabc", Some(1), "checksum '4294967296'"),
        ("sync test 0 3 0 1\r\n", Some(1), "6 words where 7 to 8"),
        ("sync test 0 3 0 x 1\r\nabc", Some(1), "message id 'x'"),
        ("transaction TX:s:1 s\r\n", None, "3 words where 5 to 7"),
        ("transaction foo s BEGIN 1\r\n", Some(1), "transaction key 'foo'"),
        ("transaction TX:s:1 s NOPE 1\r\n", Some(1), "unknown transaction type 'NOPE'; known are BEGIN"),
        ("transaction TX:s:1  s BEGIN 1\r\n", Some(1), "unknown transaction type 's'"),
        ("transaction TX:s:1 s BEGIN  1\r\n", Some(1), "timeout ''"),
        ("transaction TX:s:1 s BEGIN 2147483648 1\r\n", Some(1), "timeout '2147483648'"),
        ("transaction XID:1:00 s BEGIN q 1\r\n", Some(1), "has 3 parts"),
        ("value 3\r\n", None, "2 words where at least 3"),
        ("value 2097133 1\r\n", None, "longer than 2097132"),
        ("result x 0 1\r\n", None, "code 'x'"),
    ] {
        let error = refused(line);
        assert_eq!(error.opaque, opaque.map(Opaque), "{line:?}: {error}");
        assert!(error.reason.contains(reason), "{line:?}: {error}");
    }
}

#[test]
fn one_malformed_line_does_not_spoil_those_before_it() {
    let mut buf = BytesMut::from("version 140\r\nput t 0 0 0 1\r\n\r\nversion 142\r\n");
    assert_eq!(decode(&mut buf), Ok(Some(Decoded::Request(version(140)))));
    assert!(matches!(decode(&mut buf), Ok(Some(Decoded::Request(Request::Put(_))))));
    assert!(decode(&mut buf).unwrap_err().reason.contains("empty line"));
}

#[test]
fn a_line_that_does_not_end_is_refused_at_its_limit() {
    let line = "v".repeat(HEADER_LINE_BYTES_MAX);
    assert_eq!(decoded(&line), Ok(None));
    assert_eq!(decoded("version 1\n"), Ok(None));
    assert_eq!(request(&format!("{line}\r\n")), version(i32::MAX));
    assert!(refused(&format!("{line}vv")).reason.contains("within 8192 bytes"));
    assert!(refused(&format!("{line}v\r\n")).reason.contains("within 8192 bytes"));
    // The end of a later line is not taken for this one's.
    assert!(refused(&format!("{}\r\n", "v".repeat(10 << 20))).reason.contains("within 8192 bytes"));
}

#[test]
fn names_have_limits() {
    let topic = "t".repeat(TOPIC_NAME_BYTES_MAX);
    assert_eq!(put(&format!("put {topic} 0 0 0 1\r\n")).topic, topic.as_str());
    for (line, reason) in [
        (format!("put {topic}x 0 0 0 1\r\n"), "of 201 bytes is longer than 200"),
        (format!("stats {topic}x 1\r\n"), "of 201 bytes is longer than 200"),
        (format!("get t {} 0 0 1 1\r\n", "g".repeat(256)), "of 256 bytes is longer than 255"),
        (format!("offset t {} 0 0 1\r\n", "g".repeat(256)), "of 256 bytes is longer than 255"),
        (format!("transaction null {} BEGIN 1\r\n", "s".repeat(256)), "session id"),
        (format!("transaction null s RECOVER {} 1\r\n", "q".repeat(256)), "qualifier"),
    ] {
        let error = refused(&line);
        assert_eq!(error.opaque, Some(Opaque(1)), "{error}");
        assert!(error.reason.contains(reason), "{error}");
    }
}

/// Limits are decided from the header alone: none of the bodies below ever comes.
#[test]
fn a_body_that_is_too_long_is_told_before_it_comes() {
    for head in ["put t 3 LENGTH 0 9", "put t 3 LENGTH 0 -1 TX:s:1 9", "sync t 3 LENGTH 0 77 -1 9"] {
        let head = |bytes: u32| format!("{}\r\n", head.replace("LENGTH", &bytes.to_string()));
        assert_eq!(decoded(&head(MESSAGE_BYTES_MAX)), Ok(None));
        for bytes in [MESSAGE_BYTES_MAX + 1, DISCARD_BYTES_MAX] {
            let mut buf = BytesMut::from(format!("{}begin", head(bytes)).as_str());
            let expected = Decoded::TooLarge { opaque: Opaque(9), topic: Text::from("t"), partition: 3, bytes };
            assert_eq!(decode(&mut buf), Ok(Some(expected)));
            assert_eq!(buf, "begin");
        }
        let error = refused(&head(DISCARD_BYTES_MAX + 1));
        assert_eq!(error.opaque, Some(Opaque(9)));
    }
    assert!(refused("put t x 3000000 0 9\r\n").reason.contains("partition 'x'"));
    assert_eq!(
        put(&format!("put t 0 {MESSAGE_BYTES_MAX} 0 1\r\n{}", "x".repeat(MESSAGE_BYTES_MAX as usize))).body.len(),
        MESSAGE_BYTES_MAX as usize
    );
}

/// The whole point of the buffers: what a put carries is not copied.
#[test]
fn a_put_shares_the_bytes_it_came_in() {
    let mut buf = BytesMut::from("put topic 0 5 0 TX:session:1 9\r\nhello");
    let memory = buf.as_ptr_range();
    let Ok(Some(Decoded::Request(Request::Put(put)))) = decode(&mut buf) else { panic!() };
    let Some(TransactionKey::Local { session, .. }) = &put.transaction else { panic!() };
    for shared in [put.topic.as_bytes(), session.as_bytes(), &put.body] {
        assert!(memory.contains(&shared.as_ptr()));
    }
}

#[test]
fn malformed_utf8_is_replaced_not_refused() {
    let mut buf = BytesMut::from(&b"put t\xff\xe4 0 0 0 9\r\n"[..]);
    let Ok(Some(Decoded::Request(Request::Put(put)))) = decode(&mut buf) else { panic!() };
    assert_eq!(put.topic, "t\u{fffd}\u{fffd}");
}
