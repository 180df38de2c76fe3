//! Many at once.

use crate::{
    runner::Context,
    support::{IMAGE, pause, stage, whole},
};
use anyhow::{Result, ensure};
use holdfast_chaos::{
    command::{self, Output},
    node::{COMMAND_DEADLINE, Node},
    poll, process,
    stage::HEAL_DEADLINE,
};
use std::{
    collections::BTreeSet,
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

/// Runs the commands side by side, at most `at_once` of them.
fn side_by_side(node: &Node, commands: &[Vec<String>], at_once: usize) -> Result<Vec<Output>> {
    let next = AtomicUsize::new(0);
    let worker = || {
        let mut outputs = Vec::new();
        loop {
            let index = next.fetch_add(1, Ordering::SeqCst);
            let Some(arguments) = commands.get(index) else { return Ok(outputs) };
            outputs.push((index, command::run(&mut node.command(arguments), COMMAND_DEADLINE)?));
        }
    };
    let mut outputs: Vec<(usize, Output)> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..at_once).map(|_| scope.spawn(worker)).collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|_| Err(anyhow::anyhow!("a worker panicked"))))
            .collect::<Result<Vec<_>>>()
    })?
    .into_iter()
    .flatten()
    .collect();
    outputs.sort_by_key(|(index, _)| *index);
    Ok(outputs.into_iter().map(|(_, output)| output).collect())
}

fn words(line: &str) -> Vec<String> {
    line.split_whitespace().map(str::to_owned).collect()
}

pub fn one_name_is_given_once(context: &Context) -> Result<()> {
    let stage = stage(context)?;
    let node = &stage.node;
    let commands = vec![words(&format!("run -d --name one {IMAGE} pause")); 20];
    let outputs = side_by_side(node, &commands, 20)?;
    let won = outputs.iter().filter(|output| output.status.success()).count();
    ensure!(won == 1, "{won} of 20 got the name");
    for output in outputs.iter().filter(|output| !output.status.success()) {
        ensure!(output.stderr.contains("one"), "refused with {:?}", output.stderr);
    }
    ensure!(node.names("ps --all")? == ["one"], "{:?}", node.names("ps --all")?);
    node.await_running("one", HEAL_DEADLINE)?;
    stage.finish()
}

pub fn twenty_runs(context: &Context) -> Result<()> {
    let stage = stage(context)?;
    let node = &stage.node;
    let commands: Vec<Vec<String>> =
        (0..20).map(|index| words(&format!("run -d --name w{index} {IMAGE} pause"))).collect();
    for output in side_by_side(node, &commands, 20)? {
        ensure!(output.status.success(), "{output:?}");
    }
    let listed = node.json("ps")?;
    let listed = listed.as_array().cloned().unwrap_or_default();
    let each = |pointer: &str| -> BTreeSet<String> {
        listed.iter().filter_map(|one| one.pointer(pointer)).map(ToString::to_string).collect()
    };
    for pointer in ["/id", "/pid", "/addresses/0/ipv4", "/addresses/0/ipv6", "/addresses/0/mac"] {
        ensure!(each(pointer).len() == 20, "{} different {pointer}", each(pointer).len());
    }
    // All removed side by side again, so that the zero-leak check sees what that leaves.
    let commands: Vec<Vec<String>> = (0..20).map(|index| words(&format!("rm --force w{index}"))).collect();
    for output in side_by_side(node, &commands, 20)? {
        ensure!(output.status.success(), "{output:?}");
    }
    stage.finish()
}

pub fn one_object(context: &Context) -> Result<()> {
    let stage = stage(context)?;
    let node = &stage.node;
    pause(node, "one", "")?;
    let before = node.await_running("one", HEAL_DEADLINE)?;
    let commands: Vec<Vec<String>> = (0..24)
        .map(|index| match index % 4 {
            0 => words("restart --time 1 one"),
            1 => words("stop --time 1 one"),
            2 => words("start one"),
            _ => words("exec one true"),
        })
        .collect();
    for output in side_by_side(node, &commands, 8)? {
        ensure!(output.status.code().is_some(), "{output:?}");
        ensure!(output.status.success() || !output.stderr.trim().is_empty(), "failed without a word");
    }
    let processes = whole(node)?;
    let state = node.container("one")?.state;
    ensure!(["running", "exited"].contains(&state.as_str()), "it ended up {state}");
    node.sh("restart --time 1 one")?;
    let after = node.await_running("one", HEAL_DEADLINE)?;
    ensure!(after.interfaces == before.interfaces, "{:?} became {:?}", before.interfaces, after.interfaces);
    node.sh("exec one true")?;
    ensure!(process::zombies_of(processes.daemon.pid).is_empty(), "the daemon has zombies");
    stage.finish()
}

pub fn execs_leave_no_zombie(context: &Context) -> Result<()> {
    let stage = stage(context)?;
    let node = &stage.node;
    pause(node, "idle", "")?;
    let before = whole(node)?;
    let idle = node.await_running("idle", HEAL_DEADLINE)?;
    let descriptors = process::descriptors(before.daemon.pid).len();
    // A code that comes back proves that it ran and was waited for.
    let commands: Vec<Vec<String>> = (0..200)
        .map(|index| {
            vec!["exec".into(), "idle".into(), "sh".into(), "-c".into(), format!("exit {}", index % 100)]
        })
        .collect();
    for (index, output) in side_by_side(node, &commands, 8)?.iter().enumerate() {
        ensure!(output.status.code() == Some(i32::try_from(index % 100)?), "exec {index}: {output:?}");
    }
    let parents: Vec<u32> = before
        .all()
        .iter()
        .chain([idle.running()?, idle.monitor.unwrap_or(idle.running()?)].iter())
        .map(|process| process.pid)
        .collect();
    poll::until("every exec to be reaped", Duration::from_secs(5), || {
        Ok(parents.iter().all(|parent| process::zombies_of(*parent).is_empty()).then_some(()))
    })?;
    poll::until("every descriptor to be closed", Duration::from_secs(5), || {
        Ok((process::descriptors(before.daemon.pid).len() <= descriptors + 2).then_some(()))
    })?;
    ensure!(whole(node)? == before && node.container("idle")?.init == idle.init, "execs changed the node");
    stage.finish()
}
