//! Who reaches whom: computed from links, bridges and rules, never assumed.

use super::{Node, Ns, Router, Veth};
use holdfast_core::{
    id::Slot,
    policy::{Flow, by_elements},
    ruleset::Element,
};
use std::net::IpAddr;

/// The host end of a veth with its pair.
pub type Link<'a> = (Ns, Slot, &'a Veth);

impl Node {
    /// The links of a sandbox's network namespace.
    pub fn links(&self, inside: Ns) -> impl Iterator<Item = Link<'_>> {
        self.veths
            .iter()
            .filter(move |(_, veth)| veth.inside == inside)
            .map(|((router, slot), veth)| (*router, *slot, veth))
    }

    /// Whether a packet sent in the network namespace `from` to `address` arrives in `to`, and its answer
    /// comes back. The answer needs its link only: connection tracking lets it through.
    pub fn can_reach(&self, from: Ns, to: Ns, address: IpAddr) -> bool {
        if from == to {
            return true;
        }
        let Some((router, _, target)) = self.links(to).find(|(_, _, veth)| has(veth, address)) else {
            return false;
        };
        let Some(stack) = self.namespaces.router(router) else { return false };
        // The router has the address on a link only through the bridge that the target is a port of.
        if !target.port {
            return false;
        }
        self.links(from).any(|(of, slot, source)| {
            of == router && source.port && routes(source, address) && passes(stack, slot, source, address)
        })
    }

    /// Whether a packet sent in the network namespace `from` gets out through the uplink.
    pub fn can_leave(&self, from: Ns) -> bool {
        let Some(uplink) = self.uplink() else { return false };
        self.links(from).any(|(router, slot, source)| {
            self.namespaces.router(router).is_some_and(|stack| {
                uplink.holds.contains(&router)
                    && source.plan.default_route
                    && source.port
                    && (!stack.base || {
                        stack.elements.contains(&Element::Egress4(source.plan.ipv4))
                            && stack.elements.contains(&Element::Source4(
                                slot,
                                source.plan.mac,
                                source.plan.ipv4,
                            ))
                    })
            })
        })
    }
}

fn has(veth: &Veth, address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => veth.plan.ipv4 == address,
        IpAddr::V6(address) => veth.plan.ipv6 == address,
    }
}

/// Whether the sender's routing table picks this link: the subnet's route, or a default route.
fn routes(source: &Veth, address: IpAddr) -> bool {
    let within = match address {
        IpAddr::V4(address) => {
            let (subnet, length) = source.plan.subnet4;
            let mask = u32::MAX.checked_shl(32 - u32::from(length)).unwrap_or(0);
            subnet.to_bits() & mask == address.to_bits() & mask
        }
        IpAddr::V6(address) => {
            let (subnet, length) = source.plan.subnet6;
            let mask = u128::MAX.checked_shl(128 - u32::from(length)).unwrap_or(0);
            subnet.to_bits() & mask == address.to_bits() & mask
        }
    };
    within || source.plan.default_route
}

/// Whether the rules let a packet through: its source is what its link may send from, and its group may reach
/// the destination. Without base chains the kernel forwards everything.
fn passes(router: &Router, slot: Slot, source: &Veth, address: IpAddr) -> bool {
    if !router.base {
        return true;
    }
    let plan = &source.plan;
    // An echo: what policies say of it goes before groups, of a source that is the link's own.
    let (own, protocol) = match address {
        IpAddr::V4(_) => (IpAddr::V4(plan.ipv4), 1),
        IpAddr::V6(_) => (IpAddr::V6(plan.ipv6), 58),
    };
    match by_elements(&router.elements, own, address, Flow { protocol, port: 0 }) {
        Some(false) => return false,
        Some(true) => {
            return match address {
                IpAddr::V4(_) => router.elements.contains(&Element::Source4(slot, plan.mac, plan.ipv4)),
                IpAddr::V6(_) => router.elements.contains(&Element::Source6(slot, plan.mac, plan.ipv6)),
            };
        }
        None => {}
    }
    match address {
        IpAddr::V4(address) => {
            router.elements.contains(&Element::Source4(slot, plan.mac, plan.ipv4))
                && router
                    .elements
                    .range(Element::Group4(plan.ipv4, 0)..=Element::Group4(plan.ipv4, u32::MAX))
                    .any(|element| {
                        matches!(element, Element::Group4(_, group)
                            if router.elements.contains(&Element::Member4(*group, address)))
                    })
        }
        IpAddr::V6(address) => {
            router.elements.contains(&Element::Source6(slot, plan.mac, plan.ipv6))
                && router
                    .elements
                    .range(Element::Group6(plan.ipv6, 0)..=Element::Group6(plan.ipv6, u32::MAX))
                    .any(|element| {
                        matches!(element, Element::Group6(_, group)
                            if router.elements.contains(&Element::Member6(*group, address)))
                    })
        }
    }
}
