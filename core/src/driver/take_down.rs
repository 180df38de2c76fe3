//! Takes the node down, with or without its workloads.

use super::{bring_up::observe, operation::run_step, session::Session};
use crate::{
    error::{Refusal, RefusalCode},
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
use futures_util::future::join_all;
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
    // Containers side by side: each may use its whole grace. What they stand on goes after the last of them.
    for chunk in plan.containers.chunks(STOPS_AT_ONCE) {
        let results = join_all(chunk.iter().map(|(_, step)| run_step(world, step))).await;
        for ((name, step), result) in chunk.iter().zip(results) {
            match result {
                Ok(()) => report.stopped.extend(name.clone()),
                Err(error) => report.errors.push(format!("{step}: {error}")),
            }
        }
    }
    for step in plan.node {
        if let Err(error) = run_step(world, &step).await {
            report.errors.push(format!("{step}: {error}"));
        }
    }
    Ok(report)
}

/// Containers that are ended at the same time.
const STOPS_AT_ONCE: usize = 64;

struct DownPlan {
    containers: Vec<(Option<String>, Step)>,
    node: Vec<Step>,
    kept: Vec<String>,
}

fn plan_down(records: &Records, observed: &Observed, keep_workloads: bool) -> DownPlan {
    let mut plan = DownPlan { containers: Vec::new(), node: Vec::new(), kept: Vec::new() };
    for container in records.containers.values() {
        let alive = observed.containers.get(&container.id).is_some_and(|seen| seen.init.is_some());
        match (alive, keep_workloads) {
            (true, true) => plan.kept.push(container.name.clone()),
            (true, false) => {
                let step = steps::stop_step(container, container.spec.stop_grace_ms);
                plan.containers.push((Some(container.name.clone()), step));
            }
            (false, _) if container.incarnation > 0 && !keep_workloads => {
                let step = Step::CleanContainer(container.id.clone(), container.incarnation);
                plan.containers.push((None, step));
            }
            (false, _) => {}
        }
    }
    let mut end = |step| plan.node.push(step);
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
