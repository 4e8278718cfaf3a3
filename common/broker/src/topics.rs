//! What the node accepts for each topic now: settings, what is being withdrawn, rates. One look-up a request.

use crate::realtime::{Kind, TopicRates};
use metaq_config::{BrokerConfig, Topic};
use metaq_types::{JOURNAL_TOPIC, TopicName};
use parking_lot::RwLock;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// One topic as requests meet it. Replaced whole by a reload, except for its rates.
pub(crate) struct TopicState {
    pub(crate) name: TopicName,
    /// `None`: its section was removed; what is stored stays readable until `withdrawn`.
    pub(crate) settings: Option<Arc<Topic>>,
    publish_until: Until,
    subscribe_until: Until,
    rates: Arc<TopicRates>,
    /// In the table; else made by a pattern for one request, see [`Topics::keep`].
    is_kept: bool,
}

/// How long requests are still served after clients were told to leave.
#[derive(Clone, Copy, PartialEq)]
enum Until {
    Open,
    /// Withdrawn by a reload: clients get the time they need to notice.
    Grace(Instant),
    Closed,
}

impl Until {
    fn is_open(self, now: impl FnOnce() -> Instant) -> bool {
        match self {
            Until::Open => true,
            Until::Grace(end) => now() < end,
            Until::Closed => false,
        }
    }

    /// What becomes of this when the new configuration says `accept`.
    fn follow(self, accept: bool, grace_end: Instant) -> Until {
        match (self, accept) {
            (_, true) => Until::Open,
            (Until::Open, false) => Until::Grace(grace_end),
            (kept, false) => kept,
        }
    }
}

impl TopicState {
    pub(crate) fn publish_open(&self) -> bool {
        self.publish_until.is_open(Instant::now)
    }

    pub(crate) fn subscribe_open(&self) -> bool {
        self.subscribe_until.is_open(Instant::now)
    }

    /// Counts for `stats realtime` when the topic has `stat=true`.
    pub(crate) fn count(&self, kind: Kind, value: u64) {
        if self.settings.as_ref().is_some_and(|s| s.stat) {
            self.rates.add(kind, value);
        }
    }
}

/// All topics that are configured or have a partition; a name that was merely asked for takes no room.
pub(crate) struct Topics {
    states: RwLock<States>,
}

struct States {
    config: Arc<BrokerConfig>,
    by_name: HashMap<TopicName, Arc<TopicState>>,
}

impl Topics {
    pub(crate) fn new(config: Arc<BrokerConfig>) -> Topics {
        let by_name = config
            .topics
            .iter()
            .map(|(name, topic)| (name.clone(), Arc::new(state(name.clone(), Some(topic), None, Duration::ZERO))))
            .collect();
        Topics { states: RwLock::new(States { config, by_name }) }
    }

    /// The topic, when a section names it or it was kept.
    pub(crate) fn get(&self, name: &str) -> Option<Arc<TopicState>> {
        self.states.read().by_name.get(name).cloned()
    }

    /// The same, or what a pattern section makes of the name. `None`: nothing admits this topic.
    pub(crate) fn get_or_admit(&self, name: &str) -> Option<Arc<TopicState>> {
        if let Some(state) = self.get(name) {
            return Some(state);
        }
        if name == JOURNAL_TOPIC {
            return None;
        }
        let states = self.states.read();
        let settings = states.config.topic(name)?;
        let made = state(TopicName::new(name).ok()?, Some(settings), None, Duration::ZERO);
        Some(Arc::new(TopicState { is_kept: false, ..made }))
    }

    /// Remembers a topic that a pattern made, now that it has a partition.
    pub(crate) fn keep(&self, topic: &TopicState) {
        if topic.is_kept {
            return;
        }
        let mut states = self.states.write();
        let Some(settings) = states.config.topic(&topic.name).cloned() else { return };
        let rates = Arc::clone(&topic.rates);
        let kept = TopicState { rates, ..state(topic.name.clone(), Some(&settings), None, Duration::ZERO) };
        states.by_name.entry(topic.name.clone()).or_insert(Arc::new(kept));
    }

    /// Takes over a reloaded configuration. What it withdraws is served for `grace` more.
    pub(crate) fn reload(&self, config: Arc<BrokerConfig>, grace: Duration) {
        let mut states = self.states.write();
        let mut by_name = HashMap::with_capacity(states.by_name.len());
        for (name, old) in &states.by_name {
            let settings = config.topic(name).cloned();
            by_name.insert(name.clone(), Arc::new(state(name.clone(), settings.as_ref(), Some(old), grace)));
        }
        for (name, topic) in &config.topics {
            by_name
                .entry(name.clone())
                .or_insert_with(|| Arc::new(state(name.clone(), Some(topic), None, Duration::ZERO)));
        }
        *states = States { config, by_name };
    }

    /// For `stats`: a copy of the table, by name.
    pub(crate) fn snapshot(&self) -> Vec<Arc<TopicState>> {
        let mut all: Vec<_> = self.states.read().by_name.values().cloned().collect();
        all.sort_by(|a, b| a.name.cmp(&b.name));
        all
    }
}

impl TopicState {
    pub(crate) fn rates(&self) -> &TopicRates {
        &self.rates
    }
}

fn state(name: TopicName, settings: Option<&Topic>, old: Option<&TopicState>, grace: Duration) -> TopicState {
    let accept = |f: fn(&Topic) -> bool| settings.is_some_and(f);
    let (publish, subscribe) = (accept(|t| t.accept_publish), accept(|t| t.accept_subscribe));
    let grace_end = Instant::now() + grace;
    let first = |open: bool| if open { Until::Open } else { Until::Closed };
    let follow = |old: Option<Until>, open: bool| old.map_or(first(open), |until| until.follow(open, grace_end));
    TopicState {
        name,
        settings: settings.cloned().map(Arc::new),
        publish_until: follow(old.map(|o| o.publish_until), publish),
        subscribe_until: follow(old.map(|o| o.subscribe_until), subscribe),
        rates: old.map(|o| Arc::clone(&o.rates)).unwrap_or_default(),
        is_kept: true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn config(pattern: &str) -> Arc<BrokerConfig> {
        let text = format!(
            "[system]\nbrokerId=0\nnumPartitions=1\nunflushThreshold=0\nunflushInterval=10000\n\
             maxSegmentSize=1048576\nmaxTransferSize=1048576\ndeletePolicy=delete,168\ndeleteWhen=0 0 6 * * ?\n\
             serverPort=0\nhostName=here\ndataPath=/nowhere\n[zookeeper]\nzk.zkEnable=false\n[topic={pattern}]\n"
        );
        Arc::new(BrokerConfig::parse(Path::new("server.ini"), text.into_bytes()).unwrap())
    }

    fn names(topics: &Topics) -> Vec<String> {
        topics.snapshot().iter().map(|topic| topic.name.to_string()).collect()
    }

    /// F44: what strangers ask for by names of their own takes no room.
    #[test]
    fn a_name_that_was_only_asked_for_is_not_remembered() {
        let topics = Topics::new(config("*"));
        for number in 0..1000 {
            let admitted = topics.get_or_admit(&format!("name-{number}")).unwrap();
            assert!(admitted.publish_open());
        }
        assert!(topics.get("name-1").is_none());
        let before = names(&topics);
        let stored = topics.get_or_admit("name-1").unwrap();
        stored.rates().add(Kind::Put, 1);
        topics.keep(&stored);
        topics.keep(&stored);
        assert_eq!(names(&topics).len(), before.len() + 1);
        let kept = topics.get("name-1").unwrap();
        assert!(Arc::ptr_eq(&kept.rates, &stored.rates), "what was counted before counts");
        assert!(Arc::ptr_eq(&kept, &topics.get_or_admit("name-1").unwrap()));
        // One that was admitted by a configuration that is gone is not kept by the new one.
        let late = topics.get_or_admit("late").unwrap();
        topics.reload(config("other*"), Duration::ZERO);
        topics.keep(&late);
        assert!(topics.get("late").is_none() && topics.get("name-1").is_some());
    }
}
