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

/// All topics that were configured or met; bounded by what the configuration admits and the disk holds.
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

    /// The topic, when a section names it or it was met before.
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
        let mut states = self.states.write();
        let settings = states.config.topic(name).cloned()?;
        let name = TopicName::new(name).ok()?;
        let made = Arc::new(state(name.clone(), Some(&settings), None, Duration::ZERO));
        Some(Arc::clone(states.by_name.entry(name).or_insert(made)))
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
    }
}
