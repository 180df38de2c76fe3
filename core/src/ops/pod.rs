//! Sandboxes: pods, and the one that a single container gets.

use super::{Admission, Stamp, container, find, network::DEFAULT_NETWORK, require_up};
use crate::{
    alloc_address,
    error::{Refusal, RefusalCode},
    id::{NetworkId, SandboxId, Tenant},
    journal::{OperationKind, Resume, Subject},
    name,
    ops::request::{PodRequest, RemoveRequest},
    plan::Step,
    record::{AttachmentRecord, Change, NetworkRecord, NodeRecord, Records, SandboxKind, SandboxRecord},
    spec::{PortSpec, SandboxSpec},
    steps,
};
use alloc::{
    boxed::Box,
    collections::{BTreeMap, BTreeSet},
    format,
    string::String,
    vec::Vec,
};

/// What a sandbox is made from.
pub(super) struct SandboxRequest<'a> {
    pub(super) kind: SandboxKind,
    pub(super) name: &'a str,
    pub(super) tenant: Option<&'a str>,
    pub(super) networks: &'a [String],
    pub(super) ports: &'a [PortSpec],
    pub(super) hostname: Option<&'a str>,
    pub(super) labels: BTreeMap<String, String>,
}

/// A new sandbox's record, and the changes of what it takes from: node counters and networks' groups.
pub(super) struct NewSandbox {
    pub(super) record: SandboxRecord,
    pub(super) changes: Vec<Change>,
    pub(super) uses: Vec<Subject>,
}

pub(super) fn new_sandbox(
    records: &Records,
    request: &SandboxRequest<'_>,
    stamp: &Stamp,
) -> Result<NewSandbox, Refusal> {
    let tenant = request.tenant.unwrap_or(Tenant::DEFAULT);
    name::check("namespace", tenant)?;
    let tenant = Tenant::from_raw(tenant);
    let hostname = request.hostname.unwrap_or(request.name);
    name::check("host", hostname)?;
    let Some(mut node) = records.node.clone() else { return Err(super::not_found("node", "", "up")) };
    let mut networks: BTreeMap<NetworkId, NetworkRecord> = BTreeMap::new();
    let default = [String::from(DEFAULT_NETWORK)];
    let names = if request.networks.is_empty() { &default } else { request.networks };
    let mut attachments = Vec::new();
    for (number, wanted) in names.iter().enumerate() {
        let network = find::network(records, wanted)?;
        if networks.contains_key(&network.id) {
            let detail = format!("network {} is named twice; name each network once", network.name);
            return Err(Refusal::new(RefusalCode::Invalid, detail));
        }
        let mut network = network.clone();
        let group = group(&mut node, &mut network, &tenant);
        let (ipv4, ipv6) = alloc_address::addresses(records, &network, &BTreeSet::new())?;
        let slot = alloc_address::slot(&mut node);
        attachments.push(AttachmentRecord {
            network: network.id.clone(),
            slot,
            group,
            ipv4,
            ipv6,
            mac: alloc_address::mac(slot),
            link_name: format!("eth{number}"),
            // 1 is lo: interface indexes count from 1 in each network namespace.
            ifindex: 2 + u32::try_from(number).unwrap_or(u32::MAX - 2),
        });
        networks.insert(network.id.clone(), network);
    }
    let ports = alloc_address::ports(records, request.ports, &mut stamp.numbers())?;
    let record = SandboxRecord {
        id: SandboxId::from_raw(stamp.id(0)),
        name: String::from(request.name),
        kind: request.kind,
        tenant,
        spec: SandboxSpec {
            networks: attachments.iter().map(|attachment| attachment.network.clone()).collect(),
            ports: ports.iter().map(|port| port.spec).collect(),
            hostname: String::from(hostname),
            labels: request.labels.clone(),
        },
        attachments,
        ports,
        last_cure: None,
        created: stamp.wall,
    };
    let uses = networks.keys().cloned().map(Subject::Network).collect();
    let mut changes = alloc::vec![Change::Node(node), Change::Sandbox(record.clone())];
    changes.extend(networks.into_values().map(Change::Network));
    Ok(NewSandbox { record, changes, uses })
}

/// The isolation group of a tenant on a network; numbers are never reused.
fn group(node: &mut NodeRecord, network: &mut NetworkRecord, tenant: &Tenant) -> u32 {
    let known = if mutant!(GroupOfAnotherTenant) {
        network.groups.values().next()
    } else {
        network.groups.get(tenant)
    };
    if let Some(group) = known {
        return *group;
    }
    let group = node.group_next;
    node.group_next = node.group_next.saturating_add(1);
    network.groups.insert(tenant.clone(), group);
    group
}

/// Refuses a name that a container or a pod has.
pub(super) fn require_free_name(records: &Records, what: &str, name: &str) -> Result<(), Refusal> {
    let pod = records.sandboxes.values().any(|sandbox| sandbox.name == name);
    let container = records.containers.values().any(|container| container.name == name);
    if pod || container {
        let owner = if container { "container" } else { "pod" };
        let detail = format!("{what} name {name:?} is in use by a {owner}; remove it or choose another name");
        return Err(Refusal::new(RefusalCode::NameInUse, detail));
    }
    Ok(())
}

/// `pod create`.
///
/// # Errors
/// A [`Refusal`] naming what is wrong.
pub fn create(
    records: &Records,
    request: &PodRequest,
    stamp: &Stamp,
) -> Result<Admission<SandboxId>, Refusal> {
    require_up(records)?;
    name::check("pod", &request.name)?;
    require_free_name(records, "pod", &request.name)?;
    let sandbox = SandboxRequest {
        kind: SandboxKind::Pod,
        name: &request.name,
        tenant: request.tenant.as_deref(),
        networks: &request.networks,
        ports: &request.ports,
        hostname: request.hostname.as_deref(),
        labels: request.labels.clone(),
    };
    let NewSandbox { record, changes, uses } = new_sandbox(records, &sandbox, stamp)?;
    let id = record.id.clone();
    let steps = steps::sandbox_up(records, &record, None);
    let subjects = alloc::vec![Subject::Sandbox(id.clone())];
    let mut operation = stamp.operation(OperationKind::CreatePod, &request.name, subjects, steps);
    operation.on_undone = alloc::vec![Change::RemoveSandbox(id.clone())];
    Ok(Admission::Run { operation: Box::new(operation), changes, uses, about: id })
}

/// `pod rm`: members first, then the namespaces, which only their owner destroys.
///
/// # Errors
/// `WrongState` when members run and `force` is not given, and other [`Refusal`]s.
pub fn remove(
    records: &Records,
    wanted: &str,
    request: &RemoveRequest,
    stamp: &Stamp,
) -> Result<Admission<()>, Refusal> {
    require_up(records)?;
    let pod = find::pod(records, wanted)?;
    let members: Vec<_> = records.members(&pod.id).collect();
    let running: Vec<&str> = members
        .iter()
        .filter(|member| member.running().is_some())
        .map(|member| member.name.as_str())
        .collect();
    if !running.is_empty() && !request.force {
        let detail = format!(
            "pod {} has running members ({}); stop them or use --force",
            pod.name,
            running.join(", ")
        );
        return Err(Refusal::new(RefusalCode::WrongState, detail));
    }
    let mut all = Vec::new();
    let mut begin = Vec::new();
    let mut on_done = Vec::new();
    let mut subjects = alloc::vec![Subject::Sandbox(pod.id.clone())];
    for member in members {
        all.extend(container::removal_steps(member));
        begin.push(Change::Container(container::stopped(member)));
        on_done.push(Change::RemoveContainer(member.id.clone()));
        subjects.push(Subject::Container(member.id.clone()));
    }
    all.extend(steps::sandbox_down(records, pod));
    on_done.push(Change::RemoveSandbox(pod.id.clone()));
    let mut operation = stamp.operation(OperationKind::RemovePod, &pod.name, subjects, all);
    operation.resume = Resume::Finish;
    operation.on_done = on_done;
    Ok(Admission::Run { operation: Box::new(operation), changes: begin, uses: Vec::new(), about: () })
}

/// Whether a step list destroys namespaces; asked by tests and invariants.
pub fn destroys_sandbox(steps: &[Step], id: &SandboxId) -> bool {
    steps.iter().any(|step| matches!(step, Step::RemoveSandbox(removed) if removed == id))
}
