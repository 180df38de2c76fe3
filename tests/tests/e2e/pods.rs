//! Pods: what members share, and what outlives them.

use crate::{
    runner::Context,
    support::{IMAGE, ends_with, pause, serve, stage, text},
};
use anyhow::{Result, ensure};
use holdfast_chaos::{
    node::Node,
    poll,
    process::{self, Process},
    stage::HEAL_DEADLINE,
};

const SHARED: [&str; 3] = ["net", "ipc", "uts"];

fn namespaces(init: Process) -> Result<Vec<u64>> {
    let found: Vec<u64> = SHARED.iter().filter_map(|kind| process::namespace(init.pid, kind)).collect();
    ensure!(found.len() == SHARED.len(), "pid {init} is gone");
    Ok(found)
}

fn init(node: &Node, name: &str) -> Result<Process> {
    node.await_running(name, HEAL_DEADLINE)?.running()
}

pub fn members_share(context: &Context) -> Result<()> {
    let stage = stage(context)?;
    let node = &stage.node;
    node.sh("network create blue")?;
    node.sh("pod create duo --network blue --namespace acme --hostname together -l k=v")?;
    serve(node, "web", "--pod duo")?;
    pause(node, "side", "--pod duo")?;
    let (web, side) = (init(node, "web")?, init(node, "side")?);
    ensure!(namespaces(web)? == namespaces(side)?, "{:?} {:?}", namespaces(web)?, namespaces(side)?);
    for kind in ["pid", "mnt"] {
        ensure!(process::namespace(web.pid, kind) != process::namespace(side.pid, kind), "{kind} is shared");
    }
    let page = ends_with(node, 0, &["exec", "side", "wget", "-q", "-O", "-", "http://127.0.0.1/"])?;
    ensure!(page.stdout == "held fast\n", "{page:?}");
    for member in ["web", "side"] {
        let name = node.sh(&format!("exec {member} hostname"))?;
        ensure!(name == "together\n", "{member} is called {name:?}");
    }
    let pod = node.json("pod inspect duo")?;
    ensure!(text(&pod, "/members/web") == "running" && text(&pod, "/members/side") == "running", "{pod}");
    ensure!(text(&pod, "/tenant") == "acme" && text(&pod, "/labels/k") == "v", "{pod}");
    ensure!(text(&pod, "/addresses/0/network") == "blue", "{pod}");
    ensure!(node.names("pod ls")? == ["duo"], "{:?}", node.names("pod ls")?);
    for (line, word) in [
        ("pod create duo", "duo"),
        ("pod create other --network none", "none"),
        (&format!("run -d --pod none {IMAGE} pause"), "none"),
    ] {
        let said = node.refused(line)?;
        ensure!(said.contains(word), "{line}: {said}");
    }
    ensure!(node.names("pod ls")? == ["duo"], "a refused pod is there");
    stage.finish()
}

pub fn only_the_pod_ends_its_namespaces(context: &Context) -> Result<()> {
    let stage = stage(context)?;
    let node = &stage.node;
    node.sh("pod create duo")?;
    pause(node, "left", "--pod duo --restart always")?;
    pause(node, "right", "--pod duo --restart always")?;
    let before = node.container("left")?;
    let right = init(node, "right")?;
    let shared = namespaces(right)?;
    // Restarted by request, by policy, and stopped for a while.
    let old = init(node, "left")?;
    node.sh("restart --time 1 left")?;
    let left = init(node, "left")?;
    ensure!(left != old && namespaces(left)? == shared, "a restart by request");
    process::kill_all(&[left])?;
    poll::until("left to be restarted", HEAL_DEADLINE, || {
        let now = node.container("left")?.init;
        Ok((now != Some(left) && now.is_some_and(Process::is_alive)).then_some(()))
    })?;
    ensure!(namespaces(init(node, "left")?)? == shared, "a restart by policy");
    ensure!(node.container("left")?.interfaces == before.interfaces, "the pod's addresses changed");
    // Both stopped: nothing lives in the pod, and it stays.
    ensure!(right.is_alive() && init(node, "right")? == right, "right was restarted with left");
    node.sh("stop --time 1 left right")?;
    node.sh("start left right")?;
    ensure!(namespaces(init(node, "left")?)? == shared, "an empty pod lost its namespaces");
    ensure!(namespaces(init(node, "right")?)? == shared, "an empty pod lost its namespaces");
    let right = init(node, "right")?;
    node.sh("rm --force left")?;
    ensure!(right.is_alive() && init(node, "right")? == right, "rm of left ended right");
    pause(node, "third", "--pod duo")?;
    ensure!(namespaces(init(node, "third")?)? == shared, "a new member is elsewhere");
    let said = node.refused("pod rm duo")?;
    ensure!(said.contains("duo"), "{said}");
    ensure!(right.is_alive(), "a refused pod rm ended a member");
    node.sh("pod rm --force duo")?;
    ensure!(
        !right.is_alive() && node.names("ps --all")?.is_empty() && node.names("pod ls")?.is_empty(),
        "left over"
    );
    stage.finish()
}
