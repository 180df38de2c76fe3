//! The API server's side of the plugin's API.

use crate::{
    runner::Context,
    support::{stage, whole},
};
use anyhow::{Context as _, Result, bail, ensure};
use holdfast_chaos::{
    node::Node,
    poll,
    stage::{HEAL_DEADLINE, Stage},
};
use holdfast_tests::virtual_kubelet::{Phase, Watched};
use serde_json::{Value, json};
use std::{
    io::{Read, Write},
    os::unix::net::UnixStream,
    time::Duration,
};

/// A node whose plugin forgets deleted pods soon.
pub fn plugin(context: &Context) -> Result<Stage> {
    let stage = stage(context)?;
    std::fs::write(config(&stage.node), "SidecarPort: \"\"\nHoldfast: {KeepDeletedSeconds: 1}\n")?;
    restart(&stage.node)?;
    Ok(stage)
}

fn config(node: &Node) -> std::path::PathBuf {
    node.root.join("InterLinkConfig.yaml")
}

/// Ends the daemon; the next command starts another.
pub fn restart(node: &Node) -> Result<()> {
    let old = whole(node)?.daemon;
    old.signal(libc::SIGTERM)?;
    old.await_death(Duration::from_secs(15))?;
    node.up().map(drop)
}

/// Ends a case: every pod is gone, and forgotten, with what was kept of it.
pub fn finish(stage: Stage) -> Result<()> {
    std::fs::remove_file(config(&stage.node))?;
    let pods = stage.node.root.join("pods");
    poll::until("deleted pods to be forgotten", HEAL_DEADLINE, || {
        let left = std::fs::read_dir(&pods).map_or(0, Iterator::count);
        Ok((left == 0).then_some(()))
    })?;
    stage.finish()
}

/// Starts a request; HTTP/1.0, so that a body ends with the connection.
pub fn open(node: &Node, method: &str, path: &str, body: &Value) -> Result<UnixStream> {
    let socket = node.sockets().context("the node has no runtime directory")?.join("interlink.sock");
    let mut stream =
        UnixStream::connect(&socket).with_context(|| format!("connect to {}", socket.display()))?;
    stream.set_read_timeout(Some(Duration::from_secs(20)))?;
    let body = body.to_string();
    write!(
        stream,
        "{method} {path} HTTP/1.0\r\nhost: plugin\r\ncontent-type: application/json\r\n\
         InterLink-Http-Session: test#1\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )?;
    Ok(stream)
}

/// One request to its end: status and body.
pub fn call(node: &Node, method: &str, path: &str, body: &Value) -> Result<(u16, String)> {
    let mut answer = Vec::new();
    open(node, method, path, body)?.read_to_end(&mut answer)?;
    let text = String::from_utf8_lossy(&answer).into_owned();
    let (head, body) = text.split_once("\r\n\r\n").with_context(|| format!("no answer but {text:?}"))?;
    let status = head.split(' ').nth(1).and_then(|code| code.parse().ok());
    Ok((status.with_context(|| format!("no status in {head:?}"))?, body.to_owned()))
}

/// A pod as a test writes it: its spec, and what comes with it.
#[derive(Clone, Debug)]
pub struct Pod {
    /// The v1.Pod.
    pub pod: Value,
    /// ConfigMaps, projected maps and Secrets.
    pub objects: Value,
}

impl Pod {
    /// A pod of this name and spec; the name is its uid as well.
    pub fn new(name: &str, spec: Value) -> Self {
        let pod = json!({"metadata": {"name": name, "namespace": "lab", "uid": format!("uid-{name}")}, "spec": spec});
        Self {
            pod,
            objects: json!({"name": "x", "configMaps": null, "projectedvolumemaps": null, "secrets": null, "emptyDirs": null}),
        }
    }

    /// The same with an object of this list.
    pub fn with(mut self, list: &str, objects: Value) -> Self {
        self.objects[list] = objects;
        self
    }

    /// Asks for it.
    pub fn post(&self, node: &Node) -> Result<(u16, String)> {
        let data = json!({"pod": self.pod, "container": [self.objects], "jobConfig": {}, "jobScript": ""});
        call(node, "POST", "/create", &data)
    }

    /// Makes it.
    pub fn create(&self, node: &Node) -> Result<Watched> {
        let (status, body) = self.post(node)?;
        ensure!(status == 200, "create: {status} {body}");
        let answer: Value = serde_json::from_str(&body)?;
        ensure!(answer["PodUID"] == self.pod["metadata"]["uid"] && answer["PodJID"].is_string(), "{answer}");
        Ok(Watched::new(&self.pod))
    }

    /// Deletes it and waits until nothing of it is listed.
    pub fn delete(&self, node: &Node) -> Result<()> {
        let (status, body) = call(node, "POST", "/delete", &self.pod)?;
        ensure!(status == 200, "delete: {status} {body}");
        let end = format!("-{}", self.name());
        poll::until(&format!("pod {} to go", self.name()), HEAL_DEADLINE, || {
            Ok(node.names("pod ls")?.iter().all(|name| !name.ends_with(&end)).then_some(()))
        })
    }

    /// Its name.
    pub fn name(&self) -> &str {
        self.pod["metadata"]["name"].as_str().unwrap_or_default()
    }

    /// A container's log.
    pub fn log(&self, node: &Node, container: &str, options: Value) -> Result<(u16, String)> {
        call(node, "GET", "/getLogs", &self.log_request(container, options))
    }

    /// The body that asks for a log.
    pub fn log_request(&self, container: &str, mut options: Value) -> Value {
        if options.get("SinceTime").is_none() {
            options["SinceTime"] = json!("0001-01-01T00:00:00Z");
        }
        json!({"Namespace": "lab", "PodUID": self.pod["metadata"]["uid"], "PodName": self.name(),
            "ContainerName": container, "Opts": options})
    }
}

/// Polls as a virtual kubelet does until `until` is content; every answer on the way must be one it can read.
pub fn watch(node: &Node, pod: &Pod, watched: &mut Watched, until: impl Fn(&Watched) -> bool) -> Result<()> {
    poll::until(&format!("pod {}", pod.name()), HEAL_DEADLINE, || {
        let (status, body) = call(node, "GET", "/status", &json!([pod.pod]))?;
        ensure!(status == 200, "status: {status} {body}");
        let before = watched.phase;
        let phase = watched.take(&serde_json::from_str(&body)?).map_err(anyhow::Error::msg)?;
        if matches!(before, Phase::Succeeded | Phase::Failed) && phase != before {
            bail!("pod {} was {before:?} and is {phase:?}: {body}", pod.name());
        }
        Ok(until(watched).then_some(()))
    })
    .with_context(|| format!("last status: {}", watched.last))
}

/// Polls until a phase is reached.
pub fn reach(node: &Node, pod: &Pod, watched: &mut Watched, phase: Phase) -> Result<()> {
    watch(node, pod, watched, |it| it.phase == phase)
}

/// Polls until every container runs: the phase is `Running` from the first one on.
pub fn running(node: &Node, pod: &Pod, watched: &mut Watched) -> Result<()> {
    watch(node, pod, watched, |it| {
        let all = it.last["containers"].as_array();
        all.is_some_and(|all| all.iter().all(|one| one["state"]["running"].is_object()))
    })
}
