//! Routes between networks: tenant by tenant, each reaches its own.

use super::{Admission, Stamp, find, pod::Touched, require_up};
use crate::{
    bring_up::wants_plug,
    error::{Refusal, RefusalCode},
    id::Tenant,
    journal::{OperationKind, Resume, Subject},
    plan::Step,
    record::{Change, NetworkRecord, Records},
    ruleset::{Element, sandbox_elements},
};
use alloc::{boxed::Box, collections::BTreeSet, format, vec::Vec};

fn pair<'a>(
    records: &'a Records,
    one: &str,
    other: &str,
) -> Result<(&'a NetworkRecord, &'a NetworkRecord), Refusal> {
    let (one, other) = (find::network(records, one)?, find::network(records, other)?);
    if one.id == other.id {
        let detail = format!("network {} needs no route to itself; name two networks", one.name);
        return Err(Refusal::new(RefusalCode::Invalid, detail));
    }
    Ok((one, other))
}

/// The elements of everybody who is plugged into one of these networks.
fn elements(records: &Records, networks: [&NetworkRecord; 2]) -> BTreeSet<Element> {
    let members = records.members_by_sandbox();
    let mut walk = members.walk();
    let mut elements = BTreeSet::new();
    for sandbox in records.sandboxes.values() {
        let plugged = wants_plug(sandbox, walk.of(&sandbox.id));
        let here = |own: &crate::record::AttachmentRecord| networks.iter().any(|it| it.id == own.network);
        if plugged && sandbox.attachments.iter().any(here) {
            elements.extend(sandbox_elements(records, sandbox));
        }
    }
    elements
}

/// Everybody on these networks: nothing may be planned for them meanwhile, for it would miss the route or keep it.
fn plugged_in(records: &Records, networks: [&NetworkRecord; 2]) -> Vec<Subject> {
    let here = |own: &crate::record::AttachmentRecord| networks.iter().any(|it| it.id == own.network);
    let sandboxes = records.sandboxes.values().filter(|sandbox| sandbox.attachments.iter().any(here));
    sandboxes.map(|sandbox| Subject::Sandbox(sandbox.id.clone())).collect()
}

fn after(records: &Records, changes: &[Change]) -> Records {
    let mut after = records.clone();
    changes.iter().cloned().for_each(|change| after.apply(change));
    after
}

/// `network route add A B`: workloads of one tenant reach one another over both networks.
///
/// # Errors
/// `Invalid` for an isolated network, and other [`Refusal`]s.
pub fn add(records: &Records, one: &str, other: &str, stamp: &Stamp) -> Result<Admission<()>, Refusal> {
    require_up(records)?;
    let (one, other) = pair(records, one, other)?;
    if one.routed.contains(&other.id) {
        return Ok(Admission::AlreadySo(()));
    }
    if let Some(isolated) = [one, other].into_iter().find(|network| network.spec.isolate) {
        let detail = format!("network {} was created with --isolate: it is never routed", isolated.name);
        return Err(Refusal::new(RefusalCode::Invalid, detail));
    }
    let Some(mut node) = records.node.clone() else { return Err(super::not_found("node", "", "up")) };
    let mut touched = Touched::default();
    touched.set_routed(one, other, true);
    // Networks that are routed know the same tenants, over all that hang together.
    let joined = joined(records, [one, other]);
    let tenants: BTreeSet<Tenant> =
        joined.iter().flat_map(|network| network.groups.keys().cloned()).collect();
    for (network, tenant) in joined.iter().flat_map(|network| tenants.iter().map(move |it| (network, it))) {
        touched.own_group(&mut node, network, tenant);
    }
    let mut subjects: Vec<Subject> =
        joined.iter().map(|network| Subject::Network(network.id.clone())).collect();
    subjects.extend(plugged_in(records, [one, other]));
    let mut changes = alloc::vec![Change::Node(node)];
    changes.extend(touched.changes());
    let added = elements(&after(records, &changes), [one, other]);
    let added: BTreeSet<Element> = added.difference(&elements(records, [one, other])).copied().collect();
    let name = format!("{} to {}", one.name, other.name);
    let steps = alloc::vec![Step::AddElements(added)];
    let mut operation = stamp.operation(OperationKind::AddRoute, &name, subjects, steps);
    operation.on_undone = unrouted(records, [one, other]);
    Ok(Admission::Run { operation: Box::new(operation), changes, uses: Vec::new(), about: () })
}

/// Networks that hang together with these by routes.
pub(super) fn joined<'a, const N: usize>(
    records: &'a Records,
    seeds: [&'a NetworkRecord; N],
) -> Vec<&'a NetworkRecord> {
    let mut found: Vec<&NetworkRecord> = Vec::from(seeds);
    let mut at = 0;
    while let Some(network) = found.get(at).copied() {
        at += 1;
        for peer in network.routed.iter().filter_map(|peer| records.networks.get(peer)) {
            if found.iter().all(|known| known.id != peer.id) {
                found.push(peer);
            }
        }
    }
    found
}

/// Both networks as they are, without the route. Groups that were made for it stay: numbers are never reused.
fn unrouted(records: &Records, networks: [&NetworkRecord; 2]) -> Vec<Change> {
    let [one, other] = networks;
    let without = |network: &NetworkRecord, peer: &NetworkRecord| {
        let mut next = records.networks.get(&network.id).unwrap_or(network).clone();
        next.routed.remove(&peer.id);
        Change::Network(next)
    };
    alloc::vec![without(one, other), without(other, one)]
}

/// `network route rm A B`: the networks are apart again, and so are flows that went on between them.
///
/// # Errors
/// `NotFound` for a route that is none, and other [`Refusal`]s.
pub fn remove(records: &Records, one: &str, other: &str, stamp: &Stamp) -> Result<Admission<()>, Refusal> {
    require_up(records)?;
    let (one, other) = pair(records, one, other)?;
    if !one.routed.contains(&other.id) {
        let detail = format!("networks {} and {} are not routed to one another", one.name, other.name);
        return Err(Refusal::new(RefusalCode::NotFound, detail));
    }
    let on_done = unrouted(records, [one, other]);
    let left = elements(&after(records, &on_done), [one, other]);
    let gone = elements(records, [one, other]).difference(&left).copied().collect();
    let name = format!("{} to {}", one.name, other.name);
    let mut subjects = alloc::vec![Subject::Network(one.id.clone()), Subject::Network(other.id.clone())];
    subjects.extend(plugged_in(records, [one, other]));
    let steps = alloc::vec![Step::RemoveElements(gone)];
    let mut operation = stamp.operation(OperationKind::RemoveRoute, &name, subjects, steps);
    operation.resume = Resume::Finish;
    operation.on_done = on_done;
    Ok(Admission::Run { operation: Box::new(operation), changes: Vec::new(), uses: Vec::new(), about: () })
}
