//! Probes: real packets from one sandbox to another. What the rules say is no evidence; what arrives is.

use super::{
    error::{errno, io},
    netns,
};
use holdfast_core::{
    error::{Class, RouterError},
    world::Ask,
};
use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::socket::{
        AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, SockaddrStorage, connect, recv, send,
        socket,
    },
};
use std::{
    net::{IpAddr, SocketAddr, TcpListener, TcpStream},
    os::fd::{AsFd, AsRawFd, OwnedFd},
    time::{Duration, Instant},
};

/// A probe that takes longer is refused: nobody waits for it.
const TIMEOUT_MS_MAX: u64 = 60_000;
/// An echo that a full queue lost is sent again after this long, in milliseconds.
const ECHO_INTERVAL_MS: u64 = 200;

/// Tries what is asked: for [`Ask::Any`] TCP and ICMP echo at once; `true` when either was answered before the deadline.
pub(crate) fn run(
    from: OwnedFd,
    to: &OwnedFd,
    address: IpAddr,
    timeout_ms: u64,
    ask: Ask,
) -> Result<bool, RouterError> {
    let subject = address.to_string();
    if !(1..=TIMEOUT_MS_MAX).contains(&timeout_ms) {
        let cause = format!("a timeout of {timeout_ms} ms is not between 1 and {TIMEOUT_MS_MAX}");
        return Err(RouterError::new(Class::Fatal, "probe", subject, cause));
    }
    let deadline = Instant::now() + Duration::from_millis(timeout_ms);
    // The kernel's backlog completes handshakes: nobody has to accept. It lives until the end of the probe.
    let from = from.as_fd();
    if ask == Ask::Icmp {
        return netns::within(from, &subject, || echo(address, deadline));
    }
    let port = if let Ask::Tcp(port) = ask { port } else { 0 };
    let listener = netns::within(to.as_fd(), &subject, || match TcpListener::bind((address, port)) {
        // Somebody listens there: as good as the prober.
        Err(error) if error.kind() == std::io::ErrorKind::AddrInUse && port != 0 => Ok(None),
        listener => listener.map(Some).map_err(|error| io("listen on", &subject, &error)),
    })?;
    let target = match &listener {
        Some(listener) => listener.local_addr().map_err(|error| io("listen on", &subject, &error))?,
        None => SocketAddr::new(address, port),
    };
    if let Ask::Tcp(_) = ask {
        return netns::within(from, &subject, || Ok(dial(target, deadline)));
    }
    std::thread::scope(|scope| {
        let echo = scope.spawn(|| netns::within(from, &subject, || echo(address, deadline)));
        let stream = netns::within(from, &subject, || Ok(dial(target, deadline)));
        // The first answer could end the wait for the other; both are bounded by the same deadline.
        let echo = echo.join().unwrap_or_else(|_| {
            Err(RouterError::new(Class::Fatal, "probe", &*subject, "the thread panicked"))
        });
        Ok(stream? || echo?)
    })
}

fn dial(target: SocketAddr, deadline: Instant) -> bool {
    let left = deadline.saturating_duration_since(Instant::now());
    !left.is_zero() && TcpStream::connect_timeout(&target, left).is_ok()
}

/// One ICMP echo request after another until one is answered: icmp(7), unprivileged ping sockets.
fn echo(address: IpAddr, deadline: Instant) -> Result<bool, RouterError> {
    let subject = address.to_string();
    let (family, protocol, request) = match address {
        IpAddr::V4(_) => (AddressFamily::Inet, SockProtocol::Icmp, [8, 0, 0, 0, 0, 0, 0, 1]),
        IpAddr::V6(_) => (AddressFamily::Inet6, SockProtocol::IcmpV6, [128, 0, 0, 0, 0, 0, 0, 1]),
    };
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let ping = match socket(family, SockType::Datagram, flags, protocol) {
        Ok(ping) => ping,
        // The sandbox does not let this group ping: TCP alone decides.
        Err(Errno::EACCES | Errno::EPERM) => return Ok(false),
        Err(error) => return Err(errno("open a ping socket for", subject, error)),
    };
    let target = SockaddrStorage::from(SocketAddr::new(address, 0));
    match connect(ping.as_raw_fd(), &target) {
        Ok(()) => {}
        Err(Errno::ENETUNREACH | Errno::EHOSTUNREACH) => return Ok(false),
        Err(error) => return Err(errno("probe", subject, error)),
    }
    let mut answer = [0_u8; 64];
    while Instant::now() < deadline {
        // A refusal (unreachable, no buffer) is as good as no answer.
        let _ = send(ping.as_raw_fd(), &request, MsgFlags::empty());
        let left = deadline.saturating_duration_since(Instant::now());
        let wait = left.min(Duration::from_millis(ECHO_INTERVAL_MS));
        let timeout = PollTimeout::try_from(wait).unwrap_or(PollTimeout::ZERO);
        let mut fds = [PollFd::new(ping.as_fd(), PollFlags::POLLIN)];
        if poll(&mut fds, timeout).is_ok_and(|ready| ready > 0)
            && recv(ping.as_raw_fd(), &mut answer, MsgFlags::empty())
                .is_ok_and(|length| is_reply(&answer[..length]))
        {
            return Ok(true);
        }
    }
    Ok(false)
}

/// ICMP echo reply, ICMPv6 echo reply: the first byte is the type.
fn is_reply(answer: &[u8]) -> bool {
    matches!(answer.first(), Some(0 | 129))
}
