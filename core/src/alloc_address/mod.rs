//! One allocator for everything that has exactly one owner: subnets, addresses, slots, groups, ports.
//!
//! Nothing is kept beside the records: what is free is what no record holds, so an allocation and its use
//! commit together, and a resource whose removal failed stays taken for as long as its record stays. What the
//! host uses is data of the decision: [`crate::observed::HostObserved`].

mod address;
mod port;
mod subnet;

pub use address::{Wanted, addresses, check_mac, taken};
pub use port::{ports, ports_collide};
pub use subnet::{
    DOCKER_POOLS, POOLS4, PREFIX4_DEFAULT, UPLINK_SUBNET, contains, contains4, overlaps, overlaps4, starts,
    subnet4, subnet6,
};

use crate::{id::Slot, record::NodeRecord};
use core::net::Ipv6Addr;

/// The `offset`th address of a subnet.
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
