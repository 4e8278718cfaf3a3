//! The client against a broker that the test plays itself.
#![expect(clippy::unwrap_used, reason = "also in the functions that tests share")]

use bytes::{Bytes, BytesMut};
use metaq_client::{Client, ClientError, GetAnswer, OUTSTANDING_MAX, Stored};
use metaq_types::{MessageId, Offset, Opaque, Status};
use metaq_wire::{Decoded, Greeting, Request, Role, ValueExtra};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// The broker's end of one connection.
struct Broker {
    stream: TcpStream,
    buf: BytesMut,
}

impl Broker {
    /// The next request; `None` when the client has closed.
    async fn request(&mut self) -> Option<Request> {
        loop {
            if let Some(decoded) = metaq_wire::decode(&mut self.buf).unwrap() {
                let Decoded::Request(request) = decoded else { panic!("{decoded:?}") };
                return Some(request);
            }
            if self.stream.read_buf(&mut self.buf).await.unwrap() == 0 {
                return None;
            }
        }
    }

    async fn send(&mut self, encode: impl FnOnce(&mut BytesMut)) {
        let mut out = BytesMut::new();
        encode(&mut out);
        self.stream.write_all(&out).await.unwrap();
    }
}

async fn connected() -> (Client, Broker) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = format!("meta://{}", listener.local_addr().unwrap());
    let (client, accepted) = tokio::join!(Client::connect(&addr, CONNECT_TIMEOUT), listener.accept());
    (client.unwrap(), Broker { stream: accepted.unwrap().0, buf: BytesMut::new() })
}

fn opaque(request: &Request) -> Opaque {
    match request {
        Request::Put(put) => put.opaque,
        Request::Get(get) => get.opaque,
        Request::Offset(query) => query.opaque,
        Request::Version(version) => version.opaque,
        Request::Stats(stats) => stats.opaque,
        other => panic!("{other:?}"),
    }
}

fn result(status: Status, opaque: Opaque, text: &str) -> impl FnOnce(&mut BytesMut) {
    move |out| metaq_wire::encode_result(out, status, opaque, text.as_bytes())
}

#[tokio::test]
async fn every_command_gets_its_answer() {
    let (client, mut broker) = connected().await;
    let broker = tokio::spawn(async move {
        while let Some(request) = broker.request().await {
            let opaque = opaque(&request);
            match request {
                Request::Put(put) => {
                    assert_eq!((&*put.topic, put.partition, put.flag, &put.body[..]), ("t", -1, 1, &b"\0\0\0\0x"[..]));
                    assert_eq!(put.checksum, Some(metaq_wire::checksum(&put.body)));
                    broker.send(|out| metaq_wire::encode_stored(out, opaque, MessageId(-7), 2, Offset::MAX)).await;
                }
                Request::Offset(query) if query.partition == 0 => {
                    broker.send(result(Status::Success, opaque, "1200")).await
                }
                Request::Offset(_) => broker.send(result(Status::NotFound, opaque, "The topic `t` …")).await,
                Request::Version(version) => {
                    let asked = version.greeting.map(|greeting| greeting.to_string()).unwrap_or_default();
                    broker.send(result(Status::Success, opaque, &format!("0.1.0 asked: {asked}"))).await
                }
                Request::Stats(stats) => broker.send(result(Status::Success, opaque, &stats.item)).await,
                other => panic!("{other:?}"),
            }
        }
    });

    let stored = client.put("t", -1, 1, Bytes::from_static(b"\0\0\0\0x")).await.unwrap();
    assert_eq!(stored, Stored { id: MessageId(-7), partition: 2, offset: Offset::MAX });
    assert_eq!(client.offset("t", "g", 0, 1300).await.unwrap(), Offset::new(1200));
    assert_eq!(client.offset("t", "g", 1, 1300).await.unwrap(), None);
    assert_eq!(client.version(None).await.unwrap(), "0.1.0 asked: ");
    let greeting = Greeting { slave_id: Some(0), epoch: 3, ..Greeting::new(Role::Slave) };
    assert_eq!(client.version(Some(&greeting)).await.unwrap(), "0.1.0 asked: role=slave id=0 epoch=3");
    assert_eq!(client.stats("").await.unwrap(), Bytes::new());
    assert_eq!(client.stats("topics").await.unwrap(), "topics");
    drop(client);
    broker.await.unwrap();
}

#[tokio::test]
async fn a_get_tells_its_outcomes_apart() {
    let (client, mut broker) = connected().await;
    let extra = ValueExtra { segment: Offset::ZERO, end: Offset::MAX, epoch: 7, journal: None, confirmed: None };
    let value = |extra| GetAnswer::Value { body: Bytes::from_static(b"abc"), extra };
    let cases = [
        ("value 3 OPAQUE\r\nabc", value(None)),
        ("value 3 OPAQUE seg=0 end=9223372036854775807 epoch=7 new=1\r\nabc", value(Some(extra))),
        ("value 3 OPAQUE seg=0 end=x epoch=7\r\nabc", value(None)),
        ("result 404 36 OPAQUE\r\nCould not find message at position 9", GetAnswer::NotYet { confirmed: None }),
        ("result 404 44 OPAQUE\r\nThe topic `t` in partition `0` is not exists", GetAnswer::NoPartition),
        ("result 301 4 OPAQUE\r\n1200", GetAnswer::Moved(Offset::new(1200).unwrap())),
    ];
    for (text, expected) in cases {
        let answered = async {
            let Some(Request::Get(get)) = broker.request().await else { panic!("no get") };
            assert_eq!(get.wait, Some(Duration::from_millis(50)));
            let text = text.replace("OPAQUE", &get.opaque.to_string());
            broker.stream.write_all(text.as_bytes()).await.unwrap();
        };
        let wait = Some(Duration::from_millis(50));
        let (answer, ()) = tokio::join!(client.get("t", "g", 0, 9, 1024, wait), answered);
        assert_eq!(answer.unwrap(), expected, "{text}");
    }
    let answered = async {
        let request = broker.request().await.unwrap();
        broker.send(result(Status::Forbidden, opaque(&request), "Partition[0-0] has been closed")).await;
    };
    let (answer, ()) = tokio::join!(client.get("t", "g", 0, 9, 1024, None), answered);
    assert_eq!(answer.unwrap_err().to_string(), "answer 403: Partition[0-0] has been closed");
}

#[tokio::test]
async fn answers_in_any_order_find_their_requests() {
    let (client, mut broker) = connected().await;
    let mut calls = JoinSet::new();
    for number in 0..100 {
        let client = client.clone();
        calls.spawn(async move { (number, client.stats(&format!("item{number}")).await.unwrap()) });
    }
    let mut requests = Vec::new();
    while requests.len() < 100 {
        requests.push(broker.request().await.unwrap());
    }
    for request in requests.into_iter().rev() {
        let Request::Stats(stats) = request else { panic!("{request:?}") };
        broker.send(result(Status::Success, stats.opaque, &stats.item)).await;
        // Matched to nothing, and dropped.
        broker.send(result(Status::Success, Opaque::NONE, "nobody asked")).await;
    }
    while let Some(call) = calls.join_next().await {
        let (number, answer) = call.unwrap();
        assert_eq!(answer, format!("item{number}"));
    }
}

#[tokio::test]
async fn the_end_of_the_connection_ends_every_request() {
    let (client, mut broker) = connected().await;
    let mut calls = JoinSet::new();
    for _ in 0..10 {
        let client = client.clone();
        calls.spawn(async move { client.version(None).await });
    }
    for _ in 0..10 {
        broker.request().await.unwrap();
    }
    drop(broker);
    while let Some(call) = calls.join_next().await {
        assert!(matches!(call.unwrap(), Err(ClientError::Closed { .. })));
    }
    assert!(client.closed().await.to_string().contains("has ended: the broker closed it"));
    assert!(client.is_closed());
    assert!(matches!(client.version(None).await, Err(ClientError::Closed { .. })));
}

#[tokio::test]
async fn what_is_no_answer_ends_the_connection_with_the_reason() {
    for (bytes, reason) in [
        ("hello\r\n", "'hello' is no answer of a broker"),
        ("result x 0 1\r\n", "code 'x' of an answer"),
        ("value 2147483647 1\r\n", "a body of 2147483647 bytes is longer than"),
    ] {
        let (client, mut broker) = connected().await;
        broker.stream.write_all(bytes.as_bytes()).await.unwrap();
        let error = client.closed().await.to_string();
        assert!(error.contains(reason), "{error}");
    }
    let (client, mut broker) = connected().await;
    broker.stream.write_all(b"result 200 10 1\r\nhalf").await.unwrap();
    drop(broker);
    assert!(client.closed().await.to_string().contains("within an answer, after 21 bytes"));
}

#[tokio::test]
async fn a_late_answer_is_not_given_to_the_next_request() {
    let (client, mut broker) = connected().await;
    let error = client.with_timeout(Duration::from_millis(1)).stats("slow").await.unwrap_err();
    assert!(matches!(error, ClientError::Timeout { .. }), "{error}");
    let late = broker.request().await.unwrap();
    let answered = async {
        let next = broker.request().await.unwrap();
        broker.send(result(Status::Success, opaque(&late), "late")).await;
        broker.send(result(Status::Success, opaque(&next), "next")).await;
    };
    let (answer, ()) = tokio::join!(client.stats("next"), answered);
    assert_eq!(answer.unwrap(), "next");
}

#[tokio::test]
async fn one_request_too_many_waits_for_an_answer() {
    let (client, mut broker) = connected().await;
    let mut calls = JoinSet::new();
    for _ in 0..OUTSTANDING_MAX + 1 {
        let client = client.clone();
        calls.spawn(async move { client.version(None).await.unwrap() });
    }
    let mut requests = Vec::new();
    while requests.len() < OUTSTANDING_MAX {
        requests.push(broker.request().await.unwrap());
    }
    assert!(broker.buf.is_empty());
    let first = requests.swap_remove(0);
    broker.send(result(Status::Success, opaque(&first), "")).await;
    requests.push(broker.request().await.unwrap());
    for request in requests {
        broker.send(result(Status::Success, opaque(&request), "")).await;
    }
    assert_eq!(calls.join_all().await.len(), OUTSTANDING_MAX + 1);
}

/// A broker that cannot get rid of its answers stops reading; a client that then only writes would wait for ever.
#[tokio::test]
async fn reading_goes_on_while_a_write_waits() {
    const BYTES: usize = 512 * 1024;
    let (client, mut broker) = connected().await;
    let mut calls = JoinSet::new();
    for _ in 0..50 {
        let (putting, getting) = (client.clone(), client.clone());
        calls.spawn(async move { putting.put("t", 0, 0, Bytes::from(vec![7; BYTES])).await.map(|_| ()).unwrap() });
        calls.spawn(async move {
            let answer = getting.get("t", "g", 0, 0, BYTES as i32, None).await.unwrap();
            assert!(matches!(answer, GetAnswer::Value { body, .. } if body == vec![7; BYTES]));
        });
    }
    let broker = tokio::spawn(async move {
        while let Some(request) = broker.request().await {
            let opaque = opaque(&request);
            if let Request::Put(put) = request {
                assert_eq!(put.body.len(), BYTES);
                broker.send(|out| metaq_wire::encode_stored(out, opaque, MessageId(1), 0, Offset::ZERO)).await;
            } else {
                broker.send(|out| metaq_wire::encode_value_head(out, BYTES as u32, opaque, None)).await;
                broker.stream.write_all(&vec![7; BYTES]).await.unwrap();
            }
        }
    });
    drop(client);
    assert_eq!(calls.join_all().await.len(), 100);
    // The last handle is gone with the last call, so the broker sees the end.
    broker.await.unwrap();
}

#[tokio::test]
async fn names_that_would_be_read_as_another_request_are_not_sent() {
    let (client, mut broker) = connected().await;
    for name in ["", "a b", "t 0 0 0 1\r\nquit\r\n", "a\n"] {
        assert!(matches!(client.put(name, 0, 0, Bytes::new()).await, Err(ClientError::Protocol(_))), "{name:?}");
        assert!(matches!(client.get("t", name, 0, 0, 1, None).await, Err(ClientError::Protocol(_))), "{name:?}");
    }
    drop(client);
    assert_eq!(broker.request().await, None);
}

#[tokio::test]
async fn no_connection_says_where_to() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap().to_string();
    drop(listener);
    let error = Client::connect(&addr, CONNECT_TIMEOUT).await.err().unwrap().to_string();
    assert!(error.starts_with(&format!("cannot connect to {addr}: ")), "{error}");
}
