//! The World contract on the simulated node.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use holdfast_core::{id::ProcessRef, spec::RootSource};
use holdfast_sim::{
    Config, Sim,
    executor::{End, block_on},
    fault::FaultPlan,
};
use holdfast_tests::contract::{Case, Killer, run_case};

struct SimKiller(Sim);

impl Killer for SimKiller {
    fn kill(&self, process: &ProcessRef) {
        self.0.with_node(|node| node.kill(process, 137));
    }

    fn root(&self) -> RootSource {
        RootSource::Directory("/rootfs".to_owned())
    }

    fn free_port(&self) -> u16 {
        18_080
    }
}

#[test]
fn the_simulated_node_keeps_the_contract() {
    let mut failed = Vec::new();
    for (case, fd_store) in Case::ALL.into_iter().flat_map(|case| [(case, false), (case, true)]) {
        // Invariants are off: a case makes things that no record knows.
        let sim = Sim::new(Config { fd_store, check: false, ..Config::default() }, FaultPlan::default());
        let world = sim.start_daemon();
        let killer = SimKiller(sim.clone());
        match block_on(&sim, run_case(case, &world, &killer)) {
            End::Done(results) if results == [Ok(())] => {}
            end => failed.push(format!("{case:?}: {end:?}\n{}", sim.trace().tail(5))),
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

#[test]
fn every_case_is_listed_once() {
    let mut cases = Case::ALL.to_vec();
    cases.sort();
    cases.dedup();
    assert_eq!(cases.len(), Case::ALL.len());
}
