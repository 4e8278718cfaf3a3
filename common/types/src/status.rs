use std::fmt;

/// The status code of a `result` answer (wire-protocol, "2.3 Codes"). The original's client acts on 200, 301, 403
/// and 404 and shows the text of every other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u16)]
pub enum Status {
    Success = 200,
    /// `get`: the body is the offset to go on with.
    Moved = 301,
    BadRequest = 400,
    /// Only for partitions an operator closed: the ordered producer stores messages locally on it.
    Forbidden = 403,
    NotFound = 404,
    InternalServerError = 500,
    ServiceUnavailable = 503,
    /// Never sent; the client makes it up when an answer does not come.
    GatewayTimeout = 504,
}

impl Status {
    pub const fn code(self) -> u16 {
        self as u16
    }

    pub const fn from_code(code: i32) -> Option<Status> {
        Some(match code {
            200 => Status::Success,
            301 => Status::Moved,
            400 => Status::BadRequest,
            403 => Status::Forbidden,
            404 => Status::NotFound,
            500 => Status::InternalServerError,
            503 => Status::ServiceUnavailable,
            504 => Status::GatewayTimeout,
            _ => return None,
        })
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.code().fmt(f)
    }
}
