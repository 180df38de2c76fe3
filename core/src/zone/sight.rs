//! What places see of one another: the decision of `policy` and of isolation groups, once for each pair of them.

use super::Sight;
use crate::{
    id::{NetworkId, Tenant},
    policy::{Classes, Flow, PolicyAction, Signature, Way, keeps_inside, way},
    record::{AttachmentRecord, Records, SandboxRecord},
};
use alloc::{collections::BTreeMap, vec::Vec};
use core::net::IpAddr;

/// Where addresses are that no decision tells apart.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Place<'a> {
    tenant: &'a Tenant,
    network: &'a NetworkId,
    /// Ends of policies that the IPv4 and the IPv6 address answer to, as indices of signatures.
    ends: [usize; 2],
}

pub(super) struct Sights<'a> {
    records: &'a Records,
    classes: Option<Classes<'a>>,
    /// Whether a rule may open the way between tenants.
    opens: bool,
    numbers: BTreeMap<Place<'a>, u32>,
    places: Vec<Place<'a>>,
    of_tenant: BTreeMap<&'a Tenant, Vec<u32>>,
    signatures: Vec<Signature>,
    signature_numbers: BTreeMap<Signature, usize>,
    ways: BTreeMap<(usize, usize), Way>,
    seen: BTreeMap<u32, Vec<Sight>>,
    kept_inside: BTreeMap<usize, bool>,
}

/// A question to a name server, RFC 1035.
const DNS: Flow = Flow { protocol: 17, port: 53 };

impl<'a> Sights<'a> {
    pub(super) fn of(records: &'a Records) -> Self {
        let allows =
            |action: &PolicyAction| matches!(action, PolicyAction::Allow | PolicyAction::AllowIngress);
        Self {
            records,
            classes: Classes::of(records),
            opens: records.policies.values().any(|rule| allows(&rule.action)),
            numbers: BTreeMap::new(),
            places: Vec::new(),
            of_tenant: BTreeMap::new(),
            signatures: Vec::new(),
            signature_numbers: BTreeMap::new(),
            ways: BTreeMap::new(),
            seen: BTreeMap::new(),
            kept_inside: BTreeMap::new(),
        }
    }

    fn ends(&mut self, sandbox: &SandboxRecord, own: &AttachmentRecord, address: IpAddr) -> usize {
        let Some(classes) = &self.classes else { return 0 };
        let signature = classes.inside(sandbox, own, address);
        if let Some(number) = self.signature_numbers.get(&signature) {
            return *number;
        }
        self.signatures.push(signature.clone());
        self.signature_numbers.insert(signature, self.signatures.len() - 1);
        self.signatures.len() - 1
    }

    /// The place of an interface.
    pub(super) fn place(&mut self, sandbox: &'a SandboxRecord, own: &'a AttachmentRecord) -> u32 {
        let ends = [own.ipv4.into(), own.ipv6.into()].map(|address| self.ends(sandbox, own, address));
        let place = Place { tenant: &sandbox.tenant, network: &own.network, ends };
        if let Some(number) = self.numbers.get(&place) {
            return *number;
        }
        let number = u32::try_from(self.places.len()).unwrap_or(u32::MAX);
        self.of_tenant.entry(place.tenant).or_default().push(number);
        self.places.push(place.clone());
        self.numbers.insert(place, number);
        number
    }

    fn way(&mut self, from: usize, to: usize) -> Way {
        let records = self.records;
        let (Some(one), Some(other)) = (self.signatures.get(from), self.signatures.get(to)) else {
            return Way::AsIsolated;
        };
        *self.ways.entry((from, to)).or_insert_with(|| way(records, one, other))
    }

    /// What one place sees.
    fn sights(&mut self, from: u32) -> Vec<Sight> {
        if let Some(seen) = self.seen.get(&from) {
            return seen.clone();
        }
        let Some(own) = self.places.get(from as usize).cloned() else { return Vec::new() };
        let candidates: Vec<u32> = match self.opens {
            true => (0..u32::try_from(self.places.len()).unwrap_or(u32::MAX)).collect(),
            false => self.of_tenant.get(own.tenant).cloned().unwrap_or_default(),
        };
        let routed = self.records.networks.get(own.network).map(|network| &network.routed);
        let mut seen = Vec::new();
        for number in candidates {
            let Some(other) = self.places.get(number as usize).cloned() else { continue };
            let near =
                own.network == other.network || routed.is_some_and(|routed| routed.contains(other.network));
            let isolated = own.tenant != other.tenant || !near;
            let reached = |way: Way| match way {
                Way::Open => true,
                Way::Closed => false,
                Way::AsIsolated => !isolated,
            };
            let [ipv4, ipv6] = [0, 1].map(|family: usize| {
                let end = |place: &Place<'_>| place.ends.get(family).copied().unwrap_or(0);
                reached(self.way(end(&own), end(&other)))
            });
            if ipv4 || ipv6 {
                seen.push(Sight { place: number, ipv4, ipv6 });
            }
        }
        self.seen.insert(from, seen.clone());
        seen
    }

    /// What a workload with interfaces in these places sees: an interface of its own leads to each.
    pub(super) fn seen_from(&mut self, places: &[u32]) -> Vec<Sight> {
        let mut all: BTreeMap<u32, Sight> = BTreeMap::new();
        for place in places {
            for sight in self.sights(*place) {
                let known = all.entry(sight.place).or_insert(sight);
                known.ipv4 |= sight.ipv4;
                known.ipv6 |= sight.ipv6;
            }
        }
        all.into_values().collect()
    }

    /// Whether a workload could ask a server outside by itself: what it may not, is not done for it either.
    pub(super) fn leads_out(&mut self, sandbox: &SandboxRecord) -> bool {
        let records = self.records;
        sandbox.attachments.iter().any(|own| {
            if records.networks.get(&own.network).is_none_or(|network| network.spec.internal) {
                return false;
            }
            [IpAddr::V4(own.ipv4), IpAddr::V6(own.ipv6)].into_iter().any(|address| {
                let number = self.ends(sandbox, own, address);
                let (Some(classes), Some(signature)) = (&self.classes, self.signatures.get(number)) else {
                    return true;
                };
                let kept = self
                    .kept_inside
                    .entry(number)
                    .or_insert_with(|| keeps_inside(records, classes, signature, DNS));
                !*kept
            })
        })
    }
}
