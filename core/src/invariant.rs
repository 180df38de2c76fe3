//! Invariants over records and observation, by name. The simulator asserts them after every call, the daemon at
//! the boundaries of a bring-up.

use crate::{
    alloc_address::{contains, contains4, overlaps, overlaps4, ports_collide},
    id::Slot,
    record::{AttachmentRecord, PortRecord, Records, SandboxRecord},
    spec::Protocol,
};
use alloc::{
    collections::{BTreeMap, BTreeSet},
    format,
    string::String,
    vec::Vec,
};
use core::net::{Ipv4Addr, Ipv6Addr};

/// A broken invariant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Which, by the name of its function.
    pub invariant: &'static str,
    /// What breaks it.
    pub detail: String,
}

type Check = fn(&Records) -> Vec<String>;

/// Every invariant of the records, with its name.
pub const OF_RECORDS: &[(&str, Check)] = &[
    ("one_owner_per_subnet", one_owner_per_subnet),
    ("one_owner_per_address", one_owner_per_address),
    ("one_owner_per_mac", one_owner_per_mac),
    ("one_owner_per_slot", one_owner_per_slot),
    ("one_owner_per_port", one_owner_per_port),
    ("one_owner_per_name", one_owner_per_name),
    ("addresses_lie_in_their_network", addresses_lie_in_their_network),
    ("groups_do_not_mix", groups_do_not_mix),
    ("members_have_a_sandbox", members_have_a_sandbox),
    ("routes_are_mutual", routes_are_mutual),
];

/// Checks all of them.
pub fn check_records(records: &Records) -> Vec<Violation> {
    let broken = |(invariant, check): &(&'static str, Check)| {
        let invariant = *invariant;
        check(records).into_iter().map(move |detail| Violation { invariant, detail })
    };
    OF_RECORDS.iter().flat_map(broken).collect()
}

fn attachments(records: &Records) -> impl Iterator<Item = (&SandboxRecord, &AttachmentRecord)> {
    records
        .sandboxes
        .values()
        .flat_map(|sandbox| sandbox.attachments.iter().map(move |attachment| (sandbox, attachment)))
}

/// No two networks share an address.
pub fn one_owner_per_subnet(records: &Records) -> Vec<String> {
    let networks: Vec<_> = records.networks.values().collect();
    let mut broken = Vec::new();
    for (number, a) in networks.iter().enumerate() {
        for b in networks.iter().skip(number + 1) {
            if overlaps4((a.subnet4, a.prefix4), (b.subnet4, b.prefix4))
                || overlaps((a.subnet6.into(), a.prefix6), (b.subnet6.into(), b.prefix6))
                || a.index == b.index
            {
                broken.push(format!("networks {} and {} overlap", a.name, b.name));
            }
        }
    }
    broken
}

/// No two attachments, and no gateway, share an address.
pub fn one_owner_per_address(records: &Records) -> Vec<String> {
    let mut owners4: BTreeMap<Ipv4Addr, &str> = BTreeMap::new();
    let mut owners6: BTreeMap<Ipv6Addr, &str> = BTreeMap::new();
    let mut broken = Vec::new();
    let gateways =
        records.networks.values().map(|network| (network.name.as_str(), network.gateway4, network.gateway6));
    let own = attachments(records).map(|(sandbox, own)| (sandbox.name.as_str(), own.ipv4, own.ipv6));
    for (name, ipv4, ipv6) in gateways.chain(own) {
        if let Some(other) = owners4.insert(ipv4, name) {
            broken.push(format!("{other} and {name} share {ipv4}"));
        }
        if let Some(other) = owners6.insert(ipv6, name) {
            broken.push(format!("{other} and {name} share {ipv6}"));
        }
    }
    broken
}

/// No two attachments share a MAC address.
pub fn one_owner_per_mac(records: &Records) -> Vec<String> {
    let mut owners: BTreeMap<[u8; 6], &str> = BTreeMap::new();
    attachments(records)
        .filter_map(|(sandbox, own)| {
            let other = owners.insert(own.mac, &sandbox.name)?;
            Some(format!("{other} and {} share a MAC address", sandbox.name))
        })
        .collect()
}

/// Networks that are routed to one another know it both, and have groups for the same tenants.
pub fn routes_are_mutual(records: &Records) -> Vec<String> {
    let mut broken = Vec::new();
    for network in records.networks.values() {
        for peer in network.routed.iter().filter_map(|peer| records.networks.get(peer)) {
            let back = peer.routed.contains(&network.id);
            if !back || !peer.groups.keys().eq(network.groups.keys()) {
                broken.push(format!("networks {} and {} are routed by halves", network.name, peer.name));
            }
        }
    }
    broken
}

/// No two attachments share a slot, and no slot is still to be handed out.
pub fn one_owner_per_slot(records: &Records) -> Vec<String> {
    let mut seen: BTreeSet<Slot> = BTreeSet::new();
    let next = records.node.as_ref().map_or(0, |node| node.slot_next);
    let shared = |(sandbox, own): (&SandboxRecord, &AttachmentRecord)| {
        let fresh = seen.insert(own.slot) && own.slot.0 < next;
        (!fresh).then(|| {
            format!("slot {} of {} has another owner or is still to be handed out", own.slot.0, sandbox.name)
        })
    };
    attachments(records).filter_map(shared).collect()
}

/// No two published ports want the same of the host or of the router.
pub fn one_owner_per_port(records: &Records) -> Vec<String> {
    // Grouped, so that ten thousand ports are ten thousand look-ups and not their pairs.
    let mut of_host: BTreeMap<(Protocol, u16), Vec<(&str, &PortRecord)>> = BTreeMap::new();
    let mut of_router: BTreeMap<(Protocol, u16), &str> = BTreeMap::new();
    let mut broken = Vec::new();
    for sandbox in records.sandboxes.values() {
        for port in &sandbox.ports {
            let protocol = port.spec.protocol;
            if let Some(other) = of_router.insert((protocol, port.router_port), &sandbox.name) {
                broken.push(format!("{other} and {} share router port {}", sandbox.name, port.router_port));
            }
            let same = of_host.entry((protocol, port.spec.host_port)).or_default();
            for (other, _) in same.iter().filter(|(_, known)| ports_collide(&known.spec, &port.spec)) {
                broken.push(format!("{other} and {} both publish {}", sandbox.name, port.spec));
            }
            same.push((&sandbox.name, port));
        }
    }
    broken
}

/// No two containers, pods or networks of one kind share a name.
pub fn one_owner_per_name(records: &Records) -> Vec<String> {
    fn twice<'a>(what: &str, names: impl Iterator<Item = &'a String>) -> Vec<String> {
        let mut seen = BTreeSet::new();
        names
            .filter(|name| !seen.insert(*name))
            .map(|name| format!("two {what}s are called {name}"))
            .collect()
    }
    let mut broken = twice("container", records.containers.values().map(|it| &it.name));
    broken.extend(twice("sandbox", records.sandboxes.values().map(|it| &it.name)));
    broken.extend(twice("network", records.networks.values().map(|it| &it.name)));
    broken
}

/// Every address lies in the subnet of its network, if that network's record can be read.
pub fn addresses_lie_in_their_network(records: &Records) -> Vec<String> {
    let strays = attachments(records).filter(|(_, own)| {
        records.networks.get(&own.network).is_some_and(|network| {
            !contains4((network.subnet4, network.prefix4), own.ipv4)
                || !contains((network.subnet6.into(), network.prefix6), own.ipv6.into())
        })
    });
    strays
        .map(|(sandbox, own)| {
            format!("{} or {} of {} lies outside its network", own.ipv4, own.ipv6, sandbox.name)
        })
        .collect()
}

/// One isolation group is one tenant on one network.
pub fn groups_do_not_mix(records: &Records) -> Vec<String> {
    let mut groups: BTreeMap<u32, (&str, &str)> = BTreeMap::new();
    let mut broken = Vec::new();
    for (sandbox, own) in attachments(records) {
        let owner = (sandbox.tenant.as_str(), own.network.as_str());
        if *groups.entry(own.group).or_insert(owner) != owner {
            broken.push(format!("group {} holds more than one tenant or network", own.group));
        }
    }
    broken
}

/// Every container's sandbox is on record, unless records are quarantined.
pub fn members_have_a_sandbox(records: &Records) -> Vec<String> {
    if !records.quarantined.is_empty() {
        return Vec::new();
    }
    let orphans =
        records.containers.values().filter(|container| !records.sandboxes.contains_key(&container.sandbox));
    orphans.map(|container| format!("container {} has no sandbox", container.name)).collect()
}
