//! Containers. Create is "store the whole spec, then start it": run, start, restart and recovery share their
//! steps.

use super::{
    Admission, Stamp, blocker, find,
    pod::{NewSandbox, SandboxRequest, new_sandbox, require_free_name, verdicts_first},
    require_up, resolve,
};
use crate::{
    error::{Refusal, RefusalCode},
    id::ContainerId,
    journal::{OperationKind, Resume, Subject},
    name,
    ops::request::{RemoveRequest, RunRequest, StopRequest},
    plan::Step,
    record::{Change, ContainerRecord, Desired, Records, RunState, SandboxKind, SandboxRecord},
    steps,
};
use alloc::{boxed::Box, format, string::String, vec::Vec};

/// `run`.
///
/// # Errors
/// A [`Refusal`] naming what is wrong; nothing has changed then.
pub fn run(
    records: &Records,
    request: &RunRequest,
    stamp: &Stamp,
) -> Result<Admission<ContainerId>, Refusal> {
    require_up(records)?;
    let id = ContainerId::from_raw(stamp.id(1));
    let name = request.name.clone().unwrap_or_else(|| format!("c-{id}"));
    name::check("container", &name)?;
    require_free_name(records, "container", &name)?;
    let spec = resolve::spec(records, request)?;
    let container = |sandbox: &SandboxRecord| ContainerRecord {
        id: id.clone(),
        name: name.clone(),
        sandbox: sandbox.id.clone(),
        spec: spec.clone(),
        desired: Desired::Running,
        state: RunState::Created,
        incarnation: 1,
        restarts: 0,
        failures_in_row: 0,
        created: stamp.wall,
        started: None,
        last_end: None,
    };
    let subject = Subject::Container(id.clone());
    if let Some(pod) = &request.pod {
        refuse_with_pod(request)?;
        let pod = find::pod(records, pod)?;
        if let Some(tenant) = request.tenant.as_deref().filter(|tenant| *tenant != pod.tenant.as_str()) {
            let detail = format!(
                "pod {} belongs to namespace {}, not {tenant}; leave --namespace out",
                pod.name, pod.tenant
            );
            return Err(Refusal::new(RefusalCode::Invalid, detail));
        }
        let record = container(pod);
        let start = Step::StartContainer(steps::container_plan(records, pod, &record));
        let steps = alloc::vec![start];
        let mut operation = stamp.operation(OperationKind::RunContainer, &name, alloc::vec![subject], steps);
        operation.on_undone = alloc::vec![Change::RemoveContainer(id.clone())];
        add_file_removal(&mut operation.steps, &id);
        let uses = alloc::vec![Subject::Sandbox(pod.id.clone())];
        let changes = alloc::vec![Change::Container(record)];
        return Ok(Admission::Run { operation: Box::new(operation), changes, uses, about: id });
    }
    let sandbox = SandboxRequest {
        kind: SandboxKind::Container,
        name: &name,
        tenant: request.tenant.as_deref(),
        networks: &request.networks,
        addresses: &request.addresses,
        ports: &request.ports,
        hostname: request.hostname.as_deref(),
        labels: request.labels.clone(),
        aliases: &request.aliases,
        dns: &request.dns,
    };
    let NewSandbox { record: sandbox, mut changes, uses, after } = new_sandbox(records, &sandbox, stamp)?;
    let record = container(&sandbox);
    changes.push(Change::Container(record.clone()));
    let after = after.as_ref().unwrap_or(records);
    let mut steps = verdicts_first(after);
    steps.extend(steps::sandbox_up(after, &sandbox, None));
    steps.push(Step::StartContainer(steps::container_plan(records, &sandbox, &record)));
    let subjects = alloc::vec![subject, Subject::Sandbox(sandbox.id.clone())];
    let mut operation = stamp.operation(OperationKind::RunContainer, &name, subjects, steps);
    operation.on_undone =
        alloc::vec![Change::RemoveContainer(id.clone()), Change::RemoveSandbox(sandbox.id.clone())];
    if mutant!(PortRecordedAfterBinding) {
        operation.on_done = alloc::vec![Change::Sandbox(sandbox.clone())];
        changes.push(Change::Sandbox(SandboxRecord { ports: Vec::new(), ..sandbox }));
    }
    add_file_removal(&mut operation.steps, &id);
    Ok(Admission::Run { operation: Box::new(operation), changes, uses, about: id })
}

/// A new container's files exist from its first step on: their removal is the last undo.
fn add_file_removal(steps: &mut Vec<Step>, id: &ContainerId) {
    steps.insert(0, Step::ClaimFiles(id.clone()));
}

fn refuse_with_pod(request: &RunRequest) -> Result<(), Refusal> {
    let belongs = |what: &str| {
        Err(Refusal::new(
            RefusalCode::Invalid,
            format!("{what} belongs to the pod, not to a member; give it to `pod create`"),
        ))
    };
    if !request.networks.is_empty() {
        return belongs("--network");
    }
    if !request.addresses.is_empty() {
        return belongs("--ip, --ip6 and --mac");
    }
    if !request.ports.is_empty() {
        return belongs("--publish");
    }
    if request.hostname.is_some() {
        return belongs("--hostname");
    }
    if !request.aliases.is_empty() {
        return belongs("--network-alias");
    }
    if !request.dns.is_default() {
        return belongs("--dns, --dns-search and --dns-option");
    }
    Ok(())
}

/// The sandbox of a container.
fn sandbox_of<'a>(records: &'a Records, container: &ContainerRecord) -> Result<&'a SandboxRecord, Refusal> {
    records.sandboxes.get(&container.sandbox).ok_or_else(|| {
        let detail =
            format!("the record of {}'s sandbox cannot be read; `holdfast status` names it", container.name);
        Refusal::new(RefusalCode::WrongState, detail)
    })
}

/// `start`.
///
/// # Errors
/// A [`Refusal`] naming what is wrong.
pub fn start(records: &Records, wanted: &str, stamp: &Stamp) -> Result<Admission<ContainerId>, Refusal> {
    require_up(records)?;
    let container = find::container(records, wanted)?;
    let id = container.id.clone();
    if container.running().is_some() && container.desired == Desired::Running {
        return Ok(Admission::AlreadySo(id));
    }
    let sandbox = sandbox_of(records, container)?;
    if container.running().is_some() {
        // A stop that failed left it running. Its number may not be taken by another start while it lives.
        return Ok(replace(records, sandbox, container, container.spec.stop_grace_ms, stamp));
    }
    let mut begun = container.clone();
    begun.desired = Desired::Running;
    begun.state = RunState::Created;
    begun.incarnation += 1;
    begun.failures_in_row = 0;
    let changes = alloc::vec![Change::Container(begun.clone())];
    let mut all = alloc::vec![Step::CleanContainer(id.clone(), container.incarnation)];
    if sandbox.kind == SandboxKind::Container {
        all.extend(steps::sandbox_up(records, sandbox, None));
    }
    all.push(Step::StartContainer(steps::container_plan(records, sandbox, &begun)));
    let mut undone = begun;
    undone.desired = Desired::Stopped;
    undone.state = match &container.state {
        RunState::Exited { .. } | RunState::Failed { .. } | RunState::Created => container.state.clone(),
        RunState::Running { .. } | RunState::Waiting { .. } => {
            RunState::Exited { exit_code: None, at: stamp.wall }
        }
    };
    let (subjects, uses) = scope(sandbox, container);
    let mut operation = stamp.operation(OperationKind::StartContainer, &container.name, subjects, all);
    operation.on_undone = alloc::vec![Change::Container(undone)];
    Ok(Admission::Run { operation: Box::new(operation), changes, uses, about: id })
}

/// What an operation on a container works on: its sandbox too if it is the only one in it.
fn scope(sandbox: &SandboxRecord, container: &ContainerRecord) -> (Vec<Subject>, Vec<Subject>) {
    let own = Subject::Container(container.id.clone());
    let shared = Subject::Sandbox(sandbox.id.clone());
    match sandbox.kind {
        SandboxKind::Container => (alloc::vec![own, shared], Vec::new()),
        SandboxKind::Pod => (alloc::vec![own], alloc::vec![shared]),
    }
}

/// The record of a container that the user does not want to run.
pub(super) fn stopped(container: &ContainerRecord) -> ContainerRecord {
    ContainerRecord { desired: Desired::Stopped, ..container.clone() }
}

/// `stop`.
///
/// # Errors
/// A [`Refusal`] naming what is wrong.
pub fn stop(
    records: &Records,
    wanted: &str,
    request: &StopRequest,
    stamp: &Stamp,
) -> Result<Admission<ContainerId>, Refusal> {
    let container = find::container(records, wanted)?;
    let id = container.id.clone();
    if !container.wants_to_run() && container.running().is_none() {
        return Ok(Admission::AlreadySo(id));
    }
    let sandbox = sandbox_of(records, container)?;
    let grace_ms = request.grace_ms.unwrap_or(container.spec.stop_grace_ms);
    let mut all = alloc::vec![steps::stop_step(container, grace_ms)];
    if sandbox.kind == SandboxKind::Container {
        all.extend(steps::sandbox_down(records, sandbox));
    }
    let (subjects, uses) = scope(sandbox, container);
    let mut operation = stamp.operation(OperationKind::StopContainer, &container.name, subjects, all);
    operation.resume = Resume::Finish;
    let changes = alloc::vec![Change::Container(stopped(container))];
    Ok(Admission::Run { operation: Box::new(operation), changes, uses, about: id })
}

/// `restart`: in its own sandbox, peers undisturbed.
///
/// # Errors
/// A [`Refusal`] naming what is wrong.
pub fn restart(
    records: &Records,
    wanted: &str,
    request: &StopRequest,
    stamp: &Stamp,
) -> Result<Admission<ContainerId>, Refusal> {
    require_up(records)?;
    let container = find::container(records, wanted)?;
    if container.running().is_none() {
        return start(records, wanted, stamp);
    }
    let sandbox = sandbox_of(records, container)?;
    let grace_ms = request.grace_ms.unwrap_or(container.spec.stop_grace_ms);
    Ok(replace(records, sandbox, container, grace_ms, stamp))
}

/// Ends the start that runs and makes the next one.
fn replace(
    records: &Records,
    sandbox: &SandboxRecord,
    container: &ContainerRecord,
    grace_ms: u64,
    stamp: &Stamp,
) -> Admission<ContainerId> {
    let mut next = container.clone();
    next.incarnation += 1;
    let begun = ContainerRecord { desired: Desired::Running, failures_in_row: 0, ..container.clone() };
    let mut all = alloc::vec![steps::stop_step(container, grace_ms)];
    if sandbox.kind == SandboxKind::Container && container.desired == Desired::Stopped {
        // The stop that failed may have taken its network away.
        all.extend(steps::sandbox_up(records, sandbox, None));
    }
    all.push(Step::StartContainer(steps::container_plan(records, sandbox, &next)));
    let (subjects, uses) = scope(sandbox, container);
    let mut operation = stamp.operation(OperationKind::RestartContainer, &container.name, subjects, all);
    operation.resume = Resume::Finish;
    let id = container.id.clone();
    let changes = alloc::vec![Change::Container(begun)];
    Admission::Run { operation: Box::new(operation), changes, uses, about: id }
}

/// Containers whose end was their removal too, with their names; none that an open operation works on.
pub fn expired(records: &Records) -> Vec<(ContainerId, String)> {
    let ended = |container: &&ContainerRecord| {
        container.spec.remove_on_exit && matches!(container.state, RunState::Exited { .. })
    };
    let free = |container: &&ContainerRecord| {
        let subjects =
            [Subject::Container(container.id.clone()), Subject::Sandbox(container.sandbox.clone())];
        blocker(records, &subjects, &[]).is_none()
    };
    let expired = records.containers.values().filter(ended).filter(free);
    expired.map(|container| (container.id.clone(), container.name.clone())).collect()
}

/// What ends a container for good, without its sandbox.
pub(super) fn removal_steps(container: &ContainerRecord) -> Vec<Step> {
    let mut all = Vec::new();
    if container.running().is_some() {
        all.push(steps::stop_step(container, 0));
    } else if container.incarnation > 0 {
        all.push(Step::CleanContainer(container.id.clone(), container.incarnation));
    }
    all.push(Step::RemoveFiles(container.id.clone()));
    all
}

/// `rm`.
///
/// # Errors
/// `WrongState` when it runs and `force` is not given, and other [`Refusal`]s.
pub fn remove(
    records: &Records,
    wanted: &str,
    request: &RemoveRequest,
    stamp: &Stamp,
) -> Result<Admission<()>, Refusal> {
    let container = find::container(records, wanted)?;
    if container.running().is_some() && !request.force {
        let detail = format!("container {} is running; stop it or use --force", container.name);
        return Err(Refusal::new(RefusalCode::WrongState, detail));
    }
    let sandbox = sandbox_of(records, container)?;
    let mut all = removal_steps(container);
    let mut on_done = alloc::vec![Change::RemoveContainer(container.id.clone())];
    if sandbox.kind == SandboxKind::Container || mutant!(OwnsNetnsIgnored) {
        all.extend(steps::sandbox_down(records, sandbox));
    }
    if sandbox.kind == SandboxKind::Container {
        on_done.push(Change::RemoveSandbox(sandbox.id.clone()));
    }
    let (subjects, uses) = scope(sandbox, container);
    let mut operation = stamp.operation(OperationKind::RemoveContainer, &container.name, subjects, all);
    operation.resume = Resume::Finish;
    operation.on_done = on_done;
    let changes = alloc::vec![Change::Container(stopped(container))];
    Ok(Admission::Run { operation: Box::new(operation), changes, uses, about: () })
}
