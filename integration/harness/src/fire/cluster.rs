//! A master and two slaves of one broker id under one ZooKeeper, in network namespaces of their own or with a relay in
//! front of each member and each member's ZooKeeper. The harness itself goes around whatever is cut.

use crate::authority::Authority;
use crate::fire::check::{Beginning, Partition};
use crate::fire::load::Target;
use crate::fire::namespaces::{self, Cut, Hub, Namespace, Severed};
use crate::fire::{PARTITIONS, TOPICS};
use crate::pair::assert_same;
use crate::ports::free_port;
use crate::process::{Broker, PATIENCE, Site, wait_until};
use crate::raw::Raw;
use crate::relay::{Flow, Relay};
use crate::zookeeper::ZooKeeper;
use anyhow::{Context, Result, bail, ensure};
use std::collections::BTreeMap;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

pub const MEMBERS: usize = 3;

/// Short, so that a master that is gone is known to be gone soon.
pub const SESSION: Duration = Duration::from_millis(1500);

/// A port is free in a namespace of one's own.
const PORT: u16 = 8123;

/// How slaves reach their master.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    Tcp,
    /// With certificates on both sides.
    Quic,
}

/// What a cluster runs on; without a hub, on relays.
#[derive(Clone, Debug)]
pub struct Setup {
    pub hub: Option<Arc<Hub>>,
    pub transport: Transport,
}

/// Whose packets are stopped between a master and its slaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    Both,
    ToMaster,
    FromMaster,
}

/// What lies between a member and everybody else.
#[derive(Debug)]
pub enum Surroundings {
    Relays(Box<Relays>),
    Namespace(Namespace),
}

#[derive(Debug)]
pub struct Relays {
    /// In front of its port, at the address that it registers.
    front: Relay,
    zookeeper: Relay,
}

#[derive(Debug)]
pub struct Member {
    pub site: Site,
    pub surroundings: Surroundings,
    /// Its port, around any relay.
    pub direct: String,
    pub broker: Option<Broker>,
}

#[derive(Debug)]
pub struct Cluster {
    pub zookeeper: ZooKeeper,
    pub members: Vec<Member>,
    pub master: usize,
    /// Counted here, by promotions.
    pub reign: usize,
    pub beginnings: Vec<Beginning>,
    /// Bytes that old masters had and their successors had not, by their files.
    pub counted_loss_bytes: u64,
    hub: Option<Arc<Hub>>,
    /// Its files are read by members that start.
    _authority: Option<Authority>,
}

impl Member {
    fn new(number: usize, zookeeper: &ZooKeeper, hub: Option<&Hub>) -> Result<Member> {
        let mut site = Site::new()?;
        let (surroundings, advertised, direct) = match hub {
            None => {
                let port = free_port()?;
                let advertised = SocketAddr::from(([127, 0, 0, 10 + number as u8], port));
                let direct = SocketAddr::from(([127, 0, 0, 1], port));
                let front = Relay::start_with_datagrams(advertised, direct)?;
                let to_zookeeper = Relay::start("127.0.0.1:0".parse()?, zookeeper.connect().parse()?)?;
                let relays = Relays { front, zookeeper: to_zookeeper };
                (Surroundings::Relays(Box::new(relays)), advertised, direct)
            }
            Some(hub) => {
                let namespace = hub.namespace(number)?;
                let address = SocketAddr::from((namespace.address, PORT));
                site.launch_by(namespace.launcher());
                (Surroundings::Namespace(namespace), address, address)
            }
        };
        site.set("hostName", &advertised.ip().to_string());
        site.set("bindHost", &direct.ip().to_string());
        site.set("serverPort", &direct.port().to_string());
        site.set("maxSegmentSize", "128*1024");
        for topic in TOPICS {
            site.topic(topic, &[("numPartitions", &PARTITIONS.to_string())]);
        }
        let reached_at = match &surroundings {
            Surroundings::Relays(relays) => relays.zookeeper.address.to_string(),
            Surroundings::Namespace(_) => zookeeper.connect(),
        };
        site.set_zookeeper("zk.zkEnable", "true");
        site.set_zookeeper("zk.zkConnect", &reached_at);
        site.set_zookeeper("zk.zkSessionTimeoutMs", &SESSION.as_millis().to_string());
        Ok(Member { site, surroundings, direct: direct.to_string(), broker: None })
    }

    /// The relay in front of it.
    pub fn relay(&self) -> Result<&Relay> {
        match &self.surroundings {
            Surroundings::Relays(relays) => Ok(&relays.front),
            Surroundings::Namespace(_) => bail!("this cluster has no relays"),
        }
    }

    /// The relay between it and ZooKeeper.
    pub fn zookeeper_relay(&self) -> Result<&Relay> {
        match &self.surroundings {
            Surroundings::Relays(relays) => Ok(&relays.zookeeper),
            Surroundings::Namespace(_) => bail!("this cluster has no relays"),
        }
    }

    fn address(&self) -> Result<Ipv4Addr> {
        match self.direct.parse::<SocketAddr>()?.ip() {
            IpAddr::V4(address) => Ok(address),
            IpAddr::V6(address) => bail!("{address} is no address of version 4"),
        }
    }

    pub fn broker(&mut self) -> Result<&mut Broker> {
        self.broker.as_mut().context("this member does not run")
    }

    pub fn kill(&mut self) -> Result<()> {
        self.broker.take().context("this member does not run")?.kill()
    }

    /// In order.
    pub fn stop(&mut self) -> Result<()> {
        let status = self.broker.take().context("this member does not run")?.stop()?;
        ensure!(status.success(), "stopping it ended with {status}");
        Ok(())
    }

    /// Where its partitions end, by its files; the process must have ended.
    pub fn ends(&self) -> Result<BTreeMap<Partition, u64>> {
        let mut ends = BTreeMap::new();
        for topic in TOPICS {
            for partition in 0..PARTITIONS {
                ends.insert((topic, partition), end_of(&self.site.data().join(format!("{topic}-{partition}")))?);
            }
        }
        Ok(ends)
    }

    /// The end that readers see; 0 for a partition that is not there.
    pub fn served_end(&self, topic: &str, partition: i32) -> Result<u64> {
        let reply = Raw::connect(&self.direct)?.get(topic, partition, i64::MAX, 1024)?;
        match reply.code {
            404 => Ok(0),
            _ => Ok(reply.text().parse()?),
        }
    }
}

/// The end of the last whole record.
fn end_of(directory: &Path) -> Result<u64> {
    let Ok(entries) = fs::read_dir(directory) else { return Ok(0) };
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let Some(last) = names.filter(|name| name.ends_with(".meta")).max() else { return Ok(0) };
    let bytes = fs::read(directory.join(&last))?;
    let mut at = 0;
    while let Some(head) = bytes.get(at..at + 4) {
        let next = at + 20 + u32::from_be_bytes(head.try_into()?) as usize;
        if next > bytes.len() {
            break;
        }
        at = next;
    }
    Ok(last.trim_end_matches(".meta").parse::<u64>()? + at as u64)
}

impl Cluster {
    /// Returns when the master accepts messages and the slaves follow it.
    pub fn start() -> Result<Cluster> {
        Cluster::start_with(|_, _| Ok(()))
    }

    /// The same with what `configure` changes in each member's site.
    pub fn start_with(configure: impl FnMut(usize, &mut Site) -> Result<()>) -> Result<Cluster> {
        Cluster::start_on(Setup { hub: None, transport: Transport::Tcp }, configure)
    }

    pub fn start_on(setup: Setup, mut configure: impl FnMut(usize, &mut Site) -> Result<()>) -> Result<Cluster> {
        let Setup { hub, transport } = setup;
        let zookeeper = match &hub {
            None => ZooKeeper::start()?,
            Some(_) => ZooKeeper::start_on(namespaces::ZOOKEEPER.into())?,
        };
        let mut members =
            (0..MEMBERS).map(|number| Member::new(number, &zookeeper, hub.as_deref())).collect::<Result<Vec<_>>>()?;
        let authority = match transport {
            Transport::Tcp => None,
            Transport::Quic => Some(Authority::new("fire")?),
        };
        for (number, member) in members.iter_mut().enumerate() {
            if let Some(authority) = &authority {
                let host = member.site.get("hostName").context("a member has a name")?.to_owned();
                authority.issue_at(&format!("member{number}"), &host)?.configure(&mut member.site);
                member.site.set("replicationTransport", "quic");
            }
            configure(number, &mut member.site)?;
        }
        let mut cluster = Cluster {
            zookeeper,
            members,
            master: 0,
            reign: 0,
            beginnings: Vec::new(),
            counted_loss_bytes: 0,
            hub,
            _authority: authority,
        };
        let mut master = cluster.members[0].site.start_master(&[])?;
        master.wait_for_line("accepting messages")?;
        cluster.members[0].broker = Some(master);
        for slave in 1..MEMBERS {
            cluster.start_slave(slave, false)?;
            cluster.members[slave].broker()?.wait_for_line("following the master")?;
        }
        Ok(cluster)
    }

    pub fn target(&self) -> Target {
        Target { address: self.members[self.master].direct.clone(), reign: self.reign }
    }

    pub fn slaves(&self) -> Vec<usize> {
        (0..MEMBERS).filter(|member| *member != self.master).collect()
    }

    pub fn start_slave(&mut self, member: usize, accept_divergence: bool) -> Result<()> {
        let id = member.to_string();
        let mut arguments = vec!["--slave-id", &id];
        if accept_divergence {
            arguments.push("--accept-divergence");
        }
        let broker = self.members[member].site.start_slave(&arguments)?;
        self.members[member].broker = Some(broker);
        Ok(())
    }

    /// The slave that holds most.
    pub fn best_slave(&self) -> Result<usize> {
        let mut best = None;
        for slave in self.slaves() {
            let mut bytes = 0;
            for topic in TOPICS {
                for partition in 0..PARTITIONS {
                    bytes += self.members[slave].served_end(topic, partition)?;
                }
            }
            best = best.max(Some((bytes, slave)));
        }
        Ok(best.context("there are slaves")?.1)
    }

    /// The ends that readers of the master see.
    pub fn served_ends(&self) -> Result<BTreeMap<Partition, u64>> {
        let mut ends = BTreeMap::new();
        for topic in TOPICS {
            for partition in 0..PARTITIONS {
                ends.insert((topic, partition), self.members[self.master].served_end(topic, partition)?);
            }
        }
        Ok(ends)
    }

    /// What the master takes a slave to hold, by the offsets of its gets; nothing of a partition it has not asked for yet.
    pub fn confirmed(&self, slave: usize) -> Result<BTreeMap<Partition, u64>> {
        let text = Raw::connect(&self.members[self.master].direct)?.ask("stats replicas")?.text();
        let mut confirmed = BTreeMap::new();
        for line in text.lines() {
            let words: Vec<&str> = line.split(' ').collect();
            let ["slave", id, _, topic, partition, "confirmed", end, ..] = words[..] else { continue };
            if let Some(topic) = TOPICS.into_iter().find(|known| *known == topic)
                && id.parse::<usize>()? == slave
            {
                confirmed.insert((topic, partition.parse()?), end.parse()?);
            }
        }
        Ok(confirmed)
    }

    /// Stops the slave, starts it as the master, and returns when it accepts messages. The old master is dead, stopped or
    /// cut off by now.
    pub fn promote(&mut self, slave: usize) -> Result<()> {
        self.members[slave].stop()?;
        let ends = self.members[slave].ends()?;
        let mut promoted = self.members[slave].site.start_slave(&[])?;
        promoted.wait_for_line("accepting messages")?;
        self.members[slave].broker = Some(promoted);
        self.reign += 1;
        self.master = slave;
        self.beginnings.push(Beginning { reign: self.reign, ends });
        Ok(())
    }

    /// Starts an old master, which has ended, as a slave. What it sets aside is as much as its successor lacked.
    pub fn rejoin(&mut self, old: usize) -> Result<()> {
        let ends = self.members[old].ends()?;
        let beginning = self.beginnings.last().context("somebody was promoted")?;
        let beyond = |(partition, end): (&Partition, &u64)| {
            end.saturating_sub(beginning.ends.get(partition).copied().unwrap_or(0))
        };
        let counted: u64 = ends.iter().map(beyond).sum();
        self.counted_loss_bytes += counted;
        self.start_slave(old, false)?;
        let broker = self.members[old].broker()?;
        broker.wait_for_line("following the master")?;
        let log = broker.log_text();
        let lines = log.lines().filter(|line| line.contains("set aside and cut"));
        let bytes = |line: &str| line.split(' ').find_map(|word| word.strip_prefix("bytes=")?.parse::<u64>().ok());
        let announced: u64 = lines.filter_map(bytes).sum();
        ensure!(
            announced == counted,
            "{announced} bytes are announced as set aside, and {counted} were beyond:\n{log}"
        );
        Ok(())
    }

    /// Returns when every slave holds what the master holds, with how long that took. A slave that was given more than
    /// the promoted one had says so, and is told to give way.
    pub fn wait_whole(&mut self) -> Result<Duration> {
        let begun = Instant::now();
        for slave in self.slaves() {
            let mut settled = false;
            loop {
                let Some(behind) = self.behind(slave)? else { break };
                if !settled && self.is_diverged(slave)? {
                    self.members[slave].stop()?;
                    self.start_slave(slave, true)?;
                    settled = true;
                }
                if begun.elapsed() > PATIENCE {
                    let log = self.members[slave].broker()?.log_text();
                    bail!("stuck: slave {slave} {behind} after {PATIENCE:?}; its log:\n{log}");
                }
                std::thread::park_timeout(Duration::from_millis(20));
            }
        }
        Ok(begun.elapsed())
    }

    fn is_diverged(&self, slave: usize) -> Result<bool> {
        let text = Raw::connect(&self.members[slave].direct)?.ask("stats replication")?.text();
        Ok(text.contains("diverged"))
    }

    fn behind(&self, slave: usize) -> Result<Option<String>> {
        for topic in TOPICS {
            for partition in 0..PARTITIONS {
                let end = self.members[self.master].served_end(topic, partition)?;
                let own = self.members[slave].served_end(topic, partition)?;
                if own != end {
                    return Ok(Some(format!("holds {topic}-{partition} up to {own}, the master up to {end}")));
                }
            }
        }
        Ok(None)
    }

    /// The files of all three are the same. Nothing may be written meanwhile.
    pub fn assert_same(&self) -> Result<()> {
        let master = self.members[self.master].site.data();
        for slave in self.slaves() {
            assert_same(&master, &self.members[slave].site.data())
                .with_context(|| format!("slave {slave} of {}", self.master))?;
        }
        Ok(())
    }

    /// Stops packets between the master and its slaves. Relays know no refusal: there `cut` makes no difference.
    pub fn cut_replication(&self, direction: Direction, cut: Cut) -> Result<()> {
        let master = &self.members[self.master];
        let Some(hub) = &self.hub else {
            let flow = |only| if direction == only { Flow::default() } else { Flow::STALLED };
            master.relay()?.set(flow(Direction::FromMaster), flow(Direction::ToMaster));
            return Ok(());
        };
        let mut severed = Vec::new();
        for slave in self.slaves() {
            let (slave, master) = (self.members[slave].address()?, master.address()?);
            if direction != Direction::FromMaster {
                severed.push(Severed { from: slave, to: master, cut });
            }
            if direction != Direction::ToMaster {
                severed.push(Severed { from: master, to: slave, cut });
            }
        }
        hub.sever(&severed)
    }

    /// Stops packets between a member and ZooKeeper, both ways.
    pub fn cut_from_zookeeper(&self, member: usize, cut: Cut) -> Result<()> {
        let member = &self.members[member];
        let Some(hub) = &self.hub else {
            member.zookeeper_relay()?.stall();
            return Ok(());
        };
        let (address, zookeeper) = (member.address()?, namespaces::ZOOKEEPER);
        hub.sever(&[Severed { from: address, to: zookeeper, cut }, Severed { from: zookeeper, to: address, cut }])
    }

    /// Ends the connections between the master and its slaves, once.
    pub fn reset_replication(&self) -> Result<()> {
        if self.hub.is_none() {
            self.members[self.master].relay()?.reset();
            return Ok(());
        }
        self.cut_replication(Direction::Both, Cut::Reject)?;
        // Long enough for a packet to meet the rule.
        std::thread::park_timeout(Duration::from_millis(100));
        self.heal()
    }

    /// Everything passes again.
    pub fn heal(&self) -> Result<()> {
        if let Some(hub) = &self.hub {
            return hub.heal();
        }
        for member in &self.members {
            member.relay()?.restore();
            member.zookeeper_relay()?.restore();
        }
        Ok(())
    }

    /// A master whose lease ran out accepts messages again.
    pub fn wait_accepting(&self) -> Result<()> {
        let address = &self.members[self.master].direct;
        wait_until("the master to accept messages", || {
            // A message to a partition that is not there is refused for another reason once the gate is open.
            let reply = Raw::connect(address)?.put(TOPICS[0], PARTITIONS + 1, b"x")?;
            Ok((reply.code != 503).then_some(()))
        })
    }
}
