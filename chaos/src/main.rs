//! `holdfast-chaos`: real kills on a real node.

mod runner;

use anyhow::Result;
use clap::{Parser, Subcommand};
use holdfast_chaos::{demo, identity::Identity, inside, scenarios};
use std::{process::ExitCode, sync::Arc};

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
