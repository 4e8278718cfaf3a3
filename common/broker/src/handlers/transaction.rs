use crate::answer::Answer;
use crate::dispatch::Conversation;
use metaq_types::Status;
use metaq_wire::{Transaction, TransactionKind};

/// Refused by name: the store cannot keep a transaction's promise yet, and half of one would be a lie.
pub(crate) fn transaction(conversation: &Conversation, transaction: &Transaction) {
    // END is never answered (wire-protocol, "6.2").
    if matches!(transaction.kind, TransactionKind::End) {
        return;
    }
    let text = "transactions are not available in this version; send messages without one".to_owned();
    conversation.outbound().answer(transaction.opaque, Answer::text(Status::InternalServerError, text));
}
