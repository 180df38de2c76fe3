//! Restart policies and abrupt ends.

use crate::{
    runner::Context,
    support::{IMAGE, pause, stage},
};
use anyhow::{Context as _, Result, ensure};
use holdfast_chaos::{
    poll,
    process::{self, Process},
    stage::HEAL_DEADLINE,
};
use std::{fs, time::Duration};

pub fn on_failure_counts(context: &Context) -> Result<()> {
    let stage = stage(context)?;
    let node = &stage.node;
    for (name, policy, code, starts) in
        [("never", "no", 3, 1), ("twice", "on-failure:2", 3, 3), ("fine", "on-failure:2", 0, 1)]
    {
        let script = format!("echo start; exit {code}");
        node.cli(&["run", "-d", "--name", name, "--restart", policy, IMAGE, "sh", "-c", &script])?;
        let waited = node.sh(&format!("wait {name}"))?;
        ensure!(waited.trim() == code.to_string(), "{name}: wait tells {waited:?}");
        let container = node.container(name)?;
        ensure!(container.state == "exited" && container.exit_code == Some(code), "{container:?}");
        ensure!(container.restarts == starts - 1, "{name}: {} restarts", container.restarts);
        let logs = node.sh(&format!("logs {name}"))?;
        ensure!(logs.lines().count() as u64 == starts, "{name} started {} times", logs.lines().count());
    }
    stage.finish()
}

pub fn always_backs_off(context: &Context) -> Result<()> {
    let stage = stage(context)?;
    let node = &stage.node;
    let shared = node.scratch.path().join("times");
    fs::create_dir(&shared)?;
    // Hundredths of a second since boot: proc_uptime(5).
    let script = "cut -d' ' -f1 /proc/uptime >> /t/starts";
    let volume = format!("{}:/t", shared.display());
    #[rustfmt::skip]
    node.cli(&["run", "-d", "--name", "again", "--restart", "always", "-v", &volume, IMAGE, "sh", "-c", script])?;
    let times = poll::until("five starts", HEAL_DEADLINE, || {
        let text = fs::read_to_string(shared.join("starts")).unwrap_or_default();
        let times: Vec<f64> = text.lines().filter_map(|line| line.parse().ok()).collect();
        Ok((times.len() >= 5).then_some(times))
    })?;
    // 100 ms, doubled each time; never sooner, whatever else the machine does.
    for (index, pair) in times.windows(2).enumerate() {
        let (gap, least) = (pair[1] - pair[0], 0.1 * f64::powi(2.0, i32::try_from(index)?));
        ensure!(
            gap >= least - 0.02,
            "start {} came {gap:.2} s after the one before, not {least:.1}",
            index + 2
        );
        ensure!(gap < least + 3.0, "start {} came only after {gap:.2} s", index + 2);
    }
    // A stop ends it for good, also in the middle of a wait.
    node.sh("stop --time 1 again")?;
    let count = fs::read_to_string(shared.join("starts"))?.lines().count();
    poll::rest(Duration::from_secs(2));
    ensure!(fs::read_to_string(shared.join("starts"))?.lines().count() == count, "started after its stop");
    stage.finish()
}

pub fn abrupt_kill(context: &Context) -> Result<()> {
    let stage = stage(context)?;
    let node = &stage.node;
    pause(node, "always", "--restart always")?;
    pause(node, "mortal", "")?;
    let ended = |name: &str| {
        let mut last = String::new();
        let found = poll::until("the end to be noticed", Duration::from_secs(10), || {
            let now = node.container(name)?;
            last = format!("{} {:?}, init {:?}", now.state, now.exit_code, now.init);
            Ok((now.state == "exited").then_some(now))
        });
        found.with_context(|| format!("last seen: {last}"))
    };
    let always = node.await_running("always", HEAL_DEADLINE)?;
    let mortal = node.await_running("mortal", HEAL_DEADLINE)?;
    process::kill_all(&[always.running()?, mortal.running()?])?;
    let back = poll::until("always to be restarted", HEAL_DEADLINE, || {
        let now = node.container("always")?;
        Ok((now.init != always.init && now.init.is_some_and(Process::is_alive)).then_some(now))
    })?;
    ensure!(back.interfaces == always.interfaces, "{:?} became {:?}", always.interfaces, back.interfaces);
    ensure!(back.restarts == 1, "{} restarts", back.restarts);
    let dead = ended("mortal").context("init was killed")?;
    ensure!(dead.exit_code == Some(137) && dead.restarts == 0, "{dead:?}");
    // Its monitor dies with it: nobody can tell how it ended, and nobody may invent a code. It is recovered like
    // a workload that a crash took, or stays ended with its code unknown.
    node.sh("start mortal")?;
    let again = node.await_running("mortal", HEAL_DEADLINE)?;
    let victims: Vec<Process> = [again.monitor, again.init].into_iter().flatten().collect();
    process::kill_all(&victims)?;
    let after = poll::until("the end of init and monitor to be noticed", HEAL_DEADLINE, || {
        let now = node.container("mortal")?;
        let recovered = now.init != again.init && now.init.is_some_and(Process::is_alive);
        Ok((recovered || now.state == "exited").then_some(now))
    })?;
    ensure!(after.exit_code.is_none(), "an exit code that nobody read: {after:?}");
    ensure!(after.interfaces == mortal.interfaces, "{:?} became {:?}", mortal.interfaces, after.interfaces);
    stage.finish()
}
