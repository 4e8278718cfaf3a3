//! A master whose slaves come, go and confirm as told.

use metaq_config::AckRules;
use metaq_link::quorum::{Act, Admission, Ends, Quorums};
use metaq_types::{Epoch, Offset, PartitionId, SlaveId};
use metaq_wire::{Greeting, Level, Role, Text};
use std::time::{Duration, Instant};

pub(crate) const TIMEOUT: Duration = Duration::from_millis(2000);
pub(crate) const EPOCH: Epoch = Epoch(5);

pub(crate) fn at(offset: u64) -> Offset {
    Offset::new(offset).unwrap()
}

pub(crate) fn slave(id: i64) -> SlaveId {
    SlaveId::new(id).unwrap()
}

pub(crate) fn log() -> PartitionId {
    "orders-0".parse().unwrap()
}

pub(crate) fn greeting(id: i64, epoch: Epoch, roll: u64) -> Greeting {
    let node = Text::from(&*format!("n{id}"));
    Greeting { epoch: epoch.0, node, level: Some(Level::Fsync), roll: Some(roll), ..Greeting::new(Role::Slave) }
}

/// A master whose log reaches to `end`, and a clock.
pub(crate) struct Scene {
    pub(crate) quorums: Quorums,
    pub(crate) now: Instant,
    pub(crate) end: u64,
    connected: Vec<i64>,
}

impl Scene {
    pub(crate) fn new(quorum: u32, downgrade: bool) -> Scene {
        let now = Instant::now();
        let mut quorums = Quorums::new(EPOCH, now);
        quorums.watch(&log(), AckRules { quorum, timeout: TIMEOUT, downgrade }, at(0));
        Scene { quorums, now, end: 0, connected: Vec::new() }
    }

    pub(crate) fn connect(&mut self, id: i64) {
        self.quorums.on_connect(slave(id), "h:1", self.now);
        self.connected.retain(|other| *other != id);
        self.connected.push(id);
        self.greet(id, EPOCH);
        self.tell_all(EPOCH);
    }

    /// Greets with the newest roll there is; what follows from it.
    pub(crate) fn greet(&mut self, id: i64, epoch: Epoch) -> Vec<(PartitionId, Act)> {
        let roll = self.quorums.roll().number();
        self.quorums.on_greeting(slave(id), &greeting(id, epoch, roll))
    }

    /// Everybody who is connected learns of everybody, whoever was last first, as the others let that one count.
    pub(crate) fn tell_all(&mut self, epoch: Epoch) {
        for id in self.connected.clone().into_iter().rev() {
            self.greet(id, epoch);
        }
    }

    pub(crate) fn disconnect(&mut self, id: i64) -> Vec<(PartitionId, Act)> {
        self.connected.retain(|other| *other != id);
        self.quorums.on_disconnect(slave(id), self.now)
    }

    pub(crate) fn get(&mut self, id: i64, offset: u64) -> Option<Act> {
        self.quorums.on_get(slave(id), &log(), at(offset), at(self.end), self.now)
    }

    pub(crate) fn admit(&mut self) -> Result<Admission, String> {
        self.quorums.admit(&log(), self.end == 0, self.now).map_err(|shortage| shortage.to_string())
    }

    /// Lets time pass in ticks; what is to be done at the end of it.
    pub(crate) fn pass(&mut self, time: Duration) -> Vec<Act> {
        let until = self.now + time;
        let (mut acts, end) = (Vec::new(), self.end);
        while self.now < until {
            self.now += self.quorums.tick_interval().unwrap();
            let ends = |_: &PartitionId| Some(Ends { offered: at(end), written: at(end) });
            acts.extend(self.quorums.tick(self.now, ends).into_iter().map(|(_, act)| act));
        }
        acts
    }

    pub(crate) fn members(&self) -> u32 {
        self.quorums.standings()[0].members
    }
}

pub(crate) const FULL: Result<Admission, String> = Ok(Admission::Full);
