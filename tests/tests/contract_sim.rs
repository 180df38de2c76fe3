//! The World contract on the simulated node.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use holdfast_core::{
    id::ProcessRef,
    spec::{Protocol, RootSource},
};
use holdfast_sim::{
    Config, Sim,
    executor::{End, block_on},
    fault::FaultPlan,
    model::Role,
};
use holdfast_tests::contract::{Case, Killer, STUBBORN, run_case};
use std::{
    collections::BTreeSet,
    net::Ipv4Addr,
    sync::atomic::{AtomicU16, Ordering},
};

struct SimKiller(Sim);

impl SimKiller {
    fn freezes(&self, process: &ProcessRef, now: bool) {
        self.0.with_node(|node| match node.processes.get_mut(process).map(|process| &mut process.role) {
            Some(Role::Control { wedged, .. } | Role::Uplink { wedged, .. }) => *wedged = now,
            other => panic!("the model freezes no {other:?}"),
        });
    }
}

impl Killer for SimKiller {
    fn kill(&self, process: &ProcessRef) {
        self.0.with_node(|node| node.kill(process, 137));
    }

    fn freeze(&self, process: &ProcessRef) {
        self.freezes(process, true);
    }

    fn thaw(&self, process: &ProcessRef) {
        self.freezes(process, false);
    }

    fn await_ready(&self, _: &ProcessRef) {}

    fn take_port(&self, port: u16) {
        self.0.with_node(|node| node.foreign_ports.insert((Protocol::Tcp, port, Ipv4Addr::LOCALHOST)));
    }

    fn root(&self) -> RootSource {
        RootSource::Directory("/rootfs".to_owned())
    }

    fn free_port(&self) -> u16 {
        static NEXT: AtomicU16 = AtomicU16::new(18_080);
        NEXT.fetch_add(1, Ordering::Relaxed)
    }
}

/// Process 1 ignores what it does not handle: pid_namespaces(7).
fn ignoring() -> BTreeSet<String> {
    [STUBBORN.to_owned(), "n".repeat(63)].into()
}

#[test]
fn the_simulated_node_keeps_the_contract() {
    let mut failed = Vec::new();
    for (case, fd_store) in Case::ALL.iter().copied().flat_map(|case| [(case, false), (case, true)]) {
        // Invariants are off: a case makes things that no record knows.
        let sim = Sim::new(
            Config { fd_store, check: false, stubborn: ignoring(), ..Config::default() },
            FaultPlan::default(),
        );
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
