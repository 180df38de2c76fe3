//! Named invariants over the node. The ones in [`EVERY_CALL`] hold after every call and every fault, whatever
//! happened before; [`converged`] holds once faults have stopped and a bring-up has nothing left to do.

mod converged;
mod known;

pub use converged::{agreement, converged, reachable};

use crate::model::{Content, Node, Ns, Role};
use holdfast_core::{
    id::{ContainerId, SandboxId},
    invariant::check_records,
    record::{Change, Desired, NamespaceId, Records},
};
use known::Known;
use serde::{Deserialize, Serialize};
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    net::IpAddr,
};

/// An invariant that does not hold.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Violation {
    /// Its name.
    pub invariant: String,
    /// What breaks it.
    pub detail: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is violated: {}", self.invariant, self.detail)
    }
}

/// An invariant: the error says what breaks it.
pub type Invariant = fn(&Node, &Known) -> Result<(), String>;

/// The invariants of every instant, by name.
pub const EVERY_CALL: &[(&str, Invariant)] = &[
    ("one plug per address", one_plug),
    ("one process per container", one_process),
    ("no orphans", no_orphans),
    ("isolation", isolation),
    ("mild cures kill nothing", mild_cures),
];

/// What must never fall, and what need not be worked out again.
#[derive(Clone, Debug, Default)]
pub struct History {
    known: Known,
    /// The records that `known` and the checks of records were made from.
    revision: Option<(u32, u64)>,
    node: [u64; 5],
    router: Option<NamespaceId>,
    incarnations: BTreeMap<ContainerId, u32>,
}

impl History {
    /// A start that was not synced is lost with all it did.
    pub(crate) fn power_lost(&mut self) {
        self.incarnations.clear();
    }
}

/// Looks at everything that holds at every instant.
///
/// # Errors
/// The first invariant that does not hold.
pub fn after_call(node: &mut Node, history: &mut History) -> Result<(), Violation> {
    let named = |name: &str, result: Result<(), String>| {
        result.map_err(|detail| Violation { invariant: name.to_owned(), detail })
    };
    let records = node.disk.records();
    // How far an operation has come is no matter of any invariant.
    let revision = Some((node.boots(), node.disk.structure));
    if history.revision != revision {
        named("the records hold together", hold_together(records))?;
        named("generations never fall", generations(records, history))?;
        history.known = Known::of(records);
        history.revision = revision;
    }
    for (name, invariant) in EVERY_CALL {
        named(name, invariant(node, &history.known))?;
    }
    node.ended.clear();
    Ok(())
}

/// An address is plugged into a router once.
fn one_plug(node: &Node, _: &Known) -> Result<(), String> {
    let mut plugged = BTreeMap::new();
    for ((router, slot), veth) in &node.veths {
        for address in [IpAddr::V4(veth.plan.ipv4), IpAddr::V6(veth.plan.ipv6)] {
            if let Some(other) = plugged.insert((*router, address), *slot) {
                return Err(format!("{address} is plugged at slot {} and at slot {}", other.0, slot.0));
            }
        }
    }
    Ok(())
}

/// What core itself demands of the records.
fn hold_together(records: &Records) -> Result<(), String> {
    match check_records(records).into_iter().next() {
        Some(broken) => Err(format!("{}: {}", broken.invariant, broken.detail)),
        None => Ok(()),
    }
}

/// A container has one living first process at most.
fn one_process(node: &Node, _: &Known) -> Result<(), String> {
    let mut living = BTreeSet::new();
    for process in node.processes.iter() {
        if let Role::Init { container, .. } = &process.role
            && !living.insert(container)
        {
            return Err(format!("container {container} runs twice"));
        }
    }
    Ok(())
}

/// Nothing is in the kernel or on the disk without a record or an open operation that names it.
fn no_orphans(node: &Node, known: &Known) -> Result<(), String> {
    for (ns, namespace) in node.namespaces.iter() {
        match &namespace.content {
            Content::Router(router) => {
                // A router that nothing leads to but old keepers is on its way out; the current one counts.
                if node.control().is_some_and(|control| control.member.contains(&ns)) {
                    no_orphans_in(router, known)?;
                }
            }
            Content::Sandbox(id) if !known.sandboxes.contains(id) => {
                return Err(format!("the namespaces of sandbox {id} live and no record knows it"));
            }
            Content::Sandbox(_) | Content::User | Content::Mount(_) => {}
        }
    }
    for ((_, slot), veth) in &node.veths {
        if !known.slots.contains(slot) {
            return Err(format!(
                "slot {} of {} is plugged and no record knows it",
                slot.0, veth.plan.sandbox
            ));
        }
    }
    for port in node.bound_ports() {
        if !known.ports.contains(&(port.spec.host_address, port.spec.host_port, port.spec.protocol)) {
            return Err(format!("port {} is bound and no record knows it", port.spec));
        }
    }
    for process in node.processes.iter() {
        if let Role::Init { container, .. } | Role::Monitor { container, .. } = &process.role
            && !known.containers.contains(container)
        {
            return Err(format!(
                "{} of container {container} lives and no record knows it",
                process.reference
            ));
        }
    }
    let files = node.disk.containers.keys().chain(node.runtime.keys());
    match files.into_iter().find(|id| !known.containers.contains(*id)) {
        Some(id) => Err(format!("container {id} has files and no record knows it")),
        None => Ok(()),
    }
}

fn no_orphans_in(router: &crate::model::Router, known: &Known) -> Result<(), String> {
    if let Some(index) = router.bridges.keys().find(|index| !known.bridges.contains(*index)) {
        return Err(format!("bridge hfbr{index} exists and no record knows it"));
    }
    match router.elements.iter().find(|element| !known.elements.contains(*element)) {
        Some(element) => Err(format!("element {element:?} exists and no record knows it")),
        None => Ok(()),
    }
}

/// Who reaches whom is of one isolation group, by the records.
fn isolation(node: &Node, known: &Known) -> Result<(), String> {
    let stacks: Vec<(Ns, &SandboxId)> = sandboxes(node).collect();
    for (to, target) in &stacks {
        let addresses: BTreeSet<IpAddr> = node
            .links(*to)
            .flat_map(|(_, _, veth)| [IpAddr::V4(veth.plan.ipv4), IpAddr::V6(veth.plan.ipv6)])
            .collect();
        for (from, source) in stacks.iter().filter(|(from, source)| from != to && source != target) {
            for address in &addresses {
                let group = known.group_of.get(address);
                let may = group.is_some_and(|group| known.groups.contains(&((*source).clone(), *group)));
                if !may && node.can_reach(*from, *to, *address) {
                    return Err(format!("sandbox {source} reaches {address} of sandbox {target}"));
                }
            }
        }
    }
    Ok(())
}

/// The network stacks of sandboxes.
pub(crate) fn sandboxes(node: &Node) -> impl Iterator<Item = (Ns, &SandboxId)> {
    node.namespaces.iter().filter_map(|(ns, namespace)| match &namespace.content {
        Content::Sandbox(id) => Some((ns, id)),
        _ => None,
    })
}

/// The node ends a workload's process only where somebody asked for it: an open operation on the container or
/// its sandbox, a record that says it is not to run, or no record at all.
fn mild_cures(node: &Node, known: &Known) -> Result<(), String> {
    let records = node.disk.records();
    let down = records.node.as_ref().is_some_and(|node| node.down);
    for ended in &node.ended {
        let unwanted =
            records.containers.get(&ended.container).is_none_or(|record| record.desired == Desired::Stopped);
        if !ended.whole {
            return Err(format!("a process of container {} was ended beside it", ended.container));
        }
        if !(down || unwanted || known.worked_on.contains(&ended.container)) {
            return Err(format!("container {} was ended and nobody asked for it", ended.container));
        }
    }
    Ok(())
}

fn generations(records: &Records, history: &mut History) -> Result<(), String> {
    if let Some(node) = &records.node {
        let now = [
            node.router_generation,
            node.daemon_generation,
            u64::from(node.slot_next),
            u64::from(node.group_next),
            u64::from(node.network_next),
        ];
        if now.iter().zip(&history.node).any(|(now, before)| now < before) {
            return Err(format!("the node's were {:?} and are {now:?}", history.node));
        }
        let router = node.namespaces.map(|namespaces| namespaces.net);
        if history.router.is_some() && history.router != router && now[0] == history.node[0] {
            return Err(format!("another router has generation {} of the one before it", now[0]));
        }
        history.node = now;
        history.router = router;
    }
    for (id, record) in &records.containers {
        let before = history.incarnations.insert(id.clone(), record.incarnation).unwrap_or(0);
        if record.incarnation < before {
            return Err(format!("container {id} was at start {before} and is at {}", record.incarnation));
        }
    }
    Ok(())
}

/// The records as they will be when every open operation has completed; `None` when none adds any.
pub(crate) fn completed(records: &Records) -> Option<Records> {
    let changes = records.operations.values().flat_map(|operation| &operation.on_done);
    let mut additions = changes
        .filter(|change| {
            matches!(
                change,
                Change::Network(_) | Change::Sandbox(_) | Change::Container(_) | Change::Image(_)
            )
        })
        .peekable();
    additions.peek()?;
    let mut completed = records.clone();
    additions.cloned().for_each(|change| completed.apply(change));
    Some(completed)
}
