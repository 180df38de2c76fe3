//! The World contract on the real kernel, as a user without privileges: each case with a node of its own, in a
//! process of its own which is also what runs as pin and control, and with the zero-leak check at its end.

use anyhow::{Context as _, Result, anyhow};
use holdfast_tests::{
    contract::{Case, run_case},
    recording::Recording,
    runner::{self, Context, case},
    stage::Stage,
};
use std::{process::ExitCode, time::Duration};

/// How long a case may take, before its clean-up.
const DEADLINE: Duration = Duration::from_secs(75);

fn play(context: &Context) -> Result<()> {
    let wanted = Case::ALL.iter().copied().find(|case| case.name() == context.name);
    let wanted = wanted.context("no such case")?;
    let stage = Stage::new(context)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let world = Recording::new(stage.world()?);
    let (result, ended) = runtime.block_on(async {
        let result = tokio::time::timeout(DEADLINE, run_case(wanted, &world, &stage)).await;
        (result, world.end().await)
    });
    let result = result.map_err(|_| format!("not done after {} s", DEADLINE.as_secs())).flatten();
    result.map_err(|sentence| anyhow!("{sentence}"))?;
    ended.map_err(|sentence| anyhow!("taken away: {sentence}"))?;
    drop(world);
    stage.nothing_left()
}

fn main() -> ExitCode {
    if let Some(code) = holdfast_linux::internal::dispatch(|| {}) {
        return code;
    }
    let cases: Vec<_> = Case::ALL.iter().map(|each| case(each.name(), play).without_binaries()).collect();
    runner::main(&cases)
}
