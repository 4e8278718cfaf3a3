//! Which address clients are told, and where to listen. Choosing is a plain function of what [`Local::look`] found;
//! `hostName` is never resolved.

use crate::broker::BrokerConfig;
use crate::system::System;
use crate::zookeeper::ZooKeeper;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs, UdpSocket};

/// The host of `meta://HOST:PORT`, and a sentence for the log on why it was chosen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Advertised {
    /// A name, an IPv4 address, or an IPv6 address in brackets without a zone.
    pub host: String,
    pub reason: String,
}

/// What this machine knows of its own addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Local {
    /// The local end of a way to a member of the ensemble.
    pub toward_zookeeper: Option<IpAddr>,
    /// The local end of the way to the rest of the world.
    pub toward_world: Option<IpAddr>,
    /// Every address of every interface, in the system's order.
    pub interfaces: Vec<IpAddr>,
}

impl Local {
    /// Asks the system; sends nothing. Resolving the names of the ensemble may block.
    pub fn look(zookeeper: &ZooKeeper) -> Local {
        let servers = if zookeeper.enable { zookeeper.servers() } else { Vec::new() };
        let members = servers.iter().filter_map(|(host, port)| (host.as_str(), *port).to_socket_addrs().ok()).flatten();
        // Addresses reserved for documentation: nobody's, so the route to them is the default one.
        let world = [IpAddr::from(Ipv4Addr::new(192, 0, 2, 1)), Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1).into()];
        Local {
            toward_zookeeper: members.filter_map(local_end).find(is_reachable),
            toward_world: world.into_iter().filter_map(|ip| local_end(SocketAddr::new(ip, 9))).find(is_reachable),
            interfaces: if_addrs::get_if_addrs()
                .map(|interfaces| interfaces.iter().map(if_addrs::Interface::ip).collect())
                .unwrap_or_default(),
        }
    }
}

/// The choice for this configuration on this machine. May block, see [`Local::look`].
pub fn advertised(config: &BrokerConfig) -> Advertised {
    let host_name = config.system.host_name.as_deref();
    let local = if host_name.is_some() { Local::default() } else { Local::look(&config.zookeeper) };
    choose(host_name, config.system.bind_host, &local)
}

/// Chooses `hostName` as it is written; else `bindHost` when it names one address; else the address used to reach
/// ZooKeeper; else that of the default route; else the first that other machines can reach, IPv4 first; else loopback.
pub fn choose(host_name: Option<&str>, bind_host: IpAddr, local: &Local) -> Advertised {
    let because = |ip: IpAddr, reason: &str| Advertised { host: in_url(ip), reason: reason.to_owned() };
    if let Some(name) = host_name {
        let host = parse_ip(name).map_or_else(|| name.to_owned(), in_url);
        return Advertised { host, reason: "hostName says so".to_owned() };
    }
    if !bind_host.is_unspecified() {
        return because(bind_host, "bindHost says to listen there only, and hostName is empty");
    }
    if let Some(ip) = local.toward_zookeeper.filter(is_reachable) {
        return because(ip, "it is the address used to reach ZooKeeper, and hostName is empty");
    }
    if let Some(ip) = local.toward_world.filter(is_reachable) {
        return because(ip, "it is the address of the default route, and hostName is empty");
    }
    let mut reachable: Vec<IpAddr> = local.interfaces.iter().copied().filter(is_reachable).collect();
    reachable.sort_by_key(IpAddr::is_ipv6);
    match reachable.first() {
        Some(ip) => because(*ip, "it is the first address of an interface, and hostName is empty"),
        None => because(
            Ipv4Addr::LOCALHOST.into(),
            "no interface has an address that others can reach; set hostName to be found from other machines",
        ),
    }
}

/// `bindHost`; where it is 0.0.0.0 and an IPv6 address is advertised, `::`, which takes both families.
pub fn listen_on(system: &System, advertised: &Advertised) -> IpAddr {
    if system.bind_host == Ipv4Addr::UNSPECIFIED && advertised.host.starts_with('[') {
        return Ipv6Addr::UNSPECIFIED.into();
    }
    system.bind_host
}

/// Whether `hostName` can be published; the error reads on after the text.
///
/// Clients find no host in a URL whose host name holds an underscore, or whose last label begins with a digit
/// (client-behaviour, "1.2 Connections").
pub(crate) fn check_host_name(text: &str) -> Result<String, String> {
    match parse_ip(text) {
        Some(ip) if ip.is_unspecified() => {
            return Err("is no address that anyone can connect to; leave hostName empty, or write bindHost".to_owned());
        }
        Some(_) => return Ok(text.to_owned()),
        None => {}
    }
    if text.contains('_') {
        return Err("holds an underscore, and Java clients cannot connect to such a name; \
                    give this machine another name or write its address"
            .to_owned());
    }
    let name = text.strip_suffix('.').unwrap_or(text);
    if name.len() > HOST_NAME_BYTES_MAX || name.split('.').any(|label| label.len() > LABEL_BYTES_MAX) {
        return Err(format!(
            "of {} bytes is longer than a host name may be: {HOST_NAME_BYTES_MAX}, and {LABEL_BYTES_MAX} between dots",
            name.len()
        ));
    }
    let label_fits = |label: &str| {
        let inner = |b: u8| b.is_ascii_alphanumeric() || b == b'-';
        !label.is_empty() && label.bytes().all(inner) && !label.starts_with('-') && !label.ends_with('-')
    };
    let last = name.rsplit('.').next().unwrap_or(name);
    if !name.split('.').all(label_fits) || !last.starts_with(|c: char| c.is_ascii_alphabetic()) {
        return Err("is neither a host name nor an IP address; write it without port, blanks or path".to_owned());
    }
    Ok(text.to_owned())
}

/// What the name service can hold.
const HOST_NAME_BYTES_MAX: usize = 253;
const LABEL_BYTES_MAX: usize = 63;

/// An address with or without brackets; a zone is dropped, as it means nothing to anyone else.
fn parse_ip(text: &str) -> Option<IpAddr> {
    let bare = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(text);
    match bare.split_once('%') {
        Some((address, _)) => address.parse::<Ipv6Addr>().ok().map(IpAddr::from),
        None => bare.parse().ok(),
    }
}

fn in_url(ip: IpAddr) -> String {
    match ip {
        IpAddr::V4(ip) => ip.to_string(),
        IpAddr::V6(ip) => format!("[{ip}]"),
    }
}

/// From other machines: neither loopback nor link-local, which needs a zone.
fn is_reachable(ip: &IpAddr) -> bool {
    let link_local = match ip {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    };
    !ip.is_loopback() && !ip.is_unspecified() && !link_local
}

/// The address from which datagrams would leave for `to`; connecting a UDP socket sends none.
fn local_end(to: SocketAddr) -> Option<IpAddr> {
    let any: IpAddr = if to.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind((any, 0)).ok()?;
    socket.connect(to).ok()?;
    Some(socket.local_addr().ok()?.ip())
}

#[cfg(test)]
mod tests {
    use super::*;

    const ANY: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn ips(texts: &[&str]) -> Vec<IpAddr> {
        texts.iter().map(|text| ip(text)).collect()
    }

    #[track_caller]
    fn check(host_name: Option<&str>, bind_host: IpAddr, local: &Local, host: &str, reason: &str) {
        let chosen = choose(host_name, bind_host, local);
        assert_eq!(chosen.host, host);
        assert!(chosen.reason.contains(reason), "{}", chosen.reason);
    }

    /// A dummy interface first, a bridge, a link-local address, and one that is routed.
    fn crowded() -> Local {
        Local {
            toward_zookeeper: Some(ip("192.168.7.20")),
            toward_world: Some(ip("192.168.7.20")),
            interfaces: ips(&["127.0.0.1", "10.99.0.1", "172.17.0.1", "fe80::1", "192.168.7.20", "::1"]),
        }
    }

    #[test]
    fn the_address_used_to_reach_zookeeper_is_published() {
        check(None, ANY, &crowded(), "192.168.7.20", "used to reach ZooKeeper");
    }

    #[test]
    fn a_zookeeper_on_this_machine_says_nothing_about_who_reaches_us() {
        let local = Local { toward_zookeeper: Some(ip("127.0.0.1")), ..crowded() };
        check(None, ANY, &local, "192.168.7.20", "default route");
        let local = Local { toward_world: None, ..local };
        check(None, ANY, &local, "10.99.0.1", "first address of an interface");
    }

    #[test]
    fn with_ipv6_only_the_address_has_brackets_and_is_listened_on() {
        let local = Local { interfaces: ips(&["::1", "fe80::1", "2001:db8::7"]), ..Local::default() };
        check(None, ANY, &local, "[2001:db8::7]", "first address of an interface");
        let local = Local { toward_zookeeper: Some(ip("2001:db8::7")), ..local };
        check(None, ANY, &local, "[2001:db8::7]", "used to reach ZooKeeper");
    }

    #[test]
    fn ipv4_comes_before_ipv6() {
        let local = Local { interfaces: ips(&["2001:db8::7", "10.0.0.1"]), ..Local::default() };
        check(None, ANY, &local, "10.0.0.1", "first address of an interface");
    }

    #[test]
    fn loopback_is_the_last_resort_and_says_so() {
        let local = Local { interfaces: ips(&["127.0.0.1", "::1", "fe80::1", "169.254.3.4"]), ..Local::default() };
        check(None, ANY, &local, "127.0.0.1", "set hostName");
        check(None, ANY, &Local::default(), "127.0.0.1", "set hostName");
    }

    #[test]
    fn a_host_name_is_published_as_it_is_written_and_never_resolved() {
        check(Some("does-not-resolve.invalid"), ANY, &crowded(), "does-not-resolve.invalid", "hostName says so");
        check(Some("127.0.0.1"), ANY, &crowded(), "127.0.0.1", "hostName says so");
        check(Some("2001:db8::1"), ANY, &crowded(), "[2001:db8::1]", "hostName says so");
        check(Some("[fe80::1%eth0]"), ANY, &crowded(), "[fe80::1]", "hostName says so");
        check(Some("mq1"), ip("10.0.0.9"), &crowded(), "mq1", "hostName says so");
    }

    #[test]
    fn the_only_address_listened_on_is_the_one_published() {
        check(None, ip("10.0.0.9"), &crowded(), "10.0.0.9", "bindHost");
        check(None, ip("::"), &crowded(), "192.168.7.20", "used to reach ZooKeeper");
    }

    #[test]
    fn this_machine_can_be_looked_at_without_a_zookeeper() {
        let connect = "127.0.0.1:1".to_owned();
        let zookeeper = ZooKeeper {
            connect,
            session_timeout: std::time::Duration::ZERO,
            connection_timeout: std::time::Duration::ZERO,
            sync_time: std::time::Duration::ZERO,
            enable: true,
            root: String::new(),
        };
        let local = Local::look(&zookeeper);
        assert_eq!(local.toward_zookeeper, None, "a loopback address is not reachable");
        assert!(!choose(None, ANY, &local).host.is_empty());
    }
}
