use crate::greeting::{Greeting, named_value};
use crate::line::{CRLF, Words, int32, int64, line_bytes, shown, unsigned64};
use crate::request::{Get, OffsetQuery, Put, Request, Stats, Sync, Transaction, TransactionKind, Version};
use crate::text::Text;
use crate::txid::TransactionKey;
use bytes::{Buf, Bytes, BytesMut};
use metaq_types::limits::{DISCARD_BYTES_MAX, GROUP_NAME_BYTES_MAX, MESSAGE_BYTES_MAX, TOPIC_NAME_BYTES_MAX};
use metaq_types::{MessageId, Offset, Opaque};
use std::time::Duration;

/// What stood at the front of the buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decoded {
    Request(Request),
    /// A put or sync whose body is longer than a message may be. The header is consumed, the body is not: the caller
    /// throws away the next `bytes` bytes, those already in the buffer included, and then answers 400.
    TooLarge {
        opaque: Opaque,
        topic: Text,
        partition: i32,
        bytes: u32,
    },
}

/// The peer does not speak the protocol, and where its next request begins is unknown: answer `result 400` with the
/// reason and close the connection. The buffer is not to be decoded again.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct DecodeError {
    /// The request's, where one could be read.
    pub opaque: Option<Opaque>,
    pub reason: String,
}

/// Takes one request off the front of `buf`; `Ok(None)` leaves `buf` untouched until more bytes come.
///
/// The texts and the body share the memory of `buf`; nothing is copied or allocated for a put, a get or an offset.
/// Word counts, lengths and limits are judged as soon as the header line is there, the other fields when the body is.
pub fn decode(buf: &mut BytesMut) -> Result<Option<Decoded>, DecodeError> {
    let Some(line_bytes) = line_bytes(buf)? else { return Ok(None) };
    let outline = Outline::read(&buf[..line_bytes])?;
    let body_bytes = outline.body_bytes as usize;
    let discarded = outline.body_bytes > MESSAGE_BYTES_MAX;
    if !discarded && buf.len() < line_bytes + CRLF.len() + body_bytes {
        return Ok(None);
    }
    let header = Header { line: buf.split_to(line_bytes).freeze(), outline };
    buf.advance(CRLF.len());
    if discarded {
        return header.too_large().map(Some).map_err(|reason| header.error(reason));
    }
    let body = if body_bytes == 0 { Bytes::new() } else { buf.split_to(body_bytes).freeze() };
    match header.request(body) {
        Ok(request) => Ok(Some(Decoded::Request(request))),
        Err(reason) => Err(header.error(reason)),
    }
}

/// A request that was taken off the buffer without being read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Skipped {
    /// What the answer has to carry; `None` where none is owed.
    pub opaque: Option<Opaque>,
    /// Of its body, which was not consumed.
    pub body_bytes: u32,
}

/// Takes the header line of one request off the front of `buf`, for who answers all requests alike; `Ok(None)` leaves
/// `buf` untouched until more bytes come. The caller throws away the body, which may not be there yet.
pub fn skip(buf: &mut BytesMut) -> Result<Option<Skipped>, DecodeError> {
    let Some(line_bytes) = line_bytes(buf)? else { return Ok(None) };
    let line = &buf[..line_bytes];
    let Outline { command, words, body_bytes } = Outline::read(line)?;
    let opaque = match command {
        Command::Quit | Command::Value | Command::Result => None,
        _ => Some(command.opaque(&words, line).unwrap_or(Opaque::NONE)),
    };
    buf.advance(line_bytes + CRLF.len());
    Ok(Some(Skipped { opaque, body_bytes }))
}

/// The commands by their words; more than one word may mean the same (wire-protocol, "1.3", item 4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Command {
    Put,
    Get,
    Offset,
    Version,
    Stats,
    Transaction,
    Sync,
    Quit,
    Value,
    Result,
}

impl Command {
    /// Only the first letter is looked at, and then the whole word for those commands that insist on it.
    pub(crate) fn from_word(word: &[u8]) -> Option<Command> {
        Some(match (word.first()?, word) {
            (b'p', b"put") => Command::Put,
            (b'g', b"get") => Command::Get,
            (b't', b"transaction") => Command::Transaction,
            (b'o', b"offset") => Command::Offset,
            (b's', b"stats") => Command::Stats,
            (b's', b"sync") => Command::Sync,
            (b'v', b"value") => Command::Value,
            (b'v', _) => Command::Version,
            (b'r', b"result") => Command::Result,
            (b'q', _) => Command::Quit,
            _ => return None,
        })
    }

    fn grammar(self) -> &'static str {
        match self {
            Command::Put => "put TOPIC PARTITION LENGTH FLAG [CHECKSUM] [TXKEY] OPAQUE",
            Command::Get => "get TOPIC GROUP PARTITION OFFSET MAXSIZE OPAQUE",
            Command::Offset => "offset TOPIC GROUP PARTITION OFFSET OPAQUE",
            Command::Version => "version [OPAQUE]",
            Command::Stats => "stats [ITEM [OPAQUE]]",
            Command::Transaction => "transaction TXKEY SESSION TYPE [TIMEOUT] [QUALIFIER] OPAQUE",
            Command::Sync => "sync TOPIC PARTITION LENGTH FLAG MSGID [CHECKSUM] OPAQUE",
            Command::Quit => "quit",
            Command::Value => "value LENGTH OPAQUE",
            Command::Result => "result CODE LENGTH OPAQUE",
        }
    }

    /// The fewest and the most words; `usize::MAX` where surplus words are ignored.
    fn word_count(self) -> (usize, usize) {
        match self {
            Command::Put => (6, 8),
            Command::Sync => (7, 8),
            Command::Transaction => (5, 7),
            Command::Get => (7, usize::MAX),
            Command::Offset => (6, usize::MAX),
            Command::Version | Command::Stats | Command::Quit => (1, usize::MAX),
            Command::Value => (3, usize::MAX),
            Command::Result => (4, usize::MAX),
        }
    }

    /// Which word says how long the body is.
    fn length_word(self) -> Option<usize> {
        match self {
            Command::Put | Command::Sync => Some(3),
            Command::Value => Some(1),
            Command::Result => Some(2),
            _ => None,
        }
    }

    /// A put or sync too long for us is read and thrown away, so that its sender can be told.
    fn body_bytes_max(self) -> u32 {
        match self {
            Command::Put | Command::Sync => DISCARD_BYTES_MAX,
            _ => MESSAGE_BYTES_MAX,
        }
    }

    fn opaque(self, words: &Words, line: &[u8]) -> Option<Opaque> {
        let word = match self {
            Command::Put | Command::Sync | Command::Transaction => Some(words.last(line)),
            Command::Get => words.get(line, 6),
            Command::Offset => words.get(line, 5),
            Command::Version => words.get(line, 1),
            Command::Stats => words.get(line, 2),
            Command::Quit | Command::Value | Command::Result => None,
        };
        word.and_then(int32).map(Opaque)
    }
}

/// What a header line says before its body is there.
#[derive(Clone, Copy, Debug)]
struct Outline {
    command: Command,
    words: Words,
    body_bytes: u32,
}

impl Outline {
    fn read(line: &[u8]) -> Result<Outline, DecodeError> {
        let words = Words::split(line);
        let word = words.get(line, 0).unwrap_or_default();
        let Some(command) = Command::from_word(word) else {
            let reason = if word.is_empty() {
                "a request cannot be an empty line or begin with a blank".to_owned()
            } else {
                format!(
                    "unknown command {}; known are put, get, offset, stats, version, transaction, sync and quit",
                    shown(word)
                )
            };
            return Err(DecodeError { opaque: None, reason });
        };
        let error = |reason| DecodeError { opaque: command.opaque(&words, line), reason };
        let (words_min, words_max) = command.word_count();
        if !(words_min..=words_max).contains(&words.count()) {
            return Err(error(format!(
                "{} words where {} are expected: {}",
                words.count(),
                if words_max == usize::MAX {
                    format!("at least {words_min}")
                } else {
                    format!("{words_min} to {words_max}")
                },
                command.grammar()
            )));
        }
        let body_bytes = match command.length_word().and_then(|index| words.get(line, index)) {
            Some(word) => body_length(word, command.body_bytes_max()).map_err(error)?,
            None => 0,
        };
        Ok(Outline { command, words, body_bytes })
    }
}

/// The declared length of a body, within `bytes_max`.
pub(crate) fn body_length(word: &[u8], bytes_max: u32) -> Result<u32, String> {
    match int32(word).map(u32::try_from) {
        Some(Ok(bytes)) if bytes <= bytes_max => Ok(bytes),
        Some(Ok(bytes)) => Err(format!("a body of {bytes} bytes is longer than {}", bytes_max.min(MESSAGE_BYTES_MAX))),
        _ => Err(format!("body length {} is not a whole number from 0 to {}", shown(word), i32::MAX)),
    }
}

/// A header line in bytes of its own, with what is known of it. Its methods read the fields, or say what is wrong.
struct Header {
    line: Bytes,
    outline: Outline,
}

impl Header {
    fn error(&self, reason: String) -> DecodeError {
        DecodeError { opaque: self.outline.command.opaque(&self.outline.words, &self.line), reason }
    }

    fn request(&self, body: Bytes) -> Result<Request, String> {
        Ok(match self.outline.command {
            Command::Put => Request::Put(self.put(body)?),
            Command::Get => Request::Get(self.get()?),
            Command::Offset => Request::Offset(self.offset()?),
            Command::Version => Request::Version(self.version()?),
            Command::Stats => Request::Stats(self.stats()?),
            Command::Transaction => Request::Transaction(self.transaction()?),
            Command::Sync => Request::Sync(self.sync(body)?),
            Command::Quit => Request::Quit,
            Command::Value => {
                self.opaque(2)?;
                Request::Response
            }
            Command::Result => {
                self.int32(1, "code")?;
                self.opaque(3)?;
                Request::Response
            }
        })
    }

    fn too_large(&self) -> Result<Decoded, String> {
        Ok(Decoded::TooLarge {
            opaque: self.opaque(self.outline.words.count() - 1)?,
            topic: self.topic()?,
            partition: self.int32(2, "partition")?,
            bytes: self.outline.body_bytes,
        })
    }

    fn put(&self, body: Bytes) -> Result<Put, String> {
        let count = self.outline.words.count();
        // Seven words have either a checksum or a transaction key: a checksum begins with a digit or '-'.
        let (checksum, transaction) = match count {
            7 if matches!(self.word(5).first(), Some(b'0'..=b'9' | b'-')) => (self.checksum(5)?, None),
            7 => (None, self.transaction_key(5)?),
            8 => (self.checksum(5)?, self.transaction_key(6)?),
            _ => (None, None),
        };
        Ok(Put {
            topic: self.topic()?,
            partition: self.int32(2, "partition")?,
            flag: self.int32(4, "flag")?,
            checksum,
            transaction,
            opaque: self.opaque(count - 1)?,
            body,
        })
    }

    fn sync(&self, body: Bytes) -> Result<Sync, String> {
        let count = self.outline.words.count();
        Ok(Sync {
            topic: self.topic()?,
            partition: self.int32(2, "partition")?,
            flag: self.int32(4, "flag")?,
            message_id: MessageId(self.int64(5, "message id")?),
            checksum: if count == 8 { self.checksum(6)? } else { None },
            opaque: self.opaque(count - 1)?,
            body,
        })
    }

    fn get(&self) -> Result<Get, String> {
        let (mut wait, mut held) = (None, None);
        for (name, value) in self.outline.words.from(&self.line, 7).filter_map(named_value) {
            match name {
                b"wait" if wait.is_none() => wait = unsigned64(value).map(Duration::from_millis),
                b"held" if held.is_none() => held = unsigned64(value).and_then(Offset::new),
                _ => {}
            }
        }
        Ok(Get {
            topic: self.topic()?,
            group: self.name(2, "group", GROUP_NAME_BYTES_MAX)?,
            partition: self.int32(3, "partition")?,
            offset: self.int64(4, "offset")?,
            max_bytes: self.int32(5, "max size")?,
            opaque: self.opaque(6)?,
            wait,
            held,
        })
    }

    fn offset(&self) -> Result<OffsetQuery, String> {
        Ok(OffsetQuery {
            topic: self.topic()?,
            group: self.name(2, "group", GROUP_NAME_BYTES_MAX)?,
            partition: self.int32(3, "partition")?,
            offset: self.int64(4, "offset")?,
            opaque: self.opaque(5)?,
        })
    }

    fn version(&self) -> Result<Version, String> {
        let words = &self.outline.words;
        let opaque = if words.count() > 1 { self.opaque(1)? } else { Opaque::NONE };
        let greeting = if words.count() > 2 { Greeting::from_words(words.from(&self.line, 2)) } else { None };
        Ok(Version { opaque, greeting })
    }

    fn stats(&self) -> Result<Stats, String> {
        let count = self.outline.words.count();
        Ok(Stats {
            item: if count > 1 { self.name(1, "stats item", TOPIC_NAME_BYTES_MAX)? } else { Text::default() },
            opaque: if count > 2 { self.opaque(2)? } else { Opaque::NONE },
        })
    }

    fn transaction(&self) -> Result<Transaction, String> {
        let count = self.outline.words.count();
        // Of six words the fifth is a timeout when it is all digits, else a qualifier; a doubled blank is neither.
        let (timeout_index, qualifier_index) = match count {
            6 if self.word(4).iter().all(u8::is_ascii_digit) => (Some(4), None),
            6 => (None, Some(4)),
            7 => (Some(4), Some(5)),
            _ => (None, None),
        };
        let kind = TransactionKind::from_word(self.word(3)).ok_or_else(|| {
            let known = TransactionKind::ALL.map(TransactionKind::word).join(", ");
            format!("unknown transaction type {}; known are {known}", shown(self.word(3)))
        })?;
        Ok(Transaction {
            key: self.transaction_key(1)?,
            session: self.name(2, "session id", GROUP_NAME_BYTES_MAX)?,
            kind,
            timeout_seconds: timeout_index.map(|index| self.int32(index, "timeout")).transpose()?,
            qualifier: qualifier_index.map(|index| self.name(index, "qualifier", GROUP_NAME_BYTES_MAX)).transpose()?,
            opaque: self.opaque(count - 1)?,
        })
    }

    fn word(&self, index: usize) -> &[u8] {
        self.outline.words.get(&self.line, index).unwrap_or_default()
    }

    fn text(&self, index: usize) -> Text {
        Text::from_bytes(self.line.slice_ref(self.word(index)))
    }

    fn topic(&self) -> Result<Text, String> {
        self.name(1, "topic", TOPIC_NAME_BYTES_MAX)
    }

    fn name(&self, index: usize, what: &str, bytes_max: usize) -> Result<Text, String> {
        let bytes = self.word(index).len();
        if bytes > bytes_max {
            return Err(format!("{what} {} of {bytes} bytes is longer than {bytes_max}", shown(self.word(index))));
        }
        Ok(self.text(index))
    }

    fn int32(&self, index: usize, what: &str) -> Result<i32, String> {
        int32(self.word(index)).ok_or_else(|| self.no_number(index, what, i32::MIN.into(), i32::MAX.into()))
    }

    fn int64(&self, index: usize, what: &str) -> Result<i64, String> {
        int64(self.word(index)).ok_or_else(|| self.no_number(index, what, i64::MIN, i64::MAX))
    }

    fn no_number(&self, index: usize, what: &str, min: i64, max: i64) -> String {
        let grammar = self.outline.command.grammar();
        format!("{what} {} is not a whole number from {min} to {max}: {grammar}", shown(self.word(index)))
    }

    fn opaque(&self, index: usize) -> Result<Opaque, String> {
        self.int32(index, "opaque").map(Opaque)
    }

    /// -1 means "not supplied". A plain CRC-32, with its top bit set, is taken as the number of the same bits: no checksum
    /// is that, so it is found wrong, and its sender learns what was computed instead of losing the connection.
    fn checksum(&self, index: usize) -> Result<Option<i32>, String> {
        let plain = unsigned64(self.word(index)).and_then(|plain| u32::try_from(plain).ok());
        if let Some(plain) = plain.filter(|plain| *plain > i32::MAX as u32 && *plain != u32::MAX) {
            return Ok(Some(plain as i32));
        }
        self.int32(index, "checksum").map(|checksum| Some(checksum).filter(|checksum| *checksum != -1))
    }

    fn transaction_key(&self, index: usize) -> Result<Option<TransactionKey>, String> {
        TransactionKey::parse(&self.text(index)).map_err(|error| error.to_string())
    }
}
