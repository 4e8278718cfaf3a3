//! How one partition of a slave follows its master: a machine without I/O.
//!
//! The driver asks [`Pull::next_get`], sends that get, hands the answer to [`Pull::on_answer`] and does the [`Step`] it
//! gets back. The position is the end of the slave's own log. Bytes are appended only where that log ends and only after
//! every record in them was checked; whatever does not fit stops this partition with a [`Stop`] that says what to do.
//! There is no way back; only what the master no longer has is stepped over, from segment to segment.

mod check;
mod stop;

use std::time::Duration;

use bytes::Bytes;
use metaq_types::Offset;
use metaq_types::limits::TRANSFER_BYTES_MAX;
use metaq_wire::ValueExtra;

pub use stop::Stop;

use check::{Rest, check};

/// Bad answers in a row to one get before the partition stops.
pub const FAULTS_MAX: u32 = 6;

const FAULT_PAUSE_MIN: Duration = Duration::from_millis(100);
const FAULT_PAUSE_MAX: Duration = Duration::from_secs(2);

/// One partition of the slave, as far as following goes.
#[derive(Debug)]
pub struct Pull {
    log: Log,
    stop: Option<Stop>,
    /// What keeps it from going on at the moment, when that is not the master's silence.
    trouble: Option<String>,
    /// The master's log goes on there, above our end: looked at before anything is stepped over.
    across: Option<Offset>,
    /// What our log lacks inside, from where to where.
    gaps: Vec<(Offset, Offset)>,
    /// The furthest end of the master this slave has heard of.
    master_end: Option<Offset>,
    /// Bytes came without word of the master's end: more may wait.
    more: bool,
    /// The record at the position is this large, header included: a smaller get cannot deliver it.
    needed_bytes: Option<u32>,
    /// Bad answers since the last good one.
    faults: u32,
    /// Polls answered with nothing before their time since the last bytes came.
    misses: u32,
    /// The master names as its end what it has flushed, and hands out more: an end before ours is no proof.
    unflushed: bool,
}

/// What the slave holds of the partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Log {
    /// Nothing yet; it will begin at `from`, as far as is known.
    Absent { from: Offset },
    /// A log with its first and its next offset.
    Present { first: Offset, end: Offset },
}

/// The next get of a partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NextGet {
    pub offset: Offset,
    /// Bytes are known to wait at the master; otherwise the get is a long poll.
    pub waiting: bool,
    /// Ask for no fewer bytes than this.
    pub bytes_min: u32,
}

/// The master's answer to a get.
#[derive(Debug, Clone)]
pub enum Answer {
    Value {
        body: Bytes,
        extra: Option<ValueExtra>,
    },
    /// Nothing at this offset, or nothing yet; `early` when the master did not wait as long as it was asked to.
    Nothing {
        early: bool,
    },
    /// The master has no such partition.
    NoPartition {
        early: bool,
    },
    /// 301: go on there.
    Moved(Offset),
    /// An answer that says nothing about the log: overload, a closed partition, an error; in its words.
    Refused(String),
}

/// What the driver does next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// The next get, at once.
    Get,
    /// The next get after this pause.
    Pause(Duration),
    /// Create the empty log, which begins at `first`; then [`Pull::on_created`].
    Create { first: Offset },
    /// Let the log go on at `to`, where a segment of the master begins, although it ends before; then
    /// [`Pull::on_stepped_over`].
    StepOver { to: Offset },
    /// Append these checked, whole records (creating the log at `at` when it is absent), then [`Pull::on_appended`].
    /// `segment` is the start of the master's segment they lie in, where the master says it.
    Append { at: Offset, segment: Option<Offset>, bytes: Bytes },
    /// The master says that it ends there, before our end, but may only not have flushed what it handed out: compare the
    /// bytes, then [`Pull::on_compared`].
    Compare { master_end: Offset },
    /// The partition has stopped: [`Pull::stopped`] says why.
    Stop,
}

impl Pull {
    pub fn new(log: Log) -> Pull {
        Pull {
            log,
            stop: None,
            trouble: None,
            across: None,
            gaps: Vec::new(),
            master_end: None,
            more: false,
            needed_bytes: None,
            faults: 0,
            misses: 0,
            unflushed: false,
        }
    }

    /// The master is the original: see [`Step::Compare`].
    pub fn set_unflushed(&mut self) {
        self.unflushed = true;
    }

    pub fn log(&self) -> Log {
        self.log
    }

    /// The next offset wanted: the end of the slave's own log.
    pub fn position(&self) -> Offset {
        match self.log {
            Log::Absent { from } => from,
            Log::Present { end, .. } => self.across.unwrap_or(end),
        }
    }

    pub fn stopped(&self) -> Option<&Stop> {
        self.stop.as_ref()
    }

    /// The partition is not to be followed, for a reason found elsewhere.
    pub fn hold(&mut self, stop: Stop, master_end: Option<Offset>) {
        self.master_end = self.master_end.max(master_end);
        self.stop = Some(stop);
    }

    /// For a person: why it has stopped, or what it is waiting for out of the ordinary.
    pub fn note(&self) -> Option<String> {
        let gaps = || {
            let ranges: Vec<String> = self.gaps.iter().map(|(from, to)| format!("{from} to {to}")).collect();
            (!ranges.is_empty()).then(|| format!("gap: the master no longer had {}", ranges.join(", ")))
        };
        self.stop.as_ref().map(ToString::to_string).or_else(|| self.trouble.clone()).or_else(gaps)
    }

    pub fn master_end(&self) -> Option<Offset> {
        self.master_end
    }

    /// `None` once stopped.
    pub fn next_get(&self) -> Option<NextGet> {
        if self.stop.is_some() {
            return None;
        }
        let offset = self.position();
        let waiting = self.more || self.needed_bytes.is_some() || self.master_end.is_some_and(|end| end > offset);
        Some(NextGet { offset, waiting, bytes_min: self.needed_bytes.unwrap_or(0) })
    }

    /// The master listed this partition: its log reaches from `first` to `end`. To be told only while no answer and no
    /// append is outstanding, so that an end below the slave's own is a fact and not an old message.
    pub fn on_listing(&mut self, first: Offset, end: Offset) {
        self.see_end(end);
        match self.log {
            Log::Absent { from } if from < first => self.log = Log::Absent { from: first },
            // Compared before, where the master's word for it is none.
            Log::Present { end: own_end, .. } if end < own_end && !self.unflushed => {
                self.stop = Some(Stop::Diverged { own_end, master_end: end });
            }
            _ => {}
        }
    }

    /// `delay_max` is the longest pause between two polls of a master that does not wait (replication, "A5", 3).
    pub fn on_answer(&mut self, answer: Answer, delay_max: Duration) -> Step {
        match answer {
            Answer::Value { body, extra } if body.is_empty() => {
                if let Some(extra) = extra {
                    self.see_end(extra.end);
                }
                self.nothing(true, delay_max)
            }
            Answer::Value { body, extra } => self.value(body, extra),
            Answer::Nothing { .. } if let Some(to) = self.across => Step::StepOver { to },
            Answer::Nothing { early } => match self.log {
                Log::Absent { from } => Step::Create { first: from },
                Log::Present { .. } => self.nothing(early, delay_max),
            },
            Answer::NoPartition { early } => self.nothing(early, delay_max),
            Answer::Moved(to) => self.moved(to),
            Answer::Refused(text) => {
                self.trouble = Some(format!("the master answers: {text}"));
                self.misses = (self.misses + 1).min(10);
                Step::Pause(fault_pause(self.misses))
            }
        }
    }

    pub fn on_created(&mut self, first: Offset) {
        self.log = Log::Present { first, end: first };
    }

    /// What the log lacks inside, as its files say.
    pub fn set_gaps(&mut self, gaps: Vec<(Offset, Offset)>) {
        self.gaps = gaps;
    }

    /// The log now goes on at `to`, with a gap before.
    pub fn on_stepped_over(&mut self, to: Offset) {
        if let Log::Present { first, end } = self.log {
            self.gaps.push((end, to));
            self.log = Log::Present { first, end: to };
        }
        self.across = None;
    }

    /// The slave's log now ends at `end`.
    pub fn on_appended(&mut self, end: Offset) {
        let first = match self.log {
            Log::Absent { from } => from,
            Log::Present { first, .. } => first,
        };
        assert!(self.position() <= end, "a log does not become shorter by an append");
        self.log = Log::Present { first, end };
        self.needed_bytes = None;
        self.trouble = None;
        self.faults = 0;
        self.misses = 0;
    }

    /// The outcome of [`Step::Compare`]: whether the master holds everything that is here.
    pub fn on_compared(&mut self, is_prefix: bool, master_end: Offset, delay_max: Duration) -> Step {
        match self.log {
            Log::Present { end: own_end, .. } if !is_prefix => self.stop_with(Stop::Diverged { own_end, master_end }),
            _ => self.nothing(true, delay_max),
        }
    }

    /// The slave's own store refused for now, and holds what it held before: the same is fetched and tried again.
    pub fn on_local_trouble(&mut self, reason: String) -> Step {
        self.trouble = Some(format!("waiting: {reason}"));
        Step::Pause(FAULT_PAUSE_MAX)
    }

    /// The slave's own store refused for good.
    pub fn on_local_failure(&mut self, reason: String) {
        self.stop = Some(Stop::Local { at: self.position(), reason });
    }

    fn see_end(&mut self, end: Offset) {
        self.master_end = self.master_end.max(Some(end));
    }

    fn nothing(&mut self, early: bool, delay_max: Duration) -> Step {
        self.faults = 0;
        self.more = false;
        self.trouble = None;
        if !early {
            self.misses = 0;
            return Step::Get;
        }
        self.misses = (self.misses + 1).min(10);
        Step::Pause(delay_max * self.misses / 10)
    }

    fn moved(&mut self, to: Offset) -> Step {
        match self.log {
            Log::Absent { from } if to > from => {
                self.log = Log::Absent { from: to };
                Step::Get
            }
            Log::Present { end, .. } if to > end => {
                self.see_end(to);
                if self.across == Some(to) {
                    return self.fault("the master moves the reader to where it already is".to_owned());
                }
                self.across = Some(to);
                Step::Get
            }
            // The original with updateConsumerOffsets=true sends whoever is beyond what it has flushed back to that.
            Log::Present { end, .. } if to < end && self.unflushed => Step::Compare { master_end: to },
            Log::Present { end, .. } if to < end => self.stop_with(Stop::Diverged { own_end: end, master_end: to }),
            _ => self.fault("the master moves the reader to where it already is".to_owned()),
        }
    }

    fn value(&mut self, body: Bytes, extra: Option<ValueExtra>) -> Step {
        let at = self.position();
        if let Some(extra) = &extra {
            self.see_end(extra.end);
            if extra.segment > at {
                return self.fault(format!("the master names segment {}, which begins later", extra.segment));
            }
            if let Log::Absent { .. } = self.log
                && extra.segment < at
            {
                // A log begins where a segment begins, or its file names would differ from the master's.
                self.log = Log::Absent { from: extra.segment };
                return Step::Get;
            }
        }
        if let (Some(to), Log::Present { end, .. }) = (self.across, self.log) {
            // A log can only be left and entered where a segment ends and begins: anything else is damage inside the
            // master's log, and a slave that stepped over it would not have its master's files.
            return match extra.is_none_or(|extra| extra.segment == to) {
                true => Step::StepOver { to },
                false => self.stop_with(Stop::Damaged { own_end: end, master_goes_on: to }),
            };
        }
        let checked = check(&body);
        if checked.bytes > 0 {
            self.more = extra.is_none();
            let bytes = body.slice(..checked.bytes);
            return Step::Append { at, segment: extra.map(|extra| extra.segment), bytes };
        }
        match checked.rest {
            Rest::Bad(reason) => self.fault(reason),
            Rest::Cut { needed_bytes } => self.cut(at, needed_bytes, body.len()),
        }
    }

    /// Not one whole record came.
    fn cut(&mut self, at: Offset, needed_bytes: u64, delivered_bytes: usize) -> Step {
        let Some(needed) = u32::try_from(needed_bytes).ok().filter(|needed| *needed <= TRANSFER_BYTES_MAX) else {
            return self.fault(format!("a record of {needed_bytes} bytes cannot be"));
        };
        if self.needed_bytes.is_some_and(|asked| asked >= needed) {
            let delivered_bytes = u32::try_from(delivered_bytes).unwrap_or(u32::MAX);
            return self.stop_with(Stop::TooLarge { at, record_bytes: needed, delivered_bytes });
        }
        self.needed_bytes = Some(needed);
        Step::Get
    }

    fn fault(&mut self, reason: String) -> Step {
        self.faults += 1;
        if self.faults >= FAULTS_MAX {
            return self.stop_with(Stop::Corrupt { at: self.position(), reason });
        }
        Step::Pause(fault_pause(self.faults))
    }

    fn stop_with(&mut self, stop: Stop) -> Step {
        self.stop = Some(stop);
        Step::Stop
    }
}

/// Doubles from the second fault on.
fn fault_pause(faults: u32) -> Duration {
    FAULT_PAUSE_MIN.saturating_mul(1 << faults.saturating_sub(1).min(8)).min(FAULT_PAUSE_MAX)
}

#[cfg(test)]
mod tests {
    use bytes::BytesMut;
    use metaq_types::MessageId;
    use metaq_wire::RecordHeader;

    use super::*;

    const DELAY: Duration = Duration::from_millis(500);

    fn at(offset: u64) -> Offset {
        Offset::new(offset).unwrap()
    }

    fn record(id: i64, body: &[u8]) -> Bytes {
        let mut bytes = BytesMut::from(&RecordHeader::of(MessageId(id), 0, body).encode()[..]);
        bytes.extend_from_slice(body);
        bytes.freeze()
    }

    fn records(count: i64) -> Bytes {
        let mut bytes = BytesMut::new();
        for id in 1..=count {
            bytes.extend_from_slice(&record(id, b"0123456789"));
        }
        bytes.freeze()
    }

    fn value(body: Bytes, segment: u64, end: u64) -> Answer {
        Answer::Value {
            body,
            extra: Some(ValueExtra { segment: at(segment), end: at(end), epoch: 0, journal: None, confirmed: None }),
        }
    }

    fn present(first: u64, end: u64) -> Pull {
        Pull::new(Log::Present { first: at(first), end: at(end) })
    }

    #[test]
    fn whole_records_are_appended_and_the_torn_rest_is_asked_for_again() {
        let mut pull = present(0, 300);
        let body = records(3);
        let torn = body.slice(..75);
        let step = pull.on_answer(value(torn, 0, 390), DELAY);
        assert_eq!(step, Step::Append { at: at(300), segment: Some(at(0)), bytes: body.slice(..60) });
        pull.on_appended(at(360));
        assert_eq!(pull.next_get(), Some(NextGet { offset: at(360), waiting: true, bytes_min: 0 }));
        assert!(matches!(pull.on_answer(value(body.slice(60..), 0, 390), DELAY), Step::Append { .. }));
        pull.on_appended(at(390));
        assert_eq!(pull.next_get(), Some(NextGet { offset: at(390), waiting: false, bytes_min: 0 }));
    }

    #[test]
    fn a_missing_log_begins_where_the_masters_begins() {
        let mut pull = Pull::new(Log::Absent { from: Offset::ZERO });
        assert_eq!(pull.on_answer(Answer::NoPartition { early: false }, DELAY), Step::Get);
        assert_eq!(pull.on_answer(Answer::Moved(at(4096)), DELAY), Step::Get);
        assert_eq!(pull.next_get().map(|get| get.offset), Some(at(4096)));
        let step = pull.on_answer(value(records(1), 4096, 4126), DELAY);
        assert!(matches!(step, Step::Append { at: first, .. } if first == at(4096)));
        pull.on_appended(at(4126));
        assert_eq!(pull.log(), Log::Present { first: at(4096), end: at(4126) });
    }

    #[test]
    fn an_empty_log_of_the_master_is_created_with_its_first_offset() {
        let mut pull = Pull::new(Log::Absent { from: Offset::ZERO });
        pull.on_listing(at(5000), at(5000));
        assert_eq!(pull.on_answer(Answer::Nothing { early: true }, DELAY), Step::Create { first: at(5000) });
        pull.on_created(at(5000));
        assert_eq!(pull.on_answer(Answer::Nothing { early: false }, DELAY), Step::Get);
    }

    #[test]
    fn a_log_never_begins_inside_a_segment_of_the_master() {
        let mut pull = Pull::new(Log::Absent { from: at(130) });
        assert_eq!(pull.on_answer(value(records(1), 100, 500), DELAY), Step::Get);
        assert_eq!(pull.position(), at(100));
    }

    #[test]
    fn a_gap_is_stepped_over_where_a_segment_begins() {
        let mut pull = present(0, 1000);
        assert_eq!(pull.on_answer(Answer::Moved(at(5000)), DELAY), Step::Get);
        assert_eq!(pull.next_get().unwrap().offset, at(5000), "looked at first");
        assert_eq!(pull.on_answer(value(records(1), 5000, 9000), DELAY), Step::StepOver { to: at(5000) });
        pull.on_stepped_over(at(5000));
        assert_eq!(pull.log(), Log::Present { first: at(0), end: at(5000) });
        assert!(pull.note().unwrap().contains("gap: the master no longer had 1000 to 5000"));
        assert!(
            matches!(pull.on_answer(value(records(1), 5000, 9000), DELAY), Step::Append { at: from, .. } if from == at(5000))
        );

        // A master whose log is empty above the gap.
        let mut pull = present(0, 1000);
        assert_eq!(pull.on_answer(Answer::Moved(at(5000)), DELAY), Step::Get);
        assert_eq!(pull.on_answer(Answer::Nothing { early: true }, DELAY), Step::StepOver { to: at(5000) });
    }

    #[test]
    fn damage_inside_the_masters_log_is_not_stepped_over() {
        let mut pull = present(0, 1000);
        assert_eq!(pull.on_answer(Answer::Moved(at(1200)), DELAY), Step::Get);
        assert_eq!(pull.on_answer(value(records(1), 0, 9000), DELAY), Step::Stop);
        assert_eq!(pull.stopped(), Some(&Stop::Damaged { own_end: at(1000), master_goes_on: at(1200) }));
        assert_eq!(pull.next_get(), None);
    }

    #[test]
    fn a_slave_beyond_its_master_stops() {
        let mut pull = present(0, 1000);
        pull.on_listing(at(0), at(900));
        assert_eq!(pull.stopped(), Some(&Stop::Diverged { own_end: at(1000), master_end: at(900) }));

        let mut pull = present(0, 1000);
        assert_eq!(pull.on_answer(Answer::Moved(at(900)), DELAY), Step::Stop);
        assert_eq!(pull.stopped(), Some(&Stop::Diverged { own_end: at(1000), master_end: at(900) }));

        let mut level = present(0, 1000);
        level.on_listing(at(0), at(1000));
        assert_eq!(level.stopped(), None);
    }

    #[test]
    fn a_record_larger_than_the_fetch_is_fetched_by_its_size() {
        let mut pull = present(0, 0);
        let big = record(1, &[7; 5000]);
        assert_eq!(pull.on_answer(value(big.slice(..1000), 0, 5020), DELAY), Step::Get);
        assert_eq!(pull.next_get(), Some(NextGet { offset: at(0), waiting: true, bytes_min: 5020 }));
        assert!(matches!(pull.on_answer(value(big, 0, 5020), DELAY), Step::Append { .. }));
        pull.on_appended(at(5020));
        assert_eq!(pull.next_get().map(|get| get.bytes_min), Some(0));
    }

    #[test]
    fn even_a_header_that_is_cut_is_fetched_whole() {
        let mut pull = present(0, 0);
        assert_eq!(pull.on_answer(value(records(1).slice(..7), 0, 30), DELAY), Step::Get);
        assert_eq!(pull.next_get().map(|get| get.bytes_min), Some(20));
        assert_eq!(pull.on_answer(value(records(1).slice(..20), 0, 30), DELAY), Step::Get);
        assert_eq!(pull.next_get().map(|get| get.bytes_min), Some(30));
    }

    #[test]
    fn a_master_that_cannot_deliver_a_record_is_told_the_size() {
        let mut pull = present(0, 0);
        let part = record(1, &[7; 5000]).slice(..1000);
        pull.on_answer(value(part.clone(), 0, 5020), DELAY);
        assert_eq!(pull.on_answer(value(part, 0, 5020), DELAY), Step::Stop);
        let text = pull.stopped().unwrap().to_string();
        assert!(text.contains("set maxTransferSize on the master to at least 5020"), "{text}");
    }

    #[test]
    fn a_bad_record_stops_the_partition_after_some_tries_and_what_precedes_it_is_kept() {
        let mut pull = present(0, 0);
        let mut body = BytesMut::from(&records(3)[..]);
        body[30 + 25] ^= 1;
        let body = body.freeze();
        let step = pull.on_answer(value(body.clone(), 0, 90), DELAY);
        assert_eq!(step, Step::Append { at: at(0), segment: Some(at(0)), bytes: body.slice(..30) });
        pull.on_appended(at(30));
        for _ in 1..FAULTS_MAX {
            assert!(matches!(pull.on_answer(value(body.slice(30..), 0, 90), DELAY), Step::Pause(_)));
            assert_eq!(pull.position(), at(30));
        }
        assert_eq!(pull.on_answer(value(body.slice(30..), 0, 90), DELAY), Step::Stop);
        assert!(matches!(pull.stopped(), Some(Stop::Corrupt { at: offset, .. }) if *offset == at(30)));
    }

    #[test]
    fn a_bad_answer_that_heals_leaves_no_trace() {
        let mut pull = present(0, 0);
        let mut bad = BytesMut::from(&records(1)[..]);
        bad[25] ^= 1;
        pull.on_answer(value(bad.freeze(), 0, 30), DELAY);
        assert!(matches!(pull.on_answer(value(records(1), 0, 30), DELAY), Step::Append { .. }));
        pull.on_appended(at(30));
        assert_eq!((pull.faults, pull.stopped()), (0, None));
    }

    #[test]
    fn garbage_and_zeros_are_never_appended() {
        for garbage in [vec![0xff; 64], vec![0; 64]] {
            let mut pull = present(0, 0);
            let answer = value(Bytes::from(garbage), 0, 64);
            assert!(matches!(pull.on_answer(answer, DELAY), Step::Pause(_)));
            assert_eq!(pull.position(), at(0));
        }
        let mut pull = present(0, 0);
        let length = Bytes::from(vec![0x7f; 20]);
        assert!(matches!(pull.on_answer(value(length, 0, 64), DELAY), Step::Pause(_)), "2 GiB are not asked for");
    }

    #[test]
    fn what_passes_by_itself_is_noted_and_tried_again() {
        let mut pull = present(0, 0);
        assert!(matches!(pull.on_answer(Answer::Refused("busy".into()), DELAY), Step::Pause(_)));
        assert_eq!(pull.note().as_deref(), Some("the master answers: busy"));
        assert!(matches!(pull.on_answer(value(records(1), 0, 30), DELAY), Step::Append { .. }));
        assert!(matches!(pull.on_local_trouble("disk full".into()), Step::Pause(_)));
        assert_eq!((pull.note().as_deref(), pull.position()), (Some("waiting: disk full"), at(0)));
        assert!(matches!(pull.on_answer(value(records(1), 0, 30), DELAY), Step::Append { .. }));
        pull.on_appended(at(30));
        assert_eq!((pull.note(), pull.stopped()), (None, None));
    }

    #[test]
    fn a_master_that_does_not_wait_is_polled_ever_more_slowly() {
        let mut pull = present(0, 0);
        let mut pauses = Vec::new();
        for _ in 0..12 {
            if let Step::Pause(pause) = pull.on_answer(Answer::Nothing { early: true }, DELAY) {
                pauses.push(pause.as_millis());
            }
        }
        assert_eq!(pauses, [50, 100, 150, 200, 250, 300, 350, 400, 450, 500, 500, 500]);
        let java = Answer::Value { body: records(1), extra: None };
        assert!(matches!(pull.on_answer(java, DELAY), Step::Append { segment: None, .. }));
        pull.on_appended(at(30));
        assert_eq!(pull.next_get().map(|get| get.waiting), Some(true), "until it says that there is nothing");
        assert_eq!(pull.on_answer(Answer::Nothing { early: true }, DELAY), Step::Pause(DELAY / 10));
        assert_eq!(pull.next_get().map(|get| get.waiting), Some(false));
    }

    #[test]
    fn an_original_that_has_not_flushed_what_it_handed_out_has_not_diverged() {
        let mut pull = present(0, 300);
        pull.set_unflushed();
        pull.on_listing(at(0), at(200));
        assert!(pull.next_get().is_some());
        let compare = Step::Compare { master_end: at(200) };
        assert_eq!(pull.on_answer(Answer::Moved(at(200)), DELAY), compare);
        assert!(matches!(pull.on_compared(true, at(200), DELAY), Step::Pause(_)));
        assert_eq!(pull.next_get().map(|get| get.offset), Some(at(300)));
        assert_eq!(pull.on_answer(Answer::Moved(at(200)), DELAY), compare);
        assert_eq!(pull.on_compared(false, at(200), DELAY), Step::Stop);
        assert_eq!(pull.stopped(), Some(&Stop::Diverged { own_end: at(300), master_end: at(200) }));
    }
}
