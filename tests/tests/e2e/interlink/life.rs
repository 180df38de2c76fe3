//! Deaths, deletes and repeats.

use super::client::{Pod, call, finish, plugin, reach, running, watch};
use crate::{runner::Context, support::whole};
use anyhow::{Context as _, Result, ensure};
use holdfast_chaos::{
    node::Node,
    process::{self, Process},
    stage::HEAL_DEADLINE,
};
use holdfast_tests::virtual_kubelet::Phase;
use serde_json::json;
use std::time::{Duration, Instant};

fn pause(name: &str) -> Pod {
    let container = |name: &str| json!({"name": name, "image": "busybox:latest", "imagePullPolicy": "Never", "command": ["/bin/pause"]});
    let done = json!({"name": "init", "image": "busybox:latest", "imagePullPolicy": "Never", "command": ["/bin/true"]});
    Pod::new(
        name,
        json!({"restartPolicy": "Always", "terminationGracePeriodSeconds": 2,
        "initContainers": [done], "containers": [container("left"), container("right")]}),
    )
}

fn inits(node: &Node) -> Result<Vec<(String, Process)>> {
    let mut all = Vec::new();
    for (name, seen) in node.status()?.containers {
        if let Some(init) = seen.init {
            all.push((name, init));
        }
    }
    Ok(all)
}

fn kill_daemon(node: &Node) -> Result<()> {
    let daemon = whole(node)?.daemon;
    process::kill_all(&[daemon])?;
    node.up().map(drop)
}

pub fn plugin_restart(context: &Context) -> Result<()> {
    let stage = plugin(context)?;
    let node = &stage.node;
    let pods: Vec<Pod> = ["one", "two", "three"].map(pause).into();
    let mut watched = Vec::new();
    for pod in &pods {
        watched.push(pod.create(node)?);
    }
    for (pod, watched) in pods.iter().zip(&mut watched) {
        running(node, pod, watched)?;
    }
    let before = inits(node)?;
    ensure!(before.len() == 6, "{before:?}");
    kill_daemon(node)?;
    for (pod, watched) in pods.iter().zip(&mut watched) {
        // The very first answer of the new daemon is as complete as the last of the old one.
        let (status, body) = call(node, "GET", "/status", &json!([pod.pod]))?;
        ensure!(status == 200, "{status} {body}");
        let told = serde_json::from_str(&body)?;
        ensure!(watched.take(&told).map_err(anyhow::Error::msg)? == Phase::Running, "{body}");
    }
    ensure!(inits(node)? == before, "a restart of the plugin moved containers: {before:?}");
    let (_, again) = pods[0].post(node)?;
    ensure!(
        again.contains(watched[0].last["JID"].as_str().context("no JID")?),
        "a repeat is another pod: {again}"
    );
    ensure!(inits(node)? == before, "a repeated create moved containers");
    for pod in &pods {
        pod.delete(node)?;
    }
    ensure!(inits(node)?.is_empty(), "containers outlived their pods");
    finish(stage)
}

pub fn create_then_kill(context: &Context) -> Result<()> {
    let stage = plugin(context)?;
    let node = &stage.node;
    for round in 0..3_u64 {
        let pod = pause(&format!("early{round}"));
        let mut watched = pod.create(node)?;
        // Accepted and answered: whatever of it is made by now, the next daemon makes the rest.
        #[allow(clippy::disallowed_methods)]
        // Nothing is waited for: it only moves the kill to another moment.
        std::thread::sleep(Duration::from_millis(round * 40));
        kill_daemon(node)?;
        running(node, &pod, &mut watched)?;
        let containers = inits(node)?;
        ensure!(containers.len() == 2, "one pod of two containers is {containers:?}");
        pod.delete(node)?;
        // And a kill in the middle of an end.
        let pod = pause(&format!("late{round}"));
        let mut watched = pod.create(node)?;
        reach(node, &pod, &mut watched, Phase::Running)?;
        let (status, body) = call(node, "POST", "/delete", &pod.pod)?;
        ensure!(status == 200, "{status} {body}");
        kill_daemon(node)?;
        pod.delete(node)?;
        ensure!(inits(node)?.is_empty(), "containers outlived their pod");
    }
    finish(stage)
}

pub fn delete_first(context: &Context) -> Result<()> {
    let stage = plugin(context)?;
    let node = &stage.node;
    let pod = pause("never");
    for _ in 0..2 {
        let (status, body) = call(node, "POST", "/delete", &pod.pod)?;
        ensure!(status == 200, "a delete of an unknown pod: {status} {body}");
    }
    let (status, body) = pod.post(node)?;
    ensure!(status == 409 && body.contains("deleted"), "a late create: {status} {body}");
    // A stubborn container takes its whole grace and no more; the answer does not wait for it.
    let stubborn = Pod::new(
        "stubborn",
        json!({"terminationGracePeriodSeconds": 1, "containers": [
        {"name": "main", "image": "busybox:latest", "imagePullPolicy": "Never", "command": ["/bin/sh", "-c", "trap '' TERM; while :; do sleep 1; done"]}]}),
    );
    let mut watched = stubborn.create(node)?;
    reach(node, &stubborn, &mut watched, Phase::Running)?;
    let started = Instant::now();
    let (status, _) = call(node, "POST", "/delete", &stubborn.pod)?;
    ensure!(
        status == 200 && started.elapsed() < Duration::from_millis(800),
        "the delete took {:?}",
        started.elapsed()
    );
    watch(node, &stubborn, &mut watched, |it| it.phase == Phase::Failed)?;
    ensure!(started.elapsed() < HEAL_DEADLINE, "it lives on");
    stubborn.delete(node)?;
    finish(stage)
}

pub fn image_missing(context: &Context) -> Result<()> {
    let stage = plugin(context)?;
    let node = &stage.node;
    let spec = |policy: &str| {
        json!({"terminationGracePeriodSeconds": 1, "containers": [
        {"name": "main", "image": "tool:7", "imagePullPolicy": policy, "command": ["/bin/pause"]}]})
    };
    for (name, policy, reason) in
        [("never", "Never", "ErrImageNeverPull"), ("absent", "IfNotPresent", "ErrImagePull")]
    {
        let pod = Pod::new(name, spec(policy));
        let mut watched = pod.create(node)?;
        watch(node, &pod, &mut watched, |it| {
            it.phase == Phase::Pending
                && it.container("main").is_some_and(|one| one["state"]["waiting"]["reason"] == reason)
        })?;
        let told = watched.container("main").context("main")?["state"]["waiting"]["message"].to_string();
        ensure!(told.contains("tool:7") && told.contains("image load"), "no remedy in {told}");
        // The remedy that it tells helps.
        node.sh(&format!("image load --name tool:7 {}", node.scratch.path().join("busybox.tar").display()))?;
        reach(node, &pod, &mut watched, Phase::Running)?;
        pod.delete(node)?;
        node.sh("image rm tool:7")?;
        node.sh(&format!("image load {}", node.scratch.path().join("busybox.tar").display()))?;
    }
    finish(stage)
}
