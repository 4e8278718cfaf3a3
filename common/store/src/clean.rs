use crate::disk::{Disk, replace_file};
use crate::errors::OpenError;
use crate::load::modified_nanos;
use crate::partition::{Health, Partition};
use crate::texts::{self, Form};
use metaq_types::PartitionId;
use std::collections::HashMap;
use std::fmt::Write;
use std::fs;
use std::io::{self, ErrorKind};
use std::ops::Range;
use std::path::Path;

const FORM: Form = Form { word: "metaq-clean", format: 1, advice: "" };

/// What an orderly stop knows of a partition's last segment, so that the next start need not read it. It counts only
/// while the file is exactly as it was left.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CleanEntry {
    pub(crate) base: u64,
    pub(crate) length: u64,
    /// Time of the last change, in nanoseconds: a file put there from elsewhere is read.
    pub(crate) modified_nanos: i128,
    pub(crate) records: u64,
    /// Damaged ranges by segment, as found in earlier recoveries.
    pub(crate) damage: Vec<(u64, Range<u32>)>,
}

impl CleanEntry {
    /// Of a partition that is closed and synced; an error says why there can be none.
    pub(crate) fn of(partition: &Partition) -> Result<CleanEntry, String> {
        if let Health::Poisoned(reason) = partition.health() {
            return Err(reason);
        }
        let positions = partition.positions();
        if positions.durable != positions.written {
            return Err(format!("synced up to {}, written up to {}", positions.durable, positions.written));
        }
        let segments = partition.segments.load();
        let last = segments.last().expect("a partition has a segment");
        let path = last.path(&partition.directory());
        let modified_nanos = match fs::metadata(&path) {
            Ok(metadata) => modified_nanos(&metadata),
            // The mark says where it ended, so that the next opening knows.
            Err(error) if error.kind() == ErrorKind::NotFound => {
                tracing::warn!(partition = %partition.id, file = %path.display(), "was removed while the broker ran");
                0
            }
            Err(error) => return Err(format!("cannot read {}: {error}", path.display())),
        };
        let damage = segments.iter().flat_map(|segment| {
            let base = segment.base.get();
            segment.damage().into_iter().map(move |range| (base, range))
        });
        Ok(CleanEntry {
            base: last.base.get(),
            length: positions.written.bytes_since(last.base),
            modified_nanos,
            records: partition.record_count(),
            damage: damage.collect(),
        })
    }
}

/// The mark of an orderly stop: one line a partition, a checksum at the end.
pub(crate) type CleanMark = HashMap<PartitionId, CleanEntry>;

pub(crate) fn write(disk: &dyn Disk, path: &Path, mark: &CleanMark) -> io::Result<()> {
    let mut text = FORM.head() + "\n";
    for (id, entry) in mark {
        let CleanEntry { base, length, modified_nanos, records, damage } = entry;
        write!(text, "{id} {base} {length} {modified_nanos} {records}").expect("a string takes all that is written");
        for (base, range) in damage {
            write!(text, " {base}:{}:{}", range.start, range.end).expect("a string takes all that is written");
        }
        text.push('\n');
    }
    let checksum = crc32fast::hash(text.as_bytes());
    replace_file(disk, path, format!("{text}{checksum:08x}\n").as_bytes())
}

/// Reads the mark. `None` without one, or with one that cannot be understood: then everything is read.
pub(crate) fn read(path: &Path) -> Result<Option<CleanMark>, OpenError> {
    let Some(bytes) = texts::read(path)? else { return Ok(None) };
    let mark = parse(&bytes);
    match (&mark, FORM.newer(&bytes)) {
        (Some(_), _) => {}
        (None, Some(format)) => tracing::warn!(
            path = %path.display(), format, known = FORM.format,
            "the mark of the last orderly stop is that of a newer version; reading all last segments"
        ),
        (None, None) => {
            tracing::warn!(path = %path.display(), "the mark of the last orderly stop is damaged; reading all last segments");
        }
    }
    Ok(mark)
}

/// Removes it durably: before anything is written that would make it untrue.
pub(crate) fn remove(disk: &dyn Disk, path: &Path) -> io::Result<()> {
    match disk.remove(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        removed => removed?,
    }
    disk.sync_dir(path.parent().unwrap_or(Path::new(".")))
}

fn parse(bytes: &[u8]) -> Option<CleanMark> {
    let text = std::str::from_utf8(bytes).ok()?.strip_suffix('\n')?;
    let body = &text[..text.rfind('\n')? + 1];
    if format!("{:08x}", crc32fast::hash(body.as_bytes())) != text[body.len()..] {
        return None;
    }
    let mut lines = body.lines();
    if lines.next()? != FORM.head() {
        return None;
    }
    lines.map(parse_line).collect()
}

fn parse_line(line: &str) -> Option<(PartitionId, CleanEntry)> {
    let mut words = line.split(' ');
    let id = words.next()?.parse().ok()?;
    let mut next = || words.next();
    let (base, length) = (next()?.parse().ok()?, next()?.parse().ok()?);
    let (modified_nanos, records) = (next()?.parse().ok()?, next()?.parse().ok()?);
    let damage = words.map(parse_damage).collect::<Option<_>>()?;
    Some((id, CleanEntry { base, length, modified_nanos, records, damage }))
}

fn parse_damage(word: &str) -> Option<(u64, Range<u32>)> {
    let mut numbers = word.splitn(3, ':');
    let base = numbers.next()?.parse().ok()?;
    Some((base, numbers.next()?.parse().ok()?..numbers.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::OsDisk;

    fn mark() -> CleanMark {
        let entry = |base, damage| CleanEntry { base, length: 7, modified_nanos: -5, records: 3, damage };
        let damage = vec![(0, 20..40), (9, 1..2)];
        [("订单-x-0", vec![]), ("b-12", damage)].map(|(id, damage)| (id.parse().unwrap(), entry(9, damage))).into()
    }

    #[test]
    fn a_mark_is_read_once() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("clean");
        write(&OsDisk, &path, &mark()).unwrap();
        assert_eq!(read(&path).unwrap(), Some(mark()));
        remove(&OsDisk, &path).unwrap();
        assert_eq!(read(&path).unwrap(), None);
        remove(&OsDisk, &path).unwrap();
    }

    #[test]
    fn any_changed_byte_makes_the_mark_worthless() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("clean");
        write(&OsDisk, &path, &mark()).unwrap();
        let bytes = fs::read(&path).unwrap();
        for place in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[place] ^= 1;
            assert_eq!(parse(&changed), None, "byte {place}");
            assert_eq!(parse(&bytes[..place]), None, "cut at {place}");
        }
    }
}
