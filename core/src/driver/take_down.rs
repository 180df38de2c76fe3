//! Takes the node down, with or without its workloads.

use super::{
    bring_up::observe,
    operation::{close, run_step},
    session::Session,
};
use crate::{
    error::{Refusal, RefusalCode},
    id::{self, OperationId},
    journal::{OperationKind, OperationRecord, Phase, Resume, Subject},
    observed::{ControlObserved, Observed, UplinkObserved},
    ops::request::RequestError,
    plan::Step,
    record::{Change, NodeRecord, Records},
    steps,
    time::Wall,
    world::{Durability, World},
};
use alloc::{
    format,
    string::{String, ToString},
    vec,
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
    session: &Session,
    keep_workloads: bool,
) -> Result<DownReport, RequestError> {
    let mut seed = [0_u8; 6];
    world.fill(&mut seed);
    let operation = going_down(OperationId::from_raw(id::new_id(seed)), session, world.wall());
    let open = world.transact(Durability::Power, |records| {
        // One whose daemon died in it: this one looks at everything once more. One that is under way is a lock like
        // any other, or the first to end would let the node come up under the hands of the other.
        let left = |open: &&OperationRecord| {
            open.kind == OperationKind::TakeDown && open.daemon_generation != session.daemon_generation
        };
        if let Some(open) = records.operations.values().find(|open| !left(open)) {
            let detail = format!("{} {} is not finished yet; try again in a moment", open.kind, open.name);
            return Err(Refusal::new(RefusalCode::Busy, detail));
        }
        let earlier =
            records.operations.values().filter(left).map(|open| Change::RemoveOperation(open.id.clone()));
        let node = records.node.clone().map(|node| Change::Node(NodeRecord { down: true, ..node }));
        let changes = earlier.chain(node).chain([Change::Operation(operation.clone())]);
        Ok((changes.collect(), ()))
    });
    open.await??;
    let mut report = run_down(world, keep_workloads).await;
    report.errors.extend(close(world, &operation, &[]).await);
    Ok(report)
}

/// While it is open nothing comes up, so that nothing that came up is ended.
fn going_down(id: OperationId, session: &Session, started: Wall) -> OperationRecord {
    OperationRecord {
        id,
        kind: OperationKind::TakeDown,
        subjects: vec![Subject::Node],
        name: String::from("node"),
        steps: Vec::new(),
        phase: Phase::Forward { done: 0 },
        resume: Resume::Replan,
        on_done: Vec::new(),
        on_undone: Vec::new(),
        daemon_generation: session.daemon_generation,
        started,
    }
}

async fn run_down<W: World>(world: &W, keep_workloads: bool) -> DownReport {
    let mut report = DownReport::default();
    let observed = match observe(world).await {
        Ok(observed) => observed,
        Err(error) => {
            report.errors.push(error.to_string());
            return report;
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
    report
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
