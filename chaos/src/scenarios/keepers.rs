//! The node's own processes die; the router lives.

use super::Context;
use crate::{
    node::{Processes, Role},
    poll,
    process::{self, Process},
    report::Outcome,
    stage::{HEAL_DEADLINE, Healing, Stage, Traffic, Workloads, check_untouched},
};
use anyhow::{Result, ensure};
use std::time::Duration;

/// Every role but those of `killed` must be on the process it was on.
fn check_others(killed: &[Role], before: &Processes, after: &Processes) -> Result<()> {
    for role in Role::ALL.into_iter().filter(|role| !killed.contains(role)) {
        let (was, is) = (before.get(role), after.get(role));
        ensure!(was == is, "{} changed from pid {was} to {is} although it was not killed", role.name());
    }
    Ok(())
}

fn check_no_loss(healing: &Healing) -> Result<()> {
    ensure!(healing.router_kept, "the router's network namespace was replaced");
    ensure!(
        healing.ping.lost == 0,
        "{} of {} pings lost, {} ms in a row",
        healing.ping.lost,
        healing.ping.sent,
        healing.ping.outage_ms
    );
    Ok(())
}

/// Kills these roles on a populated stage and checks what must hold whenever the router lives.
fn kill(context: &Context, killed: &[Role]) -> Result<Outcome> {
    let stage = Stage::populated(&context.identity)?;
    let before = stage.workloads()?;
    let mut traffic = stage.traffic()?;
    let healing = stage.strike(&mut traffic, killed, &[])?;
    check_others(killed, &healing.before, &healing.after)?;
    check_no_loss(&healing)?;
    if !killed.contains(&Role::Uplink) {
        ensure!(healing.http.failed == 0, "{} requests to the published port failed", healing.http.failed);
    }
    settle(&stage, traffic, &before)?;
    stage.finish()?;
    Ok(Outcome::Pass(summary(&healing)))
}

fn settle(stage: &Stage, mut traffic: Traffic, before: &Workloads) -> Result<()> {
    traffic.stream.await_progress(HEAL_DEADLINE)?;
    traffic.stream.finish(HEAL_DEADLINE)?;
    check_untouched(before, &stage.workloads()?)?;
    stage.check_reach()
}

fn summary(healing: &Healing) -> String {
    format!(
        "whole again after {:.0} ms, {} of {} pings lost, {} of {} requests failed",
        healing.healed.as_secs_f64() * 1e3,
        healing.ping.lost,
        healing.ping.sent,
        healing.http.failed,
        healing.http.failed + healing.http.answered,
    )
}

pub fn control_restart(context: &Context) -> Result<Outcome> {
    kill(context, &[Role::Control])
}

pub fn pin_kill(context: &Context) -> Result<Outcome> {
    kill(context, &[Role::Pin])
}

pub fn uplink_kill(context: &Context) -> Result<Outcome> {
    kill(context, &[Role::Uplink])
}

pub fn all_at_once(context: &Context) -> Result<Outcome> {
    kill(context, &Role::ALL)
}

pub fn daemon_restart(context: &Context) -> Result<Outcome> {
    let stage = Stage::populated(&context.identity)?;
    let before = stage.workloads()?;
    let mut traffic = stage.traffic()?;
    let healing = stage.strike(&mut traffic, &[Role::Daemon], &[])?;
    check_others(&[Role::Daemon], &healing.before, &healing.after)?;
    check_no_loss(&healing)?;
    ensure!(healing.http.failed == 0, "{} requests to the published port failed", healing.http.failed);
    // Asked to end, it ends by itself, and takes nothing with it.
    healing.after.daemon.signal(libc::SIGTERM)?;
    healing.after.daemon.await_death(Duration::from_secs(10))?;
    let again = stage
        .node
        .await_processes("a new daemon", HEAL_DEADLINE, |now| now.daemon != healing.after.daemon)?;
    check_others(&[Role::Daemon], &healing.after, &again)?;
    settle(&stage, traffic, &before)?;
    stage.finish()?;
    Ok(Outcome::Pass(summary(&healing)))
}

pub fn pin_idle(context: &Context) -> Result<Outcome> {
    let stage = Stage::empty(&context.identity)?;
    let processes = stage.node.await_processes("the node to be whole", HEAL_DEADLINE, |_| true)?;
    let pin = processes.pin;
    for signal in [libc::SIGHUP, libc::SIGTERM, libc::SIGINT] {
        pin.signal(signal)?;
    }
    poll::rest(Duration::from_millis(100));
    ensure!(pin.is_alive(), "SIGHUP, SIGTERM or SIGINT ended the pin");
    let threads = std::fs::read_dir(format!("/proc/{}/task", pin.pid))?.count();
    ensure!(threads == 1, "the pin has {threads} threads");
    let open: Vec<String> =
        process::descriptors(pin.pid).into_values().filter(|target| target != "/dev/null").collect();
    ensure!(open.is_empty(), "the pin holds {}", open.join(", "));
    let resident = process::resident_kib(pin.pid).unwrap_or(u64::MAX);
    ensure!(resident < 2048, "the pin keeps {resident} KiB in memory");
    stage.finish()?;
    Ok(Outcome::Pass(format!("one thread, no descriptor, {resident} KiB")))
}

pub fn all_keepers_but_one(context: &Context) -> Result<Outcome> {
    let stage = Stage::populated(&context.identity)?;
    let before = stage.workloads()?;
    let mut traffic = stage.traffic()?;
    let mut lines = Vec::new();
    for survivor in Role::ALL {
        // The survivor's peers die as one: stopped first, so that a daemon that survives sees all deaths at once.
        let killed: Vec<Role> = Role::ALL.into_iter().filter(|role| *role != survivor).collect();
        let monitors = stage.monitors()?;
        let healing = stage.strike(&mut traffic, &killed, &monitors)?;
        check_no_loss(&healing).map_err(|error| error.context(format!("only {} left", survivor.name())))?;
        lines.push(format!("{} {:.0} ms", survivor.name(), healing.healed.as_secs_f64() * 1e3));
        revive_monitors(&stage)?;
        // Restarting containers for their monitors ends the helpers' peers: new traffic for the next turn.
        drop(traffic);
        traffic = stage.traffic()?;
    }
    let survivor: Process = stage.monitors()?[0];
    let others: Vec<Process> = stage.monitors()?.into_iter().filter(|monitor| *monitor != survivor).collect();
    let healing = stage.strike(&mut traffic, &Role::ALL, &others)?;
    check_no_loss(&healing).map_err(|error| error.context("only a monitor left"))?;
    lines.push(format!("monitor {:.0} ms", healing.healed.as_secs_f64() * 1e3));
    traffic.stream.finish(HEAL_DEADLINE)?;
    crate::stage::check_addresses(&before, &stage.workloads()?)?;
    stage.check_reach()?;
    stage.finish()?;
    Ok(Outcome::Pass(format!("alone: {}; no ping lost", lines.join(", "))))
}

/// A container whose monitor died gets a new one with its next start.
fn revive_monitors(stage: &Stage) -> Result<()> {
    for name in crate::stage::WORKLOADS {
        stage.node.sh(&format!("restart --time 1 {name}"))?;
    }
    let workloads = stage.workloads()?;
    ensure!(
        workloads.values().all(|container| container.monitor.is_some_and(Process::is_alive)),
        "a restarted container has no monitor"
    );
    Ok(())
}
