//! How many seeds a second the simulator plays, and how much virtual time: a scenario of about a hundred World
//! calls, on one thread, on each executor of the build, invariants looked at after every call.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use criterion::{Criterion, Throughput};
use holdfast_core::ops::request::RunRequest;
use holdfast_sim::{
    executor::ExecutorKind,
    history::{Action, History, request},
    run::run_history,
    scenarios,
};
use std::{collections::BTreeSet, hint::black_box, time::Instant};

/// A bring-up, two containers, one published, a stop, a restart, a removal: what a seed does, without bystanders.
fn hundred_calls(seed: u64) -> History {
    let published = RunRequest { ports: vec![scenarios::port(18_080)], ..request("web") };
    let lane = vec![
        Action::Run(Box::new(published)),
        Action::Stop("web".to_owned()),
        Action::Remove("web".to_owned()),
    ];
    let other = vec![Action::run("db"), Action::Restart("db".to_owned())];
    History { name: "a hundred calls".to_owned(), seed, lanes: vec![lane, other], ..History::default() }
}

/// A container that ignores its stop signal for an hour, twice.
fn two_hours(seed: u64) -> History {
    let patient = RunRequest { stop_grace_ms: Some(3_600_000), ..request("web") };
    let stop = Action::Stop("web".to_owned());
    let lane = vec![Action::Run(Box::new(patient)), stop.clone(), Action::Start("web".to_owned()), stop];
    let stubborn = BTreeSet::from(["web".to_owned()]);
    History { name: "two hours".to_owned(), seed, stubborn, lanes: vec![lane], ..History::default() }
}

fn main() {
    let mut criterion = Criterion::default().configure_from_args();
    for executor in ExecutorKind::ALL {
        let outcome = run_history(&hundred_calls(1), *executor);
        assert_eq!(outcome.violation, None);
        assert!((80..=130).contains(&outcome.calls), "the scenario makes {} calls", outcome.calls);
        let mut group = criterion.benchmark_group(format!("sim/{executor}"));
        group.throughput(Throughput::Elements(1));
        let mut seed = 0;
        group.bench_function("seed of a hundred calls", |bencher| {
            bencher.iter(|| {
                seed += 1;
                black_box(run_history(&hundred_calls(seed), *executor)).trace_hash
            });
        });
        group.finish();
        virtual_hours(*executor);
    }
    criterion.final_summary();
}

/// One thread, so that a second of wall time is a CPU second.
fn virtual_hours(executor: ExecutorKind) {
    const RUNS: u64 = 200;
    let began = Instant::now();
    let virtual_ms: u64 = (0..RUNS).map(|seed| run_history(&two_hours(seed), executor).virtual_ms).sum();
    let took = began.elapsed().as_secs_f64();
    println!(
        "sim/{executor}/virtual time: {:.0} virtual hours a CPU second",
        virtual_ms as f64 / 3_600_000.0 / took
    );
}
