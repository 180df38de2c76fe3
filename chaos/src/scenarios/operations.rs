//! The daemon is killed at every moment of an operation: a sweep in steps of two milliseconds, from its start
//! until it is done before the blow. The next start finishes or undoes it; nothing in between may remain.

use super::Context;
use crate::{
    command, image,
    node::{COMMAND_DEADLINE, Node},
    poll,
    process::{self, Process},
    report::Outcome,
    stage::{HEAL_DEADLINE, Stage},
    traffic::ping_some,
};
use anyhow::{Context as _, Result, bail, ensure};
use std::{
    collections::BTreeSet,
    process::{Child, Stdio},
    time::{Duration, Instant},
};

/// Between two moments.
const STEP: Duration = Duration::from_millis(2);
/// The most moments of a sweep: bounds a slow machine.
const MOMENTS_MAX: u32 = 100;
/// So many operations in a row that were done before the blow end the sweep.
const DONE_IN_ROW: u32 = 3;

/// One operation of the sweep.
struct Sweep {
    /// Makes what the operation needs; not swept.
    prepare: fn(&Node) -> Result<()>,
    /// The operation.
    operation: &'static str,
    /// Waits until it is either done or undone, and tells which; anything else is an error.
    settled: fn(&Stage, Process) -> Result<Option<bool>>,
    /// Takes away what is left.
    clear: fn(&Node) -> Result<()>,
}

fn sweep(context: &Context, sweep: &Sweep) -> Result<Outcome> {
    let stage = Stage::empty(&context.identity)?;
    let node = &stage.node;
    node.sh("network create blue")?;
    node.sh(&format!("run -d --name peer --network blue {} {}", image::NAME, image::PAUSE[0]))?;
    let peer = node.await_running("peer", HEAL_DEADLINE)?.running()?;
    let (mut done, mut undone, mut in_row) = (0, 0, 0);
    for moment in 0..MOMENTS_MAX {
        let after = STEP * moment;
        (sweep.prepare)(node).with_context(|| format!("before moment {after:?}"))?;
        let processes = node.await_processes("the node to be whole", HEAL_DEADLINE, |_| true)?;
        let mut child = start(node, sweep.operation)?;
        let finished = ended_within(&mut child, after)?;
        process::kill_all(&[processes.daemon])?;
        let status = command::wait(&mut child, COMMAND_DEADLINE)
            .with_context(|| format!("{} whose daemon was killed after {after:?}", sweep.operation))?;
        node.await_processes("a new daemon", HEAL_DEADLINE, |now| now.daemon != processes.daemon)?;
        let is_done =
            poll::until(&format!("{} to be done or undone", sweep.operation), HEAL_DEADLINE, || {
                (sweep.settled)(&stage, peer)
            })
            .with_context(|| format!("daemon killed after {after:?}"))?;
        if status.success() && !is_done {
            bail!("{} reported success, and was undone after the daemon died at {after:?}", sweep.operation);
        }
        if is_done {
            done += 1
        } else {
            undone += 1
        }
        (sweep.clear)(node)?;
        in_row = if finished { in_row + 1 } else { 0 };
        if in_row >= DONE_IN_ROW {
            break;
        }
    }
    ensure!(peer.is_alive(), "peer died on the way");
    let steps = steps_hit(&node.log());
    stage.finish()?;
    let told =
        if steps.is_empty() { String::new() } else { format!(", hit after steps {}", steps.join(" ")) };
    Ok(Outcome::Pass(format!(
        "{} moments{told}: {done} done, {undone} undone, nothing between",
        done + undone
    )))
}

/// The steps after which the daemon's log says that an operation was interrupted, each once.
fn steps_hit(log: &str) -> Vec<String> {
    let steps = log.split("interrupted after step ").skip(1).filter_map(|rest| {
        rest.split(|character: char| !character.is_ascii_digit()).next()?.parse::<u32>().ok()
    });
    steps.collect::<BTreeSet<u32>>().into_iter().map(|step| step.to_string()).collect()
}

fn start(node: &Node, line: &str) -> Result<Child> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let mut command = node.command(&words);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().with_context(|| format!("start holdfast {line}"))
}

fn ended_within(child: &mut Child, span: Duration) -> Result<bool> {
    let started = Instant::now();
    loop {
        if child.try_wait()?.is_some() {
            return Ok(true);
        }
        if started.elapsed() >= span {
            return Ok(false);
        }
        poll::rest(Duration::from_micros(200));
    }
}

const VICTIM: &str = "run -d --name victim --network blue busybox:latest /bin/pause";

fn nothing(_: &Node) -> Result<()> {
    Ok(())
}

fn run_victim(node: &Node) -> Result<()> {
    node.sh(VICTIM)?;
    node.await_running("victim", HEAL_DEADLINE).map(drop)
}

fn stop_victim(node: &Node) -> Result<()> {
    run_victim(node)?;
    node.sh("stop --time 1 victim").map(drop)
}

fn remove_victim(node: &Node) -> Result<()> {
    if node.has_container("victim")? {
        node.sh("rm --force victim")?;
    }
    Ok(())
}

/// The victim does not exist (`Some(false)`), or runs and answers (`Some(true)`).
fn absent_or_running(stage: &Stage, peer: Process) -> Result<Option<bool>> {
    if !stage.node.status()?.operations.is_empty() {
        return Ok(None);
    }
    if !stage.node.has_container("victim")? {
        return Ok(Some(false));
    }
    let victim = stage.node.container("victim")?;
    if !victim.init.is_some_and(Process::is_alive) {
        return Ok(None);
    }
    let ping = ping_some(&stage.node.identity, peer, victim.ipv4()?)?;
    Ok((ping.received > 0).then_some(true))
}

fn stopped(stage: &Stage, _: Process) -> Result<Option<bool>> {
    let status = stage.node.status()?;
    let victim = status.containers.get("victim").context("the victim is gone")?;
    Ok(match victim.state.as_str() {
        _ if !status.operations.is_empty() => None,
        // Killed before the daemon wrote the operation down: it runs on.
        "running" => Some(false),
        "exited" => Some(true),
        _ => None,
    })
}

fn removed(stage: &Stage, _: Process) -> Result<Option<bool>> {
    let status = stage.node.status()?;
    if !status.operations.is_empty() {
        return Ok(None);
    }
    match status.containers.get("victim") {
        Some(victim) => Ok((victim.state == "exited").then_some(false)),
        None => Ok((!stage.node.has_container("victim")?).then_some(true)),
    }
}

fn pod_absent_or_whole(stage: &Stage, _: Process) -> Result<Option<bool>> {
    if !stage.node.status()?.operations.is_empty() {
        return Ok(None);
    }
    if !stage.node.names("pod ls")?.iter().any(|name| name == "casket") {
        return Ok(Some(false));
    }
    // Whole is what a member can start in.
    let run = stage.node.try_cli(&[
        "run",
        "-d",
        "--name",
        "victim",
        "--pod",
        "casket",
        image::NAME,
        image::PAUSE[0],
    ])?;
    ensure!(run.status.success(), "a pod that is listed takes no member: {}", run.stderr.trim());
    Ok(Some(true))
}

fn remove_pod(node: &Node) -> Result<()> {
    if node.names("pod ls")?.iter().any(|name| name == "casket") {
        node.sh("pod rm --force casket")?;
    }
    Ok(())
}

pub fn run(context: &Context) -> Result<Outcome> {
    sweep(
        context,
        &Sweep { prepare: nothing, operation: VICTIM, settled: absent_or_running, clear: remove_victim },
    )
}

pub fn stop(context: &Context) -> Result<Outcome> {
    let operation = "stop --time 1 victim";
    sweep(context, &Sweep { prepare: run_victim, operation, settled: stopped, clear: remove_victim })
}

pub fn remove(context: &Context) -> Result<Outcome> {
    let operation = "rm victim";
    sweep(context, &Sweep { prepare: stop_victim, operation, settled: removed, clear: remove_victim })
}

pub fn pod_create(context: &Context) -> Result<Outcome> {
    let operation = "pod create casket --network blue";
    sweep(context, &Sweep { prepare: nothing, operation, settled: pod_absent_or_whole, clear: remove_pod })
}
