//! One blocking connection that asks one question at a time, with a buffer that is used again for every answer.

use crate::frame::{Garbled, GetQuestion, Kind, number, parse_head};
use crate::lane::{ANSWER_WAIT, connect};
use anyhow::{Result, bail, ensure};
use rustix::event::{PollFd, PollFlags, Timespec};
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};

/// A broker may answer with one whole record although it is longer than asked for.
const RECORD_BYTES_MAX: usize = 2 * 1024 * 1024;
const HEAD_BYTES_MAX: usize = 256;

/// What a broker said to a get.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Answer<'a> {
    Value(&'a [u8]),
    /// Go on at this offset.
    Moved(i64),
    /// Nothing at that offset, or no such partition yet: both are 404.
    Nothing,
    Refused {
        code: u16,
        text: String,
    },
}

pub(crate) struct Reader {
    stream: TcpStream,
    buffer: Vec<u8>,
    question: String,
    opaque: i32,
}

impl Reader {
    /// `bytes_max`: the largest value that will be asked for.
    pub(crate) fn connect(address: SocketAddr, bytes_max: u32) -> Result<Reader> {
        let stream = connect(address)?;
        stream.set_read_timeout(Some(ANSWER_WAIT))?;
        let buffer = vec![0; HEAD_BYTES_MAX + RECORD_BYTES_MAX.max(bytes_max as usize)];
        Ok(Reader { stream, buffer, question: String::new(), opaque: i32::MIN })
    }

    pub(crate) fn get(&mut self, question: &GetQuestion<'_>) -> Result<Answer<'_>> {
        self.opaque = self.opaque.wrapping_add(1);
        question.write(&mut self.question, self.opaque);
        self.stream.write_all(self.question.as_bytes())?;
        let (kind, body) = self.answer()?;
        Ok(match kind {
            Kind::Value if body.is_empty() => bail!(Garbled("a value without a byte".into())),
            Kind::Value => Answer::Value(body),
            Kind::Result { code: 404 } => Answer::Nothing,
            Kind::Result { code: 301 } => match number(body) {
                Some(offset) => Answer::Moved(offset),
                None => bail!(Garbled(format!("301 with `{}` for an offset", body.escape_ascii()))),
            },
            Kind::Result { code } => Answer::Refused { code, text: String::from_utf8_lossy(body).into_owned() },
        })
    }

    /// The text of the `version` answer.
    pub(crate) fn version(&mut self) -> Result<String> {
        self.opaque = self.opaque.wrapping_add(1);
        self.stream.write_all(format!("version {}\r\n", self.opaque).as_bytes())?;
        let (kind, body) = self.answer()?;
        let text = String::from_utf8_lossy(body).into_owned();
        ensure!(kind == Kind::Result { code: 200 }, "the broker answers {kind:?} `{text}` to version");
        Ok(text)
    }

    /// Where the partition's readable bytes end; `None` when the broker does not know the partition yet.
    pub(crate) fn readable_end(&mut self, topic: &str, partition: u32) -> Result<Option<i64>> {
        // No log reaches this offset, and so the answer is where the newest message will be.
        let offset = i64::MAX;
        let question = GetQuestion { topic, group: "load", partition, offset, bytes_max: 64 * 1024, wait_ms: None };
        match self.get(&question)? {
            Answer::Moved(end) => Ok(Some(end)),
            Answer::Nothing => Ok(None),
            other => bail!("the broker answers {other:?} to a get at the largest offset of {topic}-{partition}"),
        }
    }

    /// Waits until `milliseconds` have gone or the broker has something to say, which without a question it must not.
    pub(crate) fn pause(&self, milliseconds: u32) -> Result<()> {
        let time =
            Timespec { tv_sec: i64::from(milliseconds / 1000), tv_nsec: i64::from(milliseconds % 1000) * 1_000_000 };
        let ready = rustix::event::poll(&mut [PollFd::new(&self.stream, PollFlags::IN)], Some(&time))?;
        ensure!(ready == 0, "the broker closed the connection or answered no question");
        Ok(())
    }

    fn answer(&mut self) -> Result<(Kind, &[u8])> {
        let mut filled = 0;
        let mut head = None;
        loop {
            match self.stream.read(&mut self.buffer[filled..]) {
                Ok(0) => bail!("the broker closed the connection"),
                Ok(bytes) => filled += bytes,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    bail!("no answer within {} s", ANSWER_WAIT.as_secs())
                }
                Err(error) => return Err(error.into()),
            }
            if head.is_none() {
                head = parse_head(&self.buffer[..filled])?;
            }
            let Some(head) = head else { continue };
            let frame_bytes = head.head_bytes + head.body_bytes;
            ensure!(head.opaque == self.opaque, Garbled(format!("opaque {} answers {}", head.opaque, self.opaque)));
            ensure!(frame_bytes <= self.buffer.len(), Garbled(format!("a body of {} bytes", head.body_bytes)));
            ensure!(filled <= frame_bytes, Garbled("bytes behind the body of the only answer".into()));
            if filled == frame_bytes {
                return Ok((head.kind, &self.buffer[head.head_bytes..frame_bytes]));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader};
    use std::net::TcpListener;

    /// Answers every line with the next of `replies`, in which `OPAQUE` stands for the one of the request.
    fn answering(replies: &'static [&'static str]) -> Reader {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            let mut stream = BufReader::new(listener.accept().unwrap().0);
            for reply in replies {
                let mut line = String::new();
                stream.read_line(&mut line).unwrap();
                let opaque = line.split_whitespace().find(|word| word.starts_with("-21")).unwrap();
                for piece in reply.replace("OPAQUE", opaque).as_bytes().chunks(7) {
                    stream.get_mut().write_all(piece).unwrap();
                }
            }
        });
        Reader::connect(address, 100).unwrap()
    }

    fn question() -> GetQuestion<'static> {
        GetQuestion { topic: "t", group: "g", partition: 0, offset: 0, bytes_max: 100, wait_ms: None }
    }

    #[test]
    fn each_answer_has_its_variant() {
        let mut reader = answering(&[
            "value 5 OPAQUE seg=0 end=5 epoch=1\r\nhello",
            "result 301 2 OPAQUE\r\n40",
            "result 404 4 OPAQUE\r\nnone",
            "result 403 6 OPAQUE\r\nclosed",
            "result 200 7 OPAQUE\r\n1.4.6.2",
        ]);
        assert_eq!(reader.get(&question()).unwrap(), Answer::Value(b"hello"));
        assert_eq!(reader.get(&question()).unwrap(), Answer::Moved(40));
        assert_eq!(reader.get(&question()).unwrap(), Answer::Nothing);
        assert_eq!(reader.get(&question()).unwrap(), Answer::Refused { code: 403, text: "closed".into() });
        assert_eq!(reader.version().unwrap(), "1.4.6.2");
    }

    #[test]
    fn a_wrong_answer_is_an_error() {
        let wrong: [&[&str]; 6] = [
            &["value 5 7\r\nhello"],
            &["value 0 OPAQUE\r\n"],
            &["value 99999999 OPAQUE\r\n"],
            &["value 1 OPAQUE\r\nhello world"],
            &["result 301 3 OPAQUE\r\nabc"],
            &["value 50 OPAQUE\r\nhello"],
        ];
        for replies in wrong {
            assert!(answering(replies).get(&question()).is_err(), "{replies:?}");
        }
    }
}
