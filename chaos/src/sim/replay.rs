//! Runs one history again and says what came of it.

use super::{Source, commit};
use anyhow::Result;
use holdfast_sim::run::{Outcome, run_history};
use std::{fmt::Write, process::ExitCode};

/// Calls that are shown of a run that failed.
const TAIL_CALLS: usize = 40;

/// `replay`: exits 1 when the history fails.
///
/// # Errors
/// When there is no history to run.
pub fn main(source: &Source) -> Result<ExitCode> {
    let history = source.history()?;
    let outcome = run_history(&history, source.executor);
    println!("{}", history.name);
    if !history.what.is_empty() {
        println!("  {}", history.what);
    }
    println!("seed {}, {} executor, commit {}", history.seed, source.executor, commit());
    print!("{}", report(&outcome));
    Ok(if outcome.violation.is_none() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// What came of a run, for a person.
pub fn report(outcome: &Outcome) -> String {
    let mut text = String::new();
    let struck: Vec<String> = outcome.struck.iter().map(|(name, count)| format!("{name} {count}")).collect();
    let cases: Vec<String> = outcome.cases.iter().map(|(name, count)| format!("{name} {count}")).collect();
    // Writing to a string cannot fail.
    let _ = writeln!(
        text,
        "{} calls in {} ms of virtual time, trace {:016x}",
        outcome.calls, outcome.virtual_ms, outcome.trace_hash
    );
    let _ =
        writeln!(text, "faults: {}", if struck.is_empty() { "none".to_owned() } else { struck.join(", ") });
    let _ = match &outcome.violation {
        None => writeln!(text, "bring-ups: {}\npassed", cases.join(", ")),
        Some(violation) => writeln!(
            text,
            "the last steps:\n{}violated: {}\n  {}\nfailed",
            outcome.trace.tail(TAIL_CALLS),
            violation.invariant,
            violation.detail
        ),
    };
    text
}
