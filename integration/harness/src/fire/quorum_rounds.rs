//! Rounds of one fault each under a quorum of two out of three: nothing that was acknowledged is ever lost, whatever one
//! member suffers, and nothing that a consumer could read is ever taken back.

use crate::fire::check::check;
use crate::fire::cluster::{Direction, Transport};
use crate::fire::ledger::{Entry, Outcome};
use crate::fire::load::Load;
use crate::fire::namespaces::Cut;
use crate::fire::pauses::Pause;
use crate::fire::quorum_members::{ACK_TIMEOUT, Members};
use crate::fire::quorum_witness::Witness;
use crate::fire::{Rng, TOPICS, last};
use crate::process::wait_until;
use crate::shaky_disk::Faults;
use anyhow::{Context, Result, ensure};
use rustix::process::Signal;
use std::time::{Duration, Instant};

/// A cluster is replaced after so many rounds, as each check reads everything; a third of them are over QUIC.
const ROUNDS_A_CLUSTER: usize = 10;

/// After healing everything is whole again this soon; what is measured is printed.
const WHOLE_WITHIN: Duration = Duration::from_secs(15);

/// What a put takes by itself: syncs on three disks of the test's own, 8 ms each and up to 180 ms before a loss of power.
const SLACK: Duration = Duration::from_millis(500);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// The process alone, or the whole machine.
    KillMaster {
        power: bool,
        promote: bool,
    },
    KillSlave {
        power: bool,
    },
    /// Gone and back, and again.
    FlapSlave,
    StopMaster {
        promote: bool,
    },
    StopSlave,
    CutReplication(Direction),
    ResetReplication,
    SlowDisk {
        of_master: bool,
    },
    /// Both slaves take longer than a put waits.
    SlowSlaves,
    FullDisk {
        of_master: bool,
    },
    /// Syncs fail and lose what they were for; the member is started again after a power loss.
    BrokenDisk {
        of_master: bool,
    },
    SwitchOver,
    /// All three at once.
    PowerCut {
        promote: bool,
    },
}

const FAULTS: [Fault; 22] = [
    Fault::KillMaster { power: true, promote: true },
    Fault::KillSlave { power: true },
    Fault::StopSlave,
    Fault::KillMaster { power: true, promote: false },
    Fault::SlowDisk { of_master: false },
    Fault::KillMaster { power: false, promote: true },
    Fault::CutReplication(Direction::Both),
    Fault::FullDisk { of_master: false },
    Fault::PowerCut { promote: false },
    Fault::BrokenDisk { of_master: true },
    Fault::FlapSlave,
    Fault::StopMaster { promote: true },
    Fault::CutReplication(Direction::ToMaster),
    Fault::KillSlave { power: false },
    Fault::FullDisk { of_master: true },
    Fault::SlowSlaves,
    Fault::PowerCut { promote: true },
    Fault::BrokenDisk { of_master: false },
    Fault::SwitchOver,
    Fault::SlowDisk { of_master: true },
    Fault::CutReplication(Direction::FromMaster),
    Fault::ResetReplication,
];

/// What can still be done while a fault lasts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Leaves {
    /// One slave is away, the other and the master are well.
    Quorum,
    /// It died, hangs or was replaced.
    NoMaster,
    /// Puts are refused, or as slow as a disk that everybody needs.
    NoQuorum,
}

impl Fault {
    fn leaves(self) -> Leaves {
        match self {
            Fault::KillSlave { .. }
            | Fault::FlapSlave
            | Fault::StopSlave
            | Fault::SlowDisk { of_master: false }
            | Fault::FullDisk { of_master: false }
            | Fault::BrokenDisk { of_master: false } => Leaves::Quorum,
            Fault::KillMaster { .. } | Fault::StopMaster { .. } | Fault::SwitchOver => Leaves::NoMaster,
            Fault::CutReplication(_)
            | Fault::ResetReplication
            | Fault::SlowDisk { of_master: true }
            | Fault::SlowSlaves
            | Fault::FullDisk { of_master: true }
            | Fault::BrokenDisk { of_master: true }
            | Fault::PowerCut { .. } => Leaves::NoQuorum,
        }
    }
}

/// What the rounds came to. That nothing was lost, shifted or taken back is checked in each.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    pub rounds: usize,
    pub over_quic: usize,
    pub acknowledged: usize,
    pub refused: usize,
    pub unknown: usize,
    /// Messages that consumers had seen, checked for after each round.
    pub witnessed: usize,
    pub promotions: usize,
    /// Slaves that had been given more by an old master than the new one had, and not acknowledged.
    pub gave_way: usize,
    pub power_losses: usize,
    /// Of these losses, those that found something volatile on the disk, and how much of it.
    pub losses_that_hit: usize,
    pub volatile_bytes: u64,
    /// While one slave was away.
    pub longest_pause: Pause,
    /// While the master was killed and started again or replaced, with all that the rounds do for it.
    pub longest_without_master: Pause,
    pub slowest_heal: Duration,
}

struct Run<'a> {
    members: Members,
    load: &'a Load,
    rng: &'a mut Rng,
    summary: &'a mut Summary,
}

/// Runs the rounds that follow from the seed.
pub fn run(seed: u64, rounds: usize) -> Result<Summary> {
    let (mut summary, mut rng) = (Summary::default(), Rng::new(seed));
    let first = rng.within(0, FAULTS.len() as u64) as usize;
    let quic_turn = rng.within(0, 3);
    for cluster in 0.. {
        let count = ROUNDS_A_CLUSTER.min(rounds - summary.rounds);
        if count == 0 {
            break;
        }
        let transport = if cluster % 3 == quic_turn { Transport::Quic } else { Transport::Tcp };
        run_on_one_cluster(&mut rng, transport, first, count, &mut summary)?;
    }
    Ok(summary)
}

fn run_on_one_cluster(
    rng: &mut Rng,
    transport: Transport,
    first: usize,
    count: usize,
    summary: &mut Summary,
) -> Result<()> {
    let members = Members::start(transport)?;
    let load = Load::start(members.cluster.target());
    let witness = Witness::start(members.addresses());
    let mut run = Run { members, load: &load, rng, summary };
    for _ in 0..count {
        let number = run.summary.rounds;
        let fault = FAULTS[(first + number) % FAULTS.len()];
        println!("round {number}: {fault:?} over {transport:?}");
        if let Err(error) = run.round(fault, &witness) {
            run.members.print_logs();
            return Err(error.context(format!("round {number} {fault:?} over {transport:?}")));
        }
        run.summary.rounds += 1;
        run.summary.over_quic += usize::from(transport == Transport::Quic);
    }
    run.summary.gave_way += run.members.gave_way;
    for entry in load.ledger().entries() {
        match entry.outcome {
            Outcome::Acknowledged { .. } => summary.acknowledged += 1,
            Outcome::Refused => summary.refused += 1,
            Outcome::Unknown => summary.unknown += 1,
        }
    }
    Ok(())
}

impl Run<'_> {
    fn round(&mut self, fault: Fault, witness: &Witness) -> Result<()> {
        let load = self.load;
        let before = load.acknowledged();
        wait_until("some load", || Ok((load.acknowledged() > before + 60).then_some(())))?;
        let begun = Instant::now();
        let for_a_while = Duration::from_millis(self.rng.within(200, 2_000));
        self.inflict(fault, for_a_while)?;
        let over = Instant::now();
        self.members.heal()?;
        self.members.cluster.wait_accepting()?;
        for topic in TOPICS {
            let acknowledged = |entry: &Entry| entry.topic == topic && entry.at > over && is_acknowledged(entry);
            wait_until(&format!("puts to {topic} to be acknowledged again"), || {
                Ok(load.ledger().entries().iter().rev().any(acknowledged).then_some(()))
            })?;
        }
        load.pause()?;
        self.judge_pauses(fault, begun, over)?;
        self.members.wait_whole()?;
        let took = over.elapsed();
        ensure!(took < WHOLE_WITHIN, "stuck: everything was whole only {took:?} after healing");
        let master = &self.members.cluster.members[self.members.cluster.master].direct;
        // Nothing is announced as lost: a quorum held it.
        check(master, load.ledger(), &[])?.assert_none()?;
        self.members.assert_confirmed()?;
        let witnessed = witness.check(master)?;
        println!("    whole after {took:?}, {} acknowledged, {witnessed} witnessed", load.acknowledged());
        self.summary.witnessed = self.summary.witnessed.max(witnessed);
        self.summary.slowest_heal = self.summary.slowest_heal.max(took);
        load.resume();
        Ok(())
    }

    fn inflict(&mut self, fault: Fault, while_it_lasts: Duration) -> Result<()> {
        let master = self.members.cluster.master;
        let slaves = self.members.cluster.slaves();
        let slave = slaves[self.rng.within(0, slaves.len() as u64) as usize];
        match fault {
            Fault::KillMaster { power, promote } => {
                self.end(master, power)?;
                if promote { self.replace(master) } else { self.members.start_master(master) }
            }
            Fault::KillSlave { power } => {
                self.end(slave, power)?;
                last(while_it_lasts);
                self.members.follow(slave)
            }
            Fault::FlapSlave => {
                for power in [false, true, false] {
                    self.end(slave, power)?;
                    last(while_it_lasts / 10);
                    self.members.follow(slave)?;
                }
                Ok(())
            }
            Fault::StopMaster { promote: false } => self.stop(master, while_it_lasts),
            Fault::StopMaster { promote: true } => self.replace_stopped(master),
            Fault::StopSlave => self.stop(slave, ACK_TIMEOUT + while_it_lasts),
            Fault::CutReplication(direction) => {
                self.members.cluster.cut_replication(direction, Cut::Drop)?;
                last(while_it_lasts);
                Ok(())
            }
            Fault::ResetReplication => {
                for _ in 0..self.rng.within(1, 5) {
                    self.members.cluster.reset_replication()?;
                    last(while_it_lasts / 5);
                }
                Ok(())
            }
            Fault::SlowDisk { of_master } => {
                let longest = if of_master { 200 } else { 3_000 };
                let slow = Faults::slow(Duration::from_millis(self.rng.within(20, longest)));
                self.disk(if of_master { master } else { slave }, slow, while_it_lasts)
            }
            Fault::SlowSlaves => {
                slaves.iter().for_each(|slave| self.members.set_disk(*slave, Faults::slow(ACK_TIMEOUT * 2)));
                last(ACK_TIMEOUT * 2 + while_it_lasts);
                Ok(())
            }
            Fault::FullDisk { of_master } => {
                let full = Faults::full_after(self.rng.within(0, 64 * 1024));
                self.disk(if of_master { master } else { slave }, full, while_it_lasts)
            }
            Fault::BrokenDisk { of_master: true } => {
                self.disk(master, Faults::broken(), while_it_lasts / 2)?;
                self.cut_power(&[master])?;
                self.replace(master)
            }
            Fault::BrokenDisk { of_master: false } => {
                self.disk(slave, Faults::broken(), while_it_lasts)?;
                self.cut_power(&[slave])?;
                self.members.follow(slave)
            }
            Fault::SwitchOver => {
                self.members.cluster.members[master].stop()?;
                self.replace(master)
            }
            Fault::PowerCut { promote } => self.cut_all(master, slave, promote),
        }
    }

    /// Kills a member's process, or cuts the power of its machine.
    fn end(&mut self, member: usize, power: bool) -> Result<()> {
        if power { self.cut_power(&[member]) } else { self.members.kill(member) }
    }

    fn cut_power(&mut self, members: &[usize]) -> Result<()> {
        // On disks that take their time there is more to lose.
        for member in members {
            self.members.set_disk(*member, Faults::slow(Duration::from_millis(60)));
        }
        last(Duration::from_millis(self.rng.within(60, 180)));
        let loss = self.members.cut_power(members, self.rng)?;
        println!("    power loss: {loss:?}");
        self.summary.power_losses += members.len();
        self.summary.losses_that_hit += usize::from(loss.files + loss.names > 0);
        self.summary.volatile_bytes += loss.bytes;
        Ok(())
    }

    /// Promotes the most advanced slave; the old master, which has ended, follows it.
    fn replace(&mut self, old: usize) -> Result<()> {
        self.promote()?;
        self.members.follow(old)
    }

    fn promote(&mut self) -> Result<()> {
        let heir = self.members.most_advanced()?;
        self.members.cluster.promote(heir)?;
        self.summary.promotions += 1;
        self.load.turn_to(self.members.cluster.target());
        Ok(())
    }

    /// The old master is stopped, wakes up to another reign, ends by itself and says why; then it follows.
    fn replace_stopped(&mut self, old: usize) -> Result<()> {
        self.members.cluster.members[old].broker()?.signal(Signal::STOP)?;
        self.promote()?;
        let mut broker = self.members.cluster.members[old].broker.take().context("it was stopped, not ended")?;
        broker.signal(Signal::CONT)?;
        let status = broker.wait_exit()?;
        let log = broker.log_text();
        ensure!(status.code() == Some(1) && log.contains("another master has begun to reign"), "{status}:\n{log}");
        self.members.follow(old)
    }

    fn stop(&mut self, member: usize, time: Duration) -> Result<()> {
        self.members.cluster.members[member].broker()?.signal(Signal::STOP)?;
        last(time);
        self.members.cluster.members[member].broker()?.signal(Signal::CONT)
    }

    fn disk(&self, member: usize, faults: Faults, time: Duration) -> Result<()> {
        self.members.set_disk(member, faults);
        last(time);
        Ok(())
    }

    /// Every machine at once; then the same master again, or a slave in its place.
    fn cut_all(&mut self, master: usize, slave: usize, promote: bool) -> Result<()> {
        self.cut_power(&[0, 1, 2])?;
        if !promote {
            self.members.start_master(master)?;
            return self.members.cluster.slaves().into_iter().try_for_each(|slave| self.members.follow(slave));
        }
        for slave in self.members.cluster.slaves() {
            self.members.cluster.start_slave(slave, false)?;
        }
        // Not the most advanced one on purpose: it asks the other for what it lacks.
        self.members.cluster.promote(slave)?;
        self.summary.promotions += 1;
        self.load.turn_to(self.members.cluster.target());
        self.members.follow(master)
    }

    /// With one slave away no producer waits longer than one time-out for its next acknowledgement. Without a master
    /// nobody is there to acknowledge anything: how long that lasts is told beside.
    fn judge_pauses(&mut self, fault: Fault, from: Instant, to: Instant) -> Result<()> {
        let pause = Pause::longest(&self.load.ledger().entries(), self.load.metronome(), from, to);
        println!("    longest pause: {pause}");
        let longest = match fault.leaves() {
            Leaves::Quorum => &mut self.summary.longest_pause,
            Leaves::NoMaster => &mut self.summary.longest_without_master,
            Leaves::NoQuorum => return Ok(()),
        };
        if pause.length > longest.length {
            longest.clone_from(&pause);
        }
        let is_short = pause.own() < ACK_TIMEOUT + SLACK || fault.leaves() != Leaves::Quorum;
        ensure!(is_short, "puts paused with one slave away: {pause}");
        Ok(())
    }
}

fn is_acknowledged(entry: &Entry) -> bool {
    matches!(entry.outcome, Outcome::Acknowledged { .. })
}
