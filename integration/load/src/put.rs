//! Puts as fast as the answers allow: a fixed number of connections, a fixed number unanswered on each.

use crate::frame::{Head, Kind, PutFrames, parse_stored};
use crate::lane::{ANSWER_WAIT, Lane, LaneError};
use crate::measure::{Clock, Faults, Latencies, LatencySummary, Phases, nanoseconds};
use crate::window::Window;
use anyhow::{Result, ensure};
use rustix::event::{Timespec, epoll};
use serde::Serialize;
use std::net::SocketAddr;
use std::time::Duration;

/// How long one wait for events may last before the clock is looked at again.
const TICK: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };

#[derive(Debug, Clone)]
pub(crate) struct PutPlan {
    pub(crate) broker: SocketAddr,
    pub(crate) topic: String,
    pub(crate) partitions: u32,
    pub(crate) connections: u32,
    /// Unanswered puts a connection; 1 is request and reply.
    pub(crate) outstanding: u32,
    pub(crate) body_bytes: usize,
    pub(crate) threads: u32,
    /// Send the checksum along, so that the broker has to check it.
    pub(crate) checksum: bool,
    pub(crate) until: Until,
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum Until {
    Time {
        warmup: Duration,
        measured: Duration,
    },
    /// Ends when this many are sent; everything is measured.
    Messages(u64),
}

#[derive(Debug, Clone, Serialize)]
pub(crate) struct PutOutcome {
    pub(crate) connections: u32,
    pub(crate) outstanding: u32,
    pub(crate) partitions: u32,
    pub(crate) body_bytes: usize,
    pub(crate) seconds: f64,
    /// Acknowledged within the measured time.
    pub(crate) messages: u64,
    pub(crate) messages_per_second: f64,
    /// Of bodies, in 10^6 bytes.
    pub(crate) megabytes_per_second: f64,
    pub(crate) latency: LatencySummary,
    pub(crate) errors: u64,
    pub(crate) errors_by_text: Faults,
}

pub(crate) fn run(plan: &PutPlan) -> Result<PutOutcome> {
    ensure!(plan.partitions > 0 && plan.connections > 0 && plan.outstanding > 0, "counts begin at 1");
    let threads = plan.threads.clamp(1, plan.connections);
    let frames = PutFrames::new(&plan.topic, plan.partitions, &body(plan.body_bytes), plan.checksum);
    let mut groups: Vec<Vec<Lane>> = (0..threads).map(|_| Vec::new()).collect();
    for number in 0..plan.connections {
        let out_bytes = frames.frame_bytes_max() * plan.outstanding as usize;
        groups[(number % threads) as usize].push(Lane::connect(plan.broker, plan.outstanding, out_bytes)?);
    }
    let clock = Clock::start();
    let (phases, messages_a_thread) = match plan.until {
        Until::Time { warmup, measured } => (Phases::new(clock, warmup, measured), u64::MAX),
        Until::Messages(count) => (Phases { from_ns: 0, to_ns: u64::MAX }, count.div_ceil(threads.into())),
    };
    let tallies: Vec<Result<Tally>> = std::thread::scope(|scope| {
        let frames = &frames;
        let workers = groups.into_iter().enumerate().map(|(number, lanes)| {
            let producer = Producer::new(frames, clock, phases, messages_a_thread, number as u32);
            scope.spawn(move || producer.drive(lanes))
        });
        let workers: Vec<_> = workers.collect();
        workers.into_iter().map(|worker| worker.join().expect("a producer thread never panics")).collect()
    });
    let mut total = Tally::new();
    for tally in tallies {
        total.add(&tally?);
    }
    let seconds = match plan.until {
        Until::Time { .. } => phases.seconds(),
        Until::Messages(_) => total.last_answer_ns as f64 / 1e9,
    };
    Ok(total.outcome(plan, seconds))
}

/// Bytes that do not compress to nothing and are the same in every run.
pub(crate) fn body(bytes: usize) -> Vec<u8> {
    let mut state: u32 = 0x9e37_79b9;
    let next = || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        state as u8
    };
    std::iter::repeat_with(next).take(bytes).collect()
}

struct Tally {
    latencies: Latencies,
    messages: u64,
    faults: Faults,
    last_answer_ns: u64,
}

impl Tally {
    fn new() -> Tally {
        Tally { latencies: Latencies::new(), messages: 0, faults: Faults::default(), last_answer_ns: 0 }
    }

    fn add(&mut self, other: &Tally) {
        self.latencies.add(&other.latencies);
        self.messages += other.messages;
        self.faults.add(&other.faults);
        self.last_answer_ns = self.last_answer_ns.max(other.last_answer_ns);
    }

    /// Takes one reply to its request; what is not the right success is a fault, in whatever phase it comes.
    fn settle(&mut self, window: &mut Window, head: Head, body: &[u8], now_ns: u64, phases: &Phases) {
        let Some(pending) = window.settle(head.opaque) else {
            self.faults.count("an answer to no request", 1);
            return;
        };
        self.last_answer_ns = now_ns;
        match head.kind {
            Kind::Result { code: 200 } => match parse_stored(body) {
                Ok(stored) if stored.partition == i64::from(pending.partition) => {
                    if phases.measured(now_ns) {
                        self.messages += 1;
                        self.latencies.record(now_ns - pending.started_ns);
                    }
                }
                Ok(_) => self.faults.count("stored in another partition than asked for", 1),
                Err(garbled) => self.faults.count(&garbled.to_string(), 1),
            },
            Kind::Result { code } => self.faults.count_answer(code, body),
            Kind::Value => self.faults.count("a value in answer to a put", 1),
        }
    }

    fn outcome(&self, plan: &PutPlan, seconds: f64) -> PutOutcome {
        let messages_per_second = self.messages as f64 / seconds;
        PutOutcome {
            connections: plan.connections,
            outstanding: plan.outstanding,
            partitions: plan.partitions,
            body_bytes: plan.body_bytes,
            seconds,
            messages: self.messages,
            messages_per_second,
            megabytes_per_second: messages_per_second * plan.body_bytes as f64 / 1e6,
            latency: self.latencies.summary(),
            errors: self.faults.total(),
            errors_by_text: self.faults.clone(),
        }
    }
}

/// One thread's share of the connections.
struct Producer<'a> {
    frames: &'a PutFrames,
    clock: Clock,
    phases: Phases,
    messages_left: u64,
    next_partition: u32,
    tally: Tally,
}

impl<'a> Producer<'a> {
    fn new(frames: &'a PutFrames, clock: Clock, phases: Phases, messages: u64, number: u32) -> Producer<'a> {
        let next_partition = number % frames.partitions();
        Producer { frames, clock, phases, messages_left: messages, next_partition, tally: Tally::new() }
    }

    fn drive(mut self, mut lanes: Vec<Lane>) -> Result<Tally> {
        // With one request at a time on one connection the read itself can wait: two system calls a message, not three.
        if let [lane] = lanes.as_mut_slice()
            && lane.window.outstanding_max() == 1
        {
            self.drive_blocking(lane)?;
        } else {
            self.drive_many(lanes)?;
        }
        Ok(self.tally)
    }

    fn drive_blocking(&mut self, lane: &mut Lane) -> Result<()> {
        lane.stream().set_read_timeout(Some(ANSWER_WAIT))?;
        let mut turn = self.fill_and_send(lane, self.clock.now_ns()).map(|_| ());
        while turn.is_ok() && lane.window.outstanding() > 0 {
            turn = self.turn(lane).map(|_| ());
        }
        if let Err(error) = turn {
            self.lose(lane, &error);
        }
        Ok(())
    }

    fn drive_many(&mut self, lanes: Vec<Lane>) -> Result<()> {
        let poller = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let mut lanes: Vec<Option<Lane>> = lanes.into_iter().map(Some).collect();
        let mut events = Vec::with_capacity(lanes.len());
        for (number, place) in lanes.iter_mut().enumerate() {
            let Some(lane) = place else { continue };
            lane.stream().set_nonblocking(true)?;
            epoll::add(&poller, lane.stream(), epoll::EventData::new_u64(number as u64), epoll::EventFlags::IN)?;
            let sent = self.fill_and_send(lane, self.clock.now_ns());
            self.watch(&poller, number, place, sent)?;
        }
        let answers_until_ns = self.phases.to_ns.saturating_add(nanoseconds(ANSWER_WAIT));
        let mut answered_ns = self.clock.now_ns();
        while lanes.iter().flatten().any(|lane| lane.window.outstanding() > 0) {
            events.clear();
            epoll::wait(&poller, rustix::buffer::spare_capacity(&mut events), Some(&TICK))?;
            let now_ns = self.clock.now_ns();
            for event in &events {
                let number = event.data.u64() as usize;
                let Some(lane) = &mut lanes[number] else { continue };
                let turn = self.turn(lane);
                self.watch(&poller, number, &mut lanes[number], turn)?;
                answered_ns = now_ns;
            }
            if now_ns > answers_until_ns || now_ns - answered_ns > nanoseconds(ANSWER_WAIT) {
                lanes.iter().flatten().for_each(|lane| self.lose(lane, &LaneError::Silent));
                break;
            }
        }
        Ok(())
    }

    /// Waits for the socket to take more only while something is left to send; gives up a failed connection.
    fn watch(
        &mut self,
        poller: &rustix::fd::OwnedFd,
        number: usize,
        place: &mut Option<Lane>,
        turn: Result<bool, LaneError>,
    ) -> Result<()> {
        let Some(lane) = place else { return Ok(()) };
        let flags = match turn {
            Ok(true) if !lane.congested => return Ok(()),
            Ok(true) => epoll::EventFlags::IN,
            Ok(false) => epoll::EventFlags::IN | epoll::EventFlags::OUT,
            Err(error) => {
                self.lose(lane, &error);
                *place = None;
                return Ok(());
            }
        };
        lane.congested = flags.contains(epoll::EventFlags::OUT);
        epoll::modify(poller, lane.stream(), epoll::EventData::new_u64(number as u64), flags)?;
        Ok(())
    }

    /// Reads once, settles what came, and sends as much again; `false` when the socket takes no more for now.
    fn turn(&mut self, lane: &mut Lane) -> Result<bool, LaneError> {
        let Producer { tally, clock, phases, .. } = self;
        let mut now_ns = None;
        lane.receive(|window, head, body| {
            // One look at the clock for all replies of one read: they became known at the same moment.
            let now_ns = *now_ns.get_or_insert_with(|| clock.now_ns());
            tally.settle(window, head, body, now_ns, phases);
        })?;
        let now_ns = now_ns.unwrap_or_else(|| self.clock.now_ns());
        self.fill_and_send(lane, now_ns)
    }

    fn fill_and_send(&mut self, lane: &mut Lane, now_ns: u64) -> Result<bool, LaneError> {
        while now_ns < self.phases.to_ns && self.messages_left > 0 {
            let Some(opaque) = lane.window.take(self.next_partition, now_ns) else { break };
            self.frames.append(&mut lane.out, self.next_partition, opaque);
            self.next_partition = (self.next_partition + 1) % self.frames.partitions();
            self.messages_left -= 1;
        }
        lane.flush()
    }

    fn lose(&mut self, lane: &Lane, error: &LaneError) {
        let unanswered = lane.window.outstanding() as u64;
        self.tally.faults.count(&error.to_string(), unanswered.max(1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::TcpListener;

    /// A broker that answers each put by `answer(number, partition, opaque)`, whatever the number of connections.
    fn fake_broker(answer: fn(u64, &str, &str) -> String) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                std::thread::spawn(move || {
                    let mut input = Vec::new();
                    let mut number = 0;
                    let mut chunk = [0; 4096];
                    while let Ok(bytes @ 1..) = stream.read(&mut chunk) {
                        input.extend_from_slice(&chunk[..bytes]);
                        while let Some(end) = input.iter().position(|byte| *byte == b'\n') {
                            let line = String::from_utf8(input[..end - 1].to_vec()).unwrap();
                            let words: Vec<&str> = line.split(' ').collect();
                            let frame_bytes = end + 1 + words[3].parse::<usize>().unwrap();
                            if input.len() < frame_bytes {
                                break;
                            }
                            let reply = answer(number, words[2], words[6]);
                            number += 1;
                            if stream.write_all(reply.as_bytes()).is_err() || reply.is_empty() {
                                return;
                            }
                            input.drain(..frame_bytes);
                        }
                    }
                });
            }
        });
        address
    }

    fn stored(partition: &str, opaque: &str) -> String {
        let body = format!("77 {partition} 0");
        format!("result 200 {} {opaque}\r\n{body}", body.len())
    }

    fn plan(broker: SocketAddr, connections: u32, outstanding: u32, messages: u64) -> PutPlan {
        PutPlan {
            broker,
            topic: "t".into(),
            partitions: 3,
            connections,
            outstanding,
            body_bytes: 100,
            threads: 2,
            checksum: true,
            until: Until::Messages(messages),
        }
    }

    #[test]
    fn every_message_is_sent_and_answered_once() {
        let broker = fake_broker(|_, partition, opaque| stored(partition, opaque));
        for (connections, outstanding) in [(1, 1), (1, 50), (4, 1), (3, 16)] {
            let outcome = run(&plan(broker, connections, outstanding, 1000)).unwrap();
            assert_eq!((outcome.messages, outcome.errors), (1000, 0), "{connections} × {outstanding}");
            assert_eq!(outcome.latency.count, 1000);
        }
    }

    #[test]
    fn an_answer_other_than_200_is_an_error_by_its_text() {
        let broker = fake_broker(|number, partition, opaque| match number % 4 {
            0 => format!("result 503 4 {opaque}\r\nfull"),
            1 => format!("result 200 5 {opaque}\r\n7 9 0"),
            2 => format!("result 200 2 {opaque}\r\nok"),
            _ => stored(partition, opaque),
        });
        for outstanding in [1, 8] {
            let outcome = run(&plan(broker, 1, outstanding, 400)).unwrap();
            assert_eq!((outcome.messages, outcome.errors), (100, 300));
            let texts = serde_json::to_string(&outcome.errors_by_text).unwrap();
            assert!(texts.contains(r#""503 full":100"#) && texts.contains(r#"another partition than asked for":100"#));
        }
    }

    #[test]
    fn unanswered_and_wrongly_answered_requests_are_errors() {
        let ended = fake_broker(|number, partition, opaque| match number {
            0..10 => stored(partition, opaque),
            _ => String::new(),
        });
        for outstanding in [1, 8] {
            let outcome = run(&plan(ended, 1, outstanding, 400)).unwrap();
            assert_eq!((outcome.messages, outcome.errors), (10, outstanding.into()));
        }
        let garbled = fake_broker(|_, _, _| "result 200\r\n".into());
        assert_eq!(run(&plan(garbled, 2, 1, 400)).unwrap().errors, 2);
        let doubled = fake_broker(|_, partition, opaque| stored(partition, opaque).repeat(2));
        let outcome = run(&plan(doubled, 1, 4, 100)).unwrap();
        assert!(outcome.errors >= 99, "{outcome:?}");
    }
}
