//! Ports for what has to be told its port: a broker that is to come back at its address, a console, the original.

use anyhow::Result;
use rustix::fd::OwnedFd;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, getsockname, socket_with, sockopt};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

/// A port of 127.0.0.1 that was free a moment ago, for TCP.
///
/// Nothing ever listens here to find it. A listener would be inherited, for a moment, by whatever process another test
/// starts just then: clients could connect to it and be cut off, and the broker could not have the port.
pub fn free_port() -> Result<u16> {
    Ok(reserve(Ipv4Addr::LOCALHOST.into())?.1.port())
}

/// The address to [`free_port`].
pub fn free_address() -> Result<SocketAddr> {
    free_address_of(Ipv4Addr::LOCALHOST.into())
}

/// As [`free_address`], of another host of this machine.
pub fn free_address_of(host: IpAddr) -> Result<SocketAddr> {
    Ok(reserve(host)?.1)
}

fn reserve(host: IpAddr) -> Result<(OwnedFd, SocketAddr)> {
    let family = if host.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    bind(&socket, &SocketAddr::from((host, 0)))?;
    let address = getsockname(&socket)?.try_into()?;
    Ok((socket, address))
}

#[cfg(test)]
mod tests {
    use super::reserve;
    use anyhow::Result;
    use std::io::ErrorKind;
    use std::net::{Ipv4Addr, TcpListener, TcpStream};

    /// As when a process that has just been forked still holds it.
    #[test]
    fn a_port_is_free_while_somebody_still_holds_the_socket_that_found_it() -> Result<()> {
        let (_held, address) = reserve(Ipv4Addr::LOCALHOST.into())?;
        let refused = TcpStream::connect(address).map_err(|error| error.kind());
        assert_eq!(refused.err(), Some(ErrorKind::ConnectionRefused));
        let listener = TcpListener::bind(address)?;
        let _client = TcpStream::connect(address)?;
        listener.accept()?;
        Ok(())
    }
}
