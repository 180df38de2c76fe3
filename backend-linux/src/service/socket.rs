//! Sockets at a bridge's address, which may not exist yet.

use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, SockaddrStorage, bind, listen, setsockopt, socket, sockopt,
};
use std::{
    io,
    net::SocketAddr,
    os::fd::{AsRawFd, OwnedFd},
};

/// Connections that may wait to be accepted.
const BACKLOG: i32 = 128;

/// A UDP socket bound to `address`, whether a link has that address or not: ip(7), `IP_FREEBIND`.
///
/// # Errors
/// As bind(2): the address is taken.
pub(crate) fn udp(address: SocketAddr) -> io::Result<tokio::net::UdpSocket> {
    let socket = bound(address, SockType::Datagram)?;
    tokio::net::UdpSocket::from_std(std::net::UdpSocket::from(socket))
}

/// A TCP socket that listens at `address`, likewise.
///
/// # Errors
/// As bind(2).
pub(crate) fn tcp(address: SocketAddr) -> io::Result<tokio::net::TcpListener> {
    let socket = bound(address, SockType::Stream)?;
    listen(&socket, Backlog::new(BACKLOG)?)?;
    tokio::net::TcpListener::from_std(std::net::TcpListener::from(socket))
}

fn bound(address: SocketAddr, kind: SockType) -> io::Result<OwnedFd> {
    let family = if address.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    let socket = socket(family, kind, SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK, None)?;
    if kind == SockType::Stream {
        // A control that takes over finds connections of the last one in TIME_WAIT.
        setsockopt(&socket, sockopt::ReuseAddr, &true)?;
    }
    match address {
        SocketAddr::V4(_) => setsockopt(&socket, sockopt::IpFreebind, &true)?,
        SocketAddr::V6(_) => free_bind6(&socket)?,
    }
    bind(socket.as_raw_fd(), &SockaddrStorage::from(address))?;
    Ok(socket)
}

/// `IPV6_FREEBIND`, which nix does not know.
fn free_bind6(socket: &OwnedFd) -> io::Result<()> {
    let on: libc::c_int = 1;
    // SAFETY: pointer and length are of one integer that lives during the call.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_IPV6,
            libc::IPV6_FREEBIND,
            (&raw const on).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
