//! The node's side: this process is the daemon.

use crate::{
    normal::{Normal, Ordinals},
    side::{self, Side},
};
use anyhow::{Context, Result, bail, ensure};
use holdfast_core::{
    driver::{self, Session},
    id::ProcessRef,
    record::Records,
    ruleset::Ruleset,
    world::{Router, Store},
};
use holdfast_linux::world::LinuxWorld;
use holdfast_sim::{
    fault::{FaultKind, Victim},
    history::Action,
};
use holdfast_tests::{
    contract::Killer,
    stage::{self, HOLD, Stage},
};
use nix::libc;
use std::time::Duration;
use tokio::runtime::Runtime;

/// How long one step may take: longer than any wait inside the node.
const STEP_DEADLINE: Duration = Duration::from_secs(60);

/// A real node and its daemon.
pub struct Real {
    stage: Stage,
    runtime: Runtime,
    /// `None` only while one daemon takes over from another.
    daemon: Option<Daemon>,
    ordinals: Ordinals,
}

struct Daemon {
    world: LinuxWorld,
    session: Session,
}

impl Real {
    /// A node with nothing on it, and its first daemon.
    pub fn new(stage: Stage) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        let mut real = Self { stage, runtime, daemon: None, ordinals: Ordinals::default() };
        real.start_daemon()?;
        Ok(real)
    }

    fn start_daemon(&mut self) -> Result<()> {
        // With the World go its descriptors of the namespaces and its connections, as with a killed process.
        self.daemon = None;
        let world = self.stage.world()?;
        let session = self.runtime.block_on(driver::open_session(&world))?;
        self.daemon = Some(Daemon { world, session });
        Ok(())
    }

    fn daemon(&self) -> Result<&Daemon> {
        self.daemon.as_ref().context("no daemon")
    }

    fn wait<T>(&self, task: impl Future<Output = T>) -> Result<T> {
        let timed = async { tokio::time::timeout(STEP_DEADLINE, task).await };
        self.runtime.block_on(timed).context("the step does not end")
    }

    fn records(&self) -> Result<Records> {
        let world = &self.daemon()?.world;
        self.wait(world.read(Records::clone))
    }

    /// Takes the node down and looks for what is left.
    pub fn end(self) -> Result<()> {
        let Daemon { world, session } = self.daemon()?;
        let report = self.wait(driver::take_down(world, session, false))??;
        ensure!(report.errors.is_empty(), "taking the node down: {}", report.errors.join("; "));
        let Self { stage, runtime, daemon, .. } = self;
        drop(daemon);
        runtime.shutdown_timeout(Duration::from_secs(1));
        stage.nothing_left()
    }

    fn strike(&mut self, kind: &FaultKind) -> Result<()> {
        let records = self.records()?;
        match kind {
            FaultKind::Kill { who } => {
                for victim in who {
                    if *victim == Victim::Daemon {
                        self.daemon = None;
                    }
                    victims(&records, victim).iter().try_for_each(stage::kill)?;
                }
                if self.daemon.is_none() {
                    self.start_daemon()?;
                }
            }
            FaultKind::Exit { container, code } => {
                let signal = match code {
                    0 => libc::SIGHUP,
                    1 => libc::SIGUSR1,
                    2 => libc::SIGUSR2,
                    code => bail!("the workload has no signal for code {code}"),
                };
                for init in victims(&records, &Victim::Init(container.clone())) {
                    stage::process(&init).signal(signal)?;
                    stage::process(&init).await_death(Duration::from_secs(5))?;
                }
            }
            FaultKind::WedgeControl => self.freeze(records.node.and_then(|node| node.control)),
            FaultKind::WedgeUplink => self.freeze(records.node.and_then(|node| node.uplink)),
            FaultKind::FlushRules => {
                let desired = Ruleset::desired(&records);
                self.wait(self.daemon()?.world.remove_elements(&desired.elements))??;
            }
            FaultKind::TakeHostPort { port, .. } => self.stage.take_port(*port),
            kind => bail!("{kind:?} is not played on a real node"),
        }
        Ok(())
    }

    fn freeze(&self, process: Option<ProcessRef>) {
        if let Some(process) = process.filter(|process| stage::process(process).is_alive()) {
            self.stage.freeze(&process);
        }
    }
}

/// The living processes that a victim names, as the records know them.
fn victims(records: &Records, victim: &Victim) -> Vec<ProcessRef> {
    let node = records.node.as_ref();
    let of_containers = |monitor: bool, wanted: Option<&str>| -> Vec<ProcessRef> {
        let named =
            records.containers.values().filter(|record| wanted.is_none_or(|name| record.name == name));
        let running = named.filter_map(|record| record.running());
        running.map(|(init, of)| if monitor { of.clone() } else { init.clone() }).collect()
    };
    let found = match victim {
        Victim::Daemon => Vec::new(),
        Victim::Pin => node.and_then(|node| node.pin.clone()).into_iter().collect(),
        Victim::Control => node.and_then(|node| node.control.clone()).into_iter().collect(),
        Victim::Uplink => node.and_then(|node| node.uplink.clone()).into_iter().collect(),
        Victim::Monitors => of_containers(true, None),
        Victim::Inits => of_containers(false, None),
        Victim::Monitor(name) => of_containers(true, Some(name)),
        Victim::Init(name) => of_containers(false, Some(name)),
    };
    found.into_iter().filter(|process| stage::process(process).is_alive()).collect()
}

impl Side for Real {
    fn act(&mut self, action: &Action) -> Result<String> {
        let told = if let Action::Strike(kind) = action {
            self.strike(kind)?;
            "struck".to_owned()
        } else {
            let Daemon { world, session } = self.daemon()?;
            self.wait(side::ask(world, session, action))?
        };
        // A process 1 ignores what it does not handle yet: the next step may signal it.
        let records = self.records()?;
        let handling = records.containers.values().filter(|record| record.spec.argv == [HOLD]);
        let inits = handling.filter_map(|record| record.running()).map(|(init, _)| init);
        inits.into_iter().try_for_each(stage::await_handler)?;
        Ok(told)
    }

    fn look(&mut self) -> Result<Normal> {
        let (observed, records) = self.wait(side::observe(&self.daemon()?.world))??;
        Ok(Normal::of(&observed, &records, &mut self.ordinals))
    }

    fn reach(&mut self) -> Result<Normal> {
        self.wait(side::reach(&self.daemon()?.world))?
    }
}
