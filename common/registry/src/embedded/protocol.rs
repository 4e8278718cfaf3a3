//! Requests and answers of ZooKeeper's client protocol, as much of it as the clients of a first look use.

use super::jute::{Malformed, Reader, Writer};
use super::tree::Stat;
use bytes::Bytes;

/// An error code as clients know it. An old Java client cannot understand one it does not know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub(super) enum Code {
    /// One of our bounds.
    SystemError = -1,
    MarshallingError = -5,
    Unimplemented = -6,
    BadArguments = -8,
    NoNode = -101,
    BadVersion = -103,
    NoChildrenForEphemerals = -108,
    NodeExists = -110,
    NotEmpty = -111,
    SessionExpired = -112,
    InvalidAcl = -114,
    NoWatcher = -121,
}

/// The first frame of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Connect {
    pub(super) timeout_ms: i32,
    /// 0: a new session.
    pub(super) session: i64,
    pub(super) password: Bytes,
    /// Clients before 3.4 send no read-only flag and expect none back.
    pub(super) has_read_only: bool,
}

impl Connect {
    pub(super) fn decode(frame: Bytes) -> Result<Connect, Malformed> {
        let mut reader = Reader::new(frame);
        let _protocol_version = reader.int()?;
        // The last zxid seen is not compared with ours: after a restart every session is unknown anyway, and a client
        // that is told so goes on at once instead of knocking until its own time-out.
        let _last_zxid_seen = reader.long()?;
        let timeout_ms = reader.int()?;
        let session = reader.long()?;
        let password = reader.buffer()?.unwrap_or_default();
        Ok(Connect { timeout_ms, session, password, has_read_only: !reader.is_empty() })
    }
}

/// The answer to [`Connect`]; a time-out and a session of 0 mean "expired".
pub(super) fn connected(timeout_ms: i32, session: i64, password: [u8; 16], read_only_flag: bool) -> Bytes {
    let mut writer = Writer::new();
    writer.int(0);
    writer.int(timeout_ms);
    writer.long(session);
    writer.buffer(Some(&password));
    if read_only_flag {
        writer.bool(false);
    }
    writer.finish()
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Request {
    Create {
        path: String,
        data: Option<Bytes>,
        open: bool,
        flags: i32,
        with_stat: bool,
    },
    Delete {
        path: String,
        version: i32,
    },
    Exists {
        path: String,
        watch: bool,
    },
    GetData {
        path: String,
        watch: bool,
    },
    SetData {
        path: String,
        data: Option<Bytes>,
        version: i32,
    },
    GetAcl {
        path: String,
    },
    GetChildren {
        path: String,
        watch: bool,
        with_stat: bool,
    },
    Sync {
        path: String,
    },
    Ping,
    Auth,
    SetWatches {
        since: i64,
        data: Vec<String>,
        exist: Vec<String>,
        child: Vec<String>,
    },
    RemoveWatches {
        path: String,
        data: bool,
        child: bool,
    },
    GetEphemerals {
        prefix: String,
    },
    CloseSession,
    /// Containers, time-to-live, transactions, quotas, persistent watches: nothing a broker's client needs.
    Unimplemented,
    Malformed,
}

impl Request {
    /// The request's tag and what it asks; an error means that not even the header is there.
    pub(super) fn decode(frame: Bytes) -> Result<(i32, Request), Malformed> {
        let mut reader = Reader::new(frame);
        let xid = reader.int()?;
        let operation = reader.int()?;
        Ok((xid, Request::decode_body(operation, &mut reader).unwrap_or(Request::Malformed)))
    }

    fn decode_body(operation: i32, reader: &mut Reader) -> Result<Request, Malformed> {
        Ok(match operation {
            1 | 15 => {
                let (path, data) = (reader.string()?, reader.buffer()?);
                // Access lists are not kept: whoever reaches the loopback interface may do everything.
                let acl = reader.vector(|reader| {
                    reader.int()?;
                    reader.buffer()?;
                    reader.buffer()
                })?;
                let flags = reader.int()?;
                Request::Create { path, data, open: !acl.is_empty(), flags, with_stat: operation == 15 }
            }
            2 => Request::Delete { path: reader.string()?, version: reader.int()? },
            3 => Request::Exists { path: reader.string()?, watch: reader.bool()? },
            4 => Request::GetData { path: reader.string()?, watch: reader.bool()? },
            5 => Request::SetData { path: reader.string()?, data: reader.buffer()?, version: reader.int()? },
            6 => Request::GetAcl { path: reader.string()? },
            8 | 12 => {
                let (path, watch) = (reader.string()?, reader.bool()?);
                Request::GetChildren { path, watch, with_stat: operation == 12 }
            }
            9 => Request::Sync { path: reader.string()? },
            11 => Request::Ping,
            18 => {
                let (path, kind) = (reader.string()?, reader.int()?);
                Request::RemoveWatches { path, data: matches!(kind, 2 | 3), child: matches!(kind, 1 | 3) }
            }
            100 => Request::Auth,
            101 => Request::SetWatches {
                since: reader.long()?,
                data: reader.vector(Reader::string)?,
                exist: reader.vector(Reader::string)?,
                child: reader.vector(Reader::string)?,
            },
            103 => Request::GetEphemerals { prefix: reader.string()? },
            -11 => Request::CloseSession,
            _ => Request::Unimplemented,
        })
    }
}

/// What a request is answered with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    Empty,
    Path(String),
    PathStat(String, Stat),
    Stat(Stat),
    Data(Option<Bytes>, Stat),
    OpenAcl(Stat),
    Names(Vec<String>),
    NamesStat(Vec<String>, Stat),
}

pub(super) fn reply(xid: i32, zxid: i64, answer: &Result<Answer, Code>) -> Bytes {
    let mut writer = Writer::new();
    writer.int(xid);
    writer.long(zxid);
    writer.int(answer.as_ref().err().map_or(0, |code| *code as i32));
    if let Ok(answer) = answer {
        encode(answer, &mut writer);
    }
    writer.finish()
}

fn encode(answer: &Answer, writer: &mut Writer) {
    match answer {
        Answer::Empty => {}
        Answer::Path(path) => writer.string(path),
        Answer::PathStat(path, stat) => {
            writer.string(path);
            stat.encode(writer);
        }
        Answer::Stat(stat) => stat.encode(writer),
        Answer::Data(data, stat) => {
            writer.buffer(data.as_deref());
            stat.encode(writer);
        }
        Answer::OpenAcl(stat) => {
            const ALL: i32 = 31;
            writer.int(1);
            writer.int(ALL);
            writer.string("world");
            writer.string("anyone");
            stat.encode(writer);
        }
        Answer::Names(names) => writer.strings(names.iter().map(String::as_str)),
        Answer::NamesStat(names, stat) => {
            writer.strings(names.iter().map(String::as_str));
            stat.encode(writer);
        }
    }
}

/// What a watch tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub(super) enum EventKind {
    Created = 1,
    Deleted = 2,
    DataChanged = 3,
    ChildrenChanged = 4,
}

pub(super) fn notification(kind: EventKind, path: &str) -> Bytes {
    const NOTIFICATION_XID: i32 = -1;
    const NO_ZXID: i64 = -1;
    const CONNECTED: i32 = 3;
    let mut writer = Writer::new();
    writer.int(NOTIFICATION_XID);
    writer.long(NO_ZXID);
    writer.int(0);
    writer.int(kind as i32);
    writer.int(CONNECTED);
    writer.string(path);
    writer.finish()
}
