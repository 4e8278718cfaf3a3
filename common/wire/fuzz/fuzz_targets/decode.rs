#![no_main]
//! Nothing that decodes may panic, and a cut anywhere must not change what is decoded.

use bytes::BytesMut;
use libfuzzer_sys::fuzz_target;
use metaq_wire::{DecodeError, Records, decode, decode_response, split_attribute};

type Outcome<T> = (Vec<T>, Option<DecodeError>, BytesMut);

fn all<T>(pieces: &[&[u8]], decode: impl Fn(&mut BytesMut) -> Result<Option<T>, DecodeError>) -> Outcome<T> {
    let mut buf = BytesMut::new();
    let mut items = Vec::new();
    for piece in pieces {
        buf.extend_from_slice(piece);
        loop {
            match decode(&mut buf) {
                Ok(Some(item)) => items.push(item),
                Ok(None) => break,
                Err(error) => return (items, Some(error), BytesMut::new()),
            }
        }
    }
    (items, None, buf)
}

fuzz_target!(|input: (u16, &[u8])| {
    let (cut, bytes) = input;
    let (front, back) = bytes.split_at(usize::from(cut).min(bytes.len()));
    assert_eq!(all(&[bytes], decode), all(&[front, back], decode));
    assert_eq!(all(&[bytes], decode_response), all(&[front, back], decode_response));
    let mut records = Records::new(bytes);
    let walked: usize =
        records.by_ref().map_while(Result::ok).map(|(_, header, _)| header.record_bytes() as usize).sum();
    assert_eq!(walked, records.position());
    let _ = split_attribute(1, bytes);
});
