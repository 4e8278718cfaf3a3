use metaq_types::limits::RECORD_HEADER_BYTES;
use metaq_wire::{RecordHeader, Records};

/// The whole, checked records at the front of an answer, and what stands behind them.
pub(super) struct Checked {
    pub(super) bytes: usize,
    pub(super) rest: Rest,
}

pub(super) enum Rest {
    /// A record that is longer than the rest; at least this many bytes make it whole. Also an empty rest.
    Cut {
        needed_bytes: u64,
    },
    Bad(String),
}

pub(super) fn check(body: &[u8]) -> Checked {
    let mut records = Records::new(body);
    let bad = records.by_ref().find_map(Result::err);
    let bytes = records.position();
    let rest = match (bad, records.rest().first_chunk()) {
        (Some(bad), _) => Rest::Bad(bad.fault.to_string()),
        (None, None) => Rest::Cut { needed_bytes: u64::from(RECORD_HEADER_BYTES) },
        (None, Some(header)) => match RecordHeader::parse(header) {
            Ok(header) => Rest::Cut { needed_bytes: header.record_bytes() },
            Err(negative) => Rest::Bad(negative.to_string()),
        },
    };
    Checked { bytes, rest }
}
