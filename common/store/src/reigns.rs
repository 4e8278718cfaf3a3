//! The reigns of this data directory, in `.metaq/lineage`: whole files only, with a checksum, read when somebody asks.

use crate::disk::{Disk, replace_file};
use crate::errors::OpenError;
use crate::load::end_of_files;
use crate::metrics::FlushCause;
use crate::partition::Partition;
use crate::store::{Store, wall_clock_ms};
use crate::texts::Form;
use metaq_types::{Epoch, Lineage, Reign};
use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

const FORM: Form = Form {
    word: "metaq-lineage",
    format: 1,
    // What a damaged file costs, and the way out.
    advice: "restore it from a copy, or remove it: the node then joins as one that remembers nothing, and its last \
             records are compared instead",
};

impl Store {
    /// The reign of the newest master this directory has lived under; 0 before the first.
    pub fn epoch(&self) -> Epoch {
        Epoch(self.epoch.load(Ordering::SeqCst))
    }

    /// All reigns remembered, read from the disk.
    pub fn lineage(&self) -> Result<Lineage, OpenError> {
        read(&self.lineage_path)
    }

    /// Begins a reign of this node, durably: whatever is appended from now on belongs to it.
    pub fn begin_reign(&self, epoch: Epoch) -> Result<(), OpenError> {
        let mut lineage = self.lineage()?;
        // What was written since the opening: a reign must not be noted to begin where a loss of power leaves nothing.
        let logs = self.logs();
        let unsynced = |log: &&Arc<Partition>| log.positions().durable < log.positions().written;
        logs.iter().filter(unsynced).for_each(|log| log.commit(FlushCause::Commit));
        let mut starts: BTreeMap<_, _> = logs.iter().map(|p| (p.id().clone(), p.positions().written)).collect();
        // What cannot be read at the moment is not gone: it ends where its files do, or at least where it did before.
        let before = lineage.starts();
        for id in self.failed.keys() {
            let roots: Vec<_> = self.roots.lock().locked.iter().map(|root| root.path.clone()).collect();
            let end = roots.iter().find_map(|root| end_of_files(&root.join(id.to_string())));
            starts.extend(end.into_iter().chain(before.get(id).copied()).max().map(|end| (id.clone(), end)));
        }
        // What was removed goes on where it ended.
        for (id, end) in self.ended.starts(&before) {
            starts.entry(id).or_insert(end);
        }
        let began_unix_ms = wall_clock_ms().max(0) as u64;
        lineage.begin(Reign { epoch, node: self.node_id.clone(), began_unix_ms, starts });
        self.adopt_lineage(&lineage)
    }

    /// Takes over the past of another: a slave, that of its master once its logs are in accord with it.
    pub fn adopt_lineage(&self, lineage: &Lineage) -> Result<(), OpenError> {
        write(&*self.shared.disk, &self.lineage_path, lineage).map_err(OpenError::io("write", &self.lineage_path))?;
        self.epoch.store(lineage.epoch().0, Ordering::SeqCst);
        Ok(())
    }
}

pub(crate) fn read(path: &Path) -> Result<Lineage, OpenError> {
    let Some(text) = FORM.read(path)? else { return Ok(Lineage::default()) };
    let damaged = |reason: &str| FORM.damaged(path, reason);
    let (body, checksum) = text
        .strip_suffix('\n')
        .and_then(|text| text.rfind('\n').map(|end| text.split_at(end + 1)))
        .ok_or_else(|| damaged("it has no checksum line"))?;
    if checksum != format!("{:08x}", crc32fast::hash(body.as_bytes())) {
        return Err(damaged("its checksum does not fit"));
    }
    let head = FORM.head();
    let reigns = body.strip_prefix(&*head).and_then(|rest| rest.strip_prefix('\n'));
    let reigns = reigns.ok_or_else(|| damaged(&format!("it does not begin with '{head}'")))?;
    reigns.parse().map_err(|error| damaged(&format!("{error}")))
}

fn write(disk: &dyn Disk, path: &Path, lineage: &Lineage) -> io::Result<()> {
    let body = format!("{}\n{lineage}", FORM.head());
    let checksum = crc32fast::hash(body.as_bytes());
    replace_file(disk, path, format!("{body}{checksum:08x}\n").as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::OsDisk;
    use std::fs;

    #[test]
    fn a_lineage_is_kept_and_damage_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lineage");
        assert_eq!(read(&path).unwrap(), Lineage::default());
        let lineage: Lineage = "epoch 3 node a began 5\nstart t-0 7\n".parse().unwrap();
        write(&OsDisk, &path, &lineage).unwrap();
        assert_eq!(read(&path).unwrap(), lineage);
        let whole = fs::read(&path).unwrap();
        for at in 0..whole.len() {
            let mut changed = whole.clone();
            changed[at] ^= 1;
            fs::write(&path, &changed).unwrap();
            assert!(read(&path).is_err(), "byte {at}");
        }
    }
}
