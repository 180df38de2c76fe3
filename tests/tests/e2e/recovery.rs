//! The five cases of bringing a node up, pids and addresses compared.

use crate::{runner::Context, support::whole};
use anyhow::{Context as _, Result, ensure};
use holdfast_chaos::{
    node::{Processes, Role},
    poll,
    process::{self, Process},
    stage::{HEAL_DEADLINE, Stage, Workloads, check_addresses, check_untouched},
    traffic::http_get,
};
use std::time::Duration;

/// Kills `roles` and `others` at once; the node before and after, and whether its router is the same one.
fn strike(stage: &Stage, roles: &[Role], others: &[Process]) -> Result<(Processes, Processes, bool)> {
    let before = whole(&stage.node)?;
    let router = stage.node.router(&before)?;
    let mut victims: Vec<Process> = roles.iter().map(|role| before.get(*role)).collect();
    victims.extend_from_slice(others);
    process::kill_all(&victims)?;
    stage.node.sh("up")?;
    let after = stage.node.await_processes("the node to heal", HEAL_DEADLINE, |now| {
        roles.iter().all(|role| now.get(*role) != before.get(*role))
    })?;
    for role in Role::ALL.into_iter().filter(|role| !roles.contains(role)) {
        ensure!(before.get(role) == after.get(role), "{} was replaced, and lived", role.name());
    }
    let kept = stage.node.router(&after)? == router;
    Ok((before, after, kept))
}

/// The workloads can talk as they could, and the published port answers.
pub fn check_works(stage: &Stage) -> Result<()> {
    let port = stage.published.context("nothing is published")?;
    poll::until("the published port to answer", HEAL_DEADLINE, || {
        Ok(http_get(port, Duration::from_secs(1)).ok().filter(|page| page == "held fast\n"))
    })?;
    stage.check_reach()?;
    let report = stage.node.json("network verify --all")?;
    let results = report["results"].as_array().context("network verify lists nothing")?;
    for result in results {
        ensure!(result["reached"] == result["allowed"], "network verify: {result}");
    }
    Ok(())
}

fn untouched_after(context: &Context, roles: &[Role]) -> Result<()> {
    let stage = Stage::populated(&context.identity)?;
    let before = stage.workloads()?;
    let (_, _, kept) = strike(&stage, roles, &[])?;
    ensure!(kept, "the router's network namespace was replaced");
    check_untouched(&before, &stage.workloads()?)?;
    check_works(&stage)?;
    stage.finish()
}

pub fn nothing(context: &Context) -> Result<()> {
    untouched_after(context, &[])
}

pub fn control(context: &Context) -> Result<()> {
    untouched_after(context, &[Role::Control])
}

pub fn adopt(context: &Context) -> Result<()> {
    untouched_after(context, &Role::ALL)
}

fn check_cures(workloads: &Workloads, cure: &str) -> Result<()> {
    for (name, container) in workloads {
        ensure!(
            container.last_cure.as_deref() == Some(cure),
            "{name} was {:?}, and should have been {cure}",
            container.last_cure
        );
    }
    Ok(())
}

pub fn replug(context: &Context) -> Result<()> {
    let stage = Stage::populated(&context.identity)?;
    let before = stage.workloads()?;
    let monitors = stage.monitors()?;
    let (_, _, kept) = strike(&stage, &Role::ALL, &monitors)?;
    ensure!(!kept, "the router survived all its keepers: this was no replug");
    let after = stage.workloads()?;
    check_untouched(&before, &after)?;
    check_cures(&after, "replugged")?;
    check_works(&stage)?;
    stage.finish()
}

pub fn rebuild(context: &Context) -> Result<()> {
    let stage = Stage::populated(&context.identity)?;
    let before = stage.workloads()?;
    let workloads: Vec<Process> =
        before.values().flat_map(|container| [container.monitor, container.init]).flatten().collect();
    let (_, _, kept) = strike(&stage, &Role::ALL, &workloads)?;
    ensure!(!kept, "the router survived everything");
    let after = poll::until("every workload to be restarted", HEAL_DEADLINE, || {
        let now = stage.workloads()?;
        Ok(before.iter().all(|(name, was)| now[name].init != was.init).then_some(now))
    })?;
    check_addresses(&before, &after)?;
    for (name, was) in &before {
        ensure!(after[name].restarts == was.restarts + 1, "{name}: {} restarts", after[name].restarts);
    }
    check_works(&stage)?;
    stage.finish()
}
