//! Two masters never both acknowledge: once a later reign has acknowledged something, no earlier one does.

use crate::node::NAMES;
use crate::queue::Ms;
use metaq_types::Epoch;

#[derive(Debug, Default)]
pub(super) struct Fencing {
    /// The newest reign that has acknowledged anything, whose, and when it did last.
    newest: Option<(Epoch, usize, Ms)>,
}

impl Fencing {
    pub(super) fn on_ack(&mut self, now: Ms, node: usize, epoch: Epoch) -> Result<(), String> {
        if let Some((newest, by, at)) = self.newest
            && (epoch < newest || (epoch == newest && node != by))
        {
            return Err(format!(
                "{} acknowledges in epoch {epoch} at {now} ms, {} did in epoch {newest} at {at} ms",
                NAMES[node], NAMES[by]
            ));
        }
        self.newest = Some((epoch, node, now));
        Ok(())
    }
}
