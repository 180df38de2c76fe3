//! What policies come to for one flow, and for all of them as elements.

use super::{Classes, Peer, PolicyAction, PolicyRecord, PortMatch, Signature};
use crate::{
    alloc_address::contains,
    id::PolicyId,
    record::{AttachmentRecord, Records, SandboxRecord},
    ruleset::Element,
};
use alloc::{
    collections::{BTreeMap, BTreeSet},
    format,
    string::String,
    vec::Vec,
};
use core::net::IpAddr;
use serde::{Deserialize, Serialize};

/// A packet in the direction of its flow's first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Flow {
    /// IANA protocol number.
    pub protocol: u8,
    /// Port at the receiver; 0 where the protocol has none.
    pub port: u16,
}

/// Why a flow passes or not.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// A rule, by its name.
    Rule(String),
    /// Nothing allows it in, and this rule closes the receiver by default.
    Default(String),
    /// Same tenant on one network.
    SameGroup(String),
    /// Same tenant on two networks that are routed to one another.
    Routed(String, String),
    /// Different tenants.
    OtherTenant(String, String),
    /// Networks that are not routed to one another.
    OtherNetwork(String, String),
    /// Out of the node, by a network that has a way out.
    Egress(String),
    /// Out of the node, by networks that have none.
    Internal(String),
    /// An address that is no workload's and none that leads anywhere.
    Nobody,
}

impl core::fmt::Display for Reason {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Rule(name) => write!(f, "rule {name}"),
            Self::Default(name) => write!(f, "no rule allows it, and {name} closes by default"),
            Self::SameGroup(network) => write!(f, "same namespace on network {network}"),
            Self::Routed(one, other) => write!(f, "same namespace, networks {one} and {other} are routed"),
            Self::OtherTenant(one, other) => write!(f, "namespaces {one} and {other} are isolated"),
            Self::OtherNetwork(one, other) => write!(f, "networks {one} and {other} are not routed"),
            Self::Egress(network) => write!(f, "out through the uplink, as network {network} may"),
            Self::Internal(network) => write!(f, "network {network} has no way out"),
            Self::Nobody => f.write_str("no workload has that address"),
        }
    }
}

/// What was decided of a flow.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Decision {
    /// Whether it passes.
    pub allowed: bool,
    /// Why.
    pub reason: Reason,
}

/// What the rules say of a pair of ends.
pub(super) enum Verdict<'a> {
    Accept(&'a PolicyRecord),
    Drop(&'a PolicyRecord),
    Silent,
}

/// The rules that speak of a pair of classes.
pub(super) struct Pair<'a> {
    pub(super) rules: Vec<&'a PolicyRecord>,
    within: bool,
}

fn meets(ends: &[Peer], signature: &Signature) -> bool {
    ends.is_empty() || ends.iter().any(|end| signature.contains(&end.text()))
}

impl<'a> Pair<'a> {
    /// `within`: both ends are workloads; only there is isolation that an `allow` could open.
    pub(super) fn of(records: &'a Records, from: &Signature, to: &Signature, within: bool) -> Self {
        let rules = records.policies.values().filter(|rule| match rule.action {
            PolicyAction::CloseIngress => meets(&rule.to, to),
            PolicyAction::CloseEgress => meets(&rule.from, from),
            _ => meets(&rule.from, from) && meets(&rule.to, to),
        });
        Self { rules: rules.collect(), within }
    }

    pub(super) fn decide(&self, flow: Flow) -> Verdict<'a> {
        let hits = |rule: &PolicyRecord| {
            rule.ports.is_empty() || rule.ports.iter().any(|it| it.matches(flow.protocol, flow.port))
        };
        let find = |wanted: &[PolicyAction]| {
            self.rules.iter().copied().find(|rule| wanted.contains(&rule.action) && hits(rule))
        };
        if let Some(rule) = find(&[PolicyAction::Deny]) {
            return Verdict::Drop(rule);
        }
        let allowed_in = find(&[PolicyAction::Allow, PolicyAction::AllowIngress]);
        let allowed_out = find(&[PolicyAction::Allow, PolicyAction::AllowEgress]);
        if let Some(rule) = find(&[PolicyAction::CloseIngress]).filter(|_| allowed_in.is_none()) {
            return Verdict::Drop(rule);
        }
        if let Some(rule) = find(&[PolicyAction::CloseEgress]).filter(|_| allowed_out.is_none()) {
            return Verdict::Drop(rule);
        }
        match allowed_in {
            Some(rule) if self.within => Verdict::Accept(rule),
            _ => Verdict::Silent,
        }
    }
}

type Owner<'a> = (&'a SandboxRecord, &'a AttachmentRecord);

fn owner(records: &Records, address: IpAddr) -> Option<Owner<'_>> {
    let mut all = records.sandboxes.values().flat_map(|it| it.attachments.iter().map(move |own| (it, own)));
    all.find(|(_, own)| IpAddr::V4(own.ipv4) == address || IpAddr::V6(own.ipv6) == address)
}

/// Whether a flow passes from an address to another, and what decides. Pure: the same that [`elements`] compiles.
pub fn decide(records: &Records, from: IpAddr, to: IpAddr, flow: Flow) -> Decision {
    let (source, target) = (owner(records, from), owner(records, to));
    if let Some(classes) = Classes::of(records) {
        let signature = |owner: Option<Owner<'_>>, address| match owner {
            Some((sandbox, own)) => classes.inside(sandbox, own, address),
            None => classes.outside_of(address),
        };
        let within = source.is_some() && target.is_some();
        let pair = Pair::of(records, &signature(source, from), &signature(target, to), within);
        let by_default = |rule: &PolicyRecord| {
            matches!(rule.action, PolicyAction::CloseIngress | PolicyAction::CloseEgress)
        };
        match pair.decide(flow) {
            Verdict::Accept(rule) => {
                return Decision { allowed: true, reason: Reason::Rule(rule.name.clone()) };
            }
            Verdict::Drop(rule) if by_default(rule) => {
                return Decision { allowed: false, reason: Reason::Default(rule.name.clone()) };
            }
            Verdict::Drop(rule) => {
                return Decision { allowed: false, reason: Reason::Rule(rule.name.clone()) };
            }
            Verdict::Silent => {}
        }
    }
    by_isolation(records, source, target, to)
}

fn by_isolation(
    records: &Records,
    source: Option<Owner<'_>>,
    target: Option<Owner<'_>>,
    to: IpAddr,
) -> Decision {
    let name = |own: &AttachmentRecord| {
        records.networks.get(&own.network).map_or_else(|| format!("{}", own.network), |it| it.name.clone())
    };
    let verdict = |allowed, reason| Decision { allowed, reason };
    match (source, target) {
        (Some((from, own)), Some((to, target))) => {
            if from.id == to.id {
                return verdict(true, Reason::SameGroup(name(own)));
            }
            if from.tenant != to.tenant {
                let tenants = (String::from(from.tenant.as_str()), String::from(to.tenant.as_str()));
                return verdict(false, Reason::OtherTenant(tenants.0, tenants.1));
            }
            if own.group == target.group {
                return verdict(true, Reason::SameGroup(name(own)));
            }
            let routed =
                records.networks.get(&own.network).is_some_and(|it| it.routed.contains(&target.network));
            match routed {
                true => verdict(true, Reason::Routed(name(own), name(target))),
                false => verdict(false, Reason::OtherNetwork(name(own), name(target))),
            }
        }
        (Some((_, own)), None) => {
            let inside = records.networks.values().any(|network| {
                contains((network.subnet4.into(), network.prefix4), to)
                    || contains((network.subnet6.into(), network.prefix6), to)
            });
            let internal = records.networks.get(&own.network).is_none_or(|network| network.spec.internal);
            match (inside, internal) {
                (true, _) => verdict(false, Reason::Nobody),
                (_, true) => verdict(false, Reason::Internal(name(own))),
                (_, false) => verdict(true, Reason::Egress(name(own))),
            }
        }
        (None, _) => verdict(false, Reason::Nobody),
    }
}

/// The elements of all policies but the classes of workloads' addresses, which come with the workloads.
pub fn elements(records: &Records) -> BTreeSet<Element> {
    compiled(records).into_keys().collect()
}

/// Which rule made each verdict: what counters are summed by.
pub fn element_rules(records: &Records) -> BTreeMap<Element, PolicyId> {
    compiled(records).into_iter().filter_map(|(element, rule)| Some((element, rule?))).collect()
}

fn compiled(records: &Records) -> BTreeMap<Element, Option<PolicyId>> {
    let mut compiled = BTreeMap::new();
    let Some(classes) = Classes::of(records) else { return compiled };
    let mut outside = BTreeSet::new();
    for (first, last, signature) in &classes.outside {
        let class = classes.number(signature);
        outside.insert(class);
        match (first, last) {
            (IpAddr::V4(first), IpAddr::V4(last)) => {
                compiled.insert(Element::Outside4(*first, *last, class), None);
            }
            (IpAddr::V6(first), IpAddr::V6(last)) => {
                compiled.insert(Element::Outside6(*first, *last, class), None);
            }
            _ => {}
        }
    }
    // Two maps, one for flows between workloads and one for those over the uplink: an `allow` opens only the first.
    for (from, from_class) in classes.all() {
        for (to, to_class) in classes.all() {
            for within in [true, false] {
                if !within && !outside.contains(&from_class) && !outside.contains(&to_class) {
                    continue;
                }
                let pair = Pair::of(records, from, to, within);
                pair.compile(from_class, to_class, &mut compiled);
            }
        }
    }
    compiled
}

impl Pair<'_> {
    /// Disjoint rectangles of protocols and ports, each with what the rules say of it.
    fn compile(&self, from: u32, to: u32, into: &mut BTreeMap<Element, Option<PolicyId>>) {
        if self.rules.is_empty() {
            return;
        }
        let all: Vec<&PortMatch> = self.rules.iter().flat_map(|rule| &rule.ports).collect();
        let mut protocols: BTreeSet<u16> = BTreeSet::from([0]);
        for number in all.iter().filter_map(|it| it.protocol).flat_map(|it| it.numbers()) {
            protocols.extend([u16::from(number), u16::from(number) + 1]);
        }
        // Protocols without ports have none to tell apart: their first bytes are something else.
        let mut ports: BTreeSet<u32> = BTreeSet::from([0]);
        for (first, last) in all.iter().filter_map(|it| it.ports) {
            ports.extend([u32::from(first), u32::from(last) + 1]);
        }
        let with_ports = |protocol: u16| protocol == 6 || protocol == 17;
        for number in [6_u16, 17] {
            if all.iter().any(|it| it.ports.is_some()) {
                protocols.extend([number, number + 1]);
            }
        }
        let spans: Vec<(u16, u16)> = spans(protocols.iter().map(|it| u32::from(*it)), 255)
            .map(|(first, last)| (first as u16, last as u16))
            .collect();
        for (first, last) in spans {
            let own: Vec<(u32, u32)> = match with_ports(first) && first == last {
                true => spans_of(&ports, 65_535),
                false => alloc::vec![(0, 65_535)],
            };
            let mut merged: Option<(u32, u32, bool, &PolicyId)> = None;
            for (port_first, port_last) in own {
                let flow = Flow { protocol: first as u8, port: port_first as u16 };
                let verdict = match self.decide(flow) {
                    Verdict::Accept(rule) => Some((true, &rule.id)),
                    Verdict::Drop(rule) => Some((false, &rule.id)),
                    Verdict::Silent => None,
                };
                let mut flush = |span: (u32, u32, bool, &PolicyId)| {
                    let (port_first, port_last, accept, rule) = span;
                    let key = crate::ruleset::VerdictKey {
                        within: self.within,
                        from,
                        to,
                        protocols: (first as u8, last as u8),
                        ports: (port_first as u16, port_last as u16),
                    };
                    into.insert(Element::Verdict(key, accept), Some(rule.clone()));
                };
                merged = match (merged, verdict) {
                    (Some((start, _, accept, rule)), Some((now, by))) if accept == now && rule == by => {
                        Some((start, port_last, accept, rule))
                    }
                    (before, now) => {
                        before.into_iter().for_each(&mut flush);
                        now.map(|(accept, rule)| (port_first, port_last, accept, rule))
                    }
                };
                if port_last == 65_535 {
                    merged.take().into_iter().for_each(&mut flush);
                }
            }
        }
    }
}

fn spans(starts: impl Iterator<Item = u32>, last: u32) -> impl Iterator<Item = (u32, u32)> {
    let starts: Vec<u32> = starts.filter(|start| *start <= last).collect();
    let ends: Vec<u32> = starts.iter().skip(1).map(|next| next - 1).chain([last]).collect();
    starts.into_iter().zip(ends)
}

fn spans_of(starts: &BTreeSet<u32>, last: u32) -> Vec<(u32, u32)> {
    spans(starts.iter().copied(), last).collect()
}

/// What elements say of a flow, as the router evaluates them: `None` where no verdict speaks, and groups decide.
/// For the simulator, and for tests that compare it with [`decide`].
pub fn by_elements(elements: &BTreeSet<Element>, from: IpAddr, to: IpAddr, flow: Flow) -> Option<bool> {
    let inside = |address: IpAddr| {
        elements.iter().find_map(|element| match *element {
            Element::Class4(of, class) if IpAddr::V4(of) == address => Some(class),
            Element::Class6(of, class) if IpAddr::V6(of) == address => Some(class),
            _ => None,
        })
    };
    let outside = |address: IpAddr| {
        elements.iter().find_map(|element| match *element {
            Element::Outside4(first, last, class) => {
                matches!(address, IpAddr::V4(it) if (first..=last).contains(&it)).then_some(class)
            }
            Element::Outside6(first, last, class) => {
                matches!(address, IpAddr::V6(it) if (first..=last).contains(&it)).then_some(class)
            }
            _ => None,
        })
    };
    let (source, target) = (inside(from), inside(to));
    let within = source.is_some() && target.is_some();
    let (source, target) = (source.or_else(|| outside(from))?, target.or_else(|| outside(to))?);
    elements.iter().find_map(|element| match element {
        Element::Verdict(key, accept) => {
            let same = (key.within, key.from, key.to) == (within, source, target);
            let (protocols, ports) = (key.protocols.0..=key.protocols.1, key.ports.0..=key.ports.1);
            (same && protocols.contains(&flow.protocol) && ports.contains(&flow.port)).then_some(*accept)
        }
        _ => None,
    })
}
