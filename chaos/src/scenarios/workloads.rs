//! Many workloads at once, and workloads that die by themselves.

use super::Context;
use crate::{
    command, image,
    node::COMMAND_DEADLINE,
    poll,
    process::{self, Process},
    report::Outcome,
    stage::{HEAL_DEADLINE, Stage, check_addresses},
    traffic::ping_some,
};
use anyhow::{Context as _, Result, bail, ensure};
use std::{
    collections::BTreeSet,
    sync::atomic::{AtomicUsize, Ordering},
    time::{Duration, Instant},
};

pub fn concurrent_attach(context: &Context) -> Result<Outcome> {
    const COUNT: usize = 30;
    let stage = Stage::empty(&context.identity)?;
    let node = &stage.node;
    node.sh("network create blue")?;
    node.sh(&format!("run -d --name first --network blue {} {}", image::NAME, image::PAUSE[0]))?;
    let first = node.await_running("first", HEAL_DEADLINE)?.running()?;
    let started = Instant::now();
    let failures: Vec<String> = std::thread::scope(|scope| {
        let runs: Vec<_> = (0..COUNT)
            .map(|index| {
                scope.spawn(move || {
                    node.sh(&format!(
                        "run -d --name c{index} --network blue {} {}",
                        image::NAME,
                        image::PAUSE[0]
                    ))
                })
            })
            .collect();
        runs.into_iter()
            .filter_map(|run| match run.join() {
                Ok(Ok(_)) => None,
                Ok(Err(error)) => Some(format!("{error:#}")),
                Err(_) => Some("panicked".to_owned()),
            })
            .collect()
    });
    let took = started.elapsed();
    ensure!(failures.is_empty(), "{} of {COUNT} failed: {}", failures.len(), failures.join("; "));
    let mut addresses = BTreeSet::new();
    for index in 0..COUNT {
        let container = node.await_running(&format!("c{index}"), HEAL_DEADLINE)?;
        let address = container.ipv4()?;
        ensure!(addresses.insert(address), "{address} was given twice");
        let ping = ping_some(&context.identity, first, address)?;
        ensure!(ping.received > 0, "{} at {address} does not answer", container.name);
    }
    stage.finish()?;
    Ok(Outcome::Pass(format!("{COUNT} containers in {:.0} ms, all reachable", took.as_secs_f64() * 1e3)))
}

pub fn abrupt_kill(context: &Context) -> Result<Outcome> {
    let stage = Stage::populated(&context.identity)?;
    let before = stage.workloads()?;
    let victim = before["web"].running()?;
    process::kill_all(&[victim])?;
    let web = poll::until("web to be restarted", HEAL_DEADLINE, || {
        let now = stage.node.container("web")?;
        Ok(now.init.is_some_and(|init| init != victim && init.is_alive()).then_some(now))
    })?;
    ensure!(web.restarts == before["web"].restarts + 1, "web counts {} restarts", web.restarts);
    let after = stage.workloads()?;
    check_addresses(&before, &after)?;
    ensure!(before["peer"].init == after["peer"].init, "peer was restarted because web was killed");
    stage.check_reach()?;
    // Without a restart policy it stays dead, and the code says how it died.
    stage.node.sh(&format!("run -d --name once --network blue {} {}", image::NAME, image::PAUSE[0]))?;
    let once = stage.node.await_running("once", HEAL_DEADLINE)?.running()?;
    process::kill_all(&[once])?;
    let once = poll::until("once to be seen dead", HEAL_DEADLINE, || {
        let now = stage.node.container("once")?;
        Ok((now.state != "running").then_some(now))
    })?;
    ensure!(once.state == "exited", "a killed container without a restart policy is {}", once.state);
    ensure!(once.exit_code == Some(137), "killed by SIGKILL, and its exit code is {:?}", once.exit_code);
    stage.finish()?;
    Ok(Outcome::Pass("restarted at its address; without policy: exited, code 137".to_owned()))
}

pub fn conmon_kill(context: &Context) -> Result<Outcome> {
    let stage = Stage::populated(&context.identity)?;
    let before = stage.workloads()?;
    let mut traffic = stage.traffic()?;
    let monitor = before["peer"].monitor.context("peer has no monitor")?;
    let init = before["peer"].running()?;
    process::kill_all(&[monitor])?;
    // Long enough for a node that reacts wrongly to do so: it would take the container for dead.
    poll::rest(Duration::from_millis(500));
    ensure!(init.is_alive(), "peer died with its monitor");
    let status = stage.node.container("peer")?;
    ensure!(
        status.state == "running" && status.init == Some(init),
        "peer lives, and is told to be {}",
        status.state
    );
    let ping = traffic.ping.report()?;
    ensure!(ping.lost == 0, "{} pings lost", ping.lost);
    traffic.stream.finish(HEAL_DEADLINE)?;
    drop((traffic.ping, traffic.http));
    stage.node.sh("restart --time 2 peer")?;
    let after = stage.node.await_running("peer", HEAL_DEADLINE)?;
    ensure!(after.init != Some(init), "restart did not restart peer");
    ensure!(after.monitor.is_some_and(Process::is_alive), "peer has no monitor after its restart");
    check_addresses(&before, &stage.workloads()?)?;
    stage.node.sh("exec peer true")?;
    stage.check_reach()?;
    stage.finish()?;
    Ok(Outcome::Pass(format!("lived on, {} pings, none lost; restarted with a new monitor", ping.sent)))
}

pub fn exec_storm(context: &Context) -> Result<Outcome> {
    const COUNT: usize = 1000;
    const AT_ONCE: usize = 8;
    let stage = Stage::populated(&context.identity)?;
    let node = &stage.node;
    let before = stage.workloads()?;
    let processes = node.await_processes("the node to be whole", HEAL_DEADLINE, |_| true)?;
    let next = AtomicUsize::new(0);
    let started = Instant::now();
    let failures: Vec<String> = std::thread::scope(|scope| {
        let storm = || {
            let mut failures = Vec::new();
            while next.fetch_add(1, Ordering::SeqCst) < COUNT {
                // An exit code that is passed on proves that it ran and was waited for.
                let mut run = node.command(&["exec", "peer", "sh", "-c", "exit 7"]);
                match command::run(&mut run, COMMAND_DEADLINE) {
                    Ok(output) if output.status.code() == Some(7) => {}
                    Ok(output) => failures.push(format!("{}: {}", output.status, output.stderr.trim())),
                    Err(error) => failures.push(format!("{error:#}")),
                }
            }
            failures
        };
        let threads: Vec<_> = (0..AT_ONCE).map(|_| scope.spawn(storm)).collect();
        threads
            .into_iter()
            .flat_map(|thread| thread.join().unwrap_or_else(|_| vec!["panicked".to_owned()]))
            .collect()
    });
    let took = started.elapsed();
    if let Some(first) = failures.first() {
        bail!("{} of {COUNT} execs failed, the first: {first}", failures.len());
    }
    let after = stage.workloads()?;
    crate::stage::check_untouched(&before, &after)?;
    let mut parents: Vec<Process> = processes.all().to_vec();
    parents.extend(after.values().flat_map(|container| [container.monitor, container.init]).flatten());
    poll::until("every exec to be reaped", Duration::from_secs(5), || {
        Ok(parents.iter().all(|parent| process::zombies_of(parent.pid).is_empty()).then_some(()))
    })?;
    let now = node.await_processes("the node to be whole", HEAL_DEADLINE, |_| true)?;
    ensure!(now == processes, "the storm changed {processes} into {now}");
    stage.finish()?;
    Ok(Outcome::Pass(format!(
        "{COUNT} execs, {:.1} ms each, no zombie",
        took.as_secs_f64() * 1e3 / COUNT as f64
    )))
}
