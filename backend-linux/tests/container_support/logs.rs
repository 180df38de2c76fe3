//! Logs.

use crate::node::Node;
use holdfast_core::world::Containers;
use holdfast_linux::container::logs::{LogEntry, LogOptions, LogStream};

async fn read(node: &Node, plan: &holdfast_core::plan::ContainerPlan, options: LogOptions) -> Vec<LogEntry> {
    let mut receiver = node.containers.logs(&plan.id, options);
    let mut entries = Vec::new();
    while let Some(entry) = receiver.recv().await {
        entries.push(entry.unwrap());
    }
    entries
}

fn texts(entries: &[LogEntry]) -> Vec<String> {
    entries.iter().map(|entry| String::from_utf8_lossy(&entry.bytes).into_owned()).collect()
}

pub async fn tail_since_streams_and_parts() {
    let node = Node::new();
    // The last but one line is longer than the monitor's buffer, and so is split into parts.
    let script = "echo one; echo two >&2; printf 'no-end'; sleep 0.1; echo -then-end; head -c 30000 /dev/zero | tr '\\0' x; echo; echo last";
    let plan = node.plan("000000000001", &["/bin/sh", "-c", script]);
    assert_eq!(read(&node, &plan, LogOptions::default()).await, []);
    let started = node.start(&plan).await;
    assert_eq!(node.exit_code(&plan, &started).await, Some(0));
    let all = read(&node, &plan, LogOptions::default()).await;
    let mut lines = texts(&all);
    lines.sort_unstable();
    let mut expected = ["one", "two", "no-end-then-end", &"x".repeat(30_000), "last"];
    expected.sort_unstable();
    assert_eq!(lines, expected);
    assert_eq!(all.iter().filter(|entry| entry.stream == LogStream::Stderr).count(), 1);
    assert!(all.iter().all(|entry| entry.whole && entry.time_ns > 1_600_000_000_000_000_000));
    for tail in [0, 1, 2, 5, 100] {
        let expected = &all[all.len().saturating_sub(tail)..];
        assert_eq!(
            texts(&read(&node, &plan, LogOptions { tail: Some(tail), ..LogOptions::default() }).await),
            texts(expected),
            "{tail}"
        );
    }
    let since = all.last().unwrap().time_ns;
    let late = read(&node, &plan, LogOptions { since_ns: Some(since), ..LogOptions::default() }).await;
    assert_eq!(late.last(), all.last());
    assert!(late.len() < all.len());
    node.stop(&plan).await;
    node.containers.remove_files(&plan.id, Some(&node.pin)).await.unwrap();
    node.assert_clean();
}

pub async fn a_followed_log_ends_with_its_container() {
    let node = Node::new();
    let plan =
        node.plan("000000000001", &["/bin/sh", "-c", "for i in 1 2 3 4 5; do echo $i; sleep 0.1; done"]);
    let started = node.start(&plan).await;
    let options =
        LogOptions { follow: true, follow_until: Some(started.monitor.clone()), ..LogOptions::default() };
    assert_eq!(texts(&read(&node, &plan, options).await), ["1", "2", "3", "4", "5"]);
    node.stop(&plan).await;
    node.containers.remove_files(&plan.id, Some(&node.pin)).await.unwrap();
    node.assert_clean();
}
