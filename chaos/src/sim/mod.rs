//! Simulated failures, for a person: run one again, make it small, read it.
//!
//! These work on histories of the simulator, not on a node; they are the only part of this crate that links
//! the project's code.

pub mod explain;
pub mod html;
pub mod replay;
pub mod shrink;
pub mod timeline;

use anyhow::{Context, Result};
use clap::Args;
use holdfast_sim::{executor::ExecutorKind, history::History, profile::Profile, run::history_of};
use std::{
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

/// Which history, on what.
#[derive(Debug, Args)]
pub struct Source {
    /// A history as a file: a regression, or what a failed run left in target/sim-failures
    #[arg(required_unless_present = "seed", conflicts_with = "seed")]
    pub file: Option<PathBuf>,
    /// Draw the history from this seed instead
    #[arg(long)]
    pub seed: Option<u64>,
    /// What the seed is drawn from: a profile by name, or a file
    #[arg(long, default_value = "default", value_name = "PROFILE")]
    pub profile: String,
    /// stepping, or madsim in a build that has it
    #[arg(long, default_value_t = ExecutorKind::default())]
    pub executor: ExecutorKind,
}

impl Source {
    /// The history.
    ///
    /// # Errors
    /// When there is none, naming the file and the place in it.
    pub fn history(&self) -> Result<History> {
        match (&self.file, self.seed) {
            (Some(file), _) => read(file),
            (None, seed) => {
                let profile = Profile::load(&self.profile).map_err(anyhow::Error::msg)?;
                Ok(history_of(seed.unwrap_or_default(), &profile))
            }
        }
    }
}

/// A history out of a file.
///
/// # Errors
/// When it cannot be read, does not parse, or has fields that nobody knows.
pub fn read(file: &Path) -> Result<History> {
    let text = std::fs::read_to_string(file)
        .with_context(|| format!("{}: cannot be read; give a history as a file", file.display()))?;
    serde_json::from_str(&text).with_context(|| {
        format!(
            "{}: is no history of this build; `holdfast-chaos replay --seed 1` shows what one is made of",
            file.display()
        )
    })
}

/// The commit that is checked out here, for a report; a person may also run this away from any checkout.
fn commit() -> String {
    let mut git = Command::new("git");
    git.args(["rev-parse", "--short", "HEAD"]);
    let output = crate::command::run(&mut git, Duration::from_secs(5));
    match output {
        Ok(output) if output.status.success() => output.stdout.trim().to_owned(),
        _ => option_env!("HOLDFAST_COMMIT").unwrap_or("unknown").to_owned(),
    }
}
