//! What the records and the open operations account for.

use holdfast_core::{
    id::{ContainerId, SandboxId, Slot},
    journal::Subject,
    plan::Step,
    record::{Change, PortRecord, Records},
    ruleset::{Element, sandbox_elements},
    spec::Protocol,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, Ipv4Addr},
};

/// Everything that may exist.
#[derive(Clone, Debug, Default)]
pub struct Known {
    /// Bridges by index.
    pub bridges: BTreeSet<u16>,
    /// Sandboxes.
    pub sandboxes: BTreeSet<SandboxId>,
    /// Attachments.
    pub slots: BTreeSet<Slot>,
    /// Containers.
    pub containers: BTreeSet<ContainerId>,
    /// Elements of the rules.
    pub elements: BTreeSet<Element>,
    /// Ports of the host.
    pub ports: BTreeSet<(Ipv4Addr, u16, Protocol)>,
    /// The isolation group of each address.
    pub group_of: BTreeMap<IpAddr, u32>,
    /// Which sandbox is in which groups.
    pub groups: BTreeSet<(SandboxId, u32)>,
    /// Containers that open operations may end.
    pub worked_on: BTreeSet<ContainerId>,
}

impl Known {
    /// Reads it from the records.
    pub fn of(records: &Records) -> Self {
        let mut known = Self::default();
        if let Some(completed) = super::completed(records) {
            known.add_records(&completed);
        }
        // What an operation replaces or removes is there until it has.
        known.add_records(records);
        for operation in records.operations.values() {
            operation.steps.iter().for_each(|step| known.add_step(step));
            for change in operation.on_done.iter().chain(&operation.on_undone) {
                known.add_removal(change);
            }
            for subject in &operation.subjects {
                known.add_subject(subject);
            }
        }
        known
    }

    fn add_records(&mut self, records: &Records) {
        self.bridges.extend(records.networks.values().map(|network| network.index));
        self.elements.extend(holdfast_core::policy::elements(records));
        self.containers.extend(records.containers.keys().cloned());
        for sandbox in records.sandboxes.values() {
            self.sandboxes.insert(sandbox.id.clone());
            self.elements.extend(sandbox_elements(records, sandbox));
            sandbox.ports.iter().for_each(|port| self.add_port(port));
            for attachment in &sandbox.attachments {
                self.slots.insert(attachment.slot);
                self.groups.insert((sandbox.id.clone(), attachment.group));
                let network = records.networks.get(&attachment.network);
                let peers = network.into_iter().flat_map(|network| &network.routed);
                for peer in peers.filter_map(|peer| records.networks.get(peer)) {
                    let group = peer.groups.get(&sandbox.tenant);
                    self.groups.extend(group.map(|group| (sandbox.id.clone(), *group)));
                }
                self.group_of.insert(IpAddr::V4(attachment.ipv4), attachment.group);
                self.group_of.insert(IpAddr::V6(attachment.ipv6), attachment.group);
            }
        }
    }

    fn add_port(&mut self, port: &PortRecord) {
        self.ports.insert((port.spec.host_address, port.spec.host_port, port.spec.protocol));
    }

    fn add_step(&mut self, step: &Step) {
        match step {
            Step::EnsureRuleset(ruleset) => self.elements.extend(&ruleset.elements),
            Step::AddElements(elements) | Step::EnsureElements(elements) | Step::RemoveElements(elements) => {
                self.elements.extend(elements)
            }
            Step::EnsureNetwork(plan) | Step::RemoveNetwork(plan) => drop(self.bridges.insert(plan.index)),
            Step::EnsureSandbox(plan) => drop(self.sandboxes.insert(plan.id.clone())),
            Step::RemoveSandbox(id) => drop(self.sandboxes.insert(id.clone())),
            Step::Attach(plan) => drop(self.slots.insert(plan.slot)),
            Step::Detach(slot) => drop(self.slots.insert(*slot)),
            Step::Publish(port) | Step::Unpublish(port) => self.add_port(port),
            Step::StartContainer(plan) => {
                self.containers.insert(plan.id.clone());
                // Its undo ends it.
                self.worked_on.insert(plan.id.clone());
            }
            Step::StopContainer { id, .. } => {
                self.containers.insert(id.clone());
                self.worked_on.insert(id.clone());
            }
            Step::CleanContainer(id, _) | Step::ClaimFiles(id) | Step::RemoveFiles(id) => {
                self.containers.insert(id.clone());
            }
            Step::CreateNamespaces
            | Step::AdoptNamespaces(_)
            | Step::EnterUserNamespace(_)
            | Step::StopControl(_)
            | Step::StartControl
            | Step::StopPin(_)
            | Step::StopUplink(_)
            | Step::StartUplink => {}
        }
    }

    fn add_removal(&mut self, change: &Change) {
        match change {
            Change::RemoveSandbox(id) => drop(self.sandboxes.insert(id.clone())),
            Change::RemoveContainer(id) => drop(self.containers.insert(id.clone())),
            _ => {}
        }
    }

    fn add_subject(&mut self, subject: &Subject) {
        match subject {
            Subject::Sandbox(id) => drop(self.sandboxes.insert(id.clone())),
            Subject::Container(id) => drop(self.containers.insert(id.clone())),
            Subject::Network(_) | Subject::Policy | Subject::Node => {}
        }
    }
}
