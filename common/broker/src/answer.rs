//! What a handler says; `outbound.rs` turns it into bytes when its turn comes.

use bytes::{Bytes, BytesMut};
use metaq_store::{AppendError, Appended, Refusal, Slice};
use metaq_types::{Offset, Opaque, Status};
use metaq_wire::ValueExtra;
use std::fmt::Write;

/// One answer, not yet encoded.
pub(crate) enum Answer {
    /// `result 200 <id> <partition> <offset>`
    Stored(Appended),
    Text(Status, Bytes),
    Value {
        slice: Slice,
        extra: Option<ValueExtra>,
    },
}

impl Answer {
    pub(crate) fn text(status: Status, text: impl Into<String>) -> Answer {
        Answer::Text(status, Bytes::from(text.into()))
    }

    /// A 301: go on at `offset`.
    pub(crate) fn moved(offset: Offset) -> Answer {
        Answer::text(Status::Moved, offset.to_string())
    }

    /// What it takes in memory, on top of itself, until it is encoded.
    pub(crate) fn text_bytes(&self) -> usize {
        match self {
            Answer::Text(_, text) => text.len(),
            Answer::Stored(_) | Answer::Value { .. } => 0,
        }
    }

    /// Appends head and text; a value's slice is handed back, to be sent behind what was appended.
    pub(crate) fn encode(self, opaque: Opaque, out: &mut BytesMut) -> Option<Slice> {
        match self {
            Answer::Stored(stored) => {
                metaq_wire::encode_stored(out, opaque, stored.id, stored.partition, stored.offset);
                None
            }
            Answer::Text(status, body) => {
                metaq_wire::encode_result(out, status, opaque, &body);
                None
            }
            Answer::Value { slice, extra } => {
                metaq_wire::encode_value_head(out, slice.len(), opaque, extra.as_ref());
                Some(slice)
            }
        }
    }
}

/// The frame around every error of a put, and, as in the original, of a get (wire-protocol, "3.1 put").
pub(crate) fn failed(uri: &str, topic: &str, partition: i64, detail: &str) -> String {
    let mut text = String::with_capacity(96 + detail.len());
    let _ = write!(text, "Put message to [broker '{uri}'] [partition '{topic}-{partition}'] failed.");
    if !detail.is_empty() {
        let _ = write!(text, "Detail:{detail}");
    }
    text
}

/// For whoever does not know whether the message is there.
const AGAIN: &str = "; sent again, it may be there twice";

/// Status and words for an append that did not come to a good end. The text says whether the message may be there.
pub(crate) fn append_failure(error: &AppendError) -> (Status, String) {
    match error {
        AppendError::Refused(refusal) => {
            (refusal_status(refusal), format!("not stored: {refusal}{}", next_step(refusal)))
        }
        AppendError::Unknown(reason) => {
            (Status::InternalServerError, format!("the message may or may not be stored: {reason}{AGAIN}"))
        }
        AppendError::Unconfirmed => (
            Status::InternalServerError,
            format!(
                "stored here, not confirmed by the quorum within ackTimeoutInMills: it stays unreadable until enough \
                 members hold it, and may become readable then{AGAIN}"
            ),
        ),
        AppendError::Dropped => (
            Status::InternalServerError,
            format!("the message may or may not be stored: the broker gave up this request{AGAIN}"),
        ),
    }
}

/// What the store does not say, as it does not know who reads it.
fn next_step(refusal: &Refusal) -> &'static str {
    match refusal {
        Refusal::Closing => "; try again when the broker is back, or send to another",
        Refusal::Overloaded { .. } => "; try again",
        Refusal::TooLarge { .. } => "; send it in parts",
        Refusal::DiskFull(_) | Refusal::Poisoned(_) | Refusal::Unavailable(_) => "",
        Refusal::NotAtEnd { .. } | Refusal::OtherSegment { .. } | Refusal::Malformed(_) => "",
    }
}

fn refusal_status(refusal: &Refusal) -> Status {
    match refusal {
        Refusal::Closing | Refusal::DiskFull(_) | Refusal::Unavailable(_) | Refusal::Overloaded { .. } => {
            Status::ServiceUnavailable
        }
        Refusal::Poisoned(_) => Status::InternalServerError,
        Refusal::TooLarge { .. } => Status::BadRequest,
        // A replica's appends; no producer meets them.
        Refusal::NotAtEnd { .. } | Refusal::OtherSegment { .. } | Refusal::Malformed(_) => Status::InternalServerError,
    }
}
