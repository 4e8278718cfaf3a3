//! The bytes that the original broker and its Java client exchanged (`integration/golden`), byte for byte.
#![expect(clippy::unwrap_used, reason = "also in the functions that tests share")]

use bytes::BytesMut;
use metaq_types::Status;
use metaq_wire::{
    Decoded, Get, Put, Request, Response, decode, decode_response, encode_get, encode_offset, encode_put,
    encode_result, encode_stats, encode_stored, encode_transaction, encode_value_head, encode_version,
};
use serde_json::Value;
use std::collections::{BTreeMap, HashSet};

fn lines(name: &str) -> Vec<Value> {
    let path = format!("{}/../../integration/golden/{name}", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn text<'a>(line: &'a Value, field: &str) -> &'a str {
    line[field].as_str().unwrap()
}

fn hex(line: &Value, field: &str) -> BytesMut {
    let digits = text(line, field);
    (0..digits.len()).step_by(2).map(|at| u8::from_str_radix(&digits[at..at + 2], 16).unwrap()).collect()
}

/// All requests of a buffer, and whether a malformed one ended it; panics when bytes are left over.
fn requests(mut buf: BytesMut, case: &str) -> (Vec<Request>, bool) {
    let mut requests = Vec::new();
    loop {
        match decode(&mut buf) {
            Ok(Some(Decoded::Request(request))) => requests.push(request),
            Ok(Some(large)) => panic!("{case}: {large:?}"),
            Ok(None) => break,
            Err(_) => return (requests, true),
        }
    }
    assert!(buf.is_empty() || case == "a line without carriage return", "{case}: left over {buf:?}");
    (requests, false)
}

fn responses(mut buf: BytesMut, case: &str) -> Vec<Response> {
    let mut responses = Vec::new();
    while let Some(response) = decode_response(&mut buf).unwrap_or_else(|error| panic!("{case}: {error}")) {
        responses.push(response);
    }
    assert!(buf.is_empty(), "{case}: left over {buf:?}");
    responses
}

fn is_answered(request: &Request) -> bool {
    match request {
        Request::Quit | Request::Response => false,
        Request::Transaction(transaction) => transaction.kind != metaq_wire::TransactionKind::End,
        _ => true,
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

/// As the Java client writes it.
fn encode_request(out: &mut BytesMut, request: &Request) {
    match request {
        Request::Put(Put { topic, partition, flag, checksum, transaction, opaque, body }) => match transaction {
            None => encode_put(out, topic, *partition, *flag, *checksum, *opaque, body),
            Some(key) => {
                let checksum = checksum.unwrap();
                let head = format!("put {topic} {partition} {} {flag} {checksum} {key} {opaque}\r\n", body.len());
                out.extend_from_slice(head.as_bytes());
                out.extend_from_slice(body);
            }
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
        Request::Sync(_) | Request::Quit | Request::Response => panic!("the Java client sent {request:?}"),
    }
}

#[test]
fn every_recorded_request_is_taken_or_refused_as_the_original_did() {
    for line in lines("wire.jsonl").iter().chain(&lines("sync.jsonl")) {
        let case = text(line, "case");
        let (requests, malformed) = requests(hex(line, "request_hex"), case);
        let quit = requests.last() == Some(&Request::Quit);
        assert_eq!(malformed || quit, line["closed_by_broker"].as_bool().unwrap(), "{case}: {requests:?}");
        assert_eq!(malformed, case.contains("malformed"), "{case}");

        let responses = responses(hex(line, "response_hex"), case);
        assert_eq!(requests.iter().filter(|request| is_answered(request)).count(), responses.len(), "{case}");
        // A put and version may have overtaken each other on the way through the original's pools.
        let mut asked: Vec<_> = requests.iter().filter(|request| is_answered(request)).filter_map(opaque).collect();
        let mut answered: Vec<_> = responses.iter().map(|response| response.opaque().0).collect();
        asked.sort_unstable();
        answered.sort_unstable();
        assert_eq!(asked, answered, "{case}");
    }
}

fn opaque(request: &Request) -> Option<i32> {
    match request {
        Request::Put(put) => Some(put.opaque.0),
        Request::Get(get) => Some(get.opaque.0),
        Request::Offset(query) => Some(query.opaque.0),
        Request::Version(version) => Some(version.opaque.0),
        Request::Stats(stats) => Some(stats.opaque.0),
        Request::Transaction(transaction) => Some(transaction.opaque.0),
        Request::Sync(sync) => Some(sync.opaque.0),
        Request::Quit | Request::Response => None,
    }
}

#[test]
fn every_recorded_answer_is_encoded_to_the_same_bytes() {
    for line in lines("wire.jsonl").iter().chain(&lines("sync.jsonl")) {
        let bytes = hex(line, "response_hex");
        let mut encoded = BytesMut::new();
        for response in responses(bytes.clone(), text(line, "case")) {
            encode_response(&mut encoded, &response);
        }
        assert_eq!(encoded, bytes, "{}", text(line, "case"));
    }
}

#[test]
fn an_answer_to_a_put_has_the_bytes_of_the_original() {
    let mut checked = 0;
    for line in lines("wire.jsonl").iter().filter(|line| text(line, "case").starts_with("put")) {
        let bytes = hex(line, "response_hex");
        let answer = responses(bytes.clone(), text(line, "case")).remove(0);
        let Response::Result { code: 200, opaque, body } = answer else { continue };
        let body = String::from_utf8(body.to_vec()).unwrap();
        let numbers: Vec<i64> = body.split(' ').map(|number| number.parse().unwrap()).collect();
        let mut encoded = BytesMut::new();
        let offset = metaq_types::Offset::from_wire(numbers[2]).unwrap();
        encode_stored(&mut encoded, opaque, metaq_types::MessageId(numbers[0]), numbers[1] as u32, offset);
        assert_eq!(encoded, bytes);
        checked += 1;
    }
    assert!(checked >= 9, "only {checked}");
}

/// What one side of one connection sent, over all its reads.
type Streams = BTreeMap<(String, i64, String), BytesMut>;

fn streams(name: &str) -> Streams {
    let mut streams = Streams::new();
    for line in lines(name).iter().filter(|line| line["hex"].is_string()) {
        let scenario = line["scenario"].as_str().unwrap_or_default().to_owned();
        let key = (scenario, line["connection"].as_i64().unwrap(), text(line, "from").to_owned());
        streams.entry(key).or_default().extend_from_slice(&hex(line, "hex"));
    }
    streams
}

#[test]
fn the_java_client_is_understood_and_spoken_like_byte_for_byte() {
    let mut commands = HashSet::new();
    for ((scenario, connection, from), bytes) in streams("client.jsonl") {
        let case = format!("{scenario}, connection {connection}");
        let mut encoded = BytesMut::new();
        match from.as_str() {
            "client" => {
                let (requests, malformed) = requests(bytes.clone(), &case);
                assert!(!malformed, "{case}");
                for request in &requests {
                    encode_request(&mut encoded, request);
                    commands.insert(std::mem::discriminant(request));
                }
            }
            "broker" => responses(bytes.clone(), &case).iter().for_each(|r| encode_response(&mut encoded, r)),
            _ => continue,
        }
        assert_eq!(encoded, bytes, "{case}, {from}");
    }
    assert_eq!(commands.len(), 4, "it put, got, asked for statistics and used transactions");
}

#[test]
fn the_synchronous_master_is_understood() {
    let mut syncs = 0;
    for ((_, connection, from), bytes) in streams("sync-master.jsonl") {
        let case = format!("connection {connection}");
        if from == "broker" || from == "slave" {
            responses(bytes, &case);
        } else if let (requests, false) = requests(bytes, &case) {
            syncs += requests
                .iter()
                .filter(|request| matches!(request, Request::Sync(sync) if sync.checksum.is_none()))
                .count();
        }
    }
    assert_eq!(syncs, 3);
}
