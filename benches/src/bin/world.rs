//! `holdfast-bench-world`: the real World through core's drivers, timed in the daemon's place. What a command line, an
//! HTTP request and a daemon's start add is left out; `holdfast-bench-node` has it in.

use anyhow::{Context as _, Result, anyhow, ensure};
use clap::Parser;
use holdfast_benches::sample::Sample;
use holdfast_chaos::{identity::Identity, privileged::Prepared};
use holdfast_core::{
    bring_up::Case,
    cure::Cure,
    driver::{self, BringUpReport, Session, Trigger},
    id::ProcessRef,
    observed::Keeper,
    ops::request::{RemoveRequest, RunRequest},
    plan::AdoptSource,
    record::Records,
    world::{Keepers, Router, Store},
};
use holdfast_linux::{process::ProcessWatch, world::LinuxWorld};
use holdfast_tests::{
    contract::setup,
    runner::Context,
    stage::{self, Stage},
};
use std::{process::ExitCode, sync::Arc, time::Instant};

/// Workloads of the replug.
const REPLUGGED: u32 = 10;

/// The real World, timed in the daemon's place
#[derive(Debug, Parser)]
struct Cli {
    /// How often each thing is done
    #[arg(long, default_value_t = 30)]
    runs: u32,
}

fn main() -> ExitCode {
    // This program is what runs as pin and control.
    if let Some(code) = holdfast_linux::internal::dispatch(|| {}) {
        return code;
    }
    match run(&Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("holdfast-bench-world: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(cli: &Cli) -> Result<()> {
    let identity = Identity::find_user()?;
    identity.assume()?;
    println!(
        "\nAs {} (uid {}), {} runs each, in the daemon's place.\n",
        identity.user, identity.uid, cli.runs
    );
    let context = Context { name: "bench", identity: Arc::new(identity), prepared: Prepared::Nothing };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let stage = Stage::new(&context)?;
    let world = stage.world()?;
    runtime.block_on(attach(&world, cli.runs))?;
    runtime.block_on(adopt(&world, cli.runs))?;
    drop(world);
    stage.nothing_left()?;
    let stage = Stage::new(&context)?;
    runtime.block_on(deaths(&stage, cli.runs))?;
    stage.nothing_left()?;
    let stage = Stage::new(&context)?;
    runtime.block_on(replug(&stage, cli.runs))?;
    stage.nothing_left()
}

fn line(name: &str, sample: &Sample) {
    println!("{name:<52} {sample}");
}

/// A sandbox's namespaces, elements and link, as a step list has them: without journal and records.
async fn attach(world: &LinuxWorld, runs: u32) -> Result<()> {
    let node = setup::Node::up(world).await.map_err(|sentence| anyhow!(sentence))?;
    world.ensure_network(&setup::network()).await?;
    let [mut namespaces, mut elements, mut link, mut whole] = <[Sample; 4]>::default();
    for _ in 0..runs {
        let began = Instant::now();
        world.ensure_sandbox(&setup::sandbox(1, None)).await?;
        let bound = began.elapsed();
        world.add_elements(&setup::elements(1, 1)).await?;
        let governed = began.elapsed();
        world.attach(&setup::link(1)).await?;
        let plugged = began.elapsed();
        namespaces.add(bound);
        elements.add(governed - bound);
        link.add(plugged - governed);
        whole.add(plugged);
        world.detach(setup::link(1).slot).await?;
        world.remove_elements(&setup::elements(1, 1)).await?;
        world.remove_sandbox(&setup::sandbox_id(1)).await?;
    }
    line("attach", &whole);
    line("  of which the sandbox's namespaces", &namespaces);
    line("  of which elements, read back", &elements);
    line("  of which the link, addresses and routes", &link);
    world.stop_process(&node.control).await?;
    Ok(world.stop_process(&node.pin).await?)
}

/// The end of a process as the daemon notices it.
async fn die(victim: &ProcessRef) -> Result<()> {
    let watch = ProcessWatch::open(victim)?.context("it is dead already")?;
    watch.signal(libc::SIGKILL)?;
    watch.exited().await?;
    Ok(())
}

async fn up(world: &LinuxWorld, session: &Session, expected: Case) -> Result<BringUpReport> {
    let report = driver::bring_up(world, session, Trigger::Death { who: "bench".to_owned() }).await;
    ensure!(report.converged && report.case == expected, "not {expected:?}: {report:?}");
    Ok(report)
}

async fn records(world: &LinuxWorld) -> Records {
    world.read(Records::clone).await
}

/// A pin that dies: noticed by its pidfd, observed, a new one in its place.
async fn adopt(world: &LinuxWorld, runs: u32) -> Result<()> {
    let mut node = setup::Node::up(world).await.map_err(|sentence| anyhow!(sentence))?;
    let source =
        AdoptSource { user: Keeper::Descriptors, net: Keeper::Descriptors, mount: Some(Keeper::Descriptors) };
    let mut sample = Sample::default();
    for _ in 0..runs {
        let began = Instant::now();
        die(&node.pin).await?;
        let observed = world.observe_keepers(&node.hints()).await?;
        ensure!(observed.pin.is_none(), "the pin lives");
        let adopted = world.adopt_namespaces(&source, &node.hints()).await?;
        sample.add(began.elapsed());
        ensure!(adopted.namespaces == node.namespaces, "other namespaces than before");
        node.pin = adopted.process;
    }
    line("pin killed → noticed, observed, adopted", &sample);
    world.stop_process(&node.control).await?;
    Ok(world.stop_process(&node.pin).await?)
}

/// A pin and a control that die: until a bring-up has looked again and found everything whole.
async fn deaths(stage: &Stage, runs: u32) -> Result<()> {
    let world = stage.world()?;
    let session = driver::open_session(&world).await?;
    driver::bring_up(&world, &session, Trigger::Up).await;
    run_workload(stage, &world, &session, 0).await?;
    let (mut adopted, mut serving) = (Sample::default(), Sample::default());
    for _ in 0..runs {
        for (case, sample) in [(Case::Adopt, &mut adopted), (Case::Control, &mut serving)] {
            let node = records(&world).await.node.context("no node record")?;
            let victim = if case == Case::Adopt { node.pin } else { node.control };
            let began = Instant::now();
            die(&victim.context("nobody to kill")?).await?;
            up(&world, &session, case).await?;
            sample.add(began.elapsed());
        }
    }
    line("pin killed → adopted, everything found whole", &adopted);
    line("control killed → serving, everything found whole", &serving);
    driver::remove_container(&world, &session, "w0", &RemoveRequest { force: true }).await?;
    down(&world, &session).await
}

/// Everything but the workloads dies, this daemon's own descriptors included.
async fn replug(stage: &Stage, runs: u32) -> Result<()> {
    let world = stage.world()?;
    let session = driver::open_session(&world).await?;
    driver::bring_up(&world, &session, Trigger::Up).await;
    let mut sample = Sample::default();
    for _ in 0..runs {
        // New ones each time: a monitor that was killed is not replaced under a running container.
        for number in 0..REPLUGGED {
            run_workload(stage, &world, &session, number).await?;
        }
        let records = records(&world).await;
        let node = records.node.context("no node record")?;
        let monitors = records.containers.values().filter_map(|record| record.running());
        let victims: Vec<ProcessRef> = monitors
            .map(|(_, monitor)| monitor.clone())
            .chain([node.uplink, node.control, node.pin].into_iter().flatten())
            .collect();
        let began = Instant::now();
        for victim in &victims {
            die(victim).await?;
        }
        world.keepers.held().release();
        let report = up(&world, &session, Case::Replug).await?;
        sample.add(began.elapsed());
        let replugged = report.cures.values().filter(|cure| **cure == Cure::Replugged).count();
        ensure!(replugged == REPLUGGED as usize, "{replugged} replugged: {report:?}");
        for number in 0..REPLUGGED {
            let force = RemoveRequest { force: true };
            driver::remove_container(&world, &session, &format!("w{number}"), &force).await?;
        }
    }
    line(&format!("no keeper left → {REPLUGGED} workloads replugged, found whole"), &sample);
    down(&world, &session).await
}

async fn run_workload(stage: &Stage, world: &LinuxWorld, session: &Session, number: u32) -> Result<()> {
    let request: RunRequest = serde_json::from_value(serde_json::json!({
        "root": { "rootfs": stage.root() },
        "name": format!("w{number}"),
        "command": [stage::HOLD],
    }))?;
    driver::run_container(world, session, &request).await?;
    Ok(())
}

async fn down(world: &LinuxWorld, session: &Session) -> Result<()> {
    let report = driver::take_down(world, session, false).await?;
    ensure!(report.errors.is_empty(), "left: {}", report.errors.join("; "));
    Ok(())
}
