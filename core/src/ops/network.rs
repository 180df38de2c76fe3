//! Networks.

use super::{Admission, Stamp, find, require_up};
use crate::{
    alloc_address,
    error::{Refusal, RefusalCode},
    id::NetworkId,
    journal::{OperationKind, Resume, Subject},
    name,
    ops::request::NetworkRequest,
    plan::Step,
    record::{Change, NetworkRecord, NodeRecord, Records},
    spec::NetworkSpec,
    steps,
    time::Wall,
};
use alloc::{boxed::Box, collections::BTreeMap, format, string::String, vec::Vec};
use core::net::Ipv4Addr;

/// The network of a workload that names none.
pub const DEFAULT_NETWORK: &str = "default";

/// The most networks a node makes in its life: each takes one /64 of its /48.
const INDEX_MAX: u16 = u16::MAX - 1;

/// The default network's record; the node's counters advance.
///
/// # Errors
/// `Exhausted` when no subnet is free.
pub fn default_record(
    records: &Records,
    node: &mut NodeRecord,
    id: NetworkId,
    wall: Wall,
) -> Result<NetworkRecord, Refusal> {
    record(records, node, id, DEFAULT_NETWORK, NetworkSpec::default(), wall)
}

fn record(
    records: &Records,
    node: &mut NodeRecord,
    id: NetworkId,
    name: &str,
    spec: NetworkSpec,
    wall: Wall,
) -> Result<NetworkRecord, Refusal> {
    let (subnet4, prefix4) = alloc_address::subnet4(records, spec.subnet4)?;
    if node.network_next > INDEX_MAX {
        return Err(Refusal::new(
            RefusalCode::Exhausted,
            "this node has made 65,535 networks; that is all its IPv6 prefix has",
        ));
    }
    let index = node.network_next;
    node.network_next += 1;
    let subnet6 = alloc_address::subnet6(node.ula_prefix, index);
    Ok(NetworkRecord {
        id,
        name: String::from(name),
        spec,
        index,
        subnet4,
        prefix4,
        gateway4: Ipv4Addr::from(u32::from(subnet4) + 1),
        subnet6,
        gateway6: alloc_address::address6(subnet6, 1),
        groups: BTreeMap::new(),
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
    let record = record(records, &mut node, id.clone(), &request.name, request.spec.clone(), stamp.wall)?;
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
