use std::fmt;
use std::ops::Add;

/// A byte position in the endless log of one partition, counted from 0 at its creation and never reset.
///
/// At most `i64::MAX`, since offsets travel as signed 64-bit numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Offset(u64);

impl Offset {
    pub const ZERO: Offset = Offset(0);
    /// What a consumer asks for when it wants to know the newest place; no log reaches it.
    pub const MAX: Offset = Offset(i64::MAX as u64);

    /// `None` for a position no log can reach.
    pub const fn new(position: u64) -> Option<Offset> {
        if position <= i64::MAX as u64 { Some(Offset(position)) } else { None }
    }

    /// The offset a signed wire number names; `None` when it is negative.
    pub const fn from_wire(number: i64) -> Option<Offset> {
        if number < 0 { None } else { Some(Offset(number as u64)) }
    }

    pub const fn get(self) -> u64 {
        self.0
    }

    pub const fn wire(self) -> i64 {
        self.0 as i64
    }

    /// Bytes from `earlier` to here; 0 when `earlier` is not earlier.
    pub const fn bytes_since(self, earlier: Offset) -> u64 {
        self.0.saturating_sub(earlier.0)
    }

    /// Overflow ends the process: a log of 8 EiB is a bug, not a state.
    #[must_use]
    pub const fn plus(self, bytes: u64) -> Offset {
        match self.0.checked_add(bytes) {
            Some(sum) if sum <= i64::MAX as u64 => Offset(sum),
            _ => panic!("offset beyond i64::MAX"),
        }
    }
}

impl Add<u64> for Offset {
    type Output = Offset;
    fn add(self, bytes: u64) -> Offset {
        self.plus(bytes)
    }
}

impl fmt::Display for Offset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
