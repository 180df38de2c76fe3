//! Histories of the simulator replayed on the real kernel: the same requests and the same kills, through the same
//! drivers, on the model and on a real node side by side. After every step what is observed and what is recorded is
//! brought into one form and compared; a difference is a bug in the model or in the node, and fails.
//!
//! The process of a case is the daemon itself, so that a killed daemon is a World that is dropped between two steps.
//! `HOLDFAST_REPLAY_SEEDS` (default 2) and `HOLDFAST_REPLAY_FROM` (default 0) say which drawn histories are replayed
//! beside the named ones.

mod histories;
mod normal;
mod real;
mod side;
mod simulated;

use anyhow::{Context as _, Result, ensure};
use histories::History;
use holdfast_sim::{
    fault::{FaultKind, Victim},
    history::Action,
};
use holdfast_tests::{
    runner::{self, Context, case},
    stage::Stage,
};
use normal::Normal;
use real::Real;
use side::Side;
use simulated::Simulated;
use std::{
    process::ExitCode,
    time::{Duration, Instant},
};

/// How long the kernel and the monitors may take to show what the model shows at once: links die up to 50 ms after
/// their namespace, and an exit file follows its process.
const SETTLE: Duration = Duration::from_secs(4);

fn play(context: &Context) -> Result<()> {
    let stage = Stage::new(context)?;
    let history = histories::find(context.name)?.fit(&stage)?;
    let mut simulated = Simulated::new(&history)?;
    let mut real = Real::new(stage)?;
    for (number, action) in history.steps.iter().enumerate() {
        step(&mut simulated, &mut real, action)
            .with_context(|| format!("step {number}, {}", histories::describe(action)))?;
    }
    // Once, with real packets: waiting for those that must not come takes its time.
    let differing = Normal::differing(&simulated.reach()?, &real.reach()?);
    ensure!(differing.is_empty(), "model and node differ in who reaches whom:\n{}", differing.join("\n"));
    for action in simulated.rest() {
        step(&mut simulated, &mut real, &action)
            .with_context(|| format!("at the end, {}", histories::describe(&action)))?;
    }
    real.end()
}

/// One step on both sides, and the comparison of what it was answered and what is then to be seen.
fn step(simulated: &mut Simulated, real: &mut Real, action: &Action) -> Result<()> {
    let (model, kernel) = (simulated.act(action)?, real.act(action)?);
    ensure!(model == kernel, "the model answers {model:?}, the node {kernel:?}");
    let model = simulated.look()?;
    let started = Instant::now();
    loop {
        let differing = Normal::differing(&model, &real.look()?);
        if differing.is_empty() {
            break;
        }
        ensure!(started.elapsed() < SETTLE, "model and node differ:\n{}", differing.join("\n"));
        holdfast_chaos::poll::rest(Duration::from_millis(20));
    }
    Ok(())
}

/// What is compared tells a living pin from a dead one, and says where.
fn a_difference_is_named(_: &Context) -> Result<()> {
    let history = histories::find("adopt")?;
    let mut node = Simulated::new(&history)?;
    node.act(&Action::BringUp)?;
    let before = node.look()?;
    ensure!(Normal::differing(&before, &node.look()?).is_empty(), "a look changes what is seen");
    node.act(&Action::Strike(FaultKind::Kill { who: vec![Victim::Pin] }))?;
    let differing = Normal::differing(&before, &node.look()?).join("\n");
    ensure!(differing.contains("    pin: model pin#1, node -"), "a dead pin differs as {differing:?}");
    ensure!(differing.contains("keeper control#1: model (absent), node user net mount"), "{differing}");
    Ok(())
}

fn main() -> ExitCode {
    if let Some(code) = holdfast_linux::internal::dispatch(|| {}) {
        return code;
    }
    let histories = match histories::all() {
        Ok(histories) => histories,
        Err(error) => return runner::failed(error),
    };
    let names = histories.into_iter().map(|History { name, .. }| &*String::leak(name));
    let played = names.map(|name| case(name, play));
    let checked = [case("a_difference_is_named", a_difference_is_named)];
    let cases: Vec<_> = checked.into_iter().chain(played).map(runner::Case::without_binaries).collect();
    runner::main(&cases)
}
