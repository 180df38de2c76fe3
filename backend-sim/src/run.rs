//! Runs a history and says everything that came of it: what the seed runner, the gate of determinism, replay,
//! shrinking and explanation stand on.

use crate::{
    check::Violation,
    executor::{Executor, ExecutorKind, Stepping},
    generate,
    history::{Answer, History},
    profile::Profile,
    trace::Trace,
};
use holdfast_core::driver::BringUpReport;
use std::collections::BTreeMap;

/// What came of a run.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Every World call.
    pub trace: Trace,
    /// Digest of the trace: the same for one history on one executor, in every process.
    pub trace_hash: u64,
    /// The first invariant that did not hold.
    pub violation: Option<Violation>,
    /// How often each kind of fault struck, by name.
    pub struck: BTreeMap<String, u64>,
    /// How often each mark was reached, by name.
    pub marks: BTreeMap<String, u64>,
    /// How often each case of a bring-up was met, by name.
    pub cases: BTreeMap<String, u64>,
    /// World calls of the whole run, preparation included.
    pub calls: u64,
    /// World calls from the first of the lanes to their end or the kill: where a planned fault can strike. 0 if
    /// the run did not get that far.
    pub lane_calls: u64,
    /// Virtual time of the whole run, in milliseconds.
    pub virtual_ms: u64,
    /// What was answered; empty where an invariant was violated.
    pub answers: Vec<Answer>,
    /// The bring-ups after the faults; empty where an invariant was violated.
    pub reports: Vec<BringUpReport>,
}

/// The history of a seed under a profile.
pub fn history_of(seed: u64, profile: &Profile) -> History {
    generate::history_of(seed, profile)
}

/// Runs a history on an executor of this build.
pub fn run_history(history: &History, executor: ExecutorKind) -> Outcome {
    match executor {
        ExecutorKind::Stepping => run_with(history, &Stepping),
        #[cfg(madsim)]
        ExecutorKind::Madsim => crate::executor::madsim::alone(|| {
            run_with(history, &crate::executor::madsim::Madsim::new(history.seed))
        }),
    }
}

fn run_with<E: Executor>(history: &History, executor: &E) -> Outcome {
    let sim = history.node();
    let (violation, passed) = match history.run_on(&sim, executor) {
        Ok(passed) => (None, Some(passed)),
        Err(violation) => (Some(violation), None),
    };
    let trace = sim.trace();
    let mut cases: BTreeMap<String, u64> = BTreeMap::new();
    for report in passed.iter().flat_map(|passed| &passed.reports) {
        *cases.entry(report.case.to_string()).or_default() += 1;
    }
    let lane_calls = passed.as_ref().map_or(0, |passed| passed.calls);
    let (answers, reports) = passed.map(|passed| (passed.answers, passed.reports)).unwrap_or_default();
    Outcome {
        trace_hash: trace.hash(),
        calls: trace.len(),
        trace,
        violation,
        struck: sim.faults_struck(),
        marks: BTreeMap::new(),
        cases,
        lane_calls,
        virtual_ms: sim.time().0 / 1_000_000,
        answers,
        reports,
    }
}
