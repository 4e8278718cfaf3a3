use crate::message::Event;
use crate::net::Place;
use crate::node::{Disk, NAMES, Process, SYNC_MS};
use crate::world::World;

/// One fault, and when the next one comes.
impl World {
    pub(crate) fn on_fault(&mut self) {
        let pause = self.rng.within(200, 2_500);
        self.queue.push(self.now + pause, Event::Fault);
        let node = self.rng.index(self.nodes.len());
        match self.rng.within(0, 100) {
            0..20 => self.kill(node),
            20..30 => self.lose_power(node),
            30..45 => self.pause(node),
            45..60 => self.cut_off(),
            60..70 => self.trouble_a_way(),
            70..80 => self.slow_disk(node),
            80..85 => self.promote_in_error(node),
            85..90 => self.switch_over(node),
            90..93 => self.replace_disk(node),
            93..95 => self.reload_leader(),
            95..97 => self.forge_get(node),
            _ => self.heal_the_network(),
        }
    }

    fn pause(&mut self, node: usize) {
        let until = self.now + self.rng.within(100, 7_000);
        let host = &mut self.nodes[node];
        (host.paused_until, host.behind_until) = (until, until.max(host.behind_until));
        let now = self.now;
        self.trace.note(now, || format!("{} is stopped until {until}", NAMES[node]));
    }

    fn place(&mut self) -> Place {
        match self.rng.index(self.nodes.len() + 1) {
            node if node < self.nodes.len() => Place::Node(node),
            _ => Place::Registry,
        }
    }

    fn cut_off(&mut self) {
        let (from, to) = (self.place(), self.place());
        let both = self.rng.percent(60);
        self.net.cut(from, to);
        if both {
            self.net.cut(to, from);
        }
        let now = self.now;
        self.trace.note(now, || format!("cut from {from:?} to {to:?}, both ways: {both}"));
    }

    fn trouble_a_way(&mut self) {
        let (from, to) = (self.place(), self.place());
        let (slow_ms, loss_percent) = (self.rng.within(0, 400), self.rng.within(0, 40));
        self.net.trouble(from, to, slow_ms, loss_percent);
        let now = self.now;
        self.trace.note(now, || format!("{from:?} to {to:?}: {slow_ms} ms slow, {loss_percent} % lost"));
    }

    fn heal_the_network(&mut self) {
        self.net.heal();
        let now = self.now;
        self.trace.note(now, || "the network is whole");
    }

    fn slow_disk(&mut self, node: usize) {
        self.nodes[node].sync_ms = if self.rng.percent(60) { self.rng.within(50, 1_500) } else { SYNC_MS };
        let (now, sync_ms) = (self.now, self.nodes[node].sync_ms);
        self.trace.note(now, || format!("a sync takes up to {sync_ms} ms on {}", NAMES[node]));
    }

    /// Somebody starts a slave's data without the slave id while the master may well be alive.
    fn promote_in_error(&mut self, node: usize) {
        if self.nodes[node].slave().is_none() || self.is_paused(node) {
            return;
        }
        // The likeliest error: from here the master cannot be reached.
        if let Some(leader) = self.leader().filter(|_| self.rng.percent(50)) {
            self.net.cut(Place::Node(node), Place::Node(leader));
            self.net.cut(Place::Node(leader), Place::Node(node));
        }
        let now = self.now;
        self.trace.note(now, || format!("{} is started as a master in error", NAMES[node]));
        self.stop(node);
        let accept_gap = self.rng.percent(50);
        self.start_master(node, false, accept_gap);
    }

    /// The planned way: the master is stopped in order, then a slave takes its place.
    pub(crate) fn switch_over(&mut self, node: usize) {
        let Some(leader) = self.leader() else { return };
        if self.nodes[node].slave().is_none() || self.is_paused(node) {
            return;
        }
        let now = self.now;
        self.trace.note(now, || format!("switching over from {} to {}", NAMES[leader], NAMES[node]));
        self.stop(leader);
        self.stop(node);
        let accept_gap = self.rng.percent(50);
        self.start_master(node, false, accept_gap);
    }

    fn reload_leader(&mut self) {
        if let Some(leader) = self.leader() {
            self.reload(leader);
        }
    }

    /// A slave's machine is replaced: it begins with nothing.
    fn replace_disk(&mut self, node: usize) {
        let reigned = self.registry.fence().is_none_or(|fence| fence.node == node);
        if reigned || self.nodes[node].slave().is_none() || self.leader().is_none() {
            return;
        }
        let now = self.now;
        self.trace.note(now, || format!("{} begins anew, with an empty disk", NAMES[node]));
        self.stop(node);
        self.checks.on_replaced(self.now, node, &self.nodes[node].disk);
        let name = format!("{}-{}", NAMES[node], self.number());
        self.nodes[node].disk = Disk::named(name);
        self.start_slave(node, false);
        // Some cannot wait until it has copied everything.
        if self.rng.percent(50) {
            let soon = self.now + self.rng.within(150, 700);
            self.queue.push(soon, Event::SwitchOver { node });
        }
    }

    pub(crate) fn on_calm(&mut self) {
        self.calm = true;
        self.net.heal();
        for node in &mut self.nodes {
            node.sync_ms = SYNC_MS;
            node.paused_until = node.paused_until.min(self.now);
        }
        let now = self.now;
        self.trace.note(now, || "faults stop");
    }
}

/// Ends of processes.
impl World {
    pub(crate) fn kill(&mut self, node: usize) {
        if matches!(self.nodes[node].process, Process::Down) {
            return;
        }
        let now = self.now;
        self.trace.note(now, || format!("{} is killed", NAMES[node]));
        self.end_process(node);
    }

    fn lose_power(&mut self, node: usize) {
        let now = self.now;
        self.trace.note(now, || format!("{} loses power", NAMES[node]));
        self.end_process(node);
        for (partition, log) in &mut self.nodes[node].disk.logs {
            let before = log.end();
            log.lose_unsynced(&mut self.rng);
            self.checks.on_power_loss(self.now, node, partition, (log.end(), before));
        }
    }

    /// In order: a slave writes its record, a master leaves its seat; what is written is synced.
    pub(crate) fn stop(&mut self, node: usize) {
        self.write_record(node);
        if let Some(kept) = self.nodes[node].kept_now() {
            self.nodes[node].disk.kept = Some(kept);
        }
        let session = self.nodes[node].master().and_then(|master| master.session());
        let incarnation = self.nodes[node].incarnation;
        self.end_process(node);
        self.nodes[node].disk.logs.values_mut().for_each(crate::log::Log::recover);
        if let Some(session) = session {
            let ask = crate::registry::Ask::Leave { session };
            let message = crate::message::Message::Ask { from: node, incarnation, sent: self.now, ask };
            self.send(Place::Node(node), Place::Registry, message);
        }
    }
}
