//! What a person sees of a run of seeds.

use crate::elsewhere::said;
use holdfast_sim::{
    profile::Profile,
    runner::{Failure, Tally},
};
use indicatif::{ProgressBar, ProgressStyle};
use std::{
    cell::Cell,
    io::IsTerminal,
    path::Path,
    process::Command,
    time::{Duration, Instant},
};

/// Between two lines where nobody watches a bar.
const LINE_EVERY: Duration = Duration::from_secs(5);

/// A bar on a terminal, a line now and then elsewhere.
pub struct Progress {
    bar: Option<ProgressBar>,
    seeds: u64,
    began: Instant,
    told: Cell<Duration>,
}

impl Progress {
    pub fn new(seeds: u64, began: Instant) -> Self {
        let bar = std::io::stderr().is_terminal().then(|| {
            let template = "{bar:40} {pos}/{len} seeds, {per_sec}, {msg} (eta {eta})";
            let style =
                ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
            ProgressBar::new(seeds).with_style(style)
        });
        Self { bar, seeds, began, told: Cell::new(Duration::ZERO) }
    }

    pub fn tell(&self, tally: &Tally) {
        let done = tally.passed + tally.failed;
        if let Some(bar) = &self.bar {
            bar.set_position(done);
            bar.set_message(format!("{} failed", tally.failed));
            return;
        }
        let now = self.began.elapsed();
        if now >= self.told.get() + LINE_EVERY {
            self.told.set(now);
            let rate = per_second(done, now);
            println!("{done}/{} seeds, {rate:.0} a second, {} failed", self.seeds, tally.failed);
        }
    }

    pub fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

fn per_second(count: u64, took: Duration) -> f64 {
    count as f64 / took.as_secs_f64().max(1e-9)
}

/// Rates, faults by kind, cases reached, marks.
pub fn tables(tally: &Tally, profile: &Profile, took: Duration) {
    let seeds = tally.passed + tally.failed;
    let hours = tally.virtual_ms as f64 / 3_600_000.0;
    println!(
        "{seeds} seeds in {:.1} s: {:.0} seeds a second, {} calls, {hours:.2} virtual hours",
        took.as_secs_f64(),
        per_second(seeds, took),
        tally.calls
    );
    table("faults injected", tally.struck().map(|(name, count)| (name.to_owned(), count)));
    table("bring-up cases reached", tally.cases.iter().map(|(name, count)| (name.clone(), *count)));
    let required = profile.required();
    let marks = tally.marks.iter().filter(|(name, _)| !name.starts_with(holdfast_sim::marks::FAULT));
    table(
        "marks reached (* must be)",
        marks.map(|(name, count)| {
            let star = if required.contains(name) { "*" } else { "" };
            (format!("{name}{star}"), *count)
        }),
    );
}

/// Columns side by side, so that a run's tables fit on a screen.
fn table(title: &str, rows: impl Iterator<Item = (String, u64)>) {
    const COLUMNS: usize = 3;
    println!("\n{title}");
    let rows: Vec<String> = rows.map(|(name, count)| format!("{name:<26}{count:>10}")).collect();
    if rows.is_empty() {
        println!("  none");
    }
    for line in rows.chunks(COLUMNS) {
        println!("  {}", line.join("   "));
    }
}

/// A failure, with all that is needed to see it again.
pub fn failure(failure: &Failure, folder: &Path, profile: &str) {
    println!("\n{}", failure.to_string().trim_end());
    let asked = said(Command::new("git").args(["rev-parse", "HEAD"]), Duration::from_secs(5));
    println!("executor: {}", failure.executor);
    println!("profile: {profile}");
    println!("commit: {}", asked.as_deref().unwrap_or("unknown (not a git checkout)").trim());
    match failure.write(folder) {
        Ok(path) => println!("plan: {0}\nreplay: holdfast-chaos replay {0}", path.display()),
        Err(error) => println!("plan: not written to {}: {error}", folder.display()),
    }
}
