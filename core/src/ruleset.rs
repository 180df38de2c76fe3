//! The firewall as data: base chains that never change, and elements that a workload adds.
//!
//! Dispatch is O(1) per packet: the source address is looked up in a map that yields its isolation group, and
//! the pair (group, destination address) in a set. Same group: same tenant on the same network. Everything
//! else meets a policy of drop, so a packet that no element speaks for is dropped from the first one on.

use crate::{
    id::{SandboxId, Slot},
    journal::{Phase, Resume},
    policy::{self, Classes},
    record::{AttachmentRecord, Change, PortRecord, Records, SandboxRecord},
    spec::Protocol,
};
use alloc::collections::{BTreeMap, BTreeSet};
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
    /// Map `hairpin4`: (protocol, port of every address of the host) → (address, port) behind it, for workloads
    /// that ask the router for it.
    Hairpin4(Protocol, u16, Ipv4Addr, u16),
    /// Map `class4`: address of a workload → class; [`crate::policy`].
    Class4(Ipv4Addr, u32),
    /// Map `class6`.
    Class6(Ipv6Addr, u32),
    /// Map `outside4`: addresses outside, first to last → class.
    Outside4(Ipv4Addr, Ipv4Addr, u32),
    /// Map `outside6`.
    Outside6(Ipv6Addr, Ipv6Addr, u32),
    /// Map `policy` (within) or `border`: what rules say of flows; `true` accepts.
    Verdict(VerdictKey, bool),
}

/// Flows that one verdict is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct VerdictKey {
    /// Between two workloads; otherwise over the uplink.
    pub within: bool,
    /// Class of who began.
    pub from: u32,
    /// Class of who was asked.
    pub to: u32,
    /// First and last protocol number.
    pub protocols: (u8, u8),
    /// First and last port of who was asked.
    pub ports: (u16, u16),
}

impl VerdictKey {
    /// Whether a flow between the same classes could meet both.
    pub fn overlaps(&self, other: &Self) -> bool {
        (self.within, self.from, self.to) == (other.within, other.from, other.to)
            && self.protocols.0 <= other.protocols.1
            && other.protocols.0 <= self.protocols.1
            && self.ports.0 <= other.ports.1
            && other.ports.0 <= self.ports.1
    }
}

/// How often a verdict was given.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counter {
    /// Packets.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// Digest of bytes.
pub(crate) fn digest_of(bytes: &[u8]) -> u64 {
    Fnv::default().put(bytes).0
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
            Self::Forward4(protocol, port, address, target) => {
                fnv.put(&[9]).put_port(protocol, port, address, target)
            }
            Self::Hairpin4(protocol, port, address, target) => {
                fnv.put(&[10]).put_port(protocol, port, address, target)
            }
            Self::Class4(address, class) => fnv.put(&[11]).put(&address.octets()).put(&class.to_be_bytes()),
            Self::Class6(address, class) => fnv.put(&[12]).put(&address.octets()).put(&class.to_be_bytes()),
            Self::Outside4(first, last, class) => {
                fnv.put(&[13]).put(&first.octets()).put(&last.octets()).put(&class.to_be_bytes())
            }
            Self::Outside6(first, last, class) => {
                fnv.put(&[14]).put(&first.octets()).put(&last.octets()).put(&class.to_be_bytes())
            }
            Self::Verdict(key, accept) => {
                let VerdictKey { within, from, to, protocols, ports } = key;
                fnv.put(&[15, u8::from(within), u8::from(accept), protocols.0, protocols.1])
                    .put(&from.to_be_bytes())
                    .put(&to.to_be_bytes())
                    .put(&ports.0.to_be_bytes())
                    .put(&ports.1.to_be_bytes())
            }
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

    fn put_port(self, protocol: Protocol, port: u16, address: Ipv4Addr, target: u16) -> Self {
        self.put(&[protocol.number()])
            .put(&port.to_be_bytes())
            .put(&address.octets())
            .put(&target.to_be_bytes())
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
    let leaving = Leaving::of(records);
    let classes = Classes::of(records);
    policy::elements(records).into_iter().for_each(&mut *visit);
    for sandbox in records.sandboxes.values() {
        if !plugged(sandbox) || (leaving.sandboxes.contains(&sandbox.id) && !mutant!(LeavingStillGoverned)) {
            continue;
        }
        // What stays of it: what it loses is not spoken for any more.
        let sandbox = leaving.replaced.get(&sandbox.id).copied().unwrap_or(sandbox);
        visit_sandbox(records, classes.as_ref(), sandbox, visit);
    }
}

/// What open operations are about to take out of the records: a repair must not speak for it any more, or its
/// elements would outlive it and pass to the next owner of the address.
#[derive(Default)]
struct Leaving<'a> {
    sandboxes: BTreeSet<&'a SandboxId>,
    replaced: BTreeMap<&'a SandboxId, &'a SandboxRecord>,
}

impl<'a> Leaving<'a> {
    fn of(records: &'a Records) -> Self {
        let mut leaving = Self::default();
        let changes = records.operations.values().flat_map(|operation| match operation.phase {
            Phase::Forward { .. } if operation.resume == Resume::Finish => operation.on_done.as_slice(),
            Phase::Forward { .. } => &[],
            Phase::Backward { .. } => operation.on_undone.as_slice(),
        });
        for change in changes {
            match change {
                Change::RemoveSandbox(id) => drop(leaving.sandboxes.insert(id)),
                Change::Sandbox(next) => drop(leaving.replaced.insert(&next.id, next)),
                _ => {}
            }
        }
        leaving
    }
}

/// Digest of any elements; see [`Ruleset::digest`].
pub fn digest<'a>(elements: impl Iterator<Item = &'a Element>) -> u64 {
    elements.fold(0, |sum: u64, element| sum.wrapping_add(element.hash()))
}

/// The elements that one sandbox adds.
pub fn sandbox_elements(records: &Records, sandbox: &SandboxRecord) -> BTreeSet<Element> {
    let mut elements = BTreeSet::new();
    visit_sandbox(records, Classes::of(records).as_ref(), sandbox, &mut |element| {
        elements.insert(element);
    });
    elements
}

fn visit_sandbox(
    records: &Records,
    classes: Option<&Classes<'_>>,
    sandbox: &SandboxRecord,
    visit: &mut dyn FnMut(Element),
) {
    let governed = if mutant!(OnlyFirstAttachmentGoverned) { 1 } else { usize::MAX };
    for attachment in sandbox.attachments.iter().take(governed) {
        if let Some(classes) = classes {
            let class = |address| classes.number(&classes.inside(sandbox, attachment, address));
            visit(Element::Class4(attachment.ipv4, class(attachment.ipv4.into())));
            visit(Element::Class6(attachment.ipv6, class(attachment.ipv6.into())));
        }
        let network = records.networks.get(&attachment.network);
        let egress = network.is_some_and(|network| !network.spec.internal) || mutant!(InternalNetworkLeaves);
        visit_attachment(attachment, egress, visit);
        // Its tenant's workloads on the networks that this one is routed to.
        let peers = network.into_iter().flat_map(|network| &network.routed);
        for peer in peers.filter_map(|peer| records.networks.get(peer)) {
            if let Some(group) = peer.groups.get(&sandbox.tenant) {
                visit(Element::Member4(*group, attachment.ipv4));
                visit(Element::Member6(*group, attachment.ipv6));
            }
        }
    }
    if let Some(primary) = sandbox.primary() {
        for PortRecord { spec, router_port } in &sandbox.ports {
            visit(Element::Forward4(spec.protocol, *router_port, primary.ipv4, spec.target_port));
            if spec.host_address.is_unspecified() {
                visit(Element::Hairpin4(spec.protocol, spec.host_port, primary.ipv4, spec.target_port));
            }
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
