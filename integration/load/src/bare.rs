//! The simplest server that answers puts: one thread and one epoll, nothing else. Driven by the generator that drives
//! brokers, it tells what this machine, its kernel and the generator leave to any broker at so many connections.

use crate::frame::number;
use crate::measure::LatencySummary;
use crate::out;
use crate::put::{self, PutPlan, Until};
use anyhow::{Context, Result, bail, ensure};
use rustix::event::epoll;
use std::fs::File;
use std::io::{BufRead, BufReader, IoSlice, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::ops::Range;
use std::path::Path;
use std::process::{ChildStdout, Command, Stdio};
use std::time::Duration;

/// As in the suite's cells that are held against it.
pub(crate) const CONNECTIONS: u32 = 16;

/// Many times what a connection with one unanswered put of 1 KiB needs.
const INPUT_BYTES: usize = 64 * 1024;

/// Puts a second on [`CONNECTIONS`], one unanswered on each. With a `ring`, a file that has its blocks, every round is
/// made durable there before it is answered.
pub(crate) fn puts(ring: Option<&Path>, body_bytes: usize, each: Duration) -> Result<(f64, LatencySummary)> {
    // A process of its own, as a broker is one.
    let mut server = Command::new("/proc/self/exe")
        .arg("bare-server")
        .args(ring)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot start this program a second time, as the bare server")?;
    let outcome = address_from(server.stdout.take()).and_then(|broker| {
        put::run(&PutPlan {
            broker,
            topic: "bare".into(),
            partitions: 1,
            connections: CONNECTIONS,
            outstanding: 1,
            body_bytes,
            threads: 1,
            checksum: false,
            until: Until::Time { warmup: each / 4, measured: each },
        })
    });
    if outcome.is_err() {
        // It may wait for connections that will not come.
        server.kill()?;
    }
    let status = server.wait()?;
    let outcome = outcome?;
    ensure!(
        status.success() && outcome.errors == 0,
        "the bare server ended with {status}, {} puts failed:\n{}",
        outcome.errors,
        outcome.errors_by_text
    );
    Ok((outcome.messages_per_second, outcome.latency))
}

/// Its first line, which comes when it listens.
fn address_from(stdout: Option<ChildStdout>) -> Result<SocketAddr> {
    let mut line = String::new();
    BufReader::new(stdout.context("the bare server has no standard output")?).read_line(&mut line)?;
    line.trim_end().parse().with_context(|| format!("the bare server said `{line}` and not where it listens"))
}

/// The other process: prints where it listens, serves [`CONNECTIONS`], and ends.
pub(crate) fn run(ring: Option<&Path>) -> Result<()> {
    let ring = ring.map(Ring::open).transpose()?;
    let listener = TcpListener::bind("127.0.0.1:0")?;
    out::print(&format!("{}\n", listener.local_addr()?))?;
    serve(&listener, CONNECTIONS, ring).context("bare server")
}

/// Ends when all of its connections have ended.
fn serve(listener: &TcpListener, connections: u32, mut ring: Option<Ring>) -> Result<()> {
    let poller = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    let mut lanes = Vec::new();
    for number in 0..connections.into() {
        let (stream, _) = listener.accept()?;
        stream.set_nodelay(true)?;
        epoll::add(&poller, &stream, epoll::EventData::new_u64(number), epoll::EventFlags::IN)?;
        lanes.push(Lane::new(stream));
    }
    let mut events = Vec::with_capacity(lanes.len());
    let mut next_id = 0;
    let mut open = connections;
    while open > 0 {
        events.clear();
        epoll::wait(&poller, rustix::buffer::spare_capacity(&mut events), None)?;
        let ready = || events.iter().map(|event| event.data.u64() as usize);
        for number in ready() {
            let lane = &mut lanes[number];
            if !lane.receive(&mut next_id)? {
                epoll::delete(&poller, &lane.stream)?;
                open -= 1;
            }
            if ring.is_none() {
                lane.answer()?;
            }
        }
        if let Some(ring) = &mut ring {
            ring.store(&ready().flat_map(|number| lanes[number].bodies()).collect::<Vec<_>>())?;
            ready().try_for_each(|number| lanes[number].answer())?;
        }
    }
    Ok(())
}

/// One connection; it blocks, and is read only when there is something.
struct Lane {
    stream: TcpStream,
    input: Box<[u8]>,
    filled: usize,
    /// Up to here the input is whole puts, whose bodies and answers follow.
    taken: usize,
    bodies: Vec<Range<usize>>,
    answers: Vec<u8>,
}

impl Lane {
    fn new(stream: TcpStream) -> Lane {
        let input = vec![0; INPUT_BYTES].into_boxed_slice();
        Lane { stream, input, filled: 0, taken: 0, bodies: Vec::new(), answers: Vec::new() }
    }

    /// Reads once and makes the answers to what has come whole, not sent yet; `false` at the connection's end.
    fn receive(&mut self, next_id: &mut u64) -> Result<bool> {
        ensure!(self.filled < INPUT_BYTES, "a put of more than {INPUT_BYTES} bytes");
        let bytes = self.stream.read(&mut self.input[self.filled..])?;
        self.filled += bytes;
        while let Some(put) = Put::parse(&self.input[self.taken..self.filled])? {
            // Nobody reads it: that it has the digits of an offset is enough.
            let body = format!("{next_id} {} {}", put.partition, *next_id * put.body.len() as u64);
            write!(self.answers, "result 200 {} {}\r\n{body}", body.len(), put.opaque)?;
            self.bodies.push(self.taken + put.body.start..self.taken + put.body.end);
            self.taken += put.body.end;
            *next_id += 1;
        }
        Ok(bytes > 0)
    }

    /// What was received since the last answer.
    fn bodies(&self) -> impl Iterator<Item = IoSlice<'_>> {
        self.bodies.iter().map(|body| IoSlice::new(&self.input[body.clone()]))
    }

    fn answer(&mut self) -> Result<()> {
        self.stream.write_all(&self.answers)?;
        self.answers.clear();
        self.bodies.clear();
        self.input.copy_within(self.taken..self.filled, 0);
        self.filled -= self.taken;
        self.taken = 0;
        Ok(())
    }
}

/// `put TOPIC PARTITION LENGTH FLAG CHECKSUM OPAQUE`, and where its body is.
struct Put {
    partition: i64,
    opaque: i64,
    body: Range<usize>,
}

impl Put {
    /// The put at the start of `input`; `None` when it has not come whole.
    fn parse(input: &[u8]) -> Result<Option<Put>> {
        let Some(end) = input.iter().position(|byte| *byte == b'\n') else { return Ok(None) };
        let line = &input[..=end];
        let mut words = line.strip_suffix(b"\r\n").unwrap_or(line).split(|byte| *byte == b' ');
        let fields = std::array::from_fn(|_| words.next());
        let [Some(b"put"), Some(_), partition, length, Some(_), Some(_), opaque, None] = fields else {
            bail!("`{}` is no put", line.escape_ascii());
        };
        let of = |word: Option<&[u8]>| word.and_then(number);
        let (Some(partition), Some(length), Some(opaque)) = (of(partition), of(length), of(opaque)) else {
            bail!("a word of `{}` is no number", line.escape_ascii());
        };
        let body = end + 1..end + 1 + usize::try_from(length)?;
        Ok((body.end <= input.len()).then_some(Put { partition, opaque, body }))
    }
}

/// A file that is overwritten in place, round and round.
struct Ring {
    file: File,
    bytes: u64,
    at: u64,
}

impl Ring {
    fn open(path: &Path) -> Result<Ring> {
        let file = File::options().write(true).open(path).with_context(|| format!("cannot open {}", path.display()))?;
        let bytes = file.metadata()?.len();
        Ok(Ring { file, bytes, at: 0 })
    }

    /// One write and one sync, however many there are.
    fn store(&mut self, bodies: &[IoSlice<'_>]) -> Result<()> {
        let bytes: usize = bodies.iter().map(|body| body.len()).sum();
        if bytes == 0 {
            return Ok(());
        }
        if self.at + bytes as u64 > self.bytes {
            self.at = 0;
        }
        let written = rustix::io::pwritev(&self.file, bodies, self.at)?;
        ensure!(written == bytes, "only {written} of {bytes} bytes were written");
        self.at += bytes as u64;
        Ok(self.file.sync_data()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread::{JoinHandle, spawn};

    /// A server of one connection, and its producer.
    fn server(ring: Option<Ring>) -> (TcpStream, JoinHandle<Result<()>>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let producer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (producer, spawn(move || serve(&listener, 1, ring)))
    }

    fn expect(producer: &mut TcpStream, answer: &str) {
        let mut bytes = vec![0; answer.len()];
        producer.read_exact(&mut bytes).unwrap();
        assert_eq!(String::from_utf8(bytes).unwrap(), answer);
    }

    #[test]
    fn puts_cut_anywhere_are_answered_in_order_with_their_own_partition_and_opaque() {
        let (mut producer, server) = server(None);
        for byte in b"put t 3 5 0 -1 -2147483648\r\nhelloput t 7 2 0 -1 -9\r\nok" {
            producer.write_all(&[*byte]).unwrap();
        }
        expect(&mut producer, "result 200 5 -2147483648\r\n0 3 0result 200 5 -9\r\n1 7 2");
        producer.write_all(b"put t 0 0 0 -1 1\r\nput t 1 1 0 -1 2\r\nxput t 0 9 0 -1 3\r\ncut").unwrap();
        expect(&mut producer, "result 200 5 1\r\n2 0 0result 200 5 2\r\n3 1 3");
        producer.shutdown(std::net::Shutdown::Write).unwrap();
        assert_eq!(producer.read(&mut [0]).unwrap(), 0, "the put that was cut has no answer");
        server.join().unwrap().unwrap();
    }

    #[test]
    fn a_synced_put_is_in_the_file_when_it_is_answered_and_the_file_does_not_grow() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "..........").unwrap();
        let (mut producer, server) = server(Some(Ring::open(file.path()).unwrap()));
        let content = || std::fs::read_to_string(file.path()).unwrap();
        producer.write_all(b"put t 0 4 0 -1 1\r\nonceput t 0 3 0 -1 2\r\ntwo").unwrap();
        expect(&mut producer, "result 200 5 1\r\n0 0 0result 200 5 2\r\n1 0 3");
        assert_eq!(content(), "oncetwo...");
        producer.write_all(b"put t 0 5 0 -1 3\r\nround").unwrap();
        expect(&mut producer, "result 200 6 3\r\n2 0 10");
        assert_eq!(content(), "roundwo...", "from the start again, as it would not fit");
        drop(producer);
        server.join().unwrap().unwrap();
    }

    #[test]
    fn what_is_no_put_ends_the_server() {
        let long = format!("put {} 0 1 0 -1 1\r\n", "t".repeat(INPUT_BYTES));
        for bad in ["version 1\r\n", "put t 0 5 0 7\r\n", "put t 0 x 0 -1 7\r\n", "put t 0 -5 0 -1 7\r\n", "\n", &long]
        {
            let (mut producer, server) = server(None);
            // The server may end before it has read all of it.
            let _ = producer.write_all(bad.as_bytes());
            assert!(server.join().unwrap().is_err(), "{}", &bad[..bad.len().min(40)]);
        }
    }
}
