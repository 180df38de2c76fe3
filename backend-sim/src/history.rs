//! Histories: what is asked of a node, what strikes it, and what must be true afterwards. A history is data;
//! a failing one is kept as a file and replayed.

mod judge;

pub use judge::Before;

use crate::{
    Config, Sim, SimWorld,
    check::{self, Violation},
    executor::{self, End, Task},
    fault::{FaultKind, FaultPlan},
};
use holdfast_core::{
    driver::{self, BringUpReport, Session, Trigger},
    ops::request::{
        ConnectRequest, DisconnectRequest, NetworkRequest, PodRequest, RemoveRequest, RequestError,
        RootRequest, RunRequest, StopRequest,
    },
    time::Span,
    world::Clock,
};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeSet, fmt, sync::Mutex};

/// One thing asked of the node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Action {
    /// `holdfast run`.
    Run(Box<RunRequest>),
    /// `holdfast stop`.
    Stop(String),
    /// `holdfast start`.
    Start(String),
    /// `holdfast restart`.
    Restart(String),
    /// `holdfast rm --force`.
    Remove(String),
    /// `holdfast pod create`.
    CreatePod(PodRequest),
    /// `holdfast pod rm --force`.
    RemovePod(String),
    /// `holdfast network create`.
    CreateNetwork(NetworkRequest),
    /// `holdfast network rm`.
    RemoveNetwork(String),
    /// `holdfast network connect`: network, then what is asked of it.
    Connect(String, ConnectRequest),
    /// `holdfast network disconnect`: network, then container or pod.
    Disconnect(String, String),
    /// `holdfast network route add`.
    AddRoute(String, String),
    /// `holdfast network route rm`.
    RemoveRoute(String, String),
    /// A bring-up, as after the death of a watched process.
    BringUp,
    /// Not asked but suffered.
    Strike(FaultKind),
}

impl Action {
    /// Runs a container of this name on the default network.
    pub fn run(name: &str) -> Self {
        Self::Run(Box::new(request(name)))
    }

    /// Runs a container of this name in a pod.
    pub fn run_in(pod: &str, name: &str) -> Self {
        Self::Run(Box::new(RunRequest { pod: Some(pod.to_owned()), ..request(name) }))
    }
}

/// A plain request.
pub fn request(name: &str) -> RunRequest {
    RunRequest {
        root: RootRequest::Rootfs("/rootfs".to_owned()),
        name: Some(name.to_owned()),
        pod: None,
        tenant: None,
        networks: Vec::new(),
        addresses: Default::default(),
        ports: Vec::new(),
        command: vec!["/bin/sleep".to_owned(), "1000".to_owned()],
        entrypoint: None,
        env: Vec::new(),
        mounts: Vec::new(),
        working_dir: None,
        user: None,
        hostname: None,
        restart: Default::default(),
        stop_signal: None,
        stop_grace_ms: None,
        labels: Default::default(),
    }
}

/// A whole run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct History {
    /// Its name.
    pub name: String,
    /// What it is about, in a sentence.
    #[serde(default)]
    pub what: String,
    /// Seed of every stream.
    #[serde(default)]
    pub seed: u64,
    /// Whether the service manager keeps the daemon's descriptors.
    #[serde(default)]
    pub fd_store: bool,
    /// Containers that ignore their stop signal.
    #[serde(default)]
    pub stubborn: BTreeSet<String>,
    /// Done one after the other before faults are armed; each must succeed.
    #[serde(default)]
    pub prepare: Vec<Action>,
    /// Strikes before the lanes, without a daemon's doing; a dead daemon is started again.
    #[serde(default)]
    pub outage: Vec<FaultKind>,
    /// Done under faults: lanes at once, the actions of a lane one after the other.
    pub lanes: Vec<Vec<Action>>,
    /// What strikes. Call numbers count from the first call of the lanes.
    #[serde(default)]
    pub plan: FaultPlan,
}

/// What came of an action.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The action.
    pub action: Action,
    /// What its caller was told; `None` if the daemon died before it could say anything.
    pub told: Option<Result<(), RequestError>>,
}

/// A run that went as it must.
#[derive(Clone, Debug)]
pub struct Passed {
    /// Calls from the first of the lanes to their end or the kill.
    pub calls: u64,
    /// Digest of the trace.
    pub hash: u64,
    /// What was answered.
    pub answers: Vec<Answer>,
    /// The bring-ups after the faults.
    pub reports: Vec<BringUpReport>,
    /// How often each kind of fault struck.
    pub faults: std::collections::BTreeMap<String, u64>,
}

/// A run that did not.
#[derive(Clone, Debug)]
pub struct Failed {
    /// Which invariant, and what breaks it.
    pub violation: Violation,
    /// The history, as data.
    pub history: String,
    /// The last calls.
    pub trace: String,
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}\nlast calls:\n{}history: {}", self.violation, self.trace, self.history)
    }
}

/// Bring-ups until a node is whole, once faults have stopped.
pub const BRING_UPS_MAX: u32 = 4;

impl History {
    /// Runs it.
    ///
    /// # Errors
    /// The first invariant that did not hold, with what is needed to see it again.
    pub fn run(&self) -> Result<Passed, Box<Failed>> {
        let config = Config {
            seed: self.seed,
            fd_store: self.fd_store,
            stubborn: self.stubborn.clone(),
            ..Config::default()
        };
        let sim = Sim::new(config, FaultPlan::default());
        self.run_on(&sim).map_err(|violation| {
            Box::new(Failed {
                violation,
                history: serde_json::to_string(self).unwrap_or_default(),
                trace: sim.trace().tail(40),
            })
        })
    }

    fn run_on(&self, sim: &Sim) -> Result<Passed, Violation> {
        let mut daemon = Daemon::start(sim)?;
        daemon.settle()?;
        for action in &self.prepare {
            let told = daemon.run(std::slice::from_ref(action))?;
            if let Some(answer) = told.iter().find(|answer| answer.told != Some(Ok(()))) {
                return Err(violation("preparation succeeds", format!("{answer:?}")));
            }
        }
        if !self.prepare.is_empty() {
            daemon.settle()?;
        }
        let before = sim.with_node(|node| Before::of(node));
        self.outage.iter().for_each(|kind| sim.strike(kind));
        if !sim.daemon_lives() {
            daemon = Daemon::start(sim)?;
        }
        let base = sim.calls();
        sim.arm(self.plan.counted_from(base));
        let answers = daemon.run_lanes(&self.lanes)?;
        let calls = sim.calls() - base;
        sim.disarm();
        let mut daemon = if sim.daemon_lives() { daemon } else { Daemon::start(sim)? };
        let midway = sim.with_node(|node| Before::of(node));
        let reports = daemon.settle()?;
        sim.with_node(|node| {
            check::converged(node)?;
            before.judge(node, &answers, &self.strikes())?;
            midway.reported(node, &reports)
        })?;
        Ok(Passed { calls, hash: sim.trace().hash(), answers, reports, faults: sim.faults_struck() })
    }

    /// Every fault that may strike.
    fn strikes(&self) -> Vec<FaultKind> {
        let suffered = self.lanes.iter().flatten().filter_map(|action| match action {
            Action::Strike(kind) => Some(kind.clone()),
            _ => None,
        });
        let planned = self.plan.faults.iter().map(|fault| fault.kind.clone());
        planned.chain(suffered).chain(self.outage.iter().cloned()).collect()
    }
}

pub(crate) fn violation(invariant: &str, detail: impl Into<String>) -> Violation {
    Violation { invariant: invariant.to_owned(), detail: detail.into() }
}

/// One life of a daemon on a simulated node.
struct Daemon {
    sim: Sim,
    world: SimWorld,
    session: Session,
}

impl Daemon {
    fn start(sim: &Sim) -> Result<Self, Violation> {
        let world = sim.start_daemon();
        let session = finished(executor::block_on(sim, driver::open_session(&world)))?
            .map_err(|error| violation("a daemon opens its session", error.to_string()))?;
        Ok(Self { sim: sim.clone(), world, session })
    }

    /// Brings the node up until it is whole, waiting for restarts that are held back.
    fn settle(&mut self) -> Result<Vec<BringUpReport>, Violation> {
        let mut reports: Vec<BringUpReport> = Vec::new();
        for _ in 0..BRING_UPS_MAX {
            let trigger = if reports.is_empty() { Trigger::Start } else { Trigger::Timer };
            let (world, session) = (&self.world, &self.session);
            let report = finished(executor::block_on(&self.sim, async move {
                let report = driver::bring_up(world, session, trigger).await;
                if let Some(due) = report.next_due {
                    world.sleep(due.since(world.now())).await;
                }
                report
            }))?;
            let whole = report.converged && report.next_due.is_none();
            reports.push(report);
            if whole {
                return Ok(reports);
            }
        }
        let last = reports.last().map(ToString::to_string).unwrap_or_default();
        Err(violation("it converges", format!("after {BRING_UPS_MAX} bring-ups: {last}")))
    }

    fn run(&self, actions: &[Action]) -> Result<Vec<Answer>, Violation> {
        self.run_lanes(&[actions.to_vec()])
    }

    fn run_lanes(&self, lanes: &[Vec<Action>]) -> Result<Vec<Answer>, Violation> {
        let answers = Mutex::new(Vec::new());
        let tasks: Vec<Task<'_, ()>> = lanes
            .iter()
            .map(|lane| {
                let answers = &answers;
                let task: Task<'_, ()> = Box::pin(async move {
                    for action in lane {
                        let place = note(answers, action);
                        let told = self.act(action).await;
                        if let Ok(mut answers) = answers.lock() {
                            answers[place].told = Some(told);
                        }
                    }
                });
                task
            })
            .collect();
        match executor::run(&self.sim, tasks) {
            End::Done(_) | End::Killed(_) => {}
            End::Violated(violation) => return Err(violation),
            end => return Err(violation("every call ends", end.to_string())),
        }
        Ok(answers.into_inner().unwrap_or_default())
    }

    async fn act(&self, action: &Action) -> Result<(), RequestError> {
        let (world, session) = (&self.world, &self.session);
        let stop = StopRequest::default();
        let force = RemoveRequest { force: true };
        match action {
            Action::Run(request) => driver::run_container(world, session, request).await.map(drop),
            Action::Stop(name) => driver::stop_container(world, session, name, &stop).await.map(drop),
            Action::Start(name) => driver::start_container(world, session, name).await.map(drop),
            Action::Restart(name) => driver::restart_container(world, session, name, &stop).await.map(drop),
            Action::Remove(name) => driver::remove_container(world, session, name, &force).await,
            Action::CreatePod(request) => driver::create_pod(world, session, request).await.map(drop),
            Action::RemovePod(name) => driver::remove_pod(world, session, name, &force).await,
            Action::CreateNetwork(request) => driver::create_network(world, session, request).await.map(drop),
            Action::RemoveNetwork(name) => driver::remove_network(world, session, name).await,
            Action::Connect(network, request) => {
                driver::connect_network(world, session, network, request).await.map(drop)
            }
            Action::Disconnect(network, workload) => {
                let request = DisconnectRequest { workload: workload.clone() };
                driver::disconnect_network(world, session, network, &request).await.map(drop)
            }
            Action::AddRoute(one, other) => driver::add_route(world, session, one, other).await,
            Action::RemoveRoute(one, other) => driver::remove_route(world, session, one, other).await,
            Action::BringUp => {
                let who = "watched".to_owned();
                driver::bring_up(world, session, Trigger::Death { who }).await;
                Ok(())
            }
            Action::Strike(kind) => {
                self.sim.strike(kind);
                // A daemon that killed itself goes no further.
                world.sleep(Span(1)).await;
                Ok(())
            }
        }
    }
}

fn note(answers: &Mutex<Vec<Answer>>, action: &Action) -> usize {
    let Ok(mut answers) = answers.lock() else { return 0 };
    answers.push(Answer { action: action.clone(), told: None });
    answers.len() - 1
}

fn finished<T>(end: End<T>) -> Result<T, Violation> {
    match end {
        End::Done(results) => {
            results.into_iter().next().ok_or_else(|| violation("every call ends", "no result".to_owned()))
        }
        End::Violated(violation) => Err(violation),
        end => Err(violation("every call ends", end.to_string())),
    }
}
