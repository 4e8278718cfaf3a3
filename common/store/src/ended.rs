//! Where logs ended whose files are gone since the last orderly stop, in `.metaq/ended`: a topic that was removed and comes
//! again goes on there, and no consumer's position means another message than before.
//!
//! A text for a person: one line `PARTITION END`. Who wants a partition to begin at 0 again takes its line out.

use crate::clean::CleanMark;
use crate::disk::{Disk, replace_file};
use crate::errors::OpenError;
use crate::load::list;
use crate::roots::Root;
use crate::texts::Form;
use metaq_types::{Offset, PartitionId};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::io;
use std::path::Path;

const FORM: Form = Form {
    word: "metaq-ended",
    format: 1,
    advice: "correct it, or remove it: partitions of removed topics then begin at 0 when they come again",
};

#[derive(Debug, Default)]
pub(crate) struct Ended {
    ends: BTreeMap<PartitionId, Offset>,
    /// Those that the mark of the last stop bears out: no other log of that name has been here since.
    borne_out: BTreeSet<PartitionId>,
}

impl Ended {
    /// Where a master's new partition begins.
    pub(crate) fn first_offset(&self, id: &PartitionId) -> Offset {
        self.ends.get(id).copied().unwrap_or_default()
    }

    /// The ends that a reign which begins now may name as its starts, so that slaves that still have those logs know them
    /// for its past. `before`: where the newest reign began each. An older line that nothing bears out is left out: it
    /// may stem from another master's log, and need not be a record's end in this one.
    pub(crate) fn starts<'a>(
        &'a self,
        before: &'a BTreeMap<PartitionId, Offset>,
    ) -> impl Iterator<Item = (PartitionId, Offset)> + 'a {
        let proved = |(id, end): &(&PartitionId, &Offset)| self.borne_out.contains(id) || before.get(id) == Some(end);
        self.ends.iter().filter(proved).map(|(id, end)| (id.clone(), *end))
    }
}

/// Reads what is known and adds, durably, the partitions that `clean` names and no root holds any more. To be called
/// before the mark is removed, or a crash in between would forget them.
pub(crate) fn update(
    disk: &dyn Disk,
    path: &Path,
    roots: &[Root],
    clean: Option<&CleanMark>,
) -> Result<Ended, OpenError> {
    let mut ended = Ended { ends: read(path)?, ..Ended::default() };
    let gone = clean.into_iter().flatten().filter(|(id, _)| !id.is_journal() && !exists(roots, id));
    let mut added = false;
    for (id, entry) in gone {
        let Some(end) = Offset::new(entry.base + entry.length).filter(|end| *end > Offset::ZERO) else { continue };
        let known = ended.ends.entry(id.clone()).or_insert(Offset::ZERO);
        if *known < end {
            *known = end;
            added = true;
            tracing::warn!(
                partition = %id, %end,
                "its files were removed; should it come again it goes on there, unless its line in .metaq/ended is removed"
            );
        }
        if *known == end {
            ended.borne_out.insert(id.clone());
        }
    }
    if added {
        write(disk, path, &ended.ends).map_err(OpenError::io("write", path))?;
    }
    Ok(ended)
}

/// What cannot be read is there.
fn exists(roots: &[Root], id: &PartitionId) -> bool {
    roots.iter().any(|root| {
        let directory = root.path.join(id.to_string());
        directory.is_dir() && list(&directory).map_or(true, |found| !found.is_empty())
    })
}

fn read(path: &Path) -> Result<BTreeMap<PartitionId, Offset>, OpenError> {
    let Some(text) = FORM.read(path)? else { return Ok(BTreeMap::new()) };
    let damaged = |reason: String| FORM.damaged(path, reason);
    let mut lines = text.lines();
    let head = FORM.head();
    if lines.next() != Some(&*head) {
        return Err(damaged(format!("it does not begin with '{head}'")));
    }
    let entry = |line: &str| -> Option<(PartitionId, Offset)> {
        let (id, end) = line.rsplit_once(' ')?;
        Some((id.parse().ok()?, Offset::new(end.parse().ok()?)?))
    };
    let lines = lines.filter(|line| !line.trim().is_empty());
    lines.map(|line| entry(line).ok_or_else(|| damaged(format!("{line:?} is not PARTITION END")))).collect()
}

fn write(disk: &dyn Disk, path: &Path, ended: &BTreeMap<PartitionId, Offset>) -> io::Result<()> {
    let mut text = FORM.head() + "\n";
    for (id, end) in ended {
        writeln!(text, "{id} {end}").expect("a string takes all that is written");
    }
    replace_file(disk, path, text.as_bytes())
}
