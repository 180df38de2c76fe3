//! Does the simulator find bugs? Known ones are planted in core, one at a time, and seeds are run until one fails.
//!
//! The bug is planted for the whole process, so hunts run one after the other; the runs of one use every core.

use crate::{
    executor::ExecutorKind,
    fault::{At, FaultKind, FaultPlan, Side, Victim},
    history::History,
    profile::Profile,
    run::{Outcome, history_of, run_history},
    scenarios,
};
use holdfast_core::{
    error::Class,
    mutant::{Mutant, plant},
};
use std::{
    collections::BTreeMap,
    ops::Range,
    sync::atomic::{AtomicUsize, Ordering},
    time::{Duration, Instant},
};

/// How long a bug is hunted for.
#[derive(Clone, Debug)]
pub struct Hunt {
    /// What seeds are drawn from.
    pub profile: Profile,
    /// Seeds that always run, so that it is known how many of them find it.
    pub seeds: u64,
    /// The most seeds, where neither those nor the scenarios find it.
    pub seeds_max: u64,
    /// Threads.
    pub jobs: usize,
}

/// Where a bug showed first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Find {
    /// The seed, or the scenario with what struck it.
    pub by: String,
    /// The violated invariant.
    pub invariant: String,
    /// What breaks it.
    pub detail: String,
    /// The history, as data, and its last calls.
    pub replay: String,
}

/// What came of a hunt.
#[derive(Clone, Debug)]
pub struct Hunted {
    /// Seeds that failed.
    pub failed: u64,
    /// Seeds that ran.
    pub seeds: u64,
    /// Where it showed first; `None` if it survived.
    pub first: Option<Find>,
    /// How long it took.
    pub took: Duration,
}

impl Hunt {
    /// Hunts a bug.
    pub fn hunt(&self, mutant: Mutant) -> Hunted {
        self.with(Some(mutant), || {
            let (mut failed, mut first) = self.seeds(0..self.seeds);
            let mut seeds = self.seeds;
            if first.is_none() {
                first = self.scenarios();
            }
            if first.is_none() && self.seeds_max > seeds {
                (failed, first) = self.seeds(seeds..self.seeds_max);
                seeds = self.seeds_max;
            }
            (failed, seeds, first)
        })
    }

    /// The same seeds and scenarios without a bug, all of which must pass.
    pub fn baseline(&self) -> Hunted {
        self.with(None, || {
            let (failed, first) = self.seeds(0..self.seeds);
            (failed, self.seeds, first.or_else(|| self.scenarios()))
        })
    }

    fn with(&self, mutant: Option<Mutant>, hunt: impl FnOnce() -> (u64, u64, Option<Find>)) -> Hunted {
        let began = Instant::now();
        plant(mutant);
        let (failed, seeds, first) = hunt();
        plant(None);
        Hunted { failed, seeds, first, took: began.elapsed() }
    }

    fn seeds(&self, range: Range<u64>) -> (u64, Option<Find>) {
        let mut failed = 0;
        let mut first = None;
        let mut rest = range;
        while !rest.is_empty() {
            let end = rest.end.min(rest.start + CHUNK);
            let histories: Vec<History> =
                (rest.start..end).map(|seed| history_of(seed, &self.profile)).collect();
            for (history, find) in histories.iter().zip(self.run(&histories)) {
                failed += u64::from(find.is_some());
                first = first.or(find.map(|find| Find { by: format!("seed {}", history.seed), ..find }));
            }
            rest.start = end;
        }
        (failed, first)
    }

    /// Every scenario as it is, then with each of [`strikes`] at each of its calls, until one fails.
    fn scenarios(&self) -> Option<Find> {
        let mut plain = scenarios::all();
        plain.extend(scenarios::more());
        let hindered = scenarios::hindered();
        if let Some(find) = self.run(&hindered).into_iter().flatten().next() {
            return Some(find);
        }
        if let Some(find) = self.run(&plain).into_iter().flatten().next() {
            return Some(find);
        }
        let executor = ExecutorKind::Stepping;
        // The races are about time, and are struck by nothing else.
        plain.retain(|plain| plain.lanes.len() == 1);
        let calls: Vec<Calls> = plain.iter().map(|plain| Calls::of(&run_history(plain, executor))).collect();
        for strike in strikes() {
            let struck = plain.iter().zip(&calls).flat_map(|(plain, calls)| strike.each(plain, calls));
            let struck: Vec<History> = struck.collect();
            for chunk in struck.chunks(CHUNK as usize) {
                if let Some(find) = self.run(chunk).into_iter().flatten().next() {
                    return Some(find);
                }
            }
        }
        None
    }

    /// Runs histories side by side; what each found, in their order.
    fn run(&self, histories: &[History]) -> Vec<Option<Find>> {
        let next = AtomicUsize::new(0);
        let work = || {
            let mut found = Vec::new();
            while let Some((number, history)) = {
                let number = next.fetch_add(1, Ordering::Relaxed);
                histories.get(number).map(|history| (number, history))
            } {
                let outcome = run_history(history, ExecutorKind::Stepping);
                let find = outcome.violation.map(|violation| Find {
                    by: history.name.clone(),
                    invariant: violation.invariant,
                    detail: violation.detail,
                    replay: format!(
                        "{}\n{}",
                        serde_json::to_string(history).unwrap_or_default(),
                        outcome.trace.tail(TAIL_CALLS)
                    ),
                });
                found.push((number, find));
            }
            found
        };
        let mut all: Vec<(usize, Option<Find>)> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..self.jobs.max(1)).map(|_| scope.spawn(work)).collect();
            // A run catches its panics; a thread that ends without a result leaves its histories out.
            threads.into_iter().flat_map(|thread| thread.join().unwrap_or_default()).collect()
        });
        all.sort_by_key(|(number, _)| *number);
        all.into_iter().map(|(_, find)| find).collect()
    }
}

/// Calls of a run that are shown.
const TAIL_CALLS: usize = 60;

/// Histories that run before anybody asks whether to go on.
const CHUNK: u64 = 64;

/// The calls of a scenario.
struct Calls {
    /// How many there are from the first of its lanes.
    lane: u64,
    /// How often each is made in the whole run, but for those of the store: a commit that fails has changed nothing,
    /// and that is all there is to say of it.
    named: BTreeMap<String, u64>,
}

impl Calls {
    fn of(outcome: &Outcome) -> Self {
        let mut named = BTreeMap::new();
        for call in outcome.trace.calls() {
            if !call.call.starts_with("store.") {
                *named.entry(call.call.to_string()).or_default() += 1;
            }
        }
        Self { lane: outcome.lane_calls, named }
    }
}

/// Calls of one name that are made to fail, one after the other.
const NAMED_MAX: u64 = 4;

/// What strikes at each call of each scenario.
enum Strike {
    /// At the call.
    At(&'static str, Side, FaultKind),
    /// In place of the call.
    Instead(&'static str, FaultKind),
}

impl Strike {
    /// A scenario with each single strike.
    fn each(&self, plain: &History, calls: &Calls) -> Vec<History> {
        let history = |words: String, at: At, side: Side, kind: &FaultKind| History {
            name: format!("{}, {words}", plain.name),
            plan: FaultPlan::one(at, side, kind.clone()),
            ..plain.clone()
        };
        match self {
            Self::At(words, side, kind) => (0..calls.lane)
                .map(|nth| history(format!("{words} call {nth}"), At::Call { nth }, *side, kind))
                .collect(),
            Self::Instead(words, kind) => {
                let each = calls
                    .named
                    .iter()
                    .flat_map(|(call, count)| (0..NAMED_MAX.min(*count)).map(move |nth| (call.clone(), nth)));
                each.map(|(call, nth)| {
                    let words = format!("{words} {call} {nth}");
                    history(words, At::Named { call, subject: String::new(), nth }, Side::Before, kind)
                })
                .collect()
            }
        }
    }
}

fn strikes() -> Vec<Strike> {
    let kill = |who: &[Victim]| FaultKind::Kill { who: who.to_vec() };
    vec![
        Strike::At("daemon killed after", Side::After, kill(&[Victim::Daemon])),
        Strike::Instead("no answer to", FaultKind::Unknown { applied: true }),
        Strike::Instead("failure of", FaultKind::Fail(Class::Transient)),
        Strike::At("power lost after", Side::After, FaultKind::PowerLoss),
        Strike::At("every keeper killed after", Side::After, kill(&Victim::KEEPERS)),
        Strike::At("everything killed after", Side::After, kill(&Victim::EVERYTHING)),
    ]
}
