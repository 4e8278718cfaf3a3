//! What a node's console says: metrics and readiness.

use crate::ports::free_port;
use crate::process::{Site, wait_until};
use anyhow::{Context, Result};
use serde_json::Value;
use std::collections::{BTreeMap, HashSet};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// A node's console, before it is started.
#[derive(Debug)]
pub struct Console {
    pub port: u16,
}

impl Console {
    pub fn on(site: &mut Site) -> Result<Console> {
        let port = free_port()?;
        site.set("dashboardHttpPort", &port.to_string());
        Ok(Console { port })
    }

    /// Status and body; an error while it does not listen yet.
    pub fn ask(&self, request: &str) -> Result<(u16, String)> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port))?;
        stream.set_read_timeout(Some(Duration::from_secs(10)))?;
        stream.write_all(format!("{request} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n").as_bytes())?;
        let mut text = String::new();
        stream.read_to_string(&mut text)?;
        let (head, body) = text.split_once("\r\n\r\n").context("no end of the head")?;
        let status = head.split(' ').nth(1).context("no status")?.parse()?;
        Ok((status, body.to_owned()))
    }

    pub fn metrics(&self) -> Result<Metrics> {
        let (status, body) = wait_until("the console to answer", || Ok(self.ask("GET /metrics").ok()))?;
        assert_eq!(status, 200);
        Metrics::parse(&body)
    }

    /// Status, codes of the reasons, codes of the notes.
    pub fn ready(&self) -> Result<(u16, Vec<String>, Vec<String>)> {
        let (status, body) = wait_until("the console to answer", || Ok(self.ask("GET /readyz").ok()))?;
        let json: Value = serde_json::from_str(&body)?;
        assert_eq!(json["ready"], status == 200, "{body}");
        let codes = |list: &Value| {
            let codes = list.as_array().into_iter().flatten();
            codes.filter_map(|it| it["code"].as_str().map(str::to_owned)).collect()
        };
        Ok((status, codes(&json["reasons"]), codes(&json["notes"])))
    }

    pub fn wait_ready(&self) -> Result<()> {
        wait_until("readiness", || Ok((self.ready()?.0 == 200).then_some(())))
    }

    pub fn wait_reason(&self, code: &str) -> Result<()> {
        wait_until(&format!("the reason {code}"), || {
            let (status, reasons, _) = self.ready()?;
            Ok((status == 503 && reasons.iter().any(|it| it == code)).then_some(()))
        })
    }

    /// Whether the throttle sets in before that long.
    pub fn is_held_back_within(&self, patience: Duration) -> Result<bool> {
        let until = Instant::now() + patience;
        while self.metrics()?.at("metaq_broker_throttle_delay_seconds")? == 0.0 {
            if Instant::now() > until {
                return Ok(false);
            }
            std::thread::park_timeout(Duration::from_millis(20));
        }
        Ok(true)
    }

    pub fn wait_standing(&self, standing: &str) -> Result<()> {
        let series = format!("metaq_link_slave_standing{{slave=\"0\",standing=\"{standing}\"}}");
        wait_until(&format!("the slave to be {standing}"), || {
            Ok((self.metrics()?.get(&series) == Some(1.0)).then_some(()))
        })
    }
}

/// Series → value.
#[derive(Debug)]
pub struct Metrics(BTreeMap<String, f64>);

impl Metrics {
    /// Checks the form of every line on the way.
    fn parse(text: &str) -> Result<Metrics> {
        let mut values = BTreeMap::new();
        let mut declared = HashSet::new();
        let (text, rest) = text.split_once("# EOF\n").context("no # EOF")?;
        assert_eq!(rest, "");
        for line in text.lines() {
            if let Some(declaration) = line.strip_prefix("# TYPE ") {
                let (name, kind) = declaration.split_once(' ').context("no kind")?;
                declared.insert(if kind == "counter" { format!("{name}_total") } else { name.to_owned() });
            } else if !line.starts_with("# HELP ") {
                let (series, value) = line.rsplit_once(' ').with_context(|| line.to_owned())?;
                let name = series.split('{').next().unwrap_or_default();
                assert!(declared.contains(name), "{line} comes before its # TYPE");
                let value: f64 = value.parse().with_context(|| line.to_owned())?;
                assert!(value >= 0.0, "{line}");
                assert!(values.insert(series.to_owned(), value).is_none(), "{line} stands there twice");
            }
        }
        Ok(Metrics(values))
    }

    pub fn names(&self) -> impl Iterator<Item = &String> {
        self.0.keys()
    }

    pub fn get(&self, series: &str) -> Option<f64> {
        self.0.get(series).copied()
    }

    pub fn at(&self, series: &str) -> Result<f64> {
        self.get(series).with_context(|| format!("no {series} among {:?}", self.0.keys()))
    }

    /// (bytes, messages, seconds) of slave 0 and a partition of `test`.
    pub fn lag(&self, partition: u32) -> Result<(f64, Option<f64>, f64)> {
        let series =
            |what: &str| format!("metaq_link_lag_{what}{{slave=\"0\",topic=\"test\",partition=\"{partition}\"}}");
        Ok((self.at(&series("bytes"))?, self.get(&series("messages")), self.at(&series("seconds"))?))
    }
}
