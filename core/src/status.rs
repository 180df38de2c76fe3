//! What `holdfast status` says: observed, beside what is recorded, and everything that is not whole by name.

use crate::{
    bring_up::{BringUpPlan, Case, plan_bring_up},
    cure::Cure,
    driver::{Session, observe},
    error::WorldError,
    id::ProcessRef,
    journal::OperationKind,
    observed::{ControlObserved, Observed, ServiceObserved, UplinkObserved},
    ops::busy_subjects,
    record::{ContainerRecord, Quarantined, Records, RunState, SandboxKind, SandboxRecord},
    time::Wall,
    world::World,
};
use alloc::{
    collections::BTreeMap,
    format,
    string::{String, ToString},
    vec::Vec,
};
use core::net::IpAddr;
use serde::{Deserialize, Serialize};

/// The whole status.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StatusReport {
    /// `up`, `degraded` or `down`.
    pub state: NodeState,
    /// What a bring-up would do now; `nothing` on a whole node.
    pub case: Case,
    /// The node's processes, the daemon excepted, which adds itself.
    pub processes: Vec<ProcessStatus>,
    /// Services that the control gives workloads, as it says of them; none where no control answers.
    #[serde(default)]
    pub services: Vec<ServiceObserved>,
    /// Networks.
    pub networks: Vec<NetworkStatus>,
    /// Pods and single containers.
    pub workloads: Vec<WorkloadStatus>,
    /// What is not whole.
    pub degraded: Vec<Degraded>,
    /// Records that cannot be read.
    pub quarantined: Vec<Quarantined>,
    /// Operations under way, or waiting to be undone.
    pub operations: Vec<(OperationKind, String)>,
    /// Cures so far, by name, over all workloads; and `repaired`, how often what others had changed was put right.
    pub cures: BTreeMap<String, u64>,
    /// Routers built so far.
    pub router_generation: u64,
}

/// The node in one word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NodeState {
    /// Whole.
    Up,
    /// Something is not whole; `degraded` names it.
    Degraded,
    /// The user took it down.
    Down,
}

/// One process of the node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessStatus {
    /// pin, control, uplink or daemon.
    pub role: String,
    /// `running`, `absent`, or what is wrong with it.
    pub state: String,
    /// The process, if it lives.
    pub process: Option<ProcessRef>,
    /// Whether it lives in the pin's namespaces; `None` for one that should not.
    pub in_pin: Option<bool>,
}

/// One network.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetworkStatus {
    /// Name.
    pub name: String,
    /// IPv4 subnet.
    pub subnet4: String,
    /// IPv6 subnet.
    pub subnet6: String,
    /// Bridge in the router.
    pub bridge: String,
    /// Whether the bridge is complete; `None` when nobody could look.
    pub complete: Option<bool>,
    /// Sandboxes attached by the records.
    pub workloads: usize,
}

/// One pod or single container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkloadStatus {
    /// Name.
    pub name: String,
    /// `pod` or `container`.
    pub kind: SandboxKind,
    /// Tenant.
    pub tenant: String,
    /// Addresses.
    pub addresses: Vec<IpAddr>,
    /// Published ports.
    pub ports: Vec<String>,
    /// The last cure that was not "untouched".
    pub last_cure: Option<Cure>,
    /// Members.
    pub containers: Vec<ContainerStatus>,
}

/// One container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContainerStatus {
    /// Name.
    pub name: String,
    /// Identity.
    pub id: String,
    /// running, exited, waiting, created, failed, lost.
    pub state: String,
    /// Exit code, where it ended and somebody could read it.
    pub exit_code: Option<i32>,
    /// The first process, if it lives.
    pub init: Option<ProcessRef>,
    /// The monitor, if it lives.
    pub monitor: Option<ProcessRef>,
    /// Since when it runs or since when it ended.
    pub since: Option<Wall>,
    /// Starts that nobody asked for.
    pub restarts: u32,
}

/// Something that is not whole.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Degraded {
    /// What.
    pub what: String,
    /// Why.
    pub cause: String,
    /// What a person can do.
    pub remedy: String,
}

/// Looks, and says what there is.
///
/// # Errors
/// When the node cannot be looked at.
pub async fn report<W: World>(world: &W, _session: &Session) -> Result<StatusReport, WorldError> {
    let observed = observe(world).await?;
    let wall = world.wall();
    Ok(world.read(|records| status_of(&observed, records, wall)).await)
}

/// The status out of one observation and the records.
pub fn status_of(observed: &Observed, records: &Records, wall: Wall) -> StatusReport {
    let plan = plan_bring_up(observed, records, wall, &busy_subjects(records));
    let down = records.node.as_ref().is_none_or(|node| node.down);
    let degraded = if down { Vec::new() } else { degraded(observed, records, &plan) };
    let state = match (down, degraded.is_empty()) {
        (true, _) => NodeState::Down,
        (false, true) => NodeState::Up,
        (false, false) => NodeState::Degraded,
    };
    let members = records.members_by_sandbox();
    let workloads = records
        .sandboxes
        .values()
        .map(|sandbox| workload(observed, sandbox, members.of(&sandbox.id)))
        .collect();
    StatusReport {
        state,
        case: plan.case,
        processes: processes(observed),
        services: observed.router.as_ref().map(|router| router.services.clone()).unwrap_or_default(),
        networks: networks(observed, records),
        workloads,
        degraded,
        quarantined: records.quarantined.clone(),
        operations: records.operations.values().map(|open| (open.kind, open.name.clone())).collect(),
        cures: records.node.as_ref().map(|node| node.cures.clone()).unwrap_or_default(),
        router_generation: records.node.as_ref().map_or(0, |node| node.router_generation),
    }
}

fn processes(observed: &Observed) -> Vec<ProcessStatus> {
    let status = |role: &str, state: &str, process: Option<&ProcessRef>, in_pin| ProcessStatus {
        role: role.to_string(),
        state: state.to_string(),
        process: process.cloned(),
        in_pin,
    };
    let pin = observed.keepers.pin.as_ref();
    let pin = status("pin", if pin.is_some() { "running" } else { "absent" }, pin, Some(pin.is_some()));
    let control = match &observed.keepers.control {
        ControlObserved::Absent => status("control", "absent", None, Some(false)),
        ControlObserved::Answering(process) => status("control", "running", Some(process), Some(true)),
        ControlObserved::Foreign(process, why) => status("control", why, Some(process), Some(false)),
        ControlObserved::Silent(process) => status("control", "does not answer", process.as_ref(), None),
    };
    let uplink = match &observed.uplink {
        UplinkObserved::Absent => status("uplink", "absent", None, None),
        UplinkObserved::Serving { process, .. } => status("uplink", "running", Some(process), None),
        UplinkObserved::Broken(process, why) => status("uplink", why, Some(process), None),
    };
    alloc::vec![pin, control, uplink]
}

fn networks(observed: &Observed, records: &Records) -> Vec<NetworkStatus> {
    let mut users: BTreeMap<&crate::id::NetworkId, usize> = BTreeMap::new();
    for attachment in records.sandboxes.values().flat_map(|sandbox| &sandbox.attachments) {
        *users.entry(&attachment.network).or_default() += 1;
    }
    let complete = |id: &crate::id::NetworkId| {
        let router = observed.router.as_ref()?;
        Some(router.networks.get(id).is_some_and(|bridge| bridge.complete))
    };
    let status = |network: &crate::record::NetworkRecord| NetworkStatus {
        name: network.name.clone(),
        subnet4: format!("{}/{}", network.subnet4, network.prefix4),
        subnet6: format!("{}/64", network.subnet6),
        bridge: format!("hfbr{}", network.index),
        complete: complete(&network.id),
        workloads: users.get(&network.id).copied().unwrap_or(0),
    };
    records.networks.values().map(status).collect()
}

fn workload(observed: &Observed, sandbox: &SandboxRecord, members: &[&ContainerRecord]) -> WorkloadStatus {
    let addresses = sandbox
        .attachments
        .iter()
        .flat_map(|attachment| [IpAddr::V4(attachment.ipv4), IpAddr::V6(attachment.ipv6)]);
    WorkloadStatus {
        name: sandbox.name.clone(),
        kind: sandbox.kind,
        tenant: sandbox.tenant.to_string(),
        addresses: addresses.collect(),
        ports: sandbox.ports.iter().map(|port| port.spec.to_string()).collect(),
        last_cure: sandbox.last_cure,
        containers: members.iter().map(|member| container(observed, member)).collect(),
    }
}

/// A container as it was just seen, not as it was last written down.
pub fn container(observed: &Observed, record: &ContainerRecord) -> ContainerStatus {
    let seen = observed.containers.get(&record.id);
    let init = seen.and_then(|seen| seen.init.clone());
    let (state, exit_code, since) = match (&init, &record.state) {
        (Some(_), RunState::Running { since, .. }) => ("running", None, Some(*since)),
        (Some(_), _) => ("running", None, None),
        (None, RunState::Running { .. }) => match seen.and_then(|seen| seen.exit) {
            Some(exit) => ("exited", exit.code, None),
            None => ("lost", None, None),
        },
        (None, RunState::Created) => ("created", None, None),
        (None, RunState::Waiting { exit_code, .. }) => ("waiting", *exit_code, None),
        (None, RunState::Exited { exit_code, at }) => ("exited", *exit_code, Some(*at)),
        (None, RunState::Failed { at, .. }) => ("failed", None, Some(*at)),
    };
    ContainerStatus {
        name: record.name.clone(),
        id: record.id.to_string(),
        state: state.to_string(),
        exit_code,
        init,
        monitor: seen.and_then(|seen| seen.monitor.clone()),
        since,
        restarts: record.restarts,
    }
}

fn degraded(observed: &Observed, records: &Records, plan: &BringUpPlan) -> Vec<Degraded> {
    let mut found = Vec::new();
    let mut say = |what: String, cause: String, remedy: &str| {
        found.push(Degraded { what, cause, remedy: remedy.to_string() });
    };
    for step in &plan.node {
        say(
            "node".to_string(),
            format!("needs to {step}"),
            "the daemon does it by itself; `holdfast up` does it now",
        );
    }
    for work in &plan.work {
        let cause = work.steps.first().map(|step| format!("needs to {step}")).unwrap_or_default();
        say(work.name.clone(), cause, "the daemon does it by itself; `holdfast up` does it now");
    }
    for (id, cause) in &plan.unwhole {
        let name = records.sandboxes.get(id).map_or_else(|| id.to_string(), |sandbox| sandbox.name.clone());
        say(name, cause.clone(), "look at `holdfast logs`, mend the cause, then `holdfast start` it");
    }
    for container in records.containers.values() {
        let seen = observed.containers.get(&container.id);
        if seen.is_some_and(|seen| seen.init.is_some() && seen.monitor.is_none()) {
            let cause =
                "its monitor (conmon) is dead: output is no longer logged, and an exit code may be lost"
                    .to_string();
            say(container.name.clone(), cause, "`holdfast restart` it when convenient");
        }
    }
    for service in observed.router.iter().flat_map(|router| &router.services) {
        if let Some(fault) = &service.fault {
            say(service.name.clone(), fault.clone(), "`holdfast doctor` looks closer; control.log has more");
        }
    }
    for record in &records.quarantined {
        let remedy = "the record is kept as it is; restore the database or remove the object by hand";
        say(format!("{} {}", record.kind, record.id), record.cause.clone(), remedy);
    }
    found
}
