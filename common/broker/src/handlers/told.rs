//! Questions about the end of a partition that come between the answer to a commit and the sync of its messages.

use crate::answer::Answer;
use crate::dispatch::Conversation;
use metaq_store::Partition;
use metaq_types::Opaque;
use metaq_types::limits::TOLD_WAIT_MAX;
use std::sync::Arc;

/// Answers in turn, but once all that was told as committed is durable: to be told that there is nothing would take
/// that back.
pub(crate) fn when_durable(
    conversation: &Conversation,
    opaque: Opaque,
    partition: Option<Arc<Partition>>,
    answer: impl FnOnce() -> Answer + Send + 'static,
) {
    let outbound = Arc::clone(conversation.outbound());
    let ticket = outbound.owe_answer(opaque);
    tokio::spawn(async move {
        if let Some(partition) = partition {
            let _ = tokio::time::timeout(TOLD_WAIT_MAX, partition.told_is_durable()).await;
        }
        outbound.fill(ticket, answer());
    });
}
