//! A master with two slaves and `ackQuorum=2`, each on a disk of its own that can lose power, be slow, full or broken.

use crate::fire::Rng;
use crate::fire::check::Partition;
use crate::fire::cluster::{Cluster, MEMBERS, Setup, Transport};
use crate::fire::{PARTITIONS, TOPICS};
use crate::pair::segments;
use crate::process::{Broker, wait_until};
use crate::raw::Raw;
use crate::shaky_disk::{Faults, Loss, ShakyDisk};
use anyhow::{Context, Result, ensure};
use rustix::process::Signal;
use std::collections::BTreeMap;
use std::time::Duration;

/// No put waits longer for its quorum.
pub const ACK_TIMEOUT: Duration = Duration::from_millis(1000);

pub struct Members {
    // Ends before what its members run on.
    pub cluster: Cluster,
    disks: Vec<ShakyDisk>,
    /// How often a slave had to give way to a new master.
    pub gave_way: usize,
}

impl Drop for Members {
    fn drop(&mut self) {
        // A process does not end before its syncs do.
        self.disks.iter().for_each(|disk| disk.set(Faults::default()));
    }
}

impl Members {
    /// Returns when the quorum is there.
    pub fn start(transport: Transport) -> Result<Members> {
        let disks = (0..MEMBERS).map(|_| ShakyDisk::mount()).collect::<Result<Vec<_>>>()?;
        let cluster = Cluster::start_on(Setup { hub: None, transport }, |number, site| {
            site.set("dataPath", &disks[number].data().display().to_string());
            site.set("ackQuorum", "2").set("ackTimeoutInMills", &ACK_TIMEOUT.as_millis().to_string());
            Ok(())
        })?;
        Ok(Members { cluster, disks, gave_way: 0 })
    }

    pub fn addresses(&self) -> Vec<String> {
        self.cluster.members.iter().map(|member| member.direct.clone()).collect()
    }

    pub fn set_disk(&self, member: usize, faults: Faults) {
        self.disks[member].set(faults);
    }

    pub fn heal(&self) -> Result<()> {
        self.disks.iter().for_each(|disk| disk.set(Faults::default()));
        self.cluster.heal()
    }

    /// The process is gone in the middle of whatever it did; what it wrote stays, as the machine goes on.
    pub fn kill(&mut self, member: usize) -> Result<()> {
        let broker = self.cluster.members[member].broker.take().context("this member does not run")?;
        broker.signal(Signal::KILL)?;
        // It is not gone before its system calls are over.
        self.disks[member].interrupt();
        broker.kill()
    }

    /// The machine is gone, and with it what was not on the disk. Process and disk are as after a repair.
    pub fn cut_power(&mut self, members: &[usize], rng: &mut Rng) -> Result<Loss> {
        for member in members {
            self.cluster.members[*member].broker()?.signal(Signal::KILL)?;
        }
        let mut all = Loss::default();
        for member in members {
            self.kill(*member)?;
            let Loss { files, bytes, names } = self.disks[*member].lose_power(rng);
            all = Loss { files: all.files + files, bytes: all.bytes + bytes, names: all.names + names };
            self.disks[*member].set(Faults::default());
        }
        Ok(all)
    }

    /// As the master of the same reign as before, or of the next.
    pub fn start_master(&mut self, member: usize) -> Result<()> {
        let mut broker = self.cluster.members[member].site.start_master(&[])?;
        broker.wait_for_line("accepting messages")?;
        self.cluster.members[member].broker = Some(broker);
        Ok(())
    }

    pub fn follow(&mut self, member: usize) -> Result<()> {
        self.cluster.start_slave(member, false)?;
        self.cluster.members[member].broker()?.wait_for_line("following the master").map(drop)
    }

    /// The slave whose own log, confirmed or not, reaches furthest.
    pub fn most_advanced(&self) -> Result<usize> {
        let mut best = None;
        for slave in self.cluster.slaves() {
            let text = Raw::connect(&self.cluster.members[slave].direct)?.ask("stats replication")?.text();
            let ends =
                text.lines().filter_map(|line| line.split(" own_end ").nth(1)?.split(' ').next()?.parse::<u64>().ok());
            best = best.max(Some((ends.sum::<u64>(), slave)));
        }
        Ok(best.context("there are slaves")?.1)
    }

    /// All members count again in every partition, and hold the same bytes. Nothing may be put meanwhile.
    pub fn wait_whole(&mut self) -> Result<()> {
        self.cluster.wait_whole()?;
        let address = self.cluster.members[self.cluster.master].direct.clone();
        let mut text = String::new();
        let whole = wait_until("all members to count", || {
            text = Raw::connect(&address)?.ask("stats quorum")?.text();
            let members = format!(" members {MEMBERS} ");
            self.give_way()?;
            let counting = text.lines().filter(|line| line.starts_with("log fire-") && line.contains(&members)).count();
            Ok((counting == TOPICS.len() * PARTITIONS as usize).then_some(()))
        });
        whole.with_context(|| text.clone())?;
        let mut difference = None;
        let same = wait_until("all members to hold the same", || {
            difference = if self.hold_the_same()? { None } else { self.cluster.assert_same().err() };
            Ok(difference.is_none().then_some(()))
        });
        same.with_context(|| format!("{difference:?}"))
    }

    /// Segments that hold nothing yet do not count: one may have been begun under an old master, and is begun again with
    /// the next message.
    fn hold_the_same(&self) -> Result<bool> {
        let held = |member: usize| {
            let mut segments = segments(&self.cluster.members[member].site.data())?;
            segments.retain(|_, bytes| !bytes.is_empty());
            anyhow::Ok(segments)
        };
        let master = held(self.cluster.master)?;
        Ok(self
            .cluster
            .slaves()
            .into_iter()
            .map(held)
            .collect::<Result<Vec<_>>>()?
            .iter()
            .all(|slave| *slave == master))
    }

    /// A slave may get more from an old master after the new one has asked it what it holds. Then it says that it has
    /// diverged, and is told to give way, as a person would: that nothing acknowledged was in it is checked afterwards.
    fn give_way(&mut self) -> Result<()> {
        for slave in self.cluster.slaves() {
            let member = &mut self.cluster.members[slave];
            let text = Raw::connect(&member.direct)?.ask("stats replication")?.text();
            if let Some(line) = text.lines().find(|line| line.contains("diverged")) {
                println!("    slave {slave} gives way: {line}");
                self.gave_way += 1;
                member.stop()?;
                self.cluster.start_slave(slave, true)?;
            }
        }
        Ok(())
    }

    /// The end of each member's log, for whoever looks into a failure.
    pub fn print_logs(&self) {
        for (number, member) in self.cluster.members.iter().enumerate() {
            let log = member.broker.as_ref().map(Broker::log_text).unwrap_or_default();
            let lines: Vec<&str> = log.lines().collect();
            println!("---- member {number}:\n{}", lines[lines.len().saturating_sub(80)..].join("\n"));
        }
    }

    /// What consumers of the master can read is all there is.
    pub fn assert_confirmed(&self) -> Result<()> {
        let held: BTreeMap<Partition, u64> = self.cluster.members[self.cluster.master].ends()?;
        let readable = self.cluster.served_ends()?;
        ensure!(held == readable, "the files hold {held:?}, and readable is {readable:?}");
        Ok(())
    }
}
