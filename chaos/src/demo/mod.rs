//! The story that `make demo` tells: a node, its workloads, and everything of the node killed under them.

mod acts;
mod print;

use crate::{
    identity::Identity,
    process,
    stage::{Stage, WORKLOADS, Workloads},
};
use acts::{ACTS, Act, Report};
use anyhow::Result;
use print::Printer;
use std::{sync::Arc, time::Instant};

/// Tells it; `true` when every claim held.
///
/// # Errors
/// When there is no node to tell it about.
pub fn run(identity: &Arc<Identity>) -> Result<bool> {
    let out = Printer::new();
    let started = Instant::now();
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    out.title("Holdfast: a rootless node whose workloads outlive every process of it");
    out.fact("user", &format!("{} (uid {}), no root from here on", identity.user, identity.uid));
    out.fact("kernel", kernel.trim());
    let stage = Stage::populated(identity)?;
    introduce(&out, &stage)?;
    let mut reports = Vec::new();
    for (index, act) in ACTS.iter().enumerate() {
        out.act(index + 1, ACTS.len(), act.title, act.about);
        let report = match act.play(&stage) {
            Ok(report) => report,
            Err(error) => Report::broken(act, &error),
        };
        out.report(&report);
        let held = report.failures.is_empty();
        reports.push(report);
        if !held {
            // What follows would be told of a node that is not what the story says.
            break;
        }
    }
    out.table(&reports);
    let cleaned = stage.finish();
    match &cleaned {
        Ok(()) => out.line("Cleaned up: no process, namespace, mount, port or file of the node is left."),
        Err(error) => out.failure(&format!("not cleaned up: {error:#}")),
    }
    let held = cleaned.is_ok()
        && reports.len() == ACTS.len()
        && reports.iter().all(|report| report.failures.is_empty());
    let seconds = started.elapsed().as_secs_f64();
    if held {
        out.line(&format!(
            "All {} claims held. {seconds:.1} s.",
            reports.iter().map(|report| report.claims).sum::<u32>()
        ));
    } else {
        out.failure(&format!("a claim failed; {seconds:.1} s"));
    }
    Ok(held)
}

fn introduce(out: &Printer, stage: &Stage) -> Result<()> {
    let processes =
        stage.node.await_processes("the node to be whole", crate::stage::HEAL_DEADLINE, |_| true)?;
    let workloads: Workloads = stage.workloads()?;
    out.heading("The node");
    for role in crate::node::Role::ALL {
        let process = processes.get(role);
        let place = match process::namespace(process.pid, "net") {
            Some(net) if Some(net) == process::namespace(std::process::id(), "net") => "host's network",
            Some(_) => "router's network",
            None => "",
        };
        out.fact(role.name(), &format!("pid {:<8} {place}", process.to_string()));
    }
    out.heading("Its workloads");
    for name in WORKLOADS {
        let container = &workloads[name];
        let place = match name {
            "web" => format!("network blue, published at http://{}", address(stage)),
            "peer" => "network blue".to_owned(),
            _ => "pod duo of tenant other, network blue".to_owned(),
        };
        out.fact(
            name,
            &format!(
                "pid {:<8} {:<15} {place}",
                container.running()?.to_string(),
                container.ipv4()?.to_string()
            ),
        );
    }
    out.heading("Traffic, all the time");
    out.line("  ping      100 Hz from peer to web, by sequence number");
    out.line("  stream    one TCP connection between peer and web, numbered words both ways");
    out.line("  http      a request to the published port every 20 ms");
    out.line("  isolation peer and web must not reach the pod, nor the pod them");
    Ok(())
}

fn address(stage: &Stage) -> String {
    stage.published.map(|address| address.to_string()).unwrap_or_default()
}

/// The act's name, for a report of it.
fn named(act: &Act) -> &'static str {
    act.title
}
