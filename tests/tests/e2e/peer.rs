//! What this program does as somebody else: another user at the node's socket, or a client inside a workload's
//! network.

use anyhow::{Context as _, Result};
use holdfast_chaos::traffic::http_get;
use std::{
    io::{Read, Write},
    os::unix::net::UnixStream,
    process::ExitCode,
    time::Duration,
};

/// Connects to `socket` and asks for the node's status; prints what came back, or the error.
pub fn connect(socket: &str) -> Result<ExitCode> {
    println!("uid {}", nix::unistd::getuid());
    let mut stream = match UnixStream::connect(socket) {
        Ok(stream) => stream,
        Err(error) => {
            println!("connect: {:?}", error.kind());
            return Ok(ExitCode::SUCCESS);
        }
    };
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    // A server that has refused already may have closed: what it said is still there to be read.
    let _ = stream.write_all(b"GET /v1/status HTTP/1.1\r\nhost: holdfast\r\nconnection: close\r\n\r\n");
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    println!("answer: {}", String::from_utf8_lossy(&answer));
    Ok(ExitCode::SUCCESS)
}

/// Asks for the page at `address`, for so many milliseconds; succeeds if it comes.
pub fn fetch(address: &str, deadline_ms: &str) -> Result<ExitCode> {
    let address: std::net::SocketAddr = address.parse().context("an address and a port")?;
    let got = http_get(address, Duration::from_millis(deadline_ms.parse()?));
    println!("{got:?}");
    Ok(if got.is_ok_and(|page| page == "held fast\n") { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Answers each datagram at `address` with itself, until none has come for a while.
pub fn echo(address: &str) -> Result<ExitCode> {
    let socket = std::net::UdpSocket::bind(address).context("bind")?;
    println!("bound");
    socket.set_read_timeout(Some(Duration::from_secs(8)))?;
    let mut bytes = [0; 2048];
    while let Ok((length, from)) = socket.recv_from(&mut bytes) {
        socket.send_to(&bytes[..length], from)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Asks for an answer to a datagram at `address`, for so many milliseconds.
pub fn ask(address: &str, deadline_ms: &str) -> Result<ExitCode> {
    let address: std::net::SocketAddr = address.parse().context("an address and a port")?;
    let any: std::net::IpAddr =
        if address.is_ipv4() { [0, 0, 0, 0].into() } else { std::net::Ipv6Addr::UNSPECIFIED.into() };
    let socket = std::net::UdpSocket::bind((any, 0)).context("bind")?;
    socket.set_read_timeout(Some(Duration::from_millis(50)))?;
    let deadline = std::time::Instant::now() + Duration::from_millis(deadline_ms.parse()?);
    let mut bytes = [0; 64];
    while std::time::Instant::now() < deadline {
        // Refused or unreachable is as good as no answer.
        let _ = socket.send_to(b"held fast", address);
        if socket.recv_from(&mut bytes).is_ok_and(|(_, from)| from == address) {
            println!("answered");
            return Ok(ExitCode::SUCCESS);
        }
    }
    println!("answer: none");
    Ok(ExitCode::FAILURE)
}

/// Asks for an echo from `address`, for so many milliseconds: icmp(7), unprivileged ping sockets.
pub fn ping(address: &str, deadline_ms: &str) -> Result<ExitCode> {
    use nix::sys::socket::{
        AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, SockaddrStorage, connect, recv, send,
        setsockopt, socket, sockopt::ReceiveTimeout,
    };
    use std::os::fd::AsRawFd;
    let address: std::net::IpAddr = address.parse().context("an address")?;
    let (family, protocol, kind) = match address {
        std::net::IpAddr::V4(_) => (AddressFamily::Inet, SockProtocol::Icmp, 8),
        std::net::IpAddr::V6(_) => (AddressFamily::Inet6, SockProtocol::IcmpV6, 128),
    };
    let ping = socket(family, SockType::Datagram, SockFlag::SOCK_CLOEXEC, protocol).context("ping socket")?;
    setsockopt(&ping, ReceiveTimeout, &nix::sys::time::TimeVal::new(0, 100_000))?;
    let deadline = std::time::Instant::now() + Duration::from_millis(deadline_ms.parse()?);
    let target = SockaddrStorage::from(std::net::SocketAddr::new(address, 0));
    let reachable = connect(ping.as_raw_fd(), &target).is_ok();
    let mut bytes = [0; 64];
    while reachable && std::time::Instant::now() < deadline {
        let _ = send(ping.as_raw_fd(), &[kind, 0, 0, 0, 0, 0, 0, 1], MsgFlags::empty());
        // Echo reply, ICMP and ICMPv6.
        let got = recv(ping.as_raw_fd(), &mut bytes, MsgFlags::empty());
        if got.is_ok_and(|length| length > 0 && matches!(bytes[0], 0 | 129)) {
            println!("answered");
            return Ok(ExitCode::SUCCESS);
        }
    }
    println!("answer: none");
    Ok(ExitCode::FAILURE)
}
