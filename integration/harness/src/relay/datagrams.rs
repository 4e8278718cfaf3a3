//! The relay's half for UDP: each client has a socket of its own towards the server, so that answers find back.

use super::chance::Chance;
use super::{Flow, Rule};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::UdpSocket;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::Instant;

/// How much later than its place a reordered datagram arrives.
const REORDERED_BY: Duration = Duration::from_millis(20);

/// Datagrams on the way in one direction of one client; more are lost, as on a line that is full.
const QUEUE_MAX: usize = 4096;

const DATAGRAM_BYTES_MAX: usize = 65_535;

/// A client's way to the server and back.
struct Session {
    to_server: Way,
    answers: JoinHandle<()>,
}

impl Drop for Session {
    fn drop(&mut self) {
        self.answers.abort();
    }
}

pub(super) async fn relay(front: UdpSocket, server: SocketAddr, rule: watch::Receiver<Rule>) {
    let front = Arc::new(front);
    let mut sessions: HashMap<SocketAddr, Session> = HashMap::new();
    let mut resets = rule.borrow().resets;
    let mut datagram = vec![0; DATAGRAM_BYTES_MAX];
    loop {
        // An error is about an earlier datagram that a client did not take any more.
        let Ok((length, client)) = front.recv_from(&mut datagram).await else { continue };
        let now = *rule.borrow();
        if resets != now.resets {
            resets = now.resets;
            sessions.clear();
        }
        let session = match sessions.entry(client) {
            std::collections::hash_map::Entry::Occupied(known) => known.into_mut(),
            std::collections::hash_map::Entry::Vacant(new) => {
                let Ok(session) = Session::open(&front, client, server, &rule).await else { continue };
                new.insert(session)
            }
        };
        session.to_server.pass(now.to_server, &datagram[..length]);
    }
}

impl Session {
    async fn open(
        front: &Arc<UdpSocket>,
        client: SocketAddr,
        server: SocketAddr,
        rule: &watch::Receiver<Rule>,
    ) -> std::io::Result<Session> {
        let back = Arc::new(UdpSocket::bind(SocketAddr::new(server.ip(), 0)).await?);
        let to_server = Way::new(Arc::clone(&back), server);
        let to_client = Way::new(Arc::clone(front), client);
        let answers = tokio::spawn(answer(back, to_client, rule.clone()));
        Ok(Session { to_server, answers })
    }
}

async fn answer(back: Arc<UdpSocket>, mut to_client: Way, rule: watch::Receiver<Rule>) {
    let mut datagram = vec![0; DATAGRAM_BYTES_MAX];
    loop {
        // An error: the server was not there when an earlier datagram came.
        let Ok((length, _)) = back.recv_from(&mut datagram).await else { continue };
        let flow = rule.borrow().to_client;
        to_client.pass(flow, &datagram[..length]);
    }
}

/// One direction of one client. Its datagrams keep their order, but for those that are told not to.
struct Way {
    in_order: mpsc::Sender<(Instant, Vec<u8>)>,
    socket: Arc<UdpSocket>,
    to: SocketAddr,
    chance: Chance,
}

impl Way {
    fn new(socket: Arc<UdpSocket>, to: SocketAddr) -> Way {
        let (in_order, mut due) = mpsc::channel::<(Instant, Vec<u8>)>(QUEUE_MAX);
        let sender = Arc::clone(&socket);
        tokio::spawn(async move {
            while let Some((when, datagram)) = due.recv().await {
                tokio::time::sleep_until(when).await;
                // Nobody there: lost, as on any network.
                let _ = sender.send_to(&datagram, to).await;
            }
        });
        Way { in_order, socket, to, chance: Chance::new() }
    }

    fn pass(&mut self, flow: Flow, datagram: &[u8]) {
        if flow.stalled || self.chance.befalls(flow.lost_per_mille) {
            return;
        }
        let when = Instant::now() + flow.delay;
        if self.chance.befalls(flow.reordered_per_mille) {
            let (socket, to, datagram) = (Arc::clone(&self.socket), self.to, datagram.to_vec());
            tokio::spawn(async move {
                tokio::time::sleep_until(when + REORDERED_BY).await;
                let _ = socket.send_to(&datagram, to).await;
            });
            return;
        }
        let _ = self.in_order.try_send((when, datagram.to_vec()));
    }
}

#[cfg(test)]
mod tests {
    use crate::relay::{Flow, Relay};
    use std::net::UdpSocket;
    use std::time::Duration;

    const PATIENCE: Duration = Duration::from_secs(10);

    /// A client, the relay between, and a server that sends back whatever comes.
    fn echo() -> (UdpSocket, Relay) {
        let server = UdpSocket::bind("127.0.0.1:0").unwrap();
        let relay = Relay::start_with_datagrams("127.0.0.1:0".parse().unwrap(), server.local_addr().unwrap()).unwrap();
        std::thread::spawn(move || {
            let mut datagram = [0; 64];
            while let Ok((length, from)) = server.recv_from(&mut datagram) {
                // The last word says goodbye.
                server.send_to(&datagram[..length], from).unwrap();
                if &datagram[..length] == b"over" {
                    break;
                }
            }
        });
        let client = UdpSocket::bind("127.0.0.1:0").unwrap();
        client.connect(relay.address).unwrap();
        client.set_read_timeout(Some(PATIENCE)).unwrap();
        (client, relay)
    }

    fn receive(client: &UdpSocket) -> String {
        let mut datagram = [0; 64];
        let length = client.recv(&mut datagram).unwrap();
        String::from_utf8_lossy(&datagram[..length]).into_owned()
    }

    #[test]
    fn datagrams_pass_both_ways_and_none_while_stalled() {
        let (client, relay) = echo();
        client.send(b"one").unwrap();
        assert_eq!(receive(&client), "one");
        relay.stall();
        client.send(b"two").unwrap();
        // Known to be lost once a later one, sent on after the stall, has come alone.
        client.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
        assert!(client.recv(&mut [0; 64]).is_err());
        client.set_read_timeout(Some(PATIENCE)).unwrap();
        relay.restore();
        relay.reset();
        client.send(b"over").unwrap();
        assert_eq!(receive(&client), "over");
    }

    #[test]
    fn what_is_reordered_arrives_in_another_order() {
        let (client, relay) = echo();
        relay.set(Flow { reordered_per_mille: 500, ..Flow::default() }, Flow::default());
        let sent: Vec<String> = (10..50).map(|number| number.to_string()).collect();
        for number in &sent {
            client.send(number.as_bytes()).unwrap();
        }
        let came: Vec<String> = sent.iter().map(|_| receive(&client)).collect();
        assert!(!came.is_sorted(), "{came:?}");
        let mut sorted = came;
        sorted.sort();
        assert_eq!(sorted, sent);
    }

    #[test]
    fn all_is_lost_where_everything_is_to_be_lost() {
        let (client, relay) = echo();
        relay.set(Flow { lost_per_mille: 1000, ..Flow::default() }, Flow::default());
        client.send(b"lost").unwrap();
        client.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
        assert!(client.recv(&mut [0; 64]).is_err());
    }
}
