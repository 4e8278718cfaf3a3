use crate::answer::Answer;
use crate::dispatch::Conversation;
use crate::view;
use bytes::Bytes;
use metaq_types::Status;
use metaq_wire::Stats;

/// `stats config` is the file as it is in force; everything else is text made now.
pub(crate) fn stats(conversation: &Conversation, stats: &Stats) {
    let node = &conversation.node;
    let body = match &*stats.item {
        "config" => Bytes::copy_from_slice(&node.config.current().text),
        // A member may have read all that was offered.
        "offsets" if conversation.replica.is_some() => {
            Bytes::from(view::replica_offsets(node, |positions| positions.offered))
        }
        "offsets" if conversation.is_heir => Bytes::from(view::replica_offsets(node, |positions| positions.written)),
        item => Bytes::from(view::stats(node, item)),
    };
    conversation.outbound().answer(stats.opaque, Answer::Text(Status::Success, body));
}
