//! A master's seat and its lease, for as long as a session lives.

use crate::fence::{self, Fence, Lease, Renewal, Seat};
use crate::zookeeper::{Reminder, Shared, advice, path_missing};
use metaq_types::BrokerId;
use tokio::time::{Instant, sleep};
use tracing::warn;
use zookeeper_client::{Client, Error};

/// Holds the seat of a master and renews its lease for as long as the session lives. A lease is given only while the seat
/// is ours: whoever wrote the fence before has then been seen, and whoever writes it later finds the seat taken.
pub(crate) async fn hold(shared: &Shared, client: &Client) {
    let Some(ours) = &shared.reign else { return std::future::pending().await };
    let id = shared.wanted.borrow().broker_id;
    let mut holding = Holding { shared, client, id, ours, not_before: None, remind: Reminder::new() };
    loop {
        match fence::take_seat(client, &shared.paths, id, ours).await {
            Ok(Seat::Ours) => {
                holding.look(true).await;
                sleep(fence::renewal_pause(client)).await;
            }
            Ok(Seat::Taken { by }) => {
                // It may be our successor's, and then there is nothing to wait for.
                holding.look(false).await;
                holding.awaits(&by);
                let text = format!("{by} still has a session as the master");
                holding.say(&text, "waiting for it to end before the first message is acknowledged");
                sleep(fence::SEAT_PAUSE).await;
            }
            // The seat is below the fence, which is gone.
            Err(Error::NoNode) => {
                holding.look(false).await;
                sleep(fence::SEAT_PAUSE).await;
            }
            Err(error @ Error::NoAuth) => {
                let text = format!("{}: {error}{}", shared.paths.seat(id), advice(&error, &shared.zk.root));
                holding.say(&text, "nothing is acknowledged until then");
                sleep(fence::SEAT_PAUSE).await;
            }
            // Before the first lease `keep` waits for it, and sees nothing of this.
            Err(_) if client.state().is_terminated() => return,
            // The session or the connection is in trouble, which `keep` deals with; the lease runs out by itself.
            Err(_) => sleep(fence::SEAT_PAUSE).await,
        }
    }
}

struct Holding<'a> {
    shared: &'a Shared,
    client: &'a Client,
    id: BrokerId,
    ours: &'a Fence,
    /// The registry forgot our reign when we had no lease: whoever has a newer one has until then to say so.
    not_before: Option<Instant>,
    remind: Reminder,
}

impl Holding<'_> {
    /// Looks at the fence, and puts ours back where it was forgotten, as in an ensemble that was wiped.
    async fn look(&mut self, seated: bool) {
        match fence::renew(self.client, &self.shared.paths, self.id, self.ours).await {
            Some(Renewal::Lease(lease @ Lease::Replaced(_))) => {
                self.shared.lease.send_replace(lease);
            }
            Some(Renewal::Lease(lease)) if seated && self.not_before.is_none_or(|at| at <= Instant::now()) => {
                self.not_before = None;
                self.shared.lease.send_replace(lease);
            }
            Some(Renewal::Forgotten(version)) => self.put_back(version).await,
            Some(Renewal::Foreign(data)) => {
                let path = self.shared.paths.fence(self.id);
                let text = format!("the fence {path} holds what is not understood: {data:?}");
                self.say(&text, &format!("nothing is acknowledged until it is deleted (zkCli.sh: deleteall {path})"));
            }
            Some(Renewal::Lease(_)) | None => {}
        }
    }

    async fn put_back(&mut self, version: Option<i32>) {
        if version.is_none()
            && let Err(error) = fence::make_parent(self.client, &self.shared.paths).await
        {
            if error == Error::NoNode {
                self.say(&path_missing(&self.shared.zk.connect), "nothing is acknowledged until it is there");
            }
            return;
        }
        // Somebody else may have written it meanwhile: the next look tells.
        if fence::write(self.client, &self.shared.paths, self.id, self.ours, version).await.is_err() {
            return;
        }
        let has_lease = matches!(*self.shared.lease.borrow(), Lease::Until(until) if until > std::time::Instant::now());
        if !has_lease {
            self.not_before = Some(Instant::now() + self.client.session_timeout());
        }
        let epoch = self.ours.epoch;
        warn!(%epoch, has_lease, "zookeeper had forgotten this reign, as one does that was wiped: the fence is there again");
    }

    /// For producers, who are refused meanwhile. A lease that was given runs out by itself.
    fn awaits(&self, by: &str) {
        self.shared.lease.send_if_modified(|lease| {
            let is_news = match lease {
                Lease::None => true,
                Lease::Awaits(known) => known != by,
                Lease::Until(_) | Lease::Replaced(_) => false,
            };
            if is_news {
                *lease = Lease::Awaits(by.to_owned());
            }
            is_news
        });
    }

    fn say(&mut self, text: &str, consequence: &str) {
        if self.remind.due(text, Instant::now()) {
            warn!("{text}; {consequence}");
        }
    }
}
