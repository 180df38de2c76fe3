//! Who drives core's futures. One scenario runs on either executor: the [`stepping`] one for tests, benches and
//! shrinking, and madsim's runtime, clock and task interleaving where the build has `--cfg madsim`.

#[cfg(madsim)]
pub mod madsim;
mod stepping;

pub use stepping::{POLLS_MAX, Stepping, block_on, run};

use crate::{Sim, check::Violation};
use serde::{Deserialize, Serialize};
use std::{fmt, future::Future, pin::Pin, str::FromStr};

/// A task. It may borrow the world it runs on.
pub type Task<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;

/// Drives the tasks of one run after the other on one simulated node.
pub trait Executor {
    /// Runs tasks until all came back, or the running daemon died: its tasks are then dropped where they wait,
    /// which is at a World call.
    fn run<T: 'static>(&self, sim: &Sim, tasks: Vec<Task<'static, T>>) -> End<T>;

    /// Runs one task.
    fn block_on<T: 'static>(&self, sim: &Sim, task: impl Future<Output = T> + 'static) -> End<T> {
        self.run(sim, vec![Box::pin(task)])
    }
}

/// Which executor. What a build cannot run cannot be named in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ExecutorKind {
    /// The stepping executor.
    #[default]
    Stepping,
    /// madsim's runtime.
    #[cfg(madsim)]
    Madsim,
}

impl ExecutorKind {
    /// Those of this build.
    pub const ALL: &'static [Self] = &[
        Self::Stepping,
        #[cfg(madsim)]
        Self::Madsim,
    ];
}

impl fmt::Display for ExecutorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Stepping => "stepping",
            #[cfg(madsim)]
            Self::Madsim => "madsim",
        })
    }
}

impl FromStr for ExecutorKind {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        match Self::ALL.iter().find(|kind| kind.to_string() == name) {
            Some(kind) => Ok(*kind),
            None if name == "madsim" => {
                Err("this build has no madsim executor; use `cargo sim-madsim`".to_owned())
            }
            None => Err(format!("{name} is no executor; there are stepping and madsim")),
        }
    }
}

/// How a run ended.
#[derive(Debug, PartialEq, Eq)]
pub enum End<T> {
    /// Every task came back; the results in the order of the tasks.
    Done(Vec<T>),
    /// The daemon was killed: its tasks were dropped where they waited. Results of those that had come back
    /// before are kept: somebody may have been told.
    Killed(Vec<Option<T>>),
    /// An invariant was violated.
    Violated(Violation),
    /// Tasks wait for something that will never come.
    Stuck,
    /// The bound on polls was reached.
    TooLong,
}

impl<T> fmt::Display for End<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Done(_) => f.write_str("done"),
            Self::Killed(_) => f.write_str("the daemon was killed"),
            Self::Violated(violation) => violation.fmt(f),
            Self::Stuck => f.write_str("tasks wait for something that will never come"),
            Self::TooLong => f.write_str("the bound on polls was reached"),
        }
    }
}

/// Why no task may go on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Interruption {
    /// An invariant was violated.
    Violated(Violation),
    /// The running daemon is dead.
    Killed,
}

impl Interruption {
    fn end<T>(self, results: Vec<Option<T>>) -> End<T> {
        match self {
            Self::Violated(violation) => End::Violated(violation),
            Self::Killed => End::Killed(results),
        }
    }
}
