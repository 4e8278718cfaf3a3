use std::io::{self, ErrorKind, IsTerminal as _};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use metaq_store::{PartitionFiles, Piece, RecordFile, SegmentFile, partition_files};
use metaq_types::{MessageId, Offset};
use metaq_wire::RecordHeader;
use ring::digest::{Context, SHA256};

use super::files::{Broker, Directory, some};
use crate::show;

/// Faults told one by one of a partition.
const FAULTS_TOLD_MAX: usize = 20;

/// Bytes are hashed while they still lie in memory from being checked.
const HASH_STEP_BYTES: u64 = 4 * 1024 * 1024;

const BLOCK_BYTES: usize = 256 * 1024;

const PROGRESS_INTERVAL: Duration = Duration::from_secs(5);

/// A partition's files, as reading all of them found them.
#[derive(Default)]
pub(super) struct Checked {
    pub(super) files: PartitionFiles,
    pub(super) first: Offset,
    /// Where whole messages end.
    pub(super) end: Offset,
    pub(super) messages: u64,
    pub(super) bytes: u64,
    pub(super) first_id: Option<MessageId>,
    pub(super) last_id: Option<MessageId>,
    /// Of all bytes up to the end, as `cat DIRECTORY/*.meta | sha256sum` would have it.
    pub(super) sha256: String,
    pub(super) faults: Vec<String>,
    pub(super) faults_more: u64,
    pub(super) notes: Vec<String>,
    ids: Ids,
}

/// What is odd about ids.
#[derive(Default)]
struct Ids {
    not_positive: u64,
    not_growing: u64,
    first_odd: Option<Offset>,
}

/// Tells somebody who waits at a terminal how far it is.
pub(super) struct Progress {
    told: Instant,
    bytes: u64,
    is_wanted: bool,
}

impl Progress {
    pub(super) fn new() -> Progress {
        Progress { told: Instant::now(), bytes: 0, is_wanted: io::stderr().is_terminal() }
    }

    fn moved(&mut self, bytes: u64, what: &Directory) {
        self.bytes += bytes;
        if self.is_wanted && self.told.elapsed() >= PROGRESS_INTERVAL {
            self.told = Instant::now();
            show::say(&format!("metaq: {} MiB checked, now {}", self.bytes >> 20, what.id));
        }
    }
}

/// Reads all segments of a partition.
pub(super) fn verify(place: &Directory, progress: &mut Progress) -> anyhow::Result<Checked> {
    let directory = place.directory.display();
    let files = partition_files(&place.directory).with_context(|| format!("cannot read {directory}"))?;
    let mut check = Check { place, progress, checked: Checked::default(), hash: Context::new(&SHA256) };
    files.faults.iter().for_each(|fault| check.fault(fault.clone()));
    for (number, segment) in files.segments.iter().enumerate() {
        let is_last = number + 1 == files.segments.len();
        if number == 0 {
            check.begin_at(segment.base);
        }
        match check.segment(segment, is_last) {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::NotFound && is_trimmed(place, segment)? => {
                check.begin_again(&files, number + 1);
            }
            Err(error) => check.fault(format!("cannot read {}: {error}", segment.path.display())),
        }
    }
    let mut checked = check.checked;
    checked.sha256 = check.hash.finish().as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
    checked.files = files;
    let notes = notes(place, &checked);
    checked.notes.extend(notes);
    Ok(checked)
}

/// Whether retention has removed a segment since it was listed.
fn is_trimmed(place: &Directory, segment: &SegmentFile) -> anyhow::Result<bool> {
    let now = partition_files(&place.directory)?;
    Ok(now.segments.first().is_some_and(|first| first.base > segment.base))
}

struct Check<'a> {
    place: &'a Directory,
    progress: &'a mut Progress,
    checked: Checked,
    hash: Context,
}

impl Check<'_> {
    fn begin_at(&mut self, first: Offset) {
        (self.checked.first, self.checked.end) = (first, first);
    }

    /// What was read so far is no longer there.
    fn begin_again(&mut self, files: &PartitionFiles, next: usize) {
        self.checked = Checked::default();
        files.faults.iter().for_each(|fault| self.fault(fault.clone()));
        self.hash = Context::new(&SHA256);
        if let Some(segment) = files.segments.get(next) {
            self.begin_at(segment.base);
            self.checked.notes.push(format!("retention removed what lay before {} meanwhile", segment.base));
        }
    }

    fn fault(&mut self, text: String) {
        if self.checked.faults.len() < FAULTS_TOLD_MAX {
            self.checked.faults.push(text);
        } else {
            self.checked.faults_more += 1;
        }
    }

    fn segment(&mut self, segment: &SegmentFile, is_last: bool) -> io::Result<()> {
        if !is_last && segment.bytes > u64::from(u32::MAX) {
            // Named among the faults of the directory.
            return Ok(());
        }
        let file = RecordFile::open(&segment.path)?;
        let base = segment.base;
        let mut hashed = 0;
        let mut end = 0;
        for piece in file.pieces(0) {
            match piece? {
                Piece::Record { at, header, end: to } => {
                    self.record(base + at, &header);
                    end = to;
                }
                Piece::Damage(range) => {
                    let fault = file.fault_at(range.start)?;
                    let (from, to) = (base + range.start, base + range.end);
                    let bytes = range.end - range.start;
                    let path = segment.path.display();
                    self.fault(format!(
                        "{path}: {bytes} bytes from offset {from} to {to} are no message: {fault}; whole ones follow, and \
                         consumers are led across"
                    ));
                    end = range.end;
                }
                Piece::Tail(range) => {
                    let text = self.tail(&file, segment, range.start, range.end.max(segment.bytes), is_last)?;
                    if is_last {
                        self.checked.notes.push(text);
                    } else {
                        self.fault(text);
                        end = range.end;
                    }
                }
            }
            if end - hashed >= HASH_STEP_BYTES {
                self.hash(&file, hashed, end)?;
                hashed = end;
            }
        }
        self.hash(&file, hashed, end)?;
        self.checked.end = self.checked.end.max(base + end);
        Ok(())
    }

    fn record(&mut self, offset: Offset, header: &RecordHeader) {
        let Checked { messages, first_id, last_id, ids, .. } = &mut self.checked;
        let is_positive = header.id.0 > 0;
        let grows = last_id.is_none_or(|last| header.id > last);
        ids.not_positive += u64::from(!is_positive);
        ids.not_growing += u64::from(!grows);
        if !is_positive || !grows {
            ids.first_odd.get_or_insert(offset);
        }
        *messages += 1;
        first_id.get_or_insert(header.id);
        *last_id = Some(header.id);
    }

    /// What follows the last whole message of a segment.
    fn tail(&self, file: &RecordFile, segment: &SegmentFile, from: u64, to: u64, is_last: bool) -> io::Result<String> {
        let (path, offset, bytes) = (segment.path.display(), segment.base + from, to - from);
        let fault = file.fault_at(from)?;
        Ok(match (is_last, self.place.broker) {
            (false, _) => format!("{path}: its last {bytes} bytes, from offset {offset} on, are no message: {fault}"),
            (true, Broker::Running) => {
                format!(
                    "{bytes} bytes from offset {offset} on are no whole message yet ({fault}): being written; checked up to there"
                )
            }
            (true, Broker::Stopped | Broker::Unknown) => format!(
                "a torn tail: {bytes} bytes from offset {offset} on are no whole message ({fault}); the next start copies \
                 them into {path}.torn-N and cuts them off"
            ),
        })
    }

    fn hash(&mut self, file: &RecordFile, from: u64, to: u64) -> io::Result<()> {
        let mut block = vec![0; BLOCK_BYTES.min((to - from) as usize)];
        let mut at = from;
        while at < to {
            let count = ((to - at) as usize).min(block.len());
            file.read_at(at, &mut block[..count])?;
            self.hash.update(&block[..count]);
            at += count as u64;
        }
        self.checked.bytes += to - from;
        self.progress.moved(to - from, self.place);
        Ok(())
    }
}

fn notes(place: &Directory, checked: &Checked) -> Vec<String> {
    let mut notes = Vec::new();
    let Checked { files, ids, .. } = checked;
    if files.segments.is_empty() && files.faults.is_empty() {
        notes.push("no segment: nothing was ever put there".to_owned());
    }
    for pair in files.segments.windows(2) {
        let end = pair[0].base + pair[0].bytes;
        // One without the mark that it is meant is among the faults.
        if end < pair[1].base && place.directory.join(format!("{:020}.meta.gap", pair[1].base.get())).exists() {
            notes.push(format!("a gap from {end} to {}: its master no longer had what lay there", pair[1].base));
        }
    }
    if place.unreplayed > 0 {
        notes.push(format!(
            "the write-ahead log has {} bytes that the files lack, and the next start puts them in: start the broker once \
             before these files are compared or copied",
            place.unreplayed
        ));
    }
    // Entries of the journal have none of their own.
    if let Some(first) = ids.first_odd.filter(|_| !place.id.is_journal()) {
        let (not_positive, not_growing) = (ids.not_positive, ids.not_growing);
        notes.push(format!(
            "{not_positive} ids are not positive, {not_growing} not larger than the one before, the first at offset {first}: \
             as ids of a Java broker are, and harmless"
        ));
    }
    let names = |paths: &[std::path::PathBuf]| {
        let name = |path: &std::path::PathBuf| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        some(&paths.iter().map(name).collect::<Vec<_>>())
    };
    if !files.aside.is_empty() {
        notes.push(format!("set aside: {}; 'metaq log dump FILE' shows what is in them", names(&files.aside)));
    }
    if !files.foreign.is_empty() {
        notes.push(format!("none of ours, passed over: {}", names(&files.foreign)));
    }
    notes
}
