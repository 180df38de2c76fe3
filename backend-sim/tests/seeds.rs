//! Fresh seeds and regressions: on madsim in a build that has it, else on the stepping executor.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use holdfast_sim::{
    executor::ExecutorKind,
    history::History,
    profile::Profile,
    run::run_history,
    runner::{Digests, Settings, run_seeds},
};
use std::{
    path::Path,
    time::{SystemTime, UNIX_EPOCH},
};

const SEEDS: u64 = 300;

fn executor() -> ExecutorKind {
    ExecutorKind::ALL.last().copied().unwrap_or_default()
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|text| text.parse().ok())
}

#[test]
fn fresh_seeds() {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let from = number("FROM").unwrap_or(now % 1_000_000 * 1_000);
    let seeds = from..from + number("SEEDS").unwrap_or(SEEDS);
    let name = std::env::var("PROFILE").unwrap_or_else(|_| "default".to_owned());
    let profile = Profile::load(&name).unwrap();
    let executor = executor();
    println!("seeds {seeds:?} of profile {name}, {executor} executor");
    let settings = Settings {
        seeds: seeds.clone(),
        profile: profile.clone(),
        executor,
        jobs: std::thread::available_parallelism().map_or(1, usize::from),
        twice: true,
    };
    let tally = run_seeds(&settings, &Digests::new(), |_| {});
    let failures: Vec<String> = tally.failures.iter().map(ToString::to_string).collect();
    let rerun = format!("make sim FROM={from} SEEDS={} PROFILE={name}", seeds.end - from);
    assert!(failures.is_empty(), "{} failed; {rerun}\n{}", tally.failed, failures.join("\n"));
    assert_eq!(tally.passed, seeds.end - seeds.start);
    assert_eq!(tally.unreached(&profile), Vec::<String>::new(), "never reached; {rerun}");
}

/// Each file is a history with a sentence on what it was: it once failed, and never may again.
#[test]
fn regressions() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("regressions");
    let mut count = 0;
    for entry in std::fs::read_dir(&folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "json") {
            continue;
        }
        let text = std::fs::read_to_string(&path).unwrap();
        let history: History =
            serde_json::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        assert!(history.what.len() > 20, "{} says what it was", path.display());
        let outcome = run_history(&history, executor());
        if let Some(violation) = outcome.violation {
            panic!("{}: {violation}\n{}", path.display(), outcome.trace.tail(40));
        }
        count += 1;
    }
    assert!(count > 0, "{} holds regressions", folder.display());
}
