//! A change of the router by somebody else: put right, counted once, and not counted where nothing was amiss.
#![allow(clippy::unwrap_used, clippy::panic)]

use holdfast_core::{
    driver::{self, BringUpReport, Session, Trigger},
    world::Store,
};
use holdfast_sim::{
    Config, Sim, SimWorld,
    executor::{self, End},
    fault::{FaultKind, FaultPlan, Victim},
    history::request,
};

fn done<T>(sim: &Sim, task: impl Future<Output = T>) -> T {
    match executor::block_on(sim, task) {
        End::Done(mut results) => results.pop().unwrap(),
        end => panic!("{end}"),
    }
}

fn bring_up(sim: &Sim, world: &SimWorld, session: &Session, drift: bool) -> BringUpReport {
    let trigger =
        if drift { Trigger::Drift { what: "nft changed the rules".to_owned() } } else { Trigger::Timer };
    done(sim, driver::bring_up(world, session, trigger))
}

fn repaired(sim: &Sim, world: &SimWorld) -> u64 {
    let count = world.read(|records| records.node.as_ref().unwrap().cures.get("repaired").copied());
    done(sim, count).unwrap_or(0)
}

#[test]
fn a_repair_is_counted_and_a_false_alarm_is_not() {
    let sim = Sim::new(Config::default(), FaultPlan::default());
    let world = sim.start_daemon();
    let session = done(&sim, driver::open_session(&world)).unwrap();
    bring_up(&sim, &world, &session, false);
    done(&sim, driver::run_container(&world, &session, &request("web"))).unwrap();

    let report = bring_up(&sim, &world, &session, true);
    assert!(report.converged && report.passes == 1, "{report}");
    assert_eq!(repaired(&sim, &world), 0, "nothing was amiss");

    sim.strike(&FaultKind::FlushRules);
    let report = bring_up(&sim, &world, &session, true);
    assert!(report.is_repair(), "{report}");
    assert_eq!(repaired(&sim, &world), 1);

    // A death that is noticed by the way is a cure of its own.
    sim.strike(&FaultKind::Kill { who: vec![Victim::Pin] });
    let report = bring_up(&sim, &world, &session, true);
    assert!(report.converged && !report.is_repair(), "{report}");
    assert_eq!(repaired(&sim, &world), 1);
}
