//! What this machine can do, by programs so bare that there is little to leave out: the scale every other figure is read
//! on. A limit of one step (a sync, a round trip, a stream) no broker can beat; the bare servers only show what the
//! simplest one does, and a broker that reads while it syncs may do better than the synced one. Run in the same minutes as the broker, since a shared machine is a different one an hour later.

use crate::bare::{self, CONNECTIONS};
use crate::measure::{Latencies, LatencySummary, median};
use anyhow::{Context, Result};
use serde::Serialize;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

/// Messages of the round trips and of the small writes.
const MESSAGE_BYTES: usize = 1024;
/// One send, one read, one write of the streams; a broker's largest transfer.
const CHUNK_BYTES: usize = 1024 * 1024;
/// Files of a broker with as many partitions in use.
const FILES: usize = 8;
/// The stream into files starts a new one here and deletes the last, as a log with retention.
const FILE_BYTES: u64 = 512 * 1024 * 1024;
/// What the stream out of the page cache reads round and round.
const CACHED_BYTES: u64 = 256 * 1024 * 1024;
/// What is overwritten in place.
const PREALLOCATED_BYTES: u64 = 64 * 1024 * 1024;
const PIPE_BYTES: usize = 1024 * 1024;

/// All rates a second; bytes in 10^6.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct Limits {
    /// One connection, 1 KiB there and back, both ends blocking.
    pub(crate) round_trips: f64,
    pub(crate) round_trip: LatencySummary,
    /// The put generator on [`CONNECTIONS`], one put of 1 KiB unanswered on each, and a server that only answers.
    pub(crate) puts_bare: f64,
    pub(crate) put_bare: LatencySummary,
    /// The same, each of the server's rounds written in place and synced before it is answered.
    pub(crate) puts_bare_synced: f64,
    pub(crate) put_bare_synced: LatencySummary,
    /// After an append of 1 KiB.
    pub(crate) fdatasyncs_append: f64,
    pub(crate) fdatasync_append: LatencySummary,
    /// The same on [`FILES`] files by as many threads, all together: the disk's journal takes several at once.
    pub(crate) fdatasyncs_side_by_side: f64,
    /// After overwriting 1 KiB of a file that has its blocks.
    pub(crate) fdatasyncs_in_place: f64,
    pub(crate) fdatasync_in_place: LatencySummary,
    /// Appends of 1 MiB, each synced.
    pub(crate) megabytes_synced: f64,
    /// Appends of 1 MiB and one sync behind them all: what the disk takes in a row.
    pub(crate) megabytes_sequential: f64,
    /// Memory to memory over loopback.
    pub(crate) megabytes_loopback: f64,
    /// Page cache to loopback by sendfile; the receiver reads all.
    pub(crate) megabytes_file_to_socket: f64,
    /// Loopback to file by read and write.
    pub(crate) megabytes_socket_to_file: f64,
    /// Loopback to file through a pipe by splice.
    pub(crate) megabytes_socket_to_file_spliced: f64,
}

impl Limits {
    pub(crate) fn page(&self) -> String {
        [
            format!("round trips of 1 KiB          {:>9.0} /s    {}\n", self.round_trips, self.round_trip),
            format!("{CONNECTIONS} connections, bare          {:>9.0} /s    {}\n", self.puts_bare, self.put_bare),
            format!(
                "{CONNECTIONS} connections, bare, synced  {:>9.0} /s    {}\n",
                self.puts_bare_synced, self.put_bare_synced
            ),
            format!("fdatasync after 1 KiB append  {:>9.0} /s    {}\n", self.fdatasyncs_append, self.fdatasync_append),
            format!("the same on {FILES} files at once   {:>9.0} /s\n", self.fdatasyncs_side_by_side),
            format!(
                "fdatasync of 1 KiB in place   {:>9.0} /s    {}\n",
                self.fdatasyncs_in_place, self.fdatasync_in_place
            ),
            format!("appends of 1 MiB, each synced {:>9.0} MB/s\n", self.megabytes_synced),
            format!("appends of 1 MiB, one sync    {:>9.0} MB/s\n", self.megabytes_sequential),
            format!("socket to socket              {:>9.0} MB/s\n", self.megabytes_loopback),
            format!("page cache to socket          {:>9.0} MB/s  (sendfile)\n", self.megabytes_file_to_socket),
            format!("socket to file                {:>9.0} MB/s  (read, write)\n", self.megabytes_socket_to_file),
            format!("socket to file                {:>9.0} MB/s  (splice)\n", self.megabytes_socket_to_file_spliced),
        ]
        .concat()
    }

    /// The median of each figure on its own.
    pub(crate) fn median(rounds: &[Limits]) -> Limits {
        let of = |value: fn(&Limits) -> f64| median(&rounds.iter().map(value).collect::<Vec<f64>>());
        let latency = |value: fn(&Limits) -> &LatencySummary| LatencySummary::median(rounds.iter().map(value));
        Limits {
            round_trips: of(|limits| limits.round_trips),
            puts_bare: of(|limits| limits.puts_bare),
            puts_bare_synced: of(|limits| limits.puts_bare_synced),
            fdatasyncs_append: of(|limits| limits.fdatasyncs_append),
            fdatasyncs_side_by_side: of(|limits| limits.fdatasyncs_side_by_side),
            fdatasyncs_in_place: of(|limits| limits.fdatasyncs_in_place),
            megabytes_synced: of(|limits| limits.megabytes_synced),
            megabytes_sequential: of(|limits| limits.megabytes_sequential),
            megabytes_loopback: of(|limits| limits.megabytes_loopback),
            megabytes_file_to_socket: of(|limits| limits.megabytes_file_to_socket),
            megabytes_socket_to_file: of(|limits| limits.megabytes_socket_to_file),
            megabytes_socket_to_file_spliced: of(|limits| limits.megabytes_socket_to_file_spliced),
            round_trip: latency(|limits| &limits.round_trip),
            put_bare: latency(|limits| &limits.put_bare),
            put_bare_synced: latency(|limits| &limits.put_bare_synced),
            fdatasync_append: latency(|limits| &limits.fdatasync_append),
            fdatasync_in_place: latency(|limits| &limits.fdatasync_in_place),
        }
    }

    /// One sync and one round trip, in µs.
    pub(crate) fn sync_and_round_trip_us(&self) -> f64 {
        1e6 / self.round_trips + 1e6 / self.fdatasyncs_append
    }
}

/// Measures everything for `each`, in a scratch directory under `dir` that is removed again. `dir` must lie on the
/// disk the broker will write to.
pub(crate) fn run(dir: &Path, each: Duration) -> Result<Limits> {
    let scratch = tempfile::Builder::new()
        .prefix("metaq-load-machine-")
        .tempdir_in(dir)
        .with_context(|| format!("cannot make a scratch directory in {}", dir.display()))?;
    let dir = scratch.path();
    let (round_trips, round_trip) = round_trips(each)?;
    let (puts_bare, put_bare) = bare::puts(None, MESSAGE_BYTES, each)?;
    let (puts_bare_synced, put_bare_synced) = puts_bare_synced(&dir.join("ring"), each)?;
    let (fdatasyncs_append, fdatasync_append) = syncs_after_append(&dir.join("append"), each)?;
    let (fdatasyncs_in_place, fdatasync_in_place) = syncs_in_place(&dir.join("in-place"), each)?;
    Ok(Limits {
        round_trips,
        round_trip,
        puts_bare,
        put_bare,
        puts_bare_synced,
        put_bare_synced,
        fdatasyncs_append,
        fdatasync_append,
        fdatasyncs_side_by_side: syncs_side_by_side(dir, each)?,
        fdatasyncs_in_place,
        fdatasync_in_place,
        megabytes_synced: synced_appends(&dir.join("synced"), each)?,
        megabytes_sequential: sequential(&dir.join("sequential"), each)?,
        megabytes_loopback: loopback(each)?,
        megabytes_file_to_socket: file_to_socket(&dir.join("cached"), each)?,
        megabytes_socket_to_file: socket_to_file(dir, each, copy)?,
        megabytes_socket_to_file_spliced: socket_to_file(dir, each, splice)?,
    })
}

fn socket_pair() -> Result<(TcpStream, TcpStream)> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let near = TcpStream::connect(listener.local_addr()?)?;
    let (far, _) = listener.accept()?;
    near.set_nodelay(true)?;
    far.set_nodelay(true)?;
    Ok((near, far))
}

/// Runs `step` until the time is over; each call is one event.
fn repeat(each: Duration, mut step: impl FnMut(u64) -> Result<()>) -> Result<(f64, LatencySummary)> {
    let mut latencies = Latencies::new();
    let start = Instant::now();
    let mut began = start;
    let mut count = 0;
    while began.duration_since(start) < each {
        step(count)?;
        let ended = Instant::now();
        latencies.record(crate::measure::nanoseconds(ended - began));
        began = ended;
        count += 1;
    }
    Ok((count as f64 / start.elapsed().as_secs_f64(), latencies.summary()))
}

fn round_trips(each: Duration) -> Result<(f64, LatencySummary)> {
    let (mut near, mut far) = socket_pair()?;
    let echo = std::thread::spawn(move || {
        let mut message = [0; MESSAGE_BYTES];
        while far.read_exact(&mut message).is_ok() && far.write_all(&message).is_ok() {}
    });
    let mut message = [1; MESSAGE_BYTES];
    let result = repeat(each, |_| {
        near.write_all(&message)?;
        near.read_exact(&mut message)?;
        Ok(())
    });
    drop(near);
    echo.join().expect("the echo thread never panics");
    result
}

fn puts_bare_synced(path: &Path, each: Duration) -> Result<(f64, LatencySummary)> {
    written_file(path, PREALLOCATED_BYTES)?.sync_all()?;
    bare::puts(Some(path), MESSAGE_BYTES, each)
}

fn syncs_after_append(path: &Path, each: Duration) -> Result<(f64, LatencySummary)> {
    let mut file = File::create_new(path)?;
    repeat(each, |_| {
        file.write_all(&[1; MESSAGE_BYTES])?;
        Ok(file.sync_data()?)
    })
}

fn syncs_side_by_side(dir: &Path, each: Duration) -> Result<f64> {
    std::thread::scope(|scope| {
        let start = |number| scope.spawn(move || syncs_after_append(&dir.join(format!("append-{number}")), each));
        let threads: Vec<_> = (0..FILES).map(start).collect();
        let rates = threads.into_iter().map(|thread| thread.join().expect("a syncing thread never panics"));
        rates.map(|rate| Ok(rate?.0)).sum()
    })
}

fn syncs_in_place(path: &Path, each: Duration) -> Result<(f64, LatencySummary)> {
    // Written, not only reserved: the first write to a reserved block changes the file's map of blocks.
    let file = written_file(path, PREALLOCATED_BYTES)?;
    file.sync_all()?;
    repeat(each, |count| {
        file.write_all_at(&[2; MESSAGE_BYTES], count * MESSAGE_BYTES as u64 % PREALLOCATED_BYTES)?;
        Ok(file.sync_data()?)
    })
}

fn synced_appends(path: &Path, each: Duration) -> Result<f64> {
    let mut file = File::create_new(path)?;
    let chunk = vec![3; CHUNK_BYTES];
    let (per_second, _) = repeat(each, |_| {
        file.write_all(&chunk)?;
        Ok(file.sync_data()?)
    })?;
    Ok(per_second * CHUNK_BYTES as f64 / 1e6)
}

fn sequential(path: &Path, each: Duration) -> Result<f64> {
    let mut file = File::create_new(path)?;
    let chunk = vec![3; CHUNK_BYTES];
    let start = Instant::now();
    let mut bytes = 0;
    while start.elapsed() < each {
        file.write_all(&chunk)?;
        bytes += chunk.len();
    }
    file.sync_data()?;
    let seconds = start.elapsed().as_secs_f64();
    fs::remove_file(path)?;
    Ok(bytes as f64 / seconds / 1e6)
}

fn loopback(each: Duration) -> Result<f64> {
    let (mut near, far) = socket_pair()?;
    let sender = std::thread::spawn(move || {
        let chunk = vec![4; CHUNK_BYTES];
        while near.write_all(&chunk).is_ok() {}
    });
    let rate = read_away(&far, each);
    drop(far);
    sender.join().expect("the sending thread never panics");
    rate
}

/// How fast bytes come, in 10^6 a second.
fn read_away(mut from: &TcpStream, each: Duration) -> Result<f64> {
    let mut buffer = vec![0; CHUNK_BYTES];
    let mut bytes = 0;
    let start = Instant::now();
    while start.elapsed() < each {
        bytes += from.read(&mut buffer)?;
    }
    Ok(bytes as f64 / start.elapsed().as_secs_f64() / 1e6)
}

fn written_file(path: &Path, bytes: u64) -> Result<File> {
    let mut file = File::options().read(true).write(true).create_new(true).open(path)?;
    let chunk = vec![0; CHUNK_BYTES];
    for _ in 0..bytes / CHUNK_BYTES as u64 {
        file.write_all(&chunk)?;
    }
    Ok(file)
}

fn file_to_socket(path: &Path, each: Duration) -> Result<f64> {
    let file = written_file(path, CACHED_BYTES)?;
    let (near, far) = socket_pair()?;
    let sender = std::thread::spawn(move || {
        let mut position = 0;
        // Ends when the other side closes.
        while let Ok(sent) = rustix::fs::sendfile(&near, &file, Some(&mut position), CHUNK_BYTES) {
            if position >= CACHED_BYTES || sent == 0 {
                position = 0;
            }
        }
    });
    let rate = read_away(&far, each);
    drop(far);
    sender.join().expect("the sending thread never panics");
    rate
}

/// Moves what `from` has to `to` and returns how many bytes.
type Mover = fn(from: &mut TcpStream, to: &mut File, scratch: &mut Scratch) -> Result<usize>;

struct Scratch {
    buffer: Vec<u8>,
    pipe: (rustix::fd::OwnedFd, rustix::fd::OwnedFd),
}

fn copy(from: &mut TcpStream, to: &mut File, scratch: &mut Scratch) -> Result<usize> {
    let bytes = from.read(&mut scratch.buffer)?;
    to.write_all(&scratch.buffer[..bytes])?;
    Ok(bytes)
}

fn splice(from: &mut TcpStream, to: &mut File, scratch: &mut Scratch) -> Result<usize> {
    let (pipe_end, pipe_start) = &scratch.pipe;
    let flags = rustix::pipe::SpliceFlags::MOVE;
    let bytes = rustix::pipe::splice(from, None, pipe_start, None, PIPE_BYTES, flags)?;
    let mut left = bytes;
    while left > 0 {
        left -= rustix::pipe::splice(pipe_end, None, &*to, None, left, flags)?;
    }
    Ok(bytes)
}

fn socket_to_file(dir: &Path, each: Duration, mover: Mover) -> Result<f64> {
    let (mut near, mut far) = socket_pair()?;
    let sender = std::thread::spawn(move || {
        let chunk = vec![4; CHUNK_BYTES];
        while near.write_all(&chunk).is_ok() {}
    });
    let pipe = rustix::pipe::pipe()?;
    rustix::pipe::fcntl_setpipe_size(&pipe.0, PIPE_BYTES)?;
    let mut scratch = Scratch { buffer: vec![0; CHUNK_BYTES], pipe };
    let path = dir.join("received");
    let mut file = File::create(&path)?;
    let mut in_file = 0;
    let mut bytes = 0;
    let start = Instant::now();
    while start.elapsed() < each {
        let moved = mover(&mut far, &mut file, &mut scratch)? as u64;
        bytes += moved;
        in_file += moved;
        if in_file >= FILE_BYTES {
            fs::remove_file(&path)?;
            file = File::create_new(&path)?;
            in_file = 0;
        }
    }
    let seconds = start.elapsed().as_secs_f64();
    drop(far);
    sender.join().expect("the sending thread never panics");
    fs::remove_file(&path)?;
    Ok(bytes as f64 / seconds / 1e6)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_median_is_taken_figure_by_figure() {
        let rounds = [3.0, 1.0, 2.0].map(|value| Limits {
            round_trips: value,
            fdatasyncs_append: 10.0 - value,
            ..Limits::default()
        });
        let limits = Limits::median(&rounds);
        assert_eq!((limits.round_trips, limits.fdatasyncs_append), (2.0, 8.0));
    }
}
