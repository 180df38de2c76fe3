//! Networks.

use super::{Admission, Stamp, find, require_up};
use crate::{
    alloc_address,
    error::{Refusal, RefusalCode},
    id::NetworkId,
    journal::{OperationKind, Resume, Subject},
    name,
    observed::HostObserved,
    ops::request::NetworkRequest,
    plan::Step,
    record::{Change, NetworkRecord, NodeRecord, Records},
    spec::NetworkSpec,
    steps,
    time::Wall,
};
use alloc::{
    boxed::Box,
    collections::{BTreeMap, BTreeSet},
    format,
    string::String,
    vec::Vec,
};
use core::net::{IpAddr, Ipv4Addr};

/// The network of a workload that names none.
pub const DEFAULT_NETWORK: &str = "default";

/// The default network's record; the node's counters advance.
///
/// # Errors
/// `Exhausted` when no subnet is free.
pub fn default_record(
    records: &Records,
    node: &mut NodeRecord,
    host: &HostObserved,
    id: NetworkId,
    wall: Wall,
) -> Result<NetworkRecord, Refusal> {
    record(records, node, host, id, DEFAULT_NETWORK, NetworkSpec::default(), wall)
}

fn record(
    records: &Records,
    node: &mut NodeRecord,
    host: &HostObserved,
    id: NetworkId,
    name: &str,
    spec: NetworkSpec,
    wall: Wall,
) -> Result<NetworkRecord, Refusal> {
    let (subnet4, prefix4) = alloc_address::subnet4(records, host, spec.subnet4)?;
    let (index, (subnet6, prefix6)) =
        alloc_address::subnet6(records, host, node.ula_prefix, node.network_next, spec.subnet6)?;
    let last4 = Ipv4Addr::from(u32::from(subnet4) + ((1_u32 << (32 - prefix4)) - 1));
    let whole4 = (IpAddr::V4(subnet4), prefix4);
    let whole6 = (IpAddr::V6(subnet6), prefix6);
    let gateway4 = spec.gateway4.unwrap_or(Ipv4Addr::from(u32::from(subnet4) + 1));
    let gateway6 = spec.gateway6.unwrap_or(alloc_address::address6(subnet6, 1));
    for (gateway, whole) in [(IpAddr::V4(gateway4), whole4), (IpAddr::V6(gateway6), whole6)] {
        if !alloc_address::contains(whole, gateway) || gateway == whole.0 || gateway == IpAddr::V4(last4) {
            let detail = format!("gateway {gateway} is no address of a host in {}/{}", whole.0, whole.1);
            return Err(Refusal::new(RefusalCode::Invalid, detail));
        }
    }
    let ranges = [
        (spec.range4.map(|(start, prefix)| (IpAddr::V4(start), prefix)), whole4, 32),
        (spec.range6.map(|(start, prefix)| (IpAddr::V6(start), prefix)), whole6, 128),
    ];
    for (range, whole, bits) in ranges {
        let Some((start, prefix)) = range else { continue };
        if prefix < whole.1 || prefix > bits || !alloc_address::contains(whole, start) {
            let detail = format!("range {start}/{prefix} does not lie in {}/{}", whole.0, whole.1);
            return Err(Refusal::new(RefusalCode::Invalid, detail));
        }
        if !alloc_address::starts(start, prefix) {
            let detail =
                format!("range {start}/{prefix} has host bits set; a range begins where its prefix does");
            return Err(Refusal::new(RefusalCode::Invalid, detail));
        }
    }
    node.network_next = index + 1;
    Ok(NetworkRecord {
        id,
        name: String::from(name),
        spec,
        index,
        subnet4,
        prefix4,
        gateway4,
        subnet6,
        prefix6,
        gateway6,
        groups: BTreeMap::new(),
        routed: BTreeSet::new(),
        created: wall,
    })
}

/// `network create`.
///
/// # Errors
/// A [`Refusal`] naming what is wrong.
pub fn create(
    records: &Records,
    request: &NetworkRequest,
    stamp: &Stamp,
) -> Result<Admission<NetworkId>, Refusal> {
    require_up(records)?;
    name::check("network", &request.name)?;
    if records.networks.values().any(|network| network.name == request.name) {
        let detail = format!("a network called {:?} exists; remove it or choose another name", request.name);
        return Err(Refusal::new(RefusalCode::NameInUse, detail));
    }
    if let Some(mtu) = request.spec.mtu_bytes.filter(|mtu| !(1280..=65_520).contains(mtu)) {
        let detail =
            format!("MTU {mtu} is out of range; use 1280 (the least IPv6 allows, RFC 8200) to 65520");
        return Err(Refusal::new(RefusalCode::Invalid, detail));
    }
    let Some(mut node) = records.node.clone() else { return Err(super::not_found("node", "", "up")) };
    let id = NetworkId::from_raw(stamp.id(0));
    if let Some(tenant) = &request.spec.tenant {
        name::check("namespace", tenant.as_str())?;
    }
    let spec = request.spec.clone();
    let record = record(records, &mut node, &stamp.host, id.clone(), &request.name, spec, stamp.wall)?;
    let steps = alloc::vec![Step::EnsureNetwork(steps::network_plan(&record))];
    let subjects = alloc::vec![Subject::Network(id.clone())];
    let mut operation = stamp.operation(OperationKind::CreateNetwork, &request.name, subjects, steps);
    operation.on_undone = alloc::vec![Change::RemoveNetwork(id.clone())];
    let changes = alloc::vec![Change::Node(node), Change::Network(record)];
    Ok(Admission::Run { operation: Box::new(operation), changes, uses: Vec::new(), about: id })
}

/// `network rm`.
///
/// # Errors
/// `InUse` naming the users, and other [`Refusal`]s.
pub fn remove(records: &Records, wanted: &str, stamp: &Stamp) -> Result<Admission<()>, Refusal> {
    require_up(records)?;
    let network = find::network(records, wanted)?;
    if network.name == DEFAULT_NETWORK {
        return Err(Refusal::new(RefusalCode::InUse, "the default network belongs to the node and stays"));
    }
    let users: Vec<&str> = records
        .sandboxes
        .values()
        .filter(|sandbox| sandbox.attachments.iter().any(|attachment| attachment.network == network.id))
        .map(|sandbox| sandbox.name.as_str())
        .collect();
    if !users.is_empty() {
        let detail = format!("network {} is used by {}; remove them first", network.name, users.join(", "));
        return Err(Refusal::new(RefusalCode::InUse, detail));
    }
    if let Some(peer) = network.routed.first() {
        let peer = records.networks.get(peer).map_or(peer.as_str(), |peer| peer.name.as_str());
        let detail = format!(
            "network {0} is routed to {peer}; take that back first: `holdfast network route rm {0} {peer}`",
            network.name
        );
        return Err(Refusal::new(RefusalCode::InUse, detail));
    }
    let steps = alloc::vec![Step::RemoveNetwork(steps::network_plan(network))];
    let subjects = alloc::vec![Subject::Network(network.id.clone())];
    let mut operation = stamp.operation(OperationKind::RemoveNetwork, &network.name, subjects, steps);
    operation.resume = Resume::Finish;
    operation.on_done = alloc::vec![Change::RemoveNetwork(network.id.clone())];
    let mut changes = Vec::new();
    if mutant!(SubnetFreedFirst) {
        changes.append(&mut operation.on_done);
    }
    Ok(Admission::Run { operation: Box::new(operation), changes, uses: Vec::new(), about: () })
}

/// Networks that `network prune` takes: nobody is plugged in, nothing is routed, and they are not the node's own.
/// Each is removed by a request of its own, which looks again.
pub fn unused(records: &Records) -> Vec<NetworkId> {
    let used: BTreeSet<&NetworkId> = records
        .sandboxes
        .values()
        .flat_map(|sandbox| &sandbox.attachments)
        .map(|attachment| &attachment.network)
        .collect();
    let unused = records.networks.values().filter(|network| {
        network.name != DEFAULT_NETWORK && network.routed.is_empty() && !used.contains(&network.id)
    });
    unused.map(|network| network.id.clone()).collect()
}
