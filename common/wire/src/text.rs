use bytes::Bytes;
use std::borrow::Borrow;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::ops::Deref;

/// UTF-8 text that shares the bytes of the header line it came from.
///
/// Nothing is copied unless malformed UTF-8 had to be replaced. In return a `Text` keeps the whole read buffer alive:
/// what must outlive its request by long (a map's key, a parked poll) is copied with [`Text::detached`].
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Text(Bytes);

impl Text {
    /// Malformed sequences become U+FFFD, as in the original's decoder.
    pub fn from_bytes(bytes: Bytes) -> Text {
        match String::from_utf8_lossy(&bytes) {
            std::borrow::Cow::Borrowed(_) => Text(bytes),
            std::borrow::Cow::Owned(replaced) => Text(replaced.into()),
        }
    }

    pub fn as_str(&self) -> &str {
        // Checked again at each use, since unchecked conversion is unsafe code; a name costs a few nanoseconds.
        std::str::from_utf8(&self.0).expect("a Text is checked when it is made")
    }

    /// The same text in bytes of its own.
    pub fn detached(&self) -> Text {
        Text(Bytes::copy_from_slice(&self.0))
    }

    /// `part` must be a part of this text; it shares the bytes.
    pub(crate) fn share(&self, part: &str) -> Text {
        Text(self.0.slice_ref(part.as_bytes()))
    }
}

impl Deref for Text {
    type Target = str;
    fn deref(&self) -> &str {
        self.as_str()
    }
}

impl Borrow<str> for Text {
    fn borrow(&self) -> &str {
        self.as_str()
    }
}

/// As `str` hashes, so that a map keyed by `Text` can be asked with a `&str`.
impl Hash for Text {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.as_str().hash(state);
    }
}

impl From<&str> for Text {
    fn from(text: &str) -> Text {
        Text(Bytes::copy_from_slice(text.as_bytes()))
    }
}

impl From<String> for Text {
    fn from(text: String) -> Text {
        Text(text.into())
    }
}

impl PartialEq<str> for Text {
    fn eq(&self, other: &str) -> bool {
        *self.0 == *other.as_bytes()
    }
}

impl PartialEq<&str> for Text {
    fn eq(&self, other: &&str) -> bool {
        *self == **other
    }
}

impl fmt::Display for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self.as_str(), f)
    }
}

impl fmt::Debug for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    #[test]
    fn a_map_of_texts_is_asked_with_a_str() {
        let map = HashMap::from([(Text::from("test"), 1)]);
        assert_eq!(map.get("test"), Some(&1));
    }

    #[test]
    fn malformed_utf8_is_replaced_and_well_formed_is_shared() {
        let bytes = Bytes::from_static("订单".as_bytes());
        assert_eq!(Text::from_bytes(bytes.clone()).as_ptr(), bytes.as_ptr());
        assert_ne!(Text::from_bytes(bytes.clone()).detached().as_ptr(), bytes.as_ptr());
        assert_eq!(Text::from_bytes(Bytes::from_static(b"a\xffb")), "a\u{fffd}b");
    }
}
