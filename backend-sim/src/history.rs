//! Histories: what is asked of a node, what strikes it, and what must be true afterwards. A history is data;
//! a failing one is kept as a file and replayed.

mod at_once;
mod judge;

pub use judge::Before;

use crate::{
    Config, Sim, SimWorld,
    check::{self, Violation},
    executor::{End, Executor, Stepping, Task},
    fault::{FaultKind, FaultPlan},
};
use futures_util::lock::Mutex as Turn;
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
use std::{
    collections::BTreeSet,
    fmt,
    sync::{Arc, Mutex, PoisonError},
};

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
    /// `holdfast down`.
    TakeDown,
    /// `holdfast up`.
    Up,
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
        remove_on_exit: false,
        security: Default::default(),
        aliases: Vec::new(),
        dns: Default::default(),
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
    /// The longest a call takes when nothing delays it, in microseconds; `None` is the default of [`Config`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latency_max_us: Option<u64>,
    /// Whether the lanes go on with the next daemon after a kill, with what got no answer asked again; else their
    /// rest is not done.
    #[serde(default)]
    pub resume: bool,
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
    /// What was answered.
    pub answers: Vec<Answer>,
    /// The bring-ups after the faults.
    pub reports: Vec<BringUpReport>,
    /// The bring-ups before them, and while they struck.
    pub seen: Vec<BringUpReport>,
    /// How many daemons died while they brought the node up.
    pub killed_in_bring_up: u32,
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
/// Daemons that a run under faults takes at most; what is left of the lanes is then not done.
const LIVES_MAX: u32 = 12;

impl History {
    /// Runs it on the stepping executor.
    ///
    /// # Errors
    /// The first invariant that did not hold, with what is needed to see it again.
    pub fn run(&self) -> Result<Passed, Box<Failed>> {
        let sim = self.node();
        self.run_on(&sim, &Stepping).map_err(|violation| {
            Box::new(Failed {
                violation,
                history: serde_json::to_string(self).unwrap_or_default(),
                trace: sim.trace().tail(40),
            })
        })
    }

    /// The node that it begins on.
    pub fn node(&self) -> Sim {
        let config = Config {
            seed: self.seed,
            fd_store: self.fd_store,
            stubborn: self.stubborn.clone(),
            latency_max_us: self.latency_max_us.unwrap_or(Config::default().latency_max_us),
            ..Config::default()
        };
        Sim::new(config, FaultPlan::default())
    }

    /// Runs it on a node and an executor.
    ///
    /// # Errors
    /// The first invariant that did not hold.
    pub fn run_on<E: Executor>(&self, sim: &Sim, executor: &E) -> Result<Passed, Violation> {
        let mut daemon = Daemon::start(sim, executor)?;
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
            daemon = Daemon::start(sim, executor)?;
        }
        let base = sim.calls();
        sim.arm(self.plan.counted_from(base));
        let mut under = UnderFaults::default();
        let daemon = under.run(daemon, &self.lanes, self.resume)?;
        let calls = sim.calls() - base;
        sim.disarm();
        if daemon.is_some() {
            sim.with_node(|node| self.judge_last(node, &before, &under))?;
        }
        let daemon = match daemon {
            Some(daemon) => daemon,
            None => Daemon::start(sim, executor)?,
        };
        let midway = sim.with_node(|node| Before::of(node));
        let UnderFaults { answers, reports: seen, killed_in_bring_up } = under;
        let reports = daemon.settle()?;
        sim.with_node(|node| {
            check::converged(node)?;
            before.judge(node, &answers, &self.strikes())?;
            midway.reported(node, &reports)
        })?;
        Ok(Passed { calls, answers, reports, seen, killed_in_bring_up, faults: sim.faults_struck() })
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

/// What came of the time in which faults struck.
#[derive(Default)]
struct UnderFaults {
    answers: Vec<Answer>,
    reports: Vec<BringUpReport>,
    killed_in_bring_up: u32,
}

impl UnderFaults {
    /// Runs the lanes until they are done, or their daemon is dead and nobody goes on. The daemon that lives.
    fn run<'e, E: Executor>(
        &mut self,
        first: Daemon<'e, E>,
        lanes: &[Vec<Action>],
        resume: bool,
    ) -> Result<Option<Daemon<'e, E>>, Violation> {
        let (sim, executor) = (first.sim.clone(), first.executor);
        let mut rest = lanes.to_vec();
        let mut daemon = Some(first);
        for _ in 0..LIVES_MAX {
            if let Some(running) = daemon.take() {
                let done = running.run_lanes(&rest)?;
                done.advance(&mut rest);
                self.answers.extend(done.answers.into_iter().map(|(_, answer)| answer));
                self.reports.extend(done.reports);
                if sim.daemon_lives() {
                    return Ok(Some(running));
                }
            }
            if !resume {
                return Ok(None);
            }
            daemon = Daemon::start_under_faults(&sim, executor)?;
            if let Some(started) = &daemon {
                match started.bring_up(Trigger::Start)? {
                    Some(report) => self.reports.push(report),
                    None => {
                        self.killed_in_bring_up += 1;
                        daemon = None;
                    }
                }
            }
        }
        Ok(None)
    }
}

/// What lanes did.
#[derive(Default)]
struct Done {
    /// Answers, each with its lane.
    answers: Vec<(usize, Answer)>,
    /// Bring-ups among the actions.
    reports: Vec<BringUpReport>,
}

impl Done {
    /// Takes what is done out of the lanes. What got no answer is asked again, but nothing strikes twice.
    fn advance(&self, lanes: &mut [Vec<Action>]) {
        for (place, lane) in lanes.iter_mut().enumerate() {
            let own = self.answers.iter().filter(|(of, _)| *of == place);
            let done =
                own.filter(|(_, answer)| answer.told.is_some() || matches!(answer.action, Action::Strike(_)));
            let done = done.count();
            lane.drain(..done.min(lane.len()));
        }
    }
}

/// One life of a daemon on a simulated node.
struct Daemon<'e, E> {
    sim: Sim,
    executor: &'e E,
    world: SimWorld,
    session: Session,
}

impl<'e, E: Executor> Daemon<'e, E> {
    fn start(sim: &Sim, executor: &'e E) -> Result<Self, Violation> {
        let world = sim.start_daemon();
        let opening = world.clone();
        let opened = executor.block_on(sim, async move { driver::open_session(&opening).await });
        let session =
            finished(opened)?.map_err(|error| violation("a daemon opens its session", error.to_string()))?;
        Ok(Self { sim: sim.clone(), executor, world, session })
    }

    /// A daemon that may be killed before it stands, or be refused its records: it is then another's turn.
    fn start_under_faults(sim: &Sim, executor: &'e E) -> Result<Option<Self>, Violation> {
        let world = sim.start_daemon();
        let opening = world.clone();
        match executor.block_on(sim, async move { driver::open_session(&opening).await }) {
            End::Killed(_) => Ok(None),
            opened => match finished(opened)? {
                Ok(session) => Ok(Some(Self { sim: sim.clone(), executor, world, session })),
                Err(_) => Ok(None),
            },
        }
    }

    /// One bring-up; `None` when the daemon was killed.
    fn bring_up(&self, trigger: Trigger) -> Result<Option<BringUpReport>, Violation> {
        let (world, session) = (self.world.clone(), self.session);
        let end = self.executor.block_on(&self.sim, async move {
            let report = driver::bring_up(&world, &session, trigger).await;
            if let Some(due) = report.next_due {
                world.sleep(due.since(world.now())).await;
            }
            report
        });
        match end {
            End::Killed(_) => Ok(None),
            end => finished(end).map(Some),
        }
    }

    /// Brings the node up until it is whole, waiting for restarts that are held back. A node that was taken down
    /// stays down until it is asked to come up, which it then is.
    fn settle(&self) -> Result<Vec<BringUpReport>, Violation> {
        let mut reports: Vec<BringUpReport> = Vec::new();
        let mut trigger = Trigger::Start;
        for _ in 0..BRING_UPS_MAX {
            let Some(report) = self.bring_up(trigger)? else {
                return Err(violation("every call ends", "the daemon was killed after the faults"));
            };
            let whole = report.converged && report.next_due.is_none();
            trigger = if report.down { Trigger::Up } else { Trigger::Timer };
            reports.push(report);
            if whole {
                return Ok(reports);
            }
        }
        let last = reports.last().map(ToString::to_string).unwrap_or_default();
        Err(violation("it converges", format!("after {BRING_UPS_MAX} bring-ups: {last}")))
    }

    fn run(&self, actions: &[Action]) -> Result<Vec<Answer>, Violation> {
        let done = self.run_lanes(&[actions.to_vec()])?;
        Ok(done.answers.into_iter().map(|(_, answer)| answer).collect())
    }

    fn run_lanes(&self, lanes: &[Vec<Action>]) -> Result<Done, Violation> {
        let done = Arc::new(Mutex::new(Done::default()));
        // A daemon brings its node up once at a time: whoever asks meanwhile waits for the next one.
        let turn = Arc::new(Turn::new(()));
        let tasks = lanes.iter().enumerate().map(|(number, lane)| -> Task<'static, ()> {
            let (lane, done, turn) = (lane.clone(), Arc::clone(&done), Arc::clone(&turn));
            let (sim, world, session) = (self.sim.clone(), self.world.clone(), self.session);
            Box::pin(async move {
                for action in &lane {
                    let place = begin(&done, number, action);
                    let (told, report) = act(&sim, &world, &session, &turn, action).await;
                    end(&done, place, told, report);
                }
            })
        });
        match self.executor.run(&self.sim, tasks.collect()) {
            End::Done(_) | End::Killed(_) => {}
            End::Violated(violation) => return Err(violation),
            end => return Err(violation("every call ends", end.to_string())),
        }
        Ok(std::mem::take(&mut *done.lock().unwrap_or_else(PoisonError::into_inner)))
    }
}

fn begin(done: &Mutex<Done>, lane: usize, action: &Action) -> usize {
    let mut done = done.lock().unwrap_or_else(PoisonError::into_inner);
    done.answers.push((lane, Answer { action: action.clone(), told: None }));
    done.answers.len() - 1
}

fn end(done: &Mutex<Done>, place: usize, told: Result<(), RequestError>, report: Option<BringUpReport>) {
    let mut done = done.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, answer)) = done.answers.get_mut(place) {
        answer.told = Some(told);
    }
    done.reports.extend(report);
}

async fn act(
    sim: &Sim,
    world: &SimWorld,
    session: &Session,
    turn: &Turn<()>,
    action: &Action,
) -> (Result<(), RequestError>, Option<BringUpReport>) {
    let trigger = match action {
        Action::BringUp => Trigger::Death { who: "watched".to_owned() },
        Action::Up => Trigger::Up,
        _ => return (ask(sim, world, session, action).await, None),
    };
    let _turn = turn.lock().await;
    (Ok(()), Some(driver::bring_up(world, session, trigger).await))
}

async fn ask(sim: &Sim, world: &SimWorld, session: &Session, action: &Action) -> Result<(), RequestError> {
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
        Action::TakeDown => driver::take_down(world, session, false).await.map(drop),
        // Not requests: they never fail as a whole.
        Action::BringUp | Action::Up => Ok(()),
        Action::Strike(kind) => {
            sim.strike(kind);
            // A daemon that killed itself goes no further.
            world.sleep(Span(1)).await;
            Ok(())
        }
    }
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
