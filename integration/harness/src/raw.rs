//! A socket that speaks the protocol without any of our client code, so that tests see the bytes.

use anyhow::{Context, Result, bail};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

/// One answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reply {
    /// 200 for a `value`.
    pub code: i32,
    pub opaque: i32,
    pub body: Vec<u8>,
    pub is_value: bool,
    /// Words behind the opaque.
    pub extra: Vec<String>,
}

impl Reply {
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// Id, partition and offset of a successful put.
    pub fn stored(&self) -> Result<Stored> {
        if self.code != 200 {
            bail!("the put was answered {} {:?}", self.code, self.text());
        }
        let text = self.text();
        let words: Vec<&str> = text.split(' ').collect();
        let [id, partition, offset] = words[..] else { bail!("not id, partition and offset: {text:?}") };
        Ok(Stored { id: id.parse()?, partition: partition.parse()?, offset: offset.parse()? })
    }

    /// The whole records of a value, each with the offset it lies at when the value begins at `base`.
    pub fn records(&self, base: u64) -> Vec<Record> {
        let mut records = Vec::new();
        let mut at = 0;
        while let Some(head) = self.body.get(at..at + 20) {
            let word = |range: std::ops::Range<usize>| i32::from_be_bytes(head[range].try_into().expect("four bytes"));
            let length = word(0..4) as usize;
            let Some(body) = self.body.get(at + 20..at + 20 + length) else { break };
            records.push(Record {
                offset: base + at as u64,
                checksum: word(4..8),
                id: i64::from_be_bytes(head[8..16].try_into().expect("eight bytes")),
                flag: word(16..20),
                body: body.to_vec(),
            });
            at += 20 + length;
        }
        records
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stored {
    pub id: i64,
    pub partition: i32,
    pub offset: u64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    pub offset: u64,
    pub checksum: i32,
    pub id: i64,
    pub flag: i32,
    pub body: Vec<u8>,
}

/// What the records say, for those whose bodies are text.
pub fn bodies(records: &[Record]) -> Vec<String> {
    records.iter().map(|record| String::from_utf8_lossy(&record.body).into_owned()).collect()
}

impl Record {
    /// The offset behind it.
    pub fn end(&self) -> u64 {
        self.offset + 20 + self.body.len() as u64
    }
}

#[derive(Debug)]
pub struct Raw {
    stream: BufReader<TcpStream>,
    opaque: i32,
}

impl Raw {
    pub fn connect(address: &str) -> Result<Raw> {
        let stream = TcpStream::connect(address).with_context(|| format!("connecting to {address}"))?;
        stream.set_read_timeout(Some(Duration::from_secs(20)))?;
        stream.set_nodelay(true)?;
        Ok(Raw { stream: BufReader::new(stream), opaque: i32::MIN })
    }

    /// Waits for an answer no longer than `patience`.
    pub fn connect_for(address: &str, patience: Duration) -> Result<Raw> {
        let raw = Raw::connect(address)?;
        raw.set_patience(patience)?;
        Ok(raw)
    }

    /// How long an answer is waited for.
    pub fn set_patience(&self, patience: Duration) -> Result<()> {
        Ok(self.stream.get_ref().set_read_timeout(Some(patience))?)
    }

    pub fn send(&mut self, bytes: &[u8]) -> Result<()> {
        Ok(self.stream.get_mut().write_all(bytes)?)
    }

    /// Says that nothing more comes; answers can still be read.
    pub fn finish(&mut self) -> Result<()> {
        Ok(self.stream.get_ref().shutdown(Shutdown::Write)?)
    }

    /// Sends `line` again and again without reading, until nobody takes more of it or `bytes_max` are sent; answers what
    /// was sent.
    pub fn flood(&mut self, line: &str, bytes_max: usize) -> Result<usize> {
        /// A broker that takes nothing for this long has stopped reading.
        const PATIENCE: Duration = Duration::from_secs(1);
        let many = line.repeat(64 * 1024 / line.len());
        self.stream.get_ref().set_write_timeout(Some(PATIENCE))?;
        let mut sent = 0;
        while sent < bytes_max {
            match self.stream.get_mut().write(&many.as_bytes()[sent % many.len()..]) {
                Ok(bytes) => sent += bytes,
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(sent)
    }

    pub fn ask(&mut self, line: &str) -> Result<Reply> {
        self.send(format!("{line}\r\n").as_bytes())?;
        self.reply()
    }

    /// Sends `put TOPIC PARTITION LEN` and what `words` says, with a fresh opaque, and the body.
    pub fn put_with(&mut self, topic: &str, partition: i32, words: &str, body: &[u8]) -> Result<Reply> {
        self.opaque += 1;
        let space = if words.is_empty() { "" } else { " " };
        let mut bytes =
            format!("put {topic} {partition} {} {words}{space}{}\r\n", body.len(), self.opaque).into_bytes();
        bytes.extend_from_slice(body);
        self.send(&bytes)?;
        let reply = self.reply()?;
        if reply.opaque != self.opaque {
            bail!("opaque {} came back as {}", self.opaque, reply.opaque);
        }
        Ok(reply)
    }

    /// A put of flag 0 without a checksum.
    pub fn put(&mut self, topic: &str, partition: i32, body: &[u8]) -> Result<Reply> {
        self.put_with(topic, partition, "0 -1", body)
    }

    pub fn get(&mut self, topic: &str, partition: i32, offset: i64, max: i32) -> Result<Reply> {
        self.opaque += 1;
        let opaque = self.opaque;
        self.ask(&format!("get {topic} raw {partition} {offset} {max} {opaque}"))
    }

    /// The readable end.
    pub fn end(&mut self, topic: &str, partition: i32) -> Result<u64> {
        let reply = self.get(topic, partition, i64::MAX, 1024)?;
        if reply.code != 301 {
            bail!("no end: {} {:?}", reply.code, reply.text());
        }
        Ok(reply.text().parse()?)
    }

    /// Every record from `from` to the readable end.
    pub fn read_all(&mut self, topic: &str, partition: i32, from: u64) -> Result<Vec<Record>> {
        let (mut at, mut all) = (from, Vec::new());
        loop {
            let reply = self.get(topic, partition, at as i64, 1 << 20)?;
            if !reply.is_value {
                return match reply.code {
                    301 if reply.text().parse::<u64>()? > at => {
                        at = reply.text().parse()?;
                        continue;
                    }
                    301 | 404 => Ok(all),
                    code => bail!("get at {at}: {code} {:?}", reply.text()),
                };
            }
            let records = reply.records(at);
            at = records.last().with_context(|| format!("a value without a whole record at {at}"))?.end();
            all.extend(records);
        }
    }

    pub fn reply(&mut self) -> Result<Reply> {
        let mut head = Vec::new();
        self.stream.read_until(b'\n', &mut head)?;
        if head.is_empty() {
            bail!("the broker closed the connection");
        }
        let head = String::from_utf8(head)?;
        let words: Vec<&str> = head.trim_end_matches("\r\n").split(' ').collect();
        let (is_value, code, length, opaque, extra) = match words[..] {
            ["value", length, opaque, ref extra @ ..] => (true, "200", length, opaque, extra),
            ["result", code, length, opaque] => (false, code, length, opaque, &[][..]),
            _ => bail!("not an answer: {head:?}"),
        };
        let mut body = vec![0; length.parse()?];
        self.stream.read_exact(&mut body)?;
        let extra = extra.iter().map(|word| (*word).to_owned()).collect();
        Ok(Reply { code: code.parse()?, opaque: opaque.parse()?, body, is_value, extra })
    }

    /// Whether the broker closes, with nothing more to read before that.
    pub fn is_closed(&mut self) -> Result<bool> {
        let mut rest = Vec::new();
        match self.stream.read_to_end(&mut rest) {
            Ok(_) => Ok(rest.is_empty()),
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => Ok(true),
            Err(error) => Err(error.into()),
        }
    }
}
