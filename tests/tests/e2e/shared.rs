//! Chaos scenarios that are quick enough to be tried at every push: the same code, one place.

use crate::runner::Context;
use anyhow::{Context as _, Result, bail};
use holdfast_chaos::{report::Outcome, scenarios};
use std::sync::Arc;

fn play(name: &str, context: &Context) -> Result<()> {
    let scenario = scenarios::find(name).with_context(|| format!("no scenario is called {name}"))?;
    let given =
        scenarios::Context { identity: Arc::clone(&context.identity), prepared: context.prepared.clone() };
    match scenario.play(&given)? {
        Outcome::Pass(measured) => {
            println!("{measured}");
            Ok(())
        }
        Outcome::Skip(missing) => bail!("could not be tried: {missing}"),
    }
}

pub fn pin_idle(context: &Context) -> Result<()> {
    play("pin_idle", context)
}

pub fn all_keepers_but_one(context: &Context) -> Result<()> {
    play("all_keepers_but_one", context)
}

pub fn control_wedge(context: &Context) -> Result<()> {
    play("control_wedge", context)
}

pub fn stale_files(context: &Context) -> Result<()> {
    play("stale_files", context)
}

pub fn conmon_kill(context: &Context) -> Result<()> {
    play("conmon_kill", context)
}

pub fn reboot(context: &Context) -> Result<()> {
    play("reboot", context)
}
