//! Starts, ends, and what is known of them afterwards.

use crate::node::{Node, until};
use holdfast_core::{
    error::Class,
    time::Span,
    world::{ContainerHint, Containers, Started},
};
use holdfast_linux::process::{is_alive, open_pidfd, signal};
use std::time::Instant;

const SLEEP: [&str; 2] = ["/bin/sleep", "1000"];
/// A pid 1 that ends at SIGTERM.
const POLITE: [&str; 3] = ["/bin/sh", "-c", "trap 'exit 7' TERM; while true; do sleep 0.02; done"];

fn kill(process: &holdfast_core::id::ProcessRef) {
    assert!(signal(&open_pidfd(process).unwrap().unwrap(), libc::SIGKILL).unwrap());
}

async fn remove(node: &Node, plan: &holdfast_core::plan::ContainerPlan) {
    node.containers.remove_files(&plan.id, Some(&node.pin)).await.unwrap();
}

pub async fn exit_codes_are_read() {
    let node = Node::new();
    for (number, (script, code)) in
        [("exit 0", 0), ("exit 42", 42), ("exit 255", 255), ("kill -9 $$; exit 3", 3)].into_iter().enumerate()
    {
        let plan = node.plan(&format!("00000000000{number}"), &["/bin/sh", "-c", script]);
        assert_eq!(node.output(&plan).await.1, Some(code), "{script}");
    }
    let plan = node.plan("000000000009", &POLITE);
    let started = node.start(&plan).await;
    // The trap is set when the shell has begun to loop.
    until("the loop", async || {
        std::fs::read_to_string(format!("/proc/{}/status", started.init.pid))
            .unwrap()
            .lines()
            .any(|line| line.starts_with("SigCgt") && !line.ends_with("0000000000000000"))
            .then_some(())
    })
    .await;
    let grace = Span::from_secs(20);
    let exit = node.containers.stop_container(&plan.id, 1, 15, grace, Some(&node.pin)).await.unwrap();
    assert_eq!(exit.code, Some(7));
    // Again: still known.
    let exit = node.containers.stop_container(&plan.id, 1, 15, grace, Some(&node.pin)).await.unwrap();
    assert_eq!(exit.code, Some(7));
    let observed = node.observe(&plan, Some(&started)).await;
    assert_eq!(
        (observed.exit.unwrap().code, observed.remains, observed.init, observed.monitor),
        (Some(7), false, None, None)
    );
    remove(&node, &plan).await;
    node.assert_clean();
}

pub async fn a_start_is_idempotent_and_an_interrupted_one_is_finished() {
    let mut node = Node::new();
    let plan = node.plan("000000000001", &["/bin/sh", "-c", "echo once; exec sleep 1000"]);
    let started = node.start(&plan).await;
    node.forget();
    assert_eq!(node.start(&plan).await, started);
    let observed = node.observe(&plan, None).await;
    assert_eq!(
        (observed.init.as_ref(), observed.monitor.as_ref(), observed.exit),
        (Some(&started.init), Some(&started.monitor), None)
    );
    assert_eq!(
        observed.netns.unwrap().0,
        std::os::unix::fs::MetadataExt::ino(
            &std::fs::metadata(format!("/proc/{}/ns/net", started.init.pid)).unwrap()
        )
    );
    // Without the record of the start: found by the runtime's state and the monitor's command line.
    std::fs::remove_file(node.paths.incarnation(plan.id.as_str(), 1).join("started.json")).unwrap();
    assert_eq!(node.start(&plan).await, started);
    let mut next = plan.clone();
    next.incarnation = 2;
    let error = node.containers.start_container(&next, &node.pin).await.unwrap_err();
    assert_eq!(error.class, Class::Conflict, "{error}");
    node.stop(&plan).await;
    let log = std::fs::read_to_string(node.containers.log_path(&plan.id)).unwrap();
    assert_eq!(log.matches("once").count(), 1, "{log}");
    // Dropped in the middle, at many points, as by a daemon that is killed: finished or undone by the next.
    for delay_us in (0..40_000).step_by(2_500) {
        let mut plan = node.plan("000000000002", &SLEEP);
        plan.incarnation = delay_us + 1;
        let cut = tokio::time::timeout(
            std::time::Duration::from_micros(delay_us.into()),
            node.containers.start_container(&plan, &node.pin),
        )
        .await;
        node.forget();
        if delay_us % 5_000 == 0 {
            let started = node.start(&plan).await;
            assert!(is_alive(&started.init) && is_alive(&started.monitor));
        }
        node.stop(&plan).await;
        node.containers.clean_container(&plan.id, plan.incarnation, Some(&node.pin)).await.unwrap();
        let observed = node.observe(&plan, None).await;
        assert!(observed.init.is_none() && !observed.remains, "cut at {delay_us} us ({cut:?}): {observed:?}");
    }
    remove(&node, &plan).await;
    remove(&node, &node.plan("000000000002", &SLEEP)).await;
    node.assert_clean();
}

pub async fn incarnations_keep_the_upper_layer() {
    let node = Node::new();
    let mut plan = node.plan("000000000001", &["/bin/sh", "-c", "echo x >> /tmp/count; wc -l < /tmp/count"]);
    for incarnation in 1..=3 {
        plan.incarnation = incarnation;
        let started = node.start(&plan).await;
        assert_eq!(node.exit_code(&plan, &started).await, Some(0));
        // An exit of this incarnation says nothing about the next.
        plan.incarnation += 1;
        assert_eq!(node.observe(&plan, None).await.exit, None);
        plan.incarnation -= 1;
        if incarnation == 2 {
            node.containers.clean_container(&plan.id, plan.incarnation, Some(&node.pin)).await.unwrap();
        } else {
            node.stop(&plan).await;
        }
        let log = std::fs::read_to_string(node.containers.log_path(&plan.id)).unwrap();
        assert!(log.trim_end().ends_with(&format!(" {incarnation}")), "{log}");
    }
    remove(&node, &plan).await;
    node.assert_clean();
}

/// It keeps all of them alive when the pin is dead, and holds nothing of the daemon's.
pub async fn the_monitor_lives_in_the_pins_namespaces() {
    let node = Node::new();
    let plan = node.plan("000000000001", &SLEEP);
    let secret = std::fs::File::open("/etc/passwd").unwrap();
    let started = node.start(&plan).await;
    for kind in ["user", "net", "mnt", "cgroup"] {
        let of = |pid: u32| std::fs::read_link(format!("/proc/{pid}/ns/{kind}")).unwrap();
        assert_eq!(of(started.monitor.pid), of(node.pin.pid), "{kind}");
        assert_ne!(of(started.monitor.pid), of(std::process::id()), "{kind}");
    }
    for process in [&started.monitor, &started.init] {
        let fds = std::fs::read_dir(format!("/proc/{}/fd", process.pid)).unwrap();
        for target in fds.filter_map(|fd| std::fs::read_link(fd.unwrap().path()).ok()) {
            let target = target.to_string_lossy().into_owned();
            assert!(
                !target.contains("passwd") && !target.starts_with("mnt:") && !target.starts_with("user:"),
                "{target}"
            );
        }
    }
    drop(secret);
    node.stop(&plan).await;
    remove(&node, &plan).await;
    node.assert_clean();
}

pub async fn a_killed_init_leaves_its_code() {
    let node = Node::new();
    let plan = node.plan("000000000001", &SLEEP);
    let started = node.start(&plan).await;
    kill(&started.init);
    assert_eq!(node.exit_code(&plan, &started).await, Some(137));
    let observed = node.observe(&plan, Some(&started)).await;
    assert!(observed.init.is_none() && observed.remains);
    node.containers.clean_container(&plan.id, 1, Some(&node.pin)).await.unwrap();
    assert!(!node.observe(&plan, None).await.remains);
    remove(&node, &plan).await;
    node.assert_clean();
}

pub async fn a_killed_monitor_loses_neither_container_nor_exit_code() {
    let node = Node::new();
    let start = async |id: &str, argv: &[&str]| -> (holdfast_core::plan::ContainerPlan, Started) {
        let plan = node.plan(id, argv);
        let started = node.start(&plan).await;
        kill(&started.monitor);
        until("the monitor's end", async || (!is_alive(&started.monitor)).then_some(())).await;
        let observed = node.observe(&plan, Some(&started)).await;
        assert_eq!(
            (observed.init.as_ref(), observed.monitor.as_ref(), observed.exit),
            (Some(&started.init), None, None)
        );
        (plan, started)
    };
    let (plan, started) = start("000000000001", &SLEEP).await;
    // A container's pid 1 without a handler ignores SIGTERM: killed after its grace.
    assert_eq!(node.stop(&plan).await, Some(137));
    assert!(!is_alive(&started.init));
    let (other, started) = start("000000000002", &["/bin/sh", "-c", "sleep 0.3; exit 33"]).await;
    let exit = until("the exit", async || {
        node.observe(&other, Some(&started)).await.exit.filter(|exit| exit.code.is_some())
    })
    .await;
    assert_eq!(exit.code, Some(33));
    assert_eq!(node.stop(&other).await, Some(33));
    remove(&node, &plan).await;
    remove(&node, &other).await;
    node.assert_clean();
}

pub async fn a_living_container_is_neither_cleaned_nor_removed() {
    let node = Node::new();
    let plan = node.plan("000000000001", &SLEEP);
    let started = node.start(&plan).await;
    let error = node.containers.clean_container(&plan.id, 1, Some(&node.pin)).await.unwrap_err();
    assert_eq!(error.class, Class::Conflict, "{error}");
    let error = node.containers.remove_files(&plan.id, Some(&node.pin)).await.unwrap_err();
    assert_eq!(error.class, Class::Conflict, "{error}");
    assert!(is_alive(&started.init) && is_alive(&started.monitor));
    node.stop(&plan).await;
    remove(&node, &plan).await;
    // Gone already is a success.
    remove(&node, &plan).await;
    node.containers.clean_container(&plan.id, 1, Some(&node.pin)).await.unwrap();
    node.assert_clean();
}

/// Its processes and files belong to a subordinate id of the user, which the user is not.
pub async fn a_user_of_its_own_is_stopped_by_signal_and_by_kill() {
    let node = Node::new();
    let mut plan = node.plan("000000000001", &["/bin/sh", "-c", "mkdir -m 700 /tmp/own; touch /tmp/own/x; trap 'exit 9' TERM; echo ready; while true; do sleep 0.02; done"]);
    plan.user = (1000, 1001);
    let started = node.start(&plan).await;
    let log = node.containers.log_path(&plan.id);
    until("the trap", async || std::fs::read_to_string(&log).ok()?.contains("ready").then_some(())).await;
    let status = std::fs::read_to_string(format!("/proc/{}/status", started.init.pid)).unwrap();
    assert!(status.contains("CapEff:\t0000000000000000"), "{status}");
    let exit =
        node.containers.stop_container(&plan.id, 1, 15, Span::from_secs(20), Some(&node.pin)).await.unwrap();
    assert_eq!(exit.code, Some(9));
    plan.incarnation = 2;
    plan.argv = SLEEP.map(str::to_owned).to_vec();
    node.start(&plan).await;
    assert_eq!(node.stop(&plan).await, Some(137));
    remove(&node, &plan).await;
    node.assert_clean();
}

pub async fn without_a_pin_a_container_is_stopped_and_removed() {
    let mut node = Node::new();
    let mut plan = node.plan("000000000001", &["/bin/sh", "-c", "mkdir -m 700 /tmp/own; exec sleep 1000"]);
    plan.user = (1000, 1000);
    let started = node.start(&plan).await;
    node.kill_pins();
    let exit = node.containers.stop_container(&plan.id, 1, 15, Span::from_ms(50), None).await.unwrap();
    assert_eq!(exit.code, Some(137));
    assert!(!is_alive(&started.init));
    node.containers.remove_files(&plan.id, None).await.unwrap();
    node.assert_clean();
}

pub async fn a_thousand_containers_are_observed_quickly() {
    let node = Node::new();
    let plan = node.plan("000000000001", &SLEEP);
    let started = node.start(&plan).await;
    let hint = |id: String| ContainerHint {
        id: holdfast_core::id::ContainerId::from_raw(id),
        incarnation: 1,
        running: Some((started.init.clone(), started.monitor.clone())),
    };
    let hints: Vec<ContainerHint> = (0..1000).map(|number| hint(format!("{number:012}"))).collect();
    let from = Instant::now();
    let observed = node.containers.observe_containers(&hints).await.unwrap();
    let took = from.elapsed();
    assert_eq!(observed.len(), 1000);
    assert!(observed.values().all(|container| container.init.is_some()
        && container.monitor.is_some()
        && container.netns.is_some()));
    println!("     1,000 running containers observed in {} ms", took.as_millis());
    assert!(took.as_millis() < 1000, "{took:?}");
    node.stop(&plan).await;
    remove(&node, &plan).await;
    node.assert_clean();
}
