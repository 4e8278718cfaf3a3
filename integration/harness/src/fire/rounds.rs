//! Rounds of one fault each, under load; every round ends whole, and with everything checked.

use crate::fire::Rng;
use crate::fire::check::{Partition, check, is_announced};
use crate::fire::cluster::{Cluster, SESSION};
use crate::fire::consume::Consumer;
use crate::fire::load::Load;
use crate::process::wait_until;
use crate::relay::Flow;
use anyhow::{Context, Result, ensure};
use rustix::process::Signal;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// A cluster is replaced after so many rounds, as each check reads everything.
const ROUNDS_A_CLUSTER: usize = 10;

/// After healing everything is whole again this soon. What is measured is printed; this bound leaves room for a machine
/// that has other work.
const WHOLE_WITHIN: Duration = Duration::from_secs(10);

const STALLED: Flow = Flow { stalled: true, delay: Duration::ZERO };

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    KillMaster { promote: bool },
    StopMaster { promote: bool },
    SwitchOver,
    KillSlave,
    StopSlave,
    CutReplication,
    CutOneWay { to_master: bool },
    SlowReplication,
    ResetReplication,
    CutMasterFromZooKeeper { promote: bool },
    CutSlavesFromZooKeeper,
    RestartZooKeeper,
}

const FAULTS: [Fault; 15] = [
    Fault::KillMaster { promote: true },
    Fault::CutReplication,
    Fault::StopMaster { promote: true },
    Fault::KillSlave,
    Fault::CutMasterFromZooKeeper { promote: true },
    Fault::CutOneWay { to_master: false },
    Fault::SwitchOver,
    Fault::KillMaster { promote: false },
    Fault::StopSlave,
    Fault::ResetReplication,
    Fault::CutOneWay { to_master: true },
    Fault::RestartZooKeeper,
    Fault::SlowReplication,
    Fault::StopMaster { promote: false },
    Fault::CutSlavesFromZooKeeper,
];

/// What the rounds came to.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    pub rounds: usize,
    pub acknowledged: usize,
    /// Acknowledged by an old master, beyond its successor's end; announced.
    pub lost_announced: usize,
    pub lost_announced_bytes: u64,
    pub slowest_heal: Duration,
}

/// Runs the rounds that follow from the seed.
pub fn run(seed: u64, rounds: usize) -> Result<Summary> {
    let mut summary = Summary::default();
    let mut rng = Rng::new(seed);
    while summary.rounds < rounds {
        let count = ROUNDS_A_CLUSTER.min(rounds - summary.rounds);
        run_on_one_cluster(&mut rng, count, &mut summary)?;
    }
    Ok(summary)
}

fn run_on_one_cluster(rng: &mut Rng, count: usize, summary: &mut Summary) -> Result<()> {
    let mut cluster = Cluster::start()?;
    let load = Load::start(cluster.target());
    let consumer = Consumer::start(cluster.target());
    let clients = Clients { load: &load, consumer: &consumer };
    for _ in 0..count {
        // In turn, from a random one on within the first lap: few rounds see different kinds, many see all.
        let fault = FAULTS[(summary.rounds + rng.within(0, 3) as usize) % FAULTS.len()];
        println!("round {}: {fault:?}", summary.rounds);
        let took =
            round(&mut cluster, clients, rng, fault).with_context(|| format!("round {} {fault:?}", summary.rounds))?;
        println!("round {}: whole after {took:?}, {} acknowledged", summary.rounds, load.acknowledged());
        summary.slowest_heal = summary.slowest_heal.max(took);
        summary.rounds += 1;
    }
    let entries = load.ledger().entries();
    summary.acknowledged += load.acknowledged();
    summary.lost_announced += entries.iter().filter(|entry| is_announced(entry, &cluster.beginnings)).count();
    summary.lost_announced_bytes += cluster.counted_loss_bytes;
    Ok(())
}

/// Who uses the cluster.
#[derive(Clone, Copy)]
struct Clients<'a> {
    load: &'a Load,
    consumer: &'a Consumer,
}

impl Clients<'_> {
    /// To the master that was promoted last.
    fn turn_to(&self, cluster: &Cluster) -> Result<()> {
        self.load.turn_to(cluster.target());
        self.consumer.turn_to(cluster.target(), cluster.beginnings.last().context("somebody was promoted")?)
    }
}

fn round(cluster: &mut Cluster, clients: Clients<'_>, rng: &mut Rng, fault: Fault) -> Result<Duration> {
    let Clients { load, consumer } = clients;
    let before = load.acknowledged();
    wait_until("some load", || Ok((load.acknowledged() > before + 60).then_some(())))?;
    let for_a_while = Duration::from_millis(rng.within(200, 2_500));
    inflict(cluster, clients, rng, fault, for_a_while)?;
    cluster.heal();
    let healed = Instant::now();
    cluster.wait_accepting()?;
    let before = load.acknowledged();
    wait_until("puts to be acknowledged again", || Ok((load.acknowledged() > before).then_some(())))?;
    load.pause()?;
    cluster.wait_whole()?;
    consumer.catch_up(&cluster.served_ends()?)?;
    let took = healed.elapsed();
    ensure!(took < WHOLE_WITHIN, "stuck: everything was whole only {took:?} after healing");
    cluster.assert_same()?;
    let findings = check(&cluster.members[cluster.master].direct, load.ledger(), &cluster.beginnings)?;
    findings.assert_none()?;
    load.resume();
    Ok(took)
}

fn inflict(
    cluster: &mut Cluster,
    clients: Clients<'_>,
    rng: &mut Rng,
    fault: Fault,
    while_it_lasts: Duration,
) -> Result<()> {
    let master = cluster.master;
    let slaves = cluster.slaves();
    let slave = slaves[rng.within(0, slaves.len() as u64) as usize];
    match fault {
        Fault::KillMaster { promote } => {
            let confirmed = slaves.iter().map(|slave| cluster.confirmed(*slave)).collect::<Result<Vec<_>>>()?;
            cluster.members[master].kill()?;
            if promote {
                promote_best(cluster, clients)?;
                let promoted = slaves.iter().position(|slave| *slave == cluster.master);
                holds_what_it_confirmed(cluster, &confirmed[promoted.context("a slave was promoted")?])?;
                return cluster.rejoin(master);
            }
            let mut again = cluster.members[master].site.start_master(&[])?;
            again.wait_for_line("accepting messages")?;
            cluster.members[master].broker = Some(again);
        }
        Fault::StopMaster { promote } => {
            cluster.members[master].broker()?.signal(Signal::STOP)?;
            if !promote {
                last(while_it_lasts);
                return cluster.members[master].broker()?.signal(Signal::CONT);
            }
            promote_best(cluster, clients)?;
            cluster.members[master].broker()?.signal(Signal::CONT)?;
            return rejoin_the_replaced(cluster, master);
        }
        Fault::SwitchOver => {
            cluster.members[master].stop()?;
            promote_best(cluster, clients)?;
            return cluster.rejoin(master);
        }
        Fault::KillSlave => {
            cluster.members[slave].kill()?;
            last(while_it_lasts);
            cluster.start_slave(slave, false)?;
        }
        Fault::StopSlave => {
            cluster.members[slave].broker()?.signal(Signal::STOP)?;
            last(while_it_lasts);
            cluster.members[slave].broker()?.signal(Signal::CONT)?;
        }
        Fault::CutReplication => {
            cluster.members[master].relay.stall();
            last(while_it_lasts);
        }
        Fault::CutOneWay { to_master } => {
            let (there, back) = if to_master { (STALLED, Flow::default()) } else { (Flow::default(), STALLED) };
            cluster.members[master].relay.set(there, back);
            last(while_it_lasts);
        }
        Fault::SlowReplication => {
            let slow = Flow { delay: Duration::from_millis(rng.within(5, 80)), ..Flow::default() };
            cluster.members[master].relay.set(slow, slow);
            last(while_it_lasts);
        }
        Fault::ResetReplication => {
            for _ in 0..rng.within(1, 5) {
                cluster.members[master].relay.reset();
                last(while_it_lasts / 5);
            }
        }
        Fault::CutMasterFromZooKeeper { promote } => {
            cluster.members[master].zookeeper_relay.stall();
            if !promote {
                last(SESSION + while_it_lasts);
                return Ok(());
            }
            // From the slaves it is cut off as well, or the one promoted would find it alive.
            cluster.members[master].relay.stall();
            promote_best(cluster, clients)?;
            cluster.heal();
            return rejoin_the_replaced(cluster, master);
        }
        Fault::CutSlavesFromZooKeeper => {
            slaves.iter().for_each(|slave| cluster.members[*slave].zookeeper_relay.stall());
            last(SESSION + while_it_lasts);
        }
        Fault::RestartZooKeeper => {
            cluster.zookeeper.kill();
            last(while_it_lasts);
            cluster.zookeeper.run()?;
        }
    }
    Ok(())
}

fn promote_best(cluster: &mut Cluster, clients: Clients<'_>) -> Result<()> {
    let best = cluster.best_slave()?;
    cluster.promote(best)?;
    clients.turn_to(cluster)
}

/// The promoted slave began where it had confirmed to be, or further.
fn holds_what_it_confirmed(cluster: &Cluster, confirmed: &BTreeMap<Partition, u64>) -> Result<()> {
    let beginning = cluster.beginnings.last().context("somebody was promoted")?;
    for (partition, end) in confirmed {
        let own = beginning.ends.get(partition).copied().unwrap_or(0);
        ensure!(own >= *end, "{partition:?} was confirmed up to {end}, and the promoted slave ends at {own}");
    }
    Ok(())
}

/// An old master that wakes up to another reign ends by itself and says why; then it joins.
fn rejoin_the_replaced(cluster: &mut Cluster, old: usize) -> Result<()> {
    let mut broker = cluster.members[old].broker.take().context("it was stopped, not ended")?;
    let status = broker.wait_exit()?;
    let log = broker.log_text();
    ensure!(status.code() == Some(1) && log.contains("another master has begun to reign"), "{status}:\n{log}");
    cluster.rejoin(old)
}

/// The length of a fault: a time, since nothing happens at its end that could be waited for.
fn last(time: Duration) {
    let until = Instant::now() + time;
    while let Some(left) = until.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) {
        std::thread::park_timeout(left);
    }
}
