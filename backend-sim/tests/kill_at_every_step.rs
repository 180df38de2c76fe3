//! Every scenario is killed at every World call, before and after its effect; a new daemon then finds the node
//! whole, or makes it so, with the operation done or undone and every bystander untouched.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use holdfast_sim::{
    fault::{FaultPlan, Side, Victim},
    history::History,
    scenarios,
};

/// Runs every kill of `who` in every scenario and returns how many there were.
fn sweep(what: &str, who: &[Victim], fd_store: bool) -> u64 {
    let mut runs = 0;
    let mut failures = Vec::new();
    for scenario in scenarios::all() {
        let plain = History { fd_store, ..scenario };
        let calls = match plain.run() {
            Ok(passed) => passed.calls,
            Err(failed) => {
                failures.push(format!("{} without a kill: {failed}", plain.name));
                continue;
            }
        };
        assert!(calls > 3, "{} makes {calls} calls", plain.name);
        for (nth, side) in (0..calls).flat_map(|nth| [(nth, Side::Before), (nth, Side::After)]) {
            let history = History { plan: FaultPlan::kill(nth, side, who), ..plain.clone() };
            runs += 1;
            if let Err(failed) = history.run() {
                failures.push(format!("{}, {what} killed {side:?} call {nth}: {failed}", plain.name));
                break;
            }
        }
    }
    println!("{what}: {runs} kills");
    assert!(failures.is_empty(), "{} scenarios failed\n{}", failures.len(), failures.join("\n\n"));
    runs
}

#[test]
fn daemon() {
    let runs = sweep("daemon", &[Victim::Daemon], false);
    assert!(runs > 500, "only {runs} kills");
}

#[test]
fn daemon_with_an_fd_store() {
    sweep("daemon", &[Victim::Daemon], true);
}

#[test]
fn daemon_and_control() {
    sweep("daemon and control", &[Victim::Daemon, Victim::Control], false);
}

#[test]
fn pin() {
    sweep("pin", &[Victim::Pin], false);
}

#[test]
fn control() {
    sweep("control", &[Victim::Control], false);
}

#[test]
fn uplink() {
    sweep("uplink", &[Victim::Uplink], false);
}

#[test]
fn every_keeper() {
    sweep("every keeper", &Victim::KEEPERS, false);
}

#[test]
fn everything() {
    sweep("everything", &Victim::EVERYTHING, false);
}
