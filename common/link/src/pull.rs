//! How one partition of a slave follows its master: a machine without I/O.
//!
//! The driver asks [`Pull::next_get`], sends that get, hands the answer to [`Pull::on_answer`] and does the [`Step`] it
//! gets back. The position is the end of the slave's own log. Bytes are appended only where that log ends and only after
//! every record in them was checked; whatever does not fit stops this partition with a [`Stop`] that says what to do.
//! There is no way back; only what the master no longer has is stepped over, from segment to segment.

mod check;
mod stop;
#[cfg(test)]
mod tests;

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

    /// The records of an answer to the get right behind a [`Step::Append`] into `segment`, checked, where they may be
    /// appended behind it before [`Pull::on_appended`] has told of it; told of in turn. `None`: the answer is for
    /// [`Pull::on_answer`], after that, as where it has to wait for the journal, which is held up to `journal`.
    pub fn also(&mut self, segment: Offset, journal: Offset, answer: &Answer) -> Option<Bytes> {
        let Answer::Value { body, extra: Some(extra) } = answer else { return None };
        if segment != extra.segment
            || extra.journal > Some(journal)
            || body.is_empty()
            || check(body).bytes < body.len()
        {
            return None;
        }
        self.see_end(extra.end);
        Some(body.clone())
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
