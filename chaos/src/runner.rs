//! The runner: each scenario in a process of its own, which can be given up on.

use anyhow::{Context, Result, bail};
use holdfast_chaos::{
    command,
    identity::{CHAOS_BINARY_VARIABLE, Identity, NODE_BINARY_VARIABLE},
    node::SCRATCH_VARIABLE,
    privileged,
    process::{self, Process},
    report::{Tally, Verdict},
    scenarios::{self, Scenario},
};
use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
    sync::Arc,
    time::Duration,
};

/// Beyond the scenario's own deadline: for its clean-up.
const GRACE: Duration = Duration::from_secs(30);

/// Plays the named scenarios, or all.
pub fn run(names: &[String]) -> Result<ExitCode> {
    let chosen = choose(names)?;
    let identity = Identity::find()?;
    println!("node user {} (uid {}), {}", identity.user, identity.uid, identity.holdfast.display());
    let mut tally = Tally::default();
    for scenario in chosen {
        let (verdict, seconds) = play_apart(scenario, &identity)?;
        println!("{} {:<24} {:>6.1} s  {}", verdict.word(), scenario.name, seconds, verdict.detail());
        tally.add(&verdict);
    }
    println!("{tally}");
    Ok(if tally.fail == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn choose(names: &[String]) -> Result<Vec<&'static Scenario>> {
    if names.is_empty() {
        return Ok(scenarios::ALL.iter().collect());
    }
    names
        .iter()
        .map(|name| match scenarios::find(name) {
            Some(scenario) => Ok(scenario),
            None => bail!("no scenario {name:?}; `holdfast-chaos list` lists them"),
        })
        .collect()
}

fn play_apart(scenario: &Scenario, identity: &Identity) -> Result<(Verdict, f64)> {
    let scratch = tempfile::Builder::new().prefix("hfc-").tempdir_in("/tmp")?;
    std::os::unix::fs::chown(scratch.path(), Some(identity.uid), None)?;
    let mut child = Command::new(&identity.chaos);
    child.args(["scenario", scenario.name]);
    child.env(NODE_BINARY_VARIABLE, &identity.holdfast).env(CHAOS_BINARY_VARIABLE, &identity.chaos);
    child.env(SCRATCH_VARIABLE, scratch.path());
    let started = std::time::Instant::now();
    let verdict = match command::run(&mut child, scenario.deadline + GRACE) {
        Ok(output) => {
            let verdict = Verdict::parse(&output.stdout);
            if matches!(verdict, Verdict::Fail(_)) && !output.stderr.trim().is_empty() {
                eprintln!("{}", output.stderr.trim_end());
            }
            verdict
        }
        Err(error) => Verdict::Fail(format!("{error:#}")),
    };
    let seconds = started.elapsed().as_secs_f64();
    // A scenario cleans up by itself; one that was given up on did not.
    process::kill_all(&relatives(scratch.path()))?;
    Ok((verdict, seconds))
}

/// Processes with the scratch directory in their environment or arguments.
fn relatives(scratch: &Path) -> Vec<Process> {
    let mark = scratch.display().to_string();
    let own = std::process::id();
    process::all()
        .into_iter()
        .filter(|pid| *pid != own)
        .filter(|pid| {
            let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            process::command_line(*pid).contains(&mark)
                || String::from_utf8_lossy(&environment).contains(&mark)
        })
        .filter_map(Process::of)
        .collect()
}

/// Plays one scenario in this process: what needs root first, then as the node's user.
pub fn play(name: &str) -> Result<ExitCode> {
    let scenario = scenarios::find(name).with_context(|| format!("no scenario {name:?}"))?;
    let identity = Identity::find()?;
    let scratch = std::env::var_os(SCRATCH_VARIABLE).map_or_else(|| PathBuf::from("/tmp"), PathBuf::from);
    let prepared = privileged::prepare(scenario.preparation, &identity, &scratch);
    identity.assume()?;
    let context = scenarios::Context { identity: Arc::new(identity), prepared };
    let verdict = Verdict::of(scenario.play(&context));
    println!("{verdict}");
    Ok(if matches!(verdict, Verdict::Fail(_)) { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}
