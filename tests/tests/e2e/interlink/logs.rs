//! Logs with every option.

use super::client::{Pod, finish, open, plugin, reach};
use crate::runner::Context;
use anyhow::{Result, ensure};
use holdfast_tests::virtual_kubelet::Phase;
use serde_json::json;
use std::{
    io::{BufRead, BufReader, Read},
    time::{Duration, Instant},
};

pub fn logs(context: &Context) -> Result<()> {
    let stage = plugin(context)?;
    let node = &stage.node;
    let script = "for i in 1 2 3 4 5; do echo line $i; done; sleep 2; echo later; sleep 1000";
    let image = |name: &str, script: &str| json!({"name": name, "image": "busybox:latest", "imagePullPolicy": "Never", "command": ["/bin/sh", "-c", script]});
    let pod = Pod::new(
        "talker",
        json!({"terminationGracePeriodSeconds": 0,
        "initContainers": [image("first", "echo init; sleep 1")], "containers": [image("main", script)]}),
    );
    let mut watched = pod.create(node)?;
    // Followed before it has started: headers at once, text when there is some.
    let asked = Instant::now();
    let mut follow =
        BufReader::new(open(node, "GET", "/getLogs", &pod.log_request("main", json!({"Follow": true})))?);
    let mut line = String::new();
    follow.read_line(&mut line)?;
    ensure!(
        line.contains("200") && asked.elapsed() < Duration::from_millis(900),
        "{line:?} after {:?}",
        asked.elapsed()
    );
    let (status, text) = pod.log(node, "main", json!({}))?;
    ensure!(status == 200 && text.is_empty(), "one that has not started: {status} {text:?}");
    reach(node, &pod, &mut watched, Phase::Running)?;
    let mut lines = Vec::new();
    while lines.last().is_none_or(|last: &String| !last.contains("later")) {
        let mut line = String::new();
        ensure!(follow.read_line(&mut line)? > 0, "the followed log ended after {lines:?}");
        lines.push(line);
    }
    let written: Vec<&String> =
        lines.iter().filter(|line| line.starts_with("line") || line.starts_with("later")).collect();
    ensure!(written.len() == 6, "{lines:?}");
    let all = "line 1\nline 2\nline 3\nline 4\nline 5\nlater\n";
    for (options, expected) in [
        (json!({}), all),
        (json!({"Tail": 2}), "line 5\nlater\n"),
        (json!({"Bytes": 10}), "line 1\nlin"),
        (json!({"LimitBytes": 7}), "line 1\n"),
        (json!({"Tail": 1, "Bytes": 3}), "lat"),
        (json!({"SinceSeconds": 3600}), all),
        (json!({"SinceTime": "2020-01-01T00:00:00Z"}), all),
        (json!({"SinceTime": "2200-01-01T00:00:00Z"}), ""),
    ] {
        let (status, text) = pod.log(node, "main", options.clone())?;
        ensure!(status == 200 && text == expected, "{options}: {status} {text:?}");
    }
    let (_, stamped) = pod.log(node, "main", json!({"Timestamps": true, "Tail": 1}))?;
    let (time, rest) = stamped.split_once(' ').unwrap_or_default();
    ensure!(rest == "later\n" && holdfast_core::interlink::timestamp::parse(time).is_some(), "{stamped:?}");
    let (status, text) = pod.log(node, "first", json!({}))?;
    ensure!(status == 200 && text == "init\n", "an init container: {status} {text:?}");
    let (status, text) = pod.log(node, "main", json!({"Previous": true}))?;
    ensure!(status == 400 && text.contains("not found"), "there is no start before: {status} {text}");
    let (status, text) = pod.log(node, "nobody", json!({}))?;
    ensure!(status == 404 && text.contains("first, main"), "{status} {text}");
    pod.delete(node)?;
    // The stream ends with its container, and what it wrote can be had for a while.
    let mut rest = String::new();
    follow.read_to_string(&mut rest)?;
    let (status, text) = pod.log(node, "main", json!({"Tail": 1}))?;
    ensure!(status == 404 || text == "later\n", "of a deleted pod: {status} {text:?}");
    finish(stage)
}
