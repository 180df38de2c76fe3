//! The router dies, or the workloads do.

use super::Context;
use crate::{
    node::Role,
    poll,
    privileged::Prepared,
    process::{self, Process},
    report::Outcome,
    stage::{HEAL_DEADLINE, Stage, WORKLOADS, Workloads, check_addresses, check_untouched},
    traffic::http_get,
};
use anyhow::{Context as _, Result, bail, ensure};
use std::{fs, time::Duration};

pub fn replug(context: &Context) -> Result<Outcome> {
    let stage = Stage::populated(&context.identity)?;
    let before = stage.workloads()?;
    let mut traffic = stage.traffic()?;
    let monitors = stage.monitors()?;
    let healing = stage.strike(&mut traffic, &Role::ALL, &monitors)?;
    ensure!(!healing.router_kept, "the router survived the death of all its keepers: this was no replug");
    traffic.stream.await_progress(HEAL_DEADLINE)?;
    let numbers = traffic.stream.finish(HEAL_DEADLINE)?;
    let after = stage.workloads()?;
    check_untouched(&before, &after)?;
    for (name, container) in &after {
        let cure = container.last_cure.as_deref().unwrap_or("untouched");
        ensure!(cure == "replugged", "{name} was {cure}, and should have been replugged");
    }
    stage.check_reach()?;
    stage.finish()?;
    Ok(Outcome::Pass(format!(
        "whole again after {:.0} ms, network away {:.0} ms, {numbers} numbers of the open streams in order",
        healing.healed.as_secs_f64() * 1e3,
        healing.ping.outage_ms
    )))
}

/// Waits until every workload runs on a process that is none of `dead`.
fn await_restarted(stage: &Stage, dead: &Workloads) -> Result<Workloads> {
    poll::until("every workload to be restarted", HEAL_DEADLINE, || {
        let now = stage.workloads()?;
        Ok(dead.iter().all(|(name, was)| now[name].init != was.init).then_some(now))
    })
}

pub fn everything_killed(context: &Context) -> Result<Outcome> {
    let stage = Stage::populated(&context.identity)?;
    let before = stage.workloads()?;
    let processes = stage.node.await_processes("the node to be whole", HEAL_DEADLINE, |_| true)?;
    let mut victims: Vec<Process> = processes.all().to_vec();
    victims.extend(before.values().flat_map(|container| [container.monitor, container.init]).flatten());
    let started = std::time::Instant::now();
    process::kill_all(&victims)?;
    stage.node.await_processes("the node to come back", HEAL_DEADLINE, |_| true)?;
    let after = await_restarted(&stage, &before)?;
    let took = started.elapsed();
    check_addresses(&before, &after)?;
    check_restart_counts(&before, &after)?;
    check_published(&stage)?;
    stage.check_reach()?;
    stage.finish()?;
    Ok(Outcome::Pass(format!(
        "{} workloads back at their addresses after {:.0} ms",
        after.len(),
        took.as_secs_f64() * 1e3
    )))
}

fn check_restart_counts(before: &Workloads, after: &Workloads) -> Result<()> {
    for (name, was) in before {
        let is = &after[name];
        ensure!(
            is.restarts == was.restarts + 1,
            "{name} was restarted once, and counts {} restarts, before {}",
            is.restarts,
            was.restarts
        );
    }
    Ok(())
}

fn check_published(stage: &Stage) -> Result<()> {
    let address = stage.published.context("nothing is published")?;
    poll::until("the published port to answer", HEAL_DEADLINE, || {
        Ok(http_get(address, Duration::from_secs(1)).ok().filter(|body| body == "held fast\n"))
    })
    .map(drop)
}

pub fn pod_recovery(context: &Context) -> Result<Outcome> {
    let stage = Stage::populated(&context.identity)?;
    let before = stage.workloads()?;
    let mut traffic = stage.traffic()?;
    traffic.ping.mark()?;
    // Both members, with and without their monitors.
    let pod: Workloads =
        before.iter().filter(|(name, _)| ["left", "right"].contains(&name.as_str())).map(clone).collect();
    let victims: Vec<Process> =
        pod.values().flat_map(|member| [member.monitor, member.init]).flatten().collect();
    process::kill_all(&victims)?;
    let after = await_restarted(&stage, &pod)?;
    check_addresses(&before, &after)?;
    stage.check_reach()?;
    // One member: the other one keeps its process, and the one that comes back joins its namespaces.
    let (left, right) = (after["left"].running()?, after["right"].running()?);
    let net = process::namespace(right.pid, "net");
    process::kill_all(&[left])?;
    let one: Workloads = after.iter().filter(|(name, _)| name.as_str() == "left").map(clone).collect();
    let last = await_restarted(&stage, &one)?;
    ensure!(last["right"].init == Some(right), "right was restarted because left was killed");
    for kind in ["net", "ipc", "uts"] {
        let [of_left, of_right] = [&last["left"], &last["right"]]
            .map(|member| member.init.and_then(|init| process::namespace(init.pid, kind)));
        ensure!(
            of_left.is_some() && of_left == of_right,
            "left came back with another {kind} namespace than right"
        );
    }
    ensure!(process::namespace(right.pid, "net") == net, "the pod's network namespace was replaced");
    let ping = traffic.ping.report()?;
    ensure!(ping.lost == 0, "{} pings between the others were lost", ping.lost);
    traffic.stream.finish(HEAL_DEADLINE)?;
    for name in ["web", "peer"] {
        ensure!(before[name].init == last[name].init, "{name} was restarted because the pod was");
    }
    stage.check_reach()?;
    stage.finish()?;
    Ok(Outcome::Pass(format!(
        "two members, then one, back in their pod; {} pings elsewhere, none lost",
        ping.sent
    )))
}

fn clone((name, container): (&String, &crate::node::Container)) -> (String, crate::node::Container) {
    (name.clone(), container.clone())
}

pub fn keep_workloads(context: &Context) -> Result<Outcome> {
    let stage = Stage::populated(&context.identity)?;
    let before = stage.workloads()?;
    let processes = stage.node.await_processes("the node to be whole", HEAL_DEADLINE, |_| true)?;
    stage.node.sh("down --keep-workloads")?;
    processes.pin.await_death(Duration::from_secs(10))?;
    processes.uplink.await_death(Duration::from_secs(10))?;
    for name in WORKLOADS {
        ensure!(before[name].running()?.is_alive(), "`down --keep-workloads` ended {name}");
    }
    stage.node.up()?;
    check_untouched(&before, &stage.workloads()?)?;
    check_published(&stage)?;
    stage.check_reach()?;
    stage.finish()?;
    Ok(Outcome::Pass(format!("{} workloads on the processes they had", before.len())))
}

pub fn reboot(context: &Context) -> Result<Outcome> {
    let Prepared::BootId(boot_id) = &context.prepared else { bail!("no boot id to change was prepared") };
    let stage = Stage::populated(&context.identity)?;
    let before = stage.workloads()?;
    let processes = stage.node.await_processes("the node to be whole", HEAL_DEADLINE, |_| true)?;
    let mut victims: Vec<Process> = processes.all().to_vec();
    victims.extend(before.values().flat_map(|container| [container.monitor, container.init]).flatten());
    process::kill_all(&victims)?;
    // A reboot leaves no process, an empty runtime directory (a tmpfs), and another boot id.
    for entry in fs::read_dir(&stage.node.runtime)? {
        let path = entry?.path();
        if path.is_dir() { fs::remove_dir_all(path)? } else { fs::remove_file(path)? }
    }
    fs::write(boot_id, "11111111-2222-4333-8444-555555555555\n")?;
    stage.node.up()?;
    let after = await_restarted(&stage, &before)?;
    check_addresses(&before, &after)?;
    check_published(&stage)?;
    stage.check_reach()?;
    stage.finish()?;
    Ok(Outcome::Pass(format!("{} workloads back at their addresses", after.len())))
}
