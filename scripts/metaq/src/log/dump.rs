use std::fmt::Write as _;
use std::io::{self, BufWriter, ErrorKind, Write as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use clap::Args;
use metaq_store::{Piece, PieceFault, RecordFile, partition_files, unix_ms};
use metaq_types::Offset;
use metaq_types::limits::{DISCARD_BYTES_MAX, RECORD_HEADER_BYTES};
use metaq_wire::{RecordHeader, split_attribute};
use serde::Serialize;
use time::OffsetDateTime;

use super::files::{FilesArgs, some};
use crate::cluster::Place;
use crate::show::{self, Format, escape, or_dash};

/// Of a body, in a table.
const SHOWN_BYTES: u32 = 256;

/// Of a damaged place.
const DAMAGE_SHOWN_BYTES: u64 = 64;

#[derive(Args)]
#[command(after_help = "With --format json one object a line: a message, or with 'damaged_bytes' what is none.\n\
                        FILE may be a segment, or what was set aside beside one: SEGMENT.meta.torn-N, .diverged-N, \
                        .unreplayed-N.")]
pub(crate) struct DumpArgs {
    /// One file, instead of those of a partition (--topic and --partition)
    #[arg(value_name = "FILE", conflicts_with_all = ["data_path", "topic"])]
    file: Option<PathBuf>,

    #[command(flatten)]
    files: FilesArgs,

    /// Begin at this offset, or with the first message behind it
    #[arg(long, value_name = "OFFSET", default_value_t = 0)]
    from: u64,

    /// End after so many messages
    #[arg(long, value_name = "N")]
    limit: Option<u64>,

    /// The offset at which FILE begins; told by a segment's name, and by the log line that names what was set aside
    #[arg(long, value_name = "OFFSET", requires = "file")]
    base: Option<u64>,

    /// Print bodies in hexadecimal digits
    #[arg(long)]
    hex: bool,

    /// Print nothing but the payloads, as they are, one a line, as 'metaq put' reads them
    #[arg(long, conflicts_with_all = ["hex", "format", "body_bytes"])]
    raw: bool,

    /// Print at most so many bytes of each payload; otherwise 256 in a table, and all for programs
    #[arg(long, value_name = "N")]
    body_bytes: Option<u32>,
}

/// A message for programs.
#[derive(Serialize)]
struct Message {
    offset: u64,
    id: i64,
    /// When it was stored, as its id tells.
    #[serde(skip_serializing_if = "Option::is_none")]
    time: Option<String>,
    flag: i32,
    #[serde(skip_serializing_if = "Option::is_none")]
    attribute: Option<String>,
    /// Of the body: attribute and payload.
    length: u32,
    checksum: i32,
    checksum_ok: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    payload: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    payload_hex: Option<String>,
    payload_bytes: usize,
}

/// What is no message, for programs.
#[derive(Serialize)]
struct Damage {
    offset: u64,
    damaged_bytes: u64,
    /// Nothing whole follows in the file.
    is_tail: bool,
    fault: String,
    first_bytes_hex: String,
}

#[derive(Clone, Copy)]
enum Print {
    Raw,
    Table,
    Json,
}

struct Source {
    base: u64,
    path: PathBuf,
}

pub(super) fn run(place: &Place, args: &DumpArgs, format: Format) -> anyhow::Result<()> {
    let sources = match &args.file {
        Some(file) => vec![one_file(file, args.base)?],
        None => segments(place, args)?,
    };
    let print = match format {
        _ if args.raw => Print::Raw,
        Format::Json => Print::Json,
        Format::Table => Print::Table,
    };
    let mut dump = Dump {
        out: BufWriter::new(io::stdout().lock()),
        print,
        hex: args.hex,
        shown: args.body_bytes.unwrap_or(if matches!(print, Print::Table) { SHOWN_BYTES } else { u32::MAX }) as usize,
        from: args.from,
        left: args.limit.unwrap_or(u64::MAX),
        end: 0,
        is_first: true,
        many_lines: 0,
    };
    let dumped = dump.all(&sources);
    match dumped {
        Err(error) if is_broken_pipe(&error) => return Ok(()),
        dumped => dumped?,
    }
    if dump.many_lines > 0 {
        show::say(&format!(
            "metaq: {} payloads hold line feeds: 'metaq put' takes each of their lines for a message; put those otherwise \
             (--format json has them whole)",
            dump.many_lines
        ));
    }
    if args.from > dump.end {
        show::say(&format!("metaq: there is nothing at {} or behind: the files end at {}", args.from, dump.end));
    }
    Ok(())
}

/// Who reads the output has what it wanted.
fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let errors = || error.chain().filter_map(|error| error.downcast_ref::<io::Error>());
    errors().any(|error| error.kind() == ErrorKind::BrokenPipe)
}

fn segments(place: &Place, args: &DumpArgs) -> anyhow::Result<Vec<Source>> {
    let site = args.files.find(place)?;
    if let [first, second, ..] = &site.partitions[..] {
        if first.id == second.id {
            bail!("{} is in two data paths: name one with --data-path DIR", second.id);
        }
        let there: Vec<String> = site.partitions.iter().map(|found| found.id.to_string()).collect();
        bail!("name a FILE, or one partition with --topic NAME --partition N: there is {}", some(&there));
    }
    let directory = &site.partitions[0].directory;
    let files = partition_files(directory).with_context(|| format!("cannot read {}", directory.display()))?;
    files.faults.iter().for_each(|fault| show::say(&format!("metaq: {fault}")));
    if !files.aside.is_empty() {
        let aside: Vec<String> = files.aside.iter().map(|path| path.display().to_string()).collect();
        show::say(&format!("metaq: set aside, and not among these: {}", some(&aside)));
    }
    let begin = files.segments.partition_point(|segment| segment.base.get() <= args.from).saturating_sub(1);
    let sources = files.segments.into_iter().skip(begin);
    Ok(sources.map(|segment| Source { base: segment.base.get(), path: segment.path }).collect())
}

fn one_file(file: &Path, base: Option<u64>) -> anyhow::Result<Source> {
    if file.is_dir() {
        bail!("{} is a directory: name a file in it, or a partition with --topic and --partition", file.display());
    }
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    let (digits, suffix) = name.split_once(".meta").unwrap_or((&name, ""));
    if suffix.starts_with(".zip") {
        let path = file.display();
        bail!("{path} is an archive: unpack it elsewhere with 'unzip -d DIR {path}' and name the segment in it");
    }
    let named = digits.parse().ok().filter(|_| name.ends_with(".meta") || suffix.starts_with(".arc"));
    if base.or(named).is_none() {
        show::say(&format!(
            "metaq: offsets are counted from the begin of {name}, as its name does not tell where it lay: the log line that \
             named it does, for --base"
        ));
    }
    let base = base.or(named).unwrap_or(0);
    if base > Offset::MAX.get() - u64::from(u32::MAX) {
        bail!("a file cannot begin at {base}: offsets end at {}", Offset::MAX);
    }
    Ok(Source { base, path: file.to_owned() })
}

struct Dump<'a> {
    out: BufWriter<io::StdoutLock<'a>>,
    print: Print,
    hex: bool,
    /// Bytes of a payload.
    shown: usize,
    from: u64,
    /// Messages that are still wanted.
    left: u64,
    end: u64,
    is_first: bool,
    /// Printed raw, with a line feed inside: 'metaq put' would take each for several messages.
    many_lines: u64,
}

impl Dump<'_> {
    fn all(&mut self, sources: &[Source]) -> anyhow::Result<()> {
        if matches!(self.print, Print::Table) {
            self.line(&header())?;
        }
        for (place, source) in sources.iter().enumerate() {
            if place > 0 && self.left > 0 && source.base != self.end {
                show::say(&format!("metaq: {} begins at {}, not at {}", source.path.display(), source.base, self.end));
            }
            self.file(source)?;
            if self.left == 0 {
                break;
            }
        }
        self.out.flush().context(UNWRITTEN)
    }

    fn file(&mut self, source: &Source) -> anyhow::Result<()> {
        let cannot = || format!("cannot read {}", source.path.display());
        let file = RecordFile::open(&source.path).with_context(cannot)?;
        self.end = source.base;
        for piece in file.pieces(0) {
            let piece = piece.with_context(cannot)?;
            let (Piece::Record { at, end, .. }
            | Piece::Damage(std::ops::Range { start: at, end })
            | Piece::Tail(std::ops::Range { start: at, end })) = piece;
            self.end = source.base + end;
            let offset = source.base + at;
            let is_wanted = match &piece {
                Piece::Record { .. } => offset >= self.from,
                Piece::Damage(_) | Piece::Tail(_) => self.end > self.from,
            };
            if !is_wanted {
                continue;
            }
            if self.left == 0 {
                return Ok(());
            }
            if std::mem::take(&mut self.is_first) && offset > self.from && self.from > source.base {
                show::say(&format!("metaq: no message begins at {}; the next begins at {offset}", self.from));
            }
            match piece {
                Piece::Record { header, .. } => {
                    let body =
                        read(&file, at + u64::from(RECORD_HEADER_BYTES), header.length.into()).with_context(cannot)?;
                    self.message(offset, &header, &body)?;
                    self.left -= 1;
                }
                Piece::Damage(_) | Piece::Tail(_) => {
                    let first = read(&file, at, (end - at).min(DAMAGE_SHOWN_BYTES)).with_context(cannot)?;
                    let fault = file.fault_at(at).with_context(cannot)?;
                    self.damage(offset, end - at, matches!(piece, Piece::Tail(_)), &fault, &first)?;
                }
            }
        }
        Ok(())
    }

    fn message(&mut self, offset: u64, header: &RecordHeader, body: &[u8]) -> anyhow::Result<()> {
        let (attribute, payload) = split_attribute(header.flag, body).unwrap_or((None, body));
        let shown = &payload[..payload.len().min(self.shown)];
        match self.print {
            Print::Raw => {
                self.many_lines += u64::from(payload.contains(&b'\n'));
                self.out.write_all(payload).context(UNWRITTEN)?;
                self.line("")
            }
            Print::Json => {
                let message = Message {
                    offset,
                    id: header.id.0,
                    time: unix_ms(header.id).and_then(time_text),
                    flag: header.flag,
                    attribute: attribute.map(escape),
                    length: header.length,
                    checksum: header.checksum,
                    checksum_ok: true,
                    payload: (!self.hex).then(|| escape(shown)),
                    payload_hex: self.hex.then(|| hex(shown)),
                    payload_bytes: payload.len(),
                };
                self.line(&show::json(&message)?)
            }
            Print::Table => {
                let mut text = if self.hex { hex(shown) } else { escape(shown) };
                if shown.len() < payload.len() {
                    text.push('…');
                }
                let time = or_dash(unix_ms(header.id).and_then(time_text));
                let attribute = or_dash(attribute.map(escape));
                let (id, flag, length) = (header.id, header.flag, header.length);
                self.line(&format!(
                    "{offset:>12}  {id:>20}  {time:<24}  {flag:>4}  {length:>8}  ok     {attribute:<9}  {text}"
                ))
            }
        }
    }

    fn damage(
        &mut self,
        offset: u64,
        bytes: u64,
        is_tail: bool,
        fault: &PieceFault,
        first: &[u8],
    ) -> anyhow::Result<()> {
        let fault = fault.to_string();
        match self.print {
            Print::Json => {
                let first_bytes_hex = hex(first);
                self.line(&show::json(&Damage { offset, damaged_bytes: bytes, is_tail, fault, first_bytes_hex })?)
            }
            Print::Table => {
                let more = if bytes > first.len() as u64 { "…" } else { "" };
                let what = if is_tail { "up to the end of the file" } else { "whole ones follow" };
                self.line(&format!(
                    "{offset:>12}  DAMAGED: {bytes} bytes are no message ({fault}), {what}: {}{more}",
                    hex(first)
                ))
            }
            Print::Raw => {
                show::say(&format!("metaq: {bytes} bytes from {offset} on are no message ({fault}): left out"));
                Ok(())
            }
        }
    }

    fn line(&mut self, text: &str) -> anyhow::Result<()> {
        writeln!(self.out, "{text}").context(UNWRITTEN)
    }
}

const UNWRITTEN: &str = "standard output cannot be written";

fn header() -> String {
    let (offset, id, time, flag, length, attribute) = ("OFFSET", "ID", "TIME", "FLAG", "LENGTH", "ATTRIBUTE");
    format!("{offset:>12}  {id:>20}  {time:<24}  {flag:>4}  {length:>8}  CHECK  {attribute:<9}  PAYLOAD")
}

fn read(file: &RecordFile, at: u64, bytes: u64) -> io::Result<Vec<u8>> {
    // No broker takes a longer one, so that a file of something else cannot take all memory.
    let mut body = vec![0; bytes.min(DISCARD_BYTES_MAX.into()) as usize];
    file.read_at(at, &mut body)?;
    Ok(body)
}

fn hex(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len() * 2);
    for byte in bytes {
        write!(text, "{byte:02x}").expect("a String takes every write");
    }
    text
}

/// As RFC 3339 has it, in UTC.
fn time_text(unix_ms: i64) -> Option<String> {
    let at = OffsetDateTime::from_unix_timestamp_nanos(i128::from(unix_ms) * 1_000_000).ok()?;
    let (year, month, day) = at.to_calendar_date();
    let (hour, minute, second, ms) = at.to_hms_milli();
    Some(format!("{year:04}-{:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{ms:03}Z", u8::from(month)))
}
