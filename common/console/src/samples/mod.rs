//! Where each value comes from.

mod link;
mod store;

use crate::metrics::{self, Samples};
use crate::ready::{self, Facts};
use crate::watched::Watched;
use metaq_net::refusals::Reason;
use metaq_registry::State;
use std::path::Path;

/// Everything, now.
pub(crate) fn take(watched: &Watched) -> Samples {
    let mut samples = Samples::default();
    broker(watched, &mut samples);
    transactions(watched, &mut samples);
    store::sample(watched.node.store(), &mut samples);
    link::sample(watched, &mut samples);
    let registered = matches!(watched.registry_state(), Some(State::Registered | State::Disabled));
    samples.put(&metrics::REGISTERED, flag(registered));
    for reason in Reason::ALL {
        let refused = watched.node.refusals().count(reason);
        samples.put_for(&metrics::REFUSED, &[reason.label()], refused as f64);
    }
    if let Some(days) = watched.node.certificate_days_left() {
        samples.put(&metrics::CERTIFICATE_DAYS, days as f64);
    }
    process(&mut samples);
    samples
}

fn flag(value: bool) -> f64 {
    f64::from(u8::from(value))
}

fn broker(watched: &Watched, samples: &mut Samples) {
    let (node, counters) = (&watched.node, watched.node.counters());
    let slave_id = node.slave_id().map(|id| id.to_string());
    let (role, slave_id) = (if slave_id.is_some() { "slave" } else { "master" }, slave_id.unwrap_or_default());
    let broker_id = node.config().system.broker_id.to_string();
    let labels = [node.version(), role, &broker_id, &slave_id, node.store().node_id()];
    samples.put_for(&metrics::INFO, &labels, 1.0);
    let readiness = ready::judge(&Facts::look(watched));
    samples.put(&metrics::READY, flag(readiness.ready));
    for reason in &readiness.reasons {
        samples.put_for(&metrics::NOT_READY, &[reason.code], 1.0);
    }
    samples.put(&metrics::ACCEPTING, flag(node.slave_id().is_none() && node.gate_shut().is_none()));
    samples.put(&metrics::UPTIME, node.uptime().as_secs_f64());
    samples.count(&metrics::CONNECTIONS, node.connections() as u64);
    samples.count(&metrics::IN_FLIGHT, node.bytes_in_flight() as u64);
    samples.put(&metrics::DISK_LOW, flag(node.is_disk_low()));
    samples.count(&metrics::PUTS, counters.puts());
    samples.count(&metrics::FAILED_PUTS, counters.puts_failed());
    samples.count(&metrics::GETS, counters.gets());
    samples.count(&metrics::GET_MISSES, counters.get_misses());
    samples.count(&metrics::OFFSETS, counters.offsets());
    samples.count(&metrics::MALFORMED, counters.malformed_requests());
    quorum(watched, samples);
    let throttled = node.throttled();
    samples.put(&metrics::THROTTLE_DELAY, throttled.delay.as_secs_f64());
    samples.count(&metrics::THROTTLED_PUTS, throttled.puts);
    samples.put(&metrics::THROTTLED_SECONDS, throttled.paused.as_secs_f64());
}

fn quorum(watched: &Watched, samples: &mut Samples) {
    let (node, counters) = (&watched.node, watched.node.counters());
    samples.count(&metrics::SHORT_OF_QUORUM, node.short_of_quorum().len() as u64);
    samples.count(&metrics::REFUSED_PUTS, counters.puts_refused_by_quorum());
    samples.count(&metrics::UNCONFIRMED_PUTS, counters.puts_unconfirmed());
    samples.count(&metrics::DOWNGRADED_PUTS, counters.puts_downgraded());
    samples.count(&metrics::BEYOND_END, node.claims_beyond_end());
    for (topic, standing) in node.quorums_of_topics() {
        let labels = [topic.as_str()];
        samples.put_for(&metrics::QUORUM_REQUIRED, &labels, f64::from(standing.required));
        samples.put_for(&metrics::UNCONFIRMED_BYTES, &labels, standing.unconfirmed_bytes as f64);
        if let Some(members) = standing.members {
            samples.put_for(&metrics::QUORUM_MEMBERS, &labels, f64::from(members));
        }
    }
}

fn transactions(watched: &Watched, samples: &mut Samples) {
    let counters = watched.node.counters();
    samples.count(&metrics::BEGINS, counters.begins());
    samples.count(&metrics::XA_BEGINS, counters.xa_begins());
    samples.count(&metrics::COMMITS, counters.commits());
    samples.count(&metrics::ROLLBACKS, counters.rollbacks());
    samples.count(&metrics::OPEN_TRANSACTIONS, watched.node.open_transactions() as u64);
}

/// What /proc tells; nothing where it does not.
fn process(samples: &mut Samples) {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    if let Some(kib) = resident.and_then(|text| text.trim().strip_suffix(" kB")?.parse::<u64>().ok()) {
        samples.count(&metrics::RESIDENT, kib * 1024);
    }
    if let Ok(open) = Path::new("/proc/self/fd").read_dir() {
        samples.count(&metrics::OPEN_FILES, open.count() as u64);
    }
}
