//! What others say about a log: how far enough of them hold it. The store only keeps the number and obeys it; who has to
//! hold what is decided by whoever calls this.

use crate::partition::Partition;
use crate::rules::FlushLevel;
use metaq_types::Offset;

impl Partition {
    /// Up to `to` enough members hold the log: appends up to there are answered, and consumers read up to there.
    /// [`Offset::MAX`], as at the beginning: nobody has to be asked.
    pub fn confirm(&self, to: Offset) {
        self.limit(to);
        self.acks.lock().on_confirmed(to);
        self.synced_acks.lock().on_confirmed(to);
    }

    /// Consumers read no further than `to`; appends are answered as if nobody had to be asked. For a replica, whose
    /// master knows what is confirmed, and for a master before its reign.
    pub fn limit(&self, to: Offset) {
        let before = self.cursors.publish_confirmed(to);
        // Replicas read further anyway and have nothing to learn here.
        if before < to {
            self.wake_consumers();
        }
    }

    /// From now on members have to be asked; nothing is taken back that was readable so far. The answer is what is
    /// confirmed now.
    pub fn hold(&self) -> Offset {
        loop {
            let end = self.cursors.written();
            self.limit(end);
            // Whatever was readable a moment ago was durable then, and lies at or before what is durable now.
            if self.cursors.durable() <= end {
                self.acks.lock().on_confirmed(end);
                self.synced_acks.lock().on_confirmed(end);
                return end;
            }
        }
    }

    /// Answers the appends that end at or before `to` and still wait as unconfirmed. They stay in the log, and unreadable
    /// until they are confirmed.
    pub fn give_up(&self, to: Offset) {
        self.acks.lock().give_up(to);
        self.synced_acks.lock().give_up(to);
    }

    /// Whether an append is on stable storage when it is answered.
    pub fn answers_after_sync(&self) -> bool {
        self.rules.level() == FlushLevel::Durable
    }

    /// What is confirmed; [`Offset::MAX`] while nobody has to be asked.
    pub fn confirmed(&self) -> Offset {
        self.cursors.confirmed()
    }
}
