//! The firewall as data: base chains that never change, and elements that a workload adds.
//!
//! Dispatch is O(1) per packet: the source address is looked up in a map that yields its isolation group, and
//! the pair (group, destination address) in a set. Same group: same tenant on the same network. Everything
//! else meets a policy of drop, so a packet that no element speaks for is dropped from the first one on.

use crate::{
    id::{SandboxId, Slot},
    journal::{Phase, Resume},
    record::{AttachmentRecord, Change, PortRecord, Records, SandboxRecord},
    spec::Protocol,
};
use alloc::collections::BTreeSet;
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
        let fnv = Fnv::default();
        match *self {
            Self::Group4(address, group) => fnv.put(&[1]).put(&address.octets()).put(&group.to_be_bytes()),
            Self::Member4(group, address) => fnv.put(&[2]).put(&group.to_be_bytes()).put(&address.octets()),
            Self::Egress4(address) => fnv.put(&[3]).put(&address.octets()),
            Self::Source4(slot, mac, address) => {
                fnv.put(&[4]).put(&slot.0.to_be_bytes()).put(&mac).put(&address.octets())
            }
            Self::Group6(address, group) => fnv.put(&[5]).put(&address.octets()).put(&group.to_be_bytes()),
            Self::Member6(group, address) => fnv.put(&[6]).put(&group.to_be_bytes()).put(&address.octets()),
            Self::Egress6(address) => fnv.put(&[7]).put(&address.octets()),
            Self::Source6(slot, mac, address) => {
                fnv.put(&[8]).put(&slot.0.to_be_bytes()).put(&mac).put(&address.octets())
            }
            Self::Forward4(protocol, port, address, target) => fnv
                .put(&[9, protocol.number()])
                .put(&port.to_be_bytes())
                .put(&address.octets())
                .put(&target.to_be_bytes()),
        }
        .0
    }
}

/// FNV-1a, 64 bits: <http://www.isthe.com/chongo/tech/comp/fnv/>; a digest, not a defence.
struct Fnv(u64);

impl Default for Fnv {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl Fnv {
    fn put(self, bytes: &[u8]) -> Self {
        Self(
            bytes
                .iter()
                .fold(self.0, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)),
        )
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
        let mut elements = BTreeSet::new();
        let members = records.members_by_sandbox();
        let mut walk = members.walk();
        let plugged = |sandbox: &SandboxRecord| crate::bring_up::wants_plug(sandbox, walk.of(&sandbox.id));
        visit_desired(records, plugged, &mut |element| {
            elements.insert(element);
        });
        Self { elements }
    }

    /// The digest of [`Self::desired`] without building it, for a caller that knows which sandboxes are to be
    /// plugged; it is asked of each, in ascending order of their identities.
    pub fn desired_digest(records: &Records, plugged: impl FnMut(&SandboxRecord) -> bool) -> u64 {
        let mut sum = 0_u64;
        visit_desired(records, plugged, &mut |element| sum = sum.wrapping_add(element.hash()));
        sum
    }
}

fn visit_desired(
    records: &Records,
    mut plugged: impl FnMut(&SandboxRecord) -> bool,
    visit: &mut dyn FnMut(Element),
) {
    let leaving = leaving(records);
    for sandbox in records.sandboxes.values() {
        if plugged(sandbox) && (mutant!(LeavingStillGoverned) || !leaving.contains(&sandbox.id)) {
            visit_sandbox(records, sandbox, visit);
        }
    }
}

/// Sandboxes that open operations are about to remove from the records: a repair must not speak for them any
/// more, or their elements would outlive them and pass to the next owner of the address.
fn leaving(records: &Records) -> BTreeSet<&SandboxId> {
    let changes = records.operations.values().flat_map(|operation| match operation.phase {
        Phase::Forward { .. } if operation.resume == Resume::Finish => operation.on_done.as_slice(),
        Phase::Forward { .. } => &[],
        Phase::Backward { .. } => operation.on_undone.as_slice(),
    });
    let removed = changes.filter_map(|change| match change {
        Change::RemoveSandbox(id) => Some(id),
        _ => None,
    });
    removed.collect()
}

/// Digest of any elements; see [`Ruleset::digest`].
pub fn digest<'a>(elements: impl Iterator<Item = &'a Element>) -> u64 {
    elements.fold(0, |sum: u64, element| sum.wrapping_add(element.hash()))
}

/// The elements that one sandbox adds.
pub fn sandbox_elements(records: &Records, sandbox: &SandboxRecord) -> BTreeSet<Element> {
    let mut elements = BTreeSet::new();
    visit_sandbox(records, sandbox, &mut |element| {
        elements.insert(element);
    });
    elements
}

fn visit_sandbox(records: &Records, sandbox: &SandboxRecord, visit: &mut dyn FnMut(Element)) {
    let governed = if mutant!(OnlyFirstAttachmentGoverned) { 1 } else { usize::MAX };
    for attachment in sandbox.attachments.iter().take(governed) {
        let egress = records.networks.get(&attachment.network).is_some_and(|network| !network.spec.internal)
            || mutant!(InternalNetworkLeaves);
        visit_attachment(attachment, egress, visit);
    }
    if let Some(first) = sandbox.attachments.first() {
        for PortRecord { spec, router_port } in &sandbox.ports {
            visit(Element::Forward4(spec.protocol, *router_port, first.ipv4, spec.target_port));
        }
    }
}

fn visit_attachment(attachment: &AttachmentRecord, egress: bool, visit: &mut dyn FnMut(Element)) {
    let AttachmentRecord { slot, group, ipv4, ipv6, mac, .. } = *attachment;
    visit(Element::Group4(ipv4, group));
    visit(Element::Member4(group, ipv4));
    visit(Element::Source4(slot, mac, ipv4));
    if mutant!(OnlyIpv4Governed) {
        return;
    }
    visit(Element::Group6(ipv6, group));
    visit(Element::Member6(group, ipv6));
    visit(Element::Source6(slot, mac, ipv6));
    if egress {
        visit(Element::Egress4(ipv4));
        visit(Element::Egress6(ipv6));
    }
}
