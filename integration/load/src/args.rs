//! The command line, and from it the plans of the runs.

use crate::get::{GetPlan, Records};
use crate::latency::{LatencyPlan, Reading};
use crate::put::{PutPlan, Until};
use crate::replica::{Part, Transport};
use crate::txn::TxnPlan;
use anyhow::{Context, Result};
use clap::{Parser, Subcommand};
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

/// Measures a MetaQ broker, ours or the original, and the machine it runs on.
#[derive(Debug, Parser)]
#[command(version)]
pub(crate) struct Args {
    /// Print JSON instead of text.
    #[arg(long, global = true)]
    pub(crate) json: bool,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Puts as fast as the answers come.
    Put(PutArgs),
    /// Reads a topic from its first offset to the end, again and again.
    Get(GetArgs),
    /// Puts at a fixed rate and measures until a waiting reader has each message.
    Latency(LatencyArgs),
    /// Local transactions as fast as the answers come.
    Txn(TxnArgs),
    /// This machine's own limits, by bare programs.
    ///
    /// `16 connections, bare` is what a server of one thread that stores nothing answers to the generator of `put`;
    /// `synced`, what it answers when it writes and syncs what came together before: the simplest group commit.
    Machine(MachineArgs),
    /// The other end of two of the machine's limits; `machine` starts it.
    #[command(hide = true)]
    BareServer {
        /// Overwritten by each round of puts and synced before they are answered.
        ring: Option<PathBuf>,
    },
    /// All of it on a fresh broker of ours, beside the original, as one table.
    Suite(SuiteArgs),
    /// Replication on fresh masters and slaves of ours: lag, catch-up, quorum, promotion.
    Replica(ReplicaArgs),
}

/// A duration given in seconds, with fractions.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Seconds(pub(crate) Duration);

impl FromStr for Seconds {
    type Err = String;

    fn from_str(text: &str) -> Result<Seconds, String> {
        let seconds: f64 = text.parse().map_err(|_| format!("`{text}` is not a number of seconds"))?;
        Duration::try_from_secs_f64(seconds).map(Seconds).map_err(|error| error.to_string())
    }
}

#[derive(Debug, clap::Args)]
pub(crate) struct PutArgs {
    /// HOST:PORT of the broker.
    #[arg(long, default_value = "127.0.0.1:8123")]
    broker: String,
    #[arg(long, default_value = "test")]
    topic: String,
    /// Messages go round the partitions 0 to N-1.
    #[arg(long, default_value_t = 1)]
    partitions: u32,
    #[arg(long, default_value_t = 1)]
    connections: u32,
    /// Unanswered puts a connection: 1 is request and reply, more is pipelined.
    #[arg(long, default_value_t = 1)]
    outstanding: u32,
    /// Body of a message.
    #[arg(long, default_value_t = 1024)]
    bytes: usize,
    #[arg(long, default_value = "5")]
    seconds: Seconds,
    /// Seconds that are driven and not measured.
    #[arg(long, default_value = "1")]
    warmup: Seconds,
    /// Threads that share the connections; one is enough for most brokers.
    #[arg(long, default_value_t = 1)]
    threads: u32,
    /// Send the body's checksum, which the broker then has to check.
    #[arg(long)]
    checksum: bool,
}

impl PutArgs {
    pub(crate) fn plan(&self) -> Result<PutPlan> {
        Ok(PutPlan {
            broker: address(&self.broker)?,
            topic: self.topic.clone(),
            partitions: self.partitions,
            connections: self.connections,
            outstanding: self.outstanding,
            body_bytes: self.bytes,
            threads: self.threads,
            checksum: self.checksum,
            until: Until::Time { warmup: self.warmup.0, measured: self.seconds.0 },
        })
    }
}

#[derive(Debug, clap::Args)]
pub(crate) struct TxnArgs {
    /// HOST:PORT of the broker.
    #[arg(long, default_value = "127.0.0.1:8123")]
    broker: String,
    #[arg(long, default_value = "test")]
    topic: String,
    /// The messages of a transaction go round the partitions 0 to N-1.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    partitions: u32,
    #[arg(long, default_value_t = 16)]
    connections: u32,
    /// Messages a transaction.
    #[arg(long, default_value_t = 4)]
    messages: u32,
    /// Body of a message.
    #[arg(long, default_value_t = 1024)]
    bytes: usize,
    #[arg(long, default_value = "5")]
    seconds: Seconds,
    /// Seconds that are driven and not measured.
    #[arg(long, default_value = "1")]
    warmup: Seconds,
    /// Fails below so many commits a second, or when a sync of the journal serves no more than one of them.
    #[arg(long)]
    bar: Option<f64>,
}

impl TxnArgs {
    pub(crate) fn plan(&self) -> Result<TxnPlan> {
        Ok(TxnPlan {
            broker: address(&self.broker)?,
            topic: self.topic.clone(),
            partitions: self.partitions,
            connections: self.connections,
            messages: self.messages,
            body_bytes: self.bytes,
            warmup: self.warmup.0,
            measured: self.seconds.0,
            bar: self.bar,
        })
    }
}

#[derive(Debug, clap::Args)]
pub(crate) struct GetArgs {
    /// HOST:PORT of the broker.
    #[arg(long, default_value = "127.0.0.1:8123")]
    broker: String,
    #[arg(long, default_value = "test")]
    topic: String,
    #[arg(long, default_value_t = 1)]
    partitions: u32,
    /// Readers; one a partition if not given.
    #[arg(long)]
    connections: Option<u32>,
    /// Put messages until the topic holds this many bytes more, then read.
    #[arg(long)]
    pub(crate) fill: Option<u64>,
    /// Body of a message that fills.
    #[arg(long, default_value_t = 1024)]
    pub(crate) bytes: usize,
    /// The most bytes asked for at a time.
    #[arg(long, default_value_t = 1_048_576)]
    max: u32,
    #[arg(long, default_value = "5")]
    seconds: Seconds,
    /// Seconds that are driven and not measured; reads the page cache warm.
    #[arg(long, default_value = "1")]
    warmup: Seconds,
    /// Do not look for the records in what is read.
    #[arg(long, conflicts_with = "verify")]
    no_parse: bool,
    /// Check every message's checksum.
    #[arg(long)]
    verify: bool,
}

impl GetArgs {
    pub(crate) fn plan(&self) -> Result<GetPlan> {
        Ok(GetPlan {
            broker: address(&self.broker)?,
            topic: self.topic.clone(),
            partitions: self.partitions,
            connections: self.connections.unwrap_or(self.partitions),
            bytes_max: self.max,
            records: match (self.no_parse, self.verify) {
                (true, _) => Records::Ignored,
                (_, true) => Records::Verified,
                _ => Records::Counted,
            },
            warmup: self.warmup.0,
            measured: self.seconds.0,
        })
    }
}

impl FromStr for Reading {
    type Err = String;

    fn from_str(text: &str) -> Result<Reading, String> {
        let (kind, value) = text.split_once('=').unwrap_or((text, "1000"));
        let number = value.parse().map_err(|_| format!("`{value}` is not a number of milliseconds"))?;
        match kind {
            "long-poll" => Ok(Reading::LongPoll { wait_ms: number }),
            "poll" => Ok(Reading::Poll { pause_ms: number }),
            _ => Err("give long-poll, long-poll=MS or poll=MS".into()),
        }
    }
}

#[derive(Debug, clap::Args)]
pub(crate) struct LatencyArgs {
    /// HOST:PORT of the broker.
    #[arg(long, default_value = "127.0.0.1:8123")]
    broker: String,
    /// HOST:PORT of the broker that is read, a slave for instance; the same if not given.
    #[arg(long)]
    reader_broker: Option<String>,
    #[arg(long, default_value = "test")]
    topic: String,
    #[arg(long, default_value_t = 0)]
    partition: u32,
    #[arg(long, default_value_t = 1024)]
    bytes: usize,
    /// Messages a second, sent by the clock.
    #[arg(long, default_value_t = 2000.0)]
    rate: f64,
    /// `long-poll[=MS]`, or `poll=MS` for a broker without it.
    #[arg(long, default_value = "long-poll")]
    reader: Reading,
    #[arg(long, default_value = "5")]
    seconds: Seconds,
    #[arg(long, default_value = "1")]
    warmup: Seconds,
}

impl LatencyArgs {
    pub(crate) fn plan(&self) -> Result<LatencyPlan> {
        Ok(LatencyPlan {
            broker: address(&self.broker)?,
            reader: address(self.reader_broker.as_ref().unwrap_or(&self.broker))?,
            topic: self.topic.clone(),
            partition: self.partition,
            body_bytes: self.bytes,
            messages_per_second: self.rate,
            reading: self.reader,
            warmup: self.warmup.0,
            measured: self.seconds.0,
        })
    }
}

#[derive(Debug, clap::Args)]
pub(crate) struct MachineArgs {
    /// A directory on the disk in question.
    #[arg(long, default_value = ".")]
    pub(crate) dir: PathBuf,
    /// For each of the limits.
    #[arg(long, default_value = "2")]
    pub(crate) seconds: Seconds,
}

#[derive(Debug, clap::Args)]
pub(crate) struct SuiteArgs {
    /// Our broker's binary.
    #[arg(long)]
    pub(crate) metaq_master: PathBuf,
    /// `integration/original/run-original.sh`; without it there is nothing to compare with.
    #[arg(long)]
    pub(crate) original: Option<PathBuf>,
    /// Where the original's jars are kept between runs.
    #[arg(long, default_value = "target/original-run")]
    pub(crate) original_dir: PathBuf,
    /// Data of both brokers and of the machine's limits, on the disk in question; removed at the end.
    #[arg(long, default_value = "target")]
    pub(crate) dir: PathBuf,
    /// Every raw value goes here as JSON.
    #[arg(long)]
    pub(crate) out: PathBuf,
    /// Measured seconds of each cell.
    #[arg(long, default_value = "5")]
    pub(crate) seconds: Seconds,
    #[arg(long, default_value = "1")]
    pub(crate) warmup: Seconds,
    #[arg(long, default_value_t = 3)]
    pub(crate) rounds: u32,
    /// Bytes read by the catch-up cells.
    #[arg(long, default_value_t = 268_435_456)]
    pub(crate) fill: u64,
    /// Partitions of a further broker of ours, each with one message, for memory and start; 0 leaves it out.
    #[arg(long, default_value_t = 10_000)]
    pub(crate) idle_partitions: u32,
    /// Run only cells whose name contains this.
    #[arg(long)]
    pub(crate) only: Option<String>,
    /// Exit with 1 when a bar is missed.
    #[arg(long)]
    pub(crate) check: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct ReplicaArgs {
    /// Where metaq-master, metaq-slave and metaq are.
    #[arg(long, default_value = "target/release")]
    pub(crate) bin_dir: PathBuf,
    /// Data of all nodes and of the machine's limits, on the disk in question; removed at the end.
    #[arg(long, default_value = "target")]
    pub(crate) dir: PathBuf,
    /// Every raw value goes here as JSON.
    #[arg(long)]
    pub(crate) out: Option<PathBuf>,
    /// What is measured; all of it if not given.
    #[arg(long, value_enum, value_delimiter = ',')]
    pub(crate) parts: Vec<Part>,
    /// Between masters and slaves.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "tcp,quic")]
    pub(crate) transports: Vec<Transport>,
    /// Measured seconds of each load.
    #[arg(long, default_value = "5")]
    pub(crate) seconds: Seconds,
    #[arg(long, default_value = "1")]
    pub(crate) warmup: Seconds,
    #[arg(long, default_value_t = 1)]
    pub(crate) rounds: u32,
    /// Bytes a new slave has before it, in one partition and in four.
    #[arg(long, default_value_t = 4 << 30)]
    pub(crate) fill: u64,
    /// And in many.
    #[arg(long, default_value_t = 1 << 30)]
    pub(crate) fill_many: u64,
    #[arg(long, default_value_t = 1000)]
    pub(crate) many_partitions: u32,
    /// Exit with 1 when a bar is missed.
    #[arg(long)]
    pub(crate) check: bool,
}

/// Resolves HOST:PORT; `meta://` before it is the way brokers name themselves in ZooKeeper.
fn address(text: &str) -> Result<SocketAddr> {
    let host_port = text.strip_prefix("meta://").unwrap_or(text);
    let mut addresses = host_port.to_socket_addrs().with_context(|| format!("`{text}` is not HOST:PORT"))?;
    addresses.next().with_context(|| format!("`{text}` names no address"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_sound() {
        Args::command().debug_assert();
        let address = address("meta://127.0.0.1:8123").unwrap();
        assert_eq!(address, SocketAddr::from(([127, 0, 0, 1], 8123)));
        assert_eq!("poll=3".parse(), Ok(Reading::Poll { pause_ms: 3 }));
        assert_eq!("long-poll".parse(), Ok(Reading::LongPoll { wait_ms: 1000 }));
        assert!("poll=x".parse::<Reading>().is_err() && "wait".parse::<Reading>().is_err());
    }
}
