//! A run in words and lanes, for the terminal.

use super::{Source, commit, html, timeline::Timeline};
use anyhow::{Context, Result};
use holdfast_sim::{
    history::History,
    run::{Outcome, watch_history},
};
use std::{fmt::Write, path::PathBuf, process::ExitCode};

/// `explain`: exits 0 whatever the history does; `replay` judges.
///
/// # Errors
/// When there is no history, or the page cannot be written.
pub fn main(source: &Source, all: bool, page: Option<PathBuf>) -> Result<ExitCode> {
    let history = source.history()?;
    let outcome = watch_history(&history, source.executor);
    let heading = format!("seed {}, {} executor, commit {}", history.seed, source.executor, commit());
    match page {
        Some(path) => {
            let page = html::page(&history, &outcome, &heading, all);
            std::fs::write(&path, page).with_context(|| format!("write {}", path.display()))?;
            println!("wrote {}", path.display());
        }
        None => print!("{}", text(&history, &outcome, &heading, all)),
    }
    Ok(ExitCode::SUCCESS)
}

/// What a run is, what is asked of the node, and what strikes it.
pub fn story(history: &History) -> String {
    let mut text = String::new();
    let mut line = |what: &str, detail: String| {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{what:<9}{detail}");
    };
    for action in &history.prepare {
        line("prepared", short(&format!("{action:?}")));
    }
    for kind in &history.outage {
        line("strikes", short(&format!("{kind:?}")));
    }
    for (number, lane) in history.lanes.iter().enumerate() {
        for action in lane {
            line(&format!("lane {number}"), short(&format!("{action:?}")));
        }
    }
    for fault in &history.plan.faults {
        line("fault", short(&fault.to_string()));
    }
    text
}

/// One line of a long value: its start says what it is about.
fn short(text: &str) -> String {
    const LETTERS_MAX: usize = 110;
    let mut short: String = text.chars().take(LETTERS_MAX).collect();
    if text.chars().count() > LETTERS_MAX {
        short.push('…');
    }
    short
}

/// How it ended.
pub fn ending(outcome: &Outcome) -> String {
    match &outcome.violation {
        Some(violation) => format!("violated: {}\n  {}\n", violation.invariant, violation.detail),
        None => {
            let mut text = String::from("passed\n");
            for report in &outcome.reports {
                // Writing to a string cannot fail.
                let _ = writeln!(text, "  {report}");
            }
            text
        }
    }
}

/// The whole explanation.
pub fn text(history: &History, outcome: &Outcome, heading: &str, all: bool) -> String {
    let timeline = Timeline::of(outcome);
    let begin = if all { 0 } else { timeline.begin };
    let mut text = format!("{}\n", history.name);
    if !history.what.is_empty() {
        let _ = writeln!(text, "{}", history.what);
    }
    let _ = write!(text, "{heading}\n\n{}\n", story(history));
    for (number, lane) in timeline.lanes.iter().enumerate() {
        let bars = "│ ".repeat(number);
        let _ = writeln!(text, "{:>11}  {bars}{lane}", "");
    }
    if begin > 0 {
        let _ = writeln!(text, "{:>11}  ({begin} rows before; --all shows them)", "");
    }
    for row in timeline.rows.iter().skip(begin) {
        let mut lanes = String::new();
        for (lane, alive) in row.alive.iter().enumerate() {
            lanes.push_str(mark(row, lane, *alive));
            lanes.push(' ');
        }
        let _ = writeln!(text, "{:>8} us  {lanes} {}", row.at_us, row.text);
    }
    let _ = write!(text, "\n{}", ending(outcome));
    text
}

fn mark(row: &super::timeline::Row, lane: usize, alive: bool) -> &'static str {
    use super::timeline::Kind;
    match (row.kind, row.lane == lane, alive) {
        (Kind::Began, true, _) => "●",
        (Kind::Ended, true, _) => "✗",
        (Kind::Fault, true, _) => "⚡",
        (Kind::Call | Kind::FailedCall | Kind::LostCall, true, true) => "┤",
        (_, _, true) => "│",
        (_, _, false) => " ",
    }
}
