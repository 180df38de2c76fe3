//! Takes the node down, with or without its workloads.

use super::{
    bring_up::observe,
    operation::commit,
    perform::{changes_of, perform},
    session::Session,
};
use crate::{
    error::{Refusal, RefusalCode, WorldError},
    observed::{ControlObserved, Observed, UplinkObserved},
    ops::request::RequestError,
    plan::Step,
    record::{Change, NodeRecord, Records},
    steps,
    world::{Durability, World},
};
use alloc::{
    format,
    string::{String, ToString},
    vec::Vec,
};
use serde::{Deserialize, Serialize};

/// What going down did.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DownReport {
    /// Containers that were ended; they come back with `up`.
    pub stopped: Vec<String>,
    /// Containers that were left running.
    pub kept: Vec<String>,
    /// What went wrong; empty when all went well.
    pub errors: Vec<String>,
}

/// Takes the node down. Desired states are kept: `up` brings everything back.
///
/// # Errors
/// When the intent cannot be written down, or the node cannot be looked at.
pub async fn take_down<W: World>(
    world: &W,
    _session: &Session,
    keep_workloads: bool,
) -> Result<DownReport, RequestError> {
    let open = world.transact(Durability::Power, |records| {
        if let Some(open) = records.operations.values().next() {
            let detail = format!("{} {} is not finished yet; try again in a moment", open.kind, open.name);
            return Err(Refusal::new(RefusalCode::Busy, detail));
        }
        let node = records.node.clone().map(|node| Change::Node(NodeRecord { down: true, ..node }));
        Ok((node.into_iter().collect(), ()))
    });
    open.await??;
    let mut report = DownReport::default();
    let observed = match observe(world).await {
        Ok(observed) => observed,
        Err(error) => {
            report.errors.push(error.to_string());
            return Ok(report);
        }
    };
    let plan = world.read(|records| plan_down(records, &observed, keep_workloads)).await;
    report.kept = plan.kept;
    for (name, step) in plan.steps {
        match run_step(world, &step).await {
            Ok(()) => report.stopped.extend(name),
            Err(error) => report.errors.push(format!("{step}: {error}")),
        }
    }
    Ok(report)
}

struct DownPlan {
    steps: Vec<(Option<String>, Step)>,
    kept: Vec<String>,
}

fn plan_down(records: &Records, observed: &Observed, keep_workloads: bool) -> DownPlan {
    let mut plan = DownPlan { steps: Vec::new(), kept: Vec::new() };
    for container in records.containers.values() {
        let alive = observed.containers.get(&container.id).is_some_and(|seen| seen.init.is_some());
        match (alive, keep_workloads) {
            (true, true) => plan.kept.push(container.name.clone()),
            (true, false) => {
                let step = steps::stop_step(container, container.spec.stop_grace_ms);
                plan.steps.push((Some(container.name.clone()), step));
            }
            (false, _) if container.incarnation > 0 && !keep_workloads => {
                plan.steps.push((None, Step::CleanContainer(container.id.clone(), container.incarnation)));
            }
            (false, _) => {}
        }
    }
    let mut end = |step| plan.steps.push((None, step));
    match &observed.uplink {
        UplinkObserved::Serving { process, .. } | UplinkObserved::Broken(process, _) => {
            end(Step::StopUplink(process.clone()));
        }
        UplinkObserved::Absent => {}
    }
    match &observed.keepers.control {
        ControlObserved::Answering(process)
        | ControlObserved::Foreign(process, _)
        | ControlObserved::Silent(Some(process)) => end(Step::StopControl(process.clone())),
        ControlObserved::Absent | ControlObserved::Silent(None) => {}
    }
    if let Some(pin) = &observed.keepers.pin {
        end(Step::StopPin(pin.clone()));
    }
    plan
}

async fn run_step<W: World>(world: &W, step: &Step) -> Result<(), WorldError> {
    let fact = perform(world, step).await?;
    let (now, wall) = (world.now(), world.wall());
    commit(world, Durability::Process, |records| changes_of(records, step, &fact, now, wall)).await?;
    Ok(())
}
