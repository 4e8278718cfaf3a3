//! Rounds of one fault each, under load; every round ends whole, and with everything checked.
//!
//! Clusters take turns: members in network namespaces with packets cut by nftables, or behind relays that delay, lose and
//! reorder as well; replication over TCP or QUIC. Two Java consumers read all rounds, as one group.

use crate::fire::check::{Partition, Served, check_served, is_announced};
use crate::fire::cluster::{Cluster, Direction, SESSION, Setup, Transport};
use crate::fire::consume::Consumer;
use crate::fire::disk::SlowDisk;
use crate::fire::java::{self, Counts, JavaConsumers};
use crate::fire::load::Load;
use crate::fire::namespaces::{Cut, Hub};
use crate::fire::{Rng, last, say_loudly};
use crate::process::wait_until;
use crate::relay::Flow;
use anyhow::{Context, Result, ensure};
use rustix::process::Signal;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A cluster is replaced after so many rounds, as each check reads everything.
const ROUNDS_A_CLUSTER_MAX: usize = 10;

/// Few rounds still see each kind of cluster.
const CLUSTER_KINDS: usize = 4;

/// After healing everything is whole again this soon.
const WHOLE_WITHIN: Duration = Duration::from_secs(5);

/// And the Java consumers have read everything, at their own pace: they try a lost connection again every 2 s, which is
/// what they mostly wait for, and give up a get that is not answered after 3 s.
const JAVA_WITHIN: Duration = Duration::from_secs(5);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// A slave takes the master's place, and the old master comes back as its slave.
    Succession(Departure),
    KillMaster,
    StopMaster,
    KillSlave,
    StopSlave,
    CutReplication(Direction),
    ResetReplication,
    /// Late, and some of it lost and out of order: relays only.
    BadReplication,
    CutMasterFromZooKeeper,
    CutSlavesFromZooKeeper,
    RestartZooKeeper,
    SlowDisk {
        master: bool,
    },
}

/// How a master leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Departure {
    InOrder,
    Killed,
    /// By SIGSTOP, until the new one reigns.
    Stopped,
    /// From ZooKeeper and from its slaves, but not from its clients.
    CutOff,
}

const FAULTS: [Fault; 18] = [
    Fault::Succession(Departure::Killed),
    Fault::CutReplication(Direction::Both),
    Fault::Succession(Departure::Stopped),
    Fault::SlowDisk { master: false },
    Fault::Succession(Departure::CutOff),
    Fault::BadReplication,
    Fault::KillSlave,
    Fault::CutReplication(Direction::FromMaster),
    Fault::Succession(Departure::InOrder),
    Fault::KillMaster,
    Fault::StopSlave,
    Fault::ResetReplication,
    Fault::CutReplication(Direction::ToMaster),
    Fault::SlowDisk { master: true },
    Fault::RestartZooKeeper,
    Fault::StopMaster,
    Fault::CutSlavesFromZooKeeper,
    Fault::CutMasterFromZooKeeper,
];

/// What the rounds came to.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    pub rounds: usize,
    pub rounds_in_namespaces: usize,
    pub rounds_over_quic: usize,
    pub acknowledged: usize,
    /// Acknowledged by an old master, beyond its successor's end; announced.
    pub lost_announced: usize,
    pub lost_announced_bytes: u64,
    pub slowest_heal: Duration,
    pub slowest_java: Duration,
    pub java: Counts,
}

/// Runs the rounds that follow from the seed.
pub fn run(seed: u64, rounds: usize) -> Result<Summary> {
    // A hub has no way out, by which the consumers' libraries could come.
    java::build()?;
    // The thread that enters a hub does not come back from it.
    std::thread::scope(|scope| {
        let run = scope.spawn(|| run_here(seed, rounds));
        run.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

fn run_here(seed: u64, rounds: usize) -> Result<Summary> {
    let hub = match Hub::enter() {
        Ok(hub) => Some(Arc::new(hub)),
        Err(reason) => {
            say_loudly(&format!("NO NETWORK NAMESPACES, so no packet is cut; all rounds run on relays: {reason:#}"));
            None
        }
    };
    let mut java = JavaConsumers::start()?;
    let mut summary = Summary::default();
    let mut rng = Rng::new(seed);
    let a_cluster = rounds.div_ceil(CLUSTER_KINDS).min(ROUNDS_A_CLUSTER_MAX);
    for kind in 0.. {
        if summary.rounds >= rounds {
            break;
        }
        let count = a_cluster.min(rounds - summary.rounds);
        let setup = Setup {
            hub: hub.clone().filter(|_| kind % 2 == 0),
            transport: if kind % 4 < 2 { Transport::Quic } else { Transport::Tcp },
        };
        run_on_one_cluster(setup, &mut java, &mut rng, count, &mut summary)?;
    }
    summary.java = java.counts;
    Ok(summary)
}

fn run_on_one_cluster(
    setup: Setup,
    java: &mut JavaConsumers,
    rng: &mut Rng,
    count: usize,
    summary: &mut Summary,
) -> Result<()> {
    let (in_namespaces, over) = (setup.hub.is_some(), setup.transport);
    let place = if in_namespaces { "namespaces" } else { "relays" };
    let mut cluster = Cluster::start_on(setup, |_, _| Ok(()))?;
    let load = Load::start(cluster.target());
    let consumer = Consumer::start(cluster.target());
    java.begin(&cluster.zookeeper.connect())?;
    let clients = Clients { load: &load, consumer: &consumer };
    for _ in 0..count {
        // In turn, from a random one on within the first lap: few rounds see different kinds, many see all.
        let fault = FAULTS[(summary.rounds + rng.within(0, 3) as usize) % FAULTS.len()];
        let what = format!("round {} on {place} over {over:?}: {fault:?}", summary.rounds);
        let healing = round(&mut cluster, clients, java, rng, fault).with_context(|| what.clone())?;
        println!("{what}: whole after {:.1?}, for Java after {:.1?}", healing.whole, healing.java);
        summary.slowest_heal = summary.slowest_heal.max(healing.whole);
        summary.slowest_java = summary.slowest_java.max(healing.java.unwrap_or_default());
        summary.rounds += 1;
        summary.rounds_in_namespaces += usize::from(in_namespaces);
        summary.rounds_over_quic += usize::from(over == Transport::Quic);
    }
    java.end()?;
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

/// How long after healing.
struct Healing {
    whole: Duration,
    /// `None` where a new group had to read everything.
    java: Option<Duration>,
}

fn round(
    cluster: &mut Cluster,
    clients: Clients<'_>,
    java: &mut JavaConsumers,
    rng: &mut Rng,
    fault: Fault,
) -> Result<Healing> {
    let Clients { load, consumer } = clients;
    let before = load.acknowledged();
    wait_until("some load", || Ok((load.acknowledged() > before + 60).then_some(())))?;
    let for_a_while = Duration::from_millis(rng.within(200, 2_500));
    inflict(cluster, clients, rng, fault, for_a_while)?;
    cluster.heal()?;
    let healed = Instant::now();
    cluster.wait_accepting()?;
    let before = load.acknowledged();
    wait_until("puts to be acknowledged again", || Ok((load.acknowledged() > before).then_some(())))?;
    load.pause()?;
    cluster.wait_whole()?;
    consumer.catch_up(&cluster.served_ends()?)?;
    let whole = healed.elapsed();
    ensure!(whole < WHOLE_WITHIN, "stuck: everything was whole only {whole:?} after healing");
    cluster.assert_same()?;
    let served = Served::read(&cluster.members[cluster.master].direct)?;
    check_served(&served, load.ledger(), &cluster.beginnings).assert_none()?;
    let is_same_group = java.catch_up(&served, &cluster.beginnings)?;
    let took = healed.elapsed();
    ensure!(
        took < JAVA_WITHIN || !is_same_group,
        "stuck: the Java consumers had everything only {took:?} after healing\n{}",
        java.log_tail()
    );
    load.resume();
    Ok(Healing { whole, java: is_same_group.then_some(took) })
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
        Fault::Succession(departure) => return succeed(cluster, clients, rng, departure),
        Fault::KillMaster => {
            cluster.members[master].kill()?;
            let mut again = cluster.members[master].site.start_master(&[])?;
            again.wait_for_line("accepting messages")?;
            cluster.members[master].broker = Some(again);
        }
        Fault::StopMaster => stop_for(cluster, master, while_it_lasts)?,
        Fault::KillSlave => {
            cluster.members[slave].kill()?;
            last(while_it_lasts);
            cluster.start_slave(slave, false)?;
        }
        Fault::StopSlave => stop_for(cluster, slave, while_it_lasts)?,
        Fault::CutReplication(direction) => {
            cluster.cut_replication(direction, any_cut(rng))?;
            last(while_it_lasts);
        }
        Fault::ResetReplication => return resets(cluster, rng, while_it_lasts),
        Fault::BadReplication => {
            let Ok(relay) = cluster.members[master].relay() else {
                return resets(cluster, rng, while_it_lasts);
            };
            let bad = Flow {
                delay: Duration::from_millis(rng.within(5, 80)),
                lost_per_mille: rng.within(0, 100) as u32,
                reordered_per_mille: rng.within(0, 200) as u32,
                ..Flow::default()
            };
            relay.set(bad, bad);
            last(while_it_lasts);
        }
        Fault::CutMasterFromZooKeeper => {
            cluster.cut_from_zookeeper(master, any_cut(rng))?;
            last(SESSION + while_it_lasts);
        }
        Fault::CutSlavesFromZooKeeper => {
            let cut = any_cut(rng);
            slaves.iter().try_for_each(|slave| cluster.cut_from_zookeeper(*slave, cut))?;
            last(SESSION + while_it_lasts);
        }
        Fault::RestartZooKeeper => {
            cluster.zookeeper.kill();
            last(while_it_lasts);
            cluster.zookeeper.run()?;
        }
        Fault::SlowDisk { master: of_master } => {
            let member = if of_master { master } else { slave };
            let sync = Duration::from_millis(rng.within(20, 250));
            let slow = SlowDisk::attach(cluster.members[member].broker()?.pid(), sync);
            if let Err(reason) = &slow {
                ensure!(!rustix::process::geteuid().is_root(), "{reason:#}");
                say_loudly(&format!("NO SLOW DISK in this round: {reason:#}"));
            }
            last(while_it_lasts);
        }
    }
    Ok(())
}

fn succeed(cluster: &mut Cluster, clients: Clients<'_>, rng: &mut Rng, departure: Departure) -> Result<()> {
    let old = cluster.master;
    match departure {
        Departure::InOrder => {
            cluster.members[old].stop()?;
            promote_best(cluster, clients)?;
            cluster.rejoin(old)
        }
        Departure::Killed => {
            let slaves = cluster.slaves();
            let confirmed = slaves.iter().map(|slave| cluster.confirmed(*slave)).collect::<Result<Vec<_>>>()?;
            cluster.members[old].kill()?;
            promote_best(cluster, clients)?;
            let promoted = slaves.iter().position(|slave| *slave == cluster.master);
            holds_what_it_confirmed(cluster, &confirmed[promoted.context("a slave was promoted")?])?;
            cluster.rejoin(old)
        }
        Departure::Stopped => {
            cluster.members[old].broker()?.signal(Signal::STOP)?;
            promote_best(cluster, clients)?;
            cluster.members[old].broker()?.signal(Signal::CONT)?;
            rejoin_the_replaced(cluster, old)
        }
        Departure::CutOff => {
            let cut = any_cut(rng);
            cluster.cut_from_zookeeper(old, cut)?;
            // Or the one promoted would find it alive.
            cluster.cut_replication(Direction::Both, cut)?;
            promote_best(cluster, clients)?;
            cluster.heal()?;
            rejoin_the_replaced(cluster, old)
        }
    }
}

fn stop_for(cluster: &mut Cluster, member: usize, time: Duration) -> Result<()> {
    let broker = cluster.members[member].broker()?;
    broker.signal(Signal::STOP)?;
    last(time);
    broker.signal(Signal::CONT)
}

fn any_cut(rng: &mut Rng) -> Cut {
    if rng.within(0, 2) == 0 { Cut::Drop } else { Cut::Reject }
}

/// The connections between master and slaves end again and again.
fn resets(cluster: &Cluster, rng: &mut Rng, while_it_lasts: Duration) -> Result<()> {
    for _ in 0..rng.within(1, 5) {
        cluster.reset_replication()?;
        last(while_it_lasts / 5);
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
