//! The node itself: up, down, status, its daemon's deaths and upgrades.

use crate::{
    runner::Context,
    support::{by_binary, pause, serve, stage, text, whole},
};
use anyhow::{Context as _, Result, ensure};
use holdfast_chaos::{
    node::Role,
    poll,
    process::{self, Process},
    stage::{HEAL_DEADLINE, Stage, check_untouched, free_port},
    traffic::http_get,
};
use std::time::Duration;

pub fn up_is_idempotent(context: &Context) -> Result<()> {
    let stage = stage(context)?;
    let first = whole(&stage.node)?;
    for _ in 0..3 {
        let again = stage.node.up()?;
        ensure!(again == first, "`up` on a whole node changed {first} into {again}");
    }
    let said = stage.node.refused("daemon")?;
    ensure!(said.contains(&first.daemon.pid.to_string()), "a second daemon was told {said:?}");
    let after = whole(&stage.node)?;
    ensure!(after == first, "a second daemon changed {first} into {after}");
    stage.finish()
}

/// Every process that `status` says runs must live under that pid and start time.
fn check_status_against_proc(stage: &Stage, dead: &[Process]) -> Result<()> {
    // A node that is being mended says so with its exit code too.
    let output = stage.node.try_cli(&["--format", "json", "status"])?;
    let status: serde_json::Value =
        serde_json::from_str(&output.stdout).with_context(|| format!("status printed {output:?}"))?;
    for entry in status["processes"].as_array().context("no processes")? {
        let Some(pid) = entry.pointer("/process/pid").and_then(serde_json::Value::as_u64) else { continue };
        let ticks = entry.pointer("/process/start_time_ticks").and_then(serde_json::Value::as_u64);
        let told = Process { pid: u32::try_from(pid)?, start_ticks: ticks.context("no start time")? };
        ensure!(!dead.contains(&told), "status says that the killed {entry} is there");
    }
    Ok(())
}

pub fn status_tells_the_truth(context: &Context) -> Result<()> {
    let stage = stage(context)?;
    let node = &stage.node;
    serve(node, "web", "")?;
    let web = node.await_running("web", HEAL_DEADLINE)?;
    for role in Role::ALL {
        let before = whole(node)?;
        let victim = before.get(role);
        process::kill_all(&[victim])?;
        check_status_against_proc(&stage, &[victim])?;
        let after = node.await_processes("the node to heal", HEAL_DEADLINE, |now| now.get(role) != victim)?;
        for other in Role::ALL.into_iter().filter(|other| *other != role) {
            ensure!(
                before.get(other) == after.get(other),
                "{} changed because {} was killed",
                other.name(),
                role.name()
            );
        }
        let router = process::namespace(after.pin.pid, "net");
        ensure!(
            router.is_some() && process::namespace(after.control.pid, "net") == router,
            "the control is not in the pin's network, whatever status says"
        );
    }
    ensure!(node.container("web")?.init == web.init, "web was restarted");
    let init = web.running()?;
    ensure!(process::command_line(init.pid).contains("httpd"), "pid {init} is not web's process");
    node.sh("stop --time 1 web")?;
    let after = node.container("web")?;
    ensure!(after.state == "exited" && after.init.is_none(), "a stopped container is told as {after:?}");
    ensure!(!init.is_alive(), "a stopped container lives");
    let human = node.sh("status")?;
    let pin = whole(node)?.pin;
    ensure!(human.contains(&pin.pid.to_string()) && human.contains("web"), "for people: {human}");
    stage.finish()
}

pub fn killed_daemon(context: &Context) -> Result<()> {
    let stage = Stage::populated(&context.identity)?;
    let before = stage.workloads()?;
    for signal in [libc::SIGKILL, libc::SIGTERM] {
        let old = whole(&stage.node)?;
        old.daemon.signal(signal)?;
        old.daemon.await_death(Duration::from_secs(10))?;
        let listed = stage.node.names("ps")?;
        ensure!(listed.len() == before.len(), "the next command lists {listed:?}");
        let new =
            stage.node.await_processes("a new daemon", HEAL_DEADLINE, |now| now.daemon != old.daemon)?;
        for role in [Role::Control, Role::Pin, Role::Uplink] {
            ensure!(old.get(role) == new.get(role), "{} changed with the daemon", role.name());
        }
        check_untouched(&before, &stage.workloads()?)?;
    }
    stage.check_reach()?;
    stage.finish()
}

pub fn upgrade(context: &Context) -> Result<()> {
    let stage = Stage::populated(&context.identity)?;
    let before = stage.workloads()?;
    let old = whole(&stage.node)?;
    // A rebuilt program is another build although its version is the same: another time of its file.
    let build = stage.node.scratch.path().join("holdfast-next");
    std::fs::copy(&context.identity.holdfast, &build)?;
    old.daemon.signal(libc::SIGTERM)?;
    old.daemon.await_death(Duration::from_secs(10))?;
    by_binary(&stage.node, &build, &["up"])?.success("the next build's up")?;
    let new = whole(&stage.node)?;
    let running = |process: Process| std::fs::read_link(format!("/proc/{}/exe", process.pid));
    ensure!(running(new.daemon)? == build, "the daemon is not the new build");
    ensure!(running(new.control)? == build, "the control is not the new build: {:?}", running(new.control));
    ensure!(new.pin == old.pin, "the pin has no version, and was replaced");
    ensure!(new.uplink == old.uplink, "the uplink was replaced");
    check_untouched(&before, &stage.workloads()?)?;
    stage.check_reach()?;
    stage.finish()
}

pub fn down_and_up(context: &Context) -> Result<()> {
    let stage = Stage::populated(&context.identity)?;
    let node = &stage.node;
    pause(node, "stopped", "--network blue --restart unless-stopped")?;
    node.sh("stop --time 1 stopped")?;
    let before = stage.workloads()?;
    let old = whole(node)?;
    node.down()?;
    for process in old.all() {
        process.await_death(Duration::from_secs(10))?;
    }
    for (name, container) in &before {
        ensure!(!container.running()?.is_alive(), "{name} lives after `down`");
    }
    let status = node.json("status")?;
    ensure!(text(&status, "/state") == "down", "after `down` status says {}", status["state"]);
    ensure!(node.status()?.running.len() <= 1, "`status` brought the node up: {status}");
    let refused = node.refused("exec web true")?;
    ensure!(!refused.trim().is_empty(), "exec while down");
    node.up()?;
    let after = poll::until("the workloads to come back", HEAL_DEADLINE, || Ok(stage.workloads().ok()))?;
    holdfast_chaos::stage::check_addresses(&before, &after)?;
    let stopped = node.container("stopped")?;
    ensure!(stopped.init.is_none(), "a container that was stopped came back with the node");
    stage.check_reach()?;
    stage.finish()
}

pub fn down_keeping_workloads(context: &Context) -> Result<()> {
    let stage = stage(context)?;
    let node = &stage.node;
    let port = free_port()?;
    serve(node, "web", &format!("-p {port}:80"))?;
    let web = node.await_running("web", HEAL_DEADLINE)?;
    let old = whole(node)?;
    node.sh("down --keep-workloads")?;
    for process in old.all() {
        process.await_death(Duration::from_secs(10))?;
    }
    ensure!(web.running()?.is_alive(), "`down --keep-workloads` ended the workload");
    node.up()?;
    let after = node.await_running("web", HEAL_DEADLINE)?;
    ensure!(after.init == web.init && after.restarts == web.restarts, "{web:?} became {after:?}");
    ensure!(after.interfaces == web.interfaces, "{:?} became {:?}", web.interfaces, after.interfaces);
    poll::until("the published port", HEAL_DEADLINE, || Ok(http_get(port, Duration::from_secs(1)).ok()))?;
    let code = node.try_cli(&["exec", "web", "sh", "-c", "exit 5"])?.status.code();
    ensure!(code == Some(5), "exec into an adopted container ended with {code:?}");
    stage.finish()
}

pub fn doctor(context: &Context) -> Result<()> {
    let stage = stage(context)?;
    let output = stage.node.try_cli(&["--format", "json", "doctor"])?;
    let value: serde_json::Value =
        serde_json::from_str(&output.stdout).with_context(|| format!("doctor printed {output:?}"))?;
    let checks = value.as_array().or_else(|| value["checks"].as_array()).context("doctor lists nothing")?;
    ensure!(checks.len() >= 8, "doctor makes {} checks", checks.len());
    let mut bad = 0;
    for check in checks {
        let verdict = text(check, "/verdict");
        ensure!(["ok", "warn", "fail"].contains(&verdict), "a check without a verdict: {check}");
        bad += usize::from(verdict == "fail");
        ensure!(verdict == "ok" || !text(check, "/remedy").is_empty(), "no remedy: {check}");
    }
    ensure!(output.status.success() == (bad == 0), "{} with {bad} failed checks", output.status);
    stage.finish()
}
