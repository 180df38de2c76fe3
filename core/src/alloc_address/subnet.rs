//! Subnets of networks.

use crate::{
    error::{Refusal, RefusalCode},
    observed::HostObserved,
    record::Records,
};
use alloc::{format, string::String};
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Where subnets come from when the user names none, one after the other: 256 networks of 254 addresses each. The
/// second is for hosts whose own networks cover the first.
pub const POOLS4: [(Ipv4Addr, u8); 2] =
    [(Ipv4Addr::new(10, 89, 0, 0), 16), (Ipv4Addr::new(172, 16, 0, 0), 16)];
/// Length of a subnet taken from the pool.
pub const PREFIX4_DEFAULT: u8 = 24;
/// The uplink's own subnet (slirp4netns(1), default CIDR): never handed out.
pub const UPLINK_SUBNET: (Ipv4Addr, u8) = (Ipv4Addr::new(10, 0, 2, 0), 24);
/// The subnets that Docker takes first (moby, `libnetwork/ipamutils`, local scope): on the host, or in a workload
/// that runs a Docker of its own, which could then reach no network of these. Docker's last resort,
/// 192.168.0.0/16, is left to whoever names it.
pub const DOCKER_POOLS: [(Ipv4Addr, u8); 4] = [
    (Ipv4Addr::new(172, 17, 0, 0), 16),
    (Ipv4Addr::new(172, 18, 0, 0), 15),
    (Ipv4Addr::new(172, 20, 0, 0), 14),
    (Ipv4Addr::new(172, 24, 0, 0), 13),
];
/// A route of the host that is shorter covers half the world: a way out, not a network (`0.0.0.0/1` of a VPN).
const ROUTE4_PREFIX_MIN: u8 = 8;
/// Likewise.
const ROUTE6_PREFIX_MIN: u8 = 16;
/// The most networks a node makes in its life: each takes one /64 of its /48, and one bridge index.
const INDEX_MAX: u16 = u16::MAX - 1;

/// The mask of a prefix length, of an address of `bits` bits in the low bits of a number.
fn mask(bits: u8, prefix: u8) -> u128 {
    let host_bits = u32::from(bits - prefix.min(bits));
    let all = if bits == 32 { u128::from(u32::MAX) } else { u128::MAX };
    all & u128::MAX.checked_shl(host_bits).unwrap_or(0)
}

fn number(address: IpAddr) -> (u8, u128) {
    match address {
        IpAddr::V4(address) => (32, u128::from(u32::from(address))),
        IpAddr::V6(address) => (128, u128::from(address)),
    }
}

/// Whether two subnets share an address; of different families they do not.
pub fn overlaps(a: (IpAddr, u8), b: (IpAddr, u8)) -> bool {
    let ((bits, one), (other_bits, other)) = (number(a.0), number(b.0));
    let mask = mask(bits, a.1.min(b.1));
    bits == other_bits && one & mask == other & mask
}

/// Whether an address is in a subnet.
pub fn contains(subnet: (IpAddr, u8), address: IpAddr) -> bool {
    overlaps(subnet, (address, 128))
}

/// Whether an address is the first of a prefix: no host bit is set.
pub fn starts(address: IpAddr, prefix: u8) -> bool {
    let (bits, value) = number(address);
    value & mask(bits, prefix) == value
}

/// Whether two IPv4 subnets share an address.
pub fn overlaps4(a: (Ipv4Addr, u8), b: (Ipv4Addr, u8)) -> bool {
    overlaps((a.0.into(), a.1), (b.0.into(), b.1))
}

/// Whether an address is in a subnet.
pub fn contains4(subnet: (Ipv4Addr, u8), address: Ipv4Addr) -> bool {
    overlaps4(subnet, (address, 32))
}

/// Who has a subnet, or a part of it.
fn owner(records: &Records, host: &HostObserved, subnet: (IpAddr, u8)) -> Option<String> {
    let uplink = (UPLINK_SUBNET.0.into(), UPLINK_SUBNET.1);
    if overlaps(subnet, uplink) {
        return Some(format!("the uplink's {}/{}", uplink.0, uplink.1));
    }
    for network in records.networks.values() {
        let own =
            [(IpAddr::V4(network.subnet4), network.prefix4), (IpAddr::V6(network.subnet6), network.prefix6)];
        if let Some((address, prefix)) = own.into_iter().find(|own| overlaps(subnet, *own)) {
            return Some(format!("network {} ({address}/{prefix})", network.name));
        }
    }
    let docker = DOCKER_POOLS.iter().find(|pool| overlaps(subnet, (pool.0.into(), pool.1)));
    if let Some((address, prefix)) = docker {
        return Some(format!("Docker's pool {address}/{prefix}"));
    }
    let least = if subnet.0.is_ipv4() { ROUTE4_PREFIX_MIN } else { ROUTE6_PREFIX_MIN };
    let route = host.routes.iter().find(|route| route.1 >= least && overlaps(subnet, **route));
    route.map(|(address, prefix)| format!("the host's route to {address}/{prefix}"))
}

/// Refuses a subnet that no network can have.
fn check(subnet: (IpAddr, u8), prefixes: core::ops::RangeInclusive<u8>) -> Result<(), Refusal> {
    let (address, prefix) = subnet;
    let invalid = |detail: String| Err(Refusal::new(RefusalCode::Invalid, detail));
    let named = format!("subnet {address}/{prefix}");
    if !prefixes.contains(&prefix) {
        let (least, most) = prefixes.into_inner();
        return invalid(format!("{named}: the prefix length must be between {least} and {most}"));
    }
    let (bits, value) = number(address);
    let network = value & mask(bits, prefix);
    if network != value {
        let network = match address {
            IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::from(network as u32)),
            IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::from(network)),
        };
        return invalid(format!("{named} has host bits set; did you mean {network}/{prefix}?"));
    }
    let link_local = match address {
        IpAddr::V4(address) => address.is_link_local() || address.is_broadcast() || address.octets()[0] == 0,
        IpAddr::V6(address) => address.is_unicast_link_local() || address.to_ipv4_mapped().is_some(),
    };
    if address.is_loopback() || address.is_multicast() || address.is_unspecified() || link_local {
        return invalid(format!(
            "{named} cannot be used for workloads; take a private one (RFC 1918, RFC 4193)"
        ));
    }
    Ok(())
}

fn require_free(records: &Records, host: &HostObserved, subnet: (IpAddr, u8)) -> Result<(), Refusal> {
    match owner(records, host, subnet) {
        None => Ok(()),
        Some(owner) => {
            let detail = format!("subnet {}/{} overlaps with {owner}; choose another", subnet.0, subnet.1);
            Err(Refusal::new(RefusalCode::Taken, detail))
        }
    }
}

/// Checks an IPv4 subnet that the user names, or takes a free one.
///
/// # Errors
/// `Invalid` for host bits or a useless length, `Taken` for an overlap (named), `Exhausted` for an empty pool.
pub fn subnet4(
    records: &Records,
    host: &HostObserved,
    wanted: Option<(Ipv4Addr, u8)>,
) -> Result<(Ipv4Addr, u8), Refusal> {
    if let Some((address, prefix)) = wanted {
        let subnet = (IpAddr::V4(address), prefix);
        check(subnet, 8..=30)?;
        require_free(records, host, subnet)?;
        return Ok((address, prefix));
    }
    let step = 1_u32 << (32 - PREFIX4_DEFAULT);
    let all = POOLS4.iter().flat_map(|(base, prefix)| {
        (0..1_u32 << (PREFIX4_DEFAULT - prefix))
            .map(move |index| (Ipv4Addr::from(u32::from(*base) + index * step), PREFIX4_DEFAULT))
    });
    all.clone().find(|subnet| owner(records, host, (subnet.0.into(), subnet.1)).is_none()).ok_or_else(|| {
        let pools = POOLS4.map(|(base, prefix)| format!("{base}/{prefix}")).join(" and ");
        let detail = format!(
            "all {} subnets of {pools} are in use, by networks or by routes of the host; remove a network or \
             name a subnet",
            all.count()
        );
        Refusal::new(RefusalCode::Exhausted, detail)
    })
}

/// The bridge index of a new network, not below `index`, with the IPv6 subnet that the user names or else the
/// index's /64 of the node's /48.
///
/// # Errors
/// As [`subnet4`]; `Exhausted` when the node has made all the networks it can number.
pub fn subnet6(
    records: &Records,
    host: &HostObserved,
    ula_prefix: Ipv6Addr,
    index: u16,
    wanted: Option<(Ipv6Addr, u8)>,
) -> Result<(u16, (Ipv6Addr, u8)), Refusal> {
    let exhausted = || {
        Refusal::new(
            RefusalCode::Exhausted,
            "this node has made 65,535 networks; that is all its IPv6 prefix has",
        )
    };
    if index > INDEX_MAX {
        return Err(exhausted());
    }
    if let Some((address, prefix)) = wanted {
        let subnet = (IpAddr::V6(address), prefix);
        check(subnet, 32..=120)?;
        require_free(records, host, subnet)?;
        return Ok((index, (address, prefix)));
    }
    let of =
        |index: u16| Ipv6Addr::from(u128::from(ula_prefix) & !((1_u128 << 80) - 1) | u128::from(index) << 64);
    (index..=INDEX_MAX)
        .map(|index| (index, (of(index), 64)))
        .find(|(_, subnet)| owner(records, host, (subnet.0.into(), subnet.1)).is_none())
        .ok_or_else(exhausted)
}
