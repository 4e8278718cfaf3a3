//! Round trips, splits at any place, and arbitrary bytes.
#![expect(clippy::unwrap_used, reason = "also in the functions that tests share")]

use bytes::{Buf, BytesMut};
use metaq_types::{MessageId, Offset, Opaque, Status};
use metaq_wire::{
    DecodeError, Decoded, Get, Greeting, Level, OffsetQuery, Put, RecordHeader, Records, Request, Response, Role,
    Stats, Text, Transaction, TransactionKey, TransactionKind, ValueExtra, Version, decode, decode_response,
    encode_get, encode_offset, encode_put, encode_quit, encode_result, encode_stats, encode_transaction,
    encode_transactional_put, encode_value_head, encode_version, skip,
};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use std::time::Duration;

/// A word of printable characters, some of them not ASCII.
fn name() -> impl Strategy<Value = Text> {
    vec(prop_oneof![prop::char::range('!', '~'), prop::char::range('一', '龥')], 1..40)
        .prop_map(|name| Text::from(name.into_iter().collect::<String>()))
}

/// A part of a transaction key; not empty at the end, where it would not count.
fn part() -> impl Strategy<Value = Text> {
    name().prop_map(|name| Text::from(format!("{}x", name.replace(':', ""))))
}

fn key() -> impl Strategy<Value = TransactionKey> {
    prop_oneof![
        (part(), any::<i32>()).prop_map(|(session, number)| TransactionKey::Local { session, number }),
        (any::<i32>(), vec(any::<u8>(), 0..64), vec(any::<u8>(), 0..64), part()).prop_map(
            |(format_id, global, branch, qualifier)| TransactionKey::Xa { format_id, global, branch, qualifier }
        ),
    ]
}

fn opaque() -> impl Strategy<Value = Opaque> {
    any::<i32>().prop_map(Opaque)
}

fn greeting() -> impl Strategy<Value = Greeting> {
    let numbers =
        (option::of(any::<u64>()), option::of(any::<i64>()), option::of(any::<u32>()), option::of(any::<u64>()));
    let words = (option::of(prop::sample::select(vec![Level::Os, Level::Fsync])), name(), option::of(1..10u32), name());
    (any::<bool>(), option::of(any::<u32>()), any::<u64>(), name(), numbers, words).prop_map(
        |(master, slave_id, epoch, node, (catalog, ids, config, wait), (level, uri, quorum, members))| Greeting {
            role: if master { Role::Master } else { Role::Slave },
            slave_id,
            broker: config,
            epoch,
            node,
            catalog,
            ids,
            config,
            level,
            uri,
            quorum,
            members,
            roll: catalog,
            ahead: master,
            wait: wait.map(Duration::from_millis),
        },
    )
}

fn put() -> impl Strategy<Value = Request> {
    let checksum = prop_oneof![
        Just((None, None)),
        any::<i32>().prop_map(|checksum| (Some(checksum).filter(|checksum| *checksum != -1), None)),
        key().prop_map(|key| (None, Some(key))),
    ];
    (name(), any::<i32>(), any::<i32>(), checksum, opaque(), vec(any::<u8>(), 0..300)).prop_map(
        |(topic, partition, flag, (checksum, transaction), opaque, body)| {
            Request::Put(Put { topic, partition, flag, checksum, transaction, opaque, body: body.into() })
        },
    )
}

fn transaction() -> impl Strategy<Value = Request> {
    // A qualifier of digits alone is read as a timeout, as in the original.
    let qualifier = option::of(name().prop_map(|name| Text::from(format!("{name}-q"))));
    let kind = prop::sample::select(TransactionKind::ALL.to_vec());
    (option::of(key()), name(), kind, option::of(0..i32::MAX), qualifier, opaque()).prop_map(
        |(key, session, kind, timeout_seconds, qualifier, opaque)| {
            Request::Transaction(Transaction { key, session, kind, timeout_seconds, qualifier, opaque })
        },
    )
}

fn request() -> impl Strategy<Value = Request> {
    let named = (option::of(any::<u64>()), option::of(0..=i64::MAX as u64));
    let get = (name(), name(), any::<i32>(), any::<i64>(), any::<i32>(), opaque(), named).prop_map(
        |(topic, group, partition, offset, max_bytes, opaque, (wait, held))| {
            let (wait, held) = (wait.map(Duration::from_millis), held.and_then(Offset::new));
            Request::Get(Get { topic, group, partition, offset, max_bytes, opaque, wait, held })
        },
    );
    let offset =
        (name(), name(), any::<i32>(), any::<i64>(), opaque()).prop_map(|(topic, group, partition, offset, opaque)| {
            Request::Offset(OffsetQuery { topic, group, partition, offset, opaque })
        });
    let stats = (option::of(name()), opaque())
        .prop_map(|(item, opaque)| Request::Stats(Stats { item: item.unwrap_or_default(), opaque }));
    let version = (opaque(), option::of(greeting()))
        .prop_map(|(opaque, greeting)| Request::Version(Version { opaque, greeting }));
    prop_oneof![put(), get, offset, stats, version, transaction(), Just(Request::Quit)]
}

fn response() -> impl Strategy<Value = Response> {
    let status = prop::sample::select(vec![Status::Success, Status::Moved, Status::NotFound, Status::Forbidden]);
    let offset = || (0..=i64::MAX as u64).prop_map(|offset| Offset::new(offset).unwrap());
    let (journal, confirmed) = (proptest::option::of(offset()), proptest::option::of(offset()));
    let extra = (offset(), offset(), any::<u64>(), journal, confirmed)
        .prop_map(|(segment, end, epoch, journal, confirmed)| ValueExtra { segment, end, epoch, journal, confirmed });
    prop_oneof![
        (status, opaque(), vec(any::<u8>(), 0..300)).prop_map(|(status, opaque, body)| Response::Result {
            code: status.code().into(),
            opaque,
            body: body.into()
        }),
        (opaque(), vec(any::<u8>(), 1..300), option::of(extra)).prop_map(|(opaque, body, extra)| Response::Value {
            opaque,
            body: body.into(),
            extra
        }),
    ]
}

fn encode_request(out: &mut BytesMut, request: &Request) {
    match request {
        Request::Put(Put { topic, partition, flag, checksum, transaction, opaque, body }) => match transaction {
            None => encode_put(out, topic, *partition, *flag, *checksum, *opaque, body),
            Some(key) => encode_transactional_put(out, topic, *partition, *flag, key, *opaque, body),
        },
        Request::Get(get) => {
            let Get { topic, group, partition, offset, max_bytes, opaque, wait, held } = get;
            encode_get(out, topic, group, *partition, *offset, *max_bytes, *opaque, *wait, *held);
        }
        Request::Offset(query) => {
            encode_offset(out, &query.topic, &query.group, query.partition, query.offset, query.opaque);
        }
        Request::Version(version) => encode_version(out, version.opaque, version.greeting.as_ref()),
        Request::Stats(stats) => encode_stats(out, &stats.item, stats.opaque),
        Request::Transaction(transaction) => encode_transaction(out, transaction),
        Request::Quit => encode_quit(out),
        Request::Sync(_) | Request::Response => unreachable!("not generated"),
    }
}

fn encode_response(out: &mut BytesMut, response: &Response) {
    match response {
        Response::Result { code, opaque, body } => encode_result(out, Status::from_code(*code).unwrap(), *opaque, body),
        Response::Value { opaque, body, extra } => {
            encode_value_head(out, body.len() as u32, *opaque, extra.as_ref());
            out.extend_from_slice(body);
        }
    }
}

/// Decodes what arrives in `pieces`, as a connection would: after each piece as far as it goes.
fn decode_pieces<T>(
    pieces: impl IntoIterator<Item = BytesMut>,
    decode: impl Fn(&mut BytesMut) -> Result<Option<T>, DecodeError>,
) -> (Vec<T>, Option<DecodeError>, BytesMut) {
    let mut buf = BytesMut::new();
    let mut items = Vec::new();
    for piece in pieces {
        buf.extend_from_slice(&piece);
        loop {
            let before = buf.clone();
            match decode(&mut buf) {
                Ok(Some(item)) => items.push(item),
                Ok(None) => {
                    assert_eq!(buf, before, "touched although more bytes are needed");
                    break;
                }
                Err(error) => return (items, Some(error), BytesMut::new()),
            }
        }
    }
    (items, None, buf)
}

fn split(mut bytes: BytesMut, cuts: &[prop::sample::Index]) -> Vec<BytesMut> {
    let mut places: Vec<_> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
    places.sort_unstable();
    let mut taken = 0;
    let mut pieces = Vec::new();
    for place in places {
        pieces.push(bytes.split_to(place - taken));
        taken = place;
    }
    pieces.push(bytes);
    pieces
}

/// Pieces of lines, so that most inputs get beyond the first check.
fn protocol_like() -> impl Strategy<Value = Vec<u8>> {
    const PIECES: [&str; 24] = [
        "put ",
        "get ",
        "offset ",
        "stats ",
        "sync ",
        "transaction ",
        "version ",
        "quit",
        "value ",
        "result ",
        "t ",
        "0 ",
        "-1 ",
        "3 ",
        "2147483648 ",
        "TX:s:1 ",
        "XID:1:aa:bb:q ",
        "null ",
        "BEGIN ",
        "wait=5 ",
        "role=slave ",
        "\r\n",
        "\r\nabc",
        " ",
    ];
    let piece = prop_oneof![
        20 => prop::sample::select(PIECES.to_vec()).prop_map(|piece| piece.as_bytes().to_vec()),
        1 => vec(any::<u8>(), 0..20),
    ];
    prop_oneof![
        4 => vec(piece, 0..60).prop_map(|pieces| pieces.concat()),
        1 => vec(any::<u8>(), 0..400),
    ]
}

proptest! {
    #[test]
    fn requests_come_back_however_they_are_cut(
        requests in vec(request(), 1..8),
        cuts in vec(any::<prop::sample::Index>(), 0..12),
    ) {
        let mut bytes = BytesMut::new();
        requests.iter().for_each(|request| encode_request(&mut bytes, request));
        let (decoded, error, rest) = decode_pieces(split(bytes, &cuts), decode);
        let expected: Vec<_> = requests.into_iter().map(Decoded::Request).collect();
        prop_assert_eq!(decoded, expected);
        prop_assert_eq!((error, rest.len()), (None, 0));
    }

    /// Who only skips requests sees the same ones, with what their answers need.
    #[test]
    fn requests_are_skipped_one_by_one(requests in vec(request(), 1..8)) {
        let mut bytes = BytesMut::new();
        requests.iter().for_each(|request| encode_request(&mut bytes, request));
        for request in &requests {
            let skipped = skip(&mut bytes).unwrap().unwrap();
            let (opaque, body_bytes) = match request {
                Request::Put(put) => (Some(put.opaque), put.body.len()),
                Request::Get(get) => (Some(get.opaque), 0),
                Request::Offset(query) => (Some(query.opaque), 0),
                Request::Version(version) => (Some(version.opaque), 0),
                Request::Stats(stats) => (Some(stats.opaque), 0),
                Request::Transaction(transaction) => (Some(transaction.opaque), 0),
                Request::Sync(_) | Request::Quit | Request::Response => (None, 0),
            };
            prop_assert_eq!((skipped.opaque, skipped.body_bytes as usize), (opaque, body_bytes));
            bytes.advance(body_bytes);
        }
        prop_assert_eq!(skip(&mut bytes), Ok(None));
        prop_assert!(bytes.is_empty());
    }

    #[test]
    fn answers_come_back_however_they_are_cut(
        responses in vec(response(), 1..8),
        cuts in vec(any::<prop::sample::Index>(), 0..12),
    ) {
        let mut bytes = BytesMut::new();
        responses.iter().for_each(|response| encode_response(&mut bytes, response));
        let (decoded, error, rest) = decode_pieces(split(bytes, &cuts), decode_response);
        prop_assert_eq!(decoded, responses);
        prop_assert_eq!((error, rest.len()), (None, 0));
    }

    /// Nothing panics, and what comes out is no larger than what went in and lies in the same memory.
    #[test]
    fn arbitrary_bytes_do_no_harm(bytes in protocol_like(), cuts in vec(any::<prop::sample::Index>(), 0..4)) {
        let whole = decode_pieces([BytesMut::from(&bytes[..])], decode);
        prop_assert_eq!(&decode_pieces(split(BytesMut::from(&bytes[..]), &cuts), decode), &whole);
        let whole = decode_pieces([BytesMut::from(&bytes[..])], decode_response);
        prop_assert_eq!(&decode_pieces(split(BytesMut::from(&bytes[..]), &cuts), decode_response), &whole);
        let mut skipped = BytesMut::from(&bytes[..]);
        while let Ok(Some(_)) = skip(&mut skipped) {}
        let mut buf = BytesMut::from(&bytes[..]);
        let memory = buf.as_ptr_range();
        while let Ok(Some(decoded)) = decode(&mut buf) {
            if let Decoded::Request(Request::Put(put)) = decoded && !put.body.is_empty() {
                prop_assert!(memory.contains(&put.body.as_ptr()));
            }
        }
        for record in Records::new(&bytes) {
            let _ = record;
        }
        let _ = metaq_wire::split_attribute(1, &bytes);
    }

    #[test]
    fn records_come_back(messages in vec((any::<i64>(), any::<i32>(), vec(any::<u8>(), 0..100)), 0..10), cut in any::<prop::sample::Index>()) {
        let mut bytes = Vec::new();
        let mut expected = Vec::new();
        for (id, flag, body) in &messages {
            let header = RecordHeader::of(MessageId(*id), *flag, body);
            prop_assume!(!header.is_zeros());
            prop_assert_eq!(RecordHeader::parse(&header.encode()), Ok(header));
            expected.push((bytes.len(), header, &body[..]));
            bytes.extend_from_slice(&header.encode());
            bytes.extend_from_slice(body);
        }
        let walked: Vec<_> = Records::new(&bytes).map(Result::unwrap).collect();
        prop_assert_eq!(&walked, &expected);
        let cut = cut.index(bytes.len() + 1);
        let mut records = Records::new(&bytes[..cut]);
        let whole: Vec<_> = records.by_ref().map(Result::unwrap).collect();
        prop_assert_eq!(&whole[..], &expected[..whole.len()]);
        prop_assert!(records.position() <= cut && expected.get(whole.len()).is_none_or(|next| next.0 == records.position()));
    }
}
