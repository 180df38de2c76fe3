//! What both sides do the same way: through core's drivers, on any World.

use crate::normal::Normal;
use anyhow::Result;
use holdfast_core::{
    bring_up::wants_plug,
    cure::Cure,
    driver::{self, BringUpReport, Session, Trigger},
    observed::Observed,
    ops::request::{DisconnectRequest, RemoveRequest, RequestError, StopRequest},
    record::{Records, SandboxRecord},
    world::{Ask, Probe, World},
};
use holdfast_sim::history::Action;
use std::collections::BTreeMap;

/// Bring-ups until nothing is left to do and no restart is held back.
const BRING_UPS_MAX: u32 = 10;

/// How long is waited for a packet that should come, and for one that should not, in milliseconds: one that comes does
/// so within a millisecond.
const REACH_TIMEOUT_MS: u64 = 2_000;
const SILENCE_TIMEOUT_MS: u64 = 50;

/// A node, simulated or real.
pub trait Side {
    /// Does one step and says what was answered.
    fn act(&mut self, action: &Action) -> Result<String>;
    /// What is there now.
    fn look(&mut self) -> Result<Normal>;
    /// Who reaches whom, tried.
    fn reach(&mut self) -> Result<Normal>;
}

/// A request, and the answer's kind.
pub async fn ask<W: World>(world: &W, session: &Session, action: &Action) -> String {
    let stop = StopRequest::default();
    let force = RemoveRequest { force: true };
    let told = match action {
        Action::Run(request) => driver::run_container(world, session, request).await.map(drop),
        Action::Stop(name) => driver::stop_container(world, session, name, &stop).await.map(drop),
        Action::Start(name) => driver::start_container(world, session, name).await.map(drop),
        Action::Restart(name) => driver::restart_container(world, session, name, &stop).await.map(drop),
        Action::Remove(name) => driver::remove_container(world, session, name, &force).await,
        Action::CreatePod(request) => driver::create_pod(world, session, request).await.map(drop),
        Action::RemovePod(name) => driver::remove_pod(world, session, name, &force).await,
        Action::CreateNetwork(request) => driver::create_network(world, session, request).await.map(drop),
        Action::RemoveNetwork(name) => driver::remove_network(world, session, name).await,
        Action::Connect(network, request) => {
            driver::connect_network(world, session, network, request).await.map(drop)
        }
        Action::Disconnect(network, workload) => {
            let request = DisconnectRequest { workload: workload.clone() };
            driver::disconnect_network(world, session, network, &request).await.map(drop)
        }
        Action::AddRoute(one, other) => driver::add_route(world, session, one, other).await,
        Action::RemoveRoute(one, other) => driver::remove_route(world, session, one, other).await,
        Action::TakeDown => driver::take_down(world, session, false).await.map(drop),
        Action::BringUp => return settle(world, session, Trigger::Death { who: "watched".to_owned() }).await,
        Action::Up => return settle(world, session, Trigger::Up).await,
        Action::Strike(kind) => return format!("{kind:?} is not asked for"),
    };
    match told {
        Ok(()) => "done".to_owned(),
        Err(RequestError::Refused(refusal)) => format!("refused: {:?}", refusal.code),
        Err(RequestError::Failed(error)) => {
            let undone = if error.undo_failures.is_empty() { "undone" } else { "not undone" };
            format!("failed: {:?}, {undone}", error.cause.class())
        }
        Err(RequestError::Store(error)) => format!("not written down: {:?}", error.class),
    }
}

/// Brings the node up until nothing is left to do, and tells what is common to all ways there: the case that was
/// met, who got which cure, who is whole.
async fn settle<W: World>(world: &W, session: &Session, trigger: Trigger) -> String {
    let mut case = None;
    let mut cures: BTreeMap<String, Cure> = BTreeMap::new();
    let mut resumed = Vec::new();
    let mut last: Option<BringUpReport> = None;
    for _ in 0..BRING_UPS_MAX {
        let report = driver::bring_up(world, session, trigger.clone()).await;
        case.get_or_insert(report.case);
        for name in &report.recovered {
            let cure = report.cures.get(name).copied().unwrap_or(Cure::Untouched);
            let harshest = cures.entry(name.clone()).or_insert(cure);
            *harshest = (*harshest).max(cure);
        }
        resumed.extend(report.resumed.iter().map(ToString::to_string));
        let whole = report.down || (report.converged && report.next_due.is_none());
        if let Some(due) = report.next_due {
            world.sleep(due.since(world.now())).await;
        }
        last = Some(report);
        if whole {
            break;
        }
    }
    let Some(last) = last else { return "never brought up".to_owned() };
    let failed: Vec<&String> = last.failed.keys().collect();
    format!(
        "down {}, case {case:?}, recovered {cures:?}, resumed {resumed:?}, converged {}, failed {failed:?}, errors {:?}",
        last.down, last.converged, last.errors
    )
}

/// Looks at everything, and at the records that explain it.
pub async fn observe<W: World>(world: &W) -> Result<(Observed, Records)> {
    let observed = driver::observe(world).await?;
    Ok((observed, world.read(Records::clone).await))
}

/// Tries every pair of plugged sandboxes, over both families.
pub async fn reach<W: World>(world: &W) -> Result<Normal> {
    let records = world.read(Records::clone).await;
    let wanted =
        |sandbox: &&SandboxRecord| wants_plug(sandbox, &records.members(&sandbox.id).collect::<Vec<_>>());
    let plugged: Vec<&SandboxRecord> = records.sandboxes.values().filter(wanted).collect();
    let mut normal = Normal::default();
    for (from, to) in plugged.iter().flat_map(|from| plugged.iter().map(move |to| (from, to))) {
        let links = to.attachments.iter().filter(|_| from.id != to.id);
        for address in links.flat_map(|link| [link.ipv4.into(), link.ipv6.into()]) {
            let allowed = driver::may_reach(&records, from, address);
            let timeout_ms = if allowed { REACH_TIMEOUT_MS } else { SILENCE_TIMEOUT_MS };
            let ask = Ask::default();
            let probe = Probe { from: from.id.clone(), to: to.id.clone(), address, timeout_ms, ask };
            normal.reached((&from.name, &to.name, address), world.probe(&probe).await?, allowed);
        }
    }
    Ok(normal)
}
