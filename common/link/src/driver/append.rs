use std::sync::Arc;

use metaq_store::{Ack, AckSink, AppendError, Appended};
use parking_lot::Mutex;
use tokio::sync::oneshot;

/// Receives the outcome of one append.
struct Once {
    sender: Mutex<Option<oneshot::Sender<Result<Appended, AppendError>>>>,
}

impl AckSink for Once {
    fn acked(&self, _ticket: u64, outcome: Result<Appended, AppendError>) {
        if let Some(sender) = self.sender.lock().take() {
            // The receiver is gone only when its task was dropped, which happens at the end of the process.
            let _ = sender.send(outcome);
        }
    }
}

/// An ack for one append and where its outcome arrives.
pub(super) fn ack() -> (Ack, oneshot::Receiver<Result<Appended, AppendError>>) {
    let (sender, receiver) = oneshot::channel();
    (Ack::new(Arc::new(Once { sender: Mutex::new(Some(sender)) }), 0), receiver)
}
