//! Replication, from either end.

use super::flag;
use crate::metrics::{self, Samples};
use crate::watched::Watched;
use metaq_link::progress::{LinkState, LinkStatus};
use metaq_link::standing::Standing;
use metaq_types::{PartitionId, SlaveId};
use std::collections::BTreeMap;

/// Partitions of slaves that have series of their own: three each.
const LAGS_MAX: usize = 10_000;

/// How far one slave is behind with one partition.
struct Lag {
    slave: SlaveId,
    partition: PartitionId,
    bytes: u64,
    messages: Option<u64>,
    ms: u64,
}

pub(super) fn sample(watched: &Watched, samples: &mut Samples) {
    samples.put(&metrics::LAG_BOUND, watched.bound.as_secs_f64());
    match (watched.node.link(), watched.node.slave_id()) {
        (Some(link), Some(id)) => slave(&link, id, samples),
        _ => master(watched, samples),
    }
}

fn master(watched: &Watched, samples: &mut Samples) {
    for (slave, standing, heard_age) in watched.node.slaves() {
        let slave = slave.to_string();
        for other in Standing::ALL {
            samples.put_for(&metrics::SLAVE_STANDING, &[&slave, other.word()], flag(other == standing));
        }
        samples.put_for(&metrics::SLAVE_HEARD_AGE, &[&slave], heard_age.as_secs_f64());
    }
    let lags = watched.node.replicas().into_iter().map(|line| Lag {
        slave: line.slave,
        partition: line.partition,
        bytes: line.lag_bytes,
        messages: line.lag_messages,
        ms: line.behind_ms,
    });
    lag(lags.collect(), samples);
}

fn slave(link: &LinkStatus, id: SlaveId, samples: &mut Samples) {
    samples.put(&metrics::FOLLOWING, flag(matches!(link.state, LinkState::Following { .. })));
    if let Some(age_ms) = link.heard_age_ms {
        samples.put(&metrics::HEARD_AGE, age_ms as f64 / 1000.0);
    }
    samples.count(&metrics::COPIED_BYTES, link.copied_bytes);
    samples.count(&metrics::COPY_RATE, link.bytes_per_second);
    samples.count(&metrics::LEFT_BYTES, link.left_bytes());
    if let Some(left) = link.time_left() {
        samples.put(&metrics::TIME_LEFT, left.as_secs_f64());
    }
    let mut troubled: BTreeMap<&str, u64> = BTreeMap::new();
    for trouble in link.partitions.iter().filter_map(|copy| copy.trouble()) {
        *troubled.entry(trouble).or_default() += 1;
    }
    for (trouble, count) in troubled {
        samples.put_for(&metrics::TROUBLED, &[trouble], count as f64);
    }
    let lags = link.partitions.iter().map(|copy| Lag {
        slave: id,
        partition: copy.partition.clone(),
        bytes: copy.lag_bytes(),
        messages: None,
        ms: copy.behind_ms,
    });
    lag(lags.collect(), samples);
}

fn lag(mut lags: Vec<Lag>, samples: &mut Samples) {
    samples.count(&metrics::LAG_OMITTED, lags.len().saturating_sub(LAGS_MAX) as u64);
    if lags.len() > LAGS_MAX {
        lags.sort_by_key(|lag| std::cmp::Reverse((lag.ms, lag.bytes)));
        lags.truncate(LAGS_MAX);
    }
    for Lag { slave, partition: PartitionId { topic, number }, bytes, messages, ms } in lags {
        let (slave, number) = (slave.to_string(), number.to_string());
        let labels = [slave.as_str(), topic.as_str(), number.as_str()];
        samples.put_for(&metrics::LAG_BYTES, &labels, bytes as f64);
        samples.put_for(&metrics::LAG_SECONDS, &labels, ms as f64 / 1000.0);
        if let Some(messages) = messages {
            samples.put_for(&metrics::LAG_MESSAGES, &labels, messages as f64);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_too_many_the_worst_are_shown() {
        let lag_of = |number: u32| Lag {
            slave: SlaveId::new(0).unwrap(),
            partition: format!("t-{number}").parse().unwrap(),
            bytes: u64::from(number),
            messages: None,
            ms: u64::from(number),
        };
        let mut samples = Samples::default();
        lag((0..LAGS_MAX as u32 + 5).map(lag_of).collect(), &mut samples);
        let text = metrics::encode(samples);
        assert!(text.contains("metaq_link_lag_series_omitted 5.0\n"));
        assert_eq!(text.lines().filter(|line| line.starts_with("metaq_link_lag_bytes{")).count(), LAGS_MAX);
        assert!(!text.contains("partition=\"4\"") && text.contains("partition=\"5\""));
    }
}
