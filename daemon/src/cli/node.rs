//! `up`, `down`, `status`.

use super::{Context, args::Format, output, table, time};
use crate::api::types::{DownRequest, Pong, UpReport};
use holdfast_core::{
    driver::DownReport,
    id::ProcessRef,
    status::{ContainerStatus, NodeState, StatusReport, WorkloadStatus},
    time::Wall,
};
use std::time::Duration;

/// Exit code when the node answered and is not as it should be.
const EXIT_DEGRADED: u8 = 1;

/// How long the daemon may take to end after the node is down.
const END_DEADLINE: Duration = Duration::from_secs(15);

/// `up`.
pub async fn up(context: &Context) -> anyhow::Result<u8> {
    let told: UpReport = output::post(context, &["up"], &serde_json::json!({})).await?;
    match context.format {
        Format::Json => output::json(&told)?,
        Format::Table | Format::Name => {
            for earlier in &told.before {
                outln!("{}: {earlier}", earlier.trigger);
            }
            outln!("{}", told.report);
        }
    }
    // What went wrong before and is whole now is told, and is no failure of this command.
    let report = told.report;
    let whole = report.converged && report.failed.is_empty() && report.errors.is_empty();
    Ok(if whole { 0 } else { EXIT_DEGRADED })
}

/// `down`: the daemon ends too.
pub async fn down(context: &Context, keep_workloads: bool) -> anyhow::Result<u8> {
    let request = DownRequest { keep_workloads, end_daemon: true };
    let pong: Pong = output::get(context, &["ping"], &[]).await?;
    let report: DownReport = output::post(context, &["down"], &request).await?;
    if !pong.supervised && !context.client.ended(END_DEADLINE).await {
        eprintln!("holdfast: the daemon (pid {}) has not ended yet", pong.pid);
    }
    match context.format {
        Format::Json => output::json(&report)?,
        Format::Name => report.stopped.iter().for_each(|name| outln!("{name}")),
        Format::Table => {
            outln!("down: {} stopped, {} left running", report.stopped.len(), report.kept.len());
        }
    }
    for error in &report.errors {
        eprintln!("holdfast: {error}");
    }
    Ok(if report.errors.is_empty() { 0 } else { EXIT_DEGRADED })
}

/// `status`.
pub async fn status(context: &Context) -> anyhow::Result<u8> {
    let report: StatusReport = output::get(context, &["status"], &[]).await?;
    match context.format {
        Format::Json => output::json(&report)?,
        Format::Name => outln!("{}", word(report.state)),
        Format::Table => out!("{}", text(&report)),
    }
    Ok(if report.state == NodeState::Degraded { EXIT_DEGRADED } else { 0 })
}

fn word(state: NodeState) -> &'static str {
    match state {
        NodeState::Up => "up",
        NodeState::Degraded => "degraded",
        NodeState::Down => "down",
    }
}

fn text(report: &StatusReport) -> String {
    let mut text = format!("node {}", word(report.state));
    if !report.cures.is_empty() {
        let cures: Vec<String> = report.cures.iter().map(|(cure, count)| format!("{cure} {count}")).collect();
        text.push_str(&format!("; cures so far: {}", cures.join(", ")));
    }
    text.push_str("\n\n");
    text.push_str(&table::render(&["PROCESS", "STATE", "PID", "SINCE", "IN PIN"], &processes(report)));
    if !report.services.is_empty() {
        text.push('\n');
        text.push_str(&table::render(&["SERVICE", "STATE", "DOES"], &services(report)));
    }
    if !report.networks.is_empty() {
        text.push('\n');
        text.push_str(&table::render(
            &["NETWORK", "BRIDGE", "STATE", "IPV4", "IPV6", "WORKLOADS"],
            &networks(report),
        ));
    }
    if !report.workloads.is_empty() {
        let headings = [
            "WORKLOAD",
            "CONTAINER",
            "STATE",
            "PID",
            "SINCE",
            "RESTARTS",
            "LAST CURE",
            "TENANT",
            "ADDRESS",
            "PORTS",
        ];
        text.push('\n');
        text.push_str(&table::render(&headings, &workloads(report)));
    }
    for (kind, name) in &report.operations {
        text.push_str(&format!("\nunder way: {kind} {}\n", table::printable(name)));
    }
    for degraded in &report.degraded {
        text.push_str(&format!("\ndegraded: {}: {}\n", table::printable(&degraded.what), degraded.cause));
        if !degraded.remedy.is_empty() {
            text.push_str(&format!("  remedy: {}\n", degraded.remedy));
        }
    }
    for one in &report.quarantined {
        text.push_str(&format!("\nquarantined: {} {} {}\n", one.kind, table::printable(&one.id), one.cause));
    }
    text
}

fn processes(report: &StatusReport) -> Vec<Vec<String>> {
    let row = |process: &holdfast_core::status::ProcessStatus| {
        vec![
            process.role.clone(),
            process.state.clone(),
            process.process.as_ref().map(|process| process.pid.to_string()).unwrap_or_default(),
            process.process.as_ref().and_then(started).map(time::rfc3339).unwrap_or_default(),
            match process.in_pin {
                Some(true) => "yes".to_owned(),
                Some(false) => "no".to_owned(),
                None => "-".to_owned(),
            },
        ]
    };
    report.processes.iter().map(row).collect()
}

fn services(report: &StatusReport) -> Vec<Vec<String>> {
    let row = |service: &holdfast_core::observed::ServiceObserved| {
        let state = if service.fault.is_some() { "faulty" } else { "serves" };
        vec![service.name.clone(), state.to_owned(), table::printable(&service.detail)]
    };
    report.services.iter().map(row).collect()
}

fn networks(report: &StatusReport) -> Vec<Vec<String>> {
    let row = |network: &holdfast_core::status::NetworkStatus| {
        let state = match network.complete {
            Some(true) => "complete",
            Some(false) => "not complete",
            None => "unknown",
        };
        vec![
            network.name.clone(),
            network.bridge.clone(),
            state.to_owned(),
            network.subnet4.clone(),
            network.subnet6.clone(),
            network.workloads.to_string(),
        ]
    };
    report.networks.iter().map(row).collect()
}

fn workloads(report: &StatusReport) -> Vec<Vec<String>> {
    let mut rows = Vec::new();
    for workload in &report.workloads {
        if workload.containers.is_empty() {
            rows.push(workload_row(workload, None));
        }
        for (index, container) in workload.containers.iter().enumerate() {
            let mut row = workload_row(workload, Some(container));
            if index > 0 {
                // The pod's own columns once.
                for column in [0, 6, 7, 8, 9] {
                    row[column].clear();
                }
            }
            rows.push(row);
        }
    }
    rows
}

fn workload_row(workload: &WorkloadStatus, container: Option<&ContainerStatus>) -> Vec<String> {
    let of = |value: &dyn Fn(&ContainerStatus) -> String| container.map(value).unwrap_or_default();
    vec![
        workload.name.clone(),
        of(&|container| container.name.clone()),
        of(&|container| match container.exit_code {
            Some(code) => format!("{} ({code})", container.state),
            None => container.state.clone(),
        }),
        of(&|container| container.init.as_ref().map(|process| process.pid.to_string()).unwrap_or_default()),
        of(&|container| container.since.map(time::rfc3339).unwrap_or_default()),
        of(&|container| container.restarts.to_string()),
        workload.last_cure.map(|cure| cure.to_string()).unwrap_or_default(),
        workload.tenant.clone(),
        workload.addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(","),
        workload.ports.join(","),
    ]
}

/// When a process of this boot was started: its start time is in ticks since the boot, proc_pid_stat(5).
fn started(process: &ProcessRef) -> Option<Wall> {
    let ticks_per_second = nix::unistd::sysconf(nix::unistd::SysconfVar::CLK_TCK).ok()??;
    let since_boot_ms =
        process.start_time_ticks.checked_mul(1_000)? / u64::try_from(ticks_per_second).ok()?;
    let boottime = nix::time::clock_gettime(nix::time::ClockId::CLOCK_BOOTTIME).ok()?;
    let uptime_ms = u64::try_from(std::time::Duration::from(boottime).as_millis()).ok()?;
    Some(Wall(time::now_ms().checked_sub(uptime_ms.checked_sub(since_boot_ms)?)?))
}
