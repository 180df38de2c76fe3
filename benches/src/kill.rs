//! Kills, and how long until what was killed is there again.

use anyhow::{Context, Result};
use holdfast_benches::sample::Sample;
use holdfast_chaos::{
    identity::Identity,
    image,
    node::{Processes, Role},
    process::{self, Process},
    stage::{HEAL_DEADLINE, Stage, Traffic},
    traffic::Pinger,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::{Duration, Instant},
};

/// Workloads of the replug.
const REPLUGGED: usize = 10;

/// Runs and prints all of it.
///
/// # Errors
/// When the node does not heal.
pub fn measure(identity: &Arc<Identity>, runs: u32) -> Result<()> {
    let stage = Stage::populated(identity)?;
    let mut traffic = stage.traffic()?;
    let workloads = stage.workloads()?;
    let from = workloads["peer"].running()?;
    traffic.ping = Pinger::start(identity, from, workloads["web"].ipv4()?, Duration::from_millis(1))?;
    traffic.ping.await_answer(HEAL_DEADLINE)?;
    for (name, roles) in [
        ("pin killed → a new pin holds the router", &[Role::Pin][..]),
        ("control killed → serving again", &[Role::Control]),
        ("uplink killed → whole again", &[Role::Uplink]),
        ("daemon killed → whole again", &[Role::Daemon]),
        ("all four killed → whole again", &Role::ALL),
    ] {
        let (mut sample, mut lost, mut sent) = (Sample::default(), 0, 0);
        for _ in 0..runs {
            let (took, pings) = kill(&stage, &mut traffic, roles)?;
            sample.add(took);
            lost += pings.0;
            sent += pings.1;
        }
        println!("{name:<44} {sample}   {lost} of {sent} pings lost at 1 kHz");
    }
    drop(traffic);
    stage.finish()?;
    let sample = replug(identity, runs)?;
    println!("{:<44} {sample}", format!("no keeper left → {REPLUGGED} workloads replugged"));
    Ok(())
}

fn kill(stage: &Stage, traffic: &mut Traffic, roles: &[Role]) -> Result<(Duration, (u64, u64))> {
    let before = stage.node.await_processes("the node to be whole", HEAL_DEADLINE, |_| true)?;
    let router = stage.node.router(&before)?;
    traffic.ping.mark()?;
    let known: BTreeSet<u32> = process::all().into_iter().collect();
    let victims: Vec<Process> = roles.iter().map(|role| before.get(*role)).collect();
    let started = Instant::now();
    for victim in &victims {
        victim.signal(libc::SIGKILL)?;
    }
    let changed = |now: &Processes| roles.iter().all(|role| now.get(*role) != before.get(*role));
    let took = if roles == [Role::Pin] {
        // Faster than a command: watch for it in /proc, then ask which of those seen it was.
        let seen = watch_router(router, &known, started, Duration::from_millis(100));
        let after = stage.node.await_processes("the node to heal", HEAL_DEADLINE, changed)?;
        seen.get(&after.pin.pid)
            .copied()
            .context("the new pin came later than 100 ms after the old one's death")?
    } else {
        stage.node.await_processes("the node to heal", HEAL_DEADLINE, changed)?;
        started.elapsed()
    };
    let report = traffic.ping.report()?;
    Ok((took, (report.lost, report.sent)))
}

/// When each process that is new was first seen in the router's network namespace.
fn watch_router(
    router: u64,
    known: &BTreeSet<u32>,
    started: Instant,
    span: Duration,
) -> BTreeMap<u32, Duration> {
    let mut seen = BTreeMap::new();
    while started.elapsed() < span {
        for pid in process::all() {
            if !known.contains(&pid)
                && !seen.contains_key(&pid)
                && process::namespace(pid, "net") == Some(router)
            {
                seen.insert(pid, started.elapsed());
            }
        }
    }
    seen
}

/// Everything but the workloads is killed; the time includes the start of the daemon, which is among the dead.
fn replug(identity: &Arc<Identity>, runs: u32) -> Result<Sample> {
    let stage = Stage::empty(identity)?;
    let node = &stage.node;
    let names: Vec<String> = (0..REPLUGGED).map(|number| format!("w{number}")).collect();
    let mut sample = Sample::default();
    for _ in 0..runs {
        let mut monitors = Vec::new();
        for name in &names {
            // New ones each time: a monitor that was killed is not replaced under a running container.
            node.sh(&format!("run -d --name {name} {} {}", image::NAME, image::PAUSE[0]))?;
            monitors.extend(node.await_running(name, HEAL_DEADLINE)?.monitor);
        }
        let before = node.await_processes("the node to be whole", HEAL_DEADLINE, |_| true)?;
        let mut victims = before.all().to_vec();
        victims.extend(monitors);
        let started = Instant::now();
        process::kill_all(&victims)?;
        node.await_processes("the node to heal", HEAL_DEADLINE, |now| now.pin != before.pin)?;
        sample.add(started.elapsed());
        for name in &names {
            node.sh(&format!("rm --force {name}"))?;
        }
    }
    stage.finish()?;
    Ok(sample)
}
