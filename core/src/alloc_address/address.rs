//! Addresses of workloads.

use super::{address6, contains};
use crate::{
    error::{Refusal, RefusalCode},
    record::{NetworkRecord, Records},
};
use alloc::{collections::BTreeSet, format, string::String};
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use serde::{Deserialize, Serialize};

/// The addresses that a user declares for one interface.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Wanted {
    /// IPv4 address; `None` takes a free one.
    #[serde(default)]
    pub ipv4: Option<Ipv4Addr>,
    /// IPv6 address; `None` takes a free one.
    #[serde(default)]
    pub ipv6: Option<Ipv6Addr>,
    /// MAC address; `None` takes the slot's own.
    #[serde(default)]
    pub mac: Option<[u8; 6]>,
}

impl Wanted {
    /// Whether nothing is declared.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Every address of a network that has an owner: its gateways, and attachments for as long as a record holds
/// them, which is until nothing can answer for them any more.
pub fn taken(records: &Records, network: &NetworkRecord) -> BTreeSet<IpAddr> {
    let attached = records
        .sandboxes
        .values()
        .filter(|sandbox| {
            !mutant!(AddressOfStoppedReused) || records.members(&sandbox.id).any(|it| it.running().is_some())
        })
        .flat_map(|sandbox| &sandbox.attachments)
        .filter(|attachment| attachment.network == network.id)
        .flat_map(|attachment| [IpAddr::V4(attachment.ipv4), IpAddr::V6(attachment.ipv6)]);
    attached.chain([IpAddr::V4(network.gateway4), IpAddr::V6(network.gateway6)]).collect()
}

/// A pair of addresses in a network: what the user declares, or a free one. A free IPv6 address has the IPv4
/// address's offset where it can, for people.
///
/// # Errors
/// `Invalid` for a declared address that the network cannot have, `Taken` for one that has an owner, `Exhausted`
/// naming the network and its size.
pub fn addresses(
    records: &Records,
    network: &NetworkRecord,
    wanted: &Wanted,
) -> Result<(Ipv4Addr, Ipv6Addr), Refusal> {
    let taken = taken(records, network);
    let ipv4 = match wanted.ipv4 {
        Some(address) => declared(records, network, &taken, address.into()).map(|()| address)?,
        None => free4(network, &taken)?,
    };
    let ipv6 = match wanted.ipv6 {
        Some(address) => declared(records, network, &taken, address.into()).map(|()| address)?,
        None => free6(network, &taken, u32::from(ipv4) - u32::from(network.subnet4))?,
    };
    Ok((ipv4, ipv6))
}

fn declared(
    records: &Records,
    network: &NetworkRecord,
    taken: &BTreeSet<IpAddr>,
    address: IpAddr,
) -> Result<(), Refusal> {
    let refuse = |code, what: String| {
        Err(Refusal::new(code, format!("address {address} {what} network {}", network.name)))
    };
    let (subnet, prefix, last) = match address {
        IpAddr::V4(_) => {
            let size = 1_u32 << (32 - network.prefix4);
            let last = Ipv4Addr::from(u32::from(network.subnet4) + (size - 1));
            (IpAddr::V4(network.subnet4), network.prefix4, Some(IpAddr::V4(last)))
        }
        // IPv6 has no broadcast; the first address is the routers' (RFC 4291, 2.6.1).
        IpAddr::V6(_) => (IpAddr::V6(network.subnet6), network.prefix6, None),
    };
    if !contains((subnet, prefix), address) {
        return refuse(RefusalCode::Invalid, format!("lies outside {subnet}/{prefix} of"));
    }
    if address == subnet || Some(address) == last {
        return refuse(RefusalCode::Invalid, String::from("stands for the whole subnet of"));
    }
    if address == IpAddr::V4(network.gateway4) || address == IpAddr::V6(network.gateway6) {
        return refuse(RefusalCode::Taken, String::from("is the gateway of"));
    }
    if taken.contains(&address) {
        let owner = records
            .sandboxes
            .values()
            .find(|sandbox| {
                let own = |it: &crate::record::AttachmentRecord| {
                    address == IpAddr::V4(it.ipv4) || address == IpAddr::V6(it.ipv6)
                };
                sandbox.attachments.iter().any(own)
            })
            .map_or("another", |sandbox| sandbox.name.as_str());
        return refuse(RefusalCode::Taken, format!("is {owner}'s on"));
    }
    Ok(())
}

fn free4(network: &NetworkRecord, taken: &BTreeSet<IpAddr>) -> Result<Ipv4Addr, Refusal> {
    let size = 1_u32 << (32 - network.prefix4);
    let base = u32::from(network.subnet4);
    // Without the network address and the broadcast address.
    let (first, last) = match network.spec.range4 {
        None => (base + 1, base + (size - 2)),
        Some((start, prefix)) => {
            let end = u32::from(start) + ((1_u64 << (32 - prefix)) - 1) as u32;
            (u32::from(start).max(base + 1), end.min(base + (size - 2)))
        }
    };
    let free = (first..=last).map(Ipv4Addr::from).find(|address| !taken.contains(&IpAddr::V4(*address)));
    free.ok_or_else(|| match network.spec.range4 {
        None => exhausted(network, &format!("{}/{}", network.subnet4, network.prefix4)),
        Some((start, prefix)) => exhausted(network, &format!("its range {start}/{prefix}")),
    })
}

fn free6(network: &NetworkRecord, taken: &BTreeSet<IpAddr>, offset: u32) -> Result<Ipv6Addr, Refusal> {
    let (start, prefix) = network.spec.range6.unwrap_or((network.subnet6, network.prefix6));
    let size = 1_u128.checked_shl(u32::from(128 - prefix)).unwrap_or(u128::MAX);
    let is_free = |offset: u32| {
        let address = address6(start, offset);
        let usable = address != network.subnet6 && u128::from(offset) < size;
        (usable && !taken.contains(&IpAddr::V6(address))).then_some(address)
    };
    // Among one address more than are taken there is a free one, if the subnet has as many.
    let count = u32::try_from(taken.len()).unwrap_or(u32::MAX - 1).saturating_add(1);
    is_free(offset)
        .or_else(|| (0..=count).find_map(is_free))
        .ok_or_else(|| exhausted(network, &format!("{start}/{prefix}")))
}

fn exhausted(network: &NetworkRecord, place: &str) -> Refusal {
    let detail = format!(
        "network {} has no free address left in {place}; remove a workload or create a larger network",
        network.name
    );
    Refusal::new(RefusalCode::Exhausted, detail)
}

/// Beginnings of the MAC addresses that Holdfast makes itself: slots, host ends, bridges.
const RESERVED_MACS: [[u8; 2]; 3] = [[0x02, 0x68], [0xfa, 0x68], [0xfe, 0x68]];

/// Whether a user may declare a MAC address.
///
/// # Errors
/// `Invalid` for a group address, zero or one of the node's own, `Taken` naming the owner.
pub fn check_mac(records: &Records, mac: [u8; 6]) -> Result<(), Refusal> {
    let named = mac.map(|byte| format!("{byte:02x}")).join(":");
    let refuse = |code, why: String| Err(Refusal::new(code, format!("MAC address {named} {why}")));
    let [first, second, ..] = mac;
    if first & 1 != 0 || mac == [0; 6] {
        return refuse(
            RefusalCode::Invalid,
            String::from("is none of one interface; its first byte must be even"),
        );
    }
    if RESERVED_MACS.contains(&[first, second]) {
        return refuse(
            RefusalCode::Invalid,
            String::from(
                "is one of those that the node gives itself; begin with another, for instance 02:42",
            ),
        );
    }
    let owner =
        records.sandboxes.values().find(|sandbox| sandbox.attachments.iter().any(|own| own.mac == mac));
    match owner {
        Some(owner) => refuse(RefusalCode::Taken, format!("is {}'s; choose another", owner.name)),
        None => Ok(()),
    }
}
