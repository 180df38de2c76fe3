//! `holdfast-chaos`: real kills on a real node, and simulated ones for a person to look at.

mod runner;

use anyhow::Result;
use clap::{Parser, Subcommand};
use holdfast_chaos::{demo, identity::Identity, inside, scenarios, sim};
use std::{path::PathBuf, process::ExitCode, sync::Arc};

/// Real kills on a real node
#[derive(Debug, Parser)]
#[command(version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Play scenarios, all of them or those named; a line each, and the count at the end
    Run {
        /// Names, as `list` prints them
        names: Vec<String>,
    },
    /// List the scenarios
    List,
    /// Run a node, kill everything it is made of, and watch its workloads live on
    Demo,
    /// Run a simulated history again: a regression, what a failed run left, or a seed
    Replay {
        #[command(flatten)]
        source: sim::Source,
    },
    /// Make a simulated history that fails as small as it can be and still fails in the same way
    Shrink {
        #[command(flatten)]
        source: sim::Source,
        /// Where the small one goes; beside the large one, unless said otherwise
        #[arg(long, short, value_name = "FILE")]
        output: Option<PathBuf>,
        /// The most runs it may take
        #[arg(long, default_value_t = sim::shrink::RUNS_MAX)]
        runs: u32,
    },
    /// Show what happened in a simulated history: lanes of processes, calls, faults, and how it ended
    Explain {
        #[command(flatten)]
        source: sim::Source,
        /// Also what came before anything went wrong
        #[arg(long)]
        all: bool,
        /// Write one self-contained page instead
        #[arg(long, value_name = "FILE")]
        html: Option<PathBuf>,
    },
    /// One scenario in this process, for the runner
    #[command(hide = true)]
    Scenario { name: String },
    /// A helper inside a workload's network, for the harness
    #[command(hide = true)]
    Inside {
        #[arg(long)]
        pid: u32,
        #[command(subcommand)]
        task: inside::Task,
    },
}

fn main() -> ExitCode {
    // A command that is spawned hands none of the harness's descriptors on: Rust opens with O_CLOEXEC.
    match run(Cli::parse().command) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("holdfast-chaos: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command) -> Result<ExitCode> {
    match command {
        Command::Inside { pid, task } => inside::run(pid, &task).map(|()| ExitCode::SUCCESS),
        Command::Scenario { name } => runner::play(&name),
        Command::Run { names } => runner::run(&names),
        Command::Replay { source } => sim::replay::main(&source),
        Command::Shrink { source, output, runs } => sim::shrink::main(&source, output, runs),
        Command::Explain { source, all, html } => sim::explain::main(&source, all, html),
        Command::Demo => {
            let identity = Identity::find()?;
            identity.assume()?;
            Ok(if demo::run(&Arc::new(identity))? { ExitCode::SUCCESS } else { ExitCode::FAILURE })
        }
        Command::List => {
            for scenario in scenarios::ALL {
                println!("{:<24} {}", scenario.name, scenario.about);
            }
            Ok(ExitCode::SUCCESS)
        }
    }
}
