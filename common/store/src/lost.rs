//! Logs that lack what they had: told to whoever asks, since whoever took their files may not know. Nothing follows from
//! it here.

use crate::clean::CleanMark;
use crate::store::Store;
use metaq_types::{Lineage, Offset, PartitionId};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::path::Path;

/// Since the opening, each with what is known of it.
#[derive(Default)]
pub(crate) struct Lost(Mutex<BTreeMap<PartitionId, String>>);

impl Lost {
    /// A log ends before where it is known to have ended.
    pub(crate) fn ends_before(&self, id: &PartitionId, end: Offset, known: Offset) {
        tracing::error!(
            partition = %id, %end, left_at = %known,
            "ends before where it did: somebody has removed or cut its files, and consumers that are further will meet \
             other messages there; restore the files, if they are to be had, before anything is put"
        );
        self.note(
            id,
            format!("it ends at {end}, and ended at {known} before: restore its files, if they are to be had"),
        );
    }

    /// The files went while they were in use.
    pub(crate) fn removed(&self, id: &PartitionId, end: Offset) {
        tracing::warn!(
            partition = %id, at = %end,
            "its files were removed while the broker ran: it goes on where it ended, and what was in them is gone"
        );
        self.note(id, format!("its files were removed or moved while the broker ran: it goes on at {end}"));
    }

    pub(crate) fn no_journal(&self, path: &Path) {
        let path = path.display();
        tracing::error!(
            %path,
            "the transaction journal is gone: branches that were prepared are unknown now, and what was decided and not \
             stored is lost; if dataLogPath names another directory than before, or its disk is not mounted, stop, put \
             that right, and start again before anything is put"
        );
        let text =
            format!("there is none in {path}, where one was: bring it back, if it is to be had, and start again");
        self.note(&PartitionId::journal(), text);
    }

    fn note(&self, id: &PartitionId, text: String) {
        self.0.lock().insert(id.clone(), text);
    }
}

impl Store {
    /// The logs of which files are gone that were there, as found at the opening or since, each with what is known.
    pub fn lost(&self) -> Vec<(PartitionId, String)> {
        self.shared.lost.0.lock().iter().map(|(id, text)| (id.clone(), text.clone())).collect()
    }
}

/// How far logs are known to have reached: at the last orderly stop, and when this node began the newest reign. With
/// another's reign as the newest this node was a slave, which may not have got so far.
pub(crate) struct KnownEnds<'a> {
    clean: Option<&'a CleanMark>,
    starts: Option<&'a BTreeMap<PartitionId, Offset>>,
}

impl<'a> KnownEnds<'a> {
    pub(crate) fn new(clean: Option<&'a CleanMark>, lineage: &'a Lineage, node_id: &str) -> KnownEnds<'a> {
        let own = lineage.newest().filter(|reign| reign.node == node_id);
        KnownEnds { clean, starts: own.map(|reign| &reign.starts) }
    }

    pub(crate) fn of(&self, id: &PartitionId) -> Option<Offset> {
        let left = self.clean.and_then(|mark| mark.get(id)).and_then(|entry| Offset::new(entry.base + entry.length));
        left.max(self.starts.and_then(|starts| starts.get(id)).copied())
    }

    /// Whether this node has kept a log of that name when it was the master.
    pub(crate) fn had(&self, id: &PartitionId) -> bool {
        self.starts.is_some_and(|starts| starts.contains_key(id))
    }
}
