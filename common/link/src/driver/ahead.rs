//! Fetching what comes next while what was fetched is being stored, so that link and disk work side by side.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use metaq_types::Offset;

use super::budget::FETCH_BYTES;
use super::follow::{Follow, Room};
use super::lane::Lane;
use crate::pull::{Answer, NextGet, Pull};

/// Answers of one partition that wait to be appended, with the one under way. With those being written this makes 8 MiB
/// a partition, and for all of them together what the budget of the link has.
const FETCHED_MAX: usize = 2;

/// What a get came to.
pub(super) struct Fetched {
    pub(super) offset: Offset,
    pub(super) answer: Answer,
    /// What its bytes take of the budget until they are stored.
    pub(super) room: Room,
}

/// Gets ahead of what is stored, one at a time and in the order of the log. None of it is known to [`Pull`]: what turns
/// out not to fit is thrown away and asked for again.
pub(super) struct Ahead {
    /// `None` while a get is under way.
    lane: Option<Lane>,
    under_way: Option<Pin<Box<UnderWay>>>,
    fetched: VecDeque<Fetched>,
    /// Where the next get ahead begins, unless the last one came to something else than bytes.
    next: Option<Offset>,
}

/// Answers the lane and, unless the connection is gone or the link stops, what came.
type UnderWay = dyn Future<Output = (Lane, Option<Fetched>)> + Send;

impl Ahead {
    pub(super) fn new(lane: Lane) -> Ahead {
        Ahead { lane: Some(lane), under_way: None, fetched: VecDeque::new(), next: None }
    }

    /// What `get` comes to, fetched ahead or asked for now; `None` when the connection is gone or the link stops.
    pub(super) async fn answer(&mut self, follow: &Follow, get: NextGet) -> Option<Fetched> {
        if self.fetched.is_empty() && self.under_way.is_some() {
            self.advance().await;
        }
        if let Some(fetched) = self.fetched.pop_front() {
            if fetched.offset == get.offset {
                return Some(fetched);
            }
            self.fetched.clear();
        }
        // A get that is given up takes its lane with it.
        self.under_way = None;
        let lane = self.lane.get_or_insert_with(|| Lane::of(&follow.way));
        let (answer, room) = follow.ask_until_stopped(lane, get).await?;
        Some(Fetched { offset: get.offset, answer, room })
    }

    /// Bytes up to `end` are about to be stored, and all that was fetched before lies before it.
    pub(super) fn begin(&mut self, end: Offset) {
        if self.fetched.is_empty() && self.under_way.is_none() {
            self.next = Some(end);
        }
    }

    /// Takes what was fetched next, if it begins at `at` and may be appended right behind what is being stored in
    /// `segment`, where the journal is held up to `journal`.
    pub(super) fn take_behind(
        &mut self,
        pull: &mut Pull,
        at: Offset,
        segment: Offset,
        journal: Offset,
    ) -> Option<(Bytes, Room)> {
        let next = self.fetched.front().filter(|fetched| fetched.offset == at)?;
        let bytes = pull.also(segment, journal, &next.answer)?;
        self.fetched.pop_front().map(|fetched| (bytes, fetched.room))
    }

    /// Begins a get where far more waits and there is room for it; it says to the master that only what `pull` holds is
    /// stored.
    pub(super) fn go_on(&mut self, follow: &Arc<Follow>, pull: &Pull) {
        let free = self.under_way.is_none() && self.fetched.len() < FETCHED_MAX;
        let Some(offset) = self.next.filter(|_| free && follow.reads_ahead) else { return };
        // Who is to be slow gains nothing; who is nearly level confirms sooner without.
        let far = pull.master_end().is_some_and(|end| end >= offset + u64::from(FETCH_BYTES));
        if !far || follow.budget.is_held_back() {
            return;
        }
        let Some(room) = follow.budget.try_take(FETCH_BYTES) else { return };
        let Some(mut lane) = self.lane.take() else { return };
        let held = pull.position();
        let follow = Arc::clone(follow);
        self.under_way = Some(Box::pin(async move {
            let answer = tokio::select! {
                biased;
                answer = follow.get(&mut lane, offset, Some(held), FETCH_BYTES, None) => answer,
                () = follow.stop.cancelled() => None,
            };
            let fetched = answer.map(|answer| Fetched { offset, answer, room: Some(room) });
            (lane, fetched)
        }));
    }

    /// Sends what [`Ahead::go_on`] has begun, before this task is busy with what it has: master and link then work meanwhile.
    pub(super) async fn send(&mut self) {
        tokio::select! {
            biased;
            () = self.advance() => {}
            () = std::future::ready(()) => {}
        }
    }

    /// Returns when the get under way is answered; never, if there is none. May be cancelled: the get goes on with the
    /// next call.
    pub(super) async fn advance(&mut self) {
        let Some(under_way) = &mut self.under_way else { return std::future::pending().await };
        let (lane, fetched) = under_way.await;
        self.under_way = None;
        self.lane = Some(lane);
        self.next = None;
        let Some(fetched) = fetched else { return };
        if let Answer::Value { body, .. } = &fetched.answer
            && !body.is_empty()
        {
            self.next = Some(fetched.offset + body.len() as u64);
        }
        self.fetched.push_back(fetched);
    }
}
