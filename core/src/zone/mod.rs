//! Names: who is called what, and who may know it.
//!
//! Made from the records as plain data, which the control serves also while the daemon is away. Whom an asker sees is
//! decided as for its packets: a name is told to whoever can reach what it names, and to others it does not exist.
//! Workloads of one tenant on one network that policies do not tell apart are one *place*; what places see of one
//! another is worked out once for each pair, and not for each pair of workloads.

mod look_up;
mod sight;

pub use look_up::{Found, Index};

use crate::{
    bring_up::wants_plug,
    id::NetworkId,
    record::{ContainerRecord, Records, SandboxKind, SandboxRecord},
};
use alloc::{collections::BTreeMap, string::String, vec::Vec};
use core::net::IpAddr;
use serde::{Deserialize, Serialize};
use sight::Sights;

/// The zone of every node: `internal` is reserved for private use (ICANN resolution 2024.07.29.06), so that no name
/// of a workload can be a name of somebody else's.
pub const SUFFIX: &str = "holdfast.internal";
/// How long a resolver may keep an address, in seconds: a workload that is made anew may get another one.
pub const TTL_S: u32 = 5;
/// How long a resolver may keep that there is no such name, in seconds: the workload may be about to start.
pub const NEGATIVE_TTL_S: u32 = 1;

/// The zone of a network: what its workloads search.
pub fn zone_of(network: &str) -> String {
    alloc::format!("{network}.{SUFFIX}")
}

/// All names of a node, and who sees what of them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Zone {
    /// Who may ask, by source address: an index into `views`.
    pub askers: BTreeMap<IpAddr, u32>,
    /// What askers see; those who see the same share one.
    pub views: Vec<View>,
    /// What has a name.
    pub hosts: Vec<Host>,
    /// Networks.
    pub networks: Vec<ZoneNetwork>,
}

/// What an asker sees.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct View {
    /// Places whose hosts it can reach, in order.
    pub sees: Vec<Sight>,
    /// Networks it is plugged into, as indices of [`Zone::networks`].
    pub networks: Vec<u32>,
    /// Whether it is told of names outside the node: it has a way out.
    pub forwards: bool,
    /// Servers that are asked for it in place of the node's.
    pub servers: Vec<IpAddr>,
}

/// A place that is seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Sight {
    /// The place.
    pub place: u32,
    /// Its IPv4 addresses can be reached.
    pub ipv4: bool,
    /// Its IPv6 addresses can.
    pub ipv6: bool,
}

/// Names of one interface.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Host {
    /// Labels, lower case; a reverse look-up gives the first.
    pub names: Vec<String>,
    /// Its network, as an index of [`Zone::networks`].
    pub network: u32,
    /// Its place; see [`Sight`].
    pub place: u32,
    /// Its addresses; a family without one is answered with no data.
    pub addresses: Vec<IpAddr>,
}

/// A network whose names these are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ZoneNetwork {
    /// Name.
    pub name: String,
    /// Subnets: their reverse zones are the node's.
    pub subnets: Vec<(IpAddr, u8)>,
}

/// The names that a sandbox answers to, if it lives: a container's own, a pod's and its members', and aliases.
fn names_of(sandbox: &SandboxRecord, members: &[&ContainerRecord]) -> Vec<String> {
    if !wants_plug(sandbox, members) {
        return Vec::new();
    }
    let live: Vec<&str> =
        members.iter().filter(|member| member.wants_to_run()).map(|member| member.name.as_str()).collect();
    // A pod whose members have all ended has nobody who answers.
    if sandbox.kind == SandboxKind::Pod && live.is_empty() && !members.is_empty() {
        return Vec::new();
    }
    let mut names = alloc::vec![sandbox.name.clone()];
    let aliases = sandbox.spec.aliases.iter().map(String::as_str);
    for name in live.into_iter().chain(aliases) {
        if !names.iter().any(|known| known == name) {
            names.push(String::from(name));
        }
    }
    names
}

impl Zone {
    /// The names of a node's live workloads.
    pub fn of(records: &Records) -> Self {
        let members = records.members_by_sandbox();
        let mut walk = members.walk();
        let numbers: BTreeMap<&NetworkId, u32> = records.networks.keys().zip(0..).collect();
        let mut sights = Sights::of(records);
        let mut hosts = Vec::new();
        let mut asking: Vec<(&SandboxRecord, Vec<u32>)> = Vec::new();
        for sandbox in records.sandboxes.values() {
            let names = names_of(sandbox, walk.of(&sandbox.id));
            let mut places = Vec::new();
            for own in &sandbox.attachments {
                let (Some(network), place) = (numbers.get(&own.network), sights.place(sandbox, own)) else {
                    continue;
                };
                places.push(place);
                if !names.is_empty() {
                    let addresses = alloc::vec![IpAddr::V4(own.ipv4), IpAddr::V6(own.ipv6)];
                    hosts.push(Host { names: names.clone(), network: *network, place, addresses });
                }
            }
            asking.push((sandbox, places));
        }
        // Every place is known now.
        let mut known: BTreeMap<View, u32> = BTreeMap::new();
        let mut views = Vec::new();
        let mut askers = BTreeMap::new();
        for (sandbox, places) in asking {
            let view = View {
                sees: sights.seen_from(&places),
                networks: sandbox
                    .attachments
                    .iter()
                    .filter_map(|own| numbers.get(&own.network).copied())
                    .collect(),
                forwards: sights.leads_out(sandbox),
                servers: sandbox.spec.dns.servers.clone(),
            };
            let next = u32::try_from(views.len()).unwrap_or(u32::MAX);
            let number = *known.entry(view).or_insert_with_key(|view| {
                views.push(view.clone());
                next
            });
            for own in &sandbox.attachments {
                askers.insert(IpAddr::V4(own.ipv4), number);
                askers.insert(IpAddr::V6(own.ipv6), number);
            }
        }
        let networks = records.networks.values().map(|network| ZoneNetwork {
            name: network.name.clone(),
            subnets: alloc::vec![
                (IpAddr::V4(network.subnet4), network.prefix4),
                (IpAddr::V6(network.subnet6), network.prefix6)
            ],
        });
        Self { askers, views, hosts, networks: networks.collect() }
    }
}
