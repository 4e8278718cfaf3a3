//! F43: which address clients are told, by masters in network namespaces of their own.

use anyhow::{Result, bail, ensure};
use metaq_harness::fire::say_loudly;
use metaq_harness::process::{Broker, Site, binary_path};
use std::fs;
use std::process::{Command, Stdio};

/// An interface that nobody is reached by first, a bridge, and two routed ones; each that is up has a link-local IPv6
/// address as well. A pair of virtual links stands for an interface with a cable, as not every kernel has dummies.
const CROWDED: &str = "
    ip link add first type veth peer name first-end
    ip address add 10.99.0.1/24 dev first
    ip link add bridge0 type bridge
    ip address add 172.17.0.1/16 dev bridge0
    ip link add near type veth peer name near-end
    ip address add 10.5.0.2/24 dev near
    ip link add routed type veth peer name routed-end
    ip address add 192.168.7.20/24 dev routed
    for link in first first-end bridge0 near near-end routed routed-end; do ip link set $link up; done
    ip route add default via 192.168.7.1";

/// No IPv4 address but loopback's.
const IPV6_ONLY: &str = "
    ip link add routed type veth peer name routed-end
    ip link set routed up
    ip link set routed-end up
    ip -6 address add fd00:7::20/64 dev routed nodad
    ip -6 route add default via fd00:7::1";

/// A name server that never answers, asked for as long as any resolver can be told to.
const DEAF_RESOLVER: &str = "nameserver 192.168.7.1\noptions timeout:30 attempts:5\n";

fn enter(script: &str) -> Vec<String> {
    let script = format!("PATH=$PATH:/usr/sbin:/sbin; set -e; ip link set lo up\n{script}\nexec \"$0\" \"$@\"");
    ["unshare", "--map-root-user", "--net", "--mount", "sh", "-c", &script].map(str::to_owned).to_vec()
}

/// Whether such a network can be made here; said loudly if not.
fn can_make(script: &str) -> Result<bool> {
    let launcher = enter(script);
    let output = Command::new(&launcher[0]).args(&launcher[1..]).arg("true").stdin(Stdio::null()).output()?;
    if !output.status.success() {
        let reason = String::from_utf8_lossy(&output.stderr);
        say_loudly(&format!("NOT TESTED: advertised addresses in network namespaces: {reason}"));
    }
    Ok(output.status.success())
}

/// A site whose master is to find its address itself.
fn site(script: &str) -> Result<Site> {
    let mut site = Site::new()?;
    site.set("hostName", "").launch_by(enter(script));
    Ok(site)
}

/// Starts a master and returns when it has said which address it advertises: this one, for this reason.
fn start(site: &Site, arguments: &[&str], host: &str, because: &str) -> Result<Broker> {
    site.write_ini()?;
    let mut broker = Broker::spawn(site, "metaq-master", arguments)?;
    let line = broker.wait_for_line("advertised address")?;
    let uri = line.split('"').nth(1).unwrap_or_default();
    ensure!(uri.starts_with(&format!("meta://{host}:")) && line.contains(because), "{host}, {because}: {line}");
    broker.address = uri.trim_start_matches("meta://").to_owned();
    Ok(broker)
}

/// What the tool prints that runs where the broker runs, and reaches it by the address it advertises.
fn tool(broker: &Broker, words: &[&str]) -> Result<String> {
    let (target, tool) = (broker.pid().to_string(), binary_path("metaq")?);
    let mut command = Command::new("nsenter");
    command.args(["--target", &target, "--user", "--net", "--preserve-credentials"]).arg(tool);
    let output = command.args(["--broker", &broker.address]).args(words).stdin(Stdio::null()).output()?;
    ensure!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8(output.stdout)?)
}

fn serves(site: &Site, broker: &mut Broker) -> Result<()> {
    broker.wait_for_line("serving as master")?;
    let lines = site.path().join("lines");
    fs::write(&lines, "a message\n")?;
    tool(broker, &["put", "--topic", "test", &lines.display().to_string()])?;
    match tool(broker, &["consume", "--topic", "test"])?.as_str() {
        "a message\n" => Ok(()),
        other => bail!("{other:?}"),
    }
}

#[test]
fn f43_the_address_that_others_reach_is_published() -> Result<()> {
    if !can_make(CROWDED)? {
        return Ok(());
    }
    // There need not be a ZooKeeper for the way to it to be known.
    let mut near = site(CROWDED)?;
    near.set_zookeeper("zk.zkEnable", "true").set_zookeeper("zk.zkConnect", "10.5.0.9:2181");
    start(&near, &[], "10.5.0.2", "it is the address used to reach ZooKeeper")?;
    let routed = site(CROWDED)?;
    let mut broker = start(&routed, &[], "192.168.7.20", "it is the address of the default route")?;
    serves(&routed, &mut broker)?;
    // A ZooKeeper on this machine says nothing of the others.
    let mut local = site(CROWDED)?;
    local.set_zookeeper("zk.zkEnable", "true").set_zookeeper("zk.zkConnect", "127.0.0.1:2181");
    let mut broker = start(&local, &["--local"], "192.168.7.20", "it is the address of the default route")?;
    broker.wait_for_line("accepting messages")?;
    serves(&local, &mut broker)
}

#[test]
fn f43_with_ipv6_only_the_address_is_in_brackets_and_has_no_zone() -> Result<()> {
    if !can_make(IPV6_ONLY)? {
        return Ok(());
    }
    let site = site(IPV6_ONLY)?;
    let mut broker = start(&site, &[], "[fd00:7::20]", "it is the address of the default route")?;
    serves(&site, &mut broker)
}

/// A start that resolved it would outlast our patience.
#[test]
fn f43_a_host_name_is_published_as_it_stands_and_not_resolved() -> Result<()> {
    if !can_make(CROWDED)? {
        return Ok(());
    }
    let mut site = site("")?;
    let resolver = site.path().join("resolv.conf");
    fs::write(&resolver, DEAF_RESOLVER)?;
    site.launch_by(enter(&format!("{CROWDED}\nmount --bind {} /etc/resolv.conf", resolver.display())));
    site.set("hostName", "does-not-resolve.invalid");
    let mut broker = start(&site, &[], "does-not-resolve.invalid", "hostName says so")?;
    broker.wait_for_line("serving as master")?;
    Ok(())
}
