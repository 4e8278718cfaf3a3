use crate::answer::Answer;
use crate::dispatch::Conversation;
use crate::handlers::get::{missing_partition, unserved};
use crate::handlers::told::when_durable;
use crate::realtime::Kind;
use metaq_types::Status;
use metaq_wire::OffsetQuery;
use std::sync::Arc;

/// The nearest valid place: the start of the segment that holds the offset, or an end (wire-protocol, "3.3 offset").
pub(crate) fn offset(conversation: &Conversation, query: &OffsetQuery) {
    let node = &conversation.node;
    node.counters.offset();
    if let Some(state) = node.topics.get(&query.topic) {
        state.count(Kind::Offset, 1);
    }
    let answer = match node.store.get(&query.topic, query.partition) {
        Some(partition) if conversation.replica.is_none() && partition.awaits_told() => {
            let (asked, offset) = (Arc::clone(&partition), query.offset);
            let nearest = move || Answer::text(Status::Success, asked.nearest(offset).to_string());
            return when_durable(conversation, query.opaque, Some(partition), nearest);
        }
        Some(partition) => Answer::text(Status::Success, partition.nearest(query.offset).to_string()),
        None => match node.store.unserved(&query.topic, query.partition) {
            Some(reason) => Answer::text(Status::InternalServerError, unserved(reason)),
            None => Answer::text(Status::NotFound, missing_partition(&query.topic, query.partition)),
        },
    };
    conversation.outbound().answer(query.opaque, answer);
}
