//! Runs many seeds: the gate of determinism in front, then the invariants, and in the end the question whether the
//! run reached what it is about.

use crate::{
    executor::ExecutorKind,
    history::History,
    marks::FAULT,
    profile::{Profile, REACH_SEEDS},
    run::{Outcome, history_of, run_history},
};
use std::{
    collections::BTreeMap,
    fmt,
    ops::Range,
    path::{Path, PathBuf},
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
        mpsc::{SyncSender, sync_channel},
    },
};

/// Which seeds, how.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The seeds.
    pub seeds: Range<u64>,
    /// What they are drawn from.
    pub profile: Profile,
    /// On what they run.
    pub executor: ExecutorKind,
    /// Threads.
    pub jobs: usize,
    /// Whether each seed runs twice and the digests are compared.
    pub twice: bool,
}

/// Digests by seed.
pub type Digests = BTreeMap<u64, u64>;

/// How a seed failed. Determinism is asked first: a violation that comes and goes proves nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureKind {
    /// One seed gave two traces.
    Nondeterministic,
    /// An invariant was violated.
    Violation,
}

/// A seed that failed.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The seed.
    pub seed: u64,
    /// How.
    pub kind: FailureKind,
    /// On what.
    pub executor: ExecutorKind,
    /// The violated invariant; what differs, where a seed gave two traces.
    pub invariant: String,
    /// What breaks it.
    pub detail: String,
    /// The last calls.
    pub tail: String,
    /// All that was asked and all that was to strike.
    pub history: History,
}

/// How many calls of a failed run are shown.
const TAIL_CALLS: usize = 40;
/// Failures that are kept whole; all are counted.
const FAILURES_MAX: usize = 20;

impl Failure {
    /// Writes the history down as a file that replays it, in the form of `regressions/`.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn write(&self, folder: &Path) -> std::io::Result<PathBuf> {
        std::fs::create_dir_all(folder)?;
        let name = self.history.name.replace(|letter: char| !letter.is_ascii_alphanumeric(), "-");
        let path = folder.join(format!("{name}-{}.json", self.executor));
        let what = format!("{}, on the {} executor: {}", self.invariant, self.executor, self.detail);
        let history = History { what, ..self.history.clone() };
        let text = serde_json::to_string_pretty(&history).map_err(std::io::Error::other)?;
        std::fs::write(&path, text + "\n")?;
        Ok(path)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, executor, invariant, detail, tail, history, .. } = self;
        writeln!(f, "seed {seed} ({}) on the {executor} executor", history.name)?;
        writeln!(f, "violated: {invariant}")?;
        writeln!(f, "  {detail}")?;
        write!(f, "the last steps:\n{tail}")
    }
}

/// What came of many seeds.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// Seeds that went as they must.
    pub passed: u64,
    /// Seeds that did not.
    pub failed: u64,
    /// How often each mark was reached, strikes of faults included.
    pub marks: BTreeMap<String, u64>,
    /// How often each case of a bring-up was met.
    pub cases: BTreeMap<String, u64>,
    /// World calls.
    pub calls: u64,
    /// Virtual time, in milliseconds.
    pub virtual_ms: u64,
    /// The first of the failed seeds.
    pub failures: Vec<Failure>,
}

impl Tally {
    /// Strikes by kind of fault.
    pub fn struck(&self) -> impl Iterator<Item = (&str, u64)> {
        self.marks.iter().filter_map(|(name, count)| Some((name.strip_prefix(FAULT)?, *count)))
    }

    /// What a run of this profile must reach and this one never did; nothing for a run too short to ask.
    pub fn unreached(&self, profile: &Profile) -> Vec<String> {
        let seeds = self.passed + self.failed;
        let missing = profile.required().into_iter().filter(|name| !self.marks.contains_key(name));
        if seeds < REACH_SEEDS { Vec::new() } else { missing.collect() }
    }

    /// Takes another's counts over.
    pub fn add(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.calls += other.calls;
        self.virtual_ms += other.virtual_ms;
        for (into, from) in [(&mut self.marks, other.marks), (&mut self.cases, other.cases)] {
            from.into_iter().for_each(|(name, count)| *into.entry(name).or_default() += count);
        }
        let room = FAILURES_MAX.saturating_sub(self.failures.len());
        self.failures.extend(other.failures.into_iter().take(room));
    }

    fn of(outcome: Outcome, failure: Option<Failure>) -> Self {
        Self {
            passed: u64::from(failure.is_none()),
            failed: u64::from(failure.is_some()),
            marks: outcome.marks,
            cases: outcome.cases,
            calls: outcome.calls,
            virtual_ms: outcome.virtual_ms,
            failures: failure.into_iter().collect(),
        }
    }
}

/// Runs one seed; `elsewhere` is its digest in another process.
pub fn run_seed(seed: u64, settings: &Settings, elsewhere: Option<u64>) -> Tally {
    let history = history_of(seed, &settings.profile);
    let outcome = run_history(&history, settings.executor);
    let again = settings.twice.then(|| run_history(&history, settings.executor).trace_hash);
    let hash = outcome.trace_hash;
    let others = [("a second run in the same process", again), ("a run in another process", elsewhere)];
    let differs = others.into_iter().find(|(_, other)| other.is_some_and(|other| other != hash));
    let told = match (differs, &outcome.violation) {
        (Some((what, other)), _) => {
            let other = other.unwrap_or_default();
            let detail = format!("the trace's digest is {hash:016x}, and {other:016x} in {what}");
            Some((FailureKind::Nondeterministic, "one seed gives one trace".to_owned(), detail))
        }
        (None, Some(violation)) => {
            Some((FailureKind::Violation, violation.invariant.clone(), violation.detail.clone()))
        }
        (None, None) => None,
    };
    let failure = told.map(|(kind, invariant, detail)| {
        let tail = outcome.trace.tail(TAIL_CALLS);
        Failure { seed, kind, executor: settings.executor, invariant, detail, tail, history }
    });
    Tally::of(outcome, failure)
}

/// Runs all seeds. `progress` is told of each as it ends.
pub fn run_seeds(settings: &Settings, elsewhere: &Digests, mut progress: impl FnMut(&Tally)) -> Tally {
    let mut total = Tally::default();
    let mut each = |tally: Tally| {
        total.add(tally);
        progress(&total);
    };
    in_parallel(settings, |seed| run_seed(seed, settings, elsewhere.get(&seed).copied()), &mut each);
    // Threads end in any order.
    total.failures.sort_by_key(|failure| failure.seed);
    total
}

/// The digest of each seed, for the gate of another process.
pub fn digests(settings: &Settings) -> Digests {
    let mut digests = Digests::new();
    let digest =
        |seed| (seed, run_history(&history_of(seed, &settings.profile), settings.executor).trace_hash);
    in_parallel(settings, digest, &mut |(seed, hash)| {
        digests.insert(seed, hash);
    });
    digests
}

/// Results that wait to be counted.
const QUEUE_MAX: usize = 64;

fn in_parallel<T: Send>(settings: &Settings, run: impl Fn(u64) -> T + Sync, each: &mut dyn FnMut(T)) {
    let next = AtomicU64::new(settings.seeds.start);
    let gone = AtomicBool::new(false);
    let (sender, receiver) = sync_channel(QUEUE_MAX);
    let sender = Mutex::new(Some(sender));
    let work = |sender: SyncSender<T>| {
        while !gone.load(Ordering::Relaxed) {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= settings.seeds.end || sender.send(run(seed)).is_err() {
                gone.store(true, Ordering::Relaxed);
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..settings.jobs.max(1) {
            let own = sender.lock().unwrap_or_else(PoisonError::into_inner).clone();
            if let Some(own) = own {
                scope.spawn(|| work(own));
            }
        }
        // The queue ends with the last worker.
        drop(sender.lock().unwrap_or_else(PoisonError::into_inner).take());
        receiver.into_iter().for_each(each);
    });
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]
    use super::*;

    fn settings(seeds: Range<u64>) -> Settings {
        let profile = Profile::load("default").unwrap();
        Settings { seeds, profile, executor: ExecutorKind::Stepping, jobs: 2, twice: true }
    }

    #[test]
    fn a_digest_that_differs_fails_whatever_else_is_so() {
        let settings = settings(0..3);
        let mut elsewhere = digests(&settings);
        assert_eq!(elsewhere.len(), 3);
        let failed = |elsewhere: &Digests| run_seeds(&settings, elsewhere, |_| {}).failures;
        let before = failed(&elsewhere);
        assert!(before.iter().all(|failure| failure.kind == FailureKind::Violation), "{before:?}");
        elsewhere.entry(1).and_modify(|hash| *hash ^= 1);
        let one = failed(&elsewhere);
        let one = one.iter().find(|failure| failure.seed == 1).unwrap();
        assert_eq!(one.kind, FailureKind::Nondeterministic);
        assert!(one.detail.contains("another process"), "{one}");
    }

    #[test]
    fn a_mark_that_was_never_reached_is_named_by_a_run_that_is_long_enough() {
        let profile = Profile::load("default").unwrap();
        let mut tally = Tally { passed: REACH_SEEDS, ..Tally::default() };
        tally.marks.insert("fault.kill".to_owned(), 1);
        let missing = tally.unreached(&profile);
        assert!(missing.contains(&"case.adopt".to_owned()) && !missing.contains(&"fault.kill".to_owned()));
        tally.passed -= 1;
        assert!(tally.unreached(&profile).is_empty());
    }

    #[test]
    fn a_failure_is_a_file_that_replays_it() {
        let history = history_of(7, &Profile::load("default").unwrap());
        let failure = Failure {
            seed: 7,
            kind: FailureKind::Violation,
            executor: ExecutorKind::Stepping,
            invariant: "an invariant".to_owned(),
            detail: "something".to_owned(),
            tail: String::new(),
            history: history.clone(),
        };
        let folder = std::env::temp_dir().join(format!("holdfast-sim-{}", std::process::id()));
        let path = failure.write(&folder).unwrap();
        let read: History = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
        std::fs::remove_dir_all(&folder).unwrap();
        assert!(read.what.contains("an invariant"));
        assert_eq!(History { what: String::new(), ..read }, history);
    }
}
