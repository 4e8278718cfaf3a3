//! Consumers: what they have read must not be missing later. They read from anybody, as far as they are shown.

use crate::message::Event;
use crate::mutation::Mutation;
use crate::node::Process;
use crate::queue::Ms;
use crate::world::World;
use metaq_types::PartitionId;

const READ_MS: (Ms, Ms) = (100, 500);

impl World {
    pub(crate) fn on_consume(&mut self) {
        let pause = self.rng.within(READ_MS.0, READ_MS.1);
        self.queue.push(self.now + pause, Event::Consume);
        let node = self.rng.index(self.nodes.len());
        let host = &self.nodes[node];
        if matches!(host.process, Process::Down) || self.is_paused(node) {
            return;
        }
        let beyond = self.options.mutation == Some(Mutation::ReadUnconfirmed);
        let partitions: Vec<PartitionId> = host.disk.logs.keys().cloned().collect();
        for partition in partitions {
            let host = &self.nodes[node];
            let Some(mut end) = host.readable(&partition) else { continue };
            let Some(log) = host.disk.logs.get(&partition) else { continue };
            if beyond {
                end = log.durable();
            }
            self.checks.on_read(self.now, host.disk.lineage.epoch(), &partition, log, end);
        }
    }
}
