//! ZooKeeper's serialisation: big-endian numbers, strings and buffers behind a signed length, -1 for none.

use bytes::{BufMut, Bytes, BytesMut};

/// A field that is not there, or not what it should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Malformed;

/// Takes fields off the front of one frame.
pub(super) struct Reader {
    rest: Bytes,
}

impl Reader {
    pub(super) fn new(frame: Bytes) -> Reader {
        Reader { rest: frame }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    fn take<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let bytes = *self.rest.first_chunk::<N>().ok_or(Malformed)?;
        let _ = self.rest.split_to(N);
        Ok(bytes)
    }

    pub(super) fn int(&mut self) -> Result<i32, Malformed> {
        self.take().map(i32::from_be_bytes)
    }

    pub(super) fn long(&mut self) -> Result<i64, Malformed> {
        self.take().map(i64::from_be_bytes)
    }

    pub(super) fn bool(&mut self) -> Result<bool, Malformed> {
        self.take::<1>().map(|[byte]| byte != 0)
    }

    pub(super) fn buffer(&mut self) -> Result<Option<Bytes>, Malformed> {
        let length = self.int()?;
        if length == -1 {
            return Ok(None);
        }
        let length = usize::try_from(length).map_err(|_| Malformed)?;
        if length > self.rest.len() {
            return Err(Malformed);
        }
        Ok(Some(self.rest.split_to(length)))
    }

    /// Null counts as empty, as for Java callers that forgot one.
    pub(super) fn string(&mut self) -> Result<String, Malformed> {
        let bytes = self.buffer()?.unwrap_or_default();
        String::from_utf8(bytes.into()).map_err(|_| Malformed)
    }

    pub(super) fn vector<T>(
        &mut self,
        element: impl Fn(&mut Reader) -> Result<T, Malformed>,
    ) -> Result<Vec<T>, Malformed> {
        // Not allocated beforehand: the count is the sender's claim.
        let count = self.int()?;
        (0..count.max(0)).map(|_| element(self)).collect()
    }
}

/// Builds one frame, its length in front.
pub(super) struct Writer {
    frame: BytesMut,
}

impl Writer {
    pub(super) fn new() -> Writer {
        let mut frame = BytesMut::with_capacity(128);
        frame.put_i32(0);
        Writer { frame }
    }

    pub(super) fn int(&mut self, value: i32) {
        self.frame.put_i32(value);
    }

    pub(super) fn long(&mut self, value: i64) {
        self.frame.put_i64(value);
    }

    pub(super) fn bool(&mut self, value: bool) {
        self.frame.put_u8(value.into());
    }

    pub(super) fn buffer(&mut self, value: Option<&[u8]>) {
        match value {
            Some(bytes) => {
                self.length(bytes.len());
                self.frame.put_slice(bytes);
            }
            None => self.int(-1),
        }
    }

    pub(super) fn string(&mut self, value: &str) {
        self.buffer(Some(value.as_bytes()));
    }

    pub(super) fn strings<'a>(&mut self, values: impl ExactSizeIterator<Item = &'a str>) {
        self.length(values.len());
        values.for_each(|value| self.string(value));
    }

    fn length(&mut self, length: usize) {
        self.int(i32::try_from(length).expect("the tree's bounds keep every answer below 2 GiB"));
    }

    pub(super) fn finish(mut self) -> Bytes {
        let length = i32::try_from(self.frame.len() - 4).expect("the tree's bounds keep every answer below 2 GiB");
        self.frame[..4].copy_from_slice(&length.to_be_bytes());
        self.frame.freeze()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_reads_back() {
        let mut writer = Writer::new();
        writer.int(-7);
        writer.long(i64::MIN);
        writer.bool(true);
        writer.buffer(None);
        writer.string("/订单");
        writer.strings(["a", ""].into_iter());
        let frame = writer.finish();
        assert_eq!(frame[..4], i32::try_from(frame.len() - 4).unwrap().to_be_bytes());
        let mut reader = Reader::new(frame.slice(4..));
        assert_eq!((reader.int(), reader.long(), reader.bool()), (Ok(-7), Ok(i64::MIN), Ok(true)));
        assert_eq!((reader.buffer(), reader.string()), (Ok(None), Ok("/订单".to_owned())));
        assert_eq!(reader.vector(Reader::string), Ok(vec!["a".to_owned(), String::new()]));
        assert!(reader.is_empty());
    }

    #[test]
    fn a_claimed_length_is_not_believed() {
        for bytes in [&[0x7f, 0xff, 0xff, 0xff, 1][..], &[0xff, 0xff, 0xff, 0xfe], &[0, 0]] {
            assert_eq!(Reader::new(Bytes::copy_from_slice(bytes)).buffer(), Err(Malformed), "{bytes:?}");
        }
        let claims = Bytes::from_static(&[0x7f, 0xff, 0xff, 0xff]);
        assert_eq!(Reader::new(claims).vector(Reader::int), Err(Malformed));
    }
}
