//! `metaq consume`: reads messages and prints them.

use std::io::{self, BufWriter, Write as _};
use std::time::Duration;

use anyhow::{Context as _, bail};
use bytes::Bytes;
use clap::Args;
use metaq_client::{Client, ClientError, GetAnswer};
use metaq_types::limits::{RECORD_HEADER_BYTES, TRANSFER_BYTES_MAX};
use metaq_types::{BrokerId, Offset};
use metaq_wire::{RecordHeader, Records, split_attribute};
use serde::Serialize;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::cluster::{self, Source};
use crate::position::{From, Partition};
use crate::show::{self, Format};

const FETCH_BYTES: u32 = 1024 * 1024;

/// With `--follow`: how long the broker holds a get that finds nothing.
const LONG_POLL: Duration = Duration::from_secs(5);

const PAUSE: Duration = Duration::from_millis(200);

/// Printed blocks on their way; a slow terminal holds the readers back.
const BLOCKS_MAX: usize = 4;

#[derive(Args)]
pub(crate) struct ConsumeArgs {
    /// The topic to read
    #[arg(long, value_name = "NAME")]
    topic: String,

    /// Only this partition (of every broker)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(..=i64::from(i32::MAX)))]
    partition: Option<u32>,

    /// Where to begin, in each partition: start, end, an offset, or newest:N for the last N messages
    #[arg(long, value_name = "PLACE", default_value = "start")]
    from: From,

    /// Begin with the last N messages of each partition
    #[arg(long, value_name = "N", conflicts_with = "from", value_parser = parse_newest)]
    newest: Option<From>,

    /// Go on waiting for new messages
    #[arg(long)]
    follow: bool,

    /// Under which name to read: consumers' positions are not touched
    #[arg(long, value_name = "NAME", default_value = "metaq-tool")]
    group: String,

    /// Print the bytes of each message as they are, terminal controls included
    #[arg(long, conflicts_with = "format")]
    raw: bool,

    /// How long to look for a broker when none answers
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    give_up: u64,
}

fn parse_newest(count: &str) -> Result<From, String> {
    format!("newest:{count}").parse()
}

/// One partition of one broker, and where reading stands.
struct Reader {
    source: Source,
    topic: String,
    group: String,
    broker: BrokerId,
    number: i32,
    /// How many partitions the topic has where it has most, if that is known.
    partitions: Option<u32>,
    from: From,
    /// Known once resolved.
    at: Option<Offset>,
    follow: bool,
    give_up: Duration,
    print: Print,
}

#[derive(Clone, Copy)]
enum Print {
    Raw,
    Escaped,
    Json,
}

/// A message for programs.
#[derive(Serialize)]
struct Message<'a> {
    topic: &'a str,
    broker: u16,
    partition: i32,
    offset: u64,
    id: i64,
    flag: i32,
    #[serde(skip_serializing_if = "Option::is_none")]
    attribute: Option<String>,
    /// With controls and bytes that are no UTF-8 as \xNN.
    payload: String,
    payload_bytes: usize,
    checksum: i32,
}

pub(crate) async fn run(source: &Source, args: ConsumeArgs, format: Format) -> anyhow::Result<()> {
    let print = match format {
        Format::Json => Print::Json,
        Format::Table if args.raw => Print::Raw,
        Format::Table => Print::Escaped,
    };
    let (cluster, are_known) = source.look_for(&args.topic).await?;
    let places = cluster::readers(&cluster, &args.topic);
    if places.is_empty() {
        bail!("no broker announces the topic '{}'; 'metaq topic list' shows what there is", args.topic);
    }
    let most = places.iter().map(|place| place.partitions).max();
    let partitions = most.filter(|_| are_known);
    let mut readers = Vec::new();
    for place in places {
        let numbers = match args.partition {
            Some(number) => number..number + 1,
            None => 0..place.partitions,
        };
        readers.extend(numbers.map(|number| Reader {
            source: source.clone(),
            topic: args.topic.clone(),
            group: args.group.clone(),
            broker: place.broker,
            number: number as i32,
            partitions,
            from: args.newest.unwrap_or(args.from),
            at: None,
            follow: args.follow,
            give_up: Duration::from_secs(args.give_up),
            print,
        }));
    }
    let (sender, receiver) = mpsc::channel(BLOCKS_MAX);
    let printer = tokio::task::spawn_blocking(move || write_out(receiver));
    let read = read_all(readers, args.follow, sender).await;
    show::taken(printer.await.context("the printer ended badly")?)?;
    read
}

/// Followed partitions are read side by side, others one after the other.
async fn read_all(readers: Vec<Reader>, follow: bool, out: mpsc::Sender<Vec<u8>>) -> anyhow::Result<()> {
    if !follow {
        for reader in readers {
            reader.run(&out).await?;
        }
        return Ok(());
    }
    let mut tasks = JoinSet::new();
    for reader in readers {
        let out = out.clone();
        tasks.spawn(async move { reader.run(&out).await });
    }
    while let Some(ended) = tasks.join_next().await {
        ended.context("a reader ended badly")??;
    }
    Ok(())
}

fn write_out(mut blocks: mpsc::Receiver<Vec<u8>>) -> io::Result<()> {
    let mut out = BufWriter::new(io::stdout().lock());
    while let Some(block) = blocks.blocking_recv() {
        out.write_all(&block)?;
        if blocks.is_empty() {
            out.flush()?;
        }
    }
    out.flush()
}

/// A connection a partition is read over.
struct Link {
    client: Client,
    role: Role,
    /// Nothing was read over it yet, and something may have been over another, from a master whose place was taken.
    is_new: bool,
    /// The last get that found nothing was answered before its time.
    refuses_to_wait: bool,
}

#[derive(Clone, Copy)]
enum Role {
    Master,
    Slave,
}

/// Why reading a partition pauses.
enum Pause {
    /// The end; only without `--follow`.
    Done,
    /// Whoever prints has gone.
    Closed,
    /// The broker is to be looked for again.
    Lost(anyhow::Error),
}

impl Reader {
    async fn run(mut self, out: &mpsc::Sender<Vec<u8>>) -> anyhow::Result<()> {
        let mut lost_since: Option<Instant> = None;
        loop {
            let before = self.at;
            let error = match self.connect().await {
                Ok(link) => match self.read(link, out).await? {
                    Pause::Done | Pause::Closed => return Ok(()),
                    Pause::Lost(error) => error,
                },
                Err(error) => error,
            };
            if self.at != before {
                lost_since = None;
            }
            if lost_since.get_or_insert_with(Instant::now).elapsed() >= self.give_up {
                return Err(error.context(format!("partition {}", self.name())));
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// The master, or a slave when it does not answer.
    async fn connect(&self) -> anyhow::Result<Link> {
        let (cluster, _) = self.source.look_for(&self.topic).await?;
        let places = cluster::readers(&cluster, &self.topic);
        let place = places.into_iter().find(|place| place.broker == self.broker);
        let place = place.with_context(|| format!("broker {} is not registered", self.broker))?;
        let masters = place.master.iter().map(|address| (address, Role::Master));
        let slaves = place.slaves.iter().map(|address| (address, Role::Slave));
        let mut last = None;
        for (address, role) in masters.chain(slaves) {
            match cluster::connect(address).await {
                Ok(client) => {
                    return Ok(Link { client, role, is_new: self.at.is_some(), refuses_to_wait: false });
                }
                Err(error) => last = Some(error),
            }
        }
        Err(last.context("the broker has no address")?)
    }

    /// There is no such partition: nothing was put into it yet, or nothing ever will.
    fn nothing(&self) -> anyhow::Result<Pause> {
        match self.partitions {
            Some(partitions) if self.number.unsigned_abs() >= partitions => bail!(
                "topic '{}' has no partition {}; it has the numbers 0 to {}",
                self.topic,
                self.number,
                partitions.saturating_sub(1)
            ),
            Some(_) => {}
            None => {
                let note = format!("metaq: {}: nothing was ever put there, if there is such a partition", self.name());
                let _ = writeln!(io::stderr(), "{note}");
            }
        }
        Ok(Pause::Done)
    }

    /// Reads over one connection. An error is final; what another connection may mend is [`Pause::Lost`].
    async fn read(&mut self, mut link: Link, out: &mpsc::Sender<Vec<u8>>) -> anyhow::Result<Pause> {
        let client = link.client.clone();
        let mut bytes_max = FETCH_BYTES;
        let wait = self.follow.then_some(LONG_POLL);
        loop {
            let at = match self.at {
                Some(at) => at,
                None => match self.partition(&client).resolve(self.from).await {
                    Ok(Some(at)) => self.begin(at, ""),
                    // Whatever comes to the master then comes after this start. A slave may not have copied it yet.
                    Ok(None) if self.follow && matches!(link.role, Role::Master) => {
                        self.begin(Offset::ZERO, ", where nothing is yet")
                    }
                    Ok(None) if self.follow => Offset::ZERO,
                    Ok(None) => return self.nothing(),
                    Err(error) => return Ok(Pause::Lost(error)),
                },
            };
            let asked = Instant::now();
            let got = client.get(&self.topic, &self.group, self.number, at.wire(), bytes_max as i32, wait).await;
            let body = match got {
                Ok(GetAnswer::Value { body, .. }) => body,
                Ok(GetAnswer::Moved(to)) => {
                    self.move_to(at, to);
                    continue;
                }
                Ok(GetAnswer::NotYet { .. } | GetAnswer::NoPartition) if self.follow => {
                    if let Err(error) = self.at_end(&mut link, at, asked).await {
                        return Ok(Pause::Lost(error));
                    }
                    continue;
                }
                Ok(GetAnswer::NotYet { .. }) => return Ok(Pause::Done),
                Ok(GetAnswer::NoPartition) => return self.nothing(),
                Err(error @ (ClientError::Answer { .. } | ClientError::Protocol(_))) => return Err(error.into()),
                Err(error) => return Ok(Pause::Lost(error.into())),
            };
            if std::mem::take(&mut link.is_new) && !matches!(Records::new(&body).next(), Some(Ok(_))) {
                match self.partition(&client).record_end(at).await {
                    Ok(Some(next)) => {
                        self.move_over(at, next);
                        continue;
                    }
                    // Damage, which is told below.
                    Ok(None) => {}
                    Err(error) => return Ok(Pause::Lost(error)),
                }
            }
            let (block, used) = self.print(at, &body)?;
            if used == 0 {
                bytes_max = longer_fetch(bytes_max, &body).with_context(|| {
                    let name = self.name();
                    format!("{name}: no message begins at {at}, or it is damaged; go on at another place with --from")
                })?;
                continue;
            }
            bytes_max = FETCH_BYTES;
            self.at = Some(at + used as u64);
            if out.send(block).await.is_err() {
                return Ok(Pause::Closed);
            }
        }
    }

    /// There was nothing to read at `at`: not yet, or, behind a master whose log ends before, not any more.
    async fn at_end(&mut self, link: &mut Link, at: Offset, asked: Instant) -> anyhow::Result<()> {
        let waited = asked.elapsed() >= LONG_POLL;
        let refused_before = std::mem::replace(&mut link.refuses_to_wait, !waited);
        if waited {
            return Ok(());
        }
        // Brokers do not wait at a place that they do not know, old ones and those that stop do not wait at all.
        tokio::time::sleep(PAUSE).await;
        // A slave may simply be behind. A place that the quorum has to confirm again is one where brokers wait.
        if refused_before
            && matches!(link.role, Role::Master)
            && let Some(end) = self.partition(&link.client).end().await?
            && end < at
        {
            self.move_to(at, end);
        }
        Ok(())
    }

    fn partition<'a>(&'a self, client: &'a Client) -> Partition<'a> {
        Partition { client, topic: &self.topic, group: &self.group, number: self.number }
    }

    /// Says where reading begins, which is another place with every `--from`.
    fn begin(&mut self, at: Offset, more: &str) -> Offset {
        show::say(&format!("{}: reading from {at} (--from {}){more}", self.name(), self.from));
        *self.at.insert(at)
    }

    /// The broker has nothing at our place.
    fn move_to(&mut self, at: Offset, to: Offset) {
        let name = self.name();
        match at.get().checked_sub(to.get()) {
            Some(gone) if gone > 0 => show::say(&format!(
                "metaq: {name}: its log ends at {to}, and this reader stood at {at}: the {gone} bytes between are gone, as \
                 after a promotion that lost them; going on at {to}"
            )),
            _ => show::say(&format!("metaq: {name}: nothing at {at}, going on at {to}")),
        }
        self.at = Some(to);
    }

    /// The broker's log goes on beyond our place, and is another than the one that was read up to there.
    fn move_over(&mut self, at: Offset, next: Offset) {
        show::say(&format!(
            "metaq: {}: this reader stood at {at}, where now no message begins: the last that it read are gone, as after \
             a promotion that lost them, and others that came since may be missed; going on at {next}",
            self.name()
        ));
        self.at = Some(next);
    }

    fn name(&self) -> String {
        format!("{}-{} of broker {}", self.topic, self.number, self.broker)
    }

    /// The printed form of the whole records in `body`, and how many bytes they take.
    fn print(&self, at: Offset, body: &Bytes) -> anyhow::Result<(Vec<u8>, usize)> {
        let mut block = Vec::with_capacity(body.len());
        let mut records = Records::new(body);
        for record in records.by_ref() {
            let (position, header, body) = record.with_context(|| {
                format!("{}-{}: what the broker sends from {at} on cannot be read", self.topic, self.number)
            })?;
            self.print_one(at + position as u64, &header, body, &mut block)?;
            block.push(b'\n');
        }
        Ok((block, records.position()))
    }

    fn print_one(&self, at: Offset, header: &RecordHeader, body: &[u8], block: &mut Vec<u8>) -> io::Result<()> {
        let (attribute, payload) = split_attribute(header.flag, body).unwrap_or((None, body));
        match self.print {
            Print::Raw => block.extend_from_slice(payload),
            Print::Escaped => block.extend_from_slice(show::escape(payload).as_bytes()),
            Print::Json => {
                let message = Message {
                    topic: &self.topic,
                    broker: self.broker.get(),
                    partition: self.number,
                    offset: at.get(),
                    id: header.id.0,
                    flag: header.flag,
                    attribute: attribute.map(show::escape),
                    payload: show::escape(payload),
                    payload_bytes: payload.len(),
                    checksum: header.checksum,
                };
                block.extend_from_slice(show::json(&message)?.as_bytes());
            }
        }
        Ok(())
    }
}

/// The fetch that brings the record at the front of `body` whole; `None` when that was asked for already.
fn longer_fetch(asked: u32, body: &[u8]) -> Option<u32> {
    let header = RecordHeader::parse(body.first_chunk()?).ok()?;
    let needed = u32::try_from(header.record_bytes()).ok()?;
    (asked < needed && needed <= TRANSFER_BYTES_MAX).then_some(needed)
}

const _: () = assert!(FETCH_BYTES > RECORD_HEADER_BYTES);

#[cfg(test)]
mod tests {
    use metaq_types::MessageId;

    use super::*;

    fn reader(print: Print) -> Reader {
        Reader {
            source: Source::Broker(String::new()),
            topic: "t".into(),
            group: "g".into(),
            broker: BrokerId::new(1).unwrap(),
            number: 2,
            partitions: Some(3),
            from: From::Start,
            at: None,
            follow: false,
            give_up: Duration::ZERO,
            print,
        }
    }

    fn records() -> Bytes {
        let mut bytes = Vec::new();
        for (id, flag, body) in [(1, 0, &b"a\x1b[2J"[..]), (2, 1, b"\0\0\0\x02kvpay"), (3, 0, b"torn")] {
            bytes.extend_from_slice(&RecordHeader::of(MessageId(id), flag, body).encode());
            bytes.extend_from_slice(body);
        }
        bytes.truncate(bytes.len() - 1);
        bytes.into()
    }

    #[test]
    fn whole_records_are_printed_a_line_each() {
        let at = Offset::new(100).unwrap();
        let print = |print| reader(print).print(at, &records()).unwrap();
        assert_eq!(print(Print::Raw), (b"a\x1b[2J\npay\n".to_vec(), 54));
        assert_eq!(print(Print::Escaped).0, b"a\\x1b[2J\npay\n");
        let (json, _) = print(Print::Json);
        let lines: Vec<serde_json::Value> =
            String::from_utf8(json).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!((&lines[0]["payload"], &lines[0]["offset"]), (&"a\\x1b[2J".into(), &100.into()));
        assert_eq!((&lines[1]["attribute"], &lines[1]["payload"]), (&"kv".into(), &"pay".into()));
        assert_eq!((&lines[1]["offset"], &lines[1]["id"], &lines[1]["partition"]), (&125.into(), &2.into(), &2.into()));
    }

    #[test]
    fn damage_is_an_error_that_names_the_place() {
        let mut bytes = records().to_vec();
        bytes[22] ^= 1;
        let error = reader(Print::Raw).print(Offset::new(100).unwrap(), &bytes.into()).unwrap_err();
        assert!(format!("{error:#}").contains("t-2: what the broker sends from 100 on"), "{error:#}");
    }

    #[test]
    fn a_record_longer_than_the_fetch_is_asked_for_once() {
        let header = RecordHeader { length: 5000, checksum: 0, id: MessageId(1), flag: 0 }.encode();
        assert_eq!(longer_fetch(1000, &header), Some(5020));
        assert_eq!(longer_fetch(5020, &header), None);
    }
}
