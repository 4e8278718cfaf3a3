//! Members in network namespaces of their own around a hub, where nftables loses or refuses the packets between them.
//!
//! The thread that enters the hub stays there with everything it starts from then on: threads, ZooKeeper, consumers.
//! Nothing of the machine's own network is touched, and nothing is left behind: a namespace goes with the process that
//! holds it, and that one ends with the test, however the test ends.

use crate::process::wait_until;
use anyhow::{Context, Result, bail, ensure};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::fs::{self, File};
use std::io::Write;
use std::net::Ipv4Addr;
use std::os::fd::AsFd;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;

/// What has to be there besides the rights of root.
const TOOLS: [&str; 4] = ["ip", "nft", "nsenter", "unshare"];

/// Where ZooKeeper listens. An address of its own, so that a cut does not touch what the harness itself asks members.
pub const ZOOKEEPER: Ipv4Addr = Ipv4Addr::new(10, 77, 255, 1);

/// What becomes of packets that do not pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// Lost, and nobody is told.
    Drop,
    /// Connections are reset, and what is no connection is said to be forbidden.
    Reject,
}

/// Packets from one address to another, cut.
#[derive(Clone, Copy, Debug)]
pub struct Severed {
    pub from: Ipv4Addr,
    pub to: Ipv4Addr,
    pub cut: Cut,
}

/// The namespace between all members: it routes, and it cuts.
#[derive(Debug)]
pub struct Hub {
    holder: Holder,
    severed: Mutex<Vec<Severed>>,
}

/// A member's namespace, reached from the hub only.
#[derive(Debug)]
pub struct Namespace {
    holder: Holder,
    pub address: Ipv4Addr,
}

impl Hub {
    /// Moves the calling thread into a hub. An error says what is missing; the thread then stays where it was.
    pub fn enter() -> Result<Hub> {
        ensure!(rustix::process::geteuid().is_root(), "only root may make network namespaces");
        for tool in TOOLS {
            command("sh", &["-c", &format!("command -v {tool}")])
                .with_context(|| format!("{tool} is not there: apt-get install iproute2 nftables util-linux"))?;
        }
        let hub = Hub { holder: Holder::start()?, severed: Mutex::new(Vec::new()) };
        hub.holder.run("ip", &["link", "set", "lo", "up"])?;
        hub.holder.run("ip", &["address", "add", &format!("{ZOOKEEPER}/32"), "dev", "lo"])?;
        hub.holder.run("sh", &["-c", "echo 1 >/proc/sys/net/ipv4/ip_forward"])?;
        hub.apply(&[])?;
        let namespace = File::open(hub.holder.path())?;
        move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?;
        Ok(hub)
    }

    /// A namespace for the member of this number; an earlier one of it is cut off.
    pub fn namespace(&self, number: usize) -> Result<Namespace> {
        let holder = Holder::start()?;
        let subnet = u8::try_from(number + 1)?;
        let (here, there) = (Ipv4Addr::new(10, 77, subnet, 1), Ipv4Addr::new(10, 77, subnet, 2));
        let (near, pid) = (format!("member{number}"), holder.0.id().to_string());
        // Of an earlier member's namespace that something still keeps; usually there is none.
        let _ = self.holder.run("ip", &["link", "delete", &near]);
        self.holder.run("ip", &["link", "add", &near, "type", "veth", "peer", "name", "eth0", "netns", &pid])?;
        self.holder.run("ip", &["address", "add", &format!("{here}/24"), "dev", &near])?;
        self.holder.run("ip", &["link", "set", &near, "up"])?;
        holder.run("ip", &["link", "set", "lo", "up"])?;
        holder.run("ip", &["address", "add", &format!("{there}/24"), "dev", "eth0"])?;
        holder.run("ip", &["link", "set", "eth0", "up"])?;
        holder.run("ip", &["route", "add", "default", "via", &here.to_string()])?;
        Ok(Namespace { holder, address: there })
    }

    /// Cuts these as well.
    pub fn sever(&self, more: &[Severed]) -> Result<()> {
        let mut severed = self.severed.lock().ok().context("somebody panicked while cutting")?;
        severed.extend_from_slice(more);
        self.apply(&severed)
    }

    /// Everything passes again.
    pub fn heal(&self) -> Result<()> {
        let mut severed = self.severed.lock().ok().context("somebody panicked while cutting")?;
        severed.clear();
        self.apply(&severed)
    }

    /// All rules are replaced in one step.
    fn apply(&self, severed: &[Severed]) -> Result<()> {
        let mut nft = self.holder.command("nft", &["-f", "-"]).stdin(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
        nft.stdin.take().context("its input is piped")?.write_all(ruleset(severed).as_bytes())?;
        let output = nft.wait_with_output()?;
        ensure!(output.status.success(), "nft: {}", String::from_utf8_lossy(&output.stderr));
        Ok(())
    }
}

impl Namespace {
    /// Words in front of a command that is to run there; its process id stays that of what is started.
    pub fn launcher(&self) -> Vec<String> {
        vec!["nsenter".to_owned(), format!("--net={}", self.holder.path())]
    }
}

/// Packets between members are forwarded here, those to and from ZooKeeper arrive and leave here.
fn ruleset(severed: &[Severed]) -> String {
    let rules: String = severed.iter().map(rule).collect();
    let chains: String = ["forward", "input", "output"]
        .iter()
        .map(|hook| format!("chain {hook} {{ type filter hook {hook} priority 0; jump severed; }}\n"))
        .collect();
    // The first two lines make sure that there is one, so that it can be replaced.
    format!("table inet fire\ndelete table inet fire\ntable inet fire {{\nchain severed {{\n{rules}}}\n{chains}}}\n")
}

fn rule(Severed { from, to, cut }: &Severed) -> String {
    let packets = format!("ip saddr {from} ip daddr {to}");
    match cut {
        Cut::Drop => format!("{packets} drop\n"),
        Cut::Reject => format!(
            "{packets} meta l4proto tcp reject with tcp reset\n{packets} reject with icmp type admin-prohibited\n"
        ),
    }
}

/// A process that does nothing but keep a namespace; it ends when its input does.
#[derive(Debug)]
struct Holder(Child);

impl Holder {
    fn start() -> Result<Holder> {
        let own = fs::read_link("/proc/thread-self/ns/net")?;
        let child = tool("unshare")
            .args(["--net", "cat"])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .context("unshare cannot be run")?;
        let mut holder = Holder(child);
        wait_until("a new network namespace", || {
            if let Some(status) = holder.0.try_wait()? {
                bail!("unshare --net: {status}");
            }
            Ok((fs::read_link(holder.path())? != own).then_some(()))
        })?;
        Ok(holder)
    }

    fn path(&self) -> String {
        format!("/proc/{}/ns/net", self.0.id())
    }

    fn command(&self, name: &str, arguments: &[&str]) -> Command {
        let mut command = tool("nsenter");
        command.arg(format!("--net={}", self.path())).arg(name).args(arguments);
        command
    }

    fn run(&self, name: &str, arguments: &[&str]) -> Result<()> {
        succeed(&mut self.command(name, arguments))
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn command(name: &str, arguments: &[&str]) -> Result<()> {
    succeed(tool(name).args(arguments))
}

fn succeed(command: &mut Command) -> Result<()> {
    let output = command.stdin(Stdio::null()).output().with_context(|| format!("{command:?}"))?;
    ensure!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

/// A command found also where only root looks.
fn tool(name: &str) -> Command {
    let path = std::env::var("PATH").unwrap_or_default();
    let mut command = Command::new(name);
    command.env("PATH", format!("{path}:/usr/sbin:/sbin"));
    command
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::ErrorKind;
    use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
    use std::time::Duration;

    const SOON: Duration = Duration::from_millis(300);
    const PATIENCE: Duration = Duration::from_secs(10);

    /// Runs there and comes back with what was made.
    fn within<T: Send>(namespace: &Namespace, act: impl FnOnce() -> T + Send) -> T {
        let file = File::open(namespace.holder.path()).unwrap();
        std::thread::scope(|scope| {
            let thread = scope.spawn(move || {
                move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
                act()
            });
            thread.join().unwrap()
        })
    }

    fn arrives(from: &UdpSocket, to: &UdpSocket, patience: Duration) -> bool {
        let refused = from.send_to(b"x", to.local_addr().unwrap());
        // Of an earlier datagram the sender may be told only now.
        refused.or_else(|_| from.send_to(b"x", to.local_addr().unwrap())).unwrap();
        to.set_read_timeout(Some(patience)).unwrap();
        to.recv(&mut [0; 8]).is_ok()
    }

    fn cuts_as_told() {
        let hub = match Hub::enter() {
            Ok(hub) => hub,
            Err(reason) => {
                return crate::fire::say_loudly(&format!("NOT TESTED: cuts in network namespaces: {reason:#}"));
            }
        };
        let (one, two) = (hub.namespace(0).unwrap(), hub.namespace(1).unwrap());
        let socket = |namespace: &Namespace| within(namespace, || UdpSocket::bind((namespace.address, 0)).unwrap());
        let (at_one, at_two) = (socket(&one), socket(&two));
        let listener = within(&two, || TcpListener::bind((two.address, 0)).unwrap());
        let to: SocketAddr = listener.local_addr().unwrap();
        let connect = || within(&one, || TcpStream::connect_timeout(&to, SOON).map(drop).map_err(|error| error.kind()));
        let forth = |cut| Severed { from: one.address, to: two.address, cut };
        let passes_both_ways = || {
            assert!(arrives(&at_one, &at_two, PATIENCE) && arrives(&at_two, &at_one, PATIENCE));
            assert_eq!(connect(), Ok(()));
        };
        passes_both_ways();
        hub.sever(&[forth(Cut::Drop)]).unwrap();
        assert!(!arrives(&at_one, &at_two, SOON) && arrives(&at_two, &at_one, PATIENCE));
        assert_eq!(connect(), Err(ErrorKind::TimedOut));
        hub.heal().unwrap();
        passes_both_ways();
        hub.sever(&[forth(Cut::Reject)]).unwrap();
        assert!(!arrives(&at_one, &at_two, SOON) && arrives(&at_two, &at_one, PATIENCE));
        assert_eq!(connect(), Err(ErrorKind::ConnectionRefused));
        hub.heal().unwrap();
        passes_both_ways();
        // A member is replaced under its number.
        drop(one);
        hub.namespace(0).unwrap();
    }

    #[test]
    fn packets_are_cut_one_way_as_told_and_pass_again() {
        // The thread that enters a hub does not come back from it.
        std::thread::spawn(cuts_as_told).join().unwrap();
    }
}
