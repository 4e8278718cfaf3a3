//! The embedded registry by raw frames: what old clients send, what nobody should send, and the order of answers.

#![expect(clippy::unwrap_used, reason = "a test's helpers fail as the test does")]

use metaq_registry::Embedded;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

const PATIENCE: Duration = Duration::from_secs(20);

const CREATE: i32 = 1;
const EXISTS: i32 = 3;
const GET_CHILDREN: i32 = 8;
const PING: i32 = 11;
const MULTI: i32 = 14;
const CLOSE: i32 = -11;

fn start() -> Embedded {
    Embedded::start("127.0.0.1:0".parse().unwrap()).unwrap()
}

fn text(value: &str) -> Vec<u8> {
    [&i32::try_from(value.len()).unwrap().to_be_bytes()[..], value.as_bytes()].concat()
}

/// A client that writes bytes and reads frames.
struct Raw {
    stream: TcpStream,
}

impl Raw {
    async fn open(address: SocketAddr) -> Raw {
        Raw { stream: TcpStream::connect(address).await.unwrap() }
    }

    /// With a session; the id and the password of it.
    async fn connect(address: SocketAddr, session: i64, password: &[u8]) -> (Raw, i64, Vec<u8>) {
        let mut raw = Raw::open(address).await;
        raw.send(&connect_request(session, password, true)).await;
        let answer = raw.frame().await.unwrap();
        assert_eq!(answer.len(), 4 + 4 + 8 + 4 + 16 + 1);
        (raw, i64::from_be_bytes(answer[8..16].try_into().unwrap()), answer[20..36].to_vec())
    }

    async fn send(&mut self, frame: &[u8]) {
        let head = i32::try_from(frame.len()).unwrap().to_be_bytes();
        self.stream.write_all(&[&head[..], frame].concat()).await.unwrap();
    }

    async fn request(&mut self, xid: i32, operation: i32, body: &[u8]) {
        self.send(&[&xid.to_be_bytes()[..], &operation.to_be_bytes(), body].concat()).await;
    }

    /// `None` when the server closed.
    async fn frame(&mut self) -> Option<Vec<u8>> {
        let read = async {
            let length = self.stream.read_i32().await.ok()?;
            let mut frame = vec![0; usize::try_from(length).unwrap()];
            self.stream.read_exact(&mut frame).await.ok()?;
            Some(frame)
        };
        timeout(PATIENCE, read).await.unwrap()
    }

    /// (xid, error, body) of the next answer or event.
    async fn answer(&mut self) -> (i32, i32, Vec<u8>) {
        let frame = self.frame().await.unwrap();
        let number = |at: usize| i32::from_be_bytes(frame[at..at + 4].try_into().unwrap());
        (number(0), number(12), frame[16..].to_vec())
    }
}

fn connect_request(session: i64, password: &[u8], read_only_flag: bool) -> Vec<u8> {
    let mut frame = [&0i32.to_be_bytes()[..], &0i64.to_be_bytes(), &5000i32.to_be_bytes()].concat();
    frame.extend(session.to_be_bytes());
    frame.extend(i32::try_from(password.len()).unwrap().to_be_bytes());
    frame.extend(password);
    if read_only_flag {
        frame.push(0);
    }
    frame
}

fn create(path: &str, flags: i32) -> Vec<u8> {
    let acl = [&1i32.to_be_bytes()[..], &31i32.to_be_bytes(), &text("world"), &text("anyone")].concat();
    [&text(path)[..], &(-1i32).to_be_bytes(), &acl, &flags.to_be_bytes()].concat()
}

fn watched(path: &str) -> Vec<u8> {
    [&text(path)[..], &[1]].concat()
}

#[tokio::test]
async fn a_client_before_3_4_gets_no_read_only_flag() {
    let server = start();
    let mut raw = Raw::open(server.address()).await;
    raw.send(&connect_request(0, &[0; 16], false)).await;
    let answer = raw.frame().await.unwrap();
    assert_eq!(answer.len(), 4 + 4 + 8 + 4 + 16);
    assert_eq!(answer[..8], [0, 0, 0, 0, 0, 0, 0x13, 0x88]);
}

#[tokio::test]
async fn an_unknown_session_is_told_that_it_expired() {
    let server = start();
    let mut raw = Raw::open(server.address()).await;
    raw.send(&connect_request(77, &[0; 16], true)).await;
    let answer = raw.frame().await.unwrap();
    // A time-out and a session of zero; the Java client reads the first, ours the second.
    assert_eq!(answer[4..16], [0; 12]);
    assert_eq!(raw.frame().await, None);
}

#[tokio::test]
async fn a_session_moves_to_its_new_connection_with_its_nodes() {
    let server = start();
    let (mut first, session, password) = Raw::connect(server.address(), 0, &[0; 16]).await;
    first.request(1, CREATE, &create("/e", 1)).await;
    assert_eq!(first.answer().await, (1, 0, text("/e")));
    let (mut second, same, _) = Raw::connect(server.address(), session, &password).await;
    assert_eq!(same, session);
    assert_eq!(first.frame().await, None);
    second.request(1, EXISTS, &watched("/e")).await;
    assert_eq!(second.answer().await.1, 0);
}

#[tokio::test]
async fn an_event_comes_before_the_answer_to_what_caused_it() {
    let server = start();
    let (mut raw, ..) = Raw::connect(server.address(), 0, &[0; 16]).await;
    raw.request(1, GET_CHILDREN, &watched("/")).await;
    raw.request(2, EXISTS, &watched("/x")).await;
    raw.request(3, CREATE, &create("/x", 0)).await;
    raw.request(-2, PING, &[]).await;
    assert_eq!(raw.answer().await.0, 1);
    assert_eq!(raw.answer().await, (2, -101, vec![]));
    let event = |kind: i32, path: &str| [&kind.to_be_bytes()[..], &3i32.to_be_bytes(), &text(path)].concat();
    assert_eq!(raw.answer().await, (-1, 0, event(1, "/x")));
    assert_eq!(raw.answer().await, (-1, 0, event(4, "/")));
    assert_eq!(raw.answer().await, (3, 0, text("/x")));
    assert_eq!(raw.answer().await, (-2, 0, vec![]));
}

#[tokio::test]
async fn closing_a_session_is_answered_and_ends_it() {
    let server = start();
    let (mut raw, session, password) = Raw::connect(server.address(), 0, &[0; 16]).await;
    raw.request(1, CREATE, &create("/e", 1)).await;
    raw.request(2, CLOSE, &[]).await;
    assert_eq!((raw.answer().await.0, raw.answer().await), (1, (2, 0, vec![])));
    assert_eq!(raw.frame().await, None);
    let mut again = Raw::open(server.address()).await;
    again.send(&connect_request(session, &password, true)).await;
    assert_eq!(again.frame().await.unwrap()[4..16], [0; 12]);
    let (mut other, ..) = Raw::connect(server.address(), 0, &[0; 16]).await;
    other.request(1, EXISTS, &watched("/e")).await;
    assert_eq!(other.answer().await.1, -101);
}

#[tokio::test]
async fn what_is_not_there_is_refused_and_the_connection_stays() {
    let server = start();
    let (mut raw, ..) = Raw::connect(server.address(), 0, &[0; 16]).await;
    for (xid, operation, body, error) in [
        (1, MULTI, vec![], -6),
        (2, 999, vec![1, 2, 3], -6),
        (3, CREATE, create("/container", 4), -6),
        (4, CREATE, vec![0, 0], -5),
        (5, CREATE, create("no-slash", 0), -8),
        (6, EXISTS, [0x7f, 0xff, 0xff, 0xff].to_vec(), -5),
    ] {
        raw.request(xid, operation, &body).await;
        assert_eq!(raw.answer().await, (xid, error, vec![]));
    }
}

#[tokio::test]
async fn rubbish_closes_its_connection_and_no_other() {
    let server = start();
    let (mut good, ..) = Raw::connect(server.address(), 0, &[0; 16]).await;
    let huge = 0x7fff_ffffi32.to_be_bytes();
    for bytes in [&huge[..], &[0xff; 4], &[0, 0x10, 0, 1], b"GET / HTTP/1.1\r\n\r\n", &[0, 0, 0, 2, 1, 1]] {
        let mut bad = Raw::open(server.address()).await;
        bad.stream.write_all(bytes).await.unwrap();
        assert_eq!(bad.frame().await, None, "{bytes:?}");
        let (mut bad, ..) = Raw::connect(server.address(), 0, &[0; 16]).await;
        bad.stream.write_all(bytes).await.unwrap();
        assert_eq!(bad.frame().await, None, "{bytes:?}");
    }
    good.request(-2, PING, &[]).await;
    assert_eq!(good.answer().await, (-2, 0, vec![]));
}

#[tokio::test]
async fn a_silent_session_expires() {
    let server = start();
    let mut frame = connect_request(0, &[0; 16], true);
    // One second, the least there is.
    frame[12..16].copy_from_slice(&1i32.to_be_bytes());
    let mut silent = Raw::open(server.address()).await;
    silent.send(&frame).await;
    assert_eq!(silent.frame().await.unwrap()[4..8], 1000i32.to_be_bytes());
    silent.request(1, CREATE, &create("/e", 1)).await;
    assert_eq!(silent.answer().await.0, 1);
    let (mut other, ..) = Raw::connect(server.address(), 0, &[0; 16]).await;
    other.request(1, EXISTS, &watched("/e")).await;
    assert_eq!(other.answer().await.1, 0);
    assert_eq!(silent.frame().await, None);
    assert_eq!(other.answer().await.0, -1);
}

#[tokio::test]
async fn a_client_that_does_not_read_is_cut() {
    let server = start();
    let (mut deaf, ..) = Raw::connect(server.address(), 0, &[0; 16]).await;
    let long = format!("/{}", "x".repeat(200_000));
    deaf.request(1, CREATE, &create(&long, 0)).await;
    // Each answer is as long as the path, and none is read: at some time there is no place for another.
    let children = watched("/");
    let asking = async {
        for xid in 2.. {
            let frame = [&i32::to_be_bytes(xid)[..], &GET_CHILDREN.to_be_bytes(), &children].concat();
            let head = i32::try_from(frame.len()).unwrap().to_be_bytes();
            if deaf.stream.write_all(&[&head[..], &frame].concat()).await.is_err() {
                return;
            }
        }
    };
    // It stops being read, so the writing stops, and its session ends for want of requests.
    timeout(PATIENCE, asking).await.unwrap();
    let (mut other, ..) = Raw::connect(server.address(), 0, &[0; 16]).await;
    other.request(-2, PING, &[]).await;
    assert_eq!(other.answer().await, (-2, 0, vec![]));
}

#[tokio::test]
async fn monitoring_words_are_answered() {
    let server = start();
    for (word, expected) in [("ruok", "imok"), ("isro", "rw")] {
        let mut raw = Raw::open(server.address()).await;
        raw.stream.write_all(word.as_bytes()).await.unwrap();
        let mut answer = String::new();
        timeout(PATIENCE, raw.stream.read_to_string(&mut answer)).await.unwrap().unwrap();
        assert_eq!(answer, expected);
    }
}
