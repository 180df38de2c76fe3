//! Runs a history and says everything that came of it: what the seed runner, the gate of determinism, replay,
//! shrinking and explanation stand on.

use crate::{
    Sim,
    check::Violation,
    executor::{ExecutorKind, Stepping},
    generate,
    history::{Answer, History, Passed, violation},
    marks::Marks,
    profile::Profile,
    trace::Trace,
};
use holdfast_core::driver::BringUpReport;
use std::{
    any::Any,
    collections::BTreeMap,
    panic::{AssertUnwindSafe, catch_unwind},
};

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

/// Runs a history on an executor of this build. A panic is a violation like any other.
pub fn run_history(history: &History, executor: ExecutorKind) -> Outcome {
    let sim = history.node();
    let passed = catch_unwind(AssertUnwindSafe(|| match executor {
        ExecutorKind::Stepping => history.run_on(&sim, &Stepping),
        #[cfg(madsim)]
        ExecutorKind::Madsim => {
            use crate::executor::madsim::{Madsim, alone};
            alone(|| history.run_on(&sim, &Madsim::new(history.seed)))
        }
    }));
    let passed = passed.unwrap_or_else(|panic| Err(violation("nothing panics", said(&*panic))));
    outcome(&sim, passed)
}

/// What a panic said.
fn said(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "without a word".to_owned())
}

fn outcome(sim: &Sim, passed: Result<Passed, Violation>) -> Outcome {
    let (violation, passed) = match passed {
        Ok(passed) => (None, Some(passed)),
        Err(violation) => (Some(violation), None),
    };
    let trace = sim.take_trace();
    let mut cases: BTreeMap<String, u64> = BTreeMap::new();
    for report in passed.iter().flat_map(|passed| passed.reports.iter().chain(&passed.seen)) {
        *cases.entry(report.case.to_string()).or_default() += 1;
    }
    let trace_hash = trace.hash();
    let marks = passed.as_ref().map(|passed| Marks::of(passed, trace.calls())).unwrap_or_default();
    let lane_calls = passed.as_ref().map_or(0, |passed| passed.calls);
    let (answers, reports) = passed.map(|passed| (passed.answers, passed.reports)).unwrap_or_default();
    Outcome {
        trace_hash,
        calls: trace.len(),
        trace,
        violation,
        struck: sim.faults_struck(),
        marks,
        cases,
        lane_calls,
        virtual_ms: sim.time().0 / 1_000_000,
        answers,
        reports,
    }
}
