//! `holdfast-bench-node`: a real node measured from outside, p50 and p99, and podman beside it in the same run.

mod kill;
mod podman;

use anyhow::Result;
use clap::Parser;
use holdfast_benches::sample::Sample;
use holdfast_chaos::{identity::Identity, image, stage::Stage};
use std::{process::ExitCode, sync::Arc, time::Instant};

/// A real node measured from outside
#[derive(Debug, Parser)]
struct Cli {
    /// How often each thing is done
    #[arg(long, default_value_t = 30)]
    runs: u32,
}

fn main() -> ExitCode {
    match run(&Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("holdfast-bench-node: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(cli: &Cli) -> Result<()> {
    let identity = Identity::find()?;
    identity.assume()?;
    let identity = Arc::new(identity);
    println!(
        "As {} (uid {}), {} runs each, seen from outside the node.\n",
        identity.user, identity.uid, cli.runs
    );
    kill::measure(&identity, cli.runs)?;
    commands(&identity, cli.runs)
}

/// `run`, `exec`, `restart` as whole commands, against podman's where there is one.
fn commands(identity: &Arc<Identity>, runs: u32) -> Result<()> {
    let stage = Stage::empty(identity)?;
    let node = &stage.node;
    let mut times = podman::Commands::default();
    let mut pod = Sample::default();
    for number in 0..runs {
        let timed = |sample: &mut Sample, line: &str| -> Result<()> {
            let started = Instant::now();
            node.sh(line)?;
            sample.add(started.elapsed());
            Ok(())
        };
        // A pod is a sandbox without a process: namespaces, addresses, rules, links and two commits.
        timed(&mut pod, &format!("pod create p{number}"))?;
        node.sh(&format!("pod rm p{number}"))?;
        timed(&mut times.run, &format!("run -d --name b{number} {} {}", image::NAME, image::PAUSE[0]))?;
        timed(&mut times.exec, &format!("exec b{number} true"))?;
        timed(&mut times.restart, &format!("restart --time 0 b{number}"))?;
        node.sh(&format!("rm --force b{number}"))?;
    }
    stage.finish()?;
    println!("\n{:<44} {pod}", "pod create (command, journal, attach)");
    let theirs = podman::measure(identity, runs);
    for (name, own, other) in [
        ("run -d", &times.run, theirs.as_ref().map(|theirs| &theirs.run)),
        ("exec", &times.exec, theirs.as_ref().map(|theirs| &theirs.exec)),
        ("restart", &times.restart, theirs.as_ref().map(|theirs| &theirs.restart)),
    ] {
        println!("{:<44} {own}", format!("{name} (whole command)"));
        if let Ok(other) = other {
            println!(
                "{:<44} {other}   {:.1} times ours",
                format!("  podman {name}"),
                other.p50_ms() / own.p50_ms()
            );
        }
    }
    if let Err(why) = theirs {
        println!("  podman: not measured: {why:#}");
    }
    Ok(())
}
