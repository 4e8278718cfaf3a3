//! No offset of an acknowledged message is given to another one, and no id is given twice.

use super::confirmed::Acknowledged;
use metaq_types::{Offset, PartitionId};
use std::collections::BTreeSet;

#[derive(Debug, Default)]
pub(super) struct Reuse {
    ids: BTreeSet<i64>,
}

impl Reuse {
    pub(super) fn on_ack<'a>(
        &mut self,
        partition: &PartitionId,
        id: i64,
        (start, end): (Offset, Offset),
        mut living: impl Iterator<Item = &'a Acknowledged>,
    ) -> Result<(), String> {
        if !self.ids.insert(id) {
            return Err(format!("message {id} is acknowledged twice"));
        }
        match living.find(|other| other.start < end && start < other.end) {
            None => Ok(()),
            Some(other) => Err(format!(
                "message {id} lies at {partition} {start} to {end}, where message {} of {} to {} lives",
                other.id, other.start, other.end
            )),
        }
    }
}
