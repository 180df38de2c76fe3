//! Plants known bugs in core, one at a time, and shows that the simulator finds each. `make sim-mutants` starts it.

use clap::Parser;
use holdfast_core::mutant::Mutant;
use holdfast_sim::{
    mutants::{Hunt, Hunted},
    profile::Profile,
};
use std::process::ExitCode;

/// Plants known bugs in core, one at a time, and runs seeds and scenarios until one fails. A bug that survives fails
/// the run, and so does a seed or a scenario that fails without a bug.
#[derive(Parser)]
#[command(name = "holdfast-sim-mutants", version)]
struct Cli {
    /// Seeds that always run.
    #[arg(long, default_value_t = 300)]
    seeds: u64,
    /// The most seeds, where neither those nor the scenarios find a bug.
    #[arg(long, default_value_t = 2_000)]
    seeds_max: u64,
    /// A profile by name, or the path of a file.
    #[arg(long, default_value = "default")]
    profile: String,
    /// Only these bugs.
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// Shows what breaks the invariant, the history and its last calls, too.
    #[arg(long)]
    detail: bool,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    hunt(&cli).unwrap_or_else(|error| {
        eprintln!("holdfast-sim-mutants: {error}");
        ExitCode::from(2)
    })
}

fn hunt(cli: &Cli) -> Result<ExitCode, String> {
    let jobs = std::thread::available_parallelism().map_or(1, usize::from);
    let profile = Profile::load(&cli.profile)?;
    let hunt = Hunt { profile, seeds: cli.seeds, seeds_max: cli.seeds_max, jobs };
    let named = |name: &String| {
        let found = Mutant::ALL.iter().find(|mutant| format!("{mutant:?}") == *name).copied();
        found.ok_or_else(|| format!("there is no bug {name}"))
    };
    let mutants = match cli.only.as_slice() {
        [] => Mutant::ALL.to_vec(),
        only => only.iter().map(named).collect::<Result<_, _>>()?,
    };
    println!(
        "{:<28} {:<34} {:>12} {:>7}  first, and what is wrong",
        "bug", "found by", "of the seeds", "time"
    );
    let baseline = hunt.baseline();
    row("(none)", &baseline, "everything passes", cli.detail);
    let mut survived = Vec::new();
    for mutant in mutants {
        let hunted = hunt.hunt(mutant);
        let name = format!("{mutant:?}");
        row(&name, &hunted, mutant.what(), cli.detail);
        if hunted.first.is_none() {
            survived.push(name);
        }
    }
    let found = cli.only.len().max(Mutant::ALL.len() * usize::from(cli.only.is_empty())) - survived.len();
    if !survived.is_empty() {
        println!("\nsurvived: {}", survived.join(", "));
    }
    if baseline.first.is_some() {
        println!("\nwithout a bug something fails: nothing above proves anything");
    }
    println!("\n{found} found, {} survived", survived.len());
    let good = survived.is_empty() && baseline.first.is_none();
    Ok(if good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn row(name: &str, hunted: &Hunted, what: &str, detail: bool) {
    let Hunted { failed, seeds, first, took } = hunted;
    let (invariant, by) = match first {
        Some(find) => (find.invariant.as_str(), find.by.as_str()),
        None => ("-", "-"),
    };
    let share = format!("{failed} of {seeds}");
    println!("{name:<28} {invariant:<34} {share:>12} {:>6.1}s  {by}: {what}", took.as_secs_f64());
    if let Some(find) = first.as_ref().filter(|_| detail) {
        println!("    {}\n{}", find.detail, find.replay);
    }
}
