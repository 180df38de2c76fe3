//! Sandboxes: pods, and the one that a single container gets.

use super::{
    Admission, Stamp, container, find, network::DEFAULT_NETWORK, require_up, resolve, route::joined,
};
use crate::{
    alloc_address::{self, Wanted},
    error::{Refusal, RefusalCode},
    id::{NetworkId, SandboxId, Tenant},
    journal::{OperationKind, Resume, Subject},
    name,
    ops::request::{PodRequest, RemoveRequest},
    plan::Step,
    policy::note_classes,
    record::{AttachmentRecord, Change, NetworkRecord, NodeRecord, Records, SandboxKind, SandboxRecord},
    spec::{DnsSpec, PortSpec, SandboxSpec},
    steps,
};
use alloc::{boxed::Box, collections::BTreeMap, format, string::String, vec::Vec};

/// What a sandbox is made from.
pub(super) struct SandboxRequest<'a> {
    pub(super) kind: SandboxKind,
    pub(super) name: &'a str,
    pub(super) tenant: Option<&'a str>,
    pub(super) networks: &'a [String],
    pub(super) addresses: &'a BTreeMap<String, Wanted>,
    pub(super) ports: &'a [PortSpec],
    pub(super) hostname: Option<&'a str>,
    pub(super) labels: BTreeMap<String, String>,
    pub(super) aliases: &'a [String],
    pub(super) dns: &'a DnsSpec,
}

/// A new sandbox's record, and the changes of what it takes from: node counters and networks' groups.
pub(super) struct NewSandbox {
    pub(super) record: SandboxRecord,
    pub(super) changes: Vec<Change>,
    pub(super) uses: Vec<Subject>,
    /// The records with the changes, where its steps depend on them.
    pub(super) after: Option<Records>,
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
    resolve::names(request.aliases, request.dns)?;
    let Some(mut node) = records.node.clone() else { return Err(super::not_found("node", "", "up")) };
    let mut touched = Touched::default();
    let default = [String::from(DEFAULT_NETWORK)];
    let names = if request.networks.is_empty() { &default } else { request.networks };
    let mut declared = declared(records, names, request.addresses)?;
    let mut attachments: Vec<AttachmentRecord> = Vec::new();
    for wanted in names {
        let network = find::network(records, wanted)?;
        if attachments.iter().any(|own| own.network == network.id) {
            let detail = format!("network {} is named twice; name each network once", network.name);
            return Err(Refusal::new(RefusalCode::Invalid, detail));
        }
        let wanted = declared.remove(&network.id).unwrap_or_default();
        let made = attachment(records, &mut node, &mut touched, &attachments, network, &tenant, &wanted)?;
        attachments.push(made);
    }
    mark_primary(records, &mut attachments);
    let ports = alloc_address::ports(records, &stamp.host, request.ports, &mut stamp.numbers())?;
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
            aliases: request.aliases.to_vec(),
            dns: request.dns.clone(),
        },
        attachments,
        ports,
        last_cure: None,
        created: stamp.wall,
    };
    let uses = touched.uses();
    let mut changes = alloc::vec![Change::Node(node), Change::Sandbox(record.clone())];
    changes.extend(touched.changes());
    // What it adds may depend on what is new with it: the group of a routed network, a class.
    let plain = records.policies.is_empty() && records.networks.values().all(|it| it.routed.is_empty());
    let after = (!plain).then(|| {
        let mut after = records.clone();
        changes.iter().cloned().for_each(|change| after.apply(change));
        let noted = note_classes(&after, false);
        noted.clone().into_iter().for_each(|change| after.apply(change));
        changes.extend(noted);
        after
    });
    Ok(NewSandbox { record, changes, uses, after })
}

/// A class that is new with a workload has its verdicts before an address is in it.
pub(super) fn verdicts_first(records: &Records) -> Vec<Step> {
    let verdicts = crate::policy::elements(records);
    let step = (!verdicts.is_empty()).then_some(Step::EnsureElements(verdicts));
    step.into_iter().collect()
}

/// Networks that an admission takes from, as they will be.
#[derive(Default)]
pub(super) struct Touched(BTreeMap<NetworkId, NetworkRecord>);

impl Touched {
    pub(super) fn changes(self) -> impl Iterator<Item = Change> {
        self.0.into_values().map(Change::Network)
    }

    pub(super) fn uses(&self) -> Vec<Subject> {
        self.0.keys().cloned().map(Subject::Network).collect()
    }

    fn get_mut(&mut self, network: &NetworkRecord) -> &mut NetworkRecord {
        self.0.entry(network.id.clone()).or_insert_with(|| network.clone())
    }

    /// The isolation group of a tenant on a network; numbers are never reused. Networks that are routed to one
    /// another know the same tenants, so that a workload's elements can name the group of its peers before there
    /// is any.
    pub(super) fn group(
        &mut self,
        records: &Records,
        node: &mut NodeRecord,
        network: &NetworkRecord,
        tenant: &Tenant,
    ) -> u32 {
        for peer in joined(records, [network]) {
            self.own_group(node, peer, tenant);
        }
        self.own_group(node, network, tenant)
    }

    pub(super) fn own_group(
        &mut self,
        node: &mut NodeRecord,
        network: &NetworkRecord,
        tenant: &Tenant,
    ) -> u32 {
        let network = self.get_mut(network);
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

    /// Makes the networks know that they are routed to one another, or are not.
    pub(super) fn set_routed(&mut self, one: &NetworkRecord, other: &NetworkRecord, routed: bool) {
        for (of, to) in [(one, other), (other, one)] {
            let set = &mut self.get_mut(of).routed;
            if routed {
                set.insert(to.id.clone());
            } else {
                set.remove(&to.id);
            }
        }
    }
}

/// Declared addresses by network, each of one that is asked for.
fn declared(
    records: &Records,
    names: &[String],
    wanted: &BTreeMap<String, Wanted>,
) -> Result<BTreeMap<NetworkId, Wanted>, Refusal> {
    let mut declared = BTreeMap::new();
    for (name, wanted) in wanted {
        let network = find::network(records, name)?;
        let asked =
            names.iter().any(|asked| find::network(records, asked).is_ok_and(|it| it.id == network.id));
        if !asked {
            let detail =
                format!("an address on network {} is declared, and not the network itself", network.name);
            return Err(Refusal::new(RefusalCode::Invalid, detail));
        }
        if declared.insert(network.id.clone(), *wanted).is_some() {
            let detail = format!("addresses on network {} are declared twice", network.name);
            return Err(Refusal::new(RefusalCode::Invalid, detail));
        }
    }
    Ok(declared)
}

/// One more interface beside those a sandbox has. It is not the primary one yet.
pub(super) fn attachment(
    records: &Records,
    node: &mut NodeRecord,
    touched: &mut Touched,
    beside: &[AttachmentRecord],
    network: &NetworkRecord,
    tenant: &Tenant,
    wanted: &Wanted,
) -> Result<AttachmentRecord, Refusal> {
    if let Some(owner) = network.spec.tenant.as_ref().filter(|owner| *owner != tenant) {
        let detail = format!(
            "network {} belongs to namespace {owner}, and this is of namespace {tenant}; use another network",
            network.name
        );
        return Err(Refusal::new(RefusalCode::Invalid, detail));
    }
    if let Some(mac) = wanted.mac {
        alloc_address::check_mac(records, mac)?;
        if beside.iter().any(|own| own.mac == mac) {
            let detail = "one MAC address is declared for two interfaces; declare one each";
            return Err(Refusal::new(RefusalCode::Invalid, detail));
        }
    }
    let (ipv4, ipv6) = alloc_address::addresses(records, network, wanted)?;
    let group = touched.group(records, node, network, tenant);
    let slot = alloc_address::slot(node);
    let names = |number: &u32| beside.iter().all(|own| own.link_name != format!("eth{number}"));
    let number = (0..).find(names).unwrap_or(u32::MAX);
    Ok(AttachmentRecord {
        network: network.id.clone(),
        slot,
        group,
        ipv4,
        ipv6,
        mac: wanted.mac.unwrap_or_else(|| alloc_address::mac(slot)),
        link_name: format!("eth{number}"),
        // 1 is lo: interface indexes count from 1 in each network namespace.
        ifindex: number.saturating_add(2),
        primary: false,
    })
}

/// Marks the primary interface where none is: the first on a network with a way out, or else the first.
pub(super) fn mark_primary(records: &Records, attachments: &mut [AttachmentRecord]) {
    if attachments.iter().any(|own| own.primary) {
        return;
    }
    let leads_out = |own: &AttachmentRecord| {
        records.networks.get(&own.network).is_some_and(|network| !network.spec.internal)
    };
    let place = attachments.iter().position(leads_out).unwrap_or(0);
    if let Some(own) = attachments.get_mut(place) {
        own.primary = true;
    }
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
        addresses: &request.addresses,
        ports: &request.ports,
        hostname: request.hostname.as_deref(),
        labels: request.labels.clone(),
        aliases: &request.aliases,
        dns: &request.dns,
    };
    let NewSandbox { record, changes, uses, after } = new_sandbox(records, &sandbox, stamp)?;
    let id = record.id.clone();
    let after = after.as_ref().unwrap_or(records);
    let mut steps = verdicts_first(after);
    steps.extend(steps::sandbox_up(after, &record, None));
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
