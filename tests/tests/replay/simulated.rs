//! The model's side.

use crate::{
    histories::History,
    normal::{Normal, Ordinals},
    side::{self, Side},
};
use anyhow::{Context, Result, anyhow};
use holdfast_core::{
    driver::{self, Session},
    record::{Records, SandboxKind},
};
use holdfast_sim::{
    Config, Sim, SimWorld,
    executor::{End, block_on},
    fault::FaultPlan,
    history::Action,
};
use std::future::Future;

/// A simulated node and its daemon.
pub struct Simulated {
    sim: Sim,
    world: SimWorld,
    session: Session,
    ordinals: Ordinals,
}

fn run<T>(sim: &Sim, task: impl Future<Output = T>) -> Result<T> {
    match block_on(sim, task) {
        End::Done(results) => results.into_iter().next().context("no result"),
        End::Killed(_) => Err(anyhow!("the simulated daemon died of no kill")),
        End::Violated(violation) => Err(anyhow!("{violation}")),
        End::Stuck | End::TooLong => Err(anyhow!("the simulation came to no end\n{}", sim.trace().tail(20))),
    }
}

impl Simulated {
    /// A node with nothing on it, and its first daemon.
    pub fn new(history: &History) -> Result<Self> {
        let config = Config { seed: history.seed, stubborn: history.stubborn.clone(), ..Config::default() };
        let sim = Sim::new(config, FaultPlan::default());
        let world = sim.start_daemon();
        let session = run(&sim, driver::open_session(&world))??;
        Ok(Self { sim, world, session, ordinals: Ordinals::default() })
    }

    /// What removes everything that is left.
    pub fn rest(&self) -> Vec<Action> {
        self.sim.with_node(|node| {
            let Records { containers, sandboxes, networks, .. } = node.disk.records();
            let containers = containers.values().map(|record| Action::Remove(record.name.clone()));
            let pods = sandboxes.values().filter(|record| record.kind == SandboxKind::Pod);
            let pods = pods.map(|record| Action::RemovePod(record.name.clone()));
            let networks = networks.values().map(|record| Action::RemoveNetwork(record.name.clone()));
            containers.chain(pods).chain(networks).collect()
        })
    }
}

impl Side for Simulated {
    fn act(&mut self, action: &Action) -> Result<String> {
        let Action::Strike(kind) = action else {
            return run(&self.sim, side::ask(&self.world, &self.session, action));
        };
        self.sim.strike(kind);
        if !self.sim.daemon_lives() {
            self.world = self.sim.start_daemon();
            self.session = run(&self.sim, driver::open_session(&self.world))??;
        }
        Ok("struck".to_owned())
    }

    fn look(&mut self) -> Result<Normal> {
        let (observed, records) = run(&self.sim, side::observe(&self.world))??;
        Ok(Normal::of(&observed, &records, &mut self.ordinals))
    }

    fn reach(&mut self) -> Result<Normal> {
        run(&self.sim, side::reach(&self.world))?
    }
}
