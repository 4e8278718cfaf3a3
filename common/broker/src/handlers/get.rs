use crate::answer::{Answer, failed};
use crate::dispatch::Conversation;
use crate::handlers::told::when_durable;
use crate::node::{NodeRole, Shared};
use crate::outbound::Outbound;
use crate::realtime::Kind;
use metaq_store::{Partition, Reader, SliceAt};
use metaq_types::limits::LONG_POLL_MAX;
use metaq_types::{JOURNAL_TOPIC, Offset, SlaveId, Status};
use metaq_wire::{Get, ValueExtra};
use std::sync::Arc;
use tokio::time::Instant;

/// Who asks.
#[derive(Clone, Copy)]
struct Asker {
    /// A greeted slave: what it asks for confirms what it holds.
    slave: Option<SlaveId>,
    /// It counts in the quorums of this reign.
    is_member: bool,
    /// A node of the cluster, which reads what is not confirmed, and the journal.
    is_node: bool,
}

impl Asker {
    fn of(conversation: &Conversation) -> Asker {
        let slave = conversation.replica;
        Asker { slave, is_member: false, is_node: slave.is_some() || conversation.is_heir }
    }

    /// How far it reads: ahead of our own sync only where a quorum waits for it, and only if it has our reign and the
    /// names of the others on its disk, so that it will know what to do with a tail that we lose.
    fn reader(self, partition: &Partition) -> Reader {
        match self {
            Asker { is_node: false, .. } => Reader::Consumer,
            Asker { is_member: true, .. } if partition.confirmed() != Offset::MAX => Reader::Member,
            _ => Reader::Replica,
        }
    }
}

/// What a get comes to at this moment.
enum Outcome {
    Answer(Answer),
    /// Nothing to read yet; the answer is what a get without `wait` is told.
    Nothing(Answer),
    /// The answer, were it not for messages whose commit was answered and whose sync is on the way.
    Early(Answer),
}

/// Answers with stored bytes, or with where to go on. With `wait=` and nothing to read the request is parked, and
/// answered out of turn.
pub(crate) fn get(conversation: &mut Conversation, get: Get) {
    let (node, mut asker) = (&conversation.node, Asker::of(conversation));
    node.counters.get();
    let state = node.topics.get(&get.topic);
    if let Some(state) = &state {
        state.count(Kind::Get, 1);
        if !asker.is_node && !state.subscribe_open() {
            let text = format!(
                "topic {} is closed for subscription (acceptSubscribe=false, or its section was removed); correct that in \
                 server.ini and reload",
                get.topic
            );
            conversation.outbound().answer(get.opaque, Answer::text(Status::Forbidden, text));
            return;
        }
    }
    if let Some(slave) = asker.slave {
        asker.is_member = confirm(node, slave, &get);
    }
    let outcome = now(node, &get, asker);
    let wait = get.wait.filter(|wait| !wait.is_zero());
    match (outcome, wait) {
        (Outcome::Nothing(_), Some(wait)) if conversation.outbound().park() => {
            let parked = Parked {
                node: Arc::clone(node),
                outbound: Arc::clone(conversation.outbound()),
                asker,
                until: Instant::now() + wait.min(LONG_POLL_MAX),
                // Parked for long, it must not hold on to the read buffer its names are part of.
                get: Get { topic: get.topic.detached(), group: get.group.detached(), ..get },
            };
            parked.tell(true);
            tokio::spawn(parked.run());
        }
        (Outcome::Early(_), _) => {
            let (asked_of, opaque, partition) = (Arc::clone(node), get.opaque, log(node, &get, asker));
            let again = move || {
                let (Outcome::Answer(answer) | Outcome::Nothing(answer) | Outcome::Early(answer)) =
                    now(&asked_of, &get, asker);
                count(&asked_of, &get, &answer);
                answer
            };
            when_durable(conversation, opaque, partition, again);
        }
        (Outcome::Answer(answer) | Outcome::Nothing(answer), _) => {
            count(node, &get, &answer);
            conversation.outbound().answer(get.opaque, answer);
        }
    }
}

/// The offset a replica asks for says that it holds everything before, unless it says itself what it holds. Answers
/// whether it counts in quorums.
fn confirm(node: &Shared, slave: SlaveId, get: &Get) -> bool {
    let is_journal = *get.topic == *JOURNAL_TOPIC;
    let partition = if is_journal { node.store.journal() } else { node.store.get(&get.topic, get.partition) };
    let held = get.held.or(Offset::from_wire(get.offset));
    let (Some(partition), Some(offset)) = (partition, held) else { return false };
    // First what producers wait for.
    let is_member = node.quorum.is_on() && node.quorum.on_get(slave, &partition, offset);
    if !is_journal {
        let mut log = crate::node::log_end(&partition);
        // A member may be ahead of our own sync: what it holds counts all the same.
        log.end = log.end.max(offset.min(partition.positions().offered));
        node.replicas.lock().on_get(slave, partition.id(), offset, log, std::time::Instant::now());
    }
    is_member
}

/// A long poll: asks again when there is something to read, and answers then or at its deadline.
struct Parked {
    node: Arc<Shared>,
    outbound: Arc<Outbound>,
    asker: Asker,
    until: Instant,
    get: Get,
}

impl Parked {
    async fn run(self) {
        let answer = loop {
            let late = tokio::time::timeout_at(self.until, self.something()).await.is_err();
            match now(&self.node, &self.get, self.asker) {
                Outcome::Answer(answer) | Outcome::Early(answer) => break answer,
                Outcome::Nothing(answer) if late || self.node.is_stopping() || self.outbound.has_ended() => {
                    break answer;
                }
                Outcome::Nothing(_) => {}
            }
        };
        self.tell(false);
        count(&self.node, &self.get, &answer);
        self.outbound.unpark(self.get.opaque, answer);
    }

    /// A slave whose get waits here is level, which its lag is measured by.
    fn tell(&self, waiting: bool) {
        let Some(slave) = self.asker.slave else { return };
        let Some(partition) = self.node.store.get(&self.get.topic, self.get.partition) else { return };
        let mut replicas = self.node.replicas.lock();
        match waiting {
            true => replicas.on_park(slave, partition.id()),
            false => replicas.on_unpark(slave, partition.id(), std::time::Instant::now()),
        }
    }

    /// Until the partition can be read beyond the offset asked for, or, without one, until a partition comes.
    async fn something(&self) {
        let generation = self.node.store.catalog_generation();
        let store = &self.node.store;
        let end = Offset::from_wire(self.get.offset).unwrap_or_default();
        let readable = async {
            match log(&self.node, &self.get, self.asker) {
                Some(partition) => partition.readable_beyond(end, self.asker.reader(&partition)).await,
                None => {
                    store.catalog_beyond(generation).await;
                }
            }
        };
        tokio::select! {
            () = readable => {}
            () = self.node.stopping() => {}
            () = self.outbound.ended() => {}
        }
    }
}

/// What is read: a partition, or, by a node only, the transaction journal.
fn log(node: &Shared, get: &Get, asker: Asker) -> Option<Arc<Partition>> {
    if asker.is_node && *get.topic == *JOURNAL_TOPIC {
        return node.store.journal();
    }
    node.store.get(&get.topic, get.partition)
}

/// The checks of the original in its order (wire-protocol, "3.2 get").
fn now(node: &Shared, get: &Get, asker: Asker) -> Outcome {
    let Some(partition) = log(node, get, asker) else {
        if !asker.is_node
            && let Some(reason) = node.store.unserved(&get.topic, get.partition)
        {
            let text = failed(&node.uri, &get.topic, i64::from(get.partition), &unserved(reason));
            return Outcome::Answer(Answer::text(Status::InternalServerError, text));
        }
        let text = missing_partition(&get.topic, get.partition);
        return Outcome::Nothing(Answer::text(Status::NotFound, text));
    };
    let Some(max_bytes) = u32::try_from(get.max_bytes).ok().filter(|max| *max > 0) else {
        let text = format!("Bad request,invalid max size:{}", get.max_bytes);
        return Outcome::Answer(Answer::text(Status::BadRequest, text));
    };
    let max_bytes = max_bytes.min(node.max_transfer_size());
    // Before the look at what is durable: what was told by now is seen by it, or waited for.
    let is_early = !asker.is_node && partition.awaits_told();
    match partition.slice(get.offset, max_bytes, asker.reader(&partition)) {
        SliceAt::Bytes(slice) => {
            let extra = asker.is_node.then(|| extra(node, &partition, slice.segment()));
            Outcome::Answer(Answer::Value { slice, extra })
        }
        SliceAt::Trimmed { oldest } => Outcome::Answer(Answer::moved(oldest)),
        SliceAt::Skip { to } => Outcome::Answer(Answer::moved(to)),
        SliceAt::Beyond { end } if moves_back(node, get.offset, asker) => match is_early {
            true => Outcome::Early(Answer::moved(end)),
            false => Outcome::Answer(Answer::moved(end)),
        },
        SliceAt::AtEnd { unsynced } => {
            if unsynced {
                partition.request_sync();
            }
            let positions = partition.positions();
            // Whoever has read ahead must not take silence for a word that nobody is asked, and show all it has.
            let is_ahead = Offset::from_wire(get.offset).is_some_and(|offset| offset > positions.durable);
            let told = asker.is_node && (is_ahead || asks_quorum(node, &partition));
            let nothing = not_found(get.offset, told.then_some(positions.readable));
            if is_early && get.wait.is_none_or(|wait| wait.is_zero()) {
                Outcome::Early(nothing)
            } else {
                Outcome::Nothing(nothing)
            }
        }
        SliceAt::Beyond { .. } => Outcome::Answer(not_found(get.offset, None)),
        SliceAt::Failed { reason } => {
            let text = failed(&node.uri, &get.topic, i64::from(get.partition), &reason);
            Outcome::Answer(Answer::text(Status::InternalServerError, text))
        }
    }
}

/// Whether a reader beyond the end is sent back to it. A slave may simply be behind, so there only the question for
/// the newest place is answered so.
fn moves_back(node: &Shared, offset: i64, asker: Asker) -> bool {
    if asker.is_node {
        return false;
    }
    offset == Offset::MAX.wire()
        || (matches!(node.role, NodeRole::Master) && node.config.current().system.update_consumer_offsets)
}

fn extra(node: &Shared, partition: &Partition, segment: Offset) -> ValueExtra {
    let journal = node.transactions.get().filter(|_| !partition.id().is_journal()).map(|c| c.journal_bound());
    let positions = partition.positions();
    // Not simply what the quorum holds: what our own disk lacks may still be lost.
    let confirmed = asks_quorum(node, partition).then_some(positions.readable);
    ValueExtra { segment, end: positions.durable, epoch: node.store.epoch().0, journal, confirmed }
}

/// Whether a quorum is to be asked for what is appended, be it that fewer are enough at the moment.
fn asks_quorum(node: &Shared, partition: &Partition) -> bool {
    partition.confirmed() != Offset::MAX
        || (node.quorum.is_on() && node.quorum.look(|quorums| quorums.is_watched(partition.id())))
}

/// What is there and cannot be read is not to be taken for nothing.
pub(crate) fn unserved(reason: &str) -> String {
    format!("the partition is not served: {reason}; correct that and restart the broker")
}

pub(crate) fn missing_partition(topic: &str, partition: i32) -> String {
    format!("The topic `{topic}` in partition `{partition}` is not exists")
}

/// A replica is told what is confirmed, which may have moved since it last got bytes.
fn not_found(offset: i64, confirmed: Option<Offset>) -> Answer {
    let text = format!("Could not find message at position {offset}");
    let confirmed = confirmed.map(|confirmed| format!(" confirmed={confirmed}"));
    Answer::text(Status::NotFound, text + &confirmed.unwrap_or_default())
}

/// A 404 and a 301 are misses; a 301 counts as an answered `offset` as well (stats, "3. Counters").
fn count(node: &Shared, get: &Get, answer: &Answer) {
    let Answer::Text(status @ (Status::NotFound | Status::Moved), _) = answer else { return };
    node.counters.get_miss();
    let state = node.topics.get(&get.topic);
    if let Some(state) = &state {
        state.count(Kind::GetMiss, 1);
    }
    if *status == Status::Moved {
        node.counters.offset();
        if let Some(state) = &state {
            state.count(Kind::Offset, 1);
        }
    }
}
