//! What must be true after a history, given what was true before it.

use super::{Action, Answer, violation};
use crate::{
    check::Violation,
    fault::{FaultKind, Victim},
    model::{Node, Ns},
};
use holdfast_core::{
    bring_up::wants_plug,
    cure::Cure,
    driver::BringUpReport,
    id::{ContainerId, NetworkId, ProcessRef, SandboxId},
    ops::request::RequestError,
    record::{ContainerRecord, Desired, Records, RunState, SandboxKind, SandboxRecord},
};
use std::collections::{BTreeMap, BTreeSet};

/// The node before the faults.
#[derive(Clone, Debug)]
pub struct Before {
    records: Records,
    inits: BTreeMap<ContainerId, ProcessRef>,
    links: BTreeMap<SandboxId, BTreeSet<(Ns, Ns)>>,
    /// Containers that run and whose record does not say so: the answer to their start was lost.
    unheard: BTreeSet<ContainerId>,
}

impl Before {
    /// Looks.
    pub fn of(node: &Node) -> Self {
        let records = node.disk.records().clone();
        let inits = inits(node);
        let heard = |id: &ContainerId, init: &ProcessRef| {
            records
                .containers
                .get(id)
                .and_then(|record| record.running())
                .is_some_and(|(known, _)| known == init)
        };
        let unheard = inits.iter().filter(|(id, init)| !heard(id, init)).map(|(id, _)| id.clone()).collect();
        Self { inits, links: links(node), unheard, records }
    }

    /// Judges the node as it is once faults have stopped and it is whole.
    ///
    /// # Errors
    /// What is not as it must be.
    pub(super) fn judge(
        &self,
        node: &Node,
        answers: &[Answer],
        strikes: &[FaultKind],
    ) -> Result<(), Violation> {
        let records = node.disk.records();
        let named = |name: &str, result: Result<(), String>| result.map_err(|detail| violation(name, detail));
        named("records are whole", whole(records))?;
        named("acknowledged operations survive", answered(records, answers))?;
        let touched = self.with_members(touched(answers), answers);
        named("bystanders keep their addresses", self.same_records(records, &touched))?;
        if !strikes.iter().any(ends_by_itself) {
            named("what died with the node comes back", self.runs_again(node, &touched))?;
        }
        let taken_down = answers.iter().any(|answer| answer.action == Action::TakeDown);
        if taken_down || strikes.iter().any(kills_workloads) {
            return Ok(());
        }
        named("bystanders are not restarted", self.same_inits(node, &touched))
    }

    /// Whoever removes a pod asks it of the members too.
    fn with_members(&self, mut names: BTreeSet<String>, answers: &[Answer]) -> BTreeSet<String> {
        for answer in answers {
            let Action::RemovePod(pod) = &answer.action else { continue };
            for sandbox in self.records.sandboxes.values().filter(|sandbox| &sandbox.name == pod) {
                names.extend(self.records.members(&sandbox.id).map(|member| member.name.clone()));
            }
        }
        names
    }

    fn bystanders<'a>(&'a self, touched: &'a BTreeSet<String>) -> impl Iterator<Item = &'a SandboxRecord> {
        self.records.sandboxes.values().filter(|sandbox| {
            !touched.contains(&sandbox.name)
                && self.records.members(&sandbox.id).all(|member| !touched.contains(&member.name))
        })
    }

    fn same_records(&self, records: &Records, touched: &BTreeSet<String>) -> Result<(), String> {
        for before in self.bystanders(touched) {
            let Some(after) = records.sandboxes.get(&before.id) else {
                return Err(format!("{} is gone", before.name));
            };
            if (&before.attachments, &before.ports) != (&after.attachments, &after.ports) {
                return Err(format!("{} was {before:?} and is {after:?}", before.name));
            }
        }
        Ok(())
    }

    /// Who was asked nothing is plugged as before, and so is a pod whose members were asked something: only its own
    /// removal touches its namespaces.
    ///
    /// # Errors
    /// Who is plugged otherwise.
    pub(super) fn undisturbed(&self, node: &Node, answers: &[Answer]) -> Result<(), String> {
        let touched = touched(answers);
        let now = links(node);
        for before in self.records.sandboxes.values().filter(|sandbox| !touched.contains(&sandbox.name)) {
            let of_pod = before.kind == SandboxKind::Pod;
            let members_touched = self.records.members(&before.id).any(|it| touched.contains(&it.name));
            if (of_pod || !members_touched) && self.links.get(&before.id) != now.get(&before.id) {
                return Err(format!("{} was cut off, and nothing was asked of it", before.name));
            }
        }
        Ok(())
    }

    /// A container that ran and of which nothing was asked runs, whatever its restart policy says of its own end.
    fn runs_again(&self, node: &Node, touched: &BTreeSet<String>) -> Result<(), String> {
        let now = inits(node);
        let ran = self.records.containers.values().filter(|record| self.inits.contains_key(&record.id));
        let mut gone = ran.filter(|record| !touched.contains(&record.name) && !now.contains_key(&record.id));
        gone.next().map_or(Ok(()), |record| Err(format!("{} ran and does not", record.name)))
    }

    fn same_inits(&self, node: &Node, touched: &BTreeSet<String>) -> Result<(), String> {
        let now = inits(node);
        let standing = self.records.containers.values().filter(|record| !touched.contains(&record.name));
        for record in standing {
            let (before, after) = (self.inits.get(&record.id), now.get(&record.id));
            if before.is_some() && before != after {
                return Err(format!("{} was {before:?} and is {after:?}", record.name));
            }
        }
        Ok(())
    }

    /// The cures that the bring-ups since then report are the ones that happened.
    ///
    /// # Errors
    /// What is reported and was otherwise.
    pub(super) fn reported(&self, node: &Node, reports: &[BringUpReport]) -> Result<(), Violation> {
        let not_true = |detail: String| Err(violation("the report is true", detail));
        let (inits_now, links_now) = (inits(node), links(node));
        let records = node.disk.records();
        for sandbox in records.sandboxes.values() {
            let members: Vec<&ContainerRecord> = records.members(&sandbox.id).collect();
            let name = &sandbox.name;
            if reports.last().is_some_and(|last| last.failed.contains_key(name)) {
                return not_true(format!("{name} is whole and reported as failed"));
            }
            // What an interrupted operation was about was finished or undone, not cured.
            let resumed = reports.iter().flat_map(|report| &report.resumed);
            if resumed
                .into_iter()
                .any(|it| &it.name == name || members.iter().any(|member| member.name == it.name))
            {
                continue;
            }
            // One that is not to run, or ended and stays so by its policy, was not cured.
            if !wants_plug(sandbox, &members) || members.iter().any(|it| !inits_now.contains_key(&it.id)) {
                continue;
            }
            // Started again or found started: for one that nobody had heard of, both are true.
            if members.iter().any(|it| self.unheard.contains(&it.id)) {
                continue;
            }
            let Some(cure) = reports.iter().filter_map(|report| report.cures.get(name)).max() else {
                return not_true(format!("{name} is in no report"));
            };
            let moved = members.iter().any(|it| self.inits.get(&it.id) != inits_now.get(&it.id));
            let replugged = self.links.get(&sandbox.id) != links_now.get(&sandbox.id);
            let found = match (moved, replugged) {
                (true, _) => Cure::Restarted,
                (false, true) => Cure::Replugged,
                (false, false) => Cure::Untouched,
            };
            let agrees = if found == Cure::Untouched { *cure <= Cure::Adopted } else { *cure == found };
            if !agrees {
                return not_true(format!("{name} is reported as {cure} and was {found}"));
            }
        }
        Ok(())
    }
}

fn inits(node: &Node) -> BTreeMap<ContainerId, ProcessRef> {
    let containers = node.disk.records().containers.keys();
    containers.filter_map(|id| Some((id.clone(), node.init_of(id)?.0.clone()))).collect()
}

/// Router and inner namespace of each of a sandbox's links.
fn links(node: &Node) -> BTreeMap<SandboxId, BTreeSet<(Ns, Ns)>> {
    let mut links: BTreeMap<SandboxId, BTreeSet<(Ns, Ns)>> = BTreeMap::new();
    for ((router, _), veth) in &node.veths {
        links.entry(veth.plan.sandbox.clone()).or_default().insert((*router, veth.inside));
    }
    links
}

fn kills_workloads(kind: &FaultKind) -> bool {
    match kind {
        FaultKind::Kill { who } | FaultKind::KillAndReusePid { who } => {
            who.iter().any(|victim| matches!(victim, Victim::Inits | Victim::Init(_)))
        }
        FaultKind::Exit { .. } | FaultKind::PowerLoss => true,
        _ => false,
    }
}

/// Whether a container may end without the node, and so by its policy for good.
fn ends_by_itself(kind: &FaultKind) -> bool {
    match kind {
        FaultKind::Kill { who } | FaultKind::KillAndReusePid { who } => {
            let beside = who.contains(&Victim::Inits) && !who.contains(&Victim::Monitors);
            beside || who.iter().any(|victim| matches!(victim, Victim::Init(_)))
        }
        FaultKind::Exit { .. } => true,
        _ => false,
    }
}

/// The names that were asked anything of, and of the pods they are in.
fn touched(answers: &[Answer]) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for answer in answers {
        match &answer.action {
            Action::Run(request) => {
                names.extend(request.name.clone());
            }
            Action::Stop(name)
            | Action::Start(name)
            | Action::Restart(name)
            | Action::Remove(name)
            | Action::RemovePod(name) => drop(names.insert(name.clone())),
            Action::CreatePod(request) => drop(names.insert(request.name.clone())),
            Action::Connect(_, request) => drop(names.insert(request.workload.clone())),
            Action::Disconnect(_, workload) => drop(names.insert(workload.clone())),
            Action::CreateNetwork(_)
            | Action::RemoveNetwork(_)
            | Action::AddRoute(..)
            | Action::RemoveRoute(..)
            | Action::BringUp
            | Action::TakeDown
            | Action::Up
            | Action::Strike(_) => {}
        }
    }
    names
}

/// Nothing half made: every container has its sandbox, every single container's sandbox its container.
fn whole(records: &Records) -> Result<(), String> {
    for container in records.containers.values() {
        if !records.sandboxes.contains_key(&container.sandbox) {
            return Err(format!("container {} has no sandbox", container.name));
        }
        if container.spec.remove_on_exit && matches!(container.state, RunState::Exited { .. }) {
            return Err(format!("container {} has ended and was to go with that", container.name));
        }
    }
    for sandbox in records.sandboxes.values() {
        let members = records.members(&sandbox.id).count();
        if sandbox.kind == SandboxKind::Container && members != 1 {
            return Err(format!("the sandbox of {} has {members} containers", sandbox.name));
        }
        for attachment in &sandbox.attachments {
            if !records.networks.contains_key(&attachment.network) {
                return Err(format!("{} is attached to a network that does not exist", sandbox.name));
            }
        }
    }
    match records.quarantined.first() {
        Some(record) => Err(format!("{} {} is quarantined: {}", record.kind, record.id, record.cause)),
        None => Ok(()),
    }
}

/// What an action changes: a kind and a name.
fn about(action: &Action) -> Option<(char, &str)> {
    match action {
        Action::Run(request) => request.name.as_deref().map(|name| ('c', name)),
        Action::Stop(name) | Action::Start(name) | Action::Restart(name) | Action::Remove(name) => {
            Some(('c', name))
        }
        Action::CreatePod(request) => Some(('p', &request.name)),
        Action::RemovePod(name) => Some(('p', name)),
        Action::CreateNetwork(request) => Some(('n', &request.name)),
        Action::RemoveNetwork(name) => Some(('n', name)),
        // A workload's networks beside its life.
        Action::Connect(_, request) => Some(('a', &request.workload)),
        Action::Disconnect(_, workload) => Some(('a', workload)),
        Action::AddRoute(one, _) | Action::RemoveRoute(one, _) => Some(('r', one)),
        Action::BringUp | Action::TakeDown | Action::Up | Action::Strike(_) => None,
    }
}

/// The pods that containers were run in.
fn pods(answers: &[Answer]) -> BTreeSet<(&str, &str)> {
    let run = answers.iter().filter_map(|answer| match &answer.action {
        Action::Run(request) => Some((request.name.as_deref()?, request.pod.as_deref()?)),
        _ => None,
    });
    run.collect()
}

fn id_of<'a>(records: &'a Records, network: &str) -> Option<&'a NetworkId> {
    records.networks.values().find(|record| record.name == network).map(|record| &record.id)
}

fn on_network(records: &Records, network: &str, workload: &str) -> bool {
    let id = id_of(records, network);
    let sandbox = records.sandboxes.values().find(|record| record.name == workload);
    sandbox.is_some_and(|sandbox| sandbox.attachments.iter().any(|own| Some(&own.network) == id))
}

fn routed(records: &Records, one: &str, other: &str) -> bool {
    let other = id_of(records, other);
    let mut networks = records.networks.values();
    networks.any(|record| record.name == one && other.is_some_and(|other| record.routed.contains(other)))
}

/// What was told to be done is so, unless something later was asked of the same thing, or of its pod.
fn answered(records: &Records, answers: &[Answer]) -> Result<(), String> {
    let pods = pods(answers);
    for (place, answer) in answers.iter().enumerate() {
        let own = about(&answer.action);
        let contradicts = |later: &Answer| match (own, about(&later.action)) {
            (Some(('c', name)), Some(('p', pod))) => pods.contains(&(name, pod)),
            (own, later) => own.is_some() && own == later,
        };
        if answers.iter().skip(place + 1).any(contradicts) {
            continue;
        }
        let container = |name: &str| records.containers.values().find(|record| record.name == name);
        let sandbox = |name: &str| records.sandboxes.values().find(|record| record.name == name);
        let network = |name: &str| records.networks.values().find(|record| record.name == name);
        let runs = |name: &str| container(name).is_some_and(|record| record.desired == Desired::Running);
        // Its end removes it, whoever ended it.
        let goes = |name: &str| {
            let own = |answer: &Answer| match &answer.action {
                Action::Run(request) => request.name.as_deref() == Some(name) && request.remove_on_exit,
                _ => false,
            };
            answers.iter().any(own) && container(name).is_none()
        };
        let so = match (&answer.action, &answer.told) {
            (Action::Run(request), Some(told)) => {
                let name = request.name.as_deref().unwrap_or_default();
                match told {
                    Ok(()) => runs(name) || goes(name),
                    Err(RequestError::Failed(_)) => container(name).is_none(),
                    // It was not tried: another of that name may be there, or the node is down.
                    Err(RequestError::Refused(_) | RequestError::Store(_)) => true,
                }
            }
            (Action::Start(name) | Action::Restart(name), Some(Ok(()))) => runs(name) || goes(name),
            (Action::Stop(name), Some(Ok(()))) => {
                goes(name)
                    || container(name)
                        .is_some_and(|record| !record.wants_to_run() && record.running().is_none())
            }
            (Action::Remove(name), Some(Ok(()))) => container(name).is_none(),
            (Action::CreatePod(request), Some(Ok(()))) => sandbox(&request.name).is_some(),
            (Action::CreatePod(request), Some(Err(RequestError::Failed(_)))) => {
                sandbox(&request.name).is_none()
            }
            (Action::RemovePod(name), Some(Ok(()))) => sandbox(name).is_none(),
            (Action::CreateNetwork(request), Some(Ok(()))) => network(&request.name).is_some(),
            (Action::CreateNetwork(request), Some(Err(RequestError::Failed(_)))) => {
                network(&request.name).is_none()
            }
            (Action::RemoveNetwork(name), Some(Ok(()))) => network(name).is_none(),
            (Action::Connect(on, request), Some(told)) => {
                on_network(records, on, &request.workload) == told.is_ok()
            }
            (Action::Disconnect(on, workload), Some(Ok(()))) => !on_network(records, on, workload),
            (Action::AddRoute(one, other), Some(Ok(()))) => routed(records, one, other),
            (Action::RemoveRoute(one, other), Some(Ok(()))) => !routed(records, one, other),
            // Nobody was told: done or not done, but not half (the other invariants).
            _ => true,
        };
        if !so {
            return Err(format!("{:?} was told {:?} and it is not so", answer.action, answer.told));
        }
    }
    Ok(())
}
