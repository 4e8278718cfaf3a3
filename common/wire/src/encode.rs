use crate::greeting::Greeting;
use crate::request::Transaction;
use crate::response::ValueExtra;
use crate::txid::TransactionKey;
use bytes::{BufMut, BytesMut};
use metaq_types::{MessageId, Offset, Opaque, Status};
use std::fmt::Write;
use std::time::Duration;

/// Longer than any header line without its names.
const LINE_BYTES: usize = 160;

/// `put` with a checksum word, -1 when there is none to send.
pub fn encode_put(
    out: &mut BytesMut,
    topic: &str,
    partition: i32,
    flag: i32,
    checksum: Option<i32>,
    opaque: Opaque,
    body: &[u8],
) {
    put_head(out, topic, partition, flag, checksum, body.len());
    number(out, opaque.0);
    end(out, body);
}

/// `put` into a transaction; the broker does not compare a checksum there, so none is sent.
pub fn encode_transactional_put(
    out: &mut BytesMut,
    topic: &str,
    partition: i32,
    flag: i32,
    key: &TransactionKey,
    opaque: Opaque,
    body: &[u8],
) {
    put_head(out, topic, partition, flag, None, body.len());
    display(out, key);
    number(out, opaque.0);
    end(out, body);
}

fn put_head(out: &mut BytesMut, topic: &str, partition: i32, flag: i32, checksum: Option<i32>, body_bytes: usize) {
    out.reserve(LINE_BYTES + topic.len() + body_bytes);
    out.put_slice(b"put");
    word(out, topic);
    number(out, partition);
    number(out, body_bytes);
    number(out, flag);
    number(out, checksum.unwrap_or(-1));
}

#[expect(clippy::too_many_arguments, reason = "one a word of the header line, in its order")]
pub fn encode_get(
    out: &mut BytesMut,
    topic: &str,
    group: &str,
    partition: i32,
    offset: i64,
    max_bytes: i32,
    opaque: Opaque,
    wait: Option<Duration>,
    held: Option<Offset>,
) {
    out.put_slice(b"get");
    word(out, topic);
    word(out, group);
    number(out, partition);
    number(out, offset);
    number(out, max_bytes);
    number(out, opaque.0);
    if let Some(wait) = wait {
        named(out, "wait", millis(wait));
    }
    if let Some(held) = held {
        named(out, "held", held.get());
    }
    end(out, b"");
}

pub fn encode_offset(out: &mut BytesMut, topic: &str, group: &str, partition: i32, offset: i64, opaque: Opaque) {
    out.put_slice(b"offset");
    word(out, topic);
    word(out, group);
    number(out, partition);
    number(out, offset);
    number(out, opaque.0);
    end(out, b"");
}

/// The heartbeat, or with a greeting the introduction of a replica.
pub fn encode_version(out: &mut BytesMut, opaque: Opaque, greeting: Option<&Greeting>) {
    out.put_slice(b"version");
    number(out, opaque.0);
    if let Some(greeting) = greeting {
        display(out, greeting);
    }
    end(out, b"");
}

/// An empty item leaves two blanks side by side, as the original's client sends it.
pub fn encode_stats(out: &mut BytesMut, item: &str, opaque: Opaque) {
    out.put_slice(b"stats");
    word(out, item);
    number(out, opaque.0);
    end(out, b"");
}

pub fn encode_quit(out: &mut BytesMut) {
    out.put_slice(b"quit");
    end(out, b"");
}

pub fn encode_transaction(out: &mut BytesMut, transaction: &Transaction) {
    out.put_slice(b"transaction");
    match &transaction.key {
        Some(key) => display(out, key),
        None => word(out, "null"),
    }
    word(out, &transaction.session);
    word(out, transaction.kind.word());
    if let Some(seconds) = transaction.timeout_seconds {
        number(out, seconds);
    }
    if let Some(qualifier) = &transaction.qualifier {
        word(out, qualifier);
    }
    number(out, transaction.opaque.0);
    end(out, b"");
}

/// Exactly four words, whatever the answer: the Python client fails on a fifth.
pub fn encode_result(out: &mut BytesMut, status: Status, opaque: Opaque, body: &[u8]) {
    out.reserve(LINE_BYTES + body.len());
    result_head(out, status, body.len(), opaque);
    out.put_slice(body);
}

/// The answer to a put that was stored, `ID PARTITION OFFSET`.
pub fn encode_stored(out: &mut BytesMut, opaque: Opaque, id: MessageId, partition: u32, offset: Offset) {
    let (mut id_digits, mut partition_digits, mut offset_digits) = Default::default();
    let id = itoa::Buffer::format(&mut id_digits, id.0);
    let partition = itoa::Buffer::format(&mut partition_digits, partition);
    let offset = itoa::Buffer::format(&mut offset_digits, offset.get());
    out.reserve(LINE_BYTES);
    result_head(out, Status::Success, id.len() + 1 + partition.len() + 1 + offset.len(), opaque);
    out.put_slice(id.as_bytes());
    word(out, partition);
    word(out, offset);
}

fn result_head(out: &mut BytesMut, status: Status, body_bytes: usize, opaque: Opaque) {
    out.put_slice(b"result");
    number(out, status.code());
    number(out, body_bytes);
    number(out, opaque.0);
    end(out, b"");
}

/// The line in front of `body_bytes` stored bytes, which must not be 0: the Java client takes an empty value for a
/// failure.
pub fn encode_value_head(out: &mut BytesMut, body_bytes: u32, opaque: Opaque, extra: Option<&ValueExtra>) {
    assert!(body_bytes > 0, "an empty value is never sent");
    out.put_slice(b"value");
    number(out, body_bytes);
    number(out, opaque.0);
    if let Some(extra) = extra {
        named(out, "seg", extra.segment.get());
        named(out, "end", extra.end.get());
        named(out, "epoch", extra.epoch);
        if let Some(journal) = extra.journal {
            named(out, "journal", journal.get());
        }
        if let Some(confirmed) = extra.confirmed {
            named(out, "confirmed", confirmed.get());
        }
    }
    end(out, b"");
}

/// A word after a blank. Names are checked where they come from; one with a blank would shift every later word.
fn word(out: &mut BytesMut, word: &str) {
    debug_assert!(!word.contains([' ', '\r', '\n']), "{word:?} is not one word");
    out.put_u8(b' ');
    out.put_slice(word.as_bytes());
}

fn number(out: &mut BytesMut, number: impl itoa::Integer) {
    out.put_u8(b' ');
    out.put_slice(itoa::Buffer::new().format(number).as_bytes());
}

fn named(out: &mut BytesMut, name: &str, value: u64) {
    out.put_u8(b' ');
    out.put_slice(name.as_bytes());
    out.put_u8(b'=');
    out.put_slice(itoa::Buffer::new().format(value).as_bytes());
}

fn display(out: &mut BytesMut, value: &impl std::fmt::Display) {
    write!(out, " {value}").expect("writing to a buffer that grows cannot fail");
}

fn end(out: &mut BytesMut, body: &[u8]) {
    out.put_slice(crate::line::CRLF);
    out.put_slice(body);
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
