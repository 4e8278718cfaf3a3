//! When old segments go: one task that follows every topic's `deleteWhen`.

use metaq_config::{BrokerConfig, DeleteWhen, Live, in_local_time};
use metaq_store::Store;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::sync::Notify;
use tokio_util::sync::{CancellationToken, DropGuard};
use tracing::{error, info};

/// The clock is looked at no less often: it may be set meanwhile, or the machine may have slept.
const LOOK_MAX: Duration = Duration::from_secs(30);

/// Runs retention for as long as it lives. Only a master has one: a slave follows its master's first offset.
pub struct Retention {
    reloaded: Arc<Notify>,
    _stop: DropGuard,
}

impl Retention {
    /// Must be called within a tokio runtime.
    pub fn start(live: &Live, store: &Arc<Store>) -> Retention {
        let (reloaded, stop) = (Arc::new(Notify::new()), CancellationToken::new());
        let task = follow(live.clone(), Arc::clone(store), Arc::clone(&reloaded));
        tokio::spawn(stop.clone().run_until_cancelled_owned(task));
        Retention { reloaded, _stop: stop.drop_guard() }
    }

    /// Schedules by the configuration that is now in [`Live`].
    pub fn reloaded(&self) {
        self.reloaded.notify_one();
    }
}

/// Cancelled, it leaves a run at most one segment further: the store ends it when it is closed.
async fn follow(live: Live, store: Arc<Store>, reloaded: Arc<Notify>) {
    let mut jobs = Jobs::default();
    jobs.follow(&live.current(), SystemTime::now());
    jobs.log();
    loop {
        let now = SystemTime::now();
        let pause = jobs.next().and_then(|at| at.duration_since(now).ok()).unwrap_or_default();
        let pause = if jobs.next().is_some() { pause.min(LOOK_MAX) } else { LOOK_MAX };
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = reloaded.notified() => {
                jobs.follow(&live.current(), SystemTime::now());
                jobs.log();
            }
        }
        let due = jobs.take_due(SystemTime::now());
        if due.is_empty() {
            continue;
        }
        let (config, store) = (live.snapshot(), Arc::clone(&store));
        if let Err(error) = tokio::task::spawn_blocking(move || run(&config, &store, &due)).await {
            error!(%error, "a run of retention ended badly; the next one goes on");
        }
    }
}

/// One job a distinct `deleteWhen`, by its text, with the time it is next due.
#[derive(Default)]
struct Jobs(BTreeMap<String, Job>);

struct Job {
    when: DeleteWhen,
    next: Option<SystemTime>,
}

impl Jobs {
    /// Jobs that stay keep their time, new ones begin with their first time after `now`, others end.
    fn follow(&mut self, config: &BrokerConfig, now: SystemTime) {
        let wanted: BTreeMap<String, &DeleteWhen> =
            config.topics.values().map(|topic| (topic.delete_when.to_string(), &topic.delete_when)).collect();
        self.0.retain(|text, _| wanted.contains_key(text));
        for (text, when) in wanted {
            self.0.entry(text).or_insert_with(|| Job { when: when.clone(), next: when.next_after(now) });
        }
    }

    fn next(&self) -> Option<SystemTime> {
        self.0.values().filter_map(|job| job.next).min()
    }

    /// The jobs whose time has come, and their next time is set. A time missed while another run went on, or while the
    /// machine slept, is due now, once.
    fn take_due(&mut self, now: SystemTime) -> BTreeSet<String> {
        let mut due = BTreeSet::new();
        for (text, job) in &mut self.0 {
            let following = job.when.next_after(now);
            if job.next.is_some_and(|at| at <= now) {
                due.insert(text.clone());
                job.next = following;
            } else if following < job.next {
                // The clock was set back.
                job.next = following;
            }
        }
        due
    }

    fn log(&self) {
        for (text, job) in &self.0 {
            let next = job.next.map_or_else(|| "never".to_owned(), in_local_time);
            info!(deleteWhen = text, next, "retention is scheduled, in the machine's time zone");
        }
    }
}

/// One run over the partitions of all topics with a `deleteWhen` that is due, those made by patterns included. A topic
/// in no section is left alone: nobody has said how long it is to be kept.
fn run(config: &BrokerConfig, store: &Store, due: &BTreeSet<String>) {
    let now_ms = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as i64);
    let mut segments = 0;
    for partition in store.partitions() {
        let topic = config.topic(&partition.id().topic);
        if topic.is_some_and(|topic| due.contains(&topic.delete_when.to_string())) {
            segments += partition.expire(now_ms).segments;
        }
    }
    if segments > 0 {
        // Slaves look where the partitions begin now.
        store.bump_catalog();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn config(topics: &str) -> BrokerConfig {
        let text = format!(
            "[system]\nbrokerId=0\nnumPartitions=1\nunflushThreshold=0\nunflushInterval=10000\nmaxSegmentSize=1048576\n\
             maxTransferSize=1048576\ndataPath=data\ndeleteWhen=0/10 * * * * ?\n[zookeeper]\nzk.zkEnable=false\n{topics}"
        );
        BrokerConfig::parse(Path::new("server.ini"), text).unwrap_or_else(|errors| panic!("{errors}"))
    }

    fn at(seconds: u64) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(1_800_000_000 + seconds)
    }

    fn due(jobs: &mut Jobs, seconds: u64) -> Vec<String> {
        jobs.take_due(at(seconds)).into_iter().collect()
    }

    #[test]
    fn each_schedule_is_one_job_and_a_missed_time_is_one_run() {
        let mut jobs = Jobs::default();
        jobs.follow(&config("[topic=a]\n[topic=b]\n[topic=c]\ndeleteWhen=0/3 * * * * ?"), at(0));
        assert_eq!(jobs.0.len(), 2);
        assert_eq!(jobs.next(), Some(at(3)));
        assert!(due(&mut jobs, 2).is_empty());
        assert_eq!(due(&mut jobs, 3), ["0/3 * * * * ?"]);
        assert!(due(&mut jobs, 3).is_empty());
        // A run that took long, or a machine that slept.
        assert_eq!(due(&mut jobs, 35), ["0/10 * * * * ?", "0/3 * * * * ?"]);
        assert_eq!(jobs.next(), Some(at(36)));
    }

    /// F26: a topic that a reload adds has its job, the others keep their time, and a removed one's ends.
    #[test]
    fn f26_a_reload_changes_what_it_says_and_nothing_else() {
        let mut jobs = Jobs::default();
        jobs.follow(&config("[topic=a]"), at(0));
        jobs.follow(&config("[topic=a]\n[topic=b]\ndeleteWhen=0/2 * * * * ?"), at(9));
        assert_eq!(due(&mut jobs, 9), [""; 0], "no time before it was there is made up for");
        assert_eq!(due(&mut jobs, 10), ["0/10 * * * * ?", "0/2 * * * * ?"]);
        jobs.follow(&config("[topic=a]"), at(11));
        assert_eq!(due(&mut jobs, 15), [""; 0]);
        assert_eq!(due(&mut jobs, 20), ["0/10 * * * * ?"]);
    }

    #[test]
    fn a_clock_set_back_does_not_stop_retention() {
        let mut jobs = Jobs::default();
        jobs.follow(&config("[topic=a]"), at(100_000));
        assert!(due(&mut jobs, 4).is_empty());
        assert_eq!(jobs.next(), Some(at(10)));
        assert_eq!(due(&mut jobs, 10).len(), 1);
    }

    #[test]
    fn a_schedule_that_has_ended_waits_for_nothing() {
        let mut jobs = Jobs::default();
        jobs.follow(&config("[topic=a]\ndeleteWhen=0 0 12 1 JUL ? 2020"), at(0));
        assert_eq!(jobs.next(), None);
        assert!(due(&mut jobs, 100).is_empty());
    }
}
