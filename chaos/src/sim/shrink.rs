//! Makes a failing history small: what is left breaks the same invariant, and no single part of it can be left
//! out (Zeller and Hildebrandt, *Simplifying and Isolating Failure-Inducing Input*, 2002).

use super::Source;
use anyhow::{Context, Result, bail};
use holdfast_core::{ops::request::RunRequest, spec::RestartPolicy};
use holdfast_sim::{
    executor::ExecutorKind,
    fault::{At, FaultKind},
    history::{Action, History},
    run::run_history,
};
use std::{path::PathBuf, process::ExitCode};

/// Runs that one shrinking may take, unless told otherwise.
pub const RUNS_MAX: u32 = 20_000;

/// `shrink`: writes the small history beside the large one.
///
/// # Errors
/// When there is nothing to shrink, or it cannot be written.
pub fn main(source: &Source, out: Option<PathBuf>, runs_max: u32) -> Result<ExitCode> {
    let history = source.history()?;
    let executor = source.executor;
    let broken = |history: &History| run_history(history, executor).violation.map(|it| it.invariant);
    let Some(invariant) = broken(&history) else {
        bail!("{} passes on the {executor} executor: there is nothing to shrink", history.name);
    };
    println!("{}: violates {invariant:?}, {}", history.name, size(&history));
    let named = pin_faults(&history, executor);
    let start = if broken(&named).as_ref() == Some(&invariant) { named } else { history };
    let mut shrinker = Shrinker::new(|candidate| broken(candidate).as_ref() == Some(&invariant), runs_max);
    let small = shrinker.shrink(start, |runs, best| println!("  after {runs:>5} runs: {}", size(best)));
    let small = History { what: format!("{invariant}, shrunken: say in a sentence what it was"), ..small };
    let path = out.unwrap_or_else(|| match &source.file {
        Some(file) => file.with_extension("min.json"),
        None => PathBuf::from(format!("seed-{}.min.json", small.seed)),
    });
    let text = serde_json::to_string_pretty(&small).context("encode the history")?;
    std::fs::write(&path, text + "\n").with_context(|| format!("write {}", path.display()))?;
    if shrinker.exhausted() {
        println!("the bound of {runs_max} runs was reached: --runs N takes it further");
    }
    println!("wrote {}: holdfast-chaos replay {}", path.display(), path.display());
    Ok(ExitCode::SUCCESS)
}

fn size(history: &History) -> String {
    let actions: usize = history.lanes.iter().map(Vec::len).sum();
    let faults = history.plan.faults.len() + history.outage.len();
    format!(
        "{faults} faults, {} to prepare, {actions} actions in {} lanes",
        history.prepare.len(),
        history.lanes.len()
    )
}

/// The same history with faults bound to the call they struck at instead of its number, which changes with
/// everything that is left out.
fn pin_faults(history: &History, executor: ExecutorKind) -> History {
    let outcome = run_history(history, executor);
    let calls = outcome.trace.calls();
    let mut pinned = history.clone();
    for fault in &mut pinned.plan.faults {
        let At::Call { nth } = fault.at else { continue };
        // A number counts from the first call of the lanes; the trace says at which call of all it struck.
        let own =
            |text: &String| text.ends_with(&format!("{:?}", fault.at)) || text.contains(&fault.to_string());
        let struck = calls.iter().position(|call| call.faults.iter().any(own));
        let base = struck.and_then(|at| at.checked_sub(usize::try_from(nth).ok()?));
        if let (Some(at), Some(base)) = (struck, base) {
            let name = calls[at].call.clone();
            let before = calls[base..at].iter().filter(|call| call.call == name).count();
            fault.at = At::Named { call: name, subject: String::new(), nth: before as u64 };
        }
    }
    pinned
}

/// Leaves out what can be left out.
pub struct Shrinker<F> {
    fails: F,
    runs: u32,
    runs_max: u32,
}

impl<F: FnMut(&History) -> bool> Shrinker<F> {
    /// `fails` says whether a candidate still fails in the same way.
    pub fn new(fails: F, runs_max: u32) -> Self {
        Self { fails, runs: 0, runs_max }
    }

    /// Whether the bound on runs was reached.
    pub fn exhausted(&self) -> bool {
        self.runs >= self.runs_max
    }

    fn still(&mut self, candidate: &History) -> bool {
        if self.exhausted() {
            return false;
        }
        self.runs += 1;
        (self.fails)(candidate)
    }

    /// The smallest that was found; `progress` hears of each round.
    pub fn shrink(&mut self, history: History, mut progress: impl FnMut(u32, &History)) -> History {
        let mut best = history;
        loop {
            let before = best.clone();
            best = self.list(best, |it| it.plan.faults.clone(), |it, faults| it.plan.faults = faults);
            best = self.list(best, |it| it.outage.clone(), |it, outage| it.outage = outage);
            best = self.list(best, |it| it.lanes.clone(), |it, lanes| it.lanes = lanes);
            for lane in 0..best.lanes.len() {
                best = self.list(
                    best,
                    |it| it.lanes.get(lane).cloned().unwrap_or_default(),
                    |it, actions| {
                        if let Some(place) = it.lanes.get_mut(lane) {
                            *place = actions;
                        }
                    },
                );
            }
            best = self.list(best, |it| it.prepare.clone(), |it, prepare| it.prepare = prepare);
            best = self.values(best);
            progress(self.runs, &best);
            if best == before || self.exhausted() {
                return best;
            }
        }
    }

    /// ddmin over one list: halves, then quarters, down to single parts.
    fn list<T: Clone>(
        &mut self,
        mut best: History,
        get: impl Fn(&History) -> Vec<T>,
        set: impl Fn(&mut History, Vec<T>),
    ) -> History {
        let mut chunk = get(&best).len();
        while chunk > 0 {
            let mut from = 0;
            while from < get(&best).len() {
                let mut shorter = get(&best);
                shorter.drain(from..(from + chunk).min(shorter.len()));
                let mut candidate = best.clone();
                set(&mut candidate, shorter);
                if self.still(&candidate) { best = candidate } else { from += chunk }
            }
            chunk /= 2;
        }
        best
    }

    /// Plainer values, one change at a time.
    fn values(&mut self, mut best: History) -> History {
        let mut number = 0;
        // Each change is asked for by its number; a list that has become shorter ends sooner.
        while let Some(candidate) = simplified(&best, number) {
            if candidate != best && self.still(&candidate) { best = candidate } else { number += 1 }
        }
        best
    }
}

/// Change `number` of all that make a history plainer; `None` past the last.
fn simplified(history: &History, number: usize) -> Option<History> {
    let mut changes: Vec<History> = Vec::new();
    let mut change = |edit: &dyn Fn(&mut History)| {
        let mut candidate = history.clone();
        edit(&mut candidate);
        changes.push(candidate);
    };
    change(&|it| it.fd_store = false);
    change(&|it| it.resume = false);
    change(&|it| it.stubborn.clear());
    change(&|it| it.latency_max_us = Some(0));
    for at in 0..history.plan.faults.len() {
        for who in 0..victims(&history.plan.faults[at].kind) {
            change(&|it| spare(&mut it.plan.faults[at].kind, who));
        }
    }
    for at in 0..history.outage.len() {
        for who in 0..victims(&history.outage[at]) {
            change(&|it| spare(&mut it.outage[at], who));
        }
    }
    for at in 0..history.prepare.len() {
        for plainer in PLAINER {
            change(&|it| plain(&mut it.prepare[at], plainer));
        }
    }
    for lane in 0..history.lanes.len() {
        for at in 0..history.lanes[lane].len() {
            for plainer in PLAINER {
                change(&|it| plain(&mut it.lanes[lane][at], plainer));
            }
        }
    }
    changes.into_iter().nth(number)
}

/// How many victims may still be spared: a kill of nobody is no kill.
fn victims(kind: &FaultKind) -> usize {
    match kind {
        FaultKind::Kill { who } | FaultKind::KillAndReusePid { who } if who.len() > 1 => who.len(),
        _ => 0,
    }
}

fn spare(kind: &mut FaultKind, victim: usize) {
    if let FaultKind::Kill { who } | FaultKind::KillAndReusePid { who } = kind {
        who.remove(victim);
    }
}

/// Ways in which a `run` can be plainer.
const PLAINER: [fn(&mut RunRequest); 4] = [
    |run| run.ports.clear(),
    |run| run.networks.clear(),
    |run| run.restart = RestartPolicy::No,
    |run| run.tenant = None,
];

fn plain(action: &mut Action, plainer: fn(&mut RunRequest)) {
    if let Action::Run(run) = action {
        plainer(run);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_sim::{
        fault::{Fault, Side, Victim},
        profile::Profile,
        run::history_of,
    };

    /// "Fails" when it restarts `web` in any lane under a kill of the control: a fault that is known.
    fn planted(history: &History) -> bool {
        let kills =
            history.plan.faults.iter().any(
                |fault| matches!(&fault.kind, FaultKind::Kill { who } if who.contains(&Victim::Control)),
            );
        kills && history.lanes.iter().flatten().any(|action| *action == Action::Restart("web".to_owned()))
    }

    fn large() -> History {
        let profile = Profile::load("default").unwrap_or_else(|error| panic!("{error}"));
        let mut history = history_of(7, &profile);
        history.lanes.push(vec![Action::BringUp, Action::Restart("web".to_owned()), Action::BringUp]);
        let kind = FaultKind::Kill { who: vec![Victim::Daemon, Victim::Control, Victim::Pin] };
        history.plan.faults.push(Fault { at: At::Call { nth: 3 }, side: Side::Before, kind });
        history
    }

    #[test]
    fn what_is_left_is_what_it_takes() {
        let small = Shrinker::new(planted, RUNS_MAX).shrink(large(), |_, _| {});
        assert_eq!(small.lanes, [[Action::Restart("web".to_owned())]]);
        assert_eq!(small.plan.faults.len(), 1);
        assert_eq!(small.plan.faults[0].kind, FaultKind::Kill { who: vec![Victim::Control] });
        assert!(small.prepare.is_empty() && small.outage.is_empty() && small.stubborn.is_empty());
        assert_eq!(Shrinker::new(planted, RUNS_MAX).shrink(large(), |_, _| {}), small, "deterministic");
    }

    #[test]
    fn the_bound_on_runs_is_kept_and_what_is_left_still_fails() {
        let mut runs = 0;
        let mut shrinker = Shrinker::new(
            |candidate: &History| {
                runs += 1;
                planted(candidate)
            },
            10,
        );
        let small = shrinker.shrink(large(), |_, _| {});
        assert!(shrinker.exhausted() && planted(&small));
        assert_eq!(runs, 10);
    }
}
