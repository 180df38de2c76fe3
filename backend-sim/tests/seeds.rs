//! Fresh seeds, regressions, and the gate in front of both: one seed gives one trace.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use holdfast_sim::{generate, history::History};
use std::{
    collections::BTreeMap,
    path::Path,
    process::{Command, Stdio},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

const SEEDS: u64 = 300;

/// The trace's digest, whether the run passed or not.
fn digest(seed: u64) -> String {
    match generate::history(seed).run() {
        Ok(passed) => format!("{:016x}", passed.hash),
        Err(failed) => failed.violation.to_string(),
    }
}

#[test]
fn one_seed_gives_one_trace_here_and_in_another_process() {
    const CHILD: &str = "HOLDFAST_SIM_DIGESTS";
    let digests: Vec<String> = (0..10).map(digest).collect();
    if std::env::var_os(CHILD).is_some() {
        println!("digests {}", digests.join(","));
        return;
    }
    assert_eq!(digests, (0..10).map(digest).collect::<Vec<_>>(), "twice in one process");
    let mut distinct = digests.clone();
    distinct.sort();
    distinct.dedup();
    assert!(distinct.len() > 5, "seeds differ: {digests:?}");
    let said = said_by(
        Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "one_seed_gives_one_trace_here_and_in_another_process", "--nocapture"])
            .env(CHILD, "1"),
    );
    assert!(said.contains(&format!("digests {}", digests.join(","))), "another process said {said}");
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

#[test]
fn fresh_seeds() {
    let from = std::env::var("FROM").ok().and_then(|text| text.parse().ok()).unwrap_or_else(|| {
        SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs() % 1_000_000 * 1_000
    });
    let seeds = std::env::var("SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(SEEDS);
    println!("seeds {from}..{}", from + seeds);
    let mut struck: BTreeMap<String, u64> = BTreeMap::new();
    let mut failures = Vec::new();
    for seed in from..from + seeds {
        match generate::history(seed).run() {
            Ok(passed) => {
                passed.faults.into_iter().for_each(|(kind, count)| *struck.entry(kind).or_default() += count);
            }
            Err(failed) => failures.push(format!("seed {seed}: {failed}")),
        }
    }
    println!("{} passed, {} failed; faults {struck:?}", seeds - failures.len() as u64, failures.len());
    assert!(failures.is_empty(), "FROM={from} SEEDS={seeds}\n{}", failures.join("\n\n"));
    if seeds >= SEEDS {
        for kind in ["Kill", "KillAndReusePid", "WedgeControl", "PowerLoss", "FlushRules", "Fail"] {
            assert!(struck.contains_key(kind), "{kind} never struck: {struck:?}");
        }
    }
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
        if let Err(failed) = history.run() {
            panic!("{}: {failed}", path.display());
        }
        count += 1;
    }
    assert!(count > 0, "{} holds regressions", folder.display());
}
