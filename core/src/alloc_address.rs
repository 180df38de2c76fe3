//! One allocator for everything that has exactly one owner: subnets, addresses, slots, groups, ports.
//!
//! Nothing is kept beside the records: what is free is what no record holds, so an allocation and its use
//! commit together, and a resource whose removal failed stays taken for as long as its record stays.

use crate::{
    error::{Refusal, RefusalCode},
    id::Slot,
    record::{NetworkRecord, NodeRecord, PortRecord, Records},
    spec::{PortSpec, Protocol},
};
use alloc::{collections::BTreeSet, format};
use core::net::{Ipv4Addr, Ipv6Addr};

/// Where subnets come from when the user names none: 256 networks of 254 addresses.
pub const POOL4: (Ipv4Addr, u8) = (Ipv4Addr::new(10, 89, 0, 0), 16);
/// Length of a subnet taken from the pool.
pub const PREFIX4_DEFAULT: u8 = 24;
/// The uplink's own subnet (slirp4netns(1), default CIDR): never handed out.
pub const UPLINK_SUBNET: (Ipv4Addr, u8) = (Ipv4Addr::new(10, 0, 2, 0), 24);
/// First port on the router's uplink address that stands for a published port.
const ROUTER_PORT_MIN: u16 = 20_000;
/// Last one.
const ROUTER_PORT_MAX: u16 = 59_999;

/// The mask of a prefix length.
fn mask4(prefix: u8) -> u32 {
    u32::MAX.checked_shl(32 - u32::from(prefix.min(32))).unwrap_or(0)
}

/// Whether two IPv4 subnets share an address.
pub fn overlaps4(a: (Ipv4Addr, u8), b: (Ipv4Addr, u8)) -> bool {
    let mask = mask4(a.1.min(b.1));
    u32::from(a.0) & mask == u32::from(b.0) & mask
}

/// Whether an address is in a subnet.
pub fn contains4(subnet: (Ipv4Addr, u8), address: Ipv4Addr) -> bool {
    overlaps4(subnet, (address, 32))
}

/// Checks a subnet that the user names, or takes a free one.
///
/// # Errors
/// `Invalid` for host bits or a useless length, `Taken` for an overlap (named), `Exhausted` for an empty pool.
pub fn subnet4(records: &Records, wanted: Option<(Ipv4Addr, u8)>) -> Result<(Ipv4Addr, u8), Refusal> {
    let owner = |subnet: (Ipv4Addr, u8)| {
        if overlaps4(subnet, UPLINK_SUBNET) {
            return Some(format!("the uplink's {}/{}", UPLINK_SUBNET.0, UPLINK_SUBNET.1));
        }
        records
            .networks
            .values()
            .find(|network| overlaps4(subnet, (network.subnet4, network.prefix4)))
            .map(|network| format!("network {} ({}/{})", network.name, network.subnet4, network.prefix4))
    };
    if let Some((address, prefix)) = wanted {
        let named = format!("{address}/{prefix}");
        if !(8..=29).contains(&prefix) {
            let detail = format!("subnet {named}: the prefix length must be between 8 and 29");
            return Err(Refusal::new(RefusalCode::Invalid, detail));
        }
        let network = Ipv4Addr::from(u32::from(address) & mask4(prefix));
        if network != address {
            let detail = format!("subnet {named} has host bits set; did you mean {network}/{prefix}?");
            return Err(Refusal::new(RefusalCode::Invalid, detail));
        }
        if address.is_loopback()
            || address.is_multicast()
            || address.is_link_local()
            || address.is_unspecified()
        {
            let detail =
                format!("subnet {named} cannot be used for workloads; take a private one (RFC 1918)");
            return Err(Refusal::new(RefusalCode::Invalid, detail));
        }
        return match owner((address, prefix)) {
            Some(owner) => {
                let detail = format!("subnet {named} overlaps with {owner}; choose another");
                Err(Refusal::new(RefusalCode::Taken, detail))
            }
            None => Ok((address, prefix)),
        };
    }
    let step = 1_u32 << (32 - PREFIX4_DEFAULT);
    let count = 1_u32 << (PREFIX4_DEFAULT - POOL4.1);
    (0..count)
        .map(|index| (Ipv4Addr::from(u32::from(POOL4.0) + index * step), PREFIX4_DEFAULT))
        .find(|subnet| owner(*subnet).is_none())
        .ok_or_else(|| {
            let detail = format!(
                "all {count} subnets of {}/{} are in use; remove a network or name a subnet",
                POOL4.0, POOL4.1
            );
            Refusal::new(RefusalCode::Exhausted, detail)
        })
}

/// The /64 of the network with this index below the node's /48.
pub fn subnet6(ula_prefix: Ipv6Addr, index: u16) -> Ipv6Addr {
    Ipv6Addr::from(u128::from(ula_prefix) & !((1_u128 << 80) - 1) | u128::from(index) << 64)
}

/// The `offset`th address of a /64.
pub fn address6(subnet6: Ipv6Addr, offset: u32) -> Ipv6Addr {
    Ipv6Addr::from(u128::from(subnet6) | u128::from(offset))
}

/// A unique local prefix (RFC 4193) out of 5 random bytes.
pub fn ula_prefix(random: [u8; 5]) -> Ipv6Addr {
    let [a, b, c, d, e] = random;
    Ipv6Addr::new(
        0xfd00 | u16::from(a),
        u16::from_be_bytes([b, c]),
        u16::from_be_bytes([d, e]),
        0,
        0,
        0,
        0,
        0,
    )
}

/// A free pair of addresses in a network. The IPv6 address has the IPv4 address's offset, so that one check
/// covers both.
///
/// # Errors
/// `Exhausted` naming the network and its size.
pub fn addresses(
    records: &Records,
    network: &NetworkRecord,
    also_taken: &BTreeSet<Ipv4Addr>,
) -> Result<(Ipv4Addr, Ipv6Addr), Refusal> {
    let taken: BTreeSet<Ipv4Addr> = records
        .sandboxes
        .values()
        .filter(|sandbox| {
            !mutant!(AddressOfStoppedReused) || records.members(&sandbox.id).any(|it| it.running().is_some())
        })
        .flat_map(|sandbox| &sandbox.attachments)
        .filter(|attachment| attachment.network == network.id)
        .map(|attachment| attachment.ipv4)
        .chain([network.gateway4])
        .collect();
    let base = u32::from(network.subnet4);
    let size = 1_u32 << (32 - network.prefix4);
    // Without the network address and the broadcast address.
    (1..size - 1)
        .map(|offset| (Ipv4Addr::from(base + offset), offset))
        .find(|(address, _)| !taken.contains(address) && !also_taken.contains(address))
        .map(|(address, offset)| (address, address6(network.subnet6, offset)))
        .ok_or_else(|| {
            let detail = format!(
                "network {} has no free address left in {}/{}; remove a workload or create a larger network",
                network.name, network.subnet4, network.prefix4
            );
            Refusal::new(RefusalCode::Exhausted, detail)
        })
}

/// The next slot. Slots are never reused, so a link of a dead start can never be taken for a living one.
pub fn slot(node: &mut NodeRecord) -> Slot {
    let slot = Slot(node.slot_next);
    node.slot_next = node.slot_next.saturating_add(u32::from(!mutant!(SlotReused)));
    slot
}

/// The MAC address of a slot: locally administered, unique because slots are.
pub fn mac(slot: Slot) -> [u8; 6] {
    let [a, b, c, d] = slot.0.to_be_bytes();
    [0x02, 0x68, a, b, c, d]
}

/// Whether two published ports want the same thing of the host.
pub fn ports_collide(a: &PortSpec, b: &PortSpec) -> bool {
    a.protocol == b.protocol
        && a.host_port == b.host_port
        && (a.host_address == b.host_address
            || a.host_address.is_unspecified()
            || b.host_address.is_unspecified())
}

/// Gives each wanted port its port on the router.
///
/// # Errors
/// `Invalid` for port 0 inside, `Taken` naming the owner, `Exhausted` when the router has no port left.
pub fn ports(
    records: &Records,
    wanted: &[PortSpec],
    random: &mut dyn FnMut() -> u16,
) -> Result<alloc::vec::Vec<PortRecord>, Refusal> {
    let held: alloc::vec::Vec<(&str, &PortRecord)> = records
        .sandboxes
        .values()
        .flat_map(|sandbox| sandbox.ports.iter().map(|port| (sandbox.name.as_str(), port)))
        .collect();
    let mut granted: alloc::vec::Vec<PortRecord> = alloc::vec::Vec::new();
    for spec in wanted {
        let mut spec = *spec;
        if spec.target_port == 0 {
            return Err(Refusal::new(
                RefusalCode::Invalid,
                format!("port {spec}: the container's port cannot be 0"),
            ));
        }
        let owner = |spec: &PortSpec, granted: &[PortRecord]| {
            held.iter()
                .find(|(_, port)| ports_collide(&port.spec, spec))
                .map(|(name, _)| alloc::string::String::from(*name))
                .or_else(|| {
                    granted.iter().any(|port| ports_collide(&port.spec, spec)).then(|| "this request".into())
                })
        };
        if spec.host_port == 0 {
            spec.host_port = (0..64)
                .map(|_| 32_768 + random() % 28_000)
                .find(|port| owner(&PortSpec { host_port: *port, ..spec }, &granted).is_none())
                .ok_or_else(|| {
                    Refusal::new(
                        RefusalCode::Exhausted,
                        format!("no free host port found for {spec}; name one"),
                    )
                })?;
        }
        if let Some(owner) = owner(&spec, &granted) {
            let detail = format!(
                "port {}:{}/{} is published by {owner}; choose another",
                spec.host_address, spec.host_port, spec.protocol
            );
            return Err(Refusal::new(RefusalCode::Taken, detail));
        }
        let router_port = router_port(spec.protocol, &held, &granted).ok_or_else(|| {
            Refusal::new(RefusalCode::Exhausted, "every router port is in use; unpublish a port first")
        })?;
        granted.push(PortRecord { spec, router_port });
    }
    Ok(granted)
}

fn router_port(protocol: Protocol, held: &[(&str, &PortRecord)], granted: &[PortRecord]) -> Option<u16> {
    let taken: BTreeSet<u16> = held
        .iter()
        .map(|(_, port)| *port)
        .chain(granted)
        .filter(|port| port.spec.protocol == protocol)
        .map(|port| port.router_port)
        .collect();
    (ROUTER_PORT_MIN..=ROUTER_PORT_MAX).find(|port| !taken.contains(port))
}
