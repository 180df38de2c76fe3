//! The gate in front of everything else: one seed gives one trace, twice in one process and in another one.
#![allow(clippy::unwrap_used, clippy::expect_used)]
#![cfg(feature = "runner")]

use holdfast_sim::{
    executor::ExecutorKind,
    profile::Profile,
    runner::{Digests, Settings, digests},
};
use std::{
    process::{Command, Stdio},
    time::{Duration, Instant},
};

const SEEDS: u64 = 60;

fn settings(executor: ExecutorKind) -> Settings {
    let profile = Profile::load("default").unwrap();
    Settings { seeds: 0..SEEDS, profile, executor, jobs: 2, twice: false }
}

#[test]
fn one_seed_gives_one_trace_here_and_in_another_process() {
    if let Some(executor) = ExecutorKind::ALL.last() {
        let first = digests(&settings(*executor));
        let distinct: std::collections::BTreeSet<u64> = first.values().copied().collect();
        assert_eq!(distinct.len() as u64, SEEDS, "seeds differ on the {executor} executor");
        assert_eq!(first, digests(&settings(*executor)), "twice in one process on the {executor} executor");
        assert_eq!(first, elsewhere(*executor), "in another process on the {executor} executor");
    }
}

/// Two executors are two schedules: what they share is that each repeats itself.
#[test]
fn executors_differ() {
    let all: Vec<Digests> = ExecutorKind::ALL.iter().map(|executor| digests(&settings(*executor))).collect();
    assert_eq!(all.len(), ExecutorKind::ALL.len());
    for pair in all.windows(2) {
        assert_ne!(pair[0], pair[1]);
    }
}

fn elsewhere(executor: ExecutorKind) -> Digests {
    let mut command = Command::new(env!("CARGO_BIN_EXE_holdfast-sim"));
    command.args(["digests", "--from", "0", "--seeds", &SEEDS.to_string(), "--profile", "default"]);
    let text = said_by(command.args(["--executor", &executor.to_string()]));
    let parse = |line: &str| {
        let (seed, digest) = line.split_once(' ')?;
        Some((seed.parse().ok()?, u64::from_str_radix(digest, 16).ok()?))
    };
    text.lines().filter_map(parse).collect()
}

/// What a command prints, if it ends in time.
#[expect(clippy::disallowed_methods, reason = "it polls for the end, with a deadline")]
fn said_by(command: &mut Command) -> String {
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let deadline = Instant::now() + Duration::from_secs(120);
    while child.try_wait().unwrap().is_none() {
        assert!(Instant::now() < deadline, "the other process does not end");
        std::thread::sleep(Duration::from_millis(20));
    }
    // It prints far less than a pipe holds, so it never waited for a reader.
    std::io::read_to_string(child.stdout.take().unwrap()).unwrap()
}
