//! What holds once faults have stopped and a bring-up has nothing left to do.

use super::{Violation, sandboxes};
use crate::model::{Content, Node, Ns, Role};
use holdfast_core::{
    bring_up::wants_plug,
    driver::may_reach,
    id::SandboxId,
    ops::snapshot,
    plan::ContainerPlan,
    record::{ContainerRecord, Desired, Records, RunState},
    ruleset::Ruleset,
    steps,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

/// The node is what the records say, whole and connected.
///
/// # Errors
/// The first thing that is not so.
pub fn converged(node: &Node) -> Result<(), Violation> {
    let named = |name: &str, result: Result<(), String>| {
        result.map_err(|detail| Violation { invariant: name.to_owned(), detail })
    };
    named("processes of the node live", processes(node))?;
    named("router and records agree", agreement(node))?;
    named("containers and records agree", containers(node))?;
    named("the control serves what is on record", served(node))?;
    named("what may talk does", reachable(node))
}

fn processes(node: &Node) -> Result<(), String> {
    let records = node.disk.records();
    if let Some(operation) = records.operations.values().next() {
        return Err(format!("operation {} {} is still open", operation.kind, operation.name));
    }
    let record = records.node.as_ref().ok_or("there is no node record")?;
    let pin = record.pin.as_ref().ok_or("no pin is recorded")?;
    if node.processes.get(pin).is_none() {
        return Err("the recorded pin is dead".to_owned());
    }
    if node.visible(node.inside_of(pin)) != record.namespaces {
        return Err("the pin is in other namespaces than recorded".to_owned());
    }
    for (what, recorded, living) in [
        ("control", &record.control, node.control().map(|process| &process.reference)),
        ("uplink helper", &record.uplink, node.uplink().map(|process| &process.reference)),
    ] {
        if recorded.as_ref() != living {
            return Err(format!("the {what} is recorded as {recorded:?} and is {living:?}"));
        }
    }
    let count = |is: fn(&Role) -> bool| node.processes.find(is).len();
    let all = [
        ("pins", count(|role| matches!(role, Role::Pin))),
        ("controls", count(|role| matches!(role, Role::Control { .. }))),
        ("uplink helpers", count(|role| matches!(role, Role::Uplink { .. }))),
    ];
    all.iter()
        .find(|(_, count)| *count != 1)
        .map_or(Ok(()), |(what, count)| Err(format!("{count} {what} live")))
}

/// The router the recorded pin holds.
fn router(node: &Node) -> Result<(Ns, Ns), String> {
    let record = node.disk.records().node.as_ref().ok_or("there is no node record")?;
    let inside = record.pin.as_ref().map(|pin| node.inside_of(pin)).unwrap_or_default();
    inside.net.zip(inside.mount).ok_or_else(|| "the pin leads to no router".to_owned())
}

/// Bridges, links, binds, rules and ports are exactly those of the records.
///
/// # Errors
/// What differs.
pub fn agreement(node: &Node) -> Result<(), String> {
    let records = node.disk.records();
    let (net, mount) = router(node)?;
    let stack = node.namespaces.router(net).ok_or("the router is gone")?;
    let mounts = node.namespaces.mounts(mount).ok_or("the mount namespace is gone")?;
    same("base chains", &true, &stack.base)?;
    same("elements", &Ruleset::desired(records).elements, &stack.elements)?;
    let bridges: BTreeMap<_, _> =
        records.networks.values().map(|network| (network.index, steps::network_plan(network))).collect();
    let found = stack.bridges.iter().map(|(index, bridge)| (*index, bridge.plan.clone())).collect();
    same("bridges", &bridges, &found)?;
    let (mut links, mut binds, mut ports) = (BTreeMap::new(), BTreeSet::new(), BTreeSet::new());
    for sandbox in plugged(records) {
        let sandbox = &records.sandboxes[&sandbox];
        binds.insert(sandbox.id.clone());
        let plans = steps::attachment_plans(records, sandbox);
        links.extend(plans.into_iter().map(|plan| (plan.slot, plan)));
        ports.extend(sandbox.ports.iter().map(|port| (port.spec.to_string(), port.router_port)));
    }
    same("binds", &binds, &mounts.sandboxes.keys().cloned().collect())?;
    let found = node.veths.iter().map(|((_, slot), veth)| (*slot, veth.plan.clone())).collect();
    same("links", &links, &found)?;
    if let Some(((_, slot), _)) = node
        .veths
        .iter()
        .find(|((of, _), veth)| *of != net || mounts.sandboxes.get(&veth.plan.sandbox) != Some(&veth.inside))
    {
        return Err(format!("slot {} leads to another router or another sandbox", slot.0));
    }
    let found = node.bound_ports().iter().map(|port| (port.spec.to_string(), port.router_port)).collect();
    same("ports", &ports, &found)
}

fn same<T: PartialEq + std::fmt::Debug>(what: &str, recorded: &T, found: &T) -> Result<(), String> {
    if recorded == found { Ok(()) } else { Err(format!("{what}: recorded {recorded:?}, found {found:?}")) }
}

/// Sandboxes that are to be plugged.
fn plugged(records: &Records) -> BTreeSet<SandboxId> {
    let members = records.members_by_sandbox();
    let wanted = records.sandboxes.values().filter(|sandbox| wants_plug(sandbox, members.of(&sandbox.id)));
    wanted.map(|sandbox| sandbox.id.clone()).collect()
}

fn containers(node: &Node) -> Result<(), String> {
    let records = node.disk.records();
    let (_, mount) = router(node)?;
    let mounts = node.namespaces.mounts(mount).ok_or("the mount namespace is gone")?;
    for record in records.containers.values() {
        let living = node.init_of(&record.id);
        let name = &record.name;
        match (&record.state, living) {
            (RunState::Running { init, .. }, Some((found, start))) => {
                if init != found || start != record.incarnation {
                    return Err(format!("{name} is recorded as {init} and is {found} (start {start})"));
                }
                if record.desired == Desired::Stopped {
                    return Err(format!("{name} runs and is not to"));
                }
                let bound = mounts.sandboxes.get(&record.sandbox);
                let member =
                    node.processes.get(found).map(|process| process.member.clone()).unwrap_or_default();
                let own = node.namespaces.find(&member, |content| matches!(content, Content::Sandbox(_)));
                if bound.is_none() || bound.copied() != own {
                    return Err(format!("{name} is not in the namespaces bound for its sandbox"));
                }
            }
            (RunState::Running { init, .. }, None) => {
                return Err(format!("{name} is recorded as {init} and is dead"));
            }
            (_, Some((found, _))) => {
                return Err(format!("{name} runs as {found} and its record says otherwise"));
            }
            (state, None) if record.wants_to_run() && !matches!(state, RunState::Waiting { .. }) => {
                return Err(format!("{name} is to run and does not"));
            }
            (_, None) => {}
        }
        if let Some(state) = node.runtime.get(&record.id).filter(|_| living.is_some()) {
            started_whole(record, &state.plan)?;
        }
        if living.is_none() && node.runtime.contains_key(&record.id) {
            return Err(format!("{name} is dead and has left its runtime state"));
        }
        if living.is_none() && mounts.roots.contains(&record.id) {
            return Err(format!("{name} is dead and its root is mounted"));
        }
    }
    let orphan = node.disk.containers.keys().find(|id| !records.containers.contains_key(*id));
    orphan.map_or(Ok(()), |id| Err(format!("container {id} has left files")))
}

/// Every start is one of the whole spec that is on record.
fn started_whole(record: &ContainerRecord, plan: &ContainerPlan) -> Result<(), String> {
    let spec = &record.spec;
    let found = (&plan.argv, &plan.env, &plan.mounts, &plan.working_dir, plan.user, &plan.rootfs.root);
    let recorded = (&spec.argv, &spec.env, &spec.mounts, &spec.working_dir, (spec.uid, spec.gid), &spec.root);
    same(&format!("start {} of {}", plan.incarnation, record.name), &recorded, &found)
}

/// What the control serves while the daemon is away is what is on record.
fn served(node: &Node) -> Result<(), String> {
    let Some(Role::Control { snapshot: kept, .. }) = node.control().map(|control| &control.role) else {
        return Err("no control serves".to_owned());
    };
    let recorded = snapshot(node.disk.records(), 0);
    same("zone", &recorded.zone, &kept.zone)?;
    same("prefixes", &recorded.prefixes, &kept.prefixes)?;
    same("rules", &recorded.ruleset, &kept.ruleset)
}

/// Sandboxes of one group reach each other, and each reaches the outside if and only if its network has a way out.
///
/// # Errors
/// Who does not reach what.
pub fn reachable(node: &Node) -> Result<(), String> {
    let records = node.disk.records();
    let wanted = plugged(records);
    let stacks: Vec<(Ns, &SandboxId)> = sandboxes(node).filter(|(_, id)| wanted.contains(*id)).collect();
    for (from, source) in &stacks {
        let Some(source) = records.sandboxes.get(*source) else { continue };
        for (to, target) in &stacks {
            let Some(target) = records.sandboxes.get(*target) else { continue };
            for attachment in &target.attachments {
                for address in [IpAddr::V4(attachment.ipv4), IpAddr::V6(attachment.ipv6)] {
                    if may_reach(records, source, address) && !node.can_reach(*from, *to, address) {
                        return Err(format!("{} does not reach {address} of {}", source.name, target.name));
                    }
                }
            }
        }
        let first = source.primary().and_then(|first| records.networks.get(&first.network));
        if first.is_some_and(|network| !network.spec.internal) && !node.can_leave(*from) {
            return Err(format!("{} does not reach the outside", source.name));
        }
        if first.is_some_and(|network| network.spec.internal) && node.can_leave(*from) {
            return Err(format!("{} reaches the outside from an internal network", source.name));
        }
    }
    Ok(())
}
