//! What must be true at the moment an answer is given, before anything is repaired. Asked where nothing but the
//! failing calls themselves can make it untrue: one lane, and no fault but calls that fail, hang or get no answer.

use super::{Action, Answer, Before, History, UnderFaults, violation};
use crate::{check::Violation, fault::FaultKind, model::Node};
use holdfast_core::{
    bring_up::wants_plug,
    driver::BringUpReport,
    journal::{OperationRecord, Phase},
    ops::request::RequestError,
    plan::{Step, undo_of},
    record::{ContainerRecord, Records},
};

impl History {
    /// Judges the node right after the last answer of its only lane.
    ///
    /// # Errors
    /// What was told and is not so.
    pub(super) fn judge_last(
        &self,
        node: &Node,
        before: &Before,
        under: &UnderFaults,
    ) -> Result<(), Violation> {
        let calls_only = |kind: &FaultKind| {
            matches!(kind, FaultKind::Fail(_) | FaultKind::Unknown { .. } | FaultKind::Delay { .. })
        };
        let planned = self.plan.faults.iter().map(|fault| &fault.kind);
        let suffered = self.lanes.iter().flatten().any(|action| matches!(action, Action::Strike(_)));
        let (Some(last), true) = (under.answers.last(), self.lanes.len() == 1) else { return Ok(()) };
        if suffered || !planned.into_iter().all(calls_only) {
            return Ok(());
        }
        let named = |name: &str, result: Result<(), String>| result.map_err(|detail| violation(name, detail));
        named("a port is bound before success is told", ports_bound(node, last))?;
        named("an undo that fails stops no other", undone(node, last))?;
        let down = under.answers.iter().any(|answer| answer.action == Action::TakeDown);
        if self.outage.is_empty() && !down {
            named("bystanders are not cut off", before.undisturbed(node, &under.answers))?;
        }
        match (&last.action, under.reports.last()) {
            (Action::BringUp, Some(report)) => named("the recovered are whole", recovered(node, report)),
            _ => Ok(()),
        }
    }
}

fn about<'a>(records: &'a Records, action: &Action) -> Option<&'a ContainerRecord> {
    let name = match action {
        Action::Run(request) => request.name.as_deref()?,
        Action::Start(name) | Action::Restart(name) => name,
        _ => return None,
    };
    records.containers.values().find(|record| record.name == name)
}

/// Whoever is told that a container runs finds its ports bound.
fn ports_bound(node: &Node, answer: &Answer) -> Result<(), String> {
    let records = node.disk.records();
    let told = answer.told.as_ref().is_some_and(Result::is_ok);
    let Some(container) = about(records, &answer.action).filter(|_| told) else { return Ok(()) };
    let bound = node.bound_ports();
    let wanted = records.sandboxes.get(&container.sandbox).into_iter().flat_map(|sandbox| &sandbox.ports);
    let missing = wanted.into_iter().find(|port| !bound.contains(port));
    missing.map_or(Ok(()), |port| {
        Err(format!("{} was told to run and {} is not bound", container.name, port.spec))
    })
}

/// Of an operation that could not be undone whole, nothing is left but what the answer names.
fn undone(node: &Node, answer: &Answer) -> Result<(), String> {
    let Some(Err(RequestError::Failed(error))) = &answer.told else { return Ok(()) };
    let given_up = |open: &&OperationRecord| matches!(open.phase, Phase::Backward { .. });
    for operation in node.disk.records().operations.values().filter(given_up) {
        let undos = undo_of(&operation.steps, operation.steps.len());
        let named =
            |step: &Step| error.undo_failures.iter().any(|failure| failure.starts_with(&format!("{step}: ")));
        if let Some(step) = undos.iter().find(|step| !named(step) && is_left(node, step)) {
            return Err(format!("`{step}` was not done after {:?}", error.undo_failures));
        }
    }
    Ok(())
}

/// Whether what an undo takes away is still there.
fn is_left(node: &Node, undo: &Step) -> bool {
    match undo {
        Step::Unpublish(port) => node.bound_ports().contains(port),
        Step::Detach(slot) => node.veths.keys().any(|(_, plugged)| plugged == slot),
        Step::StopContainer { id, incarnation, .. } => {
            node.init_of(id).is_some_and(|(_, start)| start == *incarnation)
        }
        Step::RemoveFiles(id) => node.disk.containers.contains_key(id),
        _ => false,
    }
}

/// Who is reported as recovered runs, in a sandbox whose links are plugged and whose ports are bound.
fn recovered(node: &Node, report: &BringUpReport) -> Result<(), String> {
    let records = node.disk.records();
    let bound = node.bound_ports();
    let named = records.sandboxes.values().filter(|sandbox| report.recovered.contains(&sandbox.name));
    for sandbox in named {
        let members: Vec<&ContainerRecord> = records.members(&sandbox.id).collect();
        let dead = members.iter().find(|it| it.wants_to_run() && node.init_of(&it.id).is_none());
        let unplugged =
            || sandbox.attachments.iter().find(|own| node.veths.keys().all(|(_, slot)| *slot != own.slot));
        let unbound = || sandbox.ports.iter().find(|port| !bound.contains(port));
        let what = match (dead, unplugged(), unbound()) {
            (Some(member), ..) => format!("{} does not run", member.name),
            (_, Some(own), _) if wants_plug(sandbox, &members) => format!("{} is not plugged", own.ipv4),
            (.., Some(port)) => format!("{} is not bound", port.spec),
            _ => continue,
        };
        return Err(format!("{} is reported as recovered and {what}", sandbox.name));
    }
    Ok(())
}
