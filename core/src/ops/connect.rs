//! Networks of a workload that exists already.

use super::{
    Admission, Stamp, find,
    pod::{Touched, attachment, mark_primary, verdicts_first},
    require_up,
};
use crate::{
    bring_up::wants_plug,
    error::{Refusal, RefusalCode},
    id::SandboxId,
    journal::{OperationKind, Resume, Subject},
    ops::request::{ConnectRequest, DisconnectRequest},
    plan::Step,
    policy::note_classes,
    record::{AttachmentRecord, Change, ContainerRecord, Records, SandboxRecord},
    ruleset::sandbox_elements,
    steps,
};
use alloc::{boxed::Box, format, vec::Vec};

/// The most interfaces of a workload.
const ATTACHMENTS_MAX: usize = 64;

/// Whether its links exist, or should.
fn is_plugged(records: &Records, sandbox: &SandboxRecord) -> bool {
    let members: Vec<&ContainerRecord> = records.members(&sandbox.id).collect();
    wants_plug(sandbox, &members)
}

/// What an operation on a sandbox works on: its members too, so that none starts or ends meanwhile.
fn subjects(records: &Records, sandbox: &SandboxRecord) -> Vec<Subject> {
    let members = records.members(&sandbox.id).map(|member| Subject::Container(member.id.clone()));
    core::iter::once(Subject::Sandbox(sandbox.id.clone())).chain(members).collect()
}

fn with(sandbox: &SandboxRecord, attachments: Vec<AttachmentRecord>) -> SandboxRecord {
    let mut next = sandbox.clone();
    next.spec.networks = attachments.iter().map(|own| own.network.clone()).collect();
    next.attachments = attachments;
    next
}

/// `network connect`: the default routes stay where they are, unless there are none yet.
///
/// # Errors
/// A [`Refusal`] naming what is wrong.
pub fn connect(
    records: &Records,
    network: &str,
    request: &ConnectRequest,
    stamp: &Stamp,
) -> Result<Admission<SandboxId>, Refusal> {
    require_up(records)?;
    let network = find::network(records, network)?;
    let sandbox = find::workload(records, &request.workload)?;
    let id = sandbox.id.clone();
    if let Some(own) = sandbox.attachments.iter().find(|own| own.network == network.id) {
        let open = records.operations.values().any(|it| it.subjects.contains(&Subject::Sandbox(id.clone())));
        if request.addresses.is_empty() && open {
            // It may be about to leave: what is so then is not known before.
            let subjects = subjects(records, sandbox);
            let operation = stamp.operation(OperationKind::Connect, &sandbox.name, subjects, Vec::new());
            let operation = Box::new(operation);
            return Ok(Admission::Run { operation, changes: Vec::new(), uses: Vec::new(), about: id });
        }
        if request.addresses.is_empty() {
            return Ok(Admission::AlreadySo(id));
        }
        let detail = format!(
            "{} is on network {} as {} already; disconnect it first",
            sandbox.name, network.name, own.ipv4
        );
        return Err(Refusal::new(RefusalCode::WrongState, detail));
    }
    if sandbox.attachments.len() >= ATTACHMENTS_MAX {
        let detail = format!("{} is on {ATTACHMENTS_MAX} networks; disconnect one first", sandbox.name);
        return Err(Refusal::new(RefusalCode::Exhausted, detail));
    }
    let Some(mut node) = records.node.clone() else { return Err(super::not_found("node", "", "up")) };
    let mut touched = Touched::default();
    let own = attachment(
        records,
        &mut node,
        &mut touched,
        &sandbox.attachments,
        network,
        &sandbox.tenant,
        &request.addresses,
    )?;
    let slot = own.slot;
    let mut attachments = sandbox.attachments.clone();
    attachments.push(own);
    // One of several that is not marked is the first: that must not change.
    if attachments.len() == 1 {
        mark_primary(records, &mut attachments);
    }
    let next = with(sandbox, attachments);
    let uses = touched.uses();
    let mut changes = alloc::vec![Change::Node(node), Change::Sandbox(next.clone())];
    changes.extend(touched.changes());
    let mut after = records.clone();
    changes.iter().cloned().for_each(|change| after.apply(change));
    let noted = note_classes(&after, false);
    noted.clone().into_iter().for_each(|change| after.apply(change));
    changes.extend(noted);
    let mut steps = Vec::new();
    if is_plugged(records, sandbox) {
        let before = sandbox_elements(records, sandbox);
        steps.extend(verdicts_first(&after));
        let elements = sandbox_elements(&after, &next).difference(&before).copied().collect();
        steps.push(Step::AddElements(elements));
        let plans = steps::attachment_plans(&after, &next).into_iter();
        steps.extend(plans.filter(|plan| plan.slot == slot).map(Step::Attach));
    }
    let mut operation =
        stamp.operation(OperationKind::Connect, &sandbox.name, subjects(records, sandbox), steps);
    operation.on_undone = alloc::vec![Change::Sandbox(sandbox.clone())];
    Ok(Admission::Run { operation: Box::new(operation), changes, uses, about: id })
}

/// `network disconnect`: the address is free once its link is gone. Default routes and published ports move to
/// another interface, where there is one.
///
/// # Errors
/// `WrongState` for the last network of a workload that publishes ports, and other [`Refusal`]s.
pub fn disconnect(
    records: &Records,
    network: &str,
    request: &DisconnectRequest,
    stamp: &Stamp,
) -> Result<Admission<SandboxId>, Refusal> {
    require_up(records)?;
    let network = find::network(records, network)?;
    let sandbox = find::workload(records, &request.workload)?;
    let id = sandbox.id.clone();
    let Some(gone) = sandbox.attachments.iter().find(|own| own.network == network.id) else {
        return Ok(Admission::AlreadySo(id));
    };
    let was_primary = sandbox.primary().is_some_and(|primary| primary.slot == gone.slot);
    let mut attachments: Vec<AttachmentRecord> =
        sandbox.attachments.iter().filter(|own| own.slot != gone.slot).cloned().collect();
    if attachments.is_empty() && !sandbox.ports.is_empty() {
        let detail = format!(
            "{} publishes ports, which would lead nowhere without its last network; connect it to another first",
            sandbox.name
        );
        return Err(Refusal::new(RefusalCode::WrongState, detail));
    }
    if was_primary {
        mark_primary(records, &mut attachments);
    }
    let next = with(sandbox, attachments);
    let mut steps = Vec::new();
    if is_plugged(records, sandbox) {
        let (before, after) = (sandbox_elements(records, sandbox), sandbox_elements(records, &next));
        // Ports move before the link goes; the rules that spoke for its address go last. Default routes follow by
        // an operation of their own: what takes something away must be able to end when the workload is not up.
        let moved: alloc::collections::BTreeSet<_> = after.difference(&before).copied().collect();
        if !moved.is_empty() {
            steps.push(Step::AddElements(moved));
        }
        steps.push(Step::Detach(gone.slot));
        steps.push(Step::RemoveElements(before.difference(&after).copied().collect()));
    }
    let mut operation =
        stamp.operation(OperationKind::Disconnect, &sandbox.name, subjects(records, sandbox), steps);
    operation.resume = Resume::Finish;
    operation.on_done = alloc::vec![Change::Sandbox(next)];
    let uses = alloc::vec![Subject::Network(network.id.clone())];
    Ok(Admission::Run { operation: Box::new(operation), changes: Vec::new(), uses, about: id })
}

/// Leads a workload's default routes to its primary interface, after a disconnect. One that is not up, or goes
/// meanwhile, gets them when it is plugged: a bring-up sees where they lead.
///
/// # Errors
/// `NotFound` when the workload is gone.
pub fn reroute(records: &Records, id: &SandboxId, stamp: &Stamp) -> Result<Admission<()>, Refusal> {
    let sandbox =
        records.sandboxes.get(id).ok_or_else(|| super::not_found("workload", id.as_str(), "ps -a"))?;
    let plan = steps::attachment_plans(records, sandbox).into_iter().find(|plan| plan.default_route);
    let Some(plan) = plan.filter(|_| is_plugged(records, sandbox)) else {
        return Ok(Admission::AlreadySo(()));
    };
    let steps = alloc::vec![Step::Attach(plan)];
    let mut operation =
        stamp.operation(OperationKind::Reroute, &sandbox.name, subjects(records, sandbox), steps);
    operation.resume = Resume::Replan;
    Ok(Admission::Run { operation: Box::new(operation), changes: Vec::new(), uses: Vec::new(), about: () })
}
