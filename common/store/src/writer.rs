use crate::acks::{Ack, AckQueue, Appended};
use crate::at_risk::AtRisk;
use crate::committer::Wants;
use crate::disk::write_all_at;
use crate::errors::{AppendError, Refusal};
use crate::full::Lacks;
use crate::metrics::FlushCause;
use crate::partition::{Partition, refuse, walk_headers};
use crate::queue::{AnswerAfter, Batch, BatchRecord, NewBatch, NewRecord, Verbatim};
use crate::rules::FlushLevel;
use crate::segment::Segment;
use metaq_types::limits::RECORD_HEADER_BYTES;
use metaq_types::{MessageId, Offset};
use metaq_wire::RecordHeader;
use rustix::io::Errno;
use std::fs::File;
use std::io::{self, ErrorKind, IoSlice};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// The end of one partition's log, owned by whoever holds its lock.
pub(crate) struct Writer {
    pub(crate) active: Arc<Segment>,
    pub(crate) end: Offset,
    /// The handle the unsynced bytes were written through; a sync through another could miss their error.
    pub(crate) unsynced_file: Option<Arc<File>>,
    pub(crate) unsynced_records: u64,
    /// Appends up to here were promised a sync before their answer.
    promised: Offset,
    at_risk: AtRisk,
    /// When the path of the active segment was looked at last.
    pub(crate) looked: Option<Instant>,
}

/// Who holds the writer.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Hand {
    /// An appending thread: it must not wait for syncs.
    Appender,
    /// The committer, which syncs right afterwards.
    Committer,
}

/// A written append that waits for its answer.
struct Answer {
    appended: Appended,
    ack: Ack,
    after: AnswerAfter,
}

impl BatchRecord {
    fn header(&self) -> [u8; RECORD_HEADER_BYTES as usize] {
        let BatchRecord { id, flag, checksum, ref body } = *self;
        RecordHeader { length: body.len() as u32, checksum, id, flag }.encode()
    }
}

impl Writer {
    pub(crate) fn new(active: Arc<Segment>, end: Offset) -> Writer {
        Writer {
            active,
            end,
            unsynced_file: None,
            unsynced_records: 0,
            promised: end,
            at_risk: AtRisk::default(),
            looked: None,
        }
    }

    fn segment_bytes(&self) -> u64 {
        self.end.bytes_since(self.active.base)
    }
}

impl Partition {
    /// Writes what is queued, unless somebody else is at it: then they see our append before they are done.
    pub fn write_queued(self: &Arc<Self>) {
        while !self.queue.is_empty() {
            let Some(mut writer) = self.writer.try_lock() else { return };
            self.drain(&mut writer, Hand::Appender);
        }
    }

    /// The committer's turn: writes what is queued, then syncs what is unsynced, whoever wrote it.
    pub(crate) fn commit(self: &Arc<Self>, cause: FlushCause) {
        self.write_all_queued();
        self.settle(cause);
    }

    /// As [`Partition::write_queued`], but waits for the writer.
    pub(crate) fn write_all_queued(self: &Arc<Self>) {
        self.with_writer(|writer| self.drain(writer, Hand::Committer));
    }

    /// The one way to wait for the writer: whoever appended while we held it found it taken and left the append to us.
    pub(crate) fn with_writer<Outcome>(self: &Arc<Self>, act: impl FnOnce(&mut Writer) -> Outcome) -> Outcome {
        let outcome = act(&mut self.writer.lock());
        self.write_queued();
        outcome
    }

    fn drain(self: &Arc<Self>, writer: &mut Writer, hand: Hand) {
        loop {
            if let Some(reason) = self.poison.get() {
                return self.refuse_queued(&Refusal::Poisoned(reason.clone()));
            }
            let segment_bytes_max = self.rules.segment_bytes_max();
            let full = writer.segment_bytes() >= segment_bytes_max;
            let room = if full { segment_bytes_max } else { segment_bytes_max - writer.segment_bytes() };
            match self.queue.take_batch(room) {
                Batch::Empty => return,
                Batch::Records(records) => self.write_records(writer, records, full, hand),
                Batch::Whole(batch) => self.write_batch(writer, batch, full, hand),
                Batch::Verbatim(range) => self.write_verbatim(writer, range, hand),
            }
        }
    }

    /// Answers and forgets all that is queued.
    pub(crate) fn refuse_queued(&self, refusal: &Refusal) {
        for append in self.queue.take_all() {
            self.unqueue(append.body_bytes());
            refuse(append.into_ack(), refusal.clone());
        }
    }

    /// After the committer is gone: all that waits is dropped unanswered, and so answered as such.
    pub(crate) fn abandon(&self) {
        for append in self.queue.take_all() {
            self.unqueue(append.body_bytes());
        }
        *self.acks.lock() = AckQueue::new(self.cursors.written());
        *self.synced_acks.lock() = AckQueue::new(self.cursors.written());
    }

    fn unqueue(&self, bytes: usize) {
        self.shared.queued_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    fn write_records(self: &Arc<Self>, writer: &mut Writer, records: Vec<NewRecord>, full: bool, hand: Hand) {
        self.unqueue(records.iter().map(|record| record.body.len()).sum());
        let written = (|| {
            self.ensure_files(writer, false)?;
            if full && writer.segment_bytes() > 0 {
                self.roll(writer)?;
            }
            let ids = self.take_ids(records.len())?;
            self.write_parts(writer, &ids, &records)?;
            Ok(ids)
        })();
        let ids = match self.watch_room(written) {
            Ok(ids) => ids,
            Err(error) => return answer_all(records.into_iter().map(|record| record.ack), &error),
        };
        let starts = record_starts(writer, records.iter().map(NewRecord::bytes));
        writer.active.note_boundaries(starts.iter().copied());
        let (base, count) = (writer.active.base, records.len() as u64);
        let answers = records.into_iter().zip(ids).zip(starts).map(|((record, id), start)| {
            let (bytes, offset) = (record.bytes(), base + u64::from(start));
            let appended = Appended { id, partition: self.id.number, offset, bytes };
            Answer { appended, ack: record.ack, after: record.after }
        });
        self.publish(writer, answers, count, false, hand);
    }

    /// Takes note of whether the disk had room, and all else that it takes.
    fn watch_room<Written>(&self, written: Result<Written, AppendError>) -> Result<Written, AppendError> {
        match &written {
            Ok(_) => self.shared.full.accepted(&self.id),
            Err(AppendError::Refused(Refusal::DiskFull(reason))) => {
                self.shared.metrics.disk_full.fetch_add(1, Ordering::Relaxed);
                self.shared.full.refused(&self.id, Lacks::Room, reason);
            }
            Err(AppendError::Refused(Refusal::Unavailable(reason))) => {
                self.shared.full.refused(&self.id, Lacks::Other, reason);
            }
            Err(_) => {}
        }
        written
    }

    fn take_ids(&self, count: usize) -> Result<Vec<MessageId>, AppendError> {
        let mut ids = Vec::with_capacity(count);
        match self.shared.ids.take(count, |id| ids.push(id)) {
            Ok(()) => Ok(ids),
            Err(error) if error.disk_full => Err(Refusal::DiskFull(error.to_string()).into()),
            Err(error) => Err(Refusal::Unavailable(error.to_string()).into()),
        }
    }

    /// One gathering write of headers and bodies.
    fn write_parts(&self, writer: &mut Writer, ids: &[MessageId], records: &[NewRecord]) -> Result<(), AppendError> {
        let headers: Vec<[u8; RECORD_HEADER_BYTES as usize]> = records
            .iter()
            .zip(ids)
            .map(|(record, id)| {
                let length = record.body.len() as u32;
                RecordHeader { length, checksum: record.checksum, id: *id, flag: record.flag }.encode()
            })
            .collect();
        let mut parts = Vec::with_capacity(2 * records.len());
        for (header, record) in headers.iter().zip(records) {
            parts.push(IoSlice::new(header));
            parts.push(IoSlice::new(&record.body));
        }
        self.write_bytes(writer, &mut parts)
    }

    fn write_verbatim(self: &Arc<Self>, writer: &mut Writer, range: Verbatim, hand: Hand) {
        self.unqueue(range.bytes.len());
        let headers = match self.check_verbatim(writer, &range) {
            Ok(headers) => headers,
            Err(error) => return refuse(range.ack, error),
        };
        let written = (|| {
            self.ensure_files(writer, true)?;
            if range.segment != writer.active.base {
                self.roll(writer)?;
            }
            self.write_bytes(writer, &mut [IoSlice::new(&range.bytes)])
        })();
        if let Err(error) = self.watch_room(written) {
            return range.ack.answer(Err(error));
        }
        let position = writer.segment_bytes() as u32;
        writer.active.note_boundaries(headers.iter().map(|(at, _)| position + at));
        for (_, header) in &headers {
            self.shared.ids.found(header.id);
        }
        let id = headers.last().expect("an empty range was refused").1.id;
        let (bytes, records) = (range.bytes.len() as u32, headers.len() as u64);
        let appended = Appended { id, partition: self.id.number, offset: range.at, bytes };
        let answer = Answer { appended, ack: range.ack, after: AnswerAfter::Rule };
        self.publish(writer, std::iter::once(answer), records, true, hand);
    }

    /// All in one segment, which a batch may exceed as a record may, and published together: no reader ever sees a part.
    fn write_batch(self: &Arc<Self>, writer: &mut Writer, batch: NewBatch, full: bool, hand: Hand) {
        let NewBatch { records, ack, after } = batch;
        self.unqueue(records.iter().map(|record| record.body.len()).sum());
        let bytes = records.iter().map(|record| u64::from(record.bytes())).sum::<u64>();
        let written = (|| {
            self.ensure_files(writer, false)?;
            let full = full || writer.segment_bytes() + bytes > u64::from(u32::MAX);
            if full && writer.segment_bytes() > 0 {
                self.roll(writer)?;
            }
            let headers: Vec<_> = records.iter().map(BatchRecord::header).collect();
            let parts = headers.iter().zip(&records);
            let mut parts: Vec<_> =
                parts.flat_map(|(header, record)| [IoSlice::new(header), IoSlice::new(&record.body)]).collect();
            self.write_bytes(writer, &mut parts)
        })();
        if let Err(error) = self.watch_room(written) {
            return ack.answer(Err(error));
        }
        let starts = record_starts(writer, records.iter().map(BatchRecord::bytes));
        writer.active.note_boundaries(starts.iter().copied());
        for record in &records {
            self.shared.ids.found(record.id);
        }
        let id = records.last().expect("an empty batch was refused").id;
        let appended = Appended { id, partition: self.id.number, offset: writer.end, bytes: bytes as u32 };
        let answer = Answer { appended, ack, after };
        self.publish(writer, std::iter::once(answer), records.len() as u64, false, hand);
    }

    fn check_verbatim(&self, writer: &Writer, range: &Verbatim) -> Result<Vec<(u32, RecordHeader)>, Refusal> {
        if range.at != writer.end {
            return Err(Refusal::NotAtEnd { at: range.at, end: writer.end });
        }
        let active = writer.active.base;
        let begins_segment = range.segment == range.at && writer.segment_bytes() > 0;
        if range.segment != active && !begins_segment {
            return Err(Refusal::OtherSegment { segment: range.segment, active });
        }
        if range.bytes.is_empty() {
            return Err(Refusal::Malformed("it is empty".to_string()));
        }
        let before = if begins_segment { 0 } else { writer.segment_bytes() };
        if before + range.bytes.len() as u64 > u64::from(u32::MAX) {
            return Err(Refusal::Malformed("no segment grows beyond 4 GiB".to_string()));
        }
        walk_headers(&range.bytes).map_err(Refusal::Malformed)
    }

    /// Puts bytes at the end of the active segment, or leaves the file as it was.
    fn write_bytes(&self, writer: &mut Writer, parts: &mut [IoSlice<'_>]) -> Result<(), AppendError> {
        let file = match &writer.unsynced_file {
            Some(file) => file.clone(),
            None => self.file_of(&writer.active).map_err(|error| {
                let path = writer.active.path(&self.directory());
                Refusal::Unavailable(format!("cannot open {}: {error}", path.display()))
            })?,
        };
        match write_all_at(&*self.shared.disk, &file, writer.segment_bytes(), parts) {
            Ok(()) => {
                writer.unsynced_file = Some(file);
                Ok(())
            }
            Err(error) => Err(self.write_failed(writer, &file, &error)),
        }
    }

    /// Cuts off what a failed write left, durably: it was refused, so it must not come back. Only a full disk is
    /// something to try again after.
    fn write_failed(&self, writer: &Writer, file: &File, error: &io::Error) -> AppendError {
        let path = writer.active.path(&self.directory());
        let position = writer.segment_bytes();
        let cut = {
            let _turn = self.sync_turn.lock();
            let disk = &self.shared.disk;
            match disk.set_len(file, position) {
                // There is nothing to cut, as with a file that we may only read.
                Err(_) if file.metadata().is_ok_and(|found| found.len() == position) => Ok(()),
                cut => cut.and_then(|()| disk.sync_data(file)),
            }
        };
        if let Err(cut) = cut {
            let path = path.display();
            let reason =
                format!("a write to {path} at {position} failed ({error}), and cutting off its rest too ({cut})");
            self.poison(reason.clone());
            return AppendError::Unknown(reason);
        }
        if is_disk_full(error) {
            return Refusal::DiskFull(format!("{} at {position}: {error}", path.display())).into();
        }
        let advice = match error.raw_os_error() == Some(Errno::BADF.raw_os_error()) {
            true => "; the file may only be read: correct its owner or mode, or how its disk is mounted",
            false => "",
        };
        let reason = format!("a write to {} at {position} failed: {error}{advice}", path.display());
        self.poison(reason.clone());
        Refusal::Poisoned(reason).into()
    }

    /// Begins a new segment at the written end. The full one is synced first: after a power failure a file that follows
    /// one cut short would not join it.
    fn roll(self: &Arc<Self>, writer: &mut Writer) -> Result<(), AppendError> {
        if let Some(file) = writer.unsynced_file.take()
            && !self.sync_file(&file, writer.end, FlushCause::Roll)
        {
            let reason = self.poison.get().cloned().unwrap_or_default();
            return Err(Refusal::Poisoned(reason).into());
        }
        writer.unsynced_records = 0;
        let segment = Arc::new(Segment::new(writer.end));
        let directory = self.directory();
        let path = segment.path(&directory);
        let file = self.shared.disk.create_new(&path).map_err(|error| {
            let text = format!("cannot create {}: {error}", path.display());
            if is_disk_full(&error) { Refusal::DiskFull(text) } else { Refusal::Unavailable(text) }
        })?;
        // The name must last before an answer tells of bytes in it.
        if let Err(error) = self.shared.disk.sync_dir(&directory) {
            let reason = format!("cannot sync {}: {error}", directory.display());
            self.poison(reason.clone());
            return Err(Refusal::Poisoned(reason).into());
        }
        self.shared.files.keep(&segment, Arc::new(file));
        let mut segments = self.segments.load().to_vec();
        segments.push(segment.clone());
        self.segments.store(Arc::new(segments));
        self.shared.metrics.rolls.fetch_add(1, Ordering::Relaxed);
        writer.active = segment;
        Ok(())
    }

    /// Whether what was just written may be answered before it is durable: not behind what waits for a sync, and not when
    /// more than the threshold could be lost. A copy has its original, so nothing is lost with it alone.
    fn may_answer(&self, writer: &mut Writer, records: u64, is_copy: bool) -> bool {
        let durable = self.cursors.durable();
        durable >= writer.promised && (is_copy || writer.at_risk.has_room(durable, records, self.rules.threshold()))
    }

    /// Makes what was just written count: position, index, counters, answers, and the sync it calls for.
    fn publish(
        self: &Arc<Self>,
        writer: &mut Writer,
        answers: impl Iterator<Item = Answer>,
        records: u64,
        is_copy: bool,
        hand: Hand,
    ) {
        let level = self.rules.level();
        let start = writer.end;
        let mut waits_for_sync = false;
        let mut told = None;
        let now_safe = level == FlushLevel::Os && self.may_answer(writer, records, is_copy);
        {
            let mut acks = self.acks.lock();
            for Answer { appended, ack, after } in answers {
                writer.end = appended.offset + u64::from(appended.bytes);
                match after {
                    AnswerAfter::Sync if now_safe => {
                        waits_for_sync = true;
                        self.synced_acks.lock().push(appended, ack);
                    }
                    AnswerAfter::Write => told = Some((appended, ack)),
                    AnswerAfter::Sync | AnswerAfter::Rule => acks.push(appended, ack),
                }
            }
            self.records.fetch_add(records, Ordering::Relaxed);
            self.shared.metrics.count_write(records, writer.end.bytes_since(start));
            self.cursors.publish_written(writer.end);
            if now_safe {
                acks.on_local(writer.end);
            }
            if (!now_safe || waits_for_sync)
                && let Some(reason) = self.poison.get()
            {
                acks.fail_beyond(self.cursors.durable(), reason);
                self.synced_acks.lock().fail_beyond(self.cursors.durable(), reason);
            }
        }
        let is_logged = told.is_some();
        if let Some((appended, ack)) = told {
            self.cursors.publish_told(writer.end);
            ack.answer(Ok(appended));
        }
        if now_safe && !is_copy {
            writer.at_risk.add(writer.end, records, self.rules.threshold());
        }
        if !now_safe {
            writer.promised = writer.end;
            // Before our own sync, so that both run at once.
            if self.cursors.offer(start, writer.end) {
                self.wake_members();
            }
            // The sync of a logged batch is owed by its appender, but with this level nobody asks for it.
            if hand == Hand::Appender && (!is_logged || level == FlushLevel::Os) {
                self.want(Wants::Commit);
            }
            return;
        }
        writer.unsynced_records += records;
        if waits_for_sync {
            // Our caller, if it is the committer, is about to sync these bytes anyway.
            if hand == Hand::Appender {
                self.want(Wants::Commit);
            }
        } else if writer.unsynced_records > u64::from(self.rules.threshold() / 2) {
            // Early enough to be done, as a rule, before an answer has to wait for it.
            self.want(Wants::Threshold);
        } else if self.waiting_readers.load(Ordering::SeqCst) > 0 {
            self.want_reader_sync();
        }
        if !self.interval_runs.swap(true, Ordering::SeqCst) {
            self.committer().sync_after(self, self.rules.interval());
        }
    }
}

/// Where in the active segment records of these lengths start that were written at its end.
fn record_starts(writer: &Writer, lengths: impl Iterator<Item = u32>) -> Vec<u32> {
    let mut next = writer.segment_bytes() as u32;
    let starts = lengths.map(|bytes| {
        let start = next;
        next += bytes;
        start
    });
    starts.collect()
}

pub(crate) fn is_disk_full(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded)
}

fn answer_all(acks: impl Iterator<Item = Ack>, error: &AppendError) {
    for ack in acks {
        ack.answer(Err(error.clone()));
    }
}
