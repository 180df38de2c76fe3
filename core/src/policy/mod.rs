//! Policies: who may talk to whom beside, or against, what isolation groups say.
//!
//! A policy names its ends by what they are (workload, tenant, network, labels) or where (CIDR). What it comes to is
//! decided here and compiled into elements: each address belongs to a *class*, which is the set of ends it answers
//! to, and a verdict map is keyed by a pair of classes, protocol and port. A packet costs the same look-ups with
//! one policy as with a thousand, and a workload adds its addresses' classes and nothing else.
//!
//! Which rule decides: a matching `deny` always; else, for a workload that a default closes in a direction, the
//! absence of a matching `allow` for that direction; else a matching `allow` between workloads. Where no rule
//! decides, isolation groups and networks do.

mod class;
mod decide;
mod kubernetes;
mod way;

pub use class::{Classes, Signature, note_classes};
pub use decide::{Decision, Flow, Reason, by_elements, decide, element_rules, elements};
pub use kubernetes::translate;
pub use way::{Way, keeps_inside, way};

use crate::{
    alloc_address::contains,
    id::{NetworkId, PolicyId, SandboxId, Tenant},
    record::{AttachmentRecord, SandboxRecord},
    time::Wall,
};
use alloc::{collections::BTreeMap, format, string::String, vec::Vec};
use core::{fmt, net::IpAddr};
use serde::{Deserialize, Serialize};

/// What a label must be.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LabelTerm {
    /// There, whatever its value.
    Exists(String),
    /// Not there.
    Absent(String),
    /// There, with one of these values.
    In(String, Vec<String>),
    /// Not there, or with none of these values.
    NotIn(String, Vec<String>),
}

impl LabelTerm {
    fn holds(&self, labels: &BTreeMap<String, String>) -> bool {
        match self {
            Self::Exists(key) => labels.contains_key(key),
            Self::Absent(key) => !labels.contains_key(key),
            Self::In(key, values) => labels.get(key).is_some_and(|value| values.contains(value)),
            Self::NotIn(key, values) => labels.get(key).is_none_or(|value| !values.contains(value)),
        }
    }
}

/// One end of a policy: everything that is given must hold. Nothing given is anybody, inside or outside.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Peer {
    /// A container's own sandbox, or a pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workload: Option<SandboxId>,
    /// A tenant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<Tenant>,
    /// A network: addresses on it, not the workload's others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<NetworkId>,
    /// Labels.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub labels: Vec<LabelTerm>,
    /// Only workloads of the node, even if nothing else is given.
    #[serde(default, skip_serializing_if = "core::ops::Not::not")]
    pub inside: bool,
    /// Addresses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cidr: Option<(IpAddr, u8)>,
    /// Addresses of `cidr` that are not meant.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub except: Vec<(IpAddr, u8)>,
}

impl Peer {
    /// Its text: what names it in a class, and to people.
    pub fn text(&self) -> String {
        // A peer is strings, numbers and lists of them: serialising it cannot fail.
        serde_json::to_string(self).unwrap_or_default()
    }

    fn is_inside(&self) -> bool {
        self.inside
            || self.workload.is_some()
            || self.tenant.is_some()
            || self.network.is_some()
            || !self.labels.is_empty()
    }

    fn holds_address(&self, address: IpAddr) -> bool {
        self.cidr.is_none_or(|cidr| contains(cidr, address))
            && !self.except.iter().any(|except| contains(*except, address))
    }

    /// Whether an address of a workload answers to it.
    pub fn matches(&self, sandbox: &SandboxRecord, own: &AttachmentRecord, address: IpAddr) -> bool {
        self.workload.as_ref().is_none_or(|id| *id == sandbox.id)
            && self.tenant.as_ref().is_none_or(|tenant| *tenant == sandbox.tenant)
            && self.network.as_ref().is_none_or(|network| *network == own.network)
            && self.labels.iter().all(|term| term.holds(&sandbox.spec.labels))
            && self.holds_address(address)
    }

    /// Whether an address outside the node answers to it.
    pub fn matches_outside(&self, address: IpAddr) -> bool {
        !self.is_inside() && self.holds_address(address)
    }
}

/// What is let through or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PolicyProtocol {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
    /// ICMP in IPv4, ICMPv6 in IPv6. It has no ports.
    Icmp,
}

impl PolicyProtocol {
    /// Its IANA numbers in IPv4 and IPv6.
    pub fn numbers(self) -> [u8; 2] {
        match self {
            Self::Tcp => [6, 6],
            Self::Udp => [17, 17],
            Self::Icmp => [1, 58],
        }
    }
}

impl fmt::Display for PolicyProtocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
            Self::Icmp => "icmp",
        })
    }
}

/// A protocol and its ports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PortMatch {
    /// `None` is every protocol.
    #[serde(default)]
    pub protocol: Option<PolicyProtocol>,
    /// First and last port at the receiver; `None` is every port.
    #[serde(default)]
    pub ports: Option<(u16, u16)>,
}

impl PortMatch {
    /// Whether a packet to this port is meant.
    pub fn matches(&self, protocol: u8, port: u16) -> bool {
        let is_protocol = self.protocol.is_none_or(|it| it.numbers().contains(&protocol));
        is_protocol && self.ports.is_none_or(|(first, last)| (first..=last).contains(&port))
    }
}

impl fmt::Display for PortMatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let protocol = self.protocol.map_or_else(|| String::from("any"), |protocol| format!("{protocol}"));
        match self.ports {
            None => f.write_str(&protocol),
            Some((first, last)) if first == last => write!(f, "{protocol}/{first}"),
            Some((first, last)) => write!(f, "{protocol}/{first}-{last}"),
        }
    }
}

/// What a policy does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PolicyAction {
    /// Lets through, against defaults and isolation.
    Allow,
    /// Lets through against defaults in one direction: a document's rules speak for their own side.
    AllowIngress,
    /// Likewise for what is sent.
    AllowEgress,
    /// Stops.
    Deny,
    /// Closes `to` for whatever no `allow` lets in.
    CloseIngress,
    /// Closes `from` for whatever no `allow` lets out.
    CloseEgress,
}

impl fmt::Display for PolicyAction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Allow => "allow",
            Self::AllowIngress => "allow ingress",
            Self::AllowEgress => "allow egress",
            Self::Deny => "deny",
            Self::CloseIngress => "default deny ingress",
            Self::CloseEgress => "default deny egress",
        })
    }
}

/// One rule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PolicyRecord {
    /// Identity.
    pub id: PolicyId,
    /// Name, unique among rules.
    pub name: String,
    /// The document that it is part of; rules of one are applied and removed together.
    pub document: Option<String>,
    /// What it does.
    pub action: PolicyAction,
    /// Who sends; none is anybody.
    pub from: Vec<Peer>,
    /// Who receives; none is anybody.
    pub to: Vec<Peer>,
    /// What; none is everything.
    pub ports: Vec<PortMatch>,
    /// As the user wrote the ends, for people.
    pub summary: String,
    /// When it was created.
    pub created: Wall,
}

impl PolicyRecord {
    fn peers(&self) -> impl Iterator<Item = &Peer> {
        self.from.iter().chain(&self.to)
    }
}

/// `ADDRESS/PREFIX`, or an address alone; host bits are cleared.
pub fn parse_cidr(text: &str) -> Option<(IpAddr, u8)> {
    let (address, prefix) = match text.split_once('/') {
        Some((address, prefix)) => (address.parse().ok()?, Some(prefix.parse::<u8>().ok()?)),
        None => (text.parse().ok()?, None),
    };
    Some(match address {
        IpAddr::V4(address) => {
            let prefix = prefix.unwrap_or(32);
            let mask = u32::MAX.checked_shl(32_u32.checked_sub(prefix.into())?).unwrap_or(0);
            (IpAddr::V4((u32::from(address) & mask).into()), prefix)
        }
        IpAddr::V6(address) => {
            let prefix = prefix.unwrap_or(128);
            let mask = u128::MAX.checked_shl(128_u32.checked_sub(prefix.into())?).unwrap_or(0);
            (IpAddr::V6((u128::from(address) & mask).into()), prefix)
        }
    })
}
