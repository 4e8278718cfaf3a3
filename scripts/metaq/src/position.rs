//! From where a partition is read.

use std::collections::VecDeque;
use std::fmt;
use std::str::FromStr;

use metaq_client::{Client, GetAnswer};
use metaq_types::Offset;
use metaq_types::limits::RECORD_HEADER_BYTES;
use metaq_wire::{RecordHeader, Records};

const FETCH_BYTES: i32 = 1024 * 1024;

/// More would have to be remembered one by one.
pub(crate) const NEWEST_MAX: usize = 1_000_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum From {
    Start,
    End,
    At(Offset),
    /// So many messages before the end, of each partition.
    Newest(usize),
}

impl FromStr for From {
    type Err = String;

    fn from_str(text: &str) -> Result<From, String> {
        let expected = || format!("expected start, end, an offset or newest:N with N up to {NEWEST_MAX}");
        match text {
            "start" => Ok(From::Start),
            "end" => Ok(From::End),
            _ => match text.strip_prefix("newest:") {
                Some(count) => count
                    .parse()
                    .ok()
                    .filter(|count| (1..=NEWEST_MAX).contains(count))
                    .map(From::Newest)
                    .ok_or_else(expected),
                None => text.parse().ok().and_then(Offset::from_wire).map(From::At).ok_or_else(expected),
            },
        }
    }
}

impl fmt::Display for From {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            From::Start => f.write_str("start"),
            From::End => f.write_str("end"),
            From::At(offset) => offset.fmt(f),
            From::Newest(count) => write!(f, "newest:{count}"),
        }
    }
}

/// One partition to ask about.
pub(crate) struct Partition<'a> {
    pub(crate) client: &'a Client,
    pub(crate) topic: &'a str,
    pub(crate) group: &'a str,
    pub(crate) number: i32,
}

impl Partition<'_> {
    /// The offset to read first; `None` when the broker has no such partition.
    pub(crate) async fn resolve(&self, from: From) -> anyhow::Result<Option<Offset>> {
        match from {
            From::Start => self.nearest(Offset::ZERO).await,
            From::At(offset) => Ok(Some(offset)),
            From::End => self.end().await,
            From::Newest(count) => self.newest(count).await,
        }
    }

    /// What consumers may read ends here.
    pub(crate) async fn end(&self) -> anyhow::Result<Option<Offset>> {
        self.nearest(Offset::MAX).await
    }

    /// Where the record ends that begins before `offset` and is not over there; `None` without one.
    pub(crate) async fn record_end(&self, offset: Offset) -> anyhow::Result<Option<Offset>> {
        let Some(start) = self.nearest(offset).await? else { return Ok(None) };
        let Some(before) = self.last_records(start, offset, 1).await?.pop_back() else { return Ok(None) };
        let got = self.client.get(self.topic, self.group, self.number, before.wire(), FETCH_BYTES, None).await?;
        let GetAnswer::Value { body, .. } = got else { return Ok(None) };
        let Some(header) = body.first_chunk().and_then(|header| RecordHeader::parse(header).ok()) else {
            return Ok(None);
        };
        Ok(Some(before + header.record_bytes()).filter(|end| *end > offset))
    }

    /// The start of the segment that holds `offset`, or the nearest end of the log.
    async fn nearest(&self, offset: Offset) -> anyhow::Result<Option<Offset>> {
        Ok(self.client.offset(self.topic, self.group, self.number, offset.wire()).await?)
    }

    /// Records can be walked forwards only, so segments are read from the newest backwards until one holds enough.
    async fn newest(&self, count: usize) -> anyhow::Result<Option<Offset>> {
        let Some(end) = self.end().await? else { return Ok(None) };
        let mut found: VecDeque<Offset> = VecDeque::new();
        let mut later = end;
        while found.len() < count && later > Offset::ZERO {
            let before = Offset::new(later.get() - 1).expect("smaller than an offset");
            let Some(start) = self.nearest(before).await? else { break };
            if start >= later {
                break;
            }
            let missing = count - found.len();
            let mut records = self.last_records(start, later, missing).await?;
            while let Some(record) = records.pop_back() {
                found.push_front(record);
            }
            later = start;
        }
        Ok(Some(found.front().copied().unwrap_or(end)))
    }

    /// The offsets of the last `count` records between `start`, a record's beginning, and `end`.
    async fn last_records(&self, start: Offset, end: Offset, count: usize) -> anyhow::Result<VecDeque<Offset>> {
        let mut last = VecDeque::with_capacity(count.min(4096));
        let mut at = start;
        let mut bytes_max = FETCH_BYTES;
        while at < end {
            let got = self.client.get(self.topic, self.group, self.number, at.wire(), bytes_max, None).await?;
            let body = match got {
                GetAnswer::Value { body, .. } => body,
                GetAnswer::Moved(to) if to > at => {
                    at = to;
                    continue;
                }
                GetAnswer::Moved(_) | GetAnswer::NotYet { .. } | GetAnswer::NoPartition => break,
            };
            let mut records = Records::new(&body);
            for (position, _, _) in records.by_ref().map_while(Result::ok) {
                let record = at + position as u64;
                if record >= end {
                    break;
                }
                if last.len() == count {
                    last.pop_front();
                }
                last.push_back(record);
            }
            if records.position() == 0 {
                if bytes_max > FETCH_BYTES || body.len() < RECORD_HEADER_BYTES as usize {
                    break;
                }
                // One record longer than the fetch, behind a broker that does not send it whole.
                bytes_max = bytes_max.saturating_mul(64);
                continue;
            }
            at = at + records.position() as u64;
        }
        Ok(last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_to_begin_is_named_in_four_ways() {
        assert_eq!("start".parse(), Ok(From::Start));
        assert_eq!("end".parse(), Ok(From::End));
        assert_eq!("170".parse(), Ok(From::At(Offset::new(170).unwrap())));
        assert_eq!("newest:5".parse(), Ok(From::Newest(5)));
        for place in ["start", "end", "170", "newest:5"] {
            assert_eq!(place.parse::<From>().unwrap().to_string(), place);
        }
        for bad in ["newest:0", "newest:", "-1", "begin", "newest:99999999"] {
            assert!(bad.parse::<From>().is_err(), "{bad}");
        }
    }
}
