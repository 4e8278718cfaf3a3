use crate::decode::{Command, DecodeError, body_length};
use crate::greeting::named_value;
use crate::line::{CRLF, Words, int32, line_bytes, shown, unsigned64};
use bytes::{Buf, Bytes, BytesMut};
use metaq_types::limits::TRANSFER_BYTES_MAX;
use metaq_types::{Offset, Opaque};

/// The longest body of an answer that is accepted: the largest transfer, and one record that may exceed it.
pub const RESPONSE_BODY_BYTES_MAX: u32 = TRANSFER_BYTES_MAX + 2 * 1024 * 1024;

/// What a broker answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Response {
    /// `result CODE LENGTH OPAQUE` and a text (wire-protocol, "2.1"). The code is kept as a number: old brokers have
    /// codes of their own.
    Result { code: i32, opaque: Opaque, body: Bytes },
    /// `value LENGTH OPAQUE` and stored bytes (wire-protocol, "2.2").
    Value { opaque: Opaque, body: Bytes, extra: Option<ValueExtra> },
}

impl Response {
    pub fn opaque(&self) -> Opaque {
        match self {
            Response::Result { opaque, .. } | Response::Value { opaque, .. } => *opaque,
        }
    }
}

/// The trailing words `seg=… end=… epoch=… journal=… confirmed=…` of a value, which only a greeted replica gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ValueExtra {
    /// Where the segment begins that the bytes lie in.
    pub segment: Offset,
    /// The durable end of the partition.
    pub end: Offset,
    /// The reign in which the bytes were written.
    pub epoch: u64,
    /// A replica must hold the transaction journal up to here before it appends the bytes.
    pub journal: Option<Offset>,
    /// What a quorum holds, where one is asked for: consumers of the replica may read no further.
    pub confirmed: Option<Offset>,
}

impl ValueExtra {
    /// The first three words must be there; unknown ones are ignored.
    fn from_words<'a>(words: impl Iterator<Item = &'a [u8]>) -> Option<ValueExtra> {
        let (mut segment, mut end, mut epoch) = (None, None, None);
        let (mut journal, mut confirmed) = (None, None);
        for (name, value) in words.filter_map(named_value) {
            match name {
                b"seg" => segment = unsigned64(value).and_then(Offset::new),
                b"end" => end = unsigned64(value).and_then(Offset::new),
                b"epoch" => epoch = unsigned64(value),
                b"journal" => journal = unsigned64(value).and_then(Offset::new),
                b"confirmed" => confirmed = unsigned64(value).and_then(Offset::new),
                _ => {}
            }
        }
        Some(ValueExtra { segment: segment?, end: end?, epoch: epoch?, journal, confirmed })
    }
}

/// The word ` confirmed=…` at the end of the text that tells a replica that there is nothing new: as
/// [`ValueExtra::confirmed`].
pub fn confirmed_of(text: &[u8]) -> Option<Offset> {
    let word = text.rsplit(|byte| *byte == b' ').next()?;
    let (name, value) = named_value(word)?;
    (name == b"confirmed").then(|| unsigned64(value).and_then(Offset::new)).flatten()
}

/// Takes one answer off the front of `buf`; `Ok(None)` leaves its bytes untouched until more come, and makes room for
/// the rest of a body whose length is known.
pub fn decode_response(buf: &mut BytesMut) -> Result<Option<Response>, DecodeError> {
    let Some(line_bytes) = line_bytes(buf)? else { return Ok(None) };
    let (mut response, body_bytes) =
        response_head(&buf[..line_bytes]).map_err(|reason| DecodeError { opaque: None, reason })?;
    let frame_bytes = line_bytes + CRLF.len() + body_bytes as usize;
    if buf.len() < frame_bytes {
        buf.reserve(frame_bytes - buf.len());
        return Ok(None);
    }
    buf.advance(line_bytes + CRLF.len());
    match &mut response {
        Response::Result { body, .. } | Response::Value { body, .. } if body_bytes > 0 => {
            *body = buf.split_to(body_bytes as usize).freeze();
        }
        _ => {}
    }
    Ok(Some(response))
}

/// An answer without its body yet, and how long that is.
fn response_head(line: &[u8]) -> Result<(Response, u32), String> {
    let words = Words::split(line);
    let word = |index| words.get(line, index).unwrap_or_default();
    let number = |index: usize, what: &str| {
        int32(word(index)).ok_or_else(|| format!("{what} {} of an answer is not a 32-bit number", shown(word(index))))
    };
    match Command::from_word(word(0)) {
        Some(Command::Result) => {
            let code = number(1, "code")?;
            let body_bytes = body_length(word(2), RESPONSE_BODY_BYTES_MAX)?;
            let opaque = Opaque(number(3, "opaque")?);
            Ok((Response::Result { code, opaque, body: Bytes::new() }, body_bytes))
        }
        Some(Command::Value) => {
            let body_bytes = body_length(word(1), RESPONSE_BODY_BYTES_MAX)?;
            let opaque = Opaque(number(2, "opaque")?);
            let extra = if words.count() > 3 { ValueExtra::from_words(words.from(line, 3)) } else { None };
            Ok((Response::Value { opaque, body: Bytes::new(), extra }, body_bytes))
        }
        _ => Err(format!("{} is no answer of a broker; expected result or value", shown(word(0)))),
    }
}
