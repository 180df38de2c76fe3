//! The firewall as data: base chains that never change, and elements that a workload adds.
//!
//! Dispatch is O(1) per packet: the source address is looked up in a map that yields its isolation group, and
//! the pair (group, destination address) in a set. Same group: same tenant on the same network. Everything
//! else meets a policy of drop, so a packet that no element speaks for is dropped from the first one on.

use crate::{
    id::Slot,
    record::{AttachmentRecord, PortRecord, Records, SandboxRecord},
    spec::Protocol,
};
use alloc::{collections::BTreeSet, vec::Vec};
use core::net::{Ipv4Addr, Ipv6Addr};
use serde::{Deserialize, Serialize};

/// One element of a set or map in the router's tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Element {
    /// Map `group4`: source address → group.
    Group4(Ipv4Addr, u32),
    /// Set `member4`: (group, destination address) may be reached.
    Member4(u32, Ipv4Addr),
    /// Set `egress4`: source address may use the uplink.
    Egress4(Ipv4Addr),
    /// Set `source4` of the bridge table: this link may send from this MAC and address.
    Source4(Slot, [u8; 6], Ipv4Addr),
    /// Map `group6`.
    Group6(Ipv6Addr, u32),
    /// Set `member6`.
    Member6(u32, Ipv6Addr),
    /// Set `egress6`.
    Egress6(Ipv6Addr),
    /// Set `source6` of the bridge table.
    Source6(Slot, [u8; 6], Ipv6Addr),
    /// Map `forward4`: (protocol, port on the uplink) → (address, port) behind it.
    Forward4(Protocol, u16, Ipv4Addr, u16),
}

impl Element {
    fn hash(&self) -> u64 {
        // FNV-1a, 64 bits: http://www.isthe.com/chongo/tech/comp/fnv/ ; a digest, not a defence.
        let mut bytes = Vec::with_capacity(32);
        let put4 = |bytes: &mut Vec<u8>, address: Ipv4Addr| bytes.extend(address.octets());
        match *self {
            Self::Group4(address, group) => {
                bytes.push(1);
                put4(&mut bytes, address);
                bytes.extend(group.to_be_bytes());
            }
            Self::Member4(group, address) => {
                bytes.push(2);
                bytes.extend(group.to_be_bytes());
                put4(&mut bytes, address);
            }
            Self::Egress4(address) => {
                bytes.push(3);
                put4(&mut bytes, address);
            }
            Self::Source4(slot, mac, address) => {
                bytes.push(4);
                bytes.extend(slot.0.to_be_bytes());
                bytes.extend(mac);
                put4(&mut bytes, address);
            }
            Self::Group6(address, group) => {
                bytes.push(5);
                bytes.extend(address.octets());
                bytes.extend(group.to_be_bytes());
            }
            Self::Member6(group, address) => {
                bytes.push(6);
                bytes.extend(group.to_be_bytes());
                bytes.extend(address.octets());
            }
            Self::Egress6(address) => {
                bytes.push(7);
                bytes.extend(address.octets());
            }
            Self::Source6(slot, mac, address) => {
                bytes.push(8);
                bytes.extend(slot.0.to_be_bytes());
                bytes.extend(mac);
                bytes.extend(address.octets());
            }
            Self::Forward4(protocol, port, address, target) => {
                bytes.push(9);
                bytes.push(protocol.number());
                bytes.extend(port.to_be_bytes());
                put4(&mut bytes, address);
                bytes.extend(target.to_be_bytes());
            }
        }
        bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
        })
    }
}

/// All elements that should be in the router's tables.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ruleset {
    /// The elements.
    pub elements: BTreeSet<Element>,
}

impl Ruleset {
    /// A digest that does not depend on order, so that a dump can be digested as it arrives.
    pub fn digest(&self) -> u64 {
        digest(self.elements.iter())
    }

    /// What the records say the tables should hold: the elements of every sandbox that is to be plugged.
    pub fn desired(records: &Records) -> Self {
        let members = records.members_by_sandbox();
        let mut elements = BTreeSet::new();
        for sandbox in records.sandboxes.values() {
            let members = members.get(&sandbox.id).map(Vec::as_slice).unwrap_or_default();
            if crate::bring_up::wants_plug(sandbox, members) {
                elements.extend(sandbox_elements(records, sandbox));
            }
        }
        Self { elements }
    }
}

/// Digest of any elements; see [`Ruleset::digest`].
pub fn digest<'a>(elements: impl Iterator<Item = &'a Element>) -> u64 {
    elements.fold(0, |sum: u64, element| sum.wrapping_add(element.hash()))
}

/// The elements that one sandbox adds.
pub fn sandbox_elements(records: &Records, sandbox: &SandboxRecord) -> Vec<Element> {
    let mut elements = Vec::new();
    for attachment in &sandbox.attachments {
        let egress = records.networks.get(&attachment.network).is_some_and(|network| !network.spec.internal);
        attachment_elements(attachment, egress, &mut elements);
    }
    if let Some(first) = sandbox.attachments.first() {
        elements.extend(sandbox.ports.iter().map(|port| port_element(port, first.ipv4)));
    }
    elements
}

fn attachment_elements(attachment: &AttachmentRecord, egress: bool, elements: &mut Vec<Element>) {
    let AttachmentRecord { slot, group, ipv4, ipv6, mac, .. } = *attachment;
    elements.extend([
        Element::Group4(ipv4, group),
        Element::Member4(group, ipv4),
        Element::Source4(slot, mac, ipv4),
        Element::Group6(ipv6, group),
        Element::Member6(group, ipv6),
        Element::Source6(slot, mac, ipv6),
    ]);
    if egress {
        elements.extend([Element::Egress4(ipv4), Element::Egress6(ipv6)]);
    }
}

fn port_element(port: &PortRecord, target: Ipv4Addr) -> Element {
    Element::Forward4(port.spec.protocol, port.router_port, target, port.spec.target_port)
}
