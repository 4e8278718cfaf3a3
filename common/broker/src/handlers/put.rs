use crate::answer::Answer;
use crate::dispatch::Conversation;
use crate::handlers::transaction;
use crate::metrics::Counters;
use crate::node::{NodeRole, Shared, master_named};
use crate::realtime::Kind;
use crate::topics::TopicState;
use metaq_config::Topic;
use metaq_store::{Ack, AckSink, CreateError, Health, Partition};
use metaq_txn::NewMessage;
use metaq_types::limits::RECORD_HEADER_BYTES;
use metaq_types::{MessageId, PartitionId, Status, TopicName};
use metaq_wire::{Put, TransactionKey};
use std::sync::Arc;

/// Why a put is refused; nothing was stored.
struct Refused {
    status: Status,
    /// As finally used; what the request said when it was refused before that.
    partition: i32,
    detail: String,
}

/// Stores one message. Its answer comes from the store: where the topic does not ask for a sync when the session writes
/// what it has executed, else from the committer's next round.
pub(crate) fn put(conversation: &mut Conversation, put: Put) {
    let node = &conversation.node;
    node.counters.put();
    let state = node.topics.get_or_admit(&put.topic);
    if let Some(state) = &state {
        state.count(Kind::Put, 1);
        state.count(Kind::MessageSize, put.body.len() as u64);
    }
    if let Some(key) = put.transaction.clone() {
        return put_in_transaction(conversation, state.as_deref(), &key, put);
    }
    match accept(node, state.as_deref(), &put) {
        Ok((partition, checksum)) => {
            let outbound = conversation.outbound();
            let ticket = outbound.owe(put.opaque, put.topic, partition.id().number, put.body.len());
            let ack = Ack::new(Arc::clone(outbound) as Arc<dyn AckSink>, ticket);
            conversation.append(partition, put.flag, checksum, put.body, ack);
        }
        Err(refused) => {
            if refused.status != Status::Forbidden {
                node.counters.put_failed();
                if let Some(state) = &state {
                    state.count(Kind::PutFailed, 1);
                }
            }
            let answer = node.put_failure(&put.topic, refused.partition, refused.status, &refused.detail);
            conversation.outbound().answer(put.opaque, answer);
        }
    }
}

/// Puts a message into a transaction. The texts of errors stand bare (wire-protocol, "6.3").
fn put_in_transaction(conversation: &Conversation, state: Option<&TopicState>, key: &TransactionKey, put: Put) {
    let node = &conversation.node;
    let checked = transaction::coordinator(node).map_err(|reason| (Status::InternalServerError, reason));
    let checked = checked.and_then(|coordinator| {
        let refused = |refused: metaq_txn::Refused| (Status::InternalServerError, refused.to_string());
        let opened = coordinator.opened(conversation.session, key).map_err(refused)?;
        if put.partition == -1 {
            let text = "Invalid partition for transaction command:-1".to_owned();
            return Err((Status::InternalServerError, text));
        }
        let (partition, checksum) = accept(node, state, &put).map_err(|refused| (refused.status, refused.detail))?;
        Ok((coordinator, opened, partition, checksum))
    });
    let outbound = conversation.outbound();
    let (coordinator, opened, partition, checksum) = match checked {
        Ok(checked) => checked,
        Err((status, text)) => {
            node.counters.put_failed();
            return outbound.answer(put.opaque, Answer::text(status, text));
        }
    };
    let (number, body_bytes) = (put.partition, put.body.len());
    let message = NewMessage { flag: put.flag, checksum, body: put.body };
    let now = coordinator.put(opened, key, partition.id(), message, || {
        let ticket = outbound.owe(put.opaque, put.topic, partition.id().number, body_bytes);
        let (outbound, counters) = (Arc::clone(outbound), Arc::clone(&node.counters));
        Box::new(move |taken| outbound.fill(ticket, taken_answer(&counters, number, taken)))
    });
    if let Some(taken) = now {
        outbound.answer(put.opaque, taken_answer(&node.counters, number, taken));
    }
}

/// Where a message of a transaction will be is not known before the commit.
fn taken_answer(counters: &Counters, partition: i32, taken: Result<MessageId, metaq_txn::Refused>) -> Answer {
    match taken {
        Ok(id) => Answer::text(Status::Success, format!("{id} {partition} -1")),
        Err(refused) => {
            counters.put_failed();
            Answer::text(Status::InternalServerError, refused.to_string())
        }
    }
}

/// Every check before the store is asked, in the original's order (broker-behaviour, "2. put").
fn accept(node: &Shared, state: Option<&TopicState>, put: &Put) -> Result<(Arc<Partition>, i32), Refused> {
    let refuse = |status, detail: String| Refused { status, partition: put.partition, detail };
    if let NodeRole::Slave { slave_id, master, .. } = &node.role {
        let master = master_named(master);
        let detail = format!(
            "not stored: this broker is slave {slave_id} of broker {} and accepts no messages; send them to its master: \
             {master}",
            node.broker_id
        );
        return Err(refuse(Status::InternalServerError, detail));
    }
    if let Err(reason) = node.gate.admits() {
        return Err(refuse(Status::ServiceUnavailable, format!("not stored: {reason}")));
    }
    let Some(state) = state else {
        return Err(refuse(Status::InternalServerError, not_accepted(node, &put.topic)));
    };
    if !state.publish_open() {
        return Err(refuse(Status::Forbidden, closed(&put.topic)));
    }
    let Some(topic) = state.settings.as_deref() else {
        return Err(refuse(Status::Forbidden, closed(&put.topic)));
    };
    let number = choose(node, &state.name, put.partition, topic)
        .ok_or_else(|| refuse(Status::InternalServerError, format!("wrong partition {}", put.partition)))?;
    let refuse = |status, detail: String| Refused { status, partition: number as i32, detail };
    let limit = node.message_bytes_max();
    if put.body.len() as u64 > u64::from(limit) {
        return Err(refuse(Status::BadRequest, too_large(put.body.len() as u64, limit)));
    }
    let checksum = metaq_wire::checksum(&put.body);
    if let Some(sent) = put.checksum
        && sent != checksum
    {
        return Err(refuse(Status::InternalServerError, wrong_checksum(sent, checksum)));
    }
    if !metaq_wire::attribute_fits(put.flag, &put.body) {
        return Err(refuse(Status::BadRequest, misfit_attribute(&put.body)));
    }
    if let Some(reason) = node.admission.refusal(&topic.data_path) {
        return Err(refuse(Status::ServiceUnavailable, reason));
    }
    let partition =
        open(node, state, topic, number).map_err(|error| refuse(cannot_open(&error), not_opened(&error)))?;
    node.topics.keep(state);
    if topic.ack.is_on() {
        let downgraded = node.quorum.admit(&partition, topic.ack).map_err(|shortage| {
            node.counters.quorum_refused();
            refuse(Status::ServiceUnavailable, format!("not stored: {shortage}"))
        })?;
        if downgraded {
            node.counters.quorum_downgraded();
        }
    }
    Ok((partition, checksum))
}

/// The partition to use: the one named, or for -1 one after the other of those that take messages, if any does.
fn choose(node: &Shared, name: &TopicName, partition: i32, topic: &Topic) -> Option<u32> {
    use std::sync::atomic::{AtomicU32, Ordering};
    static TURN: AtomicU32 = AtomicU32::new(0);
    if partition == -1 {
        let turn = TURN.fetch_add(1, Ordering::Relaxed) % topic.num_partitions;
        let mut in_turn = (turn..topic.num_partitions).chain(0..turn);
        return in_turn.find(|number| takes_messages(node, name, *number)).or(Some(turn));
    }
    u32::try_from(partition).ok().filter(|n| *n < topic.num_partitions)
}

fn takes_messages(node: &Shared, name: &TopicName, number: u32) -> bool {
    match node.store.get(name, number as i32) {
        Some(partition) => partition.health() == Health::Ok,
        None => node.store.unserved(name, number as i32).is_none(),
    }
}

fn open(node: &Shared, state: &TopicState, topic: &Topic, number: u32) -> Result<Arc<Partition>, CreateError> {
    if let Some(partition) = node.store.get(&state.name, number as i32) {
        return Ok(partition);
    }
    let id = PartitionId { topic: state.name.clone(), number };
    node.store.get_or_create(&id, &crate::settings::partition_rules(topic), node.store.first_offset(&id))
}

fn cannot_open(error: &CreateError) -> Status {
    match error {
        CreateError::Closing | CreateError::Io { disk_full: true, .. } => Status::ServiceUnavailable,
        CreateError::Failed { .. } | CreateError::Io { .. } => Status::InternalServerError,
    }
}

fn not_opened(error: &CreateError) -> String {
    let advice = match error {
        CreateError::Closing => "",
        CreateError::Io { disk_full: true, .. } => "; puts succeed again once there is space",
        CreateError::Io { .. } => "; correct that and try again",
        CreateError::Failed { .. } => "; correct that and restart the broker",
    };
    format!("not stored: {error}{advice}")
}

/// Clients look for the first words (wire-protocol, "3.1 put"); what follows is for a person who expected the topic here.
fn not_accepted(node: &Shared, topic: &str) -> String {
    let text = format!("The server do not accept topic {topic}");
    if let Err(error) = TopicName::new(topic) {
        return format!("{text}; not stored: {error}");
    }
    match node.config.current().nearest_topic(topic) {
        Some(near) => format!(
            "{text}; not stored: that needs a section [topic={topic}], or a pattern with * that fits, in server.ini of \
             this broker; there is [topic={near}], where every character but * stands for itself"
        ),
        None => text,
    }
}

fn wrong_checksum(sent: i32, computed: i32) -> String {
    let sent = if sent < 0 { format!("{sent} (or {})", sent as u32) } else { sent.to_string() };
    format!(
        "Checksum failure,message may be corrupted when transfering on networking. sent {sent}, computed {computed} (the \
         CRC-32 of the body without its top bit); not stored, send it again"
    )
}

fn closed(topic: &str) -> String {
    format!(
        "not stored: topic {topic} is closed for publishing (acceptPublish=false, or its section was removed); correct that \
         in server.ini and reload, or send to another topic"
    )
}

pub(crate) fn too_large(bytes: u64, limit: u32) -> String {
    format!(
        "not stored: a message of {bytes} bytes is above the limit of {limit} (maxTransferSize, and 2 MiB, each less \
         the {RECORD_HEADER_BYTES} bytes of the stored header), so it could never be delivered; send it in parts, or raise \
         maxTransferSize as far as 2 MiB"
    )
}

fn misfit_attribute(body: &[u8]) -> String {
    let declared = body.first_chunk().map(|bytes| i32::from_be_bytes(*bytes));
    match declared {
        Some(length) => format!(
            "not stored: the flag says that an attribute comes first, but its length of {length} does not fit into a \
             body of {} bytes",
            body.len()
        ),
        None => format!(
            "not stored: the flag says that an attribute comes first, but a body of {} bytes has no room for its length",
            body.len()
        ),
    }
}
