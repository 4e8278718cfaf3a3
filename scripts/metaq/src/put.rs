//! `metaq put`: every line of a file becomes a message.
//!
//! Lines are dealt out to the partitions in turn. Each partition has a lane of its own with one message on the way, so
//! that the messages of a partition keep the order of their lines, also over a change of masters. When one of them was
//! given up for a reason that is the broker's, the others stop as well: each line after it would only cost its time.

mod halt;
mod lane;
mod ledger;
mod masters;

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use bytes::Bytes;
use clap::Args;
use metaq_types::BrokerId;
use serde::Serialize;
use tokio::io::{AsyncBufRead, AsyncBufReadExt as _, AsyncReadExt as _, BufReader};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::cluster::{Source, writers};
use crate::show::{self, Format};
use halt::Halt;
use lane::{Lane, Outcome};
use ledger::Ledger;
use masters::Masters;

/// A longer line cannot be a message on any broker; it is not read into memory.
const LINE_BYTES_MAX: usize = 64 * 1024 * 1024;

/// Lines read ahead for one partition.
const LANE_LINES_MAX: usize = 16;

#[derive(Args)]
pub(crate) struct PutArgs {
    /// The lines to send; - is standard input
    #[arg(value_name = "FILE", default_value = "-")]
    file: PathBuf,

    /// The topic to send to
    #[arg(long, value_name = "NAME")]
    topic: String,

    /// A partition number, or round-robin over all partitions of all masters
    #[arg(long, value_name = "N|round-robin", default_value = "round-robin", value_parser = parse_choice)]
    partition: Choice,

    /// Write what became of each line here, as one JSON object a line
    #[arg(long, value_name = "FILE")]
    ledger: Option<PathBuf>,

    /// At most this many messages a second
    #[arg(long, value_name = "PER_SECOND", value_parser = clap::value_parser!(u32).range(1..))]
    rate: Option<u32>,

    /// How long one message is tried again while there is no master or it has no room; the first one that is given up
    /// ends it all
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    give_up: u64,

    /// Leave a message alone whose answer was lost, instead of sending it again (which may store it twice)
    #[arg(long)]
    no_resend: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Choice {
    RoundRobin,
    One(u32),
}

fn parse_choice(text: &str) -> Result<Choice, String> {
    match text {
        "round-robin" => Ok(Choice::RoundRobin),
        number => match number.parse::<u32>() {
            Ok(number) if number <= i32::MAX as u32 => Ok(Choice::One(number)),
            _ => Err("neither a partition number nor round-robin".to_owned()),
        },
    }
}

/// One line of the input.
pub(crate) struct Line {
    /// From 1.
    pub(crate) number: u64,
    pub(crate) body: Bytes,
}

/// What became of all lines.
#[derive(Debug, Default, Serialize)]
struct Tally {
    lines: u64,
    stored: u64,
    refused: u64,
    /// Neither stored for sure nor refused: the answer was lost and nothing was sent again, or time ran out.
    unknown: u64,
    /// Sent again after a lost answer, and stored then: each may be there twice.
    sent_again: u64,
    bytes: u64,
    seconds: f64,
    /// The longest time between sending a message first and its answer.
    longest_wait_ms: u64,
    /// The first line that is not known to be stored or refused, where it did not come to the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    go_on_from: Option<u64>,
}

/// What one lane did.
#[derive(Default)]
struct LaneTally {
    tally: Tally,
    /// Its first line that it gave up, or did not try any more.
    stopped_at: Option<u64>,
    /// The lines it stored last, as many as it can be ahead of another lane.
    stored_last: VecDeque<u64>,
}

pub(crate) async fn run(source: &Source, args: PutArgs, format: Format) -> anyhow::Result<()> {
    let give_up = Duration::from_secs(args.give_up);
    let masters = Arc::new(Masters::new(source.clone()));
    let places = places(&masters, &args, give_up).await?;
    let ledger = Arc::new(Ledger::open(args.ledger.as_deref())?);
    let halt = Halt::default();
    let mut lanes = JoinSet::new();
    let mut inputs = Vec::new();
    for (broker, partition) in places {
        let lane = Lane {
            masters: Arc::clone(&masters),
            ledger: Arc::clone(&ledger),
            topic: args.topic.clone(),
            broker,
            partition,
            give_up,
            resend: !args.no_resend,
        };
        let (sender, receiver) = mpsc::channel(LANE_LINES_MAX);
        inputs.push(sender);
        lanes.spawn(lane_tally(lane, receiver, halt.clone()));
    }
    let started = Instant::now();
    let fed = tokio::select! {
        fed = feed(&args, inputs) => fed,
        () = halt.wait() => Ok(()),
    };
    let mut tally = Tally::default();
    let mut done = Vec::new();
    while let Some(lane) = lanes.join_next().await {
        let lane = lane.context("a lane ended badly")??;
        tally.add(&lane.tally);
        done.push(lane);
    }
    tally.go_on_from = done.iter().filter_map(|lane| lane.stopped_at).min();
    tally.seconds = started.elapsed().as_secs_f64();
    ledger.close()?;
    let printed = print(&tally, format);
    fed?;
    if let Some(from) = tally.go_on_from {
        let stored_behind = done.iter().flat_map(|lane| &lane.stored_last).filter(|line| **line > from).count();
        bail!("{}", stopped(&args, from, tally.stored, stored_behind));
    }
    if tally.stored < tally.lines {
        bail!(
            "{} of {} lines are not known to be stored{}",
            tally.lines - tally.stored,
            tally.lines,
            if args.ledger.is_some() { "; the ledger names them" } else { "; --ledger FILE would name them" }
        );
    }
    printed.with_context(|| format!("all {} lines are stored", tally.lines))
}

/// What was done, and how to go on; why has been said of the line.
fn stopped(args: &PutArgs, from: u64, stored: u64, stored_behind: usize) -> String {
    let (give_up, topic) = (args.give_up, &args.topic);
    let rest = match args.file.as_os_str() == "-" {
        true => "that line of the input".to_owned(),
        false => format!("'tail -n +{from} {} | metaq put --topic {topic}'", args.file.display()),
    };
    let mut text = format!(
        "stopped, since no line that follows would fare better than one that was tried for {give_up} s; {stored} lines are \
         stored; when that is mended go on from line {from}, with {rest} and the options as before"
    );
    match (stored_behind, &args.ledger) {
        (0, None) => {}
        (0, Some(_)) => text += " but another --ledger",
        (_, None) => text += &format!("; {stored_behind} lines behind that are stored already, and would be twice"),
        (_, Some(ledger)) => {
            let ledger = ledger.display();
            text += &format!(
                " but another --ledger; {stored_behind} lines behind that are stored already, as {ledger} says, and would be \
                 twice"
            );
        }
    }
    text
}

/// Where messages go: a broker and a partition each. Waits for a master while there is none.
async fn places(masters: &Masters, args: &PutArgs, give_up: Duration) -> anyhow::Result<Vec<(BrokerId, i32)>> {
    let cluster = masters.cluster_with_master(give_up).await?;
    let announced = writers(&cluster, &args.topic);
    let places: Vec<(BrokerId, i32)> = match args.partition {
        Choice::RoundRobin => {
            announced.iter().flat_map(|(id, count)| (0..*count).map(|number| (*id, number as i32))).collect()
        }
        Choice::One(number) => {
            announced.iter().filter(|(_, count)| number < *count).map(|(id, _)| (*id, number as i32)).take(1).collect()
        }
    };
    if !places.is_empty() {
        return Ok(places);
    }
    // Nobody announces it: a topic that only a pattern lets in, or none at all. A master knows; it chooses at -1.
    let id = cluster.brokers.iter().find(|(_, broker)| broker.master.is_some()).map(|(id, _)| *id);
    let id = id.context("no master is registered")?;
    Ok(vec![match args.partition {
        Choice::RoundRobin => (id, -1),
        Choice::One(number) => (id, number as i32),
    }])
}

/// Reads the lines and deals them out; the lanes end when this returns.
async fn feed(args: &PutArgs, lanes: Vec<mpsc::Sender<Line>>) -> anyhow::Result<()> {
    let input: Box<dyn AsyncBufRead + Send + Unpin> = if args.file.as_os_str() == "-" {
        Box::new(BufReader::new(tokio::io::stdin()))
    } else {
        let file = tokio::fs::File::open(&args.file).await;
        let file = file.with_context(|| format!("cannot read {}", args.file.display()))?;
        Box::new(BufReader::with_capacity(256 * 1024, file))
    };
    let mut input = input;
    let pace = args.rate.map(|rate| Duration::from_secs(1) / rate);
    let mut due = Instant::now();
    for number in 1.. {
        let Some(body) = read_line(&mut input, number).await? else { break };
        if let Some(pace) = pace {
            tokio::time::sleep_until(due).await;
            due += pace;
        }
        let lane = &lanes[(number - 1) as usize % lanes.len()];
        if lane.send(Line { number, body }).await.is_err() {
            // Its error is reported by whoever joins it.
            break;
        }
    }
    Ok(())
}

/// The next line without its line feed; `None` at the end. Every other byte of the line is kept.
async fn read_line(input: &mut (impl AsyncBufRead + Unpin), number: u64) -> anyhow::Result<Option<Bytes>> {
    let mut line = Vec::new();
    (&mut *input).take(LINE_BYTES_MAX as u64 + 1).read_until(b'\n', &mut line).await.context("reading the lines")?;
    if line.is_empty() {
        return Ok(None);
    }
    if line.last() == Some(&b'\n') {
        line.pop();
    } else if line.len() > LINE_BYTES_MAX {
        bail!("line {number} is longer than {LINE_BYTES_MAX} bytes");
    }
    Ok(Some(line.into()))
}

/// Runs one lane to the end of its lines, or until a line of any lane is given up.
async fn lane_tally(lane: Lane, mut lines: mpsc::Receiver<Line>, halt: Halt) -> anyhow::Result<LaneTally> {
    let mut done = LaneTally::default();
    let tally = &mut done.tally;
    loop {
        let line = tokio::select! {
            biased;
            () = halt.wait() => break,
            line = lines.recv() => line,
        };
        let Some(line) = line else { break };
        let sent = lane.send(&line).await?;
        tally.lines += 1;
        tally.longest_wait_ms = tally.longest_wait_ms.max(u64::try_from(sent.waited.as_millis()).unwrap_or(u64::MAX));
        match sent.outcome {
            Outcome::Stored => {
                tally.stored += 1;
                tally.bytes += line.body.len() as u64;
                tally.sent_again += u64::from(sent.lost_answers > 0);
                done.stored_last.push_back(line.number);
                if done.stored_last.len() > LANE_LINES_MAX + 2 {
                    done.stored_last.pop_front();
                }
            }
            Outcome::Refused => tally.refused += 1,
            Outcome::Unknown => tally.unknown += 1,
        }
        if sent.given_up {
            halt.stop();
            done.stopped_at = Some(line.number);
            break;
        }
    }
    lines.close();
    if let Some(left) = lines.recv().await {
        done.stopped_at.get_or_insert(left.number);
    }
    Ok(done)
}

impl Tally {
    fn add(&mut self, lane: &Tally) {
        self.lines += lane.lines;
        self.stored += lane.stored;
        self.refused += lane.refused;
        self.unknown += lane.unknown;
        self.sent_again += lane.sent_again;
        self.bytes += lane.bytes;
        self.longest_wait_ms = self.longest_wait_ms.max(lane.longest_wait_ms);
    }
}

fn print(tally: &Tally, format: Format) -> anyhow::Result<()> {
    match format {
        Format::Json => show::print(&show::json(tally)?),
        Format::Table => {
            let Tally { stored, refused, unknown, sent_again, bytes, seconds, longest_wait_ms, .. } = tally;
            let mut text = format!(
                "{stored} stored ({bytes} bytes), {refused} refused, {unknown} unknown, in {seconds:.1} s; longest wait \
                 {longest_wait_ms} ms"
            );
            if *sent_again > 0 {
                let again = "were sent again after their answer was lost and may be stored twice";
                text = format!("{text}\n{sent_again} {again}");
            }
            show::print(&text)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_line_is_a_message_and_only_its_line_feed_is_taken_off() {
        let mut input = &b"one\ntwo \r\n\n\xff\nlast"[..];
        let mut lines = Vec::new();
        while let Some(line) = read_line(&mut input, 1).await.unwrap() {
            lines.push(line);
        }
        assert_eq!(lines, [&b"one"[..], b"two \r", b"", b"\xff", b"last"]);
    }

    #[test]
    fn whoever_was_stopped_is_told_how_to_go_on() {
        let told = |file: &str, ledger: Option<&str>, behind| {
            let args = PutArgs {
                file: file.into(),
                topic: "orders".to_owned(),
                partition: Choice::RoundRobin,
                ledger: ledger.map(PathBuf::from),
                rate: None,
                give_up: 7,
                no_resend: false,
            };
            stopped(&args, 12, 14, behind)
        };
        let plain = told("in.txt", None, 0);
        assert!(plain.contains("tried for 7 s; 14 lines are stored;"), "{plain}");
        assert!(
            plain.contains("go on from line 12, with 'tail -n +12 in.txt | metaq put --topic orders' and"),
            "{plain}"
        );
        assert!(plain.ends_with("as before"), "{plain}");
        assert!(told("-", None, 3).ends_with("; 3 lines behind that are stored already, and would be twice"));
        let both = told("-", Some("l"), 3);
        assert!(both.contains("that line of the input and") && both.contains("another --ledger; 3 lines"), "{both}");
    }

    #[test]
    fn a_partition_is_a_number_or_round_robin() {
        assert_eq!(parse_choice("round-robin"), Ok(Choice::RoundRobin));
        assert_eq!(parse_choice("7"), Ok(Choice::One(7)));
        assert!(parse_choice("-1").is_err() && parse_choice("x").is_err());
    }
}
