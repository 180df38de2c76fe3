//! What of the host networks and ports must keep clear of, looked at from the host's network namespace.

use super::{
    error::{errno, netlink},
    route::Route,
};
use holdfast_core::{error::RouterError, observed::HostObserved, spec::Protocol};
use netlink_packet_route::{
    AddressFamily, RouteNetlinkMessage,
    route::{RouteAddress, RouteAttribute, RouteMessage, RouteType},
};
use std::{
    collections::BTreeSet,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

/// rtnetlink(7), RT_TABLE_LOCAL: the host's own addresses, one by one.
const TABLE_LOCAL: u32 = 255;
/// TCP_LISTEN of include/net/tcp_states.h, as proc_net_tcp prints it.
const LISTEN: &str = "0A";
/// IP's default where the kernel does not tell: ip(7).
const UNPRIVILEGED_PORT_FIRST: u16 = 1024;

/// Looks at routes, ports and the limit on ports, in the caller's network namespace.
pub(crate) fn observe() -> Result<HostObserved, RouterError> {
    let mut route = Route::open().map_err(|error| errno("open netlink on", "the host", error))?;
    let mut routes = BTreeSet::new();
    for family in [AddressFamily::Inet, AddressFamily::Inet6] {
        let mut message = RouteMessage::default();
        message.header.address_family = family;
        let found = route
            .dump(&RouteNetlinkMessage::GetRoute(message))
            .map_err(|error| netlink("list", "the host's routes", &error))?;
        routes.extend(found.into_iter().filter_map(destination));
    }
    let tables = [
        (Protocol::Tcp, "/proc/net/tcp"),
        (Protocol::Tcp, "/proc/net/tcp6"),
        (Protocol::Udp, "/proc/net/udp"),
        (Protocol::Udp, "/proc/net/udp6"),
    ];
    let mut bound = BTreeSet::new();
    for (protocol, path) in tables {
        // Without IPv6 there is no such table. What cannot be read is found out when the port is bound.
        let table = std::fs::read_to_string(path).unwrap_or_default();
        bound.extend(ports(protocol, &table).map(|port| (protocol, port)));
    }
    Ok(HostObserved { routes, bound, unprivileged_port_first: unprivileged_port_first() })
}

/// Where a route leads; `None` for what is no network.
fn destination(message: RouteNetlinkMessage) -> Option<(IpAddr, u8)> {
    let RouteNetlinkMessage::NewRoute(message) = message else { return None };
    let table = message
        .attributes
        .iter()
        .find_map(|attribute| match attribute {
            RouteAttribute::Table(table) => Some(*table),
            _ => None,
        })
        .unwrap_or(u32::from(message.header.table));
    let leads =
        matches!(message.header.kind, RouteType::Unicast | RouteType::BlackHole | RouteType::Unreachable);
    if table == TABLE_LOCAL || !leads {
        return None;
    }
    let found = message.attributes.iter().find_map(|attribute| match attribute {
        RouteAttribute::Destination(RouteAddress::Inet(address)) => Some(IpAddr::V4(*address)),
        RouteAttribute::Destination(RouteAddress::Inet6(address)) => Some(IpAddr::V6(*address)),
        _ => None,
    });
    let default = match message.header.address_family {
        AddressFamily::Inet => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        _ => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    };
    Some((found.unwrap_or(default), message.header.destination_prefix_length))
}

/// Ports that are listened on: proc_net_tcp.rst in the kernel's documentation.
fn ports(protocol: Protocol, table: &str) -> impl Iterator<Item = u16> + '_ {
    table.lines().skip(1).filter_map(move |line| {
        let mut fields = line.split_whitespace().skip(1);
        let local = fields.next()?;
        let state = fields.nth(1)?;
        let port = u16::from_str_radix(local.rsplit_once(':')?.1, 16).ok()?;
        (protocol == Protocol::Udp || state == LISTEN).then_some(port)
    })
}

/// The lowest port that needs no privilege; ip(7), `ip_unprivileged_port_start`.
pub(crate) fn unprivileged_port_first() -> u16 {
    std::fs::read_to_string("/proc/sys/net/ipv4/ip_unprivileged_port_start")
        .ok()
        .and_then(|text| text.trim().parse().ok())
        .unwrap_or(UNPRIVILEGED_PORT_FIRST)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn listeners_are_read_and_connections_are_not() {
        let table = "  sl  local_address rem_address   st tx_queue\n\
            0: 0100007F:1F90 00000000:0000 0A 00000000:00000000\n\
            1: 0100007F:C350 0100007F:1F90 01 00000000:00000000\n\
            rubbish\n";
        assert_eq!(ports(Protocol::Tcp, table).collect::<Vec<_>>(), [8080]);
        assert_eq!(ports(Protocol::Udp, table).collect::<Vec<_>>(), [8080, 50_000]);
    }

    #[test]
    fn a_listener_of_ours_is_seen() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let seen = observe().unwrap();
        assert!(seen.bound.contains(&(Protocol::Tcp, port)));
        assert!(seen.unprivileged_port_first <= 1024);
    }
}
