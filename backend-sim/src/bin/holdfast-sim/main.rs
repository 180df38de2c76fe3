//! `holdfast-sim`: runs seeds on the simulated node. `make sim` starts it.

mod elsewhere;
mod show;

use clap::{Args, Parser, Subcommand};
use holdfast_sim::{
    executor::ExecutorKind,
    profile::{PROFILES, Profile},
    runner::{self, Settings, Tally},
};
use std::{io::Write, path::PathBuf, process::ExitCode, time::Instant};

/// Runs seeded histories on the simulated node: each twice and once in another process, whose traces must be
/// equal; then every invariant must have held after every call; then the run must have reached what it is about.
#[derive(Parser)]
#[command(name = "holdfast-sim", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Runs seeds.
    Run(Run),
    /// Prints the digest of each seed's trace: what another process compares with.
    Digests(Which),
    /// Lists the profiles that come along.
    Profiles,
    /// Runs seeds one after the other and fails when memory grows.
    Memory(Which),
}

#[derive(Args, Clone)]
struct Which {
    /// How many seeds.
    #[arg(long, env = "SEEDS", default_value_t = 2_000)]
    seeds: u64,
    /// The first seed.
    #[arg(long, env = "FROM", default_value_t = 0)]
    from: u64,
    /// A profile by name, or the path of a file.
    #[arg(long, env = "PROFILE", default_value = "default")]
    profile: String,
    /// stepping, or madsim in a build of `cargo sim-madsim`.
    #[arg(long, default_value_t = default_executor())]
    executor: ExecutorKind,
    /// Threads; 0 is one per processor.
    #[arg(long, default_value_t = 0)]
    jobs: usize,
}

#[derive(Args)]
struct Run {
    #[command(flatten)]
    which: Which,
    /// Leaves the gate of determinism out.
    #[arg(long)]
    no_gate: bool,
    /// Where files that replay failures are written.
    #[arg(long, default_value = "target/sim-failures")]
    failures: PathBuf,
}

/// A build with madsim is there for madsim.
fn default_executor() -> ExecutorKind {
    ExecutorKind::ALL.last().copied().unwrap_or_default()
}

impl Which {
    fn settings(&self, twice: bool) -> Result<Settings, String> {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Ok(Settings {
            seeds: self.from..self.from.saturating_add(self.seeds),
            profile: Profile::load(&self.profile)?,
            executor: self.executor,
            jobs: if self.jobs == 0 { cores } else { self.jobs },
            twice,
        })
    }
}

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Run(run) => seeds(&run),
        Command::Digests(which) => print_digests(&which),
        Command::Memory(which) => memory(&which),
        Command::Profiles => {
            let list = PROFILES.iter().filter_map(|(name, text)| Some((name, Profile::parse(text).ok()?)));
            list.for_each(|(name, profile)| println!("{name:<10} {}", profile.what));
            Ok(ExitCode::SUCCESS)
        }
    };
    result.unwrap_or_else(|error| {
        eprintln!("holdfast-sim: {error}");
        ExitCode::from(2)
    })
}

fn seeds(run: &Run) -> Result<ExitCode, String> {
    let settings = run.which.settings(!run.no_gate)?;
    let (range, name) = (&settings.seeds, &settings.profile.name);
    println!("seeds {}..{} of profile {name}, {} executor", range.start, range.end, settings.executor);
    let elsewhere = if run.no_gate { runner::Digests::new() } else { elsewhere::digests(&run.which)? };
    let began = Instant::now();
    let bar = show::Progress::new(range.end - range.start, began);
    let tally = runner::run_seeds(&settings, &elsewhere, |tally| bar.tell(tally));
    bar.finish();
    show::tables(&tally, &settings.profile, began.elapsed());
    let unreached = tally.unreached(&settings.profile);
    for failure in &tally.failures {
        show::failure(failure, &run.failures, &run.which.profile);
    }
    unreached.iter().for_each(|name| println!("\nnever reached: {name}"));
    let failed = tally.failed + unreached.len() as u64;
    println!("\n{} passed, {failed} failed", tally.passed);
    Ok(if failed == 0 && tally.passed > 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn print_digests(which: &Which) -> Result<ExitCode, String> {
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    for (seed, digest) in runner::digests(&which.settings(false)?) {
        writeln!(out, "{seed} {digest:016x}").map_err(|error| error.to_string())?;
    }
    out.flush().map_err(|error| error.to_string())?;
    Ok(ExitCode::SUCCESS)
}

/// How much resident memory may grow between a tenth of the seeds and all of them, in KiB: the allocator keeps a
/// little more with every thread it has seen.
const GROWTH_MAX_KIB: u64 = 8 * 1_024;

fn memory(which: &Which) -> Result<ExitCode, String> {
    let tenth = Which { seeds: which.seeds / 10, ..which.clone() };
    let rest = Which { from: which.from + tenth.seeds, seeds: which.seeds - tenth.seeds, ..which.clone() };
    let run = |which: &Which| -> Result<(Tally, u64), String> {
        let tally = runner::run_seeds(&which.settings(false)?, &runner::Digests::new(), |_| {});
        Ok((tally, resident_kib()?))
    };
    let (warm, before) = run(&tenth)?;
    let (cold, after) = run(&rest)?;
    let grown = after.saturating_sub(before);
    println!("resident after {} seeds: {before} KiB", tenth.seeds);
    println!("resident after {} seeds: {after} KiB, {grown} KiB more", which.seeds);
    let failed = warm.failed + cold.failed;
    if grown > GROWTH_MAX_KIB {
        return Err(format!("memory grew by {grown} KiB, more than {GROWTH_MAX_KIB} KiB"));
    }
    if failed > 0 {
        return Err(format!("{failed} seeds failed: `holdfast-sim run` says which"));
    }
    Ok(ExitCode::SUCCESS)
}

/// VmRSS of proc_pid_status(5).
fn resident_kib() -> Result<u64, String> {
    let status = std::fs::read_to_string("/proc/self/status").map_err(|error| error.to_string())?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let number = line.and_then(|line| line.split_whitespace().next()).and_then(|text| text.parse().ok());
    number.ok_or_else(|| "/proc/self/status says no VmRSS".to_owned())
}
