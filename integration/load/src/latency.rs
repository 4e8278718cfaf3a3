//! From put to consume at a fixed rate. The producer sends by the clock, not by the answers: a message that goes out
//! late, because the broker or this machine was busy, is measured from when it was due.

use crate::frame::{GetQuestion, Head, Kind, PutFrames, parse_stored, walk_records};
use crate::lane::{ANSWER_WAIT, Lane};
use crate::measure::{Clock, Faults, Latencies, LatencySummary, nanoseconds};
use crate::put::body;
use crate::rate::Schedule;
use crate::reader::{Answer, Reader};
use anyhow::{Result, bail, ensure};
use rustix::event::{PollFd, PollFlags, Timespec};
use serde::Serialize;
use std::net::SocketAddr;
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Run mark, due time, time of sending and number, eight bytes each, at the start of every body.
const STAMP_BYTES: usize = 32;

/// Unanswered puts until the producer counts the broker as stuck.
const OUTSTANDING_MAX: u32 = 65_536;

/// How long the reader waits for messages that were acknowledged: longer than the original hides them
/// (`unflushInterval`, 10 s).
const MISSING_WAIT: Duration = Duration::from_secs(15);

/// Says that the producer has not finished.
const UNKNOWN: u64 = u64::MAX;

#[derive(Debug, Clone)]
pub(crate) struct LatencyPlan {
    pub(crate) broker: SocketAddr,
    /// Where the messages are read: the broker itself, or a slave that copies it.
    pub(crate) reader: SocketAddr,
    pub(crate) topic: String,
    pub(crate) partition: u32,
    pub(crate) body_bytes: usize,
    pub(crate) messages_per_second: f64,
    pub(crate) reading: Reading,
    pub(crate) warmup: Duration,
    pub(crate) measured: Duration,
}

/// How the reader waits at the end of the partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reading {
    /// `get … wait=MS`.
    LongPoll { wait_ms: u32 },
    /// Asks again after a pause, as the original's consumer.
    Poll { pause_ms: u32 },
}

#[derive(Debug, Clone, Serialize)]
pub(crate) struct LatencyOutcome {
    pub(crate) messages_per_second: f64,
    pub(crate) body_bytes: usize,
    pub(crate) messages: u64,
    /// From when a message was due to when the reader had it: the figure that counts.
    pub(crate) due_to_consumed: LatencySummary,
    /// From when it was really sent; the difference is this generator's lateness.
    pub(crate) sent_to_consumed: LatencySummary,
    pub(crate) due_to_acknowledged: LatencySummary,
    /// From when the producer had the answer to when the reader had the message, 0 where the reader was first. Read at a
    /// slave this is its lag: both ends of the time are one way over the loopback later than what they stand for.
    pub(crate) acknowledged_to_consumed: LatencySummary,
    /// Acknowledged and not read within the wait.
    pub(crate) missing: u64,
    /// Read behind a message sent later. The original executes one connection's puts in any order.
    pub(crate) out_of_order: u64,
    pub(crate) gets: u64,
    pub(crate) errors: u64,
    pub(crate) errors_by_text: Faults,
}

pub(crate) fn run(plan: &LatencyPlan) -> Result<LatencyOutcome> {
    ensure!(plan.body_bytes >= STAMP_BYTES, "a message needs {STAMP_BYTES} bytes for its times");
    ensure!(plan.messages_per_second > 0.0, "the rate must be above 0");
    let mut reader = Reader::connect(plan.reader, 1024 * 1024)?;
    let offset = reader.readable_end(&plan.topic, plan.partition)?.unwrap_or(0);
    let out_bytes = 64 * (plan.body_bytes + 128);
    let lane = Lane::connect(plan.broker, OUTSTANDING_MAX, out_bytes)?;
    let run = Run {
        plan,
        clock: Clock::start(),
        mark: mark(),
        warmup_messages: (plan.messages_per_second * plan.warmup.as_secs_f64()) as u64,
        messages: (plan.messages_per_second * (plan.warmup + plan.measured).as_secs_f64()) as u64,
        acknowledged: AtomicU64::new(UNKNOWN),
    };
    let (produced, consumed) = std::thread::scope(|scope| {
        let consumer = scope.spawn(|| run.consume(reader, offset));
        let produced = run.produce(lane);
        // Whatever became of the producer, the reader must learn that nothing more comes.
        let acknowledged = produced.as_ref().map_or(0, |produced| produced.acknowledged);
        run.acknowledged.store(acknowledged, Ordering::Release);
        (produced, consumer.join().expect("the reader thread never panics"))
    });
    let (produced, consumed) = (produced?, consumed?);
    let mut faults = produced.faults;
    faults.add(&consumed.faults);
    let missing = produced.acknowledged.saturating_sub(consumed.seen);
    if missing > 0 {
        faults.count("acknowledged and never read", missing);
    }
    Ok(LatencyOutcome {
        messages_per_second: plan.messages_per_second,
        body_bytes: plan.body_bytes,
        messages: consumed.from_due.summary().count,
        due_to_consumed: consumed.from_due.summary(),
        sent_to_consumed: consumed.from_sent.summary(),
        due_to_acknowledged: produced.acknowledging.summary(),
        acknowledged_to_consumed: lag(&produced.acknowledged_ns, &consumed.consumed_ns, run.warmup_messages),
        missing,
        out_of_order: consumed.out_of_order,
        gets: consumed.gets,
        errors: faults.total(),
        errors_by_text: faults,
    })
}

/// Both by message number; messages of the warm-up, and those that were not acknowledged or not read, are left out.
fn lag(acknowledged_ns: &[u64], consumed_ns: &[u64], warmup_messages: u64) -> LatencySummary {
    let mut lags = Latencies::new();
    for (acknowledged, consumed) in acknowledged_ns.iter().zip(consumed_ns).skip(warmup_messages as usize) {
        if *acknowledged != UNKNOWN && *consumed != UNKNOWN {
            lags.record(consumed.saturating_sub(*acknowledged));
        }
    }
    lags.summary()
}

/// Tells the messages of this run from those of others.
fn mark() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    nanoseconds(now) ^ u64::from(std::process::id()).rotate_left(48)
}

struct Run<'a> {
    plan: &'a LatencyPlan,
    clock: Clock,
    mark: u64,
    warmup_messages: u64,
    messages: u64,
    /// [`UNKNOWN`] until the producer has all its answers.
    acknowledged: AtomicU64,
}

struct Produced {
    acknowledged: u64,
    /// When, by message number; [`UNKNOWN`] for those that were not.
    acknowledged_ns: Vec<u64>,
    acknowledging: Latencies,
    faults: Faults,
}

struct Consumed {
    seen: u64,
    /// When each was read, by message number; [`UNKNOWN`] for those that were not.
    consumed_ns: Vec<u64>,
    next: u64,
    out_of_order: u64,
    gets: u64,
    from_due: Latencies,
    from_sent: Latencies,
    faults: Faults,
}

impl Run<'_> {
    fn produce(&self, mut lane: Lane) -> Result<Produced> {
        // The kernel may wake a sleeper 50 µs late to save power; a schedule of 500 µs must not wait for that.
        rustix::thread::set_current_timer_slack(NonZeroU64::new(1))?;
        lane.stream().set_nonblocking(true)?;
        // Only this partition's frame is used; its number is the last.
        let frames = PutFrames::new(&self.plan.topic, self.plan.partition + 1, &body(self.plan.body_bytes), false);
        let mut produced = Produced {
            acknowledged: 0,
            acknowledged_ns: vec![UNKNOWN; self.messages as usize],
            acknowledging: Latencies::new(),
            faults: Faults::default(),
        };
        let mut schedule = Schedule::new(self.plan.messages_per_second, self.clock.now_ns(), self.messages);
        // Which message an answer is for, by the place of its opaque in the window.
        let mut numbers = vec![0; OUTSTANDING_MAX as usize];
        let mut answered_ns = self.clock.now_ns();
        loop {
            let now_ns = self.clock.now_ns();
            while let Some((number, due_ns)) = schedule.due(now_ns) {
                let Some(opaque) = lane.window.take(self.plan.partition, due_ns) else {
                    bail!("{OUTSTANDING_MAX} puts wait for an answer: the broker cannot keep this rate");
                };
                numbers[lane.window.place(opaque)] = number;
                let body = frames.append(&mut lane.out, self.plan.partition, opaque);
                write_stamp(body, [self.mark, due_ns, now_ns, number]);
            }
            let all_sent = lane.flush()?;
            let wait_ns = match schedule.next_due_ns() {
                Some(due_ns) => due_ns.saturating_sub(self.clock.now_ns()),
                None if lane.window.outstanding() == 0 => return Ok(produced),
                None => nanoseconds(ANSWER_WAIT),
            };
            let flags = if all_sent { PollFlags::IN } else { PollFlags::IN | PollFlags::OUT };
            let time = Timespec { tv_sec: (wait_ns / 1_000_000_000) as i64, tv_nsec: (wait_ns % 1_000_000_000) as i64 };
            if rustix::event::poll(&mut [PollFd::new(lane.stream(), flags)], Some(&time))? > 0 {
                lane.receive(|window, head, body| {
                    answered_ns = self.clock.now_ns();
                    let number = numbers[window.place(head.opaque)];
                    self.acknowledge(&mut produced, window.settle(head.opaque), number, head, body, answered_ns);
                })?;
            }
            let silent_ns = self.clock.now_ns().saturating_sub(answered_ns);
            let waits = lane.window.outstanding() > 0;
            ensure!(!waits || silent_ns < nanoseconds(ANSWER_WAIT), "no answer within {} s", ANSWER_WAIT.as_secs());
        }
    }

    fn acknowledge(
        &self,
        produced: &mut Produced,
        pending: Option<crate::window::Pending>,
        number: u64,
        head: Head,
        body: &[u8],
        now_ns: u64,
    ) {
        match (pending, head.kind) {
            (None, _) => produced.faults.count("an answer to no request", 1),
            (Some(pending), Kind::Result { code: 200 }) => match parse_stored(body) {
                Ok(_) => {
                    produced.acknowledged += 1;
                    produced.acknowledged_ns[number as usize] = now_ns;
                    if produced.acknowledged > self.warmup_messages {
                        produced.acknowledging.record(now_ns.saturating_sub(pending.started_ns));
                    }
                }
                Err(garbled) => produced.faults.count(&garbled.to_string(), 1),
            },
            (Some(_), Kind::Result { code }) => produced.faults.count_answer(code, body),
            (Some(_), Kind::Value) => produced.faults.count("a value in answer to a put", 1),
        }
    }

    fn consume(&self, mut reader: Reader, mut offset: i64) -> Result<Consumed> {
        rustix::thread::set_current_timer_slack(NonZeroU64::new(1))?;
        let mut consumed = Consumed {
            seen: 0,
            consumed_ns: vec![UNKNOWN; self.messages as usize],
            next: 0,
            out_of_order: 0,
            gets: 0,
            from_due: Latencies::new(),
            from_sent: Latencies::new(),
            faults: Faults::default(),
        };
        let LatencyPlan { topic, partition, reading, .. } = self.plan;
        let wait_ms = match reading {
            Reading::LongPoll { wait_ms } => Some(*wait_ms),
            Reading::Poll { .. } => None,
        };
        let mut progress_ns = self.clock.now_ns();
        loop {
            let acknowledged = self.acknowledged.load(Ordering::Acquire);
            let waited_ns = self.clock.now_ns() - progress_ns;
            if consumed.seen >= acknowledged || (acknowledged != UNKNOWN && waited_ns > nanoseconds(MISSING_WAIT)) {
                return Ok(consumed);
            }
            let question =
                GetQuestion { topic, group: "load", partition: *partition, offset, bytes_max: 1024 * 1024, wait_ms };
            consumed.gets += 1;
            let asked_ns = self.clock.now_ns();
            match reader.get(&question)? {
                Answer::Value(value) => {
                    let now_ns = self.clock.now_ns();
                    let taken = walk_records(value, false, |body| self.take(&mut consumed, body, now_ns))?;
                    offset += taken as i64;
                    progress_ns = now_ns;
                }
                Answer::Nothing => match reading {
                    Reading::Poll { pause_ms } => reader.pause(*pause_ms)?,
                    Reading::LongPoll { wait_ms } => {
                        let held_ms = (self.clock.now_ns() - asked_ns) / 1_000_000;
                        // Without this a broker that ignores the word would be asked in a tight loop.
                        ensure!(
                            held_ms >= u64::from(*wait_ms) / 2,
                            "the broker answers a long poll at once: use --reader poll=1"
                        );
                    }
                },
                Answer::Moved(to) if to > offset => offset = to,
                other => bail!("the broker answers {other:?} to a get at {offset} of {topic}-{partition}"),
            }
        }
    }

    /// Counts one message read; messages of other runs are passed over.
    fn take(&self, consumed: &mut Consumed, body: &[u8], now_ns: u64) {
        let Some([mark, due_ns, sent_ns, number]) = read_stamp(body) else { return };
        if mark != self.mark {
            return;
        }
        match consumed.consumed_ns.get_mut(number as usize) {
            Some(seen) if *seen == UNKNOWN => *seen = now_ns,
            Some(_) => return consumed.faults.count("read twice", 1),
            None => return consumed.faults.count("read with a number that was never sent", 1),
        }
        consumed.out_of_order += u64::from(number < consumed.next);
        consumed.next = consumed.next.max(number + 1);
        consumed.seen += 1;
        if number >= self.warmup_messages {
            consumed.from_due.record(now_ns.saturating_sub(due_ns));
            consumed.from_sent.record(now_ns.saturating_sub(sent_ns));
        }
    }
}

fn write_stamp(body: &mut [u8], stamp: [u64; 4]) {
    for (place, value) in body.chunks_exact_mut(8).zip(stamp) {
        place.copy_from_slice(&value.to_le_bytes());
    }
}

fn read_stamp(body: &[u8]) -> Option<[u64; 4]> {
    let mut stamp = [0; 4];
    for (value, place) in stamp.iter_mut().zip(body.get(..STAMP_BYTES)?.chunks_exact(8)) {
        *value = u64::from_le_bytes(place.try_into().ok()?);
    }
    Some(stamp)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lag_counts_what_was_acknowledged_and_read() {
        let summary = lag(&[5_000, 9_000, 8_000, UNKNOWN, 7_000], &[6_000, 12_000, 2_000, 9_000, UNKNOWN], 1);
        assert_eq!((summary.count, summary.max_us.round()), (2, 3.0));
    }

    #[test]
    fn a_stamp_reads_as_written() {
        let mut body = vec![7; 40];
        write_stamp(&mut body, [1, u64::MAX, 3, 4]);
        assert_eq!(read_stamp(&body), Some([1, u64::MAX, 3, 4]));
        assert_eq!(body[32..], [7; 8]);
        assert_eq!(read_stamp(&body[..31]), None);
    }
}
